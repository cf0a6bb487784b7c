"""Tests of graph/memory/arena.py: values alive together never overlap, and peak is known."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.memory.arena import plan_memory, slot_bytes

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
