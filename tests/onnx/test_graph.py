"""Choices, loops, functions and sequences in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fulgurite.onnx import ModelError, load
from fulgurite.onnx.graph import DEEPEST
from tests.onnx.models import field, function, graph, model, node, port, simple

X = np.array([1, 2, 3], np.float32)
VECTOR = [port("x", shape=[3])]


def run(nodes: list[bytes], weights: dict[str, Any] | None = None, **inputs: Any) -> Any:
    ports = [port(n, np.asarray(v).dtype.name, np.shape(v)) for n, v in inputs.items()]
    return load(model(graph(nodes, ports, [port("y")], weights)))(**inputs)["y"].numpy()


def loop_body(nodes: list[bytes], outputs: list[bytes]) -> bytes:
    return graph(nodes, [port("i", "int64", ()), port("c", "bool", ()), port("v")], outputs)


@pytest.mark.parametrize("steps", [0, 3, 100])
def test_a_loop_of_known_length_is_unrolled_or_compiled(steps: int) -> None:
    body = loop_body(
        [node("Identity", "c", "c2"), node("Add", "v x", "v2"), node("Cast", "i", "r", to=1)],
        [port("c2", "bool"), port("v2"), port("r")],
    )
    weights = {"n": np.array(steps, np.int64), "yes": np.array(True)}
    whole = model(graph([node("Loop", "n yes x", "y rows", body=body)], VECTOR,
                        [port("y"), port("rows")], weights))  # fmt: skip
    found = load(whole)(X)
    np.testing.assert_allclose(found["y"].numpy(), X * (steps + 1), rtol=1e-6)
    assert found["rows"].tolist() == list(range(steps))


def test_a_loop_of_no_steps_gives_no_rows_of_the_sizes_that_a_step_would_give() -> None:
    body = loop_body(
        [node("Identity", "c", "c2"), node("Add", "v x", "v2"), node("Concat", "v v", "r", axis=0)],
        [port("c2", "bool"), port("v2"), port("r")],
    )
    nodes = [node("Loop", "n . x", "y rows", body=body)]
    made = load(model(graph(nodes, [*VECTOR, port("n", "int64", ())], [port("y"), port("rows")])))
    for steps in (2, 0, 20):
        found = made(X, np.array(steps))
        assert found["rows"].shape == (steps, 2 * len(X))
        np.testing.assert_allclose(found["y"].numpy(), X * (steps + 1), rtol=1e-6)


def test_a_loop_of_no_steps_that_cannot_be_compiled_gives_rows_as_it_declares_them() -> None:
    body = loop_body(
        [node("Identity", "c", "c2"), node("Add", "v x", "v2"), node("NonZero", "v", "k"),
         node("Transpose", "k", "kt"), node("GatherND", "v kt", "g"),
         node("Resize", "g . . sizes", "r")],
        [port("c2", "bool"), port("v2"), port("r", "float32", (2,))],
    )  # fmt: skip
    nodes = [node("Loop", "n . x", "y rows", body=body)]
    weights = {"n": np.array(0, np.int64), "sizes": np.array([2], np.int64)}
    made = load(model(graph(nodes, VECTOR, [port("y"), port("rows")], weights)))
    assert made(X)["rows"].shape == (0, 2)


def test_a_loop_whose_condition_is_computed_ends_when_it_fails() -> None:
    body = loop_body(
        [node("Add", "v v", "v2"), node("ReduceMax", "v2", "m", keepdims=0),
         node("Less", "m limit", "c2")],
        [port("c2", "bool"), port("v2")],
    )  # fmt: skip
    weights = {"yes": np.array(True), "limit": np.array(40, np.float32)}
    made = load(
        model(graph([node("Loop", ". yes x", "y", body=body)], VECTOR, [port("y")], weights))
    )
    np.testing.assert_array_equal(made(X)["y"].numpy(), X * 16)
    np.testing.assert_array_equal(made(X * 10)["y"].numpy(), X * 20)


def test_a_choice_by_a_computed_condition_takes_the_right_branch_each_time() -> None:
    then = graph([node("Neg", "x", "o")], [], [port("o")])
    other = graph([node("Exp", "x", "o")], [], [port("o")])
    nodes = [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s zero", "q"),
             node("If", "q", "y", then_branch=then, else_branch=other)]  # fmt: skip
    made = load(model(graph(nodes, VECTOR, [port("y")], {"zero": np.array(0, np.float32)})))
    np.testing.assert_array_equal(made(X)["y"].numpy(), -X)
    np.testing.assert_allclose(made(-X)["y"].numpy(), np.exp(-X), rtol=1e-6)
    assert made.builds == 1  # both branches are in one plan


def test_branches_of_different_shapes_are_chosen_by_reading_the_condition() -> None:
    then = graph([node("Concat", "x x", "o", axis=0)], [], [port("o")])
    other = graph([node("Identity", "x", "o")], [], [port("o")])
    nodes = [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s zero", "q"),
             node("If", "q", "y", then_branch=then, else_branch=other)]  # fmt: skip
    made = load(model(graph(nodes, VECTOR, [port("y")], {"zero": np.array(0, np.float32)})))
    assert made(X)["y"].shape == (6,) and made(-X)["y"].shape == (3,)


def test_a_scan_carries_a_state_and_collects_rows() -> None:
    body = graph([node("Add", "s r", "s2"), node("Identity", "s2", "o")],
                 [port("s", shape=[2]), port("r", shape=[2])], [port("s2"), port("o")])  # fmt: skip
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    whole = model(graph([node("Scan", "z x", "last all", body=body, num_scan_inputs=1)],
                        [port("z", shape=[2]), port("x", shape=[4, 2])],
                        [port("last"), port("all")]))  # fmt: skip
    found = load(whole)(np.zeros(2, np.float32), rows)
    np.testing.assert_array_equal(found["all"].numpy(), rows.cumsum(axis=0))
    np.testing.assert_array_equal(found["last"].numpy(), rows.sum(axis=0))


def test_a_function_that_calls_itself_is_an_error() -> None:
    again = function("again", "v", "o", [node("again", "v", "o", domain="mine")])
    whole = model(graph([node("again", "x", "y", domain="mine")], VECTOR, [port("y")]),
                  functions=[again], mine=1)  # fmt: skip
    with pytest.raises(ModelError, match=f"more than {DEEPEST} deep"):
        load(whole)(X)


def test_functions_that_explode_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from fulgurite.onnx import graph as builder

    monkeypatch.setattr(builder, "MOST_NODES", 5000)
    made = [function("f0", "v", "o", [node("Neg", "v", "o")])]
    for i in range(1, 40):
        inner = [
            node(f"f{i - 1}", "v", "a", domain="mine"),
            node(f"f{i - 1}", "a", "o", domain="mine"),
        ]
        made.append(function(f"f{i}", "v", "o", inner))
    whole = model(graph([node("f39", "x", "y", domain="mine")], VECTOR, [port("y")]),
                  functions=made, mine=1)  # fmt: skip
    with pytest.raises(ModelError, match="more than 5000 nodes"):
        load(whole)(X)


def test_a_function_may_leave_inputs_out() -> None:
    clip = function("clip", "v low high", "o", [node("Clip", "v low high", "o")])
    whole = model(
        graph([node("clip", "x . top", "y", domain="mine")], VECTOR, [port("y")],
              {"top": np.array(2, np.float32)}), functions=[clip], mine=1)  # fmt: skip
    assert load(whole)(X)["y"].tolist() == [1, 2, 2]


def test_inputs_of_a_function_that_are_left_out_are_left_out_in_its_branches_too() -> None:
    clipped = graph([node("Clip", "v low", "t")], [], [port("t")])
    negated = graph([node("Neg", "v", "e")], [], [port("e")])
    choice = node("If", "c", "o", then_branch=clipped, else_branch=negated)
    inner = function("maybe", "v c low", "o", [choice])
    call = node("maybe", "x c", "y", domain="mine")
    made = load(
        model(graph([call], [*VECTOR, port("c", "bool", ())], [port("y")]), 20, [inner], mine=1)
    )
    assert made(X, np.array(True))["y"].tolist() == X.tolist()
    assert made(X, np.array(False))["y"].tolist() == (-X).tolist()


def test_sequences_live_while_the_graph_is_built() -> None:
    nodes = [
        node("SequenceConstruct", "x x", "s"), node("SequenceInsert", "s x", "t"),
        node("SequenceErase", "t zero", "u"), node("SequenceAt", "u zero", "a"),
        node("ConcatFromSequence", "u", "c", axis=0), node("Concat", "c a", "y", axis=0),
    ]  # fmt: skip
    found = run(nodes, {"zero": np.array(0, np.int64)}, x=X)
    assert found.tolist() == [*X, *X, *X]
    with pytest.raises(ModelError, match="position 7"):
        run([node("SequenceConstruct", "x", "s"), node("SequenceAt", "s i", "y")],
            {"i": np.array(7, np.int64)}, x=X)  # fmt: skip


def test_a_name_that_nobody_gives_is_an_error() -> None:
    with pytest.raises(ModelError, match="no value 'z'"):
        run([node("Neg", "z", "y")], x=X)


def test_a_loop_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from fulgurite.onnx.ops import control

    monkeypatch.setattr(control, "MOST_STEPS", 20)
    body = loop_body(
        [node("Concat", "v x", "v2", axis=0), node("Identity", "c", "c2")],
        [port("c2", "bool"), port("v2")],
    )
    with pytest.raises(ModelError, match="ever end"):
        run([node("Loop", ". yes x", "y", body=body)], {"yes": np.array(True)}, x=X)


def test_attributes_of_the_wrong_form_are_errors_not_crashes() -> None:
    for axis in (99, -(2**62)):
        with pytest.raises(ModelError):
            load(simple("Concat", 2, axis=axis))(
                np.ones((1, 3), np.float32), np.ones((1, 3), np.float32)
            )


def test_a_pattern_that_could_match_for_ever_is_refused() -> None:
    text = field(1, "x") + field(2, field(1, field(1, 8)))
    whole = model(
        graph([node("RegexFullMatch", "x", "y", pattern="(a+)+b")], [text], [port("y", "bool")])
    )
    with pytest.raises(NotImplementedError, match="repetition"):
        load(whole)(np.array(["aaaa"], object))


def test_an_attribute_of_a_function_reaches_graphs_inside_it() -> None:
    reference = field(1, "alpha") + field(21, "slope") + field(20, 1)
    leaky = field(1, "v") + field(2, "o") + field(4, "LeakyRelu") + field(5, reference)
    then = graph([leaky], [], [port("o")])
    other = graph([node("Identity", "v", "o")], [], [port("o")])
    choice = node("If", "yes", "o", then_branch=then, else_branch=other)
    truth = node("Constant", "", "yes", value=np.array(True))
    inner = function("leak", "v", "o", [truth, choice], attributes=["slope"])
    whole = model(graph([node("leak", "x", "y", domain="mine", slope=0.5)], VECTOR, [port("y")]),
                  functions=[inner], mine=1)  # fmt: skip
    assert load(whole)(-X)["y"].tolist() == [-0.5, -1, -1.5]


def test_before_version_7_the_second_operand_is_broadcast_from_an_axis_on() -> None:
    line = node("Add", "x b", "y", broadcast=1, axis=1)
    whole = model(graph([line], [port("x", shape=[1, 3, 2]), port("b", shape=[3])], [port("y")]), 6)
    found = load(whole)(np.zeros((1, 3, 2), np.float32), X)["y"]
    assert found.tolist() == [[[1, 1], [2, 2], [3, 3]]]


def test_a_standard_operator_in_the_domain_of_microsoft_has_the_standard_meaning() -> None:
    nodes = [node("Unsqueeze", "x axes", "y", domain="com.microsoft")]
    whole = model(graph(nodes, VECTOR, [port("y")], {"axes": np.array([0], np.int64)}),
                  com_microsoft=1)  # fmt: skip
    assert load(whole)(X)["y"].shape == (1, 3)


def test_before_version_7_the_slopes_of_prelu_are_those_of_channels() -> None:
    line = node("PRelu", "x s", "y")
    whole = model(graph([line], [port("x", shape=[1, 3, 2]), port("s", shape=[3])], [port("y")]), 6)
    found = load(whole)(-np.ones((1, 3, 2), np.float32), X)["y"]
    assert found.tolist() == [[[-1, -1], [-2, -2], [-3, -3]]]


@pytest.mark.parametrize(
    ("start", "end", "step", "want"),
    [
        (-9, -(2**62), -2, [1]),  # a backward cut that begins before the front begins there
        (9, -(2**62), -2, [3, 1]),
        (-9, 2**62, 2, [1, 3]),
        (2, 1, 1, []),
        (0, 2, -1, []),
    ],
)
def test_a_slice_is_bounded_as_onnx_bounds_it(
    start: int, end: int, step: int, want: list[int]
) -> None:
    numbers = {
        n: np.array([v], np.int64) for n, v in zip("abcd", (start, end, 0, step), strict=True)
    }
    assert run([node("Slice", "x a b c d", "y")], numbers, x=X).tolist() == want
    shape = node("Shape", "z", "s")
    line = [shape, node("Slice", "s a b c d", "t"), node("ConstantOfShape", "t", "y")]
    assert run(line, numbers, z=np.zeros((1, 2, 3), np.float32)).shape == tuple(want)


def test_a_loop_that_counts_to_the_end_of_days_is_an_error() -> None:
    body = loop_body(
        [node("Add", "v v", "v2"), node("Identity", "c", "c2")],
        [port("c2", "bool"), port("v2")],
    )
    weights = {"n": np.array(2**62, np.int64), "yes": np.array(True)}
    with pytest.raises(ModelError, match="a loop of 4611686018427387904 steps"):
        run([node("Loop", "n yes x", "y", body=body)], weights, x=X)
