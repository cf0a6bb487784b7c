"""What a machine can do at most: the rates that shares of a limit are of.

In: a device. Out: `Rates`, a `MachineModel` and where its numbers are from. Of the processor they
are those that `fulgurite tune` wrote, else four kernels are timed when somebody first asks, a
tenth of a second: a product of matrices, maps within caches and from memory, and one that is all
arithmetic. Other targets have the rates of their model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..aot.schedule import schedule
from ..codegen.cpu.machine import SHIPPED
from ..config import config, current
from ..graph.fusion.machine import MachineModel, work_of
from ..runtime.device import get_device
from ..runtime.recording import unrecorded
from ..tensor import Tensor


@dataclass(frozen=True, slots=True)
class Rates:
    """The machine that shares are of, and where its numbers are from."""

    model: MachineModel
    source: str


@dataclass(frozen=True, slots=True)
class Probe:
    """How large the kernels are that are timed, and how often they run."""

    side: int = 512  # of the matrices
    near: int = 1 << 16  # numbers that stay in caches
    far: int = 1 << 23  # numbers that do not
    turns: int = 6


PROBE = Probe()
_measured: dict[int, MachineModel] = {}  # by the number of threads


def rates_of(device: str) -> Rates:
    """The rates of a device."""
    from ..runtime import tuning
    from ..runtime.cpu.threads import own_threads

    backend, options = get_device(device), current()
    model = backend.machine
    if model is not SHIPPED or backend.codegen is None:
        return Rates(model, f"the model of {device}")
    folder = tuning.folder_of(options)
    tuned = tuning.read_table(folder) if folder is not None else None
    if tuned is not None:
        return Rates(tuned, "measured by 'fulgurite tune'")
    threads = options.threads or own_threads()
    if threads not in _measured:
        _measured[threads] = _probed(model)
    return Rates(_measured[threads], f"timed just now, {threads} threads")


def _probed(model: MachineModel) -> MachineModel:
    """The model with rates of this machine: of several runs the quickest counts."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Tensor:
        return Tensor(rng.random(shape, np.float32))

    with (
        unrecorded(),
        config(device="cpu", tier="native", search=False, exact=False, deterministic=True),
    ):
        a, b = numbers(PROBE.side, PROBE.side), numbers(PROBE.side, PROBE.side)
        near, far = schedule(numbers(PROBE.near) + 1), schedule(numbers(PROBE.far) + 1)
        heavy, product = schedule((numbers(PROBE.near) * 0.1).exp().tanh()), schedule(a @ b)
        work = sum([work_of(item.kernel).elementwise for item in heavy.items])
        cache_bw = 8 * PROBE.near / _least(near.run)
        dram_bw = 8 * PROBE.far / _least(far.run)
        gemm_rate = 2 * PROBE.side**3 / _least(product.run)
        elementwise_rate = work / _least(heavy.run)
    return replace(
        model, cache_bw=max(cache_bw, dram_bw), dram_bw=dram_bw, gemm_rate=gemm_rate,
        elementwise_rate=elementwise_rate,
        stream_gemm_rate=model.stream_gemm_rate / model.gemm_rate * gemm_rate,
        stream_rate=model.stream_rate / model.elementwise_rate * elementwise_rate,
    )  # fmt: skip


def _least(run: Callable[[], Any]) -> float:
    """Nanoseconds of the quickest of some runs."""
    run()
    least = float("inf")
    for _ in range(PROBE.turns):
        start = time.perf_counter_ns()
        run()
        least = min(least, float(time.perf_counter_ns() - start))
    return least
