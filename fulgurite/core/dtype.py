"""Element types: their grid of values, their limits, and how two of them promote.

In: names, NumPy dtypes, Python numbers. Out: `DType` objects, compared by identity, and the bit
pattern of a number committed to its type's grid (a bfloat16 1e300 is inf). Bits, not numbers, are
what constants are keyed by, so 0.0 and -0.0, 1 and True, and NaN payloads never meet.
Promotion is the lattice of `_ABOVE`: the result is the lowest type above both; a Python scalar is
weak and gives way to any type of its kind.
"""

from __future__ import annotations

import math
import struct
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import ConstantError, DataError, DTypeError
from .lazy_dataclass import dataclass
from .symbolic.sym import ATOMS, varies

Number = bool | int | float | complex


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """One element type: one object each, so that `is` compares them and they hash at C speed.

    It equals NumPy's dtype and scalar type and its own name, too, but hashes as itself, as NumPy's
    do: keys of a table are all of one kind (`dtype_of` and `np.dtype` make them so).
    """

    name: str
    kind: str  # "b" bool, "i" signed, "u" unsigned, "f" float, "c" complex
    bits: int
    layout: str  # NumPy's name for it; "" where NumPy itself has none
    weak: bool = False  # the type of a Python scalar: gives way in promotion

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's type for it; what NumPy lacks is imported on first use."""
        if self.layout:
            return np.dtype(self.layout)
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
        return found

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        if self is other or isinstance(other, DType):
            return self is other
        if isinstance(other, str):
            return other == self.name
        if isinstance(other, type) and issubclass(other, np.generic):
            other = np.dtype(other)
        if isinstance(other, np.dtype):
            return other.name == self.name and bool(other.isnative)
        return NotImplemented

    __hash__ = object.__hash__

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type for it: where NumPy takes a dtype, it asks for this."""
        return self.numpy

    __numpy_dtype__ = dtype  # the same question from NumPy 2.4 on

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """A dtype copies and pickles as its one object."""
        return dtype_of, (self.name,)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return (self.bits + 7) // 8

    @property
    def is_float(self) -> bool:
        """True if it is a real floating type."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """True if its arithmetic is that of integers (bool counts)."""
        return self.kind in "biu"

    @property
    def is_inexact(self) -> bool:
        """True if arithmetic rounds (float or complex); only such values have gradients."""
        return self.kind in "fc"

    @property
    def is_small_float(self) -> bool:
        """True if it is a float that computes in float32."""
        return self.kind == "f" and self.bits < 32

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value of a bool or integer type."""
        if self.kind == "b":
            return 0, 1
        if self.kind == "u":
            return 0, (1 << self.bits) - 1
        assert self.kind == "i", f"{self} has no integer limits"
        return -(1 << self.bits - 1), (1 << self.bits - 1) - 1


