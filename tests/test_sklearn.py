"""scikit-learn's array API dispatch on tensors: skipped where it is not installed (`peers`)."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import fulgurite as fg

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # read when scipy is imported
sklearn: Any = pytest.importorskip("sklearn")


def estimators() -> list[Any]:
    scaling = import_module("sklearn.preprocessing")
    models, parts = import_module("sklearn.linear_model"), import_module("sklearn.decomposition")
    return [
        scaling.StandardScaler(), parts.PCA(2, svd_solver="full"), models.Ridge(solver="svd"),
        models.LogisticRegression(), models.LogisticRegression(C=2.0),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(5))
def test_estimators_fit_tensors_as_they_fit_arrays(number: int) -> None:
    estimator = estimators()[number]
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    y = (x @ np.arange(4)).astype(np.float32)
    y = (y > 0).astype(np.int32) if number == 3 else y
    y = np.digitize(y, [-2, 2]).astype(np.int32) if number == 4 else y  # three classes
    plain = sklearn.base.clone(estimator).fit(x, y)
    with sklearn.config_context(array_api_dispatch=True):
        fitted = estimator.fit(fg.asarray(x), fg.asarray(y))
        use = "transform" if hasattr(fitted, "transform") else "predict"
        got = getattr(fitted, use)(fg.asarray(x))
        assert isinstance(got, fg.Tensor)
    expected = getattr(plain, use)(x)
    np.testing.assert_allclose(np.abs(got.numpy()), np.abs(expected), rtol=1e-4, atol=1e-5)


def test_estimators_take_tensors_as_arrays_without_dispatch() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    y = (x @ np.arange(4)).astype(np.float32)
    model = import_module("sklearn.linear_model").RidgeCV()
    plain = sklearn.base.clone(model).fit(x, y)
    fitted = model.fit(fg.asarray(x), fg.asarray(y))
    assert fitted.alpha_ == plain.alpha_
    np.testing.assert_allclose(fitted.predict(fg.asarray(x)), plain.predict(x), rtol=1e-4)
