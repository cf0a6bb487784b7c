"""Tests of codegen/cpu/gemm/spread.py: tiles for many cores, and that nobody sees them in bits."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.gemm.plan import GemmKind
from fulgurite.codegen.cpu.gemm.strategies import plan_gemm
from fulgurite.codegen.cpu.target import Target, many_cores, target
from fulgurite.codegen.cpu.tiling import CORES

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import lowered, rendered_kernels, run

FEW = Target("x86_64", "avx512", frozenset({"avx512_vnni", "avx512_bf16"}))
TILES = Target("x86_64", "avx512", FEW.features | {"amx_tile", "amx_bf16", "amx_int8"})
RNG = np.random.default_rng(0)


def floats(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.standard_normal(shape).astype(np.float32), device="cpu")


def bytes_(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.integers(-9, 9, shape).astype(np.int8), device="cpu").astype(fg.int32)


def narrow(*shape: int) -> fg.Tensor:
    return floats(*shape).astype(fg.bfloat16).realize()


def weight_gradient() -> fg.Tensor:
    image, back = floats(4, 32, 14, 14), floats(4, 48, 14, 14)
    weights = floats(48, 32, 3, 3)
    found: fg.Tensor = fg.grad(lambda w: (fg.conv2d(image, w, padding=1) * back).sum())(weights)
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
    "a batch": lambda: floats(3, 128, 128) @ floats(3, 128, 128),
    "bytes": lambda: bytes_(256, 256) @ bytes_(256, 256),
    "bfloat16": lambda: narrow(256, 256) @ narrow(256, 256),
    "an epilogue": lambda: fg.gelu(floats(256, 768) @ floats(768, 500) + floats(500)),
    "a convolution": lambda: fg.conv2d(floats(2, 64, 14, 14), floats(96, 64, 3, 3), padding=1),
    "weights": weight_gradient,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_bits_do_not_depend_on_how_many_cores_tiles_are_for(name: str) -> None:
    product = PRODUCTS[name]()
    found = []
    for cores in (1, 16, 40):
        results, _ = run(product, machine=replace(target(), cores=cores))
        found.append([a.tobytes() for a in results])
    assert found[0] == found[1] == found[2]


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
    few_order, many_order = [(p.tiles.k_block, p.tiles.k_chunks) for p in (few, many)]
    assert few_order == many_order


@pytest.mark.parametrize("name", ["a cube", "odd sizes", "few rows", "few columns", "a vector"])
def test_sixteen_cores_have_a_tile_each_without_a_launch_that_packs(name: str) -> None:
    (made,) = rendered_kernels(PRODUCTS[name](), machine=replace(FEW, cores=16))
    (launch,) = made.launches
    assert 16 <= launch.units <= 16 * max(CORES.rounds)


def test_a_product_that_one_thread_does_stays_whole() -> None:
    (made,) = rendered_kernels(floats(64, 64) @ floats(64, 64), machine=replace(FEW, cores=16))
    assert [launch.units for launch in made.launches] == [1]


def test_tiles_of_amx_are_tall_so_that_columns_are_read_for_long() -> None:
    kernel = lowered(narrow(1024, 1024) @ narrow(1024, 1024))
    plan = plan_gemm(*kernel, replace(TILES, cores=16))
    assert plan is not None and plan.kind is GemmKind.DENSE and plan.registers.has_tiles
    assert plan.tiles.rows >= 128 and plan.tiles.left == "dense"


def test_up_to_eight_cores_have_enough_tiles_as_it_is() -> None:
    assert [many_cores(n) for n in (1, 2, 8, 11, 16, 18, 64)] == [1, 1, 1, 1, 16, 16, 64]
