"""All that is worth knowing of the CUDA device on a GPU, in one run of a given length.

`python3 tests/runtime/cuda/h200.py [seconds] [parts]` (140, all) from the repository's root, or
`h200.py first`, `second` and `third`: the run book of half an hour (`RUN_BOOK`, docs/cuda.md).
Alone on the GPU, in this order: `gluon` (Hopper's own forms of products and folds against float64
at random shapes), `tiles` (variants of kernels, timed: rows, products, folds), `functions` (short
forms of functions, their largest errors), `cold` (first calls, the training step and its host
time), `families` (every family of kernels against float64), `tables` (training steps and decoding
with and without what is off in `GpuTable`, in turns), `steps` (training steps beside
torch.compile), `peers` (attention, products and losses beside torch), `losses` (200 of them beside
torch's), `launches` (of both steps, one by one), `float8`, `decode` (beside torch), `copies`
(batches beside steps), `profile`, `bench` (bench/cuda.py beside torch, torch.compile and JAX),
`end` (a model's step with Hopper's forms on and off), `suites` (all tests of GPUs, `-m cuda`),
`cpu` (all others). Then side by side until time is up: `fuzz` (graphs and programs), `train`
(charlm and digits), `sanitize` (memcheck, racecheck, initcheck).
Every part is a process of its own with its own limit: none stops the others. What is printed is
short and printed at once; logs, and the outcome of each test, go to `$OUT` (or a folder that is
named) as they are made, so that a run that is cut has lost nothing.
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
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.runtime.cuda.on_gpu import (  # noqa: E402 (the path comes first)
    BOTH_FORMS,
    COLD,
    COPIES,
    FUNCTIONS,
    PROFILE,
    STEP,
)

OUT = Path(os.environ.get("OUT") or tempfile.mkdtemp())
STARTED = time.monotonic()
CORES = len(os.sched_getaffinity(0))
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
a = fg.Tensor(rng.standard_normal((1000, 1024)).astype("float32")).astype("bfloat16").realize()
fg.relu(a @ fg.swapaxes(a, 0, 1)).numpy()  # Hopper's own forms from here on
n, h = fg.arange(200), fg.swapaxes(a[:, :1000].reshape(1000, 40, 25), 0, 1)[:, :200, :16].realize()
s = fg.where(n[:, None] >= n, h @ fg.swapaxes(h, -1, -2), -float("inf"))
(fg.softmax(s, axis=-1) @ h).numpy()
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
        self.name, self.limit = name, limit
        file = re.sub("[^a-z0-9]+", "-", name.lower())
        self.log = OUT / f"{file}.log"
        known = os.environ | {
            "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
            "FULGURITE_DEVICE": "cuda", "FULGURITE_CACHE_DIR": str(OUT / f"cache-{file}"),
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


CODEGEN = "tests/codegen/cuda"
TILES = {
    "rows": ("softmax", "layernorm", "rmsnorm", "gelu"),
    "products": ("matmul_bf16", "gemm_2048", "gemm_4096", "gemm_8192", "gemm_nt", "gemm_gelu"),
    "folds": ("attention", "causal_attention", "causal_long", "attention_long", "attention_64"),
}


def alone(until: float, parts: Sequence[str]) -> None:
    """What must not be disturbed, as long as there is time."""
    built = Part("extension", [sys.executable, "fulgurite/core/_build.py"], 60)
    say("C extension:", last(built.wait(), 300))
    say(last(Part("doctor", [sys.executable, "-c", DOCTOR], 15).wait(), 400))
    for part in ALONE:
        if part in parts:
            ALONE[part](until)


def command(name: str, limit: float, until: float, keep: int, *words: str) -> None:
    """A script alone on the GPU, and the end of what it said."""
    limit = min(limit, left(until))
    if limit < 6:
        say(f"{name}: no time")
        return
    part = Part(name, [sys.executable, *words], limit, FULGURITE_DEVICE="")
    found = part.wait()
    say(f"{name} ({part.took:.0f} s):\n" + found.strip()[-keep:])


def gluon(until: float) -> None:
    """Hopper's own forms, right or wrong."""
    for name, words, limit in (
        ("products", "products", 50), ("folds", "folds", 60),
        ("masks", "folds padded far unsigned", 30),
        ("brief", "products narrow_tanh=True gluon_contracted=True", 50),
    ):  # fmt: skip
        command(f"gluon-{name}", limit, until, 1500, f"{CODEGEN}/gluon_on_gpu.py", *words.split())


