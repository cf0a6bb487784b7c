"""Tiles of contractions with factors seen through windows: library functions for every shape.

In: the registers. Out: texts of modules. `windows` packs a block of such a factor the way that its
numbers say, as rows of k, as panels or as rows of columns, and has the phases that pack a factor
into the workspace; `tile` computes the sums of a tile, going the way that each factor goes. All
they know of a kernel is its table of numbers, in the order of `WINDOWS`. So convolutions of any
size, window, stride, dilation, padding and groups have no text but their epilogue.
"""

from __future__ import annotations

from functools import lru_cache

from ....core.dtype import DType
from ....kernel.contract.im2col import SLOTS
from ...common.api import FIRST
from ..gemm.microkernel import Module, Registers, named, transpose
from ..gemm.tile import Tile
from ..gemm.widen import defined, fours
from .direct import sweeping
from .pack_im2col import Packer, lanes_function
from .view_args import WAYS_TO_PACK, Seen, lots

_ARGUMENTS = (
    "ptr noalias %seen, ptr noalias %from, i64 %own, i64 %k, ptr noalias %to, i64 %stride, "
    "i64 %owned, i64 %depth"
)


def _packer(registers: Registers, number: int, f: Packer) -> tuple[str, dict[str, str]]:
    """The function of one kind, and what it declares."""
    ways = {"turned": f.turned, "tilted": f.turned, "level": f.level}
    ways.get(f.kind, f.straight)()
    if registers.dot and f.kind != "level":
        f.by_fours("%to", str(registers.panel), "%stride")
    return defined(f, f"internal void @PART{number}({_ARGUMENTS})")


class _Tile(Tile):
    """Tiles with factors that are seen through windows."""

    packs = ("own", "flat", "lined")
    along_k = "lined"
    as_lined = ("plain", "flat")
    keeps = False

    def columns(self, found: dict[str, str], k: str) -> list[str]:
        f = self.f
        return [found["right"], f.number(("own", "right")), f.number(("k", "right"))]

    def write(self) -> None:
        """All blocks of k, packed or swept over."""
        f, e = self.f, self.f.e
        assert isinstance(f, Seen)
        swept = self.goes("right", "swept")

        def sweep(number: str, _: list[str]) -> list[str]:
            down = f.mul(self.begin["left"], f.number(("down", "left")))
            down = f.add(down, f.mul(number, f.number(("next block", "left"))))
            left = f.placed("left", f.base("left"), down)
            over = f.mul(number, f.number(("next block", "right")))
            over = f.add(over, f.mul("%column", f.number(("next tile", "right"))))
            right = f.placed("right", f.base("right"), over)
            step = f.number((("lanes", "step", SLOTS - 1), "right"))
            along = e.let(f"icmp ne i64 {f.number(('along', 'right'))}, 0")
            rows = e.let(f"select i1 {along}, i64 0, i64 {self.count['left']}")
            block = f.number("block of k")
            steps = e.let(f"select i1 {along}, i64 {self.count['right']}, i64 {block}")
            f.invoke("%sweep", SWEEP, [
                left, right, f.table_of("%column"), f.number("pieces"), "%sums", "%width",
                rows, steps, step, f.number(("down", "left")), f.sub(number, "%begin"),
            ])  # fmt: skip
            return []

        end = e.let(f"select i1 {swept}, i64 %end, i64 %begin")
        e.loop("%begin", end, 1, [], sweep)
        end = e.let(f"select i1 {swept}, i64 %begin, i64 %end")
        e.loop("%begin", end, 1, [], lambda number, _: self.deep(number))


TILE = "ptr, ptr, i64, i64, i64, i64, i64, ptr, i64, ptr, ptr, ptr, ptr"
SWEEP = "ptr, ptr, ptr, i64, ptr, i64, i64, i64, i64, i64, i64"  # types of what sweeps over windows


@lru_cache(maxsize=32)
def tile(registers: Registers, memories: tuple[DType, DType]) -> Module:
    """`void f(ptr params, ptr numbers, i64 batch, i64 row, i64 column, i64 begin, i64 end,
    ptr sums, i64 width, ptr panel, ptr narrow, ptr move, ptr sweep)`: the sums of the tile at a row
    and column of tiles over some blocks of k."""
    f = Seen(registers, memories)
    for side in ("left", "right"):
        f.base(side)  # once, before all loops
    _Tile(f, {"left": "%move", "right": "%move"}).write()
    arguments = (
        "ptr %params, ptr %numbers, i64 %batch, i64 %row, i64 %column, i64 %begin, i64 %end, "
        "ptr %sums, i64 %width, ptr %panel, ptr %narrow, ptr %move, ptr %sweep"
    )
    return f.module(f"windowed_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def windows(registers: Registers, memories: tuple[DType, DType]) -> Module:
    """`void f(ptr seen, ptr from, i64 own, i64 k, ptr to, i64 stride, i64 owned, i64 depth)`, the
    phases of both sides (`phase`), and what sweeps over windows (`settling` and `sweeper`)."""
    packers = [
        Packer(registers, kind, lot) for lot in lots(registers, memories) for kind in WAYS_TO_PACK
    ]
    made = [_packer(registers, number, f) for number, f in enumerate(packers)]
    made.append(lanes_function(registers))
    made += [_phase(Seen(registers, memories), side) for side in ("left", "right")]
    made += [*([fours(registers)] if registers.dot else []), *sweeping(registers, memories)]
    cases = " ".join([f"i64 {i}, label %is{i}" for i in range(len(packers))])
    lines = ["  %kind = load i64, ptr %seen", f"  switch i64 %kind, label %done [ {cases} ]"]
    operands = _ARGUMENTS.replace(" noalias", "")
    for i in range(len(packers)):
        lines += [f"is{i}:", f"  call void @PART{i}({operands})", "  br label %done"]
    lines += ["done:", "  ret void"]
    head = f"define void @SELF({_ARGUMENTS}) nounwind {{\nentry:"
    declared = {key: line for _, names in made for key, line in names.items()}
    texts = ["\n".join([head, *lines, "}"]), *[text for text, _ in made]]
    turn = transpose(registers)
    inside = turn.text.replace("define void", "define internal void")
    text = "\n".join([*texts, inside]).replace(f"@{turn.name}", "@PARTturn")
    rest = [line for key, line in declared.items() if key != turn.name]
    return named(f"windows_{registers.dtype}", "\n".join([text, *rest]))


def phase(module: Module, side: str) -> str:
    """The name of the function that packs units of a factor into the workspace."""
    return f"{module.name}_part_{side}"


def settling(module: Module) -> str:
    """The name of the phase that finds out what sweeps must know, for each tile of columns."""
    return f"{module.name}_part_settle"


def sweeper(module: Module) -> str:
    """The name of the function that sweeps over windows."""
    return f"{module.name}_part_sweep"


def _phase(f: Seen, side: str) -> tuple[str, dict[str, str]]:
    """A phase of kernels without variables: a function of params and values."""
    f.entry.append(f"  %numbers = getelementptr i64, ptr %values, i64 {FIRST}")
    f.pieces(side, "@SELF")
    arguments = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
    return defined(f, f"void @PART_{side}({arguments})")
