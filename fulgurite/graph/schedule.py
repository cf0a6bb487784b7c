"""Scheduling: a normalised graph becomes few kernels, in the order they run.

In: a SINK over PARAMs. Out: a `Schedule`. One greedy pass in topological order gives every node a
home kernel or leaves it virtual, computed again by each kernel that reads it. A kernel gets its
NUMBER when something outside first reads it, and a node joins a numbered kernel only if all that
it reads has a smaller number: so no cycle can arise and none is looked for. Storing or computing
again is a matter of cost; a second look drops stores that turned out not to pay. Movement ops are
never stored; `lower` turns them into index arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

from ..core.node import Node, Shape, constant, toposort
from ..core.ops.effect import AFTER, CONTIGUOUS
from ..core.ops.elementwise import CAST, MUL
from ..core.ops.indexing import GATHER, SCATTER, SORT
from ..core.ops.leaf import CONST, IOTA, PARAM, SINK, VAR, VIEW
from ..core.ops.movement import EXPAND, FLIP, PAD, PERMUTE, RESHAPE, UNWINDOW
from ..core.ops.random import RANDOM
from ..core.ops.reduce import REDUCE, SCAN, identity_of
from ..core.shape import upper
from ..core.substitute import substitute
from .kernel import Extractor, Item, Kernel, Schedule, Slot

__all__ = ["Item", "Kernel", "Schedule", "Slot", "schedule"]

REMAT = 48  # compute again up to this much per element rather than write and read it once more
DEAR = 16  # what costs more than this and is used twice is stored
MOST = 200  # the largest cost of a virtual value, and the most nodes of a kernel

_LEAVES = frozenset({PARAM, CONST, VAR, IOTA})
_OWN_KIND = {SCAN: "scan", SORT: "sort", SCATTER: "scatter"}


@lru_cache(maxsize=4096)
def elements(shape: Shape) -> int:
    """How many elements are laid out for a shape."""
    count = 1
    for n in shape:
        count *= n if isinstance(n, int) else upper(n)
    return count


def is_move(node: Node) -> bool:
    """Does it only move elements?"""
    return (node.op.family == "movement" and node.op is not UNWINDOW) or node.op is VIEW


def is_map(node: Node) -> bool:
    """Does it compute each element from elements at the same place?"""
    return node.op.family == "elementwise" or node.op is CONTIGUOUS or node.op is AFTER


def sizes_in(order: Iterable[Node]) -> set[Node]:
    """Numbers made of variables alone: they may be sizes, which no kernel can read from memory."""
    found: set[Node] = set()
    for node in order:
        made = node.op.family == "elementwise" and node.shape == () and node.dtype.kind in "iu"
        if node.op is VAR or (made and all([s in found or s.op is CONST for s in node.src])):
            found.add(node)
    return found


class Group:
    """A kernel in the making."""

    __slots__ = (
        "axes",
        "count",
        "deps",
        "full",
        "into",
        "kind",
        "number",
        "outputs",
        "reason",
        "size",
    )

    def __init__(
        self, kind: str, full: Shape, axes: tuple[int, ...], deps: int, reason: str
    ) -> None:
        self.kind, self.full, self.axes, self.deps, self.reason = kind, full, axes, deps, reason
        self.number: int | None = None
        self.outputs: dict[Node, None] = {}
        self.into: Group | None = None  # merged into another
        self.size = elements(full)
        self.count = 0  # nodes computed in it


class _Greedy:
    """The pass. `outside[n]` is the largest kernel number that reading n from outside needs."""

    def __init__(self, sink: Node, fuse: bool, order: list[Node], sizes: set[Node]) -> None:
        self.order, self.fuse, self.sizes = order, fuse, sizes
        self.uses = Counter([s for n in (*order, sink) for s in n.src])
        self.home: dict[Node, Group] = {}
        self.base: dict[Node, Node] = {}  # of a movement op: what it moves
        self.outside: dict[Node, int] = {}
        self.cost: dict[Node, int] = {}
        self.stored: dict[Node, Group] = {}
        self.groups: list[Group] = []
        self.operands: set[Node] = set()  # of contractions: read many times, so kept in memory
        self.sideways: dict[tuple[Node, Shape, tuple[int, ...]], Group] = {}
        self.varying: dict[Node, frozenset[int]] = {}
        self.last = 0
        self.outputs = self._claim(sink.src)
        self.forced = {n for n in self.order if n.op is CONTIGUOUS} | set(self.outputs.values())
        for node in self.order:
            self.place(node)
        for root in self.outputs.values():
            self.store(root)
        if fuse:
            self.unstore()
        for group in self.groups:
            if group.into is None and group.number is None and group.outputs:
                self.give_number(group)
        self.drop_unread()

    def kernels(self) -> list[Group]:
        """The kernels that store something, in the order they run."""
        found = [g for g in self.groups if g.into is None and g.outputs]
        return sorted(found, key=lambda g: g.number or 0)

    def _claim(self, roots: Iterable[Node]) -> dict[Node, Node]:
        """What to store for each root: a reshape of a computed value is that value's memory."""
        targets: dict[Node, Node] = {}
        asked = dict.fromkeys(roots)
        claimed: set[Node] = set()
        for root in asked:
            base = root
            while base.op is RESHAPE:
                base = base.src[0]
            taken = base in claimed or (base in asked and base is not root)
            plain = base.op not in _LEAVES and not is_move(base) and not taken
            targets[root] = base if plain else root
            claimed.add(targets[root])
        return targets

    # --- placing nodes ---------------------------------------------------------------------------

    def place(self, node: Node) -> None:
        if node.op in _LEAVES or node in self.sizes:
            self.outside[node], self.cost[node] = 0, 0
        elif is_move(node):
            self.move(node)
        elif not self.fuse:
            deps = max([self.read(s) for s in node.src], default=0)
            self.home[node] = self.open(_kind_alone(node), node, deps, "fusion is off")
            self.store(node)
        elif is_map(node):
            self.elementwise(node)
        elif node.op in (REDUCE, UNWINDOW):
            self.reduce(node)
        elif node.op in (GATHER, RANDOM):
            self.virtual(node)
        else:
            kind = _OWN_KIND.get(node.op, "host")
            deps = max([self.read(s) for s in node.src], default=0)
            self.home[node] = self.open(kind, node, deps, f"{node.op} is a kernel of its own")
            self.store(node)

    def open(
        self, kind: str, node: Node, deps: int, reason: str, axes: tuple[int, ...] = ()
    ) -> Group:
        full = node.src[0].shape if axes and kind == "reduce" else node.shape
        group = Group(kind, full, axes, deps, reason)
        group.count = 1
        self.groups.append(group)
        return group

    def group(self, node: Node) -> Group | None:
        found = self.home.get(node)
        while found is not None and found.into is not None:
            found = found.into
        return found

    def give_number(self, group: Group) -> int:
        if group.number is None:
            self.last += 1
            group.number = self.last
        return group.number

    # --- memory ----------------------------------------------------------------------------------

    def store(self, node: Node) -> int:
        """Write a node to memory in the kernel that computes it; that kernel's number."""
        if node in self.stored:
            return self.outside[node]
        if node.op in _LEAVES:
            return 0
        group = self.group(node)
        if group is None:
            deps = self.outside.get(node)
            if deps is None:
                deps = self.read(node.src[0])
            reason = "a result" if node in self.forced else "it is read by several kernels"
            group = self.home[node] = self.open("map", node, deps, reason)
        group.outputs[node] = None
        self.stored[node] = group
        self.outside[node], self.cost[node] = self.give_number(group), 0
        return self.outside[node]

    def read(self, source: Node) -> int:
        """Make a value readable from another kernel: computed again when cheap, else stored."""
        source = self.base.get(source, source)
        known = self.outside.get(source)
        if known is not None:
            return known
        large: set[Node] = set()
        cheap = (
            is_map(source)
            and source not in self.forced
            and self.cheap(source, elements(source.shape), large, {})
            and len(large) < 2
        )
        if not cheap:
            return self.store(source)
        self.outside[source] = max(self.read(s) for s in source.src)
        self.cost[source] = source.op.cost + sum(self.cost_of(s) for s in source.src)
        return self.outside[source]

    def cost_of(self, node: Node) -> int:
        return self.cost.get(self.base.get(node, node), 0)

    def cheap(self, node: Node, size: int, large: set[Node], seen: dict[Node, int]) -> bool:
        """Can it be computed again from rows and from large values in memory (into `large`)?"""
        seen[node] = node.op.cost
        for source in node.src:
            source = self.base.get(source, source)
            if source in seen:
                continue
            small = elements(source.shape) * 4 <= size
            if source in self.stored or source.op in _LEAVES or small:
                if not small and source.op is not CONST and source.op is not VAR:
                    large.add(source)
            elif not (is_map(source) and sum(seen.values()) <= REMAT) or not self.cheap(
                source, size, large, seen
            ):
                return False
        return sum(seen.values()) <= REMAT

    def below(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """The stored values and params that nodes are computed from, in a fixed order."""
        found: dict[Node, None] = {}
        seen = set(nodes)
        stack = list(nodes)
        while stack:
            for source in stack.pop().src:
                if source not in seen:
                    seen.add(source)
                    if source in self.stored or source.op is PARAM:
                        found[source] = None
                    else:
                        stack.append(source)
        return found

    def unstore(self) -> None:
        """Second look: do not store what every reader can compute from what it reads anyway."""
        reads = {g: set(self.below(g.outputs)) for g in self.groups if g.into is None and g.outputs}
        readers: dict[Node, list[Group]] = {}
        for group, found in reads.items():
            for node in found:
                readers.setdefault(node, []).append(group)
        kept = self.forced | self.operands
        for node in self.order:
            if node not in self.stored or not is_map(node) or node in kept:
                continue
            large: set[Node] = set()
            mine = readers.get(node, [])
            if not self.cheap(node, elements(node.shape), large, {}):
                continue
            if len(large) >= 2 and not all(large <= reads[g] for g in mine):
                continue
            del self.stored.pop(node).outputs[node]
            self.settle(node)
            for group in mine:
                for other in large:
                    readers.setdefault(other, []).append(group)
                reads[group] |= large

    def drop_unread(self) -> None:
        """Last: do not store what was made readable and then not read."""
        wanted = set(self.outputs.values())
        for group in reversed(self.kernels()):
            for node in [n for n in group.outputs if n not in wanted]:
                del self.stored[node], group.outputs[node]
            wanted.update(self.below(group.outputs))

    def settle(self, node: Node) -> None:
        """Below a value that is computed again, store the small reductions it needs."""
        for source in node.src:
            base = self.base.get(source, source)
            if base in self.stored or base.op in _LEAVES:
                continue
            same_size = elements(base.shape) == elements(node.shape)
            if is_map(base) and (self.group(base) is None or same_size):
                self.settle(base)
            elif self.group(base) is not None:
                self.store(base)

    # --- each family -----------------------------------------------------------------------------

    def virtual(self, node: Node) -> None:
        """Computed by whoever reads it, unless that is dear and happens twice."""
        self.outside[node] = max([self.read(s) for s in node.src], default=0)
        cost = self.cost[node] = node.op.cost + sum(self.cost_of(s) for s in node.src)
        dear = cost > DEAR and self.uses[node] > 1
        if node in self.forced or dear or cost > MOST:
            reason = "dear and read more than once" if dear else "as much as one kernel may hold"
            if node in self.forced:
                reason = "a result"
            self.home[node] = self.open("map", node, self.outside.pop(node), reason)

    def move(self, node: Node) -> None:
        source = node.src[0]
        base = self.base[node] = self.base.get(source, source)
        group = self.group(source)
        if group is not None and group.kind != "scatter" and self.fits(group, node):
            stays = (
                node.op is RESHAPE
                or (node.op is EXPAND and group.kind == "reduce")
                or (node.op is PERMUTE and (group.kind == "contract" or node in self.forced))
                or (node.op is FLIP and node in self.forced)
            )
            if stays:
                self.home[node] = group
        if base in self.cost:
            self.cost[node] = self.cost[base]

    def fits(self, group: Group, node: Node) -> bool:
        size = elements(node.shape)
        if size == group.size:
            return True
        rows = elements(tuple([group.full[a] for a in group.axes]))
        return group.kind == "reduce" and size * rows == group.size

    def join(self, node: Node, accept: Callable[[Group], bool]) -> Group | None:
        """Place a node in the kernel of one of its sources, merging those that agree."""
        target: Group | None = None
        for source in node.src:
            group = self.group(source)
            if group is None or not accept(group) or group.count >= MOST:
                continue
            target = group if target is None or target is group else self.merge(target, group)
        if target is None:
            return None
        others = [s for s in node.src if self.group(s) is not target]
        deps = max([self.read(s) for s in others], default=0)
        if target.number is not None and deps > target.number - 1:
            return None
        target.deps = max(target.deps, deps)
        target.count += 1
        self.home[node] = target
        return target

    def merge(self, a: Group, b: Group) -> Group:
        """The union of two kernels if that is legal, else the later one."""
        agree = a.full == b.full and (a.axes == b.axes or "map" in (a.kind, b.kind))
        mixable = {a.kind, b.kind} <= {"map", "reduce"} and a.count + b.count <= MOST
        if a.number is not None and b.number is not None:
            return b
        if b.number is not None:
            a, b = b, a  # now only a may be numbered
        if not (agree and mixable) or (a.number is not None and b.deps > a.number - 1):
            return b
        if a.kind == "map":
            a.kind, a.axes = b.kind, b.axes
        a.deps, a.count, b.into = max(a.deps, b.deps), a.count + b.count, a
        a.outputs.update(b.outputs)
        for node in b.outputs:
            self.stored[node] = a
        return a

    def elementwise(self, node: Node) -> None:
        kinds = ("map", "reduce", "contract")
        if self.join(node, lambda g: g.kind in kinds and self.fits(g, node)) is None:
            self.virtual(node)

    def reduce(self, node: Node) -> None:
        source = node.src[0]
        axes = node.arg[1] if node.op is REDUCE else (source.ndim - 1,)
        if self.is_contraction(node):
            for factor in source.src:
                base = self.base.get(factor, factor)
                self.read(base)
                if is_map(base) and (base in self.stored or self.cost_of(base) > 1):
                    self.store(base)
                    self.operands.add(base)
            deps = max(self.read(s) for s in source.src)
            reason = "a contraction has a kernel of its own"
            self.home[node] = self.open("contract", node, deps, reason, axes)
            return

        def same_rows(group: Group) -> bool:
            rows = group.axes in ((), axes)
            return group.kind in ("map", "reduce") and group.full == source.shape and rows

        joined = self.join(node, same_rows) if node.op is REDUCE else None
        if joined is not None:
            joined.kind, joined.axes = "reduce", axes
        else:
            self.open_reduce(node, source, axes)

    def open_reduce(self, node: Node, source: Node, axes: tuple[int, ...]) -> None:
        """A new row kernel, or an unread one that reduces the same data over the same axes."""
        deps = self.read(source)
        whole = elements(source.shape)
        large = [x for x in self.below([node]) if 4 * elements(x.shape) > whole]
        for x in large:
            other = self.sideways.get((x, source.shape, axes))
            while other is not None and other.into is not None:
                other = other.into
            if other is not None and other.number is None and other.count < MOST:
                self.home[node], other.deps = other, max(other.deps, deps)
                other.count += 1
                break
        else:
            reason = "its rows are not those of the kernel before" if deps else "a reduction"
            self.home[node] = self.open("reduce", node, deps, reason, axes)
        home = self.group(node)
        assert home is not None
        for x in large:
            self.sideways[x, source.shape, axes] = home

    # --- contractions ----------------------------------------------------------------------------

    def is_contraction(self, node: Node) -> bool:
        """Σ of a product of two values that miss different axes, over axes both have."""
        source = node.src[0]
        if node.op is not REDUCE or node.arg[0] != "add" or source.op is not MUL:
            return False
        a, b = (self.varies(s) for s in source.src)
        folded = frozenset(d for d in node.arg[1] if source.shape[d] != 1)
        return bool(a - b) and bool(b - a) and bool(folded) and folded <= a & b

    def varies(self, node: Node) -> frozenset[int]:
        """The dimensions along which a value may differ."""
        found = self.varying.get(node)
        if found is None:
            found = frozenset(d for d, n in enumerate(node.shape) if n != 1)
            if node.op is EXPAND:
                inner = node.src[0]
                found = frozenset(d for d in self.varies(inner) if inner.shape[d] != 1)
            elif node.op is CONST or node.op is VAR:
                found = frozenset()
            elif node.op is CAST:
                found = self.varies(node.src[0])
            elif is_map(node):
                found = frozenset().union(*[self.varies(s) for s in node.src])
            self.varying[node] = found
        return found


def _kind_alone(node: Node) -> str:
    if node.op in (REDUCE, UNWINDOW):
        return "reduce"
    known = is_map(node) or node.op in (GATHER, RANDOM)
    return "map" if known else _OWN_KIND.get(node.op, "host")


def schedule(sink: Node, inputs: int, fuse: bool = True) -> Schedule:
    """Kernels for every root of the sink, over slots of which the first `inputs` are params."""
    assert sink.op is SINK, "a schedule is of a SINK"
    order = toposort([sink])
    if any([0 in n.shape for n in order]):
        sink = without_empty(sink)
        order = toposort([sink])
    sizes = sizes_in(order)
    copies = [CONTIGUOUS(r) if r.op in _LEAVES or r in sizes else r for r in sink.src]
    if any([copy is not root for copy, root in zip(copies, sink.src, strict=True)]):
        sink = SINK(*copies)  # a result that is only a leaf is a copy of its own
        order = toposort([sink])
    order.pop()  # the sink
    slots: list[Slot | None] = [None] * inputs
    place: dict[Node, int] = {}
    greedy = _Greedy(sink, fuse, order, sizes)
    for node in greedy.order:
        if node.op is PARAM:
            place[node] = node.arg[0]
            slots[node.arg[0]] = _slot(node)
    position = {node: i for i, node in enumerate(greedy.order)}
    extractor, items = Extractor(slots), []
    for group in greedy.kernels():
        outputs = sorted(group.outputs, key=position.__getitem__)
        kernel, reads, origins = extractor.cut(group.kind, outputs, place)
        writes = []
        for node in outputs:
            writes.append(len(slots))
            slots.append(_slot(node))
        for node, slot in zip(outputs, writes, strict=True):
            place[node] = slot
        items.append(Item(kernel, reads, tuple(writes), origins, group.reason))
    outputs_ = tuple([place[greedy.outputs[root]] for root in sink.src])
    return Schedule(inputs, tuple(slots), tuple(items), outputs_)


def _slot(node: Node) -> Slot:
    return Slot(node.dtype, node.shape, node.device)


def without_empty(sink: Node) -> Node:
    """The graph with values of no elements, and what is made of nothing else, as constants."""
    known: dict[Node, Node] = {}
    for node in toposort([sink]):
        if node.op is SINK or node.op is CONST or node.op is PARAM:
            continue
        if not elements(node.shape):
            known[node] = constant(0, node.dtype, node.shape)
        elif node.op is REDUCE and not elements(node.src[0].shape):
            name = node.arg[0]
            start = 0 if name == "add" else identity_of(name, node.dtype)
            known[node] = constant(start, node.dtype, node.shape)
        elif node.op is SCATTER and not elements(node.src[1].shape):
            known[node] = node.src[0]
        elif node.op in (PAD, UNWINDOW) and not elements(node.src[0].shape):
            known[node] = constant(0, node.dtype, node.shape)
    return substitute(sink, known)
