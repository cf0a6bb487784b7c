"""VNNI layout: bytes that memory has by fours along k, as GEMMs of numbers of 32 bits.

In: a `GemmProblem` of two operands of bytes that are widened as they are read. Out: the same sums
over a fourth of the steps, each operand a load of whole words; or None. Both operands must have
the same four neighbours of k next to each other, and everything else of both at multiples of four
bytes: a matrix [k / 4][columns][4] beside rows of k. Then nothing is packed: a word is a number to
GEMMs of any kind, im2col views among them, and only the instruction that multiplies knows better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.dtype import int32
from ...core.node import Node, make
from ...core.ops.elementwise import CAST
from ...core.ops.index import LOAD
from ...core.symbolic.sym import varies
from .problem import GemmProblem

WORD = int32.itemsize


def as_vnni(c: GemmProblem) -> GemmProblem | None:
    """The same problem with four bytes as one number, where both operands lie so."""
    loads = [r.src[0] for r in (c.left, c.right) if r.op is CAST and r.src[0].op is LOAD]
    inner = _inner(c, loads) if len(loads) == 2 and len(c.folded) > 1 else None
    if inner is None:
        return None
    words = [_word(load, inner) for load in loads]
    gone = {*loads, c.left, c.right, c.fold.src[0]} - set(c.epilogue.nodes)
    free = dict(c.free)
    for old, new in zip(loads, words, strict=True):
        free[new] = c.free[old] - {inner}
    return replace(
        c, left=words[0], right=words[1], folded=tuple([a for a in c.folded if a != inner]),
        free=free, order=tuple(dict.fromkeys((*words, *[n for n in c.order if n not in gone]))),
    )  # fmt: skip


def _inner(c: GemmProblem, loads: Sequence[Node]) -> int | None:
    """The axis along which four bytes are neighbours in both operands, if all else fits."""
    steps = [dict(load.arg[1][1]) for load in loads]
    for axis in c.folded:
        near = c.sizes[axis] == WORD and all(s.get(axis) == 1 for s in steps)
        if near and all(_has_words(load, axis) for load in loads):
            return axis
    return None


def _has_words(load: Node, inner: int) -> bool:
    """True if all that a load depends on but an axis moves it by words."""
    _, (start, terms), conditions = load.arg
    asked = [atom for index, _ in conditions for atom, _ in index[1]]
    atoms = [atom for atom, _ in terms] + asked
    moves = [start, *[step for atom, step in terms if atom != inner]]
    plain = not load.src and inner not in asked and all(isinstance(a, int) for a in atoms)
    return plain and not any(varies(move) or move % WORD for move in moves)


def _word(load: Node, inner: int) -> Node:
    """A load of the four bytes that are neighbours along an axis."""
    number, (start, terms), conditions = load.arg
    outer = [(atom, step // WORD) for atom, step in terms if atom != inner]
    return make(LOAD, int32, (), (number, (start // WORD, tuple(outer)), conditions))
