"""Bounds: sound ones hold every value, whatever wraps; likely ones trust that nothing does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core.dtype import (
    DType,
    bool_,
    float32,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)
from fulgurite.core.node import Node, constant
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import CAST, MAX, MIN, WHERE
from fulgurite.core.ops.indexing import gather
from fulgurite.core.ops.leaf import iota, param, variable
from fulgurite.core.ops.movement import expand, flip, pad, reshape, shrink, window
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.runtime.host.evaluate import evaluate
from tests.properties import arithmetic

DTYPES = [bool_, int8, uint8, int16, int32, uint32, int64, uint64]
WHOLE = [
    op for op in OPS.values() if op.family == "elementwise" and op.name not in ("cast", "bitcast")
]


class Grown:
    """A random graph of whole numbers, with a value for each of its variables."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.values: dict[str, int] = {}
        self.nodes: list[Node] = []

    def leaf(self, dtype: DType) -> Node:
        low, high = dtype.limits
        edge = st.sampled_from([low, low + 1, -1, 0, 1, 2, 7, high - 1, high])
        number = st.one_of(edge, st.integers(low, high), st.integers(-9, 9))
        a, b, c = sorted(min(high, max(low, self.data.draw(number))) for _ in range(3))
        if dtype is bool_ or self.data.draw(st.booleans()):
            return constant(bool(b) if dtype is bool_ else b, dtype)
        name = f"v{len(self.values)}"
        self.values[name] = b
        return variable(name, a, c, dtype=dtype)

    def source(self, dtype: DType) -> Node:
        known = [n for n in self.nodes if n.dtype is dtype]
        if known and self.data.draw(st.integers(0, 3)) > 0:
            return self.data.draw(st.sampled_from(known))
        self.nodes.append(self.leaf(dtype))
        return self.nodes[-1]

    def grow(self) -> None:
        dtype = self.data.draw(st.sampled_from(DTYPES))
        op = self.data.draw(st.sampled_from([*WHOLE, CAST]))
        if op is CAST:
            source = self.source(self.data.draw(st.sampled_from(DTYPES)))
            self.nodes.append(CAST(source, arg=dtype))
        elif op is WHERE:
            parts = self.source(bool_), self.source(dtype), self.source(dtype)
            self.nodes.append(WHERE(*parts))
        elif dtype.kind in op.kinds:
            self.nodes.append(op(*[self.source(dtype) for _ in range(op.arity or 1)]))


@arithmetic
@given(st.data())
def test_sound_bounds_hold_every_value_of_a_random_graph(data: st.DataObject) -> None:
    grown = Grown(data)
    for _ in range(data.draw(st.integers(1, 8))):
        grown.grow()
    if not grown.nodes:
        return
    values = evaluate(grown.nodes, {}, grown.values)
    for node, value in zip(grown.nodes, values, strict=True):
        assert node.bounds is not None
        low, high = node.bounds
        assert low <= int(value) <= high, f"{node}: {value} is outside of {node.bounds}"
        limits = node.dtype.limits
        assert limits[0] <= low <= high <= limits[1]


@given(st.data(), st.sampled_from([int8, uint8]), st.sampled_from(WHOLE))
@arithmetic
def test_sound_bounds_hold_for_every_pair_of_small_intervals(
    data: st.DataObject, dtype: DType, op: Any
) -> None:
    if dtype.kind not in op.kinds:
        return
    low, high = dtype.limits
    ends = [sorted(data.draw(st.tuples(*[st.integers(low, high)] * 2))) for _ in range(op.arity)]
    lines = [np.arange(a, b + 1).astype(dtype.numpy) for a, b in ends]
    grid = [g.ravel() for g in np.meshgrid(*lines)]
    names = [variable(f"v{i}", a, b, dtype=dtype) for i, (a, b) in enumerate(ends)]
    leaves = [param(i, g.shape, dtype) for i, g in enumerate(grid)]
    (values,) = evaluate([op(*leaves)], dict(zip(leaves, grid, strict=True)))
    found = op(*names).bounds
    assert found is not None
    assert found[0] <= int(values.min()) and int(values.max()) <= found[1]


EXACT: dict[str, Any] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "max": max, "min": min, "floordiv": lambda a, b: a // b if b else 0,
}  # fmt: skip


