"""Strip mining of rows: a chain through a large matrix is computed some rows at a time.

In: a SINK, and what would be stored between its kernels. Out: the same values, in a graph whose
largest matrices have a fraction of the rows. A linear layer into cross-entropy stores a logit for
each row and class, and a gradient for each; but rows are independent up to the sums over them. So
all that lies between the product that makes the matrix and what is folded from it is emitted once
for each strip of rows, after the strip before (chunked cross-entropy, as in Liger): rows of results
are joined, sums over rows are added up strip by strip, and a strip's matrices take the memory of
the one before. Work is the same but for the sums, which are read and written once for each strip.
Legal where every value on the way is computed row by row, or folds rows and is read only outside.
Floats are added in another order, so `exact` leaves this out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod

from ...core.dtype import int32
from ...core.node import Node, Shape, constant, constant_bits, forward_slice, readers_of, remember
from ...core.op import Op
from ...core.ops.effect import CONTIGUOUS, REMAT
from ...core.ops.elementwise import ADD, CAST, LT, MAX, MIN, WHERE
from ...core.ops.indexing import GATHER
from ...core.ops.leaf import CONST, IOTA, PARAM, SINK, iota
from ...core.ops.movement import EXPAND, PERMUTE, RESHAPE, expand, pad, reshape, shrink
from ...core.ops.reduce import REDUCE
from ...core.rewriting.substitute import rebuild, substitute
from ..ir.limits import LIMITS
from ..ir.queries import elements, is_contraction

_COMBINE = {"add": ADD, "max": MAX, "min": MIN}
Axes = list[int | None]  # of each source the tiled axis; None: all of it is read


def tile_rows(sink: Node, order: Sequence[Node], stored: Iterable[Node], most: int) -> Node:
    """The graph with matrices of more than `most` bytes, if they are stored, in strips of rows."""
    roots = set(sink.src)
    large = [n for n in stored if n not in roots and elements(n.shape) * n.dtype.itemsize > most]
    sizes = {elements(n.shape): n.dtype.itemsize for n in large}
    for node in order:
        if node.op is REDUCE and is_contraction(node) and elements(node.shape) in sizes:
            least = -(-elements(node.shape) * sizes[elements(node.shape)] // most)
            found = _tiled(sink, order, node, least)
            if found is not None:
                return found
    return sink


def _tiled(sink: Node, order: Sequence[Node], matrix: Node, least: int) -> Node | None:
    """The graph with what is made of a matrix in at least so many strips, along its first axis."""
    rows = next((d for d, n in enumerate(matrix.shape) if n != 1), None)
    region = None if rows is None else _Region.around(sink, order, matrix)
    if region is None or rows is None:
        return None
    for strips in range(least, LIMITS.strips):
        if region.follow(matrix, rows, strips):
            return region.tiled(sink, strips)
    return None


class _Region:
    """What is computed from a matrix up to the values that are folded from it."""

    def __init__(
        self, nodes: dict[Node, None], readers: Mapping[Node, Sequence[Node]], size: int
    ) -> None:
        self.nodes, self.readers, self.size = nodes, readers, size
        self.axis: dict[Node, int | None] = {}  # None: rows are folded

    @staticmethod
    def around(sink: Node, order: Sequence[Node], matrix: Node) -> _Region | None:
        """The region of a matrix; None if a value in it waits for something outside of it."""
        size = elements(matrix.shape)
        below, readers = _made_of(sink, order, matrix)
        inside = _inside(below, readers, size)
        nodes = {n: None for n in below if n in inside}
        if any([s in below and s not in nodes for n in nodes for s in n.src]):
            return None
        region = _Region(nodes, readers, size)
        return None if any([elements(n.shape) >= size for n in region.exits]) else region

    @property
    def exits(self) -> list[Node]:
        """The values that something outside reads, in order."""
        return [n for n in self.nodes if any([r not in self.nodes for r in self.readers[n]])]

    # --- legality --------------------------------------------------------------------------------

    def follow(self, matrix: Node, rows: int, strips: int) -> bool:
        """True if so many strips of a matrix's rows can be followed to everything made of it."""
        self.axis = {}
        for node in self.nodes:
            found = {rows} if node is matrix else self._axes(node, strips)
            if len(found) != 1:
                return False
            (self.axis[node],) = found
        folded = [n for n in self.exits if self.axis[n] is None]
        small = 2 * sum([elements(n.shape) for n in folded]) <= self.size
        if not small or not all([self._is_tileable(n, strips) for n in self.nodes]):
            return False
        for node in self.exits:
            self._extend(node, strips)
        return True

    def _extend(self, node: Node, strips: int) -> None:
        """Take in what only casts or reshapes a value that leaves: rows are joined as stored."""
        while self.axis[node] is not None and len(self.readers[node]) == 1:
            (above,) = self.readers[node]
            if above.op not in (RESHAPE, CAST):
                break
            found = self._axes(above, strips)
            if len(found) != 1:
                break
            self.nodes[above] = None
            (self.axis[above],) = found
            node = above

    def _axes(self, node: Node, strips: int) -> set[int | None]:
        """The axis of a value that each of its sources says; none if one cannot be followed."""
        found: set[int | None] = set()
        for source in [s for s in node.src if s in self.nodes]:
            axis = self.axis[source]
            if axis is None or (node.op is EXPAND and source.shape[axis] != node.shape[axis]):
                return set()
            if node.op is RESHAPE:
                moved = _reshaped(source.shape, node.shape, axis, strips)
                if moved is None:
                    return set()
                found.add(moved)
            elif node.op is PERMUTE:
                found.add(node.arg.index(axis))
            elif node.op is REDUCE and axis in node.arg[1]:
                found.add(None)
            else:
                found.add(axis)
        return found

    def _is_tileable(self, node: Node, strips: int) -> bool:
        """True if a value's strips can be computed, and folds of rows be combined."""
        axis = self.axis[node]
        if axis is None:  # partial sums are rounded once more each
            return node.arg[0] in _COMBINE and not node.dtype.is_small_float
        wanted = sources_axes(node, axis, strips)
        size = node.shape[axis]
        if wanted is None or not isinstance(size, int) or size % strips:
            return False
        return all([self.axis[s] == a for s, a in zip(node.src, wanted, strict=True)
                    if s in self.nodes])  # fmt: skip

    # --- strips ----------------------------------------------------------------------------------

    def tiled(self, sink: Node, strips: int) -> Node | None:
        """The graph with the region once for each strip; None if a large value would be cut."""
        parts: dict[Node, list[Node]] = {node: [] for node in self.exits}
        after: list[Node] = []
        for number in range(strips):
            strip = _Strip(self, strips, number, after)
            for node, found in parts.items():
                part = strip.part(node, self.axis[node])
                if self.axis[node] is None and found:
                    part = _COMBINE[node.arg[0]](found.pop(), part)
                found.append(CONTIGUOUS(part))
            if strip.cuts_large:
                return None
            after = [found[-1] for found in parts.values()]
        known = {n: _joined(found, self.axis[n]) for n, found in parts.items()}
        return substitute(sink, known, walk=True)


