"""EXAMPLE and OVERRIDE: batches made of graphs of one example, and gradient rules of one's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fulgurite.core.gradient import gradient, gradients
from fulgurite.core.node import Node, constant
from fulgurite.core.ops.effect import ASSIGN, watch
from fulgurite.core.ops.elementwise import ADD
from fulgurite.core.ops.leaf import CONST
from fulgurite.core.ops.movement import EXPAND, expand, reshape
from fulgurite.core.ops.transform import EXAMPLE, Rule, batched, new_batch, override, spread
from fulgurite.errors import ArgumentError
from fulgurite.graph.ir.cache_key import normalize
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.samples import leaf


def test_what_does_not_depend_on_an_example_is_left_as_it_is() -> None:
    x, shared, batch = leaf(np.ones((4, 3))), leaf(np.ones(3)), new_batch()
    one = EXAMPLE(x, arg=batch)
    outside = shared * 2.0
    (y, has_axis), (same, none) = batched([one * outside, outside], batch)
    assert has_axis and y.shape == (4, 3)
    assert same is outside and not none


def test_examples_of_another_batch_stay() -> None:
    x, inner, outer = leaf(np.ones((4, 3))), new_batch(), new_batch()
    one = EXAMPLE(EXAMPLE(x, arg=outer), arg=inner)
    ((y, _),) = batched([one * 2.0], inner)
    assert y.shape == (3,)
    ((z, _),) = batched([y], outer)
    assert z.shape == (4, 3)
    assert evaluate([z], {x: np.ones((4, 3))})[0].tolist() == [[2.0] * 3] * 4


def test_a_shared_value_is_spread_without_hiding_what_it_expands() -> None:
    x = leaf(np.ones((1, 3)))
    wide = spread(expand(x, (5, 3)), 4)
    assert wide.op is EXPAND and wide.shape == (4, 5, 3) and wide.src[0].shape == (1, 1, 3)
    assert spread(constant(2.0, x.dtype, (3,)), 4).op is CONST
    assert spread(reshape(x, (3,)), 4).shape == (4, 3)


def test_an_example_has_no_value() -> None:
    x = leaf(np.ones((4, 3)))
    with pytest.raises(ArgumentError, match="value of one example or rank is not known"):
        evaluate([EXAMPLE(x, arg=1) + 1.0], {x: np.ones((4, 3))})
    assert EXAMPLE.check(EXAMPLE(leaf(np.ones(())), arg=1)) == "a number holds no examples"


def test_one_example_does_not_assign_memory_of_all() -> None:
    x, memory, batch = leaf(np.ones((4, 3))), leaf(np.ones(3)), new_batch()
    with pytest.raises(ArgumentError, match="return the value"):
        batched([ASSIGN(memory, EXAMPLE(x, arg=batch))], batch)


def test_an_example_is_watched_as_its_batch_is() -> None:
    x = watch(leaf(np.ones((4, 3))), 7)
    assert EXAMPLE(x, arg=1).watched == {7}


# --- rules ---------------------------------------------------------------------------------------


def test_a_rule_stands_in_for_the_gradient_of_the_value() -> None:
    x = leaf(np.array([1.0, 2.0]))
    rule = Rule("triple", lambda flows, x: [None if f is None else f * 3.0 for f in flows])
    y = override(rule, 0, x * x, [x])
    (slope,) = gradient(y * 2.0, [x])
    assert slope is not None
    assert evaluate([y, slope], {x: np.array([1.0, 2.0])})[0].tolist() == [1.0, 4.0]
    assert evaluate([slope], {x: np.array([1.0, 2.0])})[0].tolist() == [6.0, 6.0]


def test_a_rule_gets_the_gradients_of_all_results_at_once() -> None:
    calls: list[Sequence[Node | None]] = []

    def backward(flows: Sequence[Node | None], x: Node) -> list[Node | None]:
        calls.append(flows)
        given = [f for f in flows if f is not None]
        return [ADD(given[0], given[1]) if len(given) == 2 else given[0]]

    x = leaf(np.ones(2))
    rule = Rule("pair", backward, results=3)
    a, b, unused = (override(rule, i, x * float(i), [x]) for i in range(3))
    (slope,) = gradient(a * 5.0 + b * a, [x])  # b is met by the walk before all of a is known
    assert slope is not None and len(calls) == 1
    assert calls[0][0] is not None and calls[0][1] is not None and calls[0][2] is None
    assert evaluate([slope], {x: np.ones(2)})[0].tolist() == [6.0, 6.0]
    both = gradients([a, unused], [x], [constant(1.0, x.dtype, (2,))] * 2)
    assert both[0] is not None and len(calls) == 2


def test_results_of_a_batched_rule_stay_one_call() -> None:
    calls: list[int] = []

    def backward(flows: Sequence[Node | None], x: Node) -> list[Node | None]:
        calls.append(x.ndim)
        return [None if flows[0] is None else flows[0] * x]

    x, batch = leaf(np.ones((4, 2))), new_batch()
    one = EXAMPLE(x, arg=batch)
    rule = Rule("pair", backward, results=2)
    pair = [override(rule, i, one, [one]) for i in (0, 1)]
    (a, _), (b, _) = batched(pair, batch)
    assert a.arg[0] is b.arg[0] is not rule
    (slope,) = gradient(a + b, [x])
    assert slope is not None and slope.shape == (4, 2) and calls == [1]


def test_the_key_of_a_graph_looks_through_a_rule() -> None:
    x, residual = leaf(np.ones(2)), leaf(np.ones(5))
    rule = Rule("r", lambda flows, *inputs: [None] * len(inputs))
    seen = normalize([override(rule, 0, x * 2.0, [x, residual]) + 1.0])
    assert seen.key == normalize([x * 2.0 + 1.0]).key
    assert seen.buffers == (x,)


def test_a_rule_decides_what_is_watched() -> None:
    rule = Rule("r", lambda flows, x: [None])
    hidden, x = watch(leaf(np.ones(2)), 3), watch(leaf(np.ones(2)), 4)
    assert override(rule, 0, hidden, [x]).watched == {4}
    assert _problem(rule) == "2 is no result of @r"


def _problem(rule: Rule) -> str | None:
    node = override(rule, 2, leaf(np.ones(2)), [])
    return node.op.check(node)
