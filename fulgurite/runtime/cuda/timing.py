"""Times of a GPU's launches and copies, by events in its stream.

In: launches and copies while somebody records. Out: when the device is waited for or recording
ends, `recording.Launches` and `recording.Copy` with times of the host's clock. An event is put into
the stream before the first launch of a segment and behind each; their distances from one that was
there when recording began, and when the host saw that, give the times. Segments are launched kernel
by kernel meanwhile: a graph cannot say how long its nodes took.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ...graph.ir.kernel import Schedule
from .. import recording
from . import driver as cuda

if TYPE_CHECKING:
    from .device import CudaDevice


FILLED_BYTES, FILLS = 1 << 28, 2  # before a run that is timed alone


class _Segment(NamedTuple):
    """Launches whose events are in the stream."""

    schedule: Schedule
    items: Sequence[int]
    events: list[cuda.Event]
    thread: int
    used: int


class _Copied(NamedTuple):
    """A copy whose events are in the stream."""

    what: str
    nbytes: int
    events: list[cuda.Event]
    thread: int


class StreamTimes:
    """The events of a stream, from now on until `stop`."""

    def __init__(self, device: CudaDevice, recorder: recording.Recorder) -> None:
        self.device, self.recorder = device, recorder
        self._told: list[_Segment | _Copied] = []
        device.synchronize()
        self._base = self.event()
        device.stream.synchronize()
        self._start = time.perf_counter_ns()

    def event(self) -> cuda.Event:
        """An event in the stream."""
        made = cuda.Event(self.device.driver, timing=True)
        made.record(self.device.stream)
        return made

    def launched(self, schedule: Schedule, items: Sequence[int], events: list[cuda.Event]) -> None:
        """Note launches: one event before, one behind each."""
        if recording.QUIET.on:
            _close(events)
            return
        self.recorder.seen()
        used, thread = self.device.pool.stats()["used"], threading.get_ident()
        self._told.append(_Segment(schedule, items, events, thread, used))

    @contextmanager
    def copy(self, what: str, nbytes: int) -> Iterator[None]:
        """Note a copy."""
        if recording.QUIET.on:
            yield
            return
        self.recorder.seen()
        before = self.event()
        yield
        self._told.append(_Copied(what, nbytes, [before, self.event()], threading.get_ident()))

    def stop(self) -> None:
        """Wait for all of it, and tell the recorder."""
        self.device.synchronize()
        self._base.close()

    def tell(self) -> None:
        """Wait for what was noted so far, and tell the recorder."""
        if recording.QUIET.on:
            return
        noted = list(self._told)
        del self._told[: len(noted)]  # other threads may add to it
        self.device.stream.synchronize()
        name = self.device.name
        for told in noted:
            times = self._times(told.events)
            if isinstance(told, _Copied):
                copy = recording.Copy(name, told.what, told.nbytes, told.thread, *times)
                self.recorder.copied(copy)
                continue
            stamps = [t for pair in pairwise(times) for t in pair]
            self.recorder.launched(
                recording.Launches(
                    told.schedule, name, told.thread, told.items, stamps, 0, told.used
                )
            )

    def _times(self, events: list[cuda.Event]) -> list[int]:
        """When events were, each by its distance from the one before: those are exact."""
        found = [self._start + round(1e6 * events[0].since(self._base))]
        for before, event in pairwise(events):
            found.append(found[-1] + round(1e6 * event.since(before)))
        _close(events)
        return found


class ColdRuns:
    """Times of launches alone, with nothing of their operands in the L2 cache.

    Each run is behind fills of more memory than that holds, which take longer than the host needs
    to hand the run over: what is between the events is the GPU's time.
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.memory = device.taken(FILLED_BYTES)

    def __call__(self, run: Callable[[], object]) -> float:
        """Nanoseconds of a run."""
        device = self.device
        first, last = [cuda.Event(device.driver, timing=True) for _ in range(2)]
        for number in range(FILLS):
            device.fill(self.memory, number)
        first.record(device.stream)
        run()
        last.record(device.stream)
        last.synchronize()
        found = 1e6 * last.since(first)
        _close([first, last])
        return found


def _close(events: Sequence[cuda.Event]) -> None:
    for event in events:
        event.close()
