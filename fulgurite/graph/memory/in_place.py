"""Writing in place: outputs that take over the memory of inputs which nobody else needs.

In: a SINK over PARAMs and the pairs (param, root) of memory that may be written over. Out: a
`Schedule` with aliases. Updates of a part become ASSIGNs, which store the part and nothing else; a
map may store over what it reads. It is legal only where every load of the memory in that kernel has
the store's index, all other readers of the old value run before, and so does everything that
can fail (of those that check one index, the first): a run that fails has written over nothing. A
pair for which that cannot be arranged is dropped, and its output is memory of its own; a small one
may be copied back behind all kernels (`copy_back`). A load that is stored straight back is no
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from ..._lazy import FORK_LOCK
from ...core.context import Table, WeakMemo
from ...core.dtype import int32, int64
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import SOURCES, Node, Source, backward_slice, toposort
from ...core.ops.effect import ASSIGN, CONTIGUOUS
from ...core.ops.index import FOLD, GUARD, LOAD, ORDER, RUN, STORE
from ...core.ops.indexing import SCATTER, gather
from ...core.ops.leaf import CONST, PARAM, SINK, iota, param
from ...core.ops.movement import RESHAPE, reshape
from ...core.ops.reduce import REDUCE
from ...core.ops.update import UPDATE, box, starts_of
from ...core.passes import Retry
from ...core.rewriting.substitute import substitute
from ...core.shape import prod
from ..ir.affine import Affine, rename
from ..ir.kernel import Item, Kernel, Schedule, Slot
from ..ir.kernel_kind import KernelKind
from ..ir.lower import IndexKernel, lower, lower_kernel
from ..ir.reshape_groups import CannotLower
from ..tables import GRAPH
from .arena import replaceable, root_of


class Append(NamedTuple):
    """A param whose memory has room, the root that goes on behind it, and along which axis."""

    param: int
    root: int
    axis: int


Pair: TypeAlias = tuple[int, int]  # a param, and the root that may take its memory
Donated: TypeAlias = tuple[Pair | Append, ...]
_SAFE = frozenset({"elementwise", "movement", "leaf"})


class InPlace:
    """Which outputs take over donated memory: two passes, one before and one after fusion.

    `assign` turns updates of a part into assignments; `alias` lets outputs have the memory. A pair
    that stands in the way is taken back, and the graph is scheduled again without it.
    """

    def __init__(self, donated: Donated) -> None:
        self.appends = [pair for pair in donated if isinstance(pair, Append)]
        self.donated: list[Pair] = [(pair[0], pair[1]) for pair in donated]
        self.assigned: dict[Pair, Node | None] | None = None  # None before there is a graph
        self.sink: Node | None = None

    def append(self, sink: Node) -> Node:
        """The graph with concatenations behind memory with room as updates of longer memory."""
        with FORK_LOCK:  # few plans need it
            from .append import append_in_place
        return append_in_place(sink, self.appends)

    def assign(self, sink: Node) -> Node:
        """The graph with updates of donated memory as assignments to it."""
        self.sink = sink
        if self.assigned is None:
            shapes = {n.arg[0]: n.shape for n in toposort([sink]) if n.op is PARAM}
            fits = [p for p in self.donated if shapes.get(p[0]) in (None, sink.src[p[1]].shape)]
            self.assigned = {p: _assignment(sink.src[p[1]], p[0], True) for p in fits}
        made = [(sink.src[root], node) for (_, root), node in self.assigned.items() if node]
        parts = dict([_below_reshapes(*pair) for pair in made])
        return substitute(sink, parts) if parts else sink  # what is assigned may read another

    def alias(self, found: Schedule) -> Schedule:
        """The schedule with outputs over the memory of inputs, or `Retry` without a pair."""
        assert self.assigned is not None
        if not self.assigned:
            return found
        arranged = _arranged(found, self.assigned)
        if isinstance(arranged, Schedule):
            return arranged
        self.take_back(arranged)
        raise Retry("assign_updates")

    def copy_back(self, found: Schedule) -> Schedule:
        """The schedule with small outputs that have memory of their own copied to what was donated.

        All that is assigned keeps its address then, for devices that replay what has one.
        """
        taken = {slot for slot, _ in found.aliases}
        inputs = {place for _, place in found.aliases} | {*found.outputs}
        left = [
            (place, root) for place, root in self.assigned or ()
            if found.outputs[root] not in taken and place not in inputs
            and _is_small_copy(found, found.outputs[root], place)
        ]  # fmt: skip
        return _with_copies(found, left)

    def take_back(self, pair: Pair) -> None:
        """Work its part out apart from the memory; if it was, leave it memory of its own."""
        assert self.assigned is not None and self.sink is not None
        apart = _assignment(self.sink.src[pair[1]], pair[0], within=False)
        if self.assigned[pair] is apart:
            del self.assigned[pair]
        else:
            self.assigned[pair] = apart


def _below_reshapes(root: Node, made: Node) -> tuple[Node, Node]:
    """The update under a root's reshapes, which others may read by another shape, and its own."""
    while root.op is RESHAPE is made.op and root.src[0].shape == made.src[0].shape:
        root, made = root.src[0], made.src[0]
    return root, made


