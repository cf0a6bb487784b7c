"""Speed of native functions beside NumPy's and, where the system has it, libmvec's.

In: names of functions (all if none is given). Out: a line for each function and dtype: nanoseconds
an element of each, least over many turns taken in one run, and what the function's module costs to
compile, in milliseconds of processor time. One core; 16,384 numbers, which stay in its cache.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import least
from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.llvm.emitter import Emitter, Val, scalar_type
from fulgurite.codegen.cpu.llvm.loader import load
from fulgurite.codegen.cpu.target import target
from fulgurite.codegen.cpu.vecmath import library
from fulgurite.core.dtype import DType, float32, float64
from tests.codegen.cpu.accuracy import FUNCTIONS, text_of

COUNT = 1 << 14
TURNS = 200
DOMAINS = {"acosh": (1.01, 5.0), "asin": (-0.99, 0.99), "acos": (-0.99, 0.99),
           "atanh": (-0.99, 0.99), "log1p": (-0.5, 5.0)}  # fmt: skip
POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "pow", "lgamma"}
_Call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)


def libmvec(name: str, dtype: DType) -> tuple[str, dict[str, int]] | None:
    """The same loop around libmvec's function for AVX-512, and where that is; None: not here."""
    lanes = 16 if dtype is float32 else 8
    arity = FUNCTIONS[name].arity
    symbol = f"_ZGVeN{lanes}{'v' * arity}_{name}{'f' if dtype is float32 else ''}"
    try:
        function = getattr(ctypes.CDLL(find_library("mvec") or "libmvec.so.1"), symbol)
    except (OSError, AttributeError):
        return None
    known = {symbol: ctypes.cast(function, ctypes.c_void_p).value or 0}
    e = Emitter(lanes)
    kind, inner = e.type_of(dtype, True), scalar_type(dtype)

    def once(index: str, _: list[str]) -> list[str]:
        values = []
        for source in ("%a", "%b")[:arity]:
            at = e.let(f"getelementptr {inner}, ptr {source}, i64 {index}")
            values.append(Val(e.let(f"load {kind}, ptr {at}, align 4"), dtype, True))
        found = e.call(kind, symbol, *[e.typed(v) for v in values])
        at = e.let(f"getelementptr {inner}, ptr %out, i64 {index}")
        e.line(f"store {kind} {found}, ptr {at}, align 4")
        return []

    e.loop("0", "%count", lanes, [], once)
    args = "ptr noalias %a, ptr noalias %b, ptr noalias %out, i64 %count"
    head = f"define void @kernel({args}) {{\nentry:"
    text = "\n".join([head, *e.lines, "  ret void", "}", *e.declared.values(), ""])
    return text, known


def contenders(name: str, dtype: DType) -> tuple[dict[str, Callable[[], object]], float]:
    """What to time, by name, and what compiling ours cost."""
    low, high = (0.1, 10.0) if name in POSITIVE else DOMAINS.get(name, (-5.0, 5.0))
    rng = np.random.default_rng(0)
    a: Any = rng.uniform(low, high, COUNT).astype(dtype.numpy)
    b: Any = rng.uniform(0.1, 3, COUNT).astype(dtype.numpy)
    out = np.empty_like(a)
    arrays = (a, b, out)
    places = [array.ctypes.data for array in arrays]
    here = target()
    text = text_of(name, dtype, here.lanes)
    started = time.process_time()
    data = compile_object([text, *library(text)], here)
    spent = time.process_time() - started
    ours = _Call(load(data)["kernel"])

    def called(function: Any) -> Callable[[], object]:
        def call(kept: object = arrays) -> object:  # their memory is in use as long as this is
            return function(*places, COUNT)

        return call

    found = {"ours": called(ours)}
    other = libmvec(name, dtype) if here.vectors == "avx512" else None
    if other is not None:
        theirs = _Call(load(compile_object([other[0]], here), other[1])["kernel"])
        found["libmvec"] = called(theirs)
    function = FUNCTIONS[name].numpy
    if function is not None and name != "rsqrt":
        inputs = (a, b)[: FUNCTIONS[name].arity]
        found["numpy"] = lambda: function(*inputs, out=out)
    return found, spent


def main() -> None:
    """Print a line for each function and dtype."""
    for name in sys.argv[1:] or FUNCTIONS:
        for dtype in (float32, float64):
            found, spent = contenders(name, dtype)
            best = least(found, TURNS)
            times = "  ".join(f"{who} {t / COUNT * 1e9:6.3f}" for who, t in best.items())
            print(f"{name:7} {dtype.name}  {times}  compile {spent * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
