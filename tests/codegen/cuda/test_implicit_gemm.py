"""Convolutions as implicit GEMM: gathered loads of merged axes, in Triton's interpreter."""

from __future__ import annotations

import re

import pytest

import fulgurite as fg
from fulgurite.codegen.cuda.implicit_gemm import implicit_gemm
from fulgurite.codegen.cuda.tiling import HOPPER
from fulgurite.graph.ir.kernel import Kernel
from fulgurite.graph.ir.lower import lower
from fulgurite.kernel.contract.channels_last import channels_last
from tests.codegen.cuda.subprocesses import counted, needs_triton
from tests.codegen.cuda.workloads import rendered, scheduled


def convolved(dtype: str = "bfloat16", stride: int = 1) -> Kernel:
    """A convolution of images and weights that are both stored before."""

    def build(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        image, weights = fg.relu(x).contiguous(), fg.relu(w).contiguous()
        y = fg.conv2d(image, weights, padding=1, stride=stride)
        return fg.conv2d(fg.relu(y), weights)

    found = scheduled(build, (((8, 64, 56, 56), dtype), ((64, 64, 3, 3), dtype)))
    kernels = [i.kernel for i in channels_last(found).items if i.kernel.kind == "contract"]
    return kernels[0]


@pytest.mark.parametrize("stride", [1, 2])
def test_batch_and_space_are_rows_and_window_and_channels_the_folded_axis(stride: int) -> None:
    kernel = convolved(stride=stride)
    merged = implicit_gemm(lower(kernel.body, kernel.inputs), HOPPER)
    side = 56 // stride
    assert sorted(merged.axes, key=str) == sorted([8 * side * side, 64, 64 * 9], key=str)


def test_a_block_of_channels_has_one_place_in_the_window() -> None:
    (launch,) = rendered(convolved()).launches
    assert "tl.dot(" in launch.text
    load = next(line for line in launch.text.splitlines() if "mask=((-1" in line)
    assert re.search(r"\(r1\) // 192", load) and "i2_1 //" not in load


def test_a_block_of_a_share_of_split_k_may_have_two_places_in_the_window() -> None:
    def build(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        return fg.permute_dims(
            fg.relu(fg.conv2d(fg.permute_dims(x, (0, 3, 1, 2)), w, padding=1)), (0, 2, 3, 1)
        )

    found = scheduled(build, (((2, 16, 16, 64), "float32"), ((64, 64, 3, 3), "float32")))
    first, *_ = rendered(found.items[0].kernel).launches
    assert "tl.dot(" in first.text and "a3 * n" in first.text  # split
    assert "(r1) //" not in first.text  # its blocks begin at multiples of 72


def test_a_gradient_of_images_folds_blocks_of_contiguous_channels() -> None:
    def build(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        weights = fg.relu(w).contiguous()

        def f(x: fg.Tensor) -> fg.Tensor:
            h = fg.relu(fg.conv2d(x, weights, padding=1))
            return (fg.conv2d(h, weights, padding=1) ** 2).sum()

        return fg.relu(fg.grad(f)(fg.relu(x).contiguous()).contiguous())

    found = channels_last(
        scheduled(build, (((8, 64, 14, 14), "bfloat16"), ((64, 64, 3, 3), "bfloat16")))
    )
    texts = [launch.text for i in found.items for launch in rendered(i.kernel).launches]
    products = [text for text in texts if "tl.dot(" in text]
    assert products
    for text in products:  # a place in the window is one number of a block
        assert not re.search(r"i\d_1\w* % 3\b|a\d_1\w* % 3\b", text), text


def test_plain_products_keep_their_axes() -> None:
    found = scheduled(lambda a, b: a @ b, (((8, 256, 512), "bfloat16"), ((512, 256), "bfloat16")))
    kernel = found.items[0].kernel
    plain = lower(kernel.body, kernel.inputs)
    assert implicit_gemm(plain, HOPPER) is plain


@needs_triton
@pytest.mark.parametrize(
    "case", ["strided", "pools", "shares", pytest.param("all", marks=pytest.mark.slow)]
)
def test_convolutions_and_gradients_in_the_interpreter_agree_with_the_reference(case: str) -> None:
    found = counted("convolutions", case)
    assert not found["bad"], found["bad"][0]
    for name, products in found["products"].items():
        assert products >= (3 if name.endswith("small") and "depthwise" not in name else 0), name
