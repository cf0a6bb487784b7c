"""All that is worth knowing of the CUDA device on a GPU, in one run of a given length.

`python3 tests/runtime/cuda/h200.py [seconds]` (140) from the repository's root. First, alone on the
GPU: cold starts, the training step with its kernels and host time, bench/cuda.py in short form.
Then side by side until time is up: the `-m cuda` suites, both fuzzers, charlm and digits, a sample
of kernels under compute-sanitizer. Every part is a process of its own with its own limit: none
stops the others. What is printed is short; logs go to `$OUT` (or a folder that is named).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.runtime.cuda.on_gpu import COLD, PROFILE, STEP  # noqa: E402 (the path comes first)

OUT = Path(os.environ.get("OUT") or tempfile.mkdtemp())
STARTED = time.monotonic()
WORKERS = max(2, min(9, (os.cpu_count() or 4) - 7))  # of the suites; the rest is for the others
RESERVE = 4.0  # seconds for the last words

GRAPHS = """
import sys, time
from tests import fuzz
first, step, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
end, ran, bad, seed = time.monotonic() + seconds, 0, 0, first
while time.monotonic() < end and bad < 5:
    try:
        fuzz.check(seed, device="cuda", smallest=False)
    except BaseException as problem:
        bad += 1
        print("SEED", seed, type(problem).__name__, str(problem)[:900], flush=True)
    ran += 1; seed += step
    if ran % 20 == 0: print(f"so far {ran} graphs, {bad} wrong", flush=True)
print(f"done {ran} graphs, {bad} wrong", flush=True)
"""

PROGRAMS = """
import sys, time
import numpy as np
from tests.fuzz import programs
first, seconds = int(sys.argv[1]), float(sys.argv[2])
end, ran, bad = time.monotonic() + seconds, 0, 0
with np.errstate(all="ignore"):
    while time.monotonic() < end and bad < 5:
        try:
            for failure in programs.failures(0, range(first + ran, first + ran + 5), "cuda", False):
                bad += 1
                print(failure.short(), failure.verdict(), flush=True)
        except BaseException as problem:
            bad += 1
            print("PROGRAM", first + ran, type(problem).__name__, str(problem)[:900], flush=True)
        ran += 5
        if ran % 20 == 0: print(f"so far {ran} programs, {bad} wrong", flush=True)
print(f"done {ran} programs, {bad} wrong", flush=True)
"""

SANITIZED = """
import numpy as np, fulgurite as fg
from fulgurite import nn, optim
rng = np.random.default_rng(0)
x = fg.Tensor(rng.standard_normal((37, 65)).astype("float32"))
index = fg.Tensor(rng.integers(0, 37, 50))
found = [fg.softmax(x, axis=-1), fg.layer_norm(x, (65,)), x @ x.T, fg.sort(x, axis=1),
         fg.cumulative_sum(x, axis=1), fg.take(x, index, 0), x.T + 1, x.sum(),
         fg.random.normal((33,)), fg.scatter_add(fg.zeros((37,)), 0, index, fg.ones((50,)))]
