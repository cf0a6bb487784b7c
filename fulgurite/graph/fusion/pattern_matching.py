"""Where expressions of the user's kernels occur in a graph.

In: a graph and a `Pattern`. Out: the places where its expression stands, with the operands there,
and both over placeholders. An expression is a function of tensors and says nothing
of shapes. So it is written out over placeholders with shapes that occur below a node, and compared
with what is there node by node: nodes are interned, so equal ones are one, and operands are bound
on the way. Attempts are counted, so that the answer is the same in every process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, product
from typing import TypeAlias

from ...core.dtype import DType
from ...core.node import Node, Shape, toposort
from ...core.ops.leaf import CONST, PARAM, SINK, param
from ...core.ops.movement import EXPAND
from ...errors import FulguriteError
from .budget import BUDGET
from .user_patterns import Build, Pattern

Sort: TypeAlias = tuple[Shape, DType, str | None]
_FIRST = 1 << 20  # number of the first placeholder: far above those of inputs


@dataclass(frozen=True)
class Written:
    """An expression and its kernel over placeholders."""

    operands: tuple[Node, ...]
    expression: Node
    kernel: Node


@dataclass
class Places:
    """Looks for the expression of one kernel in graphs."""

    pattern: Pattern
    left: int = BUDGET.pattern_attempts
    known: dict[tuple[Sort, ...], Written | None] = field(default_factory=dict)

    def find(self, sink: Node) -> Iterator[tuple[Node, Written, dict[Node, Node]]]:
        """Nodes that the kernel could compute: what it is, and the operand for each placeholder."""
        for node in reversed(toposort([sink])):
            if node.op is SINK or node.op is PARAM or node.device is None or not self.may_be(node):
                continue
            below = _below(node)
            inputs = _sorts([n for n in below if n.op is PARAM])  # most operands are
            count = self.pattern.operands
            for chosen in chain(
                product(inputs, repeat=count), product(_sorts(below), repeat=count)
            ):
                if self.left <= 0 and chosen not in self.known:
                    break  # those that come after are not known either, or were tried before
                written = self.written(chosen)
                if written is None:
                    continue
                bound = _bound(written, node)
                if bound is not None:
                    yield node, written, bound
                    break

    def may_be(self, node: Node) -> bool:
        """Does a node end as the expression ends, as far as that is known?"""
        ends = {w.expression.op for w in self.known.values() if w is not None}
        return not ends or node.op in ends

    def written(self, sorts: tuple[Sort, ...]) -> Written | None:
        """The expression over operands of these shapes and dtypes, if it has a meaning there."""
        if sorts not in self.known:
            if self.left <= 0:
                return None
            self.left -= 1
            operands = [param(_FIRST + i, s, d, where) for i, (s, d, where) in enumerate(sorts)]
            self.known[sorts] = _write(self.pattern, operands)
        return self.known[sorts]


def _write(pattern: Pattern, operands: list[Node]) -> Written | None:
    """What a pattern is over some operands; what it cannot be applied to, it does not match."""
    expression = _tried(pattern.expression, operands)
    if expression is None or expression.op is PARAM:
        return None
    if not {n for n in toposort([expression]) if n.op is PARAM}.issuperset(operands):
        return None
    kernel = _tried(pattern.kernel, operands)
    if kernel is None:
        return None
    if (kernel.shape, kernel.dtype) != (expression.shape, expression.dtype):
        return None
    return Written(tuple(operands), expression, kernel)


def _tried(build: Build, operands: list[Node]) -> Node | None:
    """What a function of the user makes of operands, or None if it is not for such operands."""
    try:
        return build(operands)
    except (FulguriteError, TypeError, ValueError, LookupError, AttributeError, AssertionError):
        return None
    except Exception as problem:  # a fault of its own, which must not stop other people's graphs
        said = f"a kernel with a pattern is not considered: it raised {problem!r}"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
        return None


def _below(node: Node) -> list[Node]:
    """A node's own sources and theirs, nearest first."""
    found: dict[Node, None] = {}
    level = [node]
    while level and len(found) < BUDGET.pattern_operands:
        level = [s for n in level for s in n.src if s not in found]
        found.update(dict.fromkeys(level))
    return [n for n in found if n.device is not None and n.op is not EXPAND and n.op is not CONST]


def _sorts(nodes: list[Node]) -> list[Sort]:
    """The shapes, dtypes and devices among some nodes."""
    return list(dict.fromkeys([(n.shape, n.dtype, n.device) for n in nodes]))


def _bound(written: Written, place: Node) -> dict[Node, Node] | None:
    """What each placeholder is if a node is the expression."""
    bound: dict[Node, Node] = {}
    seen: set[tuple[Node, Node]] = set()
    stack = [(written.expression, place)]
    while stack:
        pair = stack.pop()
        if pair in seen:
            continue
        seen.add(pair)
        wanted, found = pair
        if wanted in written.operands:
            same = (wanted.shape, wanted.dtype, wanted.device) == (
                found.shape, found.dtype, found.device)  # fmt: skip
            if not same or bound.setdefault(wanted, found) is not found:
                return None
        elif wanted is not found:
            alike = (wanted.op, wanted.arg, wanted.dtype) == (found.op, found.arg, found.dtype)
            if not alike or len(wanted.src) != len(found.src):
                return None
            stack.extend(zip(wanted.src, found.src, strict=True))
    return bound
