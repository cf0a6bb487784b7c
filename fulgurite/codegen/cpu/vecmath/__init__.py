"""Functions of real numbers on whole vectors, in LLVM's instructions.

In: an emitter and operands, one number or a vector of lanes each. Out: the value, within 2 units in
the last place of the exact one (pow and lgamma within 4; docs/accuracy.md has what was measured).
Nothing calls the C library, so bits do not depend on the system, and nothing needs an optimisation
pass. Every constant is in `tables.py`, which tests/codegen/cpu/fit.py writes. A short function is
put where it is used. A long one is a call; `library` gives the modules that a text calls, so that
each is compiled once for all kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial

from ....core.digest import digest_of
from ....core.dtype import DType, float32, float64
from ..llvm.emitter import Emitter, Val
from .angle import acos, asin, atan, atan2
from .error import erf, erfc
from .exponential import cosh, exp, exp2, expm1, sinh, tanh
from .gamma import lgamma
from .logarithm import acosh, asinh, atanh, log, log1p, log2, log10, power
from .roots import cbrt, rsqrt
from .trigonometry import FINISH, WORDS, far, trigonometric, words
from .values import Function, Num

Expand = Callable[[Emitter, DType, "list[Val]"], Val]

_FUNCTIONS: dict[str, Function] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "sinh": sinh, "cosh": cosh, "tanh": tanh,
    "log": log, "log2": log2, "log10": log10, "log1p": log1p, "pow": power,
    "asinh": asinh, "acosh": acosh, "atanh": atanh,
    "asin": asin, "acos": acos, "atan": atan, "atan2": atan2,
    "erf": erf, "erfc": erfc, "lgamma": lgamma, "rsqrt": rsqrt, "cbrt": cbrt,
}  # fmt: skip
_SHORT = {  # everything else is called
    float32: {"exp", "exp2", "expm1", "tanh", "log", "log2", "log10", "log1p", "sin", "cos", "asin",
              "acos", "atan", "erf", "rsqrt", "cbrt"},
    float64: {"exp", "exp2", "expm1", "log", "rsqrt"},
}  # fmt: skip
IN_PIECES = {"tanh", "erf", "erfc"}  # of float32 on AVX-512
_TWO = {"pow", "atan2"}  # functions of two numbers
_CALL = re.compile(r"^declare .* @(vecmath\.\w+\.\d+\.\w+)\.\w+\(", re.MULTILINE)


def _called(name: str) -> Function:
    """A call of the function."""

    def call(*values: Num) -> Num:
        first = values[0].val
        e = values[0].e
        symbol = _module(f"vecmath.{name}.{e.lanes}.{e.suffix(first.dtype, first.vector)}")[0]
        kind = e.type_of(first.dtype, first.vector)
        text = e.call(kind, symbol, *[e.typed(v.val) for v in values])
        return Num(e, Val(text, first.dtype, first.vector))

    return call


for _name in FINISH:
    _FUNCTIONS[_name] = trigonometric(_name, _called(_name + "_far"))
    _FUNCTIONS[_name + "_far"] = partial(far, _name)


def _expansion(name: str) -> Expand:
    """The function as the renderer knows it: written out, or a call if it is long."""

    def expand(e: Emitter, dtype: DType, values: list[Val]) -> Val:
        numbers = [Num(e, v) for v in e.alike(*values)]
        short = name in _SHORT[dtype]
        return (_FUNCTIONS[name] if short else _called(name))(*numbers).val

    return expand


FUNCTIONS: dict[str, Expand] = {
    name: _expansion(name) for name in _FUNCTIONS if not name.endswith("_far")
}


@lru_cache(maxsize=256)
def _module(which: str) -> tuple[str, str]:
    """A function's symbol, and a module with it and its own copies of what it calls.

    The symbol ends in a digest of the module: a stored kernel that calls it is another kernel once
    the function has changed.
    """
    _, name, lanes, suffix = which.split(".")
    e, defined = _defined(which, name, int(lanes), suffix, "")
    declared = dict(e.declared)
    for symbol in [d for d in declared if d.startswith("vecmath.")]:
        inner, more = _defined(symbol, symbol.split(".")[1], int(lanes), suffix, "internal ")
        del declared[symbol]
        declared |= inner.declared
        defined += more
    if any(f"@{WORDS}," in line for line in defined):
        declared[WORDS] = words()
    text = "\n".join([*defined, *declared.values(), ""])
    symbol = f"{which}.{digest_of(text, 6)}"
    return symbol, text.replace(f"@{which}(", f"@{symbol}(")


def _defined(
    symbol: str, name: str, lanes: int, suffix: str, link: str
) -> tuple[Emitter, list[str]]:
    """The lines of a function's definition, and the emitter that knows what they declare."""
    e = Emitter(lanes)
    dtype, vector = float32 if suffix.endswith("f32") else float64, suffix[0] == "v"
    kind = e.type_of(dtype, vector)
    args = [Val(arg, dtype, vector) for arg in (("%a", "%b") if name in _TWO else ("%a",))]
    found = _FUNCTIONS[name](*[Num(e, arg) for arg in args]).val.text
    head = f"define {link}{kind} @{symbol}({', '.join(map(e.typed, args))}) {{\nentry:"
    return e, [head, *e.lines, f"  ret {kind} {found}", "}"]


def library(text: str) -> tuple[str, ...]:
    """The modules of the functions that a text declares."""
    return tuple([_module(which)[1] for which in sorted(set(_CALL.findall(text)))])
