"""Tests of codegen/cpu/gemm/widen.py: factors of other dtypes than sums have, as they are read.

Products and convolutions of small floats and narrow whole numbers: what is hostile comes out as on
the reference device, a new shape compiles nothing, and nothing is read outside of memory that ends
or begins at a page that nobody may touch.
"""

import mmap
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.llvm import compiler

pytest.importorskip("llvmlite")

from tests.codegen.cpu.conv.test_tile import Case, arrays, random
from tests.codegen.cpu.launch import Array
from tests.codegen.cpu.loops.test_access import Fenced

BF16, HALF = ml_dtypes.bfloat16, np.float16
SHAPES = [  # batch, rows, columns, k: square, few rows, few columns, small, long, odd
    (1, 100, 90, 80), (1, 8, 300, 400), (1, 2, 40, 77), (1, 33, 17, 65), (1, 5, 5, 5),
    (1, 100, 3, 999), (1, 16, 16, 3000), (8, 32, 32, 32), (3, 7, 100, 129), (1, 17, 530, 257),
    (5, 20, 30, 20), (1, 150, 12, 64),
]  # fmt: skip
VECTORS = [(1, 1, 500, 512), (1, 1, 900, 300), (1, 1, 64, 64), (1, 1, 70, 2000)]


@pytest.fixture(scope="module", autouse=True)
def nothing_from_the_disk() -> Any:
    with fg.config(disk_cache=False):
        yield


def factors(
    shape: tuple[int, ...], turned: tuple[bool, bool], dtype: Any, seed: int
) -> list[Array]:
    """Both factors as memory has them."""
    batch, m, n, k = shape
    sizes = [(k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)]
    rng = np.random.default_rng(seed)
    return [random(rng, (batch, *s) if batch > 1 else s, dtype) for s in sizes]


def product(given: list[Array], turned: tuple[bool, bool], scale: int = 3) -> fg.Tensor:
    """Their product with an epilogue; whole numbers are summed as int32."""
    made = [fg.Tensor(a) for a in given]
    if given[0].dtype.kind in "iu":
        made = [t.astype(fg.int32) for t in made]
    a, b = [t.mT if way else t for t, way in zip(made, turned, strict=True)]
    return fg.relu(a @ b) * scale


def check(shape: tuple[int, ...], turned: tuple[bool, bool], dtype: Any, seed: int = 0) -> None:
    given = factors(shape, turned, dtype, seed)
    with fg.config(device="reference"):
        wanted = product(given, turned).numpy()
    with fg.config(device="cpu", tier="native"):
        found = fg.schedule(product(given, turned)).run()[0].numpy()
    if np.dtype(dtype).kind in "iu":
        assert np.array_equal(found, wanted)
        return
    limit = 2.0**-7 if dtype is BF16 else 2.0**-10  # a step of the last digit
    wide = wanted.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), wide, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [BF16, HALF, np.int8, np.uint8])
