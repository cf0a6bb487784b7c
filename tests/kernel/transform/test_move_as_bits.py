"""Tests of fulgurite/kernel/transform/move_as_bits.py: small floats that are only moved."""

import numpy as np
import pytest

from fulgurite.core import build
from fulgurite.core.dtype import DTYPES, DType, bfloat16, float32, uint16
from fulgurite.core.node import toposort
from fulgurite.core.ops.elementwise import ADD, WHERE
from fulgurite.core.ops.leaf import SINK, param
from fulgurite.graph.ir.lower import lower
from fulgurite.kernel.transform.move_as_bits import move_as_bits

SMALL = [d for d in DTYPES if d.is_small_float]


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_a_plain_move_has_no_floats_left(dtype: DType) -> None:
    root = build.pad(param(0, (5,), dtype), [(1, 2)])
    kernel, dtypes = move_as_bits(lower(SINK(root), 1), [dtype, dtype])
    assert all(d.kind == "u" and d.bits == dtype.bits for d in dtypes)
    assert not any(n.dtype.is_small_float for n in toposort([kernel.body]))


def test_what_is_computed_stays_a_float() -> None:
    x = param(0, (5,), bfloat16)
    same = lower(SINK(ADD(x, x)), 1)
    assert move_as_bits(same, [bfloat16, bfloat16]) == (same, (bfloat16, bfloat16))
    plain = lower(SINK(build.pad(param(0, (5,), float32), [(1, 1)])), 1)
    assert move_as_bits(plain, [float32, float32])[0] is plain


def test_a_param_that_is_moved_and_computed_with_is_read_as_bits() -> None:
    x = param(0, (5,), bfloat16)
    roots = SINK(ADD(x, x), build.pad(x, [(1, 1)]))
    _, dtypes = move_as_bits(lower(roots, 1), [bfloat16] * 3)
    assert dtypes == (uint16, bfloat16, uint16)


def test_both_ways_give_the_same_bits() -> None:
    pytest.importorskip("llvmlite")
    from tests.codegen.cpu.parity import results

    x = np.arange(0, 1 << 16, 7, dtype=np.uint16).view(bfloat16.numpy)
    y = x[::-1].copy()
    a, b = (param(i, x.shape, bfloat16) for i in (0, 1))
    got, meant, _ = results(WHERE(a.eq(a), b, a), [x, y])
    assert got.tobytes() == meant.tobytes()
