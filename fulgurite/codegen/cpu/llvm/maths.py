"""Functions that LLVM has no instruction for, written out in its instructions.

In: an emitter and operands. Out: the value. Whole-number division rounds down and divides by zero
to 0, shifts beyond the width give 0 or the sign, as in the op table's NumPy meanings. Functions of
real numbers are in `vecmath`; the remainder of floats goes to the C library, lane by lane.
"""

from __future__ import annotations

from ....core.dtype import DType, bool_, float32, uint32
from ..vecmath import FUNCTIONS, Expand
from .emitter import Emitter, Val, scalar_type


def _op(e: Emitter, text: str, a: Val, *rest: Val) -> Val:
    """A binary instruction on values of one kind: `add`, `fmul`, ..."""
    others = "".join(f", {r.text}" for r in rest)
    return Val(e.let(f"{text} {e.typed(a)}{others}"), a.dtype, a.vector)


def compare(e: Emitter, how: str, a: Val, b: Val) -> Val:
    """icmp or fcmp."""
    return Val(e.let(f"{how} {e.typed(a)}, {b.text}"), bool_, a.vector)


def select(e: Emitter, condition: Val, a: Val, b: Val) -> Val:
    """a where the condition holds, else b."""
    condition, a, b = e.alike(condition, a, b)
    return Val(e.let(f"select {e.typed(condition)}, {e.typed(a)}, {e.typed(b)}"), a.dtype, a.vector)


def intrinsic(e: Emitter, name: str, *values: Val) -> Val:
    """An LLVM intrinsic that takes and gives one type."""
    first = values[0]
    kind = e.type_of(first.dtype, first.vector)
    full = f"{name}.{e.suffix(first.dtype, first.vector)}"
    return Val(e.call(kind, full, *[e.typed(v) for v in values]), first.dtype, first.vector)


def _k(e: Emitter, number: float, like: Val) -> Val:
    return e.const(number, like.dtype, like.vector)


# --- whole numbers -------------------------------------------------------------------------------


def _safe_divisor(e: Emitter, a: Val, b: Val) -> tuple[Val, Val, Val]:
    """The divisor made safe, and where it was 0 or would overflow."""
    zero = compare(e, "icmp eq", b, _k(e, 0, b))
    overflow = zero
    if a.dtype.kind == "i":
        least = compare(e, "icmp eq", a, _k(e, a.dtype.limits[0], a))
        minus = compare(e, "icmp eq", b, _k(e, -1, b))
        overflow = _op(e, "and", least, minus)
    bad = _op(e, "or", zero, overflow)
    return select(e, bad, _k(e, 1, b), b), zero, overflow


