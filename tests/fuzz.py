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
from importlib import import_module
from itertools import product
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
    COS,
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
    POW,
    RSQRT,
    SIN,
    SUB,
    WHERE,
)
from fulgurite.core.ops.indexing import SCATTERS
from fulgurite.core.ops.leaf import BUFFER, CONST, IOTA, PARAM, VIEW, new_buffer, param, view
from fulgurite.core.ops.movement import unwindow
from fulgurite.core.ops.reduce import REDUCE, REDUCERS
from fulgurite.core.substitute import substitute
from fulgurite.core.text import parse_all, show
from fulgurite.errors import FulguriteError
from fulgurite.graph.normalize import constant_uses, normalize, size_constants
from fulgurite.runtime.device import device_names, get_device
from fulgurite.runtime.realize import compile_graph
from fulgurite.runtime.reference import evaluate, settle

MOST = 400  # elements of one value
FLOATS = (float32, float32, float32, float64, bfloat16, float16)
DTYPES = (*FLOATS, int32, int32, int64, uint8, bool_, complex64)
_EXACTLY = frozenset(
    {"neg", "abs", "sign", "max", "min", "floor", "ceil", "trunc", "round", "where"}
)
EXACT = _EXACTLY | {
    "add", "sub", "mul", "floordiv", "mod", "cast", "bitcast", "lt", "le", "eq", "ne",
}  # fmt: skip
_ONCE = frozenset({"add", "sub", "mul", "div", "sqrt", "cast"})  # others within 8 units
_GRID = {float16: 11, bfloat16: 8, float32: 24, float64: 53, complex64: 24, complex128: 53}


@dataclass
class Graph:
    """Roots, the arrays of their buffers, and whether bits or bounds are compared."""

    roots: list[Node]
    arrays: dict[Node, Array]
    exact: bool
    lifted: bool = False  # take some constants at run time
    device: str = "reference"

    @property
    def nodes(self) -> list[Node]:
        """Every node, sources first."""
        return toposort(self.roots)


# --- running -------------------------------------------------------------------------------------


def pipeline(graph: Graph, simplify: bool = True, fuse: bool = True) -> list[Array]:
    """The roots as the real pipeline computes them, in memory that was poisoned first."""
    normal = normalize(graph.roots)
    exact = not finite_under_windows(graph)
    options = Options(simplify=simplify, fuse=fuse, exact=exact, verify=True, tier="native")
    lifted: dict[int, DType] = {}
    if graph.lifted:
        fixed = size_constants(normal.structure)
        dtypes = [dtype for _, dtype in constant_uses(normal.structure)]
        lifted = {i: d for i, d in enumerate(dtypes) if i % 2 and i not in fixed}
    device = get_device(graph.device)
    inputs = [device.from_host(graph.arrays[buffer]) for buffer in normal.buffers]
    before = [device.to_host(buffer).copy() for buffer in inputs]
    for i, dtype in lifted.items():
        inputs.append(device.from_host(np.array(_of_bits(normal.constants[i], dtype))))
    plan = compile_graph(normal, graph.device, options, lifted).plan
    outputs = plan.run(inputs, normal.values, poison=True)
    if graph.lifted:  # run again: the arena is used a second time, the first results are kept
        first = [device.to_host(output).tobytes() for output in outputs]
        again = [device.to_host(o).tobytes() for o in plan.run(inputs, normal.values)]
        assert again == first, "a second run gives other results"
        assert [device.to_host(o).tobytes() for o in outputs] == first, "results were overwritten"
    for old, buffer in zip(before, inputs, strict=False):
        assert old.tobytes() == device.to_host(buffer).tobytes(), "an input was written to"
    assert len({id(o) for o in outputs}) == len(outputs), "two outputs are one buffer"
    return [device.to_host(output) for output in outputs]


def finite_under_windows(graph: Graph) -> bool:
    """Are all numbers finite that overlapping windows are made of?

    Sums of windows may be products with padding, and 0 * inf is no number; `exact` forbids that.
    """
    added = [node for node in graph.nodes if node.op.name == "unwindow"]
    below = [n for n in toposort(added) if n.dtype.is_inexact] if added else []
    values = evaluate(below, graph.arrays) if below else []
    return all(np.isfinite(value.astype(np.complex128)).all() for value in values)


def _of_bits(bits: int, dtype: DType) -> Array:
    return np.frombuffer(bits.to_bytes(dtype.numpy.itemsize, "little"), dtype.numpy).reshape(())


def problem(graph: Graph, **options: bool) -> str | None:
    """What is wrong with the pipeline's answer for a graph, if anything."""
    expected = evaluate(graph.roots, graph.arrays)
    try:
        found = pipeline(graph, **options)
    except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as e:
        return f"raised {type(e).__name__}: {e}".split("\n")[0]
    except FulguriteError as e:
        return f"raised {type(e).__name__}: {e}".split("\n")[0]
    bounds = None if graph.exact else truth(graph)
    signs = not any(_adds_to_zero(node) for node in graph.nodes)
    for place, (right, got) in enumerate(zip(expected, found, strict=True)):
        if right.size != got.size or right.dtype != got.dtype:
            return f"root {place} is {got.dtype}{got.shape}, not {right.dtype}{right.shape}"
        got = got.reshape(right.shape)  # memory: a reshape of a stored value is that value's
        if bounds is None:
            wrong = ~_same_bits(right, got, signs)
        else:
            value, error_ = bounds[place]
            assert not _outside(right, value, error_).any(), "the bound does not hold the oracle"
            wrong = _outside(got, value, error_)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"root {place} differs at {at}: {got[at]} for {right[at]}"
    return None


