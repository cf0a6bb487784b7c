"""Classical models: labels, trees, scalers, linear models (domain ai.onnx.ml).

In: a `Call`. Out: lazy tensors. A tree is walked by all samples at once, a level at each step, by
gathers from its tables; labels among which are strings are looked up on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np

import fulgurite as fg

from ...core.op import Array
from ...tensor import Tensor
from ..errors import ModelError
from ..table import Call, operator
from ..types import STRING, kind_of_array
from ..values import Value

ML = "ai.onnx.ml"
RULES = (le, lt, ge, gt, eq, ne)
MEMBER = 6  # the mode after those that have a rule


def _listed(op: Call, what: str) -> Array | None:
    """Keys or values, whichever attribute holds them."""
    for suffix, numpy in (("floats", np.float32), ("int64s", np.int64)):
        read = op.floats_of if suffix == "floats" else op.ints_of
        if op.given(f"{what}_{suffix}"):
            return np.array(read(f"{what}_{suffix}"), numpy)
    if op.given(f"{what}_strings"):
        return np.array(op.texts_of(f"{what}_strings"), object)
    stored = op.array(f"{what}_tensor")
    return None if stored is None else stored[0].reshape(-1)


@operator("LabelEncoder", domain=ML)
def label_encoder(op: Call) -> Any:
    """A value for each key; another for what is no key."""
    keys, values = _listed(op, "keys"), _listed(op, "values")
    if keys is None or values is None:
        raise op.unsupported("classes_strings of version 1")
    default: Any
    stored = op.array("default_tensor")
    if stored is not None:
        default = stored[0].reshape(-1)[0]
    elif values.dtype == object:
        default = op.text("default_string", "_Unused")
    elif values.dtype.kind == "f":
        default = op.float("default_float", -0.0)
    else:
        default = op.int("default_int64", -1)
    if op.value(0).is_text or values.dtype == object or keys.dtype == object:
        op.build.hosts.add("strings")
        table = dict(zip(keys.tolist(), values.tolist(), strict=True))
        asked = op.host(0)
        found = np.array([table.get(k, default) for k in asked.reshape(-1).tolist()], values.dtype)
        kind = STRING if values.dtype == object else kind_of_array(values.dtype)
        return Value(None, kind, found.reshape(asked.shape))
    x = op[0]
    order = np.argsort(keys, kind="stable")
    known, given = fg.Tensor(keys[order]), fg.Tensor(values[order])
    place = fg.minimum(fg.searchsorted(known, x), len(keys) - 1)
    same = fg.take(known, place, axis=0) == x
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        nan = fg.full((), fg.Tensor(values[np.isnan(keys)][0].item(), dtype=given.dtype))
        return fg.where(fg.isnan(x), nan, fg.where(same, fg.take(given, place, axis=0), default))
    return fg.where(
        same,
        fg.take(given, place, axis=0),
        fg.Tensor(
            default.item() if isinstance(default, np.generic) else default, dtype=given.dtype
        ),
    )


@operator("Binarizer", domain=ML)
def binarizer(op: Call) -> Tensor:
    """1 above a threshold."""
    return fg.astype(op[0] > op.float("threshold", 0.0), op[0].dtype)


@operator("Scaler", domain=ML)
def scaler(op: Call) -> Tensor:
    """(x - offset) scale."""
    offset = fg.Tensor(op.floats_of("offset", [0.0]))
    scale = fg.Tensor(op.floats_of("scale", [1.0]))
    return (op[0].astype(fg.float32) - offset) * scale


@operator("Normalizer", domain=ML)
def normalizer(op: Call) -> Tensor:
    """Divided by the norm of a row."""
    x = op[0].astype(fg.float32)
    norm = op.text("norm", "MAX")
    if norm == "L1":
        size = fg.sum(fg.abs(x), axis=-1, keepdims=True)
    elif norm == "L2":
        size = fg.sqrt(fg.sum(x * x, axis=-1, keepdims=True))
    else:
        size = fg.max(x, axis=-1, keepdims=True)
    return fg.where(size == 0, x, x / size)


@operator("Imputer", domain=ML)
def imputer(op: Call) -> Tensor:
    """Other values for missing ones."""
    x = op[0]
    whole = op.given("imputed_value_int64s")
    values = (
        op.ints_of("imputed_value_int64s") if whole else op.floats_of("imputed_value_floats", [])
    )
    missing: Any = (
        op.int("replaced_value_int64", 0) if whole else op.float("replaced_value_float", 0.0)
    )
    gone = fg.isnan(x) if missing != missing else x == missing
    return fg.where(gone, fg.Tensor(values, dtype=x.dtype), x)


def transformed(op: Call, scores: Tensor) -> Tensor:
    """Scores as the model shows them."""
    mode = op.text("post_transform", "NONE")
    if mode == "NONE":
        return scores
    if mode == "LOGISTIC":
        return fg.sigmoid(scores)
    if mode == "SOFTMAX":
        return fg.softmax(scores, axis=-1)
    if mode == "SOFTMAX_ZERO":
        powers = fg.where(scores == 0, 0.0, fg.exp(scores - fg.max(scores, axis=-1, keepdims=True)))
        return powers / fg.sum(powers, axis=-1, keepdims=True)
    raise op.unsupported(f"post_transform {mode}")


def labelled(op: Call, names: Any, labels: Any, place: Tensor) -> Any:
    """The labels at some places: numbers, or words, which are the host's."""
    if names:
        op.build.hosts.add("strings")
        return Value(None, STRING, np.array(names, object)[op.build.read(Value(place))])
    return fg.take(fg.Tensor(np.array(labels, np.int64)), place, axis=0)


