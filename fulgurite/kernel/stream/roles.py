"""Axis roles of an online reduction: M (queries), N (keys and values, streamed), D (head).

In: a `Streaming` (kernel/stream/online.py). Out: a `StreamProblem`, or None where an axis has no
single role. As in FlashAttention there are score products S = QK^T (sums over other axes that every
block of N needs), row states (one number a row of M: a running max, a log-sum-exp), weighted sums
(rows of D columns: weights of M x N times values of N x D) and transposed sums over M (dK, dV).
This is legality alone: no size and no machine has a say. Tiles are chosen by the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import prod

from ...core.dtype import DType, decode
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, constant, forward_slice, make, toposort
from ...core.ops.elementwise import CAST, DIV, EQ, LE, LT, MUL, NE
from ...core.ops.index import FOLD, LOAD
from ...core.ops.leaf import CONST
from ...core.passes import show
from ...core.symbolic.sym import choosing
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes
from ..contract.analysis import Part, ordered, reached, steps_of
from ..contract.problem import GemmProblem, part_of
from .online import State, Streaming
from .skip import SkipTest, skip_tests


@dataclass(frozen=True)
class ScoreProduct:
    """A product inside the loop: keys (of N) times queries (of M), summed over a depth."""

    node: Node
    keys: Node
    queries: Node
    contraction: GemmProblem  # its rows are N, its columns are M

    @property
    def depth(self) -> int:
        """How many products each sum has."""
        return self.contraction.count(self.contraction.folded)

    @property
    def has_contiguous_keys(self) -> bool:
        """True if keys are memory that is contiguous along the depth."""
        if self.keys.op is not LOAD or self.keys.arg[2] or self.keys.src:
            return False
        return (self.contraction.folded[-1], 1) in self.keys.arg[1][1]


@dataclass(frozen=True)
class WeightedSum:
    """A state with D columns: a sum of weights times values."""

    state: State
    weights: Node  # of M and N
    values: Node  # of N (of M where the sum is transposed) and D
    contraction: GemmProblem

    @property
    def width(self) -> int:
        """How many columns it has."""
        return self.contraction.count(self.contraction.columns)


@dataclass(frozen=True)
class StreamProblem:
    """A streaming kernel and the role of every axis."""

    streaming: Streaming
    dtype: DType
    sizes: tuple[int, ...]
    order: tuple[Node, ...]  # all nodes, sources first
    free: dict[Node, frozenset[int]]
    batch_axes: tuple[int, ...]
    m_axes: tuple[int, ...]  # of rows (queries)
    n_axes: tuple[int, ...]  # streamed (keys and values)
    d_axes: tuple[tuple[int, ...], ...]  # of each weighted sum
    batch: int  # how many steps the axes of each role have together
    m: int
    n: int
    products: tuple[ScoreProduct, ...]
    loads_along_n: tuple[GemmProblem, ...]  # of M x N, contiguous along N: each is a `left`
    states: tuple[State, ...]  # over N
    row_states: tuple[State, ...]  # those of one number a row
    weighted: tuple[WeightedSum, ...]
    transposed: tuple[WeightedSum, ...]  # over M: weights are transposed, values are of M
    elements: tuple[Node, ...]  # of M x N that are stored (dS), before they are narrowed
    constants: frozenset[Node]  # reductions in transposed sums to one number for all rows

    @cached_property
    def folds(self) -> frozenset[Node]:
        """The nodes of all states over N."""
        return frozenset([s.fold for s in self.states])

    @cached_property
    def olds(self) -> frozenset[Node]:
        """What stands for states before a block."""
        return frozenset([s.old for s in self.states])

    @cached_property
    def computed(self) -> frozenset[Node]:
        """States and products: what a walk over a block finds in memory."""
        return self.folds | {p.node for p in self.products}

    @cached_property
    def depends_on_states(self) -> frozenset[Node]:
        """States, and all that is computed from them."""
        return frozenset(forward_slice(self.order, self.folds | self.olds))

    @cached_property
    def skips(self) -> tuple[SkipTest, ...]:
        """Conditions that leave out whole blocks; elements that are stored are all computed."""
        if self.elements:
            return ()
        states = *self.states, *self.streaming.crossed
        return skip_tests(states, frozenset(self.n_axes), self.sizes)

    @property
    def all_weighted(self) -> tuple[WeightedSum, ...]:
        """All that needs a tile of weights."""
        return (*self.weighted, *self.transposed)

    @property
    def walked(self) -> list[Node]:
        """What is computed for each element of M x N: what row states take in, then weights."""
        return [s.body for s in self.row_states] + [w.weights for w in self.all_weighted]

    @property
    def may_tile_d(self) -> bool:
        """True if tiles may have part of the columns: one sum has any, and nothing else."""
        return len(self.weighted) == 1 and not self.transposed and not self.elements

    @property
    def levels(self) -> int:
        """How often a block is traversed: states that others are built on come first."""
        return 1 + max([s.level for s in self.states])

    def varies_along_n(self, node: Node) -> bool:
        """True if a node has a value for each streamed element."""
        return bool(self.free[node] & frozenset(self.n_axes))

    def part(self, roots: Sequence[Node], stops: Iterable[Node], columns: Sequence[int]) -> Part:
        """The nodes under some roots down to `stops`, with lines of their own."""
        nodes = reached(roots, frozenset(stops))
        return part_of(nodes, self.sizes, (self.batch_axes, self.m_axes, columns, ()))


def is_along_n(problem: StreamProblem, store: Node) -> bool:
    """True if the memory of a transposed result is contiguous along N."""
    return (problem.n_axes[-1], 1) in store.arg[1][1]


@dataclass(frozen=True, slots=True)
class StreamedKernel:
    """A kernel and its roles as a stream; it travels from the search to the template."""

    kernel: IndexKernel
    dtypes: tuple[DType, ...]  # of its params
    problem: StreamProblem

    def __str__(self) -> str:
        return f"over axes {list(self.problem.streaming.axes)}\n{show(self.kernel.body)}"


def find_problem(s: Streaming) -> StreamProblem | None:
    """The roles of a streaming kernel's axes, if every axis has one."""
    with choosing(False):
        return _found_problem(_Roles(s))


