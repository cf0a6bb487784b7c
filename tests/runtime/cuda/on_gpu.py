# ruff: noqa: E501, W291 (scripts as text)
"""The CUDA device on a GPU, in one run: `python tests/runtime/cuda/on_gpu.py [suites S] [times]`.

From the repository's root. `suites S`: the device-parametrised suites with `-m cuda`, stopped after
S seconds; failures are counted by their message. `times`: cold start, second process,
a training step (one launch) and its host time, and the memory-bound functions beside torch.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
SUITES = (
    "tests/core/ops", "tests/functional", "tests/nn", "tests/optim", "tests/autodiff",
    "tests/random", "tests/test_fft.py", "tests/test_linalg.py", "tests/control",
    "tests/test_variables.py", "tests/test_state.py", "tests/test_jit.py", "tests/test_jit_state.py",
    "tests/test_jit_variables.py", "tests/graph/test_fuzz.py", "tests/onnx/test_model.py",
    "tests/runtime/test_realize.py", "tests/einops", "tests/io",
)  # fmt: skip

COLD = """
import time; a = time.perf_counter()
import numpy as np, fulgurite as fg
b = time.perf_counter()
x = fg.Tensor(np.random.default_rng(0).standard_normal((1024, 1024)).astype("float32"))
want = np.exp(x.numpy() - x.numpy().max(-1, keepdims=True)); want /= want.sum(-1, keepdims=True)
c = time.perf_counter()
y = fg.softmax(x, axis=-1).numpy()
d = time.perf_counter()
import sys
print(f"import {b-a:.2f} s, first copy {c-b:.2f} s, softmax {d-c:.3f} s, error "
      f"{np.abs(y-want).max():.1e}, triton imported: {'triton' in sys.modules}")
"""

STEP = """
import time, sys
t0 = time.perf_counter()
import numpy as np, fulgurite as fg
from fulgurite import nn, optim
fg.random.seed(0) if hasattr(fg.random, "seed") else None
t1 = time.perf_counter()
model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
opt = optim.Adam(model.parameters(), lr=1e-3)
rng = np.random.default_rng(0)
xs = fg.Tensor(rng.standard_normal((128, 784)).astype("float32"))
ys = fg.Tensor(rng.integers(0, 10, 128))
@fg.jit
def step(x, y):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    return loss
losses = [step(xs, ys).item() for _ in range(3)]
t2 = time.perf_counter()
from fulgurite.runtime.device import get_device
dev = get_device("cuda")
for _ in range(20): loss = step(xs, ys)
dev.synchronize()
n = 200
a = time.perf_counter()
for _ in range(n): loss = step(xs, ys)
dev.synchronize(); c = time.perf_counter()
alone = []  # the host's own time: a few steps at a time, which wait for nothing
for _ in range(60):
    b = time.perf_counter()
    for _ in range(3): loss = step(xs, ys)
    alone.append((time.perf_counter() - b) / 3); dev.synchronize()
alone.sort()
from fulgurite.runtime.cuda.executor import CudaProgram
real, spent = CudaProgram.launch_in_place, []
def timed(*given, **more):
    b = time.perf_counter(); found = real(*given, **more); spent.append(time.perf_counter() - b)
    return found
CudaProgram.launch_in_place = timed
for _ in range(60):
    for _ in range(3): loss = step(xs, ys)
    dev.synchronize()
CudaProgram.launch_in_place = real
print(f"MLP step: import {t1-t0:.2f} s, 3 first steps {t2-t1:.2f} s, then host {1e3*alone[30]:.4f} ms "
      f"(least {1e3*alone[0]:.4f}), of which launch {1e3*sorted(spent)[len(spent)//2]:.4f} ms, all {1e3*(c-a)/n:.4f} ms, losses {losses} -> {loss.item():.5f}, triton: {'triton' in sys.modules}")
"""


PROFILE = STEP.replace(
    'print(f"MLP',
    """
