"""Floats compared within a tolerance, and the ones that are no numbers replaced.

In: tensors or numbers, broadcast against each other. Out: truths, or the same numbers without NaN
and infinities. The formula is NumPy's and torch's, |x1 - x2| <= atol + rtol * |x2|, which is not
symmetric: x2 is the value that is known. Half floats are compared in float32, whole numbers in
float64, so that a tolerance of 0 tells neighbours apart up to 2**53.
"""

from __future__ import annotations

from math import inf

from ...core.dtype import float64
from ...core.node import Node
from ...tensor import Tensor, TensorLike, lifted, wrap
from ..common import as_tensor, astype, common_dtype, wide
from ..datatypes import finfo
from ..template import templated
from .complex_numbers import complex, imag, real
from .elementwise import abs, equal, isfinite, isnan, less_equal, where
from .reduction import all


@templated
def isclose(
    x1: TensorLike,
    x2: TensorLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Which elements are equal within a tolerance: |x1 - x2| <= atol + rtol * |x2|.

    Infinities are close to themselves only; NaN is close to nothing, or with `equal_nan` to NaN.

    >>> fg.isclose(fg.Tensor([1.0, 1.0, 2.0]), fg.Tensor([1.000001, 1.1, 2.0])).tolist()
    [True, False, True]
    """
    nodes = lifted(x1, x2)
    dtype = common_dtype(*nodes)
    wanted = dtype if dtype.is_inexact else float64
    first, second = (wide(astype(wrap(x) if isinstance(x, Node) else x, wanted)) for x in nodes)
    near = less_equal(abs(first - second), abs(second) * rtol + atol)
    found = (near & isfinite(second) & isfinite(first)) | equal(x1, x2)
    return found | (isnan(first) & isnan(second)) if equal_nan else found


def allclose(
    x1: TensorLike,
    x2: TensorLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Are all elements equal within a tolerance? One truth: `if fg.allclose(a, b): ...`.

    >>> bool(fg.allclose(fg.Tensor([1.0, 2.0]), fg.Tensor([1.0, 2.000001])))
    True
    """
    return all(isclose(x1, x2, rtol, atol, equal_nan))


@templated
def nan_to_num(
    x: TensorLike,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """x with numbers in place of NaN and infinities: the largest and smallest of the dtype.

    Its gradient is 0 where a number was put in. Whole numbers stay as they are.

    >>> fg.nan_to_num(fg.Tensor([1.0, float("nan"), float("inf")]), posinf=9.0).tolist()
    [1.0, 0.0, 9.0]
    """
    tensor = as_tensor(x)
    if tensor.dtype.is_integer:
        return wrap(tensor.node)
    if tensor.dtype.kind == "c":
        return complex(*[nan_to_num(part(tensor), nan, posinf, neginf) for part in (real, imag)])
    limits = finfo(tensor.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    bounded = where(equal(tensor, inf), high, where(equal(tensor, -inf), low, tensor))
    return where(isnan(tensor), nan, bounded)
