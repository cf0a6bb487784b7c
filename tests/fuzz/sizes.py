"""Random programs of two sizes, run at several of them: what one plan for all must compute.

In: a seed. Out: `program(seed)`, a function of a tensor whose structure depends on the seed alone;
`problem(seed)` runs it at several sizes, and says where a result differs from the reference
device's. Sizes come in an order that has coincidences: equal ones, even ones, a 1. By the seed it
is plain lazy code, a jitted function, or one of tensors some of whose sizes are variables. Sizes at
which a value of its graph would be a giant are left out. Run many with
`python -m tests.fuzz.sizes --seeds 0:10000`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.runtime.sizes import shapes

Step = Callable[[Any], Any]
SIZES = ((9, 5), (34, 21), (16, 16), (97, 3), (32, 64), (1, 7), (130, 48))
FEW_SIZES = ((9, 5), (34, 21), (97, 3), (16, 16), (1, 7))  # one of each coincidence
MOST_ELEMENTS = 1 << 22  # of a value of a program, products before they are summed included
HOW = ("lazy", "jit", "jit", "named")
N, M = fg.Var("n", 1, 160), fg.Var("m", 1, 160)


def _matmul(x: Any) -> Any:
    k = x.shape[-1]
    return x @ (fg.reshape(fg.arange(k * 6) % 7, (k, 6)) * 0.3 - 1)


def _scores(x: Any) -> Any:
    return fg.softmax(x @ x.transpose(-1, -2) * 0.1, axis=-1) @ x


def _causal(x: Any) -> Any:
    place = fg.arange(x.shape[-2])
    scores = fg.where(place[:, None] >= place[None, :], x @ x.transpose(-1, -2) * 0.1, -fg.inf)
    return fg.softmax(scores, axis=-1) @ x


def _ends_set(x: Any) -> Any:
    x = x * 1
    x[: x.shape[0] // 2 + 1] = 0.5
    x[-1] += 2
    return x


def _last_set(x: Any) -> Any:
    x = x + 1
    x[..., -1] = x[..., 0] * 2
    return x


UNARY: dict[str, Step] = {
    "exp": lambda x: fg.exp(x * 0.3),
    "gelu": lambda x: fg.gelu(x) + 0.5,
    "softmax": lambda x: fg.softmax(x, axis=-1),
    "center": lambda x: x - x.mean(axis=0, keepdims=True),
    "largest": lambda x: x / (1 + fg.abs(x).max(axis=-1, keepdims=True)),
    "total": lambda x: x + x.sum(axis=0, keepdims=True) * 0.01,
    "rows": lambda x: x.flip(0) - x,
    "twice": lambda x: fg.concat([x, x * 2], axis=-1),
    "join": lambda x: fg.concat([x, x[:1]], axis=0),
    "running": lambda x: fg.cumsum(x, axis=0) * 0.1,
    "padded": lambda x: fg.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 2)]),
    "count": lambda x: x * x.shape[0] / 7 + fg.arange(x.shape[-1]),
    "norm": lambda x: fg.layer_norm(x, (x.shape[-1],)),
    "picked": lambda x: x[fg.arange(x.shape[0]) // 2],
    "sorted": lambda x: fg.sort(x, axis=-1),
}
CUTTING: dict[str, Step] = {
    "inner": lambda x: x[..., 1:] if x.shape[-1] > 1 else x,
    "all but the last": lambda x: x[:-1] if x.shape[0] > 1 else x,
}
WRITING: dict[str, Step] = {  # and bodies, whose sizes are fixed
    "ends set": _ends_set,
    "last set": _last_set,
    "choice": lambda x: fg.cond(x.max() > 0, lambda x: x * 2, lambda x: x - 1, x),
    "carried": lambda x: fg.scan(lambda c, r: (c * 0.5 + r, None), x, fg.ones(3))[0],
}
DECIDING: dict[str, Step] = {  # which is a guard under jit
    "halves": lambda x: (
        x[: x.shape[0] // 2] - x[x.shape[0] // 2 :] * 2 if x.shape[0] % 2 == 0 else x * 3
    ),
    "alone": lambda x: x + 3 if x.shape[0] == 1 else x * 0.5,
    "many": lambda x: x * 2 if x.shape[0] > 20 else x - 1,
    "square": lambda x: (
        x + x.transpose(0, -1) if x.ndim > 1 and x.shape[0] == x.shape[-1] else x * -1
    ),
    "some": lambda x: x[1:] if x.shape[0] > 1 else x,
}
DEEP: dict[str, Step] = {
    "turn": lambda x: x.transpose(-1, -2),
    "flat": lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]),
    "split": lambda x: x.reshape(-1, x.shape[-1]),
    "matmul": _matmul,
    "scores": _scores,
    "causal": _causal,
    "sum": lambda x: x.sum(axis=-1),
    "mean": lambda x: x.mean(axis=0),
}


STEPS = UNARY | DEEP | CUTTING | WRITING | DECIDING


def _count(shape: Any) -> int:
    return int(prod(shape))


def _sizes(dims: Sequence[str | int], n: Any, m: Any) -> list[Any]:
    return [{"n": n, "m": m}[d] if isinstance(d, str) else d for d in dims]


def chain(steps: Sequence[Step], ends: bool) -> Step:
    """A function that jit can see through: of steps, one after the other."""

    def run(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x.sum(axis=0) if ends else x

    return run


class Program:
    """What is done with a tensor of some sizes."""

    def __init__(self, seed: int, most: int = 4) -> None:
        choose = random.Random(f"sizes {seed}")  # near numbers begin alike
        self.seed, self.how = seed, choose.choice(HOW)
        kinds: list[str | int] = ["n", "n", "m", 4, 17]
        self.dims = [choose.choice(kinds) for _ in range(choose.choice([1, 2, 2, 3]))]
        if "n" not in self.dims:
            self.dims[0] = "n"
        self.names: list[str] = []
        flat = [*UNARY, *(CUTTING | WRITING if self.how != "named" else ())]
        flat += [*DECIDING, *DECIDING] if self.how == "jit" else []
        rank = len(self.dims)
        for _ in range(choose.randint(1, most)):
            self.names.append(choose.choice([*flat, *DEEP, *DEEP] if rank > 1 else flat))
            rank -= self.names[-1] in ("sum", "mean", "flat")
            rank = 2 if self.names[-1] == "split" else rank
        self.ends = choose.random() < 0.3
        self.run = chain([STEPS[name] for name in self.names], self.ends)
        self.jitted = fg.jit(self.run)

    def __str__(self) -> str:
        return f"{self.how} {self.dims} {self.names} {'sum' if self.ends else ''}"

    def elements(self, n: int, m: int) -> int:
        """How many the largest value of its graph at sizes has; nothing is computed."""
        graph = self.run(fg.zeros(_sizes(self.dims, n, m)))
        return max([_count(node.shape) for node in toposort([graph.node])])

    def at(self, n: int, m: int, how: str = "lazy", dtype: Any = np.float32) -> Any:
        """Its value at sizes."""
        rng = np.random.default_rng(self.seed + 1)
        data = rng.standard_normal(_sizes(self.dims, n, m), dtype=np.float32).astype(dtype)
        if how == "jit":
            return np.asarray(self.jitted(fg.Tensor(data)).numpy())
        x = fg.Tensor(data)
        if how == "named":
            room = np.zeros(_sizes(self.dims, 160, 160), np.float32)
            room[tuple([slice(k) for k in data.shape])] = data
            x = fg.Tensor(room)[tuple(map(slice, _sizes(self.dims, N.bind(n), M.bind(m))))]
        return np.asarray(self.run(x).numpy())


def problem(seed: int, sizes: Sequence[tuple[int, int]] = SIZES, most: int = 4) -> str:
    """Where a program's results at some sizes differ from the reference device's; or nothing."""
    program = Program(seed, most)
    for n, m in sizes:
        if program.elements(n, m) > MOST_ELEMENTS:
            continue
        with fg.config(device="reference"):
            want = program.at(n, m)
        try:
            got = program.at(n, m, program.how)
        except fg.errors.FulguriteError as error:
            return f"{program} at {n}, {m}: {error}"
        if got.shape != want.shape:
            return f"{program} at {n}, {m}: {got.shape}, not {want.shape}"
        if not _is_near(got, want):
            with fg.config(dynamic=False):  # of what cancels no digit may be left
                alone = program.at(n, m)
            if not np.allclose(got, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
                with fg.config(device="reference"):
                    exact = program.at(n, m, dtype=np.float64)
                apart, own = [float(np.nanmax(np.abs(x - exact))) for x in (got, want)]
                if not apart <= 2 * own:  # which rounding explains
                    return f"{program} at {n}, {m}: {apart} off, the reference {own}"
    return ""


def _is_near(got: Any, want: Any) -> bool:
    """True if two results agree but for rounding."""
    scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
    return np.allclose(got, want, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Programs of a range of seeds; the second size is compiled for as one of many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="the first, and the first that is not run")
    parser.add_argument("--few", action="store_true", help="five sizes each, not seven")
    given = parser.parse_args(arguments)
    first, end = map(int, given.seeds.split(":"))
    jit_sizes: Any = import_module("fulgurite.jit.sizes")
    shapes.SEEN = jit_sizes._SEEN = 1
    wrong, begin = 0, time.monotonic()
    with fg.config(device="cpu", tier="native"):
        for seed in range(first, end):
            found = problem(seed, FEW_SIZES if given.few else SIZES)
            wrong += bool(found)
            if found or (seed + 1) % 100 == 0:
                passed = f"{seed + 1 - first} programs, {time.monotonic() - begin:.0f} s"
                print(f"seed {seed}: {found}" if found else passed, flush=True)
    print(f"seeds {given.seeds}: {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
