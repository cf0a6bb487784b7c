"""Regions: the pieces of a greedy schedule that could take each other in.

In: pieces (why, what is stored, the kernel cut out for it) and the results asked for. Out: groups
of pieces, what each piece may take in, and the kernel that a `Way` would be. A piece that reduces
what another piece stored may compute that itself, so that the value between is never stored: pieces
joined so are a region. A region's key is its kernels and how they are joined, so equal regions are
one. Places in a schedule are numbers, so nothing here depends on the order of sets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...core.node import Node
from ...core.ops.elementwise import ADD, CAST, SUB
from ...core.ops.leaf import PARAM
from ..ir.kernel import Cut, Extractor, in_laws
from ..ir.queries import elements
from . import KINDS
from .segments import About, Piece, Pieces
from .select import Producer

Made: TypeAlias = tuple[
    tuple[int, int], ...
]  # (piece, number of its output), or below 0: of its rows
MOST = 24  # pieces of a region, if it has places where it can be cut
PUSHED = 2_000_000  # bytes of a value that pushes others out of caches
FEW = 4096  # elements that a kernel of their own costs more than they do
COLUMNS = 512  # of a contraction, more of which would mean several tiles
DEEP = 4  # pieces that one may take in, one behind the other


@dataclass(frozen=True)
class Way:
    """A kernel that could be run, in terms of the pieces of its region."""

    makes: Made
    taken: tuple[int, ...]  # pieces that it computes itself
    rows: tuple[int, ...] = ()  # pieces of rows whose row values it reads
    kind: str = "fold"
    plan: object = field(default=None, compare=False, repr=False)  # of who proposed it
    body: Node | None = field(default=None, compare=False, repr=False)  # that the plan is for


class Regions(Pieces):
    """The pieces of a schedule and how they are joined."""

    def __init__(self, pieces: Sequence[Piece], roots: Set[Node]) -> None:
        super().__init__(pieces, roots)
        self.stored = frozenset(self.maker)
        self.params = {n for nodes in self.reads for n in nodes if n.op is PARAM}
        self.extractor = Extractor()
        self.spared: dict[Node, bool] = {}
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

    def producer(self, place: int, name: str, cost: float) -> Producer:
        """A piece as it is."""
        _, outputs, cut = self.pieces[place]
        return Producer(name, tuple(outputs), self.memory(cut), cost)

    # --- regions ---------------------------------------------------------------------------------

    def taken_in(self, place: int) -> Iterator[int]:
        """The pieces whose results this one reduces and could compute itself."""
        if self.pieces[place][2][0].kind not in KINDS:
            return
        me = self.about(place)
        for node in self.reads[place]:
            other = self.maker.get(node)
            if other is None or self.pieces[other][2][0].kind not in KINDS:
                continue
            kept = self.is_kept(node)
            if node in self.roots and not kept:
                continue
            inner, size = self.about(other), elements(node.shape)
            only = self.readers[node] == [place]
            large = size * node.dtype.itemsize > PUSHED  # or two kernels are as good as one
            walked = self.is_walked(node) or kept
            if size < inner.size and inner.is_row:  # numbers of rows, which a walk makes on its way
                continue
            if me.kind == "map":
                fits = me.size <= size if inner.is_row else (
                    4 * me.size <= size or (only and me.size == size))  # fmt: skip
            elif me.is_row:  # nothing is left of what is streamed
                plain = inner.sums.products and not (me.sums.deep or me.sums.picks)
                whole = me.sums.deep or inner.sums.deep or not inner.narrow
                few = only and size <= FEW and whole
                beside = me.narrow and (few or self.is_summed_beside(node, place))
                beside = beside or (few and me.size == size)
                beside = beside and inner.is_row and node in me.inside
                fits = (me.size < size or beside) and (large or not plain or walked)
            elif inner.is_product and node not in me.inside:  # sums of one walk that are added
                both = [n for n in self.reads[place] if n in me.inside and n in inner.inside]
                fits = only and inner.size == me.size and any(map(self.is_walked, both))
            elif inner.is_product:
                fits = node in me.inside and (me.size < size or inner.sums.batched)
                alone = (only and large) or self.is_summed_beside(node, place) or walked
                fits = fits and (alone or (inner.sums.is_wide and self.goes_with_rows(node)))
            else:
                alone = only or self.is_summed_beside(node, place)
                alone = alone and _top(node).op not in (ADD, SUB)
                fits = node in me.inside and (alone or walked or self.ends_here(other))
            if fits and (self.worth(me, inner) or walked):
                yield other

    def worth(self, outer: About, inner: About) -> bool:
        """May merging two pieces pay? A product inside is done again for every tile of columns."""
        if not outer.is_product or not inner.sums.any:
            return inner.sums.any
        return not inner.sums.products or outer.sums.columns <= COLUMNS

    def ends_here(self, place: int) -> bool:
        """Does a piece of rows read a product that only rows read, or others beside their sums?"""
        for node in self.reads[place]:
            other = self.maker.get(node)
            if other is not None and self.is_product(other) and node not in self.roots:
                readers = self.readers[node]
                if all(self.is_row(r) or self.reads_beside(r, node) for r in readers):
                    return True
        return False

    def levels_of(self, place: int) -> list[list[int]]:
        """The pieces that one may take in: nearest first, then what those read, to products."""
        level = [t for t in self.takes[place] if t in self.gone]
        found: list[list[int]] = []
        if level:  # with the numbers of rows that go with it
            level += [m for m in self.makers(place) if m not in level and self.is_row(m)]
        after = self.pieces[place][2][0].kind == "map" and len(level) == 1
        if after and self.is_product(level[0]):
            return [level, *self.levels_of(level[0])]  # a map of a product goes with it
        seen: set[int] = set()
        while level and len(found) < DEEP:
            found.append(level)
            seen.update(level)
            level = [m for t in level for m in self.makers(t) if self.goes_with(m, t, place)]
            level = [m for m in dict.fromkeys(level) if m not in seen]
        added = {t for t in seen if all(self.reads_beside(place, n) for n in self.pieces[t][1])}
        deep = seen.difference(t for t in self.takes[place] if t in added)
        kept = [[t for t in level if not self.is_nested(t, deep)] for level in found]
        return [level for level in kept if level]

    def is_nested(self, place: int, taken: Set[int]) -> bool:
        """Is it a product in the sum of another that is taken in as well? No kernel has both."""
        made = set(self.pieces[place][1]) if self.is_product(place) else set()
        others = [t for t in taken if t != place and self.is_product(t)]
        return any(made & self.about(t).inside for t in others)

    def goes_with(self, place: int, other: int, end: int) -> bool:
        """Is a piece taken in with one that reads it? Of a product, another beside its sum.

        That one is for the end that takes it in, so it must be larger than what is left there, or
        of a batch: sums that go on from layer to layer are as large as all that is made of them.
        """
        me, size = self.about(place), self.about(other).size
        if me.narrow and other in self.matrices:  # from the same walk, or they are read
            return any(elements(n.shape) >= size for n in self.reads[place])
        if not self.is_product(other):  # of several products put side by side there is no walk
            return not me.is_product or 2 * me.size > size
        walked = place in self.matrices and me.size == size
        shrinks = me.size > self.about(end).size or me.sums.batched or walked
        if not (me.is_product or walked) or (self.read_by(place) > 1 and not shrinks):
            return False
        return all(self.reads_beside(other, n) for n in self.pieces[place][1])

    def is_spared(self, node: Node) -> bool:
        """Is it a matrix that need not be stored and is as large as what it is made of?

        That is a wide product, or what is made of one element by element; one without a batch only
        if it has to do with numbers of its rows: hidden values of layers are as quick to read. Nor
        are scores of classes spared, of which one counts: where they are few they are as quick.
        """
        if node not in self.spared:
            place = self.maker.get(node)
            able = place is not None and place in self.gone and self.makes_spared(place, node)
            self.spared[node] = able
        return self.spared[node]

    def makes_spared(self, place: int, node: Node) -> bool:
        """The same of what a piece makes that need not run."""
        for p in (place, *self.makers(place)):
            me = self.about(p)
            if me.is_product and me.size == elements(node.shape):
                if not me.sums.batched and self.is_of_classes(p):
                    return False
                return me.sums.is_wide and (self.has_numbers(p) or self.is_row(place))
        return False

    def is_of_classes(self, place: int) -> bool:
        """Is one element of each row of a product told from the others? So it is for losses."""
        readers = [r for n in self.pieces[place][1] for r in self.readers.get(n, ())]
        known = [r for r in readers if self.pieces[r][2][0].kind in KINDS]
        return any(self.about(r).sums.classes for r in (place, *known))

    def goes_with_rows(self, node: Node) -> bool:
        """Is a product with numbers of rows summed by all that read it?"""
        place, readers = self.maker[node], self.readers[node]
        if not all(map(self.is_product, readers)):
            return False
        made = [self.maker.get(n) for n in self.reads[place]]
        rows = any(m is not None and self.is_row(m) for m in made)
        summed = all(node in self.about(r).inside for r in readers)
        return rows and summed

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
        return [[i] for i in rows if self.about(i).sums.deep]

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
            if any(node in wanted and not self.is_kept(node) for node in whole):
                continue
            readers = {
                r for node in whole for r in self.readers.get(node, ())
                if not self.is_kept(node) or self.is_walk(r, node)
            }  # fmt: skip
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
            joined = tuple([r if in_laws(r) else number.setdefault(r, len(number)) for r in reads])
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

    # --- merging ---------------------------------------------------------------------------------

    def cut(self, way: Way, region: Sequence[int]) -> tuple[list[Node], Cut]:
        """What a way stores, and its kernel."""
        outputs = self.made(way, region)
        gone = {node for t in way.taken for node in self.pieces[region[t]][1]}
        gone.update(outputs)
        gone.update([n for piece, _ in way.makes for n in self.pieces[region[piece]][1]])
        rows = {node for r in way.rows for node in self.row_values(region[r])}
        readable = ((self.stored | self.params) - gone) | rows
        kernel, memory, origins = self.extractor.cut(way.kind, outputs, readable)
        return outputs, (replace(kernel, plan=way.plan), memory, origins)

    def made(self, way: Way, region: Sequence[int]) -> list[Node]:
        """What a way stores."""
        outputs = []
        for piece, number in way.makes:
            place = region[piece]
            known = self.pieces[place][1] if number >= 0 else self.row_values(place)
            outputs.append(known[number if number >= 0 else -1 - number])
        return outputs

    def assembled(self, made: Sequence[tuple[int, Piece]]) -> list[Piece] | None:
        """The pieces that are needed, in an order that works, near where they were.

        None where kernels of several regions wait for each other: each would do alone, not all.
        """
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
            if first is None:
                return None
            entry = left.pop(first)
            made_now.update(entry[2][1])
            out.append(entry[2])
        return out


def _top(node: Node) -> Node:
    """What a value is below movement and casts."""
    while node.op.family == "movement" or node.op is CAST:
        node = node.src[0]
    return node
