"""The online update of a block: row states take in its scores, and weights are written.

In: a block whose score products are in tiles. Out: lines that take every element of it into the
states of rows, level by level (states that others are built on first), leave rescale factors of
every row in small buffers, and write weights. Extremes take one instruction an element on targets
with mask registers; where they met NaN is kept beside them. Two forms, by what lanes run along, are
in codegen/cpu/stream/row_lanes.py and codegen/cpu/stream/column_lanes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.dtype import bool_, float32
from ....core.node import Node, toposort
from ....kernel.contract.analysis import Part
from ....kernel.stream.online import State
from ..llvm.emitter import Val
from ..llvm.maths import select
from ..spelling import combine, identity
from .states import StateSet
from .tile import Tile
from .weights import WeightTiles

Step = Callable[[str, list[str]], list[str]]  # a place and what is carried -> what is carried on
_BEYOND = {"max": "ogt", "min": "olt"}


class BlockUpdate:
    """One pass over a block for each level of states (online softmax: running max and sum)."""

    is_vector: bool  # True if a state is traversed for a vector of rows at a time
    is_full = False  # True while all lanes of a step lie within the block
    met: dict[State, list[str]]  # values that extremes took in in this step

    def __init__(
        self, tile: Tile, states: StateSet, loads: Sequence[Node] = (),
        weights: WeightTiles | None = None, stops: frozenset[Node] = frozenset(),
    ) -> None:  # fmt: skip
        self.tile, self.states, self.problem = tile, states, tile.problem
        self.step_by = 1 if self.is_vector else tile.lanes  # elements of N that a step takes in
        self.loads, self.weights = loads, weights  # no weights: they are made in another pass
        self.stops = tile.problem.computed | frozenset(loads) | stops
        self.bounds = self.stops | tile.problem.olds
        levels = range(self.problem.levels)
        self.scalars = [[s for s in states.rows if s.level == level] for level in levels]
        self.moved = [[s for s in row if s.repair is not None] for row in self.scalars]
        self.written = [self._weights_at(level) for level in levels]
        self.bodies = [
            [s.body for s in self.scalars[level]] + [node for _, node, _ in self.written[level]]
            for level in levels
        ]
        self.saved = [self._saved(level) for level in levels]

    def _weights_at(self, level: int) -> list[tuple[str, Node, bool]]:
        """What a level writes: tile, node, and whether denormal numbers are flushed."""
        return [] if self.weights is None else self.weights.written(level, self.stops)

    def _saved(self, level: int) -> Node | None:
        """What one level computes and later ones would again: it takes its product's place."""
        if self.weights is None or len(self.problem.products) != 1:
            return None
        product = self.problem.products[0].node
        later = [b for bodies in self.bodies[level + 1 :] for b in bodies]
        for state in self.scalars[level] if later else ():
            inside = self.problem.part([state.body], self.bounds, ()).nodes
            cost = sum([n.op.cost for n in inside if self.problem.varies_along_n(n)])
            after = self.problem.part(later, self.bounds | {state.body}, ()).nodes
            used = state.body in after and product not in after and product in inside
            if used and cost > self.tile.tiling.recompute_cost:
                return state.body
        return None

    # --- what forms differ in --------------------------------------------------------------------

    def emit(self) -> None:
        """All passes over a block."""
        raise NotImplementedError

    def enter(self, part: Part, i: str) -> None:
        """Go to an element of the block."""
        raise NotImplementedError

    def leave(self, part: Part) -> None:
        """Leave it."""

    def in_use(self, value: Val, state: State) -> Val:
        """A value in the lanes that are in use, elsewhere what changes nothing."""
        return value

    def across_lanes(self, total: str, state: State) -> Val:
        """What a block gives a state."""
        return Val(total, self.tile.dtype, True)

    # --- passes over a block ---------------------------------------------------------------------

    @property
    def is_needed(self) -> bool:
        """True if there is anything to update."""
        return any(self.bodies)

    def part(self) -> Part:
        """What passes over a block compute, with lines of their own."""
        every = [b for bodies in self.bodies for b in bodies]
        repairs = [s.repair for s in self.states.rows if s.repair is not None]
        roots = [*every, *repairs, *self.states.coefficients]
        return self.problem.part(roots, self.bounds, self.problem.n_axes)

    def update_rows(self, place: str) -> None:
        """All levels for some rows, whose states are at a place of their buffers."""
        tile, states, f = self.tile, self.states, self.tile.f
        load = tile.load if self.is_vector else tile.load_one
        store = tile.store_lanes if self.is_vector else tile.store_one
        scope = f.scopes[-1]
        for state in states.rows:
            scope[state.old] = load(states.memory(state), place)
        states.errors = {s: load(states.error_memory(s), place) for s in states.with_errors}
        scope |= states.load_widened_olds(lambda name: load(f.read[name], place))
        line = place if self.is_vector else f.mul(place, tile.stride)
        for level in range(self.problem.levels):
            if self.bodies[level]:
                self.update_level(level, line)
        self.put_coefficients(place, store)
        for state in states.rows:
            store(states.memory(state), place, scope[state.fold])
        for state, error in states.errors.items():
            store(states.error_memory(state), place, error)

    def update_level(self, level: int, line: str) -> None:
        """One pass over a block: states of a level, and weights that need no later ones."""
        tile, f, e = self.tile, self.tile.f, self.tile.e
        scope, part = f.scopes[-1], f.part
        assert part is not None
        nodes = self.problem.part(self.bodies[level], self.bounds, ()).nodes
        for node in nodes:
            if not self.problem.varies_along_n(node) and node not in self.stops:
                e.pin(f.value(node))
        for node in nodes:
            if node in self.problem.folds:
                e.pin(scope[node])

        def step(i: str, sums: list[str]) -> list[str]:
            self.enter(part, i)
            f.scopes.append({})
            place = f.add(f.mul(i, tile.stride), line) if self.is_vector else f.add(line, i)
            self.load_tiles(nodes, level, place)
            out = []
            for state, total in zip(self.scalars[level], sums, strict=True):
                value = self.in_use(e.splat(f.value(state.body)), state)
                out.append(self.taken_in(state, total, value.text))
            saved = self.saved[level]
            if saved is not None:
                tile.store_lanes(f.read["tile0"], place, f.value(saved))
            for name, node, flushes in self.written[level]:
                value = f.value(node)
                tile.store_lanes(f.read[name], place, self.flushed(value) if flushes else value)
            f.scopes.pop()
            self.leave(part)
            return out

        sums = self.steps(self.scalars[level], step, sum([n.op.cost for n in nodes]))
        before = self.rescaled(level)
        for state, total in zip(self.scalars[level], sums, strict=True):
            known = before.get(state, scope[state.old])
            block = self.across_lanes(total, state)
            scope[state.fold] = self.states.add_block(state, known, block)

    def load_tiles(self, nodes: Sequence[Node], level: int, place: str) -> None:
        """Score products at a place of their tiles, or what was saved of one, and loads."""
        tile, f = self.tile, self.tile.f
        saved = [node for node in self.saved[:level] if node is not None]
        for number, product in enumerate(self.problem.products):
            value = saved[-1] if saved and number == 0 else product.node
            if product.node in nodes or value in nodes:
                f.scopes[-1][value] = tile.load(f.read[f"tile{number}"], place)
        for number, node in enumerate(self.loads):
            if node in nodes:
                found = tile.load(f.read[f"load{number}"], place)
                if node.dtype is bool_:
                    zero = tile.e.const(0, tile.dtype, True).text
                    text = tile.e.let(f"fcmp une {tile.vector} {found.text}, {zero}")
                    found = Val(text, bool_, True)
                f.scopes[-1][node] = found

    def flushed(self, value: Val) -> Val:
        """A weight; those too small to be normal numbers count as 0.

        Products with denormal numbers would take a hundred times as long, and they are nothing
        beside the 1 that the largest weight is.
        """
        tile, e = self.tile, self.tile.e
        value = e.splat(value)
        size = e.call(tile.vector, f"llvm.fabs.{e.suffix(value.dtype, True)}", e.typed(value))
        least = 2.0**-126 if tile.dtype is float32 else 2.0**-1022
        tiny = e.let(f"fcmp olt {tile.vector} {size}, {e.const(least, value.dtype, True).text}")
        return select(e, Val(tiny, bool_, True), e.const(0, value.dtype, True), value)

    # --- what was known before -------------------------------------------------------------------

    def rescaled(self, level: int) -> dict[State, Val]:
        """What the states of a level were, on the bases of now; 0 if there was nothing before.

        For the first block nothing is computed. The last level leaves the rescale factors of
        weighted sums where these will find them.
        """
        f, e, states = self.tile.f, self.tile.e, self.states
        moved = self.moved[level]
        if not moved:
            return {}
        exact = [s for s in moved if s in states.compensated]
        nodes = dict.fromkeys([states.repair_of(s) for s in moved])
        if level == self.problem.levels - 1:
            nodes |= dict.fromkeys(states.coefficients)

        def repair(_: str, __: list[str]) -> list[str]:
            f.scopes.append({})
            found = [states.rescaled_error(s, states.errors[s]) for s in exact]
            found += [f.value(node) for node in nodes]
            f.scopes.pop()
            return [(e.splat(v) if self.is_vector else v).text for v in found]

        every = [*[s.fold for s in exact], *nodes]
        start = [(e.type_of(node.dtype, self.is_vector), "zeroinitializer") for node in every]
        texts = e.loop("0", self.tile.seen, 1, start, repair)
        for state, text in zip(exact, texts, strict=False):
            states.errors[state] = Val(text, self.tile.dtype, self.is_vector)
        for node, text in zip(nodes, texts[len(exact) :], strict=True):
            f.scopes[-1][node] = Val(text, node.dtype, self.is_vector)
        return {s: f.scopes[-1][states.repair_of(s)] for s in moved}

    def put_coefficients(self, place: str, store: Callable[[str, str, Val], None]) -> None:
        """Rescale factors of weighted sums, and which rows need them, after the first block."""
        f, coefficients = self.tile.f, self.states.coefficients

        def every() -> None:
            for node, number in coefficients.items():
                store(f.read[f"coefficient{number}"], place, self.as_number(f.value(node)))
            store(f.read["changed"], place, self.as_number(self.bases_moved()))

        if coefficients:
            f.e.branch(self.tile.begun, lambda: f.scope(every))

    def bases_moved(self) -> Val:
        """Which rows have a base that is not what it was."""
        f, e = self.tile.f, self.tile.e
        kind, truth = e.type_of(self.tile.dtype, self.is_vector), e.type_of(bool_, self.is_vector)
        found: str | None = None
        used = set(toposort(list(self.states.coefficients)))
        for state in self.states.rows:
            if state.old in used:
                pair = [f.value(n) for n in (state.fold, state.old)]
                texts = [e.splat(v).text if self.is_vector else v.text for v in pair]
                now = e.let(f"fcmp une {kind} {texts[0]}, {texts[1]}")
                found = now if found is None else e.let(f"or {truth} {found}, {now}")
        if found is None:
            found = "splat (i1 true)" if self.is_vector else "true"
        return Val(found, bool_, self.is_vector)

    def as_number(self, value: Val) -> Val:
        """A truth as 0 or 1."""
        tile, e = self.tile, self.tile.e
        if value.dtype is not bool_:
            return value
        if not value.vector:
            return Val(e.let(f"uitofp i1 {value.text} to {tile.inner}"), tile.dtype)
        one, zero = (e.const(n, tile.dtype, True).text for n in (1, 0))
        kinds = f"{tile.truth} {value.text}, {tile.vector} {one}, {tile.vector} {zero}"
        return Val(e.let(f"select {kinds}"), tile.dtype, True)

    # --- steps of a block ------------------------------------------------------------------------

    def steps(self, states: Sequence[State], step: Step, cost: int) -> list[str]:
        """All steps of a block; several sums each where one would wait for itself."""
        tile, e = self.tile, self.tile.e
        starts = [identity(e, s.op, tile.dtype, True).text for s in states]
        watched = [s for s in states if self.is_quick(s)]
        carried = [(tile.vector, s) for s in starts]
        clean = [(tile.truth, "zeroinitializer") for _ in watched]
        if cost <= tile.tiling.light_step_cost:
            return self.interleaved(states, step, carried, clean)
        by = tile.tiling.sum_steps * self.step_by
        grouped = self.grouped(states, self.watched(watched, step), len(clean))
        found = e.loop("0", tile.deep, by, carried + clean, grouped)
        return self.with_nans(states, found[: len(states)], found[len(states) :])

    def interleaved(
        self, states: Sequence[State], step: Step, carried: list[tuple[str, str]],
        clean: list[tuple[str, str]],
    ) -> list[str]:  # fmt: skip
        """Steps so short that several independent sums take turns."""
        tile, f, e, count, by = self.tile, self.tile.f, self.tile.e, len(states), self.step_by
        turns = tile.tiling.light_step_sums
        watched = [s for s in states if self.is_quick(s)]
        rest = e.let(f"urem i64 {tile.deep}, {turns * by}")
        whole = f.sub(tile.deep, rest)

        def several(i: str, sums: list[str]) -> list[str]:
            out: list[str] = []
            for turn in range(turns):
                out += step(f.add(i, str(turn * by)), sums[turn * count : (turn + 1) * count])
            return out

        self.is_full = True
        sums = e.loop(
            "0", whole, turns * by, carried * turns + clean, self.watched(watched, several)
        )
        self.is_full = False
        kinds = [kind for kind, _ in carried + clean]
        first = sums[:count] + sums[turns * count :]
        start = list(zip(kinds, first, strict=True))
        last = e.loop(whole, tile.deep, by, start, self.watched(watched, step))
        for turn in range(1, turns):
            for place, state in enumerate(states):
                last[place] = self.joined(state, sums[turn * count + place], last[place])
        return self.with_nans(states, last[:count], last[count:])

    def grouped(self, states: Sequence[State], step: Step, masks: int) -> Step:
        """Steps of which few are summed by themselves, before they are added to the others."""
        tile, f, e = self.tile, self.tile.f, self.tile.e
        sums = [place for place, state in enumerate(states) if state.op == "add"]
        kinds = [tile.vector] * len(states) + [tile.truth] * masks
        steps = tile.tiling.sum_steps * self.step_by

        def some(i: str, known: list[str]) -> list[str]:
            first = list(known)
            for place in sums:
                first[place] = identity(e, "add", tile.dtype, True).text
            last = f.least(f.add(i, f.number(("short", self.step_by), steps)), tile.deep)
            found = e.loop(i, last, self.step_by, list(zip(kinds, first, strict=True)), step)
            for place in sums:
                pair = [Val(t[place], tile.dtype, True) for t in (known, found)]
                found[place] = combine(e, "add", *pair).text
            return found

        return some

    # --- extremes: one instruction each, and NaN kept beside them --------------------------------

    def is_quick(self, state: State) -> bool:
        """True if it is an extreme on a target with mask registers."""
        return state.op in _BEYOND and self.tile.registers.target.vectors == "avx512"

    def taken_in(self, state: State, known: str, value: str) -> str:
        """A state with one more value."""
        if self.is_quick(state):
            self.met.setdefault(state, []).append(value)
        return self.joined(state, value, known)

    def joined(self, state: State, value: str, known: str) -> str:
        """A state of both; of a quick one the second side is never NaN, nor is the result."""
        tile, e, kind = self.tile, self.tile.e, self.tile.vector
        if not self.is_quick(state):
            pair = [Val(text, tile.dtype, True) for text in (known, value)]
            return combine(e, state.op, *pair).text
        beyond = e.let(f"fcmp {_BEYOND[state.op]} {kind} {value}, {known}")
        return e.let(f"select {tile.truth} {beyond}, {kind} {value}, {kind} {known}")

    def watched(self, states: Sequence[State], step: Step) -> Step:
        """A step that also carries where extremes met NaN."""
        tile, e = self.tile, self.tile.e

        def watch(i: str, carried: list[str]) -> list[str]:
            count = len(carried) - len(states)
            self.met = {}
            out = step(i, carried[:count])
            for state, mask in zip(states, carried[count:], strict=True):
                met = self.met[state]
                for first, second in zip(met[::2], [*met[1::2], met[-1]], strict=False):
                    now = e.let(f"fcmp uno {tile.vector} {first}, {second}")
                    mask = e.let(f"or {tile.truth} {mask}, {now}")
                out.append(mask)
            return out

        return watch

    def with_nans(
        self, states: Sequence[State], totals: list[str], masks: Sequence[str]
    ) -> list[str]:
        """Extremes, NaN where one was met."""
        e, dtype, left = self.tile.e, self.tile.dtype, list(masks)
        out = []
        for state, total in zip(states, totals, strict=True):
            value = Val(total, dtype, True)
            if self.is_quick(state):
                none = e.const(float("nan"), dtype, True)
                value = select(e, Val(left.pop(0), bool_, True), none, value)
            out.append(value.text)
        return out
