"""Row states of an online reduction: running extremes and compensated sums of one number a row.

In: the states of a problem. Out: lines that begin them, add what a block gives, and rescale what
was known before when the bases under it moved. Sums keep what rounding takes (compensated, or
two-sum, summation), so errors do not grow with N: a sum on which nothing is built and that is only
rescaled has an error term beside it (`compensated`), others are added in float64 and kept as two
float32 (`widened`). An infinite sum has no error term: it stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property

from ....core.dtype import bool_, decode, float32, float64
from ....core.node import Node, constant, constant_bits, forward_slice, make, toposort
from ....core.ops.elementwise import ADD, CAST, DIV, MUL, NEG, SUB, WHERE
from ....core.ops.index import LOAD
from ....core.ops.leaf import CONST
from ....core.rewriting.substitute import substitute
from ....kernel.stream.online import State
from ..llvm.emitter import Emitter, Val
from ..llvm.maths import select, two_sum
from ..spelling import combine, identity
from .tile import Tile


class StateSet:
    """All states of one number a row; each is in a buffer of its own, error terms beside them."""

    errors: dict[State, Val]  # of the rows that are traversed now

    def __init__(self, tile: Tile) -> None:
        self.tile, self.problem = tile, tile.problem
        self.all, self.rows = tile.problem.states, tile.problem.row_states
        self.numbers = {state: number for number, state in enumerate(self.all)}
        self.compensated = [s for s in self.rows if s.op == "add" and self._is_leaf(s)]
        self.widened: list[State] = []
        if tile.dtype is float32:
            own = self.compensated
            self.widened = [s for s in self.rows if s.op == "add" and s not in own]
        self.with_errors = [*self.compensated, *self.widened]
        self.coefficients = self._coefficients()

    def _is_leaf(self, state: State) -> bool:
        """True if nothing is built on a sum, and it is only rescaled."""
        others = [s for s in self.all if s is not state]
        roots = [s.body for s in others] + [s.repair for s in others if s.repair is not None]
        inside = set(toposort(roots))
        return is_rescaled(state) and state.fold not in inside and state.old not in inside

    def _coefficients(self) -> dict[Node, int]:
        """What repairs of weighted sums need for each row (rescale factors), numbered."""
        problem, found = self.problem, dict[Node, int]()
        with_columns = {w.state.old for w in problem.weighted}
        for w in problem.weighted:
            if w.state.repair is None:
                continue
            order = toposort([w.state.repair])
            moving = forward_slice(order, with_columns)
            for node in order:
                for source in node.src if node in moving else ():
                    varies = source in problem.depends_on_states or problem.free[source]
                    if source not in moving and varies:
                        found.setdefault(source, len(found))
            if w.state.repair not in moving:
                found.setdefault(w.state.repair, len(found))
        return found

    # --- memory ----------------------------------------------------------------------------------

    def memory(self, state: State) -> str:
        """Where a state of the rows of a tile is."""
        return self.tile.f.read[f"state{self.numbers[state]}"]

    def error_memory(self, state: State) -> str:
        """Where its error terms are."""
        return self.tile.f.read[f"error{self.numbers[state]}"]

    def reserve(self) -> None:
        """Buffers of all states."""
        for number in range(len(self.all)):
            self.tile.reserve(f"state{number}", self.tile.row_numbers)

    def reserve_errors(self) -> None:
        """Buffers of error terms."""
        for state in self.with_errors:
            self.tile.reserve(f"error{self.numbers[state]}", self.tile.row_numbers)

    def begin(self) -> None:
        """States before anything was seen."""
        tile = self.tile
        tile.e.line(f"store i64 0, ptr {tile.f.read['begun']}")
        for state in self.all:
            if state in self.rows:
                start = identity(tile.e, state.op, tile.dtype, True)
                tile.fill(self.memory(state), tile.count, start)

    def begin_errors(self) -> None:
        """No error before anything was added."""
        for state in self.with_errors:
            self.tile.fill_zeros(self.error_memory(state), self.tile.count)

    def enter_block(self) -> None:
        """Read whether there were blocks before this one."""
        tile = self.tile
        tile.seen = tile.e.let(f"load i64, ptr {tile.f.read['begun']}")
        tile.begun = tile.e.let(f"icmp ne i64 {tile.seen}, 0")

    def leave_block(self) -> None:
        """Note that there was a block."""
        self.tile.e.line(f"store i64 1, ptr {self.tile.f.read['begun']}")

    def add_errors(self) -> None:
        """At the end of a tile: sums with their error terms."""
        tile = self.tile

        def rows(state: State, place: str) -> None:
            sums = tile.load(self.memory(state), place)
            value = with_error(tile.e, sums, tile.load(self.error_memory(state), place))
            tile.store(self.memory(state), place, value.text)

        for state in self.compensated:
            tile.vectors(tile.count, lambda place, state=state: rows(state, place))  # type: ignore[misc]

    def load_final(self, place: str, load: Callable[[str, str], Val]) -> None:
        """All states of some rows, for what is computed from them at the end."""
        for state in self.all:
            if state in self.rows:
                self.tile.f.scopes[-1][state.fold] = load(self.memory(state), place)

    # --- what a block adds -----------------------------------------------------------------------

    def add_block(self, state: State, known: Val, total: Val) -> Val:
        """A state with what a block gives."""
        e = self.tile.e
        if state in self.widened:
            before = known
            if known.dtype is float32:
                before = self.tile.f.value(self.widened_olds[state.old])
            return self.narrowed(state, combine(e, "add", before, self.as_float64(total)))
        if state not in self.compensated:
            return combine(e, state.op, known, total)
        found, lost = two_sum(e, known, total)
        self.errors[state] = combine(e, "add", self.errors[state], lost)
        return found

    def narrowed(self, state: State, total: Val) -> Val:
        """A float64 sum as one of float32, and an error term if that is finite."""
        e, dtype, vector = self.tile.e, self.tile.dtype, total.vector
        kind, short = e.type_of(float64, vector), e.type_of(dtype, vector)
        found = Val(e.let(f"fptrunc {e.typed(total)} to {short}"), dtype, vector)
        back = self.as_float64(found).text
        left = e.let(f"fptrunc {kind} {e.let(f'fsub {kind} {total.text}, {back}')} to {short}")
        nothing = e.let(f"fsub {short} {found.text}, {found.text}")  # not a number if infinite
        known = Val(e.let(f"fcmp ord {short} {nothing}, {nothing}"), bool_, vector)
        zero = e.const(0, dtype, vector)
        self.errors[state] = select(e, known, Val(left, dtype, vector), zero)
        return found

    def narrowed_block(self, state: State, total: str) -> Val:
        """The float64 sum of a block as one of float32; what is left goes to the error term."""
        e = self.tile.e
        found = Val(e.let(f"fptrunc double {total} to float"), self.tile.dtype)
        back = e.let(f"fpext float {found.text} to double")
        left = e.let(f"fptrunc double {e.let(f'fsub double {total}, {back}')} to float")
        self.errors[state] = combine(e, "add", self.errors[state], Val(left, self.tile.dtype))
        return found

    def as_float64(self, value: Val) -> Val:
        """A number in float64."""
        if value.dtype is float64:
            return value
        e = self.tile.e
        kind = e.type_of(float64, value.vector)
        return Val(e.let(f"fpext {e.typed(value)} to {kind}"), float64, value.vector)

    # --- rescaling -------------------------------------------------------------------------------

    @cached_property
    def widened_olds(self) -> dict[Node, Node]:
        """What stands for a widened sum before a block with its error term, in float64."""
        found = {s.old: make(LOAD, float64, (), s.old.arg) for s in self.widened}
        self._name_nodes(list(found.values()))
        return found

    def load_widened_olds(self, load: Callable[[str], Val]) -> dict[Node, Val]:
        """Widened sums before a block, from memory of sums and of error terms."""
        found = {}
        for state in self.widened:
            number = self.numbers[state]
            parts = [load(name) for name in (f"state{number}", f"error{number}")]
            pair = [self.as_float64(part) for part in parts]
            found[self.widened_olds[state.old]] = combine(self.tile.e, "add", *pair)
        return found

    def repair_of(self, state: State) -> Node:
        """A state's repair, of a widened sum in float64."""
        assert state.repair is not None
        if state not in self.widened:
            return state.repair
        found = in_float64(state.repair, self.widened_olds, self._rounded)
        self._name_nodes(toposort([found]))
        return found

    @cached_property
    def _rounded(self) -> set[Node]:
        """What bodies compute from bases, of now and of before: repairs take it as it is there."""
        bodies = [s.body for s in self.all]
        before = {s.fold: s.old for s in self.all}
        return set(toposort([*bodies, *[substitute(body, before) for body in bodies]]))

    def _name_nodes(self, nodes: Sequence[Node]) -> None:
        """Positions for nodes that the kernel itself does not have."""
        position = self.tile.numbers.position
        for node in nodes:
            position.setdefault(node, len(position))

    def rescaled_error(self, state: State, error: Val) -> Val:
        """An error term on the bases of now, which is rescaled like its sum."""
        f = self.tile.f
        if state.repair is None:
            return error
        for node in rescale_factors(state):  # they are the sum's as well
            f.value(node)
        assert not any(state.repair in scope for scope in f.scopes), "a sum was repaired before"
        f.scopes.append({state.old: error})
        found = f.value(state.repair)
        f.scopes.pop()
        return found


