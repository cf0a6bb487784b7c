"""Tests of graph/passes/simplify.py and laws.py: what becomes what, and that nothing changes.

EXAMPLES reads as documentation: before, after. They are also the corpus, with instances of every
law and random graphs, on which every firing of every rule is evaluated before and after.
"""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core.dtype import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    complex64,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
)
from fulgurite.core.node import Node, constant, constant_like, toposort
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import CONTIGUOUS, DETACH, copy_to
from fulgurite.core.ops.elementwise import BITCAST, CAST, EXP, FLOOR, MAX, MIN, SQRT, WHERE
from fulgurite.core.ops.leaf import SINK, iota, param, variable
from fulgurite.core.ops.movement import (
    EXPAND,
    FLIP,
    PAD,
    RESHAPE,
    SHRINK,
    expand,
    flip,
    pad,
    permute,
    reshape,
    shrink,
    window,
)
from fulgurite.core.ops.reduce import reduce_node, scan_node
from fulgurite.core.rewriting.pattern import Law, Rules, constants, variables
from fulgurite.graph.passes.laws import SIMPLIFY
from fulgurite.graph.passes.simplify import holds, simplify
from tests.lawcheck import check_law, check_rules, check_same, law_instances, prove, random_graph
from tests.properties import arithmetic

pytestmark = pytest.mark.device("none")

x, y, z = (param(i, (2, 3), int32) for i in range(3))
f, g = (param(i, (2, 3), float32) for i in range(2))
c, d = (param(i, (2, 3), bool_) for i in range(2))
byte, u = param(0, (2, 3), uint8), param(0, (2, 3), uint32)
i = variable("i", 0, 9, (2, 3), int32)
j = variable("j", -9, 9, (2, 3), int32)
n = variable("n", 2, 5)
cube, symbolic = param(0, (2, 3, 4), float32), param(0, (n, 3), float32)
wide = param(0, (2, 1, 3), int32)
yes, no = constant(True, bool_, (2, 3)), constant(False, bool_, (2, 3))


def num(value: float, like: Node = x) -> Node:
    return constant_like(value, like)


def cast(node: Node, *dtypes: DType) -> Node:
    for dtype in dtypes:
        node = CAST(node, arg=dtype)
    return node


