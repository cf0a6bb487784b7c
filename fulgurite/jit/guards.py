"""Checks as Python source: what a later call must find for a capture to hold.

In: names and tests, one after the other. Out: `lines`, statements that end in `return @n` where the
situation differs, the reason of each, and the constants (`known`) that they name. A value is looked
at once and has a variable from then on. What can never be checked is a reason not to replay
(`outside`).
"""

from __future__ import annotations

from typing import Any

from .introspection import same_value


class Checks:
    """Statements that say where a call differs from the one that was captured."""

    def begin(self) -> None:
        """Forget what was written."""
        self.lines: list[str] = []
        self.reasons: list[str] = []
        self.known: dict[str, Any] = {}  # the names that the source uses
        # reasons that are numbers -> the path to them, and the variable that holds it
        self.counted: dict[int, tuple[str, str]] = {}
        self.outside = ""
        self.count = 0
        self._constants: dict[int, str] = {}

    def constant(self, thing: Any) -> str:
        """A name for something that is the same in every call."""
        name = self._constants.get(id(thing))
        if name is None:
            name = self._constants[id(thing)] = f"k{len(self.known)}"
            self.known[name] = thing
        return name

    def line(self, test: str, reason: str) -> None:
        """A check: where the test holds, this is not the same situation."""
        self.lines.append(f"{test} return @{len(self.reasons)}")
        self.reasons.append(reason)

    def variable(self, source: str) -> str:
        """A variable that holds what a source gives."""
        if source.isidentifier():
            return source
        self.count += 1
        name = f"v{self.count}"
        self.lines.append(f"{name} = {source}")
        return name

    def _unpacked(self, source: str, count: int) -> list[str]:
        """Variables for so many parts of a thing, all in one statement."""
        names = [f"v{self.count + 1 + i}" for i in range(count)]
        self.count += count
        if names:
            self.lines.append(f"[{', '.join(names)}] = {source}")
        return names

    def _leave(self, reason: str) -> None:
        self.outside = self.outside or reason

    def _same(self, value: Any, name: str, path: str) -> None:
        self.line(f"if {name} is not {self.constant(value)}:", f"{path} is another thing")

    def _static(self, value: Any, source: str, path: str) -> Any:
        constant, kind = self.constant(value), type(value)
        name = self.variable(source)
        if kind in (str, bytes, int):
            test = f"(type({name}) is not {self.constant(kind)} or {name} != {constant})"
        else:
            self.known["same_value"] = same_value
            test = f"not same_value({name}, {constant})"
        self.line(f"if {name} is not {constant} and {test}:", f"{path} was {value!r}")
        if kind in (int, float):
            self.counted[len(self.reasons) - 1] = path, name
        return value
