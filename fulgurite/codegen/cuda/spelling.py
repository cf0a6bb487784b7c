"""Triton spelling of dtypes, constants and elementwise ops, read from the op table.

In: a node of a kernel's body and the names of its operands. Out: a Triton expression. Values of
small floats (bfloat16, float16, float8) are held in float32 and rounded to their own grid after
every op, as the reference has it, so kernels agree on bits whatever they fuse. `fg_...` are the
functions of `prelude.py`; those made for one number (the order of a polygamma) are `definitions`.
"""

from __future__ import annotations

import math
import re

from ...core.dtype import DType, bool_, decode, float32, float64, int32, int64, uint32, uint64
from ...core.node import Node
from ...core.ops.elementwise import BITCAST, CAST, POLYGAMMA
from ...core.ops.reduce import identity_of
from ...graph.ir.reshape_groups import CannotLower
from .special import polygamma_function

INT32_LIMIT = int32.limits[1]


def type_name(dtype: DType) -> str:
    """A dtype as Triton's language writes it."""
    return "tl.int1" if dtype is bool_ else f"tl.{dtype.name}"


def computing(dtype: DType) -> DType:
    """The dtype that values are held in: float32 for small floats."""
    return float32 if dtype.is_small_float else dtype


def whole(value: int, dtype: DType) -> str:
    """A whole number of a dtype."""
    return f"tl.full((), {value}, {type_name(dtype)})"


def constant(bits: int, dtype: DType) -> str:
    """A constant by its bits; what has no exact decimal is cast from them."""
    value = decode(bits, dtype)
    held = computing(dtype)
    if held is bool_:
        return f"tl.full((), {bool(value)}, tl.int1)"
    if held.kind in "iu":
        return whole(int(value), held)  # type: ignore[arg-type]
    return number(float(value), held)  # type: ignore[arg-type]


def number(value: float, dtype: DType) -> str:
    """A float constant; infinities, NaN and -0.0 are cast from their bits."""
    if math.isfinite(value) and (value or math.copysign(1, value) > 0):
        return f"tl.full((), {value!r}, {type_name(dtype)})"
    wide = dtype is float64
    infinite = 0x7FF << 52 if wide else 0xFF << 23
    bits = infinite if value else 0
    if value != value:
        bits = 0x7FF8 << 48 if wide else 0x7FC0 << 16
    elif math.copysign(1, value) < 0:
        bits |= 1 << (63 if wide else 31)
    return f"{whole(bits, uint64 if wide else uint32)}.to({type_name(dtype)}, bitcast=True)"


def identity(name: str, dtype: DType) -> str:
    """What combining by an op changes nothing with, in the dtype that values are held in."""
    held = computing(dtype)
    value = identity_of(name, held)
    if held.kind == "f":
        return number(float(value), held)
    if held is bool_:
        return f"tl.full((), {bool(value)}, tl.int1)"
    return whole(int(value), held)


def empty_fold(name: str, dtype: DType) -> str:
    """What folding no element at all gives: a sum of nothing is 0.0, not -0.0."""
    if name == "add" and dtype.kind == "f":
        return number(0.0, computing(dtype))
    return identity(name, dtype)


def combiner(name: str, dtype: DType) -> str:
    """The function that combines two values as a fold of this name does."""
    if dtype is bool_:
        return {"add": "fg_or", "max": "fg_or", "mul": "fg_and", "min": "fg_and"}[name]
    if name in ("max", "min") and dtype.kind != "f":
        return f"fg_i{name}"
    return f"fg_{name}"


def combine(name: str, a: str, b: str, dtype: DType) -> str:
    """Two values combined as a fold of this name does."""
    function = combiner(name, dtype)
    sign = {"fg_add": "+", "fg_mul": "*", "fg_or": "|", "fg_and": "&"}.get(function)
    return f"{a} {sign} {b}" if sign else f"{function}({a}, {b})"


def rounded(text: str, dtype: DType) -> str:
    """A float32 on a small float's grid; other values as they are."""
    if not dtype.is_small_float:
        return text
    if dtype.bits == 8:
        return f"fg_round_{dtype.name}({text})"
    return f"({text}).to({type_name(dtype)}).to(tl.float32)"


def from_memory(text: str, dtype: DType) -> str:
    """What was loaded, as it is held."""
    if not dtype.is_small_float:
        return text
    return f"fg_decode_{dtype.name}({text})" if dtype.bits == 8 else f"{text}.to(tl.float32)"


def to_memory(text: str, dtype: DType) -> str:
    """A held value as it is stored."""
    if not dtype.is_small_float:
        return text
    if dtype.bits == 8:
        return f"fg_encode_{dtype.name}({text})"
    return f"({text}).to({type_name(dtype)})"


