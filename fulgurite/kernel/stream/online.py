"""ONLINE: folds over one axis that build on each other become one pass over its blocks.

In: an `IndexKernel` whose folds run over the same (or equally long) axes. Out: a `Streaming`: a
tuple of states in the order they are worked out, each with its repair (what becomes of the value
so far when the bases under it move), and the stores, computed from the states at the end; or None.
Stores that fold over the rows of the others may be among them (kernel/stream/transposed.py).
Whether a kernel streams is found by `Rebase` alone: no rule here knows what is computed. A product
of scaled and shifted factors is repaired by expanding it: S' = prod(rho) * sum over subsets of the
shifted ones of prod(delta) * S[the rest], with the sums that are missing tracked as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, prod
from weakref import WeakKeyDictionary

from ...core.dtype import float32, float64
from ...core.node import Node, Size, constant, make, toposort
from ...core.ops.elementwise import ADD, DIV, LOG, LOG2, MUL, WHERE
from ...core.ops.index import FOLD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes
from .axis_names import apart, like_blocks, together, unified
from .bit_stable import is_asked_again, replaced, stand_ins
from .canonicalize import is_bounded, spelled
from .peel import ended
from .rebase import Factor, Rebase, placeholder, product_of
from .reject_early import may_stream
from .rules import saturate
from .transposed import crossed, folded, inside, moving, outermost, parted

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
    across: tuple[Node, ...] = ()  # stores of the streamed axes, which fold over the rows
    crossed: tuple[State, ...] = ()  # the sum of each
    waits: bool = False  # do the crossed sums need states at their end? Then rows are walked twice
    whole: tuple[Node, ...] = ()  # stores of every element of a block

    @property
    def inner(self) -> list[Node]:
        """The folds over other axes that are needed for every block."""
        seen = toposort([s.body for s in (*self.states, *self.crossed)])
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
    stores, sizes = ended(*apart(spelled(stores, sizes), sizes))
    whole = _matrices(stores, sizes)
    if whole:
        return _with_names([s for s in stores if s not in whole], sizes, whole)
    return _with_names(stores, sizes, ())


def _matrices(stores: Sequence[Node], sizes: Sequence[int]) -> list[Node]:
    """Stores of what others fold: larger than those, and with no fold inside another."""
    counts = {s: prod([sizes[a] for a in s.arg[3]]) for s in stores}
    deep = [s for s in stores if inside(s)]
    least = max([counts[s] for s in deep], default=0)
    return [s for s in stores if deep and s not in deep and outermost(s) and counts[s] > least]


def _with_names(
    stores: Sequence[Node], sizes: Sequence[int], whole: Sequence[Node]
) -> Streaming | None:
    """One pass for some stores, each axis with one name."""
    if len(stores) > 1:
        for pair in crossed(together(parted(stores, sizes), sizes), sizes):
            axes = folded(pair[0][0])
            found = None if axes is None else _over(axes, *pair, sizes, set(), whole)
            if found is not None:
                return found
    stores = together(stores, sizes)
    best: Streaming | None = None
    tried: set[tuple[int, ...]] = set()
    for axes in _candidates(stores, sizes):
        found = _over(axes, stores, (), sizes, tried, whole)
        if found is not None and (best is None or len(found.states) > len(best.states)):
            best = found
    return best


def _over(
    axes: tuple[int, ...], stores: Sequence[Node], across: Sequence[Node], sizes: Sequence[int],
    tried: set[tuple[int, ...]], whole: Sequence[Node] = (),
) -> Streaming | None:  # fmt: skip
    """One pass over some axes, for stores, those that cross them, and what both are made of."""
    # one name for one axis first: then equal values are one term, and stay so
    named = unified((*stores, *across), axes, sizes)
    elements = [like_blocks(store, named, axes, sizes) for store in whole]
    blocks = [store for store in elements if store is not None]
    if len(blocks) < len(whole):
        return None
    plain = _Group(named[: len(stores)], axes, sizes, named[len(stores) :])
    like = len(plain.folds), *[sizes[a] for a in axes]  # other names make no other pass
    if like in tried or len(plain.folds) > _MOST_STATES or not plain.possible():
        return None  # laws pull things out of folds, they do not change what folds run over
    tried.add(like)
    known = set(toposort(plain.stores))
    if any(n not in known and plain.free[n] for store in plain.across for n in inside(store)):
        return None  # folds that the others do not have for every block
    early = [fold for fold in plain.folds if not plain.is_late(fold)]
    if not may_stream(early, Rebase(plain.streamed, plain.free, plain.old)):
        return None
    named = (*named, *blocks)
    written = [s.src[0] for s in named]
    free = free_axes(toposort(named))
    if is_asked_again(written, axes, free):
        return None
    kept = stand_ins(written, axes, free)
    values, report = saturate(replaced(written, kept), sizes)
    values = replaced(values, {other: node for node, other in kept.items()})
    made = tuple(
        make(STORE, s.dtype, (value, *s.src[1:]), s.arg)
        for s, value in zip(named, values, strict=True)
    )
    count = len(stores) + len(across)
    others, blocks = made[len(stores) : count], list(made[count:])
    group = _Group(made[: len(stores)], axes, sizes, others)
    states = group.states()
    sums = [moving(store) for store in others]
    if states is None or any(len(s) != 1 or s[0].arg[0] != "add" for s in sums):
        return None
    if any(node in group.old for store in others for node in _above(store)):
        return None  # what all blocks of a row gave is no number of a streamed element
    known = set(toposort([s.body for s in states] + [sum_of[0].src[0] for sum_of in sums]))
    for node in toposort(blocks):
        if node in group.old or (node.op is FOLD and node not in known):
            return None  # blocks have what is worked out for their elements, and no state
    fresh = len(group.folds)
    return Streaming(
        axes, tuple(sizes), tuple(states), group.stores,
        free_axes(toposort([*made, *group.made, *group.folds])),
        tuple(sorted(report.fired.items())), report.nodes, others,
        tuple([State(s[0], placeholder(s[0], fresh + i), None, 0) for i, s in enumerate(sums)]),
        group.waited, tuple(blocks),
    )  # fmt: skip


def _above(store: Node) -> list[Node]:
    """What a store computes from its folds, and those."""
    folds = set(outermost(store))
    found, stack = [], [store]
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend([] if node in folds else node.src)
    return found


def _plain_stores(stores: Sequence[Node]) -> bool:
    return all(s.op is STORE and s.arg[2] == "set" and len(s.src) == 1 for s in stores)


def _candidates(stores: Sequence[Node], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The axes of outermost folds, the longest first."""
    found = dict.fromkeys([fold.arg[1] for store in stores for fold in outermost(store)])

    def length(axes: tuple[int, ...]) -> int:
        total = 1
        for axis in axes:
            total *= sizes[axis]
        return total

    return sorted(found, key=lambda axes: (-length(axes), axes))


