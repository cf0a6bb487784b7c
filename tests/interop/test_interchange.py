"""Tests of interop/interchange.py: DLPack, NumPy's protocols and the array API namespace."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, DataError, ShapeError

DTYPES = ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64",
          "complex64", "complex128"]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)])
def test_dlpack_goes_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    a = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    x = fg.from_dlpack(a)
    assert str(x.dtype) == dtype and x.shape == shape
    back = np.from_dlpack(x)  # type: ignore[arg-type]
    np.testing.assert_array_equal(back, a)
    assert not back.flags.writeable


@pytest.mark.host_memory
def test_an_array_that_came_by_dlpack_is_shared_and_kept_alive() -> None:
    a = np.arange(4.0)
    x = fg.from_dlpack(a)
    y = x + 1
    a[0] = 10
    assert y.tolist() == [11.0, 2.0, 3.0, 4.0]
    held = np.from_dlpack(fg.Tensor([5.0, 6.0]) * 2)  # type: ignore[arg-type]
    gc.collect()
    assert held.tolist() == [10.0, 12.0]
    assert fg.from_dlpack(a, copy=True).tolist() == [10.0, 1.0, 2.0, 3.0]


def test_what_was_handed_out_does_not_change_when_the_tensor_does() -> None:
    x = fg.Tensor(np.ones(1000)) * 1
    shown = np.from_dlpack(x)  # type: ignore[arg-type]
    x += 5
    assert x.numpy()[0] == 6 and shown[0] == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_dtypes_that_numpy_does_not_send_come_back(dtype: str) -> None:
    x = fg.Tensor([1.0, -2.0, 0.5], dtype=dtype)
    y = fg.from_dlpack(_Foreign(x))
    assert y.dtype is x.dtype and y.tolist() == [1.0, -2.0, 0.5]


class _Foreign:
    """Another library's array, of which only DLPack is known."""

    def __init__(self, x: fg.Tensor) -> None:
        self.x = x

    def __dlpack__(self, *, max_version: Any = None) -> object:
        return self.x.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


def test_old_consumers_get_a_copy_and_wrong_ones_an_error() -> None:
    x = fg.Tensor([1.0, 2.0])
    assert x.__dlpack_device__() == (1, 0)
    assert "dltensor" in repr(x.__dlpack__())
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__(copy=False)
    with pytest.raises(BufferError, match="host memory"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(DataError, match="does not know DLPack"):
        fg.from_dlpack([1, 2])


def test_numpys_functions_give_lazy_tensors_where_we_have_them() -> None:
    a = np.array([1.0, 4.0, 9.0], np.float32)
    x = fg.Tensor(a)
    for got, expected in [
        (np.sqrt(x), np.sqrt(a)), (np.arctan2(x, 2), np.arctan2(a, 2)), (a + x, a + a),
        (np.concatenate([x, x]), np.concatenate([a, a])), (np.add.reduce(x), a.sum()),
        (np.mean(x, axis=0), a.mean()), (np.where(a > 2, x, 0), np.where(a > 2, a, 0)),
        (np.maximum(a, x), a),
    ]:  # fmt: skip
        assert isinstance(got, fg.Tensor)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_numpys_other_functions_compute_with_values() -> None:
    x = fg.Tensor([1.0, 2.0, 4.0])
    assert isinstance(np.digitize(x, [1.5, 3.0]), np.ndarray)
    assert np.array_equal(x, [1, 2, 4])
    out = np.zeros(3)
    np.multiply(x, 2, out=out)
    assert out.tolist() == [2.0, 4.0, 8.0]
    with pytest.raises(ArgumentError, match="assign"):
        np.add(np.ones(3), 1, out=x)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.split(x, 2, axis=1), lambda x: np.split(x, [1, 5], axis=1),
        lambda x: np.mean(x, 0, np.float32), lambda x: np.sort(x, -1, "stable"),
        lambda x: np.sort(x, axis=None), lambda x: np.argsort(x, 0, "mergesort"),
        lambda x: np.isin(x, [1, 2], True), lambda x: np.diff(x, 2), lambda x: np.diff(x, 1, 0),
        lambda x: np.std(x, 0, None, None, 1), lambda x: np.std(x, ddof=1),
        lambda x: np.clip(x, a_max=3, a_min=1), lambda x: np.float_power(x.astype("int32"), -1),
        lambda x: np.fabs(x.astype("int32")), lambda x: np.linspace(x, x + 1, 3),
        lambda x: np.transpose(x, (1, 0)), lambda x: np.max(x, 0, None, True),
        lambda x: np.pad(x, 1, "constant", constant_values=((1, 2), (3, 4))),
        lambda x: np.take(x, [9], mode="wrap"),
    ],
)  # fmt: skip
def test_numpys_arguments_mean_what_numpy_says(call: Any) -> None:
    a = np.array([[3.0, 1, 2, 5, 7, 4], [-1, 9, 4, 1, 2, 2]], np.float32)
    got, expected = call(fg.Tensor(a)), call(a)
    several = isinstance(expected, list)
    for found, wanted in zip(*((got, expected) if several else ([got], [expected])), strict=True):
        assert tuple(found.shape) == wanted.shape
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)


