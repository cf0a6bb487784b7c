"""Tests of codegen/cpu/gemm/strategies.py: which strategy takes which GEMM, and what a plan is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.gemm.geometry import Geometry
from fulgurite.codegen.cpu.gemm.plan import GemmKind, GemmPlan
from fulgurite.codegen.cpu.gemm.strategies import (
    STRATEGIES,
    bind_to,
    choose,
    cpu_problem,
    plan_gemm,
    reads_once,
)
from fulgurite.codegen.cpu.gemm.template import gemms
from fulgurite.codegen.cpu.target import Target
from fulgurite.core import build
from fulgurite.kernel.contract.im2col import View
from fulgurite.tensor import node_of, wrap
from tests.codegen.cpu.launch import lowered

AVX512 = Target("x86_64", "avx512", frozenset({"avx512_vnni"}))


def memory(*shape: int, dtype: Any = np.float32) -> fg.Tensor:
    return fg.Tensor(np.zeros(shape, dtype), device="cpu")


def gathered(x: fg.Tensor) -> fg.Tensor:
    return fg.take(x, fg.Tensor(np.arange(64) % len(x), device="cpu"), axis=0)


def bytes_(*shape: int) -> fg.Tensor:
    return memory(*shape, dtype=np.int8).astype(fg.int32)


def depthwise(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
    return fg.conv2d(a, b, padding=1, groups=16)


def weight_gradient(weights: fg.Tensor) -> fg.Tensor:
    image, back = memory(2, 16, 14, 14), memory(2, 16, 14, 14)
    found: fg.Tensor = fg.grad(lambda w: (depthwise(image, w) * back).sum())(weights)
    return found


PROBLEMS: dict[GemmKind, Callable[[], fg.Tensor]] = {
    GemmKind.DENSE: lambda: memory(64, 96) @ memory(96, 128),
    GemmKind.SKINNY: lambda: memory(200, 300) @ memory(300, 5),
    GemmKind.PACKED: lambda: gathered(memory(50, 96)) @ memory(96, 128),
    GemmKind.BYTES: lambda: gathered(bytes_(50, 96)) @ bytes_(96, 128),
    GemmKind.GEMV_AXPY: lambda: memory(96) @ memory(96, 128),
    GemmKind.GEMV_DOT: lambda: memory(128, 96) @ memory(96),
    GemmKind.IMPLICIT: lambda: fg.conv2d(memory(2, 256, 4, 4), memory(256, 256, 3, 3), padding=1),
    GemmKind.DIRECT: lambda: depthwise(memory(2, 16, 14, 14), memory(16, 1, 3, 3)),
    GemmKind.DIRECT_DOT: lambda: weight_gradient(memory(16, 1, 3, 3)),
}


def plan_of(tensor: fg.Tensor) -> GemmPlan:
    found = plan_gemm(*lowered(tensor), AVX512)
    assert found is not None
    return found


def test_every_strategy_is_chosen_for_some_problem() -> None:
    assert {s.kind for s in STRATEGIES} == set(GemmKind)
    assert {kind: plan_of(make()).kind for kind, make in PROBLEMS.items()} == {
        kind: kind for kind in GemmKind
    }


@pytest.mark.parametrize("kind", list(GemmKind))
def test_the_cheapest_plan_is_chosen_and_rendered(kind: GemmKind) -> None:
    kernel, dtypes = lowered(PROBLEMS[kind]())
    problem = cpu_problem(kernel, dtypes)
    assert problem is not None
    plans = [s.plan(bind_to(problem, AVX512)) for s in STRATEGIES]
    costs = [p.cost for p in plans if p is not None]
    chosen = plan_gemm(kernel, dtypes, AVX512)
    assert chosen is not None and chosen.cost == min(costs) > 0
    assert gemms(kernel, dtypes, AVX512) is not None


def test_a_plan_is_plain_data_that_prints() -> None:
    first, second = [plan_of(memory(64, 96) @ memory(96, 128)) for _ in range(2)]
    assert first == second and hash(first) == hash(second)
    text = repr(first)
    assert "GemmKind.DENSE" in text and "k_block=256" in text and "left='dense'" in text


def test_what_is_no_gemm_has_no_plan() -> None:
    assert plan_gemm(*lowered(memory(5, 7).sum(0)), AVX512) is None
    assert plan_gemm(*lowered(memory(5, 7) + 1), AVX512) is None


CONVOLUTIONS = (  # channels, size of the image, results, window, stride; is anything packed?
    (3, 64, 16, 3, 2, GemmKind.DIRECT), (16, 32, 16, 3, 1, GemmKind.DIRECT),
    (64, 32, 64, 3, 1, GemmKind.DIRECT), (16, 32, 32, 1, 1, GemmKind.DENSE),
    (256, 4, 512, 3, 1, GemmKind.IMPLICIT), (16, 30, 32, 3, 3, GemmKind.IMPLICIT),
    (128, 14, 256, 3, 2, GemmKind.IMPLICIT),
)  # fmt: skip


@pytest.mark.parametrize(("inner", "size", "outer", "window", "stride", "kind"), CONVOLUTIONS)
def test_windows_are_packed_where_rows_are_many_and_images_small(
    inner: int, size: int, outer: int, window: int, stride: int, kind: GemmKind
) -> None:
    image, weights = memory(1, inner, size, size), memory(outer, inner, window, window)
    plan = plan_of(fg.conv2d(image, weights, stride=stride, padding=window // 2))
    assert plan.kind is kind
    if kind is GemmKind.DIRECT:
        assert plan.tiles.k_packed == window**2  # a table knows one window
        assert plan.tiles.k_block % plan.tiles.k_packed == 0


def test_what_windows_cost_is_asked_of_the_kind_of_processor() -> None:
    """With 128 rows, vectors in halves load windows for more than packing them takes."""
    kernel, dtypes = lowered(fg.conv2d(memory(1, 128, 28, 28), memory(128, 128, 3, 3), padding=1))
    halves = Target("x86_64", "avx512", halves=True)
    assert halves.settings != Target("x86_64", "avx512").settings
    kinds = [plan_gemm(kernel, dtypes, machine) for machine in (AVX512, halves)]
    assert [p and p.kind for p in kinds] == [GemmKind.DIRECT, GemmKind.IMPLICIT]


def byte_windows(width: int, dilation: int = 1) -> fg.Tensor:
    """Windows of bytes with their channels last, times weights that are words in memory."""
    image = memory(1, 10 + 2 * dilation, width + 2 * dilation, 16, dtype=np.uint8)
    slid = build.window(node_of(image), 1, 3, 1, dilation)
    rows = fg.moveaxis(wrap(build.window(slid, 2, 3, 1, dilation)), 3, -1)
    lines = fg.reshape(rows.astype(fg.int32), (10 * width, 1, 36, 4))
    words = fg.moveaxis(memory(36, 32, 4, dtype=np.int8).astype(fg.int32), 0, 1)
    return (lines * words).sum(axis=(-2, -1))


def test_rows_of_byte_windows_are_read_in_place_where_they_are_several() -> None:
    plan = plan_of(byte_windows(12))
    assert plan.tiles.left == "windows" and plan.tiles.rows % 12 == 0 and plan.tiles.k_chunks == 1
    assert plan.registers.words and plan.tiles.k_block >= 36  # all of k: the sums are exact
    assert plan_of(byte_windows(3)).tiles.left == "tile"  # a register block would be low
    assert plan_of(byte_windows(12, dilation=2)).tiles.left == "tile"  # k is nine runs, not three


@pytest.mark.parametrize(
    ("inner", "size", "outer", "kind"),
    [(128, 14, 128, GemmKind.IMPLICIT), (64, 14, 64, GemmKind.IMPLICIT),
     (256, 14, 256, GemmKind.IMPLICIT), (64, 28, 64, GemmKind.DIRECT),
     (16, 28, 96, GemmKind.DIRECT)],
)  # fmt: skip
def test_pixels_that_are_in_one_window_only_are_packed_at_less(
    inner: int, size: int, outer: int, kind: GemmKind
) -> None:
    """The gradient of a 1x1 convolution to its images, whose weights are read across."""
    image, weights = memory(8, inner, size, size), memory(outer, inner, 1, 1)
    back = memory(8, outer, size, size)
    slope = fg.grad(lambda x: (fg.conv2d(x, weights) * back).sum())(image)
    assert plan_of(slope).kind is kind


@pytest.mark.parametrize(
    ("own", "folded", "once"),
    [
        (((8, 25088), (196, 1)), ((128, 196),), True),
        (((8, 25088), (196, 1)), ((128, 98),), False),  # which overlap
        (((8, 25088), (98, 2)), ((128, 196),), False),  # two apart
        (((26, 28), (26, 1)), ((3, 28), (3, 1)), False),  # windows
    ],
)
def test_images_whose_pixels_are_read_once_are_told_from_windows(
    own: Any, folded: Any, once: bool
) -> None:
    assert reads_once(View(0, (), own, folded, ())) is once


def test_tiles_of_windows_leave_no_half_of_a_register_block_idle() -> None:
    plan = plan_of(fg.conv2d(memory(8, 128, 28, 28), memory(128, 128, 3, 3), padding=1))
    assert plan.kind is GemmKind.DIRECT
    assert plan.tiles.columns % 28 == 0
    assert plan.tiles.columns % 32 == 0


def test_a_matrix_with_k_in_two_axes_is_packed_and_windows_along_one_are_swept_over() -> None:
    """A channel shuffle before a product; and windows of a line, which read memory again."""
    shuffled = fg.reshape(fg.permute_dims(memory(2, 96, 12), (2, 1, 0)), (12, 192))
    assert plan_of(shuffled @ memory(192, 512)).kind is GemmKind.IMPLICIT
    line = fg.conv1d(memory(1, 64, 402), memory(128, 64, 3))
    assert plan_of(line).kind is GemmKind.DIRECT


@pytest.mark.parametrize(
    ("columns", "in_place"), [(64, True), (72, False), (16, True), (200, True)]
)
def test_an_epilogue_of_short_ragged_rows_does_not_wait_in_place(
    columns: int, in_place: bool
) -> None:
    product = memory(640, 16) @ memory(16, columns)
    assert plan_of(product).tiles.in_place
    assert plan_of(fg.relu(product + memory(columns))).tiles.in_place is in_place


def test_tiles_of_a_short_k_are_tall_where_they_are_narrow() -> None:
    narrow = plan_of(memory(12544, 16) @ memory(16, 16)).tiles
    wide = plan_of(memory(12544, 16) @ memory(16, 960)).tiles
    assert narrow.rows >= 8 * wide.rows


@pytest.mark.parametrize("step", [1, 2])
def test_windows_without_padding_have_lanes_along_rows_of_results(step: int) -> None:
    image, weights = memory(2, 16, 28, 28), memory(16, 1, 3, 3)
    for padding in (0, 1):
        plan = plan_of(fg.conv2d(image, weights, None, step, padding, groups=16))
        assert plan.kind is GemmKind.DIRECT
    assert plan_of(weight_gradient(memory(16, 1, 3, 3))).kind is GemmKind.DIRECT_DOT


def test_numbers_that_are_converted_are_packed_once() -> None:
    image, weights = memory(1, 16, 32, 32, dtype=np.float16), memory(16, 16, 3, 3, dtype=np.float16)
    assert plan_of(fg.conv2d(image, weights, padding=1)).kind is GemmKind.IMPLICIT


def test_tiles_between_the_first_and_the_last_share_what_is_known_of_windows() -> None:
    for size, padding, shared in ((160, 1, True), (160, 9, False), (16, 1, False)):
        image, weights = memory(1, 16, size, size), memory(16, 16, 3, 3)
        kernel, dtypes = lowered(fg.conv2d(image, weights, padding=padding))
        problem = cpu_problem(kernel, dtypes)
        assert problem is not None
        found = choose(problem, AVX512)
        assert found is not None
        geometry = Geometry(found[0].as_kind(found[1].kind), found[1].tiles)
        assert geometry.direct_tables == (3 if shared else geometry.wide)


@pytest.mark.parametrize(("size", "direct"), [(64, True), (512, True), (1024, False)])
def test_lanes_along_k_are_as_many_as_a_stack_has_tables_for(size: int, direct: bool) -> None:
    image, back, weights = memory(1, 2, size, size), memory(1, 2, size, size), memory(2, 1, 3, 3)
    found = fg.grad(lambda w: (fg.conv2d(image, w, padding=1, groups=2) * back).sum())(weights)
    plan = plan_gemm(*lowered(found), AVX512)
    assert (plan is not None and plan.kind is GemmKind.DIRECT_DOT) == direct
