"""A factor that is memory seen through windows, as numbers alone.

In: a factor's part of a kernel. Out: a `View`: its own axes and the folded ones, each in one of
`SLOTS` slots in their order, the steps of memory along them, and at most one condition a slot, on
the own and the folded axis that share it; or None. Convolutions of up to three dimensions with any
window, stride, dilation, padding and groups, and their gradients, are such views: where an axis or
a condition is missing, its slot has one step or asks nothing. So library functions can read them
all, and shapes need no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from ...core.node import Node, make
from ...core.ops.index import LOAD
from ...graph.ir.affine import Affine, Atom
from ..transform.merge_axes import argument
from .analysis import Contraction, Line, Part

SLOTS = 4  # axes of each line: three dimensions of an image, and channels or images
BATCH = 3  # axes of a batch
# axes of batch, rows and columns above the sum, at least: groups and images, both ways; where
# phases of a stride are columns, rows are images and pixels
_LEAST = ((2, 1, 2), (2, 3, 3), (2, 4, 4))
ENDLESS = 1 << 31  # more steps than any axis has


@dataclass(frozen=True, slots=True)
class Condition:
    """Memory is read where 0 <= start + own * index + folded * index < below; elsewhere it is 0."""

    start: int
    own: int
    folded: int
    below: int

    @property
    def asks(self) -> bool:
        """Can it fail to hold?"""
        return self.below < ENDLESS

    def step(self, along: str, other: bool = False) -> int:
        """How it moves along a line, or along the other one."""
        return self.own if (along == "own") != other else self.folded


@dataclass(frozen=True, slots=True)
class View:
    """Memory as a matrix of windows: (size, step) for each slot, outermost first."""

    start: int
    batch: tuple[tuple[int, int], ...]
    own: tuple[tuple[int, int], ...]
    folded: tuple[tuple[int, int], ...]
    conditions: tuple[Condition, ...]

    def place(self, k: int, along: str = "folded") -> int:
        """Where memory has a step of a line, beyond the first."""
        found = 0
        for size, step in reversed(self.own if along == "own" else self.folded):
            k, rest = divmod(k, size)
            found += rest * step
        return found

    def block(self, along: str, most: int) -> int | None:
        """The longest part of a line, up to so many steps, of which it is several that differ in
        nothing but where memory begins."""
        line = self.own if along == "own" else self.folded
        first = next((slot for slot, (size, _) in enumerate(line) if size > 1), SLOTS - 1)
        size, inner = line[first][0], prod([n for n, _ in line[first + 1 :]])
        if size * inner <= most:
            return size * inner
        condition = self.conditions[first]
        if inner > most or (condition.asks and condition.step(along)):
            return None
        return inner * max(n for n in range(1, most // inner + 1) if size % n == 0)

    def step(self, along: str) -> int:
        """The step between neighbours along one of the lines."""
        return (self.own if along == "own" else self.folded)[-1][1]


def view(p: Part, root: Node, own: Line) -> View | None:
    """A factor as a view of one param's memory, if it is one."""
    if root.op is not LOAD or root.src or len(p.batch.axes) > BATCH:
        return None
    _, (start, terms), conditions = root.arg
    places = [(start, terms), *[index for index, _ in conditions]]
    if not all(isinstance(atom, int) for _, found in places for atom, _ in found):
        return None
    steps = dict(terms)
    asked = []
    for (first, found), below in conditions:
        kept = {atom: step for atom, step in found if atom not in p.absorbed}
        mine = [a for a in own.axes if a in kept]
        theirs = [a for a in p.folded.axes if a in kept]
        if len(mine) > 1 or len(theirs) > 1 or len(mine) + len(theirs) != len(kept) or not kept:
            return None
        asked.append((mine, theirs, first, kept, below))
    for mine_at, theirs_at in _placed(own.axes, p.folded.axes):
        slots = [{mine_at[a] for a in some} | {theirs_at[a] for a in others}
                 for some, others, *_ in asked]  # fmt: skip
        taken = [slot for found in slots for slot in found]
        if all(len(found) == 1 for found in slots) and len(set(taken)) == len(taken):
            break
    else:
        return None
    every = [Condition(0, 0, 0, ENDLESS)] * SLOTS
    for slot, (mine, theirs, first, kept, below) in zip(taken, asked, strict=True):
        moved = [sum(kept[a] for a in some) for some in (mine, theirs)]
        every[slot] = Condition(first, moved[0], moved[1], below)
    batch = [(size, steps.get(a, 0)) for a, size in zip(p.batch.axes, p.batch.sizes, strict=True)]
    moves = [
        *zip(own.axes, own.sizes, strict=True),
        *zip(p.folded.axes, p.folded.sizes, strict=True),
    ]
    if sum([abs(steps.get(a, 0)) * size for a, size in moves]) >= ENDLESS:
        return None
    return View(
        start,
        tuple([(1, 0)] * (BATCH - len(batch)) + batch),
        _slots(own, mine_at, steps),
        _slots(p.folded, theirs_at, steps),
        tuple(every),
    )


