"""What replaying costs: a plan of 100 kernels too small for threads, and one tiny realize.

Run `python bench/replay.py [--peers PYTHON]`. Wall time, the quickest of many. The kernels' own
time is that of a native loop which calls the same functions with the same arguments: what a replay
takes above it is ours to answer for. The peers run the same 100 ops, one by one (tinygrad: a jit
that is kept from fusing them).
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import Measure, run_figures
from bench.systems import plan_of

COUNT = 100
SIZE = 64
GOALS: dict[str, float | None] = {
    "100 small kernels (us)": None,
    "100 small kernels: their own time (us)": None,
    "100 small kernels: replay over their own time (us)": 3,
    "100 small kernels: of which below the tensors (us)": None,
    "tiny realize (us)": 80,
}
_LOOP = """
define void @bench_loop(ptr %table, i64 %count, i64 %rounds) {
entry:
  br label %round
round:
  %r = phi i64 [ 0, %entry ], [ %r.next, %again ]
  br label %each
each:
  %i = phi i64 [ 0, %round ], [ %i.next, %each ]
  %at = shl i64 %i, 2
  %function.at = getelementptr i64, ptr %table, i64 %at
  %function = load ptr, ptr %function.at
  %params.at = getelementptr i64, ptr %function.at, i64 1
  %params = load ptr, ptr %params.at
  %values.at = getelementptr i64, ptr %function.at, i64 2
  %values = load ptr, ptr %values.at
  %units.at = getelementptr i64, ptr %function.at, i64 3
  %units = load i64, ptr %units.at
  call void %function(ptr %params, ptr %values, i64 0, i64 %units)
  %i.next = add i64 %i, 1
  %i.more = icmp ult i64 %i.next, %count
  br i1 %i.more, label %each, label %again
again:
  %r.next = add i64 %r, 1
  %r.more = icmp ult i64 %r.next, %rounds
  br i1 %r.more, label %round, label %done
done:
  ret void
}
"""


def quickest(work: Callable[[], object], calls: int = 20, turns: int = 200) -> float:
    """Microseconds of a call: the best turn of several calls each."""
    work()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        times.append(time.perf_counter() - start)
    return min(times) / calls * 1e6


def chain(a: Any, b: Any, step: Callable[[Any], Any] = lambda x: x) -> Any:
    """A hundred dependent ops."""
    top = a
    for _ in range(COUNT // 2):
        top = step(step(top * b) + a)
    return top


def records(program: Any) -> list[tuple[int, int, list[int], list[int]]]:
    """A program's launches (function, units, addresses, numbers) as its last run had them."""
    from fulgurite.codegen.cpu.driver import LAUNCH, SLOTS

    frame, found = program._idle[-1], []
    assert len(program.records) == len(program.segments) == 1, "more than one native call"
    for words in program.records:
        at = len(program.frame_layout.header)
        while words[at] == LAUNCH:
            _, length, function, units, _, params, variables, _ = words[at : at + 8]
            slots = words[at + 8 : at + 8 + params]
            assert not variables, "the chain has no variables"
            numbers = [0, 0, *words[at + 8 + params : at + length]]
            found.append((function, units, [frame.words[SLOTS + s] for s in slots], numbers))
            at += length
    return found


def own_time(program: Any, count: int = COUNT) -> float:
    """Microseconds of a program's kernels, called by a native loop."""
    from fulgurite.codegen.cpu.llvm.compiler import compile_object
    from fulgurite.codegen.cpu.llvm.loader import load
    from fulgurite.codegen.cpu.target import target

    launches = records(program)
    assert len(launches) == count, f"{len(launches)} launches instead of {count}"
    functions = load(compile_object([_LOOP], target()))
    kept: list[Any] = []
    table = array("q")
    for function, units, *lists in launches:
        kept += [array("q", words) for words in lists]
        places = [words.buffer_info()[0] for words in kept[-2:]]
        table.extend([function, *places, units])
    word = ctypes.c_int64
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, word, word)
    loop, rounds = kind(functions["bench_loop"]), 100
    place = table.buffer_info()[0]
    return quickest(lambda: loop(place, count, rounds), 1, 500) / rounds


def tiny() -> dict[str, float]:
    """Our cost of one op, built and realized."""
    os.environ["FULGURITE_DEVICE"] = "cpu"
    import fulgurite as fg

    a = fg.ones(SIZE).realize()
    return {"tiny realize (us)": quickest(lambda: (a + 1.0).realize())}


def replays() -> dict[str, float]:
    """Our cost of a plan that is held."""
    os.environ["FULGURITE_DEVICE"] = "cpu"
    import fulgurite as fg

    a, b = fg.ones(SIZE).realize(), fg.full((SIZE,), 0.5).realize()
    with fg.config(fuse=False):
        held = fg.schedule(chain(a, b))
        plan, buffers = plan_of(held)
    results = plan.run(buffers)  # kept, so that the memory of the last run stays ours
    assert len(plan.kernels) == COUNT, f"{len(plan.kernels)} kernels instead of {COUNT}"
    own = own_time(plan.executor)
    del results
    whole = quickest(held.run)
    below = quickest(lambda: plan.run(buffers))
    return {
        "100 small kernels (us)": whole,
        "100 small kernels: their own time (us)": own,
        "100 small kernels: replay over their own time (us)": whole - own,
        "100 small kernels: of which below the tensors (us)": below - own,
    }


def one_by_one(load: Callable[[], Any]) -> Measure:
    """A peer that runs ops when they are called."""

    def measure() -> dict[str, float]:
        ones, wait = load()
        a, b = ones, ones * 0.5
        return {
            "100 small kernels (us)": quickest(lambda: wait(chain(a, b)), 2, 100),
            "tiny realize (us)": quickest(lambda: wait(a + 1.0)),
        }

    return measure


def numpy_ones() -> Any:
    """NumPy."""
    import numpy as np

    return np.ones(SIZE, np.float32), lambda x: x


def torch_ones() -> Any:
    """torch."""
    import torch

    return torch.ones(SIZE), lambda x: x


def jax_ones() -> Any:
    """JAX, op by op."""
    import jax

    return jax.numpy.ones(SIZE), jax.block_until_ready


def tinygrad() -> dict[str, float]:
    """tinygrad."""
    from tinygrad import Tensor, TinyJit

    a, b = (Tensor.full((SIZE,), n).contiguous().realize() for n in (1.0, 0.5))
    run = TinyJit(lambda: chain(a, b, lambda x: x.contiguous()).realize())
    for _ in range(3):
        run()
    return {
        "100 small kernels (us)": quickest(run, 2, 50),
        "tiny realize (us)": quickest(lambda: (a + 1.0).realize(), 2, 20),
    }


if __name__ == "__main__":
    systems: dict[str, list[Measure]] = {
        "ours": [tiny, replays],
        "numpy": [one_by_one(numpy_ones)], "torch": [one_by_one(torch_ones)],
        "jax": [one_by_one(jax_ones)], "tinygrad": [tinygrad],
    }  # fmt: skip
    run_figures(__doc__, __file__, systems, GOALS)