@arithmetic
@given(st.data())
def test_likely_bounds_hold_every_value_as_long_as_nothing_wraps(data: st.DataObject) -> None:
    nodes, exact = list[Node](), list[int]()
    for number in range(3):
        low, high = sorted(data.draw(st.tuples(*[st.integers(-128, 127)] * 2)))
        nodes.append(variable(f"v{number}", low, high, dtype=int8))
        exact.append(data.draw(st.integers(low, high)))
    for _ in range(data.draw(st.integers(1, 6))):
        name = data.draw(st.sampled_from(sorted(EXACT)))
        a, b = data.draw(st.tuples(*[st.integers(0, len(nodes) - 1)] * 2))
        value = EXACT[name](exact[a], exact[b])
        if not -128 <= value <= 127:
            continue  # would wrap around: then likely bounds promise nothing
        nodes.append(OPS[name](nodes[a], nodes[b]))
        exact.append(value)
    for node, value in zip(nodes, exact, strict=True):
        assert node.likely_bounds is not None
        assert node.likely_bounds[0] <= value <= node.likely_bounds[1]


def test_what_may_wrap_is_anywhere_for_sound_bounds_and_cut_for_likely_ones() -> None:
    x = variable("x", 0, 127, dtype=int8)
    more = x + 1
    assert more.bounds == (-128, 127)
    assert more.likely_bounds == (1, 127)
    assert (more - 1).likely_bounds == (0, 126)
    assert (-variable("u", 1, 3, dtype=uint8)).bounds == (0, 255)
    assert (-variable("u", 1, 3, dtype=uint8)).likely_bounds == (0, 0)


def test_floats_have_no_bounds_but_comparisons_of_them_do() -> None:
    x = param(0, (2,), float32)
    assert x.bounds is None and (x + x).bounds is None and x.likely_bounds is None
    assert (x < x).bounds == (0, 1)
    assert CAST(x, arg=int8).bounds == (-128, 127)


X = variable("x", 3, 9)
Y = variable("y", -2, 4)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (X + Y, (1, 13)), (X - Y, (-1, 11)), (X * Y, (-18, 36)), (X // 4, (0, 2)),
        (Y // 4, (-1, 1)), (X % 4, (0, 3)), (X % 10, (3, 9)), (Y % 3, (0, 2)),
        (variable("z", 8, 11) % 4, (0, 3)), (variable("z", 9, 11) % 4, (1, 3)),
        (-X, (-9, -3)), (abs(Y), (0, 4)), (abs(-X), (3, 9)), (MAX(X, Y), (3, 9)),
        (MIN(X, Y), (-2, 4)), (X & 5, (0, 5)), (X | 16, (0, 31)), (X ^ X, (0, 15)),
        (X << 2, (12, 36)), (X >> 1, (1, 4)), (OPS["sign"](X), (1, 1)), (OPS["sign"](Y), (-1, 1)),
        (X < 10, (1, 1)), (X <= 2, (0, 0)), (X < Y, (0, 1)), (X.eq(1), (0, 0)), (X.ne(1), (1, 1)),
        (X.eq(X), (0, 1)), (CAST(X, arg=bool_), (1, 1)), (CAST(Y, arg=bool_), (0, 1)),
        (CAST(X, arg=int8), (3, 9)), (CAST(Y, arg=uint8), (0, 255)),
        (WHERE(X < 10, X, Y), (3, 9)), (WHERE(X < 2, X, Y), (-2, 4)), (WHERE(X < 5, X, Y), (-2, 9)),
    ],
    ids=lambda v: "" if isinstance(v, tuple) else v.op.name,
)  # fmt: skip
def test_the_bounds_of_an_op_are_as_narrow_as_pinned(node: Node, expected: Any) -> None:
    assert node.bounds == expected


def test_movement_and_reduction_carry_bounds() -> None:
    x = variable("x", 3, 9, (4, 2), int32)
    assert reshape(x, (8,)).bounds == flip(x, (0,)).bounds == window(x, 0, 2).bounds == (3, 9)
    assert shrink(x, [(1, 2), (0, 2)]).bounds == expand(x, (4, 2)).bounds == (3, 9)
    assert pad(x, [(1, 0), (0, 0)]).bounds == (0, 9)
    assert reduce_node("add", x, (0,)).bounds == (12, 36)
    assert reduce_node("add", x, (0, 1)).bounds == (24, 72)
    assert reduce_node("max", x, (0,)).bounds == (3, 9)
    assert reduce_node("mul", x, (0,)).bounds == int32.limits
    assert reduce_node("max", shrink(x, [(0, 0), (0, 2)]), (0,)).bounds == int32.limits
    assert gather(x, iota((4, 2), 0), 0).bounds == (3, 9)
    n = variable("n", 1, 6)
    assert iota((n,), 0).bounds == (0, 5)
    assert reduce_node("add", variable("k", 0, 1, (n,), int32), (0,)).bounds == int32.limits


def test_bounds_of_a_deep_graph_need_no_recursion() -> None:
    node = variable("x", 0, 1)
    for _ in range(20_000):
        node = MIN(node + 1, constant(5, int64))
    assert node.bounds == (5, 5)
