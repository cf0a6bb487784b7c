"""The float64 value of a graph, and a running error bound for what a pipeline may give.

In: a graph. Out: for every root its value in float64 and how far from it a result may be. The
bound follows the ops: each adds its own rounding to what its sources bring.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from fulgurite.core.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
)
from fulgurite.core.node import Node, make, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.elementwise import (
    BITCAST,
    CAST,
    COS,
    DIV,
    EQ,
    FLOORDIV,
    LE,
    LT,
    MOD,
    NE,
    SIN,
    WHERE,
)
from fulgurite.core.ops.leaf import BUFFER, CONST, IOTA, PARAM, param
from fulgurite.core.rewriting.substitute import substitute
from fulgurite.runtime.host.evaluate import settle

from .graph import EXACTLY, Graph

_ONCE = frozenset({"add", "sub", "mul", "div", "sqrt", "cast"})  # others within 8 units
GAMMA_TERMS = 4.0  # as large as what lgamma and digamma are differences of
GRID = {float16: 11, bfloat16: 8, float32: 24, float64: 53, complex64: 24, complex128: 53}

Bounded = tuple[Array, Array]


def truth(graph: Graph) -> list[Bounded]:
    """Each root in float64, and how far any order of rounded operations may lie from it.

    Value and error are carried from node to node. An elementwise op is evaluated at the corners
    v ± e of its sources; its error is the largest deviation there plus its own rounding. A sum of n
    numbers adds the errors and n roundings of Σ|v|, whatever the order; a product likewise. A whole
    number or comparison that the error could change is unknown, an infinite error, and so is all
    that depends on it: such elements are not compared.
    """
    settled = settle(graph.nodes, {})
    roots = [substitute(root, settled, walk=True) for root in graph.roots]
    known: dict[Node, Bounded] = {}
    wide: dict[Node, Node] = {}
    with np.errstate(all="ignore"):
        for node in toposort(roots):
            known[node] = _bounded(node, [known[s] for s in node.src], wide, graph.arrays)
    return [known[root] for root in roots]


def wide_dtype(dtype: DType) -> DType:
    return float64 if dtype.is_float else complex128 if dtype.kind == "c" else dtype


def _bounded(
    node: Node, sources: list[Bounded], wide: dict[Node, Node], arrays: dict[Node, Array]
) -> Bounded:
    op, dtype = node.op, wide_dtype(node.dtype)
    arg = wide_dtype(node.arg) if op is CAST else node.arg
    if op is BUFFER or op is PARAM:
        wide[node] = param(0, node.shape, dtype)
        array = arrays[node].astype(dtype.numpy)
        return array, np.zeros(array.shape)
    src = tuple([wide[s] for s in node.src])
    twin = wide[node] = make(op, node.dtype if op is BITCAST else dtype, src, arg, node.tag)
    meaning = op.numpy
    assert meaning is not None
    values, errors = [v for v, _ in sources], [e for _, e in sources]
    if op is BITCAST:
        value = meaning(node, values[0].astype(node.src[0].dtype.numpy)).astype(dtype.numpy)
        wide[node] = param(0, node.shape, dtype)
        return value, np.where(errors[0] > 0, np.inf, 0.0)
    if op in (CONST, IOTA):
        value = np.asarray(op.numpy(node)).astype(dtype.numpy)  # type: ignore[misc]
        return value, np.zeros(value.shape)
    value = meaning(twin, *values)
    if op.family == "elementwise":
        error = _elementwise_error(node, twin, value, values, errors)
    else:
        error = _other_error(node, twin, value, values, errors)
    return value, _rounded_error(node, value, error)


def _rounded_error(node: Node, value: Array, error: Array) -> Array:
    """The error after rounding the result to the node's dtype."""
    error = np.where(np.isnan(error), np.inf, error)
    if not node.dtype.is_inexact:
        return np.where(error > 0, np.inf, 0.0)
    if node.op.family in ("movement", "effect", "leaf") and node.op.name != "unwindow":
        return error
    name = node.op.name
    units = 0 if name in EXACTLY else 1 if name in _ONCE else 8
    units *= 4 if node.dtype.kind == "c" else 1
    limit, smallest, unit = _grid(node.dtype)
    size = np.abs(value) + error
    if name == "lgamma" or (name == "polygamma" and node.arg == 0):  # logarithms that may cancel
        size = np.maximum(size, GAMMA_TERMS)
    error = np.where(np.isfinite(value), error + units * (unit * size + smallest), error)
    return np.where(np.isfinite(value) & (size > limit), np.inf, error)


def _grid(dtype: DType) -> tuple[float, float, float]:
    """Largest and smallest number of a dtype, and its relative rounding (float64's added)."""
    largest = {float16: 65504.0, bfloat16: 3.38e38, float32: 3.4e38, complex64: 3.4e38}
    smallest = {float16: 2.0**-24, bfloat16: 2.0**-133}.get(dtype, 2.0**-149)
    return largest.get(dtype, 1.7e308), smallest, 2.0 ** (1 - GRID[dtype]) + 2.0**-52


