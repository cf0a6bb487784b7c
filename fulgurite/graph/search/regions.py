"""Regions: the pieces of a greedy schedule that could take each other in.

In: pieces (why, what is stored, the kernel cut out for it) and the results asked for. Out: groups
of pieces, what each piece may take in, and the kernel that a `Way` would be. A piece that reduces
what another piece stored may compute that itself, so that the value between is never stored: pieces
joined so are a region. A region's key is its kernels and how they are joined, so equal regions are
one. Places in a schedule are numbers, so nothing here depends on the order of sets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...core.node import Node, toposort
from ...core.ops.elementwise import ADD, CAST, SUB
from ...core.ops.indexing import GATHER
from ...core.ops.leaf import PARAM
from ...core.ops.movement import EXPAND, SHRINK, WINDOW
from ...core.ops.reduce import REDUCE
from ..cost import elements, is_contraction
from ..kernel import Cut, Extractor, Kernel
from . import KINDS
from .extract import Producer
from .lines import reshaped, summed_lines

Piece: TypeAlias = "tuple[str, list[Node], Cut]"  # why, what it stores, the kernel
Made: TypeAlias = tuple[
    tuple[int, int], ...
]  # (piece, number of its output), or below 0: of its rows
MOST = 24  # pieces of a region, if it has places where it can be cut
PUSHED = 2_000_000  # bytes of a value that pushes others out of caches
_PICKS = (GATHER, SHRINK, WINDOW)  # ops that choose elements
DEEP = 4  # pieces that one may take in, one behind the other


@dataclass(frozen=True)
class Way:
    """A kernel that could be run, in terms of the pieces of its region."""

    makes: Made
    taken: tuple[int, ...]  # pieces that it computes itself
    rows: tuple[int, ...] = ()  # pieces of rows whose row values it reads
    kind: str = "fold"


class Regions:
    """The pieces of a schedule and how they are joined."""

    def __init__(self, pieces: Sequence[Piece], roots: Set[Node]) -> None:
        self.pieces, self.roots = list(pieces), roots
        self.maker = {node: i for i, (_, outputs, _) in enumerate(pieces) for node in outputs}
        self.readers: dict[Node, list[int]] = {}
        self.reads = [sorted(self.memory(cut), key=lambda n: n.id) for _, _, cut in pieces]
        for i, nodes in enumerate(self.reads):
            for node in nodes:
                self.readers.setdefault(node, []).append(i)
        self.stored = frozenset(self.maker)
        self.params = {n for nodes in self.reads for n in nodes if n.op is PARAM}
        self.extractor = Extractor()
        self.before: list[int] = []  # for each piece: bits of all that must have run
        for nodes in self.reads:
            bits = 0
            for node in nodes:
                other = self.maker.get(node)
                bits |= 0 if other is None else self.before[other] | 1 << other
            self.before.append(bits)
        self.rows: dict[int, tuple[Node, ...]] = {}
        self.folds: dict[Node, Sums] = {}
        self.inside: dict[int, set[object]] = {}
        self.summed: dict[int, dict[Node, frozenset[int]]] = {}
        self.takes = [list(dict.fromkeys(self.taken_in(i))) for i in range(len(pieces))]
        self.gone: Set[int] = frozenset(range(len(pieces)))  # pieces that might not run
        self.join()
        if self.regions:  # to take in what must run in any case saves nothing
            self.gone = self.superfluous(range(len(pieces)))
            self.join()
        for most in (6, 5, 4, 3, 2):  # too large ones fall apart at what most pieces read
            large = [place for region in self.regions if len(region) > MOST for place in region]
            if not large:
                break
            self.gone = self.gone - {place for place in large if self.read_by(place) > most}
            self.join()

    def join(self) -> None:
        """Find what each piece may take in, and the regions that this makes."""
        self.levels = {i: self.levels_of(i) for i in range(len(self.pieces))}
        self.regions = self.joined()
        self.region_of = {place: set(region) for region in self.regions for place in region}

    def read_by(self, place: int) -> int:
        """How many pieces read what one stores."""
        return len({r for node in self.pieces[place][1] for r in self.readers.get(node, ())})

    def memory(self, cut: Cut) -> frozenset[Node]:
        """The values in memory that a kernel reads."""
        return frozenset([m for m in cut[1] if isinstance(m, Node)])

    def producer(self, place: int, name: str, cost: float) -> Producer:
        """A piece as it is."""
        _, outputs, cut = self.pieces[place]
        return Producer(name, tuple(outputs), self.memory(cut), cost)

    # --- regions ---------------------------------------------------------------------------------

    def taken_in(self, place: int) -> Iterator[int]:
        """The pieces whose results this one reduces and could compute itself."""
        kernel = self.pieces[place][2][0]
        if kernel.kind not in KINDS:
            return
        most = max([elements(n.shape) for n in self.pieces[place][1]])
        for node in self.reads[place]:
            other = self.maker.get(node)
            if other is None or node in self.roots:
                continue
            inner = self.pieces[other][2][0]
            size, only = elements(node.shape), self.readers[node] == [place]
            large = size * node.dtype.itemsize > PUSHED  # or two kernels are as good as one
            if kernel.kind == "map":
                fits = most <= size if inner.kind == "reduce" else (
                    4 * most <= size or (only and most == size))  # fmt: skip
            elif kernel.kind == "reduce":
                fits = most < size  # nothing is left of what is streamed
                plain = self.sums(inner).products and not self.sums(kernel).deep
                fits = fits and (large or not plain or self.sums(kernel).picks)
            elif inner.kind == "contract":
                fits = node in self.folded(place) and (most < size or self.is_batched(other))
                beside = self.is_summed_beside(node, place)
                fits = fits and ((only and large) or beside or self.goes_with_rows(node))
            else:
                alone = only or self.is_summed_beside(node, place)
                alone = alone and _top(node).op not in (ADD, SUB)
                fits = node in self.folded(place) and (alone or self.ends_here(other))
            if fits and inner.kind in KINDS and (self.worth(kernel, inner) or self.weighs(other)):
                yield other

    def weighs(self, place: int) -> bool:
        """Is it a map of a product and of numbers of its rows, which only it and they read?"""
        if self.pieces[place][2][0].kind != "map":
            return False
        made = [m for n in self.reads[place] if (m := self.maker.get(n)) is not None]
        rows = [m for m in made if self.is_row(m)]
        products = [m for m in made if self.is_product(m) and self.size(m) == self.size(place)]
        return bool(rows and products) and all(
            r == place or r in rows for m in products for n in self.pieces[m][1]
            for r in self.readers[n]
        )  # fmt: skip

    def ends_here(self, place: int) -> bool:
        """Does a piece of rows read a product that only rows read, or others beside their sums?"""
        for node in self.memory(self.pieces[place][2]):
            other = self.maker.get(node)
            if other is not None and self.is_product(other) and node not in self.roots:
                readers = self.readers[node]
                if all(self.is_row(r) or self.reads_beside(r, node) for r in readers):
                    return True
        return False

    def reads_beside(self, place: int, node: Node) -> bool:
        """Does a product read a value, but not in its sum?"""
        return self.is_product(place) and node not in self.folded(place)

    def levels_of(self, place: int) -> list[list[int]]:
        """The pieces that one may take in: nearest first, then what those read, to products."""
        level = [t for t in self.takes[place] if t in self.gone]
        found: list[list[int]] = []
        if level:  # with the numbers of rows that go with it
            level += [m for m in self.makers(place) if m not in level and self.is_row(m)]
        after = self.pieces[place][2][0].kind == "map" and len(level) == 1
        if after and self.pieces[level[0]][2][0].kind == "contract":
            return [level, *self.levels_of(level[0])]  # a map of a product goes with it
        seen: set[int] = set()
        while level and len(found) < DEEP:
            found.append(level)
            seen.update(level)
            level = [m for t in level for m in self.makers(t) if self.goes_with(m, t, place)]
            level = [m for m in dict.fromkeys(level) if m not in seen]
        kept = [[t for t in level if not self.is_nested(t, seen)] for level in found]
        return [level for level in kept if level]

    def is_nested(self, place: int, taken: Set[int]) -> bool:
        """Is it a product in the sum of another that is taken in as well? No kernel has both."""
        made = set(self.pieces[place][1]) if self.is_product(place) else set()
        others = [t for t in taken if t != place and self.is_product(t)]
        return any(made & self.folded(t) for t in others)

    def goes_with(self, place: int, other: int, end: int) -> bool:
        """Is a piece taken in with one that reads it? Of a product, another beside its sum.

        That one is for the end that takes it in, so it must be larger than what is left there:
        sums that go on from layer to layer are as large as all that is made of them.
        """
        if not self.is_product(other):  # of several products put side by side there is no walk
            return not self.is_product(place) or 2 * self.size(place) > self.size(other)
        if not self.is_product(place) or (self.read_by(place) > 1 and not self.shrinks(place, end)):
            return False
        return all(self.reads_beside(other, n) for n in self.pieces[place][1])

    def shrinks(self, place: int, end: int) -> bool:
        """Is what a product stores larger than what is left at the end, or of one batch element?"""
        return self.size(place) > self.size(end) or self.is_batched(place)

    def is_spared(self, node: Node) -> bool:
        """Is it a matrix that need not be stored and is as large as what it is made of?

        That is a product of a batch, or what is made of one element by element.
        """
        place = self.maker.get(node)
        if place is None or place not in self.gone:
            return False
        for p in (place, *self.makers(place)):
            sums = self.sums(self.pieces[p][2][0])
            if self.is_product(p) and sums.batched and self.size(p) == elements(node.shape):
                return sums.depth <= sums.columns
        return False

    def is_batched(self, place: int) -> bool:
        """Have both factors of a product an axis that is not summed? No weights of a layer have."""
        return self.sums(self.pieces[place][2][0]).batched

    def size(self, place: int) -> int:
        """How many elements the largest result of a piece has."""
        return max([elements(n.shape) for n in self.pieces[place][1]])

    def goes_with_rows(self, node: Node) -> bool:
        """Is a product of a batch read by products alone, or one with numbers of rows summed?"""
        place, readers = self.maker[node], self.readers[node]
        if not all(map(self.is_product, readers)):
            return False
        made = [self.maker.get(n) for n in self.memory(self.pieces[place][2])]
        rows = any(m is not None and self.is_row(m) for m in made)
        return self.is_batched(place) or (rows and all(node in self.folded(r) for r in readers))

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
        read = max([elements(n.shape) for n in self.reads[place]], default=0)
        return self.is_row(place) and all(elements(n.shape) < read for n in self.pieces[place][1])

    def makers(self, place: int) -> list[int]:
        """The pieces whose results one reads, if they can be merged at all."""
        found: dict[int, None] = {}
        for node in self.reads[place]:
            other = self.maker.get(node)
            if other is None or other not in self.gone:
                continue
            if self.pieces[other][2][0].kind in KINDS:
                found[other] = None
        return list(found)

    def folded(self, place: int) -> set[object]:
        """What of a piece's reads is inside its sums."""
        if place not in self.inside:
            kernel, reads, _ = self.pieces[place][2]
            self.inside[place] = {reads[number] for number in self.sums(kernel).params}
        return self.inside[place]

    def sums(self, kernel: Kernel) -> Sums:
        """What a kernel folds; equal kernels are looked at once."""
        if kernel.body not in self.folds:
            self.folds[kernel.body] = _sums(kernel.body)
        return self.folds[kernel.body]

    def worth(self, outer: Kernel, inner: Kernel) -> bool:
        """May merging two kernels pay? A product inside is done again for every tile of columns."""
        inside = self.sums(inner)
        if outer.kind != "contract" or not inside.any:
            return inside.any
        return not inside.products or self.sums(outer).columns <= COLUMNS

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

    def cross(self, first: int, second: int) -> bool:
        """Do two pieces sum values of one shape along different lines?"""
        theirs = [(n.shape, over) for n, over in self.lines(second).items() if n in self.maker]
        for node, over in self.lines(first).items():
            if node in self.maker and any(s == node.shape and o != over for s, o in theirs):
                return True
        return False

    def joined(self) -> list[list[int]]:
        """Pieces that could be merged with each other, in order."""
        first = list(range(len(self.pieces)))  # of each piece one that it belongs to

        def find(place: int) -> int:
            while first[place] != place:
                first[place] = first[first[place]]
                place = first[place]
            return place

        for place, levels in self.levels.items():
            for other in [t for level in levels for t in level]:
                a, b = sorted((find(place), find(other)))
                first[b] = a
        found: dict[int, list[int]] = {}
        for place in range(len(self.pieces)):
            found.setdefault(find(place), []).append(place)
        return [found[place] for place in sorted(found) if len(found[place]) > 1]

    def alone(self) -> list[list[int]]:
        """Pieces of rows in no region that fold what they folded before: each could be a fold."""
        inside = {place for region in self.regions for place in region}
        rows = [i for i in range(len(self.pieces)) if i not in inside and self.is_row(i)]
        return [[i] for i in rows if self.sums(self.pieces[i][2][0]).deep]

    def wanted(self, region: Sequence[int]) -> list[Node]:
        """What of a region is read outside it."""
        inside = set(region)
        return [
            node for place in region for node in self.pieces[place][1]
            if node in self.roots or any(r not in inside for r in self.readers.get(node, ()))
        ]  # fmt: skip

    def superfluous(self, region: Sequence[int]) -> set[int]:
        """The pieces that need not run: all that read them take them in, or are taken in with them.

        Numbers of rows do not count: others can make them.
        """
        found: set[int] = set()
        wanted = set(self.wanted(region))
        taken = {i: {t for level in self.levels[i] for t in level} for i in region}
        takers: dict[int, list[int]] = {}
        for place, inside in taken.items():
            for other in inside:
                takers.setdefault(other, []).append(place)
        for place in reversed(region):
            outputs = self.pieces[place][1]
            most = max([elements(node.shape) for node in outputs], default=0)
            whole = [node for node in outputs if elements(node.shape) == most]
            if wanted.intersection(whole):
                continue
            readers = {r for node in whole for r in self.readers.get(node, ())}
            if all(
                self.may_take(r, place)
                or (r in found and all(place in taken[t] for t in takers.get(r, ())))
                for r in readers
            ):
                found.add(place)
        return found

    def may_take(self, place: int, other: int) -> bool:
        """May one piece, or what makes its values of rows, compute another?"""
        if any(other in level for level in self.levels[place]):
            return True
        return self.picks(place) and other in self.below(place)

    def key(self, region: Sequence[int]) -> Hashable:
        """What a region is: its kernels, how they are joined, and what others read of it."""
        number: dict[object, int] = {}
        wanted = set(self.wanted(region))
        parts: list[Hashable] = []
        for place in region:
            _, outputs, (kernel, reads, _) = self.pieces[place]
            joined = tuple([number.setdefault(r, len(number)) for r in reads])
            made = tuple([(number.setdefault(n, len(number)), n in wanted) for n in outputs])
            parts.append((kernel.kind, kernel.body, joined, made))
        return tuple(parts)

    def tries(self, place: int) -> Iterator[list[int]]:
        """The sets of pieces that one may take in: nearest first, then what those read."""
        taken: list[int] = []
        for number, level in enumerate(self.levels[place]):
            if number == 0 and len(level) > 1 and len(self.region_of[place]) <= 4:
                for one in level:
                    yield [one]
            taken = sorted({*taken, *level})
            yield taken

    def below(self, place: int) -> list[int]:
        """Pieces of the same region whose results one reads."""
        return [m for m in self.makers(place) if m in self.region_of.get(place, ())]

    def waits_for_itself(self, way: Way, region: Sequence[int], merged: Cut) -> bool:
        """Does a kernel read what pieces outside the region compute from its own results?"""
        mine = sum({1 << region[piece] for piece, _ in way.makes})
        for node in self.memory(merged):
            other = self.maker.get(node)
            if other is not None and other not in region and self.before[other] & mine:
                return True
        return False

    # --- rows ------------------------------------------------------------------------------------

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
            stack = list(reversed(outputs))
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

    # --- merging ---------------------------------------------------------------------------------

    def cut(self, way: Way, region: Sequence[int]) -> tuple[list[Node], Cut]:
        """What a way stores, and its kernel."""
        outputs = self.made(way, region)
        gone = {node for t in way.taken for node in self.pieces[region[t]][1]}
        gone.update(outputs)
        gone.update([n for piece, _ in way.makes for n in self.pieces[region[piece]][1]])
        rows = {node for r in way.rows for node in self.row_values(region[r])}
        readable = ((self.stored | self.params) - gone) | rows
        return outputs, self.extractor.cut(way.kind, outputs, readable)

    def made(self, way: Way, region: Sequence[int]) -> list[Node]:
        """What a way stores."""
        outputs = []
        for piece, number in way.makes:
            place = region[piece]
            known = self.pieces[place][1] if number >= 0 else self.row_values(place)
            outputs.append(known[number if number >= 0 else -1 - number])
        return outputs

    def assembled(self, made: Sequence[tuple[int, Piece]]) -> list[Piece]:
        """The pieces that are needed, in an order that works, near where they were."""
        instead = {node for _, piece in made for node in piece[1]}
        every = [(place, 0, piece) for place, piece in made]
        for place, piece in enumerate(self.pieces):
            if not piece[1] or not all(node in instead for node in piece[1]):
                every.append((place, 1, piece))
        maker = {node: entry for entry in every for node in entry[2][1]}
        maker |= {node: entry for entry in every if entry[1] == 0 for node in entry[2][1]}
        needed: dict[int, tuple[int, int, Piece]] = {}
        stack = [maker[node] for node in self.roots if node in maker]
        stack += [e for e in every if e[1] == 1 and not self.has_readers(e[0])]
        while stack:
            entry = stack.pop()
            if id(entry) not in needed:
                needed[id(entry)] = entry
                stack.extend([maker[n] for n in self.memory(entry[2][2]) if n in maker])
        left = sorted(needed.values(), key=lambda e: e[:2])
        waits = {id(e): frozenset([n for n in self.memory(e[2][2]) if n in maker]) for e in left}
        made_now: set[Node] = set()
        out: list[Piece] = []
        while left:
            able = (i for i, e in enumerate(left) if waits[id(e)] <= made_now)
            first = next(able, None)
            if first is None:  # regions that wait for each other: each would do alone, not both
                return list(self.pieces)
            entry = left.pop(first)
            made_now.update(entry[2][1])
            out.append(entry[2])
        return out

    def has_readers(self, place: int) -> bool:
        """Did anybody read a piece when the schedule was greedy? What nobody reads has effects."""
        return any(self.readers.get(node) for node in self.pieces[place][1])


def _top(node: Node) -> Node:
    """What a value is below movement and casts."""
    while node.op.family == "movement" or node.op is CAST:
        node = node.src[0]
    return node


COLUMNS = 512  # of a contraction, more of which would mean several tiles


class Sums(NamedTuple):
    """What a kernel folds."""

    any: bool
    products: bool  # is a contraction among them?
    batched: bool  # have both factors of the first contraction an axis that is not summed?
    deep: bool  # is one above another?
    picks: bool  # are elements chosen by an index?
    columns: int  # the fewer of the two sides of the first contraction's results
    depth: int  # of its sums
    params: frozenset[int]  # that are inside


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
    depth = sum([elements(n.src[0].shape) // max(1, elements(n.shape)) for n in products[:1]])
    return Sums(bool(folds), bool(products), batched, deep, picks, columns, depth, params)


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
