"""ONLINE: folds over one axis that build on each other become one pass over its blocks.

In: an `IndexKernel` whose folds run over the same (or equally long) axes. Out: a `Streaming`: a
tuple of states in the order they are worked out, each with its repair (what becomes of the value
so far when the bases under it move), and the stores, computed from the states at the end; or None.
Whether a kernel streams is found by `Rebase` alone: no rule here knows what is computed. A product
of scaled and shifted factors is repaired by expanding it: S' = prod(rho) * sum over subsets of the
shifted ones of prod(delta) * S[the rest], with the sums that are missing tracked as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from math import inf
from weakref import WeakKeyDictionary

from ...core.dtype import float32, float64
from ...core.egraph import Report
from ...core.node import Node, Size, constant, make, toposort
from ...core.ops.elementwise import ADD, DIV, LOG, LOG2, MUL, WHERE
from ...core.ops.index import FOLD, INDEX, LOAD, ORDER, RUN, STORE, VALID
from ...core.ops.leaf import SINK
from ..affine import Affine, rename
from ..body import free_axes
from ..lower import IndexKernel
from .laws import improved
from .rebase import Factor, Rebase, placeholder, product_of
from .spelling import picked, settled, widened

_MOST_SHIFTED = 3  # shifted factors of one product: their subsets are expanded
_MOST_STATES = 12


@dataclass(frozen=True)
class State:
    """One running value."""

    fold: Node  # over the streamed axes; in repairs and later bodies it is the value so far
    old: Node  # stands for the value before a block
    repair: Node | None  # the value before, as if it had been built on the bases of now
    level: int  # how many folds it is built on, one above the other

    @property
    def op(self) -> str:
        """What blocks are combined by: add, max or min."""
        name: str = self.fold.arg[0]
        return name

    @property
    def body(self) -> Node:
        """What is folded."""
        return self.fold.src[0]


@dataclass(frozen=True)
class Streaming:
    """A kernel as one pass over blocks of an axis."""

    axes: tuple[int, ...]  # streamed
    sizes: tuple[int, ...]  # of all axes of the kernel
    states: tuple[State, ...]
    stores: tuple[Node, ...]
    free: dict[Node, frozenset[int]]
    fired: tuple[tuple[str, int], ...]  # rules that made it so
    nodes: int  # of the e-graph that was searched

    @property
    def inner(self) -> list[Node]:
        """The folds over other axes that are needed for every block."""
        seen = toposort([s.body for s in self.states])
        mine = {s.fold for s in self.states}
        return [
            n for n in seen
            if n.op is FOLD and n not in mine and self.free[n] & frozenset(self.axes)
        ]  # fmt: skip


# by body, then by sizes: a body alone does not say how long its axes are
_known: WeakKeyDictionary[Node, dict[tuple[Size, ...], Streaming | None]] = WeakKeyDictionary()


def stream(kernel: IndexKernel) -> Streaming | None:
    """The kernel as a streaming one, if it is one; kept for every body."""
    found = _known.setdefault(kernel.body, {})
    if kernel.axes not in found:
        found[kernel.axes] = _stream(kernel)
    return found[kernel.axes]


def _stream(kernel: IndexKernel) -> Streaming | None:
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    stores: Sequence[Node] = kernel.body.src
    order = toposort([kernel.body])
    if len(sizes) != len(kernel.axes) or not all(sizes):
        return None
    if any(n.op in (RUN, ORDER) for n in order) or not _plain_stores(stores):
        return None
    if not any(n.op is FOLD for n in order):
        return None
    stores, sizes = apart(settled(picked(widened(stores), sizes)), sizes)
    stores = together(stores, sizes)
    best: tuple[list[State], _Group, Report] | None = None
    for axes in _candidates(stores, sizes):
        # one name for one axis first: then equal values are one term, and stay so
        named = unified(stores, axes, sizes)
        if not _Group(named, axes, sizes).possible():
            continue  # laws pull things out of folds, they do not change what folds run over
        values, report = improved([s.src[0] for s in named], sizes)
        made = tuple(
            make(STORE, s.dtype, (value, *s.src[1:]), s.arg)
            for s, value in zip(named, values, strict=True)
        )
        group = _Group(made, axes, sizes)
        states = group.states()
        if states is not None and (best is None or len(states) > len(best[0])):
            best = states, group, report
    if best is None:
        return None
    states, group, report = best
    return Streaming(
        group.axes, tuple(sizes), tuple(states), group.stores,
        free_axes(toposort([*group.stores, *group.made, *group.folds])),
        tuple(sorted(report.fired.items())), report.nodes,
    )  # fmt: skip


def _plain_stores(stores: Sequence[Node]) -> bool:
    return all(s.op is STORE and s.arg[2] == "set" and len(s.src) == 1 for s in stores)


def _candidates(stores: Sequence[Node], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The axes of outermost folds, the longest first."""
    found: dict[tuple[int, ...], None] = {}
    seen: set[Node] = set()
    stack = list(stores)
    while stack:
        node = stack.pop()
        if node.op is FOLD:
            found[node.arg[1]] = None
            continue
        for source in node.src:
            if source not in seen:
                seen.add(source)
                stack.append(source)

    def length(axes: tuple[int, ...]) -> int:
        total = 1
        for axis in axes:
            total *= sizes[axis]
        return total

    return sorted(found, key=lambda axes: (-length(axes), axes))


