"""Tests of kernel/transform/pad_dynamic_axes.py: kernels of variable sizes at their upper bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core import build
from fulgurite.core.dtype import DTYPES, DType, float32, int32
from fulgurite.core.node import Node
from fulgurite.core.ops.indexing import gather
from fulgurite.core.ops.leaf import SINK, param, variable
from fulgurite.core.ops.reduce import reduce_node, scan_node
from fulgurite.graph.ir.lower import lower
from fulgurite.kernel.transform.pad_dynamic_axes import pad_dynamic_axes

pytest.importorskip("llvmlite")

from tests.codegen.cpu.parity import Array, hostile, results, same_bits
from tests.properties import program

MOST = 37
N = variable("n", 0, MOST)


def both(root: Node, inputs: list[Array], n: int) -> tuple[Array, Array]:
    """The part in use of what the code gives and of what the kernel means."""
    got, meant, _ = results(root, inputs, values={"n": n})
    whole = [d if isinstance(d, int) else MOST for d in root.shape]
    part = tuple([slice(d if isinstance(d, int) else n) for d in root.shape])
    return got.reshape(whole)[part], meant.reshape(whole)[part]


def test_axes_become_fixed_and_known_ones_stay() -> None:
    kernel = lower(SINK(-param(0, (3, N), float32)), 1)
    assert pad_dynamic_axes(kernel).axes == (3, MOST)
    plain = lower(SINK(-param(0, (3, 4), float32)), 1)
    assert pad_dynamic_axes(plain) is plain


@pytest.mark.parametrize("n", [0, 1, 16, 36, 37])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind in "iu"] + [float32], ids=str)
def test_folds_see_nothing_beyond_the_end(dtype: DType, n: int) -> None:
    x = hostile(dtype, (3, MOST), 1, finite=True)
    x[:, n:] = 99  # what must not be seen
    names = ["add", "mul"] if dtype.kind != "f" else []
    names += ["max", "min"] if n else []
    for name in names:
        for axes in ((1,), (0, 1)):
            got, meant = both(reduce_node(name, param(0, (3, N), dtype), axes), [x], n)
            same_bits(got, meant, dtype)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_sum_of_nothing_is_zero_and_of_negative_zeros_negative(n: int) -> None:
    x = np.full((3, MOST), -0.0, np.float32)
    got, _ = both(reduce_node("add", param(0, (3, N), float32), (1,)), [x], n)
    assert np.all(got == 0) and np.all(np.signbit(got) == (n > 0))


@pytest.mark.parametrize("n", [0, 1, 20, 37])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_begin_at_the_end_that_is_in_use(n: int, reverse: bool) -> None:
    x = hostile(int32, (2, MOST), 2)
    for name in ("add", "max", "mul"):
        got, meant = both(scan_node(name, param(0, (2, N), int32), 1, reverse), [x], n)
        np.testing.assert_array_equal(got, meant)
    a, b = (hostile(float32, (2, MOST), seed) for seed in (3, 4))
    root = build.affine_scan(param(0, (2, N), float32), param(1, (2, N), float32), 1, reverse)
    got, meant = both(root, [a, b], n)
    same_bits(np.ascontiguousarray(got), np.ascontiguousarray(meant), float32)


@program
@given(n=st.integers(0, MOST), before=st.integers(0, 3), after=st.integers(0, 3))
def test_padding_ends_where_the_size_does(n: int, before: int, after: int) -> None:
    x = hostile(int32, (2, MOST), 5)
    root = build.pad(param(0, (2, N), int32), [(0, 0), (before, after)])
    got, meant, _ = results(root, [x], values={"n": n})
    width = MOST + before + after
    end = n + before + after
    np.testing.assert_array_equal(got.reshape(2, width)[:, :end], meant.reshape(2, width)[:, :end])
    want = np.zeros((2, end), np.int32)
    want[:, before : before + n] = x[:, :n]
    np.testing.assert_array_equal(got.reshape(2, width)[:, :end], want)


@pytest.mark.parametrize("n", [1, 8, 37])
def test_flipping_and_indexing_by_data_stay_inside(n: int) -> None:
    x = hostile(float32, (MOST,), 6)
    got, meant = both(build.flip(param(0, (N,), float32), (0,)), [x], n)
    same_bits(got, meant, float32)
    index = np.random.default_rng(0).integers(0, n, MOST).astype(np.int32)
    index[n:] = 1_000_000_000
    got, meant = both(gather(param(0, (N,), float32), param(1, (N,), int32), 0), [x, index], n)
    same_bits(got, meant, float32)
    fixed = gather(param(0, (N,), float32), param(1, (5,), int32), 0)
    got, meant = both(fixed, [x, np.arange(5, dtype=np.int32) % n], n)
    same_bits(got, meant, float32)


def test_an_index_beyond_a_size_that_varies_is_an_error() -> None:
    with fg.config(device="cpu", tier="native"):
        x = fg.Tensor(np.arange(50.0))[: fg.Var("rows", 1, 50).bind(4)]
        assert fg.take(x, fg.Tensor([3]), axis=0).tolist() == [3.0]
        with pytest.raises(IndexError, match="outside"):
            fg.take(x, fg.Tensor([4]), axis=0).numpy()


def test_the_extreme_of_nothing_is_an_error() -> None:
    for device in ("reference", "cpu"):
        with fg.config(device=device, tier="native"):
            size = fg.Var("count", 0, 50)
            for n in (3, 0, 2):
                x = fg.Tensor(np.arange(50.0))[: size.bind(n)]
                if n:
                    assert x.max().item() == n - 1
                    continue
                with pytest.raises(ValueError, match="no elements"):
                    x.max().numpy()
