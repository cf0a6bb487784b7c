"""Hopper's online reduction (FlashAttention 3's loop) in Gluon, from what a search derived.

In: the `StreamedKernel` that a search chose. Out: a `Launch`, or None where the form does not fit
and that of `stream.py` is used. A program owns 128 rows of M of one batch step: two warpgroups have
64 each, one warp copies blocks of the streamed factors to rings of buffers (TMA). While the sums of
one block are multiplied (`wgmma`, asynchronous), the scores of the next are multiplied as well and
row states take them in. States, repairs, weights, masks and which blocks are left out come from
kernel/stream, as everywhere: nothing here knows what is computed. The first block is peeled, as
there is nothing to repair yet. Gluon has no interpreter: correctness is shown on a GPU
(tests/codegen/cuda/gluon_on_gpu.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan

from ....core.dtype import float32
from ....core.node import Node, toposort
from ....core.ops.elementwise import AND, EQ, EXP, NE, SUB, WHERE
from ....core.ops.leaf import CONST
from ....kernel.stream.online import State
from ....kernel.stream.roles import StreamedKernel, StreamProblem, WeightedSum
from ..scope import Scope
from ..source import Launch, Place
from ..spelling import combine, computing, identity
from ..spelling import number as text_of
from ..stream import rows_of
from ..tiling import GpuTable
from . import roles
from .program import (
    GluonProgram,
    Scaled,
    Streamed,
    factor_of,
    half,
    padded_axes,
    tiles_at_a_time,
)

LOWEST, HIGHEST, NAN = (text_of(value, float32) for value in (-inf, inf, nan))


@dataclass(frozen=True, slots=True)
class GluonStreamPlan:
    """Blocks and factors of a streaming kernel."""

    queries: Streamed
    keys: Streamed
    values: Streamed
    rows: int  # of a warpgroup
    block: int  # of N
    depth: int  # of the score product, padded
    width: int  # of the weighted sum, padded
    buffers: int
    registers: tuple[int, int]  # of a consumer's thread, and of a producer's
    persistent: bool  # a persistent grid?


def plan_gluon_stream(problem: StreamProblem, table: GpuTable) -> GluonStreamPlan | None:
    """The plan of a kernel with one score product and one weighted sum, if it is worth it."""
    if len(problem.products) != 1 or len(problem.weighted) != 1:
        return None
    held = padded_axes(problem, table)
    (product,), (weighted,) = problem.products, problem.weighted
    if held is None or _is_circular(problem, weighted):
        return None
    (k,), (d,) = product.contraction.folded, weighted.contraction.columns
    depth, width = held[k], held[d]
    m, n, rows = rows_of(problem), problem.n_axes[0], table.warpgroup_rows
    block = table.gluon_block if max(depth, width) <= 128 else table.gluon_block // 2
    queries = factor_of(problem, product.queries, (m, k), (rows, depth), table)
    keys = factor_of(problem, product.keys, (n, k), (block, depth), table)
    values = factor_of(problem, weighted.values, (n, d), (block, width), table)
    if queries is None or keys is None or values is None:
        return None
    if len({one.spec.dtype for one in (queries, keys, values)}) > 1:
        return None
    sizes = rows, block, depth, width, table.gluon_buffers
    how = table.gluon_stream_registers, tiles_at_a_time(problem, table) > 0
    return GluonStreamPlan(queries, keys, values, *sizes, *how)


def _is_circular(problem: StreamProblem, weighted: WeightedSum) -> bool:
    """True if a row state needs a weighted sum: it would have to wait for its product."""
    sums = {weighted.state.fold, weighted.state.old}
    needed = [s.body for s in problem.row_states] + [weighted.weights]
    needed += [s.repair for s in problem.row_states if s.repair is not None]
    return any(node in sums for node in toposort(needed))


def render_gluon_stream(
    value: StreamedKernel, places: Sequence[Place], table: GpuTable
) -> Launch | None:
    """A kernel in this form, if it has one."""
    plan = plan_gluon_stream(value.problem, table)
    if plan is None:
        return None
    program = GluonStream(value, places, plan, table)
    return program.text() if program.has_narrow_weights(plan.values.spec.dtype) else None


class GluonStream(GluonProgram):
    """The text of one launch: producer, two consumers, and the body of a block from the states."""

    def __init__(
        self, value: StreamedKernel, places: Sequence[Place], plan: GluonStreamPlan, table: GpuTable
    ) -> None:
        self.plan = plan
        (k,), (d,) = plan.keys.axes[-1:], plan.values.axes[-1:]
        self.d = d
        self.folds_scale = table.gluon_scale
        held = {k: plan.depth, d: plan.width}
        super().__init__(value, places, held, plan.block, table)

    # --- a block ---------------------------------------------------------------------------------

    @property
    def _sum(self) -> WeightedSum:
        return self.problem.weighted[0]

    def _call(self, node: Node, name: str, scope: Scope) -> None:
        """A state's name in the view of scores, and in the layout of the weighted sum."""
        if node in (self._sum.state.fold, self._sum.state.old):
            scope.names[node, (self.m, self.d)] = name
            return
        scope.names[node, (self.m, self.n)] = name
        scope.say(f"{name}d = gl.convert_layout({name}, LO)")
        scope.names[node, (self.m, self.d)] = f"{name}d"

    def _rows(self, scope: Scope, first: bool) -> None:
        """Row states and weights of a block whose scores are there."""
        scope.names[self.problem.products[0].node, (self.m, self.n)] = "sc"
        for number, state in enumerate(self.problem.states):
            if state is not self._sum.state and not first:
                scope.say(f"o{number} = s{number}[:, None]")
                self._call(state.old, f"o{number}", scope)
        for number, state in enumerate(self.problem.states):
            if state is not self._sum.state:
                self._row_state(number, state, scope, first)
        weights = self._value(self._sum.weights, scope)
        shape = self._shape(frozenset((self.m, self.n)))
        ragged = self._ragged_masks([self.m, self.n], scope)
        if ragged:  # what is beyond an end may be NaN, and 0 times that
            weights = f"tl.where({' & '.join(ragged)}, {weights}, 0.0)"
        scope.say(
            f"weights = tl.broadcast_to({weights}, {shape}).to({half(self.plan.values.spec.dtype)})"
        )

    def _row_state(self, place: int, state: State, scope: Scope, first: bool) -> None:
        """What a block makes of a row state: the repaired value so far, and the block's own."""
        held = computing(state.fold.dtype)
        if state is self._distance and self._apart is not None:
            block = self._scaled_max(self._apart, scope)
        else:
            value = self._ready(state.op, self._value(state.body, scope), state.fold, scope)
            block = self._reduced(state.op, value, (self.n,), held)
        before = identity(state.op, state.fold.dtype)
        if not first:
            before = (
                f"o{place}" if state.repair is None else self._value(self._repair(state), scope)
            )
        scope.say(f"f{place} = {combine(state.op, before, block, held)}")
        self._call(state.fold, f"f{place}", scope)
        if state is self._distance:
            scope.say(f"g{place} = tl.where(f{place} == {LOWEST}, 0.0, f{place})")
        # from block to block as a vector: a column has its number in a register for each score
        vector = f"tl.reshape(f{place}, [{self.plan.rows}])"
        scope.say(f"s{place} = gl.convert_layout({vector}, gl.SliceLayout(1, LS))")

    def _scaled_max(self, apart: Scaled, scope: Scope) -> str:
        """The largest score by way of the largest product, or the smallest: numbers of rows alone.

        What is masked is beyond all products on their lower side. A factor of 0 is next to it, so
        that it still is.
        """
        product = self._value(apart.product, scope)
        assert apart.by is not None
        by = self._value(apart.by, scope)
        home = self._home(apart.by, scope)
        if home.known("factor") is None:
            home.names["factor"] = "factor"
            home.say(f"factor = tl.where({by} == 0.0, 1e-38, {by})")
            home.say(f"beyond = tl.where(factor > 0.0, {LOWEST}, {HIGHEST})")
        scope.say(f"raw = {product}")
        if apart.condition is not None:
            masked = f"tl.where({self._value(apart.condition, scope)}, raw, beyond)"
            scope.say(f"raw = {self._at_edges(apart.condition, 'raw', masked, scope)}")
        ragged = self._ragged_masks([self.n], scope)
        if ragged:
            scope.say(f"raw = tl.where({' & '.join(ragged)}, raw, beyond)")
        scope.say("if factor > 0.0:")
        scope.say("    far = tl.reduce(raw, 1, fg_max, keep_dims=True)")
        scope.say("else:")
        scope.say("    far = tl.reduce(raw, 1, fg_min, keep_dims=True)")
        return "far * factor"

    def _repaired(self, scope: Scope) -> None:
        """The weighted sum so far, for the states of now."""
        state = self._sum.state
        if state.repair is not None:
            self._call(state.old, "acc", scope)
            with self._view((self.m, self.d)):
                scope.say(f"acc = {self._value(self._repair(state), scope)}")

    # --- rows that have seen nothing -------------------------------------------------------------

    @cached_property
    def _distance(self) -> State | None:
        """The largest score, if weights are exponentials of the distance from it and all is sums.

        Then a row that saw only -inf may have weights 0 in the place of NaN until the loop ends:
        its sums are 0, and need not be exchanged, number by number, for 0 when a score comes.
        """
        weights, states = self._sum.weights, self.problem.states
        if not self.is_fast or not _is_exp_of_distance(weights):
            return None
        scores, top = weights.src[0].src
        found = [s for s in states if s.fold is top and s.op == "max" and s.body is scores]
        sums = [s for s in states if s not in found]
        alike = all(s.body is weights or s is self._sum.state for s in sums)
        is_so = found and alike and all(_begins_with(found[0], s) for s in sums)
        return found[0] if is_so else None

    @cached_property
    def _apart(self) -> Scaled | None:
        """Scores that are products times one number, if nothing but weights reads them."""
        if self._distance is None or not self.folds_scale:
            return None
        scores, known = self._distance.body, (self._distance.fold, self._sum.weights.src[0])
        readers = [n for n in self.problem.order if scores in n.src and n not in known]
        found = None if readers else self._scaled(scores)
        return None if found is None or found.by is None or self.free[found.by] else found

    def _needs(self, node: Node) -> tuple[Node, ...]:
        if self._apart is not None and node is self._sum.weights:
            return ()
        return super()._needs(node)

    def _repair(self, state: State) -> Node:
        """How what a state has so far changes with the states of now."""
        assert state.repair is not None
        return state.repair.src[2] if self._distance and state.op == "add" else state.repair

    def _fast_exp(self, node: Node, values: list[str], scope: Scope) -> str:
        if self._distance is None or node is not self._sum.weights:
            return super()._fast_exp(node, values, scope)
        place = self.problem.states.index(self._distance)
        if self._apart is not None:
            return f"fg_fast_exp2(tl.fma(raw, factor * 1.442695, g{place} * -1.442695))"
        return f"fg_fast_exp_apart({self._named(node.src[0].src[0], scope)}, g{place})"

    def _ended(self, top: Scope) -> None:
        """Sums of rows that saw nothing until the end are NaN after all."""
        if self._distance is None:
            return
        first = self.problem.states.index(self._distance)
        for place, state in enumerate(self.problem.states):
            if state is self._sum.state:
                top.say(f"acc = tl.where(f{first}d == {LOWEST}, {NAN}, acc)")
            elif place != first:
                top.say(f"f{place} = tl.where(f{first} == {LOWEST}, {NAN}, f{place})")
                self._call(state.fold, f"f{place}", top)

    # --- the whole -------------------------------------------------------------------------------

    def _consumed(self) -> list[str]:
        """What a warpgroup does: the first block, the loop, the stores."""
        top = Scope(None, {}, 1)
        found = [*self._blocks(top), *roles.last_sum(self.plan)]
        top.lines.clear()
        for number, state in enumerate(self.problem.states):
            if state is not self._sum.state:
                top.say(f"f{number} = s{number}[:, None]")
            self._call(state.fold, "acc" if state is self._sum.state else f"f{number}", top)
        self._ended(top)
        for store in self.problem.streaming.stores:
            with self._view(self._store_dims(store)):
                self._store(store, self._value(store.src[0], top), top)
        return found + top.lines

    def _blocks(self, top: Scope) -> list[str]:
        """Scores of a block are multiplied beside the sum of the one before, then taken in."""
        peeled = Scope(top, {self.n: 1}, 1)
        self._rows(peeled, first=True)
        head = [*roles.first_scores(self.plan), "    r1 = start", *top.lines, *peeled.lines]
        top.lines.clear()
        head += ["    packed = gl.convert_layout(weights, LP)"]
        head += [f"    if start + {self.plan.block} < end:"]
        head += roles.keys_there(self.plan, "it + 1", 2)
        inner = top.loop(self.n, 2)
        self._rows(inner, first=False)
        before = list(inner.lines)
        inner.lines.clear()
        self._repaired(inner)
        return [
            *head, *top.lines,
            f"    for r1 in range(start + {self.plan.block}, end, {self.plan.block}):",
            *roles.scores(self.plan), *before, *roles.summed(self.plan), *inner.lines,
            "        packed = gl.convert_layout(weights, LP)", "        it += 1",
        ]  # fmt: skip

    def text(self) -> Launch:
        """The text with its grid and arguments."""
        plan, place = self.plan, self._place()
        consumed = self._consumed()
        arguments, names = self._names([self._sum.values])
        lines = [
            *roles.producer(plan, self.m, self.n, names, place, self.persistent_loop),
            *roles.consumer(plan, names, place, consumed, self.persistent_loop),
            *roles.whole(plan, names),
        ]
        return self._launch(lines, (plan.queries, plan.keys, plan.values), arguments)


def _is_exp_of_distance(weights: Node) -> bool:
    return weights.op is EXP and weights.src[0].op is SUB


def _begins_with(state: State, other: State) -> bool:
    """True if a sum is 0 as soon as the largest is above -inf, and was multiplied before that."""
    repair = other.repair
    if other.op != "add" or repair is None or repair.op is not WHERE or repair.src[0].op is not AND:
        return False
    was, now = repair.src[0].src
    asked = was.op is EQ and was.src[0] is state.old and now.op is NE and now.src[0] is state.fold
    return asked and repair.src[1].op is CONST and repair.src[1].arg[0] == 0
