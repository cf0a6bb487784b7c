"""A GPT training step as one graph: few kernels, nothing done twice, and the right numbers."""

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from bench.models import GPT
from bench.schedule import our_step, work_ratio
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.memory.arena import plan_memory
from fulgurite.graph.passes.simplify import simplify
from fulgurite.runtime.device import get_device
from fulgurite.runtime.host.evaluate import evaluate
from fulgurite.runtime.realize import storage_of
from tests.graph.scheduling import schedule


@pytest.fixture(scope="module")
def step() -> tuple[Schedule, Any]:
    """The schedule of the benchmark's training step, and the graph it was made of."""
    tensors = our_step(GPT())()
    normal = normalize([t.node for t in tensors])
    sink = simplify(restore(normal.structure, normal.constants))
    return schedule(sink, len(normal.buffers)), sink


@pytest.mark.device("none")
def test_it_is_at_most_140_kernels_of_which_40_are_distinct(step: tuple[Schedule, Any]) -> None:
    items = step[0].items
    assert len(items) <= 140
    assert len({item.kernel for item in items}) <= 40


def test_no_division_is_left_in_any_index(step: tuple[Schedule, Any]) -> None:
    kernels = {item.kernel for item in step[0].items}
    assert sum(lower(k.body, k.inputs).divisions for k in kernels) == 0


def test_kernels_do_the_work_of_the_graph_and_no_more(step: tuple[Schedule, Any]) -> None:
    assert work_ratio(*step) <= 1.02


def test_the_arena_is_near_the_largest_live_set(step: tuple[Schedule, Any]) -> None:
    layout = plan_memory(step[0], 64)
    assert layout.live_bytes <= layout.arena_bytes <= 1.3 * layout.live_bytes


@pytest.mark.device("none")
def test_twelve_layers_are_the_same_kernels_as_four() -> None:
    def distinct(layers: int) -> int:
        tensors = our_step(GPT(layers=layers, width=32, heads=2, length=8, vocabulary=16))()
        normal = normalize([t.node for t in tensors])
        found = schedule(restore(normal.structure, normal.constants), len(normal.buffers))
        return len({item.kernel for item in found.items})

    assert distinct(12) == distinct(4)


def test_a_small_step_gives_the_reference_evaluators_numbers() -> None:
    model = GPT(layers=2, width=16, heads=2, length=8, batch=2, vocabulary=11)
    tensors = our_step(model)()
    roots = [t.node for t in tensors]
    arrays = {
        b: get_device(b.device or "").to_host(storage_of(b), b.shape, b.dtype)  # type: ignore[arg-type]
        for b in normalize(roots).buffers
    }
    expected = evaluate(roots, arrays)
    fg.realize(*tensors)
    loss, *updates = zip(tensors, expected, strict=True)
    assert float(loss[0]) == pytest.approx(float(loss[1]), rel=1e-5)
    for tensor, right in updates:
        np.testing.assert_allclose(tensor.numpy(), right, rtol=2e-3, atol=2e-6)


@pytest.mark.device("cpu")
def test_a_small_step_with_rows_of_one_vector_is_the_reference_devices() -> None:

    def numbers(device: str) -> list[Any]:
        with fg.config(device=device, tier="native"):
            fg.random.seed(0)
            shape = GPT(layers=1, width=16, heads=2, length=16, vocabulary=16)
            return [t.numpy() for t in our_step(shape)()]

    for found, meant in zip(numbers("cpu"), numbers("reference"), strict=True):
        np.testing.assert_allclose(found, meant, rtol=1e-3, atol=1e-5)
