"""Tests of fulgurite/runtime/cuda/staging.py: copies beside kernels, over a fake libcuda.

The fake does the work of streams in any order that events allow: a copy that is too early, into
memory that a kernel still reads or from pinned memory that is written again, gives wrong values.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.cuda import staging

pytestmark = pytest.mark.usefixtures("gpu")
ROWS = 40  # of 1000 float32: 160,000 bytes


def batch(number: int, rows: int = ROWS) -> Any:
    return np.full((rows, 1000), float(number), np.float32)


def test_batches_that_take_turns_have_their_own_values_and_wait_for_no_kernel(
    library: ctypes.CDLL,
) -> None:
    step = fg.jit(lambda x: x.sum(axis=1) + x.max())
    sums = []
    for number in range(6):
        sums.append(step(fg.Tensor(batch(number))))
    before = {name: library.fake_count(name.encode()) for name in ("waits", "beside")}
    for number in range(6, 30):
        sums.append(step(fg.Tensor(batch(number))))  # the batch before is nobody's from here on
    after = {name: library.fake_count(name.encode()) for name in before}
    assert after["waits"] == before["waits"]
    assert after["beside"] - before["beside"] >= 24
    for number, found in enumerate(sums):
        np.testing.assert_array_equal(found.numpy(), np.full(ROWS, 1001.0 * number, np.float32))


def test_an_array_may_be_written_over_as_soon_as_it_is_a_tensor(
    gpu: Any, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [1 << 16, 5000, 1 << 15, 1 << 14]  # a chunk is as long as its slot
    small = [staging.Slot(gpu.driver, nbytes) for nbytes in sizes]
    monkeypatch.setattr(gpu.copies, "slots", small)
    monkeypatch.setattr(gpu.copies, "turn", 0)
    array = np.arange(300_000, dtype=np.float32)
    want = array.copy()
    before = library.fake_count(b"beside")
    x = fg.Tensor(array).realize()
    assert library.fake_count(b"beside") - before == 41  # ten turns of all slots, and one more
    y = x + 0
    array[:] = -1
    np.testing.assert_array_equal(y.numpy(), want)
    np.testing.assert_array_equal(x.numpy(), want)


def test_blocks_take_turns_and_go_to_everybody_when_memory_is_asked_for(gpu: Any) -> None:
    gc.collect()
    gpu.empty_cache()
    before = gpu.memory_stats()
    for number in range(20):
        x = fg.Tensor(batch(number)).realize()
    gpu.synchronize()
    del x
    gc.collect()
    after = gpu.memory_stats()
    assert after["used"] == before["used"]
    assert after["fresh"] - before["fresh"] <= staging.PARKED + 1
    gpu.empty_cache()
    assert gpu.memory_stats()["idle"] == 0


def test_without_memory_beside_the_pool_an_array_is_copied_in_order(
    gpu: Any, library: ctypes.CDLL
) -> None:
    gc.collect()
    gpu.empty_cache()
    x = fg.Tensor(batch(3, 70)).realize()  # the pool has its blocks by now
    del x
    gc.collect()
    library.fake_fail(b"cuMemAllocFromPoolAsync", 0, 2)
    with pytest.raises(MemoryError):
        fg.Tensor(batch(4, 900)).realize()
    library.fake_fail(b"", 0, 0)
    np.testing.assert_array_equal(fg.Tensor(batch(5, 900)).numpy(), batch(5, 900))
