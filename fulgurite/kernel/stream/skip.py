"""Blocks that count for nothing: conditions on indices alone that leave out all of a block.

In: the states of a streaming kernel. Out: `Test`s. Each is an affine index with a bound: where the
index stays below 0 for all rows of a tile and all elements of a block, every fold sees nothing but
its identity (an extreme sees -inf or +inf, a sum sees 0), so the block need not be looked at.
That is proved by working out the bodies with the condition settled: `exp` of -inf is 0, 0 times
anything counts as 0. A causal mask and a sliding window are such conditions; nothing here knows
them by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from ...core.dtype import decode
from ...core.node import Node, toposort
from ...core.ops.elementwise import (
    ADD,
    AND,
    CAST,
    DIV,
    EXP,
    EXP2,
    LE,
    LT,
    MUL,
    NEG,
    NOT,
    OR,
    SUB,
    WHERE,
)
from ...core.ops.index import FOLD, INDEX
from ...core.ops.leaf import CONST
from ...graph.ir.affine import Affine, add, axes_of, number, scale, sources_of
from .online import State

_MINUS, _PLUS, _ZERO = -inf, inf, 0.0


@dataclass(frozen=True)
class Test:
    """A block is needed only where this index is 0 or more somewhere in it."""

    index: Affine


def tests(states: Sequence[State], streamed: frozenset[int]) -> tuple[Test, ...]:
    """Every condition that can leave out whole blocks."""
    found: dict[Affine, None] = {}
    conditions: dict[Node, None] = {}
    for node in toposort([s.body for s in states]):
        if node.op is WHERE:
            conditions[node.src[0]] = None
    for condition in conditions:
        for holds in (False, True):
            if _settles(states, condition, holds):
                for index in _needed(condition, holds):
                    if axes_of(index) & streamed:
                        found[index] = None
    return tuple(map(Test, found))


def _settles(states: Sequence[State], condition: Node, holds: bool) -> bool:
    """Do all folds see their identity where a condition has this value?"""
    known: dict[Node, float | None] = {}
    for node in toposort([s.body for s in states]):
        known[node] = _value(node, known, condition, holds)
    wanted = {"add": _ZERO, "max": _MINUS, "min": _PLUS}
    return all(known[s.body] == wanted[s.op] for s in states)


def _value(
    node: Node, known: dict[Node, float | None], condition: Node, holds: bool
) -> float | None:
    """-inf, +inf, 0, or None for what is not known."""
    op = node.op
    sources = [known[s] for s in node.src]
    if op is CONST and node.dtype.kind == "f":
        value = decode(node.arg[0], node.dtype)
        return float(value) if value in (_MINUS, _PLUS, _ZERO) else None  # type: ignore[arg-type]
    if op is WHERE:
        if node.src[0] is condition:
            return sources[1] if holds else sources[2]
        return sources[1] if sources[1] == sources[2] else None
    if op in (ADD, SUB):
        second = sources[1] if op is ADD or sources[1] is None else -sources[1]
        ends = [v for v in (sources[0], second) if v in (_MINUS, _PLUS)]
        if ends:
            return ends[0] if all(v == ends[0] for v in ends) else None
        return _ZERO if sources[0] == second == _ZERO else None
    if op is NEG:
        return None if sources[0] is None else -sources[0]
    if op in (EXP, EXP2):
        return _ZERO if sources[0] == _MINUS else None
    if op is MUL:
        return _ZERO if _ZERO in sources else None
    if op is DIV or op is CAST:
        return sources[0] if op is CAST or sources[0] == _ZERO else None
    if op is FOLD and node.arg[0] == "add":
        return _ZERO if sources[0] == _ZERO else None
    return None


def _needed(condition: Node, holds: bool) -> Iterator[Affine]:
    """Indices that are below 0 only where a condition has this value."""
    op, src = condition.op, condition.src
    if op is NOT:
        yield from _needed(src[0], not holds)
    elif (op is AND and not holds) or (op is OR and holds):
        for source in src:
            yield from _needed(source, holds)
    elif op in (LE, LT):
        first, second = affine(src[0]), affine(src[1])
        if first is None or second is None:
            return
        if not holds:  # a <= b fails where b - a < 0, a < b where b - a - 1 < 0
            yield add(add(second, first, -1), number(0 if op is LE else -1))
        else:  # a <= b holds where a - b - 1 < 0, a < b where a - b < 0
            yield add(add(first, second, -1), number(-1 if op is LE else 0))


def affine(node: Node) -> Affine | None:
    """A whole number as an index of axes, if it is one."""
    op, src = node.op, node.src
    if node.dtype.kind not in "iu" or node.dtype.bits < 32:
        return None
    if op is INDEX:
        return None if sources_of(node.arg) or _divides(node.arg) else node.arg
    if op is CONST:
        return number(int(decode(node.arg[0], node.dtype)))  # type: ignore[arg-type]
    if op is CAST:
        return affine(src[0])
    if op in (ADD, SUB, MUL):
        a, b = affine(src[0]), affine(src[1])
        if a is None or b is None:
            return None
        if op is not MUL:
            return add(a, b, 1 if op is ADD else -1)
        if b[1] and a[1]:
            return None
        return scale(a, b[0]) if not b[1] else scale(b, a[0])
    if op is NEG:
        inner = affine(src[0])
        return None if inner is None else scale(inner, -1)
    return None


def _divides(index: Affine) -> bool:
    return any(isinstance(atom, tuple) for atom, _ in index[1])