def _adds_to_zero(node: Node) -> bool:
    """Is it a sum of products or of windows? A sum of -0.0 alone may come out as 0.0 there."""
    if node.op.name == "unwindow":
        return True
    return node.op is REDUCE and node.arg[0] == "add" and node.src[0].op is MUL


def _same_bits(a: Array, b: Array, signs: bool) -> Array:
    if a.dtype.kind == "c":  # multiplying by 1 changes the signs of complex zeros
        return _same_bits(a.real, b.real, False) & _same_bits(a.imag, b.imag, False)
    if dtype_of(a.dtype).is_float:
        same = (a == b) & ((np.signbit(a) == np.signbit(b)) | (not signs))
        return np.asarray(same | (np.isnan(a) & np.isnan(b)))
    return np.asarray(a == b)


def _outside(found: Array, value: Array, error: Array) -> Array:
    """Where a result is further from the float64 value than its bound."""
    if found.dtype.kind in "biu":
        return np.asarray((found != value) & ~np.isinf(error))
    with np.errstate(all="ignore"):
        wide = found.astype(value.dtype)
        same = (wide == value) | (np.isnan(wide) & np.isnan(value))
        return np.asarray(~same & ~(np.abs(wide - value) <= error) & ~np.isinf(error))


# --- the float64 value and its running error bound -----------------------------------------------

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
    units *= 4 if node.dtype.kind == "c" else 1
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


# --- generating ----------------------------------------------------------------------------------


class Rejected(Exception):
    """A step that does not fit; another is tried."""


