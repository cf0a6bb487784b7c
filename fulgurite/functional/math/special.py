"""Functions of one real number, and of the two sides of an angle: powers, logarithms, angles.

In: tensors or numbers; whole ones become float32. Out: tensors of the same shape. Exactness near
the special points (0, infinities, NaN) is the op's own: `core/ops/elementwise.py`.
"""

from __future__ import annotations

from ...core import build
from ...core.ops.elementwise import (
    ACOS,
    ACOSH,
    ASIN,
    ASINH,
    ATAN,
    ATAN2,
    ATANH,
    CBRT,
    COS,
    COSH,
    ERF,
    ERFC,
    EXP,
    EXP2,
    EXPM1,
    LGAMMA,
    LOG,
    LOG1P,
    LOG2,
    LOG10,
    RSQRT,
    SIN,
    SINH,
    SQRT,
    TAN,
    TANH,
)
from ...tensor import Tensor, TensorLike, node_of, wrap
from ..common import apply


def sqrt(x: TensorLike) -> Tensor:
    """The square root.

    >>> fg.sqrt(fg.Tensor([4.0, 9.0])).tolist()
    [2.0, 3.0]
    """
    return apply(SQRT, x)


def rsqrt(x: TensorLike) -> Tensor:
    """One over the square root.

    >>> fg.rsqrt(fg.Tensor([4.0, 16.0])).tolist()
    [0.5, 0.25]
    """
    return apply(RSQRT, x)


def cbrt(x: TensorLike) -> Tensor:
    """The cube root.

    >>> fg.cbrt(fg.Tensor([0.0, -1.0])).tolist()
    [0.0, -1.0]
    """
    return apply(CBRT, x)


def exp(x: TensorLike) -> Tensor:
    """e to the power x.

    >>> fg.exp(fg.Tensor([0.0, float("-inf")])).tolist()
    [1.0, 0.0]
    """
    return apply(EXP, x)


def exp2(x: TensorLike) -> Tensor:
    """2 to the power x.

    >>> fg.exp2(fg.Tensor([3.0, -1.0])).tolist()
    [8.0, 0.5]
    """
    return apply(EXP2, x)


def expm1(x: TensorLike) -> Tensor:
    """exp(x) - 1, exact near 0.

    >>> fg.expm1(fg.Tensor([0.0, 1e-10])).tolist()
    [0.0, 1.000000013351432e-10]
    """
    return apply(EXPM1, x)


def log(x: TensorLike) -> Tensor:
    """The natural logarithm.

    >>> fg.log(fg.Tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    return apply(LOG, x)


def log2(x: TensorLike) -> Tensor:
    """The logarithm to base 2.

    >>> fg.log2(fg.Tensor([8.0, 0.5])).tolist()
    [3.0, -1.0]
    """
    return apply(LOG2, x)


def log10(x: TensorLike) -> Tensor:
    """The logarithm to base 10.

    >>> fg.log10(fg.Tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    return apply(LOG10, x)


def log1p(x: TensorLike) -> Tensor:
    """log(1 + x), exact near 0.

    >>> fg.log1p(fg.Tensor([0.0, 1e-10])).tolist()
    [0.0, 1.000000013351432e-10]
    """
    return apply(LOG1P, x)


def sin(x: TensorLike) -> Tensor:
    """The sine.

    >>> fg.sin(fg.Tensor([0.0])).tolist()
    [0.0]
    """
    return apply(SIN, x)


def cos(x: TensorLike) -> Tensor:
    """The cosine.

    >>> fg.cos(fg.Tensor([0.0])).tolist()
    [1.0]
    """
    return apply(COS, x)


def tan(x: TensorLike) -> Tensor:
    """The tangent.

    >>> fg.tan(fg.Tensor([0.0])).tolist()
    [0.0]
    """
    return apply(TAN, x)


def asin(x: TensorLike) -> Tensor:
    """The angle whose sine is x.

    >>> fg.asin(fg.Tensor([0.0, 2.0])).tolist()
    [0.0, nan]
    """
    return apply(ASIN, x)


def acos(x: TensorLike) -> Tensor:
    """The angle whose cosine is x.

    >>> fg.acos(fg.Tensor([1.0, 2.0])).tolist()
    [0.0, nan]
    """
    return apply(ACOS, x)


def atan(x: TensorLike) -> Tensor:
    """The angle whose tangent is x.

    >>> fg.atan(fg.Tensor([0.0])).tolist()
    [0.0]
    """
    return apply(ATAN, x)


def sinh(x: TensorLike) -> Tensor:
    """The hyperbolic sine.

    >>> fg.sinh(fg.Tensor([0.0])).tolist()
    [0.0]
    """
    return apply(SINH, x)


def cosh(x: TensorLike) -> Tensor:
    """The hyperbolic cosine.

    >>> fg.cosh(fg.Tensor([0.0])).tolist()
    [1.0]
    """
    return apply(COSH, x)


def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent.

    >>> fg.tanh(fg.Tensor([0.0, 100.0])).tolist()
    [0.0, 1.0]
    """
    return apply(TANH, x)


def asinh(x: TensorLike) -> Tensor:
    """The inverse of sinh.

    >>> fg.asinh(fg.Tensor([0.0])).tolist()
    [0.0]
    """
    return apply(ASINH, x)


def acosh(x: TensorLike) -> Tensor:
    """The inverse of cosh.

    >>> fg.acosh(fg.Tensor([1.0, 0.0])).tolist()
    [0.0, nan]
    """
    return apply(ACOSH, x)


def atanh(x: TensorLike) -> Tensor:
    """The inverse of tanh.

    >>> fg.atanh(fg.Tensor([0.0, 1.0])).tolist()
    [0.0, inf]
    """
    return apply(ATANH, x)


def erf(x: TensorLike) -> Tensor:
    """The error function.

    >>> fg.erf(fg.Tensor([0.0, 9.0])).tolist()
    [0.0, 1.0]
    """
    return apply(ERF, x)


def erfc(x: TensorLike) -> Tensor:
    """1 - erf(x), exact far out.

    >>> fg.erfc(fg.Tensor([0.0, float("inf")])).tolist()
    [1.0, 0.0]
    """
    return apply(ERFC, x)


def lgamma(x: TensorLike) -> Tensor:
    """The logarithm of the gamma function's magnitude.

    >>> fg.lgamma(fg.Tensor([1.0, 2.0])).tolist()
    [0.0, 0.0]
    """
    return apply(LGAMMA, x)


def digamma(x: TensorLike) -> Tensor:
    """The derivative of lgamma.

    >>> round(fg.digamma(1.0).item(), 4)
    -0.5772
    """
    return wrap(build.polygamma(0, node_of(x)))


def atan2(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The angle of the point (x2, x1), in all four quadrants.

    >>> fg.atan2(fg.Tensor([0.0, -0.0]), fg.Tensor([1.0, 1.0])).tolist()
    [0.0, -0.0]
    """
    return apply(ATAN2, x1, x2)