from fulgurite.runtime.cuda import driver as cu
for program in list(dev.programs):
    if not program.taken: continue
    frame = program.acquire(False)
    start, end = cu.Event(dev.driver, timing=True), cu.Event(dev.driver, timing=True)
    items = iter([i for i in program.schedule.items])
    total = 0
    names = [(item.kernel.name, item.kernel.kind) for item in program.schedule.items]
    print(len(names), "kernels", names)
    for part in frame.parts:
        for one, arguments in zip(part.segment.launches, part.arguments):
            for _ in range(3): cu.launch(dev.driver, one.function, one.grid, arguments, dev.stream)
            start.record(dev.stream)
            for _ in range(30): cu.launch(dev.driver, one.function, one.grid, arguments, dev.stream)
            end.record(dev.stream); end.synchronize()
            t = end.since(start) / 30 * 1e3; total += t
            print(f"  {t:7.1f} us grid {one.grid} block {one.function.block} shared {one.function.shared}", len(one.arguments))
    print("sum", total)
import cProfile, pstats
pr = cProfile.Profile(); pr.enable()
for _ in range(200): step(xs, ys)
pr.disable(); pstats.Stats(pr).sort_stats("tottime").print_stats(12)
print(f"MLP""",
)

COPIES = """
import time
import numpy as np, fulgurite as fg
from fulgurite.runtime.device import get_device
dev = get_device("cuda")
w = fg.Tensor(np.ones((4096, 4096), "float32") / 4096).astype("bfloat16").realize()
batches = [np.full((4096, 4096), i, "float32") for i in range(4)]  # 64 MiB each
step = fg.jit(lambda x: ((((x.astype("bfloat16") @ w) @ w) @ w) @ w).sum())
kept = fg.Tensor(batches[0]).realize()
def run(make, n=30):
    for i in range(4): y = step(make(i))
    dev.synchronize(); a = time.perf_counter()
    for i in range(n): y = step(make(i))
    host = time.perf_counter() - a; dev.synchronize()
    return 1e3 * (time.perf_counter() - a) / n, 1e3 * host / n, y.item()
alone = run(lambda i: kept)
def copy(i): return fg.Tensor(batches[i % 4]).realize()
for i in range(4): copy(i)
dev.synchronize(); a = time.perf_counter()
for i in range(30): x = copy(i)
dev.context.synchronize(); copies = 1e3 * (time.perf_counter() - a) / 30
both = run(copy)
print(f"a step {alone[0]:.2f} ms, a copy of 64 MiB {copies:.2f} ms, both {both[0]:.2f} ms (host {both[1]:.2f}); "
      f"all overlap: {max(alone[0], copies):.2f}, none: {alone[0] + copies:.2f}")
"""

