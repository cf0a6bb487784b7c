"""Tests of fulgurite/codegen/cpu/irregular/select.py: the first few of an order in machine code."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.dtype import DTYPES, DType, float32
from fulgurite.core.ops.leaf import param, variable

pytest.importorskip("llvmlite")

from fulgurite.codegen.cpu.irregular import select
from fulgurite.codegen.cpu.irregular.sort import Rows
from fulgurite.codegen.cpu.tiling import CPU
from tests.codegen.cpu.machine import VECTORS
from tests.codegen.cpu.parity import hostile, results

REAL = [d for d in DTYPES if d.kind != "c"]


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_the_first_few_are_those_of_the_stable_order(dtype: DType, vectors: str) -> None:
    for rows, size, first in ((1, 40, 5), (3, 129, 1), (2, 700, CPU.sort.select_elements)):
        for descending in (False, True):
            x = hostile(dtype, (rows, size), first)
            root = build.sort_order(param(0, (rows, size), dtype), 1, descending, first)
            got, meant, made = results(root, [x], vectors)
            (launch,) = made.launches
            assert launch.symbol.endswith("selected")
            found = got.reshape(rows, size)[:, :first], meant.reshape(rows, size)[:, :first]
            np.testing.assert_array_equal(*found)


def test_rows_that_rise_or_are_all_alike_are_no_exception() -> None:
    lines = [np.arange(300), np.arange(300)[::-1], np.zeros(300), np.full(300, np.nan)]
    x = np.array(lines, np.float32)
    for descending in (False, True):
        root = build.sort_order(param(0, x.shape, float32), 1, descending, 7)
        got, meant, _ = results(root, [x])
        np.testing.assert_array_equal(got.reshape(4, 300)[:, :7], meant.reshape(4, 300)[:, :7])


def test_a_row_whose_length_varies_is_read_as_far_as_it_goes() -> None:
    x = hostile(float32, (3, 90), 4)
    root = build.sort_order(param(0, (3, variable("n", 4, 90)), float32), 1, True, 4)
    for n in (4, 5, 37, 90):
        got, meant, _ = results(root, [x], values={"n": n})
        np.testing.assert_array_equal(got.reshape(3, 90)[:, :4], meant.reshape(3, 90)[:, :4])


def test_many_places_or_all_of_them_are_sorted() -> None:
    assert not select.pays(Rows(float32, True, 1, 1000))
    assert not select.pays(Rows(float32, True, 1, 1000, first=500))
    assert not select.pays(Rows(float32, True, 1, 40, first=20))
    assert select.pays(Rows(float32, True, 1, 1 << 20, first=5))


def test_topk_of_long_and_many_rows_is_the_start_of_the_order() -> None:
    for shape, k in (((1, 200_000), 9), ((300, 50), 3)):
        x = hostile(float32, shape, 5)
        with fg.config(tier="native"):
            values, places = fg.topk(fg.Tensor(x), k)
            order = fg.argsort(fg.Tensor(x), descending=True).numpy()[:, :k]
            assert places.numpy().tolist() == order.tolist()
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, 1))
