"""The one harness of all benchmarks: systems in processes of their own that take turns.

In: systems, as functions, and goals. Out: one Markdown report (and JSON) with the peers beside us,
our ratio to the best of them, the machine, and the change since the last committed result.
`run_works` times named works: a fresh process for each (system, work) gives the cold first call and
the peak memory, checks the answer, then the processes take turns for the warm times. `run_figures`
collects numbers that systems measure themselves, each step in a fresh process. A worker is the
same script with `--worker SYSTEM`: JSON commands in, one JSON answer a line out. An answer that is
wrong or late ("over 180 s") is an error in its cell, never a time. Nothing here imports more than
Python itself, so that importing a system can be measured too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import RESULTS, Cell, Report, Rows, last_result, machine
from bench.usage import CpuClock, forget_peak, memory

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Work:
    """A prepared work: `call` does it once and waits, `check` raises if the result is wrong."""

    call: Callable[[], Any]
    check: Callable[[Any], None]


Load = Callable[[], Callable[[str], Work]]  # import a system; then prepare works by name
Measure = Callable[[], Mapping[str, float]]
Call = Callable[[], object]
Clock = Callable[[], float]
Name = TypeVar("Name")


# What happens in a worker.


def serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer commands until standard input ends; what a system prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"answer": handlers[command.pop("do")](**command)}
        except Exception as error:
            text = str(error).strip().partition("\n")[0][:160]
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            answer = {"error": f"{type(error).__name__}: {text} ({where})"}
        print(json.dumps(answer), file=answers, flush=True)


class Timer:
    """A worker's side of `run_works`: one work of one system."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.work: Work | None = None

    def start(self, work: str) -> Cell:
        """Import, prepare, call for the first time, check."""
        prepare = self.load()
        before = memory("VmRSS")
        self.work = prepare(work)
        forget_peak()
        clock, wall = CpuClock(), time.perf_counter()
        result = self.work.call()
        wall, cpu = time.perf_counter() - wall, clock.seconds()
        peak = memory("VmHWM") - before
        self.work.check(result)
        del result
        for _ in range(2):  # some systems settle in the second or third call only
            self.work.call()
        self.work.check(self.work.call())
        return {"cold_cpu_s": cpu, "cold_s": wall, "peak_mb": peak}

    def time(self, calls: int, seconds: float) -> list[float]:
        """Milliseconds of so many calls, fewer (but one) when the time is up.

        With one thread CPU time counts, free of neighbours: that of all threads of the process.
        """
        assert self.work is not None
        alone = os.environ["BENCH_THREADS"] == "1"
        clock = time.process_time if alone else time.perf_counter
        return times_of(self.work.call, calls, seconds, clock)


def spent(call: Call, clock: Clock) -> float:
    """Seconds of one call."""
    start = clock()
    result = call()
    seconds = clock() - start
    del result  # an equal graph with a living value would not be computed again
    return seconds


def times_of(call: Call, calls: int, seconds: float, clock: Clock) -> list[float]:
    """Milliseconds of so many calls, fewer (but one) when the time is up."""
    call()  # the caches are the other systems' after their turn
    times: list[float] = []
    while len(times) < calls and (not times or sum(times) < seconds * 1e3):
        times.append(spent(call, clock) * 1e3)
    return times


def least(
    calls: Mapping[Name, Call], rounds: int, clock: Clock = time.perf_counter, each: int = 1
) -> dict[Name, float]:
    """The least seconds of each call; they take turns, so many calls each."""
    found = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            found[name] = min(found[name], *[spent(call, clock) for _ in range(each)])
    return found


def best(work: Call, count: int = 1, rounds: int = 5) -> float:
    """Microseconds of CPU time per unit, the best of several rounds; for measures to use."""
    return least({"": work}, rounds, time.process_time)[""] / count * 1e6


# What happens in the process that asks.


class WorkerError(Exception):
    """What a worker could not do."""


