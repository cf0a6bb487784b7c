"""Ways: the kernels that could stand in the place of pieces of one region.

In: a region. Out: ways, as numbers of pieces, in an order that no history changes. A piece may take
in what it reads, as deep as that goes; values of one number a row may be read instead of worked out
again (`rows`), and then somebody must make them; results of one walk over the same blocks may come
from one kernel. Nothing is cut out or costed here: that is done for those that may pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from ..cost import elements
from .regions import Made, Regions, Way


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
            found = [] if self.work.crosses(place, taken) else [Way(makes, inside)]
            if rows:
                found.append(Way(makes, inside, rows))
            if rows and lean != inside:
                found.append(Way(makes, lean, rows))
            if found:
                yield found

    def picked(self) -> list[Way]:
        """Pieces that read a product only to pick from it, with what is picked read instead."""
        places = [place for place in self.region if self.work.picks(place)]
        return [Way(self.outputs(place), (), (self.local[place],)) for place in places]

    def joint(self, good: Sequence[Way]) -> Iterator[Way]:
        """Kernels that belong to some single ones: two in one walk, and what makes their rows."""
        for a, b in combinations(good, 2):
            alike = self.are_alike(a, b)
            apart = any(self.work.cross(p, q) for p in self.ends(a) for q in self.ends(b))
            if alike and not apart and not set(a.makes) & set(b.makes):
                taken, rows = sorted({*a.taken, *b.taken}), sorted({*a.rows, *b.rows})
                yield Way((*a.makes, *b.makes), tuple(taken), tuple(rows))
        for piece in dict.fromkeys([r for way in good for r in way.rows]):
            values = self.row_numbers(piece)
            below = dict.fromkeys(self.work.below(self.region[piece]))
            yield Way(values, tuple([self.local[t] for t in below]))
            rows = [t for t in below if self.work.is_row(t)]
            if rows:  # with what else is made of those rows
                beside = tuple([made for t in rows for made in self.outputs(t)])
                others = tuple([self.local[t] for t in below if t not in rows])
                yield Way((*beside, *values), others)
            for way in good:
                if piece in way.taken and not way.rows:
                    yield replace(way, makes=(*way.makes, *values))
                    yield replace(way, makes=(*way.makes, *self.beside(way)))
        for way in good:  # with what other pieces pick
            picking = [] if way.rows else [self.local[p] for p in self.region if self.picks(p, way)]
            if picking:
                more = replace(way, taken=tuple(sorted({*way.taken, *picking})))
                yield replace(more, makes=(*way.makes, *self.beside(more)))

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
        place = self.region[piece]
        outputs, folded = self.work.pieces[place][1], self.work.row_values(place)
        most = max([elements(n.shape) for n in outputs])
        stored = [
            (piece, number) for number, n in enumerate(outputs)
            if elements(n.shape) < most and n not in folded
        ]  # fmt: skip
        return (*self.row_values(piece), *stored)

    def outputs(self, place: int) -> Made:
        """All that a piece stores."""
        count = len(self.work.pieces[place][1])
        return tuple([(self.local[place], number) for number in range(count)])

    def row_values(self, piece: int) -> Made:
        """All that a piece folds to one number a row."""
        count = len(self.work.row_values(self.region[piece]))
        return tuple([(piece, -1 - number) for number in range(count)])
