"""Tests of fulgurite/einops.py, and of einops through the array API namespace."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import Any

import numpy as np
import pytest

import fulgurite as fg

einops: Any = pytest.importorskip("einops")
through_standard: Any = pytest.importorskip("einops.array_api")
backend = pytest.importorskip("fulgurite.einops")

CASES = [
    ("rearrange", ("a b c -> (a c) b",), {}),
    ("rearrange", ("a b (c d) -> d a b c",), {"d": 2}),
    ("reduce", ("a b c -> a c", "mean"), {}),
    ("reduce", ("a (b d) c -> b", "max"), {"d": 3}),
    ("repeat", ("a b c -> a b c e",), {"e": 2}),
    ("repeat", ("a b c -> (e a) b c",), {"e": 3}),
]


@pytest.mark.parametrize(("name", "arguments", "keywords"), CASES)
@pytest.mark.parametrize("module", [einops, through_standard])
def test_patterns_agree_with_numpy(module: Any, name: str, arguments: Any, keywords: Any) -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    got = getattr(module, name)(fg.Tensor(a), *arguments, **keywords)
    assert isinstance(got, fg.Tensor)
    expected = getattr(einops, name)(a, *arguments, **keywords)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_packing_and_sums_of_products_agree_with_numpy() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((2, 4, 5), np.float32)
    packed, shapes = einops.pack([fg.Tensor(a), fg.Tensor(b)], "a *")
    assert packed.shape == (2, 23)
    parts = einops.unpack(packed, shapes, "a *")
    assert [p.shape for p in parts] == [(2, 3), (2, 4, 5)]
    got = einops.einsum(fg.Tensor(b), fg.Tensor(b), "a b c, a d c -> a b d")
    np.testing.assert_allclose(got.numpy(), np.einsum("abc,adc->abd", b, b))
    assert "fulgurite" in repr(backend.FulguriteBackend())


OWN = ["test_ops", "test_packing", "test_einsum", "test_examples"]  # einops' own, by module


@pytest.mark.filterwarnings("ignore:overflow encountered")  # of NumPy's products of random numbers
@pytest.mark.parametrize("name", OWN)
def test_einops_own_tests_pass_on_our_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINOPS_TEST_BACKENDS", "numpy")
    tests = pytest.importorskip("einops.tests")
    ours = [importlib.import_module("einops._backends").NumpyBackend(), backend.FulguriteBackend()]
    chosen = lambda symbolic=False, layers=False: [] if symbolic or layers else ours  # noqa: E731
    monkeypatch.setattr(tests, "collect_test_backends", chosen)
    module = importlib.import_module(f"einops.tests.{name}")
    monkeypatch.setattr(module, "collect_test_backends", chosen, raising=False)
    monkeypatch.setattr(module, "imp_op_backends", ours, raising=False)
    ran = 0
    for test, function in vars(module).items():
        if not test.startswith("test_") or not inspect.isfunction(function):
            continue
        if inspect.signature(function).parameters:
            continue
        with contextlib.suppress(pytest.skip.Exception):
            function()
            ran += 1
    assert ran
