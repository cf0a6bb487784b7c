"""Trees, support vectors and encoders as exporters of classical libraries write them (ai.onnx.ml).

In: a `Call`. Out: lazy tensors; labels that are words, and maps, are made on the host. The older
forms of tree ensembles are brought to the tables of the newer one, which walks all samples at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fulgurite as fg

from ...core.op import Array
from ...tensor import Tensor
from ..errors import ModelError
from ..table import Call, operator
from ..types import STRING
from ..values import Maps, Value
from .learning import ML, Trees, labelled, reached, transformed

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
AGGREGATES = {"AVERAGE": 0, "SUM": 1, "MIN": 2, "MAX": 3}


def _numbers(op: Call, name: str) -> Array:
    """Real numbers in a row, from a list or from a tensor of doubles."""
    stored = op.array(f"{name}_as_tensor")
    if stored is not None:
        return stored[0].reshape(-1).astype(np.float64)
    return np.array(op.floats_of(name, []), np.float64)


def _trees(op: Call, kind: str) -> tuple[Trees, Array, Array, Array]:
    """The tables of an ensemble; and of its weights: leaf, target, weight."""
    tree, node, true, false, feature = (
        np.array(op.ints_of(f"nodes_{name}ids"), np.int64)
        for name in ("tree", "node", "truenode", "falsenode", "feature")
    )
    modes = op.texts_of("nodes_modes") or []
    keys = {pair: i for i, pair in enumerate(zip(tree.tolist(), node.tolist(), strict=True))}
    count = len(keys)
    if {len(modes), len(true), len(false), len(feature), len(tree)} != {count}:
        raise ModelError("its tables have different lengths", "the model is not valid ONNX")
    if unknown := {*modes} - {"LEAF", *MODES}:
        raise op.unsupported(f"nodes of mode {', '.join(sorted(unknown))}")
    leaf = np.array([mode == "LEAF" for mode in modes])

    def places(trees: list[int], nodes: list[int]) -> Array:
        pairs = zip(trees, nodes, strict=True)
        return np.array([keys.get(pair, -1) for pair in pairs], np.int64)

    own = np.arange(count)
    missing = op.ints_of("nodes_missing_value_tracks_true") or [0] * count
    tables = {
        "feature": np.where(leaf, 0, feature),
        "true": np.where(leaf, own, places(tree.tolist(), true.tolist())),
        "false": np.where(leaf, own, places(tree.tolist(), false.tolist())),
        "mode": np.array([0 if m == "LEAF" else MODES.index(m) for m in modes]),
        "split": _numbers(op, "nodes_values"), "missing": np.array(missing, bool),
    }  # fmt: skip
    weighed = places(op.ints_of(f"{kind}_treeids"), op.ints_of(f"{kind}_nodeids"))
    if weighed.min(initial=0) < 0:
        raise ModelError("a weight is for no node", "the model is not valid ONNX")
    targets = np.array(op.ints_of(f"{kind}_ids"), np.int64)
    trees = Trees(tables, leaf, _roots(tables, tree.tolist(), leaf))
    return trees, weighed, targets, _numbers(op, f"{kind}_weights")


def _roots(tables: dict[str, Array], tree: list[int], leaf: Array) -> list[int]:
    """The node of each tree that no other leads to; a leaf only where there is nothing else."""
    pointed = {*tables["true"][~leaf].tolist(), *tables["false"][~leaf].tolist()}
    begin: dict[int, int] = {}
    for number, owner in enumerate(tree):
        if number not in pointed and (owner not in begin or leaf[begin[owner]]):
            begin[owner] = number
    inner = {owner for owner, end in zip(tree, leaf, strict=True) if not end}
    if any(owner not in begin or leaf[begin[owner]] for owner in inner):
        raise ModelError("a tree leads in a circle", "the model is not valid ONNX")
    return list(begin.values())


def _sums(op: Call, kind: str, count: int) -> tuple[Tensor, Array]:
    """What the leaves of all trees give to each target, and the targets that have weights."""
    trees, places, targets, weights = _trees(op, kind)
    x = op[0]
    if targets.size and (targets.min() < 0 or targets.max() >= count):
        raise ModelError(f"a weight is for none of {count} targets", "the model is not valid ONNX")
    table = np.zeros((len(trees.leaf), count), np.float64)
    present = np.zeros((len(trees.leaf), count), bool)
    np.add.at(table, (places, targets), weights)
    present[places, targets] = True
    leaves = reached(trees, x)  # (samples, trees)
    gained = fg.take(fg.Tensor(table), leaves, axis=0)
    mode = AGGREGATES.get(op.text("aggregate_function", "SUM"), 1)
    if mode < 2:
        found = fg.sum(gained, axis=1)
        found = found / len(trees.roots) if mode == 0 else found
    else:
        mine = fg.take(fg.Tensor(present), leaves, axis=0)
        other = float("inf") if mode == 2 else float("-inf")
        best = (fg.min if mode == 2 else fg.max)(fg.where(mine, gained, other), axis=1)
        found = fg.where(fg.any(mine, axis=1), best, 0.0)
    base = _numbers(op, "base_values")
    if base.size:
        found = found + fg.Tensor(base if base.size == count else np.repeat(base, count))
    return found, np.unique(targets)


@operator("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(op: Call) -> Tensor:
    """Sums, means or extremes of the leaves that samples reach, for each target."""
    found, _ = _sums(op, "target", op.int("n_targets", 1))
    return transformed(op, found.astype(fg.float32))


@operator("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(op: Call) -> tuple[Any, Tensor]:
    """The class whose leaves weigh most, and what all classes weigh."""
    names, labels = op.texts_of("classlabels_strings"), op.ints_of("classlabels_int64s")
    count = len(names or labels or [])
    found, used = _sums(op, "class", max(count, 1))
    scores = found.astype(fg.float32)
    if count == 2 and used.size == 1:  # the weights are of one class: the other has the rest
        one = scores[:, int(used[0])]
        one = one[:, None]
        logistic = op.text("post_transform", "NONE")
        positive = one > (0.5 if logistic == "NONE" else 0.0)
        shown = _both(op, one)
        place = fg.astype(positive[:, 0], fg.int64)
        return labelled(op, names, labels, place), shown
    return labelled(op, names, labels, fg.argmax(scores, axis=-1)), transformed(op, scores)


def _both(op: Call, one: Tensor) -> Tensor:
    """Scores of two classes from one: its share and the rest, or itself and its opposite."""
    mode = op.text("post_transform", "NONE")
    if mode == "NONE":
        return fg.concat([1 - one, one], axis=-1)
    return transformed(op, fg.concat([-one, one], axis=-1))


# --- support vectors -----------------------------------------------------------------------------


def _kernel(op: Call, x: Tensor, vectors: Tensor) -> Tensor:
    """How alike samples and vectors are."""
    kind = op.text("kernel_type", "LINEAR")
    gamma, offset, degree = [*op.floats_of("kernel_params", []), 0.0, 0.0, 0.0][:3]
    if kind == "RBF":
        apart = x[:, None] - vectors[None]
        return fg.exp(-gamma * fg.sum(apart * apart, axis=-1))
    inner = x @ fg.matrix_transpose(vectors)
    if kind == "LINEAR":
        return inner
    if kind == "POLY":
        return fg.pow(inner * gamma + offset, degree)
    if kind == "SIGMOID":
        return fg.tanh(inner * gamma + offset)
    raise op.unsupported(f"kernel {kind}")


def _vectors(op: Call, count: int) -> Tensor:
    return fg.reshape(fg.Tensor(np.array(op.floats_of("support_vectors", []), np.float32)),
                      (count, -1))  # fmt: skip


@operator("SVMRegressor", domain=ML)
def svm_regressor(op: Call) -> Tensor:
    """A weighted sum of how alike a sample is to each support vector."""
    x = op[0].astype(fg.float32)
    weights = np.array(op.floats_of("coefficients", []), np.float32)
    count = op.int("n_supports", 0)
    if count:
        alike = _kernel(op, x, _vectors(op, count))
    else:
        alike = x
    y = alike @ fg.reshape(fg.Tensor(weights), (-1, 1)) + op.floats_of("rho", [0.0])[0]
    if op.int("one_class"):
        y = fg.where(y > 0, 1.0, -1.0)
    return transformed(op, y)


@operator("SVMClassifier", domain=ML)
def svm_classifier(op: Call) -> tuple[Any, Tensor]:
    """Votes of every pair of classes; or linear scores where there are no vectors."""
    names, labels = op.texts_of("classlabels_strings"), op.ints_of("classlabels_ints")
    count = len(names or labels or [])
    each = op.ints_of("vectors_per_class", [])
    x, rho = op[0].astype(fg.float32), op.floats_of("rho", [0.0])
    weights = np.array(op.floats_of("coefficients", []), np.float32)
    if not each:
        scores = x @ fg.matrix_transpose(fg.reshape(fg.Tensor(weights), (count, -1))) + rho[0]
        return labelled(op, names, labels, fg.argmax(scores, axis=-1)), transformed(op, scores)
    slopes, offsets = op.floats_of("prob_a", []), op.floats_of("prob_b", [])
    if slopes and count > 2:
        raise op.unsupported("probabilities of more than two classes")
    total = sum(each)
    table = fg.reshape(fg.Tensor(weights), (count - 1, total))
    alike = _kernel(op, x, _vectors(op, total))
    starts = np.concatenate([[0], np.cumsum(each)]).tolist()
    decisions: list[Tensor] = []
    for i in range(count):
        for j in range(i + 1, count):
            a, b = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
            mine = alike[:, a] @ table[j - 1, a] + alike[:, b] @ table[i, b]
            decisions.append(mine + rho[len(decisions)])
    votes: list[Any] = [0.0] * count
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    for (i, j), found in zip(pairs, decisions, strict=True):
        votes[i] = votes[i] + fg.astype(found > 0, fg.float32)
        votes[j] = votes[j] + fg.astype(found <= 0, fg.float32)
    place = fg.argmax(fg.stack(votes, axis=-1), axis=-1)
    shown = fg.stack(decisions, axis=-1)
    if slopes:
        share = fg.sigmoid(-(shown * slopes[0] + offsets[0]))
        shown = fg.concat([share, 1 - share], axis=-1)
    elif count == 2:
        shown = fg.concat([-shown, shown], axis=-1)
    return labelled(op, names, labels, place), shown


# --- encoders ------------------------------------------------------------------------------------


@operator("OneHotEncoder", domain=ML)
def one_hot_encoder(op: Call) -> Tensor:
    """1 at the place of each category."""
    words = op.texts_of("cats_strings")
    if words:
        op.build.hosts.add("strings")
        asked = op.host(0)
        hit = asked[..., None] == np.array(words, object)
        return fg.Tensor(hit.astype(np.float32))
    known = np.array(op.ints_of("cats_int64s", []), np.int64)
    hits = fg.equal(fg.expand_dims(op[0].astype(fg.int64), -1), fg.Tensor(known))
    return fg.astype(hits, fg.float32)


@operator("FeatureVectorizer", domain=ML)
def feature_vectorizer(op: Call) -> Tensor:
    """Columns side by side."""
    parts = [fg.reshape(x, (x.shape[0], -1)).astype(fg.float32) for x in op.tensors()]
    return fg.concat(parts, axis=1)


@operator("CategoryMapper", domain=ML)
def category_mapper(op: Call) -> Value:
    """Words as numbers, or numbers as words."""
    words, numbers = op.texts_of("cats_strings", []), op.ints_of("cats_int64s", [])
    op.build.hosts.add("strings")
    asked = op.host(0)
    flat = asked.reshape(-1).tolist()
    if op.value(0).is_text:
        table = dict(zip(words, numbers, strict=True))
        found = np.array([table.get(w, op.int("default_int64", -1)) for w in flat], np.int64)
        return Value(None, None, found.reshape(asked.shape))
    names = dict(zip(numbers, words, strict=True))
    shown = np.array([names.get(n, op.text("default_string", "_Unused")) for n in flat], object)
    return Value(None, STRING, shown.reshape(asked.shape))


@operator("ZipMap", domain=ML)
def zip_map(op: Call) -> Value:
    """A dict for each row, from the labels of the columns to their numbers."""
    keys = op.texts_of("classlabels_strings") or op.ints_of("classlabels_int64s", [])
    return Maps(op[0], keys)
