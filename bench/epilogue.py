"""What an epilogue costs: in time beside the bare product, and in compiling when it is new.

`python bench/epilogue.py [--turns 50] [--size 1024]`. First the least of so many interleaved turns
of a matrix product alone, with a bias, and with bias and activation, ours (a held plan) and, where
they are installed, NumPy's and torch's own; then the CPU time of epilogues that no cache knows,
once the product itself is known: all of it, what the compiler took, and how often it was called.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench.harness import least

Work = Callable[[], Any]


def held(y: Any) -> Work:
    """A plan that is held, over memory that is held."""
    import fulgurite as fg
    from bench.systems import plan_of

    plan, inputs = plan_of(fg.schedule(y))
    return lambda: plan.run(inputs)


def works(size: int) -> dict[str, Work]:
    """Products with and without epilogues, by system and name."""
    import fulgurite as fg

    rng = np.random.default_rng(0)
    a = (rng.standard_normal((size, size)) / size**0.5).astype(np.float32)
    b, bias = rng.standard_normal((size, size)).astype(np.float32), np.ones(size, np.float32)
    x, y, z = fg.Tensor(a), fg.Tensor(b), fg.Tensor(bias)
    found = {
        "ours": held(x @ y),
        "ours + bias": held(x @ y + z),
        "ours + bias, relu": held(fg.relu(x @ y + z)),
        "ours + bias, gelu": held(fg.gelu(x @ y + z)),
        "ours + bias, gelu (tanh)": held(fg.gelu(x @ y + z, approximate="tanh")),
        "ours + bias, gelu by hand": held(_by_hand(x @ y + z)),
        "numpy": lambda: a @ b,
        "numpy + bias, gelu (tanh)": lambda: _gelu(a @ b + bias),
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(int(os.environ["FULGURITE_THREADS"]))
    p, q, r = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(bias)
    gelu = torch.nn.functional.gelu
    found["torch"] = lambda: p @ q
    found["torch + bias, gelu"] = lambda: gelu(torch.addmm(r, p, q))
    found["torch + bias, gelu (tanh)"] = lambda: gelu(torch.addmm(r, p, q), approximate="tanh")
    return found


def _by_hand(x: Any) -> Any:
    """gelu as papers write it."""
    import fulgurite as fg

    return 0.5 * x * (1 + fg.erf(x * 0.5**0.5))


def _gelu(x: Any) -> Any:
    """NumPy has no erf."""
    return 0.5 * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x**3)))


def new_epilogues() -> list[tuple[float, float, int]]:
    """CPU milliseconds of epilogues that are new, of the compiler in them, and its calls."""
    import fulgurite as fg
    import fulgurite.runtime.cpu.objects as code
    from fulgurite.codegen.cpu.llvm import compiler

    a, b, c = [fg.ones(shape).contiguous().realize() for shape in ((64, 64), (64, 64), (64,))]
    steps = (fg.relu, fg.abs, fg.silu, fg.tanh, fg.exp, fg.square)
    for warm in ((a @ b), fg.gelu(a @ b), *[f(a @ b) for f in steps]):
        warm.realize()
    spent = 0.0

    def timed(*given: Any) -> bytes:
        nonlocal spent
        start = time.process_time()
        made = compiler.compile_object(*given)
        spent += time.process_time() - start
        return made

    found = []
    with patch.object(code, "compile_object", timed):
        for first, second in product(steps, steps):
            spent, calls, start = 0.0, compiler.calls, time.process_time()
            second(first(a @ b) * c).realize()
            whole = time.process_time() - start
            found.append((whole * 1e3, spent * 1e3, compiler.calls - calls))
    return found


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["FULGURITE_THREADS"] = str(options.threads)
    os.environ["FULGURITE_DEVICE"], os.environ["FULGURITE_TIER"] = "cpu", "native"
    if os.environ.get("OPENBLAS_NUM_THREADS") != str(options.threads):
        os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)  # NumPy reads it when loaded
        os.execv(sys.executable, [sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["FULGURITE_CACHE_DIR"] = folder
        clock = time.thread_time if options.threads == 1 else time.perf_counter
        found = works(options.size)
        best = least(found, options.turns + 1, clock)
        for name, seconds in best.items():
            ratio = seconds / best[name.split()[0]]
            print(f"{name:26} {seconds * 1e3:8.2f} ms  {ratio:.3f} of the product alone")
        times = new_epilogues()
        whole, compiling = [t for t, _, _ in times], [t for _, t, _ in times]
        print(f"a new epilogue: CPU {min(whole):.1f} ms at least, {median(whole):.1f} in the middle"
              f" of {len(times)}; the compiler {min(compiling):.1f} and {median(compiling):.1f};"
              f" {sum(n for _, _, n in times)} calls")  # fmt: skip


if __name__ == "__main__":
    main()
