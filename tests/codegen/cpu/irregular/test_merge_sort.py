"""Tests of codegen/cpu/irregular/merge_sort.py: keys in order, in vector registers."""

import ctypes
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

from fulgurite.codegen.cpu.irregular.merge_sort import (
    bitonic,
    keys_per_register,
    levels_of,
    merged,
    module,
    registers_of,
)
from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.llvm.loader import load
from fulgurite.codegen.cpu.tiling import CPU
from tests.codegen.cpu.machine import VECTORS, wanted
from tests.properties import program

Array = np.ndarray[Any, Any]
AROUND = 64  # bytes on both sides of an array, which nobody may write to
_SORT = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_loaded: dict[tuple[int, str], Any] = {}


def sorted_by(bits: int, vectors: str, keys: Array) -> tuple[Array, int]:
    """The keys in order, and in which of the two arrays they are."""
    target = wanted(vectors)
    made = module(bits, target)
    if (bits, vectors) not in _loaded:
        found = load(compile_object([made.text], target), {})
        assert merged(made) in found
        _loaded[bits, vectors] = _SORT(found[made.name])
    lanes, around = keys_per_register(bits, target), AROUND * 8 // bits
    count = registers_of(keys.size, lanes)
    arrays = [np.full(count * lanes + 2 * around, 5, keys.dtype) for _ in range(2)]
    arrays[0][around:-around] = np.iinfo(keys.dtype).max
    arrays[0][around : around + keys.size] = keys
    places = [a.ctypes.data + AROUND for a in arrays]
    which = places.index(_loaded[bits, vectors](*places, count))
    for a in arrays:
        assert np.all(a[:around] == 5) and np.all(a[-around:] == 5), "written beyond the array"
    assert which == levels_of(count, lanes * bits // 8) % 2
    return arrays[which][around : around + keys.size], which


def orders(dtype: Any, n: int) -> list[Array]:
    """Keys as they come, in order, reversed, alike, few, rising and falling, and at the ends."""
    rng, ends = np.random.default_rng(n), np.iinfo(dtype)
    keys = rng.integers(ends.min, ends.max, n, dtype, endpoint=True)
    up = np.sort(keys)
    few, two = (rng.integers(0, m, n).astype(dtype) for m in (5, 2))
    pipe = np.concatenate([up[::2], up[1::2][::-1]])
    far = np.where(few > 2, keys.dtype.type(ends.min), keys.dtype.type(ends.max))
    return [keys, up, up[::-1], np.full(n, ends.max, dtype), few, two, pipe, far]


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_bitonic_layers_bring_zeros_and_ones_in_order(count: int) -> None:
    for ones, start in product(range(count + 1), range(count)):
        row = [int((i - start) % count < ones) for i in range(count)]  # rises and falls once
        for layer in bitonic(count):
            assert sorted(i for pair in layer for i in pair) == list(range(count))
            for low, high in layer:
                row[low], row[high] = min(row[low], row[high]), max(row[low], row[high])
        assert row == sorted(row)


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("bits", [32, 64])
def test_keys_of_any_number_and_order_are_sorted(bits: int, vectors: str) -> None:
    dtype = np.dtype(f"i{bits // 8}")
    lanes = keys_per_register(bits, wanted(vectors))
    block = CPU.sort.block_registers * lanes
    sizes = (1, 2, lanes, 2 * lanes + 1, 4 * lanes, block, block + 1, 3 * block, 5 * block - 1,
             17 * block, 1000)  # fmt: skip
    for n in sizes:
        for keys in orders(dtype, n):
            np.testing.assert_array_equal(sorted_by(bits, vectors, keys)[0], np.sort(keys))


@pytest.mark.parametrize("bits", [32, 64])
def test_chunks_are_merged_where_the_last_one_is_short(bits: int) -> None:
    dtype = np.dtype(f"i{bits // 8}")
    chunk = CPU.sort.merge_chunk_bytes // dtype.itemsize
    ends = set()
    for n in (chunk, chunk + 1, 2 * chunk + 77, 5 * chunk - 3):
        for keys in orders(dtype, n):
            found, which = sorted_by(bits, "auto", keys)
            np.testing.assert_array_equal(found, np.sort(keys))
            ends.add(which)
    assert ends == {0, 1}


@program
@given(
    n=st.integers(1, 3000), distinct=st.integers(1, 400), seed=st.integers(0, 999),
    bits=st.sampled_from([32, 64]), vectors=st.sampled_from(VECTORS),
)  # fmt: skip
def test_ties_are_sorted_like_others(
    n: int, distinct: int, seed: int, bits: int, vectors: str
) -> None:
    keys = np.random.default_rng(seed).integers(-distinct, distinct, n, np.dtype(f"i{bits // 8}"))
    np.testing.assert_array_equal(sorted_by(bits, vectors, keys)[0], np.sort(keys))
