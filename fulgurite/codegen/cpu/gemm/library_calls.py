"""Contractions as users of the library: their calls, and phases that are functions of it.

In: a `Product` and a function that is being written. Out: lines that call functions of the library,
which are noted in `modules`, and names of phases. What a factor of memory is, as it is or seen
through windows, is all in the table of numbers that these functions get; so little is written here,
and it is the same for all shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dtype import DType
from ....kernel.contract.analysis import Contraction
from ...common.api import FIRST
from ..conv.tile import SWEEP, sweeper, windows
from ..conv.tile import TILE as SEEN_TILE
from ..conv.tile import tile as seen_tile
from ..conv.view_args import MOVE as SEEN_MOVE
from ..llvm.convert import memory_dtype
from ..llvm.emitter import scalar_type
from ..loops.function import Frame
from .microkernel import MASKS, Module, Registers, block, keeper
from .pack import Side
from .pack_dense import moving
from .plan import Product
from .skinny import NARROW, narrow
from .tile import BLOCK, MOVE, PIECES, TILE, packing, pieces, tile

PHASE = "ptr, ptr, i64, i64"  # the types of a phase


class Borrower(Product):
    """A contraction that calls the library."""

    def __init__(self, c: Contraction, dtypes: Sequence[DType], registers: Registers) -> None:
        super().__init__(c, dtypes, registers)
        self.modules: dict[str, Module] = {}
        self.phased: set[str] = set()  # those whose function is a phase

    def frame(self, symbol: str) -> Frame:
        masked = self.target.vectors == "avx512"
        return Frame(symbol, self.numbers, self.dtypes, self.target.lanes, masked)

    def call(self, f: Frame, module: Module, types: str, operands: Sequence[str]) -> None:
        """Call the function of a module."""
        typed = [f"{t} {o}" for t, o in zip(types.split(", "), operands, strict=True)]
        f.e.line(f"call void {self.address(f, module, types)}({', '.join(typed)})")

    def address(self, f: Frame, module: Module, types: str) -> str:
        """The function of a module, to be called by another."""
        self.modules[module.name] = module
        f.e.declare(f"void @{module.name}({types})", module.name)
        return f"@{module.name}"

    def known_numbers(self, f: Frame) -> str:
        """Where the table is."""
        if "table" not in f.read:
            f.read["table"] = f.e.name("n")
            at = FIRST + len(self.numbers.variables)
            f.entry.append(f"  {f.read['table']} = getelementptr i64, ptr %values, i64 {at}")
        return f.read["table"]

    def source(self, f: Frame, s: Side, own: str, k: str) -> tuple[str, str]:
        """Where a factor that is memory as it is has a place, and the step that is not 1."""
        f.part = s.part
        folded = s.part.folded.axes
        f.open[folded[0]] = k
        f.open.update(zip(s.own.axes, [own] * len(s.own.axes), strict=True))
        number, index, _ = s.root.arg
        name = ("at", self.numbers.position[s.root])
        place = f.index(index, (), name).text
        other = s.own.axes if s.along == "folded" else folded
        steps = [(p, step) for p, (atom, step) in enumerate(index[1]) if atom in other]
        stride = f.number((name, steps[0][0], "step"), steps[0][1]) if steps else "0"
        pointer = f.pointer(number)
        kind = scalar_type(memory_dtype(self.memory_of(s)))
        return f.e.let(f"getelementptr {kind}, ptr {pointer}, i64 {place}"), stride

    def base(self, f: Frame, s: Side, batch: str) -> str:
        """Where a factor that is memory as it is begins for one product of a batch."""
        f.part = s.part
        f.opened(s.part.batch, f.coordinates(s.part.batch, batch))
        return self.source(f, s, "0", "0")[0]

    def lent_phase(self, s: Side) -> str:
        """The function of the library that packs a factor of memory as it is."""
        module = packing(self.registers, s.name, s.straight)
        self.modules[module.name] = module
        self.phased.add(module.name)
        return module.name

    def seen_phase(self, module: Module, name: str, own: str, frames: list[Frame]) -> str:
        """A phase that is a function of the library, or one of this kernel's own that calls it."""
        self.modules[module.name] = module
        if not self.numbers.variables:
            return name
        f = self.frame(own)  # numbers are behind the variables
        f.e.declare(f"void @{name}({PHASE})", name)
        values = f.e.let(f"getelementptr i64, ptr %values, i64 {len(self.numbers.variables)}")
        f.e.line(f"call void @{name}(ptr %params, ptr {values}, i64 %first, i64 %last)")
        frames.append(f)
        return own

    def moved(self, s: Side) -> tuple[Frame, int]:
        """A phase of this kernel's own that packs a factor of memory as it is."""
        f = self.frame(f"kernel_{s.name}")
        many = self.count_of_pieces(s)

        def unit(index: str, carried: list[str]) -> list[str]:
            batch = "0"  # the library goes from one product to the next itself
            if len(s.part.batch.axes) > 1:
                batch, _ = f.divided(index, f.number(("of a product", s.name), many))
            move = self.address(f, moving(self.registers, s.name, s.straight), MOVE)
            operands = [
                self.known_numbers(f), self.base(f, s, batch), f.pointer(len(self.dtypes)), index,
                f.add(index, "1"), move,
            ]  # fmt: skip
            self.call(f, pieces(self.registers, s.name), PIECES, operands)
            return carried

        f.e.loop("%first", "%last", 1, [], unit)
        return f, self.batch * many

    def lend(
        self, f: Frame, batch: str, row: str, column: str, begin: str, end: str, sums: str,
        width: str,
    ) -> None:  # fmt: skip
        """The sums of a tile by a function of the library."""
        if self.windowed:
            r, seen = self.registers, windows(self.registers, self.memories)
            f.e.declare(f"void @{sweeper(seen)}({SWEEP})", sweeper(seen))
            few = "null"  # nobody is lined up where parts of vectors cannot be loaded, or fours
            if self.target.vectors in MASKS and not r.dot:
                few = self.address(f, narrow(r, True), NARROW)
            self.call(f, seen_tile(r, self.memories), SEEN_TILE, [
                "%params", self.known_numbers(f), batch, row, column, begin, end, sums, width,
                self.address(f, block(r), BLOCK), few, self.address(f, seen, SEEN_MOVE),
                f"@{sweeper(seen)}",
            ])  # fmt: skip
            return
        left, right = [self.base(f, s, batch) for s in (self.left, self.right)]
        panel, few = self.address(f, block(self.registers), BLOCK), "null"
        if self.rows_along_k:
            few = self.address(f, narrow(self.registers, self.columns_along_k), NARROW)
        keep = "null"
        if self.registers.assembled:
            keep = f"@{keeper(block(self.registers))}"
            f.e.declare(f"void {keep}({BLOCK})", keep)
        moves = [
            self.address(f, moving(self.registers, s.name, s.straight), MOVE)
            for s in (self.left, self.right)
        ]
        operands = [
            self.known_numbers(f), left, right, f.pointer(len(self.dtypes)), batch, row, column,
            begin, end, sums, width, panel, few, *moves, keep,
        ]  # fmt: skip
        self.call(f, tile(self.registers), TILE, operands)
