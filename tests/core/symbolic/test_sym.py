"""Sizes that vary: ints that remember how they came about, and what was decided because of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fulgurite.core.symbolic.polynomial import evaluator
from fulgurite.core.symbolic.sym import Trace, choosing, guard_texts, least, plain, varies
from fulgurite.runtime.sizes.specialize import acceptor


def traced(ragged: bool = False, **hints: int) -> tuple[Trace, list[Any]]:
    trace = Trace(hints, ragged)
    return trace, [trace.variable(name) for name in hints]


def expression(choose: random.Random, depth: int) -> Callable[[int, int], int]:
    """Arithmetic and decisions as a compiler has them, of two sizes."""
    if depth == 0:
        number = choose.randint(1, 9)
        return choose.choice([lambda a, b: a, lambda a, b: b, lambda a, b: number])
    x, y = expression(choose, depth - 1), expression(choose, depth - 1)
    by = choose.choice([2, 3, 8, 16])
    return choose.choice([
        lambda a, b: x(a, b) + y(a, b),
        lambda a, b: x(a, b) - y(a, b),
        lambda a, b: x(a, b) * y(a, b),
        lambda a, b: x(a, b) // by,
        lambda a, b: -(-x(a, b) // by) * by,
        lambda a, b: x(a, b) % by,
        lambda a, b: min(x(a, b), y(a, b)),
        lambda a, b: x(a, b) if x(a, b) > y(a, b) else by,
        lambda a, b: x(a, b) & -by,
        lambda a, b: len(range(x(a, b) % by)),
    ])  # fmt: skip


def test_arithmetic_agrees_with_ints_at_all_sizes_that_pass_the_guards() -> None:
    choose = random.Random(0)
    accepted = 0
    for _ in range(300):
        run = expression(choose, 3)
        trace, (a, b) = traced(a=choose.randint(2, 60), b=choose.randint(2, 60))
        found: Any = run(a, b)
        accepts = acceptor(trace)
        at = evaluator([found.key if varies(found) else (((), found),)], ["a", "b"])
        for _ in range(20):
            sizes = choose.randint(2, 80), choose.randint(2, 80)
            if accepts(*sizes):
                accepted += 1
                assert at(*sizes)[0] == run(*sizes), guard_texts(trace)
    assert accepted > 1000


@pytest.mark.parametrize("ragged", [False, True])
def test_a_decision_is_a_range_of_sizes(ragged: bool) -> None:
    trace, (n,) = traced(ragged, n=100)
    assert n * 4 > 64 and n // 16 < 20
    assert guard_texts(trace) == ["17 <= n <= 319"]
    assert n >= 2 and n * 8 >= 16 and n * n > n  # which bounds say: 0 and 1 stay apart
    assert guard_texts(trace) == ["17 <= n <= 319"]


def test_equal_even_and_one_are_guards() -> None:
    trace, (n, m) = traced(n=8, m=8)
    assert n == m and n % 2 == 0 and n != 1
    accepts = acceptor(trace)
    assert accepts(6, 6) and not accepts(6, 8) and not accepts(7, 7) and not accepts(1, 1)


def test_whoever_needs_a_number_pins_the_size() -> None:
    for use in (range, lambda n: [0] * n, lambda n: "abcdefghij"[n], int, float, hash, str):
        trace, (n,) = traced(n=7)
        use(n)
        assert guard_texts(trace)[1:] == ["(-7 + n) == 0"], use


def test_a_size_never_meets_the_number_that_it_happens_to_be() -> None:
    _, (n,) = traced(True, n=64)
    assert isinstance(n, int) and hash((n, 3)) != hash((64, 3))
    assert {n: "size", 64: "number"}[n] == "size" and hash(n + 1) == hash(1 + n)
    assert type(n - n) is int and varies(n * 3 // 3) and (n * 3) // n == 3


def test_costs_are_compared_without_guards() -> None:
    trace, (n,) = traced(True, n=100)
    with choosing():
        assert n * 0.5 > 49 and n > 3 * 20 and n != 100
        with choosing(False):
            assert n > 10
    assert plain(n) == 100 and trace.chosen
    assert guard_texts(trace) == ["11 <= n"]


def test_the_least_of_two_is_an_expression() -> None:
    trace, (n,) = traced(n=100)
    at = evaluator([least(n, 64).key], ["n"])
    assert at(3) == (3,) and at(99) == (64,) and least(n, 1) == 1 and least(3, 5) == 3
    assert guard_texts(trace) == ["2 <= n"]


def test_a_size_in_text_is_a_register() -> None:
    trace, (n,) = traced(True, n=5)
    token = f"{n * 2}"
    assert token.startswith("%sym.") and str(n * 2) == token
    assert trace.sym(int(token.split(".")[2])).key == (n * 2).key


def test_a_plan_after_an_interrupt_amid_costs_has_its_guards() -> None:
    interrupted = choosing()
    interrupted.__enter__()  # and is never left: that was interrupted too
    try:
        trace, (n,) = traced(n=4)
        assert n == 4 and n < 9
        known = guard_texts(trace)
        assert known == ["2 <= n <= 8", "(-4 + n) == 0"] and not trace.chosen
        with choosing():
            assert n < 6 and trace.chosen
        assert guard_texts(trace) == known
    finally:
        interrupted.__exit__(None, None, None)
