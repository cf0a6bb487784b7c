"""Tests of fulgurite/runtime/views.py: contiguous slices share memory, others do not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.ir.registry import REGISTRY
from fulgurite.runtime.realize import storage_of, value_node
from fulgurite.runtime.views import piece
from tests.threads import together


def memory(x: fg.Tensor) -> range:
    """The addresses of a tensor's bytes."""
    node = value_node(x.node)
    assert node is not None
    found = storage_of(node)
    return range(found.address, found.address + found.nbytes)


def share_memory(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_contiguous_slice_of_a_large_buffer_is_no_copy(device: str) -> None:
    with fg.config(device=device):
        array = np.arange(1 << 18, dtype=np.float32).reshape(64, 64, 64)
        x = fg.Tensor(array)
        part = x[3:40].realize()
        assert share_memory(memory(x), memory(part))
        np.testing.assert_array_equal(part.numpy(), array[3:40])
        np.testing.assert_array_equal((part * 2).numpy(), array[3:40] * 2)
        x[3:40] = 0
        x += 1
        np.testing.assert_array_equal(part.numpy(), array[3:40])
        del x
        np.testing.assert_array_equal(part.numpy(), array[3:40])
        part[0] = 5
        assert part.numpy()[0, 0, 0] == 5


@pytest.mark.parametrize("key", [np.s_[::2], np.s_[:, 1:], np.s_[::-1], np.s_[2:4, :2]])
def test_what_is_not_contiguous_is_a_copy(key: Any) -> None:
    x = fg.Tensor(np.ones((512, 512), np.float32))
    assert not share_memory(memory(x), memory(x[key].realize()))


def test_small_pieces_are_copies() -> None:
    x = fg.Tensor(np.ones((512, 512), np.float32))
    assert not share_memory(memory(x), memory(x[5].realize()))


@pytest.mark.parametrize(
    ("key", "offset"),
    [
        (np.s_[2:5], 40),
        (np.s_[2], 40),
        (np.s_[1, 3:5], 32),
        (np.s_[1, 2, 1:3], 29),
        (np.s_[1:2, 3], 32),
    ],
)
def test_where_a_piece_begins(key: Any, offset: int) -> None:
    x = fg.Tensor(np.zeros((6, 5, 4), np.float32))
    found = piece(x[key].node)
    assert found is not None and found == (x.node, offset)
    assert piece(x.node) is None and piece((x + 1).node) is None


@pytest.mark.host_memory
def test_memory_that_the_user_can_write_to_is_copied_and_mapped_files_are_not(
    tmp_path: Path,
) -> None:
    array = np.arange(1 << 16, dtype=np.float32)
    part = fg.from_numpy(array)[100:50_000].realize()
    array[200] = -1
    assert part.numpy()[100] == 200, "a value that is known stays"
    np.arange(1 << 16, dtype=np.float32).tofile(tmp_path / "weights")
    mapped = np.memmap(tmp_path / "weights", np.float32, "r")
    shared = fg.from_numpy(mapped)[100:50_000].realize()
    assert np.shares_memory(mapped, np.asarray(shared))
    assert shared.numpy()[100] == 200


def test_what_can_be_written_to_by_another_way_is_copied() -> None:
    array, raw = np.zeros(1 << 16, np.float32), bytearray(1 << 18)
    shown = array.view()
    shown.flags.writeable = False
    through_bytes = np.frombuffer(memoryview(raw).toreadonly(), np.float32)
    parts = [fg.from_numpy(a)[100:50_000].realize() for a in (shown, through_bytes)]
    array[:] = 5
    raw[:] = b"\1" * len(raw)
    assert all([part.numpy().max() == 0 for part in parts]), "a value that is known stays"


def test_a_piece_counts_as_changed_only_if_it_was_assigned() -> None:
    x = (fg.zeros((1000, 64)) * 1).realize()
    part = x[100:900].realize()
    assert share_memory(memory(x), memory(part))
    plan = fg.schedule(part * 2)
    plan.run()
    plan.run(changed_only=True)
    assert plan.ran == ()
    x += 1
    plan.run(changed_only=True)
    assert plan.ran == ()
    part[0] = 3.0
    assert plan.run(changed_only=True)[0].numpy().max() == 6 and len(plan.ran) == 1


# --- parts that a tiny graph reads ---------------------------------------------------------------


@pytest.fixture
def tiny() -> Iterator[None]:
    """NumPy runs tiny graphs."""
    with fg.config(tier="auto"):
        yield


def compiled_for(read: Callable[[int], None], places: range) -> int:
    """How many plans some places make, each of which is compared with what NumPy reads."""
    fg.clear_caches()
    before = fg.cache_stats()["schedule"]["misses"]
    for place in places:
        read(place)
    return fg.cache_stats()["schedule"]["misses"] - before


@pytest.mark.device("cpu")
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "cut",
    [
        lambda a, k: a[k],
        lambda a, k: a[k].sum(),
        lambda a, k: a[-1 - k] * 2,
        lambda a, k: a[:, k % 16].max(),
        lambda a, k: a[k : k + 3].sum(0),
        lambda a, k: a[k : k + 3, k % 8 : k % 8 + 4] + a[k, 2],
        lambda a, k: a.T[k % 16] + 1,
        lambda a, k: a[k + 2 : k : -1].sum(0),
        lambda a, k: a[k][k % 5 : k % 5 + 2] * a[k + 1, 0],
    ],
)
def test_places_of_cuts_are_no_part_of_a_tiny_plan(cut: Callable[[Any, int], Any]) -> None:
    array = np.arange(48 * 16, dtype=np.float32).reshape(48, 16)
    a = fg.Tensor(array).realize()

    def read(k: int) -> None:
        np.testing.assert_array_equal(cut(a, k).numpy(), cut(array, k))

    assert compiled_for(read, range(30)) == 2, "as it is, then for any place"


