"""Scatter without atomics: steps sorted by place, then combined by segments.

In: memory with the base in it, memory with the values and with the indices, and the place of each
step. Out: launches. Steps are sorted by their places, stably, so that those that meet at one place
are neighbours in their own order; a segmented scan combines them and the last of each segment
writes. No two programs write to one place and the order of every sum follows from the data alone:
bits do not change from run to run. Of several values set the last one stays. Axes that cannot meet
and that no index depends on (the rows of an embedding) are not sorted: they run in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...core.dtype import DType, int32, int64
from ...core.lazy_dataclass import dataclass
from ...core.node import Size, Source
from ...graph.ir.affine import Affine, Atom, axes_of
from ...graph.ir.reshape_groups import CannotLower
from ..common.irregular import disjoint_axes
from .sort import Keys, sort_keys
from .source import Argument, Launch, Place, Room, number, pointer
from .spelling import INT32_LIMIT, combine, combiner, computing, from_memory, identity, to_memory
from .tiling import GpuTable, power

NOWHERE = int64.limits[1]  # the key of steps that do not count


@dataclass(frozen=True, slots=True)
class Scatter:
    """What is combined where."""

    mode: str
    dtype: DType  # of the memory that is combined in
    axes: tuple[int, ...]  # of the steps
    sizes: tuple[Size, ...]  # of all axes
    index: Affine  # the place of a step; source 0 is the value, the others indices
    read: tuple[tuple[DType, Place, Affine], ...]  # the value and the indices
    partly: bool = False  # the last of those says whether a step counts

    @property
    def beside(self) -> tuple[int, ...]:
        """Axes that are not sorted."""
        chosen = frozenset[int]().union(*[axes_of(index) for _, _, index in self.read[1:]])
        disjoint = disjoint_axes(self.index, self.sizes, [at for _, _, at in self.read])
        return tuple([a for a in self.axes if a in disjoint - chosen])

    @property
    def sorted_axes(self) -> tuple[int, ...]:
        """Axes whose steps may meet."""
        return tuple([a for a in self.axes if a not in self.beside])

    def count(self, axes: Sequence[int]) -> int:
        """How many steps axes have together."""
        return prod([self.sizes[a] for a in axes])  # type: ignore[misc]


def scatter(work: Scatter, result: Place, room: Room, table: GpuTable) -> list[Launch]:
    """The launches that combine values in `result`."""
    steps = work.count(work.sorted_axes)
    if steps * work.count(work.beside) == 0:
        return []
    if steps > INT32_LIMIT:
        raise CannotLower("a scatter of more than 2 ** 31 steps")
    keys = room.take(steps * int64.itemsize)
    order = room.take(steps * int32.itemsize)
    made = [_make_keys(work, keys, steps)]
    if steps > 1:
        made += sort_keys(Keys(int64, 1, steps, keys), order, room, table)
    else:
        made.append(_one(order))
    return [*made, _combined(work, result, keys, order, steps, table)]


class _Text:
    """Lines of a function and the numbers that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: dict[int, str] = {}

    def number(self, value: int) -> str:
        if -1 <= value <= 1:
            return str(value)
        return self.numbers.setdefault(value, f"n{len(self.numbers)}")

    def unflatten(self, flat: str, axes: Sequence[int], sizes: Sequence[Size]) -> None:
        """The steps of axes, from their number in row-major order."""
        left = flat
        for place, axis in enumerate(reversed(axes)):
            if place == len(axes) - 1:
                self.lines.append(f"a{axis} = {left}")
                break
            size = sizes[axis]
            assert isinstance(size, int)
            self.lines.append(f"a{axis} = {left} % {self.number(size)}")
            self.lines.append(f"l{axis} = {left} // {self.number(size)}")
            left = f"l{axis}"

    def index(self, index: Affine, only: Sequence[Atom] | None = None) -> str:
        """An index in terms of steps `a..` and indices `i..`; `only`: the part of these axes."""
        terms = [] if only is not None or index[0] == 0 else [self.number(index[0])]
        for atom, step in index[1]:
            if only is not None and atom not in only:
                continue
            if isinstance(atom, int):
                text = f"a{atom}"
            elif isinstance(atom, Source):
                text = f"i{atom.index}"
            else:
                sign, inner, by = atom
                text = f"({self.index(inner)} {sign} {by})"
            terms.append(text if step == 1 else f"{text} * {self.number(step)}")
        return f"({' + '.join(terms)})" if terms else "0"

    def launch(self, arguments: Sequence[Argument], grid: int, warps: int = 4) -> Launch:
        every = [*arguments, *[number(name, value) for value, name in self.numbers.items()]]
        body = "\n".join(f"    {line}" for line in self.lines)
        head = f"@triton.jit\ndef kernel({', '.join(a.name for a in every)}):"
        return Launch(f"{head}\n{body}\n", "kernel", grid, warps, 2, tuple(every))


def _one(order: Place) -> Launch:
    """The order of a single step."""
    text = _Text()
    text.lines = ["tl.store(order + tl.program_id(0), 0)"]
    return text.launch([pointer("order", int32, order)], 1, 1)


