"""Tests of codegen/cpu/gemm/template.py and what it is made of: tile, pack_dense, skinny, pack,
function and microkernel.py.

Results are compared with float64 (whole numbers exactly), with outputs and workspace poisoned,
memory at odd addresses and units in a shuffled order.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.gemm.gemv import gemv_axpy, gemv_dot
from fulgurite.codegen.cpu.gemm.microkernel import Registers, block, transpose
from fulgurite.codegen.cpu.gemm.pack_dense import pack_dense
from fulgurite.codegen.cpu.gemm.skinny import skinny
from fulgurite.codegen.cpu.gemm.tile import ROUTES, TABLE, join, pack_units, tile
from fulgurite.codegen.cpu.llvm import compiler
from fulgurite.codegen.cpu.target import target
from fulgurite.codegen.cpu.tiling import GEMM
from fulgurite.core.dtype import float32, float64, int8, int32

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import Array, rendered_kernels, run
from tests.properties import kernel

SIZES = st.integers(1, 70)
VECTORS = ("auto", "avx2", "sse2")
LAYOUTS = ((False, False), (False, True), (True, False), (True, True))
Epilogue = Callable[[Any, Any, Any, Any], Any]
EPILOGUES: dict[str, tuple[Callable[..., fg.Tensor], Callable[..., Array]]] = {
    "none": (lambda y, b, r, c: y, lambda y, b, r, c: y),
    "bias": (lambda y, b, r, c: y + b, lambda y, b, r, c: y + b),
    "relu": (lambda y, b, r, c: fg.relu(y + b), lambda y, b, r, c: np.maximum(y + b, 0)),
    "residual": (lambda y, b, r, c: (y + b) * 0.5 + r, lambda y, b, r, c: (y + b) * 0.5 + r),
    "scaled rows": (lambda y, b, r, c: y * c + r, lambda y, b, r, c: y * c + r),
    "transposed": (lambda y, b, r, c: (y + b).T + 1, lambda y, b, r, c: (y + b).T + 1),
}


def array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    return rng.standard_normal(shape).astype(kind)


def tensor(values: Array) -> fg.Tensor:
    return fg.Tensor(values, device="cpu")


def close(found: Array, exact: Array, scale: float, dtype: Any) -> None:
    """As near as rounding every product and sum at most allows, in the result's dtype."""
    unit = 2.0**-7 if dtype is ml_dtypes.bfloat16 else float(np.finfo(dtype).eps)
    error = np.abs(found.astype(np.float64) - exact).max(initial=0.0)
    assert error <= 4 * unit * scale, f"off by {error:.2e} of {scale:.2e}"