class Worker:
    """A process of one system, with caches of its own; `ask` sends a command and waits."""

    def __init__(
        self, command: Sequence[str], caches: str, threads: int, limit: float, root: Path = ROOT
    ) -> None:
        self.limit = limit
        self.errors = open(Path(caches, "stderr"), "w+")  # noqa: SIM115 - closed with the process
        count = {f"{n}_NUM_THREADS": str(threads) for n in ("OMP", "OPENBLAS", "MKL")}
        environment = {
            **os.environ, **count, "FULGURITE_THREADS": str(threads), "PYTHONPATH": str(root),
            "BENCH_THREADS": str(threads), "DEV": "CPU", "JAX_PLATFORMS": "cpu", "HOME": caches,
            "FULGURITE_CACHE_DIR": f"{caches}/fulgurite", "XDG_CACHE_HOME": caches,
            "CACHEDB": f"{caches}/tinygrad.db", "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch",
        }  # fmt: skip
        # every system may keep its bytecode, as it does for users
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.process = subprocess.Popen(
            command, env=environment, cwd=root, start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
        )  # fmt: skip

    def ask(self, do: str, **details: Any) -> Any:
        """The worker's answer to a command."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps({"do": do, **details}), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None
        if not select.select([self.process.stdout], [], [], self.limit)[0]:
            raise WorkerError(f"over {self.limit:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(self._last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["answer"]

    def _last_words(self) -> str:
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return f"ended with {self.process.returncode}: {lines[-1] if lines else 'silently'}"[:200]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # helpers that it left behind as well
        self.process.communicate()
        self.errors.close()


@dataclass(frozen=True)
class Settings:
    """What was asked for on the command line."""

    systems: tuple[str, ...]
    only: tuple[str, ...]
    peers: str
    rounds: int
    calls: int
    seconds: float
    threads: int
    limit: float
    json: Path | None
    save: bool
    pause: float = 0.0  # before a turn, so that the threads of the system before are asleep
    budget: float = math.inf  # seconds, after which no row begins

    def turn(self, number: int) -> tuple[str, ...]:
        """The order of the systems in a round: another one first each time."""
        start = number % len(self.systems)
        return self.systems[start:] + self.systems[:start]

    def worker(self, script: str, system: str, caches: str) -> Worker:
        """A new process of a system, started with the interpreter that has it."""
        python = sys.executable if system.startswith("ours") else self.peers
        return Worker([python, script, "--worker", system], caches, self.threads, self.limit)


def time_work(script: str, work: str, settings: Settings) -> dict[str, Cell]:
    """All systems on one work: each starts cold, then they take turns, another one first each."""
    cells: dict[str, Cell] = {}
    times: dict[str, list[float]] = {}
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            for system in settings.systems:
                caches = Path(folder, system.replace(" ", "_"))
                caches.mkdir()
                workers[system] = settings.worker(script, system, str(caches))
                cells[system] = _answer(workers[system], "start", work=work)
            for turn in range(settings.rounds):
                for system in settings.turn(turn):
                    if "error" in cells[system]:
                        continue
                    time.sleep(settings.pause)
                    ask = {"calls": settings.calls, "seconds": settings.seconds}
                    found = _answer(workers[system], "time", **ask)
                    if isinstance(found, list):
                        times.setdefault(system, []).extend(found)
                    else:
                        cells[system] = found
        finally:
            for worker in workers.values():
                worker.__exit__()
    for system, cell in cells.items():
        if "error" not in cell:
            cell |= {"median": median(times[system]), "best": min(times[system])}
    return cells


def _answer(worker: Worker, do: str, **details: Any) -> Any:
    """An answer, or the error as a cell."""
    try:
        return worker.ask(do, **details)
    except WorkerError as error:
        return {"error": str(error)}


def run_works(
    doc: str | None, script: str, systems: Mapping[str, Load], titles: Mapping[str, str],
    goals: Mapping[str, float | None], arguments: Sequence[str] | None = None, rounds: int = 5,
) -> Rows:  # fmt: skip
    """Time works (short name -> title) on all systems; a goal is a ratio to the best peer."""
    chosen, settings = parse(doc, systems, tuple(titles), arguments, rounds)
    if chosen:
        timer = Timer(systems[chosen])
        serve({"start": timer.start, "time": timer.time})
        return {}
    rows: Rows = {}
    begun = time.monotonic()
    for work in settings.only:
        if time.monotonic() - begun > settings.budget:
            print(f"no time for {work}", file=sys.stderr)
            continue
        rows[work] = time_work(script, work, settings)
        print(f"{work} done", file=sys.stderr)
    publish(Path(script).stem, rows, settings, titles, goals, "median")
    return rows


def run_figures(
    doc: str | None, script: str, systems: Mapping[str, Sequence[Measure]],
    goals: Mapping[str, float | None], arguments: Sequence[str] | None = None, rounds: int = 5,
) -> Rows:  # fmt: skip
    """Collect figures, the least of all rounds; a system's measures share its (empty) caches."""
    chosen, settings = parse(doc, systems, tuple(goals), arguments, rounds)
    if chosen:
        serve({"measure": lambda step: dict(systems[chosen][step]())})
        return {}
    rows: Rows = {name: {} for name in settings.only}
    failed: dict[str, Cell] = {}
    for turn in range(settings.rounds):
        for system in settings.turn(turn):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
                for step in range(len(systems[system])):
                    with settings.worker(script, system, caches) as worker:
                        found = _answer(worker, "measure", step=step)
                    if "error" in found:
                        failed[system] = found
                        continue
                    for name in found.keys() & rows.keys():
                        known = rows[name].get(system, {"best": found[name]})
                        rows[name][system] = {"best": min(found[name], known["best"])}
    for system, cell in failed.items():
        for cells in rows.values():
            cells.setdefault(system, cell)
    publish(Path(script).stem, rows, settings, {}, goals, "best")
    return rows


