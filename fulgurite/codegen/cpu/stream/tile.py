"""A tile of a streaming kernel: its coordinates, its memory, and the function being emitted.

In: a problem and its plan. Out: lines of functions. All components of the template share one
`Tile`: it knows which batch element, rows, columns and block of N are being computed, holds a
tile's buffers (stack memory by name), and reads and writes their vectors. What functions leave for
each other is in the kernel's workspace, whose layout is `workspace`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from ....core.dtype import DType
from ....core.ops.index import FOLD, STORE
from ....core.ops.leaf import SINK
from ....kernel.stream.roles import StreamProblem
from ...common.api import Launch
from ..gemm.microkernel import Module, Registers
from ..llvm.emitter import Emitter, Val, scalar_type
from ..llvm.masked import masked_store
from ..loops.function import Numbers
from ..tiling import CPU
from .bounded_exp import bounded_exps
from .inner_reduce import StreamBuilder
from .plan import StreamPlan

Launched = tuple[StreamBuilder, Launch]  # a function and how it is launched


class Workspace:
    """What a kernel's functions leave for each other: where each part begins, in numbers."""

    def __init__(self) -> None:
        self.at: dict[Hashable, int] = {}
        self.size = 0

    def allocate(self, name: Hashable, count: int) -> None:
        """Room for some numbers, after all others."""
        self.at[name] = self.size
        self.size += count


