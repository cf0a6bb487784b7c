"""Attention's gradients in one pass (FlashAttention's backward loop) in Gluon: five products.

In: a `StreamedKernel` with sums of its rows (dK, dV) and a transposed one (dQ), found by
kernel/stream. Out: launches, or None where the form does not fit and each side has a pass of its
own. The loop is that of `sums.py`. Both its warpgroups leave weights of a block in shared memory; a
third one multiplies them, transposed, with the rows that the program holds, and adds what comes out
to numbers of 32 bits in the workspace. All programs of a batch step do, in whatever order they
come: this form is for `deterministic=False` alone. A launch before it stores zeros there, and one
behind it what follows from the sums. Warpgroups of rows do not wait for each other, so that one
multiplies while the other computes weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from ....core.dtype import float32, void
from ....core.node import constant, make
from ....core.ops.elementwise import MUL
from ....core.ops.index import LOAD, STORE
from ....core.ops.leaf import SINK
from ....graph.ir.bodies import replaced
from ....graph.ir.lower import IndexKernel
from ....kernel.stream.roles import StreamedKernel, StreamProblem, WeightedSum
from ..scope import Scope
from ..source import Launch, Place, pointer
from ..stream import rows_of
from ..tiling import GpuTable, power
from .program import WARPGROUPS, factor_of
from .sums import GluonSums, GluonSumsPlan, mma_layout, plan_gluon_sums


@dataclass(frozen=True, slots=True)
class OnePassPlan:
    """The plan of the rows' sums, and the place of the transposed sum's factor among those held."""

    sums: GluonSumsPlan
    values: int
    width: int  # columns of the transposed sum, padded
    slots: int  # blocks of weights that are left in shared memory
    registers: int  # of a thread that crosses


def plan_one_pass(problem: StreamProblem, table: GpuTable) -> OnePassPlan | None:
    """The plan of a kernel with one transposed sum, if it fits."""
    if not table.gluon_one_pass or len(problem.transposed) != 1 or not problem.weighted:
        return None
    (crossed,) = problem.transposed
    if len(crossed.contraction.columns) != 1:
        return None
    rows, slots = table.warpgroup_rows, table.one_pass_slots
    room = slots * len(WARPGROUPS) * 2 * rows * rows
    mine, crosses, copies = table.one_pass_threads
    less = replace(
        table, sums_registers=table.one_pass_registers, sums_threads=(mine, copies)
    )  # fmt: skip
    sums = plan_gluon_sums(problem, less, room)
    if sums is None or sums.block != rows:
        return None
    (d,) = crossed.contraction.columns
    width = max(16, power(problem.sizes[d]))
    values = factor_of(problem, crossed.values, (rows_of(problem), d), (rows, width), table)
    alike = [i for i, one in enumerate(sums.held) if values and one.spec == values.spec]
    if not alike or width > table.one_pass_width:
        return None
    return OnePassPlan(sums, alike[0], width, slots, crosses)


@dataclass(frozen=True, slots=True)
class OnePass:
    """The launch of the loop, and kernels before and behind it over the workspace."""

    loop: Launch
    kernels: tuple[IndexKernel, IndexKernel]


def sums_between(problem: StreamProblem) -> int:
    """How many numbers of 32 bits are between the launches."""
    (crossed,) = problem.transposed
    return prod([problem.sizes[a] for a in _axes(problem, crossed)])


def _axes(problem: StreamProblem, crossed: WeightedSum) -> tuple[int, ...]:
    """The axes of a transposed sum: the batch's, the streamed one, columns."""
    return (*problem.batch_axes, *problem.n_axes, *crossed.contraction.columns)


def render_one_pass(
    value: StreamedKernel, places: Sequence[Place], between: Place, table: GpuTable
) -> OnePass | None:
    """A kernel in this form, if it has one; the workspace is behind its params."""
    problem = value.problem
    plan = plan_one_pass(problem, table)
    if plan is None:
        return None
    crossing = Crossing(problem, plan, between)
    program = GluonSums(value, places, plan.sums, table, crossing)
    if not program.has_narrow_weights(plan.sums.held[0].spec.dtype):
        return None
    (crossed,), (store,) = problem.transposed, problem.streaming.across
    axes, param = _axes(problem, crossed), len(value.dtypes)
    steps = [prod([problem.sizes[a] for a in axes[i + 1 :]]) for i in range(len(axes))]
    place = 0, tuple(sorted(zip(axes, steps, strict=True)))
    zeros = make(STORE, void, (constant(0, float32),), (param, place, "set", axes))
    total = make(LOAD, float32, (), (param, place, ()))
    for factor in program.loose(crossed.weights)[1]:
        total = make(MUL, float32, (total, factor))
    done = replaced([store], {crossed.state.fold: total})[0]
    kernel = IndexKernel(problem.sizes, SINK(zeros), value.kernel.divisions)
    return OnePass(program.text(), (kernel, kernel._replace(body=SINK(done))))


