"""Tests of fulgurite/functional/math/products.py: NumPy is the oracle."""

import builtins
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import ArgumentError, AxisError, DTypeError, ShapeError
from tests.functional.helpers import check_gradients, raises, same_bits, tensor

RANKS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)), ((1, 2, 3), (5, 3, 4)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((1, 1), (1, 1)),
]  # fmt: skip


def numbers(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(("a", "b"), RANKS)
def test_matmul_takes_all_ranks_of_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = numbers(a), numbers(b, 1)
    got = tensor(x) @ tensor(y)
    np.testing.assert_allclose(got.numpy(), x @ y, rtol=1e-12, atol=1e-13)
    assert got.shape == (x @ y).shape
    assert (x @ tensor(y)).shape == (x @ y).shape


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64"])
def test_matmul_of_whole_numbers_wraps_and_of_truths_is_or(dtype: str) -> None:
    random = np.random.default_rng(0)
    x, y = (
        random.integers(0, 200, (4, 9)).astype(dtype),
        random.integers(0, 200, (9, 3)).astype(dtype),
    )
    x, y = (x > 0, y > 180) if dtype == "bool" else (x, y)
    same_bits(fg.matmul(tensor(x), tensor(y)), x @ y)
    same_bits(fg.einsum("ij,jk->ki", tensor(x), tensor(y)), (x @ y).T)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_floats_are_rounded_once_at_the_end(dtype: Any) -> None:
    x, y = numbers((4, 300)).astype(dtype), numbers((300, 5), 1).astype(dtype)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    got = fg.matmul(tensor(x), tensor(y)).numpy()
    assert got.dtype == dtype
    off = np.abs(got.astype(np.float64) - exact)
    step = np.abs(exact) * (2.0**-10 if dtype is np.float16 else 2.0**-7)
    assert (off <= step * 0.51 + 1e-4).all()
    got = fg.einsum("ij,jk->ik", tensor(x), tensor(y)).numpy()
    assert (np.abs(got.astype(np.float64) - exact) <= step * 0.51 + 1e-4).all()


def test_matmul_promotes() -> None:
    assert (fg.ones((2, 2), "float16") @ fg.ones((2, 2), "float32")).dtype is fg.float32
    assert (fg.ones((2, 2), "int8") @ fg.ones((2, 2), "float16")).dtype is fg.float16


def test_other_products_agree_with_numpy() -> None:
    a, b = numbers((2, 3, 4)), numbers((3, 4, 5), 1)
    np.testing.assert_allclose(fg.tensordot(tensor(a), tensor(b)).numpy(), np.tensordot(a, b))
    for axes in (0, ((1, 2), (0, 1)), ((2,), (1,)), (2, 1), ((-1, 1), (-2, 0))):
        got = fg.tensordot(tensor(a), tensor(b), axes=axes)
        np.testing.assert_allclose(got.numpy(), np.tensordot(a, b, axes), rtol=1e-12, atol=1e-13)
    for x, y in (
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((2, 3), (4, 3, 5)),
        ((), (3,)),
        ((2, 4, 3), (3, 2)),
    ):
        u, v = numbers(x), numbers(y, 1)
        np.testing.assert_allclose(fg.dot(tensor(u), tensor(v)).numpy(), np.dot(u, v), rtol=1e-12)
    np.testing.assert_allclose(fg.outer(tensor(a), tensor(b)).numpy(), np.outer(a, b))
    np.testing.assert_allclose(
        fg.vecdot(tensor(a), tensor(a[0])).numpy(), (a * a[0]).sum(-1), rtol=1e-12
    )
    np.testing.assert_allclose(
        fg.vecdot(tensor(a), tensor(a), axis=1).numpy(), (a * a).sum(1), rtol=1e-12
    )


SIZES = dict(zip("abcde", (2, 3, 4, 1, 5), strict=True))


@given(
    st.lists(st.text("abcde", min_size=0, max_size=3), min_size=1, max_size=4),
    st.booleans(), st.data(),
)  # fmt: skip
def test_any_einsum_agrees_with_numpy(rows: list[str], implicit: bool, data: st.DataObject) -> None:
    known = sorted(set("".join(rows)))
    out = "".join(data.draw(st.permutations(known))[: data.draw(st.integers(0, len(known)))])
    text = ",".join(rows) if implicit else f"{','.join(rows)}->{out}"
    arrays = [numbers(tuple(SIZES[c] for c in row), i) for i, row in enumerate(rows)]
    got = fg.einsum(text, *map(tensor, arrays))
    want = np.einsum(text, *arrays)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("...ij,...jk->...ik", ((5, 2, 3), (5, 3, 4))),
        ("...ij,...jk", ((7, 1, 2, 3), (5, 3, 4))),
        ("i...,i...->...", ((3, 2), (3, 2))),
        ("...ii->...i", ((4, 3, 3),)),
        ("ii...", ((3, 3, 2),)),
        ("iii->i", ((3, 3, 3),)),
        ("iji->j", ((3, 2, 3),)),
        (" i j , j k -> i k ", ((2, 3), (3, 4))),
        ("...,...", ((2, 3), (3,))),
        ("ii->i", ((0, 0),)),
        ("ij,jk,kl,lm->im", ((2, 3), (3, 4), (4, 5), (5, 2))),
        ("ij,ij->i", ((2, 1), (2, 3))),
        ("i,i,i", ((1,), (4,), (4,))),
    ],
)
def test_einsum_knows_ellipses_diagonals_and_implicit_results(text: str, shapes: Any) -> None:
    arrays = [numbers(shape, i) for i, shape in enumerate(shapes)]
    got = fg.einsum(text, *map(tensor, arrays))
    np.testing.assert_allclose(got.numpy(), np.einsum(text, *arrays), rtol=1e-10, atol=1e-12)


