"""Bodies, loops and choices as nodes: equality, meaning, what the verifier says, keys and text."""

from __future__ import annotations

import numpy as np
import pytest

from fulgurite.core.build import cast
from fulgurite.core.dtype import bfloat16, bool_, float32, float64, int8, int32
from fulgurite.core.gradient import gradients
from fulgurite.core.node import Node, constant, toposort
from fulgurite.core.ops.body import Body, close, invariant
from fulgurite.core.ops.control import COND, LOOP, Loop, choice, loop
from fulgurite.core.ops.effect import DETACH, HostFunction, custom, watch
from fulgurite.core.ops.elementwise import EXP
from fulgurite.core.ops.leaf import SINK, new_buffer, param
from fulgurite.core.ops.movement import expand, permute
from fulgurite.core.text import parse, show
from fulgurite.errors import ArgumentError, ParseError
from fulgurite.graph.ir.cache_key import normalize
from fulgurite.runtime.host.evaluate import evaluate


def inner(number: int, *shape: int) -> Node:
    return param(number, shape, float64, None)


def counter(steps: int = 3, mode: str = "all") -> Loop:
    """Adds 1 to a whole number in every step, and gives its double."""
    now = param(0, (), int32, None)
    return loop(Body(SINK(now + 1, now * 2)), [param(0, (), int32)], [], [], steps, mode=mode)


def test_equal_graphs_are_equal_bodies() -> None:
    a, b = Body(SINK(inner(0) + 1.0)), Body(SINK(inner(0) + 1.0))
    assert a == b and hash(a) == hash(b) and a is not b
    assert a != Body(SINK(inner(0) + 2.0)) and a != "a body"
    assert counter().item(0) is counter().item(0)


def test_a_body_reads_its_params_only_and_takes_the_rest_as_inputs() -> None:
    x, w = new_buffer((3,), float64), new_buffer((3,), float64)
    body, taken = close([x * EXP(w)], [x], lambda n: n is w)
    assert taken == [w] and body == Body(SINK(inner(0, 3) * EXP(inner(1, 3))))
    body, taken = close([x * EXP(w)], [x], lambda n: n.op is EXP)
    assert taken == [EXP(w)] and body == Body(SINK(inner(0, 3) * inner(1, 3)))


def test_what_was_watched_in_a_body_is_watched_no_more() -> None:
    x = new_buffer((), float64)
    seen = watch(x, 5)
    body, _ = close([watch(seen * seen, 6)], [x], lambda n: False)
    assert body == Body(SINK(inner(0) * inner(0)))


def test_params_take_each_others_numbers_at_once() -> None:
    a, b = inner(0, 2), inner(1, 2)
    body, _ = close([a - b], [b, a], lambda n: False)
    assert body == Body(SINK(inner(1, 2) - inner(0, 2)))


def test_what_only_moves_or_is_made_of_constants_stays_in_the_body() -> None:
    x, w = new_buffer((2, 2), float64), new_buffer((2, 2), float64)
    moved = expand(permute(w, (1, 0)), (2, 2))
    fixed = EXP(constant(1.0, float64, (2, 2)))
    root = x * EXP(moved) + fixed + moved
    taken = close([root], [x], invariant(toposort([root]), frozenset()))[1]
    assert taken == [EXP(moved), w]
    own = close([root], [x], invariant(toposort([root]), {EXP(moved)}))[1]
    assert own == [w]


def test_bytes_are_widened_in_the_body_that_multiplies_them() -> None:
    x, w = new_buffer((4,), int32), new_buffer((4,), int8)
    root = x * cast(w, int32)
    taken = close([root], [x], invariant(toposort([root]), frozenset()))[1]
    assert taken == [w]
    narrow = cast(x, int8)
    assert close([narrow * w], [w], invariant(toposort([narrow]), frozenset()))[1] == [narrow]


def test_the_plain_body_has_nothing_for_gradients_at_any_depth() -> None:
    step = Body(SINK(DETACH(inner(0)) * 2.0))
    nested = Body(SINK(DETACH(loop(step, [inner(0)], [], [], 3).item(0))))
    plain = nested.plain
    assert all(n.op is not DETACH for n in plain.order)
    (found,) = [n for n in plain.order if n.op is LOOP]
    assert found.arg[1] == Body(SINK(inner(0) * 2.0))
    x = new_buffer((), float64)
    keys = [normalize([loop(b, [x], [], [], 2).item(0)]).key for b in (nested, plain)]
    assert keys[0] == keys[1]


def test_a_loop_means_its_steps_and_keeps_what_was_before_each() -> None:
    found = counter()
    start = found.src[0]
    items = [found.item(i) for i in range(3)]
    last, given, trail = evaluate(items, {start: np.array(5, np.int32)})
    assert last == 8 and given.tolist() == [10, 12, 14] and trail.tolist() == [5, 6, 7]


