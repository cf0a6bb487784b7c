"""Maps, short rows, pools, movement, sorting and indexing beside NumPy and torch.

`python bench/maps.py [--peers PYTHON] [--only pool,sum] [--systems ours,torch] [--save]`. One
process for each system does all works; for each they take turns, another one first each round.
Ours is `Plan.run` over buffers: a tensor around the result costs about 9 us more, at every shape.
Every answer is checked against NumPy's before it is timed; with one thread, CPU time counts. The
summary lists works that take more than twice the best peer's time.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import contract
from bench.harness import parse, publish, serve

Array = Any
CHOOSES = ("take", "one-hot")  # works whose last input is places
MOST = 2.0  # our time over the best peer's


@dataclass(frozen=True)
class Case:
    """One work, as each system says it: functions of the system's module and its arrays."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    numpy: Callable[..., Any]
    torch: Callable[..., Any]

    def arrays(self) -> list[Array]:
        """The inputs, the same in every process: no number twice, as a tie has many gradients."""
        import numpy as np

        rng = np.random.default_rng(0)
        counts = [math.prod(shape) for shape in self.shapes]
        found = [(4 * rng.permutation(n) / n - 2).astype(np.float32) for n in counts]
        found = [x.reshape(shape) for x, shape in zip(found, self.shapes, strict=True)]
        if self.name.startswith(CHOOSES):
            found[-1] = (abs(found[-1]) * 499).astype(np.int64)  # places among a thousand
        return found


def _case(
    name: str, shapes: tuple[int, ...] | tuple[tuple[int, ...], ...], same: Callable[..., Any],
    numpy: Callable[..., Any] | None = None, torch: Callable[..., Any] | None = None,
    ours: Callable[..., Any] | None = None,
) -> Case:  # fmt: skip
    """A work that all say alike, except where another way is given."""
    many = shapes if isinstance(shapes[0], tuple) else (shapes,)
    return Case(name, many, ours or same, numpy or same, torch or same)


def _transpose(name: str, shape: tuple[int, ...], order: tuple[int, ...]) -> Case:
    """Memory in another order."""
    return Case(
        name, (shape,),
        lambda fg, x: x.permute(*order) + 0.0,
        lambda np, x: np.ascontiguousarray(x.transpose(order)),
        lambda t, x: x.permute(order).contiguous(),
    )  # fmt: skip


def _pool(
    name: str, shape: tuple[int, ...], pool: str, how: tuple[int, ...], backward: bool
) -> Case:
    """A pool of some windows (size, stride, padding), or its gradient."""

    def ours(fg: Any, x: Any) -> Any:
        def run(x: Any) -> Any:
            return getattr(fg, pool)(x, *how)

        return fg.grad(lambda x: (run(x) * run(x.detach())).sum())(x) if backward else run(x)

    def torch(t: Any, x: Any) -> Any:
        def run(x: Any) -> Any:
            return getattr(t.nn.functional, pool)(x, *how)

        if not backward:
            return run(x)
        leaf = x.detach().requires_grad_()
        out = run(leaf)
        return t.autograd.grad(out, leaf, out.detach())[0]

    def numpy(np: Any, x: Array) -> Array:
        size, step, p = how
        high, mean = pool.startswith("max"), pool.startswith("avg")
        wide = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)), constant_values=0 if mean else -np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(wide, (size, size), (2, 3))
        windows = windows[:, :, ::step, ::step]
        out = windows.max((4, 5)) if high else windows.mean((4, 5))
        if not backward:
            return out
        found = np.zeros_like(wide)
        span = [(out.shape[d] - 1) * step + 1 for d in (2, 3)]
        for i in range(size):
            for j in range(size):
                to = found[:, :, i : i + span[0] : step, j : j + span[1] : step]
                to += out * (windows[..., i, j] == out) if high else out / size**2
        return found[:, :, p : p + x.shape[2], p : p + x.shape[3]]

    return Case(name, (shape,), ours, numpy, torch)


