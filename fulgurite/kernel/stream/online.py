"""Online reductions: folds over one axis that build on each other become one pass over blocks.

In: an `IndexKernel` whose folds run over the same (or equally long) axes. Out: a `Streaming`: a
tuple of states in the order they are computed, each with its repair (what becomes of the value
so far when the bases under it move), and the stores, computed from the states at the end; or None.
Stores that fold over the rows of the others may be among them (kernel/stream/transposed.py).
Whether a kernel streams is found by `Rebase` alone: no rule here knows what is computed. A product
of scaled and shifted factors is repaired by expanding it: S' = prod(scales) * sum over subsets of
the shifted ones of prod(shifts) * S[the rest], with the sums that are missing tracked as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf, prod

from ...core.context import Table, WeakMemo
from ...core.dtype import float32, float64
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, Size, backward_slice, constant, make, toposort
from ...core.ops.elementwise import ADD, DIV, LOG, LOG2, MUL, WHERE
from ...core.ops.index import FOLD, ORDER, RUN, STORE
from ...core.ops.leaf import SINK
from ...core.passes import UNWATCHED, Level, Pass, Watch, run_passes, show, verify_index
from ...core.rewriting.egraph import Report
from ...core.symbolic.sym import choosing
from ...graph.ir.bodies import replaced
from ...graph.ir.limits import LIMITS
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes
from ...graph.ir.sum_product import factors, product
from .axis_names import name_as_block, share_folded
from .bit_stable import bit_stable, compares_across_kernels
from .canonicalize import is_finite_part
from .passes import CANONICAL, NAMED_ALIKE, TRANSPOSED, Stores
from .rebase import Rebase, Rescale, placeholder
from .reject_early import may_stream
from .rules import saturate
from .transposed import (
    inner_folds,
    outermost_folds,
    summed_axes,
    transposed,
    varying_folds,
)


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
STREAMS: Table[WeakMemo[Node, dict[tuple[Size, ...], Streaming | None]]] = Table(WeakMemo)


def stream(kernel: IndexKernel, watch: Watch = UNWATCHED) -> Streaming | None:
    """The kernel as a streaming one, if it is one; memoized by body, unless observed."""
    if watch.observe is not None:
        return _stream(kernel, watch)
    found = STREAMS().get_or_make(kernel.body, dict)
    if kernel.axes not in found:
        with choosing(False):
            found[kernel.axes] = _stream(kernel, watch)
    return found[kernel.axes]


def _stream(kernel: IndexKernel, watch: Watch) -> Streaming | None:
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    stores: Sequence[Node] = kernel.body.src
    order = toposort([kernel.body])
    if len(sizes) != len(kernel.axes) or not all(sizes) or not _plain_stores(stores):
        return None
    if any(n.op in (RUN, ORDER) for n in order) or not any(n.op is FOLD for n in order):
        return None
    value = Stores(tuple(stores), tuple(sizes))
    value = run_passes(value, None, CANONICAL, watch)
    blocks = _block_stores(value.stores, value.sizes)
    rest = tuple([s for s in value.stores if s not in blocks])
    return _search(Stores(rest, value.sizes), blocks, watch)


def _plain_stores(stores: Sequence[Node]) -> bool:
    return all(s.op is STORE and s.arg[2] == "set" and len(s.src) == 1 for s in stores)


def _block_stores(stores: Sequence[Node], sizes: Sequence[int]) -> list[Node]:
    """Stores of what others fold: larger than those, and with no fold inside another."""
    counts = {s: prod([sizes[a] for a in s.arg[3]]) for s in stores}
    deep = [s for s in stores if inner_folds(s)]
    shallow = [s for s in stores if deep and s not in deep and outermost_folds(s)]
    with choosing():  # what they are is looked at later
        least = max([counts[s] for s in deep], default=0)
        return [s for s in shallow if counts[s] > least]


def _search(value: Stores, blocks: Sequence[Node], watch: Watch) -> Streaming | None:
    """One pass for some stores, with transposed ones if it can be; else the one of most states."""
    if len(value.stores) > 1:
        split = run_passes(value, None, TRANSPOSED, watch)
        for main, across in transposed(split.stores, split.sizes):
            axes = summed_axes(main[0])
            if axes is not None:
                candidate = Candidate(axes, split.sizes, main, across, blocks)
                found = _over(candidate, set(), watch)
                if found is not None:
                    return found
    value = run_passes(value, None, NAMED_ALIKE, watch)
    tried: set[tuple[int, ...]] = set()
    every = [
        _over(Candidate(axes, value.sizes, value.stores, (), blocks), tried, watch)
        for axes in _candidates(value.stores, value.sizes)
    ]
    return max([f for f in every if f is not None], key=lambda f: len(f.states), default=None)


def _candidates(stores: Sequence[Node], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The axes of outermost folds, the longest first."""
    found = dict.fromkeys([fold.arg[1] for store in stores for fold in outermost_folds(store)])
    with choosing():  # in which order they are tried
        return sorted(found, key=lambda axes: (-prod([sizes[a] for a in axes]), axes))