def _found_problem(roles: _Roles) -> StreamProblem | None:
    checks = (
        roles.has_one_dtype, roles.compares_alike, roles.keeps_all_reductions,
        roles.find_products, roles.find_states, roles.find_rows, roles.stores_elements,
        roles.separates_rows_and_columns, roles.stores_results, roles.find_transposed,
    )  # fmt: skip
    return roles.problem() if all(check() for check in checks) else None


class _Roles:
    """The conditions under which every axis has a role, in order; each learns what later ones use.

    A condition that is not met ends the search: its kernel does not stream.
    """

    across: frozenset[int]  # M and batch
    batch: frozenset[int]
    rows: frozenset[int]

    def __init__(self, s: Streaming) -> None:
        self.s = s
        self.streamed = frozenset(s.axes)
        self.free = dict(s.free)
        self.group = {state.fold for state in s.states}
        self.inner = s.inner
        self.dtype = s.states[0].fold.dtype
        self.bodies = [state.body for state in (*s.states, *s.crossed)]
        self.products: list[tuple[Node, Node, Node]] = []
        self.row_states: list[State] = []
        self.weighted: dict[State, tuple[Node, Node]] = {}  # weights and values
        self.transposed: dict[State, tuple[Node, Node]] = {}
        self.constants: set[Node] = set()
        if s.waits:  # these are computed before all rows
            self.constants = {n for n in toposort(self.bodies) if n.op is FOLD and not self.free[n]}

    # --- conditions ------------------------------------------------------------------------------

    def has_one_dtype(self) -> bool:
        """True if all reductions are of one dtype."""
        sums = (*self.group, *self.inner, *[state.fold for state in self.s.crossed])
        return all(n.dtype is self.dtype for n in sums)

    def compares_alike(self) -> bool:
        """True if no state is compared with a reduction of plain loops, which round otherwise."""
        for node in toposort(self.s.stores):
            if node.op not in (EQ, NE, LE, LT) or node.src[0].dtype.kind != "f":
                continue
            first, second = (
                {n in self.group for n in reached([side], self.group) if n.op is FOLD}
                for side in node.src
            )
            if (True in first and False in second) or (False in first and True in second):
                return False
        return True

    def keeps_all_reductions(self) -> bool:
        """True if no block needs a sum for each row alone: nothing would hold it."""
        known = {*self.group, *self.inner, *self.constants}
        return all(n.op is not FOLD or n in known for n in reached(self.bodies, self.constants))

    def find_products(self) -> bool:
        """True if all reductions inside the loop are products of keys and queries."""
        for node in self.inner:
            pair = self.keys_and_queries(node)
            if pair is None:
                return False
            self.products.append((node, *pair))
        return True

    def find_states(self) -> bool:
        """True if each state is one number a row, or a sum of weights times values."""
        bases = [n for n in self.group if self.is_base(n)]
        bases += [state.fold for state in self.s.states if state.op != "add"]
        own = [self.free[n] - self.streamed for n in self.inner] + [self.free[n] for n in bases]
        if not own:
            own = [frozenset.intersection(*[self.free[n] for n in self.group])]
        self.across = frozenset[int]().union(*own)
        for state in self.s.states:
            if self.free[state.fold] <= self.across:
                self.row_states.append(state)
                continue
            pair = self.weights_and_values(state)
            if pair is None:
                return False
            self.weighted[state] = pair
        return True

    def find_rows(self) -> bool:
        """Tell M from batch: what keys or values have too is batch."""
        shared = [self.free[keys] for _, keys, _ in self.products]
        shared += [self.free[values] for _, values in self.weighted.values()]
        common = frozenset[int]().union(*shared)
        self.batch, self.rows = self.across & common, self.across - common
        return True

    def stores_elements(self) -> bool:
        """True if elements that are stored have M x N, in a dtype that tiles hold."""
        whole = self.s.whole
        if whole and (self.s.waits or not self.products):
            return False
        blocks = self.across | self.streamed
        kept = [w.src[0].dtype for w in whole]
        return all(self.free[w] == blocks == frozenset(w.arg[3]) for w in whole) and all(
            dtype is self.dtype or dtype.is_small_float for dtype in kept
        )

    def separates_rows_and_columns(self) -> bool:
        """True if rows and columns never meet below the sums."""
        return not any(self.free[values] & self.rows for _, values in self.weighted.values())

    def stores_results(self) -> bool:
        """True if every store has M, and the columns of the sums that it reads."""
        columns = {state: self.free[state.fold] - self.across for state in self.weighted}
        for store in self.s.stores:
            axes = self.free[store] - self.across
            if axes and axes not in columns.values():
                return False
            inside = toposort([store])
            if any(state.fold in inside and axes != own for state, own in columns.items()):
                return False
            if frozenset(store.arg[3]) - axes != self.across:
                return False
        return True

    def find_transposed(self) -> bool:
        """True if each sum over M is one of weights and values, and values do not have N."""
        for state, store in zip(self.s.crossed, self.s.across, strict=True):
            own = self.batch | self.streamed
            columns = self.free[state.fold] - own
            if frozenset(state.fold.arg[1]) != self.rows or not columns or columns & self.across:
                return False
            weights, values = [self.multiplied(f) for f in self.split(state.body, columns)]
            self.transposed[state] = weights, values
            alone = not any(n in self.inner or n in self.group for n in toposort([values]))
            stored = self.free[store] == frozenset(store.arg[3]) == own | columns
            if not alone or not stored or self.free[values] & self.streamed:
                return False
        return True

    # --- factors ---------------------------------------------------------------------------------

    def is_base(self, fold: Node) -> bool:
        """True if another state is built on it."""
        return any(fold in toposort([state.body]) for state in self.s.states if state.fold != fold)

    def split(self, body: Node, axes: frozenset[int]) -> tuple[list[Node], list[Node]]:
        """The factors of a product without some axes, and those with them."""
        factors = [body]
        while any(f.op is MUL or _is_quotient(f) for f in factors):
            factors = [p for f in factors for p in _factors(f)]
        self.free.update(free_axes(toposort(factors)))
        return (
            [f for f in factors if not self.free[f] & axes],
            [f for f in factors if self.free[f] & axes],
        )

    def multiplied(self, factors: Sequence[Node]) -> Node:
        """A product, known to `free`."""
        if not factors:
            return constant(1, self.dtype)
        value = factors[0]
        for factor in factors[1:]:
            value = make(MUL, value.dtype, (value, factor))
        self.free.update(free_axes(toposort([value])))
        return value

    def keys_and_queries(self, node: Node) -> tuple[Node, Node] | None:
        """The factor of a product inside that has N, and the other one."""
        body, over = node.src[0], frozenset(node.arg[1])
        if node.arg[0] != "add" or body.op is not MUL:
            return None
        queries, keys = self.split(body, self.streamed)
        if not queries or not keys:
            return None
        first, second = self.multiplied(keys), self.multiplied(queries)
        for written in (body.src, body.src[::-1]):  # the same to the last bit, whatever streams
            if [self.free[f] for f in written] == [self.free[first], self.free[second]]:
                first, second = written
                break
        if any(n.op is FOLD and n not in self.constants for n in toposort([first, second])):
            return None  # a product of products: each is made of what is packed, not of a tile
        return (first, second) if over <= self.free[first] & self.free[second] else None

    def weights_and_values(self, state: State) -> tuple[Node, Node] | None:
        """The factors of a state with columns: without columns, and with them."""
        weights, values = self.split(state.body, self.free[state.fold] - self.across)
        if state.op != "add" or self.is_base(state.fold):
            return None
        if any(n in self.group or n in self.inner for n in toposort(values)):
            return None
        found = self.multiplied(weights), self.multiplied(values)
        self.free.update(free_axes(toposort(list(found))))
        return found

    # --- the problem -----------------------------------------------------------------------------

    def problem(self) -> StreamProblem:
        """All that was learnt, with axes outermost first and contractions for every product."""
        s, streamed, sizes = self.s, self.s.axes, list(self.s.sizes)
        stores = (*s.stores, *s.across, *s.whole)
        steps = steps_of(stores)
        rows, batch = ordered(self.rows, steps), ordered(self.batch, steps)
        if not rows:  # one row: an axis that no index has
            rows = (len(sizes),)
            sizes.append(1)
        order = self.order(stores)
        free = free_axes(order)

        def contraction(
            node: Node, left: Node, right: Node, tall: Sequence[int], wide: Sequence[int],
            over: Sequence[int],
        ) -> GemmProblem:  # fmt: skip
            return GemmProblem(
                order=order, free=free, sizes=tuple(sizes), stores=s.stores, fold=node, left=left,
                right=right, batch=batch, rows=tuple(tall), columns=tuple(wide), folded=tuple(over),
            )  # fmt: skip

        def count(axes: Sequence[int]) -> int:
            return prod([sizes[a] for a in axes])

        def columns_of(state: State, others: frozenset[int]) -> tuple[int, ...]:
            return ordered(self.free[state.fold] - others, steps)

        products = [
            ScoreProduct(
                node, keys, queries,
                contraction(node, keys, queries, streamed, rows, _depth_axes(node, keys)),
            )
            for node, keys, queries in self.products
        ]  # fmt: skip
        weighted = [
            WeightedSum(
                state, *pair,
                contraction(state.fold, *pair, rows, columns_of(state, self.across), streamed),
            )
            for state, pair in self.weighted.items()
        ]  # fmt: skip
        own = self.batch | self.streamed
        transposed = [
            WeightedSum(
                state, *pair,
                contraction(state.fold, *pair, streamed, columns_of(state, own), rows),
            )
            for state, pair in self.transposed.items()
        ]  # fmt: skip
        loads = [contraction(n, n, n, streamed, (), rows) for n in self.along_n(rows, free)]
        return StreamProblem(
            s, self.dtype, tuple(sizes), order, free, batch, rows, streamed,
            tuple([w.contraction.columns for w in weighted]),
            count(batch), count(rows), count(streamed),
            tuple(products), tuple(loads), s.states, tuple(self.row_states), tuple(weighted),
            tuple(transposed), tuple(map(_element, s.whole)), frozenset(self.constants),
        )  # fmt: skip

    def order(self, stores: Sequence[Node]) -> tuple[Node, ...]:
        """All nodes: of stores, of factors that were made, and of repairs."""
        made = [n for pair in (*self.weighted.values(), *self.transposed.values()) for n in pair]
        made += [n for _, *pair in self.products for n in pair]
        repairs = [state.repair for state in self.s.states if state.repair is not None]
        folds, olds = zip(*[(state.fold, state.old) for state in self.s.states], strict=True)
        return tuple(toposort([*stores, *folds, *made, *repairs, *olds]))

    def along_n(self, rows: Sequence[int], free: dict[Node, frozenset[int]]) -> list[Node]:
        """Loads of M x N whose memory is contiguous along N."""
        pairs = (*self.weighted.values(), *self.transposed.values())
        bodies = [s.body for s in self.row_states] + [w for w, _ in pairs] + list(self.s.whole)
        found = []
        for node in reached(bodies, frozenset(self.group | set(self.inner))):
            if node.op is not LOAD or node.dtype.kind not in "bf" or node.src:
                continue
            terms = node.arg[1][1]
            both = free[node] & self.streamed and free[node] & frozenset(rows)
            if both and (self.s.axes[-1], 1) in terms and (rows[-1], 1) not in terms:
                found.append(node)
        return found


def _element(store: Node) -> Node:
    """What a store keeps of each element, before it is narrowed to what memory holds."""
    value = store.src[0]
    return value.src[0] if value.op is CAST and value.dtype.is_small_float else value


def _depth_axes(node: Node, keys: Node) -> tuple[int, ...]:
    """The summed axes of a product, outermost first in the memory of its keys."""
    loads = [n for n in toposort([keys]) if n.op is LOAD]
    return ordered(frozenset(node.arg[1]), steps_of(loads))


def _is_quotient(node: Node) -> bool:
    """True if it is a quotient of something other than 1."""
    if node.op is not DIV:
        return False
    one = node.src[0]
    return not (one.op is CONST and decode(one.arg[0], one.dtype) == 1)


def _factors(node: Node) -> tuple[Node, ...]:
    """A product's factors; of a quotient the dividend, and one over the divisor."""
    if _is_quotient(node):
        return node.src[0], make(DIV, node.dtype, (constant(1, node.dtype), node.src[1]))
    return node.src if node.op is MUL else (node,)
