"""Block-sparsity skipping: conditions on indices alone that leave out whole blocks of N.

In: the states of a streaming kernel. Out: `SkipTest`s. Each is an affine index: where it stays
below 0 for all rows of a tile and all elements of a block, every reduction sees nothing but its
identity (a maximum sees -inf, a sum sees 0), so the block need not be computed. That is proved by
abstract interpretation of the bodies over {-inf, 0, +inf, unknown} with the condition settled:
`exp` of -inf is 0, 0 times anything counts as 0. A causal mask and a sliding window are such
conditions; nothing here knows them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from ...core.dtype import decode
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, Source, toposort
from ...core.op import Op
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
from ...core.ops.index import FOLD
from ...core.ops.leaf import CONST
from ...graph.ir.affine import Affine, add, axes_of, number
from ...graph.ir.queries import affine_value
from .online import State

Known = float | None  # -inf, +inf, 0, or None for what is not known
_IDENTITY = {"add": 0.0, "max": -inf, "min": inf}


@dataclass(frozen=True)
class SkipTest:
    """A block is needed only where this index is 0 or more somewhere in it."""

    index: Affine


def skip_tests(
    states: Sequence[State], streamed: frozenset[int], sizes: Sequence[int]
) -> tuple[SkipTest, ...]:
    """Every condition that can leave out whole blocks."""
    found: dict[Affine, None] = {}
    inside = toposort([s.body for s in states])
    for condition in dict.fromkeys([n.src[0] for n in inside if n.op is WHERE]):
        for holds in (False, True):
            if _leaves_identities(states, condition, holds):
                for index in _needed(condition, holds, sizes):
                    if axes_of(index) & streamed:
                        found[index] = None
    return tuple(map(SkipTest, found))


def always_true(condition: Node, sizes: Sequence[int]) -> tuple[Affine, ...] | None:
    """Indices by which a condition holds: wherever all are 0 or more. None if none say it."""
    if condition.op is AND:
        sides = [always_true(source, sizes) for source in condition.src]
        found = [index for side in sides if side is not None for index in side]
        return None if None in sides else tuple(found)
    if condition.op not in (LE, LT):
        return None
    return tuple(_needed(condition, False, sizes)) or None


def _leaves_identities(states: Sequence[State], condition: Node, holds: bool) -> bool:
    """True if all reductions see their identity where a condition has this value."""
    known: dict[Node, Known] = {}
    for node in toposort([s.body for s in states]):
        values = [known[s] for s in node.src]
        if node.op is WHERE and node.src[0] is condition:
            known[node] = values[1] if holds else values[2]
        else:
            transfer = _TRANSFER.get(node.op)
            known[node] = None if transfer is None else transfer(node, values)
    return all(known[s.body] == _IDENTITY[s.op] for s in states)


def _constant(node: Node, _: Sequence[Known]) -> Known:
    if node.dtype.kind != "f":
        return None
    value = float(decode(node.arg[0], node.dtype).real)
    return value if value in (-inf, inf, 0.0) else None


def _either(_: Node, values: Sequence[Known]) -> Known:
    return values[1] if values[1] == values[2] else None


def _sum(node: Node, values: Sequence[Known]) -> Known:
    first, second = values
    if node.op is SUB and second is not None:
        second = -second
    ends = [v for v in (first, second) if v in (-inf, inf)]
    if ends:
        return ends[0] if all(v == ends[0] for v in ends) else None
    return 0.0 if first == second == 0 else None


def _negated(_: Node, values: Sequence[Known]) -> Known:
    return None if values[0] is None else -values[0]


def _exponential(_: Node, values: Sequence[Known]) -> Known:
    return 0.0 if values[0] == -inf else None


def _product(_: Node, values: Sequence[Known]) -> Known:
    return 0.0 if 0.0 in values else None


def _zero_stays(node: Node, values: Sequence[Known]) -> Known:
    """Of a quotient and of a sum over other axes."""
    adds = node.op is not FOLD or node.arg[0] == "add"
    return 0.0 if values[0] == 0 and adds else None


_TRANSFER: Mapping[Op, Callable[[Node, Sequence[Known]], Known]] = {
    CONST: _constant, WHERE: _either, ADD: _sum, SUB: _sum, NEG: _negated, EXP: _exponential,
    EXP2: _exponential, MUL: _product, DIV: _zero_stays, FOLD: _zero_stays,
    CAST: lambda _, values: values[0],
}  # fmt: skip


def _needed(condition: Node, holds: bool, sizes: Sequence[int]) -> Iterator[Affine]:
    """Indices that are below 0 only where a condition has this value."""
    op, src = condition.op, condition.src
    if op is NOT:
        yield from _needed(src[0], not holds, sizes)
    elif (op is AND and not holds) or (op is OR and holds):
        for source in src:
            yield from _needed(source, holds, sizes)
    elif op in (LE, LT):
        first, second = affine(src[0], sizes), affine(src[1], sizes)
        if first is None or second is None:
            return
        if not holds:  # a <= b fails where b - a < 0, a < b where b - a - 1 < 0
            yield add(add(second, first, -1), number(0 if op is LE else -1))
        else:  # a <= b holds where a - b - 1 < 0, a < b where a - b < 0
            yield add(add(first, second, -1), number(-1 if op is LE else 0))


def affine(node: Node, sizes: Sequence[int]) -> Affine | None:
    """A whole number as an index of axes of these sizes, if it is one that never wraps around."""

    def bound(atom: int | Source) -> tuple[int, int]:
        return (0, sizes[atom] - 1) if isinstance(atom, int) else node.dtype.limits

    index = affine_value(node, bound)
    return index if index and all(isinstance(atom, int) for atom, _ in index[1]) else None
