"""Access analysis: loops of one expression of a kernel, merged where its memory allows it.

In: nodes of an `IndexKernel`'s body. Out: a `Part`: the nodes, and for each role of an axis in a
GEMM (batch, M, N, K) a `Line` of axes, outermost first, neighbours merged where every index of the
part steps through them as through one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core.lazy_dataclass import dataclass
from ...core.node import Node
from ...core.symbolic.sym import choosing
from ...graph.ir.queries import walk
from ..transform.merge_axes import Line as Line  # part of this module's names as well


@dataclass(frozen=True, slots=True)
class Part:
    """An operand, or what is computed from the sum: its nodes and its lines."""

    nodes: tuple[Node, ...]  # sources first
    batch: Line
    rows: Line
    columns: Line
    folded: Line
    absorbed: frozenset[int]  # axes that went into their neighbour


@dataclass(frozen=True, slots=True)
class Block:
    """What the cut must know of the microkernel."""

    height: int  # rows of a register block
    panel: int  # columns of a register block
    lanes: int
    bytes: int  # of one number


def steps_of(nodes: Sequence[Node]) -> dict[int, int]:
    """The largest step of each axis in the indices of loads or stores."""
    found: dict[int, int] = {}
    with choosing():  # what axes are put in order by
        for node in nodes:
            for atom, step in node.arg[1][1]:
                if isinstance(atom, int):
                    found[atom] = max(found.get(atom, 0), abs(step))
    return found


def ordered(axes: frozenset[int], steps: dict[int, int]) -> tuple[int, ...]:
    """Outermost first: large steps before small ones."""
    with choosing():  # any order is right
        return tuple(sorted(axes, key=lambda a: (-steps.get(a, 0), a)))


def reached(roots: Sequence[Node], stops: Collection[Node | None]) -> list[Node]:
    """The nodes under some roots, sources first, without what is below `stops`."""
    return walk(reversed(roots), lambda node: () if node in stops else node.src[::-1])


def line_of(
    axes: Sequence[int], sizes: Sequence[int], found: Sequence[dict[int, int]], absorbed: set[int]
) -> Line:
    """Neighbours become one where every index walks them as one."""
    kept: list[int] = []
    length: list[int] = []
    members: list[set[int]] = []
    for axis in axes:
        size = sizes[axis]
        if kept and all(s.get(kept[-1], 0) == s.get(axis, 0) * size for s in found):
            absorbed.add(kept[-1])
            kept[-1] = axis
            length[-1] *= size
            members[-1].add(axis)
        else:
            kept.append(axis)
            length.append(size)
            members.append({axis})
    return Line(tuple(kept), tuple(length), frozenset(members[-1] if members else ()))
