"""Growing a graph: a pool of values, each evaluated on the way so that data stay in range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from fulgurite.core import build
from fulgurite.core.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    dtype_of,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from fulgurite.core.node import Node, constant, make, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.leaf import new_buffer, param, view
from fulgurite.core.rewriting.substitute import substitute

from .bounds import GRID, wide_dtype
from .graph import EXACT

MOST = 400  # elements of one value
FLOATS = (float32, float32, float32, float64, bfloat16, float16)
DTYPES = (*FLOATS, int32, int32, int64, uint8, bool_, complex64)


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
            if n.dtype.kind in kinds and n.ndim >= ndim and math.prod(sizes_of(n)) <= most
        ]  # fmt: skip
        if not fits or self.random.random() < 0.08:
            kind = self.random.choice(kinds)
            dtype = self.random.choice([d for d in DTYPES if d.kind == kind] or [uint8])
            shape = self.shape()
            fresh = self.leaf((*shape, *self.ints(1, 4, max(0, ndim - len(shape)))), dtype)
            if math.prod(sizes_of(fresh)) > most:
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
            small = tuple([n if self.random.random() < 0.5 else 1 for n in sizes_of(x)])
            return build.expand(self.leaf(small, dtype), x.shape)
        return self.leaf(sizes_of(x), dtype)

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
            if n.ndim > 6 or math.prod(uppers_of(n)) > 8 * MOST:
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
        if math.prod(uppers_of(node)) > MOST:
            raise Rejected
        fixed_shape = all(isinstance(n, int) for n in node.shape)
        (self.pool if fixed_shape else self.symbolic).append(node)
        return node

    def on_grid(self, node: Node, value: Array, sources: list[Array]) -> bool:
        """Whole numbers that the dtype holds exactly, also inside any order of a sum."""
        if node.op.family == "elementwise" and node.op.name not in EXACT:
            return False
        limit = 2.0 ** GRID[node.dtype]
        if node.op.name in ("reduce", "scan", "scatter", "unwindow"):
            twin = make(
                node.op, wide_dtype(node.dtype),
                tuple([param(i, s.shape, wide_dtype(s.dtype)) for i, s in enumerate(node.src)]),
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


def sizes_of(node: Node) -> tuple[int, ...]:
    """A shape without variables."""
    if not all(isinstance(n, int) for n in node.shape):
        raise Rejected
    return node.shape  # type: ignore[return-value]


def uppers_of(node: Node) -> list[int]:
    return [n if isinstance(n, int) else 8 for n in node.shape]
