"""Tests of kernel/contract/problem.py: which kernels are GEMMs, and how their operands lie."""

import pytest

import fulgurite as fg
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.contract.problem import (
    GemmProblem,
    contiguous_line,
    find_gemm,
    is_dense,
    operand,
    part,
)
from fulgurite.kernel.transform.merge_axes import merge_axes

RUN = 8  # contiguous elements that are worth a vector


def kernels(*tensors: fg.Tensor) -> list[IndexKernel]:
    items = fg.schedule(*tensors).items
    return [merge_axes(lower(i.kernel.body, i.kernel.inputs)) for i in items]


def problem(tensor: fg.Tensor) -> GemmProblem:
    (kernel,) = kernels(tensor)
    found = find_gemm(kernel)
    assert found is not None
    return found


def test_a_matrix_product_has_rows_columns_and_a_folded_axis() -> None:
    found = problem(fg.ones((5, 7)).realize() @ fg.ones((7, 9)).realize())
    assert [found.count(a) for a in (found.batch, found.rows, found.columns, found.folded)] == [
        1, 5, 9, 7,
    ]  # fmt: skip


def test_columns_are_the_axis_along_which_results_are_stored() -> None:
    a, b = fg.ones((5, 7)).realize(), fg.ones((7, 9)).realize()
    found = problem((a @ b).T + 0.5)
    assert found.count(found.columns) == 5
    assert found.count(found.rows) == 9


def test_axes_of_both_factors_that_are_not_summed_are_the_batch() -> None:
    found = problem(fg.ones((3, 5, 7)).realize() @ fg.ones((3, 7, 9)).realize())
    assert found.count(found.batch) == 3


def test_a_convolution_is_a_gemm_over_channels_and_window() -> None:
    x, w = fg.ones((2, 4, 9, 9)).realize(), fg.ones((8, 4, 3, 3)).realize()
    found = problem(fg.conv2d(x, w, padding=1))
    assert found.count(found.folded) == 4 * 3 * 3
    assert found.count(found.rows) == 8
    assert found.count(found.columns) == 2 * 9 * 9


def test_groups_of_a_convolution_are_a_batch() -> None:
    x, w = fg.ones((2, 4, 9, 9)).realize(), fg.ones((8, 2, 3, 3)).realize()
    found = problem(fg.conv2d(x, w, groups=2))
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
    assert find_gemm(last) is None


def test_a_vector_is_a_left_operand_without_rows() -> None:
    matrix, vector = fg.ones((5, 7)).realize(), fg.ones((7,)).realize()
    for product in (matrix @ vector, vector @ fg.ones((7, 5)).realize()):
        found = problem(product)
        assert found.rows == () and found.count(found.columns) == 5
        assert found.free[found.left] == frozenset(found.folded)


def test_weights_of_a_convolution_are_read_as_one_line() -> None:
    x, w = fg.ones((2, 4, 9, 9)).realize(), fg.ones((8, 4, 3, 3)).realize()
    found = problem(fg.conv2d(x, w, padding=1))
    weights, image = part(found, [found.left]), part(found, [found.right])
    assert weights.folded.sizes == (36,)
    assert image.folded.sizes == (4, 3, 3)
    above = part(found, found.stores, found.fold)
    assert above.columns.sizes == (2, 81)


def test_a_dense_operand_is_contiguous_along_the_line_that_the_microkernel_reads() -> None:
    a, b = fg.ones((50, 70)).realize(), fg.ones((70, 90)).realize()
    found = problem(a @ b)
    left, right = part(found, [found.left]), part(found, [found.right])
    assert contiguous_line(left, left.rows, RUN) == "folded"
    assert contiguous_line(right, right.columns, RUN) == "own"
    assert is_dense(left, found.left, left.rows, "folded")
    turned = problem(a @ fg.ones((90, 70)).realize().T)
    right = part(turned, [turned.right])
    assert contiguous_line(right, right.columns, RUN) == "folded"


def test_a_problem_says_its_sizes_and_its_transpose_swaps_them() -> None:
    a, b = fg.ones((3, 5, 7)).realize(), fg.ones((3, 7, 9)).realize()
    found = problem(a @ b)
    assert (found.batches, found.m, found.n, found.k) == (3, 5, 9, 7)
    swapped = found.transposed()
    assert (swapped.batches, swapped.m, swapped.n, swapped.k) == (3, 9, 5, 7)
    assert (swapped.left, swapped.right) == (found.right, found.left)
    assert not operand(found, "left", RUN).is_transposed
    assert operand(swapped, "left", RUN).is_transposed
