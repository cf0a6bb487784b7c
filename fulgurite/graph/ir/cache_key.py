"""The flat key: a graph with everything taken out that may differ from run to run.

In: root nodes, in order. Out: a `Normal`: the structure (one tuple of entries in depth-first
order, buffers as numbered params, constants blanked), the bits of the constants, and what was
taken out: the buffers and the bound values. Two graphs are the same program if structure and
constants are equal tuples: that comparison is the proof, no hash is trusted. A digest that hides
buffers bottom-up would be unsound: `(x+y)*x` and `(x+y)*y` would meet.
A constant is blanked at each use, so numbers that happen to be equal today change nothing.
A value that is known is read, but for an extreme of sums that are computed again: sums in another
order have other bits, and none of them would be the largest (`single_writer`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

from ...core.digest import digest_of
from ...core.dtype import DType, decode
from ...core.extension import compiled, give
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Dims, Node, make, remember, shape_of
from ...core.op import Op
from ...core.ops.body import Body, plain_arg
from ...core.ops.effect import ASSIGN, DETACH, HOST_FUNCTIONS, UNWATCH, WATCH, HostFunction
from ...core.ops.indexing import SORT
from ...core.ops.leaf import BIND, BUFFER, CONST, SINK, param
from ...core.ops.movement import SHRINK, expand, reshape
from ...core.ops.reduce import REDUCE, SCAN
from ...core.ops.transform import OVERRIDE
from ...errors import ArgumentError, VariableError
from .bit_stability import EXTREMES, chosen_from

_PASSED = frozenset({ASSIGN, BIND, DETACH, OVERRIDE, UNWATCH, WATCH})  # their value is a source's
_PARTLY = frozenset({ASSIGN, OVERRIDE})  # and of these no other source is read
_CHOOSING = frozenset({REDUCE, SCAN, SORT})
Structure: TypeAlias = tuple[Hashable, ...]
_FORMAT = "fulgurite key 1"


class Normal(NamedTuple):
    """A graph as a key, and what the key leaves out."""

    structure: Structure
    constants: tuple[int, ...]  # bits, one for each use
    buffers: tuple[Node, ...]  # param number i is buffers[i]
    values: dict[str, int]  # bound variables
    nodes: tuple[Node, ...]  # the node of each entry, for their origins
    assigned: tuple[Node, ...] = ()  # the ASSIGNs on the way, whose values it holds
    extremes: tuple[Node, ...] = ()  # what is chosen from many by size
    folds: tuple[Node, ...] = ()  # reductions, scans and sorts

    @property
    def key(self) -> tuple[Structure, tuple[int, ...]]:
        """Equal keys are equal programs."""
        return self.structure, self.constants

    @property
    def digest(self) -> str:
        """128 bits of the key's text, the same in every process: for disk, never for proof."""
        return digest(self.structure, self.constants)


def normalize(roots: Sequence[Node]) -> Normal:
    """The key of a graph, had without realizing or rewriting it: no node is made."""
    order, now = order_of(roots)
    if any([n.src and not (n.op is SHRINK and n.src[0].op is BUFFER) for n in now]):
        order, now = _agreed(roots, order, now)
    entries, constants, buffers, nodes, assigned, chosen, bound = flatten(roots, order, now)
    values: dict[str, int] = {}
    for node in bound:
        _bind(values, node)
    extremes = tuple([n for n in chosen if n.op is SORT or n.arg[0] in EXTREMES])
    return Normal(entries, constants, buffers, values, nodes, assigned, extremes, chosen)


Nodes: TypeAlias = tuple[Node, ...]