def tiles(until: float) -> None:
    """Kernels by other tables."""
    for what, names in TILES.items():
        command(f"tiles-{what}", 70, until, 3600, f"{CODEGEN}/on_gpu.py", "bench", *names)


def functions(until: float) -> None:
    """Errors of short functions."""
    command("functions", 40, until, 800, "-c", FUNCTIONS)


def cold(until: float) -> None:
    """First calls of a process, and of a second one, of a package with bytecode as installed."""
    Part("bytecode", [sys.executable, "-m", "compileall", "-q", "fulgurite"], 30).wait()
    for name, text in (("softmax", COLD), ("step", STEP)):
        cache = {"FULGURITE_CACHE_DIR": str(OUT / f"cache-{name}")}
        for turn in ("cold", "second") if left(until) > 8 else ():
            say(f"{name} {turn}:", last(script(f"{name}-{turn}", text, 20, **cache), 600))


def families(until: float) -> None:
    """Fifty random shapes of every family of kernels against float64."""
    seconds = max(10, min(140, int(left(until)) - 15))
    words = "shapes=50", f"seconds={seconds}", f"workers={max(1, CORES // 2)}"
    command("families", 160, until, 2400, f"{CODEGEN}/families_on_gpu.py", *words)


BESIDE_PEERS = (  # what is timed, words for `bench.hopper`, seconds at most
    ("attention", "attention --only x64", 60), ("gradients", "gradients --only x64", 90),
    ("variants", "variants", 45), ("loss", "loss", 35),
    ("products", "products --only 128x4096x4096 2048x8192x28672 256x12288x4096", 35),
    ("epilogues", "epilogues", 25),
    ("brief", "epilogues --table narrow_tanh=True gluon_contracted=True", 25),
)  # fmt: skip


def peers(until: float) -> None:
    """Products, attention and losses beside cuBLAS and cuDNN."""
    for name, words, limit in BESIDE_PEERS:
        seconds = "--seconds", str(limit - 12)  # for the row that has begun by then
        command(name, limit, until, 4500, "-m", "bench.hopper", *words.split(), *seconds)


OFF = {  # what is timed with and without fields of the table that are off
    "gpt2": ("", "narrow_tanh=True", "gluon_contracted=True",
             "narrow_tanh=True,gluon_contracted=True"),
    "decode": ("", "joined_row_products=True", "joined_row_products=True,many_rows=4096,many=4"),
}  # fmt: skip
TURNS = 2


def tables(until: float) -> None:
    """A training step and decoding with and without what is off, in turns."""
    for name, every in OFF.items():
        words: tuple[str, ...] = "-m", "bench.steps", name, "--systems", "ours"
        words = *words, "--limit", "40", "--steps", "20"
        if name == "decode":
            words = "-m", "bench.decode", "--ours", "--batches", "1", "--tokens", "200"
        for turn in range(TURNS):
            for table in every:
                more = ("--table", table) if table else ()
                title = f"{name} with {table or 'nothing else'}, {turn}"
                command(title, 45, until, 200, *words, *more)


def steps(until: float) -> None:
    """Training steps beside torch.compile."""
    words = "gpt2", "resnet50", "--systems", "ours,compile", "--limit", "80"
    command("steps", 190, until, 1800, "-m", "bench.steps", *words)


def losses(until: float) -> None:
    """Losses of 200 steps behind a warm-up, beside torch's."""
    for name, rate in (("gpt2", "3e-5"), ("resnet50", "0.02")):
        curve = "--systems", "ours,torch", "--curve", "200", "--limit", "45"
        how = "--rate", rate, "--warm-up", "20"
        command(f"losses of {name}", 70, until, 500, "-m", "bench.steps", name, *curve, *how)


