"""Lowering: what index notation looks like for well-known graphs, and the traps on the way."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.dtype import DType, float32, float64, int32, uint8
from fulgurite.core.node import Node, Size, constant, constant_like, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.effect import CONTIGUOUS
from fulgurite.core.ops.elementwise import (
    ADD,
    AND,
    DIV,
    EQ,
    ERF,
    EXP,
    LT,
    MAX,
    MIN,
    MOD,
    MUL,
    RSQRT,
    SUB,
    WHERE,
)
from fulgurite.core.ops.index import FOLD, GUARD, LOAD, STORE, VALID
from fulgurite.core.ops.leaf import BUFFER, SINK, new_buffer, param
from fulgurite.core.ops.movement import pad
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.core.text import show
from fulgurite.graph.ir.affine import axes_of
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.ir.lower import ROOM, IndexKernel, lower
from fulgurite.runtime.host.evaluate import evaluate
from fulgurite.runtime.host.index_interpreter import Runner
from tests import fuzz
from tests.conftest import Golden
from tests.graph.scheduling import schedule

pytestmark = pytest.mark.device("none")

# --- well-known graphs, in plain ops -------------------------------------------------------------


def memory(*shape: int, dtype: DType = float32) -> Node:
    """A buffer."""
    return new_buffer(shape, dtype)


def rows(x: Node, shape: Sequence[int]) -> Node:
    """A value stretched to a shape."""
    return build.expand(x, tuple(shape))


def total(x: Node, *axes: int) -> Node:
    """A sum that keeps its axes, stretched back."""
    return rows(build.fold("add", x, axes, True), x.shape)  # type: ignore[arg-type]


def softmax(x: Node) -> Node:
    """Along the last axis."""
    shifted = SUB(x, build.expand(build.fold("max", x, x.ndim - 1, True), x.shape))
    e = EXP(shifted)
    return DIV(e, total(e, x.ndim - 1))


def layernorm(x: Node, gain: Node, bias: Node) -> Node:
    """Along the last axis."""
    n = constant_like(x.shape[-1], x)  # type: ignore[arg-type]
    centred = SUB(x, DIV(total(x, x.ndim - 1), n))
    variance = DIV(total(MUL(centred, centred), x.ndim - 1), n)
    scaled = MUL(centred, RSQRT(build.apply(ADD, variance, 1e-5)))
    return ADD(MUL(scaled, build.expand(gain, x.shape)), build.expand(bias, x.shape))


def matmul(a: Node, b: Node) -> Node:
    """Of matrices, or of stacks of them."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    full = (*batch, m, k, n)
    left = build.expand(build.reshape(a, (*batch, m, k, 1)), full)
    right = build.expand(build.reshape(b, (*b.shape[:-2], 1, k, n)), full)
    return build.fold("add", MUL(left, right), len(full) - 2)


def gelu(x: Node) -> Node:
    """The exact one."""
    half = build.apply(MUL, x, 0.5)
    return MUL(half, build.apply(ADD, ERF(build.apply(MUL, x, 0.7071067811865476)), 1.0))


def linear_gelu(x: Node, weight: Node, bias: Node) -> Node:
    """matmul, bias, gelu."""
    y = matmul(x, weight)
    return gelu(ADD(y, build.expand(bias, y.shape)))


def attention(q: Node, k: Node, v: Node) -> Node:
    """Of (batch, heads, time, width)."""
    scores = build.apply(MUL, matmul(q, build.permute(k, (0, 1, 3, 2))), 0.125)
    return matmul(softmax(scores), v)


def convolution(x: Node, weight: Node, bias: Node) -> Node:
    """(batch, channels, height, width) by (out, in, 3, 3), padded by 1, with bias and relu."""
    padded = build.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    slid = build.window(build.window(padded, 2, 3), 3, 3)  # n, c, h, w, 3, 3
    n, c, h, w, _, _ = slid.shape
    o = weight.shape[0]
    full = (n, o, h, w, c, 3, 3)
    last = build.permute(slid, (0, 2, 3, 1, 4, 5))
    image = build.expand(build.reshape(last, (n, 1, h, w, c, 3, 3)), full)
    kernel = build.expand(build.reshape(weight, (1, o, 1, 1, c, 3, 3)), full)
    y = build.fold("add", MUL(image, kernel), (4, 5, 6))
    y = ADD(y, build.expand(build.reshape(bias, (1, o, 1, 1)), y.shape))
    return MAX(y, constant_like(0, y))