def elementwise(node: Node, values: list[str], short: bool = False) -> str:
    """One elementwise op on values that are named already; in a short form where there is one."""
    op, dtype = node.op, node.src[-1].dtype
    if dtype.kind == "c" or node.dtype.kind == "c":
        raise CannotLower(f"{op} of complex numbers has no form in pairs")
    if op is CAST:
        return _cast(values[0], node.src[0].dtype, node.dtype)
    if op is BITCAST:
        value = to_memory(values[0], node.src[0].dtype)
        as_bytes = node.dtype.is_small_float and node.dtype.bits == 8
        target = "tl.uint8" if as_bytes else type_name(node.dtype)
        return from_memory(f"{value}.to({target}, bitcast=True)", node.dtype)
    if op is POLYGAMMA:
        return rounded(f"fg_polygamma_{node.arg}({values[0]})", node.dtype)
    spelling = _SPECIAL.get((op.name, dtype.kind)) or op.triton
    if short and computing(dtype) is float32:
        spelling = _SHORT.get(op.name, spelling)
    if not spelling:
        raise CannotLower(f"{op} has no Triton spelling")
    return rounded(spelling.format(*values, arg=node.arg), node.dtype)


# where one spelling does not fit all kinds of dtype
_SPECIAL = {
    ("neg", "f"): "fg_neg({0})", ("neg", "u"): "(0 - {0})",
    ("pow", "i"): "fg_ipow({0}, {1})", ("pow", "u"): "fg_ipow_unsigned({0}, {1})",
    ("floordiv", "f"): "fg_floordiv_float({0}, {1})", ("mod", "f"): "fg_mod_float({0}, {1})",
    ("floordiv", "u"): "fg_floordiv_unsigned({0}, {1})", ("mod", "u"): "fg_mod_unsigned({0}, {1})",
    ("max", "b"): "{0} | {1}", ("min", "b"): "{0} & {1}",
    ("max", "i"): "tl.maximum({0}, {1})", ("min", "i"): "tl.minimum({0}, {1})",
    ("max", "u"): "tl.maximum({0}, {1})", ("min", "u"): "tl.minimum({0}, {1})",
    ("lt", "b"): "({0} == 0) & {1}", ("le", "b"): "({0} == 0) | {1}",
    ("eq", "b"): "({0} ^ {1}) == 0", ("ne", "b"): "{0} ^ {1}", ("not", "b"): "{0} == 0",
    ("abs", "u"): "{0}", ("sign", "u"): "fg_sign_unsigned({0})", ("not", "u"): "(0 - {0}) - 1",
}  # fmt: skip


# forms of float32 without branches, as exact as libdevice's
_SHORT = {"tanh": "fg_tanh({0})"}


def _cast(value: str, source: DType, target: DType) -> str:
    """The same number in another dtype; floats to whole numbers saturate, NaN gives 0."""
    have, goal = computing(source), computing(target)
    if target is bool_:
        return value if have is bool_ else f"{value} != 0"
    if have.kind == "f" and goal.kind in "iu":
        low, high = goal.limits
        return (
            f"fg_saturate({value}, {number(float(low), have)}, {number(float(high + 1), have)}, "
            f"{whole(low, goal)}, {whole(high, goal)})"
        )
    if target.is_small_float and source is not target:
        is_long = source.kind in "iu" and source.bits >= 32
        if is_long:
            wide = f"fg_odd_{'signed' if source.kind == 'i' else 'unsigned'}({value})"
            value = wide if source.bits == 64 else f"{value}.to(tl.float64)"
        if source is float64 or is_long:
            value = f"fg_odd_float32({value})"
        elif have is not float32:
            value = f"{value}.to(tl.float32)"
        return rounded(value, target)
    return value if have is goal else f"{value}.to({type_name(goal)})"


def sort_key(value: str, dtype: DType, descending: bool) -> str:
    """A signed number whose order is that of the values."""
    if dtype.kind == "f":
        key = f"fg_float_key({value})"
    elif dtype.kind == "u":
        key = f"fg_unsigned_key({value})"
    else:
        key = f"{value}.to({type_name(key_dtype(dtype))})"
    return f"~{key}" if descending else key


def key_dtype(dtype: DType) -> DType:
    """The dtype of the keys that values are sorted by."""
    return int64 if dtype.bits == 64 else int32


_MADE = re.compile(r"\bfg_polygamma_(\d+)\(")


def definitions(text: str) -> str:
    """The functions that a text calls and that are made for its numbers."""
    orders = sorted({int(order) for order in _MADE.findall(text)})
    return "".join([polygamma_function(order) + "\n\n" for order in orders])
