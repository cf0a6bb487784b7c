"""Inline cache of plans for many sizes: one comparison with the graph that a plan expects.

In: the key of a graph. Out: the plan for its sizes, if a graph of its length came in other sizes
before. Each plan knows the structure that a graph has for given sizes as one Python function, and
where the sizes stand that decide: what is expected for them is compared with what is there, entry
by entry. No key is hashed and none is kept, so a loop whose sizes never come again leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ...core.context import Table
from ...core.symbolic.polynomial import Key, Named, filler, has_names
from ...graph.ir.cache_key import Normal, Structure
from ...graph.ir.size_key import filled, skeleton_of
from ...graph.memory.in_place import Append

if TYPE_CHECKING:
    from ..plan import Plan
    from .automatic import Member
    from .shapes import Shapes

_MOST = 4  # of graphs of one length
_MOST_LENGTHS = 256


class Expected:
    """The graphs that one plan is for, and its plans."""

    def __init__(self, structure: Structure, member: Member, shapes: Shapes) -> None:
        self.member, self.shapes = member, shapes
        found, skeleton = member.fit, skeleton_of(structure)[0]
        sizes: list[Any] = list(member.sample.sizes)
        for place, expression in zip(found.places, found.expressions, strict=True):
            sizes[place] = Named(expression)
        entries = filled(skeleton, sizes)
        vary = [has_names(entry) for entry in entries]
        self._fixed, self._varying = _getter(vary, False), _getter(vary, True)
        self._known = self._fixed(structure)
        self._entries = filler([*compress(entries, vary)], found.names)
        reads = [_where(entries, (((name,), 1),)) for name in found.names]
        self._values: Callable[[Structure], tuple[Any, ...]] = eval(
            f"lambda e: ({''.join([f'{read}, ' for read in reads])})"
        )

    def values(self, normal: Normal) -> tuple[int, ...] | None:
        """The sizes that vary, if a graph is one that the plan is for."""
        try:
            values = self._values(normal.structure)
        except (IndexError, TypeError):  # another program
            return None
        if not all([type(n) is int and n >= 2 for n in values]):
            return None
        structure = normal.structure
        if self._varying(structure) != self._entries(*values):
            return None
        if self._fixed(structure) != self._known:
            return None
        return values if self.member.agrees(normal.constants, values) else None


def _getter(vary: Sequence[bool], which: bool) -> Callable[[Structure], Structure]:
    """A function that takes the entries that vary, or those that do not, out of a structure."""
    places = [place for place, varies in enumerate(vary) if varies is which]
    if len(places) > 1:
        return itemgetter(*places)
    return lambda structure: tuple([structure[place] for place in places])


def _where(entries: Any, key: Key, path: str = "e") -> str:
    """Where a size stands by itself: the Python that reads it."""
    for place, part in enumerate(entries):
        if type(part) is Named and part.expression == key:
            return f"{path}[{place}]"
        if type(part) is tuple and (found := _where(part, key, f"{path}[{place}]")):
            return found
    return ""


class Recent:
    """The latest plans, by the length of their graphs."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, ...], tuple[Expected, ...]] = {}
        # by the length of graphs: the roots that the latest one went on behind inputs, all it has
        self._appends: dict[int, tuple[Append, ...]] = {}

    def appends(self, normal: Normal) -> tuple[Append, ...]:
        """What the latest graph of this length appended: that of an equal structure does, too."""
        return self._appends.get(len(normal.structure), ())

    def appended(self, normal: Normal, appends: tuple[Append, ...]) -> None:
        """Note what a graph appended."""
        self._appends[len(normal.structure)] = appends
        while len(self._appends) > _MOST_LENGTHS:
            self._appends.pop(next(iter(self._appends)), None)

    def find(
        self, normal: Normal, about: tuple[Hashable, ...]
    ) -> tuple[Plan, bool, Expected] | None:
        """The plan for a graph, whether its kernels got forms for it, and who expected it."""
        if not self._known or normal.values:
            return None
        for expected in self._known.get((len(normal.structure), *about), ()):
            values = expected.values(normal)
            if values is not None and (found := expected.member.plan.plan_at(values)) is not None:
                return (*found, expected)
        return None

    def add(
        self, normal: Normal, about: tuple[Hashable, ...], member: Member, shapes: Shapes
    ) -> None:
        """Look at a plan first when the next graph of this length comes."""
        key = (len(normal.structure), *about)
        known = self._known.get(key, ())
        if not any([expected.member is member for expected in known]):
            made = Expected(normal.structure, member, shapes)
            self._known[key] = (made, *known)[:_MOST]
            while len(self._known) > _MOST_LENGTHS:
                self._known.pop(next(iter(self._known)), None)

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
        self._appends.clear()


RECENT = Table(Recent)
