"""Tests of kernel/contract/im2col.py: which operands are views, and what lies above the sum."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.ir.lower import lower
from fulgurite.kernel.contract.im2col import SLOTS, UNBOUNDED, View, im2col_view, with_fixed_axes
from fulgurite.kernel.contract.problem import GemmProblem, find_gemm, part
from fulgurite.kernel.transform.merge_axes import merge_axes


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32), device="cpu")


def problem(x: fg.Tensor) -> GemmProblem:
    (item,) = fg.schedule(x).items
    found = find_gemm(merge_axes(lower(item.kernel.body, item.kernel.inputs)))
    assert found is not None
    return found


def views(x: fg.Tensor) -> list[View | None]:
    """Both factors as views."""
    c = problem(x)
    left, right = part(c, [c.left]), part(c, [c.right])
    return [im2col_view(left, c.left, left.rows), im2col_view(right, c.right, right.columns)]


def test_an_image_seen_through_windows_has_a_slot_for_each_axis_and_its_condition() -> None:
    left, right = views(fg.conv2d(ones(2, 3, 8, 9), ones(4, 3, 3, 5), padding=(1, 2)))
    assert left is not None and right is not None
    assert left.own[-1] == (4, 45) and left.folded[-1] == (45, 1)
    assert not any(c.asks for c in left.conditions)
    assert right.own == ((1, 0), (2, 216), (8, 9), (9, 1))
    assert right.folded == ((1, 0), (3, 72), (3, 9), (5, 1))
    asked = [(c.start, c.own, c.folded, c.below) for c in right.conditions if c.asks]
    assert asked == [(-1, 1, 1, 8), (-2, 1, 1, 9)]
    assert [slot for slot, c in enumerate(right.conditions) if c.asks] == [SLOTS - 2, SLOTS - 1]
    assert right.place(5 * 3 + 7) == 72 + 9 + 2


def test_an_axis_that_is_not_there_leaves_its_slot_to_nobody() -> None:
    _, right = views(fg.conv2d(ones(2, 3, 8, 9), ones(4, 3, 3, 1), padding=(1, 0)))
    assert right is not None
    paired = [slot for slot, c in enumerate(right.conditions) if c.asks]
    assert [(right.own[s], right.folded[s]) for s in paired] == [((8, 9), (3, 9))]
    assert all(c.below == UNBOUNDED for s, c in enumerate(right.conditions) if s not in paired)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, w: fg.conv2d(fg.relu(x), w),  # a map in front of the window
        lambda x, w: fg.conv2d(x[:, fg.Tensor([2, 0, 1], device="cpu")], w),  # places from memory
    ],
)
def test_what_is_more_than_memory_is_no_view(make: object) -> None:
    with fg.config(search=False):
        lazy = make(ones(2, 3, 8, 9), ones(4, 3, 3, 3))  # type: ignore[operator]
        items = fg.schedule(lazy).items
    if len(items) == 1:  # else it was computed before, and there is nothing to see through
        assert views(lazy)[1] is None


def test_lines_above_the_sum_are_filled_up_with_axes_of_one_step() -> None:
    counts = set()
    for batch, side in ((1, 8), (4, 8), (4, 40)):
        lazy = fg.relu(fg.conv2d(ones(batch, 3, side, side), ones(4, 3, 3, 3), ones(4)))
        c = problem(lazy)
        more, above = with_fixed_axes(c, part(c, c.stores, c.fold))
        lines = above.batch, above.rows, above.columns
        counts.add(tuple(len(line.axes) for line in lines))
        every = [axis for line in lines for axis in line.axes]
        assert len(set(every)) == len(every)
        for store in more.stores:
            assert [atom for atom, _ in store.arg[1][1]] == every
    assert counts == {(2, 1, 2)}
