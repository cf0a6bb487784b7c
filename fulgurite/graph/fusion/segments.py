"""Pieces: what each kernel of a greedy schedule is, and what it reads and makes.

In: pieces (why, what is stored, the kernel cut out for it) and the results asked for. Out: who
reads what, and one description of every piece (`About`): its kind, how large it is, which of its
reads are inside its sums, and what those are. From it follows which values are matrices that nobody
needs all at once (`is_walked`), and which numbers of rows a piece works out. What is merged is
decided by others.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from ...core.node import Node, toposort
from ...core.ops.elementwise import EQ
from ...core.ops.indexing import GATHER
from ...core.ops.leaf import IOTA, PARAM
from ...core.ops.movement import EXPAND, SHRINK, WINDOW
from ...core.ops.reduce import REDUCE
from ..ir.kernel import Cut
from ..ir.queries import elements, is_contraction
from . import KINDS
from .reduced_axes import reshaped, summed_lines

Piece: TypeAlias = "tuple[str, list[Node], Cut]"  # why, what it stores, the kernel
HEAD = 128  # summands that make a product cheap to work out again
LAYER = 1 << 14  # elements of hidden values that are worth a walk
_PICKS = (GATHER, SHRINK, WINDOW)  # ops that choose elements


class Sums(NamedTuple):
    """What a kernel folds."""

    any: bool
    products: bool  # is a contraction among them?
    batched: bool  # have both factors of the first contraction an axis that is not summed?
    deep: bool  # is one above another?
    picks: bool  # are elements chosen by an index?
    classes: bool  # is it one element of each row that counts, or not like the others?
    columns: int  # the fewer of the two sides of the first contraction's results
    depth: int  # of its sums
    params: frozenset[int]  # that are inside

    @property
    def is_wide(self) -> bool:
        """Is a product larger than its factors, and of a batch or of sums as short as a head's?"""
        return self.depth <= self.columns and (self.batched or self.depth <= HEAD)


class About(NamedTuple):
    """What a piece is."""

    kind: str
    size: int  # elements of its largest result
    narrow: bool  # is it of rows, and keeps numbers of rows alone?
    inside: frozenset[object]  # what it reads inside its sums
    sums: Sums

    @property
    def is_product(self) -> bool:
        """Is it a contraction?"""
        return self.kind == "contract"

    @property
    def is_row(self) -> bool:
        """Is it of rows?"""
        return self.kind == "reduce"


