"""Elementwise ops: one number from numbers at the same place.

All sources have the result's shape; `build` promotes and broadcasts before. Whole numbers wrap
around; division of them by zero gives 0, shifts by the width or more give 0 (or -1), as in NumPy.
max and min are IEEE 754-2019's: NaN wins, and 0.0 is above -0.0, so they commute and associate
bit for bit. float16, bfloat16 and float8 compute in float32 and round once per op.
In a gradient, `g` is the gradient of the result `y`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..dtype import DType, bool_, float8_e4m3fn
from ..extension import give
from ..node import Bounds, Node, constant_like
from ..op import BOTH, Array, Op, last_dtype
from . import special

Grad = Callable[..., tuple[Node | None, ...]]
Interval = Callable[..., Bounds | None]
DTypeRule = Callable[[tuple[Node, ...], Any], DType]


def _in_float32(numpy: Callable[..., Any]) -> Callable[..., Array]:
    """A NumPy function as a meaning; small floats are widened first and rounded once after."""

    def meaning(node: Node, *arrays: Array) -> Array:
        if node.src[-1].dtype.is_small_float and numpy is not np.where:  # a choice keeps all bits
            small = node.src[-1].dtype.numpy
            arrays = tuple(a.astype(np.float32) if a.dtype == small else a for a in arrays)
        if len(arrays) == 1:  # NumPy's vector functions round otherwise in reversed memory
            arrays = (arrays[0].copy() if min(arrays[0].strides, default=1) < 0 else arrays[0],)
        return np.asarray(numpy(*arrays)).astype(node.dtype.numpy, copy=False)

    return meaning


def _prepared(
    numpy: Callable[..., Any], meaning: Callable[..., Array]
) -> Callable[[Node], Callable[..., Array]]:
    """For a node of several sources the ufunc itself, where its results need no cast."""

    def prepared(node: Node) -> Callable[..., Array]:
        source, count = node.src[-1].dtype, len(node.src)
        plain = count > 1 and len(node.shape) > 0  # of no dimension a ufunc makes no array
        if plain and isinstance(numpy, np.ufunc) and not source.is_small_float:
            dtypes = (source.numpy,) * count
            if numpy.resolve_dtypes((*dtypes, None))[-1] == node.dtype.numpy:
                return numpy
        return partial(meaning, node)

    return prepared


def _bool_dtype(src: tuple[Node, ...], arg: Any) -> DType:
    return bool_


_DTYPES: dict[str, DTypeRule] = {"same": last_dtype, "bool": _bool_dtype}


def _batch(y: Node, src: tuple[Node, ...]) -> Node:
    return y.op(*src, arg=y.arg)


def _diagonal(y: Node, tangents: tuple[Node | None, ...]) -> Node | None:
    """Each element depends on its own place alone: forward and backward are the same factors."""
    total: Node | None = None
    for number, moving in enumerate(tangents):
        if moving is not None and y.op.grad is not None:
            share = y.op.grad(moving, y, *y.src)[number]
            total = total if share is None else share if total is None else total + share
    return total


def _check(node: Node) -> str | None:
    first = node.src[0]
    for source in node.src[1:]:
        if source.shape != first.shape:
            return f"sources have shapes {first.shape} and {source.shape}"
        if source.dtype is not first.dtype:
            return f"sources have dtypes {first.dtype} and {source.dtype}"
    return None


def elementwise(
    name: str,
    numpy: Callable[..., Any],
    doc: str,
    *,
    arity: int = 2,
    kinds: str = "iufc",
    grad: Grad | None = None,
    result: DTypeRule | str = "same",
    interval: Interval | None = None,
    llvm: Mapping[str, str] | str = "",
    triton: str = "",
    **traits: Any,
) -> Op:
    """Declare an elementwise op; `interval` takes the (low, high) of each source."""
    text = {kind: llvm for kind in kinds if kind != "c"} if isinstance(llvm, str) else llvm
    meaning = _in_float32(numpy)

    def bounds(node: Node, known: list[Bounds | None]) -> Bounds | None:
        if interval is None or any(b is None for b in known):
            return (0, 1) if result == "bool" else None
        return interval(*known)

    return Op(
        name=name, family="elementwise", doc=doc, arity=arity, numpy=meaning,
        prepared=_prepared(numpy, meaning),
        dtype=_DTYPES[result] if isinstance(result, str) else result, kinds=kinds, grad=grad,
        tangent=traits.pop("tangent", _diagonal), batch=_batch, interval=bounds, levels=BOTH,
        check=traits.pop("check", _check), llvm=text, triton=triton, **traits,
    )  # fmt: skip


# --- bounds --------------------------------------------------------------------------------------


def _corners(f: Callable[[int, int], int], a: Bounds, b: Bounds) -> Bounds:
    values = [f(x, y) for x in a for y in b]
    return min(values), max(values)


def _floordiv_interval(a: Bounds, b: Bounds) -> Bounds | None:
    return _corners(lambda x, y: x // y, a, b) if b[0] > 0 or b[1] < 0 else None


def _mod_interval(a: Bounds, b: Bounds) -> Bounds | None:
    if b[0] <= 0:
        return None
    if b[0] == b[1] and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)


def _shift_interval(f: Callable[[int, int], int]) -> Interval:
    return lambda a, b: _corners(f, a, b) if b[0] >= 0 and b[1] < 64 else None


def _bits_interval(a: Bounds, b: Bounds) -> Bounds | None:
    return (0, min(a[1], b[1])) if a[0] >= 0 and b[0] >= 0 else None


def _or_interval(a: Bounds, b: Bounds) -> Bounds | None:
    if a[0] < 0 or b[0] < 0:
        return None
    return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1


# --- helpers of meanings and gradients -----------------------------------------------------------


def maximum(a: Array, b: Array) -> Array:
    """The larger number, of IEEE 754-2019: what MAX means."""
    top: Array = np.maximum(a, b)
    return np.where((a == 0) & (b == 0), a + b, top) if top.dtype.kind == "f" else top


def minimum(a: Array, b: Array) -> Array:
    """The smaller number, of IEEE 754-2019: what MIN means."""
    low: Array = np.minimum(a, b)
    return np.where((a == 0) & (b == 0), -(-a + -b), low) if low.dtype.kind == "f" else low


def _largest(dtype: DType) -> float:
    return 448.0 if dtype is float8_e4m3fn else np.inf  # which has no inf


def _share(g: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    """Where two sources tie, each gets half."""
    zero, half = constant_like(0, g), g * 0.5
    return (
        WHERE(a.eq(b), half, WHERE(y.eq(a), g, zero)),
        WHERE(a.eq(b), half, WHERE(y.eq(b), g, zero)),
    )


def _pow_grad(g: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    """x ** 0 has slope 0 even at 0; so has 0 ** b in b, except where b < 0: there it is -inf."""
    zero, one = constant_like(0, a), constant_like(1, a)
    level = b.eq(zero)
    slope = WHERE(level, zero, b * POW(a, WHERE(level, one, b) - 1))
    real = a.dtype.kind != "c"  # which have no order
    flat = AND(a.eq(zero), LE(zero, b)) if real else a.eq(zero)
    return g * slope, g * WHERE(flat, zero, y * LOG(WHERE(flat, one, a)))


def _atan2_grad(g: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    """At the origin, where no direction is the right one, the slopes are 0."""
    square = a * a + b * b
    scaled = g / WHERE(square.eq(constant_like(0, a)), constant_like(1, a), square)
    return scaled * b, -scaled * a


def _intrinsic(name: str, arity: int = 1) -> str:
    sources = ", ".join(f"{{T}} {{{i}}}" for i in range(arity))
    return f"call {{T}} @{name}.{{S}}({sources})"


def _unary(
    name: str, numpy: Callable[..., Any], doc: str, grad: Grad | None, cost: int = 16, **more: Any
) -> Op:
    """Declare a function of one float; `llvm.` intrinsics where LLVM has them, else our own."""
    prefix = more.pop("prefix", "llvm")
    return elementwise(
        name, numpy, doc, arity=1, kinds=more.pop("kinds", "fc"), grad=grad, cost=cost,
        llvm={"f": _intrinsic(f"{prefix}.{more.pop('llvm_name', name)}")},
        triton=more.pop("triton", f"libdevice.{name}({{0}})"), **more,
    )  # fmt: skip


# --- arithmetic ----------------------------------------------------------------------------------

_INT_AND_FLOAT = "iuf"

ADD = elementwise(
    "add", np.add, "a + b", grad=lambda g, y, a, b: (g, g),
    interval=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    llvm={"i": "add {T} {0}, {1}", "u": "add {T} {0}, {1}", "f": "fadd {T} {0}, {1}"},
    triton="{0} + {1}", commutative=True, associative=True,
    identity=lambda d: -0.0 if d.is_float else 0, monotone=1,
)  # fmt: skip
SUB = elementwise(
    "sub", np.subtract, "a - b", grad=lambda g, y, a, b: (g, -g),
    interval=lambda a, b: (a[0] - b[1], a[1] - b[0]),
    llvm={"i": "sub {T} {0}, {1}", "u": "sub {T} {0}, {1}", "f": "fsub {T} {0}, {1}"},
    triton="{0} - {1}", monotone=1,
)  # fmt: skip
MUL = elementwise(
    "mul", np.multiply, "a * b", grad=lambda g, y, a, b: (g * b, g * a),
    interval=lambda a, b: _corners(lambda x, y: x * y, a, b),
    llvm={"i": "mul {T} {0}, {1}", "u": "mul {T} {0}, {1}", "f": "fmul {T} {0}, {1}"},
    triton="{0} * {1}", commutative=True, associative=True, identity=lambda d: 1,
    absorbing=lambda d: None if d.is_inexact else 0,
)  # fmt: skip
DIV = elementwise(
    "div", np.true_divide, "a / b of inexact numbers", kinds="fc", domain=(0.5, 3.0), cost=4,
    grad=lambda g, y, a, b: (g / b, -(g * y) / b),
    llvm={"f": "fdiv {T} {0}, {1}"}, triton="fg_div({0}, {1})",
)  # fmt: skip
FLOORDIV = elementwise(
    "floordiv", np.floor_divide, "the whole part of a / b, rounded down", kinds=_INT_AND_FLOAT,
    grad=lambda g, y, a, b: (None, None), interval=_floordiv_interval, smooth=False, cost=20,
    jumps=True, llvm=_intrinsic("fulgurite.floordiv", 2), triton="fg_floordiv({0}, {1})",
)  # fmt: skip
MOD = elementwise(
    "mod", np.mod, "what rounding a / b down leaves; has the sign of b", kinds=_INT_AND_FLOAT,
    grad=lambda g, y, a, b: (g, -g * FLOORDIV(a, b)), interval=_mod_interval, smooth=False, cost=20,
    jumps=True, llvm=_intrinsic("fulgurite.mod", 2), triton="fg_mod({0}, {1})",
)  # fmt: skip
POW = elementwise(
    "pow", special.power, "a to the power b", kinds="iufc", grad=_pow_grad, domain=(0.3, 2.5),
    cost=40, llvm={
        "f": _intrinsic("llvm.pow", 2), "i": _intrinsic("fulgurite.ipow", 2),
        "u": _intrinsic("fulgurite.ipow", 2),
    }, triton="libdevice.pow({0}, {1})",
)  # fmt: skip
NEG = elementwise(
    "neg", np.negative, "-a", arity=1, grad=lambda g, y, a: (-g,), monotone=-1,
    interval=lambda a: (-a[1], -a[0]),
    llvm={"i": "sub {T} zeroinitializer, {0}", "u": "sub {T} zeroinitializer, {0}",
          "f": "fneg {T} {0}"}, triton="-{0}",
)  # fmt: skip
ABS = elementwise(
    "abs", np.abs, "the magnitude of a", arity=1, kinds=_INT_AND_FLOAT, smooth=False,
    grad=lambda g, y, a: (g * SIGN(a),),
    interval=lambda a: (0 if a[0] <= 0 <= a[1] else min(map(abs, a)), max(map(abs, a))),
    llvm={"f": _intrinsic("llvm.fabs"), "i": "call {T} @llvm.abs.{S}({T} {0}, i1 false)",
          "u": "or {T} {0}, zeroinitializer"}, triton="tl.abs({0})",
)  # fmt: skip
SIGN: Op = elementwise(
    "sign", np.sign, "-1, 0 or 1; NaN stays", arity=1, kinds=_INT_AND_FLOAT, smooth=False,
    grad=lambda g, y, a: (None,), monotone=1, jumps=True,
    interval=lambda a: ((a[0] > 0) - (a[0] < 0), (a[1] > 0) - (a[1] < 0)),
    llvm=_intrinsic("fulgurite.sign"), triton="fg_sign({0})", cost=2,
)  # fmt: skip
MAX = elementwise(
    "max", maximum, "the larger of a and b; NaN wins, 0.0 is above -0.0", kinds="biuf",
    grad=_share, smooth=False, interval=lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    llvm={"f": _intrinsic("llvm.maximum", 2), "i": _intrinsic("llvm.smax", 2),
          "u": _intrinsic("llvm.umax", 2), "b": "or {T} {0}, {1}"},
    triton="fg_max({0}, {1})",
    commutative=True, associative=True, monotone=1,
    identity=lambda d: d.limits[0] if d.is_integer else -_largest(d),
    absorbing=lambda d: None if d.is_inexact else d.limits[1],
)  # fmt: skip
MIN = elementwise(
    "min", minimum, "the smaller of a and b; NaN wins, -0.0 is below 0.0", kinds="biuf",
    grad=_share, smooth=False, interval=lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    llvm={"f": _intrinsic("llvm.minimum", 2), "i": _intrinsic("llvm.smin", 2),
          "u": _intrinsic("llvm.umin", 2), "b": "and {T} {0}, {1}"},
    triton="fg_min({0}, {1})",
    commutative=True, associative=True, monotone=1,
    identity=lambda d: d.limits[1] if d.is_integer else _largest(d),
    absorbing=lambda d: None if d.is_inexact else d.limits[0],
)  # fmt: skip

# --- rounding ------------------------------------------------------------------------------------


def _flat(g: Node, y: Node, a: Node) -> tuple[Node | None, ...]:
    return (None,)


FLOOR, CEIL, TRUNC, ROUND = (
    _unary(name, numpy, doc, _flat, cost=1, kinds="f", smooth=False, monotone=1, jumps=True,
           llvm_name=llvm, triton=triton)
    for name, numpy, doc, llvm, triton in (
        ("floor", np.floor, "the next whole number at or below a", "floor", "tl.floor({0})"),
        ("ceil", np.ceil, "the next whole number at or above a", "ceil", "tl.ceil({0})"),
        ("trunc", np.trunc, "a without its fraction", "trunc", "libdevice.trunc({0})"),
        ("round", np.rint, "the nearest whole number, halves to even", "roundeven",
         "libdevice.rint({0})"),
    )
)  # fmt: skip

# --- functions of one number ---------------------------------------------------------------------

SQRT = _unary("sqrt", np.sqrt, "the square root", lambda g, y, a: (g * 0.5 / y,), cost=6,
              domain=(0.3, 9.0), triton="fg_sqrt({0})", monotone=1)  # fmt: skip
RSQRT = _unary("rsqrt", special.rsqrt, "one over the square root",
               lambda g, y, a: (g * -0.5 * (y / a),), cost=8, domain=(0.3, 9.0),
               prefix="fulgurite", monotone=-1, kinds="f", triton="fg_rsqrt({0})")  # fmt: skip
CBRT = _unary("cbrt", np.cbrt, "the cube root", lambda g, y, a: (g / (y * y * 3),),
              domain=(0.3, 9.0), prefix="fulgurite", kinds="f", monotone=1)  # fmt: skip
EXP = _unary("exp", np.exp, "e to the power a", lambda g, y, a: (g * y,),
             triton="fg_exp({0})", monotone=1)  # fmt: skip
EXP2 = _unary("exp2", np.exp2, "2 to the power a", lambda g, y, a: (g * y * float(np.log(2)),),
              kinds="f", monotone=1)  # fmt: skip
EXPM1 = _unary("expm1", np.expm1, "exp(a) - 1, exact near 0", lambda g, y, a: (g * (y + 1),),
               prefix="fulgurite", monotone=1)  # fmt: skip
LOG = _unary("log", np.log, "the natural logarithm", lambda g, y, a: (g / a,),
             domain=(0.3, 9.0), monotone=1)  # fmt: skip
LOG2 = _unary("log2", np.log2, "the logarithm to base 2",
              lambda g, y, a: (g / (a * float(np.log(2))),), domain=(0.3, 9.0),
              monotone=1)  # fmt: skip
LOG10 = _unary("log10", np.log10, "the logarithm to base 10",
               lambda g, y, a: (g / (a * float(np.log(10))),), domain=(0.3, 9.0),
               monotone=1)  # fmt: skip
LOG1P = _unary("log1p", np.log1p, "log(1 + a), exact near 0", lambda g, y, a: (g / (a + 1),),
               domain=(-0.6, 5.0), prefix="fulgurite", monotone=1)  # fmt: skip
SIN = _unary("sin", np.sin, "the sine", lambda g, y, a: (g * COS(a),))
COS: Op = _unary("cos", np.cos, "the cosine", lambda g, y, a: (-g * SIN(a),))
TAN = _unary("tan", np.tan, "the tangent", lambda g, y, a: (g * (y * y + 1),),
             domain=(-1.2, 1.2))  # fmt: skip
ASIN = _unary("asin", np.arcsin, "the angle whose sine is a",
              lambda g, y, a: (g / SQRT(1 - a * a),), domain=(-0.9, 0.9), monotone=1)  # fmt: skip
ACOS = _unary("acos", np.arccos, "the angle whose cosine is a",
              lambda g, y, a: (-g / SQRT(1 - a * a),), domain=(-0.9, 0.9), monotone=-1)  # fmt: skip
ATAN = _unary("atan", np.arctan, "the angle whose tangent is a",
              lambda g, y, a: (g / (a * a + 1),), monotone=1)  # fmt: skip
SINH = _unary("sinh", np.sinh, "the hyperbolic sine", lambda g, y, a: (g * COSH(a),), monotone=1)
COSH: Op = _unary("cosh", np.cosh, "the hyperbolic cosine", lambda g, y, a: (g * SINH(a),))
TANH = _unary("tanh", np.tanh, "the hyperbolic tangent", lambda g, y, a: (g * (1 - y * y),),
              monotone=1)  # fmt: skip
ASINH = _unary("asinh", np.arcsinh, "the inverse of sinh", lambda g, y, a: (g / SQRT(a * a + 1),),
               prefix="fulgurite", monotone=1)  # fmt: skip
ACOSH = _unary("acosh", np.arccosh, "the inverse of cosh",
               lambda g, y, a: (g / (SQRT(a - 1) * SQRT(a + 1)),), domain=(1.2, 5.0),
               prefix="fulgurite", monotone=1)  # fmt: skip
ATANH = _unary("atanh", np.arctanh, "the inverse of tanh", lambda g, y, a: (g / (1 - a * a),),
               domain=(-0.9, 0.9), prefix="fulgurite", monotone=1)  # fmt: skip
_ERF_SLOPE = 2 / float(np.sqrt(np.pi))
ERF = _unary("erf", special.erf, "the error function",
             lambda g, y, a: (g * (_ERF_SLOPE * EXP(-(a * a))),), prefix="fulgurite", kinds="f",
             monotone=1)  # fmt: skip
ERFC = _unary("erfc", special.erfc, "1 - erf(a), exact far out",
              lambda g, y, a: (g * (-_ERF_SLOPE * EXP(-(a * a))),), prefix="fulgurite", kinds="f",
              monotone=-1)  # fmt: skip
LGAMMA = _unary("lgamma", special.lgamma, "log of the magnitude of the gamma function",
                lambda g, y, a: (g * polygamma(0, a),), domain=(0.3, 5.0), prefix="fulgurite",
                kinds="f", cost=60)  # fmt: skip
ATAN2 = elementwise(
    "atan2", np.arctan2, "the angle of the point (b, a)", kinds="f", domain=(0.3, 3.0), cost=30,
    grad=_atan2_grad,
    llvm=_intrinsic("llvm.atan2", 2), triton="libdevice.atan2({0}, {1})",
)  # fmt: skip
POLYGAMMA = Op(
    name="polygamma", family="elementwise", arity=1, kinds="f", levels=BOTH, batch=_batch,
    tangent=_diagonal, doc="derivative number arg + 1 of lgamma",
    numpy=lambda node, a: special.polygamma(node.arg, a.astype(np.float64)).astype(a.dtype),
    grad=lambda g, y, a: (g * polygamma(y.arg + 1, a),), domain=(0.3, 5.0), cost=200,
    llvm={"f": "call {T} @fulgurite.polygamma.{S}({T} {0}, i32 {arg})"},
    triton="fg_polygamma({arg}, {0})",
    check=lambda n: None if isinstance(n.arg, int) and n.arg >= 0 else "order must be at least 0",
)  # fmt: skip


def polygamma(order: int, a: Node) -> Node:
    """The derivative number `order` of the digamma function."""
    return POLYGAMMA(a, arg=order)


# --- comparison, choice and bits -----------------------------------------------------------------


def _compare(name: str, numpy: Any, doc: str, code: str, python: str, **more: Any) -> Op:
    prefixes = ("", "", "o") if code in ("eq", "ne") else ("s", "u", "o")
    signed, unsigned, ordered = (prefix + code for prefix in prefixes)
    real = {"eq": "oeq", "ne": "une"}.get(code, ordered)
    return elementwise(
        name, numpy, doc, result="bool", grad=lambda g, y, a, b: (None, None), smooth=False,
        jumps=True,
        llvm={"i": f"icmp {signed} {{T}} {{0}}, {{1}}", "u": f"icmp {unsigned} {{T}} {{0}}, {{1}}",
              "b": f"icmp {unsigned} {{T}} {{0}}, {{1}}", "f": f"fcmp {real} {{T}} {{0}}, {{1}}"},
        triton=f"{{0}} {python} {{1}}", **more,
    )  # fmt: skip


LT = _compare(
    "lt", np.less, "a < b", "lt", "<", kinds="biuf",
    interval=lambda a, b: (int(a[1] < b[0]), int(a[0] < b[1])),
)  # fmt: skip
LE = _compare(
    "le", np.less_equal, "a <= b", "le", "<=", kinds="biuf",
    interval=lambda a, b: (int(a[1] <= b[0]), int(a[0] <= b[1])),
)  # fmt: skip
EQ = _compare(
    "eq", np.equal, "a == b", "eq", "==", kinds="biufc", commutative=True,
    interval=lambda a, b: (int(a == b and a[0] == a[1]), int(a[0] <= b[1] and b[0] <= a[1])),
)  # fmt: skip
NE = _compare(
    "ne", np.not_equal, "a != b", "ne", "!=", kinds="biufc", commutative=True,
    interval=lambda a, b: (int(a[1] < b[0] or b[1] < a[0]), int(not a[0] == a[1] == b[0] == b[1])),
)  # fmt: skip


def _where_check(node: Node) -> str | None:
    condition, a, b = node.src
    if condition.dtype is not bool_:
        return f"the condition has dtype {condition.dtype}, not bool"
    if not condition.shape == a.shape == b.shape:
        return f"sources have shapes {condition.shape}, {a.shape} and {b.shape}"
    return None if a.dtype is b.dtype else f"branches have dtypes {a.dtype} and {b.dtype}"


WHERE: Op = elementwise(
    "where", np.where, "a where the condition holds, else b", arity=3, kinds="b", smooth=False,
    grad=lambda g, y, c, a, b: (
        None, WHERE(c, g, constant_like(0, g)), WHERE(c, constant_like(0, g), g),
    ),
    interval=lambda c, a, b: b if c[1] == 0 else a if c[0] == 1 else (
        min(a[0], b[0]), max(a[1], b[1])
    ),
    llvm="select {M} {0}, {T} {1}, {T} {2}", triton="tl.where({0}, {1}, {2})", check=_where_check,
)  # fmt: skip


def _bitwise(name: str, numpy: Any, doc: str, sign: str, **more: Any) -> Op:
    return elementwise(
        name, numpy, doc, kinds="biu", grad=lambda g, y, a, b: (None, None),
        llvm=f"{name} {{T}} {{0}}, {{1}}", triton=f"{{0}} {sign} {{1}}", commutative=True,
        associative=True, **more,
    )  # fmt: skip


AND = _bitwise("and", np.bitwise_and, "a & b", "&", interval=_bits_interval,
               identity=lambda d: -1 if d.kind == "i" else d.limits[1])  # fmt: skip
OR = _bitwise("or", np.bitwise_or, "a | b", "|", interval=_or_interval, identity=lambda d: 0)
XOR = _bitwise("xor", np.bitwise_xor, "a ^ b", "^", interval=_or_interval, identity=lambda d: 0)
NOT = elementwise(
    "not", np.invert, "~a: every bit flipped", arity=1, kinds="biu", monotone=-1,
    grad=lambda g, y, a: (None,), triton="~{0}",
    llvm={"b": "icmp eq {T} {0}, zeroinitializer", "i": _intrinsic("fulgurite.not"),
          "u": _intrinsic("fulgurite.not")},  # no spelling of -1 fits both numbers and vectors
)  # fmt: skip
SHL = elementwise(
    "shl", np.left_shift, "a << b", kinds="iu", interval=_shift_interval(lambda x, y: x << y),
    grad=lambda g, y, a, b: (None, None), llvm=_intrinsic("fulgurite.shl", 2),
    triton="fg_shl({0}, {1})",
)  # fmt: skip
SHR = elementwise(
    "shr", np.right_shift, "a >> b, keeping the sign", kinds="iu",
    interval=_shift_interval(lambda x, y: x >> y),
    grad=lambda g, y, a, b: (None, None),
    llvm={"i": _intrinsic("fulgurite.ashr", 2), "u": _intrinsic("fulgurite.lshr", 2)},
    triton="fg_shr({0}, {1})",
)  # fmt: skip

DOT4 = elementwise(
    "dot4", special.dot4, "c plus the four bytes of a, unsigned, times those of b, signed", arity=3,
    kinds="i", grad=lambda g, y, a, b, c: (None, None, None), cost=2,
    check=lambda n: _check(n) or (None if n.dtype.bits == 32 else f"{n.dtype} has not four bytes"),
    llvm=_intrinsic("fulgurite.dot4", 3), triton="fg_dot4({0}, {1}, {2})",
)  # fmt: skip

# --- conversion ----------------------------------------------------------------------------------


def _arg_dtype(src: tuple[Node, ...], arg: Any) -> DType:
    assert isinstance(arg, DType)
    return arg


def _cast_interval(node: Node, known: list[Bounds | None]) -> Bounds | None:
    found = known[0]
    if found is None or node.dtype is not bool_:
        return found
    return int(not found[0] <= 0 <= found[1]), int(found != (0, 0))


CAST: Op = Op(
    name="cast", family="elementwise", arity=1, dtype=_arg_dtype, levels=BOTH, smooth=False,
    doc="the same number in another dtype; floats to whole numbers saturate, NaN gives 0",
    numpy=lambda node, a: special.cast(a, node.src[0].dtype, node.dtype),
    grad=lambda g, y, a: (CAST(g, arg=a.dtype) if a.dtype.is_inexact else None,),
    tangent=lambda y, tangents: None if tangents[0] is None else CAST(tangents[0], arg=y.arg),
    check=lambda n: f"nothing is {n.dtype}" if n.dtype.kind == "v" else None,
    batch=_batch, interval=_cast_interval, llvm={kind: "cast" for kind in "biuf"},
    triton="{0}.to({arg})",
)  # fmt: skip
BITCAST = Op(
    name="bitcast", family="elementwise", arity=1, dtype=_arg_dtype, kinds="iuf", levels=BOTH,
    doc="the same bits read as another dtype of the same width", smooth=False, jumps=True,
    numpy=lambda node, a: np.ascontiguousarray(a).view(node.dtype.numpy).reshape(a.shape),
    grad=lambda g, y, a: (None,), batch=_batch,
    llvm={kind: "bitcast {T} {0} to {R}" for kind in "iuf"}, triton="{0}.to({arg}, bitcast=True)",
    check=lambda n: (
        None
        if n.src[0].dtype.bits == n.dtype.bits and n.dtype.kind in "iuf"
        else f"the bits of {n.src[0].dtype} are not those of {n.dtype}"
    ),
)  # fmt: skip

give(add=ADD, sub=SUB, mul=MUL, div=DIV)
