"""Tests of interop/array_api.py."""

from __future__ import annotations

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError


def test_the_namespace_is_the_package_and_tells_about_itself() -> None:
    x = fg.Tensor([1, 2])
    assert x.__array_namespace__(api_version="2023.12") is fg
    with pytest.raises(ArgumentError, match="array API version"):
        x.__array_namespace__(api_version="1999.01")
    info = fg.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.dtypes(kind=("bool", "complex floating")).keys() == {
        "bool", "complex64", "complex128",
    }  # fmt: skip
    assert set(info.default_dtypes()) == {
        "real floating", "complex floating", "integral", "indexing",
    }  # fmt: skip
    assert info.capabilities()["boolean indexing"]
    assert x.to_device(x.device).tolist() == [1, 2]
    with pytest.raises(ArgumentError, match="no device 'moon'"):
        x.to_device("moon")


def test_members_are_told_from_strangers() -> None:
    x = fg.Tensor([1.0, np.nan, 3.0])
    assert fg.isin(x, fg.Tensor([3.0, np.nan])).tolist() == [False, False, True]
    assert fg.isin(x, 1, invert=True).tolist() == [False, True, True]
    assert fg.isin(fg.Tensor([[1], [2]]), fg.zeros((0,), dtype="int32")).tolist() == [[False]] * 2
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 300, (40, 5)), generator.integers(0, 300, 100)
    np.testing.assert_array_equal(fg.isin(fg.Tensor(a), fg.Tensor(b)).numpy(), np.isin(a, b))
