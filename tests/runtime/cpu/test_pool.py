"""Tests of fulgurite/runtime/cpu/pool.py and fulgurite/memory.py: pooled blocks."""

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.runtime.cpu.pool import (
    ALIGN,
    FEW,
    HUGE,
    IDLE,
    POOL,
    SLAB,
    Block,
    BlockBuffer,
    FewSpares,
    MemoryPool,
    Spares,
    size_class,
    spares_for,
)
from fulgurite.runtime.device import MemoryLimitError, get_device


@given(st.integers(0, 1 << 40))
def test_a_size_class_holds_what_was_asked_and_wastes_at_most_an_eighth(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= max(nbytes + nbytes // 8 + 1, nbytes + 63)
    assert size_class(size) == size


def test_blocks_are_aligned_counted_and_reused() -> None:
    pool = MemoryPool()
    first = pool.block(1000)
    address = first.address
    assert address % ALIGN == 0 and pool.stats.used >= 1000 and pool.stats.fresh == 1
    del first
    assert pool.stats.used == 0 and pool.stats.idle >= 1000
    again = pool.block(1000)
    assert again.address == address and pool.stats.reused == 1 and pool.stats.idle == 0
    assert pool.stats.peak == pool.stats.used


def test_values_that_stay_share_huge_pages_which_go_with_the_last_of_them() -> None:
    pool = MemoryPool()
    sizes = [1000, 64, SLAB // 2, 3, SLAB // 4, SLAB // 2, 1]
    blocks = [pool.lasting(n) for n in sizes]
    assert blocks[0].address % HUGE == 0 and all(b.address % ALIGN == 0 for b in blocks)
    for number, block in enumerate(blocks):
        block.bytes()[:] = number + 1
    for number, (block, size) in enumerate(zip(blocks, sizes, strict=True)):
        assert block.nbytes == size and (block.bytes() == number + 1).all()
    assert len({id(b.raw.memory) for b in blocks}) == 2  # slabs
    used, slab = pool.stats.used, weakref.ref(blocks[0].raw.memory)
    assert used >= sum(sizes) and pool.stats.peak == used and pool.stats.idle == 0
    view = blocks[0].bytes()[3:]
    del block, blocks
    assert slab() is not None and (view == 1).all() and 0 < pool.stats.used < used
    del view
    assert slab() is None and pool.stats.used == pool.stats.idle == 0
    large = pool.lasting(SLAB)  # has pages of its own
    assert large.bytes().size == SLAB
    del large
    assert pool.stats.idle > SLAB
    pool.lasting(64)
    pool.empty()
    assert pool._slab is None


@pytest.mark.parametrize("nbytes", [HUGE // 2, HUGE, 5 * HUGE // 4, 3 * HUGE // 2, 9 * HUGE + 1])
def test_blocks_have_huge_pages_of_their_own_where_these_are_filled(nbytes: int) -> None:
    pool = MemoryPool()
    for raw, slack in ((pool.take(pool.size_of(nbytes)), 8), (pool.block(nbytes).raw, 2)):
        pages = -(-raw.size // HUGE) * HUGE
        filled = raw.size >= HUGE and slack * (pages - raw.size) <= raw.size
        assert raw.size == pool.size_of(nbytes) and raw.address % (HUGE if filled else ALIGN) == 0
        room = pages if filled else nbytes
        assert 0 <= raw.before <= raw.before + room <= raw.memory.size
        assert raw.memory.size <= raw.size if not filled else raw.memory.size == pages + HUGE
        raw.memory[raw.before : raw.before + nbytes] = 1


def test_a_block_stays_taken_while_an_array_over_it_lives() -> None:
    pool = MemoryPool()
    buffer = BlockBuffer(pool.take(pool.size_of(64)), 64, (4, 4), np.dtype("float32"))
    buffer._give_back = pool.give_back
    view = buffer.array[1:, ::2]
    view[...] = 7
    del buffer
    gc.collect()
    other = pool.block(64)
    other.bytes()[:] = 0
    assert (view == 7).all()
    del view
    assert pool.stats.idle > 0


def test_what_is_idle_goes_back_to_the_system_when_asked() -> None:
    pool = MemoryPool()
    pool.block(5000)
    assert pool.empty() > 5000 and pool.stats.idle == 0 and pool.stats.used == 0


def test_the_pool_keeps_no_more_than_its_bound() -> None:
    pool = MemoryPool()
    pool.most = 1 << 16
    blocks = [pool.block(10_000) for _ in range(20)]
    del blocks
    assert 0 < pool.stats.idle <= 1 << 16 and pool.stats.used == 0


def test_memory_that_cannot_be_had_is_an_error_with_a_hint() -> None:
    with pytest.raises(MemoryLimitError, match="free some"):
        MemoryPool().block(1 << 62)


def test_threads_take_and_give_back_without_losing_count() -> None:
    pool = MemoryPool()

    def work() -> None:
        for i in range(2000):
            pool.block(i % 777).bytes()[:] = 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stats.used == 0 and pool.stats.idle <= IDLE
    assert pool.stats.fresh + pool.stats.reused == 16_000


def test_users_see_what_is_used_and_can_give_it_back() -> None:
    with fg.config(device="cpu"):
        before = fg.memory_stats(reset_peak=True)["used"]
        x = fg.Tensor(np.ones(1 << 18, np.float32)).realize()
        assert fg.memory_stats()["used"] - before >= 1 << 20
        y = (x * 2).realize()
        assert fg.memory_stats()["peak"] - before >= 2 << 20
        del x, y
        gc.collect()
        fg.empty_cache()
        assert fg.memory_stats()["idle"] == 0
        assert fg.memory_stats()["used"] < before + 4096  # a plan keeps its own constants
        fg.synchronize()


def test_small_results_leave_their_memory_to_the_next_run_of_their_program() -> None:
    with fg.config(device="cpu", tier="native"):
        x = np.arange(64, dtype=np.float32)
        plan = fg.schedule(fg.Tensor(x) + 1).compile()
        inputs = [get_device("cpu").from_host(x)]
        used = fg.memory_stats()["used"]
        first: Any = plan.run(inputs)[0]
        address = first.address
        del first
        again: Any = plan.run(inputs)[0]
        assert again.address == address, "taken again"
        other: Any = plan.run(inputs)[0]
        assert other.address != address, "while it is held"
        view = other.array[3:]
        del again, other
        fg.empty_cache()
        third: Any = plan.run(inputs)[0]
        assert (view == x[3:] + 1).all() and (third.array == x + 1).all()
        del view, third
        fg.empty_cache()
        assert fg.memory_stats()["used"] <= used, "nothing is lost to the pool's count"


def test_of_larger_results_a_program_keeps_a_few_and_the_pool_the_others() -> None:
    with fg.config(device="cpu", tier="native"):
        x = np.arange(8000, dtype=np.float32)
        plan = fg.schedule(fg.Tensor(x) + 1).compile()
        inputs = [get_device("cpu").from_host(x)]
        executor: Any = plan.executor
        first: Any = plan.run(inputs)[0]
        address = first.address
        del first
        reused = POOL.stats.reused
        again: Any = plan.run(inputs)[0]
        assert again.address == address and POOL.stats.reused == reused, "the pool was not asked"
        held = [again, *[plan.run(inputs)[0] for _ in range(9)]]
        assert executor.spared() == 0
        idle = POOL.stats.idle
        del again, held
        size = POOL.size_of(x.nbytes)
        assert executor.spared() == FEW * size and POOL.stats.idle == idle + (10 - FEW) * size
        large = fg.schedule(fg.Tensor(np.ones(1 << 15, np.float32)) + 1).compile()
        large.run([get_device("cpu").from_host(np.ones(1 << 15, np.float32))])
        kept: Any = large.executor
        assert kept.spared() == 0, "more than a few pages go to the pool"
        fg.empty_cache()
        assert executor.spared() == 0


def test_one_of_many_sizes_keeps_no_larger_results() -> None:
    assert isinstance(spares_for(1 << 15, once=True), FewSpares)
    assert spares_for(1 << 15, once=False) is None and type(spares_for(64, once=False)) is Spares


def test_memory_that_small_results_left_is_idle() -> None:
    with fg.config(device="cpu", tier="native"):
        plan = fg.schedule(fg.Tensor(np.ones(900, np.float32)) + 1)
        for _ in range(6):
            plan.run()
        before = fg.memory_stats()
        held = [plan.run() for _ in range(100)]
        assert fg.memory_stats()["used"] - before["used"] > 90 * 3600
        del held
        after = fg.memory_stats()
        assert after["used"] == before["used"] and after["idle"] - before["idle"] > 90 * 3600
        assert fg.empty_cache() > 90 * 3600 and fg.memory_stats()["idle"] == 0


@pytest.mark.parametrize("poison", [False, True])
def test_runs_whose_results_are_dropped_take_no_more_and_no_more_memory(poison: bool) -> None:
    with fg.config(device="cpu", tier="native"):
        x = np.arange(64, dtype=np.float32)
        plan = fg.schedule(fg.Tensor(x) + 1, fg.Tensor(x) * 2).compile()
        inputs = [get_device("cpu").from_host(x) for _ in range(2)]
        plan.run(inputs, poison=poison)
        used = fg.memory_stats()["used"]
        for _ in range(50):
            plan.run(inputs, poison=poison)
        assert fg.memory_stats()["used"] == used


def test_memory_of_results_that_outlive_their_program_comes_back_to_the_pool() -> None:
    pool_before = POOL.stats.used
    spares = Spares()
    held = BlockBuffer(POOL.take(POOL.size_of(64)), 64, (16,), np.dtype("f4"), spares.append)
    del spares
    assert POOL.stats.used > pool_before
    del held
    assert POOL.stats.used == pool_before


def test_what_was_interrupted_while_it_was_made_goes_without_a_word() -> None:
    kinds: tuple[Any, ...] = (Block, BlockBuffer)
    for kind in kinds:
        kind.__new__(kind).__del__()


def _is_free_elsewhere(lock: Any) -> bool:
    """True if another thread gets a lock."""

    def get() -> bool:
        got: bool = lock.acquire(blocking=False)
        if got:
            lock.release()
        return got

    with ThreadPoolExecutor(1) as other:
        return other.submit(get).result()


def test_an_interrupt_leaves_memory_with_who_had_it_or_with_its_array() -> None:
    left = 0

    def stop(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if frame.f_code.co_filename == __file__ or event not in ("call", "c_return"):
            return  # no interrupt comes before a call in C: one before `__exit__` would keep a lock
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    used = POOL.stats.used
    interrupted = 0
    for calls in range(1, 30):
        raw = POOL.take(POOL.size_of(4000))
        buffer = BlockBuffer(raw, 4000, (1000,), np.dtype(np.float32))
        left = calls
        sys.setprofile(stop)
        try:
            buffer.array.fill(0)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.setprofile(None)
        array = buffer.array
        array[:] = calls
        assert array.__array_interface__["data"][0] == raw.address == buffer.address
        del buffer
        assert POOL.stats.used > used, "an array has it"
        del array
        assert POOL.stats.used == used, "given back once"
    assert 4 < interrupted < 29
    assert _is_free_elsewhere(POOL.lock)
