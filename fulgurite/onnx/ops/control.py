"""Choices and loops: If, Loop, Scan, SequenceMap.

In: a `Call` with graphs among its attributes. Out: values. Where a condition or a count is known
when the graph is built, it decides there: the branch is taken, a short loop unrolled. Otherwise
`fg.cond`, `fg.scan` and `fg.while_loop` compile the body once. What neither can do (a sequence
that grows, a shape that changes) is run step by step, reading the condition each time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import fulgurite as fg

from ...core.op import Array
from ...errors import FulguriteError
from ...tensor import Tensor
from ..errors import ModelError, NeedsValueError
from ..proto import Graph, ValueInfo
from ..table import Call, operator
from ..types import INT64, kind_of
from ..values import Value
from .movement import axis_of

UNROLLED = 16  # as many steps are built one after the other
MOST_TRIPS = 10_000_000  # of a loop that is compiled
MOST_STEPS = 100_000  # of a loop that is run step by step


def _flag(truth: bool) -> Value:
    return Value(None, None, np.array(truth))


def _count(number: int) -> Value:
    return Value(None, INT64, np.array(number, np.int64))


@operator("If")
def if_(op: Call) -> tuple[Any, ...]:
    """One of two graphs."""
    then, other = op.graph("then_branch"), op.graph("else_branch")
    known = op.known(0)
    if known is None:
        made = _chosen(op, then, other)
        if made is not None:
            return made
        known = op.host(0)
    if known.size != 1:
        raise ModelError(f"its condition has {known.size} elements", "it is one truth")
    return tuple(op.build.graph(then if bool(known.reshape(-1)[0]) else other, [], op.scope))


def _chosen(op: Call, then: Graph, other: Graph) -> tuple[Any, ...] | None:
    """Both branches compiled, where they give tensors of the same kinds and shapes."""
    kinds: list[Any] = []

    def branch(graph: Graph) -> Any:
        values = op.build.graph(graph, [], op.scope)
        kinds.append([v.kind if isinstance(v, Value) else None for v in values])
        return tuple(_tensors(values))

    op.build.tracing += 1
    try:
        condition = fg.reshape(op[0], ()).astype(fg.bool)
        found = fg.cond(condition, lambda: branch(then), lambda: branch(other))
    except FulguriteError:
        return None
    finally:
        op.build.tracing -= 1
    if kinds[0] != kinds[1]:
        return None
    return tuple(Value(x, kind) for x, kind in zip(found, kinds[0], strict=True))


def _tensors(values: list[Any]) -> list[Tensor]:
    """Values that a compiled body can hold."""
    for value in values:
        if not isinstance(value, Value) or value.is_text:
            raise NeedsValueError("a sequence or strings in a compiled body", "run it in steps")
    return [value.tensor for value in values]


@operator("Loop")
def loop(op: Call) -> tuple[Any, ...]:
    """A graph again and again, so many times or while a condition holds."""
    limit = op.known(0)
    most = None if limit is None else int(limit.reshape(-1)[0])
    if most is not None and most > MOST_TRIPS:
        raise ModelError(f"a loop of {most} steps", f"at most {MOST_TRIPS}: is the model damaged?")
    first = op.known(1) if op.has(1) else np.array(True)
    found = _Loop(op, op.graph("body"), list(op.inputs[2:]), most, first)
    short = most is not None and most <= UNROLLED
    made = None if short or not found.holds_tensors else found.compiled()
    return found.stepwise() if made is None else made


@dataclass(frozen=True)
class _Loop:
    """A loop: what it carries, its most steps and its first condition, where they are known."""

    op: Call
    body: Graph
    carried: list[Any]
    most: int | None
    first: Array | None

    @property
    def holds_tensors(self) -> bool:
        """True if a compiled body can carry its values."""
        return all(isinstance(v, Value) and not v.is_text for v in self.carried)

    @property
    def gives(self) -> int:
        """How many results of each step are stacked."""
        return len(self.body.output) - 1 - len(self.carried)

    def stepwise(self) -> tuple[Any, ...]:
        """Step by step, reading the condition each time."""
        op, body, carried = self.op, self.body, self.carried
        most = int(op.number(0)) if self.most is None and op.has(0) else self.most
        going = bool((self.first if self.first is not None else op.host(1)).reshape(-1)[0])
        rows: list[list[Any]] = [[] for _ in range(self.gives)]
        step = 0
        while going and (most is None or step < most):
            if step >= MOST_STEPS:
                raise ModelError(f"a loop of more than {MOST_STEPS} steps", "does it ever end?")
            found = op.build.graph(body, [_count(step), _flag(True), *carried], op.scope)
            carried = found[1 : 1 + len(carried)]
            for row, value in zip(rows, found[1 + len(carried) :], strict=True):
                row.append(value)
            step += 1
            if most is None or step < most:
                going = bool(op.build.read(found[0]).reshape(-1)[0])
        if not step:
            return (*carried, *self._no_rows())
        return (*carried, *[_stacked(row) for row in rows])

    def _no_rows(self) -> list[Value]:
        """What no step gave: the sizes of a row are those that a step would give."""
        declared = [_declared(info) for info in self.body.output[1 + len(self.carried) :]]
        if not declared or not self.holds_tensors:
            return declared
        self.op.build.tracing += 1
        try:
            counter = fg.Tensor(np.zeros((), np.int64))
            found = self._once(counter, [v.tensor for v in self.carried])[1 + len(self.carried) :]
            return [Value(fg.zeros((0, *v.shape), v.tensor.dtype), v.kind) for v in found]
        except FulguriteError:
            return declared
        finally:
            self.op.build.tracing -= 1

    def compiled(self) -> tuple[Any, ...] | None:
        """The loop as one kernel, where its carries keep their shapes."""
        always = self.first is not None and bool(self.first.reshape(-1)[0])
        self.op.build.tracing += 1
        try:
            if self.most is not None and always:
                with suppress(FulguriteError):
                    return self._scanned(self.most)
            return None if self.gives else self._while(always)
        except FulguriteError:
            return None
        finally:
            self.op.build.tracing -= 1

    def _once(self, number: Tensor, state: Any) -> list[Any]:
        """The body's outputs for a state."""
        values = [Value(x, v.kind) for x, v in zip(state, self.carried, strict=True)]
        found = self.op.build.graph(self.body, [Value(number), _flag(True), *values], self.op.scope)
        _tensors(found)
        return found

    def _scanned(self, most: int) -> tuple[Any, ...]:
        kinds: list[Any] = []
        count = len(self.carried)

        def step(state: Any, number: Tensor) -> Any:
            going, *found = self._once(number, state)
            kinds[:] = [*[v.kind for v in self.carried], *[v.kind for v in found[count:]]]
            last = self.op.build.peek(going)
            if last is None or not bool(last.reshape(-1)[0]):
                raise NeedsValueError("the condition of a loop changes", "run it in steps")
            made = [v.tensor for v in found]
            return tuple(made[:count]), tuple(made[count:])

        start = tuple(v.tensor for v in self.carried)
        last, rows = fg.scan(step, start, fg.arange(most, dtype=fg.int64))
        return tuple(Value(x, kind) for x, kind in zip((*last, *rows), kinds, strict=True))

    def _while(self, always: bool) -> tuple[Any, ...]:
        op = self.op
        limit = op[0].reshape(()).astype(fg.int64) if op.has(0) else None

        def goes(state: Any) -> Tensor:
            return state[1] if limit is None else fg.logical_and(state[1], state[0] < limit)

        def step(state: Any) -> Any:
            number, _, *rest = state
            going, *found = self._once(number, rest)
            return (number + 1, fg.reshape(going.tensor, ()), *[v.tensor for v in found])

        begin = fg.Tensor(always) if self.first is not None else fg.reshape(op[1], ())
        start = [v.tensor for v in self.carried]
        counter = fg.Tensor(np.zeros((), np.int64))
        found = fg.while_loop(goes, step, (counter, begin, *start))
        return tuple(Value(x, v.kind) for x, v in zip(found[2:], self.carried, strict=True))


