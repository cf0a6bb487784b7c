"""Kernels that run a graph of their own: loops step by step, choices one of two.

In: a kernel of kind "loop" or "cond", whose nodes hold bodies. Out: a callable for the plan around
it. A body is compiled once, by the same stages as any graph, to a plan that is kept as long as
somebody uses it; a loop of another length finds it there. A native step is a few addresses and one
call: rows are read and written where they lie. A carry stays where it is if the body can write over
it, so a cache that changes by a row costs a row; others go to and fro between two places, or
straight into the rows of their trail. What nobody asked for is not computed. Other devices run the
body's plan step by step and copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._lazy import lazy_import
from ..config import current
from ..core.cache import WeakCache
from ..core.node import Node, toposort
from ..core.op import Array
from ..core.ops.body import Body, close
from ..core.ops.control import COND, LOOP, Loop
from ..core.ops.effect import HOSTS
from ..core.ops.leaf import PARAM, VAR
from ..graph.ir.kernel import Kernel, Schedule
from ..graph.memory.arena import slot_bytes
from ..graph.memory.in_place import Pair
from .device import Buffer, Device
from .host.device import HostBuffer, Interpreted
from .host.evaluate import evaluate, size_value
from .pipeline import body_context, cache_key, planned, schedule_of
from .plan import Plan

BODIES: WeakCache[tuple[object, ...], Plan] = WeakCache("bodies")


def control(kernel: Kernel, device: Device) -> Interpreted:
    """The code of a loop or a choice."""
    return _Looping(kernel, device) if kernel.body.src[0].op is LOOP else _Choosing(kernel, device)


def asked_bodies(kernel: Kernel) -> list[tuple[Body, list[int]]]:
    """The bodies of a kernel without what nobody asked for, and which inputs each still reads."""
    nodes = kernel.body.src
    items = [node.arg[0] for node in nodes]
    if nodes[0].op is not LOOP:
        return [_only([body.roots[i] for i in items]) for body in nodes[0].arg[1:]]
    loop = Loop.of(nodes[0])
    carried, given = asked_items(loop, items)
    return [_only([loop.body.roots[i] for i in (*carried, *given)])]


def asked_items(loop: Loop, items: Sequence[int]) -> tuple[list[int], list[int]]:
    """The carries that some items need, in this step or an earlier one, and what they give."""
    roots = loop.body.roots
    given = [i for i in items if loop.carries <= i < len(roots)]
    needed = {loop.trailed(i) if i >= len(roots) else i for i in items if i not in given}
    if loop.mode == "while":
        needed.add(0)
    while True:
        order = toposort([roots[i] for i in (*needed, *given)])
        more = {n.arg[0] for n in order if n.op is PARAM and n.arg[0] < loop.carries}
        if more <= needed:
            return sorted(needed), given
        needed |= more


def _only(roots: Sequence[Node]) -> tuple[Body, list[int]]:
    """A body of some roots alone, and which inputs it still reads."""
    known = {n.arg[0]: n for n in toposort(roots) if n.op is PARAM}
    read = sorted(known)
    return close(roots, [known[number] for number in read], lambda n: False)[0], read


def donated(kernel: Kernel, body: Body, read: Sequence[int]) -> tuple[Pair, ...]:
    """The carries that a loop's body may write over, as (its input, its root).

    A trail keeps what was there, and host steps may fail between two that write.
    """
    node = kernel.body.src[0]
    if node.op is not LOOP or any([n.op in (*HOSTS, LOOP, COND) for n in body.order]):
        return ()
    loop = Loop.of(node)
    items = [n.arg[0] for n in kernel.body.src]
    carried, _ = asked_items(loop, items)
    kept = {loop.trailed(i) for i in items if i >= len(loop.body.roots)}
    places = [(at, n) for at, n in enumerate(read) if n < loop.carries and n not in kept]
    return tuple([(at, carried.index(n)) for at, n in places])


def plan_of(body: Body, inputs: int, device: str, over: tuple[Pair, ...] = ()) -> Plan:
    """The plan of a body, found or made now."""
    context = body_context(current(), device, inputs, over)
    key = (*cache_key(device, context.options, over), inputs, body)
    return BODIES.get_or_make(key, lambda: planned(body.sink, context)[0])


def schedules(kernel: Kernel, device: str) -> list[Schedule]:
    """The kernels of the bodies that a loop or a choice runs, of which nothing is compiled."""
    return [
        schedule_of(
            body.sink, body_context(current(), device, len(read), donated(kernel, body, read))
        )
        for body, read in asked_bodies(kernel)
    ]


class _Sources:
    """What comes into a kernel, as arrays whose elements follow each other."""

    def __init__(self, sources: Sequence[Node]) -> None:
        self.sources = sources
        made = [s for s in sources if s.op is not PARAM]
        varying = [s for s in made if any(n.op in (PARAM, VAR) for n in toposort([s]))]
        lasting = [s for s in made if s not in varying]  # laid out once, for all runs
        self.known = dict(zip(lasting, evaluate(lasting, {}, {}), strict=True)) if lasting else {}
        self.made = varying
        self.params = [n for n in toposort(self.made) if n.op is PARAM]

    def arrays(self, inputs: Sequence[Buffer], values: dict[str, int]) -> list[Array]:
        """Memory as it is; constants and what was only moved are laid out here."""
        made = iter(
            evaluate(self.made, {p: _shaped(inputs, p) for p in self.params}, values)
            if self.made
            else ()
        )
        known = self.known
        found = [
            _shaped(inputs, s) if s.op is PARAM else known[s] if s in known else next(made)
            for s in self.sources
        ]
        return [a if a.flags.c_contiguous else np.array(a, order="C") for a in found]


def _shaped(inputs: Sequence[Buffer], param: Node) -> Array:
    array: Array = inputs[param.arg[0]].array
    sizes: Any = param.shape
    return array.reshape(sizes) if all([type(n) is int for n in sizes]) else array


def _arrays(buffers: Sequence[Buffer]) -> list[Array]:
    return [buffer.array for buffer in buffers]  # type: ignore[attr-defined]


def _address(array: Array) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


class _Passes:
    """A body's plan, run from given memory into given memory."""

    def __init__(self, plan: Plan, outputs: int) -> None:
        self.plan = plan
        linked: Any = plan.linked
        self.program = linked if hasattr(linked, "go") else None
        places = plan.schedule.outputs
        filled = [p for p in places if (slot := plan.schedule.slots[p]) and slot_bytes(slot)]
        assert len(places) == outputs and len(set(filled)) == len(filled), "a place for every root"
        if self.program is not None:
            self.slots = lazy_import("codegen.cpu.driver").SLOTS
            self.outputs = [self.program.word[place] for place in places]
            self.hosts = any([isinstance(s, tuple) for s in self.program.segments])

    def run(self, inputs: Sequence[HostBuffer], outputs: Sequence[HostBuffer]) -> None:
        """One pass, over memory whose elements follow each other."""
        program, plan, poison = self.program, self.plan, current().poison
        if program is None:
            for target, made in zip(outputs, plan.run(inputs, {}, poison), strict=True):
                np.copyto(target.array, made.array.reshape(target.array.shape))  # type: ignore[attr-defined]
            return
        frame = program.take(poison)
        for place, buffer in enumerate(inputs):
            frame.words[self.slots + place] = buffer.address
        for word, buffer in zip(self.outputs, outputs, strict=True):
            frame.words[word] = buffer.address
        program.go(frame, inputs, dict(zip(plan.schedule.outputs, outputs, strict=True)), {})
        program.give(frame)


