"""Tests of fulgurite/runtime/views.py: contiguous slices share memory, others do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.realize import storage_of, value_node
from fulgurite.runtime.views import piece


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