@dataclass
class Generator:
    """Grows a graph step by step; every value is evaluated on the way."""

    seed: int
    exact: bool
    values: dict[Node, Array] = field(default_factory=dict)
    arrays: dict[Node, Array] = field(default_factory=dict)
    pool: list[Node] = field(default_factory=list)
    symbolic: list[Node] = field(default_factory=list)  # values of variable shape: only results
    fixed: dict[Node, Node] = field(default_factory=dict)  # variables and their values

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)

    # --- leaves ---

    def leaf(self, shape: Sequence[int], dtype: DType) -> Node:
        """New memory with fitting numbers in it, now and then a piece of a larger one."""
        shape = tuple(shape)
        if self.random.random() < 0.05:
            before, after = self.random.randrange(4), self.random.randrange(4)
            whole = self.memory((before + math.prod(shape) + after,), dtype)
            return view(whole, before, shape)
        return self.memory(shape, dtype)

    def memory(self, shape: tuple[int, ...], dtype: DType) -> Node:
        node = new_buffer(shape, dtype)
        self.arrays[node] = self.values[node] = self.data(shape, dtype)
        return node

    def data(self, shape: tuple[int, ...], dtype: DType) -> Array:
        if dtype is bool_:
            return self.numbers.random(shape) < 0.5
        if not dtype.is_inexact:
            low, high = (0, 9) if dtype.kind == "u" else (-5, 9)
            if self.random.random() < 0.1:
                low, high = dtype.limits
            return self.numbers.integers(low, high, shape, dtype.numpy, endpoint=True)
        if not self.exact:
            numbers = self.numbers.standard_normal(shape) * self.random.choice((0.5, 1.0, 3.0))
            if dtype.kind == "c":
                numbers = numbers + 1j * self.numbers.standard_normal(shape)
            return np.asarray(numbers).astype(dtype.numpy)
        reach = 2 if dtype.is_small_float else 4
        whole = self.numbers.integers(-reach, reach, shape, endpoint=True).astype(np.float64)
        if dtype.kind == "c":
            return np.asarray(whole + 1j * self.numbers.integers(-2, 3, shape)).astype(dtype.numpy)
        if self.random.random() < 0.1:
            special = self.numbers.choice([np.inf, -np.inf, np.nan, -0.0], shape)
            whole = np.where(self.numbers.random(shape) < 0.2, special, whole)
        return np.asarray(whole).astype(dtype.numpy)

    def shape(self) -> tuple[int, ...]:
        dims = self.random.choice(((2, 3, 4), (1, 2, 3, 5), (2, 4, 6), (3, 6, 8)))
        ndim = self.random.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        shape = [self.random.choice(dims) for _ in range(ndim)]
        if shape and self.random.random() < 0.02:
            shape[self.random.randrange(ndim)] = 0
        return tuple(shape)

    # --- choosing ---

    def pick(self, kinds: str = "biufc", ndim: int = 0, most: int = MOST) -> Node:
        """A value of the pool, recent ones more often, of some kinds and dimensions at least."""
        fits = [
            n for n in self.pool
            if n.dtype.kind in kinds and n.ndim >= ndim and math.prod(_ints(n)) <= most
        ]  # fmt: skip
        if not fits or self.random.random() < 0.08:
            kind = self.random.choice(kinds)
            dtype = self.random.choice([d for d in DTYPES if d.kind == kind] or [uint8])
            shape = self.shape()
            fresh = self.leaf((*shape, *self.ints(1, 4, max(0, ndim - len(shape)))), dtype)
            if math.prod(_ints(fresh)) > most:
                raise Rejected
            return fresh
        return self.random.choice(fits[-5:] if self.random.random() < 0.7 else fits)

    def ints(self, low: int, high: int, count: int) -> list[int]:
        return [self.random.randint(low, high) for _ in range(count)]

    def mate(self, x: Node, dtype: DType | None = None) -> Node:
        """Another value of the same shape and dtype."""
        dtype = dtype or x.dtype
        same = [n for n in self.pool if n.shape == x.shape and n.dtype is dtype]
        way = self.random.random()
        if same and way < 0.6:
            return self.random.choice(same)
        if way < 0.75:
            numbers = (0, 1, 2) if dtype.kind in "bu" else (0, 1, 2, -1, 3)
            number = self.random.choice(numbers)
            return constant(bool(number) if dtype is bool_ else number, dtype, x.shape)
        if x.shape and way < 0.9:
            small = tuple([n if self.random.random() < 0.5 else 1 for n in _ints(x)])
            return build.expand(self.leaf(small, dtype), x.shape)
        return self.leaf(_ints(x), dtype)

    def axis(self, x: Node) -> int:
        return self.random.randrange(x.ndim)

    def some_axes(self, x: Node) -> tuple[int, ...]:
        count = self.random.randint(1, x.ndim)
        return tuple(sorted(self.random.sample(range(x.ndim), count)))

    # --- keeping ---

    def keep(self, node: Node) -> Node:
        """Evaluate a node and all it needs; refuse what is too large or leaves the grid."""
        for n in toposort([node]):
            if n in self.values:
                continue
            if n.ndim > 6 or math.prod(_uppers(n)) > 8 * MOST:
                raise Rejected
            sources = [self.values[s] for s in n.src]
            fixed = n if not self.fixed else substitute(n, self.fixed, walk=True)
            sources = sources[: len(fixed.src)]
            assert n.op.numpy is not None
            with np.errstate(all="ignore"):
                value = np.asarray(n.op.numpy(fixed, *sources))
                if self.exact and n.dtype.is_inexact and not self.on_grid(fixed, value, sources):
                    raise Rejected
            self.values[n] = value
        if math.prod(_uppers(node)) > MOST:
            raise Rejected
        fixed_shape = all(isinstance(n, int) for n in node.shape)
        (self.pool if fixed_shape else self.symbolic).append(node)
        return node

    def on_grid(self, node: Node, value: Array, sources: list[Array]) -> bool:
        """Whole numbers that the dtype holds exactly, also inside any order of a sum."""
        if node.op.family == "elementwise" and node.op.name not in EXACT:
            return False
        limit = 2.0 ** _GRID[node.dtype]
        if node.op.name in ("reduce", "scan", "scatter", "unwindow"):
            twin = make(
                node.op, _wide_dtype(node.dtype),
                tuple([param(i, s.shape, _wide_dtype(s.dtype)) for i, s in enumerate(node.src)]),
                node.arg,
            )  # fmt: skip
            sizes = [_magnitude(s) if s.dtype.kind in "fcV" or _small(s) else s for s in sources]
            assert node.op.numpy is not None
            if not np.all(np.abs(node.op.numpy(twin, *sizes)) <= limit):
                return False
        parts = [value.real, value.imag] if value.dtype.kind == "c" else [value]
        for part in parts:
            wide = part.astype(np.float64)
            finite = wide[np.isfinite(wide)]
            if np.any(finite != np.round(finite)) or np.any(np.abs(finite) > limit):
                return False
        return True


def _small(a: Array) -> bool:
    return dtype_of(a.dtype).is_small_float


def _magnitude(a: Array) -> Array:
    """How large numbers are, at least 1, so that products only grow."""
    wide = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    return np.maximum(np.where(np.isfinite(wide), np.abs(wide), 1.0), 1.0)


def _ints(node: Node) -> tuple[int, ...]:
    """A shape without variables."""
    if not all(isinstance(n, int) for n in node.shape):
        raise Rejected
    return node.shape  # type: ignore[return-value]


def _uppers(node: Node) -> list[int]:
    return [n if isinstance(n, int) else 8 for n in node.shape]


Step = Callable[[Generator], Node]
STEPS: list[tuple[int, Step]] = []  # how often, and what


def step(weight: int) -> Callable[[Step], Step]:
    """Enter a step in the table."""

    def enter(function: Step) -> Step:
        STEPS.append((weight, function))
        return function

    return enter


def _ops(arity: int, kind: str, exact: bool) -> list[Op]:
    return [
        op for op in OPS.values()
        if op.family == "elementwise" and op.arity == arity and kind in op.kinds
        and op not in (CAST, BITCAST, WHERE, POLY) and (op, kind) != (POW, "c")
        and (not exact or kind in "biu" or op.name in EXACT)
    ]  # fmt: skip


POLY = OPS["polygamma"]


def _inside(g: Generator, op: Op, x: Node) -> Node:
    """x within the domain of an op, where that is not everything."""
    low, high = op.domain
    if (low, high) == (-3.0, 3.0) or g.exact or not x.dtype.is_float:
        return x
    return build.apply(MIN, build.apply(MAX, x, low), high)