FUNCTIONS = """
import numpy as np
from dataclasses import replace
from fulgurite.codegen.cuda.tiling import HOPPER
from tests.codegen.cuda.launching import Gpu
from tests.codegen.cuda.workloads import rendered, scheduled
import fulgurite as fg
import ml_dtypes
bf16 = ml_dtypes.bfloat16
gpu, table = Gpu(), replace(HOPPER, short_functions=True)
def run(build, word, *arrays, out="float32", table=table):
    (item,) = scheduled(build, tuple((a.shape, "float32") for a in arrays)).items
    made = rendered(item.kernel, table)
    assert word in made.launches[0].text, made.launches[0].text
    like = np.full(arrays[0].shape, np.nan, out)
    found, _ = gpu.run(made, [*arrays, like], {})
    return found[-1]
x = np.arange(0, 1 << 31, 97, dtype=np.uint32).view(np.float32)
x = np.concatenate([x, -x])
rng = np.random.default_rng()
near = rng.standard_normal((4096, 2048), np.float32) * 10
any_bits = rng.integers(0, 1 << 32, near.shape, dtype=np.uint32).view(np.float32)
by = rng.integers(0, 1 << 32, (4096, 1), dtype=np.uint32).view(np.float32)
with np.errstate(all="ignore"):
    got, want = run(fg.tanh, "fg_tanh(", x), np.tanh(x.astype(np.float64))
    fine = np.isfinite(want)
    ulp = np.abs(got[fine] - want[fine]) / np.spacing(np.abs(want[fine]).astype(np.float32))
    signs = np.signbit(got) == np.signbit(x)
    print("tanh:", len(x), "numbers, at most", float(ulp.max()), "ulp at", float(x[fine][ulp.argmax()]),
          "; NaN as NumPy:", bool((np.isnan(got) == np.isnan(want)).all()), "; signs:", bool(signs[fine].all()))
    got, want = run(fg.exp, "fg_exp(", x, table=HOPPER), np.exp(x.astype(np.float64))
    fine = want.astype(np.float32) < np.inf
    ulp = np.abs(got[fine] - want[fine]) / np.spacing(want[fine].astype(np.float32))
    same = np.array_equal(np.isfinite(got), np.isfinite(want.astype(np.float32)))
    print("exp:", "at most", float(ulp.max()), "ulp at", float(x[fine][ulp.argmax()]), "; finite, NaN where exp is:",
          same, bool((np.isnan(got) == np.isnan(want)).all()))
    def apart(got, want):
        rounded = want.astype("float32").astype(bf16).astype("float32")
        ok = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        near = np.abs(got - rounded) <= np.spacing(np.abs(rounded)) * 65536
        return f"{int((~ok).sum())} of {ok.size} rounded otherwise, {int((~(ok | near)).sum())} by more than 1 ulp"
    for name, top, low in (("any bits", any_bits, by), ("near 1", near, near[:, :1].copy())):
        got = run(lambda x, y: (x / y).astype("bfloat16"), "fg_reciprocal(", top, low, out=bf16).astype("float32")
        print("quotient,", name, "-", apart(got, top.astype("float64") / low))
    got = run(lambda x: fg.tanh(x).astype("bfloat16"), "fg_narrow_tanh(", x, out=bf16,
              table=replace(HOPPER, narrow_tanh=True)).astype("float32")
    print("tanh of 16 bits -", apart(got, np.tanh(x.astype("float64"))))
    got = run(lambda x: fg.exp(x).astype("bfloat16"), "fg_narrow_exp(", any_bits, out=bf16).astype("float32")
    print("exp -", apart(got, np.exp(any_bits.astype("float64"))))
"""

BOTH_FORMS = """
import os, sys, time
os.environ["FULGURITE_DEVICE"] = "cuda"
from dataclasses import replace
import numpy as np, fulgurite as fg
from fulgurite import nn
from fulgurite.codegen.cuda import generator
from fulgurite.runtime.device import get_device
from fulgurite.runtime.cuda import driver as cuda
plain = generator.HOPPER
rng = np.random.default_rng(0)
x = fg.Tensor(rng.standard_normal((8, 1024, 768)).astype("float32")).astype("bfloat16").realize()
def weight(*shape):
    return fg.Tensor((rng.standard_normal(shape) * 0.02).astype("float32")).astype("bfloat16").realize()
wq, wo, w1, w2 = weight(768, 2304), weight(768, 768), weight(768, 3072), weight(3072, 768)
def block(x):
    h = fg.layer_norm(x, (768,))
    p = (h @ wq).reshape(8, 1024, 3, 12, 64)
    q, k, v = (fg.swapaxes(p[:, :, i], 1, 2) for i in range(3))
    n = fg.arange(1024)
    s = fg.where(n[:, None] >= n, (q @ fg.swapaxes(k, -1, -2)) * 0.125, -float("inf"))
    a = fg.swapaxes(fg.softmax(s, axis=-1) @ v, 1, 2).reshape(8, 1024, 768)
    x = x + a @ wo
    h = fg.layer_norm(x, (768,))
    return x + fg.gelu(h @ w1, approximate="tanh") @ w2
results = {}
dev = get_device("cuda")
for name, table in (("plain", plain), ("gluon", replace(plain, gluon=True, gluon_stream=True)),
                    ("all", replace(plain, gluon=True, gluon_stream=True, stream_fast_exp=True, short_functions=True))):
    generator.HOPPER = table
    fg.clear_caches()
    f = fg.jit(lambda x: block(block(x)))
    with fg.config(disk_cache=False):
        t = time.perf_counter(); y = f(x).numpy().astype("float32"); cold = time.perf_counter() - t
        for _ in range(5): f(x)
        first, last = cuda.Event(dev.driver, timing=True), cuda.Event(dev.driver, timing=True)
        first.record(dev.stream)
        for _ in range(20): z = f(x)
        last.record(dev.stream); last.synchronize()
    results[name] = y
    apart = float(np.linalg.norm(y - results["plain"]) / np.linalg.norm(y))
    print(f"two blocks of a transformer, {name}: {last.since(first)/20:.4f} ms, first call {cold:.2f} s, apart {apart:.1e}", flush=True)
"""

