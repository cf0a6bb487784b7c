"""A profile in Chrome's trace format: what Perfetto and chrome://tracing draw.

In: a `Profile`. Out: a dict for JSON: `traceEvents` with a process for each device, a track for
each Python thread, one for each worker thread of a kernel that was shared, one for what was
compiled or captured, and a counter of the memory in use. Times are microseconds.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU has the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def _events(profile: Profile) -> Iterator[dict[str, Any]]:
    start = profile.begin
    devices = {name: i for i, name in enumerate(sorted({r.device for r in profile.runs}), 1)}
    threads: dict[int, int] = {}
    yield _name("process_name", COMPILING, 0, "compiler")
    for device, process in devices.items():
        yield _name("process_name", process, 0, device)
    for run in profile.runs:
        process = devices[run.device]
        track = threads.setdefault(run.thread, len(threads))
        yield _span(
            run.facts.name, "kernel", run.begin, run.end, start, process, track, _about(run)
        )
        for thread, begin, end in run.parts if run.threads > 1 else ():
            if thread:
                track = WORKERS + thread
                yield _span(run.facts.name, "thread", begin, end, start, process, track, {})
    workers = {t for r in profile.runs if r.threads > 1 for t, _, _ in r.parts if t}
    for process in devices.values():
        for thread, track in threads.items():
            yield _name("thread_name", process, track, f"Python thread {thread}")
        for worker in sorted(workers):
            yield _name("thread_name", process, WORKERS + worker, f"worker {worker}")
    for event in profile.events:
        about = {k: v for k, v in event.about.items() if isinstance(v, str | int | float | bool)}
        about |= {f"ms in {k}": v * 1e3 for k, v in event.about.get("seconds", {}).items()}
        track = threads.setdefault(event.thread, len(threads))
        name = f"{event.kind}: {event.name}"
        yield _span(name, event.kind, event.begin, event.end, start, COMPILING, track, about)
    for copy in profile.copies:
        process = devices.get(copy.device, COMPILING)
        about = {"bytes": copy.nbytes}
        track = threads.setdefault(copy.thread, len(threads))
        yield _span(copy.what, "copy", copy.begin, copy.end, start, process, track, about)
    for when, used in profile.memory:
        yield {"name": "memory", "ph": "C", "ts": when / 1e3, "pid": COMPILING, "tid": 0,
               "args": {"bytes in use": used}}  # fmt: skip


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
