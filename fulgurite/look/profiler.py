"""`with fg.profile() as p`: where the time of a block goes, by kernel, user line and module.

In: a block of code. Out: a `Profile`: every kernel that ran with its time, bytes, operations and
share of the machine's limit; what was compiled, captured and copied; memory over time; how busy
threads were. `print(p)` shows a table, `p.save("trace.json")` writes a trace that Perfetto and
chrome://tracing open, `p.flame()` is a flame graph's tree. While nobody profiles nothing is
checked or counted; while somebody does, the native driver reads a clock at each launch.
The invariant: times of a line, a module and a kernel each add up to the time in kernels.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..graph.ir.kernel import Schedule
from ..runtime.device import devices_in_use
from ..runtime.holders import number_of
from ..runtime.realize import cache_stats
from ..runtime.recording import NOW, QUIET, Copy, Event, Launches
from .attribution import ItemFacts, facts_of
from .limits import Rates, rates_of
from .tables import duration, show_profile

_lock = threading.Lock()
_open: list[Profile] = []  # those being taken, the innermost last


class KernelRun(NamedTuple):
    """One run of one kernel."""

    facts: ItemFacts
    device: str
    thread: int
    begin: int  # nanoseconds
    end: int
    own: int  # without what ran inside: a loop runs kernels of its own
    threads: int  # that might have helped
    parts: Sequence[Part]  # what each thread did, of every phase
    by: str = ""  # who ran it if it was Python: a key of HOSTS

    @property
    def busy(self) -> float:
        """Of the time of all threads that might have helped, the part in which they worked."""
        if self.threads < 2:
            return 1.0
        worked = sum([end - begin for _, begin, end in self.parts])
        return worked / max(1, self.threads * (self.end - self.begin))


class Row(NamedTuple):
    """What ran under one name: a kernel, a user line or a module path."""

    name: str
    seconds: float
    share: float  # of the time in kernels
    calls: int
    bytes: float
    flops: float
    limit: float  # of the machine's limit, what was reached: 1 is all
    bound: str  # memory or arithmetic
    busy: float  # of the threads that might have worked
    lines: tuple[str, ...]


class Profile:
    """What ran in a block; made by `fg.profile()`."""

    def __init__(self) -> None:
        self._launches: list[Launches] = []
        self.copies: list[Copy] = []
        self.events: list[Event] = []  # compilations and captures
        self.begin = self.end = 0
        self.cache: dict[str, int] = {}  # hits and misses of the caches in the block
        self._runs: list[KernelRun] | None = None
        self._rates: dict[str, Rates] = {}
        self._outer: Profile | None = None  # is told what this one is told
        self._ended = False
        self.threads: dict[int, dict[str, None]] = {}  # names of threads that launched or compiled
        self._named: tuple[threading.Thread, int] | None = None  # whose name was noted last

    # --- recording -------------------------------------------------------------------------------

    def __enter__(self) -> Profile:
        if self.begin:
            raise ArgumentError(
                "this profile was taken already", "take another one: with fg.profile() as p"
            )
        self._before = _hits()
        with _lock:
            self._outer = _open[-1] if _open else None
            _open.append(self)
            for device in devices_in_use():
                device.synchronize()
                device.record(self)
            NOW.recorder = self
        self.begin = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        try:
            for device in devices_in_use():
                device.synchronize()
            self.end = time.perf_counter_ns()
        finally:
            with _lock:
                _open.remove(self)
                left = _open[-1] if _open else None
                NOW.recorder = left
                for device in devices_in_use():
                    device.record(left)  # tells what it has not told yet
            self._ended = True
        now = _hits()
        self.cache = {name: now[name] - self._before.get(name, 0) for name in now}

    def launched(self, launches: Launches) -> None:
        """Kernels ran: looked at when somebody asks."""
        if QUIET.on:
            return
        if not self._ended:
            self._launches.append(launches)
            self._name(launches.thread)
        if self._outer is not None:
            self._outer.launched(launches)

    def copied(self, copy: Copy) -> None:
        """Values were copied."""
        if QUIET.on:
            return
        if not self._ended:
            self.copies.append(copy)
            self._name(copy.thread)
        if self._outer is not None:
            self._outer.copied(copy)

    def seen(self) -> None:
        """This thread launched something, which a device tells later: it may be gone by then."""
        self._name(threading.get_ident())
        if self._outer is not None:
            self._outer.seen()

    def noted(self, event: Event) -> None:
        """Something was compiled."""
        if not self._ended:
            self.events.append(event)
            self._name(event.thread)
        if self._outer is not None:
            self._outer.noted(event)

    def _name(self, ident: int) -> None:
        """Remember what a thread is called: it may be gone when somebody asks."""
        now = threading.current_thread()
        if self._named == (now, ident):
            return
        self._named = now, ident
        thread: threading.Thread | None = now
        if now.ident != ident:  # a GPU is asked later, by another thread
            thread = next((t for t in threading.enumerate() if t.ident == ident), None)
        names = self.threads.setdefault(ident, {})
        if thread is not None:
            names[thread.name] = None

    # --- what was recorded -----------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """How long the block took; inside of it how long it has taken so far."""
        end = self.end if self._ended or not self.begin else time.perf_counter_ns()
        return (end - self.begin) / 1e9

    @property
    def kernel_seconds(self) -> float:
        """How long kernels ran, in all: of several Python threads the times are added up."""
        return sum([run.own for run in self.runs]) / 1e9

    @property
    def covered_seconds(self) -> float:
        """The time in which at least one kernel ran: what of `seconds` is in kernels."""
        return union([(run.begin, run.end) for run in self.runs]) / 1e9

    def _ask(self) -> None:
        """Inside of the block: let devices tell what they would have told at its end."""
        if self in _open and not QUIET.on:
            for device in devices_in_use():
                device.synchronize()

    @property
    def runs(self) -> Sequence[KernelRun]:
        """Every run of every kernel, by thread and time."""
        if self._runs is not None:
            return self._runs
        self._ask()
        found = _without_inner(list(self._all_runs()))
        if self._ended:
            self._runs = found
        return found

    @property
    def memory(self) -> list[tuple[int, int]]:
        """Bytes in use after each native call: (nanoseconds since the beginning, bytes)."""
        return [(_last(n) - self.begin, n.used) for n in self._launches if n.used]

    @property
    def rates(self) -> Mapping[str, Rates]:
        """The rates of each device that shares of its limit are of."""
        assert self.runs is not None
        return self._rates

    @property
    def kernels(self) -> list[Row]:
        """By kernel, the one that took longest first: equal kernels at other lines are others."""
        return self._rows(lambda f: {(f.name, *f.lines): 1.0}, lambda key: str(key[0]))

    @property
    def lines(self) -> list[Row]:
        """By user line."""
        return self._rows(lambda f: f.lines, str)

    @property
    def modules(self) -> list[Row]:
        """By module path, as `scope` and the names of modules give it."""
        return self._rows(lambda f: f.modules, str)

    def _all_runs(self) -> Iterator[KernelRun]:
        known: dict[tuple[int, int], ItemFacts] = {}
        for n in self._launches:
            rates = self._rates.get(n.device)
            if rates is None:
                rates = self._rates[n.device] = rates_of(n.device)
            for item, begin, end, parts in _merged(n):
                facts = known.get((id(n.schedule), item))
                if facts is None:
                    facts = facts_of(n.schedule, n.schedule.items[item], rates.model)
                    known[id(n.schedule), item] = facts
                own = end - begin
                yield KernelRun(facts, n.device, n.thread, begin, end, own, n.threads, parts, n.by)

    def _rows(
        self, shares: Callable[[ItemFacts], Mapping[Any, float]], name: Callable[[Any], str]
    ) -> list[Row]:
        """Sums of what ran, each part of a kernel under the key that its share is of."""
        sums: dict[Any, _Sum] = {}
        for run in self.runs:
            for key, share in shares(run.facts).items():
                sums.setdefault(key, _Sum()).add(run, share)
        total = max(1.0, sum([run.own for run in self.runs]))
        rows = [found.row(name(key), total) for key, found in sums.items()]
        return sorted(rows, key=lambda row: -row.seconds)

    # --- forms -----------------------------------------------------------------------------------

    def table(self, by: str = "kernel", most: int = 20) -> str:
        """A table for the terminal, by "kernel", "line" or "module"."""
        rows = {"kernel": "kernels", "line": "lines", "module": "modules"}
        if by not in rows:
            raise ArgumentError(f"there is no table by {by!r}", f"one of {', '.join(rows)}")
        if not isinstance(most, int) or most < 1:
            raise ArgumentError(f"a table of {most} rows", "give a number of rows from 1 on")
        if not self.begin:
            return "nothing was recorded: with fg.profile() as p: ... takes a profile"
        return show_profile(self, getattr(self, rows[by]), by, most)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        runs = number_of(len(self.runs), "run")
        return f"<profile of {runs} of kernels in {duration(self.seconds)}: print shows a table>"

    def trace(self) -> dict[str, Any]:
        """Chrome's trace format, which Perfetto opens: what JSON can hold."""
        from .chrome_trace import chrome_trace

        return chrome_trace(self)

    def save(self, path: str | Path) -> None:
        """Write the trace to a file."""
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")

    def flame(self) -> dict[str, Any]:
        """A flame graph's tree: module path, then line, then kernel; values are nanoseconds.

        Each node has `name`, `value` and `children`, as d3-flame-graph and speedscope read them.
        """
        root: dict[str, Any] = {"name": "all", "value": 0.0, "children": {}}
        for run in self.runs:
            for stack, share in run.facts.stacks.items():
                node, value = root, run.own * share
                node["value"] += value
                for name in (*stack, run.facts.name):
                    node = node["children"].setdefault(
                        name, {"name": name, "value": 0.0, "children": {}}
                    )
                    node["value"] += value
        return _listed(root)

    def folded(self) -> str:
        """The same as lines of `a;b;c nanoseconds`, which flamegraph.pl reads."""
        lines: list[str] = []

        def walk(node: Mapping[str, Any], path: tuple[str, ...]) -> None:
            if path and not node["children"]:
                lines.append(f"{';'.join(path)} {round(node['value'])}")
            for child in node["children"]:
                walk(child, (*path, child["name"]))

        walk(self.flame(), ())
        return "\n".join(lines)


