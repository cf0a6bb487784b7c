"""The tiny tier: a whole graph as one step on the host, where compiling would cost far more.

In: a SINK over PARAMs. Out: a `Schedule` of a single host kernel, which runs node by node with
the op table's NumPy meanings; or the decision that the graph is too large for that. The decision
depends on shapes and options alone, never on history, so bits do not change from call to call.
A graph of few nodes is not even simplified: that keeps every bit, and loading the rules for it is
what the first `1 + 1` of a process would wait for.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..core.node import Node, toposort
from ..core.ops.body import bodies_of
from ..core.ops.collective import COMMUNICATES
from ..core.ops.control import LOOP, Loop
from ..core.ops.effect import CALL
from ..core.ops.indexing import SCATTER, SORT
from ..core.ops.leaf import PARAM, SINK
from ..core.ops.movement import UNWINDOW
from ..core.ops.reduce import REDUCE, SCAN
from ..core.shape import upper
from .ir.kernel import Item, Kernel, Schedule, Slot
from .ir.kernel_kind import KernelKind
from .ir.queries import elements
from .tables import GRAPH

_WALKED = {REDUCE: 0, SCAN: 0, SCATTER: 1}  # which source an op takes a step for each element of
_REWRITTEN = COMMUNICATES | {UNWINDOW}  # ops that are never run as they are built


def is_tiny(sink: Node) -> bool:
    """True if running it at once is cheaper than compiling a single kernel."""
    return are_tiny(toposort([sink]))


def are_tiny(nodes: Iterable[Node]) -> bool:
    """True if running all these nodes is cheaper than compiling a single kernel."""
    work = 0
    for node in nodes:
        if node.src:
            work += _work(node)
            if work > GRAPH.tiny_graph_elements:
                return False
    return True


def is_tiny_as_built(sink: Node) -> bool:
    """True if a graph is tiny, and too small to gain from being simplified."""
    nodes = toposort([sink])
    if sum([bool(node.src) for node in nodes]) > GRAPH.unsimplified_nodes:
        return False
    return _REWRITTEN.isdisjoint([node.op for node in nodes]) and are_tiny(nodes)


def _work(node: Node) -> int:
    if node.op is CALL:  # a step of its own, however small
        return GRAPH.tiny_graph_elements + 1
    bodies = bodies_of(node)
    if bodies:  # in a loop the calls themselves count
        inside = [n for body in bodies for n in body.order if n.src]
        steps = Loop.of(node).steps if node.op is LOOP else 1
        unbounded = GRAPH.tiny_graph_elements
        times = unbounded if steps is None else steps if isinstance(steps, int) else upper(steps)
        return 1 + times * sum([max(GRAPH.numpy_call_elements, _work(n)) for n in inside])
    if node.op is SORT:
        return elements(node.shape) * GRAPH.numpy_sort_elements
    counted = node.src[_WALKED[node.op]] if node.op in _WALKED else node
    return max(elements(counted.shape), elements(node.shape)) * max(1, node.op.cost // 8)


def whole(sink: Node, inputs: int) -> Schedule:
    """One host kernel that computes every root from the params as they are numbered."""
    slots: list[Slot | None] = [None] * inputs
    for node in toposort([sink]):
        if node.op is PARAM:
            slots[node.arg[0]] = Slot(node.dtype, node.shape, node.device)
    roots = list(dict.fromkeys(sink.src))
    writes = tuple(range(inputs, inputs + len(roots)))
    slots.extend(Slot(root.dtype, root.shape, root.device) for root in roots)
    place = dict(zip(roots, writes, strict=True))
    origins = tuple(dict.fromkeys(n.origins[0] for n in toposort([sink]) if n.origins))
    kernel = Kernel(KernelKind.HOST, SINK(*roots), inputs)
    item = Item(kernel, tuple(range(inputs)), writes, origins, "too small to be worth compiling")
    outputs = tuple([place[root] for root in sink.src])
    return Schedule(inputs, tuple(slots), (item,), outputs)
