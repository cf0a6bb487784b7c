"""Random graphs through the whole pipeline, against the meaning of the graph itself.

In: a seed. Out: nothing, or an AssertionError that shows the smallest graph that still fails, as
text and as a call of `replay` to paste into a test. The pipeline is the real one (normalise,
restore, simplify, schedule, plan, run with poisoned memory), the oracle `reference.evaluate` of the
graph as it was built. Even seeds are exact: integer-valued data, ops that round nothing, sums that
stay on the grid in any order; every bit must agree (any NaN is as good as another). Odd seeds
are rounded: every result must lie within a running error bound of the float64 value (`truth`).
Run many with `python -m tests.fuzz --seeds 0:100000`, one with `--minimise SEED`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from random import Random
from typing import Any

import numpy as np

from fulgurite.config import Options
from fulgurite.core import build
from fulgurite.core.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    dtype_of,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)
from fulgurite.core.node import Node, constant, make, toposort
from fulgurite.core.op import Array, Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import AFTER, REMAT
from fulgurite.core.ops.elementwise import (
    ADD,
    BITCAST,
    CAST,
    DIV,
    EQ,
    EXP,
    FLOORDIV,
    LE,
    LT,
    MAX,
    MIN,
    MOD,
    MUL,
    NE,
    RSQRT,
    SUB,
    WHERE,
)
from fulgurite.core.ops.indexing import SCATTERS
from fulgurite.core.ops.leaf import BUFFER, CONST, IOTA, PARAM, VIEW, new_buffer, param, view
from fulgurite.core.ops.movement import unwindow
from fulgurite.core.ops.reduce import REDUCERS
from fulgurite.core.substitute import substitute
from fulgurite.core.text import parse_all, show
from fulgurite.errors import FulguriteError
from fulgurite.graph.normalize import constant_uses, normalize, size_constants
from fulgurite.runtime.device import get_device
from fulgurite.runtime.realize import compile_graph
from fulgurite.runtime.reference import evaluate, settle

MOST = 400  # elements of one value
FLOATS = (float32, float32, float32, float64, bfloat16, float16)
DTYPES = (*FLOATS, int32, int32, int64, uint8, bool_, complex64)
EXACT = frozenset(
    "add sub mul neg abs sign max min floor ceil trunc round floordiv mod cast bitcast "
    "lt le eq ne where".split()
)
_GRID = {float16: 11, bfloat16: 8, float32: 24, float64: 53, complex64: 24, complex128: 53}


@dataclass
class Graph:
    """Roots, the arrays of their buffers, and whether bits or bounds are compared."""

    roots: list[Node]
    arrays: dict[Node, Array]
    exact: bool
    lifted: bool = False  # take some constants at run time

    @property
    def nodes(self) -> list[Node]:
        """Every node, sources first."""
        return toposort(self.roots)


# --- running -------------------------------------------------------------------------------------


def pipeline(graph: Graph, simplify: bool = True, fuse: bool = True) -> list[Array]:
    """The roots as the real pipeline computes them, in memory that was poisoned first."""
    normal = normalize(graph.roots)
    options = Options(simplify=simplify, fuse=fuse, verify=True)
    lifted: dict[int, DType] = {}
    if graph.lifted:
        fixed = size_constants(normal.structure)
        dtypes = [dtype for _, dtype in constant_uses(normal.structure)]
        lifted = {i: d for i, d in enumerate(dtypes) if i % 2 and i not in fixed}
    device = get_device("reference")
    inputs = [device.from_host(graph.arrays[buffer]) for buffer in normal.buffers]
    before = [device.to_host(buffer).copy() for buffer in inputs]
    for i, dtype in lifted.items():
        inputs.append(device.from_host(np.array(_of_bits(normal.constants[i], dtype))))
    plan = compile_graph(normal, "reference", options, lifted).plan
    outputs = plan.run(inputs, normal.values, poison=True)
    for old, buffer in zip(before, inputs, strict=False):
        assert old.tobytes() == device.to_host(buffer).tobytes(), "an input was written to"
    assert len({id(o) for o in outputs}) == len(outputs), "two outputs are one buffer"
    return [device.to_host(output) for output in outputs]


def _of_bits(bits: int, dtype: DType) -> Array:
    return np.frombuffer(bits.to_bytes(dtype.numpy.itemsize, "little"), dtype.numpy).reshape(())


def problem(graph: Graph, **options: bool) -> str | None:
    """What is wrong with the pipeline's answer for a graph, if anything."""
    expected = evaluate(graph.roots, graph.arrays)
    try:
        found = pipeline(graph, **options)
    except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"raised {type(error).__name__}: {error}".split("\n")[0]
    except FulguriteError as error:
        return f"raised {type(error).__name__}: {error}".split("\n")[0]
    bounds = None if graph.exact else truth(graph)
    for place, (right, got) in enumerate(zip(expected, found, strict=True)):
        if right.shape != got.shape or right.dtype != got.dtype:
            return f"root {place} is {got.dtype}{got.shape}, not {right.dtype}{right.shape}"
        if bounds is None:
            wrong = ~_same_bits(right, got)
        else:
            value, error_ = bounds[place]
            assert not _outside(right, value, error_).any(), "the bound does not hold the oracle"
            wrong = _outside(got, value, error_)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"root {place} differs at {at}: {got[at]} for {right[at]}"
    return None


