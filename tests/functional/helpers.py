"""What the tests of functions share: hostile numbers, bit comparison, finite differences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.dtype import dtype_of
from fulgurite.errors import FulguriteError

Array = np.ndarray[Any, Any]

HOSTILE = np.array(
    [
        0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 1e-40, -1e-40, 1e-3, 100.0, -100.0,
        1e30, -1e30, 3e38, -3e38, np.inf, -np.inf, np.nan,
    ]
)  # fmt: skip


def hostile(dtype: str) -> Array:
    """Numbers that break careless code, in a dtype; of whole numbers small ones."""
    if dtype_of(dtype).is_float:
        with np.errstate(all="ignore"):
            return HOSTILE.astype(dtype_of(dtype).numpy)
    return np.arange(len(HOSTILE)).astype(dtype)


WHOLE = np.array([0, 1, -1, 2, -2, 7, -7, 127, -128])


def tensor(array: Any, dtype: Any = None) -> fg.Tensor:
    """A tensor of a NumPy array."""
    return fg.Tensor(np.asarray(array), dtype)


def close_bits(got: fg.Tensor, want: Array, ulps: int = 4) -> None:
    """The bits of NumPy on the reference device; native code has functions of its own.

    Theirs and ours may each be off by some units in the last place; special values are equal.
    """
    found, want = got.numpy(), np.asarray(want)
    if got.device == "reference" or want.dtype.kind != "f":
        same_bits(got, want)
        return
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    plain = np.isfinite(want) & (want != 0)
    same_bits(fg.Tensor(np.where(plain, 0, found)), np.where(plain, want.dtype.type(0), want))
    assert np.isfinite(found[plain]).all()
    np.testing.assert_array_max_ulp(found[plain], want[plain], ulps)


def same_bits(got: fg.Tensor, want: Array) -> None:
    """Equal shapes, dtypes and bits; any NaN equals any other."""
    found, want = got.numpy(), np.asarray(want)
    assert found.shape == want.shape
    assert got.shape == want.shape
    assert found.dtype == want.dtype
    assert got.dtype.numpy == want.dtype
    if dtype_of(want.dtype).is_small_float:  # exact, and NumPy compares these without warnings
        found, want = found.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(found, want)
    if want.dtype.kind == "f":
        number = want == want
        np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(want[number]))


def near(got: fg.Tensor, want: Any, ulps: float = 4.0) -> None:
    """Equal shapes and dtypes, and values within some units in the last place."""
    found, want = got.numpy(), np.asarray(want)
    assert found.shape == want.shape
    assert found.dtype == want.dtype, f"{found.dtype} is not {want.dtype}"
    step = float(np.finfo(want.dtype).eps)
    tiny = float(np.finfo(want.dtype).tiny)
    np.testing.assert_allclose(found, want, rtol=ulps * step, atol=tiny)


def check_gradients(function: Callable[..., fg.Tensor], *arrays: Any, h: float = 1e-6) -> None:
    """The gradients of a function by every argument against central differences in float64."""
    values = [np.array(a, np.float64) for a in arrays]
    weights = np.random.default_rng(7).uniform(0.5, 1.5, function(*map(tensor, values)).shape)

    def loss(*args: fg.Tensor) -> fg.Tensor:
        return (function(*args) * tensor(weights)).sum()

    found = fg.grad(loss, argnums=tuple(range(len(values))))(*map(tensor, values))
    for place, value in enumerate(values):
        want = np.zeros_like(value)
        for at in np.ndindex(*value.shape):
            sides = []
            for step in (h, -h):
                moved = value.copy()
                moved[at] += step
                args = [moved if i == place else v for i, v in enumerate(values)]
                sides.append(float(loss(*map(tensor, args))))
            want[at] = (sides[0] - sides[1]) / (2 * h)
        assert found[place].shape == value.shape
        np.testing.assert_allclose(found[place].numpy(), want, rtol=2e-5, atol=2e-6)


@contextmanager
def raises(kind: type[FulguriteError], text: str = "") -> Iterator[None]:
    """An error of this kind, raised at a line inside the block, which it names."""
    frame = sys._getframe(2)
    with pytest.raises(kind) as caught:
        yield
    file, _, line = caught.value.where.rpartition(":")
    assert file == frame.f_code.co_filename
    assert frame.f_lineno - 1 <= int(line) <= frame.f_lineno + 1
    assert text in str(caught.value)
    assert caught.value.hint