def _made_of(
    sink: Node, order: Sequence[Node], matrix: Node
) -> tuple[dict[Node, None], dict[Node, list[Node]]]:
    """A matrix and all that is computed from it, sources first, and who reads each."""
    made = forward_slice(order, [matrix])
    below = dict.fromkeys([node for node in order if node in made and node.op is not SINK])
    return below, readers_of([*below, sink])


def _inside(
    below: dict[Node, None], readers: Mapping[Node, Sequence[Node]], size: int
) -> set[Node]:
    """Large values, what leads to one, and whoever reads one."""
    inside: set[Node] = set()
    for node in reversed(below):
        if elements(node.shape) >= size or any([r in inside for r in readers.get(node, ())]):
            inside.add(node)
    large = {n for n in inside if elements(n.shape) >= size}
    return inside | {n for n in below if any([s in large for s in n.src])}


class _Strip:
    """One strip: values that are computed row by row from strips of what the region reads."""

    def __init__(self, region: _Region, strips: int, number: int, after: Sequence[Node]) -> None:
        self.region, self.strips, self.number, self.after = region, strips, number, after
        self.cuts_large = False
        self.made: dict[tuple[Node, int | None], Node] = {}

    def part(self, wanted: Node, axis: int | None) -> Node:
        """A strip of a value along an axis; of a fold of rows, the fold of the strip's."""
        stack = [(wanted, axis)]
        while stack:
            node, along = stack[-1]
            if (node, along) in self.made:
                stack.pop()
                continue
            needs = self._needs(node, along)
            missing = [one for one in needs or () if one not in self.made]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            sources = None if needs is None else [self.made[one] for one in needs]
            made = self._whole_or_cut(node, along) if sources is None else (
                self._again(node, along, sources))  # fmt: skip
            self.made[node, along] = remember(made, node.origins)
        return self.made[wanted, axis]

    def _needs(self, node: Node, axis: int | None) -> list[tuple[Node, int | None]] | None:
        """The sources of a strip and their axes; None if it is cut out of the value, or is it."""
        if node not in self.region.nodes and (axis is None or node.op in (REDUCE, CONTIGUOUS)):
            return None
        if axis is None:  # a fold of rows
            return [(node.src[0], self.region.axis[node.src[0]])]
        axes = sources_axes(node, axis, self.strips)
        return None if axes is None else list(zip(node.src, axes, strict=True))

    def _again(self, node: Node, axis: int | None, sources: list[Node]) -> Node:
        """The same computation of strips."""
        if axis is None or node.op in (PERMUTE, REDUCE) or node.op not in _SIZED:
            return rebuild(node, tuple(sources))
        shape = self._shape(node.shape, axis)
        if node.op is CONST:
            return constant_bits(node.arg[0], node.dtype, shape)
        if node.op is IOTA:
            places = iota(shape, node.arg[0], node.dtype)
            size = shape[axis]
            assert isinstance(size, int)
            start = constant(self.number * size, node.dtype, shape)
            return ADD(places, start) if node.arg[0] == axis and self.number else places
        return (reshape if node.op is RESHAPE else expand)(sources[0], shape)

    def _whole_or_cut(self, node: Node, axis: int | None) -> Node:
        """A value that the region reads: all of it, or the rows of this strip, in memory."""
        if axis is None:
            return node
        size = int(node.shape[axis]) // self.strips  # type: ignore[arg-type]
        first = self.number * size
        cuts = [(first, first + size) if d == axis else (0, n) for d, n in enumerate(node.shape)]
        self.cuts_large |= node.op is not PARAM and elements(node.shape) >= self.region.size
        found = CONTIGUOUS(shrink(node, cuts))
        for waited in self.after:
            found = REMAT(found, waited)
        return found

    def _shape(self, shape: Shape, axis: int) -> Shape:
        size = shape[axis]
        assert isinstance(size, int)
        return (*shape[:axis], size // self.strips, *shape[axis + 1 :])


_SIZED = frozenset((RESHAPE, EXPAND, CONST, IOTA))


def sources_axes(node: Node, axis: int, strips: int) -> Axes | None:
    """The axis of each source of which a strip gives a strip of a value; None: there is none."""
    if not isinstance(node.shape[axis], int) or int(node.shape[axis]) % strips:  # type: ignore[arg-type]
        return None
    if node.op.family == "elementwise" or node.op is CONTIGUOUS:
        return [axis] * len(node.src)
    rule = _SOURCES.get(node.op)
    return None if rule is None else rule(node, axis, strips)


def _moved_axes(node: Node, axis: int, strips: int) -> Axes | None:
    """The same of a reshape or an expansion whose sizes are numbers."""
    if len(node.src) != 1:
        return None
    (source,) = node.src
    if node.op is EXPAND:
        return [axis if source.shape[axis] == node.shape[axis] else None]
    moved = _reshaped(node.shape, source.shape, axis, strips)
    return None if moved is None else [moved]


_SOURCES: dict[Op, Callable[[Node, int, int], Axes | None]] = {
    CONST: lambda node, axis, _: None if node.src else [],
    IOTA: lambda node, axis, _: None if node.src else [],
    PERMUTE: lambda node, axis, _: [node.arg[axis]],
    GATHER: lambda node, axis, _: None if axis == node.arg else [axis, axis],
    REDUCE: lambda node, axis, _: None if axis in node.arg[1] else [axis],
    EXPAND: _moved_axes,
    RESHAPE: _moved_axes,
}


def _reshaped(old: Shape, new: Shape, axis: int, strips: int) -> int | None:
    """Where the strips of an axis are in another shape: at what has the same sizes before it."""
    if not all([isinstance(n, int) and n for n in (*old, *new)]):
        return None
    before: int = prod(old[:axis])  # type: ignore[arg-type]
    for d, known in enumerate(_products(new)):
        if known == before and int(new[d]) % strips == 0:  # type: ignore[arg-type]
            return d
    return None


def _products(shape: Shape) -> Iterator[int]:
    """The product of the sizes before each axis."""
    sizes: Sequence[int] = shape  # type: ignore[assignment]
    return accumulate(sizes[:-1], int.__mul__, initial=1)


def _joined(parts: Sequence[Node], axis: int | None) -> Node:
    """Strips one behind the other, by halves; of folds there is one, the last."""
    if len(parts) == 1:
        return parts[0]
    assert axis is not None
    middle = len(parts) // 2
    left, right = _joined(parts[:middle], axis), _joined(parts[middle:], axis)
    before, behind = left.shape[axis], right.shape[axis]
    ends = [(0, behind if d == axis else 0) for d in range(left.ndim)]
    wide = pad(left, ends)
    other = pad(right, [(before if d == axis else 0, 0) for d in range(left.ndim)])
    place = iota(wide.shape, axis)
    return WHERE(LT(place, constant(before, int32, wide.shape)), wide, other)  # type: ignore[arg-type]