class _Sum:
    """What is added up for one row."""

    def __init__(self) -> None:
        self.own = self.bytes = self.flops = self.least = self.busy = 0.0
        self.calls = 0
        self.bounds: dict[str, float] = {}
        self.lines: dict[str, None] = {}

    def add(self, run: KernelRun, share: float) -> None:
        facts, own = run.facts, run.own * share
        self.own += own
        self.calls += 1
        self.bytes += facts.bytes * share
        self.flops += facts.flops * share
        self.least += facts.least * share
        self.busy += run.busy * own
        self.bounds[facts.bound] = self.bounds.get(facts.bound, 0.0) + own
        self.lines.update(dict.fromkeys(facts.lines))

    def row(self, name: str, total: float) -> Row:
        own = max(self.own, 1.0)
        bound = max(self.bounds, key=lambda b: self.bounds[b])
        return Row(
            name, self.own / 1e9, self.own / total, self.calls, self.bytes, self.flops,
            self.least / own, bound, self.busy / own if self.own else 1.0, tuple(self.lines),
        )  # fmt: skip


def union(spans: Iterable[tuple[int, int]]) -> int:
    """How long at least one of some spans lasts."""
    total, until = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def _hits() -> dict[str, int]:
    """Hits and misses of every cache so far."""
    return {
        f"{name} {what}": stats[what]
        for name, stats in cache_stats().items()
        if isinstance(stats, dict)
        for what in ("hits", "misses")
        if what in stats
    }


