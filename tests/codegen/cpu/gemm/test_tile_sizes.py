"""Tests of codegen/cpu/gemm/tile_sizes.py: tiles fit their room and keep threads busy."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fulgurite.codegen.cpu.gemm.tile_sizes import (
    TileProblem,
    Tiles,
    even_columns,
    for_all_sizes,
    pack_twice,
    tile_sizes,
)
from fulgurite.codegen.cpu.tiling import GEMM
from fulgurite.core.symbolic.sym import Trace
from fulgurite.kernel.contract.analysis import Block
from fulgurite.kernel.contract.summation import ORDER, k_block
from tests.properties import arithmetic

BLOCKS = (Block(9, 48, 16, 4), Block(6, 32, 16, 8), Block(6, 16, 8, 4), Block(4, 8, 4, 4))


def tiles_of(*sizes: Any, **more: Any) -> Tiles:
    return tile_sizes(TileProblem(*sizes, **more))


@arithmetic
@given(
    st.integers(1, 200), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 20000),
    st.sampled_from(BLOCKS), st.tuples(st.booleans(), st.booleans()), st.booleans(), st.booleans(),
)  # fmt: skip
@example(1, 1, 304, 4996, BLOCKS[1], (False, True), True, False)  # a long packed vector
@example(1, 1, 1, 17609, BLOCKS[1], (False, False), False, False)  # long blocks of both operands
def test_tiles_are_whole_blocks_or_whole_rows_that_fit_the_scratch(
    batch: int, rows: int, columns: int, depth: int, block: Block, dense: tuple[bool, bool],
    direct: bool, transposed: bool,
) -> None:  # fmt: skip
    sizes = batch, rows, columns, depth, block, dense, direct
    found = tiles_of(*sizes, left_transposed=transposed)
    assert found.columns % block.panel == 0
    assert found.rows % block.height == 0 or found.columns >= columns or rows == 1
    assert found.left != "tile" or found.columns >= columns
    assert sum(found.scratch(block.lanes)) * block.bytes <= GEMM.tile_stack_bytes
    gemv = rows == 1 and dense[1]  # whose sums are wide
    full = (block.height + block.lanes + block.panel) * (found.k_packed + 1) * block.bytes
    shorter = full > GEMM.tile_stack_bytes - GEMM.page_bytes  # one step more would not fit
    assert found.k_block == k_block(rows, columns, depth) or gemv or shorter
    assert found.k_packed >= min(found.k_block, depth) + block.lanes
    assert found.left != "dense" or dense[0]
    assert found.right != "dense" or dense[1]
    assert found == tiles_of(*sizes, left_transposed=transposed)


@arithmetic
@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 300), st.integers(1, 200_000))
def test_chunks_of_k_are_never_empty_and_each_is_worth_it(
    batch: int, rows: int, columns: int, depth: int
) -> None:
    for dense in (True, False):
        found = tiles_of(batch, rows, columns, depth, BLOCKS[0], (dense, True), split=True)
        chunks, blocks = found.k_chunks, -(-depth // found.k_block)
        share = -(-blocks // chunks)
        assert (chunks - 1) * share < blocks <= chunks * share
        assert chunks == 1 or batch * chunks <= ORDER.split_chunks
        steps = share * found.k_block
        worth = steps >= ORDER.split_blocks * ORDER.small_block_steps
        if rows == 1:
            worth = steps * columns >= ORDER.gemv_chunk_products
        assert chunks == 1 or worth


def test_long_sums_of_few_results_are_cut_in_chunks_and_not_in_small_tiles() -> None:
    found = tiles_of(1, 64, 64, 16384, BLOCKS[0], (True, True), split=True)
    assert (found.k_chunks, found.rows >= 64, found.columns >= 64) == (16, True, True)
    assert tiles_of(1, 1024, 1024, 16384, BLOCKS[0], (True, True), split=True).k_chunks == 1


@pytest.mark.parametrize("shape", [(512, 512, 512), (1024, 64, 1024), (64, 1024, 1024)])
def test_large_products_have_tiles_for_several_threads(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    found = tiles_of(1, rows, columns, depth, BLOCKS[0], (True, True))
    assert -(-rows // found.rows) * -(-columns // found.columns) >= 8


@pytest.mark.parametrize("size", [100, 128, 160, 192])
@pytest.mark.parametrize("transposed", [False, True])
def test_small_products_have_equal_tiles_and_nothing_that_is_packed_for_others(
    size: int, transposed: bool
) -> None:
    found = tiles_of(1, size, size, size, BLOCKS[0], (True, True), True, left_transposed=transposed)
    tiles = -(-size // found.rows)
    assert (found.right, found.columns >= size, tiles % 2) == ("dense", True, 0)
    assert tiles * found.rows - size < tiles
    assert found.left == ("tile" if transposed else "dense")


def test_a_right_operand_that_small_products_pack_is_packed_by_the_tile_that_reads_it() -> None:
    found = tiles_of(1, 128, 128, 128, BLOCKS[0], (True, False), True)
    assert (found.left, found.right, found.rows >= 128) == ("dense", "tile", True)


def test_small_products_that_pack_both_operands_have_two_tiles_that_pack_for_themselves() -> None:
    block = BLOCKS[0]
    for size, ways in ((128, ("tile", "tile")), (400, ("tile", "shared"))):
        found = tiles_of(1, size, size, size, block, (False, False), True)
        found = pack_twice(found, TileProblem(1, size, size, size, block, (False, False), True))
        assert (found.left, found.right) == ways
        assert sum(found.scratch(block.lanes)) * block.bytes <= GEMM.tile_stack_bytes
    assert tiles_of(1, 128, 128, 128, block, (False, False), True).right == "shared"


@given(st.integers(1, 400), st.integers(1, 3000), st.integers(1, 3000), st.booleans())
def test_few_tiles_of_one_panel_are_made_even(
    rows: int, columns: int, depth: int, direct: bool
) -> None:
    block = BLOCKS[0]
    for dense in ((True, False), (True, True)):
        before = tiles_of(1, rows, columns, depth, block, dense, direct)
        found = even_columns(before, TileProblem(1, rows, columns, depth, block, dense, direct), 4)
        if not found.column_tiles:
            assert found == before
            continue
        vectors = -(-columns // block.lanes)
        ends = [vectors * i // found.column_tiles for i in range(found.column_tiles + 1)]
        assert {b - a for a, b in pairwise(ends)} <= {3, 4}
        assert found.column_tiles % 2 == 0
        assert sum(found.scratch(block.lanes)) * block.bytes <= GEMM.tile_stack_bytes


def test_512_columns_are_ten_tiles() -> None:
    problem = TileProblem(1, 128, 512, 784, BLOCKS[0], (True, True), True)
    found = even_columns(tile_sizes(problem), problem, 4)
    assert (found.right, found.column_tiles) == ("tile", 10)


def test_a_vector_times_columns_of_any_number_reads_them_once() -> None:
    trace = Trace({"n": 35})
    near = TileProblem(8, 1, 35, 64, BLOCKS[0], (True, True))
    problem = replace(near, columns=trace.variable("n"))
    found = tile_sizes(near)
    assert found.k_block >= 64
    whole = for_all_sizes(found, problem, is_vector=True)
    assert whole is not None and whole.k_block == found.k_block
    rows = replace(near, rows=4)  # accumulators in float32: sums of blocks are finer
    finer = for_all_sizes(tile_sizes(rows), replace(problem, rows=4))
    assert finer is not None and finer.k_block < 64
