"""Hopper's loops of attention's gradients (FlashAttention 3's backward pass) in Gluon.

In: a `StreamedKernel` whose weights need no running statistics: rows' maxima and sums are memory by
now, scores are computed again. Out: a `Launch`, or None where the form does not fit. A program owns
128 rows, two warpgroups have 64 each; one warp copies blocks of the streamed factors to a ring of
buffers (TMA), each once, whether it is a factor of scores, of sums or both. That warp also works
out what is of streamed elements alone (a reciprocal of a sum): every thread that multiplies reads
such a column's number from a buffer. A warpgroup computes the weights of a block while its last
score product is on its way (`wgmma`, asynchronous), adds weights times values to sums in registers,
and queues the scores of the next block behind them. What weights are comes from kernel/stream:
nothing here knows what is computed. Gluon has no interpreter: correctness is shown on a GPU
(tests/codegen/cuda/gluon_on_gpu.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from ....core.dtype import decode, float32
from ....core.node import Node, forward_slice, make, toposort
from ....core.ops.elementwise import DIV, EXP, MUL, SUB
from ....core.ops.index import LOAD
from ....core.ops.leaf import CONST
from ....kernel.stream.roles import StreamedKernel, StreamProblem
from ..scope import Scope
from ..source import Argument, Launch, Place
from ..spelling import number as text_of
from ..stream import rows_of
from ..tiling import GpuTable
from .program import (
    WARPGROUPS,
    GluonProgram,
    Scaled,
    Streamed,
    factor_of,
    half,
    padded_axes,
)

if TYPE_CHECKING:
    from .one_pass import Crossing

LOWEST = text_of(-inf, float32)


@dataclass(frozen=True, slots=True)
class GluonSumsPlan:
    """Blocks and factors: which are of a program's rows, which are streamed, and who reads them."""

    held: tuple[Streamed, ...]
    streamed: tuple[Streamed, ...]
    products: tuple[tuple[int, int], ...]  # of each: its factor among those held and streamed
    values: tuple[int, ...]  # of each weighted sum: its factor among those streamed
    axes: dict[int, int]  # depths and widths, padded
    block: int  # of N
    buffers: int
    registers: tuple[int, int]  # of a consumer's thread, and of a producer's
    tight: bool  # have weights of one sum alone registers while that is multiplied?


def plan_gluon_sums(
    problem: StreamProblem, table: GpuTable, beside: int = 0
) -> GluonSumsPlan | None:
    """The plan of a kernel of weighted sums alone, if its sums and scores fit into registers.

    So many bytes of shared memory are for others.
    """
    settled = table.gluon_sums and _is_settled(problem)
    axes = padded_axes(problem, table, crossed=beside > 0) if settled else None
    block = None if axes is None else _longest_block(problem, axes, table)
    if axes is None or block is None:
        return None
    factors = _factors(problem, axes, block, table)
    if None in factors or len({one.spec.dtype for one in factors if one is not None}) > 1:
        return None
    count = len(problem.products)
    held, of_rows = _shared(factors[:count])
    streamed, of_blocks = _shared(factors[count:])
    room = table.sums_shared - beside
    if len(WARPGROUPS) * _bytes(held) + table.sums_buffers * _bytes(streamed) > room:
        return None
    return GluonSumsPlan(
        held, streamed, tuple(zip(of_rows, of_blocks[:count], strict=True)), of_blocks[count:],
        axes, block, table.sums_buffers, table.sums_threads,
        _is_tight(problem, axes, block, table),
    )  # fmt: skip


def _is_settled(problem: StreamProblem) -> bool:
    """True if weights are known from products and memory alone, and sums are never repaired."""
    if problem.row_states or not problem.products or not problem.weighted:
        return False
    states = problem.depends_on_states
    return all(w.weights not in states and w.state.repair is None for w in problem.weighted)


