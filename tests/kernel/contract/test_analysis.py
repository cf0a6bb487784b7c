"""Tests of kernel/contract/analysis.py: which kernels are contractions, and how they are cut."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.contract.analysis import (
    CHUNK,
    CHUNKS,
    DEPTH,
    SCRATCH,
    SHALLOW,
    SWEEP,
    Block,
    Contraction,
    block_of_k,
    cut,
    doubled,
    evened,
    find_contraction,
    is_plain,
    part,
    runs,
)
from fulgurite.kernel.transform.merge_axes import merge_axes

BLOCKS = (Block(9, 48, 16, 4), Block(6, 32, 16, 8), Block(6, 16, 8, 4), Block(4, 8, 4, 4))


def kernels(*tensors: fg.Tensor) -> list[IndexKernel]:
    items = fg.schedule(*tensors).items
    return [merge_axes(lower(i.kernel.body, i.kernel.inputs)) for i in items]


def contraction(tensor: fg.Tensor) -> Contraction:
    (kernel,) = kernels(tensor)
    found = find_contraction(kernel)
    assert found is not None
    return found


def test_a_matrix_product_has_rows_columns_and_a_folded_axis() -> None:
    found = contraction(fg.ones((5, 7)).realize() @ fg.ones((7, 9)).realize())
    assert [found.count(a) for a in (found.batch, found.rows, found.columns, found.folded)] == [
        1, 5, 9, 7,
    ]  # fmt: skip


def test_columns_are_the_axis_along_which_results_are_stored() -> None:
    a, b = fg.ones((5, 7)).realize(), fg.ones((7, 9)).realize()
    found = contraction((a @ b).T + 0.5)
    assert found.count(found.columns) == 5
    assert found.count(found.rows) == 9


def test_axes_of_both_factors_that_are_not_summed_are_the_batch() -> None:
    found = contraction(fg.ones((3, 5, 7)).realize() @ fg.ones((3, 7, 9)).realize())
    assert found.count(found.batch) == 3


def test_a_convolution_is_a_contraction_over_channels_and_window() -> None:
    x, w = fg.ones((2, 4, 9, 9)).realize(), fg.ones((8, 4, 3, 3)).realize()
    found = contraction(fg.conv2d(x, w, padding=1))
    assert found.count(found.folded) == 4 * 3 * 3
    assert found.count(found.rows) == 8
    assert found.count(found.columns) == 2 * 9 * 9


def test_groups_of_a_convolution_are_a_batch() -> None:
    x, w = fg.ones((2, 4, 9, 9)).realize(), fg.ones((8, 2, 3, 3)).realize()
    found = contraction(fg.conv2d(x, w, groups=2))
    assert found.count(found.batch) == 2
    assert found.count(found.rows) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda x: fg.softmax(x, axis=-1),
        lambda x: (x * x).sum(-1),
        lambda x: x.exp(),
        lambda x: (x @ fg.ones((7, 9)).realize()).max(0),
    ],
)
def test_what_is_no_sum_of_a_product_of_two_sides_is_none(make) -> None:  # type: ignore[no-untyped-def]
    last = kernels(make(fg.ones((5, 7)).realize()))[-1]
    assert find_contraction(last) is None


def test_a_vector_is_a_left_factor_without_rows() -> None:
    matrix, vector = fg.ones((5, 7)).realize(), fg.ones((7,)).realize()
    for product in (matrix @ vector, vector @ fg.ones((7, 5)).realize()):
        found = contraction(product)
        assert found.rows == () and found.count(found.columns) == 5
        assert found.free[found.left] == frozenset(found.folded)


def test_small_products_sum_shorter_blocks_of_k() -> None:
    assert block_of_k(5, 7, 3000) < 3000 // 16 and block_of_k(33, 35, 100) < 100 // 4
    assert block_of_k(40, 40, 500) == SHALLOW
    assert block_of_k(300, 300, 3000) == block_of_k(100, 100, 100) == block_of_k(5, 7, 31) == DEPTH


def test_weights_of_a_convolution_are_read_as_one_line() -> None:
    x, w = fg.ones((2, 4, 9, 9)).realize(), fg.ones((8, 4, 3, 3)).realize()
    found = contraction(fg.conv2d(x, w, padding=1))
    weights, image = part(found, [found.left]), part(found, [found.right])
    assert weights.folded.sizes == (36,)
    assert image.folded.sizes == (4, 3, 3)
    above = part(found, found.stores, found.fold)
    assert above.columns.sizes == (2, 81)


def test_a_plain_factor_runs_along_the_line_that_the_microkernel_reads() -> None:
    a, b = fg.ones((50, 70)).realize(), fg.ones((70, 90)).realize()
    found = contraction(a @ b)
    left, right = part(found, [found.left]), part(found, [found.right])
    assert runs(left, left.rows) == "folded"
    assert runs(right, right.columns) == "own"
    assert is_plain(left, found.left, left.rows, "folded")
    turned = contraction(a @ fg.ones((90, 70)).realize().T)
    right = part(turned, [turned.right])
    assert runs(right, right.columns) == "folded"


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 200), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 20000),
    st.sampled_from(BLOCKS), st.tuples(st.booleans(), st.booleans()), st.booleans(), st.booleans(),
)  # fmt: skip
@example(1, 1, 304, 4996, BLOCKS[1], (False, True), True, False)  # a long packed vector
def test_tiles_are_whole_blocks_or_whole_rows_that_fit_the_scratch(
    batch: int, rows: int, columns: int, depth: int, block: Block, plain: tuple[bool, bool],
    direct: bool, turned: bool,
) -> None:  # fmt: skip
    found = cut(batch, rows, columns, depth, block, plain, direct, turned=turned)
    assert found.columns % block.panel == 0
    assert found.rows % block.height == 0 or found.columns >= columns or rows == 1
    assert found.left != "own" or found.columns >= columns
    assert sum(found.scratch(block.lanes)) * block.bytes <= SCRATCH
    swept = rows == 1 and plain[1]  # whose sums are wide
    assert found.block == block_of_k(rows, columns, depth) or swept
    assert found.depth >= min(found.block, depth) + block.lanes
    assert found.left != "plain" or plain[0]
    assert found.right != "plain" or plain[1]
    assert found == cut(batch, rows, columns, depth, block, plain, direct, turned=turned)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 300), st.integers(1, 200_000))
def test_chunks_of_k_are_never_empty_and_each_is_worth_it(
    batch: int, rows: int, columns: int, depth: int
) -> None:
    for plain in (True, False):
        found = cut(batch, rows, columns, depth, BLOCKS[0], (plain, True), split=True)
        chunks, blocks = found.chunks, -(-depth // found.block)
        share = -(-blocks // chunks)
        assert (chunks - 1) * share < blocks <= chunks * share
        assert chunks == 1 or batch * chunks <= CHUNKS
        steps = share * found.block
        worth = steps * columns >= SWEEP if rows == 1 else steps >= CHUNK * SHALLOW
        assert chunks == 1 or worth


def test_long_sums_of_few_results_are_cut_in_chunks_and_not_in_small_tiles() -> None:
    found = cut(1, 64, 64, 16384, BLOCKS[0], (True, True), split=True)
    assert (found.chunks, found.rows >= 64, found.columns >= 64) == (16, True, True)
    assert cut(1, 1024, 1024, 16384, BLOCKS[0], (True, True), split=True).chunks == 1


@pytest.mark.parametrize("shape", [(512, 512, 512), (1024, 64, 1024), (64, 1024, 1024)])
def test_large_products_have_tiles_for_several_threads(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    found = cut(1, rows, columns, depth, BLOCKS[0], (True, True))
    assert -(-rows // found.rows) * -(-columns // found.columns) >= 8


@pytest.mark.parametrize("size", [100, 128, 160, 192])
@pytest.mark.parametrize("turned", [False, True])
def test_small_products_have_equal_tiles_and_nothing_that_is_packed_for_others(
    size: int, turned: bool
) -> None:
    found = cut(1, size, size, size, BLOCKS[0], (True, True), True, turned=turned)
    tiles = -(-size // found.rows)
    assert (found.right, found.columns >= size, tiles % 2) == ("plain", True, 0)
    assert tiles * found.rows - size < tiles
    assert found.left == ("own" if turned else "plain")


def test_a_right_factor_that_small_products_pack_is_packed_by_the_tile_that_reads_it() -> None:
    found = cut(1, 128, 128, 128, BLOCKS[0], (True, False), True)
    assert (found.left, found.right, found.rows >= 128) == ("plain", "own", True)


def test_small_products_that_pack_both_factors_have_two_tiles_that_pack_for_themselves() -> None:
    block = BLOCKS[0]
    for size, ways in ((128, ("own", "own")), (400, ("own", "shared"))):
        found = cut(1, size, size, size, block, (False, False), True)
        found = doubled(found, size, size, size, block)
        assert (found.left, found.right) == ways
        assert sum(found.scratch(block.lanes)) * block.bytes <= SCRATCH
    assert cut(1, 128, 128, 128, block, (False, False), True).right == "shared"


@given(st.integers(1, 400), st.integers(1, 3000), st.integers(1, 3000), st.booleans())
def test_few_tiles_of_one_panel_are_made_even(
    rows: int, columns: int, depth: int, direct: bool
) -> None:
    block = BLOCKS[0]
    for plain in ((True, False), (True, True)):
        before = cut(1, rows, columns, depth, block, plain, direct)
        found = evened(before, columns, block, 4)
        if not found.tiles:
            assert found == before
            continue
        vectors = -(-columns // block.lanes)
        ends = [vectors * i // found.tiles for i in range(found.tiles + 1)]
        assert {b - a for a, b in pairwise(ends)} <= {3, 4}
        assert found.tiles % 2 == 0
        assert sum(found.scratch(block.lanes)) * block.bytes <= SCRATCH


def test_512_columns_are_ten_tiles() -> None:
    found = evened(cut(1, 128, 512, 784, BLOCKS[0], (True, True), True), 512, BLOCKS[0], 4)
    assert (found.right, found.tiles) == ("own", 10)
