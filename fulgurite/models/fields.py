"""Fields of a mapping that nobody vouches for: each is asked for by name and by what it must be.

In: a mapping from a JSON file or from GGUF metadata. Out: whole numbers within bounds, finite
numbers, text, flags, lists. A field that is missing or of another kind is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from ..io.files import Refusal

_NEEDED: Any = object()


class Fields:
    """A mapping whose values are checked when they are asked for; null counts as missing."""

    def __init__(self, data: object, where: str = "") -> None:
        if not isinstance(data, Mapping):
            raise Refusal(
                f"{where.rstrip('.') or 'its contents'!r} is no mapping of names to values"
            )
        self.data, self.where = data, where

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    def _get(self, name: str, default: Any, what: str) -> Any:
        found = self.data.get(name)
        if found is None:
            if default is _NEEDED or default is None:
                raise Refusal(f"the field {self.where + name!r} is missing: {what} is needed")
            return default
        return found

    def _wrong(self, name: str, found: object, what: str) -> Refusal:
        return Refusal(f"the field {self.where + name!r} is {str(found)[:60]!r}, not {what}")

    def whole(
        self, name: str, default: int | None = _NEEDED, *, least: int = 1, most: int = 1 << 40
    ) -> int:
        """A whole number within bounds."""
        found = self._get(name, default, "a whole number")
        if type(found) is float and found.is_integer():
            found = int(found)
        if type(found) is not int or not least <= found <= most:
            raise self._wrong(name, found, f"a whole number from {least} to {most}")
        return found

    def number(self, name: str, default: float | None = _NEEDED) -> float:
        """A finite number."""
        found = self._get(name, default, "a number")
        if type(found) not in (int, float) or abs(found) > 1e30 or not isfinite(found):
            raise self._wrong(name, found, "a number")
        return float(found)

    def text(self, name: str, default: str | None = _NEEDED) -> str:
        """Text."""
        found = self._get(name, default, "text")
        if not isinstance(found, str):
            raise self._wrong(name, found, "text")
        return found

    def first(self, names: tuple[str, ...], default: str) -> str:
        """The text of the first of several fields that is there."""
        present = [name for name in names if name in self]
        return self.text(present[0]) if present else default

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        found = self._get(name, default, "true or false")
        if not isinstance(found, bool):
            raise self._wrong(name, found, "true or false")
        return found

    def items(self, name: str) -> list[Any] | None:
        """A list, or None if there is none."""
        found = self.data.get(name)
        if found is not None and not isinstance(found, list | tuple):
            raise self._wrong(name, found, "a list")
        return None if found is None else list(found)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of so many finite numbers."""
        found = self.items(name)
        if found is None or len(found) != count:
            raise self._wrong(name, found, f"a list of {count} numbers")
        inner = Fields(dict(enumerate(found)), f"{self.where}{name}.")
        return tuple(inner.number(place) for place in range(count))  # type: ignore[arg-type]

    def token(self, name: str) -> int | None:
        """The id of a token, or of the first of several; None if there is none."""
        return (self.tokens(name) or (None,))[0]

    def tokens(self, name: str) -> tuple[int, ...]:
        """The ids of tokens: one, a list, or none."""
        found = self.data.get(name)
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if not all(type(n) is int and 0 <= n < 1 << 31 for n in ids):
            raise self._wrong(name, found, "the id of a token or a list of them")
        return tuple(ids)

    def part(self, name: str) -> Fields:
        """A mapping within, which must be there."""
        return Fields(self._get(name, _NEEDED, "a mapping"), f"{self.where}{name}.")

    def inner(self, *names: str) -> Fields:
        """The first mapping within that is there, or an empty one."""
        present = [name for name in names if name in self]
        return self.part(present[0]) if present else Fields({}, f"{self.where}{names[0]}.")