def _factors(
    problem: StreamProblem, axes: Mapping[int, int], block: int, table: GpuTable
) -> list[Streamed | None]:
    """All factors for the copy engine: of rows, of scores along N, and values."""
    m, n = rows_of(problem), problem.n_axes[0]
    depths = [(p, p.contraction.folded[0]) for p in problem.products]
    widths = [(w, w.contraction.columns[0]) for w in problem.weighted]
    found = [(p.queries, (m, k), (table.warpgroup_rows, axes[k])) for p, k in depths]
    found += [(p.keys, (n, k), (block, axes[k])) for p, k in depths]
    found += [(w.values, (n, d), (block, axes[d])) for w, d in widths]
    return [factor_of(problem, *one, table) for one in found]


def _longest_block(problem: StreamProblem, axes: Mapping[int, int], table: GpuTable) -> int | None:
    """How many streamed elements a thread has registers for: 64 rows are over 128 threads."""
    each = len(problem.products) + 0.5  # scores, and a weight in 16 bits
    most = table.sums_registers
    fits = [b for b in table.sums_blocks if _registers(problem, axes, b, each) <= most]
    return fits[0] if fits else None


def _registers(problem: StreamProblem, axes: Mapping[int, int], block: int, each: float) -> float:
    """Registers of a thread for all sums, and for so many numbers of each score."""
    sums = sum([axes[w.contraction.columns[0]] for w in problem.weighted])
    return sums / 2 + each * block / 2


def _is_tight(problem: StreamProblem, axes: Mapping[int, int], block: int, table: GpuTable) -> bool:
    """True if weights of all sums and scores at the same time are too many."""
    each = len(problem.products) + 0.5 * len(problem.weighted)
    return _registers(problem, axes, block, each) > table.sums_registers


def _shared(
    factors: Sequence[Streamed | None],
) -> tuple[tuple[Streamed, ...], tuple[int, ...]]:
    """Factors without those that are the same memory, and the place of each among them."""
    kept: dict[tuple[object, ...], tuple[int, Streamed]] = {}
    places = []
    for one in factors:
        assert one is not None, "the plan has all of them"
        key = one.spec, one.axes[:-1]
        places.append(kept.setdefault(key, (len(kept), one))[0])
    return tuple([one for _, one in kept.values()]), tuple(places)


def _bytes(factors: Sequence[Streamed]) -> int:
    """Shared memory of one block of each."""
    return sum([2 * one.spec.block[-2] * one.spec.block[-1] for one in factors])


def render_gluon_sums(
    value: StreamedKernel, places: Sequence[Place], table: GpuTable
) -> Launch | None:
    """A kernel in this form, if it has one."""
    plan = plan_gluon_sums(value.problem, table)
    if plan is None:
        return None
    program = GluonSums(value, places, plan, table)
    return program.text() if program.has_narrow_weights(plan.streamed[0].spec.dtype) else None