def test_rows_of_steps_that_did_not_happen_are_zero() -> None:
    now = param(1, (), int32, None)
    more = Body(SINK((now + 1) < 7, now + 1, now))
    starts = [param(0, (), bool_), param(1, (), int32)]
    bounded = loop(more, starts, [], [], 5, mode="while")
    arrays = {starts[0]: np.array(True), starts[1]: np.array(5, np.int32)}
    items = [bounded.item(i) for i in (1, 2, 3, 4)]
    last, given, seen, trail = evaluate(items, arrays)
    assert last == 7
    assert given.tolist() == trail.tolist() == [5, 6, 0, 0, 0]
    assert seen.tolist() == [True, True, False, False, False]

    mask, rows = param(0, (4,), bool_), param(1, (4,), float64)
    chosen = loop(
        Body(SINK(inner(0) + inner(2), inner(0))), [param(2, (), float64)], [mask, rows], [], 4,
        True, "where",
    )  # fmt: skip
    data = {
        mask: np.array([True, False, True, True]), rows: np.array([1.0, 10.0, 100.0, 1000.0]),
        chosen.src[0]: np.array(0.0),
    }  # fmt: skip
    total, before = evaluate([chosen.item(0), chosen.item(1)], data)
    assert total == 1101 and before.tolist() == [1100.0, 0.0, 1000.0, 0.0]


def test_several_results_are_differentiated_by_one_loop() -> None:
    body = Body(SINK(inner(0) * inner(1), inner(0) + inner(1)))
    whole = loop(body, [param(0, (), float64)], [param(1, (4,), float64)], [], 4)
    seeds = [constant(1.0, float64), constant(1.0, float64, (4,))]
    found = gradients([whole.item(0), whole.item(1)], list(whole.src), seeds)
    nodes = [n for n in toposort([n for n in found if n is not None]) if n.op is LOOP]
    assert len({(n.src, n.arg[1:]) for n in nodes}) == 2  # the loop and its gradient


def test_small_floats_are_added_up_in_float32() -> None:
    row, same = param(1, (), bfloat16, None), param(2, (), bfloat16, None)
    carry = param(0, (), bfloat16, None)
    sources = [param(0, (), bfloat16), param(1, (1000,), bfloat16), param(2, (), bfloat16)]
    whole = loop(Body(SINK(carry + row * same)), sources[:1], sources[1:2], sources[2:], 1000)
    (slope,) = gradients([whole.item(0)], sources[2:], [constant(1.0, bfloat16)])
    assert slope is not None and slope.dtype is bfloat16
    arrays = {s: np.ones([1000] * s.ndim, s.dtype.numpy) for s in sources}
    assert float(evaluate([slope], arrays)[0]) == 1000.0  # ones added in bfloat16 stop at 256


def wrong_loops() -> list[tuple[Node, str]]:
    body = Body(SINK(inner(0, 2) + inner(1, 2)))
    start, rows = param(0, (2,), float64), param(1, (3, 2), float64)
    good = loop(body, [start], [rows], [], 3)
    return [
        (good._replace(src=(rows, rows)).item(0), "input 0"),
        (good._replace(dim=4).item(0), "one row for each"),
        (good._replace(mode="until").item(0), "'until'"),
        (good._replace(mode="while").item(0), "a bool that decides"),
        (good._replace(mode="where").item(0), "a bool that decides"),
        (good._replace(src=(start,), scanned=0).item(0), "input 1 of 1"),
        (good._replace(body=Body(SINK(inner(1, 2).eq(inner(0, 2))))).item(0), "carry 0 becomes"),
        (good._replace(carries=3).item(0), "too few"),
    ]  # fmt: skip


@pytest.mark.parametrize(("node", "words"), wrong_loops())
def test_a_loop_that_does_not_fit_is_found_by_the_verifier(node: Node, words: str) -> None:
    assert words in (LOOP.check(node) or "")


def test_a_choice_that_does_not_fit_is_found_by_the_verifier() -> None:
    then, other = Body(SINK(inner(0, 2))), Body(SINK(inner(0, 2) * 2.0))
    pred, x = param(0, (), bool_), param(1, (2,), float64)
    assert COND.check(choice(pred, then, other, [x])[0]) is None
    assert "a bool" in (COND.check(choice(x, then, other, [x])[0]) or "")
    assert "input 0 of 0" in (COND.check(choice(pred, then, other, [])[0]) or "")
    narrow = Body(SINK(constant(1.0, float32, (2,))))
    assert "both bodies" in (COND.check(choice(pred, then, narrow, [x])[0]) or "")


def test_bodies_come_back_from_text_and_wrong_ones_are_errors() -> None:
    node = counter().item(1)
    assert parse(show(node)) is node
    with pytest.raises(ParseError, match="in a body, line 1"):
        parse("%0 = loop(0, &'nonsense', 0, 0, 3, False, 'all') : int32[]\nreturn %0")
    with pytest.raises(ParseError, match="returns a sink"):
        text = r"%0 = const 1 : int32[]\nreturn %0"
        parse(f"%0 = loop(0, &'{text}', 0, 0, 3, False, 'all') : int32[]\nreturn %0")


def test_the_digest_of_a_loop_is_the_same_for_equal_bodies_and_knows_its_host_functions() -> None:
    x = new_buffer((), int32)

    def key(by: int) -> str:
        now = param(0, (), int32, None)
        return normalize([loop(Body(SINK(now + by)), [x], [], [], 3).item(0)]).digest

    assert key(1) == key(1) != key(2)
    host = HostFunction("nobody.registered.this", lambda a: a)
    body = Body(SINK(custom(host, (param(0, (), int32, None),), (), int32)))
    with pytest.raises(ArgumentError, match="no stable name"):
        assert normalize([loop(body, [x], [], [], 3).item(0)]).digest


def test_watched_params_take_each_others_numbers_too() -> None:
    a, b = inner(0, 2), inner(1, 2)
    body, _ = close([watch(a, 3) - watch(b, 3)], [b, a], lambda n: False)
    assert body == Body(SINK(inner(1, 2) - inner(0, 2)))