def _arranged(found: Schedule, assigned: Mapping[Pair, Node | None]) -> Schedule | Pair:
    """The schedule with its aliases, or a pair that cannot have one."""
    made = {pair: node if _is_assigned(node) else None for pair, node in assigned.items()}
    writer = {slot: item for item in found.items for slot in item.writes}
    aliases: dict[int, int] = {}  # slot -> the slot whose memory it takes: an input or another
    owner: dict[int, Pair] = {}
    for pair, node in made.items():
        slot = found.outputs[pair[1]]
        free = slot in writer and slot not in aliases
        if node is not None:
            chain = _chain(writer, slot, pair[0]) if free else None
            if chain is None:
                return pair
        else:
            chain = {slot: pair[0]} if free and _over(found, writer[slot], pair[0], slot) else {}
        aliases |= chain
        owner |= dict.fromkeys(chain, pair)
    return _ordered(found, aliases, owner, made)


def _chain(writer: Mapping[int, Item], slot: int, param: int) -> dict[int, int] | None:
    """The slots that assigning kernels make of a param, each with the one it is written over."""
    over: dict[int, int] = {}
    while slot != param:
        item = writer.get(slot)
        if item is None or not _keeps_to_itself(item):
            return None
        over[slot] = item.reads[_target(item)]
        slot = over[slot]
    return over


def _is_assigned(node: Node | None) -> bool:
    """True if it is an assignment, not memory that holds its parts already."""
    while node is not None and node.op is RESHAPE:
        node = node.src[0]
    return node is not None and node.op is ASSIGN


# --- updates of a part ---------------------------------------------------------------------------


def _assignment(root: Node, number: int, within: bool) -> Node | None:
    """A chain of updates of a param as assignments to its memory; None: it is something else.

    A part that reads what was updated before reads that memory `within` the chain, which orders the
    kernels, or else is computed apart, from a copy.
    """
    links = _updates(root, number)
    if not links:
        return None
    memory = made = links[0].src[0]
    first = next(link for link in links if link.op is not RESHAPE)
    now: dict[Node, Node] = {}
    for link in links:
        if link.op is RESHAPE:
            made = reshape(made, link.shape)
        elif link.op is UPDATE:
            part = substitute(link.src[1], now, walk=True)
            made = _boxed(made, link, part, memory, first=link is first)
        else:
            part = _ready(substitute(link.src[2], now, walk=True), memory)
            made = ASSIGN(made, part, _checked(link), arg=("at", link.arg[1]))
        if within:
            now[link] = made
    return made


def _updates(root: Node, number: int) -> list[Node]:
    """The reshapes and updates of parts that lead from a param to a root; empty: others do too."""
    links: list[Node] = []
    node = root
    while node.op is RESHAPE or node.op is UPDATE or (node.op is SCATTER and node.arg[0] == "set"):
        links.append(node)
        node = node.src[0]
    boxes = [link.src[1].shape for link in links if link.op is UPDATE]
    fixed = all(type(n) is int for shape in boxes for n in shape)
    # of variable sizes loops run to the largest: stores beyond the box would be seen
    if not fixed or node.op is not PARAM or node.arg[0] != number:
        return []
    return links[::-1] if any(link.op is not RESHAPE for link in links) else []


