"""Trees, support vectors and encoders of ai.onnx.ml beside what they mean, written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fulgurite.onnx import ModelError, load
from tests.onnx.models import field, graph, model, node, port

ML = "ai.onnx.ml"
RNG = np.random.default_rng(7)
X = RNG.standard_normal((9, 3)).astype(np.float32)

# two trees: x0 <= 0 ? (x1 <= 0.5 ? leaf 2 : leaf 3) : leaf 4; and x2 <= -0.2 ? leaf 1 : leaf 2
NODES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
    "nodes_values": [0.0, 0.5, 0.0, 0.0, 0.0, -0.2, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ"] * 2 + ["LEAF"] * 3 + ["BRANCH_LEQ"] + ["LEAF"] * 2,
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
}  # fmt: skip
LEAVES: dict[str, Any] = {
    "treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2], "ids": [0, 1, 1, 0, 1],
    "weights": [1.5, -2.0, 0.75, 0.25, 3.0],
}  # fmt: skip


def run(op: str, given: Any, outputs: str = "y", **attributes: Any) -> list[Any]:
    made = node(op, "x", outputs, ML, **attributes)
    kind = np.asarray(given).dtype.name
    names = outputs.split()
    data = model(graph([made], [port("x", kind, ["n", *given.shape[1:]])],
                       [field(1, name) for name in names]), ai_onnx_ml=3)  # fmt: skip
    return list(load(data)(given).values())


def sums(x: Any, start: float = 0.0) -> Any:
    """Of each sample, what its two leaves give to two targets."""
    out = np.full((len(x), 2), start)
    for row, (a, b, c) in enumerate(x):
        leaf, weight = (4, 0.75) if a > 0 else (2, 1.5) if b <= 0.5 else (3, -2.0)
        out[row, 0 if leaf == 2 else 1] += weight
        out[row, 0 if c <= -0.2 else 1] += 0.25 if c <= -0.2 else 3.0
    return out


def test_leaves_of_all_trees_are_added_for_each_target() -> None:
    weights = {f"target_{k}": v for k, v in LEAVES.items()}
    (found,) = run("TreeEnsembleRegressor", X, n_targets=2, **NODES, **weights)
    np.testing.assert_allclose(found.numpy(), sums(X), rtol=1e-6)
    (mean,) = run("TreeEnsembleRegressor", X, n_targets=2, aggregate_function="AVERAGE",
                  base_values=[1.0, 1.0], **NODES, **weights)  # fmt: skip
    np.testing.assert_allclose(mean.numpy(), sums(X) / 2 + 1, rtol=1e-6)


def test_the_class_whose_leaves_weigh_most_is_named() -> None:
    weights = {f"class_{k}": v for k, v in LEAVES.items()}
    label, scores = run("TreeEnsembleClassifier", X, "label scores",
                        classlabels_int64s=[7, 9], **NODES, **weights)  # fmt: skip
    np.testing.assert_allclose(scores.numpy(), sums(X), rtol=1e-6)
    assert label.tolist() == np.array([7, 9])[sums(X).argmax(1)].tolist()
    words, _ = run("TreeEnsembleClassifier", X, "label scores",
                   classlabels_strings=["no", "yes"], **NODES, **weights)  # fmt: skip
    assert list(words) == np.array(["no", "yes"])[sums(X).argmax(1)].tolist()


def test_weights_of_one_class_of_two_leave_the_rest_to_the_other() -> None:
    weights = {f"class_{k}": v for k, v in {**LEAVES, "ids": [1] * 5}.items()}
    label, scores = run("TreeEnsembleClassifier", X, "label scores", post_transform="LOGISTIC",
                        classlabels_int64s=[0, 1], **NODES, **weights)  # fmt: skip
    one = sums(X).sum(1)
    np.testing.assert_allclose(scores.numpy()[:, 1], 1 / (1 + np.exp(-one)), rtol=1e-5)
    np.testing.assert_allclose(scores.numpy().sum(1), 1, rtol=1e-5)
    assert label.tolist() == (one > 0).astype(int).tolist()


def test_a_tree_that_leads_in_a_circle_is_an_error() -> None:
    broken: dict[str, Any] = {**NODES, "nodes_truenodeids": [1, 0, 0, 0, 0, 1, 0, 0]}
    weights: dict[str, Any] = {f"target_{k}": v for k, v in LEAVES.items()}
    with pytest.raises(ModelError, match=r"circle|outside|no node"):
        run("TreeEnsembleRegressor", X, n_targets=2, **broken, **weights)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors_vote_by_how_alike_they_are(kernel: str) -> None:
    vectors, weights = RNG.standard_normal((4, 3)), RNG.standard_normal(4)
    inner = X @ vectors.T
    alike = {
        "LINEAR": inner, "POLY": (inner * 0.5 + 1) ** 2, "SIGMOID": np.tanh(inner * 0.5 + 1),
        "RBF": np.exp(-0.5 * ((X[:, None] - vectors) ** 2).sum(-1)),
    }[kernel]  # fmt: skip
    common: dict[str, Any] = {"kernel_type": kernel, "kernel_params": [0.5, 1.0, 2.0],
              "support_vectors": vectors.ravel().tolist(), "rho": [0.3]}  # fmt: skip
    (found,) = run("SVMRegressor", X, n_supports=4, coefficients=weights.tolist(), **common)
    np.testing.assert_allclose(found.numpy()[:, 0], alike @ weights + 0.3, rtol=1e-4, atol=1e-4)
    common |= {"coefficients": weights.tolist(), "classlabels_ints": [4, 5]}
    label, scores = run("SVMClassifier", X, "label scores", vectors_per_class=[2, 2], **common)
    want = alike @ weights + 0.3
    np.testing.assert_allclose(scores.numpy()[:, 1], want, rtol=1e-4, atol=1e-4)
    assert label.tolist() == np.where(want > 0, 4, 5).tolist()


def test_categories_have_a_column_each_and_columns_are_put_side_by_side() -> None:
    given = np.array([[1], [3], [2], [8]], np.int64)
    (found,) = run("OneHotEncoder", given, cats_int64s=[1, 2, 3], zeros=1)
    assert found.tolist() == [[[1, 0, 0]], [[0, 0, 1]], [[0, 1, 0]], [[0, 0, 0]]]
    (same,) = run("FeatureVectorizer", X, inputdimensions=[3])
    np.testing.assert_array_equal(same.numpy(), X)


def test_rows_come_out_as_dicts_at_every_call() -> None:
    made = node("ZipMap", "s", "y", ML, classlabels_strings=["a", "b", "c"])
    doubled = node("Add", "x x", "s")
    data = model(graph([doubled, made], [port("x", shape=["n", 3])], [field(1, "y")]), ai_onnx_ml=3)
    loaded = load(data)
    for x in (X[:2], X[2:4]):
        found = loaded(x)["y"]
        assert [list(row) for row in found] == [["a", "b", "c"]] * 2
        np.testing.assert_allclose([list(row.values()) for row in found], x * 2, rtol=1e-6)
    assert loaded.builds == 1
