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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan

from ...core.dtype import bfloat16, float16, float32
from ...core.node import Node, toposort
from ...core.ops.elementwise import AND, CAST, EQ, EXP, NE, SUB, WHERE
from ...core.ops.index import FOLD, GUARD, LOAD, STORE
from ...core.ops.leaf import CONST
from ...graph.ir.affine import Affine
from ...kernel.stream.online import State
from ...kernel.stream.roles import StreamedKernel, StreamProblem, WeightedSum
from ...kernel.stream.skip import always_true
from . import gluon_roles as roles
from . import source
from .program import Tiling
from .scope import Scope
from .source import Argument, Launch, Place, TensorMap
from .spelling import combine, computing, definitions, identity, type_name
from .spelling import number as text_of
from .stream import StreamProgram, is_one_pass, other_folds, rows_of
from .tiling import GpuTable, power

LOWEST, NAN = text_of(-inf, float32), text_of(nan, float32)


@dataclass(frozen=True, slots=True)
class Streamed:
    """A factor for the copy engine: what it is of, and the axes of its coordinates."""

    spec: TensorMap
    axes: tuple[int, ...]


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


def plan_gluon_stream(problem: StreamProblem, table: GpuTable) -> GluonStreamPlan | None:
    """The plan of a kernel with one score product and one weighted sum, if it is worth it."""
    if not table.gluon_stream or not is_one_pass(problem) or other_folds(problem):
        return None
    if len(problem.products) != 1 or len(problem.weighted) != 1:
        return None
    (product,), (weighted,), m = problem.products, problem.weighted, rows_of(problem)
    inner = (product.contraction.folded, weighted.contraction.columns)
    if any(len(axes) != 1 for axes in inner) or _is_circular(problem, weighted):
        return None
    if any(n.op is GUARD for n in problem.order):
        return None
    (k,), (d,) = inner
    depth, width = (max(16, power(problem.sizes[axis])) for axis in (k, d))
    if max(depth, width) > table.stream_depth:
        return None
    rows = 64
    if 2 * problem.sizes[m] <= rows:  # less of a tile would be used than of the other form's
        return None
    tiles = problem.batch * -(-problem.m // (len(roles.WARPGROUPS) * rows))
    if 2 * tiles < table.processors or problem.n < table.stream_least:
        return None
    block = table.gluon_block if max(depth, width) <= 128 else table.gluon_block // 2
    n = problem.n_axes[0]
    queries = _factor(problem, product.queries, (m, k), (rows, depth), table)
    keys = _factor(problem, product.keys, (n, k), (block, depth), table)
    values = _factor(problem, weighted.values, (n, d), (block, width), table)
    if queries is None or keys is None or values is None:
        return None
    if len({one.spec.dtype for one in (queries, keys, values)}) > 1:
        return None
    sizes = rows, block, depth, width, table.gluon_buffers
    return GluonStreamPlan(queries, keys, values, *sizes, table.gluon_stream_registers)


def _is_circular(problem: StreamProblem, weighted: WeightedSum) -> bool:
    """True if a row state needs a weighted sum: it would have to wait for its product."""
    sums = {weighted.state.fold, weighted.state.old}
    needed = [s.body for s in problem.row_states] + [weighted.weights]
    needed += [s.repair for s in problem.row_states if s.repair is not None]
    return any(node in sums for node in toposort(needed))


def _factor(
    problem: StreamProblem, factor: Node, axes: tuple[int, int], block: tuple[int, int],
    table: GpuTable,
) -> Streamed | None:  # fmt: skip
    """A factor that is memory as it is, contiguous along its second axis."""
    load = factor.src[0] if factor.op is CAST else factor
    if load.op is not LOAD or load.arg[2] or load.dtype not in (bfloat16, float16):
        return None
    param, (offset, terms), _ = load.arg
    steps = {a: step for a, step in terms if isinstance(a, int)}
    own, last = axes
    others = sorted([a for a in steps if a not in axes], key=lambda a: -steps[a])
    order = (*others, own, last)
    if len(steps) < len(terms) or steps.get(last) != 1 or len(order) > table.tma_rank:
        return None
    unit = table.tma_bytes // load.dtype.itemsize
    strides = [steps.get(a, 0) if problem.sizes[a] > 1 else unit for a in order[:-1]]
    if any(s <= 0 or s % unit for s in strides) or offset % unit or offset < 0:
        return None
    spec = TensorMap(
        param, offset * load.dtype.itemsize, load.dtype.name,
        tuple([problem.sizes[a] for a in order]), (*strides, 1), (*[1] * len(others), *block),
    )  # fmt: skip
    return Streamed(spec, order)


def render_gluon_stream(
    value: StreamedKernel, places: Sequence[Place], table: GpuTable
) -> Launch | None:
    """A kernel in this form, if it has one."""
    plan = plan_gluon_stream(value.problem, table)
    if plan is None:
        return None
    program = GluonStream(value, places, plan, table)
    dtype = plan.values.spec.dtype
    narrow = program._weight_type(value.problem.weighted[0]).name == dtype
    return program.text() if narrow else None


class GluonStream(StreamProgram):
    """The text of one launch: producer, two consumers, and the body of a block from the states."""

    def __init__(
        self, value: StreamedKernel, places: Sequence[Place], plan: GluonStreamPlan, table: GpuTable
    ) -> None:
        problem, self.plan = value.problem, plan
        (k,), (d,) = plan.keys.axes[-1:], plan.values.axes[-1:]
        self.k, self.d = k, d
        held = {k: plan.depth, d: plan.width}
        axes = (rows_of(problem), problem.n_axes[0], *held)
        blocks = (plan.rows, plan.block, *held.values())
        tiling = Tiling(axes, blocks, 4, 1, short=table.short_functions, fast=table.stream_fast_exp)
        super().__init__(value, places, tiling)
        self.edges = table.gluon_edges
        self.scalar = ""  # the row that an index is asked for, while it is one number
        self.tall = len(roles.WARPGROUPS) * plan.rows

    # --- axes, in the layout of each view --------------------------------------------------------

    def _layout(self) -> str:
        return "LS" if self.dims[1] == self.n else "LO"

    def _axis(self, axis: int, scope: Scope) -> str:
        if self.scalar and axis == self.m:
            return self.scalar
        return super()._axis(axis, scope)

    def _spread_axis(self, axis: int, scope: Scope) -> str:
        name = f"{self._bound_name(axis, scope)}{self.views[self.dims]}"
        home = scope.home({axis} & self.looped)
        if name not in home.spread:
            home.spread.add(name)
            first = {self.m: "om", self.n: "r1"}.get(axis, "0")
            dim = 1 if axis == self.dims[0] else 0
            wide = ".to(tl.int64)" if self.wide else ""
            places = "[:, None]" if dim else "[None, :]"
            arange = f"tl.arange(0, {self.block[axis]}, layout=gl.SliceLayout({dim}, "
            home.say(f"a{name} = ({first} + {arange}{self._layout()})){wide}){places}")
            if self._is_ragged(axis):
                home.say(f"m{name} = a{name} < {self._number(self.sizes[axis])}")
        return name

    def _is_ragged(self, axis: int) -> bool:
        tile = self.tall if axis == self.m else self.block[axis]
        return self.sizes[axis] % tile != 0

    def _tile_axis(self, scope: Scope, axis: int, start: str) -> None:
        """Places are made for each view, in its layout."""

    # --- a block ---------------------------------------------------------------------------------

    def _expression(self, node: Node, values: list[str], scope: Scope) -> str:
        tests = always_true(node.src[0]) if node.op is WHERE and self.edges else None
        if tests is None or self.n not in scope.bound or self.dims != (self.m, self.n):
            return super()._expression(node, values, scope)
        known = {self.m, self.n, *self.problem.batch_axes, *self.problem.m_axes}
        if not all({a for a, _ in index[1]} <= known for index in tests):
            return super()._expression(node, values, scope)
        name = self._name()  # most blocks are on one side of a mask: it is asked at edges alone
        shape = self._shape(frozenset(self.dims))
        masked = super()._expression(node, values, scope)
        low = " | ".join([f"({self._smallest(index, scope)} < 0)" for index in tests])
        scope.say(f"{name} = tl.broadcast_to({values[1]}, {shape})")
        scope.say(f"if {low}:")
        scope.say(f"    {name} = tl.broadcast_to({masked}, {shape})")
        return name

    def _smallest(self, index: Affine, scope: Scope) -> str:
        """The smallest value of an index over the rows of a warpgroup and a block of columns."""
        found = [self._number(index[0])]
        for axis, step in index[1]:
            assert isinstance(axis, int)
            first = {self.m: "om", self.n: "r1"}.get(axis)
            if first is None:
                text = self._axis(axis, scope)
            else:
                text = first if step > 0 else f"({first} + {self.block[axis] - 1})"
            found.append(f"{text} * {self._number(step)}" if step != 1 else text)
        return f"({' + '.join(found)})"

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
        scope.say(f"weights = tl.broadcast_to({weights}, {shape}).to({self._half()})")

    def _row_state(self, place: int, state: State, scope: Scope, first: bool) -> None:
        """What a block makes of a row state: the repaired value so far, and the block's own."""
        held = computing(state.fold.dtype)
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

    def _repair(self, state: State) -> Node:
        """How what a state has so far changes with the states of now."""
        assert state.repair is not None
        return state.repair.src[2] if self._distance and state.op == "add" else state.repair

    def _fast_exp(self, node: Node, values: list[str], scope: Scope) -> str:
        if self._distance is None or node is not self._sum.weights:
            return super()._fast_exp(node, values, scope)
        place = self.problem.states.index(self._distance)
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

    def _largest(self, index: Affine, top: Scope) -> str:
        """The largest value of an index over the rows of a program, without its streamed axis."""
        rest = index[0], tuple([(a, s) for a, s in index[1] if a != self.n])
        up = dict(rest[1]).get(self.m, 0) > 0
        name = self._name()
        with self._row("last" if up else "first"):
            text = self._index(rest, self.problem.streaming.stores[0], top)
        top.say(f"{name} = {text}")
        return name

    @contextmanager
    def _row(self, name: str) -> Iterator[None]:
        self.scalar = name
        yield
        self.scalar = ""

    # --- the whole -------------------------------------------------------------------------------

    def _place(self) -> list[str]:
        """Lines of every role: the tile of a program, and from where to where it streams."""
        top = Scope(None, {}, 1)
        count = -(-self.sizes[self.m] // self.tall)
        top.say("left = gl.program_id(0)")
        tiles = self._number(count)
        last = f"{tiles} - 1 - left % {tiles}" if self.problem.skips else f"left % {tiles}"
        top.say(f"first = ({last}) * {self.tall}")  # those with most to do begin first
        top.say(f"left = left // {tiles}")
        others = [a for a in (*self.problem.batch_axes, *self.problem.m_axes) if a != self.m]
        for axis in reversed(others):
            top.say(f"a{axis} = left % {self._number(self.sizes[axis])}")
            top.say(f"left = left // {self._number(self.sizes[axis])}")
        rows = self._number(self.sizes[self.m])
        top.say(f"last = gl.minimum(first + {self.tall - 1}, {rows} - 1)")
        start, end = self._bounds(top)
        size, block = self._number(self.sizes[self.n]), self.plan.block
        top.say(f"start = gl.minimum({start}, ({size} - 1) // {block} * {block})")
        top.say(f"end = gl.maximum({end}, start + 1)")
        return top.lines

    def _consumed(self) -> list[str]:
        """What a warpgroup does: the first block, the loop, the stores."""
        top = Scope(None, {}, 1)
        peeled = Scope(top, {self.n: 1}, 1)
        self._rows(peeled, first=True)
        head = [*roles.FIRST_SCORES, "    r1 = start", *top.lines, *peeled.lines]
        head += ["    packed = gl.convert_layout(weights, LP)"]
        head += [f"    if start + {self.plan.block} < end:", *roles.keys_there(self.plan, "1", 2)]
        top.lines.clear()
        inner = top.loop(self.n, 2)
        self._rows(inner, first=False)
        before = list(inner.lines)
        inner.lines.clear()
        self._repaired(inner)
        shape = f"{self.plan.rows}, {self.plan.block}"
        loop = [
            f"    for r1 in range(start + {self.plan.block}, end, {self.plan.block}):",
            *roles.scores(self.plan), *before, *roles.summed(self.plan), *inner.lines,
            "        packed = gl.convert_layout(weights, LP)", "        it += 1",
        ]  # fmt: skip
        zeros = [f"    zero = gl.zeros([{shape}], gl.float32, LS)"]
        found = [*zeros, *head, *top.lines, *loop, *roles.last_sum(self.plan)]
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

    def _half(self) -> str:
        return type_name(bfloat16 if self.plan.values.spec.dtype == "bfloat16" else float16)

    def text(self) -> Launch:
        """The text with its grid and arguments."""
        plan, place = self.plan, self._place()
        consumed = self._consumed()
        streams = (plan.queries, plan.keys, plan.values)
        above = _read(self.problem, {self.problem.products[0].node, self._sum.values})
        used = sorted({n.arg[0] for n in above if n.op in (LOAD, STORE) and n.arg[0] >= 0})
        arguments = [source.pointer(f"p{i}", self.dtypes[i], self.places[i]) for i in used]
        arguments += [
            Argument(short, "i64", False, source.VARIABLE, name)
            for name, short in self.variables.items()
        ]
        arguments += [source.number(name, value) for value, name in self.numbers.items()]
        names = [a.name for a in arguments]
        maps = [
            source.tensor_map(f"d{i}", one.spec._replace(param=self.places[one.spec.param].value))
            for i, one in enumerate(streams)
        ]
        tiles = -(-self.sizes[self.m] // self.tall)
        for axis in (*self.problem.batch_axes, *self.problem.m_axes):
            tiles *= 1 if axis == self.m else self.sizes[axis]
        lines = [
            *roles.producer(plan, self.m, self.n, names, place),
            *roles.consumer(plan, names, place, consumed),
            *roles.whole(plan, names),
        ]
        text = definitions("\n".join(lines)) + "\n".join(lines) + "\n"
        given = (*maps, *arguments)
        return Launch(text, "kernel", tiles, 4, 1, given, "gluon")


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


def _read(problem: StreamProblem, stops: set[Node]) -> set[Node]:
    """All that is read or stored beside the factors of products."""
    waiting: list[Node] = [*problem.streaming.stores]
    for state in problem.states:
        waiting += [state.body, *([state.repair] if state.repair is not None else [])]
    waiting += [w.weights for w in problem.weighted]
    sums, seen = {w.state.fold for w in problem.weighted}, set[Node]()
    waiting = [node for node in waiting if node not in {w.state.body for w in problem.weighted}]
    while waiting:
        node = waiting.pop()
        if node in seen or node in stops:
            continue
        seen.add(node)
        waiting += () if node.op is FOLD and node in sums else node.src
    return seen
