"""Numbers that need no condition: loads of one number where a choice asks the same already.

In: an `IndexKernel`. Out: the same kernel in which the first element of a param, as a scalar always
is, is read without conditions wherever `where` has asked them around it. Padding what was computed
puts conditions on all of its loads, also on its constants; without them a constant is one number
again, not one for each lane, and a division by it is prepared once. What is chosen stays the same.
"""

from __future__ import annotations

from ...core.node import Node, make, toposort
from ...core.ops.elementwise import WHERE
from ...core.ops.index import LOAD, VALID
from ...graph.ir.affine import ZERO, Domain
from ...graph.ir.lower import IndexKernel

State = tuple[Node, Domain]  # a node, and the places where it counts


def assumed(kernel: IndexKernel) -> IndexKernel:
    """The kernel whose scalars are read without conditions that are asked around them."""
    if not any(_is_number(node) for node in toposort([kernel.body])):
        return kernel
    root: State = (kernel.body, Domain())
    done: dict[State, Node] = {}
    waiting = [root]
    while waiting:
        state = waiting[-1]
        sources = _sources(state)
        more = [s for s in sources if s not in done]
        waiting.extend(more)
        if not more:
            done[waiting.pop()] = _rebuilt(state, tuple([done[s] for s in sources]))
    return IndexKernel(kernel.axes, done[root], kernel.divisions)


def _is_number(node: Node) -> bool:
    """True if it is a masked load of a param's first element, which can always be read."""
    return node.op is LOAD and node.arg[1] == ZERO and bool(node.arg[2]) and not node.src


def _sources(state: State) -> list[State]:
    """The sources of a node: a choice asks about one of them, a fold begins anew."""
    node, asked = state
    if node.op.family != "elementwise":
        return [(s, Domain()) for s in node.src]
    found = [(s, asked) for s in node.src]
    if node.op is WHERE and node.src[0].op is VALID and not node.src[0].src:
        found[1] = node.src[1], asked.intersect(node.src[0].arg)
    return found


def _rebuilt(state: State, src: tuple[Node, ...]) -> Node:
    node, asked = state
    arg = node.arg
    if _is_number(node) and asked.implies(arg[2]):
        arg = (*arg[:2], ())
    return make(node.op, node.dtype, src, arg)
