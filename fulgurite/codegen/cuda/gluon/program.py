"""A streaming program in Gluon: rows of two warpgroups, factors by the copy engine (TMA).

In: the `StreamedKernel` that a search chose. Out: `GluonProgram`, what all such programs share:
places in the layout of each view, masks that are asked at edges alone, the tile of a program, from
where to where it streams, and the launch. `stream.py` has the loop of FlashAttention 3,
`sums.py` those of its gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

from ....core.dtype import bfloat16, decode, float16, float32
from ....core.node import Node, backward_slice
from ....core.ops.elementwise import CAST, MUL, WHERE
from ....core.ops.index import GUARD, LOAD, STORE
from ....core.ops.leaf import CONST
from ....graph.ir.affine import Affine
from ....kernel.stream.roles import StreamedKernel, StreamProblem
from ....kernel.stream.skip import always_true
from .. import source
from ..program import Tiling
from ..scope import Scope
from ..source import Argument, Launch, Place, TensorMap
from ..spelling import definitions, type_name
from ..stream import StreamProgram, is_of_rows, other_folds, rows_of
from ..tiling import GpuTable, power

WARPGROUPS = (0, 1)  # that multiply


@dataclass(frozen=True, slots=True)
class Streamed:
    """A factor for the copy engine: what it is of, and the axes of its coordinates."""

    spec: TensorMap
    axes: tuple[int, ...]


class Scaled(NamedTuple):
    """Scores as a product times one number, -inf where a condition does not hold."""

    product: Node
    by: Node | None
    condition: Node | None

    @property
    def needs(self) -> tuple[Node, ...]:
        """The values that scores are worked out from."""
        return tuple([node for node in self if node is not None])


def _is_lowest(node: Node) -> bool:
    return node.op is CONST and node.dtype is float32 and decode(node.arg[0], float32).real == -inf


def factor_of(
    problem: StreamProblem, factor: Node, axes: tuple[int, int], block: tuple[int, int],
    table: GpuTable,
) -> Streamed | None:  # fmt: skip
    """A factor that is memory as it is, contiguous along its second axis."""
    load = factor.src[0] if factor.op is CAST else factor
    if load.op is not LOAD or load.arg[2] or load.dtype not in (bfloat16, float16):
        return None
    param, (offset, terms), _ = load.arg
    steps = {a: step for a, step in terms if isinstance(a, int)}
    own, last = axes
    others = sorted([a for a in steps if a not in axes], key=lambda a: -steps[a])
    order = (*others, own, last)
    if len(steps) < len(terms) or steps.get(last) != 1 or len(order) > table.tma_rank:
        return None
    unit = table.tma_bytes // load.dtype.itemsize
    strides = [steps.get(a, 0) if problem.sizes[a] > 1 else unit for a in order[:-1]]
    if any(s <= 0 or s % unit for s in strides) or offset % unit or offset < 0:
        return None
    spec = TensorMap(
        param, offset * load.dtype.itemsize, load.dtype.name,
        tuple([problem.sizes[a] for a in order]), (*strides, 1), (*[1] * len(others), *block),
    )  # fmt: skip
    return Streamed(spec, order)


def _is_of_sums(problem: StreamProblem, crossed: bool) -> bool:
    """True if all that a program has to do are sums of its rows, and those that cross them."""
    unknown = problem.transposed and not crossed
    return is_of_rows(problem) and not unknown and not other_folds(problem)


def padded_axes(
    problem: StreamProblem, table: GpuTable, crossed: bool = False
) -> dict[int, int] | None:
    """Depths and widths that a program holds whole, padded; None where it has no use for TMA.

    Transposed sums are beside them only if somebody has a form for those.
    """
    if not table.gluon_stream or not _is_of_sums(problem, crossed):
        return None
    inner = [p.contraction.folded for p in problem.products]
    inner += [w.contraction.columns for w in problem.weighted]
    if any(len(axes) != 1 for axes in inner) or any(n.op is GUARD for n in problem.order):
        return None
    found = {axis: max(16, power(problem.sizes[axis])) for (axis,) in inner}
    if max(found.values(), default=table.stream_depth + 1) > table.stream_depth:
        return None
    if (
        2 * problem.sizes[rows_of(problem)] <= table.warpgroup_rows
    ):  # the other form has smaller tiles
        return None
    tiles = problem.batch * -(-problem.m // (len(WARPGROUPS) * table.warpgroup_rows))
    return None if 2 * tiles < table.processors or problem.n < table.stream_least else found


def tiles_of(problem: StreamProblem, table: GpuTable) -> int:
    """Tiles of rows, of all steps of the batch."""
    m, rows = rows_of(problem), len(WARPGROUPS) * table.warpgroup_rows
    others = [problem.sizes[a] for a in (*problem.batch_axes, *problem.m_axes) if a != m]
    return -(-problem.sizes[m] // rows) * prod(others)


def tiles_at_a_time(problem: StreamProblem, table: GpuTable) -> int:
    """Tiles that a program of a persistent grid takes at a time; 0 where each has its program.

    Copies of a tile are on their way while results of the one before are stored. Where masks leave
    out blocks, a long tile and a short one are a pair, as long as all others: there must be so many
    pairs that the last ones do not matter.
    """
    tiles = tiles_of(problem, table)
    if not table.gluon_persistent or tiles <= table.processors:
        return 0
    if not problem.skips:
        return 1
    rounds = -(-tiles // (2 * table.processors))
    return 2 if rounds * 2 * table.processors <= table.gluon_uneven * tiles else 0


class GluonProgram(StreamProgram):
    """The text of one launch, but for the loop of a warpgroup and the roles around it."""

    def __init__(
        self, value: StreamedKernel, places: Sequence[Place], held: Mapping[int, int], block: int,
        table: GpuTable,
    ) -> None:  # fmt: skip
        axes = (rows_of(value.problem), value.problem.n_axes[0], *held)
        blocks = (table.warpgroup_rows, block, *held.values())
        tiling = Tiling(
            axes, blocks, 4, 1, short=table.short_functions, fast=table.stream_fast_exp,
            brief=table.stream_brief_scores,
        )  # fmt: skip
        super().__init__(value, places, tiling)
        self.edges = table.gluon_edges
        self.scalar = ""  # the row that an index is asked for, while it is one number
        self.rows = table.warpgroup_rows
        self.tall = len(WARPGROUPS) * self.rows
        self.tiles = tiles_of(value.problem, table)
        self.each = tiles_at_a_time(value.problem, table)
        self.processors = table.processors

    def has_narrow_weights(self, dtype: str) -> bool:
        """True if weights of all sums may be rounded to the 16-bit type of their values."""
        return all(self._weight_type(w).name == dtype for w in self.problem.all_weighted)

    # --- axes, in the layout of each view --------------------------------------------------------

    def _layout(self) -> str:
        return "LS" if self.dims[1] == self.n else "LO"

    def _axis(self, axis: int, scope: Scope) -> str:
        if self.scalar and axis == self.m:
            return self.scalar
        return super()._axis(axis, scope)

    def _spread_axis(self, axis: int, scope: Scope) -> str:
        name = f"{self._bound_name(axis, scope)}{self.views[self.dims]}"
        home = scope.home({axis} & self.looped)
        if name not in home.spread:
            home.spread.add(name)
            first = {self.m: "om", self.n: "r1"}.get(axis, "0")
            dim = 1 if axis == self.dims[0] else 0
            wide = ".to(tl.int64)" if self.wide else ""
            places = "[:, None]" if dim else "[None, :]"
            arange = f"tl.arange(0, {self.block[axis]}, layout=gl.SliceLayout({dim}, "
            home.say(f"a{name} = ({first} + {arange}{self._layout()})){wide}){places}")
            if self._is_ragged(axis):
                home.say(f"m{name} = a{name} < {self._number(self.sizes[axis])}")
        return name

    def _is_ragged(self, axis: int) -> bool:
        tile = self.tall if axis == self.m else self.block[axis]
        return self.sizes[axis] % tile != 0

    def _tile_axis(self, scope: Scope, axis: int, start: str) -> None:
        """Places are made for each view, in its layout."""

    # --- a block ---------------------------------------------------------------------------------

    def _expression(self, node: Node, values: list[str], scope: Scope) -> str:
        text = super()._expression(node, values, scope)
        if node.op is not WHERE:
            return text
        plain = values[1]
        if not self.free[node.src[1]] & {self.m, self.n}:  # Triton 3.6 gives a number no layout
            shape, kind = self._shape(frozenset(self.dims)), type_name(node.dtype)
            plain = f"gl.full({shape}, {plain}, {kind}, layout={self._layout()})"
        return self._at_edges(node.src[0], plain, text, scope)

    def _at_edges(self, condition: Node, plain: str, masked: str, scope: Scope) -> str:
        """What is masked, in blocks that are not all on one side of a mask; else as it is."""
        tests = always_true(condition, self.sizes) if self.edges else None
        if tests is None or self.n not in scope.bound or self.dims != (self.m, self.n):
            return masked
        known = {self.m, self.n, *self.problem.batch_axes, *self.problem.m_axes}
        if not all({a for a, _ in index[1]} <= known for index in tests):
            return masked
        name = self._name()
        shape = self._shape(frozenset(self.dims))
        low = " | ".join([f"({self._smallest(index, scope)} < 0)" for index in tests])
        scope.say(f"{name} = tl.broadcast_to({plain}, {shape})")
        scope.say(f"if {low}:")
        scope.say(f"    {name} = tl.broadcast_to({masked}, {shape})")
        return name

    def _scaled(self, scores: Node) -> Scaled | None:
        """Scores that are a product times one number, masked or not, taken apart."""
        condition = None
        if scores.op is WHERE and _is_lowest(scores.src[2]):
            condition, scores = scores.src[:2]
        if scores.op is not MUL or not self.is_fast or scores.dtype is not float32:
            return None
        inner = [s for s in scores.src if self._is_score(s)]
        numbers = [s for s in scores.src if not self.free[s] & {self.m, self.n}]
        if len(inner) != 1 or len(numbers) != 1 or numbers[0] in self.moving:
            return None
        return Scaled(inner[0], numbers[0], condition)

    def _smallest(self, index: Affine, scope: Scope) -> str:
        """The smallest value of an index over the rows of a warpgroup and a block of columns."""
        found = [self._number(index[0])]
        for axis, step in index[1]:
            assert isinstance(axis, int)
            first = {self.m: "om", self.n: "r1"}.get(axis)
            if first is None:
                text = self._axis(axis, scope)
            else:
                text = first if step > 0 else f"({first} + {self.block[axis] - 1})"
            found.append(f"{text} * {self._number(step)}" if step != 1 else text)
        return f"({' + '.join(found)})"

    def _largest(self, index: Affine, top: Scope) -> str:
        """The largest value of an index over the rows of a program, without its streamed axis."""
        rest = index[0], tuple([(a, s) for a, s in index[1] if a != self.n])
        up = dict(rest[1]).get(self.m, 0) > 0
        name = self._name()
        with self._row("last" if up else "first"):
            text = self._index(rest, self.problem.streaming.stores[0], top)
        top.say(f"{name} = {text}")
        return name

    @contextmanager
    def _row(self, name: str) -> Iterator[None]:
        self.scalar = name
        yield
        self.scalar = ""

    # --- the whole -------------------------------------------------------------------------------

    def _place(self) -> list[str]:
        """Lines of every role: the tile of a program, and from where to where it streams."""
        top = Scope(None, {}, 1)
        count = -(-self.sizes[self.m] // self.tall)
        top.say(f"left = {'tile' if self.is_persistent else 'gl.program_id(0)'}")
        if self.is_persistent:
            self._number(self.tiles)  # an argument
        tiles = self._number(count)
        most = any(dict(test.index[1]).get(self.n, 0) < 0 for test in self.problem.skips)
        place = f"left % {tiles}"
        if self.each == 2:  # much and little to do in turns
            top.say(f"half = left % {tiles} // 2")
            place = f"gl.where(left % {tiles} % 2 == 0, half, {tiles} - 1 - half)"
        place = f"{tiles} - 1 - {place}" if most else place
        top.say(f"first = ({place}) * {self.tall}")  # those with most to do begin first
        top.say(f"left = left // {tiles}")
        others = [a for a in (*self.problem.batch_axes, *self.problem.m_axes) if a != self.m]
        for axis in reversed(others):
            top.say(f"a{axis} = left % {self._number(self.sizes[axis])}")
            top.say(f"left = left // {self._number(self.sizes[axis])}")
        rows = self._number(self.sizes[self.m])
        top.say(f"last = gl.minimum(first + {self.tall - 1}, {rows} - 1)")
        start, end = self._bounds(top)
        size, block = self._number(self.sizes[self.n]), self.block[self.n]
        top.say(f"start = gl.minimum({start}, ({size} - 1) // {block} * {block})")
        top.say(f"end = gl.maximum({end}, start + 1)")
        return top.lines

    @property
    def is_persistent(self) -> bool:
        """True if each program has many tiles: a persistent grid."""
        return self.each > 0

    def persistent_loop(self, lines: Sequence[str]) -> list[str]:
        """A role's lines for each tile of a program."""
        if not self.is_persistent:
            return ["    it = 0", *lines]
        each, count = self.each, self._number(self.tiles)
        first = "gl.program_id(0)" if each == 1 else f"gl.program_id(0) * {each}"
        step = "gl.num_programs(0)" if each == 1 else f"gl.num_programs(0) * {each}"
        found = ["    it = 0", "    turn = 0", f"    for pair in range({first}, {count}, {step}):"]
        found.append(f"        for tile in range(pair, gl.minimum(pair + {each}, {count})):")
        return [*found, *["        " + line for line in lines], "            turn += 1"]

    def _names(self, factors: Iterable[Node]) -> tuple[list[Argument], list[str]]:
        """Arguments beside the factors of products, and their names."""
        above = read_beside(self.problem, {p.node for p in self.problem.products} | {*factors})
        used = sorted({n.arg[0] for n in above if n.op in (LOAD, STORE) and n.arg[0] >= 0})
        arguments = [source.pointer(f"p{i}", self.dtypes[i], self.places[i]) for i in used]
        arguments += [source.variable(short, name) for name, short in self.variables.items()]
        arguments += [source.number(name, value) for value, name in self.numbers.items()]
        return arguments, [a.name for a in arguments]

    def _launch(
        self, lines: Sequence[str], factors: Sequence[Streamed], arguments: Sequence[Argument]
    ) -> Launch:
        """The text with its grid and arguments."""
        maps = [
            source.tensor_map(f"d{i}", one.spec._replace(param=self.places[one.spec.param].value))
            for i, one in enumerate(factors)
        ]
        grid = min(self.processors, self.tiles) if self.is_persistent else self.tiles
        text = definitions("\n".join(lines)) + "\n".join(lines) + "\n"
        text = source.with_variables(text, arguments)
        return Launch(text, "kernel", grid, 4, 1, (*maps, *arguments), "gluon")


def half(dtype: str) -> str:
    """The name of a 16-bit type in texts."""
    return type_name(bfloat16 if dtype == "bfloat16" else float16)


def read_beside(problem: StreamProblem, stops: set[Node]) -> set[Node]:
    """All that is read or stored beside the factors of products."""
    waiting: list[Node] = [*problem.streaming.stores]
    for state in problem.states:
        waiting += [state.body, *([state.repair] if state.repair is not None else [])]
    waiting += [w.weights for w in problem.all_weighted]
    sums = {w.state.fold for w in problem.all_weighted}
    waiting = [node for node in waiting if node not in {w.state.body for w in problem.weighted}]
    return backward_slice(waiting, lambda node: node in sums or node in stops) - stops
