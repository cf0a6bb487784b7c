"""Tests of graph/fusion/horizontal/join_column_sums.py: sums that a kernel of rows takes in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.core.dtype import decode
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Schedule, params_of
from fulgurite.graph.ir.lower import lower
from fulgurite.runtime.host.index_interpreter import Runner
from fulgurite.runtime.pipeline import Context, schedule_of
from fulgurite.tensor import wrap

pytestmark = pytest.mark.device("none")
Array = np.ndarray[Any, Any]


def computed(roots: list[fg.Tensor], joins: bool) -> tuple[Schedule, list[Array]]:
    """The schedule of some values, and those, by the meaning of its kernels."""
    normal = normalize([root.entry.node for root in roots])
    sink = restore(normal.structure, normal.constants, {}, normal.nodes)
    with fg.config(tier="native"):
        found = schedule_of(sink, Context(current(), "cpu", len(normal.buffers), joins=joins))
    memory: dict[int, Array] = {i: wrap(b).numpy() for i, b in enumerate(normal.buffers)}
    for place, slot in enumerate(found.slots):
        if slot is not None and slot.bits is not None:
            memory[place] = np.asarray(decode(slot.bits, slot.dtype), slot.dtype.numpy)
    for item in found.items:
        params = params_of(item.kernel)
        for place, param in zip(item.writes, params[item.kernel.inputs :], strict=True):
            shape: Any = param.shape
            memory[place] = np.zeros(shape, param.dtype.numpy)
        given = [memory[place].reshape(-1) for place in (*item.reads, *item.writes)]
        Runner(lower(item.kernel.body, item.kernel.inputs)).run(given, {})
    return found, [memory[place] for place in found.outputs]


def numbers(seed: int, *shape: int) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def gradients(rows: int, columns: int) -> list[fg.Tensor]:
    """Of a normalisation with a bias before it, and the scale after a step."""
    given = numbers(0, 4, rows, columns), *[numbers(i, columns) for i in (1, 2, 3)]

    def loss(x: fg.Tensor, bias: fg.Tensor, scale: fg.Tensor, shift: fg.Tensor) -> fg.Tensor:
        y = fg.layer_norm(x + bias, (columns,), scale, shift)
        return (y * numbers(7, 4, rows, columns)).sum()

    found = list(fg.grad(loss, (0, 1, 2, 3))(*given))
    return [*found, given[2] - found[2] * (numbers(9, 1).square().sum() + 1.0)]


def test_gradients_of_scale_shift_and_bias_are_part_of_the_rows_kernel() -> None:
    joined, values = computed(gradients(256, 64), joins=True)
    apart, wanted = computed(gradients(256, 64), joins=False)
    assert len(joined.items) < len(apart.items)
    (host,) = [item for item in joined.items if len(item.writes) >= 4]
    shapes = {p.shape for p in params_of(host.kernel)[host.kernel.inputs :]}
    assert (4, 256, 64) in shapes and (1, 1, 64) in shapes
    for got, want in zip(values, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (256, 8)])
def test_few_rows_or_columns_stay_apart(rows: int, columns: int) -> None:
    joined, apart = (computed(gradients(rows, columns), joins)[0] for joins in (True, False))
    assert len(joined.items) == len(apart.items)


def test_a_sum_that_follows_from_the_rows_by_another_kernel_stays_apart() -> None:
    x, w = numbers(0, 1024, 64), numbers(1, 64, 64)
    y = fg.softmax(x, axis=-1).contiguous()
    z = (y @ w).contiguous()
    total = (z * z.sum()).sum(axis=0) + y.sum(axis=0)  # of what is computed from all rows
    found, (got, _) = computed([total, y], joins=True)
    want = computed([total, y], joins=False)[1][0]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    assert all(len(item.writes) == 1 for item in found.items)