PICTURES = (16, 64, 56, 56)
CASES = [
    _case("map flat 1M", (1 << 20,), lambda m, x: x * 2 + 1),
    _case("map [*, 3] + [3]", ((1 << 18, 3), (3,)), lambda m, x, y: x * 2 + y),
    _case("map [*, 2, 2] * [2, 1]", ((1 << 18, 2, 2), (2, 1)), lambda m, x, y: x * y + 1),
    _case("map [*, 7] * [*, 1]", ((1 << 17, 7), (1 << 17, 1)), lambda m, x, y: x * y),
    _case("map NHWC + bias", ((16, 56, 56, 24), (24,)), lambda m, x, y: x + y),
    _case("map NCHW + bias", (PICTURES, (64, 1, 1)), lambda m, x, y: x + y),
    _case("map NCHW 7x7 + bias", ((64, 512, 7, 7), (512, 1, 1)), lambda m, x, y: x + y),
    _case("map columns + column", ((4096, 256), (4096, 1)), lambda m, x, y: x + y),
    _case("slice [*, 4] to [*, 3]", (1 << 18, 4), lambda m, x: x[:, :3] + 1),
    _case("slice every second", (1 << 21,), lambda m, x: x[::2] + 1),
    _case("slice rows and columns", (2048, 2048), lambda m, x: x[::2, ::2] + 1),
    _case("sum [*, 3] by 1", (1 << 18, 3), lambda m, x: x.sum(1)),
    _case("sum [*, 8] by 1", (1 << 17, 8), lambda m, x: x.sum(1)),
    _case("sum [*, 33] by 1", (1 << 15, 33), lambda m, x: x.sum(1)),
    _case("sum [*, 3] by 0", (1 << 18, 3), lambda m, x: x.sum(0)),
    _case("sum [*, 7, 7] by space", (64 * 512, 7, 7), lambda m, x: x.sum((1, 2))),
    _case("sum NHWC by space", (16, 3136, 24), lambda m, x: x.sum(1)),
    _case("sum NCHW by all but C", (16, 64, 56, 56), lambda m, x: x.sum((0, 2, 3))),
    _case("max [*, 5] by 1", (1 << 17, 5), lambda m, x: x.max(1),
          torch=lambda t, x: x.amax(1)),
    _case("softmax [*, 10]", (1 << 16, 10), lambda m, x: m.softmax(x, axis=1),
          numpy=lambda np, x: (e := np.exp(x - x.max(1, keepdims=True))) / e.sum(1, keepdims=True),
          torch=lambda t, x: t.softmax(x, 1)),
    *[_transpose(*given) for given in (
        ("transpose", (1024, 1024), (1, 0)), ("transpose big", (4096, 2048), (1, 0)),
        ("transpose odd", (1001, 777), (1, 0)),
        ("transpose batch", (64, 128, 96), (0, 2, 1)), ("transpose [*, 3]", (1 << 18, 3), (1, 0)),
        ("transpose to [*, 3]", (3, 1 << 18), (1, 0)),
        ("NCHW to NHWC", PICTURES, (0, 2, 3, 1)), ("NHWC to NCHW", (16, 56, 56, 64), (0, 3, 1, 2)),
        ("heads apart", (8, 256, 12, 64), (0, 2, 1, 3)))],
    _case("x + x.T", (1024, 1024), lambda m, x: x + x.T),
    _case("concatenate columns", ((1 << 16, 8),) * 2, lambda m, x, y: m.concatenate([x, y], 1)),
    _case("concatenate rows", ((1024, 512),) * 2, lambda m, x, y: m.concatenate([x, y], 0)),
    _case("stack last", ((1 << 19,),) * 2, lambda m, x, y: m.stack([x, y], -1)),
    _case("pad NCHW by 1", PICTURES, lambda m, x: m.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))),
          torch=lambda t, x: t.nn.functional.pad(x, (1, 1, 1, 1))),
    _case("pad [*, 3] by 1", (1 << 18, 3), lambda m, x: m.pad(x, ((0, 0), (0, 1))),
          torch=lambda t, x: t.nn.functional.pad(x, (0, 1))),
    _case("repeat pixels 2x2", (16, 32, 28, 28),
          lambda m, x: x.repeat(2, 2).repeat(2, 3),
          torch=lambda t, x: t.nn.functional.interpolate(x, scale_factor=2),
          ours=lambda fg, x: fg.repeat(fg.repeat(x, 2, 2), 2, 3)),
    _case("take rows of 256", ((1000, 256), (4096,)), lambda m, x, i: x[i]),
    _case("take rows of 8", ((1000, 8), (1 << 17,)), lambda m, x, i: x[i]),
    _case("take numbers", ((1000,), (1 << 20,)), lambda m, x, i: x[i]),
    _case("take along rows", ((4096, 256), (4096, 1)),
          lambda m, x, i: m.take_along_axis(x, i % 256, 1),
          torch=lambda t, x, i: t.gather(x, 1, i % 256)),
    _case("one-hot 100", ((1 << 14,),), lambda m, i: m.one_hot(i, 100),
          numpy=lambda np, i: (i[:, None] == np.arange(100)).astype(np.float32),
          torch=lambda t, i: t.nn.functional.one_hot(i, 1000)[:, :100].float()),
    _case("cumsum rows", (1024, 1024), lambda m, x: x.cumsum(1)),
    _case("cumsum columns", (1024, 1024), lambda m, x: x.cumsum(0)),
    _case("cumsum [*, 8] by 1", (1 << 17, 8), lambda m, x: x.cumsum(1)),
    _case("cumsum 1M", (1 << 20,), lambda m, x: x.cumsum(0)),
    _case("sort rows of 1000", (1000, 1000), lambda m, x: m.sort(x, 1),
          torch=lambda t, x: t.sort(x, 1)[0]),
    _case("sort rows of 16", (1 << 16, 16), lambda m, x: m.sort(x, 1),
          torch=lambda t, x: t.sort(x, 1)[0]),
    _case("sort 1M", (1 << 20,), lambda m, x: m.sort(x), torch=lambda t, x: t.sort(x)[0]),
    _case("argmax rows of 1000", (1000, 1000), lambda m, x: x.argmax(1)),
    _case("argmax [*, 10]", (1 << 17, 10), lambda m, x: x.argmax(1)),
    _case("argmax columns", (1000, 1000), lambda m, x: x.argmax(0)),
    _case("compare and choose", ((1 << 20,), (1 << 20,)),
          lambda m, x, y: m.where(x > y, x, y * 0.5)),
    _case("outer sum", ((2048, 1), (1, 512)), lambda m, x, y: x + y),
    _case("pixels to planes", (16, 128, 128, 3), lambda m, x: (x - 0.5) / 0.25,
          numpy=lambda np, x: np.ascontiguousarray(((x - 0.5) / 0.25).transpose(0, 3, 1, 2)),
          torch=lambda t, x: ((x - 0.5) / 0.25).permute(0, 3, 1, 2).contiguous(),
          ours=lambda fg, x: ((x - 0.5) / 0.25).permute(0, 3, 1, 2)),
    _case("mean and variance NCHW", PICTURES, lambda m, x: x.var((0, 2, 3)),
          torch=lambda t, x: x.var((0, 2, 3), correction=0)),
    _case("layer norm [*, 32]", (1 << 15, 32), lambda m, x: m.layer_norm(x, 32),
          numpy=lambda np, x: (x - x.mean(1, keepdims=True)) / np.sqrt(
              x.var(1, keepdims=True) + 1e-5),
          torch=lambda t, x: t.nn.functional.layer_norm(x, (32,))),
    _case("mean NHWC 3 by space", (64, 3136, 3), lambda m, x: x.mean(1)),
    _case("roll rows", (1024, 1024), lambda m, x: m.roll(x, 5, 1),
          torch=lambda t, x: t.roll(x, 5, 1)),
    _case("lower triangle", (1024, 1024), lambda m, x: m.tril(x)),
    _case("tile 4 times", (256, 1024), lambda m, x: m.tile(x, (4, 1))),
    _case("take columns", ((1000, 1000), (1000,)), lambda m, x, i: x[:, i]),
    _case("pixel shuffle", (16, 64, 28, 28), lambda m, x: m.pixel_shuffle(x, 2),
          numpy=lambda np, x: np.ascontiguousarray(x.reshape(16, 16, 2, 2, 28, 28).transpose(
              0, 1, 4, 2, 5, 3)).reshape(16, 16, 56, 56),
          torch=lambda t, x: t.nn.functional.pixel_shuffle(x, 2)),
    _case("cumprod rows", (1024, 1024), lambda m, x: m.cumprod(x * 0.001 + 1, 1)),
    _case("top 5 of 1000", (1000, 1000), lambda m, x: m.topk(x, 5, 1)[0],
          numpy=lambda np, x: np.sort(np.partition(x, 995, 1)[:, 995:], 1)[:, ::-1]),
    _case("argsort rows of 1000", (1000, 1000), lambda m, x: m.argsort(x, 1),
          numpy=lambda np, x: np.argsort(x, 1, kind="stable")),
    *[_pool(f"{kind[:3]} pool {k}x{k} by {s}{' gradient' if back else ''}", PICTURES, kind,
            (k, s, p), back)
      for back in (False, True) for kind in ("max_pool2d", "avg_pool2d")
      for k, s, p in ((2, 2, 0), (3, 2, 1), (3, 1, 1))],
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}