def _distance(a: Array, b: Array) -> Array:
    """How far two values are apart: 0 for equal ones and two NaN, infinite for one NaN."""
    same = (a == b) | ((a != a) & (b != b))
    apart = np.abs(a - b) if a.dtype.kind in "fc" else np.full(a.shape, np.inf)
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _elementwise_error(
    node: Node, twin: Node, value: Array, values: list[Array], errors: list[Array]
) -> Array:
    unknown = np.any([np.isinf(e) for e in errors], axis=0)
    if node.op in (LT, LE, EQ, NE):
        total = errors[0] + errors[1]
        with np.errstate(invalid="ignore"):
            near = (total > 0) & (np.abs(_real(values[0]) - _real(values[1])) <= total)
        return np.where(near | unknown, np.inf, 0.0)
    if node.op is WHERE:
        both = [_distance(v, value) + e for v, e in zip(values[1:], errors[1:], strict=True)]
        chosen = np.where(values[0], errors[1], errors[2])
        return np.where(np.isinf(errors[0]), np.maximum(*both), chosen)
    meaning = node.op.numpy
    assert meaning is not None
    error = np.zeros(value.shape)
    moving = [i for i, e in enumerate(errors) if node.src[i].dtype.is_inexact and np.any(e > 0)]
    ways = [(1, -1, 1j, -1j) if node.src[i].dtype.kind == "c" else (1, -1) for i in moving]
    for signs in product(*ways):
        corner = list(values)
        for i, sign in zip(moving, signs, strict=True):
            corner[i] = values[i] + sign * np.where(np.isfinite(errors[i]), errors[i], 0.0)
        error = np.maximum(error, _distance(np.asarray(meaning(twin, *corner)), value))
        if node.op in (MOD, FLOORDIV):  # between two whole quotients anything can happen
            unknown = unknown | (np.floor_divide(*corner) != np.floor_divide(*values))
    if node.dtype.kind == "c":  # corners do not enclose a disc: take twice as much
        error = 2 * error
    elif node.op in (SIN, COS) and moving:  # corners may be a period apart; the slope is at most 1
        error = np.maximum(error, np.minimum(errors[0], 2.0))
    if moving and (node.op in (DIV, FLOORDIV, MOD) or node.dtype is bool_):
        unknown = unknown | ((errors[-1] > 0) & (np.abs(values[-1]) <= errors[-1]))
    return np.where(unknown, np.inf, error)


def _real(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind in "biu" else a


def _other_error(
    node: Node, twin: Node, value: Array, values: list[Array], errors: list[Array]
) -> Array:
    op, meaning = node.op, node.op.numpy
    assert meaning is not None

    def on(*arrays: Array) -> Array:
        """The op on magnitudes: what a sum or product of errors can grow to."""
        return np.asarray(meaning(magnitudes, *arrays))

    if op.name in ("random", "sort"):
        if op.name == "sort" and np.any(errors[0] > 0):
            gaps = np.diff(np.sort(values[0], axis=node.arg[0]), axis=node.arg[0])
            clear = np.isfinite(errors[0]).all() and np.all(gaps > 2 * errors[0].max())
            return np.full(value.shape, 0.0 if clear else np.inf)
        return np.zeros(value.shape)
    magnitudes = _floating(twin)
    if op.name == "gather":
        index = np.broadcast_to(errors[1], value.shape)
        return np.where(np.isinf(index), np.inf, on(errors[0], values[1]))
    if op.name == "update":
        return on(*errors[:2], *values[2:])
    if op.name not in ("reduce", "scan", "scatter", "unwindow"):
        return on(*errors)
    data = [i for i in range(len(values)) if not (op.name == "scatter" and i == 1)]
    if op.name == "scatter" and np.any(errors[1] > 0):
        return np.full(value.shape, np.inf)
    name = "add" if op.name == "unwindow" else node.arg[0]
    if not node.dtype.is_inexact or name == "set":
        changed = [errors[i] if i in data else values[i] for i in range(len(values))]
        if name == "affine":
            changed = [changed[0] + changed[1]]
        if name not in ("set", "add"):  # whatever the op, one unknown source makes it unknown
            magnitudes = make(op, float64, magnitudes.src, ("add", *node.arg[1:]))
        return on(*changed)
    if name in ("max", "min"):
        apart = np.zeros(value.shape)
        for sign in (-1.0, 1.0):
            corner = list(values)
            for i in data:
                corner[i] = values[i] + sign * errors[i]
            apart = np.maximum(apart, _distance(np.asarray(meaning(twin, *corner)), value))
        return apart
    size = [np.abs(v) if i in data else v for i, v in enumerate(values)]
    grown = [s + e if i in data else s for i, (s, e) in enumerate(zip(size, errors, strict=True))]
    low, high = on(*size), on(*grown)
    count = sum(values[i].size for i in data) * (2 if name in ("affine", "mul") else 1)
    if node.dtype.kind == "c" and name != "add":
        count *= 4
    unit = _grid(float32 if node.dtype.is_small_float else node.dtype)[2]
    error = high - low + count * unit * high
    error = np.where(np.isfinite(value) | np.isnan(error), error, 0.0)
    if name == "add":
        return error
    most = on(*[np.maximum(s, 1.0) if i in data else s for i, s in enumerate(grown)])
    least = on(*[_below_one(s) if i in data else s for i, s in enumerate(size)])
    within = (most < _grid(node.dtype)[0]) & (least > 2.0**-120)  # also half-way
    return np.where(within, error, np.inf)


def _below_one(sizes: Array) -> Array:
    return np.where(sizes == 0, 1.0, np.minimum(sizes, 1.0))


def _floating(node: Node) -> Node:
    """The node as if its data were float64: for errors, which are."""
    src = tuple([param(i, s.shape, float64) for i, s in enumerate(node.src)])
    if node.op.name in ("gather", "scatter"):
        src = (src[0], node.src[1], *src[2:])
    return make(node.op, float64, src, node.arg)
