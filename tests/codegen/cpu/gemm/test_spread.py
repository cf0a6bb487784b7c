"""Tests of codegen/cpu/gemm/spread.py: tiles for many cores, and that nobody sees them in bits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.common.api import KernelText, Launch
from fulgurite.codegen.cpu.gemm.plan import GemmKind, GemmPlan
from fulgurite.codegen.cpu.gemm.strategies import plan_gemm
from fulgurite.codegen.cpu.target import Target, many_cores, target
from fulgurite.codegen.cpu.tiling import CORES
from fulgurite.runtime.cpu.objects import shared

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import lowered, rendered_kernels, run

FEW = Target("x86_64", "avx512", frozenset({"avx512_vnni", "avx512_bf16"}))
TILES = Target("x86_64", "avx512", FEW.features | {"amx_tile", "amx_bf16", "amx_int8"})
RNG = np.random.default_rng(0)


def floats(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.standard_normal(shape).astype(np.float32), device="cpu")


def wide(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.standard_normal(shape), device="cpu")


def bytes_(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.integers(-9, 9, shape).astype(np.int8), device="cpu").astype(fg.int32)


def narrow(*shape: int) -> fg.Tensor:
    return floats(*shape).astype(fg.bfloat16).realize()


def weight_gradient() -> fg.Tensor:
    image, back = floats(4, 32, 14, 14), floats(4, 48, 14, 14)
    weights = floats(48, 32, 3, 3)
    found: fg.Tensor = fg.grad(lambda w: (fg.conv2d(image, w, padding=1) * back).sum())(weights)
    return found


def image_gradient(channels: int = 128) -> fg.Tensor:
    weights, back = floats(channels, 64, 3, 3), floats(4, channels, 14, 14)
    found: fg.Tensor = fg.grad(lambda x: (fg.conv2d(x, weights, stride=2, padding=1) * back).sum())(
        floats(4, 64, 28, 28)
    )
    return found


PRODUCTS: dict[str, Callable[[], fg.Tensor]] = {
    "a cube": lambda: floats(256, 256) @ floats(256, 256),
    "odd sizes": lambda: floats(127, 511) @ floats(511, 255),
    "turned right": lambda: floats(100, 300) @ floats(200, 300).mT,
    "turned left": lambda: floats(300, 100).mT @ floats(300, 200),
    "short k": lambda: floats(32, 700).mT @ floats(32, 600),
    "few rows": lambda: floats(8, 1024) @ floats(1024, 1024),
    "few rows along k": lambda: floats(8, 1024) @ floats(1024, 1024).mT,
    "few columns": lambda: floats(1024, 1024) @ floats(1024, 10),
    "a vector": lambda: floats(1024, 1024) @ floats(1024),
    "a vector times rows": lambda: floats(1, 1000) @ floats(1000, 1003),
    "blocks of k": lambda: floats(2, 1100) @ floats(1100, 1030),
    "blocks of k and an epilogue": lambda: fg.relu(floats(5, 700) @ floats(700, 1024) + 1.0),
    "blocks of k in float64": lambda: wide(4, 1024) @ wide(1024, 1024),
    "small": lambda: floats(33, 129) @ floats(129, 65),
    "a batch": lambda: floats(3, 128, 128) @ floats(3, 128, 128),
    "bytes": lambda: bytes_(256, 256) @ bytes_(256, 256),
    "bfloat16": lambda: narrow(256, 256) @ narrow(256, 256),
    "an epilogue": lambda: fg.gelu(floats(256, 768) @ floats(768, 500) + floats(500)),
    "a convolution": lambda: fg.conv2d(floats(2, 64, 14, 14), floats(96, 64, 3, 3), padding=1),
    "weights": weight_gradient,
    "direct": lambda: fg.conv2d(floats(1, 64, 28, 28), floats(64, 64, 3, 3), padding=1),
}


@pytest.mark.parametrize("channels", [128, 90])  # 90: the last part of a block of k is empty
def test_bits_do_not_depend_on_how_many_cores_pack(channels: int) -> None:
    product, found = image_gradient(channels), []
    for cores in (1, 16, 40):
        results, _ = run(product, machine=replace(target(), cores=cores))
        found.append([a.tobytes() for a in results])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", PRODUCTS)
def test_bits_do_not_depend_on_how_many_cores_tiles_are_for(name: str) -> None:
    product = PRODUCTS[name]()
    found = []
    for cores in (1, 16, 40):
        results, _ = run(product, machine=replace(target(), cores=cores))
        found.append([a.tobytes() for a in results])
    assert found[0] == found[1] == found[2]


def hostile(dtype: np.dtype[Any], *shape: int) -> fg.Tensor:
    """Numbers among which are infinities, zeros, and NaNs of either sign and of many payloads."""
    rng = np.random.default_rng(shape)
    numbers = rng.standard_normal(shape).astype(dtype)
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
        numbers[rng.random(shape) < 1e-4] = value
    bits, nans = numbers.view(f"u{dtype.itemsize}"), np.isnan(numbers)
    sign = bits.dtype.type(dtype.itemsize * 8 - 1)
    signs = rng.integers(0, 2, nans.sum()).astype(bits.dtype) << sign
    bits[nans] ^= rng.integers(0, 1000, nans.sum()).astype(bits.dtype) | signs
    return fg.Tensor(numbers, device="cpu")


@pytest.mark.skipif(target().vectors != "avx512", reason="other targets leave it to the compiler")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(2, 1024, 1024), (3, 1500, 700), (7, 1024, 1030)])
def test_signs_and_payloads_of_nans_do_not_depend_on_how_many_cores_tiles_are_for(
    sizes: tuple[int, int, int], dtype: type
) -> None:
    rows, depth, columns = sizes
    product = hostile(np.dtype(dtype), rows, depth) @ hostile(np.dtype(dtype), depth, columns)
    plan = plan_gemm(*lowered(product), replace(target(), cores=16))
    assert plan is not None and plan.tiles.by_blocks
    found = [run(product, machine=replace(target(), cores=n))[0][0] for n in (1, 16, 40)]
    assert np.isnan(found[0]).any() and not np.isnan(found[0]).all()
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@pytest.mark.parametrize("machine", [FEW, TILES], ids=["AVX-512", "AMX"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_strategy_and_the_order_of_sums_are_those_of_few_cores(
    name: str, machine: Target
) -> None:
    kernel = lowered(PRODUCTS[name]())
    few = plan_gemm(*kernel, machine)
    many = plan_gemm(*kernel, replace(machine, cores=16))
    assert few is not None and many is not None
    assert (few.kind, few.registers.dot) == (many.kind, many.registers.dot)
    assert few.tiles.order == many.tiles.order
    assert many.tiles.by_blocks or not name.startswith("blocks of k")


@pytest.mark.parametrize("name", ["a cube", "odd sizes", "few rows", "few columns", "a vector"])
def test_sixteen_cores_have_a_tile_each_without_a_launch_that_packs(name: str) -> None:
    (made,) = rendered_kernels(PRODUCTS[name](), machine=replace(FEW, cores=16))
    first, *others = made.launches
    assert 16 <= first.units <= 16 * max(CORES.rounds)
    assert {launch.symbol for launch in others} <= {"kernel"}  # which adds chunks of k up


def test_a_product_that_one_thread_does_stays_whole() -> None:
    (made,) = rendered_kernels(floats(64, 64) @ floats(64, 64), machine=replace(FEW, cores=16))
    assert [launch.units for launch in made.launches] == [1]


def packing(kernels: list[KernelText]) -> list[Launch]:
    """The launches that pack a right operand."""
    return [k for made in kernels for k in made.launches if k.symbol.endswith("right")]


def test_panels_are_packed_by_all_cores_in_parts_of_a_block_of_k() -> None:
    few = packing(rendered_kernels(image_gradient(), machine=FEW))
    many = packing(rendered_kernels(image_gradient(), machine=replace(FEW, cores=16)))
    assert len(few) == len(many) == 2
    for a, b in zip(few, many, strict=True):
        assert a.units <= 6 and b.units >= 12
        assert shared(b.units, b.work)


def test_a_weight_that_stays_is_packed_alike_for_one_row_and_many() -> None:
    weight, found = floats(96, 176), []
    for rows in (1, 24):
        (made,) = rendered_kernels(floats(rows, 96) @ weight, machine=replace(FEW, cores=16))
        assert made.prepacked is not None
        found.append((made.prepacked.pack, made.prepacked.pack_numbers, made.prepacked.nbytes))
    assert found[0] == found[1]


def few_rows(machine: Target, rows: int = 4, columns: int = 1024) -> tuple[GemmPlan, KernelText]:
    product = floats(rows, 1024) @ floats(1024, columns)
    plan = plan_gemm(*lowered(product), machine)
    assert plan is not None
    (made,) = rendered_kernels(product, machine=machine)
    return plan, made


def test_blocks_of_k_are_for_different_cores_where_columns_would_be_short_pieces() -> None:
    plan, made = few_rows(replace(FEW, cores=16))
    chunks, joined = made.launches
    assert plan.tiles.by_blocks and plan.tiles.k_chunks == 1024 // plan.tiles.k_block == 4
    assert chunks.units == 4 * joined.units and joined.units > 1
    assert made.workspace == 4 * 4 * 1024 * 4  # of each chunk all results
    assert shared(joined.units, joined.work)
    alone, _ = few_rows(FEW)
    assert alone.tiles.k_chunks == 1 and not alone.tiles.by_blocks


def test_a_direct_convolution_has_whole_register_blocks_of_rows_for_each_core() -> None:
    kernel = lowered(PRODUCTS["direct"]())
    few, many = [plan_gemm(*kernel, replace(FEW, cores=cores)) for cores in (1, 16)]
    assert few is not None and many is not None and few.kind is GemmKind.DIRECT
    assert few.tiles.columns == many.tiles.columns and few.tiles.order == many.tiles.order
    units = [-(-64 // p.tiles.rows) * -(-784 // p.tiles.columns) for p in (few, many)]
    assert units[0] < 16 <= units[1]
    assert many.tiles.rows % many.registers.direct_blocks("near")[0][0] == 0


def test_blocks_of_k_stay_together_where_sums_would_be_as_many_as_operands() -> None:
    plan, _ = few_rows(replace(FEW, cores=16), 1024)
    assert plan.tiles.k_chunks == 1


def test_sums_of_a_vector_are_joined_by_several_cores() -> None:
    product = floats(1, 1024) @ floats(1024, 1024)
    (few,) = rendered_kernels(product, machine=FEW)
    (many,) = rendered_kernels(product, machine=replace(FEW, cores=16))
    assert few.launches[1].units == 1 < many.launches[1].units
    launch = many.launches[1]
    assert shared(launch.units, launch.work)


def test_tiles_of_amx_are_tall_so_that_columns_are_read_for_long() -> None:
    kernel = lowered(narrow(1024, 1024) @ narrow(1024, 1024))
    plan = plan_gemm(*kernel, replace(TILES, cores=16))
    assert plan is not None and plan.kind is GemmKind.DENSE and plan.registers.has_tiles
    assert plan.tiles.rows >= 128 and plan.tiles.left == "dense"


def test_up_to_eight_cores_have_enough_tiles_as_it_is() -> None:
    assert [many_cores(n) for n in (1, 2, 8, 11, 16, 18, 64)] == [1, 1, 1, 1, 16, 16, 64]
