"""Trees, support vectors and encoders of ai.onnx.ml beside what they mean, written out."""

from __future__ import annotations

from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.core.ops.indexing import GATHER
from fulgurite.onnx import ModelError, load
from fulgurite.onnx.ops.ensembles import MODES
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


def gathers(found: dict[str, Any]) -> list[int]:
    """How many gathers there are in each kernel of a regressor of these nodes."""
    weights = {f"target_{k}": v for k, v in LEAVES.items()}
    made = node("TreeEnsembleRegressor", "x", "y", ML, n_targets=2, **(NODES | found), **weights)
    loaded = load(model(graph([made], [port("x", "float32", ["n", 3])], [field(1, "y")]),
                        ai_onnx_ml=3))  # fmt: skip
    with fg.config(tier="native"):
        loaded(X)
    assert loaded.last is not None and loaded.last.schedule is not None
    items = loaded.last.schedule.items
    return [sum(n.op is GATHER for n in toposort([item.kernel.body])) for item in items]


@pytest.mark.device("cpu")
def test_trees_are_walked_in_one_kernel_that_reads_what_nodes_differ_in() -> None:
    splits = [0.0, 0.5, 0.0, 0.0, 0.0, -0.25, 0.0, 0.0]
    level = 4  # feature, its value, split and next node
    assert gathers({"nodes_values": splits})[0] == 2 * level
    modes = [*NODES["nodes_modes"]]
    modes[0] = "BRANCH_LT"
    assert gathers({"nodes_modes": modes})[0] == 2 * (level + 1)
    assert gathers({"nodes_missing_value_tracks_true": [1] + [0] * 7})[0] == 2 * (level + 1)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_nodes_of_any_mode_and_missing_numbers_are_compared_in_the_dtype_of_both(
    kind: str, mode: str
) -> None:
    x = np.array([[0.0, 0.5, s] for s in (-0.2, 0.1, 0.3, 1.0, np.nan)], kind)
    split = float(np.float32(0.1)) if kind == "float32" else 0.1
    nodes = NODES | {"nodes_modes": [mode if m != "LEAF" else m for m in NODES["nodes_modes"]]}
    nodes["nodes_values"] = [0.0, 0.5, 0.0, 0.0, 0.0, split, 0.0, 0.0]
    nodes["nodes_missing_value_tracks_true"] = [0] * 5 + [1, 0, 0]
    weights = {f"target_{k}": v for k, v in LEAVES.items()}
    (found,) = run("TreeEnsembleRegressor", x, n_targets=2, **nodes, **weights)
    rule: Any = {"LEQ": le, "LT": lt, "GTE": ge, "GT": gt, "EQ": eq, "NEQ": ne}[mode[7:]]
    stored = np.float32(split).astype(kind)  # as the attribute holds it
    for row, value in zip(found.numpy(), x[:, 2], strict=True):
        first = 2 if rule(0.0, 0.0) and rule(0.5, 0.5) else 3 if rule(0.0, 0.0) else 4
        want = np.zeros(2)
        want[0 if first == 2 else 1] += {2: 1.5, 3: -2.0, 4: 0.75}[first]
        holds = bool(rule(value, stored)) or np.isnan(value)
        want[0 if holds else 1] += 0.25 if holds else 3.0
        np.testing.assert_allclose(row, want, rtol=1e-6)


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
