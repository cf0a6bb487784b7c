"""The pass manager: lists of named passes, run, timed, verified, logged and shown by one driver.

In: a value, a context and a list of `Pass`es. Out: what the last of them gives. A pass takes a
value of one `Level` (tensor graph, partition, schedule, index notation, code) and gives one of the
same or of a later level. It runs if the value is at its level and its condition holds, so an early
pass that gives a later level skips what is between. A pass that gives None does not apply: of
several templates the first that takes a kernel renders it. `Retry` sends the driver back to an
earlier pass, which then knows more. With `verify=True` every result is checked by its level.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from .._lazy import FORK_LOCK
from .lazy_dataclass import dataclass
from .node import Node


def _shown(value: Any) -> str:
    return str(value)


def _unchecked(value: Any, name: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Level:
    """What passes hand on: how it is shown, and what must hold of it."""

    name: str
    show: Callable[[Any], str] = _shown
    verify: Callable[[Any, str], None] = _unchecked  # of a value and the pass that made it

    def __str__(self) -> str:
        return self.name


def _always(context: Any) -> bool:
    return True


def _alone() -> tuple[Pass, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Pass:
    """One named step: from a value of one level, and a context, to a value of another."""

    name: str
    run: Callable[[Any, Any], Any]
    level_in: Level
    level_out: Level
    when: Callable[[Any], bool] = _always
    inside: Callable[[], Sequence[Pass]] = _alone  # passes that it runs for each kernel itself


Observe = Callable[[Pass, Any, Any], None]  # a pass, the value before, the value after


class Options(Protocol):
    """The options that the driver asks for."""

    @property
    def verify(self) -> bool:
        """True if every result is checked."""

    @property
    def log(self) -> str:
        """What is reported on standard error."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Observers of a run of passes."""

    verify: bool = False  # True if every result is checked by its level
    log: bool = False  # True if times are reported on standard error
    observe: Observe | None = None

    @classmethod
    def of(cls, options: Options, observe: Observe | None = None) -> Watch:
        """As the options say."""
        return cls(options.verify, "stages" in options.log, observe)


UNWATCHED = Watch()


class Retry(Exception):
    """Raised by a pass: the driver goes back to an earlier pass, with the value that had."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def run_passes(
    value: Any, context: Any, passes: Sequence[Pass], watch: Watch = UNWATCHED,
    level: Level | None = None, seconds: dict[str, float] | None = None,
) -> Any:  # fmt: skip
    """What the passes make of a value of a level (that of the first); `seconds` is filled."""
    level = passes[0].level_in if level is None else level
    entered: dict[str, tuple[int, Any]] = {}
    at = 0
    while at < len(passes):
        one = passes[at]
        at += 1
        if one.level_in is not level or not one.when(context):
            continue
        entered[one.name] = at - 1, value
        start = time.perf_counter()
        try:
            found = one.run(value, context)
        except Retry as again:
            at, value = entered[again.name]
            level = passes[at].level_in
            continue
        took = time.perf_counter() - start
        if seconds is not None:
            seconds[one.name] = seconds.get(one.name, 0.0) + took
        if watch.log:
            print(f"fulgurite: {one.name} {took * 1e3:.2f} ms", file=sys.stderr)
        if found is None:
            continue
        if watch.verify and found is not value:
            one.level_out.verify(found, one.name)
        if watch.observe is not None:
            watch.observe(one, value, found)
        value, level = found, one.level_out
    return value


def passes_up_to(passes: Sequence[Pass], name: str) -> tuple[Pass, ...]:
    """The passes before the one of a name."""
    return tuple(passes[: [one.name for one in passes].index(name)])


def listed(passes: Sequence[Pass], depth: int = 0) -> Iterator[tuple[int, Pass]]:
    """All passes in the order they run, each with how deep inside others it runs."""
    for one in passes:
        yield depth, one
        yield from listed(one.inside(), depth + 1)


# --- levels of graphs ----------------------------------------------------------------------------


def show(root: Node) -> str:
    """The text of a graph; what writes it is loaded on first use."""
    with FORK_LOCK:
        from . import text
    return text.show(root)


def verify_tensor(sink: Node, name: str) -> None:
    """Raise a VerifyError at the first node that breaks the grammar of tensors."""
    with FORK_LOCK:
        from . import verify
    verify.verify(sink, "tensor", name)


def verify_index(roots: Sequence[Node], name: str) -> None:
    """Raise a VerifyError at the first node that is no index notation."""
    with FORK_LOCK:
        from . import verify
    for root in roots:
        verify.verify(root, "index", name)


TENSOR = Level("tensor", show, verify_tensor)
