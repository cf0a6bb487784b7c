"""Products by a vendor's library: a fake one computes them from what it was told."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg

RNG = np.random.default_rng(0)


@pytest.fixture
def blas(gpu: Any, library: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    """The fake library, of which nothing is known yet, used wherever it can be."""
    library.cublas_fake_version.argtypes = library.cublas_fake_workspace.argtypes = (
        ctypes.c_size_t,
    )
    _reset(gpu, library)
    with fg.config(cublas="on"):
        yield library
    _reset(gpu, library)


def _reset(gpu: Any, library: ctypes.CDLL) -> None:
    library.fake_fail(b"", 0, 0)
    library.cublas_fake_version(130200)
    library.cublas_fake_workspace(0)
    vars(gpu).pop("blas", None)
    fg.clear_caches()


def calls(library: ctypes.CDLL) -> int:
    """How many products the library was asked for."""
    return int(library.cublas_fake_count(b"cublasLtMatmul"))


def random(*shape: int, dtype: str = "float32") -> fg.Tensor:
    """Small whole numbers, whose sums of products are exact in every dtype's sum."""
    return fg.tensor(RNG.integers(-3, 4, shape).astype("float32")).astype(dtype).realize()


def check(library: ctypes.CDLL, function: Callable[..., Any], *given: Any, used: int = 1) -> None:
    """A function gives what the reference does, with so many products by the library."""
    before = calls(library)
    found = [np.asarray(x.astype("float64").numpy()) for x in _tuple(function(*given))]
    assert calls(library) - before == used
    with fg.config(device="reference"):
        wanted = _tuple(function(*[x.to("reference") for x in given]))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b.astype("float64").numpy())


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_plain_products_of_every_dtype(blas: ctypes.CDLL, dtype: str) -> None:
    check(blas, lambda a, b: a @ b, random(33, 17, dtype=dtype), random(17, 24, dtype=dtype))
