"""Merge sort by ranks: the stable order along rows of memory.

In: rows of numbers of one dtype. Out: launches that write for each row the places of its numbers in
order, as int32. Numbers become signed keys whose order is theirs (-0.0 equals 0.0, any NaN is above
all; flipped where the order falls). The rank of a number is how many come before it: counted over
the row while it is short, else over its run of the row; then runs are merged in pairs, where each
number finds its rank in the other run by binary search. Equal numbers keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dtype import DType, int32, int64
from ...core.lazy_dataclass import dataclass
from .source import Argument, Launch, Place, Room, number, pointer
from .spelling import INT32_LIMIT, from_memory, key_dtype, sort_key
from .tiling import GpuTable, power

TILE = 1024  # keys that a program makes or merges


@dataclass(frozen=True, slots=True)
class Rows:
    """What is sorted."""

    dtype: DType
    descending: bool
    outer: int
    n: int


def sort(
    rows: Rows, source: Place, result: Place, limit: Place | None, room: Room, table: GpuTable
) -> list[Launch]:
    """The launches of a sort; `limit` is memory with how many numbers of each row count."""
    if rows.outer * rows.n == 0:
        return []
    keys = room.take(rows.outer * rows.n * key_dtype(rows.dtype).itemsize)
    first = _make_keys(rows, source, keys)
    work = Keys(key_dtype(rows.dtype), rows.outer, rows.n, keys, limit)
    return [first, *sort_keys(work, result, room, table)]


@dataclass(frozen=True, slots=True)
class Keys:
    """Rows of signed keys in memory."""

    dtype: DType
    outer: int
    n: int
    memory: Place
    limit: Place | None = None

    def arguments(self, *more: tuple[str, DType, Place]) -> list[Argument]:
        """The keys, and memory beside them."""
        found = [pointer("keys", self.dtype, self.memory)]
        found += [pointer(*one) for one in more]
        if self.limit is not None:
            found.append(pointer("limit", int64, self.limit))
        return found

    @property
    def counting(self) -> list[str]:
        """How many numbers of a row count."""
        if self.limit is None:
            return ["m = n"]
        return ["m = tl.load(limit).to(tl.int32)"]

    @property
    def row(self) -> str:
        """The cast that the number of a row needs where memory is large."""
        return ".to(tl.int64)" if self.outer * self.n > INT32_LIMIT else ""

    @property
    def place(self) -> str:
        """The cast that a place in a row needs where the end of two runs may be beyond 32 bits."""
        return ".to(tl.int64)" if self.n > INT32_LIMIT // 2 else ""


def sort_keys(keys: Keys, result: Place, room: Room, table: GpuTable) -> list[Launch]:
    """The order of keys that are in memory already; they are not kept where rows are long."""
    if keys.n <= table.sort_run:
        return [_counted(keys, None, result, keys.n, table)]
    total = keys.outer * keys.n
    others = [room.take(total * keys.dtype.itemsize) for _ in range(2)]
    orders = [room.take(total * int32.itemsize) for _ in range(2)]
    run = table.sort_run
    launches = [_counted(keys, others[0], orders[0], run, table)]
    current = 0
    while run < keys.n:
        last = 2 * run >= keys.n
        there = result if last else orders[1 - current]
        launches.append(_merged(keys, (others[current], orders[current]),
                                (None if last else others[1 - current], there), run))  # fmt: skip
        current, run = 1 - current, 2 * run
    return launches


def _made(lines: Sequence[str], arguments: Sequence[Argument], grid: int, warps: int = 4) -> Launch:
    body = "\n".join(f"    {text}" for text in lines)
    head = f"@triton.jit\ndef kernel({', '.join(a.name for a in arguments)}):"
    return Launch(f"{head}\n{body}\n", "kernel", grid, warps, 2, tuple(arguments))


def _make_keys(rows: Rows, source: Place, keys: Place) -> Launch:
    """Keys of all numbers."""
    total = rows.outer * rows.n
    block = min(TILE, power(total))
    wide = ".to(tl.int64)" if total > INT32_LIMIT else ""
    value = from_memory("tl.load(source + at, mask=mask, other=0)", rows.dtype)
    text = [
        f"at = tl.program_id(0){wide} * {block} + tl.arange(0, {block})",
        "mask = at < total",
        f"value = {value}",
        f"tl.store(keys + at, {sort_key('value', rows.dtype, rows.descending)}, mask=mask)",
    ]
    arguments = [
        pointer("source", rows.dtype, source), pointer("keys", key_dtype(rows.dtype), keys),
        number("total", total),
    ]  # fmt: skip
    return _made(text, arguments, -(-total // block))


def _counted(
    keys: Keys, sorted_keys: Place | None, order: Place, run: int, table: GpuTable
) -> Launch:
    """Every number at its rank in its run: the count of those before it."""
    tile = min(table.sort_tile, power(run))
    text = [
        *keys.counting,
        f"row = (tl.program_id(0) // tiles){keys.row}",
        f"i = ((tl.program_id(0) % tiles) * {tile} + tl.arange(0, {tile})){keys.place}",
        "mine = tl.load(keys + row * n + i, mask=i < n, other=0)",
        "start = (i // run) * run",
        f"first = (tl.program_id(0) % tiles){keys.place} * {tile} // run * run",
        "last = tl.minimum(first + run, m)",
        f"rank = tl.zeros(({tile},), tl.int32)",
        f"for step in range(first, last, {tile}):",
        f"    j = step + tl.arange(0, {tile})",
        "    theirs = tl.load(keys + row * n + j, mask=j < last, other=0)",
        "    less = theirs[None, :] < mine[:, None]",
        "    same = (theirs[None, :] == mine[:, None]) & (j[None, :] < i[:, None])",
        "    before = (less | same) & (j[None, :] < last)",
        "    rank += tl.sum(before.to(tl.int32), 1)",
        "at = row * n + tl.where(i < m, start + rank, i)",
        "tl.store(order + at, i, mask=i < n)",
    ]
    more = [("order", int32, order)]
    if sorted_keys is not None:
        text.append("tl.store(moved + at, mine, mask=i < n)")
        more.append(("moved", keys.dtype, sorted_keys))
    tiles = -(-keys.n // tile)
    arguments = keys.arguments(*more)
    arguments += [number("n", keys.n), number("run", run), number("tiles", tiles)]
    return _made(text, arguments, keys.outer * tiles)


def _merged(
    keys: Keys, source: tuple[Place, Place], target: tuple[Place | None, Place], run: int
) -> Launch:
    """Pairs of sorted runs as one: a number's rank is its place plus its rank in the other run."""
    block = TILE
    text = [
        *keys.counting,
        f"row = (tl.program_id(0) // tiles){keys.row}",
        f"i = ((tl.program_id(0) % tiles) * {block} + tl.arange(0, {block})){keys.place}",
        "here = i < m",
        "key = tl.load(keys + row * n + i, mask=here, other=0)",
        "place = tl.load(order + row * n + i, mask=i < n, other=0)",
        "pair = i // run // 2 * 2 * run",
        "left = i - pair < run",
        "low = tl.minimum(tl.where(left, pair + run, pair), m)",
        "high = tl.minimum(low + run, m)",
        "begin = low",
        "for step in range(0, steps):",
        "    middle = (low + high) // 2",
        "    open = here & (low < high)",
        "    other = tl.load(keys + row * n + middle, mask=open, other=0)",
        "    after = tl.where(left, other < key, other <= key) & open",
        "    low = tl.where(after, middle + 1, low)",
        "    high = tl.where(after | (low >= high), high, middle)",
        "own = i - tl.where(left, pair, pair + run)",
        "at = row * n + tl.where(here, pair + own + low - begin, i)",
        "tl.store(result + at, place, mask=i < n)",
    ]
    more = [("order", int32, source[1]), ("result", int32, target[1])]
    if target[0] is not None:
        text.append("tl.store(moved + at, key, mask=i < n)")
        more.append(("moved", keys.dtype, target[0]))
    tiles = -(-keys.n // block)
    held = Keys(keys.dtype, keys.outer, keys.n, source[0], keys.limit)
    arguments = held.arguments(*more)
    arguments += [number("n", keys.n), number("run", run), number("tiles", tiles)]
    arguments.append(number("steps", run.bit_length() + 1))
    return _made(text, arguments, keys.outer * tiles)
