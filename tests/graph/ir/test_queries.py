"""Tests of graph/ir/queries.py: bytes put together that are one wide load."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.queries import combined_loads
from fulgurite.kernel.transform.merge_axes import merge_axes

pytest.importorskip("llvmlite")


def bytes_of(x: fg.Tensor) -> list[int]:
    """How many loads each number has that one wide load may stand for."""
    items = fg.schedule(x).items
    kernel = merge_axes(lower(items[0].kernel.body, items[0].kernel.inputs))
    return [len(loads) for loads in combined_loads(toposort([kernel.body])).values()]


def joined(b: fg.Tensor, dtype: object, places: tuple[int, ...]) -> fg.Tensor:
    found = b[..., places[0] :: len(places)].astype(dtype)
    for shift, place in enumerate(places[1:], start=1):
        found = found | (b[..., place :: len(places)].astype(dtype) << 8 * shift)
    return found


def test_neighbours_in_order_are_one_load_and_nothing_else_is() -> None:
    with fg.config(device="cpu", tier="native"):
        b = fg.Tensor(np.arange(96, dtype=np.uint8).reshape(4, 24)).realize()
        assert bytes_of(joined(b, fg.uint32, (0, 1, 2, 3))) == [4]
        assert bytes_of(joined(b, fg.uint16, (0, 1))) == [2]
        assert bytes_of(joined(b, fg.uint16, (1, 0))) == []  # the other way round
        assert bytes_of(joined(b, fg.uint32, (0, 1))) == []  # half of a number
        assert bytes_of(joined(b[1:], fg.uint16, (0, 1)) | 1) == [2]


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_wide_numbers_are_read_wherever_they_lie(start: int, dtype: type) -> None:
    width = np.dtype(dtype).itemsize
    raw = np.random.default_rng(start).integers(0, 256, (5, 3, 35), dtype=np.uint8)
    with fg.config(device="cpu", tier="native"):
        b = fg.Tensor(raw)[..., start : start + 32]
        found = joined(b, fg.Tensor(np.zeros(1, dtype)).dtype, tuple(range(width)))
        inside: Any = np.ascontiguousarray(raw[..., start : start + 32]).view(dtype)
        assert np.array_equal(found.numpy(), inside)
        assert np.array_equal(found.sum(axis=-1).numpy(), inside.sum(axis=-1, dtype=np.uint32))
        scaled = (found[..., 1:2] * found).sum(axis=(-2, -1)).numpy()  # one number, and lanes
        wanted = (inside[..., 1:2] * inside).sum(axis=(-2, -1), dtype=np.uint32)
        assert np.array_equal(scaled, wanted)