def embedding(table: Node, index: Node) -> Node:
    """Rows of a table."""
    count, width = index.shape[0], table.shape[1]
    places = build.expand(build.reshape(index, (count, 1)), (count, width))
    return build.gather(table, places, 0)


def concat(a: Node, b: Node) -> Node:
    """Along the first axis."""
    n, m = a.shape[0], b.shape[0]
    rest = [(0, 0)] * (a.ndim - 1)
    first, second = build.pad(a, [(0, m), *rest]), build.pad(b, [(n, 0), *rest])
    place = build.iota(first.shape, 0)
    return WHERE(LT(place, constant_like(n, place)), first, second)  # type: ignore[arg-type]


def argmax(x: Node) -> Node:
    """Along the last axis, the first of equal ones."""
    last = x.ndim - 1
    top = EQ(x, build.expand(build.fold("max", x, last, True), x.shape))
    n = constant(x.shape[-1], int32, x.shape)  # type: ignore[arg-type]
    return build.fold("min", WHERE(top, build.iota(x.shape, last), n), last)


def scheduled(*roots: Node) -> Schedule:
    """The schedule of a graph over buffers, without simplifying."""
    normal = normalize(roots)
    sink = restore(normal.structure, normal.constants, (), normal.nodes)
    return schedule(sink, len(normal.buffers))


def notation(*roots: Node) -> str:
    """Every kernel of a graph in index notation."""
    parts = []
    for item in scheduled(*roots).items:
        kernel = lower(item.kernel.body, item.kernel.inputs)
        parts.append(f"{item.kernel.kind} over axes of {kernel.axes}:\n{show(kernel.body)}")
    return "\n\n".join(parts)