def launches(until: float) -> None:
    """The launches of both steps, one by one."""
    for name, compared in (("gpt2", "lanes0,default"), ("resnet50", "default")):
        words = "tests.codegen.cuda.time_plan", name, "--rows", "40", "--tables", compared
        command(f"launches of {name}", 70, until, 5000, "-m", *words)


def decode(until: float) -> None:
    """Decoding beside torch's CUDA graph and its eager mode."""
    words = "--batches", "1,32", "--tokens", "200", "--rounds", "2"
    command("decode", 70, until, 900, "-m", "bench.decode", *words)


def float8(until: float) -> None:
    """Products of float8 by cuBLASLt beside ours."""
    command("float8", 45, until, 1800, "tests/runtime/cuda/cublas_on_gpu.py", "hopper", "30")


def copies(until: float) -> None:
    """Copies of batches beside steps."""
    if left(until) > 8:
        say("copies:", last(script("copies", COPIES, 20), 400))


def profile(until: float) -> None:
    """The kernels of the step, one by one; the step in one chain."""
    cache = {"FULGURITE_CACHE_DIR": str(OUT / "cache-step")}
    if left(until) > 8:
        say("step in one chain:", last(script("step-chain", CHAIN + STEP, 15, **cache), 600))
        say("profile:", script("profile", PROFILE, 20, **cache)[-2600:])


def bench(until: float) -> None:
    """Beside torch and JAX."""
    words = "--short", "--compile", "--write", str(OUT / "h200.md")
    command("bench", 110, until, 3500, "-m", "bench.cuda", *words)


def end(until: float) -> None:
    """A model's step by both forms."""
    command("end", 60, until, 1500, "-c", BOTH_FORMS)


def suites(until: float) -> None:
    """All tests of GPUs."""
    tested("suites", until, 250, max(1, min(15, CORES - 1)), "-m", "cuda and not slow")


def cpu(until: float) -> None:
    """All tests of a machine without a GPU, on all cores: what `make test` runs."""
    tested("cpu", until, 220, CORES)


def tested(name: str, until: float, limit: float, workers: int, *words: str) -> None:
    """Tests alone, and how many passed; what each said is in a file before the next begins."""
    tally = OUT / f"{name}.jsonl"
    limit = min(limit, left(until))
    if limit < 20:
        say(f"{name}: no time")
        return
    run = [
        sys.executable, "-m", "pytest", "-q", *words, "-n", str(workers), "--dist", "worksteal",
        "-p", "tests.runtime.cuda.tally", "-p", "no:cacheprovider", "-W", "ignore", "--tb=short",
        "--continue-on-collection-errors", "tests",
    ]  # fmt: skip
    part = Part(name, run, limit, FULGURITE_DEVICE="", FULGURITE_TALLY=str(tally))
    part.wait()
    report(tally, part)


ALONE = {
    "gluon": gluon, "tiles": tiles, "functions": functions, "cold": cold,
    "families": families, "tables": tables, "steps": steps, "peers": peers, "losses": losses,
    "launches": launches, "float8": float8, "bench": bench, "decode": decode, "copies": copies,
    "profile": profile, "end": end, "suites": suites, "cpu": cpu,
}  # fmt: skip
CHAIN = "from fulgurite.runtime.cuda import executor; executor.BRANCHES = 1\n"
DOCTOR = "from fulgurite.runtime.cuda.report import summary; print(*summary())"


def last(text: str, characters: int) -> str:
    """The end of a text."""
    lines = text.strip().splitlines()
    return (lines[-1] if lines else "nothing")[-characters:]


# --- side by side --------------------------------------------------------------------------------


