"""Folds: which part every axis of a streaming kernel plays, and how it is cut into tiles.

In: a `Streaming` (kernel/stream/online.py). Out: a `Fold`: axes as batch, rows, streamed ones and
columns; the products inside (sums over other axes that every block needs), the states that are one
number a row, and those that are a row of columns, each a product of weights (rows x streamed) and
values (streamed x columns); sums over the rows themselves (`crossed`), whose weights are the same
turned; or None where the parts cannot be told. A `FoldCut` says how many rows, streamed elements
and columns a tile has. All of it follows from sizes alone, never from the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from ..._lazy import lazy_import
from ...core.dtype import DType, decode
from ...core.node import Node, constant, make, toposort
from ...core.ops.elementwise import DIV, EQ, LE, LT, MUL, NE
from ...core.ops.index import FOLD, LOAD
from ...core.ops.leaf import CONST
from ...graph.ir.queries import free_axes, indices
from ..contract.analysis import (
    Block,
    Contraction,
    Part,
    collect,
    line_of,
    ordered,
    reached,
    steps_of,
)
from .online import State, Streaming
from .skip import Test, tests

ROWS = 144  # of a tile, where there are as many: whole register blocks both ways
TALL = 384  # where keys are put in order for every tile anew
STEPS = 128  # of the streamed axis in a block
LONG_STEPS = 384  # where lanes run along it
ROOM = 640 << 10  # bytes of a thread's stack that one tile may take: half of the second cache
SUMS = 96 << 10  # of which rows of columns may take
WIDE_SUMS = 256 << 10  # the same where fewer of them mean that products are done again
NARROW = 64  # rows of a tile at least, before the streamed axis is cut
CLOSE = 512 << 10  # bytes of keys that many tiles may read
READ = 64  # rows up to which keys along the streamed axis are read where they lie
FEW = 16  # rows that are multiplied with keys where both lie along the depth
UNITS = 8  # tiles that keep threads busy
PART = 256  # elements at least of a part of the streamed axis


@dataclass(frozen=True)
class Product:
    """A sum over other axes, needed for every block: keys (streamed) times queries (rows)."""

    node: Node
    keys: Node
    queries: Node
    contraction: Contraction  # rows are the streamed axis, columns are the rows of the fold


@dataclass(frozen=True)
class Matrix:
    """A state with columns: sums of weights times values."""

    state: State
    weights: Node  # of rows and streamed axes
    values: Node  # of streamed axes and columns
    contraction: Contraction


@dataclass(frozen=True)
class Fold:
    """A streaming kernel and the part of every axis."""

    streaming: Streaming
    dtype: DType
    sizes: tuple[int, ...]
    order: tuple[Node, ...]  # all nodes, sources first
    free: dict[Node, frozenset[int]]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]  # of each matrix
    products: tuple[Product, ...]
    turned: tuple[Contraction, ...]  # loads along the streamed axis: each `left` as rows of a tile
    scalars: tuple[State, ...]  # states of one number a row
    matrices: tuple[Matrix, ...]
    crossed: tuple[Matrix, ...] = ()  # sums over the rows: weights are turned, values have rows
    constants: frozenset[Node] = frozenset()  # folds in them that are one number for all rows

    @property
    def skips(self) -> tuple[Test, ...]:
        """What tells that a block counts for nothing; elements that are stored are all made."""
        s = self.streaming
        if s.whole:
            return ()
        return tests((*s.states, *s.crossed), frozenset(s.axes))

    @property
    def weighing(self) -> tuple[Matrix, ...]:
        """All that needs a tile of weights."""
        return (*self.matrices, *self.crossed)

    def count(self, axes: Iterable[int]) -> int:
        """How many steps some axes have together."""
        return prod([self.sizes[a] for a in axes])

    @property
    def levels(self) -> int:
        """How often a block is walked."""
        return 1 + max([s.level for s in self.streaming.states])

    def part(
        self, roots: Sequence[Node], stops: Iterable[Node], columns: Sequence[int],
        folded: Sequence[int] = (),
    ) -> Part:  # fmt: skip
        """The nodes under some roots down to `stops`, with lines of their own."""
        nodes = reached(roots, frozenset(stops))
        found: list[dict[int, int]] = []
        for node in nodes:
            for index in indices(node):
                collect(index, found)
        absorbed: set[int] = set()
        batch, rows, across, down = [
            line_of(axes, self.sizes, found, absorbed)
            for axes in (self.batch, self.rows, columns, folded)
        ]
        return Part(tuple(nodes), batch, rows, across, down, frozenset(absorbed))


# --- parts of axes -------------------------------------------------------------------------------


def find_fold(s: Streaming) -> Fold | None:
    """The fold that a streaming kernel is, if every axis has one part to play."""
    found = _Roles(s)
    return found.fold() if found.known else None


class _Roles:
    def __init__(self, s: Streaming) -> None:
        self.s = s
        self.streamed = frozenset(s.axes)
        self.free = dict(s.free)
        self.group = {state.fold for state in s.states}
        self.sizes = list(s.sizes)
        self.inner = s.inner
        self.dtype = s.states[0].fold.dtype
        self.products: list[tuple[Node, Node, Node]] = []
        self.over: dict[State, tuple[Node, Node]] = {}  # of sums over rows: weights and values
        self.constants: set[Node] = set()
        self.known = self.find()

    def find(self) -> bool:
        s = self.s
        sums = (*self.group, *self.inner, *[state.fold for state in s.crossed])
        if any(n.dtype is not self.dtype for n in sums) or self.compares():
            return False
        bodies = [state.body for state in (*s.states, *s.crossed)]
        if s.waits:  # it is worked out before all rows
            self.constants = {n for n in toposort(bodies) if n.op is FOLD and not self.free[n]}
        for n in reached(bodies, self.constants):
            if n.op is FOLD and n not in (*self.group, *self.inner, *self.constants):
                return False  # a sum for each row alone: nobody keeps it
        for node in self.inner:
            pair = self.factors(node)
            if pair is None:
                return False
            self.products.append((node, *pair))
        bases = [n for n in self.group if self.is_base(n)] + [
            state.fold for state in s.states if state.op != "add"
        ]
        own = [self.free[n] - self.streamed for n in self.inner] + [self.free[n] for n in bases]
        if not own:
            own = [frozenset.intersection(*[self.free[n] for n in self.group])]
        self.across = frozenset[int]().union(*own)  # rows and batch
        self.pairs: dict[State, tuple[Node, Node]] = {}
        self.scalars: list[State] = []
        for state in s.states:
            if self.free[state.fold] <= self.across:
                self.scalars.append(state)
                continue
            two = self.weighed(state)
            if two is None:
                return False
            self.pairs[state] = two
        shared = [self.free[keys] for _, keys, _ in self.products]
        shared += [self.free[values] for _, values in self.pairs.values()]
        common = frozenset[int]().union(*shared) if shared else frozenset[int]()
        self.batch = self.across & common
        self.rows = self.across - common
        blocks = self.batch | self.rows | self.streamed
        if any(self.free[w] != blocks or frozenset(w.arg[3]) != blocks for w in s.whole):
            return False
        if s.whole and (s.waits or not self.products):
            return False
        kept = [w.src[0].dtype for w in s.whole]  # from tiles that hold numbers of one kind
        if any(dtype is not self.dtype and not dtype.is_small_float for dtype in kept):
            return False
        return self.apart() and all(map(self.crosses, s.crossed, s.across))

    def compares(self) -> bool:
        """Is a state compared with a fold that its own loops work out, which round otherwise?"""
        for node in toposort(self.s.stores):
            if node.op not in (EQ, NE, LE, LT) or node.src[0].dtype.kind != "f":
                continue
            first, second = (
                {n in self.group for n in reached([side], self.group) if n.op is FOLD}
                for side in node.src
            )
            if (True in first and False in second) or (False in first and True in second):
                return True
        return False

    def is_base(self, fold: Node) -> bool:
        """Is another state built on it?"""
        return any(fold in toposort([state.body]) for state in self.s.states if state.fold != fold)

    def split(self, body: Node, axes: frozenset[int]) -> tuple[list[Node], list[Node]]:
        """The factors of a product without some axes, and those with them."""
        factors = [body]
        while any(f.op is MUL or self.divides(f) for f in factors):
            factors = [p for f in factors for p in self.parts_of(f)]
        self.free.update(free_axes(toposort(factors)))
        return (
            [f for f in factors if not self.free[f] & axes],
            [f for f in factors if self.free[f] & axes],
        )

    def divides(self, node: Node) -> bool:
        """Is it a quotient of something other than 1?"""
        return node.op is DIV and not _is_one(node.src[0])

    def parts_of(self, node: Node) -> tuple[Node, ...]:
        """A product's factors; of a quotient what is divided, and one over the other."""
        if self.divides(node):
            one = constant(1, node.dtype)
            return node.src[0], make(DIV, node.dtype, (one, node.src[1]))
        return node.src if node.op is MUL else (node,)

    def multiplied(self, factors: Sequence[Node]) -> Node:
        """A product, known to `free`."""
        if not factors:
            return constant(1, self.dtype)
        value = factors[0]
        for factor in factors[1:]:
            value = make(MUL, value.dtype, (value, factor))
        self.free.update(free_axes(toposort([value])))
        return value

    def factors(self, node: Node) -> tuple[Node, Node] | None:
        """The streamed and the other factor of a product inside."""
        body, over = node.src[0], frozenset(node.arg[1])
        if node.arg[0] != "add" or body.op is not MUL:
            return None
        queries, keys = self.split(body, self.streamed)
        if not queries or not keys:
            return None
        first, second = self.multiplied(keys), self.multiplied(queries)
        for written in (body.src, body.src[::-1]):  # the same to the last bit, whatever streams
            if [self.free[f] for f in written] == [self.free[first], self.free[second]]:
                first, second = written
                break
        both = self.free[first] & self.free[second]
        if any(n.op is FOLD and n not in self.constants for n in toposort([first, second])):
            return None  # a product of products: each is made of what is packed, not of a tile
        return (first, second) if over <= both else None

    def weighed(self, state: State) -> tuple[Node, Node] | None:
        """Weights and values of a state with columns."""
        columns = self.free[state.fold] - self.across
        weights, values = self.split(state.body, columns)
        if state.op != "add" or self.is_base(state.fold):
            return None
        if any(n in self.group or n in self.inner for n in toposort(values)):
            return None
        found = self.multiplied(weights), self.multiplied(values)
        self.free.update(free_axes(toposort(list(found))))
        return found

    def crosses(self, state: State, store: Node) -> bool:
        """Is a sum over the rows one of weights and values that have no streamed axes?"""
        own = self.batch | self.streamed
        columns = self.free[state.fold] - own
        if frozenset(state.fold.arg[1]) != self.rows or not columns or columns & self.across:
            return False
        weights, values = [self.multiplied(f) for f in self.split(state.body, columns)]
        self.over[state] = weights, values
        lone = not any(n in self.inner or n in self.group for n in toposort([values]))
        stored = self.free[store] == frozenset(store.arg[3]) == own | columns
        return lone and stored and not self.free[values] & self.streamed

    def apart(self) -> bool:
        """Do rows and columns never meet below the sums, and do stores have what they need?"""
        columns = [self.free[state.fold] - self.across for state in self.pairs]
        for _, values in self.pairs.values():
            if self.free[values] & self.rows:
                return False
        for store in self.s.stores:
            axes = self.free[store] - self.across
            if axes and axes not in columns:
                return False
            if frozenset(store.arg[3]) - axes != self.across:
                return False
        return not any(
            self.free[store] - self.across != self.free[state.fold] - self.across
            for store in self.s.stores
            for state in self.pairs
            if state.fold in toposort([store])
        )

    def fold(self) -> Fold:
        steps = steps_of((*self.s.stores, *self.s.across, *self.s.whole))
        rows = ordered(self.rows, steps)
        if not rows:  # one row: an axis that no index has
            rows = (len(self.sizes),)
            self.sizes.append(1)
        batch = ordered(self.batch, steps)
        states = self.s.states
        made = [n for pair in (*self.pairs.values(), *self.over.values()) for n in pair]
        made += [n for _, *pair in self.products for n in pair]
        repairs = [state.repair for state in states if state.repair is not None]
        olds = [state.old for state in states]
        stores = (*self.s.stores, *self.s.across, *self.s.whole)
        order = tuple(toposort([*stores, *self.group, *made, *repairs, *olds]))
        free = free_axes(order)
        streamed = self.s.axes
        sizes = tuple(self.sizes)

        def contraction(
            node: Node, left: Node, right: Node, tall: Sequence[int], wide: Sequence[int],
            over: Sequence[int],
        ) -> Contraction:  # fmt: skip
            return Contraction(
                order=order, free=free, sizes=sizes, stores=self.s.stores, fold=node, left=left,
                right=right, batch=batch, rows=tuple(tall), columns=tuple(wide), folded=tuple(over),
            )  # fmt: skip

        products = tuple(
            Product(
                node, keys, queries,
                contraction(node, keys, queries, streamed, rows, self.deep(node, keys)),
            )
            for node, keys, queries in self.products
        )  # fmt: skip
        columns = []
        matrices = []
        for state, (weights, values) in self.pairs.items():
            own = ordered(self.free[state.fold] - self.across, steps)
            columns.append(own)
            matrices.append(
                Matrix(
                    state, weights, values,
                    contraction(state.fold, weights, values, rows, own, streamed),
                )
            )  # fmt: skip
        crossed = []
        for state, (weights, values) in self.over.items():
            own = ordered(self.free[state.fold] - self.batch - self.streamed, steps)
            whole = contraction(state.fold, weights, values, streamed, own, rows)
            crossed.append(Matrix(state, weights, values, whole))
        turned = [
            contraction(load, load, load, streamed, (), rows) for load in self.along(rows, free)
        ]
        return Fold(
            self.s, self.dtype, sizes, order, free, batch, rows, tuple(columns), products,
            tuple(turned), tuple(self.scalars), tuple(matrices), tuple(crossed),
            frozenset(self.constants),
        )  # fmt: skip

    def along(self, rows: Sequence[int], free: dict[Node, frozenset[int]]) -> list[Node]:
        """Loads of rows and streamed elements whose memory runs along the latter."""
        pairs = (*self.pairs.values(), *self.over.values())
        bodies = [s.body for s in self.scalars] + [w for w, _ in pairs] + list(self.s.whole)
        stops = frozenset(self.group | set(self.inner))
        found = []
        for node in reached(bodies, stops):
            if node.op is not LOAD or node.dtype.kind not in "bf" or node.src:
                continue
            terms = node.arg[1][1]
            both = free[node] & self.streamed and free[node] & frozenset(rows)
            if both and (self.s.axes[-1], 1) in terms and (rows[-1], 1) not in terms:
                found.append(node)
        return found

    def deep(self, node: Node, keys: Node) -> tuple[int, ...]:
        """The folded axes of a product, outermost first in the memory of its keys."""
        loads = [n for n in toposort([keys]) if n.op is LOAD]
        return ordered(frozenset(node.arg[1]), steps_of(loads))


