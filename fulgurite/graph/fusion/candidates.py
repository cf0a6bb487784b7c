"""Ways: the kernels that could stand in the place of pieces of one region.

In: a region. Out: ways, as numbers of pieces, in an order that no history changes. A piece may take
in what it reads, as deep as that goes; values of one number a row may be read instead of worked out
again (`rows`), and then somebody must make them; results of one walk over the same blocks may come
from one kernel. Nothing is cut out or costed here: that is done for those that may pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from ..ir.queries import elements
from .regions import PUSHED, Made, Regions, Way

_NUMBER = 4  # bytes


class Ways:
    """What could be tried for one region."""

    def __init__(self, work: Regions, region: Sequence[int]) -> None:
        self.work, self.region = work, region
        self.local = {place: i for i, place in enumerate(region)}

    def single(self, place: int) -> Iterator[list[Way]]:
        """One piece with what it takes in: as much as goes, then less."""
        makes = self.outputs(place)
        if len(self.region) == 1:
            yield [Way(makes, ())]
        for taken in reversed(list(self.work.tries(place))):
            inside = tuple([self.local[t] for t in taken])
            rows = tuple([self.local[t] for t in taken if self.work.is_read_often(t)])
            lean = tuple([self.local[t] for t in taken if not self.work.is_narrow(t)])
            apart = self.work.crosses(place, taken)
            found = [] if apart else [Way((*makes, *self.asked(inside)), inside)]
            rows = self.rows(inside) if apart else rows
            if rows:
                found.append(Way(makes, inside, rows))
            if rows and lean != inside:
                found.append(Way(makes, lean, rows))
            if found:
                yield found

    def reading(self, way: Way) -> list[Way]:
        """The same with numbers of rows that are read: those that pieces store, then all."""
        lean = tuple([t for t in way.taken if not self.work.is_narrow(self.region[t])])
        rows = self.rows(lean)
        found = [replace(way, taken=lean)] if lean and lean != way.taken else []
        return [*found, replace(way, taken=lean, rows=rows)] if rows else found

    def rows(self, taken: Sequence[int]) -> tuple[int, ...]:
        """The pieces among some that work out numbers of rows."""
        places = [(t, self.region[t]) for t in taken]
        return tuple([t for t, p in places if self.work.is_row(p) and self.work.has_rows(p)])

    def asked(self, taken: Sequence[int]) -> Made:
        """The numbers of rows that others want of pieces that are taken in."""
        wanted = set(self.work.wanted(self.region))
        found: list[tuple[int, int]] = []
        for t in taken:
            place = self.region[t]
            rows = list(self.work.row_values(place)) if self.work.is_row(place) else []
            for number, node in enumerate(self.work.pieces[place][1]):
                if self.work.is_kept(node):  # one way at most stores it
                    continue
                if node in wanted and self.work.is_row(place):  # one name for one value
                    found.append((t, -1 - rows.index(node) if node in rows else number))
        return tuple(found)

    def picked(self) -> list[Way]:
        """Pieces that read a product only to pick from it, with what is picked read instead."""
        places = [place for place in self.region if self.work.picks(place)]
        return [Way(self.outputs(place), (), (self.local[place],)) for place in places]

    def joint(self, good: Sequence[Way]) -> Iterator[Way]:
        """Kernels that belong to some single ones: two in one walk, and what makes their rows."""
        crossing: dict[Way, None] = {}
        pairs: list[Way] = []
        for a, b in combinations(good, 2):
            if not self.go_together(a, b):
                continue
            if not any(self.work.cross(p, q) for p in self.ends(a) for q in self.ends(b)):
                pairs.append(self.merged([a, b]))
                continue
            both = [a, b]
            for way in good:  # one walk for all that need its blocks, whatever they sum over
                if all(way is w or self.go_together(way, w, True) for w in both):
                    both = [w for w in good if w in both or w is way]
            if not self.wait_for_each_other(a, b):
                crossing[self.merged(both)] = None
        yield from crossing
        yield from dict.fromkeys(self.first_walks([*crossing, *good]))
        for way in (*good, *crossing):
            stored = [made for piece in way.rows for made in self.stored_rows(piece)]
            stored = [made for made in stored if self.is_read_beside(made, way)]
            stored += self.kept(way)
            if stored:
                yield _with(way, tuple(stored))
        yield from pairs
        for piece in dict.fromkeys([r for way in good for r in way.rows]):
            values, read = self.row_numbers(piece), self.row_values(piece)
            below = dict.fromkeys(self.work.below(self.region[piece]))
            yield Way(values, tuple([self.local[t] for t in below]))
            if read and read != values:  # what others read of it alone
                yield Way(read, tuple([self.local[t] for t in below]))
            rows = [t for t in below if self.work.is_row(t)]
            if rows:  # with what else is made of those rows
                beside = [m for t in rows for m in (self.row_numbers(self.local[t])
                          if not self.work.is_narrow(t) else self.outputs(t))]  # fmt: skip
                others = tuple([self.local[t] for t in below if t not in rows])
                yield Way((*beside, *values), others)
            for way in good:
                if piece in way.taken and not way.rows:
                    yield _with(way, values)
                    yield _with(way, self.beside(way))
        for way in good:  # with what other pieces pick
            picking = [] if way.rows else [self.local[p] for p in self.region if self.picks(p, way)]
            if picking:
                more = replace(way, taken=tuple(sorted({*way.taken, *picking})))
                yield _with(more, self.beside(more))
            if not way.rows:
                yield from self.crossing_rows(way, picking, good)

    def first_walks(self, ways: Iterable[Way]) -> Iterator[Way]:
        """One walk for all numbers of rows that another one reads, of what that takes in."""
        for way in ways:
            made = [value for piece in way.rows for value in self.row_values(piece)]
            taken = tuple([t for t in way.taken if t not in way.rows])
            if made and taken:
                yield Way(tuple(made), taken)

    def crossing_rows(self, way: Way, picking: Sequence[int], good: Sequence[Way]) -> Iterator[Way]:
        """One that works out numbers of rows itself, with those that read them and cross it."""
        found: list[Way] = []
        stored = [p for t in way.taken if self.work.is_product(p := self.region[t])]
        if not any(self.work.about(p).size * _NUMBER > PUSHED for p in stored):
            return  # two kernels are as good as one
        for other in good:
            inside = set(other.rows) and {*other.rows, *other.taken} <= set(way.taken)
            crosses = any(self.work.cross(p, q) for p in self.ends(way) for q in self.ends(other))
            if inside and crosses and all(self.are_apart(other, w) for w in (way, *found)):
                found.append(other)
        if found:
            whole = self.merged([replace(w, rows=()) for w in (way, *found)])
            whole = replace(whole, taken=tuple(sorted({*whole.taken, *picking})))
            yield _with(whole, self.beside(whole))

    def are_apart(self, a: Way, b: Way) -> bool:
        """Do two ways make different things, of which none is made of another?"""
        return not set(a.makes) & set(b.makes) and not self.wait_for_each_other(a, b)

    def merged(self, ways: Sequence[Way]) -> Way:
        """One way that makes what several do."""
        makes = [made for way in ways for made in way.makes]
        taken = sorted({piece for way in ways for piece in way.taken})
        return Way(tuple(makes), tuple(taken), tuple(sorted({r for w in ways for r in w.rows})))

    def go_together(self, a: Way, b: Way, free: bool = False) -> bool:
        """May one kernel make what two ways do? `free`: it may not, if one waits for the other."""
        if set(a.makes) & set(b.makes) or (free and self.wait_for_each_other(a, b)):
            return False
        return self.are_alike(a, b)

    def wait_for_each_other(self, a: Way, b: Way) -> bool:
        """Is what one way makes needed for what the other does?"""
        before = self.work.before
        pairs = [(p, q) for p in self.ends(a) for q in self.ends(b)]
        return any(before[p] >> q & 1 or before[q] >> p & 1 for p, q in pairs)

    def are_alike(self, a: Way, b: Way) -> bool:
        """Is one of two ways inside the other, or do they need the same product?"""
        less, more = sorted([set(a.taken), set(b.taken)], key=len)
        if less <= more:
            return (len(a.rows) > 0) == (len(b.rows) > 0)
        both = [self.region[piece] for piece in less & more]
        return bool(a.rows or b.rows) and any(map(self.work.is_product, both))

    def picks(self, place: int, way: Way) -> bool:
        """Does a piece pick from what a way works out?"""
        mine = {self.region[piece] for piece in way.taken}
        return self.work.picks(place) and bool(mine.intersection(self.work.makers(place)))

    def ends(self, way: Way) -> list[int]:
        """The places of what a way makes."""
        return list(dict.fromkeys([self.region[piece] for piece, _ in way.makes]))

    def beside(self, way: Way) -> Made:
        """The numbers of rows that a kernel works out on its way."""
        found: list[tuple[int, int]] = []
        for piece in way.taken:
            place = self.region[piece]
            if self.work.is_narrow(place) and not self.work.picks(place):
                found += self.outputs(place)
            else:
                found += self.row_numbers(piece)
        return tuple(found)

    def row_numbers(self, piece: int) -> Made:
        """All of one number a row that a piece works out or stores."""
        return (*self.row_values(piece), *self.stored_rows(piece))

    def stored_rows(self, piece: int) -> Made:
        """What a piece stores of one number a row, and does not need for its elements."""
        place = self.region[piece]
        outputs, folded = self.work.pieces[place][1], self.work.row_values(place)
        most = max([elements(n.shape) for n in outputs])
        return tuple([
            (piece, number) for number, n in enumerate(outputs)
            if elements(n.shape) < most and n not in folded
        ])  # fmt: skip

    def outputs(self, place: int) -> Made:
        """All that a piece stores."""
        count = len(self.work.pieces[place][1])
        return tuple([(self.local[place], number) for number in range(count)])

    def kept(self, way: Way) -> Iterator[tuple[int, int]]:
        """The matrices that others want of pieces that a way takes in."""
        for piece in way.taken:
            for number, node in enumerate(self.work.pieces[self.region[piece]][1]):
                if self.work.is_kept(node):
                    yield piece, number

    def is_read_beside(self, made: tuple[int, int], way: Way) -> bool:
        """Is something that a piece stores read by others than those that a way takes in?"""
        node = self.work.pieces[self.region[made[0]]][1][made[1]]
        taken = {self.region[piece] for piece in way.taken}
        return node in self.work.roots or not taken.issuperset(self.work.readers.get(node, ()))

    def row_values(self, piece: int) -> Made:
        """All that a piece folds to one number a row."""
        count = len(self.work.row_values(self.region[piece]))
        return tuple([(piece, -1 - number) for number in range(count)])


def _with(way: Way, values: Made) -> Way:
    """A way that makes more, each value once."""
    return replace(way, makes=tuple(dict.fromkeys((*way.makes, *values))))