PARTS = """
import time; a = time.perf_counter()
import triton
b = time.perf_counter()
import fulgurite.codegen.cuda.compilation.compiler as c
from triton._C.libtriton import ir
from triton.compiler import ASTSource, make_backend
d = time.perf_counter()
import numpy as np, fulgurite as fg
from tests.codegen.cuda.workloads import *
w = WORKLOADS[0]
sched = scheduled(w.build, (((1024, 1024), "float32"),))
e = time.perf_counter()
src = [rendered(i.kernel) for i in sched.items]
f = time.perf_counter()
from fulgurite.codegen.cuda.compilation.compiler import _Compilation
for s in src:
    for n in s.launches:
        t0 = time.perf_counter(); k = _Compilation(n, 90); t1 = time.perf_counter(); 
        stages = {}; k.backend.add_stages(stages, k.options, k.source.language)
        m, meta = k.module, {"target": k.target, **k.options.__dict__}
        times = []
        for name, stage in stages.items():
            x = time.perf_counter(); m = stage(m, meta); times.append((name, round(time.perf_counter() - x, 3)))
        print("parsed", round(t1-t0,3), times)
print(f"triton {b-a:.3f} compiler {d-b:.3f} fg+schedule {e-d:.3f} render {f-e:.3f}")
"""


def suites(seconds: int) -> None:
    """The suites, with xdist."""
    log = Path(os.environ.get("OUT", tempfile.mkdtemp())) / "suites.log"
    environment = os.environ | {
        "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environment.pop("FULGURITE_DEVICE", None)
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "14", "--dist", "worksteal", "--no-header",
        "-W", "ignore", "-p", "no:cacheprovider", "-p", "no:benchmark", "--tb=short",
        "-m", "cuda and not slow", "--continue-on-collection-errors",
        *[s for s in SUITES if (ROOT / s).exists()],
    ]  # fmt: skip
    start = time.monotonic()
    with log.open("w") as output:
        made = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            made.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(made.pid, signal.SIGINT)
            try:
                made.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(made.pid, signal.SIGKILL)
            print(f"stopped after {seconds} s")
    text = log.read_text(errors="replace")
    print(f"suites, {time.monotonic() - start:.0f} s:", text.strip().splitlines()[-1][-300:])
    reasons = Counter(
        re.sub(r"0x[0-9a-f]+|\d+", "N", line[4:])[:130]
        for line in text.splitlines()
        if line.startswith("E   ")
    )
    for reason, count in reasons.most_common(30):
        print(f"  {count:5d} {reason}")
    files = Counter(m[1] for m in re.finditer(r"^FAILED (\S+?)(?:\[| |$)", text, re.M))
    for name, count in files.most_common(40):
        print(f"  {count:5d} {name}")


def script(name: str, text: str, **more: str) -> None:
    """A script in a process of its own."""
    environment = os.environ | {"FULGURITE_DEVICE": "cuda", "PYTHONPATH": str(ROOT), **more}
    found = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    print(f"{name}:", found.stdout.strip() or found.stderr.strip()[-1500:])


def times() -> None:
    """Cold start, second process, the step; of a package with bytecode, as installers leave it."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", "fulgurite"], cwd=ROOT, check=False)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "second process"):
            script(f"{name}", COLD, FULGURITE_CACHE_DIR=folder)
        for name in ("cold", "second process"):
            script(f"{name}", STEP, FULGURITE_CACHE_DIR=folder)


def main() -> None:
    """What the arguments say."""
    arguments = sys.argv[1:]
    if "times" in arguments:
        times()
    if "profile" in arguments:
        script("profile", PROFILE)
        script("parts", PARTS)
    if "suites" in arguments:
        suites(int(arguments[arguments.index("suites") + 1]))


if __name__ == "__main__":
    main()
