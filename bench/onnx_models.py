"""ONNX models beside onnxruntime: speed, memory and the first call, with one thread and two.

Run `python bench/onnx_models.py [--only NAME ...] [--threads 1 2] [--save]` with a Python that has
`onnx` and `onnxruntime`. Both run in one process for each model and number of threads and take
turns; a figure is the least time of many calls, so that others on the machine disturb both alike.
A turn begins when threads of the other lie down: those of onnxruntime wait busily for 35 ms of
processor time after each call, on the core that our second thread needs.
First calls and memory are of processes of their own, ours and onnxruntime's, that load a file: the
least of three, from a warm disk, in processor time of the process; memory is what it holds then.
On a busy machine `--busy` counts processor time in place of wall time: with one thread, for what
a second one does reaches its process's time some milliseconds later, so the least of many calls
leaves part of it out.
Outputs are compared; where they differ by more than quantised steps may, the cell says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench.report import RESULTS, machine
from bench.usage import memory

TURNS = 15
SETTLED = 2.2  # seconds: plans of a file that was written a moment ago are not kept


def measure(name: str, threads: int, seconds: float, busy: bool = False) -> dict[str, Any]:
    """The figures of one model, in this process."""
    clock = time.process_time if busy else time.perf_counter
    import fulgurite as fg
    from bench.onnx_zoo_more import ALL

    text, given = ALL[name]()
    session = session_of(text, threads)
    wanted = session.run(None, given)
    model = fg.onnx.load(text)
    found = [np.asarray(v) for v in model(given).values()]

    def ours() -> None:
        for value in model(given).values():
            value.numpy()

    def theirs() -> None:
        session.run(None, given)

    least = dict.fromkeys((ours, theirs), math.inf)
    for call in (ours, theirs) * 3:
        call()
    for _ in range(TURNS):
        for call in least:
            settle()
            call()  # wakes its threads
            end = time.perf_counter() + seconds / TURNS / 2
            while True:
                start = clock()
                call()
                least[call] = min(least[call], clock() - start)
                if time.perf_counter() > end:
                    break
    return {
        "ours_ms": least[ours] * 1e3, "ort_ms": least[theirs] * 1e3,
        "error": distance(found, wanted),
    }  # fmt: skip


def settle(patience: float = 1.0) -> None:
    """Wait until no thread of this process is busy, so that none of the other's pool is."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.001:
            return


