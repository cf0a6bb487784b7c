"""Functions of float32 in pieces: what AVX-512 looks up in a register, one number for each lane.

In: a number, which of 16 pieces it is in, and a table: a centre and the coefficients of a
polynomial around it for each piece. Out: the polynomial's value, or its parts. A centre is where
the function is nearly a float32, so that nothing is lost there. Looking up is one instruction for
16 numbers, cheaper than the exponential or the division that one formula for all numbers needs.
Other targets have no such instruction and keep their formulas: bits differ, bounds do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.dtype import float32
from ..llvm.emitter import Val, literal
from ..target import VECTORS
from .values import Num, fma, least, where

AVX512 = VECTORS["avx512"]  # lanes that no other target has


def has_pieces(a: Num) -> bool:
    """True if the target permutes numbers of this dtype between registers."""
    return a.e.lanes >= AVX512 and a.dtype is float32


def each_register(values: Sequence[Num], call: Callable[[list[str]], str]) -> Num:
    """What an instruction makes of each register of some vectors: `call` is given their names."""
    e = values[0].e
    parts = []
    for start in range(0, e.lanes, AVX512):
        names = [v.val.text for v in values]
        if e.lanes > AVX512:
            picks = ", ".join([f"i32 {start + i}" for i in range(AVX512)])
            places = f"<{AVX512} x i32> <{picks}>"
            names = [e.let(f"shufflevector {e.typed(v.val)}, {e.type_of(v.dtype, True)} poison, "
                           f"{places}") for v in values]  # fmt: skip
        parts.append(e.let(call(names)))
    if len(parts) == 1:
        return Num(e, Val(parts[0], float32, True))
    kind, picks = f"<{AVX512} x float>", ", ".join([f"i32 {i}" for i in range(e.lanes)])
    both = f"{kind} {parts[0]}, {kind} {parts[1]}, <{e.lanes} x i32> <{picks}>"
    return Num(e, Val(e.let(f"shufflevector {both}"), float32, True))


def in_pieces(x: Num, which: Num, table: Sequence[Sequence[float]]) -> tuple[Num, Num, Num]:
    """(slope, t, value at the centre), whose sum slope * t + value is the function's value.

    The last four bits of `which` say in which piece x is; t is how far it is from the centre.
    """
    name, kind, places = "llvm.x86.avx512.permvar.sf.512", "<16 x float>", "<16 x i32>"
    x.e.declare(f"{kind} @{name}({kind}, {places})", name)

    def picked(row: Sequence[float]) -> Num:
        numbers = ", ".join([f"float {literal(c, float32)}" for c in row])
        call = f"call {kind} @{name}({kind} <{numbers}>, {places}"
        return each_register([which], lambda names: f"{call} {names[0]})")

    t = x - picked(table[0])
    slope = picked(table[1])
    for row in table[2:-1]:
        slope = fma(slope, t, picked(row))
    return slope, t, picked(table[-1])


def odd_in_pieces(a: Num, top: float, width: float, table: Sequence[Sequence[float]]) -> Num:
    """An odd function that is 1 from `top` on, by pieces around the multiples of a width.

    The first piece is what is added to x: only so is it exact near 0.
    """
    if not a.val.vector:
        return as_vector(lambda one: odd_in_pieces(one, top, width, table), a)
    x = least(a.magnitude(), top)
    shifted = fma(x, 1 / width, 1.5 * 2.0**23)  # the nearest whole number is in the last bits
    slope, t, value = in_pieces(x, shifted.bits(), table)
    # value is 0 in the first piece, and larger than t in all others
    return fma(slope, t, where(t > value, t, value)).with_sign(a)


def as_vector(function: Callable[[Num], Num], a: Num) -> Num:
    """The function of one number by way of a vector, for which it has instructions."""
    e = a.e
    found = function(Num(e, e.splat(a.val))).val
    return Num(e, Val(e.let(f"extractelement {e.typed(found)}, i64 0"), a.dtype))
