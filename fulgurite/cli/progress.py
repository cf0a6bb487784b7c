"""Progress bars for commands and examples: tqdm where it is installed, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from ..core.ranks import world

T = TypeVar("T")


class Progress(Iterable[T]):
    """Iterate with a bar; `note(...)` shows the latest figures beside it."""

    def __init__(self, items: Iterable[T], what: str) -> None:
        self._items, self._what, self._note = items, what, ""
        self._bar: Any = None

    def note(self, text: str) -> None:
        """Show the latest figures."""
        self._note = text
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def __iter__(self) -> Iterator[T]:
        if world().rank:  # of many processes the first shows a bar
            return iter(self._items)
        try:
            from tqdm import tqdm
        except ImportError:
            return self._plain()
        self._bar = tqdm(self._items, desc=self._what, file=sys.stderr, leave=True)
        return iter(self._bar)

    def _plain(self) -> Iterator[T]:
        total = len(self._items) if isinstance(self._items, Sized) else None
        for number, item in enumerate(self._items, start=1):
            yield item
            if total and (number == total or number % max(1, total // 10) == 0):
                print(f"{self._what}: {number}/{total} {self._note}", file=sys.stderr)