for one in found: one.numpy()
q = fg.Tensor(rng.standard_normal((2, 70, 32)).astype("float32")).astype("bfloat16")
(fg.softmax(q @ fg.swapaxes(q, -1, -2), axis=-1) @ q).numpy()
print("sample ran")
"""


def left(until: float) -> float:
    """Seconds until a moment of the run."""
    return STARTED + until - time.monotonic()


def say(*words: object) -> None:
    """A line, with the second it was said in."""
    print(f"[{time.monotonic() - STARTED:5.1f}]", *words, flush=True)


class Part:
    """One process with a log."""

    def __init__(self, name: str, command: list[str], limit: float, **environment: str) -> None:
        self.name, self.limit, self.log = name, limit, OUT / f"{name}.log"
        known = os.environ | {
            "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
            "FULGURITE_DEVICE": "cuda", "FULGURITE_CACHE_DIR": str(OUT / f"cache-{name}"),
            **environment,
        }  # fmt: skip
        known = {key: value for key, value in known.items() if value != ""}
        self.begun = time.monotonic()
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=known, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> str:
        """Wait to the limit, end what is left of it, and give back what it said."""
        try:
            self.process.wait(max(0.5, self.limit - (time.monotonic() - self.begun)))
        except subprocess.TimeoutExpired:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(self.process.pid, sign)
                    self.process.wait(1.0)
                    break
                except (subprocess.TimeoutExpired, ProcessLookupError):
                    continue
        self.took = time.monotonic() - self.begun
        return self.log.read_text(errors="replace")


def script(name: str, text: str, limit: float, **environment: str) -> str:
    """A script alone on the GPU: its last lines."""
    said = Part(name, [sys.executable, "-c", text], limit, **environment).wait().strip()
    return said[-1200:] or "nothing was said"


# --- alone on the GPU ----------------------------------------------------------------------------


def alone(until: float) -> None:
    """What must not be disturbed."""
    say(last(Part("doctor", [sys.executable, "-c", DOCTOR], 15).wait(), 400))
    for name, text in (("softmax", COLD), ("step", STEP)):
        cache = {"FULGURITE_CACHE_DIR": str(OUT / f"cache-{name}")}
        for turn in ("cold", "second") if left(until) > 8 else ():
            say(f"{name} {turn}:", last(script(f"{name}-{turn}", text, 20, **cache), 500))
    cache = {"FULGURITE_CACHE_DIR": str(OUT / "cache-step")}
    if left(until) > 8:
        say("step in one chain:", last(script("step-chain", CHAIN + STEP, 15, **cache), 500))
        say("profile:", script("profile", PROFILE, 15, **cache)[-2600:])
    if left(until) > 8:
        bench = [sys.executable, "-m", "bench.cuda", "--short", "--write", str(OUT / "h200.md")]
        found = Part("bench", bench, min(45, left(until)), FULGURITE_DEVICE="").wait()
        say("bench:\n" + found.strip()[-3500:])
    if left(until) > 6:
        tiles = [sys.executable, "tests/codegen/cuda/on_gpu.py", "bench", "softmax", "layernorm",
                 "gelu", "causal_attention", "matmul_bf16", "transpose", "sort"]  # fmt: skip
        found = Part("tiles", tiles, min(15, left(until)), FULGURITE_DEVICE="").wait()
        say("other tiles:\n" + found.strip()[-1800:])


CHAIN = "from fulgurite.runtime.cuda import executor; executor.MOST_BRANCHED = 0\n"
DOCTOR = "from fulgurite.runtime.cuda.report import summary; print(*summary())"


def last(text: str, characters: int) -> str:
    """The end of a text."""
    lines = text.strip().splitlines()
    return (lines[-1] if lines else "nothing")[-characters:]


# --- side by side --------------------------------------------------------------------------------


def together(until: float) -> None:
    """Suites, fuzzers, training and the sanitizer, until time is up."""
    seconds = left(until)
    python = sys.executable
    tally = OUT / "suites.jsonl"
    suites = [
        python, "-m", "pytest", "-q", "-m", "cuda and not slow", "-n", str(WORKERS), "--dist",
        "load", "-p", "tests.runtime.cuda.tally", "-p", "no:cacheprovider", "-W", "ignore",
        "--tb=short", "--continue-on-collection-errors", "tests",
    ]  # fmt: skip
    inside = str(max(5.0, seconds - 12))
    parts = [
        Part("suites", suites, seconds, FULGURITE_DEVICE="", FULGURITE_TALLY=str(tally)),
        *[Part(f"graphs{i}", [python, "-c", GRAPHS, str(i), "3", inside], seconds)
          for i in range(3)],
        *[Part(f"programs{i}", [python, "-c", PROGRAMS, str(i * 100_000), inside], seconds)
          for i in range(2)],
        *[Part(f"{task}-{where}",
               [python, "-m", "fulgurite", "train", task, "--device", where, "--steps", "100",
                "--save", str(OUT / f"{task}-{where}")], seconds, FULGURITE_DEVICE="",
               FULGURITE_THREADS="2")
          for task, where in (("charlm", "cuda"), ("charlm", "cpu"), ("digits", "cuda"))],
    ]  # fmt: skip
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer:
        parts += [
            Part(tool, [sanitizer, "--tool", tool, python, "-c", SANITIZED], seconds)
            for tool in ("memcheck", "racecheck")
        ]
    for part in parts[1:]:
        said = part.wait()
        keep = 260 if part.name.startswith(("graphs", "programs")) else 700
        wrong = [line[:300] for line in said.splitlines() if line.startswith(("SEED", "PROGRAM"))]
        say(f"{part.name} ({part.took:.0f} s):", said.strip()[-keep:].replace("\n", " | "))
        for line in wrong[:3]:
            say("   ", line)
    parts[0].wait()
    report(tally, parts[0])


def report(tally: Path, part: Part) -> None:
    """How many tests passed, and why others did not."""
    lines = tally.read_text(encoding="utf-8").splitlines() if tally.exists() else []
    found = [json.loads(line) for line in lines]
    counts = Counter(one["outcome"] for one in found)
    say(f"suites ({part.took:.0f} s): {dict(counts)}; {last(part.log.read_text(), 200)}")
    failed = [one for one in found if one["outcome"] == "failed"]
    reasons: Counter[str] = Counter()
    for one in failed:
        errors = [line for line in one["why"].splitlines() if line.startswith("E ")]
        reasons[re.sub(r"0x[0-9a-f]+|\d+", "N", (errors or [one["why"][-130:]])[0])[:140]] += 1
    for reason, count in reasons.most_common(20):
        say(f"  {count:4d} {reason}")
    names = Counter(one["test"].partition("[")[0] for one in failed)
    for name, count in names.most_common(35):
        say(f"  {count:4d} {name}")


def main() -> None:
    """Both halves in the time there is."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 140.0
    say(f"logs are in {OUT}")
    try:
        alone(0.42 * seconds)
    except BaseException as problem:
        say("alone:", repr(problem)[-500:])
    together(seconds - RESERVE)
    for cache in OUT.glob("cache-*"):
        shutil.rmtree(cache, ignore_errors=True)
    say("the end")


if __name__ == "__main__":
    main()
