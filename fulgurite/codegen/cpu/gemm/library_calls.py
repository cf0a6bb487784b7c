"""Library calls of a GEMM kernel: functions that it calls, and launches that are such functions.

In: a planned GEMM and a function that is being written. Out: lines that call functions of the
library, which are noted in `modules`, and names of launches. What an operand is, a dense matrix or
an im2col view, is all in the table of numbers that these functions get; so little is written here,
and it is the same for all shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ....kernel.contract.problem import Operand
from ...common.api import FIRST
from ..conv.direct import direct
from ..conv.tile import DIRECT, im2col
from ..conv.tile import TILE as CONV_TILE
from ..conv.tile import tile as conv_tile
from ..conv.view_args import PACK
from ..llvm.convert import memory_dtype
from ..llvm.emitter import scalar_type
from ..loops.function import FunctionBuilder, Numbers
from .geometry import Geometry
from .microkernel import Module, block, fused_packing_name
from .pack_dense import pack_dense
from .skinny import SKINNY, skinny
from .tile import MICROKERNEL_TYPES, MOVE, RUNS_TYPES, TILE, UNITS, pack_launch, pack_units, tile

LAUNCH = "ptr, ptr, i64, i64"  # the types of a launch


class LibraryCalls:
    """What one kernel calls."""

    def __init__(self, geometry: Geometry, numbers: Numbers) -> None:
        self.geometry, self.gemm, self.numbers = geometry, geometry.gemm, numbers
        self.registers, self.dtypes = self.gemm.registers, self.gemm.problem.dtypes
        self.modules: dict[str, Module] = {}
        self.launches: set[str] = set()  # modules whose function is a launch

    def frame(self, symbol: str) -> FunctionBuilder:
        """A new function of the kernel."""
        target = self.gemm.target
        return FunctionBuilder(
            symbol, self.numbers, self.dtypes, target.lanes, target.vectors == "avx512"
        )

    def call(self, f: FunctionBuilder, module: Module, types: str, operands: Sequence[str]) -> None:
        """Call the function of a module."""
        typed = [f"{t} {o}" for t, o in zip(types.split(", "), operands, strict=True)]
        f.e.line(f"call void {self.address(f, module, types)}({', '.join(typed)})")

    def address(self, f: FunctionBuilder, module: Module, types: str) -> str:
        """The function of a module, to be called by another."""
        self.modules[module.name] = module
        f.e.declare(f"void @{module.name}({types})", module.name)
        return f"@{module.name}"

    def table(self, f: FunctionBuilder) -> str:
        """Where the table of numbers is."""
        if "table" not in f.read:
            f.read["table"] = f.e.name("n")
            at = FIRST + len(self.numbers.variables)
            f.entry.append(f"  {f.read['table']} = getelementptr i64, ptr %values, i64 {at}")
        return f.read["table"]

    def library(self, declared: Collection[str]) -> tuple[str, ...]:
        """The texts of what is called, launches last: they call others themselves."""
        names = sorted(self.modules, key=lambda name: (name in self.launches, name))
        return tuple(self.modules[n].text for n in names if n in declared or n in self.launches)

    # --- dense operands --------------------------------------------------------------------------

    def source(self, f: FunctionBuilder, s: Operand, own: str, k: str) -> tuple[str, str]:
        """Where a dense operand has a place, and the step that is not 1."""
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
        kind = scalar_type(memory_dtype(self.gemm.memory_of(s)))
        return f.e.let(f"getelementptr {kind}, ptr {pointer}, i64 {place}"), stride

    def base(self, f: FunctionBuilder, s: Operand, batch: str) -> str:
        """Where a dense operand begins for one product of a batch."""
        f.part = s.part
        f.opened(s.part.batch, f.coordinates(s.part.batch, batch))
        return self.source(f, s, "0", "0")[0]

    def packed(self, f: FunctionBuilder, s: Operand) -> str:
        """Where a dense operand is packed: the workspace, or memory of a right one that stays."""
        if s.name == "left":
            return f.pointer(len(self.dtypes))
        return f.pointer_at(f.number("packed", self.geometry.packed_param), "packed")

    def pack_dense(self, f: FunctionBuilder, s: Operand) -> str:
        """The function that packs a dense operand."""
        return self.address(f, pack_dense(self.registers, s.name, s.is_transposed), MOVE)

    def dense_launch(self, s: Operand) -> str:
        """The launch of the library that packs a dense operand."""
        transposed = s.is_transposed and not self.registers.pairs  # it is a number there
        module = pack_launch(self.registers, s.name, transposed)
        self.modules[module.name] = module
        self.launches.add(module.name)
        return module.name

    def own_dense_launch(self, s: Operand) -> FunctionBuilder:
        """A launch of this kernel's own that packs a dense operand."""
        f = self.frame(f"kernel_{s.name}")
        many = self.geometry.pack_units(s)

        def unit(index: str, carried: list[str]) -> list[str]:
            batch = "0"  # the library goes from one product to the next itself
            if len(s.part.batch.axes) > 1:
                batch, _ = f.divided(index, f.number(("of a product", s.name), many))
            move = self.pack_dense(f, s)
            operands = [
                self.table(f), self.base(f, s, batch), self.packed(f, s), index,
                f.add(index, "1"), move,
            ]  # fmt: skip
            self.call(f, pack_units(self.registers, s.name), UNITS, operands)
            return carried

        f.e.loop("%first", "%last", 1, [], unit)
        return f

    # --- views -----------------------------------------------------------------------------------

    @property
    def im2col(self) -> Module:
        """The module that packs views."""
        return im2col(self.registers, self.gemm.memories)

    @property
    def direct(self) -> Module:
        """The module that sweeps over views."""
        return direct(self.registers, self.gemm.memories)

    def view_launch(self, name: str, own: str, frames: list[FunctionBuilder]) -> str:
        """A launch that is a function of the library, or one of this kernel's own that calls it."""
        if not self.numbers.variables:
            return name
        f = self.frame(own)  # numbers are behind the variables
        f.e.declare(f"void @{name}({LAUNCH})", name)
        values = f.e.let(f"getelementptr i64, ptr %values, i64 {len(self.numbers.variables)}")
        f.e.line(f"call void @{name}(ptr %params, ptr {values}, i64 %first, i64 %last)")
        frames.append(f)
        return own

    # --- tiles -----------------------------------------------------------------------------------

    def tile(
        self, f: FunctionBuilder, place: tuple[str, str, str], span: tuple[str, str], sums: str,
        width: str,
    ) -> None:  # fmt: skip
        """The sums of the tile at a batch, row and column over a span of blocks of k."""
        if self.gemm.kind.reads_views:
            self.view_tile(f, [*place, *span, sums, width])
        else:
            self.dense_tile(f, [*place, *span, sums, width])

    def view_tile(self, f: FunctionBuilder, tile: list[str]) -> None:
        """The same over views: packed, or swept over. What a kernel never calls is no part of its
        library: sweeps are most of the text of both."""
        r, gemm = self.registers, self.gemm
        panel = along_k = pack = sweep = "null"
        if gemm.kind.is_direct:
            sweep = self.address(f, self.direct, DIRECT)
        else:
            in_runs = self.geometry.tiles.left == "windows"
            types = RUNS_TYPES if in_runs else MICROKERNEL_TYPES
            panel = self.address(f, block(r, in_runs), types)
            pack = self.address(f, self.im2col, PACK)
            if gemm.has_masks and not r.dot:  # parts of vectors can be loaded, and not of fours
                along_k = self.address(f, skinny(r, True), SKINNY)
        operands = ["%params", self.table(f), *tile, panel, along_k, pack, sweep]
        self.call(f, conv_tile(r, gemm.memories), CONV_TILE, operands)

    def dense_tile(self, f: FunctionBuilder, tile_at: list[str]) -> None:
        """The same over dense matrices."""
        gemm, r = self.gemm, self.registers
        left, right = [self.base(f, s, tile_at[0]) for s in (gemm.left, gemm.right)]
        panel, along_k, fused = self.address(f, block(r), MICROKERNEL_TYPES), "null", "null"
        if gemm.has_k_contiguous_rows:
            along_k = self.address(f, skinny(r, gemm.has_k_contiguous_columns), SKINNY)
        if r.assembled and not r.pairs:
            fused = f"@{fused_packing_name(block(r))}"
            f.e.declare(f"void {fused}({MICROKERNEL_TYPES})", fused)
        moves = [self.pack_dense(f, s) for s in (gemm.left, gemm.right)]
        memories = [self.packed(f, s) for s in (gemm.left, gemm.right)]
        operands = [
            self.table(f), left, right, *memories, *tile_at, panel, along_k, *moves, fused,
        ]  # fmt: skip
        self.call(f, tile(r), TILE, operands)
