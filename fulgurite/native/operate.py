"""One elementwise op on values: the op table's spelling, or an expansion of it."""

from __future__ import annotations

from ..core.dtype import DType, bool_, float64
from ..core.node import Node
from ..core.ops.elementwise import BITCAST, CAST, SHR, WHERE
from ..graph.regroup import CannotLower
from .emitter import Emitter, Val, computing, scalar_type
from .maths import EXPANSIONS, compare, intrinsic, select


def operate(e: Emitter, node: Node, sources: list[Val]) -> Val:
    """The result of an elementwise op."""
    op = node.op
    if any(s.dtype.kind == "c" for s in node.src) or node.dtype.kind == "c":
        raise CannotLower("complex numbers are computed by NumPy")
    values = e.alike(*sources)
    dtype = values[-1].dtype
    if op is CAST:
        return cast(e, values[0], node.src[0].dtype, node.dtype)
    if op is BITCAST:
        return _bitcast(e, values[0], node)
    if op is WHERE:
        return select(e, *values)
    name = f"shr_{dtype.kind}" if op is SHR else op.name
    if op.name == "pow" and dtype.kind in "iu":
        name = "pow_int"
    expand = EXPANSIONS.get(name)
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
    from .convert import round_small

    return round_small(e, value, node.dtype)


def cast(e: Emitter, value: Val, source: DType, target: DType) -> Val:
    """The same number in another dtype; floats to whole numbers saturate."""
    goal = computing(target)
    if target.kind == "b":
        if value.dtype is bool_:
            return value
        how = "fcmp une" if value.dtype.kind == "f" else "icmp ne"
        return compare(e, how, value, e.const(0, value.dtype, value.vector))
    result = _number(e, value, goal)
    if target.is_small_float and source is float64:
        raise CannotLower("float64 to a small float rounds in a way of its own")
    if not target.is_small_float or source is target:
        return result
    if source.kind in "iu" and source.bits > 16:
        raise CannotLower("wide whole numbers to a small float round in a way of their own")
    from .convert import round_small

    return round_small(e, result, target)


def _number(e: Emitter, value: Val, goal: DType) -> Val:
    have, kind = value.dtype, e.type_of(goal, value.vector)
    if have is goal:
        return value
    if have.kind == "f" and goal.kind == "f":
        how = "fpext" if goal is float64 else "fptrunc"
    elif have.kind == "f":
        name = f"llvm.fpto{'s' if goal.kind == 'i' else 'u'}i.sat"
        full = f"{name}.{e.suffix(goal, value.vector)}.{e.suffix(have, value.vector)}"
        return Val(e.call(kind, full, e.typed(value)), goal, value.vector)
    elif goal.kind == "f":
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
    if source.is_small_float or target.is_small_float:
        raise CannotLower("the bits of a small float")
    if scalar_type(source) == scalar_type(target):
        return Val(value.text, target, value.vector)
    kind = e.type_of(target, value.vector)
    return Val(e.let(f"bitcast {e.typed(value)} to {kind}"), target, value.vector)