# --- one name for one axis -----------------------------------------------------------------------


def together(stores: Sequence[Node], sizes: Sequence[int]) -> list[Node]:
    """The stores with axes of the first one where another has as many steps at the same place.

    Each store has its own loops, so its axes may have any names; with equal ones values are shared.
    """
    if len(stores) < 2:
        return list(stores)
    first = _in_order(stores[0])
    out = [stores[0]]
    for store in stores[1:]:
        mine = _in_order(store)
        if first is None or mine is None or set(mine) <= set(first):
            out.append(store)
            continue
        names = {
            a: b for a, b in zip(mine, first, strict=False)
            if a != b and sizes[a] == sizes[b] and b not in mine
        }  # fmt: skip
        try:
            value = renamed(store.src[0], names)
        except _CaptureError:
            out.append(store)
            continue
        number, index, mode, axes = store.arg
        index = _with_names(index, names)
        arg = (number, index, mode, tuple(sorted([names.get(a, a) for a in axes])))
        out.append(make(STORE, store.dtype, (value,), arg))
    return out


def _in_order(store: Node) -> list[int] | None:
    """The axes of a store, outermost first, if its index has nothing else."""
    terms = store.arg[1][1]
    if not all(isinstance(atom, int) for atom, _ in terms):
        return None
    return [atom for atom, _ in sorted(terms, key=lambda term: -term[1])]


def apart(stores: Sequence[Node], sizes: Sequence[int]) -> tuple[tuple[Node, ...], list[int]]:
    """The stores with axes of their own for folds, named by how many folds are inside them.

    Equal sizes may have given one axis to a result and to a fold below it, or to two folds of which
    one is inside the other.
    """
    sizes = list(sizes)
    named: dict[tuple[int, int, int], int] = {}
    done: dict[Node, Node] = {}
    height: dict[Node, int] = {}
    for node in toposort(stores):
        sources = tuple([done[s] for s in node.src])
        arg = node.arg
        height[node] = max([height[s] for s in node.src], default=0)
        if node.op is FOLD:
            height[node] += 1
            fresh = []
            for place, axis in enumerate(arg[1]):
                name = (height[node], sizes[axis], place)
                if name not in named:
                    named[name] = len(sizes)
                    sizes.append(sizes[axis])
                fresh.append(named[name])
            sources = (renamed(sources[0], dict(zip(arg[1], fresh, strict=True))),)
            arg = (arg[0], tuple(fresh))
        done[node] = make(node.op, node.dtype, sources, arg)
    return tuple([done[s] for s in stores]), sizes


class _CaptureError(Exception):
    """A renamed axis would be bound by another fold."""


def unified(
    stores: Sequence[Node], axes: tuple[int, ...], sizes: Sequence[int]
) -> tuple[Node, ...]:
    """The stores with every fold over axes of the same sizes running over `axes` itself."""
    lengths = [sizes[a] for a in axes]
    done: dict[Node, Node] = {}
    inside: dict[Node, tuple[Node, tuple[int, ...]]] = {}  # of a fold: its body and axes as named

    def sources(node: Node) -> tuple[Node, ...]:
        """What a node is made of; folds further out are named before those inside them."""
        if node.op is not FOLD:
            return node.src
        if node not in inside:
            body, own = node.src[0], node.arg[1]
            if own != axes and [sizes[a] for a in own] == lengths:
                free = free_axes(toposort([body]))[body]
                if not free & frozenset(axes):
                    with suppress(_CaptureError):
                        body, own = renamed(body, dict(zip(own, axes, strict=True))), axes
            inside[node] = body, own
        return (inside[node][0],)

    stack = list(stores)
    while stack:
        node = stack[-1]
        missing = [s for s in sources(node) if s not in done]
        if node in done or not missing:
            stack.pop()
            if node not in done:
                arg = (node.arg[0], inside[node][1]) if node.op is FOLD else node.arg
                found = tuple([done[s] for s in sources(node)])
                done[node] = make(node.op, node.dtype, found, arg)
        else:
            stack.extend(missing)
    return tuple([done[s] for s in stores])


