"""Tests of core/rewriting/rewrite.py: bottom-up, to the end, at any depth, and never for ever."""

import sys
from dataclasses import dataclass

import pytest

from fulgurite.core.dtype import float32, int32
from fulgurite.core.node import Node, annotate, constant_like, remember, toposort
from fulgurite.core.ops.effect import HostFunction, custom
from fulgurite.core.ops.elementwise import EXP, NEG, SIN
from fulgurite.core.ops.leaf import SINK, param, variable
from fulgurite.core.ops.movement import reshape
from fulgurite.core.origin import Origin
from fulgurite.core.rewriting.pattern import Rule, Rules, p, variables
from fulgurite.core.rewriting.rewrite import rewrite
from fulgurite.core.shape import mul
from fulgurite.errors import RewriteError

a, b, c = variables("a b c")
x, y, z = (param(i, (4,), float32) for i in range(3))
zero, one = constant_like(0, x), constant_like(1, x)

NEGATIONS = Rules("negations")
NEGATIONS.law("neg-neg", p(NEG, p(NEG, a)), a)
NEGATIONS.law("mul-one", a * 1, a)


def twice(node: Node) -> Node:
    """Negated twice."""
    return NEG(NEG(node))


@dataclass(frozen=True)
class Note:
    """Metadata of the tests."""

    text: str


def test_a_replacement_is_rewritten_too() -> None:
    assert rewrite(twice(x * one) * one, NEGATIONS) is x
    rules = Rules("test")
    rules.law("exp", p(EXP, a), p(NEG, p(NEG, a)))
    rules.law("neg-neg", p(NEG, p(NEG, a)), a)
    assert rewrite(EXP(EXP(x)), rules) is x


def test_what_no_rule_touches_stays_the_same_object() -> None:
    graph = EXP(x + y) * SIN(x + y)
    assert rewrite(graph, NEGATIONS) is graph


def test_a_shared_node_is_matched_once() -> None:
    seen: list[Node] = []
    rules = Rules("test")

    @rules.rule(p(EXP, a))
    def note(node: Node, a: Node) -> None:
        """Only looks."""
        seen.append(node)

    shared = EXP(x)
    rewrite((shared + y) * (shared - y), rules)
    assert seen == [shared]


def test_many_roots_are_rewritten_in_one_walk() -> None:
    assert rewrite(SINK(twice(x), y * one, x), NEGATIONS) is SINK(x, y, x)


def test_a_chain_of_50_000_is_rewritten_without_recursion() -> None:
    depth = 50_000
    plain = noisy = x
    for _ in range(depth):
        plain = EXP(plain)
    assert rewrite(plain, NEGATIONS) is plain
    for i in range(depth // 4):
        noisy = twice(EXP(noisy * one)) if i % 2 else EXP(noisy)
    result = rewrite(noisy, NEGATIONS)
    assert len(toposort([result])) == depth // 4 + 1
    assert sys.getrecursionlimit() < depth


def test_a_long_chain_of_replacements_does_not_run_out_of_fuel() -> None:
    chain = x
    for _ in range(40_000):
        chain = chain * one
    assert rewrite(chain, NEGATIONS) is x


def test_rules_that_undo_each_other_end_in_an_error_that_names_them() -> None:
    rules = Rules("test")
    rules.law("innocent", a * 1, a)
    rules.law("to-sub", a + -b, a - b)
    rules.law("to-add", a - b, a + -b)
    with pytest.raises(RewriteError, match=r"leads back to it.*to-\w+ \(1x\), to-\w+ \(1x\)") as e:
        rewrite((x - y) * one, rules)
    assert "innocent" not in str(e.value)


def test_a_rule_that_wraps_what_it_matched_ends_in_an_error() -> None:
    rules = Rules("test")
    rules.rule(p(EXP, a))(_wrap)
    with pytest.raises(RewriteError, match=r"_wrap \(1x\)"):
        rewrite(EXP(x), rules)


def _wrap(node: Node, a: Node) -> Node:
    return NEG(node)


def test_rules_that_grow_for_ever_run_out_of_fuel() -> None:
    rules = Rules("test")
    rules.law("grow", a + b, (a * 1) + (b * 1))
    rules.law("harmless", p(NEG, p(NEG, a)), a)
    with pytest.raises(RewriteError, match=r"did not end in 50 steps.*grow \(51x\)"):
        rewrite(twice(x + y), rules, fuel=50)
    with pytest.raises(RewriteError, match="grow"):
        rewrite(x + y, rules)


def test_fuel_is_enough_if_it_is_just_enough() -> None:
    graph = twice(x) * one
    assert rewrite(graph, NEGATIONS, fuel=2) is x
    with pytest.raises(RewriteError):
        rewrite(graph, NEGATIONS, fuel=1)


def test_metadata_of_a_root_survives_whatever_happens_to_it() -> None:
    note = Note("keep me")
    replaced = rewrite(annotate(twice(EXP(x)), note), NEGATIONS)
    assert (replaced.op, replaced.src, replaced.meta) == (EXP, (x,), note)
    rebuilt = rewrite(annotate(EXP(twice(x)), note), NEGATIONS)
    assert (rebuilt.op, rebuilt.src, rebuilt.meta) == (EXP, (x,), note)
    untouched = annotate(EXP(x), note)
    assert rewrite(untouched, NEGATIONS) is untouched
    assert EXP(x).meta is None, "the interned node has none"


def test_metadata_inside_a_graph_survives_too() -> None:
    note = Note("inner")
    inner = annotate(twice(EXP(x)), note)
    result = rewrite(SIN(inner), NEGATIONS)
    assert result.src[0].meta == note
    assert result.src[0].op is EXP


def test_a_replacement_remembers_the_lines_of_what_it_replaces() -> None:
    code = twice.__code__
    line, other = Origin(code, 0, ("first",)), Origin(code, 0, ("second",))
    graph = remember(twice(remember(SIN(y), [line])), [other])
    assert rewrite(graph, NEGATIONS) is SIN(y)
    assert SIN(y).origins == (line, other)


def test_a_node_that_becomes_one_already_done_is_remembered_too() -> None:
    line = Origin(twice.__code__, 0, ("third",))
    first, second = twice(SIN(z)), remember(NEG(NEG(SIN(z)) * one), [line])
    assert rewrite(SINK(first, second), NEGATIONS) is SINK(SIN(z), SIN(z))
    assert SIN(z).origins == (line,)


def test_sizes_keep_their_own_normal_form() -> None:
    n = variable("n", 1, 9)
    double = mul(n, 2)
    rules = Rules("test")
    rules.law("shift", a * 2, a + a)
    data = param(0, (n, 2), int32)
    flat = reshape(data, (double,))
    assert rewrite(flat, rules) is flat
    assert isinstance(double, Node)
    assert rewrite(double, rules) is n + n, "as a value it is rewritten"
    host = HostFunction("test", lambda array: array)
    call = custom(host, (double,), (double,), int32)
    assert rewrite(call, rules).src == (n + n, double)


def test_every_firing_can_be_watched() -> None:
    steps: list[tuple[str, Node, Node]] = []

    def watch(rule: Rule, before: Node, after: Node) -> None:
        steps.append((rule.name, before, after))

    rewrite(twice(x * one), NEGATIONS, watch=watch)
    assert steps == [("mul-one", x * one, x), ("neg-neg", twice(x), x)]