def _boxed(target: Node, link: Node, part: Node, memory: Node, first: bool) -> Node:
    """The assignment of a box; what it reads of the old value is read before, or right there."""
    corner, arg = link.src[2:], ("box", *link.arg)
    if link.src[1] is box(link.src[0], starts_of(link), link.arg, part.shape):
        return target  # it holds that already
    order = toposort([part])
    if first and memory in order and len(order) <= GRAPH.trial_lowering_nodes:
        plain = ASSIGN(target, part, *corner, arg=arg)
        params = 1 + max(n.arg[0] for n in toposort([plain]) if n.op is PARAM)
        try:
            if _same_place(lower(SINK(plain), params), memory.arg[0]):
                return plain
        except CannotLower:
            pass
    return ASSIGN(target, _ready(part, memory), *corner, arg=arg)


def _ready(part: Node, memory: Node) -> Node:
    """A part that can be stored over memory: computed before if it reads it, or could fail.

    A reduction is a kernel before in any case, so what it reads does not count.
    """
    ends = (CONTIGUOUS, REDUCE)
    read = backward_slice([part], lambda node: node.op in ends)
    safe = all(n.op.family in _SAFE or n.op in ends for n in read)
    return part if safe and memory not in toposort([part]) else CONTIGUOUS(part)


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
    found = kernel.lowered
    assert found is not None, f"{kernel.name} was not lowered"
    return None if isinstance(found, CannotLower) else found


_guards_of: Table[WeakMemo[Node, tuple[Node, ...]]] = Table(WeakMemo)


def _guards(kernel: Kernel) -> tuple[Node, ...] | None:
    """The checks of indices in a kernel; None if it may raise for other reasons: a host step."""
    found = _lowered(kernel)
    if found is None:
        return None
    body = found.body
    return _guards_of().get_or_make(
        kernel.body, lambda: tuple([n for n in toposort([body]) if n.op is GUARD])
    )


def _can_fail(kernel: Kernel) -> bool:
    """True if it may raise when it runs."""
    return _guards(kernel) != ()


def _checks(item: Item) -> dict[Hashable, bool]:
    """What an item sees to be inside, in words that others use too, and whether for all of it."""
    guards = _guards(item.kernel)
    return {item: False} if guards is None else dict([_check(guard, item) for guard in guards])


def _check(guard: Node, item: Item) -> tuple[Hashable, bool]:
    """An index that is computed from memory, each number at its own place, said by its slots."""
    order = toposort([guard])
    loads = [n for n in order if n.op is LOAD]
    plain = all(n.op in (GUARD, LOAD, CONST) or n.op.family == "elementwise" for n in order)
    if not item.kernel.kind.is_complete or not plain or not _is_one_place(loads):
        return item, False
    number = {n: place for place, n in enumerate(order)}
    said = [
        (item.reads[n.arg[0]] if n.op is LOAD else (n.op.name, n.dtype, n.arg),
         *[number[s] for s in n.src])
        for n in order
    ]  # fmt: skip
    return tuple(said), _walks_all(loads[0], item.kernel)


def _is_one_place(loads: Sequence[Node]) -> bool:
    """True if loads read one index, unconditionally, and none that is data."""
    return len({n.arg[1] for n in loads}) == 1 and not any(n.arg[2] or n.src for n in loads)


def _walks_all(load: Node, kernel: Kernel) -> bool:
    """True if a kernel loads every element of a buffer."""
    memory = [n for n in toposort([kernel.body]) if n.op is PARAM and n.arg[0] == load.arg[0]]
    axes, (start, terms), step = kernel.indexed.axes, load.arg[1], 1
    for atom, coefficient in sorted(terms, key=lambda term: term[1]):
        if not isinstance(atom, int) or coefficient != step:
            return False
        size = axes[atom]
        if not isinstance(size, int):
            return False
        step *= size
    return start == 0 and step == prod(memory[0].shape)


def _same_place(kernel: IndexKernel, param: int) -> bool:
    """True if a param is loaded only at the index where the kernel's one store writes."""
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
    """True if an assigning kernel may write over its target while it runs."""
    roots = item.kernel.body.src
    if item.kernel.kind is not KernelKind.ASSIGN or len(roots) != 1 or roots[0].op is not ASSIGN:
        return False
    found = _lowered(item.kernel)
    if found is None or not _same_place(found, _target(item)):
        return False
    loaded = any(n.op is LOAD and n.arg[0] == _target(item) for n in toposort([found.body]))
    return not loaded or roots[0].arg[0] == "box"  # at places that are data two steps may meet


