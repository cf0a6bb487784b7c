"""Tests of fulgurite/codegen/cuda/stream.py: which folds a GPU takes, and by what tiles.

Their numbers are checked in Triton's interpreter: tests/codegen/cuda/corpus.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fulgurite.codegen.cuda.render import render_fold
from fulgurite.codegen.cuda.stream import estimate, may_fit, plan_stream
from fulgurite.codegen.cuda.tiling import HOPPER
from fulgurite.graph.ir.kernel import Kernel
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.kernel.stream.price import find_stream
from fulgurite.kernel.stream.roles import StreamedKernel
from tests.codegen.cuda.workloads import attention, scheduled

SHAPE = (2, 4, 300, 64)


def chosen(build: Any = attention, dtype: str = "float32", shape: Any = SHAPE) -> Kernel:
    (item,) = scheduled(build, ((shape, dtype),) * 3).items
    return item.kernel


def plan_of(kernel: Kernel) -> StreamedKernel:
    found = find_stream(kernel)
    assert found is not None
    return found


def test_attention_is_one_launch_with_two_products_for_the_tensor_cores() -> None:
    (launch,) = render_fold(chosen(dtype="bfloat16").plan).launches
    assert launch.text.count("tl.dot(") == 2 and ".to(tl.bfloat16)" in launch.text
    assert launch.grid == 8 * -(-300 // 16)  # rows are shared out until every processor has some


def test_a_causal_mask_ends_the_loop_early_and_a_window_begins_it_late() -> None:
    plain = render_fold(chosen().plan).launches[0].text
    causal = render_fold(chosen(lambda q, k, v: attention(q, k, v, 300)).plan).launches[0].text
    window = render_fold(chosen(lambda q, k, v: attention(q, k, v, 20)).plan).launches[0].text
    assert "tl.minimum" not in plain and "tl.minimum" in causal
    assert " in range(0, " in plain and " in range(0, " not in window


def test_tiles_fit_the_dtype_and_the_rows_there_are() -> None:
    small = plan_stream(plan_of(chosen(dtype="bfloat16", shape=(8, 16, 1024, 64))).problem)
    large = plan_stream(plan_of(chosen(shape=(8, 16, 1024, 64))).problem)
    assert small is not None and large is not None
    assert small.blocks[:2] == (128, 64) and small.warps == 8
    assert large.blocks[:2] == (64, 32) and large.warps == 4


def test_what_a_program_cannot_hold_is_refused() -> None:
    problem = plan_of(chosen()).problem
    assert estimate(problem) is not None
    assert plan_stream(problem, replace(HOPPER, stream_depth=32)) is None
    with pytest.raises(CannotLower, match="nobody planned"):
        render_fold(None)


def test_folds_that_no_program_can_hold_are_told_by_their_axes() -> None:
    def axes(build: Any, *shapes: Any) -> IndexKernel:
        (item,) = scheduled(build, tuple([(shape, "float32") for shape in shapes])).items
        return lower(item.kernel.body, item.kernel.inputs)

    assert not may_fit(axes(lambda x: x.sum(axis=(0, 2)), (300, 4, 500)))
    assert may_fit(axes(lambda a, b: a @ b, (8, 500), (500, 16)))
    assert not may_fit(axes(lambda a, b: a @ b, (8, 40), (40, 16)))