# --- states --------------------------------------------------------------------------------------


class _Group:
    """All folds over the streamed axes."""

    def __init__(
        self, stores: tuple[Node, ...], axes: tuple[int, ...], sizes: Sequence[int],
        across: tuple[Node, ...] = (),
    ) -> None:  # fmt: skip
        self.stores, self.axes, self.sizes, self.across = stores, axes, sizes, across
        self.streamed = frozenset(axes)
        self.order = [n for n in toposort(stores) if n.op is not SINK]
        self.free = free_axes(toposort([*stores, *across]))
        self.folds = [n for n in self.order if n.op is FOLD and n.arg[1] == axes]
        wanted = set(toposort(across))
        self.waited = any(fold in wanted for fold in self.folds)
        below = set(toposort([fold.src[0] for fold in self.folds])) | wanted
        self.bases = [fold for fold in self.folds if fold in below]
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

    def is_late(self, fold: Node) -> bool:
        """Is it a sum with columns that nobody waits for, and that may wait for all others?"""
        rows = frozenset[int]().union(*[self.free[base] for base in self.bases])
        able = self.waited and fold.arg[0] == "add" and fold not in self.bases
        return able and not self.free[fold] <= rows

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
        if not rebase.moves(body) or self.is_late(fold):
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
        measured = any(
            b.arg[0] != "add" and not _is_finite(f, b)
            for f, _ in shifted for b in rebase.bases(f)
        )  # fmt: skip
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


def _is_finite(factor: Node, base: Node) -> bool:
    """Does a factor have an extreme only where that is finite, and a number elsewhere?"""
    stack, seen = [factor], set[Node]()
    while stack:
        node = stack.pop()
        if node is base:
            return False
        if node in seen or is_bounded(node, base):
            continue
        seen.add(node)
        stack.extend(node.src)
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
