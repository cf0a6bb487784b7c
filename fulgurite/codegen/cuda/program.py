"""Triton text of one launch: a tile of a kernel's axes in registers, the others as loops or grid.

In: an `IndexKernel` of maps and folds, its params and a `Tiling`. Out: a `Launch`. Every axis has
one role: a tile axis is a dimension of every tensor (size 1 where a value does not depend on it); a
parallel axis outside the tile is one number of a program; a folded axis outside the tile, or longer
than its block, is a loop. Folds of the same axes share a loop; a sum of products whose factors miss
an axis each is a `tl.dot`: its factors are matrices, so they are worked out in a view of the tile
that has two of its axes alone. Sizes and strides are arguments: a kernel of another shape has the
same text, unless it divides by them or needs other blocks.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from ...core.dtype import DType, float32
from ...core.lazy_dataclass import dataclass
from ...core.node import Node, Source, backward_slice, toposort
from ...core.ops.elementwise import CAST, DIV, EXP, MUL, TANH
from ...core.ops.index import BITS, FOLD, GUARD, INDEX, LOAD, STORE, VALID
from ...core.ops.leaf import CONST, SINK, VAR
from ...graph.ir.affine import Affine, Atom, Condition, axes_of, bounds, sources_of
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import free_axes, indices
from ...graph.ir.reshape_groups import CannotLower
from . import source
from .analysis import (
    Moments,
    contractions,
    divided,
    dot_factors,
    fixed_axes,
    fold_levels,
    has_low_digit,
    live_roots,
    lone_axis,
    moments_of,
    narrow_values,
    online_sums,
    parallel_axes,
    rounded_values,
    runs_along,
    stored_type,
)
from .scope import Scope
from .source import Launch, Place
from .spelling import (
    INT32_LIMIT,
    combine,
    combiner,
    computing,
    constant,
    definitions,
    elementwise,
    empty_fold,
    from_memory,
    identity,
    rounded,
    to_memory,
    type_name,
)

Window = tuple[int, int]  # the axis that counts blocks, and the steps of a block
UNKNOWN = (-(1 << 63), (1 << 63) - 1)
_POINTER = re.compile(r"\bp(\d+)\b")


@dataclass(frozen=True, slots=True)
class Tiling:
    """Which axes are tile dimensions, how long their blocks are, and how a program is launched."""

    axes: tuple[int, ...]  # the tile dimensions, the fastest last
    blocks: tuple[int, ...]  # powers of two
    warps: int = 4
    stages: int = 2
    dot: tuple[int, int, int] | None = None  # axes m, n, k of a product for the tensor cores
    precision: str = "ieee"  # of products of float32 there: ieee or tf32
    streaming: bool = False  # memory that is read or written once is not kept in the L2 cache
    fast: bool = False  # exp within 2^-20, where what it makes is rounded to 16 bits
    brief: bool = False  # scores in fewer instructions, where that holds
    unrolled: int = 0  # steps of loops outside of the tile, at most, that are written out
    short: bool = False  # our own forms of functions: of tanh, and of what is rounded to 16 bits
    narrow_tanh: bool = False  # a tanh of few instructions, where results are rounded to 16 bits
    online: int = 0  # lanes that share a maximum in a loop with the sum about it
    moments: int = 0  # blocks of columns, at most, whose moments are in a loop with their sum
    peeled: int = 0  # whole blocks of a row from which on its last one has a text of its own


class TileProgram:
    """The text of one launch, built block by block."""

    reciprocal = "fg_reciprocal"  # of divisors that many elements share

    def __init__(
        self, kernel: IndexKernel, dtypes: Sequence[DType], places: Sequence[Place],
        tiling: Tiling, windows: Mapping[int, Window] | None = None,
    ) -> None:  # fmt: skip
        self.sizes = fixed_axes(kernel)
        self.dtypes, self.places, self.tiling = dtypes, places, tiling
        self.windows = windows or {}
        self.free = free_axes([n for n in toposort([kernel.body]) if n.op is not SINK])
        self.roots = live_roots(kernel, self.free)
        self._begin(toposort(self.roots), parallel_axes(self.roots, self.free))

    def _begin(self, order: Sequence[Node], parallel: frozenset[int]) -> None:
        """What follows from the tiling and the order of all nodes."""
        tiling = self.tiling
        self.order, self.parallel = order, parallel
        self.block = dict(zip(tiling.axes, tiling.blocks, strict=True))
        self.tile = frozenset(tiling.axes)
        self.dims = tiling.axes if tiling.dot is None else tiling.dot[:2]  # of the view at hand
        self.views: dict[tuple[int, ...], str] = {self.dims: ""}  # and how names in it end
        self.looped = frozenset(
            a for a in range(len(self.sizes)) if a not in self.parallel and self._loops(a)
        )
        self.unrolled = self._unrolled()
        self.shaped = self._shaped()
        self.products = contractions(self.order, self.free)
        self.narrow = narrow_values(order) if tiling.short else frozenset[Node]()
        self.rounded = rounded_values(order) if tiling.narrow_tanh else frozenset[Node]()
        self.levels = fold_levels(self.order)
        self.behind = self._behind_products()
        self.online = self._online()
        self.moments = self._moments()
        self.read_again = self._read_again()
        self.wide = any(map(self._is_far, self.order))
        self.index_type = "tl.int64" if self.wide else "tl.int32"
        self.numbers: dict[int, str] = {}
        self.variables: dict[str, str] = {}
        self.starts: dict[str, str] = {}  # of blocks: where they begin
        self.uniform: frozenset[int] = frozenset()  # axes whose upper digits may be one number
        self.checks = False
        self.counter = 0
        self.loops = 0

    def _behind_products(self) -> frozenset[Node]:
        """What follows from products of a kernel for the tensor cores.

        It is worked out first: what an epilogue reads besides would be in registers meanwhile.
        """
        found: set[Node] = set()
        for node in self.order if self.tiling.dot else ():
            if node.op is FOLD or not found.isdisjoint(node.src):
                found.add(node)
        return frozenset(found)

    def _online(self) -> dict[Node, Node]:
        """Maxima of rows that are walked once, and the sums of exponentials that follow them."""
        lanes, axes = self.tiling.online, self.tiling.axes
        if not lanes or len(axes) != 1 or self.windows or axes[0] not in self.looped:
            return {}
        found = online_sums([n for n in self.order if n.op is FOLD and n.arg[1] == axes])
        read = all(self.shaped[largest.src[0]] for largest in found)
        return found if read and self.block[axes[0]] >= lanes else {}

    def _moments(self) -> dict[Node, Moments]:
        """Sums of columns that are walked once, and the moments about what follows from them."""
        axes = self.tiling.axes
        if len(axes) != 2 or self.tiling.dot is not None or not self._has_equal_windows(axes[0]):
            return {}
        folds = [n for n in self.order if n.op is FOLD]
        found = moments_of([n for n in folds if n.arg[1] == axes[:1]])
        known = {n for total, m in found.items() for n in (total, *m.first, *m.second)}
        return found if known == {*folds} else {}

    def _has_equal_windows(self, axis: int) -> bool:
        """True of an axis in windows of one length, of so many blocks that moments stay exact."""
        if axis not in self.looped or axis not in self.windows:
            return False
        steps = self.windows[axis][1]
        few = steps <= self.tiling.moments * self.block[axis]
        return few and self.sizes[axis] % steps == 0

    def _read_again(self) -> frozenset[Node]:
        """Loads that stand in several loops: all but the first find them in the L2 cache."""
        loops: dict[Node, set[Hashable]] = {}
        for root in [*[n for n in self.order if n.op is FOLD], *self.roots]:
            if root in self.online.values() or (self.moments and root not in self.moments):
                continue  # what it reads is in registers
            folded = (root.arg[1], self.levels[root]) if root.op is FOLD else ()
            for node in backward_slice(root.src, lambda node: node.op is FOLD):
                if node.op is LOAD and self.free[node] & self.looped:
                    loops.setdefault(node, set()).add(folded)
        return frozenset([node for node, found in loops.items() if len(found) > 1])

    def _loops(self, axis: int) -> bool:
        """True if a folded axis is a loop: one that a block does not hold whole."""
        if self.tiling.dot is not None and axis == self.tiling.dot[2]:
            return True
        return axis in self.windows or self.block.get(axis, 0) < self.sizes[axis]

    def _unrolled(self) -> frozenset[int]:
        """Axes of loops with few steps, which are written out."""
        used = frozenset[int]().union(*[self.free[n] for n in self.order])
        axes = (self.looped & used) - self.tile
        short = prod([self.sizes[a] for a in axes]) <= self.tiling.unrolled
        return axes - self.windows.keys() if short else frozenset[int]()

    def _shaped(self) -> dict[Node, bool]:
        """True for values that are tensors, not one number."""
        found: dict[Node, bool] = {}
        for node in self.order:
            axes = frozenset[int]().union(*[axes_of(i) for i in indices(node)])
            if node.op is FOLD:
                axes |= frozenset(node.arg[1])
            found[node] = bool(axes & self.tile) or any(found[s] for s in node.src)
        return found

    def _is_far(self, node: Node) -> bool:
        """True if an index may be beyond what 32 bits count: a place, a number or a condition.

        The end of a block, and of a program's share of a fold, may be behind the last of them.
        """
        shares = [steps for _, steps in self.windows.values()]
        most = INT32_LIMIT - max([*self.tiling.blocks, *shares], default=0)
        ends = [bounds(i, self._bound_of(node)) for whole in indices(node) for i in divided(whole)]
        return any(high > most or low < -most for low, high in ends)

    # --- the whole -------------------------------------------------------------------------------

    def launch(self) -> Launch:
        """The text with its grid and arguments."""
        top = Scope(None, {}, 1)
        tiles = self._tiles()
        if tiles > INT32_LIMIT:
            raise CannotLower(f"{tiles} programs, of which a launch has {INT32_LIMIT} at most")
        self._decode(top)
        self._emit_roots(top)
        body, used = _renumbered("\n".join(self._peeled_map(top)))
        arguments = [
            source.pointer(f"p{number}", self.dtypes[param], self.places[param])
            for number, param in enumerate(used)
        ]
        if self.checks:
            arguments += [source.error_words(), source.lock_word()]
        arguments += [source.variable(short, name) for name, short in self.variables.items()]
        arguments += [source.number(name, value) for value, name in self.numbers.items()]
        head = f"@triton.jit\ndef kernel({', '.join(a.name for a in arguments)}):"
        text = source.with_variables(f"{definitions(body)}{head}\n{body}\n", arguments)
        warps, stages = self.tiling.warps, self.tiling.stages
        return Launch(text, "kernel", tiles, warps, stages, tuple(arguments))

    def _peeled_map(self, top: Scope) -> list[str]:
        """The lines of a program; of a map along uneven rows those of whole blocks and of others.

        A mask whose end is no multiple of a vector makes every access one of single elements.
        """
        lines = top.lines
        masked = [line for line in lines if line in top.masks]
        axes = [a for a in self.tiling.axes if self._is_ragged(a)]
        folds = any(node.op is FOLD for node in self.order)
        if not self.tiling.peeled or len(masked) != 1 or len(axes) != 1 or folds:
            return lines
        (mask,), (axis,) = masked, axes
        size, block = self.sizes[axis], self.block[axis]
        if source.number("", size).even or size < self.tiling.peeled * block:
            return lines
        at = lines.index(mask)
        rest = [f"    {line}" for line in lines[at + 1 :]]
        whole = f"    if {self.starts[str(axis)]} + {block} <= {self._number(size)}:"
        return [
            *lines[:at], whole, f"    {top.masks[mask]}", *rest, "    else:", f"    {mask}", *rest
        ]  # fmt: skip

    def _tiles(self) -> int:
        """How many tiles there are."""
        return prod([-(-self.sizes[a] // self.block.get(a, 1)) for a in self.parallel])

    def _decode(self, top: Scope) -> None:
        """A tile's number as places along the parallel axes."""
        fast = self._fastest_first()
        counts = {a: -(-self.sizes[a] // self.block.get(a, 1)) for a in fast}
        top.say(f"left = tl.program_id(0){'.to(tl.int64)' if self.wide else ''}")
        varying = [a for a in fast if counts[a] > 1]
        for axis in fast:
            step = "left"
            if counts[axis] == 1:
                step = "left * 0"
            elif axis != varying[-1]:
                step = f"s{axis}"
                count = self._number(counts[axis])
                top.say(f"s{axis} = left % {count}")
                top.say(f"left = left // {count}")
            if axis in self.block:
                self._tile_axis(top, axis, f"{step} * {self.block[axis]}")
            else:
                top.say(f"a{axis} = {step}")
        for axis in self.tiling.axes:  # folded axes that one block holds
            if axis not in self.parallel and axis not in self.looped:
                self._tile_axis(top.home([]), axis, "")

    def _fastest_first(self) -> list[int]:
        """Parallel axes in the order in which neighbouring programs step along them.

        Tiles come first, of a product the one of its rows: neighbours read the same columns.
        """
        first = self.tiling.dot[:2] if self.tiling.dot else ()
        order = sorted(self.parallel)
        tiles = [a for a in order if a in self.block]
        steps = [a for a in reversed(order) if a not in self.block]
        return sorted([*tiles, *steps], key=lambda a: first.index(a) if a in first else len(first))

    def _tile_axis(self, scope: Scope, axis: int, start: str) -> None:
        """The places of a block along an axis."""
        arange = f"tl.arange(0, {self.block[axis]})"
        if self.wide:
            arange += ".to(tl.int64)"
        name = self._bound_name(axis, scope)
        self.starts[name] = start or "0"
        scope.say(f"i{name} = {f'({start} + {arange})' if start else arange}")

    def _bound_name(self, axis: int, scope: Scope) -> str:
        return f"{axis}_{scope.bound[axis]}" if axis in self.looped else f"{axis}"

    def _spread_axis(self, axis: int, scope: Scope) -> str:
        """Ensure that the places of a block are a tensor of the view's rank, with their mask."""
        bound = self._bound_name(axis, scope)
        name = f"{bound}{self.views[self.dims]}"
        home = scope.home({axis} & self.looped)
        if name not in home.spread:
            home.spread.add(name)
            places = ", ".join([":" if a == axis else "None" for a in self.dims])
            home.say(f"a{name} = i{bound}{f'[{places}]' if len(self.dims) > 1 else ''}")
            if self._is_ragged(axis):
                end = f"w{axis}" if axis in self.windows else self._number(self.sizes[axis])
                home.say(f"m{name} = a{name} < {end}")
                whole = f"m{name} = tl.full({self._shape(frozenset({axis}))}, True, tl.int1)"
                home.masks[home.lines[-1]] = "    " * home.indent + whole
        return name

    @contextmanager
    def _view(self, dims: tuple[int, ...]) -> Iterator[None]:
        """Work values out as tensors of these axes of the tile alone."""
        before, self.dims = self.dims, dims
        self.views.setdefault(dims, f"v{len(self.views)}")
        yield
        self.dims = before

    def _is_ragged(self, axis: int) -> bool:
        size, block = self.sizes[axis], self.block[axis]
        window = self.windows.get(axis)
        return size % block != 0 or size == 0 or (window is not None and window[1] % block != 0)

    def _number(self, value: int) -> str:
        """A run-time number; 0, 1 and -1 are part of the text."""
        if -1 <= value <= 1:
            return str(value)
        return self.numbers.setdefault(value, f"n{len(self.numbers)}")

    def _name(self) -> str:
        self.counter += 1
        return f"t{self.counter}"

    # --- roots and loops -------------------------------------------------------------------------

    def _emit_roots(self, top: Scope) -> None:
        """All values at their stores: those of few loops first, each group in loops of its own."""
        groups: dict[tuple[int, frozenset[int]], list[Node]] = {}
        written: dict[int, int] = {}  # a param's stores keep their order
        for root in self.roots:
            turn = 0
            if root.op is STORE:
                turn = written[root.arg[0]] = written.get(root.arg[0], -1) + 1
            groups.setdefault((turn, self.free[root] & self.looped), []).append(root)
        for (_, axes), roots in sorted(groups.items(), key=lambda g: (g[0][0], len(g[0][1]))):
            inner = self._open(top, axes)
            for node in self._before_stores(roots, axes):
                self._value(node, inner)
            for root in roots:
                value = self._value(root.src[0] if root.op is STORE else root, inner)
                if root.op is STORE:
                    for start in root.src[1:]:  # of a box, which its place counts from
                        self._value(start, inner)
                    self._store(root, value, inner)
            self._close(inner, top)

    def _before_stores(self, roots: Sequence[Node], axes: frozenset[int]) -> list[Node]:
        """What must be known before the first store: memory may be written that others read.

        That is every value, or, where results follow from reductions that are results themselves,
        all that reads memory: such a result is stored as soon as it is known, because Triton 3.6
        would move its change of layout from a later store before its definition.
        """
        values = [r.src[0] if r.op is STORE else r for r in roots]
        order = toposort(values)
        inside = {source for node in order for source in node.src}
        folds = any(node.op is FOLD for node in order)
        if self.tiling.dot is not None or not folds or not inside.intersection(values):
            return values
        return [n for n in order if n.op in (LOAD, FOLD) and self.free[n] & self.looped <= axes]

    def _open(self, scope: Scope, axes: frozenset[int] | Sequence[int]) -> Scope:
        """Loops over axes, one inside the other, those of blocks innermost."""
        for axis in sorted(axes, key=lambda a: (a in self.block, a)):
            self.loops += 1
            number, inner = self.loops, scope.loop(axis, self.loops)
            start, end = "0", self._number(self.sizes[axis])
            if axis in self.windows:
                counter, steps = self.windows[axis]
                start = f"a{counter} * {self._number(steps)}"
                end = f"w{axis}"
                scope.say(f"{end} = tl.minimum({start} + {self._number(steps)}, "
                          f"{self._number(self.sizes[axis])})")  # fmt: skip
            name = f"a{axis}_{number}"
            if axis in self.block:
                inner.header = f"for r{number} in range({start}, {end}, {self.block[axis]}):"
                inner.peeled = self._peeled(axis, number)
                self._tile_axis(inner, axis, f"r{number}")
            elif axis in self.unrolled:
                inner.header = f"for r{number} in tl.static_range({self.sizes[axis]}):"
                inner.say(f"{name} = tl.full((), r{number}, {self.index_type})")
            else:
                inner.header = f"for r{number} in range({start}, {end}):"
                inner.say(f"{name} = r{number}")
                if self.wide:
                    inner.say(f"{name} = {name}.to(tl.int64)")
            scope = inner
        return scope

    def _peeled(self, axis: int, number: int) -> tuple[str, str]:
        """Loop peeling: the whole blocks of a long row, and its end, which alone has masks."""
        size, block = self.sizes[axis], self.block[axis]
        whole = size // block * block
        few = whole < self.tiling.peeled * block
        if few or not self.tiling.peeled or axis in self.windows or self.tiling.dot is not None:
            return "", ""
        ends = self._number(whole), self._number(size)
        first = f"for r{number} in range(0, {ends[0]}, {block}):"
        return first, f"for r{number} in range({ends[0]}, {ends[1]}, {block}):"

    def _close(self, scope: Scope, outer: Scope) -> None:
        while scope is not outer:
            scope.close()
            assert scope.parent is not None
            scope = scope.parent

    def _store(self, store: Node, value: str, scope: Scope) -> None:
        param, index = store.arg[:2]
        axes, have = self._stored_axes(store), axes_of(index) & self.tile
        shape = self._shape(frozenset(axes), self.shaped[store.src[0]])
        place = self._spread(self._index(index, store, scope), bool(have), have, axes, shape)
        mask = self._mask(frozenset(axes), (), store, scope)
        text = to_memory(value, self.dtypes[param])
        extra = f", mask={mask}" if mask else ""
        extra += ', cache_modifier=".cs"' if self.tiling.streaming else ""
        scope.say(f"tl.store(p{param} + {place}, {text}{extra})")

    def _stored_axes(self, store: Node) -> tuple[int, ...]:
        """The axes of what a store stores."""
        axes: tuple[int, ...] = store.arg[3]
        return axes

    # --- shapes ----------------------------------------------------------------------------------

    def _shape(self, axes: frozenset[int], shaped: bool = True) -> str:
        """The shape of a tensor that depends on these axes; "" if it is one number."""
        if not shaped and not axes & self.tile:
            return ""
        dims = [str(self.block[a]) if a in axes else "1" for a in self.dims]
        return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"

    def _spread(
        self, place: str, shaped: bool, have: frozenset[int], axes: Sequence[int] | frozenset[int],
        shape: str,
    ) -> str:  # fmt: skip
        """An index as a tensor over all tile axes among `axes`."""
        if not shape or (shaped and frozenset(axes) & self.tile <= have):
            return place
        return f"({place} + tl.zeros({shape}, tl.int32))"

    # --- values ----------------------------------------------------------------------------------

    def _value(self, root: Node, scope: Scope) -> str:
        """The name of a node's value, emitted where it belongs if it is not yet."""
        waiting = [root]
        while waiting:
            node = waiting[-1]
            home = self._home(node, scope)
            if home.known(self._key(node)) is not None:
                waiting.pop()
                continue
            if node.op is FOLD and self._is_looped(node):
                waiting.pop()
                self._fold_loop(node, home)
                continue
            sources = self._needs(node)
            missing = [s for s in sources if self._known(s, scope) is None]
            if missing:
                missing.sort(key=lambda s: s not in self.behind)
                waiting.extend(reversed(missing))
                continue
            waiting.pop()
            values = [self._named(s, scope) for s in sources]
            name = self._name()
            text = self._expression(node, values, home)
            home.say(f"{name} = {text}")
            home.names[self._key(node)] = name
        return self._named(root, scope)

    def _home(self, node: Node, scope: Scope) -> Scope:
        """The block that a value belongs to."""
        return scope.home(self.free[node] & self.looped)

    def _key(self, node: Node) -> Hashable:
        """What a value is known by: in another view it is another tensor."""
        return node, self.dims

    def _needs(self, node: Node) -> tuple[Node, ...]:
        """The values that a node is worked out from; of nothing, nothing is read."""
        return () if node.op is FOLD and self._is_empty(node) else node.src

    def _known(self, node: Node, scope: Scope) -> str | None:
        return self._home(node, scope).known(self._key(node))

    def _named(self, node: Node, scope: Scope) -> str:
        name = self._known(node, scope)
        assert name is not None, f"{node!r} has no value yet"
        return name

    def _is_looped(self, fold: Node) -> bool:
        return bool(frozenset(fold.arg[1]) & self.looped) and not self._is_empty(fold)

    def _is_empty(self, fold: Node) -> bool:
        return any(self.sizes[a] == 0 for a in fold.arg[1])

    def _expression(self, node: Node, values: list[str], scope: Scope) -> str:
        op = node.op
        if op is LOAD:
            return self._load(node, scope)
        if op is FOLD:
            return self._fold_block(node, values, scope)
        if op is MUL and node in self.products:
            return f"{values[0]} * {values[1]}"  # rounded with the sum
        if op is EXP and node in self.narrow:
            return f"fg_narrow_exp({values[0]})"
        if op is TANH and node in self.rounded:
            return f"fg_narrow_tanh({values[0]})"
        if op is DIV and node in self.narrow and self._is_shared_divisor(node):
            return self._shared_quotient(node, values, scope)
        if op.family == "elementwise":
            return elementwise(node, values, self.tiling.short)
        if op is CONST:
            return constant(node.arg[0], node.dtype)
        if op is VAR:
            short = self.variables.setdefault(node.arg[0], f"v{len(self.variables)}")
            return f"{short}.to({type_name(node.dtype)})"
        if op is INDEX:
            if not node.arg[1]:
                return f"tl.full((), {node.arg[0]}, tl.int64)"
            return f"({self._index(node.arg, node, scope)}).to(tl.int64)"
        if op is VALID:
            always = self._shape(self.free[node], self.shaped[node]) or "()"
            return self._conditions(node.arg, node, scope) or f"tl.full({always}, True, tl.int1)"
        if op is GUARD:
            return self._guard(node, values, scope)
        if op is BITS:
            return f"fg_bits({', '.join(values)})"
        raise CannotLower(f"{op} has no tile form")

    def _is_shared_divisor(self, node: Node) -> bool:
        """True if many elements of the tile are divided by the same number."""
        return self.free[node.src[1]] & self.tile < self.free[node] & self.tile

    def _shared_quotient(self, node: Node, values: list[str], scope: Scope) -> str:
        """A quotient within 2 ulp by way of the divisor's reciprocal, which is worked out once."""
        divisor = node.src[1]
        home, key = self._home(divisor, scope), ("reciprocal", self._key(divisor))
        name = home.known(key)
        if name is None:
            name = home.names[key] = self._name()
            home.say(f"{name}s = fg_safe_scale({values[1]})")
            home.say(f"{name} = {self.reciprocal}({values[1]}, {name}s)")
        return f"{values[0]} * {name}s * {name}"

    def _load(self, node: Node, scope: Scope) -> str:
        return from_memory(self._read(self._loaded(node, scope)), self.dtypes[node.arg[0]])

    def _loaded(self, node: Node, scope: Scope) -> str:
        """What is in memory, in the dtype that it has there."""
        param, index, conditions = node.arg
        axes = self.free[node]
        sources = sources_of(index)
        have = axes_of(index)
        shaped = bool(have & self.tile)
        for s in sources:
            have |= self.free[node.src[s.index]]
            shaped |= self.shaped[node.src[s.index]]
        shape = self._shape(axes, self.shaped[node])
        self.uniform = frozenset([a for a in self.tile if has_low_digit(index, a)])
        place = self._index(index, node, scope)
        place = self._spread(place, shaped, have & self.tile, axes, shape)
        mask = self._mask(axes, conditions, node, scope)
        self.uniform = frozenset()
        extra = f", mask={mask}, other=0" if mask else ""
        once = axes >= self.parallel and not sources and node not in self.read_again
        if self.tiling.streaming and once:
            extra += ', eviction_policy="evict_first"'
        return f"tl.load(p{param} + {place}{extra})"

    def _read(self, text: str) -> str:
        """What is read, as it is computed with."""
        return text

    def _guard(self, node: Node, values: list[str], scope: Scope) -> str:
        """A dynamic index kept inside its axis; one that is not sets error words and lock."""
        self.checks = True
        value, limit = values[0], self._number(node.arg)
        bad = self._name()
        scope.say(f"{bad} = ({value} < 0) | ({value} >= {limit})")
        mask = self._mask(self.free[node], (), node, scope)
        bad_here = f"{bad} & {mask}" if mask else bad
        shape = self._shape(self.free[node], self.shaped[node])
        spread = f" + tl.zeros({shape}, tl.int32)" if shape else ""
        scope.say(f"tl.store(err{spread}, 1, mask={bad_here})")
        scope.say(f"tl.store(err + 1{spread}, {limit}, mask={bad_here})")
        scope.say(f"tl.store(lock{spread}, 1, mask={bad_here})")
        return f"tl.where({bad}, 0, {value}).to({type_name(node.dtype)})"

    # --- indices and masks -----------------------------------------------------------------------

    def _axis(self, axis: int, scope: Scope) -> str:
        if axis in self.block:
            return f"a{self._spread_axis(axis, scope)}"
        return f"a{self._bound_name(axis, scope)}"

    def _index(self, index: Affine, node: Node, scope: Scope) -> str:
        terms = [] if index[0] == 0 and index[1] else [self._number(index[0])]
        for atom, step in index[1]:
            text = self._atom(atom, node, scope)
            if step == 1:
                terms.append(text)
            elif step == -1:
                terms.append(f"(0 - {text})")
            else:
                terms.append(f"{text} * {self._number(step)}")
        return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]

    def _atom(self, atom: Atom, node: Node, scope: Scope) -> str:
        if isinstance(atom, int):
            return self._axis(atom, scope)
        if isinstance(atom, Source):
            return f"{self._named(node.src[atom.index], scope)}.to({self.index_type})"
        sign, inner, by = atom
        axis = lone_axis(inner)
        if sign == "//" and axis in self.uniform and self._is_one_digit(axis, by):
            return f"(({self.starts[self._bound_name(axis, scope)]}) // {by})"  # one for a block
        text = self._index(inner, node, scope)
        low, _ = bounds(inner, self._bound_of(node))
        if low >= 0:
            return f"({text} {sign} {by})"
        if low <= UNKNOWN[0] // 2:
            raise CannotLower("a division of a number without bounds")
        up = -(low // by)  # division rounds down, Triton's toward zero
        text = f"({text} + {up * by})"
        return f"({text} // {by} - {up})" if sign == "//" else f"({text} % {by})"

    def _is_one_digit(self, axis: int, by: int) -> bool:
        """True if a quotient is one number for a block: blocks divide it, and begin at multiples of
        their length, as those of split-K do only where a program's share has whole blocks."""
        _, share = self.windows.get(axis, (0, 0))
        return by % self.block[axis] == 0 and share % self.block[axis] == 0

    def _bound_of(self, node: Node) -> _Bound:
        return _Bound(node, self.sizes)

    def _conditions(self, conditions: Sequence[Condition], node: Node, scope: Scope) -> str:
        tests = []
        for index, size in conditions:
            place = self._index(index, node, scope)
            low, high = bounds(index, self._bound_of(node))
            if low < 0:
                tests.append(f"({place} >= 0)")
            if high >= size:
                tests.append(f"({place} < {self._number(size)})")
        return " & ".join(tests)

    def _mask(
        self, axes: frozenset[int], conditions: Sequence[Condition], node: Node, scope: Scope
    ) -> str:
        """Where a tensor over these axes is inside the kernel's sizes and conditions hold."""
        ragged = self._ragged_masks([a for a in self.dims if a in axes], scope)
        tests = self._conditions(conditions, node, scope)
        return " & ".join([*ragged, *([tests] if tests else [])])

    def _ragged_masks(self, axes: Sequence[int], scope: Scope) -> list[str]:
        found = [a for a in axes if a in self.block and self._is_ragged(a)]
        return [f"m{self._spread_axis(a, scope)}" for a in found]

    # --- folds -----------------------------------------------------------------------------------

    def _fold_block(self, node: Node, values: list[str], scope: Scope) -> str:
        """A fold over axes that the tile holds whole; of nothing, nothing is read."""
        name, axes = node.arg
        held = computing(node.dtype)
        if self._is_empty(node):
            shape = self._shape(self.free[node], self.shaped[node])
            nothing = empty_fold(name, node.dtype)
            return f"tl.broadcast_to({nothing}, {shape})" if shape else nothing
        value = self._ready(name, values[0], node, scope)
        return rounded(self._reduced(name, value, axes, held), node.dtype)

    def _ready(self, name: str, value: str, node: Node, scope: Scope) -> str:
        """What is folded, over all tile axes among the fold's and the identity beyond their end."""
        source_, axes = node.src[0], frozenset(node.arg[1])
        missing = (axes - self.free[source_]) & self.tile
        spread = (axes | self.free[source_]) & self.tile
        alone = all(self.block[a] == 1 for a in spread)  # its index may be a number then
        if missing or (axes & self.tile and (alone or not self.shaped[source_])):
            found = self._name()
            shape = self._shape(axes | self.free[source_])
            scope.say(f"{found} = tl.broadcast_to({value}, {shape})")
            value = found
        ragged = self._ragged_masks(sorted(axes), scope)
        if ragged:
            found = self._name()
            neutral = identity(name, node.dtype)
            scope.say(f"{found} = tl.where({' & '.join(ragged)}, {value}, {neutral})")
            value = found
        return value

    def _reduced(self, name: str, value: str, axes: Sequence[int], held: DType) -> str:
        """Tile dimensions folded away; they stay with size 1."""
        function = combiner(name, held)
        for dim, axis in enumerate(self.dims):
            if axis in axes:
                value = f"tl.reduce({value}, {dim}, {function}, keep_dims=True)"
        return value

    def _fold_loop(self, fold: Node, home: Scope) -> None:
        """All folds of one level over the same axes, in one loop of accumulators."""
        axes: tuple[int, ...] = fold.arg[1]
        if self._one_pass(fold, home):
            return
        alike = (fold.arg[1], self.levels[fold], self.free[fold] & self.looped)
        group = [
            n for n in self.order
            if n.op is FOLD and (n.arg[1], self.levels[n], self.free[n] & self.looped) == alike
            and home.known(self._key(n)) is None
        ]  # fmt: skip
        totals = [self._accumulator(n, home) for n in group]
        inner = self._open(home, frozenset(axes) & self.looped)
        for node, total in zip(group, totals, strict=True):
            self._accumulate(node, total, inner)
        self._close(inner, home)
        for node, total in zip(group, totals, strict=True):
            name, held = node.arg[0], computing(node.dtype)
            text = total if self._is_dot(node) else self._reduced(name, total, axes, held)
            found = self._name()
            home.say(f"{found} = {rounded(text, node.dtype)}")
            home.names[self._key(node)] = found

    def _one_pass(self, fold: Node, home: Scope) -> bool:
        """True if a fold was in one loop with what follows from it, or what it follows from."""
        for largest, total in self.online.items():
            if fold in (largest, total):
                self._online_loop(largest, total, home)
                return True
        for total, moments in self.moments.items():
            if fold in (total, *moments.first, *moments.second):
                self._moments_loop(total, moments, home)
                return True
        return False

    def _online_loop(self, largest: Node, total: Node, home: Scope) -> None:
        """Online softmax (Milakov and Gimelshein): a sum that is scaled as its maximum grows.

        A few neighbours share a maximum, so that an exponential for that is one of as many more.
        """
        (axis,), lanes = largest.arg[1], self.tiling.online
        rows = self.block[axis] // lanes
        lowest, zero = identity("max", float32), identity("add", float32)
        most, sums, x, high, base = [self._name() for _ in range(5)]
        home.say(f"{most} = tl.broadcast_to({lowest}, ({rows}, 1))")
        home.say(f"{sums} = tl.broadcast_to({zero}, ({rows}, 1))")
        inner = self._open(home, [axis])
        value = self._ready("max", self._value(largest.src[0], inner), largest, inner)
        inner.say(f"{x} = tl.reshape({value}, ({rows}, {lanes}))")
        inner.say(f"{high} = fg_max({most}, tl.reduce({x}, 1, fg_max, keep_dims=True))")
        inner.say(f"{base} = tl.where({high} == {lowest}, 0.0, {high})")  # of nothing so far
        inner.say(f"{sums} = {sums} * fg_exp({most} - {base})")
        inner.say(f"{sums} += tl.reduce(fg_exp({x} - {base}), 1, fg_add, keep_dims=True)")
        inner.say(f"{most} = {high}")
        self._close(inner, home)
        found, whole = self._name(), self._name()
        highest = f"tl.reduce({most}, 0, fg_max, keep_dims=True)"
        home.say(f"{found} = tl.reshape({highest}, (1,))")
        scaled = f"{sums} * fg_exp({most} - {found})"
        home.say(f"{whole} = tl.reshape(tl.reduce({scaled}, 0, fg_add, keep_dims=True), (1,))")
        home.names[self._key(largest)], home.names[self._key(total)] = found, whole

    def _moments_loop(self, total: Node, moments: Moments, home: Scope) -> None:
        """Moments in one pass, about the mean of the first block; then moved to their center.

        That is about as far from the mean of all as an average of so many is: little cancels.
        """
        (axis,) = total.arg[1]
        counter, steps = self.windows[axis]
        block = self.block[axis]
        start = f"a{counter} * {self._number(steps)}"
        near, mean = self._name(), self._name()
        before = self._open(home, [axis])
        before.header = f"for r{self.loops} in range({start}, {start} + {block}, {block}):"
        x = self._ready("add", self._value(total.src[0], before), total, before)
        home.say(f"{near} = tl.zeros({self._shape(self.free[total])}, tl.float32)")
        before.say(f"{near} = tl.reduce({x}, {self.dims.index(axis)}, fg_add, keep_dims=True)")
        self._close(before, home)
        home.say(f"{mean} = {near} * {1 / min(block, steps)}")
        home.say(f"{mean} = tl.where({mean} - {mean} == 0.0, {mean}, 0.0)")  # of infinite numbers
        first, second = self._accumulator(total, home), self._accumulator(total, home)
        inner = self._open(home, [axis])
        x, distance = self._value(total.src[0], inner), self._name()
        masks = " & ".join(self._ragged_masks([axis], inner))
        inner.say(
            f"{distance} = {f'tl.where({masks}, {x} - {mean}, 0.0)' if masks else f'{x} - {mean}'}"
        )
        inner.say(f"{first} = {first} + {distance}")
        inner.say(f"{second} = {second} + {distance} * {distance}")
        self._close(inner, home)
        sums = []
        for lanes in (first, second):
            sums.append(self._name())
            home.say(f"{sums[-1]} = {self._reduced('add', lanes, [axis], float32)}")

        def found(node: Node, text: str) -> None:
            name = home.names[self._key(node)] = self._name()
            home.say(f"{name} = {text}")

        found(total, f"{sums[0]} + {mean} * {steps}.0")
        center, apart = self._value(moments.center, home), self._name()
        home.say(f"{apart} = {mean} - {center}")
        moved = f"{apart} * {steps}.0"
        for node in moments.first:
            found(node, f"{sums[0]} + {moved}")
        for node in moments.second:
            found(node, f"{sums[1]} + {apart} * ({sums[0]} * 2.0 + {moved})")

    def _accumulator(self, node: Node, home: Scope) -> str:
        name, axes = node.arg
        total = self._name()
        if self._is_dot(node):
            m, n, _ = self.tiling.dot or (0, 0, 0)
            shape = f"({self.block[m]}, {self.block[n]})"
            home.say(f"{total} = tl.zeros({shape}, tl.float32)")
            return total
        shape = self._shape(self.free[node.src[0]] | frozenset(axes), self.shaped[node])
        neutral = identity(name, node.dtype)
        home.say(f"{total} = {f'tl.broadcast_to({neutral}, {shape})' if shape else neutral}")
        return total

    def _accumulate(self, node: Node, total: str, scope: Scope) -> None:
        name = node.arg[0]
        if self._is_dot(node):
            assert self.tiling.dot is not None
            factors = dot_factors(node, self.free, self.tiling.dot)
            assert factors is not None
            scope.say(f"{total} = {self._dot(factors, self.tiling.dot, total, scope)}")
            return
        value = self._value(node.src[0], scope)
        value = self._ready(name, value, node, scope)
        scope.say(f"{total} = {combine(name, total, value, computing(node.dtype))}")

    # --- products for the tensor cores -----------------------------------------------------------

    def _is_dot(self, node: Node) -> bool:
        dot = self.tiling.dot
        return dot is not None and dot_factors(node, self.free, dot) is not None

    def _dot(
        self, factors: Sequence[Node], axes: tuple[int, int, int], total: str, scope: Scope,
        dtypes: Sequence[DType] = (),
    ) -> str:  # fmt: skip
        """One block of k added to a total: both factors as matrices, m x k and k x n."""
        m, n, k = axes
        types = dtypes or [stored_type(f) for f in factors]
        common = types[0] if types[0] is types[1] else float32
        names = [
            self._matrix(factor, rows, k, common, scope, transposed=rows == n)
            for factor, rows in zip(factors, (m, n), strict=True)
        ]
        return f'tl.dot({names[0]}, {names[1]}, {total}, input_precision="{self.tiling.precision}")'

    def _matrix(
        self, factor: Node, rows: int, k: int, dtype: DType, scope: Scope, transposed: bool
    ) -> str:
        """A factor as a matrix of rows x k, or transposed; it is 0 beyond its ends."""
        view = (rows, k) if self._is_contiguous(factor, k) else (k, rows)
        with self._view(view):
            value = self._value(factor, scope)
            missing = frozenset(view) - self.free[factor]
            if missing or not self.shaped[factor]:
                value = f"tl.broadcast_to({value}, {self._shape(frozenset(view))})"
            read = factor.src[0] if factor.op is CAST else factor
            ragged = self._ragged_masks([rows, k], scope)
            # what is beyond an end may be NaN, also in rows that nobody stores; loads give 0 there
            if ragged and not (read.op is LOAD and not missing):
                value = f"tl.where({' & '.join(ragged)}, {value}, 0.0)"
        if dtype.is_small_float:
            value = f"{value if value.isidentifier() else f'({value})'}.to({type_name(dtype)})"
        name = self._name()
        scope.say(f"{name} = {f'tl.trans({value})' if transposed == (view[0] == rows) else value}")
        return name

    def _is_contiguous(self, factor: Node, axis: int) -> bool:
        """True if most of what a factor is read from lies along an axis, or nothing says so."""
        along = [
            runs_along(n.arg[1], axis) for n in toposort([factor]) if n.op is LOAD and self.free[n]
        ]
        return not along or 2 * sum(along) >= len(along)


class _Bound:
    """Bounds of the atoms in a node's indices: axes by their sizes, data by what is known of it."""

    def __init__(self, node: Node, sizes: Sequence[int]) -> None:
        self.node, self.sizes = node, sizes

    def __call__(self, atom: int | Source) -> tuple[int, int]:
        if isinstance(atom, int):
            return 0, max(0, self.sizes[atom] - 1)
        value = self.node.src[atom.index]
        return value.bounds or (value.dtype.limits if value.dtype.bits < 32 else UNKNOWN)


def _renumbered(body: str) -> tuple[str, list[int]]:
    """A text with its pointers numbered as they come, and the params they were named by.

    Launches of kernels with more or other params then have equal texts, which compile once.
    """
    numbers: dict[str, int] = {}
    text = _POINTER.sub(lambda m: f"p{numbers.setdefault(m[1], len(numbers))}", body)
    return text, [*map(int, numbers)]
