"""Tiny rows sorted side by side: a row for each lane, by a network of comparisons.

In: a sorter, with its keys. Out: a `KernelText` whose units sort as many rows as there are lanes. A
network compares fixed pairs of places, whatever is there, so that all lanes go the same way. Keys
carry their places below them: no two are equal, and the order is the stable one. Whole numbers that
are asked for themselves need no places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.dtype import int32, int64, uint64
from ...common.api import KernelText, Launch
from ..llvm.convert import load_value, store_value
from ..llvm.emitter import Val, ramp
from ..tiling import CPU

if TYPE_CHECKING:
    from .sort import Rows, Sorter


def comparisons(n: int) -> list[tuple[int, int]]:
    """Batcher's network by odd and even merges: places whose elements meet, in order."""
    found: list[tuple[int, int]] = []
    half = 1
    while half < n:
        step = half
        while step:
            for first in range(step % half, n - step, 2 * step):
                for low in range(first, first + min(step, n - first - step)):
                    if low // (2 * half) == (low + step) // (2 * half):
                        found.append((low, low + step))
            step //= 2
        half *= 2
    return found


def pays(rows: Rows) -> bool:
    """True if rows are tiny, and their keys leave room for places."""
    return rows.n <= CPU.sort.network_elements and rows.bits <= 32 and not rows.partly


def side_by_side(sorter: Sorter) -> KernelText:
    """The kernel whose units sort as many rows as there are lanes."""
    rows, lanes, op = sorter.rows, sorter.lanes, sorter.op
    apart = Val(ramp(lanes, rows.n, "i32"), int32, True)
    alike = rows.values and rows.dtype.kind != "f"  # are equal numbers the same?
    dtype, word = rows.word, rows.word if alike else uint64
    bits = word.bits

    def unit(group: str) -> None:
        e = sorter.e
        first = op("mul", group, lanes)
        left = e.splat(Val(op("sub", str(rows.outer), first), int64))
        live = e.let(f"icmp ult <{lanes} x i64> {ramp(lanes, 1, 'i64')}, {left.text}")
        kind = e.type_of(word, True)
        base = op("mul", first, rows.n)
        places = [op("add", base, column) for column in range(rows.n)]
        found: list[str] = []
        for column, place in enumerate(places):
            at = e.let(f"getelementptr [{dtype.itemsize} x i8], ptr {sorter.source}, i64 {place}")
            key = sorter.key(load_value(e, at, apart, dtype, None, live, "places"))
            if alike:
                found.append(key.text)
                continue
            wide = e.let(f"zext {e.typed(key)} to {kind}")
            high = e.let(f"shl {kind} {wide}, {e.const(32, int64, True).text}")
            found.append(e.let(f"or {kind} {high}, {e.const(column, int64, True).text}"))
        for low, high_ in comparisons(rows.n):
            both = [f"{kind} {found[i]}" for i in (low, high_)]
            found[low], found[high_] = (
                e.call(kind, f"llvm.{how}.v{lanes}i{bits}", *both) for how in ("umin", "umax")
            )
        start = e.let(f"getelementptr [{dtype.itemsize} x i8], ptr {sorter.source}, i64 {base}")
        for key_, place in zip(found, places, strict=True):
            if alike:
                value = sorter.number(Val(key_, dtype, True))
            else:
                short = e.let(f"trunc {kind} {key_} to <{lanes} x i32>")
                value = Val(short, int32, True)
            if rows.values and not alike:
                there = Val(e.let(f"add {e.typed(value)}, {apart.text}"), int32, True)
                value = load_value(e, start, there, dtype, None, live, "places")
            size = value.dtype.itemsize
            at = e.let(f"getelementptr [{size} x i8], ptr {sorter.result}, i64 {place}")
            store_value(e, at, apart, value, value.dtype, live, "places")

    sorter.function("kernel_sorted", unit)
    work = rows.outer * (4 * rows.n + len(comparisons(rows.n)))
    return sorter.rendered([Launch("kernel_sorted", -(-rows.outer // lanes), work)])