EXAMPLES: list[tuple[Node, Node]] = [
    # constants fold by the op's own meaning: int32 wraps, float32 rounds
    (num(2) + num(3), num(5)),
    (num(2**31 - 1) + num(1), num(-(2**31))),
    (num(7) // num(0), num(0)),
    (num(0.1, f) + num(0.2, f), num(0.30000001192092896, f)),
    (EXP(num(0, f)), num(1, f)),
    (x * (num(2) + num(3)), x * 5),
    (cast(num(300), uint8), num(44, byte)),
    # identities and zeros
    (x + 0, x),
    (0 + x, x),
    (f + -0.0, f),
    (f - 0.0, f),
    (f * 1, f),
    (f / 1, f),
    (x * 0, num(0)),
    (x * -1, -x),
    (-(-f * 1) + -0.0, f),  # a replacement is simplified too
    (f + -g, f - g),
    (-f * -g, f * g),
    (-(f * 3), f * -3),
    (f / 4, f * 0.25),
    (x**2, x * x),
    # whole numbers
    (x - x, num(0)),
    (x + y - y, x),
    (x * y + x * z, x * (y + z)),
    (y * x + x * z, x * (y + z)),  # either order of a product
    (x * 3 + x, x * 4),
    (x + 2 + 3, x + 5),
    (5 - (x + 2), 3 - x),
    # division, where bounds show that nothing wraps
    (x // 1, x),
    (x % 0, num(0)),
    ((i * 4) // 4, i),
    ((i * 4 + j) // 4, i + j // 4),
    ((i * 4 + j) % 4, j % 4),
    ((i * 6) // 4, (i * 3) // 2),
    ((i * 6) % 4, i * 3 % 2 * 2),
    ((i * 6 + 5) // 4, (i * 3 + 2) // 2),
    ((x // 3) // 5, x // 15),
    ((x // 7) * 7 + x % 7, x),
    ((x % 12) % 4, x % 4),
    (i % 10, i),
    (i // 10, num(0)),
    # bits
    (x ^ x, num(0)),
    (x & -1, x),
    (byte & 255, byte),
    (~~c, c),
    (~x & ~y, ~(x | y)),
    (i & 15, i),
    (x >> 3 >> 4, x >> 7),
    # comparison
    (f < f, no),
    (x <= x, yes),
    (~(x < y), y <= x),
    (~f.eq(g), f.ne(g)),
    (c.eq(True), c),
    (i < 10, yes),
    (i + 3 < 5, i < 2),
    (byte < 0, constant(False, bool_, (2, 3))),
    ((x + 2).eq(5), x.eq(3)),
    # maximum and minimum
    (MAX(f, f), f),
    (MAX(x, num(-(2**31))), x),
    (MIN(f, num(float("inf"), f)), f),
    (MAX(i, num(0)), i),
    (MIN(i, num(-1)), num(-1)),
    (MIN(MAX(x, y), y), y),
    (MAX(MAX(f, num(1, f)), num(2, f)), MAX(f, num(2, f))),
    # choice
    (WHERE(yes, f, g), f),
    (WHERE(c, f, f), f),
    (WHERE(~c, f, g), WHERE(c, g, f)),
    (WHERE(c, WHERE(c, x, y), z), WHERE(c, x, z)),
    (WHERE(c, yes, no), c),
    (WHERE(x < y, x, y), MIN(x, y)),
    # conversion
    (cast(x, int32), x),
    (cast(byte, float32, uint8), byte),
    (cast(byte, int32, float16), cast(byte, float16)),
    (cast(x, int16, int8), cast(x, int8)),
    (cast(i, int8, int32), i),
    (FLOOR(cast(x, float32)), cast(x, float32)),
    (BITCAST(BITCAST(f, arg=int32), arg=uint32), BITCAST(f, arg=uint32)),
    (BITCAST(f, arg=float32), f),
    # movement
    (reshape(reshape(cube, (6, 4)), (3, 8)), reshape(cube, (3, 8))),
    (reshape(reshape(cube, (6, 4)), (2, 3, 4)), cube),
    (RESHAPE(cube, arg=(2, 3, 4)), cube),
    (EXPAND(cube, arg=(2, 3, 4)), cube),
    (expand(EXPAND(wide, arg=(2, 1, 3)), (2, 5, 3)), expand(wide, (2, 5, 3))),
    (permute(permute(cube, (1, 2, 0)), (2, 0, 1)), cube),
    (permute(permute(cube, (1, 2, 0)), (1, 2, 0)), permute(cube, (2, 0, 1))),
    (permute(wide, (1, 0, 2)), reshape(wide, (1, 2, 3))),
    (shrink(shrink(cube, [(0, 2), (1, 3), (1, 4)]), [(1, 2), (0, 2), (1, 2)]),
     shrink(cube, [(1, 2), (1, 3), (2, 3)])),
    (SHRINK(f, arg=(0, 2, 0, 3)), f),
    (PAD(f, arg=(0, 0, 0, 0)), f),
    (pad(pad(f, [(1, 0), (0, 2)]), [(1, 1), (0, 0)]), pad(f, [(2, 1), (0, 2)])),
    (flip(flip(cube, (0, 2)), (1, 2)), flip(cube, (0, 1))),
    (FLIP(wide, arg=(1,)), wide),
    (shrink(pad(f, [(1, 1), (2, 2)]), [(1, 3), (2, 5)]), f),
    (shrink(pad(f, [(1, 1), (2, 2)]), [(0, 2), (2, 4)]),
     pad(shrink(f, [(0, 1), (0, 2)]), [(1, 0), (0, 0)])),
    (shrink(pad(f, [(1, 1), (2, 2)]), [(0, 1), (0, 7)]), constant(0, float32, (1, 7))),
    (permute(num(3, cube), (2, 1, 0)), constant(3, float32, (4, 3, 2))),
    (pad(num(0, f), [(1, 1), (0, 0)]), constant(0, float32, (4, 3))),
    (window(f, 1, 1), reshape(f, (2, 3, 1))),
    # reductions
    (reduce_node("add", wide, (1,)), wide),
    (reduce_node("add", param(0, (2, 1), float16), (1,)), param(0, (2, 1), float16)),
    (reduce_node("add", param(0, (0, 3), float32), (0,)), constant(0, float32, (1, 3))),
    (reduce_node("max", param(0, (0, 3), int8), (0,)), constant(-128, int8, (1, 3))),
    (reduce_node("add", reduce_node("add", x, (0,)), (1,)), reduce_node("add", x, (0, 1))),
    (reduce_node("max", reduce_node("max", cube, (0,)), (2,)), reduce_node("max", cube, (0, 2))),
    (reduce_node("add", num(50, byte), (0, 1)), constant(300 % 256, uint8, (1, 1))),
    (reduce_node("mul", num(3), (0, 1)), constant(3**6, int32, (1, 1))),
    (reduce_node("max", num(-0.0, f), (1,)), constant(-0.0, float32, (2, 1))),
    (reduce_node("max", expand(wide, (2, 5, 3)), (1, 2)), reduce_node("max", wide, (2,))),
    (scan_node("add", wide, 1), wide),
    # effects
    (DETACH(DETACH(f)), DETACH(f)),
    (CONTIGUOUS(CONTIGUOUS(f)), CONTIGUOUS(f)),
    (copy_to(copy_to(f, "cpu"), "cpu"), copy_to(f, "cpu")),
    # symbolic sizes
    (reshape(reshape(symbolic, (3, n)), (n, 3)), symbolic),
    (shrink(pad(symbolic, [(1, 1), (0, 0)]), [(1, n + 1), (0, 3)]), symbolic),
    (pad(constant(0, int32, (n, 3)), [(n, 0), (0, 1)]), constant(0, int32, (n * 2, 4))),
    (reduce_node("max", constant(7, int32, (n, 3)), (1,)), constant(7, int32, (n, 1))),
]  # fmt: skip

# traps: each looks like one of the above, and differs in a bit
KEPT: list[Node] = [
    f + 0.0,  # -0.0 + 0.0 is 0.0
    f - -0.0,
    0.0 - f,  # 0.0 - 0.0 is 0.0
    f * 0,  # nan, inf, and the sign of zero
    f - f,
    f * 2 + f * 3,
    (f + 2) + 3,
    f.eq(f),
    f <= f,
    ~(f < g),
    f / 3,
    MIN(MAX(f, g), g),  # nan
    WHERE(f < g, f, g),
    WHERE(f < 0.0, -f, f),  # -0.0
    (x * 4) // 4,  # wraps
    (x * 6) % 4,
    x + 3 < 5,
    x % 10,
    param(0, (2, 3), complex64) * 1,  # inf * 1 makes a nan
    cast(x, float32, int32),  # float32 does not hold every int32
    cast(f, int32, float32),
    cast(x, int8, int32),
    cast(param(0, (2, 3), int8), float32, uint8),  # -1.0 saturates, -1 wraps
    cast(x, int8, int16),
    pad(num(1, f), [(1, 0), (0, 0)]),
    pad(num(-0.0, f), [(1, 0), (0, 0)]),
    reduce_node("add", reduce_node("add", cube, (0,)), (1,)),  # rounds in another order
    reduce_node("add", num(0.1, f), (1,)),
    reduce_node("add", param(0, (2, 1), complex64), (1,)),
    reduce_node("max", reduce_node("min", cube, (0,)), (1,)),
    reshape(permute(cube, (1, 0, 2)), (2, 3, 4)),
    shrink(pad(symbolic, [(1, 1), (0, 0)]), [(0, n), (0, 3)]),
    copy_to(copy_to(f, "cpu"), "cuda"),
]


def show(value: object) -> str:
    return re.sub(r"%\d+", "%", repr(value))[:40]  # numbers of nodes differ between processes


@pytest.mark.parametrize(("before", "after"), EXAMPLES, ids=show)
def test_simplifies(before: Node, after: Node) -> None:
    assert simplify(before) is after


@pytest.mark.parametrize("node", KEPT, ids=show)
def test_keeps_what_only_looks_equal(node: Node) -> None:
    assert simplify(node) is node


# --- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", SIMPLIFY.laws(), ids=lambda law: law.name)
def test_a_law_is_exact_in_every_dtype_it_claims(law: Law) -> None:
    assert law.exact
    claimed = [dtype for dtype in DTYPES if check_law(law, dtype)]
    assert claimed, "no dtype was checked"


# What Z3 is not asked, because powers are no part of its arithmetic; 8 bits are exhaustive.
UNPROVED = {"pow-one", "pow-zero", "pow-two"}
WHOLE = [law for law in SIMPLIFY.laws() if law.left.op and law.left.op.family == "elementwise"]
WHOLE = [law for law in WHOLE if any(check_law(law, dtype) for dtype in (bool_, int16))]


@pytest.mark.parametrize("law", WHOLE, ids=lambda law: law.name)
def test_a_law_of_whole_numbers_is_a_theorem(law: Law) -> None:
    assert prove(law) is (None if law.name in UNPROVED else True)


def test_names_of_laws_are_unique() -> None:
    names = [law.name for law in SIMPLIFY.laws()]
    assert len(names) == len(set(names))


A, B, C = variables("a b c")
K, M, N = constants("k m n")


def planted(left: object, right: object, **options: object) -> Law:
    return Rules("planted").law("planted", left, right, **options)  # type: ignore[arg-type]


def test_an_unsound_law_is_caught() -> None:
    zero = planted(A + 0, A)
    assert check_law(zero, int32)
    for dtype in (float16, bfloat16, float32, float64):
        with pytest.raises(AssertionError, match=r"a = .*-0"):
            check_law(zero, dtype)
    with pytest.raises(AssertionError, match="planted"):
        check_law(planted(A * 0, 0), float32)
    with pytest.raises(AssertionError, match="-128"):
        check_law(planted(abs(A) < 0, False), int8)
    with pytest.raises(AssertionError, match="planted"):
        check_law(planted((A * K) // K, A), int32)  # wraps, and divides by zero
    with pytest.raises(AssertionError, match="planted"):
        check_law(planted((A // K) * K, A, unwrapped=True), int8)


def test_an_unsound_law_has_no_proof() -> None:
    assert prove(planted(A - B, B - A)) is False
    assert prove(planted((A // K) * K, A)) is False
    assert prove(planted(A & B, A | B)) is False
    assert prove(planted(A**2, A * A)) is None


# --- rules ---------------------------------------------------------------------------------------


def corpus() -> list[Node]:
    made = [graph for pair in EXAMPLES for graph in pair] + KEPT + [DETACH(num(1)), c & ~c]
    for rule in SIMPLIFY.rules:
        if rule.left.op is not None and rule.left.op.family in ("elementwise", "effect"):
            made += law_instances(rule)
    made += [
        CAST(constant(3, int32, (2,)), arg=float32),
        flip(num(3, cube), (1,)),
        shrink(num(3, cube), [(0, 1), (0, 3), (1, 2)]),
        expand(constant(3, float32, (1, 3)), (2, 3)),
        window(num(3, f), 1, 2),
        reshape(num(3, f), (6,)),
        expand(expand(param(0, (1, 1), float32), (2, 1)), (2, 3)),
        iota((2, 3), 1) // 3,
        iota((2, 3), 1).ne(3),
        MIN(i, j + 20),
        abs(i),
        copy_to(num(3), "cpu"),
        *[OPS[name](cast(x, float64)) for name in ("floor", "ceil", "trunc", "round")],
        *[cast(param(0, (24,), a), b, c) for a in DTYPES for b in DTYPES for c in DTYPES],
    ]
    return made + [random_graph(Random(seed)) for seed in range(200)]


def test_every_firing_of_every_rule_keeps_every_bit() -> None:
    check_rules(SIMPLIFY, corpus())


def test_a_constant_folder_that_overflows_is_caught() -> None:
    rules = Rules("planted")

    @rules.rule(K + M)
    def fold(node: Node, k: Node, m: Node) -> Node:
        """Saturates, where int32 wraps around."""
        low, high = node.dtype.limits
        return constant_like(min(max(int(k.value) + int(m.value), low), high), node)  # type: ignore[arg-type]

    check_rules(rules, [num(2) + num(3)])
    with pytest.raises(AssertionError, match="fold"):
        check_rules(rules, [num(2**31 - 1) + num(1)])


def test_a_constant_folder_that_leaves_the_grid_is_caught() -> None:
    rules = Rules("planted")

    @rules.rule((K + M) + N)
    def fold(node: Node, k: Node, m: Node, n: Node) -> Node:
        """Adds in float64 and rounds once, where float32 rounds twice."""
        return constant_like(k.value + m.value + n.value, node)

    check_rules(rules, [num(1, f) + num(2, f) + num(4, f)])
    with pytest.raises(AssertionError, match="fold"):
        check_rules(rules, [num(1e8, f) + num(1, f) + num(-1e8, f)])


def test_a_rule_that_changes_shape_or_dtype_is_caught() -> None:
    rules = Rules("planted")
    rules.law("shape", A - A, 0)
    rules.rule(A * B)(lambda node, a: constant(0, a.dtype))
    with pytest.raises(AssertionError, match="shape"):
        check_rules(rules, [x * y])


def test_a_rule_that_never_fires_is_caught() -> None:
    rules = Rules("planted")
    rules.law("zero", A + 0, A, when=lambda dtype: dtype.is_integer)
    rules.law("unused", A - A, 0, when=lambda dtype: dtype.is_integer)
    with pytest.raises(AssertionError, match=r"never fired, so never checked.*unused"):
        check_rules(rules, [x + 0])


def test_widening_is_known_exactly() -> None:
    assert holds(float32, int16) and not holds(float32, int32)
    assert holds(float64, int32) and not holds(float64, int64)
    assert holds(bfloat16, uint8) and not holds(float16, int16)
    assert holds(int16, uint8) and not holds(int8, uint8) and not holds(uint32, int8)
    assert holds(float32, bfloat16) and not holds(float16, bfloat16)
    assert all(holds(dtype, bool_) and holds(dtype, dtype) for dtype in DTYPES)


# --- whole graphs --------------------------------------------------------------------------------


@arithmetic
@given(st.integers(0, 2**32))
def test_simplifying_never_changes_a_value_and_twice_is_once(seed: int) -> None:
    graph = random_graph(Random(seed))
    simple = simplify(graph)
    assert simplify(simple) is simple
    for before, after in zip(graph.src, simple.src, strict=True):
        check_same(before, after, "simplify", trials=2)


def test_a_deep_chain_is_simplified() -> None:
    chain = f
    for _ in range(30_000):
        chain = SQRT(chain * 1) + -0.0
    assert len(toposort([simplify(chain)])) == 30_001


def test_one_walk_serves_many_roots() -> None:
    assert simplify(SINK(x + 0, f * 1)) is SINK(x, f)
