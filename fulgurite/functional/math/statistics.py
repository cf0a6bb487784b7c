"""How variables vary together: covariances and correlation coefficients.

In: a matrix whose rows are variables and whose columns are observations (the other way round with
`rowvar=False`), or one line of observations. Out: a square matrix, or one number. The mean is
taken off first and half floats are computed in float32, so nothing is lost to cancellation.
Unlike `var` and `std`, which divide by the count unless asked, these divide by the count less 1,
as they do in NumPy and in torch.
"""

from __future__ import annotations

from ...core.dtype import DType
from ...errors import ArgumentError, DTypeError, ShapeError
from ...tensor import Tensor, TensorLike
from ..array.arrangement import diagonal
from ..array.movement import concat, matrix_transpose, reshape
from ..common import as_tensor, astype, common_floats, floating, wide
from ..template import templated
from .complex_numbers import complex, conj, imag, real
from .elementwise import maximum, where
from .products import matmul
from .reduction import mean, sum
from .special import sqrt


@templated
def cov(
    x: TensorLike,
    y: TensorLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    correction: float | None = None,
    fweights: TensorLike | None = None,
    aweights: TensorLike | None = None,
) -> Tensor:
    """The covariance of every two rows; `y` holds further rows.

    Sums are divided by the count of observations less `correction`, which is 1, or 0 with `bias`.
    `fweights` says how often each observation was made, `aweights` how much it is worth.

    >>> fg.cov(fg.Tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    found = _covariance(x, y, rowvar, bias, correction, fweights, aweights)
    return astype(found, _narrow(x, y))


@templated
def corrcoef(x: TensorLike, y: TensorLike | None = None, rowvar: bool = True) -> Tensor:
    """The correlation of every two rows: their covariance over both standard deviations.

    >>> fg.corrcoef(fg.Tensor([[1.0, 2.0, 3.0], [6.0, 4.0, 2.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    found = _covariance(x, y, rowvar)
    if found.ndim == 0:
        return astype(found / found, _narrow(x, y))
    spread = sqrt(real(diagonal(found)))
    scaled = found / reshape(spread, (-1, 1)) / spread if found.size else found
    bounded = [_within_one(part(scaled)) for part in (real, imag)]
    either = complex(*bounded) if scaled.dtype.kind == "c" else bounded[0]
    return astype(either, _narrow(x, y))


def _narrow(x: TensorLike, y: TensorLike | None) -> DType:
    """The dtype of the result."""
    return floating(x).dtype if y is None else common_floats(x, y)[0].dtype


def _within_one(x: Tensor) -> Tensor:
    """What rounding has put beyond 1 or -1 put back; the slope of the rest stays."""
    return where(x > 1, 1, where(x < -1, -1, x))


def _rows(x: TensorLike, rowvar: bool) -> Tensor:
    """Variables by observations."""
    tensor = wide(x)
    if tensor.ndim > 2:
        raise ShapeError(
            f"observations of shape {tensor.shape}", "give variables by observations: a matrix"
        )
    if tensor.ndim < 2:
        return reshape(tensor, (1, tensor.size))
    return tensor if rowvar else matrix_transpose(tensor)


def _covariance(
    x: TensorLike,
    y: TensorLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    correction: float | None = None,
    fweights: TensorLike | None = None,
    aweights: TensorLike | None = None,
) -> Tensor:
    rows = _rows(x, rowvar)
    if y is not None:
        rows = concat([rows, _rows(y, rowvar)], axis=0)
    less = float((0 if bias else 1) if correction is None else correction)
    count = rows.shape[1]
    if not isinstance(count, int):
        raise ShapeError("a variable number of observations", "use a fixed number")
    often, worth = _weights(fweights, rows, "fweights"), _weights(aweights, rows, "aweights")
    if often is not None and not as_tensor(fweights).dtype.is_integer:  # type: ignore[arg-type]
        raise DTypeError("fweights count observations", "give whole numbers, or use aweights")
    weights = often if worth is None else worth if often is None else often * worth
    if weights is None:
        apart = rows - mean(rows, axis=1, keepdims=True)
        freedom: Tensor | float = max(count - less, 0.0)
        product = matmul(apart, conj(matrix_transpose(apart)))
    else:
        total = sum(weights)
        apart = rows - reshape(sum(rows * weights, axis=1) / total, (-1, 1))
        lost = less if worth is None else less * sum(weights * worth) / total
        freedom = maximum(total - lost, 0.0)
        product = matmul(apart, conj(matrix_transpose(apart * weights)))
    found = product / freedom
    return reshape(found, ()) if found.shape == (1, 1) else found


def _weights(weights: TensorLike | None, rows: Tensor, name: str) -> Tensor | None:
    if weights is None:
        return None
    found = as_tensor(weights, rows)
    if found.shape != rows.shape[1:]:
        raise ShapeError(
            f"{name} of shape {found.shape} for {rows.shape[1]} observations", "give one for each"
        )
    if found.dtype.kind == "c":
        raise ArgumentError(f"{name} are complex", "give real numbers")
    return astype(found, real(rows).dtype)
