"""Scans (prefix sums) along lines of memory, in blocks with a carry.

In: memory of shape (outer, n, inner), laid out in that order. Out: launches. A program scans a tile
of lines block after block (`tl.associative_scan`) and carries the fold of what came before. Where
lines are few and long they are cut in chunks: one launch folds each chunk, one scans those folds,
one scans the chunks from there. How lines are cut follows from sizes alone. An affine scan
(s = a*s + b) runs step by step: its products may overflow where its values do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dtype import DType
from ...core.lazy_dataclass import dataclass
from .source import Argument, Launch, Place, Room, number, pointer
from .spelling import (
    INT32_LIMIT,
    combine,
    combiner,
    computing,
    from_memory,
    identity,
    to_memory,
    type_name,
)
from .tiling import GpuTable, power

WARPS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """What is scanned."""

    name: str
    reverse: bool
    dtype: DType
    outer: int
    n: int
    inner: int

    @property
    def wide(self) -> str:
        """The cast that places need where they, or ends of chunks, may be beyond 32 bits."""
        return ".to(tl.int64)" if self.outer * self.n * self.inner > INT32_LIMIT // 2 else ""


def scan(
    line: Line, sources: Sequence[tuple[DType, Place]], result: Place, room: Room, table: GpuTable
) -> list[Launch]:
    """The launches of a scan; an affine one has two sources."""
    if line.outer * line.n * line.inner == 0:
        return []
    if line.name == "affine":
        return [_stepwise(line, sources, result)]
    dtype, source = sources[0]
    lines, block = _tile(line, table)
    tiles = _tiles(line, lines)
    chunks = 1
    if tiles < table.enough and line.n > 2 * table.scan_chunk:
        chunks = min(-(-line.n // table.scan_chunk), -(-table.enough // tiles))
    blocks = -(-line.n // block)
    length = -(-blocks // chunks) * block
    chunks = -(-line.n // length)
    if chunks == 1:
        return [_blocks(line, lines, block, length, 1, dtype, source, result, None)]
    held = computing(line.dtype)
    count = line.outer * line.inner
    folds = room.take(count * chunks * held.itemsize)
    between = Line(line.name, False, held, count, chunks, 1)
    return [
        _folds(line, lines, block, length, chunks, dtype, source, folds),
        *scan(between, [(held, folds)], folds, room, table),
        _blocks(line, lines, block, length, chunks, dtype, source, result, folds),
    ]


def _tile(line: Line, table: GpuTable) -> tuple[int, int]:
    """Lines side by side, and elements of each."""
    if line.inner == 1:
        block = min(power(line.n), table.scan_block)
        return min(power(line.outer), max(1, table.scan_block // block)), block
    lines = min(power(line.inner), 32)
    return lines, min(power(line.n), max(1, table.scan_block // lines))


def _tiles(line: Line, lines: int) -> int:
    if line.inner == 1:
        return -(-line.outer // lines)
    return line.outer * -(-line.inner // lines)


def _head(line: Line, lines: int, tile: str) -> list[str]:
    """The places where a tile's lines begin, which of them there are, and their numbers."""
    if line.inner == 1:
        return [
            f"row = ({tile}{line.wide} * {lines} + tl.arange(0, {lines}))[:, None]",
            "there = row < outer",
            "first = row * n",
            "number = row",
        ]
    return [
        f"tiles = (inner + {lines - 1}) // {lines}",
        f"row = ({tile} // tiles){line.wide}",
        f"column = (({tile} % tiles) * {lines} + tl.arange(0, {lines}))[:, None]",
        "there = column < inner",
        "first = row * n * inner + column",
        "number = row * inner + column",
    ]


def _places(line: Line, place: str) -> str:
    """Where the elements of a block are."""
    along = f"(n - 1 - {place})" if line.reverse else place
    return f"first + {along}" if line.inner == 1 else f"first + {along} * inner"


def _numbers(line: Line, *more: tuple[str, int]) -> list[Argument]:
    own = [("n", line.n), ("outer", line.outer), ("inner", line.inner)]
    return [number(name, value) for name, value in (*own, *more)]


def _made(
    lines: Sequence[str], arguments: Sequence[Argument], grid: int, warps: int = WARPS
) -> Launch:
    body = "\n".join(f"    {text}" for text in lines)
    head = f"@triton.jit\ndef kernel({', '.join(a.name for a in arguments)}):"
    return Launch(f"{head}\n{body}\n", "kernel", grid, warps, 2, tuple(arguments))


