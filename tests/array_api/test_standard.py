"""Every function of the array API standard beside the strict implementation of it.

Values agree to rounding, special values exactly, shapes exactly; dtypes too, except that results
which have the default integer are int32 here. Factorisations that are not unique are checked by
what they multiply to in tests/test_linalg.py.
"""

from __future__ import annotations

import inspect
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from tests.array_api.table import TABLE, Array, Call
from tests.properties import kernels

strict: Any = pytest.importorskip("array_api_strict")

NOT_UNIQUE = {"linalg.eigh", "linalg.eig", "linalg.eigvals", "linalg.qr", "linalg.svd"}
QUESTIONS = {"astype", "broadcast_shapes", "can_cast", "finfo", "iinfo", "isdtype", "result_type"}
UNKNOWN_VALUES = {"empty", "empty_like"}
DEFAULT_INTEGER = {  # whose dtype is that of indices, or of sums of small integers
    "argmax", "argmin", "argsort", "count_nonzero", "cumulative_prod", "cumulative_sum",
    "linalg.matrix_rank", "linalg.trace", "nonzero", "prod", "searchsorted", "sum", "unique_all",
    "unique_counts", "unique_inverse",
}  # fmt: skip


def standard() -> set[str]:
    """The names of all functions of the standard."""
    found = set()
    for module, prefix in ((strict, ""), (strict.linalg, "linalg."), (strict.fft, "fft.")):
        listed = module.__all__
        found |= {prefix + n for n in listed if inspect.isfunction(getattr(module, n))}
    return {n for n in found if "array_api_strict" not in n and not n.startswith("__")}


def find(module: Any, name: str) -> Any:
    return reduce(getattr, name.split("."), module)


def called(module: Any, name: str, call: Call, wrap: Any) -> Any:
    arrays = [[wrap(a) for a in x] if isinstance(x, list) else wrap(x) for x in call.arrays]
    keywords = dict(call.keywords)
    if "dtype" in keywords:
        keywords["dtype"] = getattr(module, keywords["dtype"])
    return find(module, name)(*arrays, *call.plain, **keywords)


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def tolerance(dtype: Any, name: str) -> tuple[float, float]:
    exact = 1e-5 if dtype in (np.float32, np.complex64) else 1e-12
    loose = 100 if name.startswith("linalg.") else 1
    return exact * loose, exact * loose


def agree(name: str, got: fg.Tensor, expected: Array) -> None:
    found = got.numpy()
    assert found.shape == expected.shape, f"{found.shape} is not {expected.shape}"
    if name in DEFAULT_INTEGER and expected.dtype.kind in "iu":
        assert found.dtype.kind == expected.dtype.kind
        found = found.astype(expected.dtype)
        if name in ("sum", "prod", "cumulative_prod", "cumulative_sum", "linalg.trace"):
            found, expected = found.astype(np.int32), expected.astype(np.int32)  # they wrap
    elif not name.endswith("freq"):
        assert found.dtype == expected.dtype, f"{found.dtype} is not {expected.dtype}"
    if name in UNKNOWN_VALUES:
        return
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected)
        return
    rtol, atol = tolerance(expected.dtype, name)
    if name.endswith("freq"):
        rtol = atol = 1e-6
    scale = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol * min(scale, 1e6))
    if expected.dtype.kind == "f" and name not in ("fft.hfft", "fft.irfft", "fft.irfftn"):
        zero = (expected == 0) & (found == 0)
        if name in SIGNED_ZEROS:
            np.testing.assert_array_equal(np.signbit(found)[zero], np.signbit(expected)[zero])


SIGNED_ZEROS = {
    "abs", "add", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "divide", "expm1",
    "floor", "log1p", "multiply", "negative", "reciprocal", "sin", "sinh", "sqrt", "subtract",
    "tan", "tanh", "trunc",
}  # fmt: skip


def test_every_function_of_the_standard_is_here_and_called() -> None:
    missing = {n for n in standard() if not callable(find(fg, n))}
    assert not missing
    uncalled = standard() - set(TABLE) - NOT_UNIQUE - QUESTIONS
    assert not uncalled, f"say in tests/array_api/table.py how to call {uncalled}"
    assert len({*TABLE, *NOT_UNIQUE, *QUESTIONS, *OPERATORS}) >= 180


@pytest.mark.parametrize("name", sorted(TABLE))
@kernels
@given(data=st.data())
def test_a_function_agrees_with_the_strict_implementation(name: str, data: Any) -> None:
    call: Call = TABLE[name](data.draw)
    with np.errstate(all="ignore"):
        expected = flat(called(strict, name, call, strict.asarray))
    got = flat(called(fg, name, call, fg.asarray))
    assert len(got) == len(expected)
    for mine, other in zip(got, expected, strict=True):
        agree(name, mine, np.asarray(other))


@pytest.mark.parametrize("name", sorted(standard() & set(TABLE)))
def test_a_function_takes_the_standards_keywords(name: str) -> None:
    theirs = inspect.signature(find(strict, name)).parameters.values()
    mine = inspect.signature(find(fg, name)).parameters
    named = {p.name for p in theirs if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    assert named <= set(mine) or any(p.kind is p.VAR_KEYWORD for p in mine.values())


OPERATORS = [
    "__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__and__",
    "__or__", "__xor__", "__lshift__", "__rshift__", "__lt__", "__le__", "__gt__", "__ge__",
    "__eq__", "__ne__", "__matmul__",
]  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_agree_with_the_strict_implementation(name: str) -> None:
    kind = "int32" if name[2:5] in ("and", "or_", "xor", "lsh", "rsh") else "float32"
    a = np.array([[1, 2], [3, 4]], kind)
    b = np.array([[2, 1], [1, 3]], kind)
    expected = getattr(strict.asarray(a), name)(strict.asarray(b))
    np.testing.assert_allclose(
        getattr(fg.asarray(a), name)(fg.asarray(b)).numpy(), np.asarray(expected), rtol=1e-6
    )
    if name != "__matmul__":
        scalar = getattr(strict.asarray(a), name)(2)
        got = getattr(fg.asarray(a), name)(2)
        assert str(got.dtype) == str(np.asarray(scalar).dtype)
        np.testing.assert_allclose(got.numpy(), np.asarray(scalar), rtol=1e-6)


def test_questions_about_dtypes_have_the_standards_answers() -> None:
    names = [d for d in fg.__array_namespace_info__().dtypes() if hasattr(strict, d)]
    for a in names:
        for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating",
                     "complex floating", "numeric"):  # fmt: skip
            assert fg.isdtype(getattr(fg, a), kind) == strict.isdtype(getattr(strict, a), kind)
        for b in names:
            try:
                expected = str(np.dtype(strict.result_type(*[
                    getattr(strict, n) for n in (a, b)])._np_dtype))  # fmt: skip
            except TypeError:  # the standard says nothing of them together
                continue
            assert str(fg.result_type(getattr(fg, a), getattr(fg, b))) == expected
            theirs = strict.can_cast(getattr(strict, a), getattr(strict, b))
            assert fg.can_cast(getattr(fg, a), getattr(fg, b)) == theirs
    assert fg.finfo("float64").eps == strict.finfo(strict.float64).eps
    assert fg.iinfo("int16").min == strict.iinfo(strict.int16).min
