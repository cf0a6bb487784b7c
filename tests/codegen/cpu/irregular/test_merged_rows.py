"""Tests of codegen/cpu/irregular/merged_rows.py: rows sorted by merges, as values and as places."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core import build
from fulgurite.core.dtype import (
    DTYPES,
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
)
from fulgurite.core.node import Node
from fulgurite.core.ops.elementwise import NEG
from fulgurite.core.ops.leaf import param, variable

pytest.importorskip("llvmlite")

from fulgurite.codegen.common.api import KernelText
from fulgurite.codegen.cpu.irregular.merged_rows import Room, pays
from fulgurite.codegen.cpu.irregular.sort import Rows
from fulgurite.codegen.cpu.tiling import CPU
from tests.codegen.cpu.machine import VECTORS, wanted
from tests.codegen.cpu.parity import hostile, results, same_bits
from tests.properties import program

Array = np.ndarray[Any, Any]
REAL = [d for d in DTYPES if d.kind != "c"]
LONG = CPU.sort.long_elements


def values(x: Node, axis: int, descending: bool) -> Node:
    """What is at the places of the order."""
    return build.gather(x, build.sort_order(x, axis, descending), axis)


def payloads(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Hostile numbers; any bits at all make a NaN."""
    x = hostile(dtype, shape, seed)
    if dtype.kind == "f":
        kind = np.dtype(f"u{dtype.numpy.itemsize}")
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, np.iinfo(kind).max, shape, kind, endpoint=True).view(dtype.numpy)
        with np.errstate(invalid="ignore"):
            x = np.where(np.isnan(bits.astype(np.float64)) | (rng.random(shape) < 0.1), bits, x)
    return x


def same_bytes(
    x: Array, axis: int, dtype: DType, descending: bool, vectors: str = "auto"
) -> KernelText:
    """Do the values have the bits that the stable order gives? Signs count, and payloads of NaNs
    but of small floats, whose copies may round them."""
    root = values(param(0, x.shape, dtype), axis, descending)
    got, meant, rendered = results(root, [x], vectors)
    same_bits(got, meant, dtype)
    assert dtype.is_small_float or got.tobytes() == meant.tobytes()
    return rendered


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_values_have_the_bits_of_the_stable_order(dtype: DType, descending: bool) -> None:
    for shape, axis in (
        ((1,), 0), ((35, 7), 1), ((3, 31), 1), ((4, 64), 1), ((2, 129), 1), ((2, 1000), 1),
        ((70, 3), 0), ((2, 40, 5), 1),
    ):  # fmt: skip
        same_bytes(payloads(dtype, shape, sum(shape)), axis, dtype, descending)


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", [float64, float32, bfloat16, int64, int8], ids=str)
def test_any_vectors_give_the_same_bits(dtype: DType, vectors: str) -> None:
    for shape in ((3, 5), (2, 33), (3, 700), (1, 5000)):
        for descending in (False, True):
            same_bytes(payloads(dtype, shape, 3), 1, dtype, descending, vectors)


@pytest.mark.parametrize("dtype", [float32, float64, float16, int16, int32], ids=str)
def test_long_rows_are_sorted_in_blocks_and_merged(dtype: DType) -> None:
    for n in (LONG, LONG + 77, 3 * CPU.sort.block_elements + 1):
        for descending in (False, True):
            x = payloads(dtype, (2, n), 1)
            rendered = same_bytes(x, 1, dtype, descending)
            merges = [p.symbol for p in rendered.launches if "merge" in p.symbol]
            room = Room(Rows(dtype, descending, 2, n, values=True), wanted("auto"))
            assert len(merges) == (room.blocks - 1).bit_length() > 0


@pytest.mark.parametrize("order", ["rising", "falling", "alike", "organ pipe"])
def test_orders_that_branches_know_need_no_more_and_come_out_right(order: str) -> None:
    up = np.arange(5000, dtype=np.float32)
    pipe = np.concatenate([up[::2], up[::-2]])
    x = {"rising": up, "falling": up[::-1], "alike": 0 * up - 0.0, "organ pipe": pipe}[order]
    for descending in (False, True):
        same_bytes(np.ascontiguousarray(x), 0, float32, descending)


def test_values_are_sorted_without_places_where_merges_are_quicker() -> None:
    target = wanted("auto")
    for n in (5, 100, 1000):
        rendered = same_bytes(payloads(float32, (16, n), 0), 1, float32, False)
        assert len(rendered.launches) == 1  # no gather
    one = Rows(int8, False, 1, LONG, values=True)
    assert not pays(one, target)  # one digit
    rendered = same_bytes(payloads(int8, (1, LONG), 0), 1, int8, False)
    assert len(rendered.launches) > 1


def test_rows_that_fit_the_stack_need_no_workspace() -> None:
    target = wanted("auto")
    short, long = (Rows(float32, False, 1000, n, values=True) for n in (1000, 20_000))
    assert Room(short, target).on_stack and Room(short, target).total == 64
    assert not Room(long, target).on_stack


def test_one_library_sorts_rows_of_every_length_and_number() -> None:
    texts = set()
    for dtype in (float32, int32, int16):
        for shape in ((3, 100), (2, 999)):
            x = hostile(dtype, shape)
            _, _, rendered = results(values(param(0, shape, dtype), 1, False), [x])
            texts.add(rendered.library)
    assert len(texts) == 1 and len(texts.pop()) == 1


@program
@given(
    rows=st.integers(1, 3), most=st.integers(1, 300), part=st.floats(0, 1),
    descending=st.booleans(), seed=st.integers(0, 99), vectors=st.sampled_from(VECTORS),
    dtype=st.sampled_from([float32, float64, int64, int32, float16]), places=st.booleans(),
)  # fmt: skip
def test_rows_whose_length_varies_are_sorted_as_far_as_they_go(
    rows: int, most: int, part: float, descending: bool, seed: int, vectors: str, dtype: DType,
    places: bool,
) -> None:  # fmt: skip
    size = variable("n", 0, most)
    n = int(part * most)
    x = payloads(dtype, (rows, most), seed)
    line = param(0, (rows, size), dtype)
    root = build.sort_order(line, 1, descending) if places else values(line, 1, descending)
    got, meant, _ = results(root, [x], vectors, {"n": n})
    got, meant = (a.reshape(rows, most)[:, :n] for a in (got, meant))
    same_bits(got, meant, root.dtype)


def test_what_is_sorted_may_be_computed_and_moved() -> None:
    shape = (4, 50, 6)
    x = payloads(float32, shape, 2)
    source = NEG(build.permute(param(0, shape, float32), (2, 0, 1)))
    for axis in range(3):
        root = values(source, axis, False)
        for one in (root, build.permute(root, (1, 2, 0)), NEG(root)):
            got, meant, _ = results(one, [x])
            assert got.tobytes() == meant.tobytes()
