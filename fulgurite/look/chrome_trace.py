"""A profile in Chrome's trace format: what Perfetto and chrome://tracing draw.

In: a `Profile`. Out: a dict for JSON: `traceEvents` with a process for each device, a track for
each Python thread, one for each worker thread of a kernel that was shared, one for what was
compiled or captured, and a counter of the memory in use. Times are microseconds.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU has the format.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runtime.recording import Event
    from .profiler import KernelRun, Profile

COMPILING = 0  # the process of what is no kernel
WORKERS = 1000  # where the tracks of worker threads begin


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """The whole trace."""
    return {
        "traceEvents": list(_events(profile)),
        "displayTimeUnit": "ms",
        "otherData": {
            "seconds": profile.seconds, "kernel_seconds": profile.kernel_seconds,
            "cache": profile.cache,
            "limits": {name: rates.source for name, rates in profile.rates.items()},
        },
    }  # fmt: skip


class _Tracks:
    """Numbers of processes and tracks, as they come."""

    def __init__(self, profile: Profile) -> None:
        self.start = profile.begin
        names = sorted({run.device for run in profile.runs})
        self.devices = {name: number for number, name in enumerate(names, 1)}
        self.threads: dict[int, int] = {}

    def thread(self, ident: int) -> int:
        """The track of a Python thread."""
        return self.threads.setdefault(ident, len(self.threads))


def _events(profile: Profile) -> Iterator[dict[str, Any]]:
    tracks = _Tracks(profile)
    for run in profile.runs:
        yield from _kernel(run, tracks)
    for event in profile.events:
        yield _slow(event, tracks)
    for copy in profile.copies:
        process, track = tracks.devices.get(copy.device, COMPILING), tracks.thread(copy.thread)
        about = {"bytes": copy.nbytes}
        yield _span(copy.what, "copy", copy.begin, copy.end, tracks.start, process, track, about)
    for when, used in profile.memory:
        yield {"name": "memory", "ph": "C", "ts": when / 1e3, "pid": COMPILING, "tid": 0,
               "args": {"bytes in use": used}}  # fmt: skip
    yield from _names(profile, tracks)


def _kernel(run: KernelRun, tracks: _Tracks) -> Iterator[dict[str, Any]]:
    """A kernel on the track of who called it, and what workers did of it on theirs."""
    name, process, start = run.facts.name, tracks.devices[run.device], tracks.start
    track = tracks.thread(run.thread)
    yield _span(name, "kernel", run.begin, run.end, start, process, track, _about(run))
    for thread, begin, end in run.parts if run.threads > 1 else ():
        if thread:
            yield _span(name, "thread", begin, end, start, process, WORKERS + thread, {})


def _slow(event: Event, tracks: _Tracks) -> dict[str, Any]:
    """Something that was compiled or captured, with the time of every pass."""
    about = {k: v for k, v in event.about.items() if isinstance(v, str | int | float | bool)}
    about |= {f"ms in {k}": v * 1e3 for k, v in event.about.get("seconds", {}).items()}
    name, track = f"{event.kind}: {event.name}", tracks.thread(event.thread)
    start = tracks.start
    return _span(name, event.kind, event.begin, event.end, start, COMPILING, track, about)


def _names(profile: Profile, tracks: _Tracks) -> Iterator[dict[str, Any]]:
    """What processes and tracks are called."""
    shared = [run for run in profile.runs if run.threads > 1]
    workers = {thread for run in shared for thread, _, _ in run.parts if thread}
    processes = {"compiler": COMPILING, **tracks.devices}
    for device, process in processes.items():
        yield _name("process_name", process, 0, device)
        for thread, track in tracks.threads.items():
            yield _name("thread_name", process, track, _thread_name(profile, thread, track))
    for process in tracks.devices.values():
        for worker in sorted(workers):
            yield _name("thread_name", process, WORKERS + worker, f"worker {worker}")


def _thread_name(profile: Profile, ident: int, track: int) -> str:
    """What a thread is called; several in turn may have had one number."""
    if ident == threading.main_thread().ident:
        return "main thread"
    return ", ".join(profile.threads.get(ident, ())) or f"Python thread {track + 1}"


def _about(run: KernelRun) -> dict[str, Any]:
    facts, took = run.facts, max(1, run.end - run.begin)
    return {
        "kind": facts.kind, "lines": list(facts.lines), "modules": list(facts.modules),
        "bytes": facts.bytes, "operations": facts.flops, "GB/s": round(facts.bytes / took, 2),
        "GFLOP/s": round(facts.flops / took, 2), "of the limit": round(facts.least / took, 3),
        "bound": facts.bound, "threads busy": round(run.busy, 3), "because": facts.reason,
    }  # fmt: skip


def _span(
    name: str, category: str, begin: int, end: int, start: int, process: int, track: int,
    about: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    return {
        "name": name, "cat": category, "ph": "X", "ts": (begin - start) / 1e3,
        "dur": (end - begin) / 1e3, "pid": process, "tid": track, "args": about,
    }  # fmt: skip


def _name(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
