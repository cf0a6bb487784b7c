"""The first softmax of a process, from an empty cache: `python tests/runtime/cuda/cold.py [fake]`.

In: `fake` for a libcuda whose start takes as long as a GPU's, `turns=N` (3), and roots of
checkouts to compare (this one). Out: for each root in turns the seconds from the import to the
result, `COLD` of `on_gpu`; then, of a run that is traced, when each phase began and ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.runtime.cuda.on_gpu import COLD  # noqa: E402 (the path comes first)

SLEEPS = "cuInit=150000 cuDevicePrimaryCtxRetain=110000 cuMemHostAlloc=1000 cuModuleLoadData=1000"
TRACED = """
import time, threading
zero = time.perf_counter()
import numpy as np, fulgurite as fg
b = time.perf_counter()
from fulgurite.runtime.cuda import driver, device, kernels, staging
from fulgurite.codegen.cuda.compilation import pool
from fulgurite.runtime import pipeline, realize
marks = []
def timed(owner, name, what=None):
    real = getattr(owner, name, None)
    if real is None: return
    def wrapped(*given, **more):
        begun, worked = time.perf_counter(), time.thread_time()
        try: return real(*given, **more)
        finally:
            worked = time.thread_time() - worked
            label = (what or name) if name != "call" else given[1]
            main = threading.current_thread() is threading.main_thread()
            marks.append((begun - b, time.perf_counter() - b, label, main, worked))
    setattr(owner, name, wrapped)
timed(driver.Driver, "call")
timed(driver.Driver, "__init__", "driver")
timed(pool.CompilePool, "__init__", "start of the compile server")
timed(pool, "compile_launch", "compiled by a worker")
timed(pipeline, "planned")
timed(realize, "_found_or_made", "found or made")
timed(realize, "lookup")
timed(realize, "kept_plans")
timed(realize, "compile_graph")
timed(realize, "realize")
from fulgurite.runtime.cache import plan_cache, disk
timed(plan_cache.PlanCache, "key", "key of the plan")
timed(plan_cache.PlanCache, "_load", "plan from disk")
timed(plan_cache.PlanCache, "keep", "plan to disk")
timed(disk.Store, "put_many")
timed(device.CudaDevice, "__init__", "device")
timed(device.CudaDevice, "from_host")
timed(device.CudaDevice, "compile_guarded", "render and compile")
timed(kernels.KernelTable, "_load", "load")
timed(staging.Staging, "__init__", "pinned memory")
x = fg.Tensor(np.random.default_rng(0).standard_normal((1024, 1024)).astype("float32"))
made = time.perf_counter() - b
y = fg.softmax(x, axis=-1)
done = y.numpy()
print(f"import {b - zero:.3f}; tensor at {made:.3f}; softmax at {time.perf_counter() - b:.3f}")
seen = set()
for begun, ended, label, main, worked in sorted(marks):
    if ended - begun > 0.002 or label in ("cuLaunchKernel", "load"):
        print(f"  {begun:6.3f} - {ended:6.3f} ({worked:.3f} busy) {'' if main else '| '}{label}")
"""


def run(root: str, text: str, environment: dict[str, str]) -> str:
    """What a script says that has an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"PYTHONPATH": root, "FULGURITE_CACHE_DIR": folder, "FULGURITE_DEVICE": "cuda"}
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=root, env=os.environ | environment | own,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    return done.stdout.strip() or done.stderr.strip()[-1500:]


def made_ready(roots: list[str]) -> None:
    """The C extension and bytecode, as an installed package has them; files in the page cache."""
    steps = ["fulgurite/core/_build.py"], ["-m", "compileall", "-q", "fulgurite"]
    begun = [
        subprocess.Popen([sys.executable, *step], cwd=root, stdout=subprocess.DEVNULL)
        for root in roots
        for step in steps
    ]
    for process in begun:
        process.wait()


def main() -> None:
    """Roots in turns, then each traced."""
    words, environment = sys.argv[1:], dict[str, str]()
    if "fake" in words:
        from tests.runtime.cuda import fake

        environment = {"FULGURITE_LIBCUDA": fake.library(), "FAKE_CUDA_SLEEPS": SLEEPS}
    turns = next((int(word[6:]) for word in words if word.startswith("turns=")), 3)
    roots = [os.path.abspath(word) for word in words if os.path.isdir(word)] or [str(ROOT)]
    made_ready(roots)
    run(roots[0], COLD, environment)
    for _ in range(turns):
        for root in roots:
            print(f"{root}: {run(root, COLD, environment)}", flush=True)
    for root in roots:
        print(f"{root}: {run(root, TRACED, environment)}", flush=True)


if __name__ == "__main__":
    main()