def _make_keys(work: Scatter, keys: Place, steps: int) -> Launch:
    """The place of each step without the axes beside, or nowhere."""
    text = _Text()
    block = min(1024, power(steps))
    text.lines = [
        f"s = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})",
        f"mask = s < {text.number(steps)}",
    ]
    text.unflatten("s", work.sorted_axes, work.sizes)
    arguments = [pointer("keys", int64, keys)]
    for place, (dtype, memory, index) in enumerate(work.read):
        if place == 0:
            continue
        arguments.append(pointer(f"p{place}", dtype, memory))
        at = f"s * 0 + {text.index(index)}"
        text.lines.append(f"i{place} = tl.load(p{place} + {at}, mask=mask, other=0)")
        if not (work.partly and place == len(work.read) - 1):
            text.lines.append(f"i{place} = i{place}.to(tl.int64)")
    atoms = [a for a, _ in work.index[1] if a not in work.beside]
    text.lines.append(
        f"key = s * 0 + {text.number(work.index[0])} + {text.index(work.index, atoms)}"
    )
    if work.partly:
        text.lines.append(f"key = tl.where(i{len(work.read) - 1}, key, {NOWHERE})")
    text.lines.append("tl.store(keys + s, key, mask=mask)")
    return text.launch(arguments, -(-steps // block))


def _combined(
    work: Scatter, result: Place, keys: Place, order: Place, steps: int, table: GpuTable
) -> Launch:
    """Segments of equal keys, each combined and written once."""
    text = _Text()
    beside = work.count(work.beside)
    columns = min(64, power(beside))
    block = min(power(steps), max(16, table.segment_block // columns))
    tiles = -(-beside // columns)
    dtype, memory, _ = work.read[0]
    arguments = [
        pointer("keys", int64, keys), pointer("order", int32, order),
        pointer("values", dtype, memory), pointer("result", work.dtype, result),
    ]  # fmt: skip
    count = text.number(steps)
    text.lines = [
        f"tile = tl.program_id(0) // {text.number(tiles)}",
        f"column = (tl.program_id(0) % {text.number(tiles)}) * {columns}",
        f"f = (column + tl.arange(0, {columns})).to(tl.int64)[None, :]",
        f"there = f < {text.number(beside)}",
        f"start = tile * {block}",
    ]
    text.unflatten("f", work.beside, work.sizes)
    text.lines.append(f"along = f * 0 + {text.index(work.index, work.beside)}")
    _block(text, work, block, count)
    if work.mode == "set":
        text.lines.append("tl.store(result + key + along, value, mask=ends & there)")
        return text.launch(arguments, -(-steps // block) * tiles)
    held = computing(work.dtype)
    name = combiner(work.mode, held)
    segments = name.replace("fg_", "fg_segment_")
    neutral = identity(work.mode, work.dtype)
    old = from_memory("tl.load(result + key + along, mask=write, other=0)", work.dtype)

    def put(value: str) -> list[str]:
        total = combine(work.mode, "old", value, held)
        return [f"old = {old}",
                f"tl.store(result + key + along, {to_memory(total, work.dtype)}, mask=write)",
        ]  # fmt: skip

    def folded(value: str) -> str:
        return f"tl.reduce({value}, 0, {name}, keep_dims=True)"

    text.lines += [
        f"flag = tl.broadcast_to(begins.to(tl.int32), ({block}, {columns}))",
        f"flag, total = tl.associative_scan((flag, value), 0, {segments})",
        "write = (flag != 0) & ends & there",
        *put("total"),
        f"last = p == start + {block - 1}",
        f"carry = {folded(f'tl.where(last, total, {neutral})')}",
        "is_open = tl.sum((last & goes).to(tl.int32)) * tl.max(begins.to(tl.int32))",
        "while is_open != 0:",  # a segment that began here goes on in the next blocks
    ]
    more = _Text()
    more.numbers = text.numbers
    more.lines = [f"start += {block}"]
    _block(more, work, block, count)
    more.lines += [
        f"mine = p < tl.min(tl.where(begins, p, start + {block}))",
        f"value = tl.where(mine, value, {neutral})",
        f"total = {combine(work.mode, 'carry', f'tl.associative_scan(value, 0, {name})', held)}",
        "write = mine & ends & there",
        *put("total"),
        f"carry = {combine(work.mode, 'carry', folded('value'), held)}",
        f"last = p == start + {block - 1}",
        "is_open = tl.sum((last & goes & mine).to(tl.int32))",
    ]
    text.lines += [f"    {line}" for line in more.lines]
    return text.launch(arguments, -(-steps // block) * tiles)


def _block(text: _Text, work: Scatter, block: int, count: str) -> None:
    """A block of sorted steps: keys, values, and where segments begin and end."""
    dtype, _, index = work.read[0]
    text.lines += [
        f"p = (start + tl.arange(0, {block}))[:, None]",
        f"inside = p < {count}",
        "s = tl.load(order + p, mask=inside, other=0).to(tl.int64)",
        f"key = tl.load(keys + s, mask=inside, other={NOWHERE})",
        "s_before = tl.load(order + p - 1, mask=inside & (p > 0), other=0)",
        "key_before = tl.load(keys + s_before, mask=inside & (p > 0), other=-1)",
        f"after = p + 1 < {count}",
        "s_after = tl.load(order + p + 1, mask=after, other=0)",
        "key_after = tl.load(keys + s_after, mask=after, other=-1)",
        "begins = key != key_before",
        "goes = key == key_after",
        f"ends = (key != key_after) & inside & (key != {NOWHERE})",
    ]
    text.unflatten("s", work.sorted_axes, work.sizes)
    at = f"s * 0 + f * 0 + {text.index(index)}"
    loaded = f"tl.load(values + {at}, mask=inside & there, other=0)"
    if work.mode != "set":
        loaded = from_memory(loaded, dtype)
        neutral = identity(work.mode, work.dtype)
        loaded = f"tl.where(inside & there, {loaded}, {neutral})"
    text.lines.append(f"value = {loaded}")