class Crossing:
    """What a program of sums has more, where a transposed one crosses its rows."""

    def __init__(self, problem: StreamProblem, plan: OnePassPlan, between: Place) -> None:
        self.problem, self.plan = problem, plan
        self.argument = pointer("between", float32, between)
        self.names = "xs", "x_there", "x_free"
        self.registers = plan.registers
        (self.crossed,) = problem.transposed

    def alike(self, program: GluonSums) -> int | None:
        """The sum of rows that has the same weights as the transposed one, if there is one."""
        wanted = program.loose(self.crossed.weights)[0]
        every = enumerate(self.problem.weighted)
        return next((i for i, w in every if program.loose(w.weights)[0] is wanted), None)

    def leave(self, weights: str, scope: Scope) -> None:
        """Leave weights of a block where the third warpgroup finds them."""
        slots = self.plan.slots
        scope.say(f"mbarrier.wait(x_free.index(it % {slots}), (it // {slots} & 1) ^ 1)")
        scope.say(f"xs.index(it % {slots} * {len(WARPGROUPS)} + W).store({weights})")
        scope.say("fence_async_shared()")
        scope.say(f"mbarrier.arrive(x_there.index(it % {slots}), count=1)")

    def memory(self, program: GluonSums) -> list[str]:
        """Buffers of weights, and their barriers."""
        kind, count = self.plan.sums.held[0].spec.dtype, self.plan.slots
        layout = "gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)"
        return [
            f"    xs = gl.allocate_shared_memory(gl.{kind}, [{count * len(WARPGROUPS)}, "
            f"{program.rows}, {self.plan.sums.block}], {layout})",
            *program.barrier("x_there", count, len(WARPGROUPS)),
            *program.barrier("x_free", count, 1),
        ]

    def role(self, program: GluonSums, given: str, added: str, place: Sequence[str]) -> list[str]:
        """The warpgroup of the transposed sum: weights of a block, times all rows."""
        plan, block, width = self.plan, self.plan.sums.block, self.plan.width
        wide = min(32, width // 4)  # threads along columns: 16 bytes each
        held = f"q{plan.values}.index({{}}).reshape([{program.rows}, {width}])"
        products = []
        for w in WARPGROUPS:
            left = f"xs.index(it % {plan.slots} * {len(WARPGROUPS)} + {w}).permute((1, 0))"
            before = "zero, use_acc=False" if w == 0 else "across"
            products.append(f"        across = warpgroup_mma({left}, {held.format(w)}, {before}, "
                            "is_async=True)")  # fmt: skip
        turn = "turn & 1" if program.is_persistent else "0"
        lines = [
            *place,
            *[f"    mbarrier.wait(rows_there.index({w}), {turn})" for w in WARPGROUPS],
            f"    for r1 in range(start, end, {block}):",
            f"        mbarrier.wait(x_there.index(it % {plan.slots}), it // {plan.slots} & 1)",
            *products,
            "        across = warpgroup_mma_wait(num_outstanding=0, deps=(across,))",
            f"        mbarrier.arrive(x_free.index(it % {plan.slots}), count=1)",
            "        across = gl.convert_layout(across, LR)",
            f"        {added}",
            "        it += 1",
        ]
        if program.is_persistent:
            lines += [f"    mbarrier.arrive(rows_free.index({w}), count=1)" for w in WARPGROUPS]
        return [
            "@gluon.jit",
            f"def cross({given}):",
            f"    LX: gl.constexpr = {mma_layout(width)}",
            f"    zero = gl.zeros([{block}, {width}], gl.float32, LX)",
            "    LR: gl.constexpr = gl.BlockedLayout("  # rows of a warp are those it multiplies
            f"[{16 * wide // 32}, 4], [{32 // wide}, {wide}], [4, 1], [1, 0])",
            f"    xr = tl.arange(0, {block}, layout=gl.SliceLayout(1, LR))[:, None]",
            f"    xc = tl.arange(0, {width}, layout=gl.SliceLayout(0, LR))[None, :]",
            *program.persistent_loop(lines), "", "",
        ]  # fmt: skip

    def added(self, n: int, number: Callable[[int], str], ragged: bool) -> str:
        """Add the transposed sum of a block to those of all rows."""
        sizes, (d,) = self.problem.sizes, self.crossed.contraction.columns
        size, place = sizes[d], "0"
        for axis in self.problem.batch_axes:
            place = f"({place} * {number(sizes[axis])} + a{axis})"
        place = f"({place} * {number(sizes[n])} + r1).to(tl.int64) * {size}"
        masks = [f"(xr < {number(sizes[n])} - r1)"] if ragged else []
        masks += [f"(xc < {size})"] if size != self.plan.width else []
        mask = f"mask={' & '.join(masks)}, " if masks else ""
        where = f"between + {place} + (xr * {size} + xc)"
        return f"gl.atomic_add({where}, across, {mask}sem='relaxed')"
