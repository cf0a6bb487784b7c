"""Kernels that run a graph of their own: loops step by step, choices one of two.

In: a kernel of kind "loop" or "cond", whose nodes hold bodies. Out: a callable for the plan around
it. A body is compiled once, by the same stages as any graph, to a plan that is kept as long as
somebody uses it; a loop of another length finds it there. Where a body is one launch, a step is a
few addresses and that launch: rows are read and written where they lie. A carry stays where it is
if the body can write over it, so a cache that changes by a row costs a row; others go to and fro
between two places, or straight into the rows of their trail. What is not requested is not computed.
Everything is in the device's memory; the host reads only what decides how it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from .._lazy import FORK_LOCK
from ..config import Options, current
from ..core.cache import WeakCache
from ..core.context import Table
from ..core.node import Node, toposort
from ..core.ops.body import Body, close
from ..core.ops.control import COND, LOOP, Loop
from ..core.ops.effect import HOSTS
from ..core.ops.leaf import PARAM, VAR
from ..graph.ir.cache_key import normalize
from ..graph.ir.kernel import Kernel, Schedule
from ..graph.memory.in_place import Pair
from .cache.plan_cache import kept_plans
from .device import Buffer, Device, Pass, Values
from .host.evaluate import evaluate, size_value
from .plan import Plan
from .plan_key import cache_key, has_patterns
from .step_executor import StepCode, concrete

BODIES: Table[WeakCache[tuple[object, ...], Plan]] = Table(lambda: WeakCache("bodies"))


def control(kernel: Kernel, device: Device) -> StepCode:
    """The code of a loop or a choice."""
    return Looping(kernel, device) if kernel.body.src[0].op is LOOP else _Choosing(kernel, device)


def asked_bodies(kernel: Kernel) -> list[tuple[Body, list[int]]]:
    """Dead code elimination: bodies without what is not requested, and which inputs each reads."""
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
    options = replace(current(), tier="native")  # many steps pay for compiling
    key = (*cache_key(device, options, over), inputs, body)
    return BODIES().get_or_make(key, lambda: _kept_plan(body, inputs, device, options, over))


def _kept_plan(
    body: Body, inputs: int, device: str, options: Options, over: tuple[Pair, ...]
) -> Plan:
    """A body's plan from the disk, or made now and kept there for the next process."""

    def made() -> Plan:
        with FORK_LOCK:
            from .pipeline import Context, planned
        return planned(body.sink, Context(options, device, inputs, over, body=True))[0]

    normal = normalize(body.roots)
    kept = None if has_patterns(options) else kept_plans(device, options, normal)
    key = kept.key(normal, {}, device, options, over, body=True) if kept is not None else None
    if kept is None or key is None:
        return made()
    with kept.look(key, normal) as found:
        if found is None:
            found = made()
            kept.keep(key, found, normal)
        return found


def schedules(kernel: Kernel, device: str) -> list[Schedule]:
    """The kernels of the bodies that a loop or a choice runs, of which nothing is compiled."""
    with FORK_LOCK:
        from .pipeline import Context, schedule_of
    options = replace(current(), tier="native")
    return [
        schedule_of(
            body.sink,
            Context(options, device, len(read), donated(kernel, body, read), body=True),
        )
        for body, read in asked_bodies(kernel)
    ]


class _Sources:
    """What comes into a kernel, in memory of the device whose elements follow each other."""

    def __init__(self, sources: Sequence[Node], device: Device) -> None:
        self.sources, self.device = sources, device
        made = [s for s in sources if s.op is not PARAM]
        varying = [s for s in made if any(n.op in (PARAM, VAR) for n in toposort([s]))]
        lasting = [s for s in made if s not in varying]  # laid out once, for all runs
        values = evaluate(lasting, {}, {}) if lasting else []
        self.known = {s: self._placed(v) for s, v in zip(lasting, values, strict=True)}
        self.made = varying
        order = toposort(self.made)
        self.params = [n for n in order if n.op is PARAM]
        self.is_sized = any([n.op is VAR for n in order])  # do values of variables matter?

    def _placed(self, array: Any) -> Buffer:
        """An array of the host in memory of the device; host devices share it."""
        return self.device.from_host(np.ascontiguousarray(array), share=True)

    def buffers(self, inputs: Sequence[Buffer], values: Values) -> list[Buffer]:
        """Memory as it is; constants and what was only moved are laid out here."""
        made = iter(self.laid_out(inputs, values) if self.made else ())
        known, contiguous = self.known, self.device.contiguous
        return [
            contiguous(inputs[s.arg[0]]) if s.op is PARAM else known.get(s) or next(made)
            for s in self.sources
        ]

    def laid_out(
        self, inputs: Sequence[Buffer] | Mapping[int, Buffer], values: Values
    ) -> list[Buffer]:
        """What is made of inputs and sizes, in memory."""
        arrays = {
            p: self.device.to_host(inputs[p.arg[0]], concrete(p.shape, values), p.dtype)
            for p in self.params
        }
        return [self._placed(array) for array in evaluate(self.made, arrays, values)]


