"""Tests of graph/memory/arena.py: values alive together never overlap, and peak is known."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import float32
from fulgurite.core.node import Node
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.core.ops.movement import expand, permute, reshape
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.graph.ir.kernel import Kernel, Schedule
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.graph.ir.lower import lower_kernel
from fulgurite.graph.memory.arena import plan_memory, replaceable, slot_bytes

pytestmark = pytest.mark.device("none")


def deep(layers: int, width: int = 16) -> Schedule:
    x = fg.Tensor(np.ones((width, width), np.float32))
    for _ in range(layers):
        x = fg.softmax(x, axis=-1) @ x + x
    return fg.schedule(x).compile().schedule


def lives(schedule: Schedule) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for number, item in enumerate(schedule.items):
        for slot in (*item.writes, *[s for s in item.reads if s in found]):
            found[slot] = (found.get(slot, (number, number))[0], number)
    return found


@pytest.mark.parametrize("layers", [1, 2, 7])
def test_values_alive_at_the_same_time_never_overlap(layers: int) -> None:
    schedule = deep(layers)
    layout, alive = plan_memory(schedule, 64), lives(schedule)
    places = sorted(layout.offsets)
    for i, a in enumerate(places):
        for b in places[i + 1 :]:
            together = alive[a][0] < alive[b][1] and alive[b][0] < alive[a][1]
            if together:
                first, second = sorted((a, b), key=layout.offsets.__getitem__)
                slot = schedule.slots[first]
                assert slot is not None
                end = layout.offsets[first] + slot_bytes(slot)
                assert end <= layout.offsets[second]


def test_the_arena_does_not_grow_with_depth() -> None:
    assert plan_memory(deep(24), 64).arena_bytes == plan_memory(deep(12), 64).arena_bytes


def test_results_and_inputs_are_outside_the_arena() -> None:
    schedule = deep(2)
    layout = plan_memory(schedule, 64)
    assert not set(schedule.outputs) & set(layout.offsets)
    assert all(slot >= schedule.inputs for slot in layout.offsets)
    assert layout.peak_bytes == layout.input_bytes + layout.output_bytes + layout.arena_bytes


def test_a_reduction_may_write_over_what_it_reads_beside_its_folds_alone() -> None:
    x, y = param(0, (6, 10), float32), param(1, (6, 10), float32)
    total = expand(reduce_node("add", x, (1,)), (6, 10))

    def pairs(root: Node) -> frozenset[tuple[int, int]]:
        return replaceable(lower_kernel(Kernel(KernelKind.REDUCE, SINK(root), 2)))

    assert pairs(total - y) == {(1, 2)}
    assert pairs(total - x * y) == {(1, 2)}  # of x a fold reads whole rows
    assert not pairs(total - permute(reshape(y, (10, 6)), (1, 0)))
