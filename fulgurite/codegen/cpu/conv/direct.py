"""Direct convolution: rows times an im2col view of which nothing is packed.

In: the registers. Out: the text of a module. A launch finds out once for every tile of columns
which pieces of memory its vectors are, where each step of k moves them, and which of their lanes
are left by conditions, and keeps that in the workspace. The module's function computes the sums of
a tile: for a few pieces at a time it goes over all steps of k with the sums in registers, many rows
times one piece, or few times several; the table of one window serves all channels. So a depthwise
convolution reads its image through masks that all channels and images share. Where lanes run along
k (the gradient of its weights), a few columns at a time go over all pieces instead.
"""

from __future__ import annotations

from functools import lru_cache, partial

from ....core.dtype import DType, int32
from ....kernel.contract.im2col import SLOTS
from ...common.api import FIRST
from ..gemm.microkernel import Module, Registers, defined, named
from ..gemm.tile import LibraryFunction
from ..gemm.widen import gathered, widen
from ..llvm.convert import from_memory, load_row, memory_dtype, shuffled
from ..llvm.emitter import Val, ramp, scalar_type
from ..llvm.masked import masked_store
from ..loops.function import FunctionBuilder, Numbers
from ..spelling import cast
from ..tiling import GEMM
from .pack_im2col import Im2colPacker, lanes_function
from .view_args import DESCRIPTOR, ViewOperands

LOADS = ("near", "two", "apart")  # lanes next to each other, two steps apart, or further
_PIECES, _COLUMNS, _ROWS = GEMM.direct_pieces, GEMM.direct_columns, GEMM.direct_rows
_CHAIN = GEMM.direct_chain_steps
_LAUNCH = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"
_ARGUMENTS = (
    "ptr noalias %left, ptr noalias %right, ptr noalias %table, i64 %pieces, ptr noalias %sums, "
    "i64 %width, i64 %rows, i64 %steps, i64 %step, i64 %down, i64 %more, i64 %times, "
    "i64 %next_left, i64 %next_right"
)


