"""Tests of graph/passes/mask_from_result.py: whose condition is told by a result."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import bfloat16, float32
from fulgurite.core.node import constant, toposort
from fulgurite.core.ops.elementwise import LE, WHERE
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.graph.passes.mask_from_result import mask_from_result
from fulgurite.runtime.host.evaluate import evaluate

pytestmark = pytest.mark.device("none")
HOSTILE = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, np.inf, -np.inf, np.nan, 1e-39, 5.0, 2.5], np.float32
)


@pytest.mark.parametrize("dtype", [float32, bfloat16])
@pytest.mark.parametrize("low", [0.0, -0.0, 2.5])
def test_conditions_are_the_same_on_hostile_numbers(dtype: fg.DType, low: float) -> None:
    x, g = param(0, (12,), dtype), param(1, (12,), dtype)
    bound = constant(low, dtype, (12,))
    mask = LE(x, bound)
    y = WHERE(mask, bound, x)
    sink = SINK(y, WHERE(mask, bound, g))
    made = mask_from_result(sink, toposort([sink]))
    second = made.src[1].src[0]
    assert made.src[0] is y and second is not mask and second.src[0] is y
    given = {x: HOSTILE.astype(dtype.numpy), g: np.arange(12).astype(dtype.numpy)}
    for got, want in zip(evaluate(made.src, given), evaluate(sink.src, given), strict=True):
        assert got.tobytes() == want.tobytes()


def test_a_condition_that_only_its_result_reads_stays() -> None:
    x, bound = param(0, (4,), float32), constant(0.0, float32, (4,))
    sink = SINK(WHERE(LE(x, bound), bound, x))
    assert mask_from_result(sink, toposort([sink])) is sink