@given(
    SIZES, SIZES, SIZES, st.booleans(), st.booleans(), st.sampled_from(sorted(EPILOGUES)),
    st.sampled_from(VECTORS), st.integers(0, 99),
)  # fmt: skip
def test_products_of_any_shape_with_any_epilogue_agree_with_float64(
    m: int, n: int, k: int, ta: bool, tb: bool, epilogue: str, vectors: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a = array(rng, (k, m) if ta else (m, k), np.float32)
    b = array(rng, (n, k) if tb else (k, n), np.float32)
    more = [array(rng, s, np.float32) for s in ((n,), (m, n), (m, 1))]
    x, y = tensor(a), tensor(b)
    ours, exact = EPILOGUES[epilogue]
    lazy = ours((x.T if ta else x) @ (y.T if tb else y), *map(tensor, more))
    wide = [v.astype(np.float64) for v in (a.T if ta else a, b.T if tb else b, *more)]
    (found,), _ = run(lazy, seed=seed, machine=target(vectors))
    scale = (np.abs(wide[0]) @ np.abs(wide[1])).max() + 4
    close(found, exact(wide[0] @ wide[1], *wide[2:]), scale, np.float32)


@kernel
@given(
    st.sampled_from([np.float64, np.float16, ml_dtypes.bfloat16]), SIZES, SIZES, SIZES,
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_other_floats_accumulate_widely(
    dtype: Any, m: int, n: int, k: int, turned: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = array(rng, (m, k), dtype), array(rng, (n, k) if turned else (k, n), dtype)
    y = tensor(b)
    (found,), _ = run(tensor(a) @ (y.T if turned else y), seed=seed)
    wide = a.astype(np.float64), (b.T if turned else b).astype(np.float64)
    close(found, wide[0] @ wide[1], (np.abs(wide[0]) @ np.abs(wide[1])).max(), dtype)


@kernel
@given(
    st.sampled_from([np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64]),
    SIZES, SIZES, SIZES, st.integers(0, 99),
)  # fmt: skip
def test_whole_numbers_are_exact_and_wrap(dtype: Any, m: int, n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = array(rng, (m, k), dtype), array(rng, (k, n), dtype)
    (found,), _ = run(tensor(a) @ tensor(b), seed=seed)
    with np.errstate(over="ignore"):
        assert np.array_equal(found, a @ b)


@kernel
@given(
    st.sampled_from([np.int8, np.uint8]), st.sampled_from([np.int8, np.uint8]), SIZES, SIZES,
    st.integers(1, 2500), st.booleans(), st.booleans(), st.sampled_from(VECTORS),
    st.integers(0, 99),
)  # fmt: skip
def test_sums_of_bytes_in_wider_numbers_are_exact(
    left: Any, right: Any, m: int, n: int, k: int, ta: bool, tb: bool, vectors: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = array(rng, (k, m) if ta else (m, k), left), array(rng, (n, k) if tb else (k, n), right)
    x, y = tensor(a).astype(fg.int32), tensor(b).astype(fg.int32)
    (found,), _ = run((x.T if ta else x) @ (y.T if tb else y), seed=seed, machine=target(vectors))
    wide = (a.T if ta else a).astype(np.int32), (b.T if tb else b).astype(np.int32)
    assert np.array_equal(found, wide[0] @ wide[1])


def test_the_largest_bytes_do_not_saturate() -> None:
    for low in (-128, 127):
        a, b = np.full((20, 400), low, np.int8), np.full((400, 50), -128, np.int8)
        (found,), _ = run(tensor(a).astype(fg.int32) @ tensor(b).astype(fg.int32))
        assert (found == low * -128 * 400).all()


def test_bytes_with_pads_and_an_epilogue_use_the_same_sums() -> None:
    rng = np.random.default_rng(3)
    x, w = array(rng, (2, 5, 9, 10), np.int8), array(rng, (6, 5, 3, 3), np.int8)
    lazy = fg.conv2d(tensor(x).astype(fg.int32), tensor(w).astype(fg.int32), padding=1)
    (found,), _ = run(lazy.astype(fg.float32) * 0.5, seed=3)
    assert np.array_equal(found, (convolved(x, w, 1, 1, 1) * 0.5).astype(np.float32))


def test_a_dot_product_instruction_is_used_where_there_is_one() -> None:
    a, b = np.ones((40, 64), np.int8), np.ones((64, 50), np.int8)
    lazy = tensor(a).astype(fg.int32) @ tensor(b).astype(fg.int32)
    for machine in (target("auto"), target("sse2")):
        (found,) = rendered_kernels(lazy, machine=machine)
        used = any("vpdpbusd" in text for text in found.library)
        assert used == bool({"avx512_vnni", "avx_vnni"} & machine.features)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 20, 30), (3, 30, 40)), ((2, 3, 20, 30), (2, 3, 30, 40)), ((3, 1, 20, 30), (4, 30, 40)),
     ((5, 20, 30), (30, 40)), ((20, 30), (5, 30, 40)), ((2, 300, 7), (2, 7, 300))],
)  # fmt: skip
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    a, b = array(rng, left, np.float32), array(rng, right, np.float32)
    (found,), _ = run(tensor(a) @ tensor(b), seed=1)
    close(found, a.astype(np.float64) @ b.astype(np.float64), 100.0, np.float32)


def test_heads_of_attention_are_read_where_they_are() -> None:
    rng = np.random.default_rng(2)
    q, k = array(rng, (2, 40, 3, 16), np.float32), array(rng, (2, 40, 3, 16), np.float32)
    lazy = tensor(q).permute(0, 2, 1, 3) @ tensor(k).permute(0, 2, 3, 1)
    exact = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k.astype(np.float64))
    (found,), texts = run(lazy, seed=2)
    assert len(texts) == 1
    close(found, exact, 60.0, np.float32)


