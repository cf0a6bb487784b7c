"""Tests of fulgurite/graph/fusion/machine.py: what a kernel does, counted as it is computed."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.codegen.cuda.machine import HOPPER
from fulgurite.graph.fusion.machine import Work, work_of
from fulgurite.runtime.control import schedules


def ones(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.ones(shape, np.float32))


def work(y: fg.Tensor) -> Work:
    """The work of a tensor that is one kernel."""
    (item,) = fg.schedule(y).items
    return work_of(item.kernel)


def test_a_value_that_is_moved_in_several_ways_is_computed_for_each() -> None:
    x = fg.exp(ones(1000))
    once = work(x * 2).elementwise
    thrice = work(fg.pad(x, ((0, 2),)) + fg.pad(x, ((1, 1),)) + fg.pad(x, ((2, 0),))).elementwise
    assert thrice > 3 * (once - 1000)
    again = fg.pad(x, ((0, 2),))
    assert work(again * again).elementwise < 2 * once  # moved in one way


def test_a_value_in_windows_is_computed_for_every_window() -> None:
    x = ones(4, 64, 64)
    plain, costly = [work(fg.max_pool2d(y, 3, 1)).elementwise for y in (x, fg.exp(x))]
    assert costly - plain > 8 * work(fg.exp(x)).elementwise


def test_windows_of_an_image_are_read_where_it_lies() -> None:
    x, w = ones(1, 3, 32, 32), ones(16, 3, 3, 3)
    assert work(fg.conv2d(x, w)).packed == 3 * 32 * 32 + 16 * 27


def test_a_product_that_a_sum_takes_in_is_one_operation_with_it() -> None:
    x, y = ones(64, 100), ones(64, 100)
    assert work((x * y).sum(1)).elementwise == 64 * 100
    assert work((x + y).sum(1)).elementwise == 2 * 64 * 100


@pytest.mark.device("hosts")
@pytest.mark.parametrize("image, window, how", [
    ((1, 96, 28, 28), (96, 1, 3, 3), {"groups": 96}),
    ((1, 3, 224, 224), (16, 3, 3, 3), {"stride": 2}),
])  # fmt: skip
def test_a_pool_of_whole_images_leaves_the_convolution_before_it_its_own_kernel(
    image: tuple[int, ...], window: tuple[int, ...], how: dict[str, int]
) -> None:
    found = fg.relu(fg.conv2d(ones(*image), ones(*window), padding=1, **how)).mean((2, 3))
    assert len(fg.schedule(found).items) == 2


@pytest.mark.device("hosts")  # the GPU's machine model has other prices
@pytest.mark.parametrize("kind", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("how", [(3, 2, 1), (3, 1, 1), (2, 2, 0)], ids=str)
def test_the_search_joins_gradients_of_pools_with_few_windows_over_an_element(
    kind: str, how: tuple[int, ...]
) -> None:
    pool = getattr(fg, kind)
    weights = pool(ones(16, 64, 56, 56), *how).realize()
    lists = []
    for search in (False, True):
        with fg.config(search=search):
            x = fg.Tensor(np.zeros((16, 64, 56, 56), np.float32))
            found = fg.grad(lambda x: (pool(x, *how) * weights).sum())(x)
            lists.append([item.kernel.kind for item in fg.schedule(found).items])
    few = kind == "max_pool2d" and how[1] == 2  # elements are looked at again with their row
    assert lists[1] == (["reduce"] if few else lists[0])


@pytest.mark.device("cpu")
def test_large_products_of_a_loops_body_are_kernels_of_their_own() -> None:
    def kernels(size: int, rows: int = 1) -> list[str]:
        layer = fg.nn.LSTM(8, size)
        with fg.no_grad(), fg.config(device="cpu", tier="native"):
            out = layer(fg.zeros((20, rows, 8)).realize())[0]
            loops = [i.kernel for i in fg.schedule(out).items if i.kernel.kind == "loop"]
            return [i.kernel.kind for body in schedules(loops[0], "cpu") for i in body.items]

    assert kernels(128) == ["reduce", "map"]  # a GEMV, and its gates
    assert kernels(32) == ["reduce"]


def test_what_is_compiled_for_a_body_is_spread_over_its_steps() -> None:
    body = SHIPPED.in_body()
    assert body.compile_ns == SHIPPED.compile_ns / SHIPPED.body_runs < SHIPPED.compile_ns
    assert body.launch_ns == SHIPPED.launch_ns and HOPPER.in_body() == HOPPER