def _with_names(index: Affine, names: dict[int, int]) -> Affine:
    return rename(index, lambda a: names.get(a, a) if isinstance(a, int) else a)


def renamed(root: Node, names: dict[int, int]) -> Node:
    """A value with other names for some of its free axes."""
    order = toposort([root])
    free = free_axes(order)
    moved = frozenset(names)

    def index(i: Affine) -> Affine:
        return _with_names(i, names)

    done: dict[Node, Node] = {}
    for node in order:
        if not free[node] & moved:
            done[node] = node
            continue
        arg = node.arg
        if node.op is FOLD and frozenset(arg[1]) & frozenset(names.values()):
            raise _CaptureError
        if node.op is LOAD:
            arg = (arg[0], index(arg[1]), tuple([(index(i), n) for i, n in arg[2]]))
        elif node.op is VALID:
            arg = tuple([(index(i), n) for i, n in arg])
        elif node.op is INDEX:
            arg = index(arg)
        done[node] = make(node.op, node.dtype, tuple([done[s] for s in node.src]), arg)
    return done[root]


# --- states --------------------------------------------------------------------------------------


class _Group:
    """All folds over the streamed axes."""

    def __init__(
        self, stores: tuple[Node, ...], axes: tuple[int, ...], sizes: Sequence[int]
    ) -> None:
        self.stores, self.axes, self.sizes = stores, axes, sizes
        self.streamed = frozenset(axes)
        self.order = [n for n in toposort(stores) if n.op is not SINK]
        self.free = free_axes(self.order)
        self.folds = [n for n in self.order if n.op is FOLD and n.arg[1] == axes]
        self.old = {fold: placeholder(fold, i) for i, fold in enumerate(self.folds)}
        self.made: list[Node] = []  # nodes that repairs are made of

    def states(self) -> list[State] | None:
        """The states in order, or None if this cannot be streamed."""
        if not self.folds or not self.possible():
            return None
        found: list[State] = []
        todo = list(self.folds)
        while todo:
            fold = todo.pop(0)
            state = self.state(fold, todo)
            if state is None or len(self.folds) > _MOST_STATES:
                return None
            found.append(state)
        found.sort(key=lambda s: s.level)  # stable: sources stay first
        return found

    def possible(self) -> bool:
        """Do folds only meet the streamed axes whole, and results have none of them left?"""
        for node in self.order:
            if node.op is not FOLD:
                continue
            if node.arg[1] != self.axes and frozenset(node.arg[1]) & self.streamed:
                return False
            if node.arg[1] != self.axes and self._needs_group(node):
                return False
            if node.arg[0] != "add" and self._is_inside(node):
                return False
        for fold in self.folds:
            real = fold.dtype in (float32, float64)
            if fold.arg[0] not in ("add", "max", "min") or not real:
                return False
        return not any(self.free[s] & self.streamed for s in self.stores)

    def _is_inside(self, node: Node) -> bool:
        """Is it an extreme over other axes, for each block anew? No product gives that."""
        return node.arg[1] != self.axes and bool(self.free[node] & self.streamed)

    def _needs_group(self, node: Node) -> bool:
        """Is it a fold over other axes, after the streamed ones, of what they gave?"""
        if self.free[node.src[0]] & self.streamed:
            return False  # it is worked out for each block
        return any(n in self.old for n in toposort([node]))

    def state(self, fold: Node, todo: list[Node]) -> State | None:
        rebase = Rebase(self.streamed, self.free, self.old)
        body = fold.src[0]
        if not rebase.moves(body):
            return State(fold, self.old[fold], None, 0)
        if fold.arg[0] != "add":  # an extreme of what moves: nothing is known of it
            return None
        level = 1 + max(self.level(b) for b in rebase.bases(body))
        repair = self.repair(fold, body, rebase, todo)
        if repair is None:
            return None
        self.made.append(repair)
        return State(fold, self.old[fold], repair, level)

    def level(self, fold: Node) -> int:
        rebase = Rebase(self.streamed, self.free, self.old)
        below = rebase.bases(fold.src[0])
        return 1 + max([self.level(b) for b in below]) if below else 0

    def repair(self, fold: Node, body: Node, rebase: Rebase, todo: list[Node]) -> Node | None:
        """What becomes of a sum so far when its bases move."""
        factors = _factors(body)
        fixed: list[Node] = []
        shifted: list[tuple[Node, Node]] = []  # a factor and its shift
        scale = Factor()
        for factor in factors:
            found = rebase.rho(factor)
            if found is not None:
                fixed.append(factor)
                scale = rebase._times(scale, found, MUL)
                continue
            shift = rebase.delta(factor)
            if shift is None or shift.value is None or not _settled(factor, rebase):
                return None
            shifted.append((factor, shift.value))
        measured = any(b.arg[0] != "add" for f, _ in shifted for b in rebase.bases(f))
        if len(shifted) > _MOST_SHIFTED:
            return None
        beyond: tuple[Node, ...] | None = ()  # when the sum so far is -inf: each summand was
        if measured and not scale.lost:  # something must end what an extreme at its identity did
            settled = any(b.arg[0] == "add" for b in rebase.bases(body))
            beyond = rebase.lost(body) if settled and len(factors) == 1 else None
        if beyond is None:
            return None
        value = self.old[fold]
        for count in range(1, len(shifted) + 1):
            for chosen in combinations(range(len(shifted)), count):
                rest = [f for i, (f, _) in enumerate(shifted) if i not in chosen]
                other = self.old_sum([*fixed, *rest], fold, todo)
                moved = product_of([shifted[i][1] for i in chosen])
                assert moved is not None
                value = make(ADD, fold.dtype, (value, make(MUL, fold.dtype, (moved, other))))
        if scale.value is not None:
            value = make(MUL, value.dtype, (value, scale.value))
        value = _unless(scale.lost, 0.0, value)
        return _unless(beyond, -inf, value)

    def old_sum(self, factors: list[Node], like: Node, todo: list[Node]) -> Node:
        """The sum so far of a product, tracked from now on if it was not."""
        body = product_of(factors)
        if body is None:
            body = constant(1, like.dtype)  # how many there were
        fold = make(FOLD, like.dtype, (body,), ("add", self.axes))
        if fold not in self.old:
            self.old[fold] = placeholder(fold, len(self.folds))
            self.folds.append(fold)
            self.free.update(free_axes(toposort([fold])))
            todo.append(fold)
        return self.old[fold]