def two_sum(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """A sum and, exactly, what rounding took from it (Knuth's two-sum)."""
    total = _op(e, "fadd", a, b)
    back = _op(e, "fsub", total, a)
    left = _op(e, "fsub", a, _op(e, "fsub", total, back))
    return total, _op(e, "fadd", left, _op(e, "fsub", b, back))


def floordiv(e: Emitter, dtype: DType, values: list[Val]) -> Val:
    """The quotient rounded down."""
    a, b = e.alike(*values)
    if dtype.kind == "f":
        return _float_divmod(e, a, b)[0]
    safe, zero, _ = _safe_divisor(e, a, b)
    if dtype.kind == "u":
        return select(e, zero, _k(e, 0, a), _op(e, "udiv", a, safe))
    q = _op(e, "sdiv", a, safe)
    r = _op(e, "srem", a, safe)
    down = _round_down(e, r, safe)
    lower = _op(e, "sub", q, _k(e, 1, q))
    # INT_MIN // -1 was divided by 1: the wrapped answer
    return select(e, zero, _k(e, 0, a), select(e, down, lower, q))


def _round_down(e: Emitter, r: Val, b: Val) -> Val:
    """True where a remainder's sign differs from the divisor's."""
    some = compare(e, "icmp ne", r, _k(e, 0, r))
    signs = _op(e, "xor", r, b)
    return _op(e, "and", some, compare(e, "icmp slt", signs, _k(e, 0, signs)))


def mod(e: Emitter, dtype: DType, values: list[Val]) -> Val:
    """The remainder with the sign of the divisor."""
    a, b = e.alike(*values)
    if dtype.kind == "f":
        return _float_divmod(e, a, b)[1]
    safe, zero, overflow = _safe_divisor(e, a, b)
    if dtype.kind == "u":
        return select(e, zero, _k(e, 0, a), _op(e, "urem", a, safe))
    r = _op(e, "srem", a, safe)
    fixed = select(e, _round_down(e, r, safe), _op(e, "add", r, safe), r)
    return select(e, _op(e, "or", zero, overflow), _k(e, 0, a), fixed)


def _float_divmod(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """NumPy's divmod of floats: from the exact remainder of fmod."""
    r = _lanewise(e, "fmodf" if a.dtype is float32 else "fmod", a.dtype, [a, b])
    zero = _k(e, 0.0, a)
    some = compare(e, "fcmp une", r, zero)
    differ = _op(e, "xor", compare(e, "fcmp olt", b, zero), compare(e, "fcmp olt", r, zero))
    adjust = _op(e, "and", some, differ)
    exact = select(e, adjust, _op(e, "fadd", r, b), r)
    exact = select(e, some, exact, intrinsic(e, "llvm.copysign", zero, b))
    whole = e.quotient(_op(e, "fsub", a, r), b)
    whole = select(e, adjust, _op(e, "fsub", whole, _k(e, 1.0, whole)), whole)
    floor = intrinsic(e, "llvm.floor", whole)
    high = compare(e, "fcmp ogt", _op(e, "fsub", whole, floor), _k(e, 0.5, whole))
    floor = select(e, high, _op(e, "fadd", floor, _k(e, 1.0, floor)), floor)
    quotient = e.quotient(a, b)
    none = intrinsic(e, "llvm.copysign", zero, quotient)
    floor = select(e, compare(e, "fcmp une", whole, zero), floor, none)
    by_zero = compare(e, "fcmp oeq", b, zero)
    return select(e, by_zero, quotient, floor), select(e, by_zero, r, exact)


def _shift(instruction: str, beyond: str) -> Expand:
    def expand(e: Emitter, dtype: DType, values: list[Val]) -> Val:
        a, b = e.alike(*values)
        inside = compare(e, "icmp ult", b, _k(e, dtype.bits, b))
        by = select(e, inside, b, _k(e, 0, b))
        moved = _op(e, instruction, a, by)
        if beyond == "sign":
            outside = _op(e, "ashr", a, _k(e, dtype.bits - 1, a))
        else:
            outside = _k(e, 0, a)
        return select(e, inside, moved, outside)

    return expand


def dot4(e: Emitter, dtype: DType, values: list[Val]) -> Val:
    """c plus four products of bytes: one instruction (VNNI), or four products of words."""
    a, b, c = e.alike(*values)
    if e.has_dot4 and (not a.vector or e.lanes in (4, 8, 16)):
        return _vnni(e, a, b, c)
    for byte in range(4):
        by = [_k(e, n, a) for n in (8 * byte, 24 - 8 * byte, 24)]
        first = _op(e, "and", _op(e, "lshr", a, by[0]), _k(e, 255, a))
        second = _op(e, "ashr", _op(e, "shl", b, by[1]), by[2])
        c = _op(e, "add", c, _op(e, "mul", first, second))
    return c


def _vnni(e: Emitter, a: Val, b: Val, c: Val) -> Val:
    """vpdpbusd of lanes, or of the first of four lanes."""
    lanes = e.lanes if a.vector else 4
    kind = f"<{lanes} x i32>"
    texts = [v.text for v in (c, a, b)]
    if not a.vector:
        texts = [e.let(f"insertelement {kind} zeroinitializer, i32 {t}, i64 0") for t in texts]
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    found = e.call(kind, name, *[f"{kind} {t}" for t in texts])
    if not a.vector:
        found = e.let(f"extractelement {kind} {found}, i64 0")
    return Val(found, a.dtype, a.vector)


def sign(e: Emitter, dtype: DType, values: list[Val]) -> Val:
    """-1, 0 or 1; NaN stays."""
    (a,) = values
    zero, one = _k(e, 0, a), _k(e, 1, a)
    if dtype.kind == "u":
        return select(e, compare(e, "icmp eq", a, zero), zero, one)
    how = ("fcmp olt", "fcmp ogt") if dtype.kind == "f" else ("icmp slt", "icmp sgt")
    below = select(e, compare(e, how[0], a, zero), _k(e, -1, a), zero)
    found = select(e, compare(e, how[1], a, zero), one, below)
    if dtype.kind != "f":
        return found
    return select(e, compare(e, "fcmp uno", a, a), a, found)


def invert(e: Emitter, dtype: DType, values: list[Val]) -> Val:
    """Every bit flipped."""
    (a,) = values
    return _op(e, "xor", a, _k(e, 1 if dtype.kind == "b" else -1, a))


def ipow(e: Emitter, dtype: DType, values: list[Val]) -> Val:
    """Whole powers by squaring, bit after bit of the exponent; negative ones truncate."""
    a, b = e.alike(*values)
    result, base = _k(e, 1, a), a
    for bit in range(dtype.bits - (dtype.kind == "i")):
        mask = _op(e, "and", b, _k(e, 1 << bit, b))
        odd = compare(e, "icmp ne", mask, _k(e, 0, b))
        result = select(e, odd, _op(e, "mul", result, base), result)
        base = _op(e, "mul", base, base)
    if dtype.kind == "u":
        return result
    negative = compare(e, "icmp slt", b, _k(e, 0, b))
    odd = compare(e, "icmp ne", _op(e, "and", b, _k(e, 1, b)), _k(e, 0, b))
    minus = select(e, odd, _k(e, -1, a), _k(e, 1, a))
    inverse = select(e, compare(e, "icmp eq", a, _k(e, -1, a)), minus, _k(e, 0, a))
    inverse = select(e, compare(e, "icmp eq", a, _k(e, 1, a)), _k(e, 1, a), inverse)
    return select(e, negative, inverse, result)


# --- the C library -------------------------------------------------------------------------------


def _lanewise(e: Emitter, name: str, dtype: DType, values: list[Val]) -> Val:
    """A function of the C library, called for each lane."""
    kind = scalar_type(dtype)
    values = e.alike(*values)
    if not values[0].vector:
        return Val(e.call(kind, name, *[e.typed(v) for v in values]), dtype)
    whole = e.type_of(dtype, True)
    out = "poison"
    for lane in range(e.lanes):
        parts = [e.let(f"extractelement {whole} {v.text}, i64 {lane}") for v in values]
        one = e.call(kind, name, *[f"{kind} {p}" for p in parts])
        out = e.let(f"insertelement {whole} {out}, {kind} {one}, i64 {lane}")
    return Val(out, dtype, True)


# --- random bits ---------------------------------------------------------------------------------


def random_bits(e: Emitter, values: list[Val]) -> Val:
    """Threefry-2x32 at a position: word `position % 2` of block `counter + position // 2`."""
    low, high, counter, place = e.alike(*values)
    half = _op(e, "lshr", place, _k(e, 1, place))
    block = Val(e.let(f"add {e.typed(counter)}, {half.text}"), counter.dtype, counter.vector)
    kind = e.type_of(uint32, block.vector)
    top = _op(e, "lshr", block, _k(e, 32, block))
    x, y = (
        Val(e.let(f"trunc {e.typed(part)} to {kind}"), uint32, block.vector)
        for part in (block, top)
    )
    third = _op(e, "xor", _op(e, "xor", low, high), _k(e, 0x1BD11BDA, low))
    keys = (low, high, third)
    x, y = _op(e, "add", x, low), _op(e, "add", y, high)
    for i in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = _op(e, "add", x, y)
            up, down = _op(e, "shl", y, _k(e, turn, y)), _op(e, "lshr", y, _k(e, 32 - turn, y))
            y = _op(e, "xor", _op(e, "or", up, down), x)
        x = _op(e, "add", x, keys[(i + 1) % 3])
        y = _op(e, "add", _op(e, "add", y, keys[(i + 2) % 3]), _k(e, i + 1, y))
    odd = compare(e, "icmp ne", _op(e, "and", place, _k(e, 1, place)), _k(e, 0, place))
    return select(e, odd, y, x)


EXPANSIONS: dict[str, Expand] = {
    "floordiv": floordiv, "mod": mod, "sign": sign, "not": invert, "pow_int": ipow,
    "dot4": dot4,
    "shl": _shift("shl", "zero"), "shr_i": _shift("ashr", "sign"), "shr_u": _shift("lshr", "zero"),
    **FUNCTIONS,
}  # fmt: skip