# --- choices -------------------------------------------------------------------------------------


class _Choosing:
    """Runs one of two bodies; the bool that decides is read here."""

    def __init__(self, kernel: Kernel, device: Device) -> None:
        nodes = kernel.body.src
        self.device, self.chosen = device, nodes[0].src[0]
        self.sources = _Sources(nodes[0].src, device)
        self.reads: list[list[int]] = []
        self.plans: list[Plan] = []
        for body, read in asked_bodies(kernel):
            self.reads.append(read)
            self.plans.append(plan_of(body, len(read), device.name))

    def __call__(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        chosen, *rest = self.sources.buffers(inputs, values)
        shape = concrete(self.chosen.shape, values)
        which = 0 if bool(self.device.to_host(chosen, shape, self.chosen.dtype)) else 1
        self.plans[which].run_into([rest[i] for i in self.reads[which]], outputs)


# --- loops ---------------------------------------------------------------------------------------


class _Rows:
    """A value in memory, and its rows along the first axis."""

    def __init__(self, device: Device, memory: Buffer, node: Node) -> None:
        self.device, self.memory, self.dtype = device, memory, node.dtype
        row: Any = node.shape[1:]
        self.shape: tuple[int, ...] = row
        self.stride = prod(row) * node.dtype.itemsize

    def __getitem__(self, row: int) -> Buffer:
        return self.device.view(self.memory, row * self.stride, self.shape, self.dtype)


class Looping:
    """Runs a body once for each step."""

    def __init__(self, kernel: Kernel, device: Device) -> None:
        nodes = kernel.body.src
        self.nodes = nodes
        self.loop = loop = Loop.of(nodes[0])
        self.device = device
        self.sources = _Sources(loop.inputs, device)
        self.items = {node.arg[0]: place for place, node in enumerate(nodes)}
        count = len(loop.body.roots)
        self.carried, self.given = asked_items(loop, list(self.items))
        ((body, read),) = asked_bodies(kernel)
        over = donated(kernel, body, read)
        self.plan = plan_of(body, len(read), device.name, over)
        self.plans = [self.plan]
        self.kept = _in_place_carries(self.plan.schedule, over)
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

    def __call__(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        sources = self.sources.buffers(inputs, values)
        steps = self.loop.steps
        count = size_value(steps, values) if isinstance(steps, Node) else steps
        if self.loop.mode != "all" and count is not None:
            for item, place in self.items.items():
                if item >= self.loop.carries:
                    self.device.fill(outputs[place], 0)
        run = _Run(self, sources, outputs, count)
        passes = self.plan.executor.passes()
        if passes is not None:
            run.straight(passes)
        else:
            run.stepwise()


def _in_place_carries(schedule: Schedule, over: Sequence[Pair]) -> frozenset[int]:
    """The carries that stay where they are: their root is stored over their param, or is it."""
    memory = dict(schedule.aliases)
    places = [(param, root, schedule.outputs[root]) for param, root in over]
    return frozenset([root for param, root, at in places if memory.get(at, at) == param])


class _Run:
    """One run of a loop: its memory, and the rows of the steps that happen."""

    def __init__(
        self, code: Looping, sources: list[Buffer], results: Sequence[Buffer], count: int | None
    ) -> None:
        self.code, self.device, self.sources, self.results = code, code.device, sources, results
        loop = code.loop
        self.start = [sources[i] for i in code.carried]
        self.spare = [self._pair(at, i) for at, i in enumerate(code.carried)]
        self.trails = {carry: self._rows(place) for carry, place in code.trails.items()}
        self.rows: Sequence[int] | None = None if count is None else range(count)
        if loop.mode == "where":
            assert count is not None
            flags = self.device.to_host(
                sources[loop.carries], (count,), loop.inputs[loop.carries].dtype
            )
            self.rows = np.flatnonzero(flags).tolist()
        if self.rows is not None and loop.reverse:
            self.rows = self.rows[::-1]
        self.total = None if self.rows is None else len(self.rows)
        # which carry says whether there is another step
        self.going = code.carried.index(0) if loop.mode == "while" else None

    def _rows(self, place: int) -> _Rows:
        """The rows of a result."""
        return _Rows(self.device, self.results[place], self.code.nodes[place])

    def _pair(self, at: int, carry: int) -> tuple[Buffer, Buffer]:
        """The places that a carry goes to and fro between; one that stays has a single one."""
        root, stays = self.code.loop.body.roots[carry], at in self.code.kept
        if stays and carry in self.code.items:
            home = self.results[self.code.items[carry]]
            return home, home
        shape: Any = root.shape
        allocate, poison = self.device.allocate, current().poison
        made = [allocate(shape, root.dtype, poison) for _ in range(1 if stays else 2)]
        return made[0], made[-1]

    def row(self, step: int) -> int:
        """The row of a step; of a loop without a bound there are none."""
        return 0 if self.rows is None else self.rows[step]

    def place(self, at: int, step: int) -> Buffer:
        """Where a carry is before a step, and after the last."""
        carry = self.code.carried[at]
        if at in self.code.kept:
            return self.spare[at][0]
        if step == 0:
            return self.start[at]
        if step == self.total and carry in self.code.items:
            return self.results[self.code.items[carry]]
        if step != self.total and carry in self.trails:
            return self.trails[carry][self.row(step)]
        return self.spare[at][step & 1]

    def ends(self, step: int) -> bool:
        """True if this step is one too many."""
        if step == self.total:
            return True
        if self.going is None:
            return False
        root = self.code.loop.body.roots[self.code.carried[self.going]]
        return not self.device.to_host(self.place(self.going, step), (), root.dtype)

    def finish(self, step: int) -> None:
        """After so many steps: the last carries where they are requested, no row of no step."""
        for at, carry in enumerate(self.code.carried):
            target = self.code.items.get(carry)
            found = self.place(at, step)
            if target is not None and self.results[target] is not found:
                self.device.copy(found, self.results[target])
        for rows in self.trails.values():
            if step != self.total:
                self.device.fill(rows[self.row(step)], 0)

    def begin(self) -> None:
        """A carry with a trail is in its rows from the beginning; one that stays has its place."""
        for at in self.code.kept:
            self.device.copy(self.start[at], self.spare[at][0])
        for carry, rows in self.trails.items():
            if self.total != 0:
                self.device.copy(self.start[self.code.carried.index(carry)], rows[self.row(0)])

    # --- bodies of several launches, or with host steps ------------------------------------------

    def stepwise(self) -> None:
        """Step by step, over views."""
        code, step = self.code, 0
        self.begin()
        inputs: list[Any] = [None] * len(code.read)
        for at, number in code.rest:
            inputs[at] = self.sources[number]
        scanned = [
            (at, _Rows(self.device, self.sources[n], code.loop.inputs[n])) for at, n in code.rows
        ]
        given = [self._rows(code.items[i]) for i in code.given]
        while not self.ends(step):
            row = self.row(step)
            for at, rows in scanned:
                inputs[at] = rows[row]
            for at, carry in code.states:
                inputs[at] = self.place(carry, step)
            after = [self.place(at, step + 1) for at in range(len(self.start))]
            code.plan.run_into(inputs, [*after, *[rows[row] for rows in given]])
            step += 1
        self.finish(step)

    # --- bodies that are one launch --------------------------------------------------------------

    def straight(self, passes: Pass) -> None:
        """Every step a few addresses and one launch."""
        code, words = self.code, passes.words
        self.begin()
        moving = self._moving(passes)
        reading = [(passes.inputs[at], carry) for at, carry in code.states]
        bases = [self._places(0), self._places(1)]
        now, step = [self.place(at, 0).address for at in range(len(self.start))], 0
        self._set_fixed(passes, {at: now[carry] for at, carry in code.states})
        rows, total, going, launch = self.rows, self.total, self.going, passes.launch
        outputs = passes.outputs
        while step != total and (going is None or not self.ends(step)):
            if rows is not None:
                row = rows[step]
                for word, base, stride in moving:
                    words[word] = base + row * stride
            for word, carry in reading:
                words[word] = now[carry]
            step += 1
            if step == total:
                now = [self.place(at, step).address for at in range(len(now))]
            else:
                after = 0 if rows is None else rows[step]
                now = [base + after * stride for base, stride in bases[step & 1]]
            for word, address in zip(outputs, now, strict=False):
                words[word] = address
            launch()
        passes.release()
        self.finish(step)

    def _set_fixed(self, passes: Pass, home: Mapping[int, int]) -> None:
        """Addresses that are the same in every step."""
        for at, number in self.code.rest:
            passes.words[passes.inputs[at]] = self.sources[number].address
        for word, source in passes.aliases:  # those that stay, and what leads there
            passes.words[word] = home[source]

    def _moving(self, passes: Pass) -> list[tuple[int, int, int]]:
        """Words that go from row to row: which, where the first row is, and how far to the next."""
        code = self.code
        read = [
            (passes.inputs[at], _Rows(self.device, self.sources[n], code.loop.inputs[n]))
            for at, n in code.rows
        ]
        words = passes.outputs[len(self.start) :]
        given = zip(words, [self._rows(code.items[i]) for i in code.given], strict=True)
        return [(word, *_bases(rows)) for word, rows in (*read, *given)]

    def _places(self, odd: int) -> list[tuple[int, int]]:
        """Where each carry goes in an even or odd step: a row of its trail, or a spare place."""
        return [
            _bases(self.trails[carry]) if carry in self.trails else (pair[odd].address, 0)
            for carry, pair in zip(self.code.carried, self.spare, strict=True)
        ]


def _bases(rows: _Rows) -> tuple[int, int]:
    """Where the first row of a value is, and how far it is to the next."""
    return rows.memory.address, rows.stride