def convolved(x: Array, w: Array, stride: int, padding: int, groups: int) -> Array:
    """The meaning of a convolution, in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    windows = windows.reshape(len(x), groups, -1, *windows.shape[2:])
    kernel = w.astype(np.float64).reshape(groups, -1, *w.shape[1:])
    out = np.einsum("ngchwij,gocij->ngohw", windows, kernel, optimize=True)
    return np.asarray(out.reshape(len(x), len(w), *out.shape[3:]))


@kernel
@given(
    st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 2, 3, 5]),
    st.integers(5, 20), st.integers(1, 3), st.integers(0, 2), st.sampled_from([1, 1, 2]),
    st.integers(0, 99),
)  # fmt: skip
def test_convolutions_read_their_image_in_place(
    batch: int, channels: int, outputs: int, kernel: int, size: int, stride: int, padding: int,
    groups: int, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    x = array(rng, (batch, channels * groups, size, size + 3), np.float32)
    w = array(rng, (outputs * groups, channels, kernel, kernel), np.float32)
    lazy = fg.conv2d(tensor(x), tensor(w), stride=stride, padding=padding, groups=groups)
    (found,), _ = run(lazy, seed=seed)
    close(found, convolved(x, w, stride, padding, groups), 200.0, np.float32)


def test_a_deep_convolution_crosses_blocks_of_k() -> None:
    rng = np.random.default_rng(3)
    x, w = array(rng, (1, 64, 14, 14), np.float32), array(rng, (70, 64, 3, 3), np.float32)
    for stride in (1, 2):
        lazy = fg.conv2d(tensor(x), tensor(w), stride=stride, padding=1)
        (found,), _ = run(lazy, seed=3)
        close(found, convolved(x, w, stride, 1, 1), 600.0, np.float32)


def test_gradients_of_a_convolution_agree_with_the_reference() -> None:
    rng = np.random.default_rng(4)
    x, w = array(rng, (2, 5, 9, 10), np.float32), array(rng, (6, 5, 3, 3), np.float32)

    def loss(device: str) -> list[Array]:
        a, b = fg.Tensor(x, device=device), fg.Tensor(w, device=device)
        found = fg.grad(lambda a, b: fg.conv2d(a, b, padding=1).square().sum(), (0, 1))(a, b)
        return [np.asarray(g.numpy()) for g in found]

    for ours, meant in zip(loss("cpu"), loss("reference"), strict=True):
        np.testing.assert_allclose(ours, meant, rtol=2e-4, atol=1e-3)


def test_a_gather_is_part_of_the_packing() -> None:
    rng = np.random.default_rng(5)
    table, w = array(rng, (50, 40), np.float32), array(rng, (40, 60), np.float32)
    rows = rng.integers(0, 50, 30)
    lazy = fg.take(tensor(table), tensor(rows), axis=0) @ tensor(w)
    (found,), texts = run(lazy, seed=5)
    assert len(texts) == 1
    close(found, table[rows].astype(np.float64) @ w.astype(np.float64), 60.0, np.float32)


def test_products_go_every_way_that_a_factor_can_go() -> None:
    rng = np.random.default_rng(6)
    ways = set()
    for m, n, k in ((600, 300, 300), (3, 900, 520), (900, 40, 520), (30, 1500, 40), (500, 500, 8),
                    (300, 40, 30), (50, 30, 1500), (203, 7, 1100), (41, 12, 77)):  # fmt: skip
        for turned in LAYOUTS:
            a = array(rng, (k, m) if turned[0] else (m, k), np.float32)
            b = array(rng, (n, k) if turned[1] else (k, n), np.float32)
            x, y = tensor(a), tensor(b)
            lazy = (x.mT if turned[0] else x) @ (y.mT if turned[1] else y)
            (found,), (text,) = run(lazy, seed=6, machine=replace(target(), cores=1))
            for name in ("left", "right"):
                ways.add((name, ROUTES[text.numbers[TABLE.index(("way", name))]]))
            exact = (a.T if turned[0] else a).astype(np.float64) @ (b.T if turned[1] else b)
            close(found, exact, 10 * np.sqrt(k) + 20, np.float32)
    assert len(ways) == 7 + (target().vectors == "avx512")  # where assembly keeps columns


@kernel
@given(
    st.integers(9, 60), st.integers(1, 14), st.integers(60, 2100), st.booleans(),
    st.sampled_from([np.float32, np.float64, np.int32]), st.sampled_from(VECTORS),
    st.integers(0, 99),
)  # fmt: skip
def test_few_columns_are_summed_along_k(
    m: int, n: int, k: int, turned: bool, dtype: Any, vectors: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = array(rng, (m, k), dtype), array(rng, (n, k) if turned else (k, n), dtype)
    y = tensor(b)
    lazy = tensor(a) @ (y.T if turned else y)
    (found,), _ = run(lazy, seed=seed, machine=target(vectors))
    right = b.T if turned else b
    if dtype is np.int32:
        with np.errstate(over="ignore"):
            assert np.array_equal(found, a @ right)
        return
    wide = a.astype(np.longdouble), right.astype(np.longdouble)
    scale = float((np.abs(wide[0]) @ np.abs(wide[1])).max())
    close(found, (wide[0] @ wide[1]).astype(np.float64), scale, dtype)


@kernel
@given(
    st.integers(2, 34), st.integers(1, 90), st.integers(60, 2100),
    st.sampled_from([np.float32, np.float64, np.int32]), st.sampled_from(VECTORS),
    st.integers(0, 99),
)  # fmt: skip
def test_few_rows_and_columns_along_k_are_not_turned(
    m: int, n: int, k: int, dtype: Any, vectors: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = [rng.integers(-9, 9, (count, k + 1)).astype(dtype) for count in (m, n)]
    a[:, k:], b[:, k:] = 10**6, 10**6  # what is after the last k does not matter
    lazy = tensor(a)[:, :k] @ tensor(b)[:, :k].T
    (found,), _ = run(lazy, seed=seed, machine=target(vectors))
    assert np.array_equal(found, a[:, :k].astype(np.int64) @ b[:, :k].T.astype(np.int64))


@kernel
@given(
    st.integers(2, 100), st.integers(2, 100), st.integers(2048, 9000), st.sampled_from(LAYOUTS),
    st.sampled_from([np.float32, np.float64, np.int32]), st.sampled_from(VECTORS),
    st.sampled_from(sorted(EPILOGUES)), st.integers(0, 99),
)  # fmt: skip
def test_long_sums_of_few_results_are_joined_in_order(
    m: int, n: int, k: int, turned: tuple[bool, bool], dtype: Any, vectors: str, epilogue: str,
    seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    a = rng.integers(-9, 9, (k, m) if turned[0] else (m, k)).astype(dtype)
    b = rng.integers(-9, 9, (n, k) if turned[1] else (k, n)).astype(dtype)
    more = [rng.integers(-9, 9, s).astype(np.float32) for s in ((n,), (m, n), (m, 1))]
    x, y = tensor(a), tensor(b)
    ours, exact = EPILOGUES[epilogue]
    lazy = ours((x.T if turned[0] else x) @ (y.T if turned[1] else y), *map(tensor, more))
    (found,), (text,) = run(lazy, seed=seed, machine=target(vectors))
    product = (a.T if turned[0] else a).astype(np.int64) @ (b.T if turned[1] else b)
    wide = exact(product.astype(np.float64), *more)
    assert np.array_equal(found, wide.astype(found.dtype))
    if k >= 8 * 256 and max(m, n) <= k // 8 and min(m, n) > 34 and dtype is np.float32:
        assert "kernel_chunks" in [p.symbol for p in text.launches]


@kernel
@given(
    st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 20), st.integers(1, 6),
    st.integers(9, 24), st.sampled_from([1, 3]), st.integers(1, 2), st.integers(0, 1),
    st.sampled_from(VECTORS), st.integers(0, 99),
)  # fmt: skip
def test_gradients_of_few_weights_are_packed_along_k(
    batch: int, groups: int, out: int, inner: int, side: int, size: int, stride: int, pad: int,
    vectors: str, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    channels, high = groups * inner, (side + 2 * pad - size) // stride + 1
    x = rng.integers(-9, 9, (batch, channels, side, side)).astype(np.float32)
    back = rng.integers(-9, 9, (batch, groups * out, high, high)).astype(np.float32)
    w, image, given_ = tensor(np.zeros((groups * out, inner, size, size), "f")), tensor(x), back

    def loss(w: fg.Tensor) -> fg.Tensor:
        y = fg.conv2d(image, w, padding=pad, stride=stride, groups=groups)
        return (y * tensor(given_)).sum()

    (found,), _ = run(fg.grad(loss)(w), seed=seed, machine=target(vectors))
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))
    windows = windows[:, :, ::stride, ::stride].reshape(batch, groups, inner, high, high, size, -1)
    split = back.astype(np.float64).reshape(batch, groups, out, high, high)
    exact = np.einsum("ngchwij,ngohw->gocij", windows, split)
    assert np.array_equal(found.reshape(exact.shape), exact)


@kernel
@given(
    st.integers(33, 300), st.integers(2, GEMM.swapped_columns), st.integers(1, 600), st.booleans(),
    st.sampled_from([np.float32, np.float64, np.int32]), st.sampled_from(sorted(EPILOGUES)),
    st.sampled_from(VECTORS), st.integers(0, 99),
)  # fmt: skip
def test_few_columns_beside_rows_that_lie_in_memory_are_exact(
    m: int, n: int, k: int, turned: bool, dtype: Any, epilogue: str, vectors: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(-9, 9, (k, m)).astype(dtype)
    b = rng.integers(-9, 9, (n, k) if turned else (k, n)).astype(dtype)
    wide = a.T.astype(np.int64) @ (b.T if turned else b).astype(np.int64)
    lazy = tensor(a).T @ (tensor(b).T if turned else tensor(b))
    if dtype is not np.float32:
        (found,), _ = run(lazy, seed=seed, machine=target(vectors))
        assert np.array_equal(found, wide)
        return
    more = [rng.integers(-9, 9, s).astype(dtype) for s in ((n,), (m, n), (m, 1))]
    ours, exact = EPILOGUES[epilogue]
    (found,), _ = run(ours(lazy, *map(tensor, more)), seed=seed, machine=target(vectors))
    wider = [np.asarray(v, np.float64) for v in (wide, *more)]
    close(found, exact(*wider), float(np.abs(wide).max()) + 4, dtype)


def test_what_is_beside_few_columns_does_not_matter() -> None:
    rng = np.random.default_rng(9)
    a, b = array(rng, (30, 200), np.float32), array(rng, (200, 20), np.float32)
    a[:, 100:] = np.nan
    b[:, 3:] = np.inf
    (found,), _ = run(tensor(a)[:, :100] @ tensor(b)[:100, :3], seed=9)
    close(found, a[:, :100].astype(np.float64) @ b[:100, :3], 100.0, np.float32)


@pytest.mark.parametrize("columns", [64, 75, 112, 205])
def test_columns_beyond_the_last_whole_panel_join_it(columns: int) -> None:
    rng = np.random.default_rng(columns)
    for rows, k in ((130, 70), (20, 300), (8, 40)):
        a, b = array(rng, (rows, k), np.float32), array(rng, (k, columns), np.float32)
        for factor in (tensor(b), tensor(b) * 1, fg.pad(tensor(b), ((0, 0), (0, 1)))):
            (found,), _ = run(tensor(a) @ factor, seed=1)
            close(found[:, :columns], a.astype(np.float64) @ b, 10 * np.sqrt(k), np.float32)


@pytest.mark.parametrize("vectors", VECTORS)
def test_functions_of_an_epilogue_have_the_bits_of_a_map(vectors: str) -> None:
    functions = (fg.exp, fg.tanh, fg.gelu, fg.sin, fg.expm1, fg.exp2, fg.sqrt, fg.erfc)
    values = np.random.default_rng(2).standard_normal((5, 75)).astype(np.float32) * 9
    product = tensor(values) @ tensor(np.eye(75, dtype=np.float32))  # the values themselves
    for function in functions:
        (found,), _ = run(function(product), machine=target(vectors))
        (wanted,), _ = run(function(tensor(values)), machine=target(vectors))
        np.testing.assert_array_equal(found, wanted, function.__name__)


def test_several_outputs_are_stored_in_one_pass() -> None:
    rng = np.random.default_rng(7)
    a, b = array(rng, (50, 70), np.float32), array(rng, (70, 90), np.float32)
    y = tensor(a) @ tensor(b)
    (first, second), texts = run(y, fg.relu(y), seed=7)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    close(first, exact, 100.0, np.float32)
    close(second, np.maximum(exact, 0), 100.0, np.float32)
    assert len(texts) == 1


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [
    (70, 300, 300), (600, 600, 300), (3, 1000, 600), (40, 50, 5003), (128, 128, 128),
    (200, 20, 300), (1, 300, 2000),
])  # fmt: skip
def test_bits_do_not_depend_on_how_units_are_shared_out(
    shape: tuple[int, int, int], turned: bool
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(8)
    a, b = array(rng, (k, m) if turned else (m, k), np.float32), array(rng, (k, n), np.float32)
    lazy = fg.relu((tensor(a).T if turned else tensor(a)) @ tensor(b) + 1)
    whole = run(lazy)[0][0].tobytes()
    assert all(run(lazy, seed=seed)[0][0].tobytes() == whole for seed in range(4))


@pytest.mark.parametrize(
    ("one", "other"),
    [((600, 600, 600), (700, 650, 1000)), ((100, 120, 140), (90, 112, 500)),
     ((1, 4, 10, 20, 20), (2, 6, 9, 22, 21))],
)  # fmt: skip
def test_a_new_shape_with_a_known_epilogue_has_a_known_text(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    def text(sizes: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
        if len(sizes) == 3:
            m, n, k = sizes
            y = fg.ones((m, k), device="cpu").realize() @ fg.ones((k, n), device="cpu").realize()
            lazy = fg.relu(y + fg.ones((n,), device="cpu").realize())
        else:
            b, c, o, h, w = sizes
            image = fg.ones((2 + b, c, h, w), device="cpu").realize()
            lazy = fg.conv2d(image, fg.ones((o, c, 3, 3), device="cpu").realize(), padding=1)
        (found,) = rendered_kernels(lazy)
        return found.text, found.library

    assert text(one) == text(other)


def product(
    m: int, n: int, k: int, turned: tuple[bool, bool], batch: tuple[int, ...] = ()
) -> fg.Tensor:
    """relu(a @ b + bias) over memory that lies one way or the other."""
    a = fg.ones((*batch, k, m) if turned[0] else (*batch, m, k), device="cpu").realize()
    b = fg.ones((*batch, n, k) if turned[1] else (*batch, k, n), device="cpu").realize()
    y = (a.mT if turned[0] else a) @ (b.mT if turned[1] else b)
    return fg.relu(y + fg.ones((n,), device="cpu").realize())


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("turned", LAYOUTS)
def test_products_of_any_shape_that_lie_alike_have_one_text(
    turned: tuple[bool, bool], batch: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(10)
    large = [tuple(rng.integers(2, 1500, 3)) for _ in range(6)]
    skinny = [tuple(rng.integers(2, 12, 3) * rng.choice([1, 100], 3)) for _ in range(8)]
    square = [(n, n, n) for n in (2, 7, 16, 64, 100, 128, 512)]
    found: dict[bool, set[Any]] = {}
    for m, n, k in [*large, *skinny, *square]:
        (text,) = rendered_kernels(product(int(m), int(n), int(k), turned, batch))
        pays = k >= (6 if m <= GEMM.swapped_near_rows else 3) * n
        swapped = turned[0] and n <= GEMM.swapped_columns < m and pays  # rows become lanes
        found.setdefault(bool(swapped), set()).add((text.text, text.library))
    assert [len(texts) for texts in found.values()] == [1] * (1 + turned[0])


@pytest.mark.parametrize("turned", LAYOUTS)
def test_products_with_a_vector_of_any_length_have_one_text(turned: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(11)
    for row in (True, False):
        found = set()
        for n, k in rng.integers(2, 1500, (6, 2)).tolist():
            (text,) = rendered_kernels(product(1 if row else n, n if row else 1, k, turned))
            found.add((text.text, text.library))
        assert len(found) == 1


def test_a_new_shape_with_a_known_epilogue_compiles_nothing() -> None:
    def use(m: int, n: int, k: int) -> None:
        rng = np.random.default_rng(m)
        a, b, c = [array(rng, s, np.float32) for s in ((m, k), (k, n), (n,))]
        lazy = fg.relu(tensor(a) @ tensor(b) + tensor(c))
        found = fg.schedule(lazy).run()[0].numpy()
        np.testing.assert_allclose(found, np.maximum(a @ b + c, 0), rtol=1e-3, atol=1e-3)

    with fg.config(disk_cache=False):
        use(300, 310, 320)
        before = compiler.calls
        rng = np.random.default_rng(12)
        for shape in rng.integers(2, 400, (50, 3)).tolist():
            use(*shape)
        for shape in ((2, 900, 700), (900, 2, 700), (40, 40, 9000), (611, 600, 1030), (3, 3, 2)):
            use(*shape)
        assert compiler.calls == before
        use_other = fg.schedule(
            tensor(np.ones((300, 310), np.float32)) @ tensor(np.ones((310, 320), np.float32)) * 2.5
        )
        use_other.run()
        assert compiler.calls == before + 1  # a new epilogue: the count does count


LONG_SUMS = [
    # every path: blocks over plain and packed columns, dot products, batches, vectors, tiny ones
    (np.float32, (), 5, 7, 3000), (np.float32, (), 200, 3, 1000), (np.float32, (), 3, 200, 1000),
    (np.float32, (), 2, 17, 20000), (np.float32, (), 8, 64, 2100), (np.float32, (), 33, 65, 1000),
    (np.float32, (), 1, 50, 3000), (np.float32, (), 50, 1, 3000), (np.float32, (), 1, 1, 3000),
    (np.float32, (), 2, 3, 100003), (np.float32, (), 1, 4, 100003), (np.float32, (), 4, 1, 100003),
    (np.float32, (3,), 5, 7, 3000), (np.float32, (3,), 1, 20, 3000), (np.float32, (3,), 9, 20, 900),
    (np.float64, (), 5, 7, 1000), (np.float64, (), 1, 20, 1000), (np.float64, (), 20, 20, 1000),
    (np.float16, (), 5, 7, 3000), (ml_dtypes.bfloat16, (), 20, 7, 3000),
]  # fmt: skip


def errors(
    dtype: Any, batch: tuple[int, ...], m: int, n: int, k: int, turned: tuple[bool, bool], seed: int
) -> tuple[float, float]:
    """The sums of squared errors of a product of random numbers, ours and NumPy's."""
    rng = np.random.default_rng(seed)
    wide = np.longdouble if dtype is np.float64 else np.float64
    usual = dtype if dtype in (np.float32, np.float64) else np.float32
    a = array(rng, (*batch, k, m) if turned[0] else (*batch, m, k), dtype)
    b = array(rng, (*batch, n, k) if turned[1] else (*batch, k, n), dtype)
    x, y = tensor(a), tensor(b)
    found = fg.schedule((x.mT if turned[0] else x) @ (y.mT if turned[1] else y)).run()[0].numpy()
    a, b = (a.swapaxes(-1, -2) if turned[0] else a), (b.swapaxes(-1, -2) if turned[1] else b)
    exact = a.astype(wide) @ b.astype(wide)
    theirs = (a.astype(usual) @ b.astype(usual)).astype(dtype)
    first, second = [float(((y.astype(wide) - exact) ** 2).sum()) for y in (found, theirs)]
    return first, second


