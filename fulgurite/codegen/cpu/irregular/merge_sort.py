"""Merge sort in vector registers: signed keys in order, by functions that all sorts share.

In: the width of a key, and a target. Out: a library module for rows of any length. Two registers
are sorted by a bitonic network (Batcher 1968), runs of two and of four are merged in registers. A
longer merge keeps the later half of what it has seen in registers and loads from the run whose next
key is less (Chhugani et al. 2008). It is written from both ends at once: two chains of dependences
that meet in the middle. All it asks of a target are shuffles, minima and maxima. What equals each
other is the same number, so that there is nothing to be stable about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from ..gemm.microkernel import Module, named
from ..llvm.emitter import Emitter
from ..target import Target
from ..tiling import CPU

SORT = CPU.sort
Pairs: TypeAlias = Sequence[tuple[int, int]]  # of keys that are compared
Written: TypeAlias = tuple[str, list[str]]  # a function, and what it declares


def bitonic(count: int, within: int = 0) -> list[Pairs]:
    """The comparisons that bring bitonic sequences in order, by layers; `within` so many keys."""
    half, layers = (within or count) // 2, list[Pairs]()
    while half:
        layers.append([(i, i + half) for i in range(count) if not i & half])
        half //= 2
    return layers


def keys_per_register(bits: int, target: Target) -> int:
    """How many keys fit a register."""
    return target.lanes * 32 // bits


def registers_of(keys: int, lanes: int) -> int:
    """How many registers are sorted for so many keys: two, four, or some blocks."""
    count, block = -(-keys // lanes), SORT.block_registers
    return 2 if count <= 2 else 4 if count <= 4 else -(-count // block) * block


def levels_of(registers: int, nbytes: int) -> int:
    """How many times the keys of so many registers are moved from one array to the other."""
    chunk = SORT.merge_chunk_bytes // nbytes
    inside = min(-(-registers // SORT.block_registers), chunk // SORT.block_registers)
    return (inside - 1).bit_length() + (-(-registers // chunk) - 1).bit_length()


@lru_cache(maxsize=8)
def module(bits: int, target: Target) -> Module:
    """`ptr f(ptr keys, ptr other, i64 registers)` sorts `registers_of` keys: the result is the one
    of the two arrays in which they are then. `merged` names the function that merges two runs."""
    lanes = keys_per_register(bits, target)
    step = SORT.merge_registers.get(target.vectors, 2)
    parts = [_sort(_Registers(bits, lanes)), _merge(_Registers(bits, lanes), step)]
    declared = {line: None for part in parts for line in part[1]}
    return named(f"sort_i{bits}", "\n".join([*[part[0] for part in parts], *declared]))


def merged(sort: Module) -> str:
    """`void f(ptr from, ptr to, i64 low, i64 middle, i64 high)`: two runs of registers become one.

    Each is some blocks. The keys before and behind them are looked at, but do not count.
    """
    return f"{sort.name}_part_merge"


class _Registers:
    """Networks over registers of keys."""

    def __init__(self, bits: int, lanes: int) -> None:
        self.bits, self.lanes = bits, lanes
        self.key, self.kind = f"i{bits}", f"<{lanes} x i{bits}>"
        self.nbytes = lanes * bits // 8
        self.e = Emitter(lanes)

    # --- registers -------------------------------------------------------------------------------

    def shuffle(self, a: str, b: str, lanes: Sequence[int]) -> str:
        """Some keys of two registers, numbered through."""
        count = self.lanes
        if list(lanes) == list(range(count)):
            return a
        if list(lanes) == list(range(count, 2 * count)):
            return b
        mask = ", ".join([f"i32 {n}" for n in lanes])
        kind = self.kind
        return self.e.let(f"shufflevector {kind} {a}, {kind} {b}, <{count} x i32> <{mask}>")

    def reverse(self, a: str) -> str:
        return self.shuffle(a, a, range(self.lanes - 1, -1, -1))

    def compare(self, a: str, b: str) -> tuple[str, str]:
        """The lesser keys and the greater ones."""
        operands = f"{self.kind} {a}", f"{self.kind} {b}"
        low, high = (
            self.e.call(self.kind, f"llvm.{how}.v{self.lanes}{self.key}", *operands)
            for how in ("smin", "smax")
        )
        return low, high

    def network(self, a: str, b: str, layers: Sequence[Pairs]) -> tuple[str, str]:
        """Two registers after layers of comparisons in each of which every key takes part.

        Keys that meet are brought to the same lane of different registers by one shuffle for each
        register: neighbours are what were pairs, so that most shuffles are interleavings.
        """
        lanes = self.lanes
        place = list(range(2 * lanes))
        for layer in layers:
            pairs = sorted(layer, key=lambda p: (place[p[0]] % lanes, place[p[0]] // lanes))
            first, second = (
                self.shuffle(a, b, [place[pair[side]] for pair in pairs]) for side in (0, 1)
            )
            a, b = self.compare(first, second)
            for lane, (low, high) in enumerate(pairs):
                place[low], place[high] = lane, lanes + lane
        return self.shuffle(a, b, place[:lanes]), self.shuffle(a, b, place[lanes:])

    def clean(self, registers: Sequence[str]) -> list[str]:
        """A bitonic sequence in order."""
        if len(registers) == 2:
            a, b = registers
            return list(self.network(a, b, bitonic(2 * self.lanes)))
        half = len(registers) // 2
        met = [self.compare(*pair) for pair in zip(registers, registers[half:], strict=False)]
        return [*self.clean([m[0] for m in met]), *self.clean([m[1] for m in met])]

    def sort(self, a: str, b: str) -> tuple[str, str]:
        """Two registers in order: ever longer sequences are merged with their neighbours."""
        count, layers = 2 * self.lanes, list[Pairs]()
        size = 2
        while size <= count:
            mirror = [(i, i ^ (size - 1)) for i in range(count) if not i & size // 2]
            layers += [mirror, *bitonic(count, size)[1:]]
            size *= 2
        return self.network(a, b, layers)

    def merge(self, a: Sequence[str], b: Sequence[str]) -> list[str]:
        """Two runs of as many registers as one."""
        return self.clean([*a, *[self.reverse(r) for r in reversed(b)]])

    # --- memory ----------------------------------------------------------------------------------

    def at(self, array: str, register: str | int) -> str:
        """The address of a register, so many behind another."""
        if register == 0:
            return array
        return self.e.let(f"getelementptr {self.kind}, ptr {array}, i64 {register}")

    def load(self, at: str, count: int) -> list[str]:
        return [
            self.e.let(f"load {self.kind}, ptr {self.at(at, i)}, align {self.bits // 8}")
            for i in range(count)
        ]

    def store(self, at: str, registers: Sequence[str]) -> None:
        for i, register in enumerate(registers):
            place = self.at(at, i)
            self.e.line(f"store {self.kind} {register}, ptr {place}, align {self.bits // 8}")

    def loop(self, start: str, stop: str, step: int | str, body: Callable[[str], None]) -> None:
        def one(index: str, _: list[str]) -> list[str]:
            body(index)
            return []

        self.e.loop(start, stop, step, [], one)

    def function(self, head: str, result: str) -> Written:
        """What was written, as a function."""
        body = "\n".join(self.e.lines)
        text = f"define {head} nounwind {{\nentry:\n{body}\n  ret {result}\n}}"
        return text, list(self.e.declared.values())


def _merge(r: _Registers, step: int) -> Written:
    """The loop that merges two runs, from both ends."""
    e, nbytes = r.e, step * r.nbytes

    def moved(at: str, back: bool) -> str:
        return e.let(f"getelementptr i8, ptr {at}, i64 {-nbytes if back else nbytes}")

    def chosen(a: str, b: str, ends: tuple[str, str], back: bool) -> tuple[str, str, str]:
        """Where to read next, and what is left of two runs: the lesser head or greater last key."""
        heads = [e.let(f"getelementptr {r.key}, ptr {p}, i64 -1") if back else p for p in (a, b)]
        keys = [e.let(f"load {r.key}, ptr {p}, align {r.bits // 8}") for p in heads]
        first = e.let(f"icmp {'sgt' if back else 'slt'} {r.key} {keys[1]}, {keys[0]}")
        left = e.let(f"icmp ne ptr {b}, {ends[1]}")
        gone = e.let(f"icmp eq ptr {a}, {ends[0]}")
        takes = e.let(f"or i1 {e.let(f'and i1 {first}, {left}')}, {gone}")
        after = [moved(p, back) for p in (a, b)]
        read = after if back else [a, b]
        return (
            e.let(f"select i1 {takes}, ptr {read[1]}, ptr {read[0]}"),
            e.let(f"select i1 {takes}, ptr {a}, ptr {after[0]}"),
            e.let(f"select i1 {takes}, ptr {after[1]}, ptr {b}"),
        )

    def together(_: str, carried: list[str]) -> list[str]:
        """A step from each end."""
        at, a, b, to, at_back, a_back, b_back, to_back, *kept = carried
        low, high = (
            r.merge(kept[first : first + step], r.load(place, step))
            for first, place in ((0, at), (step, at_back))
        )
        r.store(to, low[:step])
        r.store(to_back, high[step:])
        pointers = [*chosen(a, b, (middle, end), False), moved(to, False)]
        pointers += [*chosen(a_back, b_back, (start, middle), True), moved(to_back, True)]
        return [*pointers, *low[step:], *high[:step]]

    start, middle, end = (r.at("%from", f"%{name}") for name in ("low", "middle", "high"))
    to, to_back = r.at("%to", "%low"), moved(r.at("%to", "%high"), True)
    a_back, b_back = moved(middle, True), moved(end, True)
    pointers = [middle, moved(start, False), moved(middle, False), to]
    pointers += [b_back, a_back, b_back, to_back]
    kept = [*r.load(start, step), *r.load(a_back, step)]
    first = [*[("ptr", p) for p in pointers], *[(r.kind, k) for k in kept]]
    e.loop("0", e.let("sub i64 %high, %low"), 2 * step, first, together)
    head = "void @PART_merge(ptr %from, ptr %to, i64 %low, i64 %middle, i64 %high)"
    return r.function(head, "void")


def _sort(r: _Registers) -> Written:
    """The sort of many registers, chunk by chunk and level by level."""
    e, chunk = r.e, SORT.merge_chunk_bytes // r.nbytes

    def least(a: str, b: str) -> str:
        return e.call("i64", "llvm.smin.i64", f"i64 {a}", f"i64 {b}")

    def in_registers(low: str, high: str) -> None:
        """Runs of eight registers."""
        some = e.let(f"sub i64 {high}, {low}")

        def pair(at: str) -> None:
            r.store(at, r.sort(*r.load(at, 2)))

        def neighbours(at: str, count: int) -> None:
            registers = r.load(at, 2 * count)
            r.store(at, r.merge(registers[:count], registers[count:]))

        for count in (1, 2, 4):
            whole = e.let(f"add i64 {low}, {e.let(f'and i64 {some}, {-2 * count}')}")

            def body(index: str, count: int = count) -> None:
                at = r.at("%keys", index)
                pair(at) if count == 1 else neighbours(at, count)

            r.loop(low, whole, 2 * count, body)

    def level(array: str, other: str, run: str, low: str, high: str) -> None:
        """Merge runs with their neighbours; a last one alone is copied."""
        twice = e.let(f"shl i64 {run}, 1")

        def two(index: str) -> None:
            middle = least(e.let(f"add i64 {index}, {run}"), high)
            end = least(e.let(f"add i64 {index}, {twice}"), high)
            some = e.let(f"icmp slt i64 {middle}, {end}")

            def join() -> None:
                places = ", ".join([f"i64 {n}" for n in (index, middle, end)])
                e.line(f"call void @PART_merge(ptr {array}, ptr {other}, {places})")

            e.branch(some, join)
            rest = e.let(f"select i1 {some}, i64 {end}, i64 {index}")
            r.loop(rest, end, 1, lambda i: r.store(r.at(other, i), r.load(r.at(array, i), 1)))

        r.loop(low, high, twice, two)

    def levels(count: str, run: int, arrays: Sequence[str], low: str, high: str) -> str:
        """So many levels, with runs twice as long in each; where the last one left the keys."""

        def one(_: str, carried: list[str]) -> list[str]:
            array, other, length = carried
            level(array, other, length, low, high)
            return [other, array, e.let(f"shl i64 {length}, 1")]

        first = [("ptr", arrays[0]), ("ptr", arrays[1]), ("i64", str(run))]
        return e.loop("0", count, 1, first, one)[0]

    def doublings(length: int) -> str:
        """How many levels make one of all runs of a length."""
        runs = e.let(f"udiv i64 {e.let(f'add i64 %count, {length - 1}')}, {length}")
        left = e.call("i64", "llvm.ctlz.i64", f"i64 {e.let(f'sub i64 {runs}, 1')}", "i1 false")
        return e.let(f"sub i64 64, {left}")

    arrays = ["%keys", "%other"]
    inner = least(
        doublings(SORT.block_registers), str((chunk // SORT.block_registers).bit_length() - 1)
    )

    def within(low: str) -> None:
        high = least(e.let(f"add i64 {low}, {chunk}"), "%count")
        in_registers(low, high)
        levels(inner, SORT.block_registers, arrays, low, high)

    r.loop("0", "%count", chunk, within)
    is_odd = e.let(f"trunc i64 {inner} to i1")
    now = [
        e.let(f"select i1 {is_odd}, ptr {a}, ptr {b}")
        for a, b in zip(reversed(arrays), arrays, strict=True)
    ]
    found = levels(doublings(chunk), chunk, now, "0", "%count")
    return r.function("ptr @SELF(ptr %keys, ptr %other, i64 %count)", f"ptr {found}")
