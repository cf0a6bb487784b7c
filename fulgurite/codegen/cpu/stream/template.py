"""The streaming template: one pass over blocks of N, with states that are repaired on the way.

In: the `StreamedKernel` that a search chose, and a `StreamPlan` of its tiles. Out: a `KernelText`.
It is FlashAttention's loop for any online reduction: a unit owns a tile of rows; for every block of
N score products are computed into a tile, row states take them in, weighted sums are rescaled and
added to; at the end the epilogue stores what is computed from the states. `StreamFunction` puts the
components together, each of which emits one of these steps; it decides nothing itself. The order of
all sums follows from the plan alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...._lazy import FORK_LOCK
from ....core.dtype import DType
from ....core.symbolic.sym import greatest
from ....kernel.stream.roles import StreamedKernel, StreamProblem
from ...common.api import KernelText, Launch
from ..gemm.microkernel import Registers
from ..target import Target
from .accumulators import WeightedSums
from .block_loop import BlockLoop
from .column_lanes import ColumnLanesUpdate, ColumnMajorProducts
from .elements import ElementStore
from .operands import Operands, PanelGemm
from .outputs import OutputEmitter
from .plan import StreamPlan, plan_stream
from .row_lanes import RowLanesUpdate, RowMajorProducts
from .split import Splitter, StateMerger
from .states import StateSet
from .tile import Launched, Tile
from .transposed import TransposedAccumulator, TransposedProducts
from .weights import weight_tiles


def stream_template(value: StreamedKernel, target: Target) -> KernelText | None:
    """A kernel that streams over an axis, by the plan that its sizes give."""
    plan = plan_stream(value.problem, target)
    return None if plan is None else render_stream(value.problem, value.dtypes, target, plan)


def render_stream(
    problem: StreamProblem, dtypes: Sequence[DType], target: Target, plan: StreamPlan
) -> KernelText:
    """A kernel that streams over an axis, by a plan of its own (`plan_stream`)."""
    registers = Registers(problem.dtype, target)
    if plan.strips:
        with FORK_LOCK:
            from .two_pass import TwoPassFunction
        return TwoPassFunction(problem, plan, dtypes, registers).render()
    return StreamFunction(problem, plan, dtypes, registers).render()


class StreamFunction:
    """The components of one pass, and the functions they make together."""

    def __init__(
        self, problem: StreamProblem, plan: StreamPlan, dtypes: Sequence[DType],
        registers: Registers,
    ) -> None:  # fmt: skip
        self.problem, self.plan = problem, plan
        tile = self.tile = Tile(problem, plan, dtypes, registers)
        operands, gemm = Operands(tile), PanelGemm(tile)
        along_m = plan.lanes == "m"
        loads = [c.left for c in problem.loads_along_n] if along_m else []
        self.gemm, self.states = gemm, StateSet(tile)
        self.weights = weight_tiles(tile, operands, loads)
        self.sums = WeightedSums(tile, operands, gemm, self.states, self.weights)
        products = RowMajorProducts if along_m else ColumnMajorProducts
        self.products = products(tile, operands, gemm)
        kind = RowLanesUpdate if along_m else ColumnLanesUpdate
        self.update = kind(tile, self.states, loads, self.weights)
        self.outputs = OutputEmitter(tile, self.states)
        self.blocks = BlockLoop(tile)
        self.splitter = Splitter(tile, self.states, self.sums) if plan.splits > 1 else None
        self.transposed: TransposedAccumulator | None = None
        if problem.transposed:
            parts = TransposedProducts(tile, operands, gemm, self.weights)
            self.transposed = TransposedAccumulator(tile, parts)
        self.elements = ElementStore(tile, self.weights) if problem.elements else None

    # --- functions -------------------------------------------------------------------------------

    def render(self) -> KernelText:
        """The main function, those that pack operands for all units before it, and what follows."""
        before = [*self.sums.functions(), *self.products.functions()]
        main = self.main()
        found = [*before, main, *self.following()]
        return rendered(self.tile, found, [launch for _, launch in found])

    def main(self) -> Launched:
        """The function that streams."""
        tile = self.tile
        f = tile.new_function("kernel")
        f.number("steps", self.plan.block_n)
        tile.prepare(self.reserve)
        for number in range(len(self.problem.products)):  # nothing odd in lanes not in use
            tile.fill_zeros(f.read[f"tile{number}"], f.read["room", f"tile{number}"])
        each_tile = None if self.transposed is None else self.transposed.each_tile

        def unit(index: str) -> None:
            if each_tile is None:
                self.stream_tile(index)
            else:
                each_tile(index, self.stream_tile)

        tile.each_unit(unit)
        units = tile.units if self.transposed is None else self.transposed.units
        return f, Launch(f.symbol, units * self.plan.splits, stream_work(tile))

    def following(self) -> list[Launched]:
        """What runs after all units have streamed."""
        if self.transposed is not None:
            return self.transposed.functions()
        if self.splitter is None:
            return []
        merger = StateMerger(self.tile, self.states, self.splitter, self.sums)

        def reserve() -> None:
            self.reserve_states()
            merger.reserve()

        return [self.splitter.merging(merger, reserve, self.update.part(), self.outputs.emit)]

    # --- a tile ----------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Everything a tile needs, on the stack."""
        self.products.reserve()
        self.weights.reserve(self.products.tile_numbers)
        self.sums.reserve_values()
        self.reserve_states()
        self.sums.reserve_coefficients()
        self.gemm.reserve()
        self.sums.reserve_errors()
        self.states.reserve_errors()
        if self.transposed is not None:
            self.transposed.reserve()
        if self.elements is not None:
            self.elements.reserve()

    def reserve_states(self) -> None:
        """The states of a tile, and what results need."""
        self.sums.reserve()
        self.outputs.reserve()

    def stream_tile(self, index: str) -> None:
        """A tile: all blocks of N, then its results, or its states to be merged."""
        tile, f = self.tile, self.tile.f
        start, end = self.blocks.bounds(*tile.open_unit(index))
        f.scopes.append({})
        if self.transposed is not None:
            self.transposed.products.begin()
        self.products.begin()
        self.states.begin()
        self.sums.begin()
        self.states.begin_errors()
        self.sums.begin_errors()
        self.blocks.emit(start, end, self.block)
        if self.splitter is not None:
            self.splitter.keep(index)
        else:
            self.sums.add_errors()
            self.states.add_errors()
            self.outputs.emit()
        f.scopes.pop()

    def block(self) -> None:
        """A block of N: products, row states, then all that is added to."""
        self.products.emit_all()
        self.states.enter_block()
        if self.update.is_needed:
            self.update.emit()
        if self.states.coefficients:
            self.tile.e.branch(self.tile.begun, lambda: self.tile.scoped(self.sums.rescale))
        for number in self.sums.numbers:
            self.sums.add(number)
        self.states.leave_block()
        if self.transposed is not None:
            self.transposed.emit()
        if self.elements is not None:
            self.elements.emit()


def stream_work(tile: Tile) -> int:
    """A guess of the work of all units, in additions."""
    problem = tile.problem
    products = sum([p.depth for p in problem.products])
    products += sum([w.width for w in problem.all_weighted])
    elements = problem.batch * problem.n
    read = elements * products  # which is what few rows wait for
    return greatest(read, 3 * elements * problem.m * (products + 16) // tile.lanes)  # type: ignore[no-any-return]


def rendered(tile: Tile, functions: Sequence[Launched], launches: Sequence[Launch]) -> KernelText:
    """The text of all functions of a kernel, and how they are launched."""
    declared: dict[str, str] = {}
    for f, _ in functions:
        declared |= f.e.declared
    text = "\n".join([*[f.text() for f, _ in functions], *declared.values(), ""])
    library = tuple([m.text for n, m in sorted(tile.modules.items()) if n in declared])
    return KernelText(
        text, tuple(launches), tuple(tile.numbers.variables), tuple(tile.numbers.values),
        tile.workspace.size * tile.dtype.itemsize, library,
    )  # fmt: skip