@pytest.mark.device("cpu")
@pytest.mark.usefixtures("tiny")
def test_parts_of_a_larger_graph_are_cut_by_its_kernels() -> None:
    array = np.random.default_rng(0).standard_normal((20, 300, 300)).astype(np.float32)
    a = fg.Tensor(array).realize()

    def read(k: int) -> None:
        np.testing.assert_allclose((a[k] * 2).sum().numpy(), (array[k] * 2).sum(), rtol=1e-3)

    assert compiled_for(read, range(12)) <= 6


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("rows", [12, 4000])
def test_parts_of_what_is_assigned_are_of_their_own_version(rows: int) -> None:
    array = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
    a = fg.Tensor(array).realize()
    old = [(k, a[k] + a[k + 1], array[k] + array[k + 1]) for k in range(10)]
    for k in range(1, 10):
        a[k] = a[k - 1] * 0.5 + a[k]
        array[k] = array[k - 1] * 0.5 + array[k]
        if k % 3 == 0:
            a[k] += a[k, 0]
            array[k] += array[k, 0]
        np.testing.assert_array_equal(a[k].numpy(), array[k])
    for _, seen, expected in old:
        np.testing.assert_array_equal(seen.numpy(), expected)
    np.testing.assert_array_equal(a.numpy(), array)


@pytest.mark.device("cpu")
@pytest.mark.usefixtures("tiny")
def test_a_loop_that_assigns_rows_of_a_small_buffer_has_few_plans() -> None:
    array = np.ones((40, 8), np.float32)
    a = fg.Tensor(array).realize()

    def step(k: int) -> None:
        a[k + 1] = a[k] * 2 + 1
        array[k + 1] = array[k] * 2 + 1
        np.testing.assert_array_equal(a[k + 1].numpy(), array[k + 1])

    assert compiled_for(step, range(20)) <= 6
    np.testing.assert_array_equal(a.numpy(), array)


@pytest.mark.device("cpu")
@pytest.mark.usefixtures("tiny")
def test_a_part_keeps_no_memory_after_its_plan() -> None:
    a = fg.Tensor(np.ones((4096, 16), np.float32)).realize()
    results = [a[k].sum().realize() for k in range(5)]
    before = REGISTRY.buffer_count()
    pending = a[9] + 1
    assert float(pending.sum()) == 32 and REGISTRY.buffer_count() <= before + 1
    del pending
    shown = memory(a)
    a += 1
    assert share_memory(memory(a.realize()), shown), "nothing holds it, so it is written over"
    assert [float(r) for r in results] == [16.0] * 5


@pytest.mark.host_memory
@pytest.mark.usefixtures("tiny")
def test_memory_of_the_user_is_read_when_a_part_is_computed() -> None:
    array = np.zeros((8, 4), np.float32)
    a = fg.from_numpy(array)
    first, second = a[3].sum(), a[3]
    array[3] = 2
    assert float(first) == 8 and second.tolist() == [2] * 4
    array[3] = 5
    assert second.tolist() == [2] * 4 and float(a[3].sum()) == 20


@pytest.mark.usefixtures("tiny")
def test_gradients_of_parts_and_of_what_multiplies_them() -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    a, w = fg.Tensor(array).realize(), fg.Tensor([1.0, 2.0, 3.0]).realize()
    for k in range(4):
        by_w = fg.grad(lambda w, k=k: (a[k] * w * w).sum())(w)
        np.testing.assert_array_equal(by_w.numpy(), 2 * array[k] * [1, 2, 3])
        by_a = fg.grad(lambda a, k=k: (a[k] * a[k]).sum())(a)
        np.testing.assert_array_equal(by_a.numpy(), 2 * array * (np.arange(4) == k)[:, None])
        leaf = fg.Tensor(array, requires_grad=True)
        (leaf[k] * w).sum().backward()
        assert leaf.grad is not None and leaf.grad[k].tolist() == [1, 2, 3]


@pytest.mark.usefixtures("tiny")
def test_a_captured_function_reads_the_place_that_it_is_given() -> None:
    array = np.arange(24, dtype=np.float32).reshape(8, 3)
    a = fg.Tensor(array).realize()
    row = fg.jit(lambda x, k: x[k].sum() + x[k, 0])
    for k in [2, 2, 2, 5, 5, 2, -1, 0]:
        assert float(row(a, k)) == array[k].sum() + array[k, 0]


@pytest.mark.usefixtures("tiny")
def test_threads_that_read_parts_of_one_expression_agree() -> None:
    a = fg.Tensor(np.arange(64, dtype=np.float32).reshape(16, 4)).realize()
    for k in range(10):
        part = a[k]

        def times(n: int, part: fg.Tensor = part) -> Any:
            return (part * n).sum().item()

        assert together(4, times) == [n * (16 * k + 6) for n in range(4)]
