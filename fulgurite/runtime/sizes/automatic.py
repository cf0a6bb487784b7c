"""Automatic dynamic shapes: of graphs that differ in sizes alone the third makes a plan for all.

In: a normalised graph that no plan is known for. Out: its plan, if graphs of the same skeleton came
in two other sizes before: what varies is then given at run time, as constants that change are.
Every graph is built by the user's program, so its sizes are known: they are compared with what
their expressions say, and checked against the guards of the plan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..._lazy import FORK_LOCK
from ...config import Options
from ...core.dtype import DType, decode, dtype_of
from ...core.node import Node
from ...core.ops.collective import COMMUNICATES
from ...core.ops.leaf import param
from ...core.rewriting.substitute import substitute
from ...core.symbolic.polynomial import Named, evaluator, filler
from ...core.symbolic.sym import Sym, Trace, sized, varies
from ...errors import FulguriteError
from ...graph.ir.cache_key import Normal, Structure, constant_uses, restore
from ...graph.ir.size_key import Expression, Fit, expressed, filled, fit, skeleton_of
from ...graph.memory.in_place import Donated
from ..cache.plan_cache import kept_plans
from ..plan import Plan
from ..plan_key import cache_key, has_patterns
from .recent import RECENT
from .shapes import STATS, Sample, Shapes
from .sized_io import dump_sized, key_from, load_sized
from .sized_store import Line, SizedStore, written_out
from .specialize import MOST_KNOWN, NoForm, SizedPlan, awkward, numbered

if TYPE_CHECKING:
    from ..pipeline import Context

_MOST_MEMBERS = 8
How: TypeAlias = tuple[Options, str, Donated]  # options, device, donated memory


class Member(NamedTuple):
    """A plan for all sizes that fit, and how they and constants follow from a few of them."""

    fit: Fit
    sample: Sample
    lifted: dict[int, DType]
    counted: dict[int, Expression]  # constants that follow from sizes
    counts: Callable[..., tuple[int, ...]]  # what these are for sizes
    plan: SizedPlan

    def values(self, sample: Sample) -> tuple[int, ...] | None:
        """The sizes that vary, if the plan is for a graph like this."""
        if not self.fit.holds(sample.sizes, self.sample.sizes):
            return None
        values = self.fit.values(sample.sizes)
        if not self.agrees(sample.constants, values):
            return None
        return values if self.plan.accepts(*values) else None

    def agrees(self, constants: tuple[int, ...], values: tuple[int, ...]) -> bool:
        """True if the constants that are compiled in are those of a graph with these sizes."""
        expected = list(self.sample.constants)
        for place, number in zip(self.counted, self.counts(*values), strict=True):
            expected[place] = number
        for place in self.lifted:
            expected[place] = constants[place]
        return tuple(expected) == constants

    def refusal(self, sample: Sample) -> str:
        """Why the plan is not for a graph like this."""
        guards = " and ".join(self.plan.guards)
        if not self.fit.holds(sample.sizes, self.sample.sizes):
            return f"not the plan for {guards}: a size is not what it was until now"
        values = self.fit.values(sample.sizes)
        known = {"min": min, **dict(zip(self.plan.names, values, strict=True))}
        failed = [text for text in self.plan.guards if not eval(text, known)]
        if not failed:
            return f"not the plan for {guards}: a number differs that is no size"
        now = ", ".join(f"{n} = {v}" for n, v in zip(self.plan.names, values, strict=True))
        return f"not the plan for {guards}: with {now} this fails: {' and '.join(failed)}"


class SharedPlan(NamedTuple):
    """A plan for the sizes of a graph, and what it takes at run time."""

    plan: Plan
    lifted: dict[int, DType]
    seconds: dict[str, float]  # `known`: of a plan that was there


def plan_of_any_size(shapes: Shapes, normal: Normal, sample: Sample, how: How) -> SharedPlan | None:
    """A plan that serves other sizes as well; None if this graph should have its own."""
    start = time.perf_counter()
    found = known_plan(shapes, sample, normal, how)
    if found is not None:
        _remember(shapes, normal, found[1], how)
        return SharedPlan(found[0], found[1].lifted, {"known": time.perf_counter() - start})
    if any([member.plan.is_stored for member in shapes.members]) and _is_kept(normal, how):
        return None  # another process met the very same sizes
    shapes.refuse(sample.sizes, [member.refusal(sample) for member in shapes.members])
    if sample not in shapes.samples:
        shapes.samples = [*shapes.samples, sample][-_MOST_MEMBERS:]
    options, device, donated = how
    with FORK_LOCK:  # a process that finds its plans on disk does without
        from ..pipeline import Context
    made = _made(shapes, normal, sample, Context(options, device, 0, donated))
    if made is not None:
        keep_members(shapes, normal, how)
    return made


def _remember(shapes: Shapes, normal: Normal, member: Member, how: How) -> None:
    """Look at a plan first when the next graph comes; but not at one that all ranks run."""
    if not any([type(e) is tuple and e[0] in COMMUNICATES for e in normal.structure]):
        options, device, donated = how
        RECENT().add(normal, cache_key(device, options, donated), member, shapes)


def known_plan(
    shapes: Shapes, sample: Sample, normal: Normal, how: How
) -> tuple[Plan, Member] | None:
    """The plan for these sizes of a member that is there, or on disk."""
    if not shapes.is_loaded:
        shapes.is_loaded = True
        shapes.members = [*shapes.members, *kept_members(normal, how)]
    for member in list(shapes.members):
        values = member.values(sample)
        if values is None:
            continue
        found = member.plan.plan_at(values)
        if found is not None:
            plan, grew = found
            if grew:
                keep_members(shapes, normal, how)
            return plan, member
    return None


def _made(shapes: Shapes, normal: Normal, sample: Sample, context: Context) -> SharedPlan | None:
    start = time.perf_counter()
    found = fit([s.sizes for s in shapes.samples])
    if found is None:
        return None
    seen = [found.values(s.sizes) for s in shapes.samples]
    largest = tuple([max(column) for column in zip(*seen, strict=True)])
    now, alike = found.values(sample.sizes), [m for m in shapes.members if m.fit.is_like(found)]
    refused = [tuple(member.plan.hints.values()) for member in alike]
    for hints in dict.fromkeys((awkward(largest), awkward(now), now)):
        if hints in refused:  # what passes make for them is there
            continue
        try:
            member = _member(found, shapes, normal, sample, context, hints)
            values = member.values(sample)
            if values is not None:
                plan = member.plan.at(values)
                shapes.members = [member, *shapes.members][:_MOST_MEMBERS]
                return SharedPlan(plan, member.lifted, {"sizes": time.perf_counter() - start})
            shapes.reasons.append(f"its sizes are not {', '.join(member.plan.guards)}")
        except FulguriteError as problem:  # nobody asked for it
            shapes.reasons.append(str(problem))
    return None


def _member(
    found: Fit, shapes: Shapes, normal: Normal, sample: Sample,
    context: Context, hints: tuple[int, ...],
) -> Member:  # fmt: skip
    seen = [found.values(s.sizes) for s in shapes.samples]
    trace = Trace(dict(zip(found.names, hints, strict=True)))
    lifted, counted = _constants(shapes, normal.structure, seen)
    constants = list(sample.constants)
    for i, expression in counted.items():
        constants[i] = Sym.of(trace, dict(expression))
    skeleton, _ = skeleton_of(normal.structure)
    structure = filled(skeleton, found.symbolic(sample.sizes, trace))
    sink = restore(structure, tuple(constants), lifted, normal.nodes)
    options = replace(context.options, tier="native")
    inputs = len(normal.buffers) + len(lifted)
    with FORK_LOCK:
        from ..pipeline import laid_in_order
    schedule = laid_in_order(sink, context._replace(options=options, inputs=inputs))
    plan = SizedPlan(schedule, trace, context.device)
    count = evaluator(list(counted.values()), found.names)
    return Member(found, sample, lifted, counted, count, plan)


def _constants(
    shapes: Shapes, structure: Structure, seen: list[tuple[int, ...]]
) -> tuple[dict[int, DType], dict[int, Expression]]:
    """The constants that vary: those given at run time, and those that follow from sizes."""
    lifted: dict[int, DType] = {}
    counted: dict[int, Expression] = {}
    columns = zip(*[s.constants for s in shapes.samples], strict=True)
    known = {c: (((f"s{i}",), 1),) for i, c in enumerate(zip(*seen, strict=True))}
    for i, (column, (_, dtype)) in enumerate(zip(columns, constant_uses(structure), strict=True)):
        if len(set(column)) == 1:
            continue
        expression = None
        if dtype.is_integer and dtype.bits >= 32 and all(decode(n, dtype) >= 2 for n in column):  # type: ignore[operator]
            expression = expressed(column, known)
        if expression is None:
            lifted[i] = dtype
        else:
            counted[i] = expression
    return lifted, counted


# --- on disk -------------------------------------------------------------------------------------


def keep_members(shapes: Shapes, normal: Normal, how: How) -> None:
    """Write the plans of a skeleton for the next process."""
    store = _store(normal, how)
    if store.key is not None:
        store.keep([_dumped(member, normal) for member in shapes.members])


def kept_members(normal: Normal, how: How) -> list[Member]:
    """The plans of a skeleton that another process made."""
    return _store(normal, how).load(lambda row: _loaded(row, normal, how[1]))


def _store(normal: Normal, how: How) -> SizedStore:
    options, device, donated = how
    skeleton = normal._replace(structure=skeleton_of(normal.structure)[0], constants=())
    return SizedStore(skeleton, options, device, donated)


def _is_kept(normal: Normal, how: How) -> bool:
    """True if there is a plan for these sizes alone on disk."""
    options, device, donated = how
    kept = kept_plans(device, options, normal)
    if kept is None or has_patterns(options):
        return False
    key = kept.key(normal, {}, device, options, donated)
    return key is not None and kept.store.get("plan", key) is not None


def _dumped(member: Member, normal: Normal) -> dict[str, Any] | None:
    plan = dump_sized(member.plan, normal)
    if plan is None:
        return None
    found = member.fit
    return {
        "places": found.places, "expressions": found.expressions, "variables": found.variables,
        "sizes": member.sample.sizes, "constants": member.sample.constants,
        "lifted": [[i, dtype.name] for i, dtype in member.lifted.items()],
        "counted": list(member.counted.items()), "plan": plan,
    }  # fmt: skip


def _loaded(row: Any, normal: Normal, device: str) -> Member | None:
    plan = load_sized(row["plan"], normal, device)
    if plan is None:
        return None
    names = frozenset(plan.names)
    expressions = [key_from(key, names) for key in row["expressions"]]
    found = Fit(row["places"], expressions, row["variables"])
    sample = Sample(tuple(row["sizes"]), tuple(row["constants"]))
    lifted = {int(i): dtype_of(name) for i, name in row["lifted"]}
    counted = {int(i): key_from(key, names) for i, key in row["counted"]}
    count = evaluator(list(counted.values()), found.names)
    return Member(found, sample, lifted, counted, count, plan)


class SizedGraph:
    """A graph whose sizes are variables of somebody else's trace, and its plans.

    It is kept as its key: thousands of nodes would be in memory for as long as its plans are, and
    are made again if a plan is or an error is to be explained.
    """

    def __init__(
        self, normal: Normal, names: Sequence[str], device: str, roots: Sequence[Line],
        largest: Sequence[int], donated: Donated = (),
    ) -> None:  # fmt: skip
        self.normal, self.names, self.device = normal, tuple(names), device
        self.donated = donated  # inputs whose memory results take
        self.largest = tuple(largest)  # of the sizes that came before
        self.plans: list[SizedPlan] = []
        self.store: SizedStore | None = None
        self.lock = threading.RLock()
        whole: list[Any] = [root.shape for root in roots]
        shapes = [tuple([Named(n.key) if varies(n) else n for n in shape]) for shape in whole]
        self._shapes = filler(shapes, self.names)
        self._known: dict[tuple[int, ...], tuple[Plan, list[tuple[int, ...]]]] = {}

    def at(self, values: tuple[int, ...], options: Options) -> tuple[Plan, list[tuple[int, ...]]]:
        """The plan for sizes, and the shapes of its results."""
        found = self._known.get(values)
        if found is None:
            with self.lock:
                plan = self._plan(values, options)
                found = self._known[values] = plan, [*self._shapes(*values)]
                while len(self._known) > MOST_KNOWN:
                    self._known.pop(next(iter(self._known)))
        return found

    def _plan(self, values: tuple[int, ...], options: Options) -> Plan:
        """The plan for sizes: of what is there, of what is on disk, or made."""
        if self.store is None:
            self.store = self._opened(options)
            self.plans += self.store.load_plans()
        for known in self.plans:
            found = known.plan_at(values)
            if found is not None:
                plan, grew = found
                if grew:
                    self.store.keep_plans(self.plans)
                return plan
        made = self._made(values, options)
        self.plans.insert(0, made)
        plan = made.at(values)
        self.store.keep_plans(self.plans)
        return plan

    def cover(self, sizes: Sequence[tuple[int, ...]], options: Options) -> None:
        """Compile what the plans that are there need for sizes that may come."""
        with self.lock:
            if self.store is None:  # it never ran
                return
            before = sum([plan.forms for plan in self.plans])
            for values in sizes:
                try:
                    any(map(SizedPlan.cover, self.plans, repeat(values)))
                except NoForm:
                    self.at(values, options)
            if sum([plan.forms for plan in self.plans]) > before:
                self.store.keep_plans(self.plans)

    def _opened(self, options: Options) -> SizedStore:
        """Where its plans are kept."""
        native = replace(options, tier="native")  # as its plans are compiled
        found = SizedStore(written_out(self.normal), native, self.device, self.donated)
        return found.part(f"of {[*self.names]}")  # some may be sizes of what it does not read

    def numbered(self, values: tuple[int, ...]) -> tuple[list[Node], Normal]:
        """The graph's roots over its buffers, and these, with numbers for sizes; made anew."""
        normal, known = self.normal, {"node": lambda node: node}

        def number(size: Sym) -> int:
            return evaluator([size.key], self.names)(*values)[0]

        structure, constants = sized((normal.structure, normal.constants), number, known)
        buffers = tuple(numbered(normal.buffers, dict(zip(self.names, values, strict=True))))
        params = [param(i, b.shape, b.dtype, b.device) for i, b in enumerate(buffers)]
        sink = restore(structure, constants, (), normal.nodes)
        roots = substitute(sink, dict(zip(params, buffers, strict=True))).src
        return list(roots), normal._replace(buffers=buffers)

    def _made(self, values: tuple[int, ...], options: Options) -> SizedPlan:
        with FORK_LOCK:
            from ..pipeline import Context, laid_in_order
        STATS().misses += 1
        normal, error = self.normal, None
        largest = tuple([max(pair) for pair in zip(values, self.largest, strict=True)])
        for hints in dict.fromkeys((awkward(largest), awkward(values), values)):
            trace = Trace(dict(zip(self.names, hints, strict=True)))
            known: dict[Any, Any] = {"node": lambda node: node}

            def change(size: Sym, trace: Trace = trace) -> int:
                return Sym.of(trace, size.polynomial)  # type: ignore[no-any-return]

            structure = sized(normal.structure, change, known)
            constants = sized(normal.constants, change, known)
            sink = restore(structure, constants, (), normal.nodes)
            native = replace(options, tier="native")
            context = Context(native, self.device, len(normal.buffers), self.donated)
            plan = SizedPlan(laid_in_order(sink, context), trace, self.device)
            if plan.accepts(*values):
                return plan
            error = plan.guards
        raise AssertionError(f"a plan for {values} that is not for them: {error}")
