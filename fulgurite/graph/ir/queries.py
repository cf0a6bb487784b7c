"""Questions about graphs: sizes and contractions of tensors, indices and axes of index notation.

In: a tensor, or nodes of a kernel's body, sources first. Out: a tensor's elements and whether it is
a contraction; the affine indices in a node's argument, the axes that each node depends on, those
that folds, scans and sorts need whole, which stores are scatters, the affine index that a whole
number computed from axes is, what is nearest under a root, and bytes that are one wide load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from ...core.dtype import decode, int8, uint8
from ...core.node import Node, Shape, readers_of, toposort
from ...core.op import Op
from ...core.ops.elementwise import ADD, CAST, MUL, NEG, OR, SHL, SUB
from ...core.ops.index import FOLD, INDEX, LOAD, ORDER, RUN, STORE, VALID
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, UNWINDOW
from ...core.shape import upper
from .affine import ZERO, Affine, Bound, add, axes_of, bounds, number, scale

T = TypeVar("T", bound=Hashable)


@lru_cache(maxsize=4096)
def elements(shape: Shape) -> int:
    """How many elements are laid out for a shape: variable sizes count at their upper bound."""
    count = 1
    for n in shape:
        count *= n if isinstance(n, int) else upper(n)
    return count


def own_elements(node: Node) -> int:
    """The elements of a factor before it is broadcast."""
    while node.op is EXPAND:
        node = node.src[0]
    return elements(node.shape)


def unmoved(node: Node) -> Node:
    """What a value is, wherever movement ops put its elements."""
    while node.op.family == "movement" and node.op is not UNWINDOW:
        node = node.src[0]
    return node


def is_contraction(node: Node) -> bool:
    """True if a reduction sums a product of two values that are both broadcast along some axis."""
    source = node.src[0]
    if node.arg[0] != "add" or source.op is not MUL:
        return False
    whole = elements(source.shape)
    return all(own_elements(s) < whole and s.op is not CONST for s in source.src)


def sums_fours(node: Node) -> bool:
    """True if a reduction sums products of bytes, four next to each other at a time (VNNI)."""
    source, (kind, axes) = node.src[0], node.arg
    if kind != "add" or source.op is not MUL or len(axes) < 2 or source.shape[axes[-1]] != 4:
        return False
    factors = [unmoved(s) for s in source.src]
    return all([f.op is CAST and f.src[0].dtype in (int8, uint8) for f in factors])


def products_in_sums(order: Sequence[Node], free: Mapping[Node, frozenset[int]]) -> set[Node]:
    """Contractions: products that only sums over axes of both factors read, which miss others."""
    readers = readers_of(order)
    return {
        n for n in order
        if n.op is MUL
        and all(
            r.op is FOLD and r.arg[0] == "add" and free[n.src[0]] & free[n.src[1]] >= {*r.arg[1]}
            for r in readers.get(n, ())
        )
        and free[n.src[0]] - free[n.src[1]] and free[n.src[1]] - free[n.src[0]]
    }  # fmt: skip


def indices(node: Node) -> list[Affine]:
    """Every affine index in a node's argument."""
    if node.op is LOAD:
        return [node.arg[1], *[index for index, _ in node.arg[2]]]
    if node.op is VALID:
        return [index for index, _ in node.arg]
    if node.op is STORE:
        return [node.arg[1]]
    return [node.arg] if node.op is INDEX else []


def is_scatter(node: Node) -> bool:
    """True if it is a store that combines, or that may visit a place several times."""
    if node.op is not STORE:
        return False
    _, index, mode, axes = node.arg
    return mode != "set" or len(node.src) > 1 or not frozenset(axes) <= axes_of(index)


def is_irregular(body: Node) -> bool:
    """True if a kernel has a scan, a sort or a scatter."""
    return any([n.op is RUN or n.op is ORDER or is_scatter(n) for n in toposort([body])])


def sums_products(body: Node) -> bool:
    """True if a kernel has one reduction, a sum over a product: it may be a GEMM."""
    folds = [n for n in toposort([body]) if n.op is FOLD]
    return len(folds) == 1 and folds[0].arg[0] == "add" and folds[0].src[0].op is MUL


def walk(
    roots: Iterable[T], sources: Callable[[T], Iterable[T]], ends: Collection[T] = ()
) -> list[T]:
    """What is met from roots down to where a walk ends, sources first; the last root begins."""
    seen: set[T] = set()
    order: list[T] = []
    stack = [(root, False) for root in roots]
    while stack:
        top, done = stack.pop()
        if done:
            order.append(top)
        elif top not in seen and top not in ends:
            seen.add(top)
            stack.append((top, True))
            stack.extend([(s, False) for s in sources(top) if s not in seen])
    return order


