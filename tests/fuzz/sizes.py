"""Random programs of two sizes, run at several of them: what one plan for all must compute.

In: a seed. Out: `program(seed)`, a function of sizes whose structure depends on the seed alone;
`problem(seed)` runs it at several sizes, and says where a result differs from the reference
device's. Sizes come in an order that has coincidences: equal ones, even ones, a 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import fulgurite as fg

Step = Callable[[Any, np.random.Generator], Any]
SIZES = ((9, 5), (34, 21), (16, 16), (97, 3), (32, 64), (1, 7), (130, 48))


def _matmul(x: Any, rng: np.random.Generator) -> Any:
    return x @ _tensor((x.shape[-1], 6), rng)


def _scores(x: Any, rng: np.random.Generator) -> Any:
    return fg.softmax(x @ x.transpose(-1, -2) * 0.1, axis=-1) @ x


def _causal(x: Any, rng: np.random.Generator) -> Any:
    place = fg.arange(x.shape[-2])
    scores = fg.where(place[:, None] >= place[None, :], x @ x.transpose(-1, -2) * 0.1, -fg.inf)
    return fg.softmax(scores, axis=-1) @ x


UNARY: dict[str, Step] = {
    "exp": lambda x, _: fg.exp(x * 0.3),
    "gelu": lambda x, _: fg.gelu(x) + 0.5,
    "softmax": lambda x, _: fg.softmax(x, axis=-1),
    "center": lambda x, _: x - x.mean(axis=0, keepdims=True),
    "largest": lambda x, _: x / (1 + fg.abs(x).max(axis=-1, keepdims=True)),
    "total": lambda x, _: x + x.sum(axis=0, keepdims=True) * 0.01,
    "rows": lambda x, _: x.flip(0) - x,
    "twice": lambda x, _: fg.concat([x, x * 2], axis=-1),
    "join": lambda x, _: fg.concat([x, x[:1]], axis=0),
    "inner": lambda x, _: x[..., 1:] if x.shape[-1] > 1 else x,
    "all but the last": lambda x, _: x[:-1] if x.shape[0] > 1 else x,
    "running": lambda x, _: fg.cumsum(x, axis=0) * 0.1,
    "padded": lambda x, _: fg.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 2)]),
    "count": lambda x, _: x * x.shape[0] / 7 + fg.arange(x.shape[-1]),
    "norm": lambda x, _: fg.layer_norm(x, (x.shape[-1],)),
    "picked": lambda x, _: x[fg.arange(x.shape[0]) // 2],
    "sorted": lambda x, _: fg.sort(x, axis=-1),
}
DEEP: dict[str, Step] = {
    "turn": lambda x, _: x.transpose(-1, -2),
    "flat": lambda x, _: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]),
    "split": lambda x, _: x.reshape(-1, x.shape[-1]),
    "matmul": _matmul,
    "scores": _scores,
    "causal": _causal,
    "sum": lambda x, _: x.sum(axis=-1),
    "mean": lambda x, _: x.mean(axis=0),
}


def _tensor(shape: Sequence[int], rng: np.random.Generator) -> Any:
    return fg.Tensor(rng.standard_normal(tuple(map(int, shape)), dtype=np.float32))


def program(seed: int) -> Callable[[int, int], Any]:
    """A program of two sizes."""
    choose = random.Random(seed)
    table_of_dims: list[str | int] = ["n", "n", "m", 4, 17]
    dims = [choose.choice(table_of_dims) for _ in range(choose.choice([1, 2, 2, 3]))]
    if "n" not in dims:
        dims[0] = "n"
    names: list[str] = []
    rank = len(dims)
    for _ in range(choose.randint(1, 4)):
        table = [*UNARY, *DEEP, *DEEP] if rank > 1 else list(UNARY)
        names.append(choose.choice(table))
        rank -= names[-1] in ("sum", "mean", "flat")
        rank = 2 if names[-1] == "split" else rank
    ends = choose.random() < 0.3

    def run(n: int, m: int) -> Any:
        rng = np.random.default_rng(seed)
        shape = [{"n": n, "m": m}[d] if isinstance(d, str) else d for d in dims]
        x = _tensor(shape, rng)
        for name in names:
            x = (UNARY | DEEP)[name](x, rng)
        return x.sum(axis=0) if ends else x

    run.__doc__ = f"{dims} {names} {'sum' if ends else ''}"
    return run


def problem(seed: int, sizes: Sequence[tuple[int, int]] = SIZES) -> str:
    """Where a program's results at some sizes differ from the reference device's; or nothing."""
    run = program(seed)
    for n, m in sizes:
        with fg.config(device="reference"):
            want = run(n, m).numpy()
        got = run(n, m).numpy()
        if got.shape != want.shape:
            return f"{run.__doc__} at {n}, {m}: {got.shape}, not {want.shape}"
        if not _is_near(got, want):
            with fg.config(dynamic=False):  # of what cancels no digit may be left
                alone = run(n, m).numpy()
            if not np.allclose(got, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
                apart = float(np.nanmax(np.abs(got - want)))
                return f"{run.__doc__} at {n}, {m}: {apart} apart"
    return ""


def _is_near(got: Any, want: Any) -> bool:
    """True if two results agree but for rounding."""
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    return np.allclose(got, want, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)
