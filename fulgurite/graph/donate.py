"""Writing in place: outputs that take over the memory of inputs which nobody else needs.

In: a SINK over PARAMs and the pairs (param, root) of memory that may be written over. Out: a
`Schedule` with aliases. Updates of a part become ASSIGNs, which store the part and nothing else; a
map may store over what it reads. It is legal only where every load of the memory in that kernel has
the store's index, everybody else who reads the old value runs before, and so does everything that
can fail: a run that fails has written over nothing. A pair for which that cannot be arranged is
dropped, and its output is memory of its own. A load that is stored straight back is no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from ..core.dtype import int32, int64
from ..core.node import SOURCES, Node, Source, toposort
from ..core.ops.effect import ASSIGN, CONTIGUOUS
from ..core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE
from ..core.ops.indexing import SCATTER, gather
from ..core.ops.leaf import PARAM, SINK, iota
from ..core.ops.movement import RESHAPE, reshape
from ..core.ops.update import UPDATE, box, starts_of
from ..core.shape import prod
from ..core.substitute import substitute
from .affine import Affine, rename
from .kernel import Item, Kernel, Schedule
from .lower import IndexKernel, lower
from .memory import replaceable
from .regroup import CannotLower
from .schedule import Choose, schedule

Pair: TypeAlias = tuple[int, int]  # a param, and the root that may take its memory
_TRIAL = 64  # the most nodes of a part that is lowered to see whether it needs memory of its own
_SAFE = frozenset({"elementwise", "movement", "leaf"})


def in_place(
    sink: Node, inputs: int, fuse: bool, donated: Sequence[Pair], choose: Choose | None = None
) -> Schedule:
    """The schedule that writes over as much of the donated memory as it may."""
    made = {pair: _assignment(sink.src[pair[1]], pair[0], within=True) for pair in donated}
    while made:
        found = _arranged(sink, inputs, fuse, made, choose)
        if isinstance(found, Schedule):
            return found
        apart = _assignment(sink.src[found[1]], found[0], within=False)
        if made[found] is apart:
            del made[found]
        else:
            made[found] = apart
    return schedule(sink, inputs, fuse, choose)


def _arranged(
    sink: Node, inputs: int, fuse: bool, assigned: Mapping[Pair, Node | None],
    choose: Choose | None,
) -> Schedule | Pair:  # fmt: skip
    """The schedule with its aliases, or a pair that cannot have one."""
    parts = {sink.src[root]: node for (_, root), node in assigned.items() if node is not None}
    made = {pair: node if _is_assigned(node) else None for pair, node in assigned.items()}
    found = schedule(substitute(sink, parts, walk=True), inputs, fuse, choose)
    writer = {slot: item for item in found.items for slot in item.writes}
    aliases: dict[int, int] = {}  # slot -> the slot whose memory it takes: an input or another
    owner: dict[int, Pair] = {}
    for pair in made:
        slot = found.outputs[pair[1]]
        if slot not in writer or slot in aliases:
            if made[pair] is not None:
                return pair
            continue
        if made[pair] is None:
            if _over(found, writer[slot], pair[0], slot):
                aliases[slot], owner[slot] = pair[0], pair
            continue
        while slot != pair[0]:
            item = writer.get(slot)
            if item is None or not _keeps_to_itself(item):
                return pair
            aliases[slot], owner[slot] = item.reads[_target(item)], pair
            slot = aliases[slot]
    return _ordered(found, aliases, owner, made)


def _is_assigned(node: Node | None) -> bool:
    """Is it an assignment after all? What holds its parts already is the memory itself."""
    while node is not None and node.op is RESHAPE:
        node = node.src[0]
    return node is not None and node.op is ASSIGN


# --- updates of a part ---------------------------------------------------------------------------


def _assignment(root: Node, number: int, within: bool) -> Node | None:
    """A chain of updates of a param as assignments to its memory; None: it is something else.

    A part that reads what was updated before reads that memory `within` the chain, which orders the
    kernels, or else is worked out apart, from a copy.
    """
    links: list[Node] = []
    node = root
    while node.op in (RESHAPE, UPDATE, SCATTER):
        if node.op is SCATTER and node.arg[0] != "set":
            return None
        links.append(node)
        node = node.src[0]
    updates = [link for link in links if link.op is not RESHAPE]
    if node.op is not PARAM or node.arg[0] != number or not updates:
        return None
    if any(type(n) is not int for link in updates if link.op is UPDATE for n in link.src[1].shape):
        return None  # loops run to the largest size: stores beyond the box would be seen
    made = node
    now: dict[Node, Node] = {}
    for link in reversed(links):
        if link.op is RESHAPE:
            made = reshape(made, link.shape)
        elif link.op is UPDATE:
            part = substitute(link.src[1], now, walk=True)
            made = _boxed(made, link, part, node, first=link is updates[-1])
        else:
            part = _ready(substitute(link.src[2], now, walk=True), node)
            made = ASSIGN(made, part, _checked(link), arg=("at", link.arg[1]))
        if within:
            now[link] = made
    return made


def _boxed(target: Node, link: Node, part: Node, memory: Node, first: bool) -> Node:
    """The assignment of a box; what it reads of the old value is read before, or right there."""
    corner, arg = link.src[2:], ("box", *link.arg)
    if link.src[1] is box(link.src[0], starts_of(link), link.arg, part.shape):
        return target  # it holds that already
    order = toposort([part])
    if first and memory in order and len(order) <= _TRIAL:
        plain = ASSIGN(target, part, *corner, arg=arg)
        params = 1 + max(n.arg[0] for n in toposort([plain]) if n.op is PARAM)
        try:
            if _same_place(lower(SINK(plain), params), memory.arg[0]):
                return plain
        except CannotLower:
            pass
    return ASSIGN(target, _ready(part, memory), *corner, arg=arg)


def _ready(part: Node, memory: Node) -> Node:
    """A part that can be stored over memory: worked out before if it reads it, or could fail."""
    order = toposort([part])
    safe = all(n.op.family in _SAFE or n.op is CONTIGUOUS for n in order)
    return part if safe and memory not in order else CONTIGUOUS(part)


def _checked(link: Node) -> Node:
    """The index of a scatter, checked by a kernel before the one that stores."""
    base, index, _ = link.src
    size = base.shape[link.arg[1]]
    known = index.bounds
    if not isinstance(size, int) or known is None or known[0] < 0 or known[1] >= size:
        count = iota((size,), 0, int32 if isinstance(size, int) and size < 1 << 31 else int64)
        flat = reshape(index, (prod(index.shape),))
        index = reshape(gather(count, flat, 0), index.shape)  # the same numbers, all of them inside
    return CONTIGUOUS(index)


# --- what kernels do -----------------------------------------------------------------------------


def _lowered(kernel: Kernel) -> IndexKernel | None:
    if kernel.kind == "host":
        return None
    try:
        return lower(kernel.body, kernel.inputs)
    except CannotLower:
        return None


def _can_fail(kernel: Kernel) -> bool:
    """May it raise when it runs? Host steps may, and what checks an index."""
    found = _lowered(kernel)
    return found is None or any(n.op is GUARD for n in toposort([found.body]))


def _same_place(kernel: IndexKernel, param: int) -> bool:
    """Is a param loaded, if at all, only where the one store of the kernel puts its value?"""
    nodes = toposort([kernel.body])
    stores = [n for n in nodes if n.op is STORE]
    if len(stores) != 1 or any(n.op is GUARD for n in nodes):
        return False
    loads = [n for n in nodes if n.op is LOAD and n.arg[0] == param]
    if loads and any(n.op in (FOLD, RUN, ORDER) for n in nodes):
        return False
    place = _place(stores[0])
    return all(not n.arg[2] and (n.arg[1], n.src) == place for n in loads)


def _place(store: Node) -> tuple[Affine, tuple[Node, ...]]:
    """Where a store puts its value, said as a load says it."""
    here = rename(store.arg[1], lambda a: SOURCES[a.index - 1] if isinstance(a, Source) else a)
    return here, store.src[1:]


def _target(item: Item) -> int:
    """The number of the param that an assigning kernel assigns to."""
    memory = item.kernel.body.src[0].src[0]
    while memory.op is RESHAPE:
        memory = memory.src[0]
    number: int = memory.arg[0]
    return number


def _keeps_to_itself(item: Item) -> bool:
    """May an assigning kernel write over its target while it runs?"""
    roots = item.kernel.body.src
    if item.kernel.kind != "assign" or len(roots) != 1 or roots[0].op is not ASSIGN:
        return False
    found = _lowered(item.kernel)
    if found is None or not _same_place(found, _target(item)):
        return False
    loaded = any(n.op is LOAD and n.arg[0] == _target(item) for n in toposort([found.body]))
    return not loaded or roots[0].arg[0] == "box"  # at places that are data two steps may meet


def _over(found: Schedule, item: Item, read: int, write: int) -> bool:
    """May a kernel store an output over an input?"""
    a, b = found.slots[read], found.slots[write]
    if a is None or b is None or read not in item.reads:
        return False
    if a.dtype is not b.dtype or prod(a.shape) != prod(b.shape) or _can_fail(item.kernel):
        return False
    param = item.reads.index(read)
    if item.kernel.kind == "contract":
        return _reads_above_sums(item.kernel, param)
    params = param, item.kernel.inputs + item.writes.index(write)
    return item.kernel.kind == "map" and params in replaceable(item.kernel)


def _reads_above_sums(kernel: Kernel, param: int) -> bool:
    """Does a contraction read an input only where it stores, of what is computed from its sums?

    Its template keeps no sums in memory that is read at the place of a result.
    """
    found = _lowered(kernel)
    if found is None:
        return False
    nodes = toposort([found.body])
    stores = [n for n in nodes if n.op is STORE]
    if len(stores) != 1 or any(n.op in (RUN, ORDER, GUARD) for n in nodes):
        return False
    summed = set(toposort([s for n in nodes if n.op is FOLD for s in n.src]))
    place = _place(stores[0])
    loads = [n for n in nodes if n.op is LOAD and n.arg[0] == param]
    return all(n not in summed and not n.arg[2] and (n.arg[1], n.src) == place for n in loads)


def _stores_back(item: Item, aliases: dict[int, int]) -> bool:
    """Does it only load values and store them where they are?"""
    found = _lowered(item.kernel)
    if found is None or not all(slot in aliases for slot in item.writes):
        return False
    slots = (*item.reads, *item.writes)
    stores = found.body.src
    return all(
        s.op is STORE and s.src[0].op is LOAD and slots[s.src[0].arg[0]] == aliases[slots[s.arg[0]]]
        and not s.src[0].arg[2] and (s.src[0].arg[1], s.src[0].src) == _place(s)
        for s in stores
    )  # fmt: skip


# --- order ---------------------------------------------------------------------------------------


def _ordered(
    found: Schedule, aliases: dict[int, int], owner: dict[int, Pair], made: dict[Pair, Node | None]
) -> Schedule | Pair:
    """The items in an order in which nothing is written over too early, or a pair in the way."""
    aliases = dict(aliases)
    while True:
        order, stuck = _sorted(found.items, aliases)
        if not stuck:
            break
        slots = [s for item in stuck for s in item.writes if s in aliases]
        free = [s for s in slots if made[owner[s]] is None]
        if not free:
            return owner[slots[0]]
        del aliases[free[0]]
    kept = [item for item in order if not _stores_back(item, aliases)]
    memory = [(slot, _root(aliases, slot)) for slot in aliases]
    return replace(found, items=tuple(kept), aliases=tuple(sorted(memory)))


def _root(aliases: dict[int, int], slot: int) -> int:
    while slot in aliases:
        slot = aliases[slot]
    return slot


def _sorted(items: Sequence[Item], aliases: dict[int, int]) -> tuple[list[Item], list[Item]]:
    """Items in order, as near to the old one as can be, and those that cannot be placed."""
    over = {n: item for n, item in enumerate(items) if any(s in aliases for s in item.writes)}
    before: list[set[int]] = [set() for _ in items]
    writer = {slot: n for n, item in enumerate(items) for slot in item.writes}
    risky = [n for n, item in enumerate(items) if n not in over and _can_fail(item.kernel)]
    for n, item in enumerate(items):
        before[n].update(writer[slot] for slot in item.reads if slot in writer)
    for n, item in over.items():
        lost = {aliases[slot] for slot in item.writes if slot in aliases}
        readers = [m for m, other in enumerate(items) if m != n and lost & {*other.reads}]
        before[n].update(readers, risky)
    waiting = [len(found) for found in before]
    ready = [n for n, count in enumerate(waiting) if not count]
    heapify(ready)
    order: list[int] = []
    after: list[list[int]] = [[] for _ in items]
    for n, found in enumerate(before):
        for m in found:
            after[m].append(n)
    while ready:
        n = heappop(ready)
        order.append(n)
        for m in after[n]:
            waiting[m] -= 1
            if not waiting[m]:
                heappush(ready, m)
    done = set(order)
    stuck = [item for n, item in over.items() if n not in done]
    return [items[n] for n in order], stuck


def params_written(aliases: Iterable[Pair]) -> list[int]:
    """The inputs whose memory a schedule writes over."""
    return sorted({place for _, place in aliases})
