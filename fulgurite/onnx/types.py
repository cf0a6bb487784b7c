"""Element types of ONNX, and what stands for each of them here.

In: a type number of the format. Out: a `Kind`: its name, the dtype of the tensor that carries it
(`carrier`), how it lies in a file, and what NumPy calls it. Types that tensors do not have are
carried by others: four-bit and two-bit whole numbers as (u)int8 values, the rarer small floats as
the uint8 of their bits; strings never become tensors. `Kind.plain` says whether the carrier is the
type itself, so that arithmetic on it is right.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..core import dtype as d
from ..core.dtype import DType
from ..core.lazy_dataclass import dataclass
from .errors import UnsupportedError


@dataclass(frozen=True, eq=False, slots=True)
class Kind:
    """One element type of ONNX."""

    number: int
    name: str
    carrier: DType | None
    stored: str  # what NumPy or ml_dtypes calls it
    bits: int
    plain: bool = True

    @property
    def numpy(self) -> np.dtype[Any]:
        """Its NumPy type; an older ml_dtypes may lack a rare one."""
        if self.plain and self.carrier is not None:
            return self.carrier.numpy
        if not self.stored:
            return np.dtype(object)
        import ml_dtypes  # which takes longer than to read most models

        return np.dtype(getattr(ml_dtypes, self.stored, np.uint8))

    def __repr__(self) -> str:
        return self.name


def _plain(number: int, name: str, dtype: DType) -> Kind:
    return Kind(number, name, dtype, "", max(dtype.bits, 8))


def _carried(number: int, name: str, carrier: DType, numpy: str, bits: int) -> Kind:
    return Kind(number, name, carrier, numpy, bits, plain=False)


FLOAT, DOUBLE = _plain(1, "float", d.float32), _plain(11, "double", d.float64)
FLOAT16, BFLOAT16 = _plain(10, "float16", d.float16), _plain(16, "bfloat16", d.bfloat16)
UINT8, INT8 = _plain(2, "uint8", d.uint8), _plain(3, "int8", d.int8)
UINT16, INT16 = _plain(4, "uint16", d.uint16), _plain(5, "int16", d.int16)
INT32, INT64 = _plain(6, "int32", d.int32), _plain(7, "int64", d.int64)
UINT32, UINT64 = _plain(12, "uint32", d.uint32), _plain(13, "uint64", d.uint64)
BOOL = _plain(9, "bool", d.bool_)
STRING = Kind(8, "string", None, "", 0, plain=False)
COMPLEX64 = _plain(14, "complex64", d.complex64)
COMPLEX128 = _plain(15, "complex128", d.complex128)
FLOAT8E4M3FN = _plain(17, "float8e4m3fn", d.float8_e4m3fn)
FLOAT8E5M2 = _plain(19, "float8e5m2", d.float8_e5m2)
FLOAT8E4M3FNUZ = _carried(18, "float8e4m3fnuz", d.uint8, "float8_e4m3fnuz", 8)
FLOAT8E5M2FNUZ = _carried(20, "float8e5m2fnuz", d.uint8, "float8_e5m2fnuz", 8)
FLOAT8E8M0 = _carried(24, "float8e8m0", d.uint8, "float8_e8m0fnu", 8)
FLOAT4E2M1 = _carried(23, "float4e2m1", d.uint8, "float4_e2m1fn", 4)
UINT4, INT4 = _carried(21, "uint4", d.uint8, "uint4", 4), _carried(22, "int4", d.int8, "int4", 4)
UINT2, INT2 = _carried(25, "uint2", d.uint8, "uint2", 2), _carried(26, "int2", d.int8, "int2", 2)

KINDS = {
    kind.number: kind
    for kind in (
        FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE, UINT32,
        UINT64, COMPLEX64, COMPLEX128, BFLOAT16, FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2,
        FLOAT8E5M2FNUZ, UINT4, INT4, FLOAT4E2M1, FLOAT8E8M0, UINT2, INT2,
    )
}  # fmt: skip
_OF_DTYPE = {kind.carrier: kind for kind in KINDS.values() if kind.plain}
WHOLE = frozenset({UINT4, INT4, UINT2, INT2})  # carried by their values, not by their bits
CODED = frozenset({FLOAT8E4M3FNUZ, FLOAT8E5M2FNUZ, FLOAT8E8M0, FLOAT4E2M1})


def kind_of(number: int) -> Kind:
    """The kind with a type number."""
    found = KINDS.get(number)
    if found is None:
        names = ", ".join(k.name for k in KINDS.values())
        raise UnsupportedError(f"element type {number} is not known", f"types are: {names}")
    return found


def kind_of_dtype(dtype: DType) -> Kind:
    """The kind of a tensor's elements."""
    return _OF_DTYPE[dtype]


@cache
def _of_numpy() -> dict[np.dtype[Any], Kind]:
    return {kind.numpy: kind for kind in reversed(list(KINDS.values()))}


def kind_of_array(dtype: np.dtype[Any]) -> Kind | None:
    """The kind of an array's elements; None where ONNX has none."""
    if dtype.kind in "OUST":
        return STRING
    return _of_numpy().get(dtype.newbyteorder("="))


def carried(array: np.ndarray[Any, Any], kind: Kind) -> np.ndarray[Any, Any]:
    """An array of a kind as an array of its carrier."""
    assert kind.carrier is not None
    wanted = kind.carrier.numpy
    if array.dtype == wanted:
        return array
    return array.view(wanted) if kind in CODED and array.itemsize == 1 else array.astype(wanted)


def shown(array: np.ndarray[Any, Any], kind: Kind) -> np.ndarray[Any, Any]:
    """An array of the carrier as NumPy knows the kind."""
    if kind.plain or kind is STRING or array.dtype == kind.numpy:
        return array
    return array.view(kind.numpy) if kind in CODED else array.astype(kind.numpy)