@step(14)
def binary(g: Generator) -> Node:
    x = g.pick()
    op = g.random.choice(_ops(2, x.dtype.kind, g.exact))
    y = g.mate(x)
    pair = (x, y) if g.random.random() < 0.5 else (y, x)
    if op.name in ("shl", "shr"):
        pair = (x, build.apply(OPS["and"], y, 7))
    return op(*[_inside(g, op, s) for s in pair])


@step(10)
def unary(g: Generator) -> Node:
    x = g.pick()
    if x.dtype.is_float and not g.exact and g.random.random() < 0.05:
        return build.polygamma(g.random.randrange(3), _inside(g, POLY, x))
    op = g.random.choice(_ops(1, x.dtype.kind, g.exact))
    return op(_inside(g, op, x))


@step(4)
def choice(g: Generator) -> Node:
    x = g.pick()
    if g.random.random() < 0.5:
        op = g.random.choice([EQ, NE] if x.dtype.kind == "c" else [LT, LE, EQ, NE])
        condition = op(x, g.mate(x))
    else:
        condition = g.mate(x, bool_)
    return WHERE(condition, x, g.mate(x))


@step(4)
def conversion(g: Generator) -> Node:
    x = g.pick()
    same = [d for d in (int32, uint32, float32) if d.bits == x.dtype.bits and x.dtype.kind in "iuf"]
    if g.random.random() < 0.3 and same:
        if any(_adds_to_zero(n) for n in toposort([x])):
            raise Rejected  # the sign of a zero would become a number
        return build.bitcast(x, g.random.choice(same))
    target = g.random.choice([d for d in DTYPES if d.kind != "c" or x.dtype.kind == "c"])
    if x.dtype.kind == "c" and target.kind != "c":
        raise Rejected
    return build.cast(x, target)


def factors(g: Generator, count: int) -> list[int]:
    """Sizes with a product, ones among them."""
    sizes: list[int] = []
    while count > 1:
        size = g.random.choice([d for d in range(2, count + 1) if count % d == 0])
        sizes.append(size)
        count //= size
    for _ in range(g.random.choice((0, 0, 0, 1, 2))):
        sizes.insert(g.random.randint(0, len(sizes)), 1)
    return sizes


@step(10)
def reshaped(g: Generator) -> Node:
    x = g.pick()
    count = math.prod(_ints(x))
    if count == 0:
        return build.reshape(x, g.random.sample(list(x.shape), x.ndim))
    return build.reshape(x, tuple(factors(g, count)))


@step(7)
def permuted(g: Generator) -> Node:
    x = g.pick(ndim=2)
    return build.permute(x, g.random.sample(range(x.ndim), x.ndim))


@step(5)
def expanded(g: Generator) -> Node:
    x = g.pick(most=60)
    shape = [g.random.randint(1, 4) if n == 1 else n for n in _ints(x)]
    if g.random.random() < 0.6:
        place = g.random.randint(0, x.ndim)
        x = build.reshape(x, (*x.shape[:place], 1, *x.shape[place:]))
        shape.insert(place, g.random.randint(1, 4))
    return build.expand(x, shape)


@step(6)
def padded(g: Generator) -> Node:
    x = g.pick(ndim=1)
    return build.pad(x, [(g.random.choice((0, 0, 1, 2)), g.random.choice((0, 0, 1, 3)))
                         for _ in x.shape])  # fmt: skip


@step(6)
def shrunk(g: Generator) -> Node:
    x = g.pick(ndim=1)
    cuts = []
    for n in _ints(x):
        start = g.random.randint(0, n)
        stop = g.random.randint(start, n)
        if stop == start and g.random.random() < 0.95:
            start, stop = 0, n
        cuts.append((start, stop))
    return build.shrink(x, cuts)


@step(4)
def flipped(g: Generator) -> Node:
    x = g.pick(ndim=1)
    return build.flip(x, g.some_axes(x))


def slide(g: Generator, x: Node, axis: int) -> tuple[int, int, int]:
    """Size, stride and dilation of windows that fit."""
    n = x.shape[axis]
    size, stride, dilation = g.random.randint(1, 3), g.random.randint(1, 3), g.random.randint(1, 2)
    if not isinstance(n, int) or (size - 1) * dilation + 1 > n:
        raise Rejected
    return size, stride, dilation


@step(5)
def windows(g: Generator) -> Node:
    x = g.pick(ndim=1)
    axis = g.axis(x)
    out = build.window(x, axis, *slide(g, x, axis))
    if g.random.random() < 0.3 and x.dtype.kind in "biuf":
        return folded(g, "max", out, (out.ndim - 1,), False)
    return out


@step(5)
def windows_added(g: Generator) -> Node:
    x = g.pick("iufc", ndim=2)
    axis = g.random.randrange(x.ndim - 1)
    count, size = _ints(x)[axis], _ints(x)[-1]
    stride, dilation = g.random.randint(1, 3), g.random.randint(1, 2)
    length = max(0, count - 1) * stride + max(0, size - 1) * dilation + 1 + g.random.randrange(3)
    return unwindow(x, axis, length, stride, dilation)


