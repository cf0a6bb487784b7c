"""The array object of the standard: operators, conversions, indices, devices, copies, questions.

The first test prints how many functions and methods of the standard tests call (`pytest -rP`).
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from tests.array_api.table import TABLE
from tests.array_api.test_standard import NOT_UNIQUE, OPERATORS, QUESTIONS, strict

UNARY = ["__abs__", "__neg__", "__pos__", "__invert__"]
BINARY = [n for n in OPERATORS if n[2:4] not in ("lt", "le", "gt", "ge", "eq", "ne")]
REFLECTED = [f"__r{name[2:]}" for name in BINARY]
IN_PLACE = [f"__i{name[2:]}" for name in BINARY]
CONVERSIONS = ["__bool__", "__int__", "__float__", "__complex__", "__index__"]
REST = ["__array_namespace__", "__dlpack__", "__dlpack_device__", "__getitem__", "__setitem__",
        "to_device", "T", "mT", "device", "dtype", "ndim", "shape", "size"]  # fmt: skip
METHODS = {*OPERATORS, *UNARY, *REFLECTED, *IN_PLACE, *CONVERSIONS, *REST}
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def operands(name: str) -> tuple[Any, Any]:
    kind = (
        "int32" if any(w in name for w in ("and", "or_", "xor", "shift", "invert")) else "float32"
    )
    return np.array([[1, 2], [3, 4]], kind), np.array([[2, 1], [1, 3]], kind)


def test_the_whole_surface_is_counted() -> None:
    functions = {*TABLE, *NOT_UNIQUE, *QUESTIONS}
    missing = [name for name in METHODS if not hasattr(fg.Tensor, name)]
    print(f"{len(functions)} functions and {len(METHODS)} methods of the array API are called")
    assert not missing and len(functions) >= 170 and len(functions) + len(METHODS) >= 230


@pytest.mark.parametrize("name", [*UNARY, *REFLECTED, *IN_PLACE])
def test_further_operators_agree_with_the_strict_implementation(name: str) -> None:
    a, b = operands(name)
    mine, theirs = fg.asarray(a, copy=True), strict.asarray(a, copy=True)
    rest = () if name in UNARY else (b,)
    expected = getattr(theirs, name)(*map(strict.asarray, rest))
    got = getattr(mine, name)(*map(fg.asarray, rest))
    np.testing.assert_allclose(got.numpy(), np.asarray(expected), rtol=1e-6)
    assert str(got.dtype) == str(np.asarray(expected).dtype)
    if name in IN_PLACE:
        np.testing.assert_allclose(mine.numpy(), np.asarray(expected), rtol=1e-6)


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "ipow", "itruediv"])
def test_in_place_operators_change_neither_dtype_nor_shape(name: str) -> None:
    act = getattr(operator, name)
    whole, real = fg.asarray([1, 2], dtype=fg.int32), fg.asarray([1.0, 2.0])
    for other in (fg.asarray([1.0, 2.0]), 1.5):
        with pytest.raises(TypeError):
            act(whole, other)
    with pytest.raises(ValueError, match="shape"):
        act(real, fg.ones((2, 2)))
    assert act(real, 2).dtype is fg.float32
    assert whole.tolist() == [1, 2]


NEW = None
INDICES = [
    (0,), (0, 1), (0, 1, 2), (...,), (..., 1), (0, ...), (slice(None), 1), (NEW,), (NEW, 0),
    (0, NEW, 1), (..., NEW), (slice(0, 0),), (slice(None, None, -1), 0, 0), (slice(5, 1, -2),),
    (slice(-1, None),), (slice(None, -1), NEW, ...), (0, slice(1, 3), slice(None, None, 2)),
    (-1, -1, -1), (slice(None), slice(None), slice(3, None, -1)), (NEW, ..., NEW), (),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_reads_and_writes_what_numpys_does(index: Any) -> None:
    want = CUBE[index]
    x = fg.asarray(CUBE, copy=True)
    np.testing.assert_array_equal(x[index].numpy(), want)
    assert x[index].shape == np.shape(want)
    changed = CUBE.copy()
    changed[index] = -1
    x[index] = -1
    np.testing.assert_array_equal(x.numpy(), changed)


def test_masks_and_arrays_of_whole_numbers_index() -> None:
    x, mask = fg.asarray(CUBE), CUBE > 10
    np.testing.assert_array_equal(x[fg.asarray(mask)].numpy(), CUBE[mask])
    assert x[fg.asarray(True)].shape == (1, 2, 3, 4) and x[fg.asarray(False)].shape == (0, 2, 3, 4)
    assert x[fg.asarray([True, False])].shape == (1, 3, 4)
    index = fg.asarray([1, 0, 1]), fg.asarray([2, 1, 0])
    np.testing.assert_array_equal(x[(*index, 0)].numpy(), CUBE[[1, 0, 1], [2, 1, 0], 0])
    for wrong in (2, (0, 0, 0, 0), fg.asarray([True, False, True])):
        with pytest.raises(IndexError):
            x[wrong].numpy()


def test_numbers_come_out_of_single_elements_only() -> None:
    assert bool(fg.asarray(True)) and int(fg.asarray(2.5)) == 2 and float(fg.asarray(2.5)) == 2.5
    assert complex(fg.asarray(1 + 2j)) == 1 + 2j and operator.index(fg.asarray(3)) == 3
    for ask, value in ((operator.index, 3.0), (float, 1j)):
        with pytest.raises(TypeError):
            ask(fg.asarray(value))
    with pytest.raises((TypeError, ValueError)):
        bool(fg.asarray([True, False]))


def test_numbers_that_do_not_fit_the_other_operand_are_errors() -> None:
    for value, dtype, number in ((1, "int8", 300), (1, "uint8", -1), (1, "int64", 2**70)):
        with pytest.raises((OverflowError, ValueError)):
            fg.asarray([value], dtype=dtype) + number
    with pytest.raises(TypeError):
        ~fg.asarray([1.0])
    with pytest.raises(TypeError):
        fg.asarray([1.0]) & fg.asarray([1.0])
    with pytest.raises(TypeError, match=r"fg\.real"):
        fg.astype(fg.asarray([1j]), fg.float32)


def test_everything_that_creates_takes_a_device() -> None:
    x = fg.asarray([1.0, 2.0, 3.0])
    made = [
        fg.zeros((2,), device=x.device), fg.ones(2, dtype=fg.int8, device=x.device),
        fg.full((2,), 3, device=x.device), fg.arange(3, device=x.device),
        fg.linspace(0, 1, 5, device=x.device, endpoint=False), fg.eye(3, 4, k=1, device=x.device),
        fg.empty((0, 3), device=x.device), fg.asarray([1], device=x.device, copy=True),
        fg.zeros_like(x, device=x.device), fg.full_like(x, 2, device=x.device),
        fg.from_dlpack(np.arange(3.0), device=x.device, copy=True), x.to_device(x.device),
        fg.fft.fftfreq(4, d=0.5, device=x.device), fg.astype(x, fg.float64, device=x.device),
    ]  # fmt: skip
    assert {t.device for t in made} == {x.device}


def test_what_must_not_be_copied_is_shared_or_refused() -> None:
    a = np.arange(4.0)
    shared = fg.asarray(a, copy=False)
    a[0] = 9
    assert shared.tolist()[0] == 9
    for data, dtype in (([1, 2], None), (a, fg.float32)):
        with pytest.raises(ValueError, match="copy"):
            fg.asarray(data, dtype=dtype, copy=False)
    x = fg.asarray([1.0])
    assert fg.asarray(x) is x or fg.asarray(x).tolist() == [1.0]
    assert fg.astype(x, x.dtype, copy=False) is x


def test_the_namespace_answers_for_itself() -> None:
    x = fg.asarray([1.0])
    for version in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
        assert x.__array_namespace__(api_version=version) is not None
    with pytest.raises(ValueError, match=r"1999\.1"):
        x.__array_namespace__(api_version="1999.1")
    info, theirs = fg.__array_namespace_info__(), strict.__array_namespace_info__()
    capable = info.capabilities()
    assert capable["boolean indexing"] and capable["data-dependent shapes"]
    assert isinstance(info.devices(), tuple) and info.default_device() in info.devices()
    assert set(info.default_dtypes()) == set(theirs.default_dtypes())
    for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating",
                 "complex floating", "numeric", ("bool", "integral")):  # fmt: skip
        assert set(theirs.dtypes(kind=kind)) <= set(info.dtypes(kind=kind))
    assert [int(n) for n in x.__dlpack_device__()] == [1, 0]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_empty_and_0d_arrays_fold_as_the_standard_says(shape: tuple[int, ...]) -> None:
    x, y = fg.ones(shape), strict.ones(shape, dtype=strict.float32)
    for name in ("sum", "prod", "all", "any"):
        assert getattr(fg, name)(x).item() == getattr(strict, name)(y)
    for name in ("max", "min", "argmax", "argmin"):
        if 0 in shape:
            with pytest.raises(ValueError, match=r".+"):
                getattr(fg, name)(x)
        else:
            assert getattr(fg, name)(x).item() == getattr(strict, name)(y)
