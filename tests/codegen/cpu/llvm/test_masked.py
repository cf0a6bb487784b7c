"""Tests of codegen/cpu/llvm/masked.py: lanes that are masked out are neither read nor written."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.llvm.convert import shuffled
from fulgurite.codegen.cpu.llvm.emitter import Emitter, Val, ramp, scalar_type
from fulgurite.codegen.cpu.llvm.masked import (
    masked_gather,
    masked_load,
    masked_scatter,
    masked_store,
)
from fulgurite.codegen.cpu.target import VECTORS, target
from fulgurite.core.dtype import DType, bool_, float32, float64, int32, int64
from tests.codegen.cpu import accuracy

pytest.importorskip("llvmlite")
if platform.machine() not in ("x86_64", "AMD64"):
    pytest.skip("the targets are those of x86-64", allow_module_level=True)

from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.llvm.loader import load

Array = np.ndarray[Any, Any]
EACH = pytest.mark.parametrize("vectors", accuracy.widths())


# --- masks of which a part is known --------------------------------------------------------------


def _mask(e: Emitter, first: int, size: int, step: int) -> str:
    """Lanes with 0 <= first + lane < size, where %c holds; spread out, if they are steps apart."""
    kind = f"<{e.lanes} x i32>"
    places = e.let(f"add {kind} splat (i32 {first}), {ramp(e.lanes, 1, 'i32')}")
    inside = e.let(f"icmp ult {kind} {places}, splat (i32 {size})")
    holds = e.splat(Val("%c", bool_)).text
    live = e.let(f"and <{e.lanes} x i1> {holds}, {inside}")
    if step == 1:
        return live
    lanes = [i // step if i % step == 0 else e.lanes for i in range(e.lanes)]
    return shuffled(e, bool_, live, "zeroinitializer", lanes)


def _lives(lanes: int, first: int, size: int, step: int) -> Array:
    """What the mask is where the condition holds."""
    live = [0 <= first + i < size for i in range(lanes)]
    return np.array([i % step == 0 and live[i // step] for i in range(lanes)])


def _text(name: str, how: str, lanes: int, dtype: DType, mask: tuple[int, int, int]) -> str:
    """A function that reads or writes lanes of memory under a mask."""
    e = Emitter(lanes)
    kind, inner, live = e.type_of(dtype, True), scalar_type(dtype), _mask(e, *mask)
    memory = "%to" if how in ("store", "scatter") else "%from"
    places = e.let(f"getelementptr {inner}, ptr {memory}, <{lanes} x i32> {ramp(lanes, 1, 'i32')}")
    if how in ("store", "scatter"):
        value = e.let(f"load {kind}, ptr %from, align 1")
        if how == "store":
            masked_store(e, kind, value, "%to", live)
        else:
            masked_scatter(e, kind, value, places, live)
    else:
        if how == "gather":
            found = masked_gather(e, kind, places, live)
        elif how == "over":
            others = e.let(f"load {kind}, ptr %to, align 1")
            found = masked_load(e, kind, "%from", live, others)
        else:
            found = masked_load(e, kind, "%from", live)
        e.line(f"store {kind} {found}, ptr %to, align 1")
    head = f"define void @{name}(ptr noalias %from, ptr noalias %to, i1 %c) {{\nentry:"
    return "\n".join([head, *e.lines, "  ret void\n}", *e.declared.values(), ""])


def _cases(lanes: int) -> list[tuple[int, int, int]]:
    half = lanes // 2
    inner = [(0, 1), (0, half), (-half, lanes), (-half, 1), (-1, lanes - 1), (half, half + 1)]
    return [(first, size, step) for first, size in inner for step in (1, 2, 3, 4)]


@EACH
@pytest.mark.parametrize("how", ["load", "over", "gather", "store", "scatter"])
def test_lanes_that_are_masked_out_are_left_alone(vectors: str, how: str) -> None:
    lanes = VECTORS[vectors]
    cases = [(dtype, mask) for dtype in (float32, float64, int32, int64) for mask in _cases(lanes)]
    texts = [_text(f"k{i}", how, lanes, *case) for i, case in enumerate(cases)]
    code = load(compile_object(texts, target(vectors)))
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_bool)
    for number, (dtype, mask) in enumerate(cases):
        for holds in (False, True):
            source = np.arange(1, lanes + 1).astype(dtype.numpy)
            goal = np.full(lanes, 77, dtype.numpy)
            kind(code[f"k{number}"])(source.ctypes.data, goal.ctypes.data, holds)
            live = _lives(lanes, *mask) & holds
            expected = np.where(live, source, 0 if how in ("load", "gather") else 77)
            np.testing.assert_array_equal(goal, expected, f"{dtype} {mask} {holds}")


@EACH
@pytest.mark.parametrize("dtype", [float32, float64, int64], ids=lambda d: d.name)
def test_any_number_of_first_lanes_is_read(vectors: str, dtype: DType) -> None:
    lanes = VECTORS[vectors]
    texts = []
    for count in range(lanes + 1):
        e = Emitter(lanes)
        kind, ramps = e.type_of(dtype, True), f"<{lanes} x i32>"
        mask = e.let(f"icmp ult {ramps} {ramp(lanes, 1, 'i32')}, splat (i32 {count})")
        e.first[mask] = count
        e.line(f"store {kind} {masked_load(e, kind, '%from', mask)}, ptr %to, align 1")
        head = f"define void @k{count}(ptr noalias %from, ptr noalias %to) {{\nentry:"
        texts.append("\n".join([head, *e.lines, "  ret void\n}", *e.declared.values(), ""]))
    code = load(compile_object(texts, target(vectors)))
    source, goal = np.arange(1, lanes + 1).astype(dtype.numpy), np.zeros(lanes, dtype.numpy)
    for count in range(lanes + 1):
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code[f"k{count}"])
        call(source.ctypes.data, goal.ctypes.data)
        np.testing.assert_array_equal(goal, np.where(np.arange(lanes) < count, source, 0))


# --- whole kernels -------------------------------------------------------------------------------


@EACH
def test_borders_of_doubles_are_not_read(vectors: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 3, 8))

    def pooled(t: fg.Tensor) -> fg.Tensor:
        normal = fg.batch_norm(t, training=True).output
        return fg.max_pool2d(1 / (1 + normal**2), (2, 2), stride=1).sum()

    found = []
    for options in ({"tier": "native", "vectors": vectors}, {"device": "reference"}):
        with fg.config(**{"device": "cpu", **options}):
            found.append(fg.grad(pooled)(fg.tensor(x)).numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)
