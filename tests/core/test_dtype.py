"""Dtypes: grids, bits, names, and the promotion lattice with weak Python numbers."""

from __future__ import annotations

import copy
import enum
import itertools
import math
import pickle
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core import dtype as dtypes
from fulgurite.core.dtype import (
    DTYPES,
    WEAK_COMPLEX,
    WEAK_FLOAT,
    WEAK_INT,
    DType,
    array_of_bits,
    bfloat16,
    bool_,
    complex64,
    complex128,
    decode,
    dtype_of,
    encode,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    promote,
    uint8,
    uint64,
    weak_dtype,
)
from fulgurite.errors import ConstantError, DataError, DTypeError
from tests.core.ops.samples import FLOATS, INTEGERS, nearest

WEAK = (WEAK_INT, WEAK_FLOAT, WEAK_COMPLEX)
SHORT = {
    "?": bool_, "i8": int8, "i16": dtypes.int16, "i32": int32, "i64": int64, "u8": uint8,
    "u16": dtypes.uint16, "u32": dtypes.uint32, "u64": uint64, "f16": float16, "bf16": bfloat16,
    "f32": float32, "f64": float64, "e4m3": float8_e4m3fn, "e5m2": float8_e5m2, "c64": complex64,
    "c128": complex128, "int": WEAK_INT, "float": WEAK_FLOAT, "complex": WEAK_COMPLEX,
}  # fmt: skip

# --- promotion -----------------------------------------------------------------------------------

PROMOTED = """
? ? ?           ? i8 i8         ? u64 u64       ? f16 f16       ? int i32       ? float f32
i8 i16 i16      i8 i64 i64      u8 u16 u16      u8 u64 u64      u8 i8 i16       u16 i8 i32
u16 i32 i32     u32 i8 i64      u32 i32 i64     u32 i64 i64     u64 i8 f32      u64 i64 f32
i8 int i8       u8 int u8       u64 int u64     i64 int i64     i64 float f32   u8 float f32
i64 f16 f16     u64 bf16 bf16   i32 e4m3 e4m3   i8 e5m2 e5m2    i64 f64 f64     i64 c64 c64
f16 bf16 f32    f16 f32 f32     bf16 f32 f32    f32 f64 f64     e4m3 f16 f16    e5m2 bf16 bf16
e4m3 f32 f32    f16 float f16   bf16 float bf16 e4m3 float e4m3 f64 float f64   f16 int f16
f32 c64 c64     f64 c64 c128    f16 complex c64 f32 complex c64 f64 complex c128
c64 float c64   c64 complex c64 c128 float c128 int float f32   int complex c64 float complex c64
"""
WORDS = [SHORT[word] for word in PROMOTED.split()]
TABLE = list(zip(WORDS[::3], WORDS[1::3], WORDS[2::3], strict=True))


@pytest.mark.parametrize(("a", "b", "expected"), TABLE, ids=str)
def test_two_dtypes_promote_as_the_table_says(a: DType, b: DType, expected: DType) -> None:
    assert promote(a, b) is expected
    assert promote(b, a) is expected


def _promoted(*parts: DType) -> DType | None:
    try:
        return promote(*parts)
    except DTypeError:
        return None


def test_promotion_commutes_and_is_idempotent() -> None:
    for a, b in itertools.product((*DTYPES, *WEAK), repeat=2):
        assert _promoted(a, b) is _promoted(b, a)
    for a in DTYPES:
        assert promote(a) is promote(a, a) is a


def test_several_dtypes_promote_alike_in_any_order_and_grouping() -> None:
    """Grouping may only matter where a pair has no common dtype or falls back to the default."""
    for a, b, c in itertools.combinations_with_replacement((*DTYPES, *WEAK), 3):
        together = _promoted(a, b, c)
        orders = {_promoted(*order) for order in itertools.permutations((a, b, c))}
        assert orders == {together}
        for x, y, z in ((a, b, c), (a, c, b), (b, c, a)):
            inner = _promoted(x, y)
            settled = x.weak or y.weak or {x.kind, y.kind} == {"i", "u"}
            if inner is not None and not settled:
                assert _promoted(inner, z) is together


def test_a_promoted_dtype_holds_every_whole_number_of_both() -> None:
    for a, b in itertools.product((bool_, *INTEGERS), repeat=2):
        both = promote(a, b)
        if both.is_integer:
            for part in (a, b):
                assert both.limits[0] <= part.limits[0] and part.limits[1] <= both.limits[1]