class GluonSums(GluonProgram):
    """The text of one launch."""

    def __init__(
        self, value: StreamedKernel, places: Sequence[Place], plan: GluonSumsPlan, table: GpuTable,
        crossing: Crossing | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.crossing = plan, crossing
        super().__init__(value, places, plan.axes, plan.block, table)
        self.copied = Scope(None, {}, 1)  # what the warp that copies works out as well
        self.copying = self.copied.loop(self.n, 2)
        self.shared_columns: dict[str, str] = {}  # buffers of columns, by what is in them
        self.is_copying = False
        self.alike = None if crossing is None else crossing.alike(self)

    def _layout(self) -> str:
        return "LS" if self.dims[1] == self.n else f"L{self.block[self.dims[1]]}"

    # --- numbers of columns ----------------------------------------------------------------------

    def _is_column(self, node: Node) -> bool:
        """True if a value is one number for each streamed element, from memory."""
        if self.is_copying or node.dtype is not float32:
            return False
        of_columns = self.n in self.free[node] and self.m not in self.free[node]
        return of_columns and any(n.op is LOAD for n in toposort([node]))

    def _column(self, node: Node, spelling: str, scope: Scope) -> str:
        """A number of each column, worked out once by the warp that copies: a row of a buffer."""
        self.is_copying = True
        text = spelling.format(self._value(node, self.copying))
        self.is_copying = False
        buffer = self.shared_columns.get(text)
        if buffer is None:
            buffer = self.shared_columns[text] = f"y{len(self.shared_columns)}"
            self.copying.say(f"{buffer}.index(slot).store({text})")
        key = buffer, self.dims
        home = scope.home([self.n])
        if key not in home.names:
            home.names[key] = self._name()
            home.say(f"{home.names[key]} = {buffer}.index(slot).load({self._layout()})")
        return home.names[key]

    def _shifted(self, node: Node) -> Scaled | None:
        """An exp of scores less a number of their row or column, all of it in one instruction."""
        if node.op is not EXP or not self.is_fast or self.is_copying or node.src[0].op is not SUB:
            return None
        scores, by = node.src[0].src
        if not self._is_score(scores) or not self._is_row(by):
            return None
        return self._scaled(scores) or Scaled(scores, None, None)

    def _shifted_exp(self, node: Node, found: Scaled, scope: Scope) -> str:
        by = node.src[0].src[1]
        if found.by is None:  # scores may be numbers that stand for a mask
            scores = self._named(found.product, scope)
            if self._is_column(by):
                return f"fg_fast_exp({scores} - {self._column(by, '{}', scope)})"
            return f"fg_fast_exp_apart({scores}, {self._named(by, scope)})"
        if self._is_column(by):
            shift = self._column(by, "{} * -1.442695", scope)
        else:
            shift = f"({self._named(by, scope)} * -1.442695)"
        factor = f"{self._named(found.by, scope)} * 1.442695"
        text = f"tl.fma({self._named(found.product, scope)}, {factor}, {shift})"
        if found.condition is not None:
            name = self._name()
            scope.say(f"{name} = {text}")
            none = f"{shift} + {LOWEST}"  # NaN, if the number is -inf
            masked = f"tl.where({self._named(found.condition, scope)}, {name}, {none})"
            text = self._at_edges(found.condition, name, masked, scope)
        return f"fg_fast_exp2({text})"

    def _is_divided(self, node: Node) -> bool:
        """True for scores that are divided by a number of their row or column."""
        narrow = node.op is DIV and node in self.narrow and self.is_fast and not self.is_copying
        return narrow and self._is_shared_divisor(node) and node.dtype is float32

    def _inverse(self, divisor: Node, scope: Scope) -> str:
        """The reciprocal of a number of each row or column, worked out once."""
        if self._is_column(divisor):
            return self._column(divisor, "fg_inverse({})", scope)
        home, key = self._home(divisor, scope), ("inverse", self._key(divisor))
        name = home.known(key)
        if name is None:
            name = home.names[key] = self._name()
            home.say(f"{name} = fg_inverse({self._named(divisor, scope)})")
        return name

    def _needs(self, node: Node) -> tuple[Node, ...]:
        if self._is_column(node):
            return ()
        shifted = self._shifted(node)
        if shifted is not None:
            by = node.src[0].src[1]
            return shifted.needs if self._is_column(by) else (*shifted.needs, by)
        if self._is_divided(node) and self._is_column(node.src[1]):
            return node.src[:1]
        return super()._needs(node)

    def _expression(self, node: Node, values: list[str], scope: Scope) -> str:
        if self._is_column(node):
            if node.op is DIV and _is_one(node.src[0]):
                return self._inverse(node.src[1], scope)
            return self._column(node, "{}", scope)
        shifted = self._shifted(node)
        if shifted is not None:
            return self._shifted_exp(node, shifted, scope)
        if self._is_divided(node):
            return f"{values[0]} * {self._inverse(node.src[1], scope)}"
        return super()._expression(node, values, scope)

    # --- a block ---------------------------------------------------------------------------------

    def loose(self, weights: Node) -> tuple[Node, list[Node]]:
        """Weights without factors that are one number: those are for the sum (of bfloat16)."""
        if not self.is_fast or self.plan.streamed[0].spec.dtype != "bfloat16":
            return weights, []
        factors: list[Node] = []
        rest = self._without_numbers(weights, factors)
        return (rest, factors) if rest in self.free else (weights, [])

    def _without_numbers(self, node: Node, factors: list[Node]) -> Node:
        """A product without the factors that are one number, which are put aside."""
        if node.op is not MUL:
            return node
        fixed = [s for s in node.src if not self.free[s] & {self.m, self.n}]
        if len(fixed) == 1:
            factors += fixed
            (rest,) = [s for s in node.src if s is not fixed[0]]
            return self._without_numbers(rest, factors)
        return make(MUL, node.dtype, tuple([self._without_numbers(s, factors) for s in node.src]))

    def _scores(self, slot: str, scope: Scope) -> list[str]:
        """All score products of a block, on their way in the order in which they are needed."""
        flying = []
        for number in self._products_in_turn():
            row, key = self.plan.products[number]
            scope.say(
                f"c{number} = warpgroup_mma(h{row}, {self._streamed(key, slot)}.permute((1, 0)), "
                "zero, use_acc=False, is_async=True)"
            )
            flying.append(f"c{number}")
        return flying

    def _sums(self, flying: list[str], scope: Scope) -> None:
        """Weights of a block and what they add, as products arrive."""
        for number, product in enumerate(self.problem.products):
            scope.names[product.node, (self.m, self.n)] = f"c{number}"
        for number in self._in_turn():
            weighted = self.problem.weighted[number]
            rest, _ = self.loose(weighted.weights)
            self._arrived(rest, flying, scope)
            width = self.block[self._width(weighted)]
            scope.say(f"w{number} = {self._narrow(rest, scope)}")
            factor = self._factor(number, width, scope)
            if flying and (flying[-1][0] == "c" or self.plan.tight):
                self._wait(flying[-1], flying, scope)  # from before this turn: all at once
            values = self._streamed(self.plan.values[number], "slot")
            scope.say(f"f{number} = warpgroup_mma({factor}, {values}, f{number}, is_async=True)")
            flying.append(f"f{number}")
        if self.crossing is not None and self.alike is None:
            scope.say(f"wx = {self._narrow(self.loose(self.crossing.crossed.weights)[0], scope)}")
            self.crossing.leave("wx", scope)

    def _narrow(self, weights: Node, scope: Scope) -> str:
        """Weights of a block in 16 bits."""
        text = self._value(weights, scope)
        cut = [self.n] if self.crossing is None else [self.m, self.n]
        ragged = self._ragged_masks(cut, scope)
        if ragged:  # what is beyond an end may be NaN, and 0 times that
            text = f"tl.where({' & '.join(ragged)}, {text}, 0.0)"
        shape, kind = self._shape(frozenset(self.dims)), half(self.plan.streamed[0].spec.dtype)
        return f"tl.broadcast_to({text}, {shape}).to({kind})"

    def _factor(self, number: int, width: int, scope: Scope) -> str:
        """Weights of a sum where its product reads them: in registers."""
        if self.crossing is not None and number == self.alike:
            self.crossing.leave(f"w{number}", scope)
        scope.say(f"w{number} = gl.convert_layout(w{number}, P{width})")
        return f"w{number}"

    def _arrived(self, weights: Node, flying: list[str], scope: Scope) -> None:
        """Wait for products that weights need, behind what needs those alone that are there."""
        needed = [f"c{i}" for i in _needed(self.problem, weights)]
        late = [name for name in flying if name in needed]
        if late:
            for node in self._ready_before(weights, {int(name[1:]) for name in late}):
                self._value(node, scope)
            self._wait(late[-1], flying, scope)

    def _ready_before(self, weights: Node, missing: set[int]) -> list[Node]:
        """What is worked out from products that are there, for what is not."""
        order = toposort([weights])
        late = forward_slice(order, [self.problem.products[i].node for i in missing])
        found = [s for node in order if node in late for s in node.src if s not in late]
        there = {p.node for p in self.problem.products} - late
        return [n for n in dict.fromkeys(found) if n not in there and there & {*toposort([n])}]

    def _in_turn(self) -> list[int]:
        """Weighted sums, those first whose weights need fewest products."""
        count = range(len(self.problem.weighted))
        needed = [len(_needed(self.problem, w.weights)) for w in self.problem.weighted]
        return sorted(count, key=lambda i: needed[i])

    def _products_in_turn(self) -> list[int]:
        """Score products, those first that are waited for first: of an exp before others."""
        weights = [self.problem.weighted[i].weights for i in self._in_turn()]
        exps = [n for n in toposort(weights) if n.op is EXP]
        every = [_needed(self.problem, node) for node in (*exps, *weights)]
        found = dict.fromkeys([i for needed in every for i in sorted(needed)])
        return [*found, *[i for i in range(len(self.plan.products)) if i not in found]]

    def _wait(self, name: str, flying: list[str], scope: Scope) -> None:
        """Wait for a product, and so for all before it."""
        there = flying[: flying.index(name) + 1]
        del flying[: len(there)]
        names = ", ".join(there)
        scope.say(f"{names} = warpgroup_mma_wait(num_outstanding={len(flying)}, deps=({names},))")

    def _streamed(self, place: int, slot: str) -> str:
        return f"b{place}.index({slot}).reshape({self._sides(self.plan.streamed[place])})"

    def _sides(self, one: Streamed) -> str:
        return f"[{one.spec.block[-2]}, {one.spec.block[-1]}]"

    # --- the whole -------------------------------------------------------------------------------

    def _consumed(self) -> list[str]:
        """What a warpgroup does: the loop, then the stores."""
        top = Scope(None, {}, 1)
        self._loop(top)
        if self.is_persistent:
            top.say("mbarrier.arrive(rows_free.index(W), count=1)")
        for number, weighted in enumerate(self.problem.weighted):
            for factor in self.loose(weighted.weights)[1]:
                top.say(f"f{number} = f{number} * {self._value(factor, top)}")
        for number, state in enumerate(self.problem.states):
            self._call(state.fold, f"f{number}", top)
        for store in self.problem.streaming.stores:
            with self._view(self._store_dims(store)):
                self._store(store, self._value(store.src[0], top), top)
        return top.lines

    def _loop(self, top: Scope) -> None:
        """Sums of a block, and scores of the next behind them; the last block stands alone.

        Sums are waited for in the loop they began in: the assembler takes the multiplications one
        by one where a sum that has begun meets its zeros.
        """
        sums = ", ".join([f"f{number}" for number in self._in_turn()])  # their zeros come first
        top.say(f"{sums} = warpgroup_mma_wait(num_outstanding=0, deps=({sums},))")
        top.say(self._there("it"))
        flying = self._scores(f"it % {self.plan.buffers}", top)
        self._wait(flying[0], flying, top)
        before = list(top.lines)
        top.lines.clear()
        inner = top.loop(self.n, 1)
        inner.header = f"for r1 in range(start, end - {self.plan.block}, {self.plan.block}):"
        inner.say(f"slot = it % {self.plan.buffers}")
        waiting = list(flying)
        self._sums(waiting, inner)
        inner.say(self._there("(it + 1)"))
        scores = self._scores(f"(it + 1) % {self.plan.buffers}", inner)
        waiting += scores
        self._wait(scores[0], waiting, inner)
        inner.say("mbarrier.arrive(free.index(slot), count=1)")
        inner.say("it += 1")
        last = Scope(top, {self.n: 3}, 1)
        last.say(f"slot = it % {self.plan.buffers}")
        self._sums(flying, last)
        self._wait(flying[-1], flying, last)
        top.lines += before
        self._close(inner, top)
        top.say(f"r1 = start + (it - begin) * {self.plan.block}")
        top.lines += last.lines
        if self.is_persistent:
            top.say(f"mbarrier.arrive(free.index(it % {self.plan.buffers}), count=1)")
            top.say("it += 1")

    def _there(self, block: str) -> str:
        count = self.plan.buffers
        return f"mbarrier.wait(there.index({block} % {count}), {block} // {count} & 1)"

    def _buffers(self) -> list[str]:
        held = [f"q{i}" for i in range(len(self.plan.held))]
        return [*held, *[f"b{i}" for i in range(len(self.plan.streamed))],
                *self.shared_columns.values(), "rows_there", "there", "free",
                *(["rows_free"] if self.is_persistent else []),
                *(self.crossing.names if self.crossing is not None else ())]  # fmt: skip

    def _produce(
        self, names: Sequence[str], place: Sequence[str], maps: Sequence[str]
    ) -> list[str]:
        """The warp that copies: the rows of both warpgroups, then blocks in turn."""
        plan, count = self.plan, len(self.plan.held)
        given = ", ".join([*maps, *self._buffers(), *names])
        head = ["@gluon.jit", f"def produce({given}):"]
        if self.shared_columns:
            head.append("    LS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 1], [1, 0])")
        lines = [*place, *self.copied.lines]
        for w in WARPGROUPS:
            sizes = " + ".join([f"d{i}.block_type.nbytes" for i in range(count)])
            if self.is_persistent:
                lines.append(f"    mbarrier.wait(rows_free.index({w}), (turn & 1) ^ 1)")
            lines.append(f"    mbarrier.expect(rows_there.index({w}), {sizes})")
            for i, one in enumerate(plan.held):
                where = self._at(one, f"first + {w * self.rows}")
                lines.append(f"    tma_load(d{i}, {where}, rows_there.index({w}), q{i}.index({w}))")
        sizes = " + ".join([f"d{count + i}.block_type.nbytes" for i in range(len(plan.streamed))])
        lines += [
            f"    for r1 in range(start, end, {plan.block}):",
            f"        slot = it % {plan.buffers}",
            f"        mbarrier.wait(free.index(slot), (it // {plan.buffers} & 1) ^ 1)",
            f"        mbarrier.expect(there.index(slot), {sizes})",
        ]
        for i, one in enumerate(plan.streamed):
            lines.append(f"        tma_load(d{count + i}, {self._at(one, 'r1')}, "
                         f"there.index(slot), b{i}.index(slot))")  # fmt: skip
        lines += self.copying.lines
        if self.shared_columns:
            lines.append("        mbarrier.arrive(there.index(slot), count=1)")
        return [*head, *self.persistent_loop([*lines, "        it += 1"]), "", ""]

    def _at(self, one: Streamed, own: str) -> str:
        found = [own if a in (self.m, self.n) else f"a{a}" for a in one.axes[:-1]]
        return f"[{', '.join([*found, '0'])}]"

    def _consume(
        self, names: Sequence[str], place: Sequence[str], body: Sequence[str]
    ) -> list[str]:
        """A warpgroup that multiplies."""
        given = ", ".join([*self._buffers(), *names, "W: gl.constexpr"])
        widths = [self.block[self._width(w)] for w in self.problem.weighted]
        lines = [
            "@gluon.jit",
            f"def consume({given}):",
            f"    LS: gl.constexpr = {mma_layout(self.plan.block)}",
        ]
        for width in sorted(set(widths)):
            lines.append(f"    L{width}: gl.constexpr = {mma_layout(width)}")
            lines.append(f"    P{width}: gl.constexpr = gl.DotOperandLayout(0, L{width}, 2)")
        lines.append(f"    zero = gl.zeros([{self.rows}, {self.plan.block}], gl.float32, LS)")
        for i, one in enumerate(self.plan.held):
            lines.append(f"    h{i} = q{i}.index(W).reshape({self._sides(one)})")
        inside = [*place, f"    om = first + W * {self.rows}", "    begin = it"]
        for i, width in enumerate(widths):
            inside.append(f"    f{i} = gl.zeros([{self.rows}, {width}], gl.float32, L{width})")
        phase = "turn & 1" if self.is_persistent else "0"
        inside.append(f"    mbarrier.wait(rows_there.index(W), {phase})")
        return [*lines, *self.persistent_loop([*inside, *body]), "", ""]

    def _kernel(self, names: Sequence[str], maps: Sequence[str]) -> list[str]:
        """Buffers, barriers, and who does what."""
        plan, given = self.plan, ", ".join(self._buffers())
        more = "".join([f", {name}" for name in names])
        lines = ["@gluon.jit", f"def kernel({', '.join([*maps, *names])}):"]
        held = [(f"q{i}", len(WARPGROUPS), one) for i, one in enumerate(plan.held)]
        ring = [(f"b{i}", plan.buffers, one) for i, one in enumerate(plan.streamed)]
        for place, (name, count, one) in enumerate([*held, *ring]):
            sides = ", ".join(map(str, one.spec.block))
            lines.append(f"    {name} = gl.allocate_shared_memory(gl.{one.spec.dtype}, "
                         f"[{count}, {sides}], d{place}.layout)")  # fmt: skip
        for name in self.shared_columns.values():
            lines.append(f"    {name} = gl.allocate_shared_memory(gl.float32, [{plan.buffers}, 1, "
                         f"{plan.block}], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))")  # fmt: skip
        full = 2 if self.shared_columns else 1  # the copy engine, and the warp itself
        both, readers = len(WARPGROUPS), 1 if self.crossing is None else 2
        barriers = (("rows_there", both, 1), ("there", plan.buffers, full),
                    ("free", plan.buffers, both), ("rows_free", both, readers))  # fmt: skip
        for one_barrier in barriers if self.is_persistent else barriers[:-1]:
            lines += self.barrier(*one_barrier)
        lines += [] if self.crossing is None else self.crossing.memory(self)
        consumers = ", ".join([f"(consume, ({given}{more}, {w}))" for w in WARPGROUPS])
        mine, copies = plan.registers
        warps, registers = [4, 1], [mine, copies]
        if self.crossing is not None:
            consumers += f", (cross, ({given}{more}))"
            warps, registers = [4, 4, 1], [mine, self.crossing.registers, copies]
        return [
            *lines, f"    gl.warp_specialize([{consumers}, (produce, ({', '.join(maps)}, "
            f"{given}{more}))], {warps}, {registers})",
        ]  # fmt: skip

    def barrier(self, name: str, count: int, arrivals: int) -> list[str]:
        """So many barriers, each complete by so many arrivals."""
        return [
            f"    {name} = gl.allocate_shared_memory(gl.int64, [{count}, 1], "
            "mbarrier.MBarrierLayout())",
            f"    for i in gl.static_range({count}):",
            f"        mbarrier.init({name}.index(i), count={arrivals})",
        ]

    def _arguments(self) -> list[Argument]:
        """All arguments but the copy engine's."""
        between = [] if self.crossing is None else [self.crossing.argument]
        return [*between, *self._names([w.values for w in self.problem.all_weighted])[0]]

    def text(self) -> Launch:
        """The text with its grid and arguments."""
        place, added = self._place(), ""
        if self.crossing is not None:  # its numbers are arguments
            added = self.crossing.added(self.n, self._number, self._is_ragged(self.n))
        body = self._consumed()
        arguments, factors = self._arguments(), (*self.plan.held, *self.plan.streamed)
        names, maps = [a.name for a in arguments], [f"d{i}" for i in range(len(factors))]
        lines = [*self._produce(names, place, maps), *self._consume(names, place, body)]
        if self.crossing is not None:
            given = ", ".join([*self._buffers(), *names])
            lines += self.crossing.role(self, given, added, place)
        lines += self._kernel(names, maps)
        return self._launch(lines, factors, arguments)


def _is_one(node: Node) -> bool:
    return node.op is CONST and decode(node.arg[0], node.dtype) == 1


def mma_layout(columns: int) -> str:
    """The layout that `wgmma` leaves so many columns of 64 rows in."""
    return ("gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], "
            f"instr_shape=[16, {columns}, 16])")  # fmt: skip


def _needed(problem: StreamProblem, weights: Node) -> set[int]:
    """The products that weights are computed from."""
    inside = set(toposort([weights]))
    return {i for i, product in enumerate(problem.products) if product.node in inside}
