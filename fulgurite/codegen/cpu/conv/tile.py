"""Shape-generic tiles of implicit GEMM and direct convolution: library functions, compiled once.

In: the registers. Out: texts of modules. `im2col` packs a block of a view as its descriptor says,
as rows of k, as panels or as rows of columns, and has the launches that pack an operand into the
workspace; `tile` computes the sums of a tile, with each operand on its route. All they know of a
kernel is its table of numbers, in the order of `VIEW_TABLE`. So convolutions of any
size, window, stride, dilation, padding and groups have no text but their epilogue.
"""

from __future__ import annotations

from functools import lru_cache

from ....core.dtype import DType
from ....kernel.contract.im2col import SLOTS
from ...common.api import FIRST
from ..gemm.microkernel import Module, Registers, defined, named, transpose
from ..gemm.tile import LibraryFunction, Tile
from ..gemm.widen import pack_vnni
from .pack_im2col import Im2colPacker, lanes_function
from .view_args import PACK_KINDS, ViewOperands, pack_dtypes

_ARGUMENTS = (
    "ptr noalias %view, ptr noalias %from, i64 %own, i64 %k, ptr noalias %to, i64 %stride, "
    "i64 %owned, i64 %depth"
)


def _packer(registers: Registers, number: int, f: Im2colPacker) -> tuple[str, dict[str, str]]:
    """The function of one kind, and what it declares."""
    ways = {"transposed": f.transposed, "dense transposed": f.transposed, "dense": f.dense}
    ways.get(f.kind, f.straight)()
    if registers.packs_vnni and f.kind != "dense":
        f.to_vnni("%to", str(registers.panel), "%stride")
    return defined(f, f"internal void @PART{number}({_ARGUMENTS})")


class _Tile(Tile):
    """Tiles with operands that are views."""

    packs = ("tile", "rows", "k-major")
    along_k = "k-major"
    in_rows = ("dense", "rows")
    fuses_packing = False

    def columns(self, found: dict[str, str], k: str) -> list[str]:
        f = self.f
        return [found["right"], f.number(("own", "right")), f.number(("k", "right"))]

    def write_all(self, views: ViewOperands) -> None:
        """All blocks of k, packed or swept over."""
        t, f, e = self.t, self.f, self.f.e
        direct = self.goes("right", "direct")

        def sweep(number: str, _: list[str]) -> list[str]:
            down = f.mul(self.begin["left"], f.number(("down", "left")))
            down = f.add(down, f.mul(number, f.number(("next block", "left"))))
            left = views.at(t, "left", views.base(t, "left"), down)
            over = f.mul(number, f.number(("next block", "right")))
            along = e.let(f"icmp ne i64 {f.number(('along', 'right'))}, 0")
            later = f.sub("%column", f.least("%column", "1"))
            inner = f.least(later, f.number("alike"))
            table = views.tile_table(t, f.sub("%column", inner))
            last = e.let(f"icmp eq i64 %column, {f.number('last tile')}")
            moved = e.let(f"select i1 {last}, i64 0, i64 {inner}")
            moved = e.let(f"select i1 {along}, i64 %column, i64 {moved}")
            over = f.add(over, f.mul(moved, f.number(("next tile", "right"))))
            right = views.at(t, "right", views.base(t, "right"), over)
            step = f.number((("lanes", "step", SLOTS - 1), "right"))
            rows = e.let(f"select i1 {along}, i64 0, i64 {self.count['left']}")
            deep, block = f.number("deep"), f.number("block of k")
            steps = e.let(f"select i1 {along}, i64 {self.count['right']}, i64 {deep}")
            left_over = f.sub(f.number("depth"), f.mul(number, block))
            times = f.divided(f.least(block, left_over), deep)[0]
            t.invoke("%direct", DIRECT, [
                left, right, table, f.number("pieces"), "%sums", "%width",
                rows, steps, step, f.number(("down", "left")), f.sub(number, "%begin"), times,
                f.number(("next", "left")), f.number(("next", "right")),
            ])  # fmt: skip
            return []

        end = e.let(f"select i1 {direct}, i64 %end, i64 %begin")
        e.loop("%begin", end, 1, [], sweep)
        end = e.let(f"select i1 {direct}, i64 %begin, i64 %end")
        e.loop("%begin", end, 1, [], lambda number, _: self.deep(number))


TILE = "ptr, ptr, i64, i64, i64, i64, i64, ptr, i64, ptr, ptr, ptr, ptr"
DIRECT = "ptr, ptr, ptr, i64, ptr" + ", i64" * 9  # of a direct convolution


@lru_cache(maxsize=32)
def tile(registers: Registers, memories: tuple[DType, DType]) -> Module:
    """`void f(ptr params, ptr numbers, i64 batch, i64 row, i64 column, i64 begin, i64 end,
    ptr sums, i64 width, ptr panel, ptr skinny, ptr move, ptr direct)`: the sums of the tile at a
    row and column of tiles over some blocks of k."""
    views = ViewOperands(registers, memories)
    t = LibraryFunction(registers, views)
    for side in ("left", "right"):
        views.base(t, side)  # once, before all loops
    _Tile(t, {"left": "%move", "right": "%move"}).write_all(views)
    arguments = (
        "ptr %params, ptr %numbers, i64 %batch, i64 %row, i64 %column, i64 %begin, i64 %end, "
        "ptr %sums, i64 %width, ptr %panel, ptr %skinny, ptr %move, ptr %direct"
    )
    return t.module(f"conv_tile_{registers.dtype}", arguments)


@lru_cache(maxsize=32)
def im2col(registers: Registers, memories: tuple[DType, DType]) -> Module:
    """`void f(ptr view, ptr from, i64 own, i64 k, ptr to, i64 stride, i64 owned, i64 depth)`, and
    the launches of both sides (`pack_launch`)."""
    packers = [
        Im2colPacker(registers, kind, dtype)
        for dtype in pack_dtypes(registers, memories) for kind in PACK_KINDS
    ]  # fmt: skip
    made = [_packer(registers, number, f) for number, f in enumerate(packers)]
    made.append(lanes_function(registers))
    made += [_pack_launch(registers, memories, side) for side in ("left", "right")]
    made += [pack_vnni(registers)] if registers.packs_vnni else []
    cases = " ".join([f"i64 {i}, label %is{i}" for i in range(len(packers))])
    lines = ["  %kind = load i64, ptr %view", f"  switch i64 %kind, label %done [ {cases} ]"]
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
    return named(f"im2col_{registers.dtype}", "\n".join([text, *rest]))


def pack_launch(module: Module, side: str) -> str:
    """The name of the function that packs units of an operand into the workspace."""
    return f"{module.name}_part_{side}"


def _pack_launch(
    registers: Registers, memories: tuple[DType, DType], side: str
) -> tuple[str, dict[str, str]]:
    """A launch of kernels without variables: a function of params and values."""
    t = LibraryFunction(registers, ViewOperands(registers, memories))
    t.f.entry.append(f"  %numbers = getelementptr i64, ptr %values, i64 {FIRST}")
    t.pack_units(side, "@SELF")
    arguments = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
    return defined(t.f, f"void @PART_{side}({arguments})")