bool_ = DType("bool", "b", 1, "bool")
int8, int16, int32, int64 = (DType(f"int{n}", "i", n, f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DType(f"uint{n}", "u", n, f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (DType(f"float{n}", "f", n, f"float{n}") for n in (16, 32, 64))
bfloat16 = DType("bfloat16", "f", 16, "")
float8_e4m3fn, float8_e5m2 = DType("float8_e4m3fn", "f", 8, ""), DType("float8_e5m2", "f", 8, "")
complex64, complex128 = (DType(f"complex{n}", "c", n, f"complex{n}") for n in (64, 128))

void = DType("void", "v", 0, "bool")  # of a node that is no value: SINK

DTYPES: tuple[DType, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float8_e4m3fn, float8_e5m2,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip

default_int, default_float, default_complex = int32, float32, complex64

WEAK_INT = DType("weak int", "i", 32, "int32", weak=True)
WEAK_FLOAT = DType("weak float", "f", 32, "float32", weak=True)
WEAK_COMPLEX = DType("weak complex", "c", 64, "complex64", weak=True)
_DEFAULT = {WEAK_INT: default_int, WEAK_FLOAT: default_float, WEAK_COMPLEX: default_complex}

_BY_NAME = {d.name: d for d in (*DTYPES, void)} | {
    "half": float16, "float": float32, "double": float64, "int": int32, "long": int64,
    "bool_": bool_, "bf16": bfloat16, "f16": float16, "f32": float32, "f64": float64,
}  # fmt: skip
_BY_NUMPY = {d.numpy: d for d in DTYPES if d.layout}
_LENT = [d for d in DTYPES if not d.layout]
_BY_PYTHON: dict[Any, DType] = {
    bool: bool_, int: default_int, float: default_float, complex: default_complex,
}  # fmt: skip


def dtype_of(spec: object) -> DType:
    """The dtype a user means: one of ours, a name, a NumPy dtype, or a Python number type."""
    if isinstance(spec, DType):
        return spec
    try:
        found = _BY_NAME.get(spec) if isinstance(spec, str) else _BY_PYTHON.get(spec)
        if found is None and spec is not None:
            asked = np.dtype(spec).newbyteorder("=")  # type: ignore[call-overload]
            found = _BY_NUMPY.get(asked) or next((d for d in _LENT if d.numpy == asked), None)
    except (TypeError, ValueError):  # nothing that NumPy knows, or not even hashable
        found = None
    if found is not None:
        return found
    names = ", ".join(d.name for d in DTYPES)
    raise DTypeError(f"{spec!r} is not an element type", f"one of {names}")


# --- the grid ------------------------------------------------------------------------------------

_STRUCTS = {float64: "<d", float32: "<f", float16: "<e"}
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def encode(number: Number, dtype: DType) -> int:
    """The bits of a number on its dtype's grid: floats round, integers must fit."""
    kind = dtype.kind
    if kind == "f":
        if isinstance(number, complex):
            raise ConstantError(f"{number!r} is complex and {dtype} is real", "use a complex dtype")
        return _encode_float(number, dtype)
    if kind == "c":
        part = float32 if dtype is complex64 else float64
        return _encode_float(number.real, part) | _encode_float(number.imag, part) << part.bits
    whole = _whole(number, dtype)
    low, high = dtype.limits
    if not low <= whole <= high:
        raise ConstantError(
            f"{number!r} does not fit {dtype} ({low} to {high})",
            "choose a wider dtype, or wrap the number yourself",
        )
    return whole & (1 << max(dtype.bits, 8)) - 1


def _whole(number: Number, dtype: DType) -> int:
    if isinstance(number, complex) or number != number or number in (np.inf, -np.inf):
        raise ConstantError(f"{number!r} is not a value of {dtype}", "use a float dtype")
    if varies(number):
        return number  # type: ignore[return-value]
    whole = int(number)
    if whole != number:
        raise ConstantError(f"{number!r} is not whole and {dtype} is", "round it or use a float")
    return whole


def _encode_float(number: float, dtype: DType) -> int:
    try:
        whole = isinstance(number, int) and dtype is not float64
        number = _whole_to_odd(int(number)) if whole else float(number)
    except OverflowError:  # a whole number beyond float64
        number = np.inf if number > 0 else -np.inf
    layout = _STRUCTS.get(dtype)
    if layout is None:
        with np.errstate(all="ignore"):
            grid = round_to(np.asarray(number, np.float64), dtype)
        return int(grid.view(_UNSIGNED[dtype.bits]))
    try:
        packed = struct.pack(layout, number)
    except OverflowError:
        packed = struct.pack(layout, np.inf if number > 0 else -np.inf)
    return int.from_bytes(packed, "little")


def _whole_to_odd(number: int) -> float:
    """A whole number as float64, rounding to odd: a later rounding to fewer bits is then exact."""
    spare = max(0, number.bit_length() - 53)
    kept = number >> spare
    return math.ldexp(kept | (kept << spare != number), spare)


def decode(bits: int, dtype: DType) -> Number:
    """The Python number that these bits stand for."""
    kind = dtype.kind
    if kind == "b":
        return bool(bits)
    if kind == "u":
        return bits
    if kind == "i":
        return bits - (1 << dtype.bits) if bits >= 1 << dtype.bits - 1 else bits
    if kind == "c":
        part = float32 if dtype is complex64 else float64
        low = decode(bits & (1 << part.bits) - 1, part)
        return complex(low, decode(bits >> part.bits, part))
    layout = _STRUCTS.get(dtype)
    if layout is not None:
        return float(struct.unpack(layout, bits.to_bytes(dtype.itemsize, "little"))[0])
    with np.errstate(all="ignore"):  # a signalling NaN is a value like any other
        return float(np.asarray(bits, _UNSIGNED[dtype.bits]).view(dtype.numpy).astype(np.float64))


def array_of_bits(bits: int, dtype: DType) -> np.ndarray[Any, Any]:
    """A 0-d NumPy array with exactly these bits."""
    raw = bits.to_bytes(dtype.numpy.itemsize, "little")
    return np.frombuffer(raw, dtype.numpy).reshape(())


def round_to(values: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Real values on a dtype's grid, rounded once (ml_dtypes alone would round float64 twice)."""
    if dtype.is_small_float and dtype is not float16 and values.dtype == np.float64:
        values = _to_odd(values)
    return values.astype(dtype.numpy)


def _to_odd(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float64 to float32, rounding to odd: a later rounding to fewer bits is then exact."""
    near = values.astype(np.float32)
    wide = near.astype(np.float64)
    inexact = (wide != values) & np.isfinite(values)
    bits = near.view(np.int32)
    past = np.where(np.abs(wide) > np.abs(values), bits - 1, bits)  # truncate toward zero
    return np.where(inexact, past | 1, bits).astype(np.int32).view(np.float32)


ATOMS.add(DType)

# --- promotion -----------------------------------------------------------------------------------

_ABOVE: dict[DType, tuple[DType, ...]] = {
    bool_: (WEAK_INT,),
    WEAK_INT: (uint8, int8),
    uint8: (uint16, int16), uint16: (uint32, int32), uint32: (uint64, int64), uint64: (WEAK_FLOAT,),
    int8: (int16,), int16: (int32,), int32: (int64,), int64: (WEAK_FLOAT,),
    WEAK_FLOAT: (float8_e4m3fn, float8_e5m2, WEAK_COMPLEX),
    float8_e4m3fn: (float16, bfloat16), float8_e5m2: (float16, bfloat16),
    float16: (float32,), bfloat16: (float32,), float32: (float64, complex64),
    float64: (complex128,), WEAK_COMPLEX: (complex64,), complex64: (complex128,), complex128: (),
}  # fmt: skip


def _closure() -> dict[DType, frozenset[DType]]:
    above: dict[DType, frozenset[DType]] = {}

    def visit(dtype: DType) -> frozenset[DType]:
        if dtype not in above:
            above[dtype] = frozenset({dtype}.union(*[visit(up) for up in _ABOVE[dtype]]))
        return above[dtype]

    for dtype in _ABOVE:
        visit(dtype)
    return above


_UPPER = _closure()
_joined: dict[frozenset[DType], DType | None] = {}


def _join(dtypes: frozenset[DType]) -> DType | None:
    """The lowest type above all, or None where there is no single lowest one."""
    if dtypes not in _joined:
        common = frozenset.intersection(*[_UPPER[d] for d in dtypes])
        lowest = [c for c in common if common == _UPPER[c]]
        _joined[dtypes] = lowest[0] if lowest else None
    return _joined[dtypes]


def promote(*dtypes: DType) -> DType:
    """Type promotion: the dtype that holds all; weak ones give way, a weak result is a default."""
    first = dtypes[0]
    if all([d is first for d in dtypes]):
        return _DEFAULT.get(first, first)
    result = _join(frozenset(dtypes))  # of all at once: folding pairs would depend on the order
    if result is None:
        names = " and ".join(d.name for d in dict.fromkeys(dtypes))
        raise DTypeError(f"{names} have no common dtype", "cast one of them: x.cast(dtype)")
    return _DEFAULT.get(result, result)


def weak_dtype(value: object) -> DType:
    """The (weak) dtype of a Python or NumPy scalar."""
    kind = type(value)
    if kind is float:
        return WEAK_FLOAT
    if kind is bool:
        return bool_
    if kind is int:
        return WEAK_INT
    if kind is complex:
        return WEAK_COMPLEX
    if isinstance(value, np.generic):
        return dtype_of(value.dtype)
    for base, weak in ((int, WEAK_INT), (float, WEAK_FLOAT), (complex, WEAK_COMPLEX)):
        if isinstance(value, base):  # a subclass: IntEnum and the like
            return weak
    if hasattr(kind, "__dlpack__"):
        name = f"{kind.__module__}.{kind.__name__}"
        raise DataError(f"{name} is another library's array", "take it in by fg.from_dlpack(array)")
    raise DataError(f"{kind.__name__} is not numeric data", "pass numbers, NumPy arrays or tensors")
