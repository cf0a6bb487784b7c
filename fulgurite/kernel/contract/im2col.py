"""Im2col descriptors: an operand that is memory seen through windows, as numbers alone.

In: an operand's part of a kernel. Out: a `View`: its own axes and the folded ones, each in one of
`SLOTS` slots in their order, the steps of memory along them, and at most one condition a slot, on
the own and the folded axis that share it; or None. Convolutions of up to three dimensions with any
window, stride, dilation, padding and groups, and their gradients, are such views: where an axis or
a condition is missing, its slot has one step or asks nothing. So library functions can read them
all, and shapes need no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from operator import le

from ...core.lazy_dataclass import dataclass
from ...core.node import Node, make
from ...core.ops.index import LOAD
from ...graph.ir.affine import Affine, Atom
from ...graph.ir.bodies import argument
from .analysis import Line, Part
from .problem import GemmProblem

SLOTS = 4  # axes of each line: three dimensions of an image, and channels or images
BATCH = 3  # axes of a batch
# axes of batch, rows and columns above the sum, at least: groups and images, both ways; where
# phases of a stride are columns, rows are images and pixels
_LEAST = ((2, 1, 2), (2, 3, 3), (2, 4, 4))
UNBOUNDED = 1 << 31  # more steps than any axis has


@dataclass(frozen=True, slots=True)
class Condition:
    """Memory is read where 0 <= start + own * index + folded * index < below; elsewhere it is 0."""

    start: int
    own: int
    folded: int
    below: int

    @property
    def asks(self) -> bool:
        """True if it can fail to hold."""
        return self.below < UNBOUNDED

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


def im2col_view(p: Part, root: Node, own: Line) -> View | None:
    """An operand as a view of one param's memory, if it is one."""
    if not _is_affine_load(root) or len(p.batch.axes) > BATCH:
        return None
    _, (start, terms), conditions = root.arg
    masks = [_mask(p, own, index, below) for index, below in conditions]
    if None in masks:
        return None
    asked, steps = [mask for mask in masks if mask is not None], dict(terms)
    placed = next(filter(lambda at: _fit(asked, at), _placed(own.axes, p.folded.axes)), None)
    if placed is None or _reach((own, p.folded), steps) >= UNBOUNDED:
        return None
    every = [Condition(0, 0, 0, UNBOUNDED)] * SLOTS
    for mask in asked:
        every[mask.slots(placed)[0]] = mask.condition
    batch = [(size, steps.get(a, 0)) for a, size in zip(p.batch.axes, p.batch.sizes, strict=True)]
    return View(
        start,
        tuple([(1, 0)] * (BATCH - len(batch)) + batch),
        _slots(own, placed[0], steps),
        _slots(p.folded, placed[1], steps),
        tuple(every),
    )


def _is_affine_load(root: Node) -> bool:
    """True if memory is read at a place, and under conditions, that depend on axes alone."""
    if root.op is not LOAD or root.src:
        return False
    places = [root.arg[1], *[index for index, _ in root.arg[2]]]
    return all(isinstance(atom, int) for _, found in places for atom, _ in found)


_Places = tuple[Mapping[int, int], Mapping[int, int]]  # the slots of own and of folded axes


@dataclass(frozen=True, slots=True)
class _Mask:
    """A condition of a load, and the axis that it depends on in each line, if any."""

    own: int | None
    folded: int | None
    condition: Condition

    def slots(self, placed: _Places) -> list[int]:
        """The slots of its axes."""
        pairs = zip((self.own, self.folded), placed, strict=True)
        return [at[axis] for axis, at in pairs if axis is not None]


def _mask(p: Part, own: Line, index: Affine, below: int) -> _Mask | None:
    """A condition on at most one axis of each line, and on no other."""
    steps = {atom: step for atom, step in index[1] if atom not in p.absorbed}
    mine, theirs = [[a for a in line.axes if a in steps] for line in (own, p.folded)]
    if len(mine) > 1 or len(theirs) > 1 or len(mine) + len(theirs) != len(steps) or not steps:
        return None
    moves = [sum(steps[a] for a in axes) for axes in (mine, theirs)]
    axes = [next(iter(found), None) for found in (mine, theirs)]
    return _Mask(axes[0], axes[1], Condition(index[0], moves[0], moves[1], below))


def _fit(masks: Sequence[_Mask], placed: _Places) -> bool:
    """True if the axes of each condition share a slot, and no two conditions do."""
    slots = [set(mask.slots(placed)) for mask in masks]
    taken = [slot for found in slots for slot in found]
    return all(len(found) == 1 for found in slots) and len(set(taken)) == len(taken)


def _reach(lines: Sequence[Line], steps: Mapping[int, int]) -> int:
    """How far from the first element some lines go, at most."""
    moves = [pair for line in lines for pair in zip(line.axes, line.sizes, strict=True)]
    return sum([abs(steps.get(a, 0)) * size for a, size in moves])


def _placed(own: Sequence[int], folded: Sequence[int]) -> Iterator[_Places]:
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


# --- the epilogue --------------------------------------------------------------------------------


def with_fixed_axes(c: GemmProblem, above: Part) -> tuple[GemmProblem, Part]:
    """The same with at least so many axes in the lines of the epilogue, in every index.

    An axis that is not there has one step: its text is there whether or not there are several
    images, or groups.
    """
    lines = _fixed_lines(len(c.sizes), (above.batch, above.rows, above.columns))
    axes = [axis for line in lines for axis in line.axes]

    def moved(index: Affine) -> Affine:
        steps: dict[Atom, int] = dict(index[1])
        kept = [(a, steps.get(a, 0)) for a in axes[:-1]]
        lanes = [(a, steps[a]) for a in axes[-1:] if a in steps]
        return index[0], (*kept, *lanes, *[t for t in index[1] if not isinstance(t[0], int)])

    done: dict[Node, Node] = {}
    for node in above.nodes:
        done[node] = node
        if node is not c.fold and c.free[node]:
            arg = argument(node, moved, lambda names: names)
            done[node] = make(node.op, node.dtype, tuple(map(done.__getitem__, node.src)), arg)
    rest = [n for n in c.order if n not in done]
    free = c.free | {new: c.free[old] for old, new in done.items()}
    order, stores = (*rest, *dict.fromkeys(done.values())), tuple(map(done.__getitem__, c.stores))
    batch, rows, columns = lines
    return replace(c, order=order, stores=stores, free=free), replace(
        above, nodes=tuple(done.values()), batch=batch, rows=rows, columns=columns
    )


def _fixed_lines(unused: int, given: tuple[Line, Line, Line]) -> list[Line]:
    """Lines of batch, rows and columns with as many axes as others have, from `unused` on."""
    counts = [len(line.axes) for line in given]
    fits = [least for least in _LEAST if all(map(le, counts, least))]
    found = []
    for line, least in zip(given, fits[0] if fits else _LEAST[-1], strict=True):
        missing = max(0, least - len(line.axes))
        more = tuple(range(unused, unused + missing))
        unused += missing
        inner = line.inner if line.axes else frozenset(more[-1:])
        found.append(Line((*more, *line.axes), ((1,) * missing + line.sizes), inner))
    return found
