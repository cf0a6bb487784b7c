"""Tiny rows sorted side by side: a row for each lane, by a network of comparisons.

In: a sorter, with its keys. Out: a `KernelText` whose units sort as many rows as there are lanes. A
network compares fixed pairs of places, whatever is there, so that all lanes go the same way. Keys
carry their places below them: no two are equal, and the order is the stable one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.dtype import int32, int64
from ...common.api import KernelText, Launch
from ..llvm.convert import load_value, store_value
from ..llvm.emitter import Val, ramp

if TYPE_CHECKING:
    from .sort import Sorter


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


def side_by_side(sorter: Sorter) -> KernelText:
    """The kernel whose units sort as many rows as there are lanes."""
    rows, lanes, op = sorter.rows, sorter.lanes, sorter.op
    apart = Val(ramp(lanes, rows.n, "i32"), int32, True)
    dtype, kind = rows.word, f"<{lanes} x i64>"

    def unit(group: str) -> None:
        e = sorter.e
        first = op("mul", group, lanes)
        left = e.splat(Val(op("sub", str(rows.outer), first), int64))
        live = e.let(f"icmp ult {kind} {ramp(lanes, 1, 'i64')}, {left.text}")
        base = op("mul", first, rows.n)
        places = [op("add", base, column) for column in range(rows.n)]
        found: list[str] = []
        for column, place in enumerate(places):
            at = e.let(f"getelementptr [{dtype.itemsize} x i8], ptr {sorter.source}, i64 {place}")
            key = sorter.key(load_value(e, at, apart, dtype, None, live, "places"))
            wide = e.let(f"zext {e.typed(key)} to {kind}")
            high = e.let(f"shl {kind} {wide}, {e.const(32, int64, True).text}")
            found.append(e.let(f"or {kind} {high}, {e.const(column, int64, True).text}"))
        for low, high_ in comparisons(rows.n):
            both = [f"{kind} {found[i]}" for i in (low, high_)]
            found[low], found[high_] = (
                e.call(kind, f"llvm.{how}.v{lanes}i64", *both) for how in ("umin", "umax")
            )
        for word, place in zip(found, places, strict=True):
            at = e.let(f"getelementptr i32, ptr {sorter.result}, i64 {place}")
            short = Val(e.let(f"trunc {kind} {word} to <{lanes} x i32>"), int32, True)
            store_value(e, at, apart, short, int32, live, "places")

    sorter.function("kernel_sorted", unit)
    work = rows.outer * (4 * rows.n + len(comparisons(rows.n)))
    return sorter.rendered([Launch("kernel_sorted", -(-rows.outer // lanes), work)])