def together(until: float, chosen: Sequence[str]) -> None:
    """Fuzzers, training and the sanitizer, until time is up."""
    seconds = left(until)
    python = sys.executable
    inside = str(max(5.0, seconds - 12))
    parts: list[Part] = []
    if "fuzz" in chosen:
        many = max(3, CORES - 6)
        parts += [Part(f"graphs{i}", [python, "-c", GRAPHS, str(i), str(many), inside], seconds)
                  for i in range(many)]  # fmt: skip
        parts += [Part(f"programs{i}", [python, "-c", PROGRAMS, str(i * 100_000), inside], seconds)
                  for i in range(2)]  # fmt: skip
    if "train" in chosen:
        parts += [
            Part(f"{task}-{where}",
                 [python, "-m", "fulgurite", "train", task, "--device", where, "--steps", "100",
                  "--save", str(OUT / f"{task}-{where}")], seconds, FULGURITE_DEVICE="",
                 FULGURITE_THREADS="2")
            for task, where in (("charlm", "cuda"), ("charlm", "cpu"), ("digits", "cuda"))
        ]  # fmt: skip
    sanitizer = shutil.which("compute-sanitizer") if "sanitize" in chosen else None
    if sanitizer:
        parts += [
            Part(tool, [sanitizer, "--tool", tool, python, "-c", SANITIZED], seconds)
            for tool in ("memcheck", "racecheck", "initcheck")
        ]
    totals: Counter[str] = Counter()
    for part in parts:
        said = part.wait()
        for count, kind in re.findall(r"(?m)^done (\d+) (graphs|programs)", said):
            totals[kind] += int(count)
        keep = 260 if part.name.startswith(("graphs", "programs")) else 700
        wrong = [line[:300] for line in said.splitlines() if line.startswith(("SEED", "PROGRAM"))]
        say(f"{part.name} ({part.took:.0f} s):", said.strip()[-keep:].replace("\n", " | "))
        for line in wrong[:3]:
            say("   ", line)
    if totals:
        say("fuzzed:", dict(totals))


BESIDE = ("fuzz", "train", "sanitize")
RUN_BOOK = {  # half an hour in all, of which starting the machine takes a part
    "first": (560, ("gluon", "functions", "suites", *BESIDE)),
    "second": (560, ("cold", "tables", "steps", "bench", "decode")),
    "third": (550, ("peers", "float8", "cpu")),
}


def report(tally: Path, part: Part) -> None:
    """How many tests passed, and why others did not."""
    lines = tally.read_text(encoding="utf-8").splitlines() if tally.exists() else []
    found = [json.loads(line) for line in lines]
    counts = Counter(one["outcome"] for one in found)
    log = part.log.read_text(errors="replace")
    reached = re.findall(r"\[ *(\d+)%\]", log)[-1:]
    say(f"{part.name} ({part.took:.0f} s): {dict(counts)}; {last(log, 200)}", *reached)
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


def asked(words: Sequence[str]) -> tuple[float, Sequence[str]]:
    """Seconds and parts: as words say, or of a page of the run book."""
    if len(words) == 1 and words[0] in RUN_BOOK:
        return RUN_BOOK[words[0]]
    numbers = [float(word) for word in words if word.isdigit()]
    parts = [word for word in words if not word.isdigit()] or [*ALONE, *BESIDE]
    unknown = {*parts} - {*ALONE, *BESIDE}
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: parts are {', '.join([*ALONE, *BESIDE])}")
    return (numbers[0] if numbers else 140.0), parts


def main() -> None:
    """Both halves in the time there is."""
    seconds, parts = asked(sys.argv[1:])
    say(f"logs are in {OUT}")
    share = 1.0 if not {*parts} & {*BESIDE} else 0.78
    if {*parts} & {*ALONE}:
        try:
            alone(share * (seconds - RESERVE), parts)
        except BaseException as problem:
            say("alone:", repr(problem)[-500:])
    if {*parts} & {*BESIDE}:
        together(seconds - RESERVE, parts)
    for cache in OUT.glob("cache-*"):
        shutil.rmtree(cache, ignore_errors=True)
    say("the end")


if __name__ == "__main__":
    main()
