"""Packing of factors that are memory as it is: library functions that all such kernels share.

In: a side (left or right), whether memory runs along the packed rows, and the registers. Out: the
text of a module with one function, `void f(ptr from, i64 step, ptr to, i64 stride, i64 owned,
i64 depth)`: numbers next to each other along one line and `step` apart along the other go to where
a `Packer` puts them. It is the packer's own text over one load whose step is an argument, so a
product of plain matrices needs no text of its own to pack them, whatever its shape or epilogue.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from ..core.node import make
from ..core.ops.index import LOAD
from ..kernel.contract import Line, Part
from .frame import Frame, Numbers
from .microkernel import MASKS, Module, Registers, named, transpose
from .packing import Packer, Side, Span, Target

_STEP = 1 << 20  # stands for the argument
_NOTHING = Line((), (), frozenset())


class _Function(Frame):
    """A function whose only number is its argument."""

    def number(self, name: Hashable, value: int) -> str:
        """The step of the lines of memory."""
        assert value == _STEP, name
        return "%step"

    def pointer(self, number: int) -> str:
        """The memory."""
        return "%from"


@lru_cache(maxsize=32)
def moving(registers: Registers, name: str, straight: bool) -> Module:
    """The function that packs memory of the accumulated dtype for one side."""
    own, folded = Line((0,), (_STEP,), frozenset({0})), Line((1,), (_STEP,), frozenset({1}))
    along = "folded" if (name == "left") == straight else "own"
    terms = ((0, _STEP), (1, 1)) if along == "folded" else ((0, 1), (1, _STEP))
    load = make(LOAD, registers.dtype, (), (0, (0, terms), ()))
    rows, columns = (own, _NOTHING) if name == "left" else (_NOTHING, own)
    part = Part((load,), _NOTHING, rows, columns, folded, frozenset())
    masked = registers.target.vectors == MASKS[0]
    f = _Function("SELF", Numbers([load]), [registers.dtype], registers.target.lanes, masked)
    packer = Packer(f, Side(name, load, part, own, along), registers, {load: frozenset({0, 1})})
    packer.pack(Span("0", "%owned", "0", "%depth"), Target("%to", "%stride", "%stride"))
    args = "ptr noalias %from, i64 %step, ptr noalias %to, i64 %stride, i64 %owned, i64 %depth"
    body = "\n".join([*f.entry, *f.e.lines])
    text = f"define void @SELF({args}) nounwind {{\nentry:\n{body}\n  ret void\n}}"
    turn = transpose(registers)
    declared = [line for key, line in f.e.declared.items() if key != turn.name]
    if not straight:
        text = text.replace(f"@{turn.name}", "@PARTturn")
        own_turn = turn.text.replace(f"define void @{turn.name}", "define internal void @PARTturn")
        text = f"{text}\n{own_turn}"
    stem = f"move_{name}_{'rows' if straight else 'turned'}_{registers.dtype}"
    return named(stem, "\n".join([text, *declared]))
