"""Symbolic shapes: graphs whose sizes are variables (`fg.Var`), one schedule, a plan for each size.

In: a graph with variables among its sizes. Out: a `Plan` that runs for any values. Variables that
are sizes become ints that remember how they came about (`core/symbolic`), so work and memory follow
the values, and kernels are found as for fixed sizes. Values that fail a guard (an empty axis) run
in a plan that has its loops and memory at the upper bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.dtype import DType
from ...core.node import Node, constant, toposort
from ...core.ops.leaf import VAR
from ...core.rewriting.substitute import substitute
from ...core.symbolic.sym import Trace
from ...errors import FulguriteError
from ...graph.ir.cache_key import Normal
from ...graph.memory.arena import Layout
from ..device import Buffer, Held, Values, get_device
from ..pipeline import Context, laid_in_order
from ..plan import Plan, lay_out
from ..step_executor import HostExecutor
from .sized_store import SizedStore
from .specialize import SizedPlan, awkward

LIKELY = 64  # a plan's choices are for such a size at least; it serves smaller ones as well


def symbolic_plan(
    sink: Node, context: Context, normal: Normal, lifted: dict[int, DType],
    bound: Callable[[], Plan],
) -> Plan | None:  # fmt: skip
    """The plan of a graph with variables among its sizes; None where it has no form for them."""
    order = toposort([sink])
    names = {
        v.arg[0]: v for node in order for n in node.shape if type(n) is Node
        for v in toposort([n]) if v.op is VAR
    }  # fmt: skip
    if not names or not context.options.dynamic or not get_device(context.device).sizes_vary:
        return None
    graph = _SymbolicGraph(sink, order, names, context, normal, lifted)
    executor = SymbolicExecutor(graph, bound)
    values = [normal.values[name] for name in names]
    sized = executor.plan(values)[0]
    if sized is None:
        return None
    layout = lay_out(sized.at_sizes.at(tuple(sized.hints.values())), context.device).layout
    plan = Plan(sized.schedule, context.device, (), layout, executor)
    plan.shared = True
    return plan


class _SymbolicGraph:
    """A graph with variables among its sizes."""

    def __init__(
        self, sink: Node, order: Sequence[Node], names: Mapping[str, Node], context: Context,
        normal: Normal, lifted: dict[int, DType],
    ) -> None:  # fmt: skip
        self.sink, self.names = sink, names
        self.context = context._replace(options=replace(context.options, tier="native"))
        self._store = SizedStore(normal, context.options, context.device, context.donated, lifted)
        self._stores: dict[tuple[int, ...], SizedStore] = {}
        self.variables = [node for node in order if node.op is VAR and node.arg[0] in names]

    def store(self, apart: tuple[int, ...]) -> SizedStore:
        """Where plans are kept of which some sizes are 0 or 1."""
        if apart not in self._stores:
            self._stores[apart] = self._store.part(f"{[*self.names]} {apart}")
        return self._stores[apart]

    def sized(self, sizes: Sequence[int], hints: Sequence[int]) -> SizedPlan:
        """Its plan, as passes make it for hints; sizes of 0 and 1 are what they are."""
        vary = [i for i, size in enumerate(sizes) if size >= 2]
        trace = Trace({f"s{i}": hint for i, hint in zip(vary, hints, strict=True)})
        now: dict[str, int] = {}
        for i, (name, var) in enumerate(self.names.items()):
            now[name] = sizes[i]
            if i in vary:
                trace.high[f"s{i}"] = max(var.arg[2], trace.hints[f"s{i}"])
                now[name] = trace.variable(f"s{i}")
        known = {
            node: constant(now[node.arg[0]], node.dtype, node.shape) for node in self.variables
        }
        schedule = laid_in_order(substitute(self.sink, known), self.context)
        return SizedPlan(schedule, trace, self.context.device)


class SymbolicExecutor(HostExecutor):
    """Runs the plan for the values of a call."""

    def __init__(self, named: _SymbolicGraph, bound: Callable[[], Plan]) -> None:
        self.named, self._make_bound = named, bound
        # by the sizes that are 0 or 1, which stay apart; -1 for the others
        self.plans: dict[tuple[int, ...], list[SizedPlan]] = {}
        self._bound: Plan | None = None  # at the upper bounds
        self._lock = threading.RLock()

    def plan(self, sizes: Sequence[int]) -> tuple[SizedPlan | None, tuple[int, ...]]:
        """A plan for these sizes and others, if there is one, and those of them that vary."""
        values = tuple([n for n in sizes if n >= 2])
        if 0 in sizes:  # where an extreme has no element
            return None, values
        apart = tuple([n if n < 2 else -1 for n in sizes])
        store = self.named.store(apart)
        if apart not in self.plans:
            self.plans[apart] = store.load_plans()
        known = self.plans[apart]
        for plan in known:
            found = plan.plan_at(values)
            if found is not None:
                if found[1]:
                    store.keep_later(known, self)
                return plan, values
        for hints in dict.fromkeys((awkward(self.likely(sizes)), awkward(values), values)):
            try:
                made = self.named.sized(sizes, hints)
            except FulguriteError:
                continue
            if made.plan_at(values) is not None:
                known.insert(0, made)
                store.keep_plans(known)
                return made, values
        return None, values

    def likely(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Sizes that passes should choose for: a small one says little of those to come."""
        highs = [var.arg[2] for var in self.named.names.values()]
        return tuple([max(n, min(LIKELY, most)) for n, most in zip(sizes, highs, strict=True)
                      if n >= 2])  # fmt: skip

    def at(self, values: Values) -> Any:
        """Who runs a call with these values."""
        with self._lock:
            plan, sizes = self.plan([values[name] for name in self.named.names])
            if plan is not None:
                return plan.at(sizes).executor
            if self._bound is None:
                self._bound = self._make_bound()
            return self._bound.executor

    def numbered(self, values: Values) -> Plan | None:
        """The plan for values with nothing left that varies; None if it is at upper bounds."""
        with self._lock:
            plan, sizes = self.plan([values[name] for name in self.named.names])
            return None if plan is None else plan.numbered(sizes)

    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """One pass; a fresh buffer for each output."""
        found: list[Buffer] = self.at(values).run(inputs, values, poison)
        return found

    def held(self, inputs: Held) -> HeldSizes:
        """Who runs in its place for inputs that stay."""
        return HeldSizes(self, inputs)

    def run_into(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        """One pass from given memory into given memory."""
        self.at(values).run_into(inputs, outputs, values)

    def keep(self, layout: Layout, poison: bool) -> Any:
        """Nobody asks: whoever keeps intermediates compiles for bounds."""
        raise NotImplementedError("sizes that vary are laid out in each call")


class HeldSizes:
    """Runs the plan for the values of a call, over inputs that stay whatever these are."""

    def __init__(self, executor: SymbolicExecutor, inputs: Held) -> None:
        self.executor, self.inputs = executor, inputs

    def at(self, values: Values) -> Any:
        """Who runs calls with these values."""
        return self.inputs.of(self.executor.at(values))

    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """One pass; a fresh buffer for each output."""
        found: list[Buffer] = self.at(values).run(inputs, values, poison)
        return found
