"""Two commits beside each other: every row of the CPU's benchmarks, new time over old time.

`python bench/against.py OLD [NEW] [--benches cpu,contract] [--only mm] [--rounds 4] [--again 3]`.
Both commits are unpacked into a temporary folder and timed by this commit's harness, on one thread
by CPU time (`replay` and the import by the clocks they have). Both sides of a row run in processes
of their own that take turns, and the least of each counts. A row that is slower than `SLOWER` is
measured again, up to `--again` times, with its least times kept on both sides. Counts and megabytes
are printed, but are no part of the geometric mean of times.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import geometric_mean

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import ROOT, Worker, WorkerError, serve, spent

SLOWER = 1.07
SHARED = ("against.py", "harness.py", "report.py", "usage.py")  # what times both commits
STEPS = {"cold": 11, "overhead": 1, "replay": 2}  # measures of a benchmark of figures
SIDES = ("old", "new")
Figures = dict[str, float]


@dataclass
class Rows:
    """The least figure of each row, for each side, and what could not be measured."""

    least: dict[str, Figures] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def note(self, side: str, found: Mapping[str, float]) -> None:
        """Keep what is less than before."""
        for name, value in found.items():
            row = self.least.setdefault(name, {})
            row[side] = min(value, row.get(side, value))

    def ratio(self, name: str) -> float:
        """New over old: 1 where nothing can be said."""
        row = self.least[name]
        return row["new"] / row["old"] if row.get("old", 0) > 0 and "new" in row else 1.0

    def slow(self, names: list[str]) -> list[str]:
        """The rows of time that are slower by more than is allowed."""
        return [n for n in names if is_time(n) and self.ratio(n) > SLOWER]


def is_time(name: str) -> bool:
    """True if a row is a time, not a count or memory."""
    return not name.endswith(("(MB)", "loaded", "dropped graph", "its own time (us)"))


def unpack(commit: str, folder: Path) -> None:
    """A commit's tree, with this commit's harness and, where it has one, its extension."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(folder, filter="data")
    for name in SHARED:
        shutil.copy(ROOT / "bench" / name, folder / "bench" / name)
    build = folder / "fulgurite" / "core" / "_build.py"
    if build.exists():
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        subprocess.run([sys.executable, str(build)], cwd=folder, env=environment, check=True)


class Pair:
    """The two trees, each with caches of its own."""

    def __init__(self, folder: Path, commits: Mapping[str, str]) -> None:
        self.trees = {side: folder / side for side in SIDES}
        self.caches = {side: folder / f"{side}-caches" for side in SIDES}
        for side, commit in commits.items():
            unpack(commit, self.trees[side])

    def worker(self, side: str, bench: str, which: str = "ours") -> Worker:
        """A process of one side."""
        tree, caches = self.trees[side], self.caches[side]
        caches.mkdir(exist_ok=True)
        command = [sys.executable, str(tree / "bench" / f"{bench}.py"), "--worker", which]
        return Worker(command, str(caches), 1, 300, tree)

    def forget(self) -> None:
        """Empty the caches, so that the next processes compile."""
        for caches in self.caches.values():
            shutil.rmtree(caches, ignore_errors=True)


def turns(rounds: int) -> Iterator[str]:
    """Which side is next: another one first each round."""
    for turn in range(rounds):
        yield from SIDES if turn % 2 == 0 else SIDES[::-1]


def time_work(pair: Pair, bench: str, work: str, rounds: int, rows: Rows) -> None:
    """One work: milliseconds of a warm call."""
    name = f"{bench}: {work}"
    with ExitStack() as stack:
        workers = {side: stack.enter_context(pair.worker(side, bench)) for side in SIDES}
        try:
            for worker in workers.values():
                worker.ask("start", work=work)
            for side in turns(rounds):
                rows.note(side, {name: min(workers[side].ask("time", calls=40, seconds=0.4))})
        except WorkerError as error:
            rows.errors[name] = str(error)


def time_figures(pair: Pair, bench: str, rounds: int, rows: Rows) -> None:
    """What a benchmark measures of itself, each step in a fresh process, from empty caches."""
    pair.forget()
    for side in turns(rounds):
        for step in range(STEPS[bench]):
            with pair.worker(side, bench) as worker:
                try:
                    found = worker.ask("measure", step=step)
                    rows.note(side, {f"{bench}: {n}": value for n, value in found.items()})
                except WorkerError as error:
                    rows.errors[f"{bench}: step {step} of {side}"] = str(error)


