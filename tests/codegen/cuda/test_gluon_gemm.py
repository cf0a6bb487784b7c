"""Tests of fulgurite/codegen/cuda/gluon_gemm.py: which products take it, and its text.

Numbers are checked on a GPU (tests/codegen/cuda/on_gpu.py): Gluon has no interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fulgurite.codegen.cuda.source import Launch, TensorMap
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from tests.codegen.cuda.products import GLUON, PRODUCTS, product
from tests.codegen.cuda.workloads import rendered, scheduled
from tests.conftest import Golden


def launches(build: Any, inputs: Any, table: GpuTable = GLUON) -> list[Launch]:
    items = scheduled(build, inputs).items
    return [launch for item in items for launch in rendered(item.kernel, table).launches]


@pytest.mark.parametrize("one", PRODUCTS, ids=lambda p: p.name)
def test_large_products_of_small_floats_take_it_in_one_launch(one: Any) -> None:
    (launch,) = launches(one, one.inputs(2048, 1024, 1024))
    assert launch.language == "gluon" and launch.grid == min(launch.grid, HOPPER.processors)
    assert launch.text.count("warpgroup_mma(") == 1 and launch.text.count("tma_load(") == 2
    turns = launch.text.count(".permute((1, 0))")
    assert turns == one.turned[0] + one.turned[1]


def test_it_may_be_turned_off_by_the_table() -> None:
    one, inputs = product("nn"), product("nn").inputs(2048, 2048, 2048)
    (launch,) = launches(one, inputs, HOPPER)
    assert launch.language == "gluon"
    (launch,) = launches(one, inputs, replace(HOPPER, gluon=False))
    assert launch.language == "triton" and "tl.dot(" in launch.text


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (lambda a, b: a @ b, (((2048, 2048), "float32"),) * 2),  # exact products
        (lambda a, b: a @ b, (((64, 512), "bfloat16"), ((512, 512), "bfloat16"))),  # few tiles
        (lambda a, b: a @ b, (((2048, 2047), "bfloat16"), ((2047, 2048), "bfloat16"))),  # strides
        (
            lambda a, b: a.astype("bfloat16") @ b,  # not memory as it is
            (((2048, 2048), "int8"), ((2048, 2048), "bfloat16")),
        ),
    ],
    ids=["float32", "small", "odd", "prologue"],
)
def test_what_it_cannot_do_is_left_to_tl_dot(build: Any, inputs: Any) -> None:
    assert all(launch.language == "triton" for launch in launches(build, inputs))


def test_sizes_are_no_part_of_the_text() -> None:
    one = product("residual")
    first, second = (
        launches(one, one.inputs(m, 2048, k))[0] for m, k in ((2048, 1024), (4096, 512))
    )
    assert first.text == second.text and first.key == second.key


def test_tensors_are_described_with_the_contiguous_axis_last() -> None:
    one = product("heads")
    (launch,) = launches(one, one.inputs(2048, 1024, 64))
    left, right = [a.value for a in launch.arguments if isinstance(a.value, TensorMap)]
    assert left.shape == (2, 3, 2048, 64) and left.strides == (2048 * 192, 64, 192, 1)
    assert right.shape == (2, 3, 1024, 64) and right.block[:2] == (1, 1)
    assert right.box[-1] * 2 <= 128


def test_the_tile_fits_the_rounds_over_all_processors() -> None:
    one = product("nn")

    def tile(m: int, n: int) -> tuple[int, ...]:
        (launch,) = launches(one, one.inputs(m, n, 4096))
        left, right = [a.value.block for a in launch.arguments if isinstance(a.value, TensorMap)]
        return left[0], right[1]

    assert tile(8192, 8192) == (128, 256)
    assert tile(1024, 1024)[0] * tile(1024, 1024)[1] <= 128 * 128


def test_a_guarded_launch_finds_no_tiles_while_the_lock_is_set() -> None:
    one = product("nn")
    (launch,) = launches(one, one.inputs(2048, 2048, 2048))
    guarded = launch.guarded()
    assert guarded.arguments[0].name == "lock" and guarded.language == "gluon"
    assert "    tiles = tl.where(tl.load(lock) == 0, count, 0)\n" in guarded.text


def test_the_text_is_as_it_was(golden: Golden) -> None:
    one = product("two")
    (launch,) = launches(
        one, one.inputs(1000, 1024, 1024), replace(GLUON, processors=16, gluon_splits=0)
    )
    given = ", ".join(f"{a.name}={a.value}" for a in launch.arguments)
    golden(f"# {launch.grid} programs: {given}\n{launch.text}", "cuda/gluon_gemm.txt")


def test_few_tiles_of_a_deep_product_are_split_along_k() -> None:
    one = product("tn")
    first, second = launches(one, one.inputs(3072, 768, 32768))
    numbers = {a.name: a.value for a in first.arguments if isinstance(a.value, int)}
    assert first.language == "gluon" and first.grid == GLUON.processors
    assert second.language == "triton" and numbers["steps"] % 64 == 0
    assert numbers["z0"] == -(-32768 // numbers["steps"]) > 1
    assert "k1 = gl.minimum(k0 + steps, K)" in first.text


def test_many_tiles_are_not_split() -> None:
    one = product("nn")
    (launch,) = launches(one, one.inputs(8192, 8192, 8192))
    assert "steps" not in {a.name for a in launch.arguments}


@pytest.mark.parametrize(("m", "n", "k"), [(512, 128, 50176), (64, 256, 200704), (256, 64, 12544)])
def test_a_gradient_of_weights_is_split_in_as_many_parts_as_fill_the_processors(
    m: int, n: int, k: int
) -> None:
    inputs = (((k, m), "bfloat16"), ((k, n), "bfloat16"))
    first, last = launches(lambda a, b: a.T @ b, inputs)
    assert (first.language, last.language) == ("gluon", "triton")
    assert HOPPER.processors // 2 <= first.grid <= HOPPER.processors
    steps = next(a.value for a in first.arguments if a.name == "steps")
    assert isinstance(steps, int) and steps % 64 == 0


@pytest.mark.parametrize(("k", "stages"), [(1 << 17, 3), ((1 << 17) + 8, 1)])
def test_windows_of_k_that_are_whole_blocks_are_pipelined(k: int, stages: int) -> None:
    inputs = (((k, 64), "bfloat16"), ((k, 64), "bfloat16"))
    first, last = launches(lambda a, b: a.T @ b, inputs, replace(HOPPER, gluon=False))
    assert "tl.dot(" in first.text and first.stages == stages
    assert HOPPER.processors < first.grid <= 2 * HOPPER.processors
    assert "tl.dot(" not in last.text