def _stacked(row: list[Any]) -> Value:
    """What every step gave, as one tensor."""
    return Value(fg.stack([value.tensor for value in row], axis=0), row[0].kind)


def _declared(info: ValueInfo) -> Value:
    """No rows of what a body says it gives; sizes that it does not say are 0, as elsewhere."""
    given = None if info.type is None else info.type.tensor_type
    kind = kind_of(1 if given is None else given.elem_type)
    sizes = () if given is None or given.shape is None else given.shape.dim
    return Value(fg.zeros((0, *[d.dim_value or 0 for d in sizes]), kind.carrier), kind)


@operator("Scan")
def scan(op: Call) -> tuple[Any, ...]:
    """A graph over the slices of some inputs, carrying a state."""
    body = op.graph("body")
    rows_in = op.int("num_scan_inputs", 1)
    if op.version < 9:
        return _batched_scan(op, body, rows_in)
    states = [op.value(i) for i in range(len(op) - rows_in)]
    rows = [op.value(i) for i in range(len(op) - rows_in, len(op))]
    axes = op.ints_of("scan_input_axes") or [0] * rows_in
    backward = op.ints_of("scan_input_directions") or [0] * rows_in
    slices = []
    for value, axis, reverse in zip(rows, axes, backward, strict=True):
        x = fg.moveaxis(value.tensor, axis_of(axis, len(value.shape)), 0)
        slices.append(Value(fg.flip(x, 0) if reverse else x, value.kind))
    found = scanned(op, body, states, slices)
    gives = len(body.output) - len(states)
    out_axes = op.ints_of("scan_output_axes") or [0] * gives
    out_back = op.ints_of("scan_output_directions") or [0] * gives
    made = list(found[: len(states)])
    for value, axis, reverse in zip(found[len(states) :], out_axes, out_back, strict=True):
        x = fg.flip(value.tensor, 0) if reverse else value.tensor
        made.append(Value(fg.moveaxis(x, 0, axis_of(axis, x.ndim)), value.kind))
    return tuple(made)


