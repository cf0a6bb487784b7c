"""Products of bfloat16 and int8 beside torch, in one process: `python bench/bfloat16.py [sizes]`.

Every answer is checked against float64 first; the two take turns, and the least time of each
counts. Where the processor has AMX, or AVX512-BF16 and VNNI, both should use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import fulgurite as fg
from bench.harness import least
from fulgurite.codegen.cpu.target import target

ROUNDS = 30
LIMIT = 2.0**-7  # of the largest result


def main(arguments: list[str]) -> int:
    """Print a line for each size and dtype; 1 if a result is wrong."""
    import torch

    print(f"{sorted(target().features)}, torch with {torch.get_num_threads()} threads")
    sizes = [int(a) for a in arguments] or [256, 1000, 1024, 2048]
    return min(sum([halves(n) + whole_numbers(n) for n in sizes]), 1)


def halves(n: int) -> int:
    """A product of bfloat16; 1 if it is wrong."""
    import torch

    rng = np.random.default_rng(0)
    wide = [rng.standard_normal((n, n)).astype(np.float32) for _ in range(2)]
    given = [fg.Tensor(a.astype(ml_dtypes.bfloat16), device="cpu") for a in wide]
    theirs = [torch.from_numpy(a).bfloat16() for a in wide]
    wanted = given[0].numpy().astype(np.float64) @ given[1].numpy().astype(np.float64)
    product = fg.jit(lambda a, b: a @ b)
    found = product(*given).numpy().astype(np.float64)
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    row("bfloat16", n, error, lambda: product(*given).realize(), lambda: theirs[0] @ theirs[1])
    return int(not error < LIMIT)


def whole_numbers(n: int) -> int:
    """A product of int8, summed in int32; 1 if it is wrong."""
    import torch

    rng = np.random.default_rng(1)
    numbers = [rng.integers(-128, 128, (n, n), np.int8) for _ in range(2)]
    given, theirs = [fg.Tensor(a, device="cpu") for a in numbers], map(torch.from_numpy, numbers)
    product = fg.jit(lambda a, b: a.astype(fg.int32) @ b.astype(fg.int32))
    exact = numbers[0].astype(np.float64) @ numbers[1].astype(np.float64)
    error = float(np.abs(product(*given).numpy() - exact).max())
    left, right = theirs
    row("int8", n, error, lambda: product(*given).realize(), lambda: torch._int_mm(left, right))
    return int(error > 0)


def row(
    kind: str, n: int, error: float, ours: Callable[[], Any], theirs: Callable[[], Any]
) -> None:
    """One line: our time, torch's, and our speed over torch's."""
    best = least({0: ours, 1: theirs}, ROUNDS)
    rate = 2e-9 * n**3 / best[0]
    print(f"{kind:9} {n:5} error {error:.1e}  ours {best[0] * 1e3:8.3f} ms ({rate:7.0f} GOP/s)  "
          f"torch {best[1] * 1e3:8.3f} ms  speed {best[1] / best[0]:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