def ours(case: Case) -> Callable[[], Any]:
    """A plan that is held, over memory that is held; the result is fresh memory."""
    os.environ["FULGURITE_DEVICE"], os.environ["FULGURITE_TIER"] = "cpu", "native"
    import fulgurite as fg
    from bench.systems import plan_of

    out = case.ours(fg, *[fg.Tensor(a) for a in case.arrays()])
    plan, inputs = plan_of(fg.schedule(out))
    return lambda: plan.run(inputs)[0]


def numpy_(case: Case) -> Callable[[], Any]:
    """NumPy."""
    import numpy as np

    arrays = case.arrays()
    return lambda: case.numpy(np, *arrays)


def torch_(case: Case) -> Callable[[], Any]:
    """torch, eager."""
    import torch

    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    tensors = [torch.from_numpy(a) for a in case.arrays()]
    return lambda: case.torch(torch, *tensors)


SYSTEMS = {"ours": ours, "numpy": numpy_, "torch": torch_}


class Worker(contract.Worker):
    """A system's side: prepares one work at a time and times it."""

    def __init__(self, system: str) -> None:
        self.prepare = SYSTEMS[system]

    def start(self, work: str) -> str:
        """Prepare a work, and check the first answer."""
        import numpy as np

        case = BY_NAME[work]
        self.call = self.prepare(case)
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in case.arrays()]
        exact = np.asarray(case.numpy(np, *wide))
        found = self.call()
        found = np.asarray(found.array if hasattr(found, "array") else found).reshape(exact.shape)
        assert np.allclose(found, exact, 1e-4, 1e-3), f"off by {abs(found - exact).max():.1e}"
        return "ready"


def summary(rows: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Our time beside the best of the peers."""
    ratios: dict[str, float] = {}
    for work, cells in rows.items():
        peers = [cells[s]["best"] for s in ("numpy", "torch") if "best" in cells.get(s, {})]
        if peers and "best" in cells.get("ours", {}):
            ratios[work] = cells["ours"]["best"] / min(peers)
    if not ratios:
        return "nothing to compare"
    high = sorted(((r, w) for w, r in ratios.items() if r > MOST), reverse=True)
    head = (f"geometric mean of time {geometric_mean(ratios.values()):.2f} of the best of NumPy and"
            f" torch over {len(ratios)} works; {len(high)} above {MOST:g}")  # fmt: skip
    return "\n".join([head, *[f"  {ratio:.2f} {work}" for ratio, work in high]])


if __name__ == "__main__":
    chosen, settings_ = parse(__doc__, SYSTEMS, tuple(BY_NAME), None, 3)
    if chosen:
        served = Worker(chosen)
        serve({"start": served.start, "time": served.time})
    else:
        found = contract.measure(settings_, __file__)
        publish("maps", found, settings_, {}, dict.fromkeys(BY_NAME, MOST), "best")
        print(summary(found))