def _reducer(g: Generator, x: Node) -> str:
    names = [name for name, op in REDUCERS.items() if x.dtype.kind in op.kinds]
    return g.random.choice(names)


def folded(g: Generator, name: str, x: Node, axes: tuple[int, ...], keep: bool = True) -> Node:
    """A reduction that exists: no maximum of nothing."""
    if name in ("max", "min") and not math.prod(_ints(x)):
        raise Rejected
    return build.fold(name, x, axes, keep)


@step(9)
def reduced(g: Generator) -> Node:
    x = g.pick(ndim=1)
    return folded(g, _reducer(g, x), x, g.some_axes(x), g.random.random() < 0.5)


@step(8)
def diamond(g: Generator) -> Node:
    """A value joined again with its own rows: the shape of every normalisation."""
    x = g.pick("iuf", ndim=1)
    axes = g.some_axes(x)
    row = build.expand(folded(g, _reducer(g, x), x, axes), x.shape)
    y = g.random.choice([SUB, ADD, MUL, MAX])(x, row)
    if g.random.random() < 0.5:
        return y
    again = build.expand(folded(g, _reducer(g, y), y, axes), x.shape)
    return g.random.choice([SUB, ADD, MUL])(y, again)


@step(3)
def softmax(g: Generator) -> Node:
    x = g.pick("f", ndim=1)
    axes = g.some_axes(x)
    shifted = SUB(x, build.expand(folded(g, "max", x, axes), x.shape))
    if g.exact:
        total = build.expand(folded(g, "add", shifted, axes), x.shape)
        return SUB(total, shifted)
    e = EXP(shifted)
    return DIV(e, build.expand(folded(g, "add", e, axes), x.shape))


@step(2)
def layernorm(g: Generator) -> Node:
    x = g.pick("f", ndim=1)
    axes = g.some_axes(x)
    centred = SUB(x, build.expand(folded(g, "add", x, axes), x.shape))
    power = build.expand(folded(g, "add", MUL(centred, centred), axes), x.shape)
    return SUB(centred, power) if g.exact else MUL(centred, RSQRT(build.apply(ADD, power, 1)))


@step(3)
def argmax(g: Generator) -> Node:
    x = g.pick("iuf", ndim=1)
    axis = g.axis(x)
    top = EQ(x, build.expand(folded(g, "max", x, (axis,)), x.shape))
    place = build.iota(x.shape, axis)
    return folded(g, "min", WHERE(top, place, constant(99, int32, x.shape)), (axis,), False)


@step(7)
def contraction(g: Generator) -> Node:
    """Σ over some axes of a product of two values that each miss some: matmul, einsum."""
    x = g.pick("iuf", ndim=1, most=60)
    ndim = x.ndim + g.random.randint(0, 2)
    places = sorted(g.random.sample(range(ndim), x.ndim))
    full = [g.random.randint(1, 4) for _ in range(ndim)]
    spread = [1] * ndim
    for place, n in zip(places, _ints(x), strict=True):
        full[place] = spread[place] = n
    if math.prod(full) > 2 * MOST:
        raise Rejected
    keep = [n if g.random.random() < 0.7 else 1 for n in full]
    shared = [n for n in g.pool if n.shape == tuple(keep) and n.dtype is x.dtype]
    y = g.random.choice(shared) if shared else g.leaf(keep, x.dtype)
    pair = MUL(build.expand(build.reshape(x, spread), full), build.expand(y, full))
    axes = tuple(sorted(g.random.sample(range(ndim), g.random.randint(1, ndim))))
    return folded(g, "add", pair, axes, g.random.random() < 0.3)


@step(4)
def matmul(g: Generator) -> Node:
    x = g.pick("iuf", ndim=2, most=100)
    *batch, m, k = _ints(x)
    n = g.random.randint(1, 4)
    mates = [y for y in g.pool if y.dtype is x.dtype and y.shape[-2:-1] == (k,) and y.ndim == 2]
    y = g.random.choice(mates) if mates and g.random.random() < 0.5 else g.leaf((k, n), x.dtype)
    n = _ints(y)[-1]
    full = (*batch, m, k, n)
    left = build.expand(build.reshape(x, (*batch, m, k, 1)), full)
    right = build.expand(build.reshape(y, (*[1] * (len(batch) + 1), k, n)), full)
    if math.prod(full) > 4 * MOST:
        raise Rejected
    out = folded(g, "add", MUL(left, right), (len(full) - 2,), False)
    return ADD(out, build.expand(g.leaf((n,), x.dtype), out.shape))


@step(4)
def convolution(g: Generator) -> Node:
    """Channels last: windows along one or two axes times weights, summed."""
    x = g.pick("iuf", ndim=2, most=80)
    if g.random.random() < 0.5:
        x = build.pad(x, [(0, 0), *[(1, 1)] * (x.ndim - 1)])
    axes = [a for a in range(x.ndim) if g.random.random() < 0.6][:2] or [x.ndim - 1]
    out = x
    for axis in axes:
        out = build.window(out, axis, *slide(g, x, axis))
    kernel = [1] * x.ndim + [n for n in out.shape[x.ndim :] if isinstance(n, int)]
    channels = g.random.randint(1, 3)
    full = (channels, *_ints(out))
    if math.prod(full) > 4 * MOST:
        raise Rejected
    weights = g.leaf((channels, *kernel), x.dtype)
    product_ = MUL(build.expand(out, full), build.expand(weights, full))
    return folded(g, "add", product_, tuple(range(x.ndim + 1, len(full))), False)