# --- choices -------------------------------------------------------------------------------------


class _Choosing:
    """Runs one of two bodies; the bool that decides is read here."""

    def __init__(self, kernel: Kernel, device: Device) -> None:
        nodes = kernel.body.src
        self.sources = _Sources(nodes[0].src)
        self.branches = [
            (read, _Passes(plan_of(body, len(read), device.name), len(nodes)))
            for body, read in asked_bodies(kernel)
        ]

    def __call__(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: dict[str, int]
    ) -> None:
        chosen, *rest = self.sources.arrays(inputs, values)
        read, passes = self.branches[0 if bool(chosen) else 1]
        passes.run([HostBuffer(rest[i]) for i in read], [HostBuffer(a) for a in _arrays(outputs)])


# --- loops ---------------------------------------------------------------------------------------


class _Looping:
    """Runs a body once for each step."""

    def __init__(self, kernel: Kernel, device: Device) -> None:
        nodes = kernel.body.src
        self.loop = loop = Loop.of(nodes[0])
        self.device = device
        self.sources = _Sources(loop.inputs)
        self.items = {node.arg[0]: place for place, node in enumerate(nodes)}
        count = len(loop.body.roots)
        self.carried, self.given = asked_items(loop, list(self.items))
        ((body, read),) = asked_bodies(kernel)
        over = donated(kernel, body, read)
        plan = plan_of(body, len(read), device.name, over)
        self.passes = _Passes(plan, len(body.roots))
        self.kept = _kept(plan.schedule, over)
        self.read = read
        # of the body's inputs: (its place, the source or the carry that comes there)
        self.rows = [(at, n) for at, n in enumerate(read) if loop.carries <= n < self.fixed]
        self.states = [(at, self.carried.index(n)) for at, n in enumerate(read) if n < loop.carries]
        self.rest = [(at, n) for at, n in enumerate(read) if n >= self.fixed]
        self.trails = {loop.trailed(i): place for i, place in self.items.items() if i >= count}

    @property
    def fixed(self) -> int:
        """The first source that is the same in every step."""
        return self.loop.carries + self.loop.scanned

    def __call__(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: dict[str, int]
    ) -> None:
        arrays = self.sources.arrays(inputs, values)
        results = _arrays(outputs)
        steps = self.loop.steps
        count = size_value(steps, values) if isinstance(steps, Node) else steps
        if self.loop.mode != "all" and count is not None:
            for item, place in self.items.items():
                if item >= self.loop.carries:
                    results[place][...] = 0
        run = _Run(self, arrays, results, count)
        passes = self.passes
        if passes.program is not None and not passes.hosts:
            run.straight()
        else:
            run.stepwise()