@compiled
def flatten(
    roots: Sequence[Node], order: list[Node], now: dict[Node, Node]
) -> tuple[Structure, tuple[int, ...], Nodes, Nodes, Nodes, Nodes, Nodes]:
    """Entries of a graph, its constants, buffers, nodes; the ASSIGNs, choices and BINDs in it."""
    number: dict[Node, int] = {}
    entries: list[Hashable] = []
    constants: list[int] = []
    buffers: list[Node] = []
    nodes: list[Node] = []
    assigned: list[Node] = []
    chosen: list[Node] = []
    bound: list[Node] = []

    def use(source: Node) -> Hashable:
        """A source as its number; a constant is written out where it is used."""
        place = number.get(source)
        if place is not None:
            return place
        bits, dims = source.arg
        constants.append(bits)
        return source.dtype, dims

    for node in order:
        op = node.op
        if op is CONST and not node.src:
            continue  # written where it is used
        if op is BUFFER:
            _, shape, device = node.arg
            entries.append(("param", node.dtype, device, shape))
            buffers.append(node)
        elif op in _PASSED:
            if op is BIND:
                bound.append(node)
            elif op is ASSIGN:
                assigned.append(node)
            source = _passed(node)
            found = use(now.get(source, source))
            if isinstance(found, int):
                number[node] = found
                continue
            entries.append(("const", found))
        elif op is CONST:  # of a symbolic shape
            constants.append(node.arg[0])
            entries.append((op, node.dtype, node.arg[1], *map(use, node.src)))
        else:
            sources = [use(now.get(s, s)) for s in node.src] if now else [*map(use, node.src)]
            entries.append((op, node.dtype, plain_arg(node), *sources))
            if op in _CHOOSING:
                chosen.append(node)
        number[node] = len(nodes)
        nodes.append(node)
    entries.extend([use(now.get(root, root)) for root in roots])
    return (
        tuple(entries), tuple(constants), tuple(buffers), tuple(nodes), tuple(assigned),
        tuple(chosen), tuple(bound),
    )  # fmt: skip


give(
    ASSIGN=ASSIGN, BIND=BIND, BUFFER=BUFFER, DETACH=DETACH, OVERRIDE=OVERRIDE, UNWATCH=UNWATCH,
    WATCH=WATCH, REDUCE=REDUCE, SCAN=SCAN, SORT=SORT,
)  # fmt: skip


def _passed(node: Node) -> Node:
    """The source whose value a node passes on."""
    return node.src[1] if node.op is ASSIGN else node.src[0]


def realized_node(node: Node) -> Node:
    """The buffer that holds a node's value already, else the node."""
    found = node.realized() if node.realized is not None else None
    return node if found is None else found


def _agreed(
    roots: Sequence[Node], order: list[Node], now: dict[Node, Node]
) -> tuple[list[Node], dict[Node, Node]]:
    """The same, with known extremes of what is computed again computed again as well."""
    again: set[Node] = set()
    while True:
        made = set(order)
        read = [n for n, value in now.items() if value is not n and n.src]
        stale = chosen_from(read, made)
        if stale <= again:
            return order, now
        again |= stale
        order, now = order_of(roots, again)


@compiled
def order_of(
    roots: Sequence[Node], again: Collection[Node] = ()
) -> tuple[list[Node], dict[Node, Node]]:
    """Sources first, as `toposort`, but not below a node whose value is known; and what is.

    Another thread may make a value known at any time: what is found first holds for all of it.
    Some are computed `again`.
    """
    order: list[Node] = []
    now: dict[Node, Node] = {}
    seen: set[Node] = set()
    path: list[Node] = []
    stack = [iter(roots)]
    while stack:
        for node in stack[-1]:
            if node.realized is not None and node not in seen and node not in again:
                node = now.setdefault(node, realized_node(node))
            if node not in seen:
                seen.add(node)
                path.append(node)
                stack.append(iter(node.src if node.op not in _PARTLY else (_passed(node),)))
                break
        else:
            stack.pop()
            if path:
                order.append(path.pop())
    return order, now