@step(5)
def concat(g: Generator) -> Node:
    x = g.pick(ndim=1)
    axis = g.axis(x)
    fits = [
        p for p in g.pool
        if p.dtype is x.dtype and p.ndim == x.ndim
        and all(d == axis or n == m for d, (n, m) in enumerate(zip(p.shape, x.shape, strict=True)))
    ]  # fmt: skip
    y = g.random.choice(fits) if fits and g.random.random() < 0.8 else g.leaf(_ints(x), x.dtype)
    a, b = _ints(x)[axis], _ints(y)[axis]
    first = build.pad(x, [(0, b if d == axis else 0) for d in range(x.ndim)])
    second = build.pad(y, [(a if d == axis else 0, 0) for d in range(x.ndim)])
    place = build.iota(first.shape, axis)
    return WHERE(LT(place, constant(a, int32, first.shape)), first, second)


def places(g: Generator, shape: Sequence[int], size: int) -> Node:
    """Indices inside an axis: data that needs a guard, or computed so that bounds prove them."""
    if not 0 < size < 200:
        raise Rejected
    way = g.random.random()
    dtype = g.random.choice((int32, int64, uint8))
    if way < 0.5:
        node = g.leaf(shape, dtype)
        first = int(way < 0.2)  # counted from 1: where a pad reads 0 instead, 0 - 1 is no error
        numbers = g.numbers.integers(first, size + first, tuple(shape)).astype(dtype.numpy)
        base = node.src[0] if node.op is VIEW else node
        if node.op is VIEW:
            flat = g.arrays[base].copy()
            flat[node.arg[0] : node.arg[0] + numbers.size] = numbers.ravel()
            numbers = flat
        g.arrays[base] = g.values[base] = numbers
        return build.apply(SUB, node, first) if first else node
    whole = [n for n in g.pool if n.shape == tuple(shape) and n.dtype.kind in "iu"]
    x = g.random.choice(whole) if whole else g.leaf(shape, dtype)
    if way < 0.8:
        return build.apply(MOD, x, size)
    if way < 0.83 and shape and max(shape) <= size:
        return build.iota(shape, g.random.randrange(len(shape)), int32)
    if way < 0.9 or not shape:
        return build.apply(MIN, build.apply(MAX, x, 0), size - 1)
    small = [n if g.random.random() < 0.5 else 1 for n in shape]
    line = build.apply(MOD, g.leaf(small, dtype), size)
    return build.expand(line, tuple(shape))


@step(6)
def gathered(g: Generator) -> Node:
    x = g.pick(ndim=1)
    axis = g.axis(x)
    shape = list(_ints(x))
    shape[axis] = g.random.randint(1, 5)
    return build.gather(x, places(g, shape, _ints(x)[axis]), axis)


@step(2)
def embedding(g: Generator) -> Node:
    x = g.pick(ndim=2)
    if x.ndim != 2:
        raise Rejected
    rows, width = _ints(x)
    index = places(g, (g.random.randint(1, 5),), rows)
    count = _ints(index)[0]
    return build.gather(x, build.expand(build.reshape(index, (count, 1)), (count, width)), 0)