def _scores(op: Call, targets: int) -> Tensor:
    weight = fg.Tensor(op.floats_of("coefficients", []))
    scores = op[0].astype(fg.float32) @ fg.matrix_transpose(fg.reshape(weight, (targets, -1)))
    bias = op.floats_of("intercepts")
    return scores + fg.Tensor(bias) if bias else scores


@operator("LinearRegressor", domain=ML)
def linear_regressor(op: Call) -> Tensor:
    """A matrix product."""
    return transformed(op, _scores(op, op.int("targets", 1)))


@operator("LinearClassifier", domain=ML)
def linear_classifier(op: Call) -> tuple[Any, Tensor]:
    """The class with the best score."""
    names = op.texts_of("classlabels_strings")
    labels = op.ints_of("classlabels_ints")
    count = len(names or labels or [])
    given = len(op.floats_of("coefficients", [])) // max(op[0].shape[-1], 1)
    scores = _scores(op, given)
    if given == 1 and count == 2:
        scores = fg.concat([-scores, scores], axis=-1)
    best = fg.argmax(scores, axis=-1)
    shown = transformed(op, scores)
    return labelled(op, names, labels, best), shown


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees by number; a leaf leads to itself."""

    tables: dict[str, Array]  # feature, mode, split, true, false, missing
    leaf: Array  # which of them are leaves
    roots: list[int]


def reached(trees: Trees, x: Tensor, listed: Any = None) -> Tensor:
    """The leaf that each sample reaches in each tree.

    Each table is a gather at every level, so there are no more and no wider ones than nodes need.
    """
    tables, count = trees.tables, len(trees.leaf)
    depth = _depth(trees)
    inner = {name: column[~trees.leaf] for name, column in tables.items()}
    modes = sorted({*inner["mode"].tolist()} - {MEMBER})
    value_type = fg.float32 if x.dtype is fg.float32 and _is_narrow(inner["split"]) else fg.float64
    feature = fg.Tensor(tables["feature"].astype(np.int32))
    split = fg.Tensor(tables["split"].astype(value_type.numpy))
    mode = fg.Tensor(tables["mode"]) if len(modes) > 1 or listed is not None else None
    missing = fg.Tensor(tables["missing"]) if inner["missing"].any() else None
    after = fg.Tensor(np.concatenate([tables["true"], tables["false"]]).astype(np.int32))
    roots = np.array(trees.roots, np.int32)
    place = fg.broadcast_to(fg.Tensor(roots)[None], (x.shape[0], len(roots)))
    wide = x.astype(value_type)
    for _ in range(depth):
        value = fg.take_along_axis(wide, fg.take(feature, place, axis=0), axis=1)
        kind = None if mode is None else fg.take(mode, place, axis=0)
        holds = _compared(value, fg.take(split, place, axis=0), kind, modes)
        if listed is not None:
            members, owners = listed
            hit = (value[:, :, None] == members) & (place[:, :, None] == owners)
            holds = fg.where(kind == MEMBER, fg.any(hit, axis=-1), holds)
        if missing is not None:
            holds = holds | (fg.take(missing, place, axis=0) & fg.isnan(value))
        place = fg.take(after, fg.where(holds, place, place + count), axis=0)
    return place


@operator("TreeEnsemble", domain=ML, since=5)
def tree_ensemble(op: Call) -> Tensor:
    """Sums, means or extremes of the leaves that samples reach."""
    x = op[0]
    modes, splits, weights = (
        _stored(op, name) for name in ("nodes_modes", "nodes_splits", "leaf_weights")
    )
    feature, true, false, leaf_true, leaf_false, targets = (
        np.array(op.ints_of(name), np.int64)
        for name in (
            "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs",
            "nodes_falseleafs", "leaf_targetids",
        )
    )  # fmt: skip
    missing = np.array(op.ints_of("nodes_missing_value_tracks_true") or [0] * len(feature), bool)
    roots = op.ints_of("tree_roots")
    nodes, leaves = len(feature), len(weights)
    arrays = (modes, splits, true, false, leaf_true, leaf_false, missing)
    if any(len(a) != nodes for a in arrays) or len(targets) != leaves:
        raise ModelError("its tables have different lengths", "the model is not valid ONNX")
    # a leaf is a node after all others that leads to itself
    own = np.arange(nodes, nodes + leaves)
    tables = {
        "feature": np.concatenate([feature, np.zeros(leaves, np.int64)]),
        "mode": np.concatenate([modes.astype(np.int64), np.zeros(leaves, np.int64)]),
        "split": np.concatenate([splits.astype(np.float64), np.zeros(leaves)]),
        "true": np.concatenate([np.where(leaf_true > 0, true + nodes, true), own]),
        "false": np.concatenate([np.where(leaf_false > 0, false + nodes, false), own]),
        "missing": np.concatenate([missing, np.zeros(leaves, bool)]),
    }
    members = _members(op, modes)
    ended = np.arange(nodes + leaves) >= nodes
    place = reached(Trees(tables, ended, roots), x, None if members[0] is None else members)
    leaf = place - nodes
    gained = fg.take(fg.Tensor(weights.astype(np.float64)), leaf, axis=0)
    target = fg.take(fg.Tensor(targets), leaf, axis=0)
    mine = target[:, :, None] == fg.arange(op.int("n_targets", 1), dtype=fg.int64)
    if op.int("post_transform", 0):
        raise op.unsupported("post_transform")
    return _aggregated(op, mine, gained[:, :, None], len(roots)).astype(x.dtype)


def _stored(op: Call, name: str) -> Array:
    found = op.array(name)
    if found is None:
        raise ModelError("its nodes or leaves are missing", "the model is not valid ONNX")
    return found[0].reshape(-1)


def _aggregated(op: Call, mine: Tensor, gained: Tensor, trees: int) -> Tensor:
    """What all trees gained for each target: the mean, sum, least or largest."""
    kind = op.int("aggregate_function", 1)
    if kind in (0, 1):
        total = fg.sum(fg.where(mine, gained, 0.0), axis=1)
        return total / trees if kind == 0 else total
    limit = np.finfo(op[0].dtype.numpy)
    other = float(limit.max if kind == 2 else limit.min)
    return (fg.min if kind == 2 else fg.max)(fg.where(mine, gained, other), axis=1)


def _is_narrow(numbers: Array) -> bool:
    """True if float32 holds all of them."""
    with np.errstate(over="ignore"):
        return bool(np.all(numbers.astype(np.float32) == numbers))


def _compared(value: Tensor, split: Tensor, mode: Tensor | None, modes: list[int]) -> Tensor:
    """Values beside those of their nodes, by the modes that there are; of one nobody asks."""
    first, *others = modes or [0]
    found: Tensor = RULES[first](value, split)
    for number in others:
        found = fg.where(mode == number, RULES[number](value, split), found)
    return found


def _depth(trees: Trees) -> int:
    """The longest way from a root to a leaf; a circle or a node outside is an error."""
    true, false, count = trees.tables["true"], trees.tables["false"], len(trees.leaf)
    level, depth = np.array(trees.roots, np.int64), 0
    while True:
        if level.size and (level.min() < 0 or level.max() >= count):
            raise ModelError("a tree leads outside its tables", "the model is not valid ONNX")
        inner = level[~trees.leaf[level]]
        if not inner.size:
            return depth
        level = np.unique(np.concatenate([true[inner], false[inner]]))
        depth += 1
        if depth > count:
            raise ModelError("a tree leads in a circle", "the model is not valid ONNX")


def _members(op: Call, modes: Array) -> tuple[Tensor | None, Tensor | None]:
    """The sets of membership nodes: all members, and the node of each."""
    stored = op.array("membership_values")
    owners = np.flatnonzero(modes == MEMBER)
    if stored is None or not owners.size:
        return None, None
    values, nodes, number = [], [], 0
    for value in stored[0].reshape(-1).astype(np.float64):
        if np.isnan(value):
            number += 1
        elif number < len(owners):
            values.append(value)
            nodes.append(owners[number])
    return fg.Tensor(np.array(values, np.float64)), fg.Tensor(np.array(nodes, np.int64))
