"""Questions about element types and shapes: limits, kinds, promotion.

In: dtypes, names, tensors, Python numbers. Out: plain Python values and dtypes; nothing is
computed. The rules are those of `core/dtype.py`, by which every operator promotes.
"""

from __future__ import annotations

from typing import Any

from ..core import build
from ..core import shape as sizes
from ..core.dtype import DTYPES, DType, dtype_of, float32, float64, promote, weak_dtype
from ..errors import ArgumentError, DTypeError
from ..tensor import Tensor
from .results import FloatLimits, IntegerLimits

_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu",
    "real floating": "f", "complex floating": "c", "numeric": "iufc",
}  # fmt: skip


def _asked(x: object) -> DType:
    return x.dtype if isinstance(x, Tensor) else dtype_of(x)


def finfo(type: object) -> FloatLimits:
    """The limits of a float type, or of the parts of a complex one.

    >>> fg.finfo(fg.float32).eps, fg.finfo(fg.bfloat16).bits
    (1.1920928955078125e-07, 16)
    """
    import ml_dtypes

    dtype = _asked(type)
    if dtype.kind not in "fc":
        raise DTypeError(f"{dtype} is no float type", "use fg.iinfo for whole numbers")
    part = dtype if dtype.kind == "f" else float32 if dtype.bits == 64 else float64
    about: Any = ml_dtypes.finfo(part.numpy)  # type: ignore[no-untyped-call]
    eps, high, low, small = map(float, (about.eps, about.max, about.min, about.smallest_normal))
    return FloatLimits(part.bits, eps, high, low, small, part)


def iinfo(type: object) -> IntegerLimits:
    """The limits of an integer type.

    >>> fg.iinfo(fg.int8).min, fg.iinfo("uint16").max
    (-128, 65535)
    """
    dtype = _asked(type)
    if dtype.kind not in "iu":
        raise DTypeError(f"{dtype} is no integer type", "use fg.finfo for floats")
    low, high = dtype.limits
    return IntegerLimits(dtype.bits, high, low, dtype)


def isdtype(dtype: object, kind: object) -> bool:
    """Is a dtype of this kind: a dtype, the name of a kind, or a tuple of those?

    >>> fg.isdtype(fg.int8, "integral"), fg.isdtype(fg.int8, ("bool", fg.float32))
    (True, False)
    """
    asked = dtype_of(dtype)
    if isinstance(kind, tuple):
        return any([isdtype(asked, k) for k in kind])
    if isinstance(kind, str) and kind in _KINDS:
        return asked.kind in _KINDS[kind]
    if isinstance(kind, str) and kind not in {d.name for d in DTYPES}:
        raise ArgumentError(f"{kind!r} is no kind of dtype", f"one of {', '.join(_KINDS)}")
    return asked is dtype_of(kind)


def result_type(*arrays_and_dtypes: object) -> DType:
    """The dtype that tensors, dtypes and Python numbers promote to.

    >>> fg.result_type(fg.int8, fg.float16), fg.result_type(fg.Tensor([1], dtype="int8"), 2)
    (float16, int8)
    """
    if not arrays_and_dtypes:
        raise ArgumentError("there is nothing to promote", "pass tensors or dtypes")
    scalar = (bool, int, float, complex)
    return promote(*[
        weak_dtype(x) if isinstance(x, scalar) else _asked(x) for x in arrays_and_dtypes
    ])  # fmt: skip


def can_cast(from_: object, to: object) -> bool:
    """Does promotion turn the first into the second?

    >>> fg.can_cast(fg.int8, fg.int16), fg.can_cast(fg.float32, fg.int32)
    (True, False)
    """
    target = dtype_of(to)
    return promote(_asked(from_), target) is target


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that tensors of these shapes have together.

    >>> fg.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    known = [build.as_shape(s) for s in shapes]
    return sizes.broadcast(*known) if known else ()  # type: ignore[return-value]