GRAPHS: dict[str, Callable[[], list[Node]]] = {
    "softmax": lambda: [softmax(memory(8, 32))],
    "layernorm": lambda: [layernorm(memory(8, 32), memory(32), memory(32))],
    "linear_gelu": lambda: [linear_gelu(memory(8, 16), memory(16, 32), memory(32))],
    "convolution": lambda: [convolution(memory(2, 3, 8, 8), memory(4, 3, 3, 3), memory(4))],
    "embedding": lambda: [embedding(memory(10, 4), memory(6, dtype=int32))],
    "concat": lambda: [concat(memory(3, 4), memory(5, 4))],
    "argmax": lambda: [argmax(memory(8, 32))],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_well_known_graphs_look_like_this_in_index_notation(name: str, golden: Golden) -> None:
    golden(notation(*GRAPHS[name]()), f"lower/{name}.txt")


@pytest.mark.parametrize("name", GRAPHS)
def test_well_known_graphs_give_the_answers_of_the_evaluator(name: str) -> None:
    agrees(*GRAPHS[name]())


def test_two_matrices_of_a_batch_share_nothing_with_attention_but_the_answer() -> None:
    agrees(attention(memory(2, 2, 4, 8), memory(2, 2, 4, 8), memory(2, 2, 4, 8)))


# --- helpers -------------------------------------------------------------------------------------


def agrees(*roots: Node, exact: bool = False) -> None:
    """The pipeline gives the evaluator's answers for some data."""
    numbers = np.random.default_rng(0)
    arrays: dict[Node, Array] = {}
    for node in toposort(roots):
        if node.op is BUFFER:
            whole = numbers.integers(0, 3, node.arg[1])
            free = whole if exact or node.dtype.is_integer else numbers.standard_normal(node.arg[1])
            arrays[node] = np.asarray(free).astype(node.dtype.numpy)
    for options in ({}, {"simplify": False}, {"fuse": False}):
        assert fuzz.problem(fuzz.Graph(list(roots), arrays, exact), **options) is None


def lowered(*roots: Node) -> IndexKernel:
    """One kernel of all roots, whatever the scheduler would do."""
    buffers = [n for n in toposort(roots) if n.op is BUFFER]
    params = {b: param(i, b.shape, b.dtype) for i, b in enumerate(buffers)}
    return lower(SINK(*[substitute(root, params) for root in roots]), len(buffers))


def agrees_in_one_kernel(*roots: Node) -> IndexKernel:
    """All roots in one kernel, run over poisoned memory."""
    buffers = [n for n in toposort(roots) if n.op is BUFFER]
    numbers = np.random.default_rng(1)
    arrays = {b: numbers.integers(0, 5, b.arg[1]).astype(b.dtype.numpy) for b in buffers}
    outputs = [
        np.full([n for n in root.shape if isinstance(n, int)], 165).astype(root.dtype.numpy)
        for root in roots
    ]
    kernel = lowered(*roots)
    Runner(kernel).run([a.reshape(-1) for a in (*arrays.values(), *outputs)], {})
    for found, right in zip(outputs, evaluate(roots, arrays), strict=True):
        np.testing.assert_array_equal(found, right)
    return kernel


def nodes_of(kernel: IndexKernel, op: object) -> list[Node]:
    return [n for n in toposort([kernel.body]) if n.op is op]


# --- names of axes -------------------------------------------------------------------------------


def test_softmax_binds_one_row_axis_for_both_its_reductions() -> None:
    kernel = lowered(softmax(memory(8, 32)))
    assert kernel.axes == (8, 32)
    assert [n.arg[1] for n in nodes_of(kernel, FOLD)] == [(1,), (1,)]
    assert len(nodes_of(kernel, LOAD)) == 1


def test_a_reduction_does_not_capture_an_axis_that_is_free_in_the_condition_of_a_pad() -> None:
    # the pad's condition is on axis 0 of size 6; inside it a sum over axis 0 of size 6 begins,
    # at an index that does not use the axis: only the condition does
    x = memory(6, 4)
    column = rows(build.fold("add", x, 0, True), (4, 4))
    kernel = agrees_in_one_kernel(build.pad(column, [(1, 1), (0, 0)]))
    (fold,) = nodes_of(kernel, FOLD)
    conditions = [i for n in nodes_of(kernel, VALID) for i, _ in n.arg]
    conditions += [i for n in nodes_of(kernel, LOAD) for i, _ in n.arg[2]]
    assert conditions and kernel.axes.count(6) == 2
    assert not any(set(fold.arg[1]) & axes_of(index) for index in conditions)


def test_a_reduction_does_not_capture_an_axis_that_a_dynamic_index_depends_on() -> None:
    # places[i] chooses the column, and inside it a sum over axis 0 of the same size begins
    x, places = memory(5, 5), memory(5, dtype=int32)
    column = build.reshape(build.fold("add", x, 0, True), (5,))
    kernel = agrees_in_one_kernel(build.gather(column, places, 0))
    (fold,) = nodes_of(kernel, FOLD)
    (store,) = nodes_of(kernel, STORE)
    assert not set(fold.arg[1]) & set(store.arg[3])


def test_a_reduction_inside_a_reduction_of_equal_size_has_an_axis_of_its_own() -> None:
    x = memory(4, 4)
    inner = rows(build.fold("max", build.permute(x, (1, 0)), 1, True), (4, 4))
    agrees_in_one_kernel(build.fold("add", MUL(inner, x), (0, 1), True))


# --- outputs met on the way ----------------------------------------------------------------------


def test_an_output_met_at_all_its_elements_is_stored_on_the_way() -> None:
    x = memory(3, 4)
    first = ADD(x, x)
    kernel = agrees_in_one_kernel(first, EXP(build.permute(first, (1, 0))))
    assert len(kernel.axes) == 2


TURNS: list[Callable[[Node], Node]] = [
    lambda a: build.permute(a, (0, 2, 1)),
    lambda a: build.permute(a, (2, 0, 1)),
    lambda a: build.permute(build.reshape(a, (2, 1, 3, 4)), (3, 1, 0, 2)),
    lambda a: build.reshape(build.permute(ADD(a, a), (2, 1, 0)), (4, 3, 1, 2)),
    lambda a: build.contiguous(build.permute(a, (1, 2, 0))),
    lambda a: build.permute(build.reshape(a, (6, 2, 2)), (1, 0, 2)),
    lambda a: build.permute(build.reshape(a, (6, 4)), (1, 0)),
    lambda a: build.reshape(build.permute(a, (2, 0, 1)), (8, 3)),
]


@pytest.mark.parametrize("turn", TURNS)
def test_outputs_in_several_orders_share_the_reduction_that_they_are_made_of(
    turn: Callable[[Node], Node],
) -> None:
    product = matmul(memory(2, 3, 5), memory(2, 5, 4))
    turned = turn(product)
    first, second = MUL(product, memory(2, 3, 4)), EXP(turned)
    for outputs in ((first, second), (second, first), (first, product, second)):
        kernel = agrees_in_one_kernel(*outputs)
        assert len(nodes_of(kernel, FOLD)) == 1 and kernel.divisions == 0


@pytest.mark.parametrize("shape", [(2, 6, 5, 5), (2, 6, 5, 4), (3, 4, 4, 4), (2, 2, 3, 3)])
def test_rows_behind_a_reshape_share_the_loads_that_they_are_folded_of(
    shape: tuple[int, ...],
) -> None:
    """Group normalisation: dimension 3 is the height of groups, and the width of the result."""
    x, weight = memory(*shape), memory(1, shape[1], 1, 1)
    split = (shape[0], 2, shape[1] // 2, *shape[2:])
    groups = build.reshape(x, split)
    apart = SUB(groups, total(groups, 2, 3, 4))
    spread = total(MUL(apart, apart), 2, 3, 4)
    normal = build.reshape(MUL(apart, RSQRT(build.apply(ADD, spread, 1.0))), shape)
    kernel = agrees_in_one_kernel(build.apply(MUL, normal, weight))
    assert len(nodes_of(kernel, LOAD)) == 2  # what is normalised, and the weights
    assert len(kernel.axes) == len([n for n in split if n > 1])


def test_results_are_spread_in_the_loops_that_fold_them() -> None:
    """Means of windows, each written to all of its window."""
    x = memory(2, 3, 12, 12)
    windows = build.reshape(x, (2, 3, 3, 4, 3, 4))
    kernel = agrees_in_one_kernel(build.reshape(EXP(total(windows, 3, 5)), (2, 3, 12, 12)))
    (fold,), (store,) = nodes_of(kernel, FOLD), nodes_of(kernel, STORE)
    assert set(fold.arg[1]) < set(store.arg[3])


def test_a_product_and_its_transpose_in_one_value_are_two_reductions() -> None:
    product = matmul(memory(4, 3), memory(3, 4))
    both = ADD(product, build.permute(product, (1, 0)))
    for outputs in ((both,), (both, EXP(product)), (EXP(product), both)):
        assert len(nodes_of(agrees_in_one_kernel(*outputs), FOLD)) == 2


def _shifted_rows(a: Node) -> Node:
    """Rows of 5 out of rows of 4: no rectangle of a."""
    return build.reshape(build.pad(build.reshape(a, (12,)), [(0, 3)]), (3, 5))


MOVES: list[Callable[[Node], Node]] = [
    lambda a: build.shrink(a, [(0, 3), (1, 3)]),
    lambda a: build.pad(a, [(0, 0), (1, 0)]),
    lambda a: build.window(a, 1, 2),
    lambda a: build.flip(a, 1),
    _shifted_rows,
    lambda a: build.gather(a, build.iota((3, 4), 1), 1),
    lambda a: build.gather(a, constant(2, int32, (3, 4)), 1),
]


def test_an_output_met_elsewhere_is_stored_at_axes_of_its_own() -> None:
    x = memory(3, 4)
    first = ADD(x, x)
    for move in MOVES:
        kernel = agrees_in_one_kernel(first, EXP(move(first)))
        stores = [n for n in nodes_of(kernel, STORE) if n.arg[0] == 1]
        sizes = [kernel.axes[a] for n in stores for a in n.arg[3]]
        assert sorted(sizes, key=str) == [3, 4]


def test_an_output_met_under_a_condition_is_not_stored_there() -> None:
    first = build.contiguous(memory(1, 4))
    agrees_in_one_kernel(first, build.pad(rows(first, (3, 4)), [(1, 1), (0, 0)]))


def test_a_column_of_an_output_does_not_stand_for_the_output() -> None:
    x = memory(4, 4)
    first = MUL(x, x)
    column = build.shrink(first, [(0, 4), (2, 3)])
    agrees_in_one_kernel(first, EXP(column))
    diagonal = build.shrink(
        build.reshape(build.pad(build.reshape(first, (16,)), [(0, 4)]), (4, 5)), [(0, 4), (0, 1)]
    )
    agrees_in_one_kernel(first, EXP(diagonal))


def test_a_scatter_met_on_the_way_is_not_read_before_it_is_complete() -> None:
    base, index, values = memory(4), memory(3, dtype=int32), memory(3)
    out = build.scatter("add", base, index, values, 0)
    agrees(out, build.flip(out, 0), EXP(out))


# --- indices -------------------------------------------------------------------------------------


def test_an_axis_is_split_where_a_reshape_asks_for_it() -> None:
    x = memory(3, 4)
    kernel = agrees_in_one_kernel(build.reshape(build.permute(ADD(x, x), (1, 0)), (12,)))
    assert kernel.divisions == 0 and sorted(kernel.axes, key=str) == [3, 4]


def test_an_axis_is_split_again_where_one_split_is_not_enough() -> None:
    x = memory(2, 3, 4)
    kernel = agrees_in_one_kernel(build.reshape(build.permute(ADD(x, x), (2, 0, 1)), (24,)))
    assert kernel.divisions == 0 and sorted(kernel.axes, key=str) == [2, 3, 4]


def test_a_division_is_left_only_where_no_split_helps() -> None:
    x = memory(3, 4)
    flat = build.reshape(build.permute(ADD(x, x), (1, 0)), (12,))
    kernel = agrees_in_one_kernel(build.shrink(flat, [(0, 11)]))
    assert kernel.divisions > 0 and kernel.axes == (11,)


def test_a_reshape_of_memory_needs_only_the_flat_index() -> None:
    x = memory(3, 4)
    kernel = agrees_in_one_kernel(EXP(build.shrink(build.reshape(x, (12,)), [(0, 11)])))
    assert kernel.divisions == 0 and kernel.axes == (11,)


def test_windows_made_of_repeats_need_no_division() -> None:
    n, k = 7, 3  # repeat, cut to k*(n + 1), reshape to rows of n + 1: row j starts at x[j]
    x = memory(n)
    wide = build.reshape(rows(build.reshape(ADD(x, x), (1, n)), (4, n)), (4 * n,))
    slid = build.reshape(build.shrink(wide, [(0, k * (n + 1))]), (k, n + 1))
    kernel = agrees_in_one_kernel(build.shrink(slid, [(0, k), (0, n - k + 1)]))
    assert kernel.divisions == 0
    (load,) = nodes_of(kernel, LOAD)
    assert load.arg[1] == (0, ((0, 1), (1, 1)))


def test_windows_with_strides_and_dilations_are_affine() -> None:
    x = memory(2, 11)
    kernel = agrees_in_one_kernel(build.window(ADD(x, x), 1, 3, 2, 3))
    assert kernel.divisions == 0
    (load,) = nodes_of(kernel, LOAD)
    assert [c for _, c in load.arg[1][1]] == [11, 2, 3]


# --- bounds --------------------------------------------------------------------------------------


def test_an_index_from_memory_is_guarded() -> None:
    kernel = lowered(embedding(memory(10, 4), memory(6, dtype=int32)))
    (guard,) = nodes_of(kernel, GUARD)
    assert guard.arg == 10


INSIDE: list[Callable[[Node], Node]] = [
    lambda i: build.apply(MOD, i, 10),
    lambda i: build.apply(MIN, build.apply(MAX, i, 0), 9),
    lambda i: build.apply(AND, build.cast(i, uint8), constant(7, uint8, i.shape)),
    lambda i: build.iota(i.shape, 0),
    lambda i: build.cast(build.cast(i, bool), int32),
]


@pytest.mark.parametrize("inside", INSIDE)
def test_an_index_that_bounds_prove_needs_no_guard(inside: Callable[[Node], Node]) -> None:
    index = inside(memory(6, dtype=int32))
    kernel = agrees_in_one_kernel(embedding(memory(10, 4), index))
    assert not nodes_of(kernel, GUARD)


def test_an_index_one_too_large_is_guarded() -> None:
    index = build.apply(MOD, memory(6, dtype=int32), 11)
    assert nodes_of(lowered(embedding(memory(10, 4), index)), GUARD)


def test_an_index_worked_out_from_axes_is_a_place_in_memory() -> None:
    i, j = (build.iota((6, 5), axis) for axis in range(2))
    apart = build.apply(ADD, build.apply(SUB, build.apply(MUL, i, 2), j), 4)
    kernel = agrees_in_one_kernel(build.gather(memory(40), build.reshape(apart, (30,)), 0))
    (load,) = nodes_of(kernel, LOAD)
    assert not load.src and load.arg[1][0] == 4 and {c for _, c in load.arg[1][1]} == {2, -1}


def test_an_index_that_wraps_around_on_its_way_is_no_place() -> None:
    far = build.cast(build.apply(MUL, build.iota((6,), 0), 60), uint8)  # 240, then 44
    index = build.apply(MOD, far, constant(10, uint8, (6,)))
    for chosen in (index, build.apply(SUB, build.iota((6,), 0), 1)):
        kernel = lowered(build.gather(memory(250), chosen, 0))
        assert nodes_of(kernel, LOAD)[-1].src
    agrees(build.gather(memory(256), far, 0), exact=True)


def test_what_a_pad_leaves_out_is_no_index() -> None:
    # at the padded places the load of the index reads 0, and 0 - 1 is outside the table
    table, index = memory(4, dtype=int32), memory(3, dtype=int32)
    inside = build.apply(MIN, build.apply(MAX, index, 0), 2)
    from_one = build.contiguous(build.apply(ADD, inside, 1))  # stored: nothing is known of it
    chosen = build.gather(table, build.apply(SUB, from_one, 1), 0)
    agrees(build.pad(chosen, [(2, 1)]), exact=True)
    agrees(concat(chosen, table), exact=True)


def test_a_pad_that_cannot_be_met_leaves_no_condition() -> None:
    x = memory(4)
    there_and_back = build.shrink(build.pad(ADD(x, x), [(2, 3)]), [(2, 6)])
    kernel = agrees_in_one_kernel(there_and_back)
    assert not nodes_of(kernel, VALID) and nodes_of(kernel, LOAD)[0].arg[2] == ()
    nothing = build.shrink(build.pad(ADD(x, x), [(2, 3)]), [(0, 2)])
    assert not nodes_of(agrees_in_one_kernel(nothing), LOAD)


def test_an_axis_of_one_step_that_is_padded_is_read_at_its_only_index() -> None:
    # else the two sides were sums at other indices, and the largest row were no row
    x = memory(3, 2, 4)
    row = build.shrink(build.fold("add", x, 2, True), [(0, 3), (1, 2), (0, 1)])
    turned = build.permute(row, (0, 2, 1))
    kernel = agrees_in_one_kernel(build.pad(EQ(row, turned), [(0, 0), (1, 0), (0, 0)]))
    assert len(nodes_of(kernel, FOLD)) == 1


# --- depth ---------------------------------------------------------------------------------------


def test_a_deep_kernel_is_lowered_without_recursion() -> None:
    x = memory(4, 4)
    y = x
    for i in range(150):
        y = build.permute(ADD(y, x), (1, 0)) if i % 2 else MUL(y, x)
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(depth + 40)
        kernel = lowered(y)
    finally:
        sys.setrecursionlimit(before)
    assert len(nodes_of(kernel, STORE)) == 1 and len(toposort([kernel.body])) > 150


# --- sizes that are variables --------------------------------------------------------------------


def _graphs_of(n: Node) -> list[Node]:
    """Graphs in which a size is variable: 1 to 6."""
    x, y = memory(6, 4, dtype=float64), memory(3, 6, dtype=float64)
    part, other = build.shrink(x, [(0, n), (0, 4)]), build.shrink(y, [(0, 3), (0, n)])
    row = build.fold("max", other, 1, True)
    return [
        EXP(part),
        build.permute(part, (1, 0)),
        build.fold("add", part, 0),
        SUB(other, build.expand(row, other.shape)),
        matmul(other, part),
        build.flip(part, 0),
        build.scan("add", other, 1),
        softmax(build.permute(part, (1, 0))),
        build.reshape(ADD(part, part), (n, 2, 2)),
        build.apply(ADD, build.fold("add", build.iota(part.shape, 0, float64), 0), 1.0),
    ]


@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("value", [1, 2, 5, 6])
def test_variable_sizes_are_lowered_and_give_right_answers(place: int, value: int) -> None:
    root = _graphs_of(build.bind(build.variable("n", 1, 6), value))[place]
    agrees(root, exact=place not in (0, 7))
    for item in scheduled(root).items:
        lower(item.kernel.body, item.kernel.inputs)  # none falls back to the evaluator


@pytest.mark.parametrize("value", [1, 4, 6])
def test_a_pad_asks_nothing_of_a_variable_size_that_it_does_not_pad(value: int) -> None:
    n = build.bind(build.variable("n", 1, 6), value)
    part = build.shrink(memory(6, 4, dtype=float64), [(0, n), (0, 4)])
    beside, below = (
        build.pad(ADD(part, part), pads) for pads in ([(0, 0), (2, 1)], [(1, 2), (0, 0)])
    )
    agrees(beside, exact=True)
    agrees(below, exact=True)
    for root, sources in ((beside, 0), (below, 1)):
        (item,) = scheduled(root).items
        loads = nodes_of(lower(item.kernel.body, item.kernel.inputs), LOAD)
        assert [len(load.src) for load in loads] == [sources]


def test_a_size_that_is_also_a_result_stays_a_size() -> None:
    for value in (1, 4):
        n = build.bind(build.variable("n", 1, 4), value)
        more = build.as_size(build.apply(ADD, n, 2))
        assert isinstance(more, Node)
        part = build.shrink(memory(6, 3), [(0, more), (0, 3)])
        agrees(EXP(part), more, build.apply(MUL, build.fold("add", part, 0), 2.0))
        agrees(build.apply(MUL, more, 3), build.fold("max", part, 0), n)


def test_a_kernel_of_variable_size_is_one_kernel_for_all_values() -> None:
    kernels = set()
    for value in (1, 3, 6):
        n = build.bind(build.variable("n", 1, 6), value)
        root = softmax(build.shrink(memory(6, 4), [(0, n), (0, 4)]))
        (item,) = scheduled(root).items
        kernels.add(item.kernel.body)
    assert len(kernels) == 1


def test_a_kernel_without_index_notation_keeps_no_result_alive() -> None:
    def graph() -> fg.Tensor:
        trail: fg.Tensor = fg.scan(lambda c, x: (c * 0.75 + x, c), fg.ones(300), fg.ones((5, 300)))[
            1
        ]
        return trail

    lazy = graph()
    node, made = weakref.ref(lazy.node), weakref.ref(lazy.realize().node)  # compiles, or finds it
    del lazy
    gc.collect()
    assert node() is None and made() is None


def test_zeros_around_a_stored_value_are_stored_unless_a_pass_says_that_they_are_room() -> None:
    x = param(0, (2, 3), float32, None)

    def stored(value: Node) -> list[Size]:
        padded = pad(pad(value, [(0, 1), (0, 0)]), [(2, 0), (0, 0)])
        return list(lower(SINK(padded), 1).axes)

    assert stored(CONTIGUOUS(x)) == [5, 3]
    assert stored(CONTIGUOUS(x, arg=ROOM)) == [2, 3]


def test_a_padded_result_beside_a_sum_of_what_is_padded_has_its_zeros() -> None:
    fuzz.replay(
        """
        %0 = param(0, (2, 3), 'reference') : float64[2, 3]
        %1 = reduce('add', (1,)) %0 : float64[2, 1]
        %2 = const 1.0 : float64[2, 1]
        %3 = add %1 %2 : float64[2, 1]
        %4 = contiguous %3 : float64[2, 1]
        %5 = pad(0, 3, 0, 0) %4 : float64[5, 1]
        %6 = reduce('add', (1,)) %5 : float64[5, 1]
        %7 = contiguous %6 : float64[5, 1]
        %8 = pad(1, 0, 0, 0) %5 : float64[6, 1]
        return %7, %8
        """,
        [[1, 2, 3, 4, 5, 6]],
        exact=True,
    )
