"""Every kernel of two training steps, compiled by the oldest Triton that we say we support.

In: versions, or none for the oldest (pyproject.toml's). Out: what does not compile, and 1 if there
is any. No GPU is needed: a text is compiled ahead of time for compute capability 9.0. Run it with
`make test-triton`; the environment is kept in .venv/triton for the next time. The steps are those
of `bench/steps.py` in full size (ResNet-50 and GPT-2 small), because tiles follow from sizes;
beside them, attention with masks that are written in other ways.
"""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from tests.llvmlite import TOOLS, python_of

ROOT = Path(__file__).parents[1]
OLDEST = "3.6"
MODELS = ("resnet50", "gpt2")
FOLDS = ("far", "padded")


def compiled(models: tuple[str, ...] = MODELS) -> int:
    """Compile the texts of models' steps with the Triton of this environment: how many failed."""
    from bench import steps
    from tests.codegen.cuda import gluon_on_gpu, time_plan
    from tests.codegen.cuda.launching import compiled
    from tests.codegen.cuda.workloads import rendered
    from tests.runtime.cuda import fake

    fake.install()
    texts = {
        launch.key: launch
        for name in models
        for item in time_plan.plan(name, steps.SIZES[name]).items
        for launch in rendered(item.kernel).launches
    }
    masked = gluon_on_gpu.fold_cases(np.random.default_rng(0), ("few", *FOLDS))
    texts |= {launch.key: launch for one in masked for launch in one.made.launches}
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        found = pool.map(compiled, texts.values(), 4)
    bad = [(why, launch) for why, launch in zip(found, texts.values(), strict=True)
           if isinstance(why, str)]  # fmt: skip
    for why, launch in bad:
        print(f"not compiled: {why[:300]}\n{launch.text}")
    print(f"{len(texts) - len(bad)} passed, {len(bad)} failed")
    return len(bad)


def main() -> int:
    """In environments of their own, one for each version."""
    if sys.argv[1:] == ["--here"]:
        return 1 if compiled() else 0
    codes = []
    for version in sys.argv[1:] or [OLDEST]:
        python = python_of("triton", version, (*TOOLS, "llvmlite"))
        print(f"triton {version}: kernels of {' and '.join(MODELS)}", flush=True)
        settings = os.environ | {"PYTHONPATH": str(ROOT), "FULGURITE_DISK_CACHE": "0"}
        command = [str(python), "-m", "tests.triton", "--here"]
        codes.append(subprocess.run(command, cwd=ROOT, env=settings).returncode)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
