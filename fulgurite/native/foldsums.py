"""Few sums with columns, kept with what rounding took from them.

In: a fold whose sums with columns are so few that the reference adds them up by pairs or along
lanes, which loses fewer digits than one long chain. Out: lines that put the sums of a piece of the
streamed axis into a part of their own, and add parts to the sums exactly, the rest of each addition
beside it; so errors do not grow with the length. Sums whose bases move, and results, take the rest
in first. An infinite sum has no rest: it stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..core.dtype import bool_
from ..kernel.contract import is_tiny
from .emitter import Val
from .foldskip import FoldSkip
from .maths import select


class FoldSums(FoldSkip):
    """Sums with columns that are exact."""

    begun: str  # were there blocks before this one?

    def is_fine(self, number: int) -> bool:
        """Does the reference sum this state by pairs, or along lanes?"""
        columns = self.fold.count(self.fold.columns[number])
        return self.rows == 1 or is_tiny(self.rows, columns, self.length)

    @property
    def fine(self) -> list[int]:
        """The states with columns that are summed so."""
        return [n for n in range(len(self.fold.matrices)) if self.is_fine(n)]

    def reserve(self) -> None:
        """Everything a tile needs, and room for parts and rests."""
        super().reserve()
        for number in self.fine:
            rows = min(self.rows, self.cut.rows)
            count = rows * (self.cut.columns[number] + self.lanes) + self.lanes
            self.room(f"part{number}", count)
            self.room(f"rest{number}", count)

    def begin(self) -> None:
        """States before anything was seen; perhaps no block comes, and there is no rest."""
        super().begin()
        if self.tests:
            for number in self.fine:
                self.each_vector(number, partial(self.put_rest, number, text="0"))

    def each_vector(self, number: int, body: Callable[[str], None]) -> None:
        """Run `body(place)` for the vectors of all rows of a state."""
        f, count, width = self.f, self.left[number][1], self.width(number)

        def row(r: str, _: list[str]) -> list[str]:
            def step(c: str, _: list[str]) -> list[str]:
                body(f.add(f.mul(r, width), c))
                return []

            f.e.loop("0", count, self.lanes, [], step)
            return []

        f.e.loop("0", self.count, 1, [], row)

    def put_rest(self, number: int, place: str, text: str) -> None:
        """Write what rounding took."""
        where = self.element(self.f.read[f"rest{number}"], place)
        value = "zeroinitializer" if text == "0" else text
        self.f.e.line(f"store {self.vector} {value}, ptr {where}, align 4")

    def put_sums(self, number: int, place: str, text: str) -> None:
        """Write sums."""
        where = self.element(self.f.read[f"sums{number}"], place)
        self.f.e.line(f"store {self.vector} {text}, ptr {where}, align 4")

    def take_part(self, number: int, k: str) -> None:
        """Add the sums of the piece that begins at k to all, and keep what that loses."""
        f, e, kind = self.f, self.f.e, self.vector
        first = e.let(f"icmp eq i64 {k}, 0")
        first = e.let(f"and i1 {first}, {e.let(f'xor i1 {self.begun}, true')}")

        def known(name: str, place: str) -> str:
            found = self.load(f.read[f"{name}{number}"], place).text
            return e.let(f"select i1 {first}, {kind} zeroinitializer, {kind} {found}")

        def add(place: str) -> None:
            before, part = known("sums", place), self.load(f.read[f"part{number}"], place).text
            total = e.let(f"fadd {kind} {before}, {part}")
            back = e.let(f"fsub {kind} {total}, {before}")
            left = e.let(f"fsub {kind} {before}, {e.let(f'fsub {kind} {total}, {back}')}")
            lost = e.let(f"fadd {kind} {left}, {e.let(f'fsub {kind} {part}, {back}')}")
            self.put_sums(number, place, total)
            self.put_rest(number, place, e.let(f"fadd {kind} {known('rest', place)}, {lost}"))

        self.each_vector(number, add)

    def whole_sums(self, number: int, place: str) -> Val:
        """Sums with what rounding took from them."""
        e, kind = self.f.e, self.vector
        sums = self.load(self.f.read[f"sums{number}"], place)
        if not self.is_fine(number):
            return sums
        rest = self.load(self.f.read[f"rest{number}"], place).text
        both = Val(e.let(f"fadd {kind} {sums.text}, {rest}"), self.fold.dtype, True)
        known = Val(e.let(f"fcmp ord {kind} {both.text}, {both.text}"), bool_, True)
        return select(e, known, both, sums)

    def take_rests(self) -> None:
        """At the end of a unit: sums as they are."""

        def whole(number: int, place: str) -> None:
            self.put_sums(number, place, self.whole_sums(number, place).text)

        for number in self.fine:
            self.each_vector(number, partial(whole, number))
