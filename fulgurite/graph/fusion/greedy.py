"""Greedy fusion: a normalised graph becomes few kernels, in the order they run.

In: a SINK over PARAMs. Out: a `Partition`. One greedy pass in topological order gives every node a
home kernel or leaves it virtual, computed again by each kernel that reads it. A kernel gets its
NUMBER when something outside first reads it, and a node joins a numbered kernel only if all that
it reads has a smaller number: so no cycle can arise and none is looked for. Storing or computing
again is a matter of cost; a second look drops stores that turned out not to pay. Movement ops are
never stored; `lower` turns them into index arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from functools import cache

from ...core.node import Node, Shape
from ...core.op import Op
from ...core.ops.effect import AFTER, ASSIGN, CALL, CONTIGUOUS, REMAT
from ...core.ops.elementwise import CAST, MUL
from ...core.ops.indexing import GATHER, SCATTER, SORT, is_sorted
from ...core.ops.leaf import CONST, IOTA, PARAM, SINK, VAR, VIEW
from ...core.ops.movement import EXPAND, FLIP, PERMUTE, RESHAPE, UNWINDOW
from ...core.ops.random import RANDOM
from ...core.ops.reduce import REDUCE, SCAN
from ...core.ops.update import UPDATE
from ..ir.kernel import Cut, Extractor, Memory
from ..ir.queries import elements, sums_fours
from .budget import BUDGET
from .build_schedule import Partition
from .group import Group, final
from .single_writer import Launch, Law, questions

_JOINED = ("map", "reduce", "contract")  # kernels that elementwise ops may join
_OWN = ("scatter", "assign", "loop", "cond", "user")  # kernels that nothing joins
_ROLES: dict[Op, str] = {  # of ops whose family does not say it
    PARAM: "leaf", CONST: "leaf", VAR: "leaf", IOTA: "leaf", VIEW: "move", CONTIGUOUS: "map",
    AFTER: "map", REDUCE: "reduce", UNWINDOW: "reduce", GATHER: "virtual", RANDOM: "virtual",
    UPDATE: "virtual", REMAT: "virtual", SCAN: "scan", SORT: "sort", SCATTER: "scatter",
    ASSIGN: "assign", CALL: CALL.name,
}  # fmt: skip
_FAMILY_ROLES = {"movement": "move", "elementwise": "map"}


@cache
def role(op: Op) -> str:
    """What the pass does with an op: leaf, move, map, reduce, virtual or a kind of its own."""
    if op in _ROLES:
        return _ROLES[op]
    return op.name if op.family == "control" else _FAMILY_ROLES.get(op.family, "host")


def is_map(node: Node) -> bool:
    """Does it compute each element from elements at the same place?"""
    return role(node.op) == "map"


def sizes_in(order: Iterable[Node]) -> set[Node]:
    """Numbers made of variables alone: they may be sizes, which no kernel can read from memory."""
    found: set[Node] = set()
    for node in order:
        op = node.op
        made = op.family == "elementwise" and node.dtype.kind in "iu" and node.shape == ()
        if op is VAR or (made and all([s in found or s.op is CONST for s in node.src])):
            found.add(node)
    return found


def _permutation(node: Node) -> tuple[object, ...]:
    """How a movement op changes the order of what it moves."""
    return ((node.src[0].shape, node.arg),) if node.op is PERMUTE else ()


class _Greedy:
    """The pass. `outside[n]` is the largest kernel number that reading n from outside needs."""

    def __init__(
        self, sink: Node, fuse: bool, order: list[Node], sizes: set[Node],
        once: Set[Node] = frozenset(),
    ) -> None:  # fmt: skip
        self.order, self.fuse, self.sizes = order, fuse, sizes
        self.uses = Counter([s for n in (*order, sink) for s in n.src])
        self.sorted: dict[Node, Node] = {}  # a sort that only its own values read, and those
        if fuse:
            values = [n for n in order if is_sorted(n) and self.uses[n.src[1]] == 1]
            self.sorted = {n.src[1]: n for n in values}
        self.home: dict[Node, Group] = {}
        self.base: dict[Node, Node] = {}  # of a movement op: what it moves
        self.permutations: dict[Node, tuple[object, ...]] = {}  # permutations on the way to a value
        self.outside: dict[Node, int] = {}
        self.cost: dict[Node, int] = {}
        self.stored: dict[Node, Group] = {}
        self.groups: list[Group] = []
        self.operands: set[Node] = set()  # of contractions: read many times, so kept in memory
        self.families: dict[Hashable, Group] = {}  # of nodes that are results of one computation
        self.sideways: dict[tuple[Node, Shape, tuple[int, ...]], Group] = {}
        self.varying: dict[Node, frozenset[int]] = {}
        self.last = 0
        self.outputs = self._claim(sink.src)
        self.forced = {n for n in self.order if n.op is CONTIGUOUS} | set(self.outputs.values())
        for node in self.order:
            self.place(node)
            if node in once:  # it ends its kernel: all others read it
                self.store(node)
                self.stored[node].count = BUDGET.kernel_nodes
        for root in self.outputs.values():
            self.store(root)
        if fuse:
            self.unstore()
        for group in self.kernels():
            self.give_number(group)

    def cut(self) -> list[tuple[Group, list[Node], Cut]]:
        """Every kernel that stores something, in the order they run, with what it stores."""
        position = {node: i for i, node in enumerate(self.order)}
        kernels = sorted(self.kernels(), key=lambda g: g.number or 0)
        readable = {n for n in self.order if n.op is PARAM}.union(self.stored)
        wanted: set[Memory] = set(self.outputs.values())
        extractor, found = Extractor(), []
        for group in reversed(kernels):  # so that what nobody reads is known: it is not stored
            readable.difference_update(group.outputs)
            outputs = sorted([n for n in group.outputs if n in wanted], key=position.__getitem__)
            if outputs:
                cut = extractor.cut(group.kind, outputs, readable)
                wanted.update(cut[1])
                found.append((group, outputs, cut))
        return found[::-1]

    def kernels(self) -> list[Group]:
        """The groups that store something."""
        return [g for g in self.groups if g.into is None and g.outputs]

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
            plain = role(base.op) not in ("leaf", "move") and not taken
            targets[root] = base if plain else root
            claimed.add(targets[root])
        return targets

    # --- placing nodes ---------------------------------------------------------------------------

    def place(self, node: Node) -> None:
        kind = role(node.op)
        if kind == "leaf" or node in self.sizes:
            self.outside[node], self.cost[node] = 0, 0
            return
        step = _STEPS.get(kind) or (_FUSING_STEPS.get(kind) if self.fuse else None)
        if step is not None:
            step(self, node)
        else:
            self.alone(node, kind)

    def alone(self, node: Node, kind: str) -> None:
        """A kernel of one op."""
        if kind == "host":  # Python gets values, not expressions to work out
            given = [self.base.get(s, s) for s in node.src]
            self.operands.update(given)
            for source in given:
                if source not in self.sizes:
                    self.store(source)
        deps = max([self.read(s) for s in node.src], default=0)
        kind = "map" if kind == "virtual" else kind
        reason = f"{node.op} is a kernel of its own" if self.fuse else "fusion is off"
        self.home[node] = self.open(kind, node, deps, reason)
        self.store(node)

    def open(
        self, kind: str, node: Node, deps: int, reason: str, axes: tuple[int, ...] = ()
    ) -> Group:
        full = node.src[0].shape if axes and kind == "reduce" else node.shape
        group = Group(kind, full, axes, deps, reason)
        self.groups.append(group)
        return group

    def group(self, node: Node) -> Group | None:
        found = self.home.get(node)
        return found if found is None or found.into is None else final(found)

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
        if role(node.op) == "leaf":
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
        virtual = is_map(source) and source not in self.forced
        large = self.cheap(source) if virtual else None
        if (large is None or self.is_costlier(large, source)) and not self.is_widened(source):
            return self.store(source)
        return self.recompute(source)

    def is_costlier(self, large: set[Node], node: Node) -> bool:
        """True if reading several values again moves no fewer bytes than to write and read one."""
        again = sum([elements(x.shape) * x.dtype.itemsize for x in large])
        return len(large) > 1 and again >= 2 * elements(node.shape) * node.dtype.itemsize

    def is_widened(self, node: Node) -> bool:
        """True of a small float that was widened: what is stored is the small one."""
        small = node.op is CAST and node.src[0].dtype.is_small_float
        return small and node.dtype.kind == "f" and node not in self.forced

    def recompute(self, node: Node) -> int:
        """Leave a node to be computed by whoever reads it; the number that this needs."""
        number, cost = 0, node.op.cost
        for source in node.src:
            number = max(number, self.read(source))
        for source in node.src[:1] if node.op is REMAT else node.src:  # it only waits for the other
            cost += self.cost_of(source)
        self.outside[node], self.cost[node] = number, cost
        return number

    def cost_of(self, node: Node) -> int:
        return self.cost.get(self.base.get(node, node), 0)

    def cheap(self, node: Node) -> set[Node] | None:
        """The large values in memory that it is cheaply computed from again; None if it is not."""
        size, cost = elements(node.shape), 0
        large: set[Node] = set()
        seen, stack = {node}, [node]
        while stack:
            node = stack.pop()
            cost += node.op.cost
            if cost > BUDGET.recompute_cost:
                return None
            for source in node.src[:1] if node.op is REMAT else node.src:
                source = self.base.get(source, source)
                if source in seen:
                    continue
                seen.add(source)
                small = elements(source.shape) * 4 <= size
                if small or self.is_kept(source):
                    if not small and source.op is not CONST and source.op is not VAR:
                        large.add(source)
                elif is_map(source) or source.op is REMAT:
                    stack.append(source)
                else:
                    return None
        return large

    def is_kept(self, node: Node) -> bool:
        """True if a value is in memory anyway."""
        return node in self.stored or node in self.forced or role(node.op) == "leaf"

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
        reads = {group: set(self.below(group.outputs)) for group in self.kernels()}
        readers: dict[Node, list[Group]] = {}
        for group, found in reads.items():
            for node in found:
                readers.setdefault(node, []).append(group)
        pinned = self.forced | self.operands
        for node in self.order:
            if node not in self.stored or not is_map(node) or node in pinned:
                continue
            large, mine = self.cheap(node), readers.get(node, [])
            if large is None or (len(large) >= 2 and not all(large <= reads[g] for g in mine)):
                continue
            del self.stored.pop(node).outputs[node]
            self.settle(node)
            for group in mine:
                for other in large:
                    readers.setdefault(other, []).append(group)
                reads[group] |= large

    def settle(self, node: Node) -> None:
        """Below a value that is computed again, store the small reductions it needs."""
        for source in node.src:
            base = self.base.get(source, source)
            if base in self.stored or role(base.op) == "leaf":
                continue
            same_size = elements(base.shape) == elements(node.shape)
            if is_map(base) and (self.group(base) is None or same_size):
                self.settle(base)
            elif self.group(base) is not None:
                self.store(base)

    # --- each family -----------------------------------------------------------------------------

    def virtual(self, node: Node) -> None:
        """Computed by whoever reads it, unless that is costly and happens twice."""
        if node.op is GATHER and self.sorted.get(node.src[1]) is node:
            return self.alone(node, "sort")
        if node.op is GATHER and self.joins_indices(node):
            return
        self.recompute(node)
        cost = self.cost[node]
        costly = cost > BUDGET.shared_recompute_cost and self.uses[node] > 1
        if node in self.forced or costly or cost > BUDGET.kernel_nodes:
            reason = "costly and read more than once" if costly else "as much as a kernel may hold"
            if node in self.forced:
                reason = "a result"
            self.home[node] = self.open("map", node, self.outside.pop(node), reason)

    def joins_indices(self, node: Node) -> bool:
        """Place a gather in the map that computes its indices, if it is of as many numbers.

        Else these would be stored to be read: a walk through tables is one kernel.
        """
        table, place = node.src[0], self.group(node.src[1])
        if place is None or place.kind != "map" or place.number is not None:
            return False
        if elements(node.shape) not in place.sizes:
            return False
        mine = [self.group(s) for s in (table, self.base.get(table, table))]
        return place not in mine and self.join(node, [place]) is not None

    def sort(self, node: Node) -> None:
        """A kernel of its own, which leaves out the places if only its own values need them."""
        if node in self.sorted:
            self.recompute(node)
        else:
            self.alone(node, "sort")

    def move(self, node: Node) -> None:
        source = node.src[0]
        base = self.base[node] = self.base.get(source, source)
        group = self.group(source)
        if group is not None and self.stays(node, group):
            self.home[node] = group
            self.permutations[node] = (*self.permutations.get(source, ()), *_permutation(node))
        if base in self.cost:
            self.cost[node] = self.cost[base]

    def stays(self, node: Node, group: Group) -> bool:
        """True if a value that is moved is still one of its kernel, which others may join."""
        if elements(node.shape) not in group.sizes or group.kind in _OWN:
            return False
        if node.op is RESHAPE:
            return True
        if group.count >= BUDGET.kernel_nodes:
            return False  # it ended: what it computed is read by all who move it
        if node.op is EXPAND:
            return group.kind == "reduce" and group.spreads(node)
        if node.op is PERMUTE:
            return group.kind == "contract" or node in self.forced
        return node.op is FLIP and node in self.forced and group.kind in _JOINED

    def join(self, node: Node, groups: list[Group]) -> Group | None:
        """Place a node in the kernel of one of its sources, merging those that agree."""
        target: Group | None = None
        for group in groups:
            group = group if group.into is None else final(group)
            if group is not target and group.count < BUDGET.kernel_nodes:
                target = group if target is None else self.merge(target, group)
        if target is None:
            return None
        deps, permutations = 0, set()
        for source in node.src:
            if self.home.get(source) is not target and self.group(source) is not target:
                number = self.read(source)
                deps = number if number > deps else deps
            else:
                permutations.add(self.permutations.get(source, ()))
        if target.kind == "contract":
            if len(permutations) > 1:
                return None  # a product and its transpose: no tile has both
            self.permutations[node] = permutations.pop()
        if target.number is not None and deps > target.number - 1:
            return None
        target.deps = max(target.deps, deps)
        target.count += 1
        self.home[node] = target
        return target

    def merge(self, a: Group, b: Group) -> Group:
        """The union of two kernels if that is legal, else the later one."""
        agree = a.full == b.full and (a.axes == b.axes or "map" in (a.kind, b.kind))
        mixable = a.mixes(b) and a.count + b.count <= BUDGET.kernel_nodes
        if a.number is not None and b.number is not None:
            return b
        if b.number is not None:
            a, b = b, a  # now only a may be numbered
        if not (agree and mixable) or (a.number is not None and b.deps > a.number - 1):
            return b
        if a.kind == "map":
            a.become(b.kind, b.axes)
        a.is_product = a.is_product or b.is_product
        a.deps, a.count, b.into = max(a.deps, b.deps), a.count + b.count, a
        a.outputs.update(b.outputs)
        for node in b.outputs:
            self.stored[node] = a
        return a

    def elementwise(self, node: Node) -> None:
        size = elements(node.shape)
        fitting = []
        for source in node.src:
            group = self.home.get(source)
            if group is not None:
                group = group if group.into is None else final(group)
                if size in group.sizes and group.kind in _JOINED:
                    fitting.append(group)
        if not fitting or self.join(node, fitting) is None:
            self.virtual(node)

    def reduce(self, node: Node) -> None:
        source = node.src[0]
        axes = node.arg[1] if node.op is REDUCE else (source.ndim - 1,)
        if self.is_gemm(node):
            for factor in source.src:
                base = self.narrow(self.base.get(factor, factor))
                self.read(base)
                if is_map(base) and (base in self.stored or self.cost_of(base) > 1):
                    self.store(base)
                    self.operands.add(base)
            deps = max(self.read(s) for s in source.src)
            reason = "a contraction has a kernel of its own"
            self.home[node] = self.open("contract", node, deps, reason, axes)
            return
        group, joined = self.group(source), None
        if node.op is REDUCE and group is not None and group.has_rows(source.shape, axes):
            joined = self.join(node, [group])
        if joined is not None:
            joined.become("reduce", axes)
        else:
            self.open_reduce(node, source, axes)

    def narrow(self, factor: Node) -> Node:
        """A factor in the dtype it is kept in: small floats are widened where they are read."""
        below = factor.src[0] if factor.op is CAST else factor
        kept = self.base.get(below, below)
        small = below.dtype.is_small_float and not factor.dtype.is_small_float
        return kept if small and is_map(kept) else factor

    def open_reduce(self, node: Node, source: Node, axes: tuple[int, ...]) -> None:
        """A new row kernel, or an unread one that reduces the same data over the same axes."""
        deps = self.read(source)
        whole = elements(source.shape)
        large = [x for x in self.below([node]) if 4 * elements(x.shape) > whole]
        for x in large:
            other = self.sideways.get((x, source.shape, axes))
            if (
                other is not None
                and (other := final(other)).number is None
                and other.count < BUDGET.kernel_nodes
            ):
                self.home[node], other.deps = other, max(other.deps, deps)
                other.count += 1
                break
        else:
            reason = "its rows are not those of the kernel before" if deps else "a reduction"
            self.home[node] = self.open("reduce", node, deps, reason, axes)
            self.home[node].is_product = node.op is REDUCE and sums_fours(node)
        home = self.group(node)
        assert home is not None
        for x in large:
            self.sideways[x, source.shape, axes] = home

    def control(self, node: Node) -> None:
        """A loop, a choice or a call, over values in memory; all its results are one kernel."""
        assert node.op.siblings is not None
        family = (node.op, node.op.siblings(node))
        if family not in self.families:
            for source in node.src:
                base = self.base.get(source, source)
                self.read(base)
                if base not in self.sizes and role(base.op) != "leaf":
                    self.store(base)
                    self.operands.add(base)
            deps = max([self.read(s) for s in node.src], default=0)
            reason = f"{node.op} is a kernel of its own"
            kind = node.arg[1].kind if node.op is CALL else node.op.name
            self.families[family] = self.open(kind, node, deps, reason)
        self.home[node] = self.families[family]
        self.store(node)

    # --- contractions ----------------------------------------------------------------------------

    def is_gemm(self, node: Node) -> bool:
        """True if it sums a product of two values that miss different axes, over axes both have."""
        source = node.src[0]
        if node.op is not REDUCE or node.arg[0] != "add" or source.op is not MUL:
            return False
        a, b = (self.varies(s) for s in source.src)
        folded = frozenset(d for d in node.arg[1] if source.shape[d] != 1)
        return bool(a - b) and bool(b - a) and bool(folded) and folded <= a & b

    def varies(self, node: Node) -> frozenset[int]:
        """The dimensions along which a value may differ."""
        varying, stack = self.varying, [node]
        while stack:
            top = stack.pop()
            if top in varying:
                continue
            through = top.src if is_map(top) else ()
            if top.op is EXPAND or top.op is CAST:
                through = top.src[:1]
            missing = [s for s in through if s not in varying]
            if missing:
                stack += [top, *missing]
            elif through:
                varying[top] = frozenset[int]().union(*[varying[s] for s in through])
            elif top.op is CONST or top.op is VAR:
                varying[top] = frozenset()
            else:
                varying[top] = frozenset([d for d, n in enumerate(top.shape) if n != 1])
        return varying[node]


_STEPS: dict[str, Callable[[_Greedy, Node], None]] = {
    "move": _Greedy.move, "loop": _Greedy.control, "cond": _Greedy.control, "call": _Greedy.control,
}  # fmt: skip
_FUSING_STEPS: dict[str, Callable[[_Greedy, Node], None]] = {
    "map": _Greedy.elementwise, "reduce": _Greedy.reduce, "virtual": _Greedy.virtual,
    "sort": _Greedy.sort,
}  # fmt: skip


def copy_leaf_roots(sink: Node, order: Sequence[Node]) -> Node:
    """The graph in which a result that is only a leaf is a copy of its own."""
    sizes = sizes_in(order)
    copies = [CONTIGUOUS(r) if role(r.op) == "leaf" or r in sizes else r for r in sink.src]
    changed = any([copy is not root for copy, root in zip(copies, sink.src, strict=True)])
    return SINK(*copies) if changed else sink


def fuse(sink: Node, order: Sequence[Node], fused: bool = True) -> Partition:
    """The graph cut into kernels greedily; with `fused` off every op is a kernel of its own."""
    assert sink.op is SINK, "a schedule is of a SINK"
    order = list(order[:-1])  # without the sink
    greedy = _lawful(sink, fused, order, sizes_in(order))
    segments = [(group.reason, outputs, cut) for group, outputs, cut in greedy.cut()]
    params = [node for node in order if node.op is PARAM]
    return Partition(sink, tuple(params), tuple(segments), greedy.outputs)


def _lawful(sink: Node, fuse: bool, order: list[Node], sizes: set[Node]) -> _Greedy:
    """The greedy kernels; what is compared with its own kin is computed once (`single_writer`)."""
    greedy = _Greedy(sink, fuse, order, sizes)
    asked = questions(order)
    once: set[Node] = set()
    while asked:
        parts = [
            Launch(group.kind, outputs, _nodes(cut[1])) for group, outputs, cut in greedy.cut()
        ]
        found = {conflict.value for conflict in Law(asked).conflicts(parts)} - once
        if not found:
            break
        once |= found
        greedy = _Greedy(sink, fuse, order, sizes, once)
    return greedy


def _nodes(memory: Iterable[Memory]) -> set[Node]:
    """The values among what a kernel reads."""
    return {m for m in memory if isinstance(m, Node)}
