"""Running a kernel in index notation with NumPy: the meaning of kernels.

In: an `IndexKernel`, the flat memory of its params, and values of its variables. Out: its outputs,
written in place. Every axis is one dimension of the arrays in play, so a value takes up only the
axes it depends on; axes that all stores share and no fold needs are traversed in tiles, so that
temporaries stay within a tile (or a row, where a fold needs a whole one).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations, permutations, product
from types import MappingProxyType
from typing import Any

import numpy as np

from ...core.dtype import array_of_bits
from ...core.node import Node, Source, toposort
from ...core.op import Array
from ...core.ops.index import BITS, FOLD, GUARD, INDEX, LOAD, ORDER, RUN, STORE, VALID, gives_values
from ...core.ops.indexing import combine_at, outside, sorted_places
from ...core.ops.leaf import CONST, SINK, VAR
from ...core.ops.random import bits_at
from ...core.ops.reduce import REDUCE, scanned
from ...errors import ShapeError
from ...graph.ir.affine import Affine, Atom
from ...graph.ir.bodies import CaptureError, rename_axes
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, products_in_sums, whole_axes
from .evaluate import size_value

TILE = 1 << 20  # elements of the largest temporary, unless one row is larger
Ranges = tuple[tuple[int, int], ...]
Axes = frozenset[int]
Repeated = tuple[Node, dict[int, int]]  # a fold, and the axes of another in its own


class Runner:
    """A kernel made ready: what depends on its body alone is computed once."""

    repeated: Mapping[Node, Repeated] = MappingProxyType({})

    def __init__(self, kernel: IndexKernel, one_pass: bool = False) -> None:
        self.kernel = kernel
        nodes = [n for n in toposort([kernel.body]) if n.op is not SINK]
        # an output may take an input's memory: a tile reads everything before it writes anything
        self.order = sorted(nodes, key=lambda n: n.op is STORE)
        self.free = free_axes(self.order)
        found = products_in_sums(self.order, self.free)
        self.products = {n for n in found if n.dtype.kind in "iuf"}
        stores = [n for n in self.order if n.op is STORE]
        self.stored = [n.arg[3] for n in stores]  # the axes of each store
        shared = frozenset.intersection(*[self.free[s] for s in stores])
        self.tiled = sorted(shared - whole_axes(self.order))
        if one_pass:
            sizes = {a: n for a, n in enumerate(kernel.axes) if a not in self.tiled}
            self.repeated = _repeated(self.order, self.free, sizes)

    def run(self, params: Sequence[Array], values: dict[str, int]) -> None:
        """Fill the outputs, tile by tile."""
        sizes = [n if isinstance(n, int) else size_value(n, values) for n in self.kernel.axes]
        if not any(all([sizes[a] for a in axes]) for axes in self.stored):
            return  # no output has an element
        with np.errstate(all="ignore"):
            for ranges in self._tiles(sizes):
                _Tile(self, params, values, ranges).run()

    def _tiles(self, sizes: Sequence[int]) -> Iterator[Ranges]:
        """Ranges of every axis, tile after tile, outer axes cut first."""
        chunks = list(sizes)
        for axis in self.tiled:
            while chunks[axis] > 1 and self._largest(chunks) > TILE:
                chunks[axis] = -(-chunks[axis] // 2)
        cuts = [
            [(start, min(start + chunk, size)) for start in range(0, size, max(chunk, 1))]
            or [(0, 0)]
            for size, chunk in zip(sizes, chunks, strict=True)
        ]
        yield from product(*cuts)

    def _largest(self, chunks: Sequence[int]) -> int:
        kept = (n for n in self.order if n not in self.products)
        return max(math.prod([chunks[a] for a in self.free[n]]) for n in kept)


def _repeated(
    order: Sequence[Node], free: Mapping[Node, Axes], sizes: Mapping[int, object]
) -> dict[Node, Repeated]:
    """Folds that others are but for the names of loops that never meet: a pass has one for both.

    In index notation every loop over a row spells its elements again. Sums of one kernel that
    streams would differ in their last bits, and so would the weights of a row from their sum.
    """
    met = {pair for axes in set(free.values()) for pair in combinations(sorted(axes), 2)}
    first: list[Node] = []
    found: dict[Node, Repeated] = {}
    for node in [n for n in order if n.op is FOLD]:
        pairs = ((one, _names(node, one, free, sizes, met)) for one in first)
        same = next(((one, names) for one, names in pairs if names is not None), None)
        if same is None:
            first.append(node)
        else:
            found[node] = same
    return found


def _names(
    node: Node, first: Node, free: Mapping[Node, Axes], sizes: Mapping[int, object],
    met: set[tuple[int, int]],
) -> dict[int, int] | None:  # fmt: skip
    """Names of axes with which a fold is another one; None if there are none."""
    mine, theirs = sorted(free[node] - free[first]), sorted(free[first] - free[node])
    if node.arg != first.arg or len(mine) != len(theirs) or not sizes.keys() >= {*mine, *theirs}:
        return None
    for others in permutations(theirs):
        names = dict(zip(mine, others, strict=True))
        if any(sizes[a] != sizes[b] or (min(a, b), max(a, b)) in met for a, b in names.items()):
            continue
        with suppress(CaptureError):
            if rename_axes(node, names) is first:
                return names
    return None


class _Tile:
    """One tile's values."""

    def __init__(
        self, runner: Runner, params: Sequence[Array], values: dict[str, int], ranges: Ranges
    ) -> None:
        self.runner, self.params, self.values, self.ranges = runner, params, values, ranges
        self.known: dict[Node, Array] = {}

    def run(self) -> None:
        for node in self.runner.order:
            if node.op is STORE:
                self.store(node)
            elif node not in self.runner.products:
                self.known[node] = self.value(node)

    def value(self, node: Node) -> Array:
        sources = [self.known[s] for s in node.src if s not in self.runner.products]
        op = node.op
        if op is LOAD:
            return self.load(node, sources)
        if op is FOLD:
            return self.again(node) if node in self.runner.repeated else self.fold(node)
        if op.family == "elementwise":
            assert op.numpy is not None
            return op.numpy(node, *sources)
        if op is CONST:
            return self.spread(array_of_bits(node.arg[0], node.dtype))
        if op is VAR:
            return self.spread(np.asarray(self.values[node.arg[0]], node.dtype.numpy))
        if op is INDEX:
            return self.index(node.arg, sources)
        if op is VALID:
            return self.conditions(node.arg, sources)
        if op is GUARD:
            return _guarded(int(sources[1].item()) if sources[1:] else node.arg, sources[0])
        if op is BITS:
            return bits_at(*sources)
        return self.along(node, sources)

    def spread(self, number: Array) -> Array:
        return number.reshape((1,) * len(self.ranges))

    def atom(self, atom: Atom, sources: Sequence[Array]) -> Array:
        if isinstance(atom, int):
            shape = [1] * len(self.ranges)
            shape[atom] = -1
            return np.arange(*self.ranges[atom]).reshape(shape)
        if isinstance(atom, Source):
            return sources[atom.index].astype(np.int64)
        sign, index, by = atom
        inner = self.index(index, sources)
        return inner // by if sign == "//" else inner % by

    def index(self, index: Affine, sources: Sequence[Array]) -> Array:
        total = self.spread(np.asarray(index[0], np.int64))
        for atom, coefficient in index[1]:
            total = total + coefficient * self.atom(atom, sources)
        return total

    def conditions(self, conditions: Any, sources: Sequence[Array]) -> Array:
        holds = self.spread(np.asarray(True))
        for index, size in conditions:
            place = self.index(index, sources)
            holds = holds & (place >= 0) & (place < size)
        return holds

    def load(self, node: Node, sources: Sequence[Array]) -> Array:
        number, index, conditions = node.arg
        place = self.index(index, sources)
        memory = self.params[number]
        if not conditions:
            return np.asarray(memory[place])
        holds = self.conditions(conditions, sources)
        found = memory[np.where(holds, place, 0)]
        return np.where(holds, found, np.zeros((), memory.dtype))

    def again(self, node: Node) -> Array:
        """A fold that is known along other axes."""
        first, names = self.runner.repeated[node]
        value = self.known[first]
        for axis, other in names.items():
            value = value.swapaxes(axis, other)
        return value

    def fold(self, node: Node) -> Array:
        source = node.src[0]
        if source in self.runner.products:
            return self.contract(node, source)
        whole = self.widened(self.known[source], node.arg[1])
        extreme = node.arg[0] in ("max", "min") and node.dtype.kind != "b"
        if extreme and not all(whole.shape[a] for a in node.arg[1]):
            raise ShapeError(
                f"the {node.arg[0]} of no elements does not exist", "bind a size above 0"
            )
        assert REDUCE.numpy is not None
        return REDUCE.numpy(node, whole)

    def widened(self, value: Array, axes: Sequence[int]) -> Array:
        """The value repeated over axes that it does not depend on."""
        shape = list(value.shape)
        for axis in axes:
            start, stop = self.ranges[axis]
            shape[axis] = stop - start
        return np.broadcast_to(value, shape)

    def contract(self, node: Node, product_: Node) -> Array:
        """Σ of a product without the product: einsum over the axes of each factor."""
        wide = np.float32 if node.dtype.is_small_float else node.dtype.numpy
        factors = [self.known[s].astype(wide, copy=False) for s in product_.src]
        axes = range(len(self.ranges))
        kept = [[a for a in axes if f.shape[a] != 1] for f in factors]
        out = [a for a in axes if a not in node.arg[1] and any(a in k for k in kept)]
        inputs: list[Any] = []
        for factor, k in zip(factors, kept, strict=True):
            inputs += [factor.reshape([factor.shape[a] for a in k]), k]
        total = np.asarray(np.einsum(*inputs, out, optimize=True))
        shape = [1] * len(self.ranges)
        for position, axis in enumerate(out):
            shape[axis] = total.shape[position]
        return total.reshape(shape).astype(node.dtype.numpy)

    def along(self, node: Node, sources: Sequence[Array]) -> Array:
        """A scan or a sort: its axes, outermost first, become one, and are restored after."""
        axes = node.arg[1] if node.op is RUN else node.arg[0]
        wide = [self.widened(s, axes) for s in sources]
        wide = [np.broadcast_to(w, np.broadcast_shapes(*[v.shape for v in wide])) for w in wide]
        last = [np.moveaxis(w, axes, range(-len(axes), 0)) for w in wide]
        split = last[0].ndim - len(axes)  # no axis at all is a line of one element
        rest, inner = last[0].shape[:split], last[0].shape[split:]
        flat = [v.reshape((*rest, math.prod(inner))) for v in last]
        if node.op is RUN:
            name, _, reverse = node.arg
            out = scanned(name, -1, reverse, node.dtype, flat)
        else:
            assert node.op is ORDER, f"{node!r} cannot be run"
            out = sorted_places(flat[0], -1, node.arg[1])
            if gives_values(node.arg):
                out = np.take_along_axis(flat[0], out, -1)
        return np.moveaxis(out.reshape((*rest, *inner)), range(-len(axes), 0), axes)

    def store(self, node: Node) -> None:
        number, index, mode, _ = node.arg
        sources = [self.known[s] for s in node.src]
        axes = sorted(self.runner.free[node])
        place = self.widened(self.index(index, sources), axes)
        place, spread = np.broadcast_arrays(place, sources[0])
        if mode == "set" and len(sources) == 1:
            self.params[number][place] = spread
        else:
            combine_at(mode, self.params[number], place.ravel(), spread.ravel())


def _guarded(size: int, value: Array) -> Array:
    if value.size and (int(value.min()) < 0 or int(value.max()) >= size):
        raise outside(int(value.min()), int(value.max()), size)
    return value