def is_rescaled(state: State) -> bool:
    """True if a repair is nothing but a factor, or 0."""

    def linear(node: Node) -> bool:
        if state.old not in toposort([node]):
            return node.op is CONST and constant_bits(node.arg[0], node.dtype).value == 0
        if node is state.old:
            return True
        moving = [s for s in node.src if state.old in toposort([s])]
        if node.op is MUL:
            return len(moving) == 1 and linear(moving[0])
        if node.op is WHERE:
            return node.src[0] not in moving and all(linear(s) for s in node.src[1:])
        return False

    return state.repair is None or linear(state.repair)


def in_float64(node: Node, olds: Mapping[Node, Node], rounded: Collection[Node]) -> Node:
    """A repair in float64: sums before a block with error terms, bases as bodies have them."""

    def found(node: Node, is_sum: bool) -> Node:
        if is_sum and node in olds:
            return olds[node]
        if node.op is CONST:
            return constant(decode(node.arg[0], node.dtype), float64)
        if node.dtype is float32 and node not in rounded:
            if node.op in (ADD, MUL, SUB, DIV, NEG):
                sums = is_sum and node.op in (ADD, MUL)
                return make(node.op, float64, tuple([found(s, sums) for s in node.src]), node.arg)
            if node.op is WHERE:
                sides = [found(s, is_sum) for s in node.src[1:]]
                return make(WHERE, float64, (node.src[0], *sides), node.arg)
        return make(CAST, float64, (node,), float64)

    return found(node, True)


def rescale_factors(state: State) -> list[Node]:
    """What a repair needs besides the sum."""
    assert state.repair is not None
    order = toposort([state.repair])
    moving = {n for n in order if state.old in toposort([n])}
    return [n for n in order if n not in moving and any(n in m.src for m in moving)]


def with_error(e: Emitter, total: Val, error: Val) -> Val:
    """A sum with its error term, if it has one."""
    both = combine(e, "add", total, error)
    kind = e.type_of(both.dtype, both.vector)
    known = Val(e.let(f"fcmp ord {kind} {both.text}, {both.text}"), bool_, both.vector)
    return select(e, known, both, total)
