"""Attention in plain code, which the search turns into one online kernel (FlashAttention).

Run `python examples/attention.py`. Three lines of matrix products and a softmax; the scores, as
large as the square of the length, are never in memory. `--exact` forbids what the search does, and
shows the three kernels that are left and how much memory they need.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import fulgurite as fg


def attention(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    """Every row of v, weighted by how well its key fits a query; later places are not seen."""
    length, size = q.shape[-2:]
    seen = fg.arange(length) <= fg.arange(length).reshape(-1, 1)
    scores = fg.where(seen, q @ k.mT / size**0.5, -fg.inf)
    return fg.softmax(scores, axis=-1) @ v


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute it, compare it with NumPy, and give the number of kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--exact", action="store_true", help="add up in the order as written")
    options = parser.parse_args(arguments)

    random = np.random.default_rng(0)
    shape = (options.heads, options.length, options.size)
    arrays = [random.normal(size=shape).astype(np.float32) for _ in range(3)]
    with fg.config(exact=options.exact):
        result = attention(*[fg.Tensor(array) for array in arrays])
        report = fg.explain(result)
        q, k, v = arrays
        scores = q @ k.swapaxes(1, 2) / options.size**0.5
        scores[:, ~np.tri(options.length, dtype=bool)] = -np.inf
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = chances / chances.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(result.numpy(), wanted, rtol=2e-4, atol=2e-5)
    for kernel in report.kernels:
        print(f"{kernel.kind}: {kernel.reason}")
    print(f"{len(report.kernels)} kernels, {report.peak_bytes / 2**20:.1f} MiB at most")
    return len(report.kernels)


if __name__ == "__main__":
    main()