def nearest(root: Node, wanted: Callable[[Node], bool]) -> list[Node]:
    """The nodes under a root that are wanted, without what is under those."""
    found: dict[Node, None] = {}
    seen, stack = {root}, [root]
    while stack:
        node = stack.pop()
        if wanted(node):
            found[node] = None
            continue
        for source in node.src:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return list(found)


def free_axes(order: Sequence[Node]) -> dict[Node, frozenset[int]]:
    """The axes that each node depends on."""
    free: dict[Node, frozenset[int]] = {}
    for node in order:
        axes = frozenset[int]().union(*[free[s] for s in node.src])
        for index in indices(node):
            axes |= axes_of(index)
        if node.op is FOLD:
            axes -= frozenset(node.arg[1])
        elif node.op is RUN or node.op is ORDER:
            axes |= frozenset(node.arg[1] if node.op is RUN else node.arg[0])
        elif node.op is STORE:
            axes |= frozenset(node.arg[3])
        free[node] = axes
    return free


def whole_axes(order: Sequence[Node]) -> frozenset[int]:
    """Axes that folds, scans and sorts need whole."""
    found: set[int] = set()
    for node in order:
        if node.op in (FOLD, RUN):
            found.update(node.arg[1])
        elif node.op is ORDER:
            found.update(node.arg[0])
    return frozenset(found)


def affine_value(value: Node, bound: Bound) -> Affine | None:
    """A whole number as an index, if it is one that no step on the way wraps around."""
    done: dict[Node, Affine] = {}
    for node in toposort([value]):
        rule = _AFFINE.get(node.op)
        if node.dtype.kind not in "iu" or rule is None:
            return None
        found = rule(node, [done[s] for s in node.src])
        if found is None:
            return None
        low, high = bounds(found, bound)
        least, most = node.dtype.limits
        if low < least or high > most:
            return None
        done[node] = found
    return done[value]


def _affine_constant(node: Node, parts: Sequence[Affine]) -> Affine | None:
    known = decode(node.arg[0], node.dtype)
    return number(known) if isinstance(known, int) else None


def _affine_product(node: Node, parts: Sequence[Affine]) -> Affine | None:
    by, other = sorted(parts, key=lambda part: len(part[1]))
    if by[1]:
        return None
    return scale(other, by[0]) if by[0] else ZERO


# of each op that keeps an index affine: the index that a node is, from those of its sources
_AFFINE: dict[Op, Callable[[Node, Sequence[Affine]], Affine | None]] = {
    INDEX: lambda node, parts: None if parts else node.arg,
    CONST: _affine_constant,
    CAST: lambda node, parts: parts[0],
    NEG: lambda node, parts: scale(parts[0], -1),
    ADD: lambda node, parts: add(parts[0], parts[1], 1),
    SUB: lambda node, parts: add(parts[0], parts[1], -1),
    MUL: _affine_product,
}


def combined_loads(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """Nodes that one wide load may stand for, and the loads of their bytes, the lowest first.

    They are `b0 | b1 << 8 | ...` of bytes that lie beside each other (load combining): packed
    formats are written so. Whoever emits one load must see to it that lanes are as far apart as
    such numbers are wide, or all at one place.
    """
    numbers = [n for n in order if n.op is OR and n.dtype.kind == "u" and n.dtype.bits > 8]
    found = {node: _neighbour_bytes(node) for node in numbers}
    return {node: loads for node, loads in found.items() if loads}


def _neighbour_bytes(node: Node) -> list[Node]:
    """The loads of a number's bytes, if these are neighbours; none if they are not."""
    loads: dict[int, Node] = {}
    stack = [node]
    while stack:
        part = stack.pop()
        if part.op is OR:
            stack.extend(part.src)
            continue
        shift, load = _shifted_byte(part)
        if load is None or shift in loads:
            return []
        loads[shift] = load
    count = node.dtype.itemsize
    if sorted(loads) != [8 * n for n in range(count)]:
        return []
    each = [loads[8 * n] for n in range(count)]
    number, (offset, terms), _ = each[0].arg
    wanted = [(number, (offset + n, terms), ()) for n in range(count)]
    plain = all(isinstance(atom, int) for atom, _ in terms)
    return each if plain and [load.arg for load in each] == wanted else []


def _shifted_byte(node: Node) -> tuple[int, Node | None]:
    """How far up a byte is put, and its load."""
    shift = 0
    if node.op is SHL and node.src[1].op is CONST:
        shift, node = node.src[1].arg[0], node.src[0]
    if node.op is not CAST:
        return shift, None
    load = node.src[0]
    return shift, load if load.op is LOAD and load.dtype is uint8 and not load.src else None