def test_einsum_takes_labels_as_lists() -> None:
    a, b = numbers((2, 3)), numbers((3, 4), 1)
    got = fg.einsum(tensor(a), [0, 1], tensor(b), [1, 2], [2, 0])
    np.testing.assert_allclose(got.numpy(), (a @ b).T)
    got = fg.einsum(tensor(a), [Ellipsis, 1], tensor(b), [1, 2])
    np.testing.assert_allclose(got.numpy(), np.einsum(a, [Ellipsis, 1], b, [1, 2]))


def test_einsum_works_without_opt_einsum(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **keywords: Any) -> Any:
        if name == "opt_einsum":
            raise ImportError(name)
        return real(name, *args, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    arrays = [numbers(shape, i) for i, shape in enumerate([(2, 3), (3, 4), (4, 5), (5, 2)])]
    got = fg.einsum("ij,jk,kl,lm->mi", *map(tensor, arrays))
    np.testing.assert_allclose(got.numpy(), np.einsum("ij,jk,kl,lm->mi", *arrays), rtol=1e-10)


@pytest.mark.parametrize(("a", "b"), RANKS[:10])
def test_the_gradient_of_matmul_sums_over_broadcast_stacks(a: Any, b: Any) -> None:
    check_gradients(fg.matmul, numbers(a), numbers(b, 1))


def test_gradients_of_other_products_are_slopes() -> None:
    check_gradients(lambda x: x @ x, numbers((3, 3)))
    check_gradients(fg.outer, numbers((2,)), numbers((3,), 1))
    check_gradients(fg.vecdot, numbers((2, 3)), numbers((3,), 1))
    check_gradients(fg.tensordot, numbers((2, 3, 2)), numbers((3, 2, 2), 1))
    check_gradients(
        lambda x, y: fg.einsum("ij,kj,ii->ik", x, y, x), numbers((3, 3)), numbers((2, 3))
    )
    check_gradients(lambda x: fg.einsum("...ii", x), numbers((2, 3, 3)))


def test_mistakes_name_the_users_line() -> None:
    x = fg.ones((2, 3))
    with raises(ShapeError, "inner sizes 3 and 2"):
        x @ x
    with raises(ShapeError, "(2, 2, 3) @ (3, 3, 4): the stacks (2,) and (3,)"):
        fg.matmul(fg.ones((2, 2, 3)), fg.ones((3, 3, 4)))
    with raises(ShapeError, "label '...' at -1 has sizes 2 and 3"):
        fg.einsum("...ij,...jk", fg.ones((2, 2, 3)), fg.ones((3, 3, 4)))
    with raises(ShapeError):
        fg.matmul(x, 2)
    with raises(ShapeError):
        fg.vecdot(x, fg.ones(4))
    with raises(AxisError):
        fg.vecdot(x, x, axis=2)
    with raises(ShapeError):
        fg.tensordot(x, x, axes=1)
    with raises(ArgumentError):
        fg.tensordot(x, x, axes=3)
    with raises(ArgumentError):
        fg.tensordot(x, x, axes=((0, 1), (0,)))
    with raises(ArgumentError):
        fg.einsum("ij,jk", x)
    with raises(ArgumentError):
        fg.einsum()
    with raises(ShapeError):
        fg.einsum("ijk", x)
    with raises(ShapeError, "sizes 3 and 2"):
        fg.einsum("ij,jk", x, x)
    with raises(ArgumentError):
        fg.einsum("ij->ik", x)
    with raises(ArgumentError):
        fg.einsum("ij->ii", x)
    with raises(ArgumentError):
        fg.einsum("i1", x)
    with raises(ShapeError):
        fg.einsum("ii", x)
    with raises(DTypeError):
        fg.matmul(x.astype("float8_e5m2"), x.T.astype("float8_e4m3fn")).astype("nothing")