@dataclass(frozen=True)
class Candidate:
    """Stores that may be one pass over some axes."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    stores: tuple[Node, ...]
    across: tuple[Node, ...]  # transposed stores
    blocks: Sequence[Node]  # stores of every element of a block
    report: Report | None = None  # of the laws that were tried

    def of(self, stores: Sequence[Node]) -> Candidate:
        """The candidate with others in the place of all its stores."""
        main, both = len(self.stores), len(self.stores) + len(self.across)
        found = tuple(stores)
        return replace(self, stores=found[:main], across=found[main:both], blocks=found[both:])

    @property
    def every(self) -> tuple[Node, ...]:
        """All stores."""
        return (*self.stores, *self.across, *self.blocks)

    @property
    def group(self) -> _Group:
        """The folds over the streamed axes."""
        return _Group(self.stores, self.axes, self.sizes, self.across)

    def __str__(self) -> str:
        return f"over {list(self.axes)} of {list(self.sizes)}\n{show(SINK(*self.every))}"


def _over(candidate: Candidate, tried: set[tuple[int, ...]], watch: Watch) -> Streaming | None:
    """One pass over some axes, for stores, transposed ones, and what both are made of."""
    found = run_passes(candidate, tried, ONE_PASS, watch)
    return found if isinstance(found, Streaming) else None


def share_names(candidate: Candidate) -> Candidate | None:
    """The candidate with one name for one axis: then equal values are one term, and stay so."""
    axes, sizes = candidate.axes, candidate.sizes
    named = share_folded((*candidate.stores, *candidate.across), axes, sizes)
    places = [name_as_block(store, named, axes, sizes) for store in candidate.blocks]
    blocks = [store for store in places if store is not None]
    return candidate.of([*named, *blocks]) if len(blocks) == len(places) else None


def reject_early(candidate: Candidate, tried: set[tuple[int, ...]]) -> Candidate | None:
    """The candidate, if laws might make a pass: they do not change what folds run over."""
    plain = candidate.group
    like = len(plain.folds), *[plain.sizes[a] for a in plain.axes]  # other names, same pass
    if like in tried or len(plain.folds) > LIMITS.states or not plain.is_possible():
        return None
    tried.add(like)
    known = set(toposort(plain.stores))
    inner = [fold for store in plain.across for fold in inner_folds(store)]
    if any(fold not in known and plain.free[fold] for fold in inner):
        return None  # folds that the others do not have for every block
    early = [fold for fold in plain.folds if not plain.is_late(fold)]
    return candidate if may_stream(early, plain.rebase()) else None


def apply_laws(candidate: Candidate) -> Candidate | None:
    """The candidate with the cheapest values that laws find, bit-stable ones as they are."""
    stores, axes = candidate.every, candidate.axes
    written = [s.src[0] for s in stores]
    free = free_axes(toposort(stores))
    if compares_across_kernels(written, axes, free):
        return None
    kept = bit_stable(written, axes, free)
    values, report = saturate(replaced(written, kept), candidate.sizes)
    values = list(replaced(values, {other: node for node, other in kept.items()}))
    pairs = zip(stores, values, strict=True)
    made = [make(STORE, s.dtype, (value, *s.src[1:]), s.arg) for s, value in pairs]
    return replace(candidate.of(made), report=report)


def assemble(candidate: Candidate) -> Streaming | None:
    """States, transposed sums and stores, or None if they are no pass."""
    group, blocks, report = candidate.group, tuple(candidate.blocks), candidate.report
    assert report is not None, "laws were tried before"
    states = group.states()
    sums = [fold for store in group.across if (fold := _only_sum(store)) is not None]
    if states is None or len(sums) < len(group.across):
        return None
    known = set(toposort([*[s.body for s in states], *[fold.src[0] for fold in sums]]))
    # what all blocks of a row gave is no number of a streamed element, and blocks have what is
    # computed for their elements, no state
    above = [node for store in group.across for node in _above(store)]
    within = toposort(blocks)
    folds = {node for node in within if node.op is FOLD}
    if not group.old.keys().isdisjoint([*above, *within]) or not folds <= known:
        return None
    fresh = len(group.folds)
    every = [*group.stores, *group.across, *blocks, *group.made, *group.folds]
    return Streaming(
        group.axes, tuple(group.sizes), tuple(states), group.stores, free_axes(toposort(every)),
        tuple(sorted(report.fired.items())), report.nodes, group.across,
        tuple([State(fold, placeholder(fold, fresh + i), None, 0) for i, fold in enumerate(sums)]),
        group.waited, blocks,
    )  # fmt: skip


def _only_sum(store: Node) -> Node | None:
    """The sum that a store is over, if it has no other fold."""
    folds = varying_folds(store)
    return folds[0] if len(folds) == 1 and folds[0].arg[0] == "add" else None


def _verify(value: Candidate, name: str) -> None:
    verify_index(value.every, name)


CANDIDATE = Level("candidate", verify=_verify)
NAMED = Level("named candidate", verify=_verify)
PROMISING = Level("promising candidate", verify=_verify)
SATURATED = Level("saturated candidate", verify=_verify)
STREAMING = Level("streaming", lambda value: show(SINK(*value.stores)))

ONE_PASS: tuple[Pass, ...] = (  # the first that gives None ends it: a candidate is no pass then
    Pass("share_folded", lambda v, tried: share_names(v), CANDIDATE, NAMED),
    Pass("reject_early", lambda v, tried: reject_early(v, tried), NAMED, PROMISING),
    Pass("saturate", lambda v, tried: apply_laws(v), PROMISING, SATURATED),
    Pass("assemble", lambda v, tried: assemble(v), SATURATED, STREAMING),
)
PASSES = (*CANONICAL, *TRANSPOSED, *ONE_PASS)


def _above(store: Node) -> set[Node]:
    """What a store computes from its folds, and those."""
    return backward_slice([store], set(outermost_folds(store)).__contains__)


# --- states --------------------------------------------------------------------------------------


class _Group:
    """All folds over the streamed axes."""

    def __init__(
        self, stores: tuple[Node, ...], axes: tuple[int, ...], sizes: Sequence[int],
        across: tuple[Node, ...],
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

    def rebase(self) -> Rebase:
        """How values change when the folds that are known by now move."""
        return Rebase(self.streamed, self.free, self.old)

    def states(self) -> list[State] | None:
        """The states in order, or None if this cannot be streamed."""
        if not self.folds or not self.is_possible():
            return None
        found: list[State] = []
        todo = list(self.folds)
        while todo:
            state = self.state(todo.pop(0), todo)
            if state is None or len(self.folds) > LIMITS.states:
                return None
            found.append(state)
        found.sort(key=lambda s: s.level)  # stable: sources stay first
        return found

    def is_late(self, fold: Node) -> bool:
        """True if it is a sum with columns that nothing depends on, and may wait for all others."""
        rows = frozenset[int]().union(*[self.free[base] for base in self.bases])
        able = self.waited and fold.arg[0] == "add" and fold not in self.bases
        return able and not self.free[fold] <= rows

    def is_possible(self) -> bool:
        """True if folds meet the streamed axes whole, and results have none of them left."""
        others = [n for n in self.order if n.op is FOLD and n.arg[1] != self.axes]
        if any(self._is_in_the_way(fold) for fold in others):
            return False
        for fold in self.folds:
            real = fold.dtype in (float32, float64)
            if fold.arg[0] not in ("add", "max", "min") or not real:
                return False
        return not any(self.free[s] & self.streamed for s in self.stores)

    def _is_in_the_way(self, fold: Node) -> bool:
        """True if a fold over other axes has some of the streamed ones, or cannot be in a block.

        An extreme for each block anew is no product; nor may a sum be taken of what states are.
        """
        if frozenset(fold.arg[1]) & self.streamed:
            return True
        if fold.arg[0] != "add" and self.free[fold] & self.streamed:
            return True
        in_block = self.free[fold.src[0]] & self.streamed
        return not in_block and any(n in self.old for n in toposort([fold]))

    def state(self, fold: Node, todo: list[Node]) -> State | None:
        """A fold as a running value, or None."""
        rebase, body = self.rebase(), fold.src[0]
        if not rebase.moves(body) or self.is_late(fold):
            return State(fold, self.old[fold], None, 0)
        if fold.arg[0] != "add":  # an extreme of what moves: nothing is known of it
            return None
        repair = self.repair(fold, rebase, todo)
        if repair is None:
            return None
        self.made.append(repair)
        return State(fold, self.old[fold], repair, self.level(fold, rebase))

    def level(self, fold: Node, rebase: Rebase) -> int:
        """How many folds a fold is built on, one above the other."""
        below = rebase.bases(fold.src[0])
        return 1 + max([self.level(b, rebase) for b in below]) if below else 0

    def repair(self, fold: Node, rebase: Rebase, todo: list[Node]) -> Node | None:
        """What becomes of a sum so far when its bases move."""
        fixed: list[Node] = []
        shifted: list[tuple[Node, Node]] = []  # a factor and its shift
        scale = Rescale()
        parts = [f.value for f in factors(fold.src[0])]
        for factor in parts:
            found = rebase.rescale(factor)
            if found is not None:
                fixed.append(factor)
                scale = scale.times(found)
                continue
            shift = rebase.shift(factor)
            if shift is None or not _is_settled(factor, rebase):
                return None
            shifted.append((factor, shift))
        beyond = _beyond(fold.src[0], len(parts), [f for f, _ in shifted], scale, rebase)
        if beyond is None or len(shifted) > LIMITS.shifted_factors:
            return None
        value = self.expanded(fold, fixed, shifted, todo)
        if scale.value is not None:
            value = make(MUL, value.dtype, (value, scale.value))
        return _unless(beyond, -inf, _unless(scale.lost, 0.0, value))

    def expanded(
        self, fold: Node, fixed: list[Node], shifted: list[tuple[Node, Node]], todo: list[Node]
    ) -> Node:
        """The old sum of a product whose factors shift: Π (f + d) over all choices of f or d."""
        value = self.old[fold]
        for count in range(1, len(shifted) + 1):
            for chosen in combinations(range(len(shifted)), count):
                rest = [f for i, (f, _) in enumerate(shifted) if i not in chosen]
                other = self.old_sum([*fixed, *rest], fold, todo)
                moved = product([shifted[i][1] for i in chosen])
                assert moved is not None
                value = make(ADD, fold.dtype, (value, make(MUL, fold.dtype, (moved, other))))
        return value

    def old_sum(self, parts: list[Node], like: Node, todo: list[Node]) -> Node:
        """The sum so far of a product, tracked from now on if it was not."""
        body = product(parts)
        if body is None:
            body = constant(1, like.dtype)  # how many there were
        fold = make(FOLD, like.dtype, (body,), ("add", self.axes))
        if fold not in self.old:
            self.old[fold] = placeholder(fold, len(self.folds))
            self.folds.append(fold)
            self.free.update(free_axes(toposort([fold])))
            todo.append(fold)
        return self.old[fold]


def _beyond(
    body: Node, count: int, shifted: list[Node], scale: Rescale, rebase: Rebase
) -> tuple[Node, ...] | None:
    """When a sum so far is -inf, as each of its `count` factors was; None if nothing tells.

    Something must end what an extreme at its identity did: a scale that is lost, or this.
    """
    extremes = [(f, b) for f in shifted for b in rebase.bases(f) if b.arg[0] != "add"]
    if scale.lost or all(_is_guarded(f, b) for f, b in extremes):
        return ()
    summed = any(b.arg[0] == "add" for b in rebase.bases(body))
    return rebase.lost(body) if summed and count == 1 else None


def _unless(conditions: Sequence[Node], instead: float, value: Node) -> Node:
    """A value, or a number where one of some conditions holds."""
    for condition in conditions:
        value = make(WHERE, value.dtype, (condition, constant(instead, value.dtype), value))
    return value


def _is_settled(factor: Node, rebase: Rebase) -> bool:
    """True if the values that a factor is measured from stay near their end while blocks come in.

    An extreme does, a mean (a sum over one that is above 0) and a logarithm of one do; a plain sum
    grows from 0, and differences from it would lose what the end needs.
    """

    def is_normalised(node: Node) -> bool:
        """A logarithm, or a quotient, of sums that no prefix leaves at 0."""
        if node.op in (LOG, LOG2):
            return rebase.is_logarithm_safe(node)
        if node.op is not DIV or not rebase.is_fixed(node) or not rebase.moves(node.src[0]):
            return False
        return node.src[1] in rebase.old and rebase.is_positive(node.src[1])

    def ends(node: Node) -> bool:
        return node in rebase.old or is_normalised(node)

    return not any(
        _reaches(factor, base, ends) for base in rebase.bases(factor) if base.arg[0] == "add"
    )


def _is_guarded(factor: Node, base: Node) -> bool:
    """True if a factor has an extreme only where that is finite, and a number elsewhere."""
    return not _reaches(factor, base, lambda node: is_finite_part(node, base))


def _reaches(root: Node, base: Node, ends: Callable[[Node], bool]) -> bool:
    """True if a base is under a root, and not only under nodes that end the search."""
    return base in backward_slice([root], ends)