def _is_one(node: Node) -> bool:
    return node.op is CONST and decode(node.arg[0], node.dtype) == 1


# --- cutting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoldCut:
    """Sizes of tiles."""

    rows: int
    steps: int  # of a block of the streamed axis
    columns: tuple[int, ...]  # of each matrix
    resident: tuple[bool, ...]  # are the packed queries of each product kept for all blocks?
    along: str = "rows"  # what lanes run along: rows or streamed
    splits: int = 1  # parts of the streamed axis that stream by themselves
    span: int = 0  # elements of such a part, whole blocks
    parts: int = 1  # of the rows, where sums over them are crossed: each has sums of its own
    strips: int = 0  # of the rows, where those are walked twice (kernel/stream/two_pass.py)


def cut_fold(fold: Fold, block: Block, deep: int) -> FoldCut | None:
    """Tiles for a fold; `deep` is how much of a product's depth is summed at a time."""
    if fold.streaming.waits:
        strips: FoldCut | None = lazy_import("kernel.stream.two_pass").cut_strips(fold, block, deep)
        return strips
    size, lanes, panel = block.bytes, block.lanes, block.panel
    rows, length = fold.count(fold.rows), fold.count(fold.streaming.axes)
    batch = fold.count(fold.batch)
    wide = [fold.count(c) for c in fold.columns]
    across = [fold.count(m.contraction.columns) for m in fold.crossed]
    depths = [fold.count(p.contraction.folded) for p in fold.products]
    stored = len(fold.streaming.whole)
    along = "rows" if fold.crossed or stored else lanes_along(fold, lanes)
    unit = block.height if along == "rows" else panel
    blocks = max(1, round(length / STEPS))  # nearly equal ones: a few elements keep nobody busy
    steps = min(up(-(-length // blocks), unit), length)
    if along == "streamed":
        steps = min(LONG_STEPS // unit * unit, up(length, lanes))
    ordered = all(lies_well(p) for p in fold.products)
    most, busy = (ROWS, UNITS) if ordered else (TALL, UNITS // 2)
    if ordered and fold.skips:  # all rows of a tile go as far as one of them
        most = 2 * panel if rows > 16 * panel else panel
    alone = len(wide) == 1 and not fold.crossed and not stored  # may columns be cut?
    tall = min(up(rows, lanes), up(most, panel) if rows > panel else panel)
    if rows > tall:
        tall = _even(rows, tall, panel)
    tiles = len(fold.turned) + len(fold.products) + len(fold.weighing) + stored
    while True:
        each = [up(c, panel) for c in wide]
        if alone and fold.products:  # fewer rows, before products are done again
            while tall > panel and tall * each[0] * size > SUMS:
                tall = up(tall // 2, panel)
        sums = WIDE_SUMS if fold.products else SUMS
        if alone and tall * each[0] * size > sums:
            most = max(panel, sums // (tall * size) // panel * panel)
            each = [up(-(-each[0] // -(-each[0] // most)), panel)]
        used = tiles * (steps + lanes) * (tall + lanes) * size
        used += sum([tall * (c + lanes) for c in each]) * size
        used += sum([(tall + lanes) * up(c, panel) for c in across]) * size
        used += (2 * len(fold.streaming.states) + 8) * (tall + 2 * lanes) * size
        used += lanes * (steps + lanes) * size if stored else 0
        # values and keys that must be packed
        used += sum([steps * c for c in each]) * size + sum(
            [(steps + lanes) * (min(d, deep) + lanes) for d in depths]
        ) * size  # fmt: skip
        resident = []
        for depth in depths:
            whole = up(tall, panel) * (up(depth, lanes) + lanes) * size
            fits = used + whole <= ROOM
            resident.append(fits)
            used += whole if fits else up(tall, panel) * (min(depth, deep) + lanes) * size
        if used <= ROOM:
            break
        if tall > panel:
            tall = up(tall // 2, panel)
        elif steps > 32:
            steps //= 2
        else:
            return None
    if fold.crossed:
        while batch * -(-rows // tall) < UNITS // 2 and tall > panel:
            tall = up(tall // 2, panel)
        parts = min(-(-rows // tall), -(-UNITS // (2 * batch)))
        return FoldCut(tall, steps, tuple(each), tuple(resident), along, 1, length, parts)
    if ordered and length * sum(depths) * size <= CLOSE:
        tall = _even(rows, tall, lanes)
        while batch * -(-rows // tall) < busy and tall > NARROW:
            tall = _even(rows, max(NARROW, tall // 2), lanes)
    if along == "streamed" and fold.products and not fold.matrices:
        tall = _even(rows, tall, block.height)
        least = up(READ, block.height)
        while batch * -(-rows // tall) * max(1, length // LONG_STEPS) < busy and tall > least:
            tall = _even(rows, max(READ, tall // 2), block.height)
    units = batch * -(-rows // tall)
    if alone and not fold.products:
        least = 2 * panel - lanes  # of which two tiles are about equal
        while units * -(-wide[0] // each[0]) < busy and min(wide[0], each[0]) >= least:
            each = [_even(wide[0], max(panel, each[0] // 2), panel)]
        units *= -(-wide[0] // each[0])
    splits, span = 1, length
    if units < busy and not fold.skips:
        least = PART if along == "rows" else LONG_STEPS
        splits = max(1, min(-(-busy // units), length // least))
        splits -= splits > 1 and units * splits % 2  # threads are even in number more often
        share = -(-length // splits)
        steps = min(steps, up(-(-share // -(-share // steps)), unit))
        span = -(-share // steps) * steps
        splits = -(-length // span)
    return FoldCut(tall, steps, tuple(each), tuple(resident), along, splits, span)


def _even(rows: int, tall: int, lanes: int) -> int:
    """Rows of tiles that are as good as equal: none is left with few."""
    return up(-(-rows // -(-rows // tall)), lanes)


def lanes_along(fold: Fold, lanes: int) -> str:
    """What lanes run along: the streamed axis for few rows, or where all memory lies that way."""
    line = fold.part(
        [s.body for s in fold.scalars] + [m.weights for m in fold.matrices],
        {s.fold for s in fold.streaming.states} | {p.node for p in fold.products},
        fold.streaming.axes,
    ).columns
    if len(line.axes) != 1:
        return "rows"
    few = fold.count(fold.rows) <= FEW
    return "streamed" if few or not any(map(lies_well, fold.products)) else "rows"


def lies_well(p: Product) -> bool:
    """Are keys memory whose rows are next to each other?"""
    if p.keys.op is not LOAD or p.keys.arg[2] or p.keys.src:
        return False
    return (p.contraction.folded[-1], 1) in p.keys.arg[1][1]


def up(size: int, step: int) -> int:
    """A size in whole steps."""
    return -(-size // step) * step