def restore(
    structure: Structure,
    constants: tuple[int, ...],
    lifted: Collection[int] = (),
    origins: Sequence[Node] = (),
) -> Node:
    """The SINK that a key describes: buffers are PARAMs; lifted constants are 0-d PARAMs after.

    Nodes remember the user's lines of the nodes in `origins`, one for each entry.
    """
    nodes: list[Node] = []
    roots: list[Node] = []
    bits = iter(enumerate(constants))
    params = _count_params(structure)
    scalars = {index: params + rank for rank, index in enumerate(sorted(lifted))}
    buffers = 0

    def number_at(dtype: DType, dims: Dims, src: tuple[Node, ...] = ()) -> Node:
        index, value = next(bits)
        if index not in scalars:
            return make(CONST, dtype, src, (value, dims))
        shape = shape_of(dims, src)
        scalar = param(scalars[index], (), dtype, None)
        return expand(reshape(scalar, (1,) * len(shape)), shape)

    def read(place: Any) -> Node:
        return nodes[place] if isinstance(place, int) else number_at(*place)

    for entry in structure:
        if not isinstance(entry, tuple) or isinstance(entry[0], DType):
            roots.append(read(entry))
        elif entry[0] == "param":
            _, dtype, device, shape = entry
            nodes.append(param(buffers, shape, dtype, device))
            buffers += 1
        elif entry[0] == "const":
            nodes.append(read(entry[1]))
        elif entry[0] is CONST:
            _, dtype, dims, *places = entry
            nodes.append(number_at(dtype, dims, tuple([nodes[p] for p in places])))
        else:
            op, dtype, arg, *places = entry
            nodes.append(make(op, dtype, tuple([read(p) for p in places]), arg))
    for node, original in zip(nodes, origins, strict=False):
        if original.op is not BUFFER:  # an input's line is not one that is computed
            remember(node, original.origins)
    return SINK(*roots)


def _count_params(structure: Structure) -> int:
    return sum([isinstance(entry, tuple) and entry[0] == "param" for entry in structure])


def constant_uses(structure: Structure) -> Iterator[tuple[int, DType]]:
    """For each constant, in order: the entry that uses it and its dtype."""
    for place, entry in enumerate(structure):
        if not isinstance(entry, tuple) or entry[0] == "param":
            continue
        if isinstance(entry[0], DType):
            yield place, entry[0]
        elif entry[0] == "const":
            yield place, entry[1][0]
        else:
            if entry[0] is CONST:
                yield place, entry[1]
            for source in entry[3:]:
                if isinstance(source, tuple):
                    yield place, source[0]


def size_constants(structure: Structure) -> set[int]:
    """The constants that decide sizes: they can never be run-time values."""
    sizes: set[Any] = set()
    for place in range(len(structure) - 1, -1, -1):  # users first
        entry: Any = structure[place]
        if isinstance(entry, tuple) and isinstance(entry[0], Op):
            data = 0 if place in sizes else entry[0].arity
            if data is not None:
                sizes.update(entry[3 + data :])
    return {i for i, (place, _) in enumerate(constant_uses(structure)) if place in sizes}


def _bind(values: dict[str, int], node: Node) -> None:
    name, value = node.src[0].arg[0], decode(node.arg, node.dtype)
    assert isinstance(value, int)
    if values.setdefault(name, value) != value:
        raise VariableError(
            f"variable {name!r} is bound to {values[name]} and to {value} in one graph",
            "use two variables, or realize one result first",
        )


def digest(structure: Structure, constants: tuple[int, ...]) -> str:
    """128 bits of the key's text; a host function must be registered to have one."""
    text = f"{_FORMAT}\n{structure!r}\n{constants!r}"
    for host in hosts_in(structure):
        if HOST_FUNCTIONS.get(host.name) is not host:
            raise ArgumentError(
                f"host function {host.name!r} has no stable name", "register it by name"
            )
    return digest_of(text)


def hosts_in(structure: Structure) -> list[HostFunction]:
    """The host functions that a graph calls, also inside bodies."""
    parts = [
        part
        for entry in structure
        if type(entry) is tuple and len(entry) > 2 and isinstance(entry[2], tuple)
        for part in entry[2]
        if type(part) is not int
    ]
    inside = [host for part in parts if isinstance(part, Body) for host in part.hosts()]
    return inside + [part for part in parts if isinstance(part, HostFunction)]
