"""Tests of onnx/order.py: nodes may stand in any order that the file has."""

from __future__ import annotations

import numpy as np
import pytest

from fulgurite.onnx import load
from fulgurite.onnx.errors import ModelError
from tests.onnx.models import graph, model, node, port

PORTS = [port("x", "float32", (4,))], [port("y", "float32")]
X = np.linspace(-1, 1, 4, dtype=np.float32)


def test_a_node_may_stand_before_those_that_make_what_it_reads() -> None:
    nodes = [node("Add", "c b", "y"), node("Exp", "x", "a"), node("Tanh", "b", "c")]
    nodes += [node("Neg", "a", "b")]
    found = load(model(graph(nodes, *PORTS)))(X)["y"].numpy()
    np.testing.assert_allclose(found, np.tanh(-np.exp(X)) - np.exp(X), rtol=1e-6)


def test_nodes_on_a_circle_are_an_error() -> None:
    nodes = [node("Add", "x b", "a"), node("Exp", "a", "b"), node("Neg", "b", "y")]
    with pytest.raises(ModelError, match="there is no value"):
        load(model(graph(nodes, *PORTS)))(X)


def test_a_name_that_two_nodes_make_is_an_error() -> None:
    nodes = [node("Neg", "x", "y"), node("Abs", "x", "y")]
    with pytest.raises(ModelError, match="two nodes make 'y'"):
        load(model(graph(nodes, *PORTS)))(X)


def test_lines_are_places_in_the_file() -> None:
    nodes = [node("MatMul", "a a", "y"), node("Reshape", "x x", "a")]
    with pytest.raises(ModelError) as found:
        load(model(graph(nodes, *PORTS)))(X)
    assert "Reshape" in str(found.value)


def test_a_node_that_makes_what_the_graph_is_given_is_an_error() -> None:
    for nodes in ([node("Neg", "x", "x"), node("Abs", "x", "y")],
                  [node("Abs", "w", "y"), node("Neg", "x", "w")]):  # fmt: skip
        with pytest.raises(ModelError, match="which is given"):
            load(model(graph(nodes, *PORTS, {"w": X})))(X)


def test_a_name_of_a_branchs_own_is_not_that_of_a_node_outside() -> None:
    then = graph([node("Neg", "x", "h"), node("Exp", "h", "o")], [], [port("o")])
    other = graph([node("Abs", "x", "o")], [], [port("o")])
    nodes = [node("If", "c", "z", then_branch=then, else_branch=other),
             node("Mul", "z z", "h"), node("Add", "h z", "y")]  # fmt: skip
    made = load(model(graph(nodes, [*PORTS[0], port("c", "bool", ())], PORTS[1])))
    for truth, z in ((True, np.exp(-X)), (False, np.abs(X))):
        np.testing.assert_allclose(made(X, np.array(truth))["y"].numpy(), z * z + z, rtol=1e-6)
