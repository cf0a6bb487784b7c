"""Tests of onnx/rest.py: where results decide shapes, the rest of a graph is scheduled once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fulgurite.onnx import graph, load
from fulgurite.onnx.errors import ModelError
from tests.onnx.models import graph as graph_of
from tests.onnx.models import model, node, port

RNG = np.random.default_rng(0)


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that are built."""
    found: list[str] = []
    plain = graph.Build._operator

    def noted(self: graph.Build, line: Any, *rest: Any) -> Any:
        found.append(line.op_type)
        return plain(self, line, *rest)

    monkeypatch.setattr(graph.Build, "_operator", noted)
    return found


def test_only_what_follows_from_results_is_built_again(built: list[str]) -> None:
    nodes = [
        node("MatMul", "x w", "a"), node("Tanh", "a", "b"), node("Greater", "b zero", "c"),
        node("NonZero", "c", "places"), node("Transpose", "places", "rows"),
        node("GatherND", "x rows", "picked"), node("Exp", "b", "other"),
        node("Shape", "picked", "n"),
    ]  # fmt: skip
    weights = {"w": f(6, 6), "zero": np.float32(0)}
    ports = [port("picked"), port("other"), port("n", "int64")]
    made = load(model(graph_of(nodes, [port("x", shape=(4, 6))], ports, weights)))
    for number in range(4):
        x = f(4, 6)
        built.clear()
        found = made(x)
        if number > 1:
            assert built == ["NonZero", "Transpose", "GatherND", "Shape"]
        hidden = np.tanh(x @ weights["w"])
        np.testing.assert_array_equal(found["picked"].numpy(), x[hidden > 0])
        np.testing.assert_allclose(found["other"].numpy(), np.exp(hidden), rtol=1e-5)
        assert found["n"].numpy().tolist() == [int((hidden > 0).sum())]
    assert made.builds == 1


def test_outputs_of_earlier_calls_stay_and_errors_name_their_node() -> None:
    nodes = [node("NonZero", "x", "p"), node("Gather", "x p", "y", axis=0), node("Neg", "x", "z")]
    made = load(model(graph_of(nodes, [port("x", shape=(5,))], [port("y"), port("z")], {})))
    kept = []
    for number in range(4):
        x = np.array([number, 0, 2, 0, 3], np.float32)
        kept.append((x, made(x)))
    for x, found in kept:
        np.testing.assert_array_equal(found["y"].numpy(), x[np.nonzero(x)[0]][None])
        np.testing.assert_array_equal(found["z"].numpy(), -x)
    nodes[1] = node("Reshape", "x p", "y")
    broken = load(model(graph_of(nodes, [port("x", shape=(5,))], [port("y"), port("z")], {})))
    for _ in range(3):
        with pytest.raises(ModelError, match="Reshape"):
            broken(np.array([1, 0, 2, 0, 3], np.float32))


def test_branches_see_what_was_computed_before_them() -> None:
    def branch(name: str, kind: str, given: list[str]) -> Any:
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(kind, given, [name])], name, [], [result])

    lines = [
        helper.make_node("Sigmoid", ["x"], ["a"]),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "Exp", ["a"]),
                         else_branch=branch("e", "Identity", ["s"])),
    ]  # fmt: skip
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [3]), ("y", None))
    ]
    zero = onnx.numpy_helper.from_array(np.float32(0), "zero")
    text = helper.make_model(
        helper.make_graph(lines, "g", values[:1], values[1:], [zero]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    made = load(text.SerializeToString())
    for x in (f(3), np.abs(f(3)), -np.abs(f(3)), np.abs(f(3)), -np.abs(f(3))):
        wanted = np.exp(1 / (1 + np.exp(-x))) if x.sum() > 0 else x.sum()
        np.testing.assert_allclose(made(x)["y"].numpy(), wanted, rtol=1e-5)


def test_what_cannot_be_split_is_built_as_a_whole() -> None:
    """A sequence is no tensor: nothing of it is kept between calls."""
    nodes = [
        node("SequenceConstruct", "x x", "s"), node("NonZero", "x", "p"),
        node("Gather", "x p", "g", axis=0), node("SequenceInsert", "s g zero", "t"),
        node("SequenceAt", "t zero", "y"),
    ]  # fmt: skip
    weights = {"zero": np.int64(0)}
    made = load(model(graph_of(nodes, [port("x", shape=(5,))], [port("y")], weights)))
    for number in range(4):
        x = np.array([number, 0, 2, 0, 3], np.float32)
        np.testing.assert_array_equal(made(x)["y"].numpy(), x[np.nonzero(x)[0]][None])
    assert made.builds > 3


def test_boxes_are_suppressed_by_classes_of_any_length() -> None:
    ports = [port("b", shape=(1, 400, 4)), port("s", shape=(1, 2, 400))]
    weights = {"most": np.int64(7), "overlap": np.float32(0.4), "least": np.float32(0.5)}
    nodes = [node("NonMaxSuppression", "b s most overlap least", "y")]
    made = load(model(graph_of(nodes, ports, [port("y", "int64")], weights)))
    for share in (0.0, 0.02, 0.5, 1.0, 0.3):
        corner = RNG.random((1, 400, 2))
        boxes = np.concatenate([corner, corner + RNG.random((1, 400, 2)) / 3], 2).astype(np.float32)
        scores = (RNG.random((1, 2, 400)) * (0.5 + share / 2)).astype(np.float32)
        found = made(boxes, scores)["y"].numpy()
        np.testing.assert_array_equal(found, suppressed(boxes[0], scores[0], 7, 0.4, 0.5))


def suppressed(
    boxes: Any, scores: Any, most: int, overlap: float, least: float
) -> np.ndarray[Any, Any]:
    """The definition, box by box."""
    area, found = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1), []
    for kind, row in enumerate(scores):
        taken: list[int] = []
        for i in np.argsort(-row, kind="stable"):
            low, high = (
                best(boxes[taken, side], boxes[i, side])
                for best, side in ((np.maximum, slice(0, 2)), (np.minimum, slice(2, 4)))
            )
            common = np.prod(np.maximum(high - low, 0), axis=1)
            free = not (common / (area[taken] + area[i] - common) > overlap).any()
            if row[i] > least and len(taken) < most and free:
                taken.append(int(i))
        found += [[0, kind, i] for i in taken]
    return np.array(found, np.int64).reshape(-1, 3)


@pytest.mark.parametrize("made_by", ["Pow", "CumSum"])
def test_a_shape_that_follows_from_constants_alone_builds_nothing_again(
    built: list[str], made_by: str
) -> None:
    """A power is known on the host; of a sum so far, which is not, a tensor is computed."""
    weights = {"n": np.array([16.0, 16.0], np.float32), "half": np.array(0.5, np.float32),
               "steps": np.array([4, 0], np.int64), "zero": np.array(0, np.int64)}  # fmt: skip
    shape = {
        "Pow": [node("Pow", "n half", "side"), node("Cast", "side", "shape", to=7)],
        "CumSum": [node("CumSum", "steps zero", "shape")],
    }
    nodes = [*shape[made_by], node("Reshape", "x shape", "square"), node("Tanh", "square", "y")]
    ports = [port("x", "float32", (16,))], [port("y", "float32")]
    loaded, x = load(model(graph_of(nodes, *ports, weights))), f(16)
    np.testing.assert_allclose(loaded(x)["y"].numpy(), np.tanh(x).reshape(4, 4), rtol=1e-6)
    built.clear()
    y = f(16)
    np.testing.assert_allclose(loaded(y)["y"].numpy(), np.tanh(y).reshape(4, 4), rtol=1e-6)
    assert built == []