def test_numpys_refusals_are_ours_and_its_writes_are_refused() -> None:
    x = fg.Tensor([1.0, 2.0])
    with pytest.raises(ShapeError, match="try:"):
        np.reshape(x, (3,))
    with pytest.raises(ValueError, match="read-only"):
        np.put_along_axis(x, np.array([0]), 9, 0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="copy=False"):
        np.asarray(x, dtype=np.float64, copy=False)
    assert x.tolist() == [1.0, 2.0]


def test_a_copy_that_is_asked_for_is_another_tensor() -> None:
    for x in (fg.Tensor([1.0, 2.0]), fg.Tensor([1.0, 2.0]) * 1, fg.Tensor([1.0, 2.0]).realize()):
        y = fg.asarray(x, copy=True)
        y[y > 1] = -1.0
        y += 5
        assert (x.tolist(), y.tolist()) == ([1.0, 2.0], [6.0, 4.0])
        assert fg.asarray(x, copy=False) is x
        with pytest.raises(ArgumentError, match="copy=False"):
            fg.asarray(x, dtype="float64", copy=False)


def test_a_number_is_formatted_and_looked_for() -> None:
    x = fg.Tensor([[1.0, 2.5], [3.0, 4.0]])
    assert f"{x[0, 1]:.2f}" == "2.50"
    assert f"{x[0, 1] * 2}".startswith("Tensor(5")
    assert 2.5 in x
    assert 7 not in x
    with pytest.raises(ShapeError, match="4 elements"):
        f"{x:.2f}"


def test_another_librarys_array_is_named_with_the_way_in() -> None:
    class Foreign:
        def __dlpack__(self) -> object:
            raise AssertionError

        def __array__(self, dtype: object = None, copy: object = None) -> object:
            raise RuntimeError("it needs a gradient")

    foreign: Any = Foreign()
    with pytest.raises(DataError, match=r"Foreign .*\n.*\n.*from_dlpack"):
        fg.Tensor([1.0]) + foreign
    with pytest.raises(DataError, match=r"needs a gradient\n.*\n.*from_dlpack"):
        fg.Tensor(foreign)


def test_the_namespace_is_the_package_and_tells_about_itself() -> None:
    x = fg.Tensor([1, 2])
    assert x.__array_namespace__(api_version="2023.12") is fg
    with pytest.raises(ArgumentError, match="array API version"):
        x.__array_namespace__(api_version="1999.01")
    info = fg.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.dtypes(kind=("bool", "complex floating")).keys() == {
        "bool", "complex64", "complex128",
    }  # fmt: skip
    assert set(info.default_dtypes()) == {
        "real floating", "complex floating", "integral", "indexing",
    }  # fmt: skip
    assert info.capabilities()["boolean indexing"]
    assert x.to_device(x.device).tolist() == [1, 2]
    with pytest.raises(ArgumentError, match="no device 'moon'"):
        x.to_device("moon")


def test_copies_and_pickles_hold_the_value() -> None:
    x = fg.Tensor([1.0, 2.0]) * 3
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.tolist() == [3.0, 6.0] and y is not x
    y = copy.deepcopy(x)
    y += 1
    assert x.tolist() == [3.0, 6.0]
    assert "3., 6." in x._repr_html_() and x._repr_html_().startswith("<pre>")
    assert x.__buffer__(0).readonly and x.__buffer__(0).tolist() == [3.0, 6.0]


def test_members_are_told_from_strangers() -> None:
    x = fg.Tensor([1.0, np.nan, 3.0])
    assert fg.isin(x, fg.Tensor([3.0, np.nan])).tolist() == [False, False, True]
    assert fg.isin(x, 1, invert=True).tolist() == [False, True, True]
    assert fg.isin(fg.Tensor([[1], [2]]), fg.zeros((0,), dtype="int32")).tolist() == [[False]] * 2
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 300, (40, 5)), generator.integers(0, 300, 100)
    np.testing.assert_array_equal(fg.isin(fg.Tensor(a), fg.Tensor(b)).numpy(), np.isin(a, b))
