"""A random graph with its data: what is checked, before any pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from fulgurite.core.node import Node, toposort
from fulgurite.core.op import Array
from fulgurite.core.ops.elementwise import MUL
from fulgurite.core.ops.reduce import REDUCE

EXACTLY = frozenset(
    {"neg", "abs", "sign", "max", "min", "floor", "ceil", "trunc", "round", "where"}
)
EXACT = EXACTLY | {
    "add", "sub", "mul", "floordiv", "mod", "cast", "bitcast", "lt", "le", "eq", "ne",
}  # fmt: skip


@dataclass
class Graph:
    """Roots, the arrays of their buffers, and whether bits or bounds are compared."""

    roots: list[Node]
    arrays: dict[Node, Array]
    exact: bool
    lifted: bool = False  # take some constants at run time
    device: str = "reference"

    @property
    def nodes(self) -> list[Node]:
        """Every node, sources first."""
        return toposort(self.roots)


def adds_to_zero(node: Node) -> bool:
    """Is it a sum of products or of windows? A sum of -0.0 alone may come out as 0.0 there."""
    if node.op.name == "unwindow":
        return True
    return node.op is REDUCE and node.arg[0] == "add" and node.src[0].op is MUL
