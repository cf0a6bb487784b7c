"""Lowering of an elementwise op to LLVM: the op table's spelling, or an expansion of it."""

from __future__ import annotations

from collections.abc import Callable

from ...core.dtype import DType, bfloat16, bool_, float64
from ...core.node import Node
from ...core.op import Op
from ...core.ops.elementwise import BITCAST, CAST, DIV, MAX, MIN, POLYGAMMA, SHR, WHERE
from ...core.ops.reduce import REDUCERS, identity_of
from ...graph.ir.reshape_groups import CannotLower
from .llvm.convert import (
    from_memory,
    memory_dtype,
    odd_float32,
    odd_float64,
    round_small,
    saturated,
    to_memory,
    unsaturated,
)
from .llvm.emitter import Emitter, Val, computing, scalar_type
from .llvm.maths import EXPANSIONS, compare, intrinsic, select
from .special import polygamma


def operate(e: Emitter, node: Node, sources: list[Val]) -> Val:
    """The result of an elementwise op."""
    op = node.op
    if any(s.dtype.kind == "c" for s in node.src) or node.dtype.kind == "c":
        raise CannotLower(f"{op} of complex numbers has no form in pairs")
    if op in _BOUNDS and _has_bound(sources):
        return _rounded(e, _bounded(e, op, sources), node)
    values = e.alike(*sources)
    dtype = values[-1].dtype
    if op in _OWN:
        return _OWN[op](e, node, values)
    expand = EXPANSIONS.get(_expanded_as(op, dtype))
    if expand is not None:
        return _rounded(e, expand(e, dtype, values), node)
    text = op.llvm.get(dtype.kind)
    if text is None or "@fulgurite" in text:
        raise CannotLower(f"{op} has no native form yet")
    if "call" in text:
        return _rounded(e, _call(e, text, values), node)
    kind = e.type_of(dtype, values[0].vector)
    result = e.let(text.format(*[v.text for v in values], T=kind))
    found = Val(result, bool_ if node.dtype is bool_ else dtype, values[0].vector)
    return _rounded(e, found, node)


def _expanded_as(op: Op, dtype: DType) -> str:
    """The name of an op's expansion."""
    if op.name == "pow" and dtype.kind in "iu":
        return "pow_int"
    return f"shr_{dtype.kind}" if op is SHR else op.name


def combine(e: Emitter, name: str, a: Val, b: Val) -> Val:
    """The op that a fold, scan or scatter of this name combines two values with."""
    a, b = e.alike(a, b)
    text = REDUCERS[name].llvm[a.dtype.kind]
    if "call" in text:
        return _call(e, text, [a, b])
    kind = e.type_of(a.dtype, a.vector)
    return Val(e.let(text.format(a.text, b.text, T=kind)), a.dtype, a.vector)


def _has_bound(sources: list[Val]) -> bool:
    """True if one of two floats is the same number in all lanes."""
    return sources[0].vector is not sources[1].vector and sources[0].dtype.kind == "f"


def _bounded(e: Emitter, op: Op, sources: list[Val]) -> Val:
    """The larger or smaller of lanes and one number, in two instructions.

    The machine's own gives lanes where both are zeros or one is NaN. What is left to do follows
    from the number alone, once for a loop: a zero of its sign, or NaN where it is NaN.
    """
    (x,), (bound,) = [[s for s in sources if s.vector is vector] for vector in (True, False)]
    limit, bits = e.splat(bound), x.dtype.bits
    kind, words = e.type_of(x.dtype, True), f"<{e.lanes} x i{bits}>"
    none = compare(e, "fcmp uno", limit, limit)
    nan = e.let(f"sext {e.typed(none)} to {words}")
    own = e.let(f"bitcast {e.typed(limit)} to {words}")
    sign = e.let(f"and {words} {own}, splat (i{bits} {-1 << (bits - 1)})")
    rest = e.let(f"or {words} {sign}, {nan}")
    found = select(e, compare(e, _BOUNDS[op], limit, x), limit, x)
    if op is MAX:
        zero = e.let(f"bitcast {words} {rest} to {kind}")
        return Val(e.let(f"fadd {kind} {found.text}, {zero}"), x.dtype, True)
    made = e.let(f"bitcast {e.typed(found)} to {words}")
    return Val(e.let(f"bitcast {words} {e.let(f'or {words} {made}, {rest}')} to {kind}"),
               x.dtype, True)  # fmt: skip


