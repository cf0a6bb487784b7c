"""Tests of fulgurite/codegen/cuda/gluon/gemm.py: which products take it, and its text.

Numbers are checked on a GPU (tests/codegen/cuda/on_gpu.py): Gluon has no interpreter.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fulgurite.codegen.cuda.source import Launch, TensorMap
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from fulgurite.runtime.cuda.device import FLAG_BYTES
from tests.codegen.cuda.products import GLUON, PRODUCTS, product
from tests.codegen.cuda.workloads import rendered, scheduled
from tests.conftest import Golden

ONE_TILE = replace(GLUON, gluon_tiles=GLUON.gluon_tiles[:1])


def launches(build: Any, inputs: Any, table: GpuTable = GLUON) -> list[Launch]:
    items = scheduled(build, inputs).items
    return [launch for item in items for launch in rendered(item.kernel, table).launches]


@pytest.mark.parametrize("one", PRODUCTS, ids=lambda p: p.name)
def test_large_products_of_small_floats_take_it_in_one_launch(one: Any) -> None:
    (launch,) = launches(one, one.inputs(2048, 1024, 1024))
    assert launch.language == "gluon" and launch.grid == min(launch.grid, HOPPER.processors)
    assert launch.text.count("warpgroup_mma(") == 1 and launch.text.count("tma_load(") == 2
    permuted = launch.text.count(".permute((1, 0))")
    assert permuted == one.transposed[0] + one.transposed[1]


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


def test_only_epilogues_whose_results_have_16_bits_are_contracted_into_fmas() -> None:
    table = replace(ONE_TILE, gluon_contracted=True)
    for name, is_contracted in (("residual", True), ("wide", False)):
        one = product(name)
        (launch,) = launches(one, one.inputs(2048, 2048, 1024), table)
        (plain,) = launches(one, one.inputs(2048, 2048, 1024), ONE_TILE)
        assert launch.language == "gluon" and launch.contracted == is_contracted
        assert launch.guarded().contracted == is_contracted and not plain.contracted
        assert (launch.key == plain.key) != is_contracted


def test_sizes_are_no_part_of_the_text() -> None:
    one = product("residual")
    first, second = (
        launches(one, one.inputs(m, 2048, k), ONE_TILE)[0] for m, k in ((2048, 1024), (4096, 512))
    )
    assert first.text == second.text and first.key == second.key


def test_counts_of_tiles_that_16_divides_are_no_other_text() -> None:
    one = product("residual")
    keys = {
        launches(one, one.inputs(128 * down, 256 * across, 1024), ONE_TILE)[0].key
        for down, across in ((16, 9), (9, 16), (16, 16), (18, 15))
    }
    assert len(keys) == 1


def test_tensors_are_described_with_the_contiguous_axis_last() -> None:
    one = product("heads")
    (launch,) = launches(one, one.inputs(2048, 1024, 64))
    left, right, result = [a.value for a in launch.arguments if isinstance(a.value, TensorMap)]
    assert result.shape == (2, 3, 2048, 1024) and result.strides[-2:] == (1024, 1)
    assert left.shape == (2, 3, 2048, 64) and left.strides == (2048 * 192, 64, 192, 1)
    assert right.shape == (2, 3, 1024, 64) and right.block[:2] == (1, 1)
    assert right.box[-1] * 2 <= 128


def test_the_tile_fits_the_rounds_over_all_processors() -> None:
    one = product("nn")

    def tile(m: int, n: int) -> tuple[int, ...]:
        (launch,) = launches(one, one.inputs(m, n, 4096))
        left, right, _ = [a.value.block for a in launch.arguments if isinstance(a.value, TensorMap)]
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
        one, one.inputs(1000, 1024, 1024), replace(ONE_TILE, processors=16, gluon_splits=0)
    )
    given = ", ".join(f"{a.name}={a.value}" for a in launch.arguments)
    golden(f"# {launch.grid} programs: {given}\n{launch.text}", "cuda/gluon_gemm.txt")


def test_what_an_epilogue_reads_is_begun_a_step_before() -> None:
    one = product("two")
    (launch,) = launches(one, one.inputs(1024, 1024, 1024), ONE_TILE)
    consumer = launch.text.partition("def consume(")[2]
    begun = [consumer.index(f"f{first}_0 = epilogue_loads(") for first in (0, 64, 128, 192)]
    used = [consumer.index(f", f{first}_0, L, B)") for first in (0, 64, 128, 192)]
    assert begun[0] < consumer.index("warpgroup_mma(")
    assert all(next_one < now for next_one, now in zip(begun[1:], used, strict=False))


def test_tiles_are_taken_in_turns_where_an_epilogue_is_short() -> None:
    short, long = product("residual"), product("gelu")
    sizes = 8192, 3072, 768
    (first,) = launches(short, short.inputs(*sizes))
    (second,) = launches(long, long.inputs(*sizes))
    assert first.text.count("consume, (") == 2 and "tma_store" not in first.text
    assert second.text.count("consume, (") == 1  # its tanh would take longer than a tile's loop


def test_few_tiles_of_a_deep_product_are_split_along_k() -> None:
    one = product("tn")
    table = replace(GLUON, gluon_streamk=False)
    first, second = launches(one, one.inputs(3072, 768, 32768), table)
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


STREAM = replace(
    GLUON, gluon_store=True, gluon_streamk=True, gluon_tiles=((128, 128, 64, 5, 1.0),),
    flag_ns=-1e9, gluon_splits=0,
)  # fmt: skip


def walked(text: str, tiles: int, k: int, programs: int) -> Iterator[tuple[int, ...]]:
    """What a stream-K text makes programs do: program, tile, its blocks, and from whom it adds."""
    body = text.partition("def consume(")[2].partition("@gluon.jit")[0]
    head = re.sub(
        r"\n        left = .*?(?=\n        k0)", "", body.partition("\n    it = 0\n")[2], flags=re.S
    )
    walk = head.partition("\n        acc = ")[0]
    waits = head.partition("            q0 = p\n")[2].partition("                for q in")[0]
    told = "        yield p, tile, k0, k1, upto < start + blocks, q0\n"
    gl = SimpleNamespace(minimum=min, maximum=max)
    tl = SimpleNamespace(where=lambda test, a, b: a if test else b)
    for program in range(programs):
        gl.program_id, gl.num_programs = (lambda _, p=program: p), (lambda _: programs)
        space: dict[str, Any] = {"gl": gl, "tl": tl, "K": k, "tiles": tiles}
        lines = f"{walk}\n        q0 = p\n{textwrap.indent(textwrap.dedent(waits), ' ' * 8)}{told}"
        exec(f"def walk():\n{lines}", space)
        yield from space["walk"]()


@pytest.mark.parametrize("tiles", [1, 2, 5, 72, 131, 133, 192, 397])
@pytest.mark.parametrize(("k", "programs"), [(64, 1), (300, 3), (768, 132), (8192, 132)])
def test_stream_k_does_every_block_once_and_waits_for_programs_before_alone(
    tiles: int, k: int, programs: int
) -> None:
    (launch,) = launches(product("nn"), product("nn").inputs(1000, 1000, 1024), STREAM)
    done = dict[tuple[int, int], int]()
    left: dict[int, tuple[int, int, int]] = {}  # a program's tile that others finish
    order: list[tuple[int, int, int, int]] = []
    for p, tile, k0, k1, is_left, first in walked(launch.text, tiles, k, programs):
        assert k0 < k1 <= k
        for place in range(k0, k1, 64):
            assert (tile, place) not in done
            done[tile, place] = p
        if is_left:
            assert p not in left
            left[p] = tile, k0, k1
        else:
            order.append((p, tile, first, k0))
    assert len(done) == tiles * -(-k // 64)
    assert sorted(tile for _, tile, _, _ in order) == list(range(tiles))
    for p, tile, first, k0 in order:
        begins = [left[q] for q in range(first, p)]
        assert all(one[0] == tile for one in begins)
        ends = [0, *[one[2] for one in begins]]
        assert [one[1] for one in begins] == ends[:-1] and ends[-1] == k0
    assert len(left) == sum(p - first for p, _, first, _ in order)


def test_stream_k_keeps_partial_tiles_in_the_workspace() -> None:
    one: Any = product("gelu")
    (item,) = scheduled(one, one.inputs(768, 3072, 8192)).items
    made = rendered(item.kernel, STREAM)
    (launch,) = made.launches
    assert launch.grid == HOPPER.processors and made.workspace == launch.grid * 128 * 128 * 4
    assert {"room", "flags"} <= {a.source for a in launch.arguments}
    assert "tiles = tl.where(tl.load(lock) == 0, count, 0)" in launch.guarded().text


def test_the_device_has_as_many_flags_as_programs_may_wait() -> None:
    assert 4 * HOPPER.flags <= FLAG_BYTES


def test_tiles_that_come_out_even_are_not_streamed() -> None:
    one = product("nn")
    (launch,) = launches(one, one.inputs(128 * 132, 256, 1024), STREAM)
    assert "parts" not in {a.name for a in launch.arguments}


@pytest.mark.parametrize("one", PRODUCTS, ids=lambda p: p.name)
def test_results_of_16_bits_are_stored_by_the_copy_engine(one: Any) -> None:
    table = replace(STREAM, gluon_streamk=False, processors=100)
    (launch,) = launches(one, one.inputs(1000, 1000, 1024), table)
    maps = [a.value for a in launch.arguments if isinstance(a.value, TensorMap)]
    wide = one.name == "wide"  # of 32 bits
    assert len(maps) == 3 - wide and ("tma_store(" in launch.text) == (not wide)
    assert ("tl.store(" in launch.text) == wide
    if not wide:
        assert maps[2].shape[-2:] == (1000, 1000) and maps[2].block[-2:] == (128, 64)


def test_a_result_whose_rows_are_not_aligned_is_stored_by_threads() -> None:
    one = product("nt")
    (launch,) = launches(one, one.inputs(1024, 1001, 1024), STREAM)
    assert launch.language == "gluon" and "tma_store(" not in launch.text


@pytest.mark.parametrize(("k", "stages"), [(1 << 17, 3), ((1 << 17) + 8, 1)])
def test_windows_of_k_that_are_whole_blocks_are_pipelined(k: int, stages: int) -> None:
    inputs = (((k, 64), "bfloat16"), ((k, 64), "bfloat16"))
    first, last = launches(lambda a, b: a.T @ b, inputs, replace(HOPPER, gluon=False))
    assert "tl.dot(" in first.text and first.stages == stages
    assert HOPPER.processors < first.grid <= 2 * HOPPER.processors
    assert "tl.dot(" not in last.text