def parse(
    doc: str | None, systems: Mapping[str, Any], names: tuple[str, ...],
    arguments: Sequence[str] | None, rounds: int,
) -> tuple[str, Settings]:  # fmt: skip
    """The options that every benchmark has, and which system this worker is, if it is one."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, help="an interpreter with the peers")
    parser.add_argument("--systems", help=f"some of {','.join(systems)}")
    parser.add_argument("--only", help="rows, by how their names begin; NAME$: this one")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="turns each system takes: %(default)s"
    )
    parser.add_argument("--calls", type=int, default=20, help="most calls a turn")
    parser.add_argument("--seconds", type=float, default=0.3, help="about the longest turn")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each turn")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of all rows")
    parser.add_argument("--threads", type=int, default=cores, help="default: %(default)s")
    parser.add_argument("--limit", type=float, default=180, help="seconds for a start")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--save", action="store_true", help="write bench/results")
    parser.add_argument("--worker", choices=tuple(systems), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:  # every system gets the same cores, however it counts its threads
        allowed = sorted(os.sched_getaffinity(0))[: int(os.environ["BENCH_THREADS"])]
        os.sched_setaffinity(0, allowed)
    chosen, only = tuple(systems), names
    if options.systems:
        chosen = tuple(options.systems.split(","))
    if options.only:
        parts = options.only.split(",")
        only = tuple(dict.fromkeys(n for p in parts for n in names if f"{n}$".startswith(p)))
    if unknown := [name for name in chosen if name not in systems]:
        parser.error(f"{', '.join(unknown)}: not one of {', '.join(systems)}")
    if not only:
        parser.error(f"no row begins with {options.only}: {', '.join(names)}")
    if options.save and (options.systems or options.only):
        parser.error("--save is for whole results: without --only and --systems")
    return options.worker, Settings(
        chosen, only, options.peers, options.rounds, options.calls, options.seconds,
        options.threads, options.limit, options.json, options.save, options.pause, options.budget,
    )  # fmt: skip


def publish(
    name: str, rows: Rows, settings: Settings, titles: Mapping[str, str],
    goals: Mapping[str, float | None], value: str,
) -> None:  # fmt: skip
    """Print the report and write what was asked for."""
    last = last_result(RESULTS / f"{name}.json")
    facts = machine(settings.peers, settings.threads)
    report = Report(name, facts, rows, dict(titles), dict(goals), value)
    print(report.markdown(last))
    text = json.dumps(report.as_json(), indent=1) + "\n"
    if settings.json:
        settings.json.write_text(text)
    if settings.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(text)
        (RESULTS / f"{name}.md").write_text(report.markdown(last))