class Pieces:
    """The pieces of a schedule."""

    def __init__(self, pieces: Sequence[Piece], roots: Set[Node]) -> None:
        self.pieces, self.roots = list(pieces), roots
        self.maker = {node: i for i, (_, outputs, _) in enumerate(pieces) for node in outputs}
        self.readers: dict[Node, list[int]] = {}
        self.reads = [sorted(self.memory(cut), key=lambda n: n.id) for _, _, cut in pieces]
        for i, nodes in enumerate(self.reads):
            for node in nodes:
                self.readers.setdefault(node, []).append(i)
        self.before: list[int] = []  # for each piece: bits of all that must have run
        for nodes in self.reads:
            bits = 0
            for node in nodes:
                other = self.maker.get(node)
                bits |= 0 if other is None else self.before[other] | 1 << other
            self.before.append(bits)
        self.rows: dict[int, tuple[Node, ...]] = {}
        self.folds: dict[Node, Sums] = {}
        self.known: dict[int, About] = {}
        self.settled = False  # are the next two known?
        self.matrices: set[int] = set()  # pieces that make one
        self.walks: set[Node] = set()  # matrices of which nobody needs all at once
        self.kept: set[Node] = set()  # of these: stored for others, and not read where it is walked
        self.summed: dict[int, dict[Node, frozenset[int]]] = {}

    def memory(self, cut: Cut) -> frozenset[Node]:
        """The values in memory that a kernel reads."""
        return frozenset([m for m in cut[1] if isinstance(m, Node)])

    def most_alive(self, pieces: Sequence[Piece]) -> int:
        """Bytes of values that are no results, at the time when most of them are there."""
        last = {n: i for i, (_, _, cut) in enumerate(pieces) for n in self.memory(cut)}
        change = [0] * (len(pieces) + 2)
        for i, (_, outputs, _) in enumerate(pieces):
            for node in outputs:
                if node not in self.roots:
                    size = elements(node.shape) * node.dtype.itemsize
                    change[i] += size
                    change[last.get(node, i) + 1] -= size
        return max(accumulate(change))

    def about(self, place: int) -> About:
        """What a piece is, worked out once."""
        if place not in self.known:
            _, outputs, (kernel, reads, _) = self.pieces[place]
            if kernel.body not in self.folds:  # equal kernels are looked at once
                self.folds[kernel.body] = _sums(kernel.body)
            sums = self.folds[kernel.body]
            sizes = [elements(n.shape) for n in outputs]
            most = max([elements(n.shape) for n in self.reads[place]], default=0)
            inside = frozenset([reads[number] for number in sums.params])
            narrow = kernel.kind == "reduce" and max(sizes) < most
            self.known[place] = About(kernel.kind, max(sizes), narrow, inside, sums)
        return self.known[place]

    def read_by(self, place: int) -> int:
        """How many pieces read what one stores."""
        return len({r for node in self.pieces[place][1] for r in self.readers.get(node, ())})

    def is_walked(self, node: Node) -> bool:
        """Is it a matrix of which nobody needs all at once?

        All that read it sum it, or make another one of it that is walked.
        """
        if not self.settled:
            self.settled = True
            for place in range(len(self.pieces)):
                if self.makes_matrix(place):
                    self.matrices.add(place)
            for place in sorted(self.matrices, reverse=True):
                size = self.about(place).size
                for own in self.pieces[place][1]:
                    if elements(own.shape) != size:
                        continue
                    walks = [self.is_walk(r, own) for r in self.readers.get(own, ())]
                    if own not in self.roots and all(walks):
                        self.walks.add(own)
                    elif self.is_for_others(place, own):
                        self.kept.add(own)
        return node in self.walks

    def is_kept(self, node: Node) -> bool:
        """Is it a matrix that is asked for, or read by others than those that walk it?"""
        self.is_walked(node)
        return node in self.kept

    def is_for_others(self, place: int, node: Node) -> bool:
        """Is a matrix with numbers of rows asked for, or read by what no walk takes in?

        Another walk may store it on its way; what pieces that could be merged read whole is read.
        """
        me = self.about(place)
        sums = me.is_product and any(
            self.maker.get(n) in self.matrices for n in me.inside if isinstance(n, Node)
        )
        near = (place, *[self.maker[n] for n in self.reads[place] if n in self.maker])
        readers = [r for r in self.readers.get(node, ()) if not self.is_walk(r, node)]
        plain = any(
            self.pieces[r][2][0].kind in KINDS and not self.sums_matrices(r, node) for r in readers
        )
        if sums or plain or not any(self.is_row(p) for p in near):
            return False
        made = [(n, r) for n in self.pieces[place][1] for r in self.readers.get(n, ())]
        return any(self.is_walk(r, n) for n, r in made)

    def makes_matrix(self, place: int) -> bool:
        """Is a piece a wide product, or made element by element of one as large?"""
        if self.pieces[place][2][0].kind not in KINDS:
            return False
        me = self.about(place)
        if me.is_product and me.sums.is_wide and (me.size >= LAYER or self.has_numbers(place)):
            return True
        return any(
            elements(n.shape) == me.size and self.maker.get(n) in self.matrices
            for n in self.reads[place]
        )

    def has_numbers(self, place: int) -> bool:
        """Is it a product of a batch, or one with numbers of its rows, read or made?

        All others look like hidden values of a layer, which are as quick to read again.
        """
        me = self.about(place)
        read = [n for n in self.reads[place] if elements(n.shape) * me.sums.depth <= me.size]
        near = [r for n in self.pieces[place][1] for r in self.readers.get(n, ())]
        near += [m for n in read if (m := self.maker.get(n)) is not None]
        return me.sums.batched or any(map(self.is_row, near))

    def is_walk(self, place: int, node: Node) -> bool:
        """Does a piece sum a matrix, or make one of it that is walked?"""
        if self.pieces[place][2][0].kind not in KINDS:
            return False
        me, size = self.about(place), elements(node.shape)
        if me.is_product and node in me.inside:
            return True
        if self.sums_matrices(place, node):
            return False
        made = [n for n in self.pieces[place][1] if elements(n.shape) >= size]
        return all(n in self.walks or n in self.kept for n in made)

    def sums_matrices(self, place: int, node: Node) -> bool:
        """Does a piece of rows add up the matrices of a batch, so that one as large is left?"""
        over = self.lines(place).get(node) if self.is_row(place) else None
        return over is not None and len(over) > 0 and all(axis < node.ndim - 2 for axis in over)

    def reads_beside(self, place: int, node: Node) -> bool:
        """Does a product read a value, but not in its sum?"""
        return self.is_product(place) and node not in self.about(place).inside

    def is_summed_beside(self, node: Node, place: int) -> bool:
        """Is a value that one reads else read only for numbers of rows that it reads as well?"""
        others = [r for r in self.readers[node] if r != place]
        mine = {self.maker.get(n) for n in self.reads[place]}
        return bool(others) and all(self.is_row(r) and r in mine for r in others)

    def is_product(self, place: int) -> bool:
        """Is it a contraction?"""
        return self.pieces[place][2][0].kind == "contract"

    def is_row(self, place: int) -> bool:
        """Is it a piece of rows?"""
        return self.pieces[place][2][0].kind == "reduce"

    def is_narrow(self, place: int) -> bool:
        """Is it a piece of rows that keeps numbers of rows alone?"""
        return self.about(place).narrow

    def lines(self, place: int) -> dict[Node, frozenset[int]]:
        """Along which dimensions a piece sums what it reads, where that is known."""
        if place not in self.summed:
            kernel, reads, _ = self.pieces[place][2]
            found: dict[Node, frozenset[int]] = {}
            for param, along in summed_lines(kernel.body).items():
                node = reads[param.arg[0]]
                if along is not None and isinstance(node, Node):
                    over = reshaped(param.shape, node.shape, along)
                    if over is not None:
                        found[node] = over
            self.summed[place] = found
        return self.summed[place]

    def cross(self, first: int, second: int) -> bool:
        """Do two pieces sum values of one shape along different lines?"""
        theirs = [(n.shape, over) for n, over in self.lines(second).items() if n in self.maker]
        for node, over in self.lines(first).items():
            if node in self.maker and any(s == node.shape and o != over for s, o in theirs):
                return True
        return False

    def crosses(self, place: int, taken: Sequence[int]) -> bool:
        """Does a piece sum along another line than rows that it would take in have?"""
        for node, over in self.lines(place).items():
            other = self.maker.get(node)
            if other is None or other not in taken or not self.is_row(other):
                continue
            rows = [n for n in self.row_values(other) if n.op is REDUCE]
            if any(n.src[0].shape == node.shape and frozenset(n.arg[1]) != over for n in rows):
                return True
        return False

    def is_read_often(self, place: int) -> bool:
        """Do several pieces read a piece of rows, which has values of one number a row?"""
        readers = {r for node in self.pieces[place][1] for r in self.readers.get(node, ())}
        rows = self.pieces[place][2][0].kind == "reduce" and len(readers) > 1
        return rows and self.has_rows(place)

    def has_rows(self, place: int) -> bool:
        """Are there numbers of rows, as exact as what is worked out with them?"""
        values = self.row_values(place)
        return bool(values) and not any(n.dtype.is_small_float for n in values)

    def is_picked(self, node: Node) -> bool:
        """Is it a few elements, chosen from a product that is stored for them?"""
        if node.op not in _PICKS or 4 * elements(node.shape) > elements(node.src[0].shape):
            return False
        seen: set[Node] = set()
        stack = [node.src[0]]
        while stack:
            below = stack.pop()
            other = self.maker.get(below)
            if other is not None and self.pieces[other][2][0].kind == "contract":
                return True
            if other is None and below not in seen:
                seen.add(below)
                stack.extend(below.src)
        return False

    def picks(self, place: int) -> bool:
        """Does a piece of rows read a product only to pick from it?"""
        return self.is_row(place) and any(n.op in _PICKS for n in self.row_values(place))

    def row_values(self, place: int) -> tuple[Node, ...]:
        """What a piece of rows folds to one number a row: with it each element stands alone."""
        if place not in self.rows:
            _, outputs, cut = self.pieces[place]
            stops = self.memory(cut)
            most = max([elements(n.shape) for n in outputs])
            found: dict[Node, None] = {}
            seen: set[Node] = set()
            stack = [n for n in reversed(outputs) if self.is_for_elements(n, most)]
            while stack:
                node = stack.pop()
                if node in seen or node in stops:
                    continue
                seen.add(node)
                if (node.op is REDUCE and elements(node.shape) < most) or self.is_picked(node):
                    found[node] = None
                else:
                    stack.extend(reversed(node.src))
            self.rows[place] = tuple(found)
        return self.rows[place]

    def is_for_elements(self, node: Node, most: int) -> bool:
        """Does a result belong to the elements of rows, or does one that is read for them?"""
        readers = [r for r in self.readers.get(node, ()) if self.pieces[r][2][0].kind in KINDS]
        return elements(node.shape) == most or any(self.about(r).size >= most for r in readers)

    def has_readers(self, place: int) -> bool:
        """Did anybody read a piece when the schedule was greedy? What nobody reads has effects."""
        return any(self.readers.get(node) for node in self.pieces[place][1])


