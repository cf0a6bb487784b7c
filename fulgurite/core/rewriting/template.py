"""A graph that is built once and instantiated on other leaves: a macro of nodes.

In: a root and its holes. Out: a function from nodes in the holes' places to the root over them.
What does not depend on a hole is shared. Building checks, promotes and broadcasts operands, which
costs several times what making nodes does; whoever builds the same expression for each of many
matrices of a shape pays once. Leaves must have the holes' shapes, dtypes and device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..build import Step, replay
from ..node import Node, forward_slice, toposort


@dataclass(frozen=True)
class Template:
    """Steps over holes and what is shared, in this order of places."""

    shared: tuple[Node, ...]
    steps: tuple[Step, ...]

    @staticmethod
    def of(root: Node, holes: Sequence[Node]) -> Template:
        """The template of a graph that depends on its holes; nodes with metadata have none."""
        order = toposort([root])
        below = forward_slice(order, holes)
        assert root in below, "a graph without its holes"
        steps = [node for node in order if node in below and node not in holes]
        assert all([node.meta is None and node.tag is None for node in steps])
        shared = {s: None for node in steps for s in node.src if s not in below}
        place = {node: n for n, node in enumerate((*holes, *shared, *steps))}
        return Template(
            tuple(shared),
            tuple([(n.op, n.dtype, n.arg, n.shape, *[place[s] for s in n.src]) for n in steps]),
        )

    def __call__(self, *leaves: Node) -> Node:
        """The graph over these leaves, made at the user's line."""
        return replay(self.steps, [*leaves, *self.shared])
