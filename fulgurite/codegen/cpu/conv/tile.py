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
from ..gemm.tile import MICROKERNEL_TYPES, RUNS_TYPES, LibraryFunction, Tile
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

    def __init__(self, t: LibraryFunction, views: ViewOperands) -> None:
        super().__init__(t, {"left": "%move", "right": "%move"})
        self.views, self.in_windows = views, self.goes("left", "windows")

    def columns(self, found: dict[str, str], k: str) -> list[str]:
        f = self.f
        return [found["right"], f.number(("own", "right")), f.number(("k", "right"))]

    def multiply_panel(self, function: str, operands: list[str]) -> None:
        """The same for rows of windows that are read in place, one row of an image at a time."""
        t, f, e = self.t, self.f, self.f.e
        _, own, k, right, across, sums, width, depth, rows, *rest = operands
        wide = f.number((("outer", "size", SLOTS - 1), "left"))
        top = f.divided(self.begin["left"], wide)[0]

        def one(number: str, _: list[str]) -> list[str]:
            place, index = "0", f.add(top, number)
            for slot in reversed(range(SLOTS - 1)):
                at = index
                if slot:
                    index, at = f.divided(index, f.number((("outer", "size", slot), "left")))
                step = f.number((("other", "step", slot), "left"))
                place = f.add(place, f.mul(at, step))
            first = f.mul(number, wide)
            left = self.views.at(t, "left", self.views.base(t, "left"), place)
            goal = t.at(sums, f.mul(first, width))
            t.invoke(function, RUNS_TYPES, [
                left, own, k, right, across, goal, width, depth, f.least(wide, f.sub(rows, first)),
                *rest, f.number("run"), f.number("jump"),
            ])  # fmt: skip
            return []

        several = f.divided(f.add(rows, f.sub(wide, "1")), wide)[0]
        several = e.let(f"select i1 {self.in_windows}, i64 {several}, i64 0")
        e.loop("0", several, 1, [], one)
        packed = e.let(f"xor i1 {self.in_windows}, true")
        e.branch(packed, lambda: t.invoke(function, MICROKERNEL_TYPES, operands))

    def write_all(self) -> None:
        """All blocks of k, packed or swept over."""
        t, f, e, views = self.t, self.f, self.f.e, self.views
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
    _Tile(t, views).write_all()
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
