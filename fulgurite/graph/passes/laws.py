"""The laws of simplification, as data: left side, right side, and the dtypes they hold in.

Every law holds bit for bit in the dtypes that its `when` admits (only which NaN it is may differ).
So a float keeps `a + 0.0`, because -0.0 + 0.0 is 0.0, and loses `a + -0.0`. Laws that hold for
real numbers only belong to `search`. A law without `when` holds wherever its ops are defined.
tests/graph/passes/test_simplify.py evaluates both sides of every law on hostile numbers, and proves
the laws of whole numbers, so a law that is not exact cannot land.
"""

from __future__ import annotations

from ...core.dtype import DType
from ...core.node import Node
from ...core.op import Op
from ...core.ops.effect import CONTIGUOUS, DETACH
from ...core.ops.elementwise import AND, CEIL, FLOOR, MAX, MIN, ROUND, SIGN, TRUNC, WHERE
from ...core.rewriting.pattern import ByDType, Rules, conditions, constants, number, p, variables

SIMPLIFY = Rules("simplify")
law = SIMPLIFY.law


def whole(dtype: DType) -> bool:
    """Whole numbers, which wrap around: a ring, in which algebra is exact."""
    return dtype.kind in "iu"


def counted(dtype: DType) -> bool:
    """Whole numbers and bools: no NaN, one zero."""
    return dtype.kind in "biu"


def real(dtype: DType) -> bool:
    """Whole numbers and floats."""
    return dtype.kind in "iuf"


def floating(dtype: DType) -> bool:
    """Floats."""
    return dtype.kind == "f"


def signed(dtype: DType) -> bool:
    """Numbers with a sign."""
    return dtype.kind in "if"


def ordered(dtype: DType) -> bool:
    """Everything but complex numbers."""
    return dtype.kind in "biuf"


def positive(node: Node) -> bool:
    """True if a constant is above zero."""
    value = node.value
    return not isinstance(value, complex) and value > 0


def _neutral(op: Op) -> ByDType:
    """The number that an op leaves others as they are with, for the dtypes that the op takes."""
    assert op.identity is not None
    identity, kinds = op.identity, op.kinds
    return lambda dtype: identity(dtype) if dtype.kind in kinds else None


a, b, c = variables("a b c")
x, y = conditions("x y")
k, m = constants("k m")
n, q = constants("n q", test=positive)
LOWEST, HIGHEST = number("lowest", _neutral(MAX)), number("highest", _neutral(MIN))
ONES = number("ones", _neutral(AND))  # every bit set


# --- identities, zeros and signs -----------------------------------------------------------------

law("add-zero", a + -0.0, a, when=real)  # of floats only -0.0 is neutral
law("sub-zero", a - 0, a)
law("sub-from-zero", -0.0 - a, -a, when=real)
law("mul-one", a * 1, a, when=real)  # complex: inf * 1 makes a NaN
law("mul-minus-one", a * -1, -a, when=real)
law("mul-zero", a * 0, 0, when=whole)  # nan * 0.0 is nan
law("div-one", a / 1, a, when=floating)
law("pow-one", a**1, a, when=real)
law("pow-zero", a**0, 1, when=real)
law("pow-two", a**2, a * a, when=whole)
law("neg-neg", -(-a), a)  # noqa: B002 - it is no decrement
law("add-neg", a + -b, a - b)
law("sub-neg", a - -b, a + b)
law("mul-neg-neg", -a * -b, a * b, when=real)
law("div-neg-neg", -a / -b, a / b, when=floating)
law("mul-neg-constant", -a * k, a * -k, when=real)
law("neg-mul-constant", -(a * k), a * -k, when=real)
law("abs-neg", abs(-a), abs(a), when=signed)
law("abs-abs", abs(abs(a)), abs(a))
law("sign-sign", p(SIGN, p(SIGN, a)), p(SIGN, a))
for outer in (FLOOR, CEIL, TRUNC, ROUND):
    for inner in (FLOOR, CEIL, TRUNC, ROUND):
        law(f"{outer}-{inner}", p(outer, p(inner, a)), p(inner, a))

# --- whole numbers -------------------------------------------------------------------------------

law("sub-self", a - a, 0, when=whole)
law("neg-sub", -(a - b), b - a, when=whole)
law("sub-then-add", (a - b) + b, a, when=whole)
law("add-then-sub", (a + b) - b, a, when=whole)
law("sub-sub-same", a - (a - b), b, when=whole)
law("sub-same", (a - b) - a, -b, when=whole)
law("sub-sum", a - (a + b), -b, when=whole)
law("sub-common", (a + b) - (a + c), b - c, when=whole)
law("factor", a * b + a * c, a * (b + c), when=whole)
law("factor-sub", a * b - a * c, a * (b - c), when=whole)
law("factor-one", a * k + a, a * (k + 1), when=whole)
law("factor-sub-one", a * k - a, a * (k - 1), when=whole)
law("factor-one-sub", a - a * k, a * (1 - k), when=whole)