def _chunk(line: Line, chunks: int) -> list[str]:
    """Which tile and chunk a program has, and where the chunk begins and ends."""
    if chunks == 1:
        return ["tile = tl.program_id(0)", "start = 0", "stop = n"]
    return [
        "tile = tl.program_id(0) // chunks",
        f"chunk = (tl.program_id(0) % chunks){line.wide}",
        "start = chunk * length",
        "stop = tl.minimum(start + length, n)",
    ]


def _loaded(line: Line, block: int, dtype: DType) -> list[str]:
    """A block of values, the identity where there are none."""
    value = from_memory("tl.load(source + at, mask=mask, other=0)", dtype)
    return [
        f"    place = (step + tl.arange(0, {block})){line.wide}[None, :]",
        f"    at = {_places(line, 'place')}",
        "    mask = there & (place < stop)",
        f"    value = tl.where(mask, {value}, {identity(line.name, line.dtype)})",
    ]


def _blocks(
    line: Line, lines: int, block: int, length: int, chunks: int, dtype: DType, source: Place,
    result: Place, folds: Place | None,
) -> Launch:  # fmt: skip
    """The scan of each chunk, from the fold of those before it."""
    held = computing(line.dtype)
    function = combiner(line.name, held)
    neutral = identity(line.name, line.dtype)
    text = [*_chunk(line, chunks), *_head(line, lines, "tile")]
    text.append(f"total = tl.broadcast_to({neutral}, ({lines}, 1))")
    arguments = [pointer("source", dtype, source), pointer("result", line.dtype, result)]
    more = []
    if folds is not None:
        arguments.append(pointer("folds", held, folds))
        more = [("chunks", chunks), ("length", length)]
        text += [
            "before = there & (chunk > 0)",
            "carry = tl.load(folds + number * chunks + chunk - 1, mask=before, other=0)",
            "total = tl.where(before, carry, total)",
        ]
    running = combine(line.name, "total", f"tl.associative_scan(value, 1, {function})", held)
    whole = f"tl.reduce(value, 1, {function}, keep_dims=True)"
    text += [
        f"for step in range(start, stop, {block}):",
        *_loaded(line, block, dtype),
        f"    running = {running}",
        f"    tl.store(result + at, {to_memory('running', line.dtype)}, mask=mask)",
        f"    total = {combine(line.name, 'total', whole, held)}",
    ]
    arguments += _numbers(line, *more)
    return _made(text, arguments, _tiles(line, lines) * chunks)


def _folds(
    line: Line, lines: int, block: int, length: int, chunks: int, dtype: DType, source: Place,
    folds: Place,
) -> Launch:  # fmt: skip
    """The fold of each chunk."""
    held = computing(line.dtype)
    function = combiner(line.name, held)
    text = [
        *_chunk(line, chunks),
        *_head(line, lines, "tile"),
        f"total = tl.broadcast_to({identity(line.name, line.dtype)}, ({lines}, {block}))",
        f"for step in range(start, stop, {block}):",
        *_loaded(line, block, dtype),
        f"    total = {combine(line.name, 'total', 'value', held)}",
        f"found = tl.reduce(total, 1, {function}, keep_dims=True)",
        "tl.store(folds + number * chunks + chunk, found, mask=there)",
    ]
    arguments = [pointer("source", dtype, source), pointer("folds", held, folds)]
    arguments += _numbers(line, ("chunks", chunks), ("length", length))
    return _made(text, arguments, _tiles(line, lines) * chunks)


def _stepwise(line: Line, sources: Sequence[tuple[DType, Place]], result: Place) -> Launch:
    """s = a*s + b, a tile of lines at once."""
    count = line.inner if line.inner > 1 else line.outer
    lines = min(128, power(count))
    held = computing(line.dtype)
    loads = [from_memory(f"tl.load({name} + at, mask=there, other=0)", dtype)
             for name, (dtype, _) in zip("ab", sources, strict=True)]  # fmt: skip
    text = [
        *_head(line, lines, "tl.program_id(0)"),
        f"state = tl.zeros(({lines}, 1), {type_name(held)})",
        "for step in range(0, n):",
        f"    place = (step + tl.arange(0, 1)){line.wide}[None, :]",
        f"    at = {_places(line, 'place')}",
        f"    state = {loads[0]} * state + {loads[1]}",
        f"    tl.store(result + at, {to_memory('state', line.dtype)}, mask=there)",
    ]
    arguments = [pointer(name, dtype, place)
                 for name, (dtype, place) in zip("ab", sources, strict=True)]  # fmt: skip
    arguments += [pointer("result", line.dtype, result), *_numbers(line)]
    return _made(text, arguments, _tiles(line, lines), max(1, lines // 32))