class Tile:
    """The tile being computed, in the function being emitted."""

    f: StreamBuilder
    at: str  # the batch element
    top: str  # the first row, and how many there are
    count: str
    columns: list[tuple[str, str]]  # of each weighted sum: the first column, and how many
    k: str  # the first element of this block of N, and how many there are
    deep: str
    seen: str  # 1 if there were blocks before this one
    begun: str  # the same as a truth
    stride: str  # numbers between lines of a tile of scores
    weight_strides: tuple[str, str]  # of a tile of weights: between rows, between elements of N

    def __init__(
        self, problem: StreamProblem, plan: StreamPlan, dtypes: Sequence[DType],
        registers: Registers,
    ) -> None:  # fmt: skip
        self.problem, self.plan, self.dtypes, self.registers = problem, plan, dtypes, registers
        self.dtype, self.lanes = problem.dtype, registers.target.lanes
        self.inner = scalar_type(self.dtype)
        self.vector, self.truth = f"<{self.lanes} x {self.inner}>", f"<{self.lanes} x i1>"
        self.has_masks = registers.target.has_masks
        self.m_tiles, self.d_tiles = plan.m_tiles(problem), plan.d_tiles(problem)
        self.n_blocks = plan.n_blocks(problem)
        self.units = problem.batch * self.m_tiles * self.d_tiles
        self.row_numbers = plan.tile_m + 2 * self.lanes  # room for a number of each row
        self.tiling = CPU.stream
        self.workspace = Workspace()
        self.modules: dict[str, Module] = {}
        self.numbers = Numbers(problem.order)
        self.bounded_exps = bounded_exps(problem.order, problem.states)

    @property
    def e(self) -> Emitter:
        """Lines of the function being emitted."""
        return self.f.e

    # --- functions -------------------------------------------------------------------------------

    def new_function(self, symbol: str) -> StreamBuilder:
        """Begin the next function of this kernel."""
        masked = self.registers.target.vectors == "avx512"
        f = self.f = StreamBuilder(symbol, self.numbers, self.dtypes, self.lanes, masked)
        f.sizes, f.bounded_exps = self.problem.sizes, self.bounded_exps
        return f

    def prepare(self, reserve: Callable[[], None]) -> None:
        """What a function has before its units: buffers, and values that are the same for all."""
        problem, plan, f = self.problem, self.plan, self.f
        transposed = [w.width for w in problem.transposed]
        longest = max(plan.tile_m, plan.block_n, *plan.tile_d, *transposed)
        f.read["row"] = f.number("row", longest + self.lanes)
        reserve()
        f.part = problem.part([], (), ())
        for node in problem.order:
            plain = node not in problem.depends_on_states and node.op not in (FOLD, STORE, SINK)
            if plain and not problem.free[node]:
                f.e.pin(f.value(node))

    def each_unit(self, body: Callable[[str], None]) -> None:
        """Run `body(unit)` for the units of a launch."""
        self.loop("%first", "%last", 1, body)

    def loop(self, start: str, end: str, step: int | str, body: Callable[[str], None]) -> None:
        """Run `body(index)` from start to end; a step that is text is a register."""

        def turn(index: str, _: list[str]) -> list[str]:
            body(index)
            return []

        self.e.loop(start, end, step, [], turn)

    def vectors(self, count: str, body: Callable[[str], None]) -> None:
        """Run `body(place)` for vectors of so many numbers."""
        self.loop("0", count, self.lanes, body)

    def open_unit(self, index: str) -> tuple[str, str]:
        """A unit's rows and columns, and from where to where it streams."""
        f, plan = self.f, self.plan
        all_rows, tile_rows = f.number("rows", self.problem.m), f.number("tile rows", plan.tile_m)
        tall, wide = f.number("tall", self.m_tiles), f.number("wide", self.d_tiles)
        start, end = "0", f.number("length", self.problem.n)
        if plan.splits > 1:
            part, index = f.divided(index, f.number("units", self.units))
            span = f.number("span", plan.split_n)
            start = f.mul(part, span)
            end = f.least(end, f.add(start, span))
        outer, row = f.divided(index, tall)
        self.at, column = f.divided(outer, wide)
        self.top = f.mul(row, tile_rows)
        self.count = f.least(tile_rows, f.sub(all_rows, self.top))
        self.columns = []
        for number, w in enumerate(self.problem.weighted):
            size = f.number(("columns", number), w.width)
            tile = f.number(("tile columns", number), plan.tile_d[number])
            first = f.mul(column, tile)
            self.columns.append((first, f.least(tile, f.sub(size, first))))
        return start, end

    # --- buffers ---------------------------------------------------------------------------------

    def reserve(self, name: str, count: int) -> None:
        """A buffer on the stack."""
        self.f.scratch(name, self.inner, self.f.number(("room", name), count))

    def sum_numbers(self, number: int) -> int:
        """Room for the rows of columns of a weighted sum."""
        return self.plan.tile_m * (self.plan.tile_d[number] + self.lanes) + self.lanes

    def sum_stride(self, number: int) -> str:
        """Numbers from one row of a weighted sum to the next."""
        return self.f.number(("width", number), self.plan.tile_d[number] + self.lanes)

    def shared(self, place: str) -> str:
        """A place in the workspace."""
        return self.element(self.f.pointer(len(self.dtypes)), place)

    def element(self, memory: str, place: str) -> str:
        """The address of a number."""
        return self.e.let(f"getelementptr {self.inner}, ptr {memory}, i64 {place}")

    def load(self, memory: str, place: str) -> Val:
        """A vector."""
        where = self.element(memory, place)
        return Val(self.e.let(f"load {self.vector}, ptr {where}, align 4"), self.dtype, True)

    def load_one(self, memory: str, place: str) -> Val:
        """One number."""
        where = self.element(memory, place)
        return Val(self.e.let(f"load {self.inner}, ptr {where}, align 4"), self.dtype)

    def store(self, memory: str, place: str, text: str) -> None:
        """Write a vector."""
        where = self.element(memory, place)
        self.e.line(f"store {self.vector} {text}, ptr {where}, align 4")

    def store_one(self, memory: str, place: str, value: Val) -> None:
        """Write one number."""
        where = self.element(memory, place)
        self.e.line(f"store {self.inner} {value.text}, ptr {where}, align 4")

    def store_lanes(self, memory: str, place: str, value: Val) -> None:
        """Write the lanes of a vector that are in use."""
        where, text = self.element(memory, place), self.e.splat(value).text
        if self.f.mask is None:
            self.e.line(f"store {self.vector} {text}, ptr {where}, align 4")
        else:
            masked_store(self.e, self.vector, text, where, self.f.mask, align=4)

    def fill(self, memory: str, count: str, value: Val) -> None:
        """The same number everywhere."""
        self.vectors(count, lambda i: self.store(memory, i, value.text))

    def fill_zeros(self, memory: str, count: str) -> None:
        """Zeros everywhere."""
        self.fill(memory, count, self.e.const(0, self.dtype, True))

    def copy(self, source: str, target: str, count: str) -> None:
        """Whole vectors, of which there is room for one more."""
        self.vectors(count, lambda i: self.store(target, i, self.load(source, i).text))

    def each_sum(self, number: int, body: Callable[[str], None]) -> None:
        """Run `body(place)` for the vectors of all rows of a weighted sum."""
        f, width = self.f, self.sum_stride(number)

        def row(r: str) -> None:
            self.vectors(self.columns[number][1], lambda c: body(f.add(f.mul(r, width), c)))

        self.loop("0", self.count, 1, row)

    def invoke(self, module: Module, kinds: str, operands: str) -> None:
        """Call a function of the library."""
        self.modules[module.name] = module
        self.e.declare(f"void @{module.name}({kinds})", module.name)
        self.e.line(f"call void @{module.name}({operands})")

    def scoped(self, body: Callable[..., None], *given: object) -> None:
        """Run `body` with values of its own."""
        self.f.scope(partial(body, *given))