def test_the_two_float8_formats_have_no_common_dtype_until_a_third_decides() -> None:
    with pytest.raises(DTypeError, match="float8_e4m3fn and float8_e5m2 have no common dtype"):
        promote(float8_e4m3fn, float8_e5m2)
    assert promote(float8_e4m3fn, float8_e5m2, float16) is float16
    assert promote(float8_e4m3fn, float8_e5m2, float32) is float32


class _Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, bool_), (3, WEAK_INT), (2.5, WEAK_FLOAT), (1j, WEAK_COMPLEX),
        (_Colour.RED, WEAK_INT), (np.float64(1), float64), (np.float32(1), float32),
        (np.int8(1), int8), (np.bool_(True), bool_), (ml_dtypes.bfloat16(1), bfloat16),
    ],
    ids=lambda v: f"{type(v).__name__}",
)  # fmt: skip
def test_a_python_number_is_weak_and_a_numpy_one_is_not(value: Any, expected: DType) -> None:
    assert weak_dtype(value) is expected


@pytest.mark.parametrize(
    "value", ["1", None, [1], object(), b"1", {}], ids=lambda v: type(v).__name__
)
def test_an_object_is_not_numeric_data(value: Any) -> None:
    with pytest.raises(DataError, match="is not numeric data"):
        weak_dtype(value)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_is_found_by_name_numpy_dtype_and_itself(dtype: DType) -> None:
    assert dtype_of(dtype) is dtype_of(dtype.name) is dtype_of(dtype.numpy) is dtype
    assert dtype_of(dtype.numpy.type) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (bool, bool_), (int, int32), (float, float32), (complex, complex64), ("half", float16),
        ("double", float64), ("long", int64), ("bf16", bfloat16), ("i4", int32), (">f8", float64),
        (np.dtype(">i4"), int32), (ml_dtypes.bfloat16, bfloat16),
    ],
    ids=str,
)  # fmt: skip
def test_a_dtype_has_other_spellings(spec: Any, expected: DType) -> None:
    assert dtype_of(spec) is expected


@pytest.mark.parametrize(
    "spec",
    ["float31", "", None, 3, 2.5, object, str, np.dtype("O"), np.dtype("U3"), "datetime64[s]",
     np.longdouble, [1], ([1],), {}, np.dtype([("a", "i4")]), ml_dtypes.int4],
    ids=repr,
)  # fmt: skip
def test_an_unknown_dtype_is_one_clear_error(spec: Any) -> None:
    with pytest.raises(DTypeError, match="is not an element type") as caught:
        dtype_of(spec)
    assert "bfloat16" in caught.value.hint
    assert __file__ in caught.value.where


def test_a_dtype_copies_and_pickles_as_itself() -> None:
    for dtype in DTYPES:
        assert copy.deepcopy(dtype) is copy.copy(dtype) is dtype
        assert pickle.loads(pickle.dumps(dtype)) is dtype


# --- the grid ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.bits <= 16], ids=str)
def test_every_bit_pattern_of_a_short_dtype_survives_decoding_and_encoding(dtype: DType) -> None:
    for bits in range(1 << dtype.bits):
        number = decode(bits, dtype)
        array = array_of_bits(bits, dtype)
        assert array.dtype == dtype.numpy and array.shape == ()
        if number != number:
            again = decode(encode(number, dtype), dtype)
            assert again != again
        else:
            assert encode(number, dtype) == bits
            assert array.astype(np.float64) == number


@given(st.floats(), st.sampled_from(FLOATS))
def test_a_float_constant_is_the_nearest_on_its_grid(number: float, dtype: DType) -> None:
    found, expected = decode(encode(number, dtype), dtype), nearest(number, dtype)
    assert isinstance(found, float)
    assert found == expected or (found != found and expected != expected)
    assert math.copysign(1, found) == math.copysign(1, expected) or found != found


@given(st.integers(-(2**140), 2**140), st.sampled_from(FLOATS))
def test_a_whole_constant_is_the_nearest_on_its_grid(number: int, dtype: DType) -> None:
    found, expected = decode(encode(number, dtype), dtype), nearest(Fraction(number), dtype)
    assert found == expected or (found != found and expected != expected)