def identity(e: Emitter, name: str, dtype: DType, vector: bool) -> Val:
    """What combining changes nothing with, in a dtype that values compute in."""
    number = identity_of(name, dtype)
    return e.const(float(number) if dtype.kind == "f" else int(number), dtype, vector)


def _call(e: Emitter, text: str, values: list[Val]) -> Val:
    """An intrinsic by its spelling: `call {T} @llvm.sqrt.{S}(...)`."""
    name = text.split("@")[1].split(".{S}")[0]
    if name == "llvm.abs":
        first = values[0]
        kind = e.type_of(first.dtype, first.vector)
        full = f"llvm.abs.{e.suffix(first.dtype, first.vector)}"
        return Val(e.call(kind, full, e.typed(first), "i1 false"), first.dtype, first.vector)
    return intrinsic(e, name, *values)


def _rounded(e: Emitter, value: Val, node: Node) -> Val:
    """A small float is on its own grid after every op, as the reference has it."""
    if not node.dtype.is_small_float:
        return value
    return round_small(e, value, node.dtype)


def cast(e: Emitter, value: Val, source: DType, target: DType) -> Val:
    """The same number in another dtype; floats to whole numbers saturate."""
    goal = computing(target)
    if target.kind == "b":
        if value.dtype is bool_:
            return value
        how = "fcmp une" if value.dtype.kind == "f" else "icmp ne"
        return compare(e, how, value, e.const(0, value.dtype, value.vector))
    if target.is_small_float and source is not target:
        if source is float64:
            value = odd_float32(e, value)
        elif target is bfloat16 and source.kind in "iu" and source.bits >= 32:
            wide = odd_float64(e, value) if source.bits == 64 else _number(e, value, float64)
            value = odd_float32(e, wide)  # other small floats end where float32 is still exact
        return round_small(e, _number(e, value, goal), target)
    return _number(e, value, goal)


def _number(e: Emitter, value: Val, goal: DType) -> Val:
    have, kind = value.dtype, e.type_of(goal, value.vector)
    if have is goal:
        return value
    if have.kind == "f" and goal.kind == "f":
        how = "fpext" if goal is float64 else "fptrunc"
    elif have.kind == "f":
        return saturated(e, value, goal)
    elif goal.kind == "f":
        was = unsaturated(e, value, goal)
        if was is not None:
            return was
        how = "sitofp" if have.kind == "i" else "uitofp"
    elif goal.bits == have.bits:
        return Val(value.text, goal, value.vector)
    elif goal.bits < have.bits:
        how = "trunc"
    else:
        how = "sext" if have.kind == "i" else "zext"
    return Val(e.let(f"{how} {e.typed(value)} to {kind}"), goal, value.vector)


def _bitcast(e: Emitter, value: Val, node: Node) -> Val:
    source, target = node.src[0].dtype, node.dtype
    if source.is_small_float:
        value = to_memory(e, value, source)
    goal = memory_dtype(target)
    if scalar_type(value.dtype) == scalar_type(goal):
        value = Val(value.text, goal, value.vector)
    else:
        kind = e.type_of(goal, value.vector)
        value = Val(e.let(f"bitcast {e.typed(value)} to {kind}"), goal, value.vector)
    return from_memory(e, value, target) if target.is_small_float else value


_BOUNDS = {MAX: "fcmp ogt", MIN: "fcmp olt"}
_OWN: dict[Op, Callable[[Emitter, Node, list[Val]], Val]] = {  # ops that need more than values
    CAST: lambda e, node, values: cast(e, values[0], node.src[0].dtype, node.dtype),
    BITCAST: lambda e, node, values: _bitcast(e, values[0], node),
    DIV: lambda e, node, values: _rounded(e, e.quotient(values[0], values[1]), node),
    WHERE: lambda e, node, values: select(e, *values),
    POLYGAMMA: lambda e, node, values: _rounded(e, polygamma(e, node.arg, values[0]), node),
}