def _last(launches: Launches) -> int:
    """When the last launch of a run ended."""
    return launches.stamps[len(launches.stamps) - (1 + 2 * launches.threads)]


Part = tuple[int, int, int]  # a thread, its begin and end


def _merged(n: Launches) -> Iterator[tuple[int, int, int, list[Part]]]:
    """Item, begin, end and threads' parts of each kernel: its phases follow each other."""
    stride = 2 + 2 * n.threads
    launches = [(item, n.stamps[i * stride : (i + 1) * stride]) for i, item in enumerate(n.items)]
    for item, phases in groupby(launches, lambda launch: launch[0]):
        stamps = [stamps for _, stamps in phases if stamps[1]]  # not those behind one that failed
        if stamps:
            yield item, stamps[0][0], stamps[-1][1], [p for one in stamps for p in _parts(one)]


def _parts(stamps: Sequence[int]) -> list[Part]:
    """What each thread did of a launch: all of it was the caller's where nobody helped."""
    pairs = zip(stamps[2::2], stamps[3::2], strict=True)
    found = [(thread, begin, end) for thread, (begin, end) in enumerate(pairs) if end]
    return found or [(0, stamps[0], stamps[1])]


def _without_inner(runs: list[KernelRun]) -> list[KernelRun]:
    """Runs with the time of their own: a loop's without that of the kernels it runs."""
    order = sorted(runs, key=lambda r: (r.device, r.thread, r.begin, -r.end))
    inner = [0] * len(order)
    stack: list[int] = []
    for i, run in enumerate(order):
        while stack and (
            order[stack[-1]].end <= run.begin
            or (order[stack[-1]].device, order[stack[-1]].thread) != (run.device, run.thread)
        ):
            stack.pop()
        if stack:
            inner[stack[-1]] += run.end - run.begin
        stack.append(i)
    return [r._replace(own=r.end - r.begin - n) for r, n in zip(order, inner, strict=True)]


def _listed(node: dict[str, Any]) -> dict[str, Any]:
    children = sorted(node["children"].values(), key=lambda child: -child["value"])
    return node | {"children": [_listed(child) for child in children]}


def schedules(profile: Profile) -> list[Schedule]:
    """The schedules that ran, each once."""
    return list({id(n.schedule): n.schedule for n in profile._launches}.values())
