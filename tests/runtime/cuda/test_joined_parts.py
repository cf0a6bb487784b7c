"""Parts of a joined array are stored where it has them, on a GPU's plans."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cuda import tiling
from fulgurite.config import current
from fulgurite.core.node import Node, toposort
from fulgurite.graph.ir.cache_key import Normal, normalize, restore
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.graph.memory.arena import bytes_moved, plan_memory
from fulgurite.kernel.contract.concat_in_place import parts_of
from fulgurite.runtime import pipeline
from fulgurite.runtime.cache.plan_io import dump, load_plan
from fulgurite.runtime.device import get_device
from fulgurite.runtime.incremental import Incremental
from fulgurite.runtime.pipeline import Context, schedule_of
from fulgurite.runtime.plan import without_joints

pytestmark = pytest.mark.device("reference")
BATCH, LENGTH, HEADS, WIDTH = 2, 71, 2, 16


def gradients(device: str) -> list[fg.Tensor]:
    """Those of a projection to queries, keys and values, and of what comes in."""
    rng = np.random.default_rng(0)
    size = HEADS * WIDTH

    def normal(*shape: int) -> fg.Tensor:
        values = rng.standard_normal(shape).astype(np.float32)
        return fg.Tensor(values, device=device).realize()

    x, w, b, g = (
        normal(BATCH, LENGTH, size), normal(3 * size, size), normal(3 * size),
        normal(BATCH, LENGTH, size),
    )  # fmt: skip

    def loss(x: fg.Tensor, w: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
        with fg.autocast("bfloat16"):
            parts = (x @ w.T + b.astype("bfloat16")).reshape(BATCH, LENGTH, 3, HEADS, WIDTH)
            q, k, v = fg.unstack(parts.permute(2, 0, 3, 1, 4))
            seen = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (seen.permute(0, 2, 1, 3).reshape(BATCH, LENGTH, size) * g).sum()

    with fg.config(device=device):
        return list(fg.grad(loss, (0, 1, 2))(x, w, b))


def normal_of(results: list[fg.Tensor]) -> tuple[Normal, Node, Context]:
    """The graph of some results, and what passes know of it."""
    normal = normalize([r.entry.node for r in results])
    graph = restore(normal.structure, normal.constants, {}, normal.nodes)
    return normal, graph, Context(current(), "cuda", len(normal.buffers))


def planned(results: list[fg.Tensor]) -> Schedule:
    """The kernels of some results, joints among them."""
    _, graph, context = normal_of(results)
    return schedule_of(graph, context)


def test_gradients_of_attention_are_stored_in_that_of_its_projection(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = planned(gradients("cuda"))
    assert len(schedule.joined) == 3 and len({whole for _, whole in schedule.joined}) == 1
    layout = plan_memory(schedule, 256)
    places = {layout.offsets[slot] for pair in schedule.joined for slot in pair}
    assert len(places) == 1
    # an array is there with its last part, and not before
    assert plan_memory(without_joints(schedule), 256).offsets == layout.offsets
    apart = tiling.HOPPER
    monkeypatch.setattr(tiling, "HOPPER", replace(apart, joined_in_place=False))
    before = planned(gradients("cuda"))
    assert not before.joined and without_joints(before) is before
    assert len(without_joints(schedule).items) == len(before.items) - 1
    assert [i.kernel.kind for i in schedule.items] == [i.kernel.kind for i in before.items]
    moved = [sum([bytes_moved(s, i) for i in without_joints(s).items]) for s in (schedule, before)]
    whole = BATCH * LENGTH * 3 * HEADS * WIDTH * 2
    assert moved[1] - moved[0] == 2 * whole
    # three parts and the array itself were alive at the joint, and now the array alone
    assert layout.arena_bytes <= plan_memory(before, 256).arena_bytes


def test_values_are_those_of_parts_that_are_joined_by_a_copy(
    gpu: Any, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [g.numpy() for g in gradients("cuda")]
    monkeypatch.setattr(tiling, "HOPPER", replace(tiling.HOPPER, joined_in_place=False))
    for got, want in zip(found, [g.numpy() for g in gradients("cuda")], strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(found, [g.numpy() for g in gradients("reference")], strict=True):
        np.testing.assert_allclose(got, want, rtol=0.05, atol=0.05 * np.abs(want).max())


def test_a_plan_from_the_disk_knows_that_parts_are_one_and_is_not_run_in_pieces(gpu: Any) -> None:
    normal, graph, context = normal_of(gradients("cuda"))
    plan, _ = pipeline.planned(graph, context)
    loaded = load_plan(dump(plan, normal), normal, "cuda")
    assert loaded is not None
    assert plan.schedule.joined and loaded.schedule.joined == plan.schedule.joined
    assert not Incremental(plan).can_keep and not Incremental(loaded).can_keep


def kernel_of(value: fg.Tensor) -> Any:
    """The only kernel of a value."""
    (item,) = fg.schedule(value).items
    assert item.kernel.kind is KernelKind.MAP
    return item.kernel


def test_a_joint_is_a_sum_of_parts_side_by_side_along_one_axis() -> None:
    a, b = (fg.Tensor(np.ones((4, 3, 32), np.float32)) for _ in range(2))

    def padded(x: fg.Tensor, *pads: tuple[int, int]) -> fg.Tensor:
        return fg.pad(x, pads)

    with fg.config(device="reference", tier="native"):
        joined = padded(a, (0, 0), (0, 3), (0, 0)) + padded(b, (0, 0), (3, 0), (0, 0))
        assert len(parts_of(kernel_of(joined))) == 2
        assert len(parts_of(kernel_of(fg.permute_dims(joined, (1, 0, 2)) + 0))) in (0, 2)
        over = padded(a, (0, 0), (0, 2), (0, 0)) + padded(b, (0, 0), (2, 0), (0, 0))
        assert not parts_of(kernel_of(over))  # they overlap
        gap = padded(a, (0, 0), (0, 4), (0, 0)) + padded(b, (0, 0), (4, 0), (0, 0))
        assert not parts_of(kernel_of(gap))  # there are zeros between
        both = padded(a, (0, 4), (0, 3), (0, 0)) + padded(b, (4, 0), (3, 0), (0, 0))
        assert not parts_of(kernel_of(both))
        assert not parts_of(kernel_of(joined * 2))  # it is more than a copy
        turned = fg.permute_dims(joined, (0, 2, 1)).contiguous()
        assert not parts_of(kernel_of(turned))  # rows would be columns
        twice = padded(a, (0, 0), (0, 3), (0, 0)) + padded(a, (0, 0), (3, 0), (0, 0))
        assert not parts_of(kernel_of(twice))  # one value at two places
        assert all([node.op.name for node in toposort([joined.node])])


def test_an_array_of_joined_parts_is_no_part_of_another_one() -> None:
    first, second, third = (
        fg.Tensor(np.full((rows, 32), rows, np.float32), device="reference").realize()
        for rows in (4, 5, 6)
    )
    stored = [(x + 1).contiguous() for x in (first, second, third)]
    inner = (fg.pad(stored[0], ((0, 5), (0, 0))) + fg.pad(stored[1], ((4, 0), (0, 0)))).contiguous()
    outer = (fg.pad(stored[2], ((0, 9), (0, 0))) + fg.pad(inner, ((6, 0), (0, 0)))).contiguous()
    product = outer @ fg.permute_dims(outer, (1, 0))
    with fg.config(device="reference", tier="native"):
        normal = normalize([product.node])
        graph = restore(normal.structure, normal.constants, {}, normal.nodes)
        context = Context(current(), "reference", len(normal.buffers), joins=True)
        plan, _ = pipeline.planned(graph, context)
    joined = plan.schedule.joined
    assert len(joined) == 2 and {part for part, _ in joined}.isdisjoint(dict(joined).values())
    device = get_device("reference")
    inputs = [normal.buffers.index(x.node) for x in (first, second, third)]
    arrays = [np.full((rows, 32), rows, np.float32) for rows in (4, 5, 6)]
    given = [device.from_host(arrays[inputs.index(n)]) for n in range(3)]
    (result,) = plan.run(given, normal.values, poison=True)
    want = np.concatenate([arrays[2], arrays[0], arrays[1]]) + 1
    got = device.to_host(result, (15, 15), product.dtype)
    np.testing.assert_array_equal(got, want @ want.T)
