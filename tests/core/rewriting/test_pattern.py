"""Tests of fulgurite/core/rewriting/pattern.py: what matches, what is made, and what is counted."""

import pytest

from fulgurite.core.dtype import bool_, float16, float32, int8, int32, uint8
from fulgurite.core.node import Node, constant, constant_like
from fulgurite.core.op import Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import CAST, EXP, NEG, WHERE
from fulgurite.core.ops.leaf import CONST, param, variable
from fulgurite.core.ops.movement import RESHAPE, reshape
from fulgurite.core.rewriting.pattern import (
    Law,
    Rules,
    conditions,
    constant_op,
    constants,
    number,
    p,
    variables,
)
from fulgurite.core.rewriting.rewrite import rewrite

a, b, c = variables("a b c")
(x,) = conditions("x")
k, m = constants("k m")
u, v, w = (param(i, (4,), int32) for i in range(3))
f = param(0, (4,), float32)


def one(left: object, right: object, **options: object) -> Law:
    """A law in a set of its own."""
    return Rules("test").law("law", left, right, **options)  # type: ignore[arg-type]


def test_a_law_reads_as_the_equation_it_is() -> None:
    law = one(a * b + a * c, a * (b + c))
    assert law.apply(u * v + u * w) is u * (v + w)
    assert law.apply(u + v) is None
    assert repr(law) == "law: add(mul(a, b), mul(a, c)) == mul(a, add(b, c))"


@pytest.mark.parametrize(
    "sums", [u * v + u * w, v * u + u * w, u * v + w * u, v * u + w * u], ids=repr
)
def test_either_order_of_commutative_ops_matches(sums: Node) -> None:
    assert one(a * b + a * c, a * (b + c)).apply(sums) is u * (v + w)


def test_matching_goes_back_when_the_first_order_leads_nowhere() -> None:
    law = one((a + b) * a, b)  # b + a fits as a + b first, and then a is the wrong factor
    assert law.apply((v + u) * u) is v
    assert law.apply(u * (u + v)) is v
    assert law.apply((u + v) * w) is None


def test_subtraction_has_one_order() -> None:
    assert one(a - 0, a).apply(constant_like(0, u) - u) is None


def test_a_variable_is_the_same_node_each_time() -> None:
    law = one(a - a, 0)
    assert law.apply(u - u) is constant_like(0, u)
    assert law.apply(u - v) is None


def test_a_number_matches_by_bits_in_every_dtype_and_shape() -> None:
    law = one(a + 0, a)
    for dtype in (int8, uint8, float16, float32):
        for shape in ((), (4,), (2, 3)):
            y = param(7, shape, dtype)
            assert law.apply(y + constant_like(0, y)) is y
            assert law.apply(constant_like(0, y) + y) is y
    assert law.apply(f + constant_like(-0.0, f)) is None
    assert one(a + -0.0, a).apply(f + constant_like(-0.0, f)) is f
    assert one(a + -0.0, a).apply(f + constant_like(0.0, f)) is None


def test_a_number_that_a_dtype_does_not_have_matches_nothing_in_it() -> None:
    law = one(a * 300, a)
    byte = param(0, (4,), uint8)
    assert law.apply(byte * constant_like(300 % 256, byte)) is None
    assert law.apply(u * constant_like(300, u)) is u
    assert one(a * 0.5, a).apply(u * constant_like(0, u)) is None


def test_a_number_may_depend_on_the_dtype() -> None:
    top = number("top", lambda d: d.limits[1] if d.is_integer else None)
    law = one(a & top, a)
    byte = param(0, (4,), uint8)
    assert law.apply(byte & constant_like(255, byte)) is byte
    assert law.apply(u & constant_like(255, u)) is None
    assert law.apply(u & constant_like(2**31 - 1, u)) is u


def test_a_number_on_the_right_has_the_dtype_and_shape_of_what_was_matched() -> None:
    assert one(a - a, 0).apply(f - f) is constant(0.0, float32, (4,))
    assert one(a < a, False).apply(f < f) is constant(False, bool_, (4,))


def test_a_number_beside_a_source_has_the_dtype_of_that_source() -> None:
    law = one(p(EXP, a), p(WHERE, a < 0, -a, 1))
    made = law.apply(EXP(f))
    assert made is WHERE(f < constant_like(0.0, f), NEG(f), constant_like(1.0, f))
    choice = one(~x, p(WHERE, x, False, True))
    condition = param(0, (4,), bool_)
    assert choice.apply(~condition) is WHERE(
        condition, constant(False, bool_, (4,)), constant(True, bool_, (4,))
    )


def test_a_symbolic_shape_is_kept() -> None:
    n = variable("n", 1, 9)
    y = param(0, (n, 2), int32)
    assert one(a - a, 0).apply(y - y) is constant(0, int32, (n, 2))


def test_an_argument_is_exact_or_a_predicate_or_not_looked_at() -> None:
    half, wide = CAST(f, arg=float16), CAST(f, arg=int32)
    exact = one(p(CAST, a, arg=float16), a)
    assert (exact.apply(half), exact.apply(wide)) == (f, None)
    whole = one(p(CAST, a, arg=lambda dtype: dtype.is_integer), a)
    assert (whole.apply(half), whole.apply(wide)) == (None, f)
    assert one(p(CAST, a), a).apply(half) is f
    made = one(p(EXP, a), p(CAST, a, arg=float32)).apply(EXP(f))
    assert made is CAST(f, arg=float32)