def _placed(
    own: Sequence[int], folded: Sequence[int]
) -> Iterator[tuple[Mapping[int, int], Mapping[int, int]]]:
    """Ways to give axes slots in order, innermost axes in the last slot first."""
    if len(own) > SLOTS or len(folded) > SLOTS:
        return
    for mine in reversed(list(combinations(range(SLOTS), len(own)))):
        for theirs in reversed(list(combinations(range(SLOTS), len(folded)))):
            yield (
                dict(zip(own, mine, strict=True)),
                dict(zip(folded, theirs, strict=True)),
            )


def _slots(
    line: Line, places: Mapping[int, int], steps: Mapping[int, int]
) -> tuple[tuple[int, int], ...]:
    found = [(1, 0)] * SLOTS
    for axis, size in zip(line.axes, line.sizes, strict=True):
        found[places[axis]] = (size, steps.get(axis, 0))
    return tuple(found)


# --- what is computed from the sums --------------------------------------------------------------


def steady(c: Contraction, above: Part) -> tuple[Contraction, Part]:
    """The same with at least so many axes in the lines of what is above the sum, in every index.

    An axis that is not there has one step: its text is there whether or not there are several
    images, or groups.
    """
    given = above.batch, above.rows, above.columns
    fits = [
        least
        for least in _LEAST
        if all(len(a.axes) <= n for a, n in zip(given, least, strict=True))
    ]
    wanted = fits[0] if fits else _LEAST[-1]
    unused = iter(range(len(c.sizes), len(c.sizes) + sum(wanted)))
    lines = []
    for line, least in zip(given, wanted, strict=True):
        more = [next(unused) for _ in range(least - len(line.axes))]
        ones = (1,) * len(more)
        inner = line.inner if line.axes else frozenset(more[-1:])
        lines.append(Line((*more, *line.axes), (*ones, *line.sizes), inner))
    axes = [axis for line in lines for axis in line.axes]

    def moved(index: Affine) -> Affine:
        steps: dict[Atom, int] = dict(index[1])
        kept = [(a, steps.get(a, 0)) for a in axes[:-1]]
        lanes = [(a, steps[a]) for a in axes[-1:] if a in steps]
        return index[0], (*kept, *lanes, *[t for t in index[1] if not isinstance(t[0], int)])

    done: dict[Node, Node] = {}
    for node in above.nodes:
        if node is c.fold or not c.free[node]:
            done[node] = node
            continue
        arg = argument(node, moved, lambda names: names)
        done[node] = make(node.op, node.dtype, tuple([done[s] for s in node.src]), arg)
    rest = [n for n in c.order if n not in done]
    found = replace(
        c, order=(*rest, *dict.fromkeys(done.values())), stores=tuple([done[s] for s in c.stores]),
        free=c.free | {new: c.free[old] for old, new in done.items()},
    )  # fmt: skip
    return found, replace(
        above, nodes=tuple(done.values()), batch=lines[0], rows=lines[1], columns=lines[2]
    )