def _kept(schedule: Schedule, over: Sequence[Pair]) -> frozenset[int]:
    """The carries that stay where they are: their root is stored over their param, or is it."""
    memory = dict(schedule.aliases)
    places = [(param, root, schedule.outputs[root]) for param, root in over]
    return frozenset([root for param, root, at in places if memory.get(at, at) == param])


class _Run:
    """One run of a loop: its memory, and the rows of the steps that happen."""

    def __init__(
        self, code: _Looping, arrays: list[Array], results: list[Array], count: int | None
    ) -> None:
        self.code, self.arrays, self.results = code, arrays, results
        self.start = [arrays[i] for i in code.carried]
        self.spare = [self._pair(at, i) for at, i in enumerate(code.carried)]
        self.rows: Sequence[int] | None = None if count is None else range(count)
        if code.loop.mode == "where":
            self.rows = np.flatnonzero(arrays[code.loop.carries]).tolist()
        if self.rows is not None and code.loop.reverse:
            self.rows = self.rows[::-1]
        self.total = None if self.rows is None else len(self.rows)
        # which carry says whether there is another step
        self.going = code.carried.index(0) if code.loop.mode == "while" else None

    def _pair(self, at: int, carry: int) -> tuple[Array, Array]:
        """The places that a carry goes to and fro between; one that stays has a single one."""
        root, stays = self.code.loop.body.roots[carry], at in self.code.kept
        if stays and carry in self.code.items:
            home = self.results[self.code.items[carry]]
            return home, home
        shape: Any = root.shape
        allocate, poison = self.code.device.allocate, current().poison
        made: list[Any] = [allocate(shape, root.dtype, poison) for _ in range(1 if stays else 2)]
        return made[0].array, made[-1].array

    def row(self, step: int) -> int:
        """The row of a step; of a loop without a bound there are none."""
        return 0 if self.rows is None else self.rows[step]

    def place(self, at: int, step: int) -> Array:
        """Where a carry is before a step, and after the last."""
        carry = self.code.carried[at]
        if at in self.code.kept:
            return self.spare[at][0]
        if step == 0:
            return self.start[at]
        if step == self.total and carry in self.code.items:
            return self.results[self.code.items[carry]]
        if step != self.total and carry in self.code.trails:
            return self.results[self.code.trails[carry]][self.row(step), ...]
        return self.spare[at][step & 1]

    def ends(self, step: int) -> bool:
        """Is this step one too many?"""
        if step == self.total:
            return True
        return self.going is not None and not self.place(self.going, step)

    def finish(self, step: int) -> None:
        """After so many steps: the last carries where they are asked for, no row of no step."""
        for at, carry in enumerate(self.code.carried):
            target = self.code.items.get(carry)
            found = self.place(at, step)
            if target is not None and self.results[target] is not found:
                np.copyto(self.results[target], found)
        for place in self.code.trails.values():
            if step != self.total:
                self.results[place][self.row(step)] = 0

    def begin(self) -> None:
        """A carry with a trail is in its rows from the beginning; one that stays has its place."""
        for at in self.code.kept:
            np.copyto(self.spare[at][0], self.start[at])
        for carry, place in self.code.trails.items():
            if self.total != 0:
                self.results[place][self.row(0)] = self.start[self.code.carried.index(carry)]

    # --- bodies with host steps, and devices that are not native ---------------------------------

    def stepwise(self) -> None:
        """Step by step, over arrays."""
        code, step = self.code, 0
        self.begin()
        inputs: list[Any] = [None] * len(code.read)
        for at, number in code.rest:
            inputs[at] = HostBuffer(self.arrays[number])
        while not self.ends(step):
            row = self.row(step)
            for at, number in code.rows:
                inputs[at] = HostBuffer(self.arrays[number][row, ...])
            for at, carry in code.states:
                inputs[at] = HostBuffer(self.place(carry, step))
            after = [HostBuffer(self.place(at, step + 1)) for at in range(len(self.start))]
            given = [HostBuffer(self.results[code.items[i]][row, ...]) for i in code.given]
            code.passes.run(inputs, [*after, *given])
            step += 1
        self.finish(step)

    # --- native bodies ---------------------------------------------------------------------------

    def straight(self) -> None:
        """Every step a few addresses and one call."""
        code, passes = self.code, self.code.passes
        program, slots = passes.program, passes.slots
        assert program is not None
        frame = program.take(current().poison)
        words = frame.words
        self.begin()
        for at, number in code.rest:
            words[slots + at] = _address(self.arrays[number])
        moving = [(slots + at, *_rows(self.arrays[number])) for at, number in code.rows]
        given = [self.results[code.items[i]] for i in code.given]
        written = passes.outputs[len(self.start) :]
        moving += [(word, *_rows(a)) for word, a in zip(written, given, strict=True)]
        reading = [(slots + at, carry) for at, carry in code.states]
        bases = [self._bases(0), self._bases(1)]
        now, step = [_address(self.place(at, 0)) for at in range(len(self.start))], 0
        home = {at: now[carry] for at, carry in code.states}
        for place, source in passes.plan.schedule.aliases:  # those that stay, and what leads there
            words[program.word[place]] = home[source]
        rows, total, going, go = self.rows, self.total, self.going, program.go
        while step != total and (going is None or not self.ends(step)):
            if rows is not None:
                row = rows[step]
                for word, base, stride in moving:
                    words[word] = base + row * stride
            for word, carry in reading:
                words[word] = now[carry]
            step += 1
            if step == total:
                now = [_address(self.place(at, step)) for at in range(len(now))]
            else:
                after = 0 if rows is None else rows[step]
                now = [base + after * stride for base, stride in bases[step & 1]]
            for word, address in zip(passes.outputs, now, strict=False):
                words[word] = address
            go(frame, (), {}, {})
        program.give(frame)
        self.finish(step)

    def _bases(self, odd: int) -> list[tuple[int, int]]:
        """Where each carry goes in an even or odd step: a row of its trail, or a spare place."""
        trails = self.code.trails
        return [
            _rows(self.results[trails[carry]]) if carry in trails else (_address(pair[odd]), 0)
            for carry, pair in zip(self.code.carried, self.spare, strict=True)
        ]


def _rows(array: Array) -> tuple[int, int]:
    """Where the first row of an array is, and how far it is to the next."""
    return _address(array), array.strides[0]