def _same_bits(a: Array, b: Array) -> Array:
    if a.dtype.kind == "c":
        return _same_bits(a.real, b.real) & _same_bits(a.imag, b.imag)
    if dtype_of(a.dtype).is_float:
        same = (a == b) & (np.signbit(a) == np.signbit(b))
        return np.asarray(same | (np.isnan(a) & np.isnan(b)))
    return np.asarray(a == b)


def _outside(found: Array, value: Array, error: Array) -> Array:
    """Where a result is further from the float64 value than its bound."""
    if found.dtype.kind in "biu":
        return np.asarray((found != value) & ~np.isinf(error))
    wide = found.astype(value.dtype)
    same = (wide == value) | (np.isnan(wide) & np.isnan(value))
    with np.errstate(all="ignore"):
        return np.asarray(~same & ~(np.abs(wide - value) <= error) & ~np.isinf(error))


# --- the float64 value and its running error bound -----------------------------------------------

Bounded = tuple[Array, Array]
_EXACTLY = frozenset("neg abs sign max min floor ceil trunc round where".split())
_ONCE = frozenset("add sub mul div sqrt cast".split())  # rounded correctly; others within 8 units


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


def _wide_dtype(dtype: DType) -> DType:
    return float64 if dtype.is_float else complex128 if dtype.kind == "c" else dtype


def _bounded(
    node: Node, sources: list[Bounded], wide: dict[Node, Node], arrays: dict[Node, Array]
) -> Bounded:
    op, dtype = node.op, _wide_dtype(node.dtype)
    arg = _wide_dtype(node.arg) if op is CAST else node.arg
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
    units = 0 if name in _EXACTLY else 1 if name in _ONCE else 8
    limit, smallest, unit = _grid(node.dtype)
    size = np.abs(value) + error
    error = np.where(np.isfinite(value), error + units * (unit * size + smallest), error)
    return np.where(np.isfinite(value) & (size > limit), np.inf, error)


def _grid(dtype: DType) -> tuple[float, float, float]:
    """Largest and smallest number of a dtype, and its relative rounding (float64's added)."""
    largest = {float16: 65504.0, bfloat16: 3.38e38, float32: 3.4e38, complex64: 3.4e38}
    smallest = {float16: 2.0**-24, bfloat16: 2.0**-133}.get(dtype, 2.0**-149)
    return largest.get(dtype, 1.7e308), smallest, 2.0 ** (1 - _GRID[dtype]) + 2.0**-52


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
    for signs in product((-1.0, 1.0), repeat=len(moving)):
        corner = list(values)
        for i, sign in zip(moving, signs, strict=True):
            finite = np.where(np.isfinite(errors[i]), errors[i], 0.0)
            corner[i] = values[i] + sign * finite
        error = np.maximum(error, _distance(np.asarray(meaning(twin, *corner)), value))
    if node.dtype.kind == "c" and moving:  # corners do not enclose a disc: take twice as much
        error = 2 * error
    if moving and (node.op in (DIV, FLOORDIV, MOD) or node.dtype is bool_):
        last = len(errors) - 1
        unknown = unknown | ((errors[last] > 0) & (np.abs(values[last]) <= errors[last]))
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
    if op.name not in ("reduce", "scan", "scatter", "unwindow"):
        return on(*errors)
    data = [i for i in range(len(values)) if not (op.name == "scatter" and i == 1)]
    if op.name == "scatter" and np.any(errors[1] > 0):
        return np.full(value.shape, np.inf)
    name = "add" if op.name == "unwindow" else node.arg[0]
    if not node.dtype.is_inexact or name == "set":
        changed = [errors[i] if i in data else values[i] for i in range(len(values))]
        sums = magnitudes if name == "set" else _adding(magnitudes)
        return np.asarray(meaning(sums, *changed))
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
    return np.where(np.isfinite(value) | np.isnan(error), error, 0.0)


def _floating(node: Node) -> Node:
    """The node as if its data were float64: for errors, which are."""
    src = tuple([param(i, s.shape, float64) for i, s in enumerate(node.src)])
    if node.op.name in ("gather", "scatter"):
        src = (src[0], node.src[1], *src[2:])
    return make(node.op, float64, src, node.arg)


def _adding(node: Node) -> Node:
    """A fold as a sum of errors: whatever the op, one unknown source makes the result unknown."""
    if node.op.name == "unwindow":
        return node
    return make(node.op, node.dtype, (node.src[:1] * 1 if node.arg[0] == "affine" else node.src),
                ("add", *node.arg[1:]))  # fmt: skip
