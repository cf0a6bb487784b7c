"""Kernels in the making: what a group of nodes runs over, and what may join it.

In: what the scheduler finds out, node by node. Out: a `Group`: its kind, the elements it runs over,
the axes it reduces, what it stores, and its number once something outside has read it.
"""

from __future__ import annotations

from ...core.node import Node, Shape
from ..ir.queries import elements


class Group:
    """A kernel in the making."""

    __slots__ = (
        "axes", "count", "deps", "full", "into", "is_product", "kind", "number", "outputs",
        "reason", "sizes",
    )  # fmt: skip

    def __init__(
        self, kind: str, full: Shape, axes: tuple[int, ...], deps: int, reason: str
    ) -> None:
        self.full, self.deps, self.reason = full, deps, reason
        self.number: int | None = None
        self.outputs: dict[Node, None] = {}
        self.into: Group | None = None  # merged into another
        self.count = 1  # nodes computed in it
        self.is_product = False  # it is quick as a product alone: no other reduction joins it
        self.become(kind, axes)

    def become(self, kind: str, axes: tuple[int, ...]) -> None:
        """Be of a kind; `sizes` are those of the values it can hold: all elements, or the rows."""
        self.kind, self.axes = kind, axes
        whole = elements(self.full)
        folded = elements(tuple([self.full[a] for a in axes])) if kind == "reduce" else 1
        self.sizes = (whole, whole // folded)

    def has_rows(self, full: Shape, axes: tuple[int, ...]) -> bool:
        """Does it run over these elements, and reduce over nothing but these axes?"""
        return self.kind in ("map", "reduce") and self.full == full and self.axes in ((), axes)

    def mixes(self, other: Group) -> bool:
        """May it be one kernel with another, whatever both run over?"""
        kinds = {self.kind, other.kind}
        return kinds <= {"map", "reduce"} and (
            "map" in kinds or not (self.is_product or other.is_product)
        )

    def spreads(self, node: Node) -> bool:
        """Does each row get its own values back? (Of a square, columns have as many.)"""
        pairs = enumerate(zip(node.src[0].shape, node.shape, strict=True))
        return node.shape != self.full or {i for i, (a, b) in pairs if a != b} <= set(self.axes)


def final(group: Group) -> Group:
    """What became of a kernel: itself, or what it was merged into."""
    while group.into is not None:
        group = group.into
    return group