def session_of(source: Any, threads: int) -> Any:
    """A session of onnxruntime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def start(system: str, path: str, threads: int) -> dict[str, float]:
    """Seconds until a system is ready (ours: has answered once), and what it holds after calls."""
    given = dict(np.load(f"{path}.npz"))
    if system == "ours":
        import fulgurite as fg

        settle()  # threads that NumPy's BLAS starts are busy for a while
        begin = time.process_time()
        model = fg.onnx.load(path)
    else:
        import onnxruntime  # noqa: F401  # importing is not timed

        settle()
        begin = time.process_time()
        session = session_of(path, threads)
        seconds = time.process_time() - begin

    def call() -> None:
        if system == "ours":
            for value in model(given).values():
                value.numpy()
        else:
            session.run(None, given)

    call()
    if system == "ours":
        seconds = time.process_time() - begin
    for _ in range(10):
        call()
    return {"seconds": seconds, "MB": memory("VmRSS")}


def starts(name: str, threads: int, asked: argparse.Namespace, caches: str) -> dict[str, float]:
    """First calls and memory of both systems, each in processes of its own."""
    from bench.onnx_zoo_more import ALL

    text, given = ALL[name]()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        Path(path).write_bytes(text)
        np.savez(f"{path}.npz", **given)  # type: ignore[arg-type]
        time.sleep(SETTLED)
        for system in ("ours", "ours", "onnxruntime") * 3:
            each = worker(path, threads, asked, caches, system)
            for key, value in each.items():
                known = found.get(f"{system} {key}", math.inf)
                found[f"{system} {key}"] = min(known, value)
    return found


def distance(found: list[Any], wanted: list[Any]) -> float:
    """The largest difference, as a share of the largest value of its output."""
    worst = 0.0
    for ours, theirs in zip(found, wanted, strict=True):
        if ours.shape != theirs.shape:
            return math.inf
        scale = np.abs(theirs).max(initial=1e-6)
        worst = max(worst, float(np.abs(ours - theirs).max(initial=0.0) / scale))
    return worst


def worker(
    name: str, threads: int, asked: argparse.Namespace, caches: str, system: str = ""
) -> dict[str, Any]:
    """`measure`, or `start` of a system, in a process of its own."""
    command = [sys.executable, __file__, "--worker", name, "--threads", str(threads)]
    command += ["--busy"] if asked.busy else []
    command += ["--start", system] if system else []
    environment = {**os.environ, "FULGURITE_THREADS": str(threads), "FULGURITE_CACHE_DIR": caches}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # it may keep bytecode, as it does for users
    made = subprocess.run(
        [*command, "--seconds", str(asked.seconds)], env=environment, capture_output=True, text=True
    )
    if made.returncode:
        return {"failed": made.stderr.strip().splitlines()[-1][:100] if made.stderr else "?"}
    found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return found


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def table(rows: dict[str, dict[int, dict[str, Any]]], threads: list[int]) -> str:
    """The report."""
    head = "".join(f" {n} thr.: ours ms | onnxruntime ms | speed |" for n in threads)
    tail = "first call warm disk / session start ms | memory ours / onnxruntime MB"
    lines = [f"| model |{head} difference | {tail} |"]
    lines.append("| --- |" + " --- |" * (3 * len(threads) + 3))
    ratios: dict[int, dict[str, float]] = {n: {} for n in threads}
    for name, row in rows.items():
        cells = []
        for n in threads:
            cell = row[n]
            if "failed" in cell:
                cells.append(f" {cell['failed']} | | |")
                continue
            ratios[n][name] = cell["ort_ms"] / cell["ours_ms"]
            cells.append(f" {cell['ours_ms']:.3f} | {cell['ort_ms']:.3f} | {ratios[n][name]:.2f} |")
        last = next((row[n] for n in reversed(threads) if "failed" not in row[n]), None)
        tail = " | | |"
        if last is not None and "onnxruntime MB" in last:
            first, session = last["ours seconds"] * 1e3, last["onnxruntime seconds"] * 1e3
            tail = f" {last['error']:.0e} | {first:.0f} / {session:.0f} |"
            tail += f" {last['ours MB']:.0f} / {last['onnxruntime MB']:.0f} |"
        lines.append(f"| {name} |{''.join(cells)}{tail}")
    for n in threads:
        each = ratios[n]
        whole = [r for name, r in each.items() if "int8" in name]
        lines += ["", f"{n} threads: geometric mean {mean(list(each.values())):.2f}, least "
                  f"{min(each.values(), default=math.nan):.2f}; int8 mean {mean(whole):.2f}, "
                  f"least {min(whole, default=math.nan):.2f}."]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing, a model")
    parser.add_argument("--caches", help="a folder that stays, for first calls from a warm disk")
    parser.add_argument("--save", action="store_true", help="write bench/results/onnx-DATE.md")
    parser.add_argument("--busy", action="store_true", help="count processor time")
    parser.add_argument("--worker")
    parser.add_argument("--start", help="of a worker: the system whose first call is timed")
    asked = parser.parse_args()
    if asked.worker and asked.start:
        print(json.dumps(start(asked.start, asked.worker, asked.threads[0])))
        return
    if asked.worker:
        print(json.dumps(measure(asked.worker, asked.threads[0], asked.seconds, asked.busy)))
        return
    from bench.onnx_zoo_more import ALL

    names = [n for n in ALL if not asked.only or any(o.lower() in n.lower() for o in asked.only)]
    rows: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in names}
    with tempfile.TemporaryDirectory() as folder:
        caches = asked.caches or folder
        for name in names:
            for n in asked.threads:
                rows[name][n] = worker(name, n, asked, caches)
                rows[name][n] |= starts(name, n, asked, caches)
                print(name, n, rows[name][n], file=sys.stderr, flush=True)
    about = machine(sys.executable, max(asked.threads))
    head = f"# ONNX models beside onnxruntime, {date.today()}\n\n{about['cpu']}, {about['cores']} "
    text = f"{head}cores, {about['vectors']}; commit {about['commit']}. "
    text += "Processor time, on a busy machine. " if asked.busy else ""
    text += (
        "Speed is time of onnxruntime over ours: above 1 we are faster.\n\n"
        + table(rows, asked.threads)
        + "\n"
    )
    print(text)
    if asked.save:
        (RESULTS / f"onnx-{date.today()}.md").write_text(text)


if __name__ == "__main__":
    main()
