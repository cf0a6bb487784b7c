"""Selection (top-k): the first few places of the order along rows of memory, without a sort.

In: a sorter whose rows say how many places are wanted. Out: a `KernelText` whose units take a row
each. The first numbers of a row are sorted by insertion; of all others, a vector at a time, only
those go in that are before the last one there. Numbers come in the order of their places and equal
ones do not go in, so the order is the stable one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.dtype import int64
from ...common.api import KernelText, Launch
from ..llvm.convert import load_value
from ..llvm.emitter import Val, ramp
from ..tiling import CPU

if TYPE_CHECKING:
    from .sort import Rows, Sorter

SORT = CPU.sort


def pays(rows: Rows) -> bool:
    """True if so few places are wanted that most numbers are compared once and left."""
    few = 0 < rows.first <= SORT.select_elements
    return few and rows.first * SORT.select_share <= rows.n and rows.n > SORT.network_elements


def first_few(sorter: Sorter) -> KernelText:
    """The kernel whose units write the first places of a row."""
    rows = sorter.rows

    def unit(row: str) -> None:
        _Selection(sorter, row).write()

    sorter.function("kernel_selected", unit, lambda: _room(sorter))
    work = rows.outer * (2 * rows.n + 64 * rows.first)
    return sorter.rendered([Launch("kernel_selected", rows.outer, work)])


def _room(sorter: Sorter) -> None:
    """A thread's own arrays of keys and of places."""
    kind = f"[{sorter.rows.first} x i64]"
    sorter.chosen = sorter.e.let(f"alloca {kind}, align 64"), sorter.e.let(f"alloca {kind}")


class _Selection:
    """Writes the selection from one row."""

    def __init__(self, sorter: Sorter, row: str) -> None:
        self.sorter, self.e, self.rows = sorter, sorter.e, sorter.rows
        self.base = sorter.op("mul", row, self.rows.n)
        self.keys, self.places = sorter.chosen

    def write(self) -> None:
        """All of it: the first numbers, the others, the result."""
        e, sorter, count, lanes = self.e, self.sorter, self.rows.first, self.sorter.lanes

        def begin(index: str, _: list[str]) -> list[str]:
            self.insert(self.key_at(index), index, index)
            return []

        def vector(index: str, _: list[str]) -> list[str]:
            left = e.splat(Val(sorter.op("sub", sorter.n, index), int64))
            live = e.let(f"icmp ult <{lanes} x i64> {ramp(lanes, 1, 'i64')}, {left.text}")
            place = Val(sorter.op("add", self.base, index), int64)
            bits = load_value(e, sorter.source, place, self.rows.word, None, live, "row")
            self.vector(index, sorter.key(bits), live)
            return []

        def result(index: str, _: list[str]) -> list[str]:
            place = e.let(f"load i64, ptr {self.at(self.places, index)}, align 8")
            to = sorter.op("add", self.base, index)
            at = e.let(f"getelementptr i32, ptr {sorter.result}, i64 {to}")
            e.line(f"store i32 {e.let(f'trunc i64 {place} to i32')}, ptr {at}, align 1")
            return []

        e.loop("0", str(count), 1, [], begin)
        e.loop(str(count), sorter.n, lanes, [], vector)
        e.loop("0", str(count), 1, [], result)

    def vector(self, index: str, keys: Val, live: str) -> None:
        """Take in those numbers of a vector that are before the last one that was chosen."""
        e, sorter, lanes = self.e, self.sorter, self.sorter.lanes
        word = e.type_of(self.rows.word, False)
        last = Val(e.let(f"load {word}, ptr {self.last}, align 8"), self.rows.word)  # little endian
        less = e.let(f"icmp ult {e.typed(keys)}, {e.splat(last).text}")
        both = e.let(f"and <{lanes} x i1> {less}, {live}")
        bits = e.let(f"bitcast <{lanes} x i1> {both} to i{lanes}")
        wide = bits if lanes == 64 else e.let(f"zext i{lanes} {bits} to i64")

        def take(_: str, carried: list[str]) -> list[str]:
            (left,) = carried
            lane = e.call("i64", "llvm.cttz.i64", f"i64 {left}", "i1 true")
            place = sorter.op("add", index, lane)
            key = self.key_at(place)
            known = e.let(f"load i64, ptr {self.last}, align 8")
            before = e.let(f"icmp ult i64 {key}, {known}")
            e.branch(before, lambda: self.insert(key, place, str(self.rows.first - 1)))
            return [sorter.op("and", left, sorter.op("sub", left, 1))]

        def some() -> None:
            count = e.call("i64", "llvm.ctpop.i64", f"i64 {wide}")
            e.loop("0", count, 1, [("i64", wide)], take)

        e.branch(e.let(f"icmp ne i64 {wide}, 0"), some)

    @property
    def last(self) -> str:
        """Where the key of the last one that was chosen is."""
        return self.at(self.keys, str(self.rows.first - 1))

    def at(self, array: str, place: str) -> str:
        return self.e.let(f"getelementptr i64, ptr {array}, i64 {place}")

    def key_at(self, index: str) -> str:
        """The key of one number of the row, in 64 bits."""
        e, word = self.e, self.rows.word
        place = Val(self.sorter.op("add", self.base, index), int64)
        key = self.sorter.key(load_value(e, self.sorter.source, place, word, None, None, "one"))
        return key.text if self.rows.bits == 64 else e.let(f"zext {e.typed(key)} to i64")

    def insert(self, key: str, place: str, top: str) -> None:
        """Put a number where it belongs; those behind it move up, to `top` at most."""
        self.sorter.insert([key, place], top, self.load, self.store)

    def load(self, place: str) -> list[str]:
        """The key and the number of what was chosen for a place."""
        at = [self.at(array, place) for array in (self.keys, self.places)]
        return [self.e.let(f"load i64, ptr {word}, align 8") for word in at]

    def store(self, place: str, words: list[str]) -> None:
        """Choose a number, by its key, for a place."""
        for array, word in zip((self.keys, self.places), words, strict=True):
            self.e.line(f"store i64 {word}, ptr {self.at(array, place)}, align 8")