def time_attention(pair: Pair, only: str, rounds: int, rows: Rows) -> None:
    """Plans of `bench/attention.py`: milliseconds of a warm call."""
    with ExitStack() as stack:
        workers = {
            side: stack.enter_context(pair.worker(side, "against", "attention")) for side in SIDES
        }
        names = [worker.ask("names") for worker in workers.values()][-1]
        for name in [n for n in names if n.startswith(only)]:
            for side in turns(2 * rounds):
                rows.note(side, {f"attention: {name}": workers[side].ask("time", name=name)})


def attention_worker() -> None:
    """A side's process for attention: all plans, timed one call at a time."""
    from bench.attention import ours

    os.environ["FULGURITE_DEVICE"] = "cpu"
    plans, _ = ours("1x8x4096x64", "512x256x32000", 1)
    serve(
        {
            "names": lambda: list(plans),
            "time": lambda name: spent(plans[name], time.process_time) * 1e3,
        }
    )


def works_of(bench: str) -> list[str]:
    """The rows of a benchmark of works."""
    if bench == "contract":
        from bench.contract import BY_NAME

        return list(BY_NAME)
    from bench import networks
    from bench.models import WORKLOADS

    return [*WORKLOADS, "step", *networks.TITLES]


def measure(pair: Pair, bench: str, only: str, rounds: int, again: int, rows: Rows) -> None:
    """All rows of a benchmark that begin so; slow ones again."""
    if bench in STEPS:
        whole = partial(time_figures, pair, bench, rounds, rows)
        whole()
        for _ in range(again):
            if rows.slow([name for name in rows.least if name.startswith(f"{bench}: ")]):
                whole()
        return
    single = partial(time_attention, pair) if bench == "attention" else None
    names = [n for n in works_of(bench) if n.startswith(only)] if single is None else [only]
    for work in names:
        for _ in range(again + 1):
            if single:
                single(work, rounds, rows)
            else:
                time_work(pair, bench, work, rounds, rows)
            here = [n for n in rows.least if n.startswith(f"{bench}: {work}")]
            if not rows.slow(here):
                break
        print(*[f"{n} {rows.ratio(n):.3f}" for n in here], sep="\n", file=sys.stderr)


def table(rows: Rows, commits: Mapping[str, str]) -> str:
    """The report: a line a row, slowest first, and the mean of times."""
    times = [name for name in rows.least if is_time(name)]
    names = sorted(rows.least, key=lambda name: -rows.ratio(name))
    mean = geometric_mean([rows.ratio(name) for name in times])
    lines = [
        f"Old {commits['old']}, new {commits['new']}: geometric mean of {len(times)} times "
        f"{mean:.3f}; {len(rows.slow(times))} over {SLOWER}.",
        "", "| row | old | new | new / old |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for name in names:
        cells = [f"{rows.least[name][s]:.4g}" if s in rows.least[name] else "-" for s in SIDES]
        both = "-" not in cells
        lines.append(f"| {' | '.join([name, *cells])} | {rows.ratio(name) if both else 0:.3f} |")
    return "\n".join([*lines, *[f"\n{name}: {text}" for name, text in rows.errors.items()]])


def main() -> None:
    """Time what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", nargs="?")
    parser.add_argument("new", nargs="?", default="HEAD")
    parser.add_argument("--benches", default="cpu,contract,attention,cold,overhead,replay")
    parser.add_argument("--only", default="", help="rows of works, by how their names begin")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--again", type=int, default=3)
    parser.add_argument("--worker", choices=("attention",), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        attention_worker()
        return
    if not given.old:
        parser.error("which commit is the old one?")
    short = ["git", "rev-parse", "--short"]
    commits = {
        side: subprocess.check_output([*short, commit], cwd=ROOT, text=True).strip()
        for side, commit in zip(SIDES, (given.old, given.new), strict=True)
    }
    rows = Rows()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pair = Pair(Path(folder), commits)
        for bench in given.benches.split(","):
            measure(pair, bench, given.only, given.rounds, given.again, rows)
    print(table(rows, commits))


if __name__ == "__main__":
    main()