# constants meet; then fold_constants makes one of two
law("add-add-constant", (a + k) + m, a + (k + m), when=whole)
law("add-sub-constant", (a + k) - m, a + (k - m), when=whole)
law("sub-add-constant", (a - k) + m, a + (m - k), when=whole)
law("sub-sub-constant", (a - k) - m, a - (k + m), when=whole)
law("constant-sub-add", (k - a) + m, (k + m) - a, when=whole)
law("constant-sub-sub", (k - a) - m, (k - m) - a, when=whole)
law("constant-sub-sum", m - (a + k), (m - k) - a, when=whole)
law("constant-sub-difference", m - (a - k), (m + k) - a, when=whole)
law("constant-sub-constant-sub", m - (k - a), a + (m - k), when=whole)
law("mul-mul-constant", (a * k) * m, a * (k * m), when=whole)
law("and-and-constant", (a & k) & m, a & (k & m))
law("or-or-constant", (a | k) | m, a | (k | m))
law("xor-xor-constant", (a ^ k) ^ m, a ^ (k ^ m))

# --- division of whole numbers, which rounds down; by zero it gives 0 ----------------------------

law("floordiv-one", a // 1, a, when=whole)
law("mod-one", a % 1, 0, when=whole)
law("floordiv-zero", a // 0, 0, when=whole)
law("mod-zero", a % 0, 0, when=whole)
law("mod-mod", (a % n) % n, a % n, when=whole)
law("floordiv-and-mod", (a // n) * n + a % n, a, when=whole)
law("floordiv-floordiv", (a // n) // q, a // (n * q), when=whole, unwrapped=True)
law("mul-floordiv", (a * n) // n, a, when=whole, unwrapped=True)
law("mul-mod", (a * n) % n, 0, when=whole, unwrapped=True)
law("mul-add-floordiv", (a * n + b) // n, a + b // n, when=whole, unwrapped=True)
law("mul-add-mod", (a * n + b) % n, b % n, when=whole, unwrapped=True)
law("mul-sub-floordiv", (b - a * n) // n, b // n - a, when=whole, unwrapped=True)
law("mul-sub-mod", (b - a * n) % n, b % n, when=whole, unwrapped=True)

# --- bits ----------------------------------------------------------------------------------------

law("and-self", a & a, a)
law("or-self", a | a, a)
law("xor-self", a ^ a, 0)
law("and-zero", a & 0, 0)
law("or-zero", a | 0, a)
law("xor-zero", a ^ 0, a)
law("and-ones", a & ONES, a)
law("or-ones", a | ONES, ONES)
law("xor-ones", a ^ ONES, ~a)
law("not-not", ~~a, a)
law("and-not-self", a & ~a, 0)
law("or-not-self", a | ~a, ONES)
law("xor-not-self", a ^ ~a, ONES)
law("xor-xor", (a ^ b) ^ b, a)
law("and-or", a & (a | b), a)
law("or-and", a | (a & b), a)
law("and-and", (a & b) & b, a & b)
law("or-or", (a | b) | b, a | b)
law("not-and-not", ~a & ~b, ~(a | b))
law("not-or-not", ~a | ~b, ~(a & b))
law("xor-not-not", ~a ^ ~b, a ^ b)
law("shl-zero", a << 0, a)
law("shr-zero", a >> 0, a)
law("zero-shl", 0 << a, 0)
law("zero-shr", 0 >> a, 0)
law("shl-shl", (a << n) << q, a << (n + q), unwrapped=True)
law("shr-shr", (a >> n) >> q, a >> (n + q), unwrapped=True)

# --- comparison ----------------------------------------------------------------------------------

law("lt-self", a < a, False)
law("le-self", a <= a, True, when=counted)  # nan <= nan is false
law("eq-self", a.eq(a), True, when=counted)
law("ne-self", a.ne(a), False, when=counted)
law("not-lt", ~(a < b), b <= a, when=counted)
law("not-le", ~(a <= b), b < a, when=counted)
law("not-eq", ~a.eq(b), a.ne(b))
law("not-ne", ~a.ne(b), a.eq(b))
law("eq-true", x.eq(True), x)
law("eq-false", x.eq(False), ~x)
law("ne-true", x.ne(True), ~x)
law("ne-false", x.ne(False), x)
law("eq-neg", (-a).eq(-b), a.eq(b))
law("ne-neg", (-a).ne(-b), a.ne(b))
law("lt-neg", -a < -b, b < a, when=floating)  # the negative of INT_MIN is INT_MIN
law("le-neg", -a <= -b, b <= a, when=floating)
law("eq-sub-zero", (a - b).eq(0), a.eq(b), when=whole)
law("ne-sub-zero", (a - b).ne(0), a.ne(b), when=whole)
law("eq-common", (a + b).eq(c + b), a.eq(c), when=whole)
law("ne-common", (a + b).ne(c + b), a.ne(c), when=whole)
law("eq-add-constant", (a + k).eq(m), a.eq(m - k), when=whole)
law("ne-add-constant", (a + k).ne(m), a.ne(m - k), when=whole)
law("lt-common", a + b < c + b, a < c, when=whole, unwrapped=True)
law("le-common", a + b <= c + b, a <= c, when=whole, unwrapped=True)
law("lt-scaled", a * n < b * n, a < b, when=whole, unwrapped=True)
law("le-scaled", a * n <= b * n, a <= b, when=whole, unwrapped=True)
law("lt-add-constant", a + k < m, a < m - k, when=whole, unwrapped=True)
law("le-add-constant", a + k <= m, a <= m - k, when=whole, unwrapped=True)
law("constant-lt-add", m < a + k, m - k < a, when=whole, unwrapped=True)
law("constant-le-add", m <= a + k, m - k <= a, when=whole, unwrapped=True)

# --- maximum and minimum, which associate bit for bit --------------------------------------------

for top, low, end, far in ((MAX, MIN, LOWEST, HIGHEST), (MIN, MAX, HIGHEST, LOWEST)):
    law(f"{top}-self", p(top, a, a), a)
    law(f"{top}-end", p(top, a, end), a)
    law(f"{top}-far", p(top, a, far), far, when=counted)  # nan beats inf
    law(f"{top}-{top}", p(top, p(top, a, b), b), p(top, a, b))
    law(f"{top}-{low}", p(top, p(low, a, b), b), b, when=counted)
    law(f"{top}-{top}-constant", p(top, p(top, a, k), m), p(top, a, p(top, k, m)))
law("max-bool", p(MAX, x, y), x | y)
law("min-bool", p(MIN, x, y), x & y)

# --- choice --------------------------------------------------------------------------------------

law("where-true", p(WHERE, True, a, b), a)
law("where-false", p(WHERE, False, a, b), b)
law("where-same", p(WHERE, x, a, a), a)
law("where-not", p(WHERE, ~x, a, b), p(WHERE, x, b, a))
law("where-where-true", p(WHERE, x, p(WHERE, x, a, b), c), p(WHERE, x, a, c))
law("where-where-false", p(WHERE, x, a, p(WHERE, x, b, c)), p(WHERE, x, a, c))
law("where-and", p(WHERE, x, p(WHERE, y, a, b), b), p(WHERE, x & y, a, b))
law("where-or", p(WHERE, x, a, p(WHERE, y, a, b)), p(WHERE, x | y, a, b))
law("where-true-else", p(WHERE, x, True, y), x | y)
law("where-then-false", p(WHERE, x, y, False), x & y)
law("where-false-else", p(WHERE, x, False, y), ~x & y)
law("where-then-true", p(WHERE, x, y, True), ~x | y)
law("where-eq", p(WHERE, a.eq(b), a, b), b, when=counted)  # 0.0 == -0.0
law("where-ne", p(WHERE, a.ne(b), a, b), a, when=counted)
law("where-lt-min", p(WHERE, a < b, a, b), p(MIN, a, b), when=counted)  # nan < 1 is false
law("where-lt-max", p(WHERE, a < b, b, a), p(MAX, a, b), when=counted)
law("where-le-min", p(WHERE, a <= b, a, b), p(MIN, a, b), when=counted)
law("where-le-max", p(WHERE, a <= b, b, a), p(MAX, a, b), when=counted)
law("where-abs", p(WHERE, a < 0, -a, a), abs(a), when=whole)  # -0.0 < 0 is false

# --- effects -------------------------------------------------------------------------------------

law("detach-detach", p(DETACH, p(DETACH, a)), p(DETACH, a))
law("detach-constant", p(DETACH, k), k)
law("contiguous-contiguous", p(CONTIGUOUS, p(CONTIGUOUS, a)), p(CONTIGUOUS, a))
