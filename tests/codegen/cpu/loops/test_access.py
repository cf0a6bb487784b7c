"""Tests of codegen/cpu/loops/access.py: lanes a few steps apart, by turns, and across memory."""

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.relayout import relayouts
from fulgurite.codegen.cpu.target import Target

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import functions, looped, lowered
from tests.codegen.cpu.machine import VECTORS, Array, both, subject, wanted

DTYPES = ("float32", "float64", "float16", "int8", "int16", "int64", "bool")
WORKS: dict[str, Callable[[fg.Tensor], fg.Tensor]] = {
    "every second": lambda x: x[:, ::2],
    "every third": lambda x: x[:, 1::3],
    "every fourth row and column": lambda x: x[::4, ::4],
    "every fifth": lambda x: x[:, ::5],
    "backwards": lambda x: fg.flip(x, 1),
    "backwards by two": lambda x: fg.flip(x, 1)[:, ::2],
    "turned": lambda x: x.T,
    "turned and backwards": lambda x: fg.flip(x, (0, 1)).T,
    "pairs": lambda x: fg.stack([x, fg.flip(x, 1)], -1),
    "threes": lambda x: fg.stack([x, fg.flip(x, 0), x[:, ::-1]], -1),
    "fours": lambda x: fg.stack([x, x[::-1], x[:, ::-1], x], -1),
    "twice each": lambda x: fg.repeat(x, 2, 1),
    "padded every second": lambda x: fg.pad(x, ((1, 1), (1, 2)))[:, ::2],
    "windows": lambda x: fg.max_pool2d(x, 2, 2) if min(x.shape) > 1 else x,
}


def filled(shape: tuple[int, ...], dtype: str) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32)).cast(dtype).realize()


@given(
    work=st.sampled_from(sorted(WORKS)),
    shape=st.tuples(st.integers(1, 45), st.integers(1, 70)),
    dtype=st.sampled_from(DTYPES),
    vectors=st.sampled_from(VECTORS),
)
def test_moved_memory_keeps_every_bit(
    work: str, shape: tuple[int, int], dtype: str, vectors: str
) -> None:
    y = WORKS[work](filled(shape, dtype)).contiguous()
    if fg.schedule(y).items:
        for got, meant in both(y, vectors):
            np.testing.assert_array_equal(got.view(np.uint8), meant.view(np.uint8))


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (2, 0, 1), (2, 1, 0)], ids=str)
def test_any_order_of_dimensions(order: tuple[int, ...], vectors: str) -> None:
    for shape in ((3, 40, 50), (17, 16, 33)):
        for got, meant in both(filled(shape, "float32").permute(*order) * 2 + 1, vectors):
            np.testing.assert_array_equal(got, meant)


@pytest.mark.parametrize("vectors", VECTORS)
def test_a_map_of_memory_both_ways(vectors: str) -> None:
    x = filled((50, 50), "float32")
    for got, meant in both(fg.exp(x - x.T) + x, vectors):
        np.testing.assert_allclose(got, meant, rtol=1e-6, atol=1e-6)


class Fenced:
    """Memory between two pages that nobody may touch; arrays end, or begin, at such a page."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.count = -(-size // page) * page
        self.memory = mmap.mmap(-1, self.count + 2 * page)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + page
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for start in (self.base - page, self.base + self.count):
            assert protect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0

    def put(self, array: Array, at_end: bool) -> int:
        """The address of a copy."""
        start = self.base + (self.count - array.nbytes if at_end else 0)
        ctypes.memmove(start, array.ctypes.data, array.nbytes)
        return start


@pytest.mark.parametrize("at_end", [False, True], ids=["begin", "end"])
@pytest.mark.parametrize("work", sorted(WORKS))
def test_nothing_outside_is_read(work: str, at_end: bool) -> None:
    for shape in ((35, 67), (16, 16), (2, 3)):
        what = subject(WORKS[work](filled(shape, "float32")).contiguous())
        rendered, params = what.render(), what.params(0, 0.0)
        found = functions(rendered, wanted("auto"))
        fences = [Fenced(a.nbytes) for a in params]
        places = [f.put(a, at_end) for f, a in zip(fences, params, strict=True)]
        table = (ctypes.c_void_p * len(places))(*places)
        values = (ctypes.c_int64 * (2 + len(rendered.numbers)))(0, 0, *rendered.numbers)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
        for launch in rendered.launches:
            call = kind(found[launch.symbol])
            call(ctypes.addressof(table), ctypes.addressof(values), 0, launch.units)


@pytest.mark.parametrize("by_template", [False, True], ids=["loops", "relayout"])
def test_rows_of_another_source_are_not_read_where_no_memory_is(by_template: bool) -> None:
    with fg.config(device="cpu"):
        parts = [fg.from_numpy(np.ones((3, 64), np.float32)) for _ in range(4)]
        kernel, dtypes = lowered(fg.concat(parts).contiguous())
    machine = Target("x86_64", "avx512")
    made = relayouts(kernel, dtypes, machine) if by_template else looped(kernel, dtypes, machine)
    assert made is not None
    lines = made.text.splitlines()
    assert sum("call <16 x float> @llvm.masked.load" in line for line in lines) >= len(parts)
    assert sum(" = select i1 %" in line for line in lines) >= len(parts)
