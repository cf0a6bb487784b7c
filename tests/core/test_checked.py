"""Tests of fulgurite/core/checked.py: arguments by place mean what they do elsewhere, or raise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fulgurite

fg: Any = fulgurite  # calls that its types forbid

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
M = X[0, :2, :2]


def _x() -> Any:
    return fg.Tensor(X)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fg.max(_x(), _x()),  # torch: the larger of two
        lambda: fg.max(_x(), fg.Tensor([0, 1])),
        lambda: _x().min(fg.Tensor(0)),
        lambda: fg.flip(_x(), fg.Tensor([0])),
        lambda: fg.mean(_x(), 0, "float64"),  # NumPy: dtype
        lambda: fg.std(_x(), 0, "float64"),
        lambda: fg.sum(_x(), 0, True),  # torch: keepdim
        lambda: fg.argmax(_x(), None, np.zeros(3)),  # NumPy: out
        lambda: fg.quantile(_x(), 0.5, 0, np.zeros(3)),
        lambda: fg.kthvalue(_x(), 1, 0, np.zeros(3)),
        lambda: fg.cumulative_sum(_x(), 0, None, np.zeros(3)),
        lambda: fg.sort(_x(), 0, "stable"),  # NumPy: kind
        lambda: fg.topk(_x(), 1, 0, "sorted"),
        lambda: fg.reshape(_x(), (4, 6), "F"),  # NumPy: order
        lambda: fg.unique(_x(), True),  # NumPy and torch differ
        lambda: fg.isin(_x(), _x(), True),  # NumPy: assume_unique
        lambda: fg.linalg.matrix_rank(_x(), 1e-3),  # NumPy: absolute
        lambda: fg.linalg.matrix_norm(_x(), 1, True),  # torch: dim
        lambda: fg.instance_norm(_x(), fg.zeros(3), fg.ones(3)),  # statistics
        lambda: fg.random.uniform(0, 1, (3,)),  # NumPy: shapes last
        lambda: fg.random.normal(5, 1, 3),
    ],
)
def test_an_argument_that_means_another_elsewhere_is_a_type_error(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    where = getattr(caught.value, "where", __file__)
    assert where.startswith(__file__)


def test_a_truth_is_no_axis() -> None:
    with pytest.raises(ValueError, match="True is not an axis"):
        _x().sort(True)


def test_arguments_by_place_are_in_the_order_of_numpy_and_torch() -> None:
    x, m = _x(), fg.Tensor(M)
    assert np.array_equal(fg.diff(x, 2).numpy(), np.diff(X, 2))
    assert np.array_equal(x.diff(1, 0).numpy(), np.diff(X, 1, 0))
    assert fg.linalg.vector_norm(m, 1).item() == np.abs(M).sum()
    assert np.allclose(fg.linalg.vector_norm(m, 3, 0, True).numpy(),
                       np.linalg.norm(M, 3, 0, True))  # fmt: skip
    assert fg.linalg.matrix_norm(m, 1).item() == np.linalg.norm(M, 1)
    assert fg.max(x, 0, True).shape == (1, 3, 4) and fg.sum(x, 0, keepdims=1).shape == (1, 3, 4)
    weighted = fg.cross_entropy(m, fg.Tensor([0, 1]), fg.Tensor([1.0, 0.0])).item()
    assert weighted == pytest.approx(fg.cross_entropy(m[:1], fg.Tensor([0])).item())
    assert [part.tolist() for part in np.unique(fg.Tensor([3, 1, 3]), True)] == [[1, 3], [1, 0]]


def test_the_two_dimensions_of_a_diagonal_have_torchs_names() -> None:
    x = _x()
    assert np.array_equal(x.diagonal(0, dim1=2).numpy(), np.diagonal(X, 0, 2, 1))
    assert np.array_equal(fg.diagonal(x, dim1=2, dim2=0).numpy(), np.diagonal(X, 0, 2, 0))
    assert np.array_equal(fg.trace(x, dim1=1, dim2=2).numpy(), np.trace(X, 0, 1, 2))
    assert x.swapdims(dim0=0, dim1=2).shape == (4, 3, 2)