def most_pieces(columns: int, run: int, lanes: int) -> int:
    """How many pieces some columns are at most, if memory has so many next to each other."""
    found = -(-columns // lanes) + columns // run + 2
    return -(-found // _PIECES) * _PIECES


def table_bytes(pieces: int, depth: int) -> int:
    """Bytes of what is known of one tile."""
    found = 8 + 16 * depth + pieces * (8 + 8 + 4 + 4 * depth)
    return -(-found // 64) * 64


class _Table:
    """What is known of a tile: how many pieces; for each step of k where it moves both operands;
    for each piece its memory, its first column and its lanes; and the lanes left at each step."""

    def __init__(self, f: FunctionBuilder, memory: str, pieces: str, depth: str) -> None:
        self.count, place = memory, "8"
        found = []
        steps, numbers = f.mul(depth, "8"), f.mul(pieces, "8")
        for size in (steps, steps, numbers, numbers, f.mul(pieces, "4"), "0"):
            found.append(f.e.let(f"getelementptr i8, ptr {memory}, i64 {place}"))
            place = f.add(place, size)
        self.moves, self.weights, self.offsets, self.places, self.lanes, self.masks = found


@lru_cache(maxsize=32)
def direct(registers: Registers, memories: tuple[DType, DType]) -> Module:
    """`void f(ptr left, ptr right, ptr table, i64 pieces, ptr sums, i64 width, i64 rows, i64 steps,
    i64 step, i64 down, i64 more, i64 times, i64 next_left, i64 next_right)`: the sums of a tile.
    Lanes are `step` apart, rows of the left operand `down`; `more`: they are added to those that
    are there. The steps of the table are gone over some `times`, each further on in both operands.
    With no rows lanes run along k, and steps are columns."""
    made = [lanes_function(registers)]
    tall = {load: tuple([rows for rows, _ in registers.direct_blocks(load)]) for load in LOADS}
    for load in LOADS:
        for kind, many in ((_RowSums, (*tall[load], _ROWS)), (_ColumnSums, (_COLUMNS,))):
            for count in (*many, 1) if load != "apart" else (1,):
                f = kind(registers, load, count, memories)
                f.sums()
                apart = " noinline" if f.is_tall else ""  # else few rows have registers that spill
                made.append(defined(f, f"internal void @{f.symbol}({_ARGUMENTS}){apart}"))
    whole = FunctionBuilder("SELF", Numbers([]), [], registers.target.lanes, False)
    outside = [scalar_type(memory_dtype(memory)) for memory in memories]
    _all_rows(whole, scalar_type(registers.dtype), outside, tall)
    launch = _table_launch(registers, memories)
    made += [
        _total(registers), defined(whole, f"void @SELF({_ARGUMENTS})"),
        defined(_FillTable(registers, "near"), f"internal void @PART_table({_TABLE})"),
        defined(launch, f"void @PART_tables({_LAUNCH})"),
    ]  # fmt: skip
    declared = {key: line for _, names in made for key, line in names.items()}
    texts = [*[text for text, _ in made], *declared.values()]
    return named(f"direct_{registers.dtype}", "\n".join(texts))


def table_launch(module: Module) -> str:
    """The name of the launch that fills the table of each tile."""
    return f"{module.name}_part_tables"


# --- sums ----------------------------------------------------------------------------------------


def _all_rows(
    f: FunctionBuilder, inner: str, outside: list[str], heights: dict[str, tuple[int, ...]]
) -> None:
    """Rows in groups, or columns where there are none, by the functions for so many."""
    e = f.e
    near, two = [e.let(f"icmp eq i64 %step, {n}") for n in (1, 2)]
    columns = e.let(f"select i1 {e.let('icmp eq i64 %rows, 0')}, i64 %steps, i64 0")

    def row(function: str, number: str, _: list[str]) -> list[str]:
        left = e.let(f"getelementptr {outside[0]}, ptr %left, i64 {f.mul(number, '%down')}")
        sums = e.let(f"getelementptr {inner}, ptr %sums, i64 {f.mul(number, '%width')}")
        names = _ARGUMENTS.replace(" noalias", "").replace("%sums", sums)
        e.line(f"call void {function}({names.replace('%left', left)})")
        return []

    def few(function: str, number: str, _: list[str]) -> list[str]:
        first = e.let(f"getelementptr {outside[0]}, ptr %left, i64 {f.mul(number, '%down')}")
        sums = e.let(f"getelementptr {inner}, ptr %sums, i64 {f.mul(number, '%width')}")
        names = _ARGUMENTS.replace(" noalias", "").replace("%sums", sums)

        def once(time: str, _: list[str]) -> list[str]:
            moves = [f.mul(time, f"%next_{side}") for side in ("left", "right")]
            left = e.let(f"getelementptr {outside[0]}, ptr {first}, i64 {moves[0]}")
            right = e.let(f"getelementptr {outside[1]}, ptr %right, i64 {moves[1]}")
            now = names.replace("%left", left).replace("%right", right)
            e.line(f"call void {function}({now.replace('%more', f.add('%more', time))})")
            return []

        return e.loop("0", "%times", 1, [], once)

    def column(function: str, number: str, _: list[str]) -> list[str]:
        names = _ARGUMENTS.replace(" noalias", "").replace("%width", number)
        e.line(f"call void {function}({names})")
        return []

    for all_, name, one, sizes in (
        ("%rows", "", few, (_ROWS,)), (columns, "dots_", column, (_COLUMNS,))
    ):  # fmt: skip
        begin = "0"
        for load, is_so in (("near", near), ("two", two)):
            tall = () if name else heights[load]
            for many in (*tall, *sizes):
                end = f.sub(all_, e.let(f"urem i64 {f.sub(all_, begin)}, {many}"))
                end = e.let(f"select i1 {is_so}, i64 {end}, i64 {begin}")
                function = f"@PART_{load}_{name}{many}"
                e.loop(begin, end, many, [], partial(row if many in tall else one, function))
                begin = end
        other = e.let(f"select i1 {two}, ptr @PART_two_{name}1, ptr @PART_apart_{name}1")
        other = e.let(f"select i1 {near}, ptr @PART_near_{name}1, ptr {other}")
        e.loop(begin, all_, 1, [], partial(one, other))


class _RowSums(FunctionBuilder):
    """The sums of some rows over all pieces of a tile: in several chains, of one time that the
    steps of the table are gone over; of many rows in one chain, of all times."""

    def __init__(
        self, registers: Registers, load: str, rows: int, memories: tuple[DType, DType]
    ) -> None:
        super().__init__(f"PART_{load}_{rows}", Numbers([]), [], registers.target.lanes, False)
        self.registers, self.way, self.rows = registers, load, rows
        tall = dict(registers.direct_blocks(load))
        self.is_tall = rows in tall  # registers for one chain, not for two
        self.pieces = tall.get(rows, _PIECES)
        self.memories = memories
        self.outside = [scalar_type(memory_dtype(memory)) for memory in memories]
        self.inner = scalar_type(registers.dtype)
        self.vector = f"<{self.e.lanes} x {self.inner}>"
        self.short = {"float": "f32", "double": "f64"}.get(self.inner, self.inner)

    def sums(self) -> None:
        """Everything that the function does."""
        e, together = self.e, self.pieces
        table = _Table(self, "%table", "%pieces", "%steps")
        count = e.let(f"load i64, ptr {table.count}")
        zero = [(self.vector, "zeroinitializer")] * (self.rows * together)
        each, later = self.lane_places(), self.later()

        def group(piece: str, _: list[str]) -> list[str]:
            numbers = [self.add(piece, str(u)) if u else piece for u in range(together)]
            offsets = [self.get(table.offsets, n) for n in numbers]
            masks = self.masks(table, piece)

            def once(time: str, totals: list[str]) -> list[str]:
                right = self.at("%right", self.mul(time, "%next_right"), self.outside[1])
                left = self.at("%left", self.mul(time, "%next_left"), self.outside[0])
                sources = [self.at(right, offset, self.outside[1]) for offset in offsets]

                def step(k: str, now: list[str]) -> list[str]:
                    move, weight = self.get(table.moves, k), self.get(table.weights, k)
                    live = self.live(masks, k)
                    self.fetch(sources, move, later)
                    found = [
                        self.window(self.at(source, move, self.outside[1]), bits, each)
                        for source, bits in zip(sources, live, strict=True)
                    ]
                    first, out = self.at(left, weight, self.outside[0]), []
                    for row in range(self.rows):
                        if row:
                            first = self.at(first, "%down", self.outside[0])
                        factor = e.splat(self.number_of(first)).text
                        for u, x in enumerate(found):
                            out.append(self.sum(x, factor, now[row * together + u]))
                    return out

                def block(first: str, totals: list[str]) -> list[str]:
                    last = self.least(self.add(first, str(_CHAIN)), "%steps")
                    return self.totals(totals, e.loop(first, last, 1, zero, step))

                if self.is_tall:
                    return e.loop("0", "%steps", 1, [(self.vector, t) for t in totals], step)
                sums = e.loop("0", self.least("%steps", str(_CHAIN)), 1, zero, step)  # mostly all
                known = [(self.vector, total) for total in sums]
                return e.loop(str(_CHAIN), "%steps", _CHAIN, known, block)

            sums = e.loop("0", "%times", 1, zero, once) if self.is_tall else once("0", [])
            for u, n in enumerate(numbers):
                self.write_rows(table, n, sums[u::together])
            return []

        e.loop("0", count, together, [], group)

    def later(self) -> str:
        """How far on in the right operand memory is prefetched, if many rows sweep over neighbours:
        the host cannot guess the next image, and all of them wait for one line."""
        if not self.is_tall or self.way != "near":
            return ""
        times = self.divided(str(GEMM.direct_fetch_steps), "%steps")[0]
        times = self.e.call("i64", "llvm.smax.i64", f"i64 {times}", "i64 1")
        return self.mul(times, "%next_right")

    def fetch(self, sources: list[str], move: str, later: str) -> None:
        """Prefetch the pieces that are swept over later at a step."""
        for source in sources if later else ():
            ahead = self.at(source, later, self.outside[1])
            self.e.prefetch(self.at(ahead, move, self.outside[1]))

    def masks(self, table: _Table, piece: str) -> str:
        """Where the masks of a piece and of those that go with it are, for all steps of k."""
        if self.pieces == _PIECES:
            return self.at(table.masks, self.mul(piece, "%steps"), "i32")
        whole = self.e.let(f"and i64 {piece}, {-_PIECES}")
        masks = self.at(table.masks, self.mul(whole, "%steps"), "i32")
        return self.at(masks, self.sub(piece, whole), "i16")

    def write_rows(self, table: _Table, piece: str, sums: list[str]) -> None:
        """The sums of a piece, one of each row, to their tile."""
        mask = self.chosen(self.get(table.lanes, piece, "i32"))
        place = self.get(table.places, piece)
        for row, total in enumerate(sums):
            goal = self.at("%sums", self.add(place, self.mul(str(row), "%width")))
            self.write(self.joined(total, goal, mask), goal, mask)

    def number_of(self, place: str) -> Val:
        """A number of the left operand."""
        raw = Val(
            self.e.let(f"load {self.outside[0]}, ptr {place}"), memory_dtype(self.memories[0])
        )
        found = from_memory(self.e, raw, self.memories[0])
        return cast(self.e, found, self.memories[0], self.registers.dtype)

    def at(self, memory: str, place: str, kind: str = "") -> str:
        """The address of a place."""
        return self.e.let(f"getelementptr {kind or self.inner}, ptr {memory}, i64 {place}")

    def get(self, memory: str, place: str, kind: str = "i64") -> str:
        """A number of a table."""
        return self.e.let(f"load {kind}, ptr {self.at(memory, place, kind)}")

    def chosen(self, bits: str) -> str:
        """Bits as lanes."""
        e, lanes = self.e, self.e.lanes
        if lanes == 16:
            return e.let(f"bitcast i16 {e.let(f'trunc i32 {bits} to i16')} to <16 x i1>")
        kind, all_ = f"<{lanes} x i32>", e.splat(Val(bits, int32)).text
        each = "<" + ", ".join(f"i32 {1 << i}" for i in range(lanes)) + ">"
        return e.let(f"icmp ne {kind} {e.let(f'and {kind} {all_}, {each}')}, zeroinitializer")

    def live(self, masks: str, step: str) -> list[tuple[str, str]]:
        """The lanes of some pieces at a step, in memory; of lanes two steps apart in two halves."""
        e = self.e
        halves: list[list[str]] = []
        for half in range(1 + (self.way == "two")):
            place = self.add(self.mul(step, "2"), str(half)) if half else self.mul(step, "2")
            first = self.at(masks, place, "i64")
            if self.pieces < _PIECES:
                each = [self.get(first, str(u), "i16") for u in range(self.pieces)]
                halves.append([self.chosen(e.let(f"zext i16 {b} to i32")) for b in each])
                continue
            bits = e.let(f"load i64, ptr {first}")
            shifted = [e.let(f"lshr i64 {bits}, {16 * u}") if u else bits for u in range(_PIECES)]
            halves.append([self.chosen(e.let(f"trunc i64 {b} to i32")) for b in shifted])
        return list(zip(halves[0], halves[-1], strict=True))

    def lane_places(self) -> str:
        """How far each lane is from the first, where they are no rows of memory."""
        if self.way != "apart":
            return ""
        e, kind = self.e, f"<{self.e.lanes} x i32>"
        step = e.splat(Val(e.let("trunc i64 %step to i32"), int32)).text
        return e.let(f"mul {kind} {ramp(e.lanes, 1, 'i32')}, {step}")

    def window(self, memory: str, live: tuple[str, str], each: str) -> str:
        """A vector of memory, 0 in lanes that are not live."""
        e, lanes, raw = self.e, self.e.lanes, memory_dtype(self.memories[1])
        if self.way == "apart":
            found = gathered(e, memory, each, self.memories[1], live[0])
        else:
            found = load_row(e, memory, raw, live[0])
        if self.way == "two":
            beyond = self.at(memory, str(lanes), self.outside[1])
            picks = [2 * i for i in range(lanes)]
            found = shuffled(e, raw, found, load_row(e, beyond, raw, live[1]), picks)
        return widen(e, found, self.memories[1], self.registers.dtype)

    def row(self, memory: str, live: str) -> str:
        """Neighbours of the left operand, 0 in lanes that are not live."""
        found = load_row(self.e, memory, memory_dtype(self.memories[0]), live)
        return widen(self.e, found, self.memories[0], self.registers.dtype)

    def joined(self, value: str, goal: str, mask: str) -> str:
        """Sums of a block of k added to those of the blocks before it, if there are any."""
        e, dtype = self.e, self.registers.dtype
        add = "fadd" if dtype.kind == "f" else "add"

        def both() -> Val:
            before = load_row(e, goal, dtype, mask)
            return Val(e.let(f"{add} {self.vector} {before}, {value}"), dtype, True)

        more = e.let("icmp ne i64 %more, 0")
        found = e.either(more, both, lambda: Val(value, dtype, True))
        assert found is not None
        return found.text

    def totals(self, before: list[str], block: list[str]) -> list[str]:
        """Sums of a block added to those of the blocks before it."""
        add = "fadd" if self.registers.dtype.kind == "f" else "add"
        pairs = zip(before, block, strict=True)
        return [self.e.let(f"{add} {self.vector} {a}, {b}") for a, b in pairs]

    def write(self, value: str, goal: str, mask: str) -> None:
        """Sums to their tile."""
        masked_store(self.e, self.vector, value, goal, mask)

    def sum(self, x: str, y: str, total: str) -> str:
        """A product added to a sum."""
        e, kind = self.e, self.vector
        if self.registers.fused:
            name = f"llvm.fma.v{e.lanes}{self.short}"
            return e.call(kind, name, f"{kind} {x}", f"{kind} {y}", f"{kind} {total}")
        letter = "f" if self.registers.dtype.kind == "f" else ""
        return e.let(f"{letter}add {kind} {total}, {e.let(f'{letter}mul {kind} {x}, {y}')}")


class _ColumnSums(_RowSums):
    """The sums of a few columns from %width on, lanes along k, over all pieces of memory."""

    def __init__(
        self, registers: Registers, load: str, columns: int, memories: tuple[DType, DType]
    ) -> None:
        super().__init__(registers, load, columns, memories)
        self.symbol, self.pieces, self.is_tall = f"PART_{load}_dots_{columns}", _PIECES, False

    def sums(self) -> None:
        """Everything that the function does."""
        e, together = self.e, self.rows
        table = _Table(self, "%table", "%pieces", "%steps")
        count = e.let(f"load i64, ptr {table.count}")
        zero = [(self.vector, "zeroinitializer")] * together
        each = self.lane_places()
        steps = [self.add("%width", str(u)) if u else "%width" for u in range(together)]
        moves = [self.get(table.moves, step) for step in steps]
        sources = [self.at("%right", move, self.outside[1]) for move in moves]

        def piece(first: str, now: list[str]) -> list[str]:
            numbers = [self.add(first, str(i)) if i else first for i in range(_PIECES)]
            starts = [self.get(table.places, n) for n in numbers]
            places = [self.at("%left", start, self.outside[0]) for start in starts]
            lanes = [self.chosen(self.get(table.lanes, n, "i32")) for n in numbers]
            factors = [self.row(*pair) for pair in zip(places, lanes, strict=True)]
            offsets = [self.get(table.offsets, n) for n in numbers]
            masks = self.at(table.masks, self.mul(first, "%steps"), "i32")
            out = []
            for step, source, total in zip(steps, sources, now, strict=True):
                live = self.live(masks, step)
                for offset, bits, factor in zip(offsets, live, factors, strict=True):
                    place = self.at(source, offset, self.outside[1])
                    total = self.sum(self.window(place, bits, each), factor, total)
                out.append(total)
            return out

        def block(first: str, totals: list[str]) -> list[str]:
            last = self.least(self.add(first, str(_CHAIN)), count)
            return self.totals(totals, e.loop(first, last, _PIECES, zero, piece))

        totals = e.loop("0", count, _CHAIN, zero, block)
        for step, total in zip(steps, totals, strict=True):
            number = e.let(f"call {self.inner} @PART_total({self.vector} {total})")
            e.line(f"store {self.inner} {number}, ptr {self.at('%sums', step)}")


def _total(registers: Registers) -> tuple[str, dict[str, str]]:
    """The function that adds up the lanes of a vector, the upper half onto the lower one."""
    f = FunctionBuilder("PART_total", Numbers([]), [], registers.target.lanes, False)
    e, inner = f.e, scalar_type(registers.dtype)
    kind, add = f"<{e.lanes} x {inner}>", "fadd" if registers.dtype.kind == "f" else "add"
    found, half = "%all", e.lanes // 2
    while half:
        picks = ", ".join(f"i32 {(i + half) % e.lanes}" for i in range(e.lanes))
        mask = f"<{e.lanes} x i32> <{picks}>"
        other = e.let(f"shufflevector {kind} {found}, {kind} poison, {mask}")
        found = e.let(f"{add} {kind} {found}, {other}")
        half //= 2
    number = e.let(f"extractelement {kind} {found}, i64 0")
    body = "\n".join(e.lines)
    head = f"define internal {inner} @PART_total({kind} %all) nounwind noinline"
    return f"{head} {{\nentry:\n{body}\n  ret {inner} {number}\n}}", {}


# --- tables --------------------------------------------------------------------------------------

_TABLE = (
    "ptr noalias %view, ptr noalias %beside, i64 %own, i64 %k, i64 %owned, i64 %depth, "
    "ptr noalias %table, i64 %pieces"
)


def _table_launch(registers: Registers, memories: tuple[DType, DType]) -> FunctionBuilder:
    """The launch: the tables of some tiles of columns."""
    views = ViewOperands(registers, memories)
    t = LibraryFunction(registers, views)
    f = t.f
    f.entry.append(f"  %numbers = getelementptr i64, ptr %values, i64 {FIRST}")

    def tile(number: str, _: list[str]) -> list[str]:
        size, e = f.number(("tile", "right")), f.e
        early, alike = e.let(f"icmp slt i64 {number}, 2"), f.number("alike")
        own = f.mul(f.add(number, e.let(f"select i1 {early}, i64 0, i64 {alike}")), size)
        owned = f.least(size, f.sub(f.number(("all", "right")), own))
        operands = [
            views.descriptor(t, "right"), views.descriptor(t, "left"), own, "0", owned,
            f.number("deep"), views.tile_table(t, number), f.number("pieces"),
        ]  # fmt: skip
        t.invoke("@PART_table", "ptr, ptr, i64, i64, i64, i64, ptr, i64", operands)
        return []

    f.e.loop("%first", "%last", 1, [], tile)
    return f


class _FillTable(Im2colPacker):
    """Fills the table of one tile."""

    def __init__(self, registers: Registers, kind: str) -> None:
        super().__init__(registers, kind, registers.dtype)
        e, lanes = self.e, self.e.lanes
        self.settle_lanes()
        steps = self.many
        table = _Table(self, "%table", "%pieces", steps)
        along = e.let(f"icmp ne i64 {self.number('along')}, 0")
        total = self.get(self.begins, self.vectors)
        whole = self.add(total, str(_PIECES - 1))
        whole = e.let(f"and i64 {whole}, {-_PIECES}")
        e.line(f"store i64 {total}, ptr {table.count}")
        two = e.let(f"icmp eq i64 {self.number(('lanes', 'step', SLOTS - 1))}, 2")

        def piece(number: str, v: str) -> None:
            self.put(self.get(self.offsets, number), table.offsets, number)
            bits, column = self.bits(self.lanes_of(number)), self.mul(v, str(lanes))
            self.put(bits, table.lanes, number, "i32")
            first = e.call("i32", "llvm.cttz.i32", f"i32 {bits}", "i1 false")
            first = e.let(f"zext i32 {first} to i64")
            beside = self.sub(self.beside(self.add(column, first)), first)  # of the first lane
            place = e.let(f"select i1 {along}, i64 {beside}, i64 {column}")
            self.put(place, table.places, number)

        def none(number: str, _: list[str]) -> list[str]:
            for part in (table.offsets, table.places):
                self.put("0", part, number)
            self.put("0", table.lanes, number, "i32")
            e.loop("0", steps, 1, [], lambda k, _: keep("0", number, k))
            return []

        def keep(bits: str, number: str, k: str) -> list[str]:
            """The lanes left of a piece at a step: beside those of pieces that go with it."""
            group, inside = self.divided(number, str(_PIECES))
            first = self.mul(self.add(self.mul(group, steps), k), str(2 * _PIECES))
            place = self.add(first, inside)
            self.put(e.let(f"trunc i32 {bits} to i16"), table.masks, place, "i16")

            def halves() -> None:
                both = self.twice(bits) if bits != "0" else bits
                for half, by in ((0, 0), (_PIECES, lanes)):
                    found = e.let(f"trunc i32 {e.let(f'lshr i32 {both}, {by}')} to i16")
                    self.put(found, table.masks, self.add(place, str(half)), "i16")

            e.branch(two, halves)
            return []

        def step(k: str) -> None:
            self.put(self.others(self.tap, values), table.moves, k)
            self.put(self.beside(k), table.weights, k)

            def vector(v: str, _: list[str]) -> list[str]:
                bits = self.bits(self.valid(values, v))

                def left(number: str, _: list[str]) -> list[str]:
                    found = e.let(f"and i32 {bits}, {self.get(table.lanes, number, 'i32')}")
                    return keep(found, number, k)

                e.loop(*self.pieces_of(v), 1, [], left)
                return []

            e.loop("0", self.vectors, 1, [], vector)

        def of(v: str, _: list[str]) -> list[str]:
            def one(number: str, _: list[str]) -> list[str]:
                piece(number, v)
                return []

            e.loop(*self.pieces_of(v), 1, [], one)
            return []

        e.loop("0", self.vectors, 1, [], of)
        e.loop(total, whole, 1, [], none)
        values = self.room("i32", str(2 * SLOTS))
        self.walk(self.tap, ["0"] * SLOTS, steps, step)

    def pieces_of(self, v: str) -> tuple[str, str]:
        """The numbers of a vector's pieces."""
        return self.get(self.begins, v), self.get(self.begins, self.add(v, "1"))

    def lanes_of(self, number: str) -> str:
        """The lanes of a piece."""
        kept = self.get(self.masks, number, self.mask_kind)
        return self.both_masks(kept, kept)

    def bits(self, mask: str) -> str:
        """Lanes as bits."""
        e, lanes = self.e, self.e.lanes
        short = e.let(f"bitcast <{lanes} x i1> {mask} to i{lanes}")
        return e.let(f"zext i{lanes} {short} to i32")

    def twice(self, bits: str) -> str:
        """Bits with a 0 after each: the lanes of memory that lanes two steps apart are in."""
        e = self.e
        for by, kept in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
            moved = e.let(f"shl i32 {bits}, {by}")
            bits = e.let(f"and i32 {e.let(f'or i32 {bits}, {moved}')}, {kept}")
        return bits

    def beside(self, k: str) -> str:
        """Where a step of k moves the left operand, which lies along k."""
        place = "0"
        for slot in reversed(range(SLOTS)):
            rest = k
            if slot:
                k, rest = self.divided(k, self.of_left(("lanes", "size", slot)))
            place = self.add(place, self.mul(rest, self.of_left(("lanes", "step", slot))))
        return place

    def of_left(self, name: tuple[str, str, int]) -> str:
        """A number of the left operand."""
        at = self.e.let(f"getelementptr i64, ptr %beside, i64 {DESCRIPTOR.index(name)}")
        return self.e.let(f"load i64, ptr {at}")