@pytest.mark.parametrize(("dtype", "batch", "m", "n", "k"), LONG_SUMS)
def test_errors_of_long_sums_stay_near_numpys(
    dtype: Any, batch: tuple[int, ...], m: int, n: int, k: int
) -> None:
    many = 4_000_000 // (m * n * k * (batch or (1,))[0])  # of large ones a few seeds tell as much
    for turned in LAYOUTS:
        found = [errors(dtype, batch, m, n, k, turned, i) for i in range(max(6, min(100, many)))]
        ours, theirs = [sum(column) for column in zip(*found, strict=True)]
        assert ours <= 1.5**2 * theirs, f"{turned}: {(ours / theirs) ** 0.5:.2f} times"


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "batch", "m", "n", "k"), LONG_SUMS)
def test_errors_of_long_sums_stay_near_numpys_over_a_hundred_seeds(
    dtype: Any, batch: tuple[int, ...], m: int, n: int, k: int
) -> None:
    for turned in LAYOUTS:
        found = [errors(dtype, batch, m, n, k, turned, seed) for seed in range(100)]
        ours, theirs = [sum(column) for column in zip(*found, strict=True)]
        assert ours <= 1.5**2 * theirs, f"{turned}: {(ours / theirs) ** 0.5:.2f} times"


@pytest.mark.parametrize("dtype", [float32, float64, int32])
def test_microkernels_are_named_after_their_text(dtype: Any) -> None:
    registers = Registers(dtype, target())
    modules = [
        block(registers), transpose(registers), skinny(registers), tile(registers),
        join(registers), skinny(registers, True),
        *[gemv(registers, (dtype, memory)) for gemv in (gemv_dot, gemv_axpy)
          for memory in (dtype, int8)],
        *[pack_units(registers, name) for name in ("left", "right")],
        *[pack_dense(registers, name, way) for name in ("left", "right") for way in (True, False)],
    ]  # fmt: skip
    assert len({m.name for m in modules}) == len(modules)
    for module in modules:
        assert f"define void @{module.name}(" in module.text
        assert module == type(module)(module.name, module.text)


def test_a_library_does_not_depend_on_the_shape() -> None:
    def library(m: int, n: int, k: int) -> tuple[str, ...]:
        y = fg.ones((m, k), device="cpu").realize() @ fg.ones((k, n), device="cpu").realize()
        (found,) = rendered_kernels(y)
        return found.library

    assert library(600, 600, 600) == library(601, 777, 1234)
