"""Contractions beside NumPy, torch and JAX: matrix products and convolutions of many shapes.

`python bench/contract.py [--peers PYTHON] [--only mm,conv] [--systems ours,torch] [--save]`. One
process for each system does all shapes; for each shape they take turns, another one first each
round. Ours is `Plan.run` over buffers: a tensor around the result costs about 9 us more, at every
shape. Every answer is checked against float64 before it is timed; with one thread, CPU time counts.
The summary is the geometric mean of our speed over that of the best of NumPy and torch, float32
only, and every shape where we lose, with what was found to be the reason.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import Settings, WorkerError, parse, publish, serve, times_of

Array = Any
GOAL = 1.0  # our time over the best peer's
LEAST = 0.7  # of the best of NumPy and torch, in speed, at every float32 shape


@dataclass(frozen=True)
class Case:
    """One shape: a product (batch, m, n, k) or a convolution (batch, in, size, out, kernel)."""

    kind: str  # nn, nt, tn, tt, gelu, conv, and its gradients to image (dx) and weights (dw)
    sizes: tuple[int, ...]
    dtype: str = "float32"
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def is_conv(self) -> bool:
        """Is it a convolution, or a gradient of one?"""
        return self.kind in ("conv", "dx", "dw")

    @property
    def name(self) -> str:
        """How the table calls it."""
        if self.is_conv:
            b, c, s, o, k = self.sizes
            more = "".join(
                f" {word}{n}" for word, n, usual in
                (("stride", self.stride, 1), ("pad", self.padding, 0), ("groups", self.groups, 1))
                if n != usual
            )  # fmt: skip
            gradient = "" if self.kind == "conv" else f" {self.kind}"
            return f"conv{k}x{k}{gradient} {b}x{c}x{s}x{s} to {o}{more}"
        b, m, n, k = self.sizes
        what = {"gelu": "mm+bias+gelu"}.get(self.kind, f"mm {self.kind}")
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"{what} {f'{b}x' if b > 1 else ''}{m}x{n}x{k}{dtype}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape."""
        if self.is_conv:
            b, c, s, o, k = self.sizes
            side = (s + 2 * self.padding - k) // self.stride + 1
            inner = c // self.groups
            return {"conv": (b, o, side, side), "dx": (b, c, s, s), "dw": (o, inner, k, k)}[
                self.kind
            ]
        b, m, n, _ = self.sizes
        return (b, m, n) if b > 1 else (m, n)

    def arrays(self) -> list[Array]:
        """The factors, the same in every process."""
        import numpy as np

        rng = np.random.default_rng(0)
        shapes: list[tuple[int, ...]]
        if self.is_conv:
            b, c, s, o, k = self.sizes
            shapes = [(b, c, s, s), (o, c // self.groups, k, k)]
            if self.kind != "conv":
                shapes.append(Case("conv", *[getattr(self, n) for n in _FIELDS]).shape)
        else:
            b, m, n, k = self.sizes
            batch = (b,) if b > 1 else ()
            shapes = [(*batch, k, m) if self.kind[0] == "t" else (*batch, m, k),
                      (*batch, n, k) if self.kind[1:] == "t" else (*batch, k, n)]  # fmt: skip
            if self.kind == "gelu":
                shapes.append((n,))
        if self.dtype == "int8":
            return [rng.integers(-100, 100, s).astype(np.int8) for s in shapes]
        wide = np.float64 if self.dtype == "float64" else np.float32
        found: list[Array] = [rng.standard_normal(s).astype(wide) for s in shapes]
        if self.kind == "gelu":  # activations as networks have them, near 1
            found[0] = (found[0] / math.sqrt(self.sizes[-1])).astype(wide)
        return found

    def exact(self, arrays: list[Array]) -> Array:
        """The answer in float64, at the places that are checked: all, or a first part."""
        import numpy as np

        a, b, *rest = [x.astype(np.float64) for x in arrays]
        p, s, g = self.padding, self.stride, self.groups
        if self.kind == "dx":
            return self.exact_dx(a, b, rest[0])
        if self.kind == "dw":
            a = np.pad(a, ((0, 0), (0, 0), (p, p), (p, p)))
            k = b.shape[-1]
            windows = np.lib.stride_tricks.sliding_window_view(a, (k, k), (2, 3))[:, :, ::s, ::s]
            windows = windows.reshape(len(a), g, a.shape[1] // g, *windows.shape[2:])
            back = rest[0].reshape(len(a), g, b.shape[0] // g, *rest[0].shape[2:])
            found = np.einsum("ngchwij,ngohw->gocij", windows, back, optimize=True)
            return found.reshape(b.shape)
        if self.kind == "conv":
            a = np.pad(a[:1], ((0, 0), (0, 0), (p, p), (p, p)))
            k = b.shape[-1]
            windows = np.lib.stride_tricks.sliding_window_view(a, (k, k), (2, 3))[:, :, ::s, ::s]
            windows = windows.reshape(g, a.shape[1] // g, *windows.shape[2:])
            kernel = b.reshape(g, b.shape[0] // g, *b.shape[1:])
            found = np.einsum("gchwij,gocij->gohw", windows, kernel, optimize=True)
            return found.reshape(1, b.shape[0], *found.shape[2:])
        a = a.swapaxes(-1, -2) if self.kind[0] == "t" else a
        b = b.swapaxes(-1, -2) if self.kind[1:] == "t" else b
        found = a[..., :8, :] @ b
        if rest:
            x = found + rest[0]
            return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        return found

    def exact_dx(self, a: Array, b: Array, back: Array) -> Array:
        """The gradient to the first image, in float64."""
        import numpy as np

        p, s, g, size = self.padding, self.stride, self.groups, a.shape[-1]
        found = np.zeros((g, a.shape[1] // g, size + 2 * p, size + 2 * p))
        weights = b.reshape(g, b.shape[0] // g, *b.shape[1:])
        back = back[0].reshape(g, b.shape[0] // g, *back.shape[2:])
        high = s * (back.shape[-1] - 1) + 1
        for i in range(b.shape[-1]):
            for j in range(b.shape[-1]):
                part = np.einsum("gohw,goc->gchw", back, weights[..., i, j], optimize=True)
                found[:, :, i : i + high : s, j : j + high : s] += part
        inside = found[:, :, p : p + size, p : p + size]
        return inside.reshape(1, a.shape[1], size, size)


_FIELDS = ("sizes", "dtype", "stride", "padding", "groups")


def _mm(kind: str, *shapes: tuple[int, int, int, int], dtype: str = "float32") -> list[Case]:
    return [Case(kind, shape, dtype) for shape in shapes]


CASES = [
    *_mm("nn", *[(1, n, n, n) for n in (64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)]),
    *_mm("nn", (1, 100, 100, 100), (1, 127, 255, 511), (1, 1000, 1000, 1000), (1, 33, 65, 129),
         (1, 511, 513, 515), (1, 77, 1001, 333)),
    *_mm("nt", (1, 128, 128, 128), (1, 512, 512, 512), (1, 1024, 1024, 1024), (1, 100, 200, 300)),
    *_mm("tn", (1, 128, 128, 128), (1, 512, 512, 512), (1, 1024, 1024, 1024), (1, 100, 200, 300)),
    *_mm("tt", (1, 512, 512, 512)),
    *_mm("nn", (1, 1, 1024, 1024), (1, 2, 1024, 1024), (1, 4, 1024, 1024), (1, 8, 1024, 1024),
         (1, 16, 4096, 1024), (1, 32, 1024, 1024), (1, 64, 4096, 1024)),
    *_mm("nt", (1, 1, 1024, 1024), (1, 4, 4096, 1024), (1, 8, 1024, 1024), (1, 32, 1024, 1024),
         (1, 64, 1024, 4096)),
    *_mm("nn", (1, 1024, 1, 1024), (1, 1024, 4, 1024), (1, 1024, 10, 1024), (1, 1024, 32, 1024),
         (1, 4096, 64, 64), (1, 64, 64, 16384), (1, 2048, 2048, 8)),
    *_mm("tn", (1, 1024, 1024, 32), (1, 64, 64, 16384)),
    *_mm("nn", (64, 32, 32, 32), (16, 64, 64, 64), (96, 128, 64, 128), (8, 256, 256, 256)),
    *_mm("nt", (96, 128, 128, 64), (16, 64, 64, 64)),
    *_mm("tn", (96, 128, 64, 128), (16, 64, 64, 64)),
    *_mm("gelu", (1, 1024, 1024, 1024), (1, 256, 3072, 768)),
    Case("conv", (8, 64, 56, 64, 1)), Case("conv", (8, 256, 14, 1024, 1)),
    Case("conv", (8, 64, 56, 64, 3), padding=1), Case("conv", (8, 128, 28, 128, 3), padding=1),
    Case("conv", (8, 256, 14, 256, 3), padding=1), Case("conv", (8, 512, 7, 512, 3), padding=1),
    Case("conv", (1, 64, 56, 64, 3), padding=1), Case("conv", (8, 64, 56, 128, 3), stride=2,
                                                      padding=1),
    Case("conv", (8, 3, 224, 64, 7), stride=2, padding=3),
    Case("conv", (8, 256, 56, 128, 1), stride=2),
    Case("conv", (8, 64, 56, 64, 3), padding=1, groups=64),
    Case("conv", (8, 128, 28, 128, 3), padding=1, groups=32),
    Case("conv", (8, 128, 28, 128, 3), padding=1, groups=2),
    *[Case(kind, sizes, "float32", stride, padding, groups) for kind in ("dx", "dw")
      for sizes, stride, padding, groups in (
          ((8, 64, 28, 64, 3), 1, 1, 1), ((8, 64, 28, 128, 3), 2, 1, 1),
          ((8, 128, 14, 128, 1), 1, 0, 1), ((8, 64, 28, 64, 3), 1, 1, 64),
          ((8, 64, 28, 64, 3), 1, 1, 4))],
    *_mm("nn", *[(1, n, n, n) for n in (64, 256, 512, 1024)], (1, 100, 200, 300), dtype="float64"),
    *_mm("nt", (1, 512, 512, 512), dtype="float64"),
    *_mm("nn", (1, 256, 256, 256), (1, 1024, 1024, 1024), (1, 2048, 2048, 2048),
         (1, 8, 1024, 1024), dtype="bfloat16"),
    *_mm("nt", (1, 512, 512, 512), dtype="bfloat16"),
    *_mm("nn", *[(1, n, n, n) for n in (256, 1024, 2048)], dtype="int8"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}


def why(case: Case) -> str:
    """What is known of a shape where we lose: measured on one thread of a server with AVX-512."""
    if case.is_conv:
        if case.kind == "dx" and case.stride > 1:
            return "results of a stride's phases are stored two numbers at a time"
        if case.groups > 1:
            return "few rows use what is packed: 2.2 of 2.5 ms at 32 groups, 0.9 of 2.3 at 4 (dw)"
        if case.sizes[-1] > 1:
            return "windows have to be packed: 3.6 of 16.2 ms at 8x64x56x56 to 64"
        return "a product of the same sizes is as far behind"
    _, m, n, k = case.sizes
    if case.kind == "gelu":
        return "the product alone is as far behind"
    if min(m, n) == 1:
        return "memory: whole rows and chunks of k, 2 to 16 rows at a time, fetching: within 4 %"
    if m * n * k <= 1 << 20:
        return "fixed costs: 64x64xk is 2.4 us + 0.05 us a step, 1.6 of it the call (NumPy's: 1.0)"
    if case.kind[0] == "t" and k >= 2048:
        return "memory beyond the caches: 114 GFLOP/s at a k of 2048, 74 at 16384"
    if case.kind == "tt" and m * n * k <= 1 << 28:
        return "the right factor is packed for all: by each tile for itself 6 % more on one thread"
    if case.kind[0] == "t" and max(m, n) <= 512:
        return "a left factor that is turned: 31 us packed by its tile, 38 read across, at 128"
    if k <= 64:
        return "blocks of few steps: a left factor packed or not, tiles of 32 to 128 KB: within 3 %"
    if m * n >= 1 << 21:
        return (
            "MKL's lead; OpenBLAS is with us: tiles of 72-288 x 432-2048, 128-512 steps: within 4 %"
        )
    return "MKL's lead outside the second cache: 145 to its 151 GFLOP/s at 1024, 159 to 157 at 384"


# --- the systems ---------------------------------------------------------------------------------


def ours(case: Case, arrays: list[Array]) -> Callable[[], Any]:
    """A plan that is held, over memory that is held; the result is fresh memory."""
    os.environ["FULGURITE_DEVICE"] = "cpu"
    import fulgurite as fg
    from bench.systems import plan_of

    plan, inputs = plan_of(fg.schedule(lazily(case, arrays)))
    return lambda: plan.run(inputs)[0]


def lazily(case: Case, arrays: list[Array]) -> Any:
    """A shape as a lazy tensor."""
    import fulgurite as fg

    tensors = [fg.Tensor(a) for a in arrays]
    if case.dtype == "bfloat16":
        tensors = [t.astype(fg.bfloat16).realize() for t in tensors]
    a, b, *rest = tensors
    if case.is_conv:
        how = {"stride": case.stride, "padding": case.padding, "groups": case.groups}
        out = fg.conv2d(a, b, **how)
        if case.kind != "conv":
            which = 0 if case.kind == "dx" else 1
            out = fg.grad(lambda a, b: (fg.conv2d(a, b, **how) * rest[0]).sum(), which)(a, b)
    else:
        a, b = (a.mT if case.kind[0] == "t" else a), (b.mT if case.kind[1:] == "t" else b)
        if case.dtype == "int8":
            a, b = a.astype(fg.int32), b.astype(fg.int32)
        out = a @ b
        if rest:
            out = fg.gelu(out + rest[0])
    return out


def numpy_(case: Case, arrays: list[Array]) -> Callable[[], Any]:
    """NumPy: products only."""
    import numpy as np

    if case.is_conv or case.kind == "gelu" or case.dtype == "bfloat16":
        raise NotImplementedError("NumPy has no function for it")
    a, b = arrays
    if case.dtype == "int8":
        a, b = a.astype(np.int32), b.astype(np.int32)
    a = a.swapaxes(-1, -2) if case.kind[0] == "t" else a
    b = b.swapaxes(-1, -2) if case.kind[1:] == "t" else b
    return lambda: a @ b


def torch_(case: Case, arrays: list[Array]) -> Callable[[], Any]:
    """torch, eager."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    a, b, *rest = [torch.from_numpy(x) for x in arrays]
    if case.kind in ("dx", "dw"):
        back = torch.ops.aten.convolution_backward
        pair, pads = [case.stride] * 2, [case.padding] * 2
        mask = [case.kind == "dx", case.kind == "dw", False]
        found = mask.index(True)
        return lambda: back(
            rest[0], a, b, None, pair, pads, [1, 1], False, [0, 0], case.groups, mask
        )[found]
    if case.kind == "conv":
        return lambda: F.conv2d(a, b, None, case.stride, case.padding, 1, case.groups)
    if case.dtype == "bfloat16":
        a, b = a.bfloat16(), b.bfloat16()
    a, b = (a.mT if case.kind[0] == "t" else a), (b.mT if case.kind[1:] == "t" else b)
    if case.dtype == "int8":
        return lambda: torch._int_mm(a, b)
    if rest:
        return lambda: F.gelu(torch.addmm(rest[0], a, b))
    return lambda: a @ b


def jax_(case: Case, arrays: list[Array]) -> Callable[[], Any]:
    """JAX, jitted."""
    import jax
    import jax.numpy as jnp

    if case.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    given = [jnp.array(x) for x in arrays]
    if case.dtype == "bfloat16":
        given = [x.astype(jnp.bfloat16) for x in given]

    def convolve(a: Any, b: Any) -> Any:
        pads = [(case.padding, case.padding)] * 2
        return jax.lax.conv_general_dilated(
            a, b, (case.stride, case.stride), pads, feature_group_count=case.groups
        )

    def work(a: Any, b: Any, *rest: Any) -> Any:
        if case.kind in ("dx", "dw"):
            which = 0 if case.kind == "dx" else 1
            return jax.vjp(convolve, a, b)[1](rest[0])[which]
        if case.kind == "conv":
            return convolve(a, b)
        a = jnp.swapaxes(a, -1, -2) if case.kind[0] == "t" else a
        b = jnp.swapaxes(b, -1, -2) if case.kind[1:] == "t" else b
        if case.dtype == "int8":
            return jnp.matmul(a, b, preferred_element_type=jnp.int32)
        out = a @ b
        return jax.nn.gelu(out + rest[0], approximate=False) if rest else out

    run = jax.jit(work)
    return lambda: jax.block_until_ready(run(*given))


SYSTEMS = {"ours": ours, "numpy": numpy_, "torch": torch_, "jax": jax_}


class Worker:
    """A system's side: prepares one shape at a time and times it."""

    def __init__(self, system: str) -> None:
        self.make = SYSTEMS[system]
        self.call: Callable[[], Any] = lambda: None

    def start(self, work: str) -> str:
        """Prepare a shape, and check the first answer."""
        import numpy as np

        case = BY_NAME[work]
        arrays = case.arrays()
        self.call = self.make(case, arrays)
        found = self.call()
        if hasattr(found, "float") and type(found).__module__.startswith("torch"):
            found = found.double()
        if hasattr(found, "array"):  # our memory keeps the axis that was summed
            found = found.array.reshape(case.shape)
        found = np.asarray(found.numpy() if hasattr(found, "numpy") else found).astype(np.float64)
        exact = case.exact(arrays)
        part = found[:1] if case.kind in ("conv", "dx") else found[..., :8, :]
        if case.kind == "dw":
            part = found
        error = abs(part - exact).max() / abs(exact).max()
        limit = {"bfloat16": 2e-2, "float64": 1e-12, "int8": 0.0}.get(case.dtype, 2e-5)
        assert error <= limit, f"off by {error:.1e}"
        return "ready"

    def time(self, calls: int, seconds: float) -> list[float]:
        """Milliseconds of so many calls, fewer (but one) when the time is up."""
        alone = os.environ["BENCH_THREADS"] == "1"  # then the thread's own time, free of neighbours
        clock = time.thread_time if alone else time.perf_counter
        return times_of(self.call, calls, seconds, clock)


def measure(settings: Settings, script: str = __file__) -> dict[str, dict[str, dict[str, Any]]]:
    """Every shape on every system, in turns."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        workers = {}
        for system in settings.systems:
            caches = Path(folder, system)
            caches.mkdir()
            workers[system] = settings.worker(script, system, str(caches))
        try:
            for work in settings.only:
                if time.monotonic() - begun > settings.budget:
                    print(f"no time for {work}", file=sys.stderr)
                    continue
                rows[work] = _row(work, workers, settings)
                cells = {s: c.get("best", math.nan) for s, c in rows[work].items()}
                print(work, {s: round(t, 4) for s, t in cells.items()}, file=sys.stderr)
        finally:
            for worker in workers.values():
                worker.__exit__()
    return rows


def _row(work: str, workers: dict[str, Any], settings: Settings) -> dict[str, dict[str, Any]]:
    times: dict[str, list[float]] = {}

    def start(worker: Any) -> dict[str, Any]:
        try:
            worker.ask("start", work=work)
        except WorkerError as error:
            return {"error": str(error)}
        return {}

    with ThreadPoolExecutor() as pool:  # nothing is timed meanwhile
        cells = dict(zip(workers, pool.map(start, workers.values()), strict=True))
    for turn in range(settings.rounds):
        for system in settings.turn(turn):
            if "error" not in cells[system]:
                time.sleep(settings.pause)
                ask = {"calls": settings.calls, "seconds": settings.seconds}
                times.setdefault(system, []).extend(workers[system].ask("time", **ask))
    for system, found in times.items():
        cells[system] |= {"best": min(found), "median": sorted(found)[len(found) // 2]}
    return cells


def summary(rows: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Our speed beside the best of NumPy and torch, float32 only."""
    ratios: dict[str, float] = {}
    for work, cells in rows.items():
        peers = [cells[s]["best"] for s in ("numpy", "torch") if "best" in cells.get(s, {})]
        if BY_NAME[work].dtype == "float32" and peers and "best" in cells.get("ours", {}):
            ratios[work] = min(peers) / cells["ours"]["best"]
    if not ratios:
        return "nothing to compare"
    low = sorted((r, w) for w, r in ratios.items() if r < 1.0)
    under = sum(ratio < LEAST for ratio, _ in low)
    lines = [f"float32: geometric mean of speed {geometric_mean(ratios.values()):.2f} of the best "
             f"of NumPy and torch over {len(ratios)} shapes; {under} under {LEAST}",
             "", "| where we lose | speed | why |", "| --- | --- | --- |"]  # fmt: skip
    rows_ = [f"| {work} | {ratio:.2f} | {why(BY_NAME[work])} |" for ratio, work in low]
    return "\n".join([*lines, *rows_])


if __name__ == "__main__":
    chosen, settings_ = parse(__doc__, SYSTEMS, tuple(BY_NAME), None, 3)
    if chosen:
        served = Worker(chosen)
        serve({"start": served.start, "time": served.time})
    else:
        found = measure(settings_)
        publish("contract", found, settings_, {}, dict.fromkeys(BY_NAME, GOAL), "best")
        print(summary(found))