def _over(found: Schedule, item: Item, read: int, write: int) -> bool:
    """True if a kernel may store an output over an input."""
    a, b = found.slots[read], found.slots[write]
    if a is None or b is None or read not in item.reads:
        return False
    if a.dtype is not b.dtype or prod(a.shape) != prod(b.shape) or _can_fail(item.kernel):
        return False
    pair = item.reads.index(read), item.kernel.inputs + item.writes.index(write)
    if item.kernel.kind in (KernelKind.CONTRACT, KernelKind.REDUCE):
        known = _above_folds()
        return pair in known.get_or_make(item.kernel.body, lambda: _read_above_folds(item.kernel))
    return item.kernel.kind is KernelKind.MAP and pair in replaceable(item.kernel)


_above_folds: Table[WeakMemo[Node, frozenset[tuple[int, int]]]] = Table(WeakMemo)


def _read_above_folds(kernel: Kernel) -> frozenset[tuple[int, int]]:
    """The (input, output) params of which the input is read only where the output is stored.

    Outputs are made of folds. No template keeps a fold in memory that is read at the place of a
    result; and of stores that have the same axes, all loads of an index come before the stores.
    What stores of other axes read, they may read later.
    """
    found = _lowered(kernel)
    if found is None:
        return frozenset()
    nodes = toposort([found.body])
    stores = [n for n in nodes if n.op is STORE]
    modes, axes = {n.arg[2] for n in stores}, {n.arg[3] for n in stores}
    irregular = {RUN, ORDER, GUARD} & {n.op for n in nodes}
    if irregular or modes != {"set"}:
        return frozenset()
    loads = _places_read(nodes)
    others = {some: _read_by_others(stores, some) for some in axes}
    return frozenset(
        (param, store.arg[0]) for store in stores for param, places in loads.items()
        if places == {_place(store)} and param not in others[store.arg[3]]
    )  # fmt: skip


def _read_by_others(stores: Sequence[Node], axes: tuple[int, ...]) -> set[int]:
    """The params that stores of other axes read."""
    others = [store for store in stores if store.arg[3] != axes]
    return {n.arg[0] for n in toposort(others) if n.op is LOAD}


def _places_read(nodes: Sequence[Node]) -> dict[int, set[object]]:
    """Where each param is read; None stands for places inside folds and under conditions."""
    folded = set(toposort([s for n in nodes if n.op is FOLD for s in n.src]))
    found: dict[int, set[object]] = {}
    for n in nodes:
        if n.op is LOAD:
            plain = n not in folded and not n.arg[2]
            found.setdefault(n.arg[0], set()).add((n.arg[1], n.src) if plain else None)
    return found


def _stores_back(item: Item, aliases: dict[int, int]) -> bool:
    """True if it stores values only where it loaded them."""
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


# --- copies back ---------------------------------------------------------------------------------


def _is_small_copy(found: Schedule, slot: int, place: int) -> bool:
    """True if a value that a kernel makes is small, and has the type of what it replaces."""
    a, b = found.slots[slot], found.slots[place]
    if slot < found.inputs or a is None or b is None or a.bits is not None:
        return False
    sizes = [n for n in a.shape if isinstance(n, int)]
    if len(sizes) < len(a.shape) or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return a.dtype.itemsize * math.prod(sizes) <= GRAPH.copy_back_bytes


def _with_copies(found: Schedule, pairs: Sequence[Pair]) -> Schedule:
    """The schedule with outputs stored over params behind everything, values of a shape together.

    What is read of the old values has been read by then, and what can fail has not failed.
    """
    groups: dict[Slot, list[Pair]] = {}
    for place, root in pairs:
        slot = found.slots[found.outputs[root]]
        assert slot is not None, "it is an output"
        groups.setdefault(slot, []).append((place, root))
    slots, items = [*found.slots], [*found.items]
    outputs, aliases = [*found.outputs], [*found.aliases]
    for slot, same in groups.items():
        for first in range(0, len(same), GRAPH.copied_together):
            some = same[first : first + GRAPH.copied_together]
            reads = [outputs[root] for _, root in some]
            params = [param(i, slot.shape, slot.dtype, slot.device) for i in range(len(reads))]
            body = SINK(*[CONTIGUOUS(p) for p in params])
            kernel = lower_kernel(Kernel(KernelKind.MAP, body, len(reads)))
            writes = [len(slots) + i for i in range(len(reads))]
            slots += [slot] * len(reads)
            lines = tuple(dict.fromkeys(
                o for item in found.items if {*item.writes} & {*reads} for o in item.origins
            ))  # fmt: skip
            items.append(Item(kernel, tuple(reads), tuple(writes), lines, "copied back"))
            for (place, root), slot_of_copy in zip(some, writes, strict=True):
                outputs[root] = slot_of_copy
                aliases.append((slot_of_copy, place))
    return found._replace(
        slots=tuple(slots), items=tuple(items), outputs=tuple(outputs),
        aliases=tuple(sorted(aliases)),
    )  # fmt: skip


