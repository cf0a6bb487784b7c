"""Tests of fulgurite/core/ops/update.py: boxes, checks, bounds."""

from typing import Any

import numpy as np
import pytest

from fulgurite.core.dtype import float32, int32, int64
from fulgurite.core.node import constant
from fulgurite.core.ops.leaf import param, variable
from fulgurite.core.ops.update import UPDATE, box, starts_of, update
from fulgurite.runtime.host.evaluate import evaluate


def test_a_box_is_replaced_and_the_rest_stays() -> None:
    x, part = param(0, (4, 5), float32), param(1, (2, 2), float32)
    node = update(x, part, (1, 0), (2, 3))
    a, b = np.arange(20, dtype=np.float32).reshape(4, 5), np.full((2, 2), -1, np.float32)
    (found,) = evaluate([node], {x: a, part: b})
    want = a.copy()
    want[1:4:2, 0:4:3] = b
    np.testing.assert_array_equal(found, want)
    assert found is not a, "it is a copy"
    (cut,) = evaluate([box(node, starts_of(node), node.arg, part.shape)], {x: a, part: b})
    np.testing.assert_array_equal(cut, b)


def test_a_start_may_be_a_variable() -> None:
    x, part, at = param(0, (5,), int32), param(1, (1,), int32), variable("at", 0, 4)
    node = update(x, part, (at,), (1,))
    arrays = {x: np.zeros(5, np.int32), part: np.ones(1, np.int32)}
    assert evaluate([node], arrays, {"at": 3})[0].tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("starts", "arg", "shape", "dtype", "part"),
    [
        ((0,), (1, 1), (1, 1), float32, "starts"),
        ((0, 0), (1, 1), (1,), float32, "dimensions"),
        ((0, 0), (1, 1), (1, 1), int32, "does not fit"),
        ((0, 0), (0, 1), (1, 1), float32, "bad steps"),
        ((3, 0), (1, 1), (2, 1), float32, "not inside"),
        ((0, 1), (1, 4), (1, 2), float32, "not inside"),
    ],
)
def test_a_wrong_box_does_not_pass_the_check(
    starts: Any, arg: Any, shape: Any, dtype: Any, part: str
) -> None:
    corner = [constant(s, int64) for s in starts]
    node = UPDATE(param(0, (4, 5), float32), param(1, shape, dtype), *corner, arg=arg)
    assert part in (UPDATE.check(node) or "")


def test_the_bounds_are_those_of_both_values() -> None:
    node = update(constant(3, int32, (4,)), constant(-2, int32, (2,)), (1,), (1,))
    assert node.bounds == (-2, 3)