def test_products_of_new_shapes_compile_nothing(dtype: Any) -> None:
    ways = [(False, False), (False, True), (True, False), (True, True)]
    check((1, 70, 60, 50), ways[0], dtype)
    check((1, 2, 40, 77), ways[0], dtype)  # too few rows for products of pairs
    check((3, 40, 33, 70), ways[0], dtype)  # a batch
    before = compiler.calls
    for seed, shape in enumerate(SHAPES):
        check(shape, ways[seed % 4], dtype, seed)
        check(shape, ways[(seed // 4 + seed + 1) % 4], dtype, seed)
        assert compiler.calls == before, shape
    for way in ways[:2]:  # a vector's product has a text for each way that the matrix lies
        check((1, 1, 300, 400), way, dtype)
        before = compiler.calls
        for shape in VECTORS:
            check(shape, way, dtype)
            assert compiler.calls == before, shape


HOSTILE = [np.inf, -np.inf, np.nan, -0.0, 1.0, -1.0, 3.0e4, -6.0e4]


@pytest.mark.parametrize("dtype", [BF16, HALF])
def test_infinite_numbers_and_what_overflows_come_out_as_on_the_reference(dtype: Any) -> None:
    case = Case(2, 6, (9, 10), 5, (3, 3), 2, 1)
    rng = np.random.default_rng(5)
    x, w, _ = arrays(case, 1, dtype)
    flat = x.reshape(-1)
    flat[rng.choice(flat.size, 12, replace=False)] = np.resize(np.array(HOSTILE, dtype), 12)
    w[0], w[1, 0] = -0.0, 3.0  # sums of zeros, and large ones

    def made(device: str) -> list[Array]:
        with fg.config(device=device, tier="native" if device == "cpu" else "auto"):
            a, b = fg.Tensor(x), fg.Tensor(w)
            rows = fg.Tensor(x.reshape(12, -1))
            some = [case.apply(a, b), rows @ rows.mT, rows[3] @ rows.mT]
            return [t.numpy().astype(np.float32) for t in some]

    for found, wanted in zip(made("cpu"), made("reference"), strict=True):
        assert np.isnan(wanted).any() and np.isinf(wanted).any()
        np.testing.assert_allclose(found, wanted, rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_the_least_numbers_are_summed_exactly(dtype: Any) -> None:
    low = np.iinfo(dtype).min
    case = Case(1, 40, (8, 9), 20, (3, 3), padding=1)
    x, w = [np.full(shape, low, dtype) for shape in case.shapes]
    with fg.config(device="reference"):
        wanted = case.apply(fg.Tensor(x).astype(fg.int32), fg.Tensor(w).astype(fg.int32)).numpy()
    with fg.config(device="cpu", tier="native"):
        found = case.apply(fg.Tensor(x).astype(fg.int32), fg.Tensor(w).astype(fg.int32)).numpy()
    assert np.array_equal(found, wanted)  # int16 wraps


@pytest.mark.parametrize("dtype", [np.int8, HALF])
def test_more_batches_than_a_view_has_are_packed_all_the_same(dtype: Any) -> None:
    rng = np.random.default_rng(6)
    shapes = (2, 1, 2, 1, 20, 30), (1, 3, 2, 2, 30, 50)  # none of them is its neighbour's
    a, b = [rng.integers(-9, 9, shape).astype(dtype) for shape in shapes]
    wide = fg.int32 if dtype is np.int8 else fg.float32
    with fg.config(device="cpu", tier="native"):
        found = (fg.Tensor(a).astype(wide) @ fg.Tensor(b).astype(wide)).numpy()
    assert np.array_equal(found, a.astype(np.int32) @ b.astype(np.int32))


CASES = [
    Case(1, 3, (9, 11), 4, (3, 3), padding=1), Case(2, 3, (11, 13), 20, (3, 3), 2),
    Case(1, 5, (10, 17), 5, (3, 3), 3, groups=5), Case(2, 4, (9, 21), 4, (3, 3), 2, 1, groups=4),
    Case(1, 2, (7, 40), 12, (1, 1), 3), Case(1, 3, (5, 6), 3, (2, 3), 1, 1, 2, groups=3),
    Case(1, 6, (7, 7), 9, (3, 3), transposed=True),
]  # fmt: skip


@pytest.mark.parametrize("at_end", [False, True], ids=["begin", "end"])
@pytest.mark.parametrize("dtype", [BF16, np.int8])
def test_nothing_outside_of_memory_is_read(dtype: Any, at_end: bool) -> None:
    def fenced(array: Array) -> Array:
        fence = Fenced(array.nbytes)
        fences.append(fence)
        start = fence.put(array, at_end) - fence.base
        begin = mmap.PAGESIZE + start
        inside = np.frombuffer(fence.memory, np.uint8)[begin : begin + array.nbytes]
        return inside.view(array.dtype).reshape(array.shape)

    fences: list[Fenced] = []
    wide = fg.int32 if dtype is np.int8 else fg.float32
    with fg.config(device="cpu", tier="native"):
        for seed, case in enumerate(CASES):
            x, w = [fg.from_numpy(fenced(a)) for a in arrays(case, seed, dtype)[:2]]
            case.apply(x.astype(wide), w.astype(wide)).numpy()
        for shape in [*SHAPES[2:5], (1, 1, 70, 31), (1, 1, 33, 70)]:
            for turned in ((False, False), (False, True), (True, False)):
                a, b = [fg.from_numpy(fenced(x)) for x in factors(shape, turned, dtype, 0)]
                a, b = (a.mT if turned[0] else a), (b.mT if turned[1] else b)
                (a.astype(wide) @ b.astype(wide)).numpy()