# --- order ---------------------------------------------------------------------------------------


def _ordered(
    found: Schedule, aliases: dict[int, int], owner: dict[int, Pair], made: dict[Pair, Node | None]
) -> Schedule | Pair:
    """The items in an order in which nothing is written over too early, or a pair in the way."""
    aliases, links = dict(aliases), _Links.of(found.items)
    while True:
        order, stuck = _sorted(found.items, links, aliases)
        if not stuck:
            break
        slots = [s for item in stuck for s in item.writes if s in aliases]
        free = [s for s in slots if made[owner[s]] is None]
        if not free:
            return owner[slots[0]]
        del aliases[free[0]]
    kept = [item for item in order if not _stores_back(item, aliases)]
    memory = [(slot, root_of(aliases, slot)) for slot in aliases]
    return found._replace(items=tuple(kept), aliases=tuple(sorted(memory)))


class _Links(NamedTuple):
    """What orders items, whatever is written over: def-use chains, and checks of indices."""

    writers: list[set[int]]  # of each item: those of what it reads
    readers: dict[int, list[int]]  # of each slot
    checks: list[dict[Hashable, bool]]  # of each item

    @staticmethod
    def of(items: Sequence[Item]) -> _Links:
        """Those of some items."""
        writer = {slot: n for n, item in enumerate(items) for slot in item.writes}
        readers: dict[int, list[int]] = {}
        for n, item in enumerate(items):
            for slot in {*item.reads}:
                readers.setdefault(slot, []).append(n)
        writers = [{writer[slot] for slot in writer.keys() & {*item.reads}} for item in items]
        return _Links(writers, readers, [_checks(item) for item in items])


def _sorted(
    items: Sequence[Item], links: _Links, aliases: dict[int, int]
) -> tuple[list[Item], list[Item]]:
    """Items in order, as near to the old one as can be, and those that cannot be placed."""
    over = {n: item for n, item in enumerate(items) if any(s in aliases for s in item.writes)}
    order = _topological(_precedence(links, over, aliases))
    done = set(order)
    stuck = [item for n, item in over.items() if n not in done]
    return [items[n] for n in order], stuck


def _precedence(links: _Links, over: dict[int, Item], aliases: dict[int, int]) -> list[set[int]]:
    """The items that must run before each: writers of what it reads, and checks of its indices.

    Before those that write `over` something: all its readers, and all that can fail.
    """
    before = [{*found} for found in links.writers]
    risky: list[int] = []
    checked: dict[Hashable, int] = {}  # the item that sees first whether indices are inside
    for n, checks in enumerate(links.checks):
        if not checks or n in over:
            continue
        before[n].update(checked[check] for check in checks.keys() & checked.keys())
        if not checks.keys() <= checked.keys():
            risky.append(n)
        for check, every in checks.items():
            if every:
                checked.setdefault(check, n)
    for n, item in over.items():
        lost = {aliases[slot] for slot in aliases.keys() & {*item.writes}}
        before[n].update(m for slot in lost for m in links.readers.get(slot, ()) if m != n)
        before[n].update(risky)
    return before


def _topological(before: Sequence[set[int]]) -> list[int]:
    """Kahn's algorithm, the smallest number first; what waits for itself is left out."""
    after: list[list[int]] = [[] for _ in before]
    for n, found in enumerate(before):
        for m in found:
            after[m].append(n)
    waiting = [len(found) for found in before]
    ready = [n for n, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        n = heappop(ready)
        order.append(n)
        for m in after[n]:
            waiting[m] -= 1
            if not waiting[m]:
                heappush(ready, m)
    return order


def params_written(aliases: Iterable[Pair]) -> list[int]:
    """The inputs whose memory a schedule writes over."""
    return sorted({place for _, place in aliases})