def test_a_variable_may_stand_for_constants_or_bools_or_what_a_test_allows_only() -> None:
    two, three = constant_like(2, u), constant_like(3, u)
    assert one((a + k) + m, a + (k + m)).apply((u + two) + three) is u + (two + three)
    assert one((a + k) + m, a + (k + m)).apply((u + v) + three) is None
    assert one(x & x, x).apply(u & u) is None
    (odd,) = constants("odd", test=lambda node: int(node.arg[0]) % 2 == 1)
    assert one(a * odd, a).apply(u * three) is u
    assert one(a * odd, a).apply(u * two) is None


def test_sizes_among_the_sources_are_not_matched() -> None:
    n = variable("n", 1, 9)
    y = param(0, (n, 2), int32)
    law = one(p(RESHAPE, p(RESHAPE, a)), a)
    assert law.apply(reshape(reshape(y, (2, n)), (n, 2))) is y


def test_when_speaks_of_the_dtype_of_the_operands() -> None:
    law = one(a <= a, True, when=lambda dtype: dtype.is_integer)
    assert law.apply(u <= u) is constant(True, bool_, (4,))
    assert law.apply(f <= f) is None
    deep = one(~(a < b), b <= a, when=lambda dtype: dtype.is_integer)
    assert deep.apply(~(u < v)) is (v <= u)
    assert deep.apply(~(f < f)) is None


def test_an_unwrapped_law_needs_bounds_that_show_that_nothing_wraps() -> None:
    law = one((a * k) // k, a, unwrapped=True)
    small, seven = variable("i", 0, 100, (4,), int32), constant_like(7, u)
    assert law.apply((small * seven) // seven) is small
    assert law.apply((u * seven) // seven) is None
    sum_ = one(a + k < m, a < m - k, unwrapped=True)
    lowest = constant_like(-(2**31), u)
    assert sum_.apply(small + seven < seven) is (small < seven - seven)
    assert sum_.apply(small + seven < lowest) is None  # the right side would wrap


def test_a_rule_is_asked_about_every_match_until_it_answers() -> None:
    rules = Rules("test")
    asked: list[tuple[Node, Node]] = []

    @rules.rule(a + b)
    def second_is_v(node: Node, a: Node, b: Node) -> Node | None:
        """Answers one order only."""
        asked.append((a, b))
        return b if b is v else None

    assert rules.first(v + u) == (rules.rules[0], v)
    assert asked == [(v, u), (u, v)]
    assert rules.first(u + w) is None


def test_a_rule_takes_only_the_variables_it_names() -> None:
    rules = Rules("test")

    @rules.rule(a * (b + c), a * (b - c))
    def keep_b(node: Node, b: Node) -> Node:
        """One function for two patterns."""
        return b

    assert [rule.name for rule in rules.rules] == ["keep_b", "keep_b"]
    assert rewrite(u * (v - w), rules) is v
    assert rewrite((v + w) * u, rules) is v


def test_a_rule_may_match_any_op_of_a_family_on_constants() -> None:
    rules = Rules("test")
    rules.rule(constant_op("elementwise"))(lambda node: constant_like(9, node))
    one_, two = constant_like(1, u), constant_like(2, u)
    assert rules.first(one_ + two) == (rules.rules[0], constant_like(9, u))
    assert rules.first(one_ + u) is None
    assert rules.first(u) is None


def test_the_first_rule_wins_and_one_that_gives_back_the_node_does_not_count() -> None:
    rules = Rules("test")
    rules.law("same", a - b, a - b)
    rules.law("left", a - b, a)
    rules.law("right", a - b, b)
    assert rules.first(u - v) == (rules.rules[1], u)


def test_a_law_that_is_added_later_is_used() -> None:
    rules = Rules("test")
    rules.law("one", a * 1, a)
    assert rewrite(u + constant_like(0, u), rules) is not u
    rules.law("zero", a + 0, a)
    assert rewrite(u + constant_like(0, u), rules) is u


def test_a_right_side_with_a_new_variable_is_refused() -> None:
    with pytest.raises(AssertionError, match="new variables"):
        one(a + b, a * c)
    with pytest.raises(AssertionError, match="every node"):
        one(a, a)


def test_the_generated_matcher_can_be_read() -> None:
    text = one(a * 1, a).source
    assert text.startswith("def match(node):")
    assert "for n0, n1 in (node.src, node.src[::-1]):" in text


def test_an_op_declared_at_run_time_takes_part_in_laws() -> None:
    twice = Op(
        name="test_pattern_twice",
        family="elementwise",
        doc="a + a",
        arity=1,
        numpy=lambda node, array: array + array,
    )
    try:
        law = one(p(twice, a), a * 2)
        assert law.apply(twice(u)) is u * 2
        assert law.apply(NEG(u)) is None
    finally:
        del OPS["test_pattern_twice"]


def test_constants_have_no_rule_of_their_own() -> None:
    rules = Rules("test")
    rules.rule(p(CONST))(lambda node: None)
    assert rules.first(constant_like(1, u)) is None