@pytest.mark.parametrize("shift", [54, 60, 90])
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
def test_a_whole_constant_just_above_a_tie_is_not_rounded_twice(dtype: DType, shift: int) -> None:
    precision = 8 if dtype is bfloat16 else 24
    tie = 2**shift + 2 ** (shift - precision)
    for number in (tie - 1, tie, tie + 1, -tie - 1, -tie, -tie + 1):
        assert decode(encode(number, dtype), dtype) == nearest(Fraction(number), dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_whole_number_must_fit(dtype: DType) -> None:
    low, high = dtype.limits
    for number in (low, high, 0, 1):
        assert decode(encode(number, dtype), dtype) == number
    for number in (low - 1, high + 1, 10**30):
        with pytest.raises(ConstantError, match=f"does not fit {dtype}"):
            encode(number, dtype)


@pytest.mark.parametrize("number", [0.5, math.nan, math.inf, -math.inf, 1j], ids=repr)
def test_what_is_not_whole_is_no_integer_constant(number: Any) -> None:
    with pytest.raises(ConstantError):
        encode(number, int32)
    assert encode(3.0, int32) == 3


def test_a_constant_beyond_the_grid_is_infinite_or_nan_where_there_is_no_infinity() -> None:
    assert decode(encode(1e300, bfloat16), bfloat16) == math.inf
    assert decode(encode(-(10**400), bfloat16), bfloat16) == -math.inf
    assert decode(encode(10**400, float64), float64) == math.inf
    assert decode(encode(1e300, float8_e5m2), float8_e5m2) == math.inf
    assert math.isnan(float(decode(encode(1e300, float8_e4m3fn), float8_e4m3fn).real))
    assert decode(encode(464.0, float8_e4m3fn), float8_e4m3fn) == 448.0


def test_a_complex_constant_has_two_parts_and_no_real_dtype() -> None:
    for dtype in (complex64, complex128):
        assert decode(encode(1.5 - 2j, dtype), dtype) == 1.5 - 2j
        assert decode(encode(3, dtype), dtype) == 3
        assert decode(encode(True, dtype), dtype) == 1
        assert decode(encode(10**400, dtype), dtype) == complex(math.inf, 0)
    with pytest.raises(ConstantError, match="is complex"):
        encode(1j, float32)


def test_zeros_ones_and_nans_keep_their_own_bits() -> None:
    assert encode(0.0, float32) != encode(-0.0, float32)
    assert encode(1, float32) == encode(1.0, float32) == encode(True, float32)
    payload = 0x7FF8_0000_0000_0123
    assert encode(decode(payload, float64), float64) == payload


def test_kinds_say_what_arithmetic_a_dtype_has() -> None:
    assert [d.name for d in DTYPES if d.is_small_float] == [
        "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16",
    ]  # fmt: skip
    for dtype in DTYPES:
        assert dtype.is_integer == (dtype.kind in "biu")
        assert dtype.is_inexact != dtype.is_integer
        assert dtype.is_float == (dtype.kind == "f")
    assert bool_.limits == (0, 1) and int8.limits == (-128, 127) and uint8.limits == (0, 255)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_takes_a_dtype_for_its_own(dtype: DType) -> None:
    theirs = dtype.numpy
    assert np.dtype(dtype) == theirs
    assert np.zeros(2, dtype).dtype == theirs
    assert dtype == theirs and theirs == dtype and dtype == theirs.type and theirs.type == dtype
    assert dtype == dtype.name and dtype != "x" and dtype is not None
    assert dtype in [np.void, theirs.type] and dtype not in [np.void, np.object_]
    assert np.can_cast(dtype, theirs)
    others = [other for other in DTYPES if other is not dtype]
    assert all(dtype != other and dtype != other.numpy for other in others)


def test_equal_dtypes_of_two_libraries_are_two_keys_as_in_numpy() -> None:
    assert {float32: 1}.get(np.dtype("float32")) is None  # type: ignore[call-overload]
    assert {np.dtype("float32"): 1}.get(np.float32) is None  # type: ignore[call-overload]
    assert {np.dtype(float32): 1}[np.dtype("float32")] == 1
    assert float32 != np.dtype("float32").newbyteorder()
    assert all(float32 != other for other in (float, 4, None))  # Python's float is no one dtype