def _unless(conditions: Sequence[Node], instead: float, value: Node) -> Node:
    """A value, or a number where one of some conditions holds."""
    for condition in conditions:
        value = make(WHERE, value.dtype, (condition, constant(instead, value.dtype), value))
    return value


def _factors(body: Node) -> list[Node]:
    """A product's factors; one that is divided by stays with what it divides."""
    return [f for s in body.src for f in _factors(s)] if body.op is MUL else [body]


def _settled(factor: Node, rebase: Rebase) -> bool:
    """Do the values that a factor is measured from stay near their end while blocks come in?

    An extreme does, a mean (a sum over one that is above 0) and a logarithm of one do; a plain sum
    grows from 0, and differences from it would lose what the end needs.
    """
    for base in rebase.bases(factor):
        if base.arg[0] == "add" and not _normalised(factor, base, rebase):
            return False
    return True


def _normalised(factor: Node, base: Node, rebase: Rebase) -> bool:
    """Is a sum used only inside logarithms and quotients of sums that no prefix leaves at 0?"""
    seen: set[Node] = set()
    stack = [factor]
    while stack:
        node = stack.pop()
        if node is base:
            return False
        if node in seen or node in rebase.old:
            continue
        seen.add(node)
        if node.op in (LOG, LOG2) and rebase.is_logarithm_safe(node):
            continue
        if node.op is DIV and rebase.is_fixed(node) and rebase.moves(node.src[0]):
            below = node.src[1]
            if below in rebase.old and rebase.is_positive(below):
                continue
        stack.extend(node.src)
    return True
