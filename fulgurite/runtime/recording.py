"""Recording what runs: launches with their times, and what was compiled or captured, and why.

In: a `Recorder` that asks for it (`fg.profile`). Out: `Launches` of every executor, `Event`s of
every compilation. Nothing is paid while no recorder is set: devices run their kernels by other code
then, and events are of the slow path only. The latest events are kept (`HISTORY`) for those who
ask afterwards why something was compiled again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ..core.lazy_named_tuple import NamedTuple

if TYPE_CHECKING:
    from ..graph.ir.kernel import Schedule


class Launches(NamedTuple):
    """Launches of one run in order; times are those of `time.perf_counter_ns`.

    A launch has `2 + 2 * threads` stamps: its begin and end, then those of each thread's part
    (0 where a thread had none). An item may be several launches: the phases of a kernel.
    """

    schedule: Schedule
    device: str
    thread: int  # of Python's that called
    items: Sequence[int]  # of each launch
    stamps: Sequence[int]
    threads: int
    used: int  # bytes of the device's memory in use by then
    by: str = ""  # who ran it if it was Python: HOSTS


HOSTS = {  # of launches by Python: what they are
    "tiny": "NumPy, as the whole graph is tiny",
    "steps": "NumPy, op by op",
    "host": "Python, as the device has no code for it",
}


class Copy(NamedTuple):
    """Bytes that went from memory to memory."""

    device: str
    what: str  # to the device, to the host, or within
    nbytes: int
    thread: int
    begin: int
    end: int


class Event(NamedTuple):
    """Something that happened on the slow path."""

    kind: str  # graph: compiled or loaded; capture: of a jitted function; kernels: were compiled
    name: str
    begin: int
    end: int
    thread: int
    about: Mapping[str, Any]


class Recorder(Protocol):
    """A receiver of events."""

    def launched(self, launches: Launches) -> None:
        """Kernels ran, or will have run when the device is waited for."""

    def copied(self, copy: Copy) -> None:
        """Values were copied."""

    def seen(self) -> None:
        """This thread launched or copied what the recorder will be told of later."""

    def noted(self, event: Event) -> None:
        """Something was compiled."""


class _Now:
    recorder: Recorder | None = None


class _Quiet(threading.local):
    on = False


NOW = _Now()
QUIET = _Quiet()
KEPT_EVENTS = 128
HISTORY: deque[Event] = deque(maxlen=KEPT_EVENTS)


def note(kind: str, name: str, begin: int, about: Mapping[str, Any]) -> None:
    """Keep an event that began then and ends now."""
    if QUIET.on:
        return
    event = Event(kind, name, begin, time.perf_counter_ns(), threading.get_ident(), about)
    HISTORY.append(event)
    if NOW.recorder is not None:
        NOW.recorder.noted(event)


@contextmanager
def unrecorded() -> Iterator[None]:
    """What this thread runs and compiles inside is nobody's: it only measures the machine."""
    before, QUIET.on = QUIET.on, True
    try:
        yield
    finally:
        QUIET.on = before


@contextmanager
def timed_step(
    recorder: Recorder, schedule: Schedule, device: str, item: int, by: str, used: int = 0
) -> Iterator[None]:
    """The launch of one item by Python; `by` is a key of HOSTS."""
    begin = time.perf_counter_ns()
    try:
        yield
    finally:
        stamps = (begin, time.perf_counter_ns())
        thread = threading.get_ident()
        recorder.launched(Launches(schedule, device, thread, (item,), stamps, 0, used, by))
