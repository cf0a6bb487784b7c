"""Tests of interop/numpy_protocols.py, and of Python's own protocols of a tensor."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError, ShapeError


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
        x.__array__(np.dtype(np.float64), copy=False)
    with pytest.raises(ValueError, match="copy"):  # NumPy's own where it takes the buffer itself
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


def test_copies_and_pickles_hold_the_value() -> None:
    x = fg.Tensor([1.0, 2.0]) * 3
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.tolist() == [3.0, 6.0] and y is not x
    y = copy.deepcopy(x)
    y += 1
    assert x.tolist() == [3.0, 6.0]
    assert "3., 6." in x._repr_html_() and x._repr_html_().startswith("<pre>")
    assert x.__buffer__(0).readonly and x.__buffer__(0).tolist() == [3.0, 6.0]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_a_buffer_has_the_tensors_shape(shape: tuple[int, ...]) -> None:
    assert fg.ones(shape).__buffer__(0).shape == shape
    assert fg.ones(shape).mT.__buffer__(0).c_contiguous if len(shape) > 1 else True
