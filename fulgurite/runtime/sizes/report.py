"""Which sizes of a graph are fixed, which vary, and which guard made it compile again, in words.

In: a graph's structure, and the `Shapes` of its skeleton. Out: lines for `fg.explain` and `fg.why`.
Sizes are named by the inputs that they are of; nothing is compiled or changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from ...core.symbolic.polynomial import source_of
from ...graph.ir.cache_key import Normal, Structure
from ...graph.ir.size_key import SKELETONS, Fit, fit, skeleton_of
from .shapes import SEEN, SHAPES, Sample, Shapes

MOST_SHOWN = 6  # sizes of one kind


def sizes_report(
    structure: Structure, constants: tuple[int, ...], rest: tuple[Hashable, ...]
) -> tuple[str, ...]:
    """What is known of the sizes of a graph, whose plans have this rest of their key."""
    skeleton, sizes = SKELETONS.key(structure)
    shapes = SHAPES().peek((skeleton, *rest)) or Shapes()
    return tuple(_lines(structure, shapes, Sample(sizes, constants)))


def may_vary(structure: Structure, rest: tuple[Hashable, ...]) -> bool:
    """True of a graph whose sizes may be given at run time: another of its kind was compiled."""
    return SHAPES().peek((SKELETONS.key(structure)[0], *rest)) is not None


def has_plan(normal: Normal, rest: tuple[Hashable, ...]) -> bool:
    """True if a plan for many sizes is known that is for these as well."""
    skeleton, sizes = SKELETONS.key(normal.structure)
    shapes = SHAPES().peek((skeleton, *rest))
    sample = Sample(sizes, normal.constants)
    return shapes is not None and any([m.values(sample) is not None for m in shapes.members])


def _lines(structure: Structure, shapes: Shapes, sample: Sample) -> Iterator[str]:
    seen = [s.sizes for s in shapes.samples if s.sizes != sample.sizes]
    yield from _kinds(_names(structure), fit([*seen, sample.sizes]) if seen else None)
    if 0 < len(seen) < SEEN and not shapes.varies:
        yield f"each of the first {SEEN} sizes has a plan of its own; one more, and all share one"
    yield from [f"compiled again: {why}" for why in shapes.refused.get(sample.sizes, ())]
    good = [member for member in shapes.members if member.values(sample) is not None]
    if good:
        yield f"one plan: for all sizes with {' and '.join(good[0].plan.guards)}"
        return
    if sample.sizes not in shapes.refused:
        yield from [member.refusal(sample) for member in shapes.members]
    yield from [f"no plan for many sizes: {reason}" for reason in dict.fromkeys(shapes.reasons)]


def _kinds(names: Sequence[str], found: Fit | None) -> Iterator[str]:
    """Which of the named sizes are fixed, and which vary, by their expressions."""
    places = found.places if found is not None else ()
    moving = {names[place] for place in places}
    fixed = [n for n in dict.fromkeys(names) if n and n not in moving]
    if fixed:
        yield f"fixed: {_listed(fixed)}"
    vary: dict[str, list[str]] = {}
    for place, expression in zip(places, found.expressions if found else (), strict=True):
        if names[place]:
            vary.setdefault(source_of(expression), []).append(names[place])
    for text, listed in vary.items():
        yield f"varies: {_listed(listed)} ({text.strip('()')})"


def _names(structure: Structure) -> list[str]:
    """For each size of a graph, which axis of which input it is; nothing for others."""
    found: list[str] = []
    inputs = 0
    for entry in structure:
        count = len(skeleton_of((entry,))[1])
        if isinstance(entry, tuple) and entry[0] == "param":
            shape: tuple[int, ...] = entry[3]
            found += [f"axis {d} of input {inputs} = {n}" for d, n in enumerate(shape) if n > 1]
            inputs += 1
        else:
            found += [""] * count
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more