@step(5)
def updated(g: Generator) -> Node:
    x = g.pick(ndim=1)
    if 0 in x.shape:
        raise Rejected
    starts, steps, counts = [], [], []
    for n in _ints(x):
        steps.append(g.random.choice((1, 1, 1, 2, 3)))
        starts.append(g.random.randrange(n))
        counts.append(g.random.randint(1, 1 + (n - 1 - starts[-1]) // steps[-1]))
    part = g.mate(constant(0, x.dtype, tuple(counts)))
    return build.update(x, part, starts, steps)


@step(5)
def scattered(g: Generator) -> Node:
    x = g.pick(ndim=1)
    names = [n for n in SCATTERS if n == "set" or x.dtype.kind in REDUCERS[n].kinds]
    axis = g.axis(x)
    shape = list(_ints(x))
    shape[axis] = g.random.randint(0 if g.random.random() < 0.05 else 1, 5)
    index = places(g, shape, _ints(x)[axis])
    return build.scatter(g.random.choice(names), x, index, g.mate(index, x.dtype), axis)


@step(3)
def sorting(g: Generator) -> Node:
    x = g.pick("biuf", ndim=1)
    axis = g.axis(x)
    order = build.sort_order(x, axis, g.random.random() < 0.5)
    return order if g.random.random() < 0.4 else build.gather(x, order, axis)


@step(5)
def running(g: Generator) -> Node:
    x = g.pick(ndim=1)
    axis, reverse = g.axis(x), g.random.random() < 0.5
    if x.dtype is not bool_ and g.random.random() < 0.3:
        return build.affine_scan(x, g.mate(x), axis, reverse)
    return build.scan(_reducer(g, x), x, axis, reverse)


@step(2)
def random_bits(g: Generator) -> Node:
    shape = g.shape()
    batch = tuple(g.ints(1, 3, 1)) if g.random.random() < 0.3 else ()
    key, counter = new_buffer((*batch, 2), uint32), new_buffer(batch, uint64)
    for node, high in ((key, 1 << 32), (counter, 1 << 34)):
        numbers = g.numbers.integers(0, high, _ints(node), np.uint64)
        g.arrays[node] = g.values[node] = np.asarray(numbers).astype(node.dtype.numpy)
    bits = build.random_bits(key, counter, shape)
    kept = build.apply(OPS["shr"], bits, constant(g.random.choice((8, 28)), uint32, bits.shape))
    return bits if g.random.random() < 0.2 else build.cast(kept, g.random.choice((float32, int32)))


@step(2)
def counting(g: Generator) -> Node:
    x = g.pick("iuf", ndim=1)
    return ADD(x, build.iota(x.shape, g.axis(x), x.dtype))


@step(3)
def effects(g: Generator) -> Node:
    x = g.pick()
    way = g.random.randrange(4)
    if way == 0:
        return build.detach(x)
    if way == 1:
        return AFTER(x, g.pick())
    return REMAT(x, g.pick()) if way == 2 else build.contiguous(x)


@step(2)
def variables(g: Generator) -> Node:
    """A variable number, as a value or as the size of a part."""
    x = g.pick("iuf", ndim=1)
    axis = g.axis(x)
    size = _ints(x)[axis]
    if size == 0:
        raise Rejected
    low = g.random.choice((0, 1, 1))
    var = build.variable(f"n{low}_{size}", low, size)
    value = low + g.seed % (size - low + 1)
    bound = build.bind(var, value)
    g.values[var] = g.values[bound] = np.asarray(value)
    g.fixed[var] = g.fixed[bound] = constant(value, int64)
    if g.random.random() < 0.4:
        number = build.cast(build.reshape(bound, (1,) * x.ndim), x.dtype)
        return MUL(x, build.expand(number, x.shape))
    part = build.shrink(x, [(0, bound if d == axis else n) for d, n in enumerate(x.shape)])
    name = g.random.choice(("add", "max")) if value else "add"  # nothing has no maximum
    if g.random.random() < 0.5:
        row = build.fold(name, part, axis, True)
        part = SUB(part, build.expand(row, part.shape))
    if g.random.random() < 0.3:
        return part if g.random.random() < 0.5 else build.scan("add", part, axis)
    return build.fold(name, part, axis, True)


def generate(seed: int, steps: int | None = None) -> Graph:
    """The graph of a seed."""
    g = Generator(seed, seed % 2 == 0)
    random = g.random
    for _ in range(random.randint(1, 3)):
        dtype = random.choice(DTYPES if random.random() < 0.5 else FLOATS)
        g.pool.append(g.leaf(g.shape(), dtype))
    leaves = len(g.pool)
    wanted = steps or random.choice((2, 4, 6, 9, 12, 18))
    weights, functions = zip(*STEPS, strict=True)
    for _ in range(3 * wanted):
        if len(g.pool) - leaves >= wanted:
            break
        try:
            g.keep(random.choices(functions, weights)[0](g))
        except Rejected:
            continue
    used = {s for n in toposort(g.pool) for s in n.src}
    ends = [n for n in g.pool if n not in used]
    others = [n for n in g.pool if n in used]
    roots = ends if random.random() < 0.5 else [random.choice(ends)]
    if others and random.random() < 0.4:
        roots = [*roots, *random.sample(others, min(len(others), random.randint(1, 2)))]
    roots = roots[-4:]
    random.shuffle(roots)
    if random.random() < 0.05:
        roots.append(random.choice(roots))
    roots += g.symbolic[:1]
    arrays = {n: g.arrays[n] for n in toposort(roots) if n.op is BUFFER}
    return Graph(roots, arrays, g.exact, random.random() < 0.2)


# --- minimising ----------------------------------------------------------------------------------


def minimise(graph: Graph, **options: bool) -> Graph:
    """A smaller graph that fails in the same way: fewer roots, inner nodes made leaves."""
    wanted = _sort_of(problem(graph, **options))
    assert wanted is not None, "only a graph that fails can be made smaller"
    shrinking = True
    while shrinking:
        shrinking = False
        for smaller in _smaller(graph):
            try:
                found = problem(smaller, **options)
            except (AssertionError, FulguriteError, ValueError):
                continue
            if _sort_of(found) == wanted:
                graph, shrinking = smaller, True
                break
    return graph


def _sort_of(found: str | None) -> str | None:
    return None if found is None else found.split(":")[0] if found.startswith("raised") else "wrong"


def _smaller(graph: Graph) -> Iterable[Graph]:
    """Graphs with one thing less, the largest steps first."""
    for i in range(len(graph.roots) if len(graph.roots) > 1 else 0):
        yield _only(graph, [r for j, r in enumerate(graph.roots) if j != i])
    if graph.lifted:
        yield replace(graph, lifted=False)
    for i, root in enumerate(graph.roots):
        for source in root.src:
            yield _only(graph, [source if i == j else r for j, r in enumerate(graph.roots)])
    settled = settle(graph.nodes, {})
    if settled:
        yield _only(graph, [substitute(root, settled, walk=True) for root in graph.roots])
        return
    inner = [n for n in reversed(graph.nodes) if n.src and n not in graph.roots]
    if not inner:
        return
    values = dict(zip(inner, evaluate(inner, graph.arrays), strict=True))
    for node in inner:
        fresh = new_buffer(node.shape, node.dtype)  # type: ignore[arg-type]
        roots = [substitute(root, {node: fresh}) for root in graph.roots]
        array = np.ascontiguousarray(values[node]).reshape(fresh.arg[2])
        arrays = {**graph.arrays, fresh: array}
        yield _only(replace(graph, arrays=arrays), roots)


def _only(graph: Graph, roots: list[Node]) -> Graph:
    arrays = {n: graph.arrays[n] for n in toposort(roots) if n.op is BUFFER}
    return replace(graph, roots=roots, arrays=arrays)


def reproduction(graph: Graph, **options: bool) -> str:
    """Lines to paste into a test: `replay` of the graph's text and data."""
    buffers = list(graph.arrays)
    params = {b: param(i, b.shape, b.dtype) for i, b in enumerate(buffers)}
    text = show(*[substitute(root, params) for root in graph.roots])
    data = ",\n        ".join(_text(graph.arrays[b]) for b in buffers)
    more = "".join(f", {name}={value}" for name, value in options.items())
    body = text.replace("\n", "\n    ")
    return (
        "from math import inf, nan\nfrom tests.fuzz import replay\n"
        f'replay(\n    """\n    {body}\n    """,\n    [\n        {data}\n    ],\n'
        f"    exact={graph.exact}, lifted={graph.lifted}, device={graph.device!r}{more},\n)"
    )


def _text(array: Array) -> str:
    wide = array.astype(np.float32) if dtype_of(array.dtype).is_small_float else array
    return repr(wide.ravel().tolist())


def replay(
    text: str,
    data: Sequence[Sequence[Any]],
    exact: bool,
    lifted: bool = False,
    device: str = "reference",
    **options: bool,
) -> None:
    """Check a graph that is written out: params of the text take the lists of data in order."""
    roots = parse_all(text)
    buffers: dict[Node, Node] = {}
    arrays: dict[Node, Array] = {}
    for node in toposort(roots):
        if node.op is PARAM:
            buffers[node] = new_buffer(node.arg[1], node.dtype)
            numbers = np.array(data[node.arg[0]], dtype=None if data[node.arg[0]] else float)
            arrays[buffers[node]] = numbers.astype(node.dtype.numpy).reshape(node.arg[1])
    graph = Graph([substitute(root, buffers) for root in roots], arrays, exact, lifted, device)
    found = problem(graph, **options)
    assert found is None, f"{found}\n{text}"


# --- checking many -------------------------------------------------------------------------------

COVERAGE: Counter[str] = Counter()  # nodes of each op that went through the pipeline
GRAPHS: Counter[str] = Counter()  # graphs that were checked, of each kind


def check(
    seed: int,
    steps: int | None = None,
    smallest: bool = True,
    device: str = "reference",
    **options: bool,
) -> None:
    """One graph through the pipeline; `options` are simplify and fuse, both on by default."""
    graph = replace(generate(seed, steps), device=device)
    found = problem(graph, **options)
    GRAPHS["exact" if graph.exact else "rounded"] += 1
    COVERAGE.update(_label(node) for node in graph.nodes)
    if found is not None:
        raise AssertionError(explained(seed, graph, found, smallest, **options))


def explained(seed: int, graph: Graph, found: str, smallest: bool, **options: bool) -> str:
    """What failed, made as small as it gets, with a way to run it again."""
    if smallest:
        graph = minimise(graph, **options)
        found = problem(graph, **options) or found
    return (
        f"seed {seed}: {found}\n{show(*graph.roots)}\n\nto repeat it: "
        f"python -m tests.fuzz --minimise {seed}\nor, in a test:\n"
        f"{reproduction(graph, **options)}"
    )


def _label(node: Node) -> str:
    if node.op.name in ("reduce", "scan", "scatter"):
        return f"{node.op.name}.{node.arg[0]}"
    return node.op.name


def coverage() -> str:
    """How often each op went through the pipeline."""
    total = f"{GRAPHS['exact']} exact and {GRAPHS['rounded']} rounded graphs; nodes of each op: "
    return total + ", ".join(f"{name} {count}" for name, count in sorted(COVERAGE.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a range of seeds, or show one failing seed at its smallest."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="first:last, the last one left out")
    parser.add_argument("--minimise", type=int, help="one seed; print the smallest failing graph")
    parser.add_argument("--device", default="reference", help="where the kernels run")
    parser.add_argument("--no-simplify", action="store_true")
    parser.add_argument("--no-fuse", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.device not in device_names():
        import_module(f"fulgurite.runtime.{chosen.device}")
    options = {"simplify": not chosen.no_simplify, "fuse": not chosen.no_fuse}
    first, last = map(int, chosen.seeds.split(":"))
    seeds = range(first, last) if chosen.minimise is None else [chosen.minimise]
    failed = 0
    for seed in seeds:
        try:
            check(seed, device=chosen.device, **options)
        except AssertionError as error:
            failed += 1
            print(error, "\n")
            if failed == 10:
                print("ten failures are enough")
                break
    print(coverage())
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
