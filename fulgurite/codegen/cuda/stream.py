"""Online reductions (FlashAttention's loop) as one Triton program: rows in registers, N streamed.

In: the `StreamedKernel` that a search chose. Out: a `Launch`, or None where no tile fits. A program
owns a tile of rows (M) of one batch step; for every block of N it computes the score products by
`tl.dot`, lets row states take them in, repairs what was summed before for the states of now, and
adds weights times values by another `tl.dot`; at the end it stores what is computed from the
states. All tensors are matrices: M x N inside a block, M x D for weighted sums, M x 1 for states.
Blocks that conditions on indices leave out (a causal mask) are not walked. Nothing here knows what
is computed: states, repairs and skips come from kernel/stream. The order of all sums follows from
sizes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ..._lazy import FORK_LOCK
from ...core.dtype import DType, bfloat16, float32
from ...core.node import Node, backward_slice, toposort
from ...core.ops.elementwise import ADD, CAST, DIV, EXP, MUL, SUB, TANH
from ...core.ops.index import FOLD
from ...core.ops.leaf import SINK
from ...graph.ir.affine import Affine
from ...graph.ir.lower import IndexKernel
from ...kernel.stream.online import State
from ...kernel.stream.price import StreamWork, nodes_along_n
from ...kernel.stream.roles import StreamedKernel, StreamProblem, WeightedSum
from ...kernel.stream.skip import affine
from .analysis import stored_type
from .program import TileProgram, Tiling
from .scope import Scope
from .source import Launch, Place
from .spelling import combine, computing, identity
from .tiling import HOPPER, GpuTable, power


def plan_stream(problem: StreamProblem, table: GpuTable = HOPPER) -> Tiling | None:
    """Blocks of M, N, D and the depths of products, if a program can hold them."""
    if not is_of_rows(problem) or problem.transposed or problem.n < table.stream_least:
        return None
    inner = [*[p.contraction.folded for p in problem.products], *problem.d_axes]
    if any(len(axes) != 1 for axes in inner):
        return None
    held = {axis: max(16, power(problem.sizes[axis])) for (axis,) in inner}
    fits = all(block <= table.stream_depth for block in held.values())
    if not fits or not all(_is_row_sum(f, problem, held) for f in other_folds(problem)):
        return None
    return _tiles(problem, held, table)


def may_fit(kernel: IndexKernel, table: GpuTable = HOPPER) -> bool:
    """True if a program may hold whole all that is folded but one axis: see `plan_stream`."""
    folded = {a for n in toposort([kernel.body]) if n.op is FOLD for a in n.arg[1]}
    sizes = {size for a in folded if isinstance(size := kernel.axes[a], int)}
    long = [size for size in sizes if size > table.stream_depth]
    return len(long) <= 1 and max(sizes, default=0) >= table.stream_least


def is_of_rows(problem: StreamProblem) -> bool:
    """True if programs of some rows each are all there is to do, but for transposed sums.

    Rows alone, without products, are left to kernels that hold them and read them once as well.
    """
    if problem.elements or problem.constants or problem.streaming.waits:
        return False
    if not problem.products and not problem.weighted:
        return False
    return problem.dtype is float32 and len(problem.n_axes) == 1


def _tiles(problem: StreamProblem, held: Mapping[int, int], table: GpuTable) -> Tiling:
    """As many rows as keep all processors busy, and blocks of N that fit beside them."""
    m, n = rows_of(problem), problem.n_axes[0]
    small = all(dtype.is_small_float for dtype in _factor_types(problem))
    rows, block = table.stream_rows, table.stream_block
    if not small:
        rows, block = rows // 2, block // 2
    if max(held.values(), default=0) > table.stream_depth // 2:
        block = max(16, block // 2)
    rows = max(16, min(rows, power(problem.sizes[m])))
    block = max(16, min(block, power(problem.sizes[n])))
    while rows > 16 and problem.batch * -(-problem.m // rows) < table.processors:
        rows //= 2
    warps = 8 if rows >= table.stream_rows and small else 4
    blocks = (rows, block, *held.values())
    return Tiling(
        (m, n, *held), blocks, warps, table.stream_stages, precision=table.dot_precision,
        short=table.short_functions, fast=table.stream_fast_exp, brief=table.stream_brief_scores,
    )  # fmt: skip


def other_folds(problem: StreamProblem) -> list[Node]:
    """Folds that results need beside states and products: of rows, after the loop."""
    known = problem.computed | {w.state.fold for w in problem.transposed}
    return [n for n in problem.order if n.op is FOLD and n not in known]


def _is_row_sum(fold: Node, problem: StreamProblem, held: Mapping[int, int]) -> bool:
    """True if a fold is over one axis that a program holds whole, for each row."""
    rows = frozenset((*problem.batch_axes, *problem.m_axes))
    whole = len(fold.arg[1]) == 1 and fold.arg[1][0] in held
    return (
        whole
        and problem.free[fold] <= rows
        and problem.free[fold.src[0]] - rows == {fold.arg[1][0]}
    )


def rows_of(problem: StreamProblem) -> int:
    """The axis of M that is in the tile: the longest."""
    return max(problem.m_axes, key=lambda a: problem.sizes[a])


def _factor_types(problem: StreamProblem) -> list[DType]:
    """What the factors of products are stored as."""
    found = [stored_type(f) for p in problem.products for f in (p.keys, p.queries)]
    return found + [stored_type(w.values) for w in problem.weighted]


def estimate(problem: StreamProblem) -> StreamWork | None:
    """What a plan makes the GPU do."""
    tiling = plan_stream(problem)
    return None if tiling is None else _work(problem, *tiling.blocks[:2])


def estimate_crossing(problem: StreamProblem) -> StreamWork | None:
    """The same of a plan for sums of both sides, with what is between its launches."""
    if not problem.transposed:
        return None
    with FORK_LOCK:
        from .gluon.one_pass import plan_one_pass, sums_between
    plan = plan_one_pass(problem, HOPPER)
    if plan is None:
        return None
    work = _work(problem, 2 * HOPPER.warpgroup_rows, plan.sums.block)
    return replace(work, moved=3 * float32.itemsize * sums_between(problem))


def _work(problem: StreamProblem, rows: int, block: int) -> StreamWork:
    """What tiles of so many rows and streamed elements make the GPU do."""
    m, n = -(-problem.m // rows) * rows, -(-problem.n // block) * block
    inside = nodes_along_n(problem, problem.walked)
    share = 1.0
    if problem.skips:  # about half of the blocks are left out
        share = (1 + 1 / max(1, min(m // rows, n // block))) / 2
    return StreamWork(
        elements=problem.batch * m * n,
        depths=tuple([p.depth for p in problem.products]),
        widths=tuple([w.width for w in problem.all_weighted]),
        walked=sum([node.op.cost for node in inside]) + 2 * len(problem.row_states),
        share=share,
    )


def render_stream(value: StreamedKernel, places: Sequence[Place], table: GpuTable) -> Launch | None:
    """A kernel that streams over an axis, as one program for each tile of rows."""
    if table.gluon_stream:
        with FORK_LOCK:
            from .gluon.stream import render_gluon_stream
            from .gluon.sums import render_gluon_sums
        hopper = render_gluon_stream(value, places, table)
        hopper = hopper or render_gluon_sums(value, places, table)
        if hopper is not None:
            return hopper
    tiling = plan_stream(value.problem, table)
    if tiling is None:
        return None
    return StreamProgram(value, places, tiling).launch()


class StreamProgram(TileProgram):
    """The text of a streaming launch."""

    def __init__(self, value: StreamedKernel, places: Sequence[Place], tiling: Tiling) -> None:
        problem = self.problem = value.problem
        self.olds = {state.old: state for state in problem.states}
        self.products_of = {p.node: p for p in problem.products}
        self.columns = {w.state: w for w in problem.weighted}
        self.weights = {w.weights for w in problem.weighted}
        self.moving = problem.depends_on_states
        stores = SINK(*problem.streaming.stores)
        kernel = IndexKernel(problem.sizes, stores, value.kernel.divisions)
        super().__init__(kernel, value.dtypes, places, tiling)

    def _begin(self, order: Sequence[Node], parallel: frozenset[int]) -> None:
        problem = self.problem
        self.free = dict(problem.free)
        super()._begin(problem.order, frozenset((*problem.batch_axes, *problem.m_axes)))
        self.m, self.n = self.tiling.axes[:2]
        self.looped = frozenset((self.n,))
        self.dims = (self.m, self.n)
        self.views = {self.dims: ""}
        self.shaped |= dict.fromkeys((*self.olds, *problem.folds), True)
        if self.is_fast:  # scores have errors of 16 bits, and so will weights have
            moves = {n for n in problem.order if n.op is DIV and self.n in self.free[n]}
            self.narrow |= moves | {n for n in problem.order if n.op is DIV and self._is_score(n)}
            self.reciprocal = "fg_short_reciprocal"
        for node in problem.order:
            if any(self.shaped[s] for s in node.src):
                self.shaped[node] = True

    @cached_property
    def is_fast(self) -> bool:
        """True if an exp need not be better than weights that are rounded to 16 bits."""
        kept = [self._weight_type(w) for w in self.problem.weighted]
        return self.tiling.fast and bool(kept) and all(t.is_small_float for t in kept)

    def _is_shared_divisor(self, node: Node) -> bool:
        """True also of a quotient for each streamed element: every program works it out again."""
        return super()._is_shared_divisor(node) or self.is_fast

    # --- where values belong ---------------------------------------------------------------------

    def _home(self, node: Node, scope: Scope) -> Scope:
        axes = self.free[node] & self.looped
        if node in self.moving and self.n in scope.bound:  # states move from block to block
            axes |= {self.n}
        return scope.home(axes)

    def _needs(self, node: Node) -> tuple[Node, ...]:
        return () if node.op is FOLD else super()._needs(node)  # folds have views of their own

    def _is_contiguous(self, factor: Node, axis: int) -> bool:
        if axis == self.n and factor in self.weights:  # they are where states are
            return True
        return super()._is_contiguous(factor, axis)

    def _is_looped(self, fold: Node) -> bool:
        return False  # states have names by then

    def _expression(self, node: Node, values: list[str], scope: Scope) -> str:
        product = self.products_of.get(node)
        if node.op is EXP and self.is_fast:
            return self._fast_exp(node, values, scope)
        if node.op is TANH and self.is_fast and node.dtype is float32:
            return self._fast_tanh(node, scope)
        if product is None and node.op is FOLD:
            return self._row_sum(node, scope)
        brief = self._brief(node, scope) if self.tiling.brief and self.is_fast else None
        if brief is not None:
            return brief
        if product is None:
            assert node not in self.olds, "what was before a block has a name"
            return super()._expression(node, values, scope)
        (k,) = product.contraction.folded
        zeros = f"tl.zeros({self._shape(frozenset(self.dims))}, tl.float32)"
        return self._dot((product.queries, product.keys), (self.m, self.n, k), zeros, scope)

    def _fast_exp(self, node: Node, values: list[str], scope: Scope) -> str:
        """An exp of scores less a number of their row in one instruction less."""
        less = node.src[0]
        if less.op is SUB and self.n in self.free[less.src[0]] and self._is_row(less.src[1]):
            a, b = (self._named(one, scope) for one in less.src)
            return f"fg_fast_exp_apart({a}, {b})"
        return f"fg_fast_exp({values[0]})"

    def _fast_tanh(self, node: Node, scope: Scope) -> str:
        """A tanh of scores, whose argument takes all factors that are one number at once.

        Weights of bfloat16 are of scores of 8 bits: one instruction has 11.
        """
        kinds = [self._weight_type(w) for w in self.problem.weighted]
        short = self.tiling.brief and all(kind is bfloat16 for kind in kinds)
        argument, factor = node.src[0], "1.0" if short else "2.88539"
        while argument.op in (MUL, DIV) and self._is_number(argument.src[1]):
            sign = "*" if argument.op is MUL else "/"
            argument, by = argument.src
            factor = f"{factor} {sign} {self._named(by, scope)}"
        if short:
            return f"fg_approximate_tanh({self._named(argument, scope)} * ({factor}))"
        return f"fg_fast_tanh({self._named(argument, scope)}, {factor})"

    def _brief(self, node: Node, scope: Scope) -> str | None:
        """A value of each score in fewer instructions: a product and a sum as one, a distance."""
        if node.dtype is not float32 or not self._is_score(node):
            return None
        if node.op is ADD:
            for first, second in (node.src, node.src[::-1]):
                three = [self._known(one, scope) for one in (*first.src, second)]
                if first.op is MUL and self._is_score(first) and None not in three:
                    return f"tl.fma({', '.join(map(str, three))})"
        if node.op is CAST and self._is_distance(node.src[0]):
            return " - ".join([self._as_float(one, scope) for one in node.src[0].src])
        return None

    def _is_distance(self, node: Node) -> bool:
        """True if a value is one place less another, and does not wrap around below 0."""
        return node.op is SUB and node.dtype.kind == "i" and all(map(self._is_place, node.src))

    def _is_place(self, node: Node) -> bool:
        """True if a value is a place along rows or columns, from 0 up to 2^23."""
        index = None if self._is_score(node) else affine(node, self.sizes)
        if index is None or index[0] < 0 or any(step < 0 for _, step in index[1]):
            return False
        most = [step * (self.sizes[a] - 1) for a, step in index[1] if isinstance(a, int)]
        return len(most) == len(index[1]) and index[0] + sum(most) < 1 << 23

    def _as_float(self, node: Node, scope: Scope) -> str:
        """A place above 2^23 as a float: its bits are those of the place, and differences exact.

        Conversions take as long as an exp2.
        """
        home, key = self._home(node, scope), ("float", self._key(node))
        name = home.known(key)
        if name is None:
            name = home.names[key] = self._name()
            place = f"{self._named(node, scope)}.to(tl.int32) + 0x4B000000"
            home.say(f"{name} = ({place}).to(tl.float32, bitcast=True)")
        return name

    def _is_number(self, node: Node) -> bool:
        """True if a value is the same for all rows and all streamed elements."""
        return not self.free[node] & {self.m, self.n} and node not in self.moving

    def _is_row(self, node: Node) -> bool:
        """True if a value is one number for each row, or for each column."""
        states = node in self.problem.folds or node in self.olds
        return states or not self._is_score(node)

    def _is_score(self, node: Node) -> bool:
        """True if a value has an element for each row and each streamed one."""
        return {self.m, self.n} <= self.free[node]

    def _row_sum(self, node: Node, scope: Scope) -> str:
        """A fold over an axis that is held whole: M x K, of which a column is left."""
        assert node not in self.problem.folds, "states have names by then"
        with self._view((self.m, node.arg[1][0])):
            value = self._ready(node.arg[0], self._value(node.src[0], scope), node, scope)
            return self._reduced(node.arg[0], value, node.arg[1], computing(node.dtype))

    # --- the loop --------------------------------------------------------------------------------

    def _emit_roots(self, top: Scope) -> None:
        """States at their identities, the loop over blocks, then all stores."""
        states = self.problem.states
        for number, state in enumerate(states):
            neutral = identity(state.op, state.fold.dtype)
            top.say(f"f{number} = tl.broadcast_to({neutral}, {self._state_shape(state)})")
        start, end = self._bounds(top)
        inner = top.loop(self.n, 1)
        inner.header = f"for r1 in range({start}, {end}, {self.block[self.n]}):"
        self._tile_axis(inner, self.n, "r1")
        for number, state in enumerate(states):
            inner.say(f"o{number} = f{number}")
            self._call(state.old, f"o{number}", inner)
        for number, state in enumerate(states):
            self._step(number, state, start, inner)
        self._close(inner, top)
        for number, state in enumerate(states):
            self._call(state.fold, f"f{number}", top)
        for store in self.problem.streaming.stores:
            with self._view(self._store_dims(store)):
                self._store(store, self._value(store.src[0], top), top)

    def _call(self, node: Node, name: str, scope: Scope) -> None:
        """Give a state's value a name in every view: it is a column, or belongs to one view."""
        for width in (self.n, *[self._width(w) for w in self.problem.weighted]):
            scope.names[node, (self.m, width)] = name

    def _width(self, weighted: WeightedSum) -> int:
        (axis,) = weighted.contraction.columns
        return axis

    def _state_shape(self, state: State) -> str:
        weighted = self.columns.get(state)
        width = 1 if weighted is None else self.block[self._width(weighted)]
        return f"({self.block[self.m]}, {width})"

    def _step(self, number: int, state: State, start: str, scope: Scope) -> None:
        """What a block makes of a state: the repaired value so far, and the block's own."""
        weighted = self.columns.get(state)
        before = f"o{number}"
        if state.repair is not None:
            dims = (self.m, self.n if weighted is None else self._width(weighted))
            with self._view(dims):
                repaired = self._value(state.repair, scope)
            before = self._name()
            scope.say(f"{before} = tl.where(r1 > {start}, {repaired}, o{number})")
        if weighted is not None:
            axes = (self.m, self._width(weighted), self.n)
            kept = self._weight_type(weighted)
            factors = (weighted.weights, weighted.values)
            added = self._dot(factors, axes, before, scope, (kept, kept))
            scope.say(f"f{number} = {added}")
        else:
            value = self._ready(state.op, self._value(state.body, scope), state.fold, scope)
            held = computing(state.fold.dtype)
            block = self._reduced(state.op, value, (self.n,), held)
            scope.say(f"f{number} = {combine(state.op, before, block, held)}")
        self._call(state.fold, f"f{number}", scope)

    def _weight_type(self, weighted: WeightedSum) -> DType:
        """The dtype of a weighted sum's factors: that of values, if results are rounded to it."""
        stored = stored_type(weighted.values)
        if not stored.is_small_float:
            return float32
        stores = (*self.problem.streaming.stores, *self.problem.streaming.across)
        wide = any(self._reads(s, weighted.state.fold, stored) for s in stores)
        return float32 if wide else stored

    def _reads(self, store: Node, fold: Node, rounding: DType) -> bool:
        """True if a store is computed from a fold that was not rounded to a dtype before."""

        def ends(node: Node) -> bool:
            return node in self.problem.folds or (node.op is CAST and node.dtype is rounding)

        return fold in backward_slice([store], ends)

    def _stored_axes(self, store: Node) -> tuple[int, ...]:
        """Rows too, where there is one alone that no index speaks of: a tile has more of them."""
        axes: tuple[int, ...] = store.arg[3]
        return axes if self.m in axes else (self.m, *axes)

    def _store_dims(self, store: Node) -> tuple[int, int]:
        axes = frozenset(store.arg[3])
        wide = [self._width(w) for w in self.problem.weighted if self._width(w) in axes]
        return (self.m, wide[0] if wide else self.n)

    # --- blocks that count for nothing -----------------------------------------------------------

    def _bounds(self, top: Scope) -> tuple[str, str]:
        """From where to where a tile streams: not over what conditions leave out at both ends."""
        start, end = "0", self._number(self.sizes[self.n])
        known = {self.n, self.m, *self.problem.batch_axes, *self.problem.m_axes}
        for test in self.problem.skips:
            step = dict(test.index[1]).get(self.n, 0)
            if not step or not {a for a, _ in test.index[1]} <= known:
                continue
            most = self._largest(test.index, top)
            if step < 0:
                past = self._name()
                top.say(f"{past} = tl.where({most} >= 0, {most} // {-step} + 1, 0)")
                new = self._name()
                top.say(f"{new} = tl.minimum({end}, {past})")
                end = new
            else:
                block = self.block[self.n]
                new = self._name()
                first = f"tl.maximum((0 - {most} + {step - 1}) // {step}, 0) // {block} * {block}"
                top.say(f"{new} = tl.maximum({start}, {first})")
                start = new
        return start, end

    def _largest(self, index: Affine, top: Scope) -> str:
        """The largest value of an index over the rows of this tile, without its streamed axis."""
        rest = index[0], tuple([(a, s) for a, s in index[1] if a != self.n])
        name = self._name()
        text = self._index(rest, self.problem.streaming.stores[0], top)
        reads_rows = any(a == self.m for a, _ in rest[1])
        top.say(f"{name} = {f'tl.max(tl.max({text}, 1), 0)' if reads_rows else text}")
        return name
