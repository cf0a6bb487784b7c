"""Blocks of generated text: which loops are open in each, and which values have a name there.

In: lines and names, as a program is written. Out: text. A loop binds its axis to a variable of its
own, also where the same axis is open further out already (a fold inside of a loop over the axis it
folds). A value belongs to the outermost block in which all its axes are bound as they are here, so
what is loop-invariant is hoisted by construction.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import field

from ...core.lazy_dataclass import dataclass


@dataclass(slots=True)
class Scope:
    """One block of text."""

    parent: Scope | None
    bound: Mapping[int, int]  # looped axis -> number of the loop that binds it
    indent: int
    header: str = ""  # the `for` line around it
    lines: list[str] = field(default_factory=list)
    names: dict[Hashable, str] = field(default_factory=dict)
    spread: set[str] = field(default_factory=set)  # axes that have tensors of some view
    peeled: tuple[str, str] = ("", "")  # `for` lines of its whole blocks, and of the last one
    masks: dict[str, str] = field(default_factory=dict)  # lines of masks -> those of whole blocks

    def say(self, line: str) -> None:
        """One line at this block's depth."""
        self.lines.append("    " * self.indent + line)

    def loop(self, axis: int, number: int) -> Scope:
        """A block inside, in which a loop of this number binds an axis."""
        return Scope(self, {**self.bound, axis: number}, self.indent + 1)

    def close(self) -> None:
        """Put a finished loop into the text around it."""
        assert self.parent is not None
        lines = self.lines or ["    " * self.indent + "pass"]
        whole, last = self.peeled
        if whole and self.masks:  # accesses without masks are 16 bytes wide
            self.parent.say(whole)
            self.parent.lines += [self.masks.get(line, line) for line in lines]
        self.parent.say(last if whole and self.masks else self.header)
        self.parent.lines += lines

    def home(self, axes: Iterable[int]) -> Scope:
        """The outermost block in which these looped axes are bound as they are here."""
        found = self
        need = [(a, self.bound[a]) for a in axes]
        while found.parent is not None:
            outer = found.parent.bound
            if any(outer.get(a) != number for a, number in need):
                break
            found = found.parent
        return found

    def known(self, key: Hashable) -> str | None:
        """The name of a value, if it has one in this block or around it."""
        scope: Scope | None = self
        while scope is not None:
            if key in scope.names:
                return scope.names[key]
            scope = scope.parent
        return None