def _sums(body: Node) -> Sums:
    order = toposort([body])
    folds = [n for n in order if n.op is REDUCE]
    inside: set[Node] = set()  # what is folded
    for node in reversed(order):
        if node.op is REDUCE or node in inside:
            inside.update(node.src)
    products = [n for n in folds if is_contraction(n)]
    params = frozenset([n.arg[0] for n in order if n.op is PARAM and n in inside])
    columns = _columns(products[0]) if products else 1
    deep = any(n in inside for n in folds)
    batched = bool(products) and _is_batched(products[0])
    picks = any(n.op is GATHER for n in order)
    classes = picks or any(_is_class(n) for n in order)
    depth = sum([elements(n.src[0].shape) // max(1, elements(n.shape)) for n in products[:1]])
    return Sums(bool(folds), bool(products), batched, deep, picks, classes, columns, depth, params)


def _is_class(node: Node) -> bool:
    """Is a place compared with a number that was read?"""
    if node.op is not EQ or node.src[0].dtype.kind not in "iu":
        return False
    read = [any(n.op is PARAM for n in toposort([side])) for side in node.src]
    placed = [any(n.op is IOTA for n in toposort([side])) for side in node.src]
    return read[0] != read[1] and placed[read.index(False)]


def _is_batched(product: Node) -> bool:
    shapes = []
    for factor in product.src[0].src:
        while factor.op is EXPAND:
            factor = factor.src[0]
        shapes.append(factor.shape)
    if len({len(shape) for shape in shapes}) > 1:
        return False
    left = [i for i in range(len(shapes[0])) if i not in product.arg[1]]
    return any(all(shape[i] != 1 for shape in shapes) for i in left)


def _columns(product: Node) -> int:
    whole = elements(product.src[0].shape)
    sides = []
    for factor in product.src[0].src:
        while factor.op is EXPAND:
            factor = factor.src[0]
        sides.append(whole // max(1, elements(factor.shape)))
    return min(*sides, elements(product.shape))