def scanned(op: Call, body: Graph, states: list[Value], rows: list[Value]) -> list[Value]:
    """The last states and what all steps gave."""
    kinds: list[Any] = []

    def step(carry: Any, row: Any) -> Any:
        given = [Value(x, v.kind) for x, v in zip((*carry, *row), (*states, *rows), strict=True)]
        found = op.build.graph(body, given, op.scope)
        kinds[:] = [v.kind for v in found]
        made = _tensors(found)
        return tuple(made[: len(states)]), tuple(made[len(states) :])

    start, slices = tuple(v.tensor for v in states), tuple(v.tensor for v in rows)
    op.build.tracing += 1
    try:
        last, shown = fg.scan(step, start, slices)
        return [Value(x, k) for x, k in zip((*last, *shown), kinds, strict=True)]
    except FulguriteError:
        pass
    finally:
        op.build.tracing -= 1
    carry, given = start, []
    for i in range(slices[0].shape[0]):
        carry, out = step(carry, tuple(x[i] for x in slices))
        given.append(out)
    stacked = [fg.stack(list(parts)) for parts in zip(*given, strict=True)]
    return [Value(x, k) for x, k in zip((*carry, *stacked), kinds, strict=True)]


def _batched_scan(op: Call, body: Graph, rows_in: int) -> tuple[Any, ...]:
    """Version 8: a scan for each sample; lengths that differ are not built."""
    if op.has(0):
        raise op.unsupported("sequence_lens")
    values = [op.value(i) for i in range(1, len(op))]
    states, rows = values[: len(values) - rows_in], values[len(values) - rows_in :]
    each = []
    for sample in range(rows[0].shape[0]):
        each.append(
            scanned(
                op, body,
                [Value(v.tensor[sample], v.kind) for v in states],
                [Value(v.tensor[sample], v.kind) for v in rows],
            )
        )  # fmt: skip
    return tuple(fg.stack([v.tensor for v in parts]) for parts in zip(*each, strict=True))


@operator("SequenceMap")
def sequence_map(op: Call) -> tuple[Any, ...]:
    """A graph for each element of a sequence."""
    body = op.graph("body")
    rows: list[list[Any]] = [[] for _ in body.output]
    for i in range(len(op.any(0))):
        given = [v[i] if isinstance(v, list) else v for v in op.inputs]
        for row, value in zip(rows, op.build.graph(body, given, op.scope), strict=True):
            row.append(value)
    return tuple(rows)
