"""Plans for sizes that vary: one schedule, with kernels specialised by ranges of sizes.

In: a graph whose sizes are `Sym`s. Out: a `SizedPlan`, and of it a `Plan` for any sizes that pass
its guards. Passes run once, on ints that remember their making (`core/symbolic`), so extents,
strides and trip counts in a kernel's text are numbers that its launch is given. What the code
generator decided because of a size is a guard of that kernel alone: sizes that fail it get another
form of it, and its text is compiled only if it is new. A kernel whose text holds a size that no
guard explains has a form for each size.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property
from operator import le
from typing import Any, TypeAlias

from ..._lazy import FORK_LOCK
from ...codegen.common.api import KernelText
from ...core.node import Node, make, remember
from ...core.symbolic.polynomial import Key, evaluator
from ...core.symbolic.sym import MOST, Sym, Trace, guard_texts, sized, varies
from ...errors import CompilerError
from ...graph.ir.kernel import Kernel, Schedule, Slot
from ...graph.ir.reshape_groups import CannotLower
from ...graph.memory.arena import Layout
from ..device import Executable, get_device
from ..plan import CompiledKernel, Plan, lay_out, link

_TYPES = re.compile(r"[\[<]%size")  # a size where a type must be known
NEAR = 4  # a choice by costs holds until a size is off by so many times
FEW = 9  # rows that kernels write out: such sizes have forms of their own
MOST_FAILURES = 6  # to find a form of a kernel, until each size has its own
FAR = 16  # and one among kernels of a graph
MOST_KNOWN = 256  # plans, launches and layouts that are remembered of one text


Text: TypeAlias = tuple[Trace, KernelText]  # of a form: its guards, and what is compiled


class NoForm(Exception):
    """A kernel that was kept on disk has no form for some sizes."""


class Form:
    """A kernel rendered for a range of sizes: code, and its launch's numbers as polynomials."""

    def __init__(self, trace: Trace, keys: Sequence[Key], native: Any) -> None:
        self.trace = trace  # its guards
        self.keys = tuple(keys)  # units and work of phases, workspace, numbers
        self.native = native  # at the hints
        self.accepts = acceptor(trace)
        self.numbers = evaluator(keys, list(trace.hints))
        self.known: dict[tuple[int, ...], Executable] = {}  # launches, by numbers
        # is it for all sizes, with one launch?
        fixed = all([not atoms for key in keys for atoms, _ in key])
        wide = all([trace.low[n] <= 2 and trace.high[n] >= MOST for n in trace.hints])
        self.is_steady = fixed and wide and not trace.guards


class SizedKernel:
    """A kernel of sizes that vary, in as many forms as were needed."""

    def __init__(
        self, kernel: Kernel, names: Sequence[str], device: str, stored: Sequence[Form] = ()
    ) -> None:
        self.kernel, self.names, self.device = kernel, tuple(names), device
        self.forms: list[Form] = list(stored)
        self.is_stored = bool(stored)  # then its graph is that of some sizes, for people to see
        self.fixed: dict[tuple[int, ...], Executable] = {}
        self.failures = 0

    def at(self, values: tuple[int, ...], form: Form | None) -> Executable:
        """Its code for these sizes: of the form for them, or for them alone if there is none."""
        if form is not None:
            return _launch(form, values)
        if values not in self.fixed:
            if len(self.fixed) > MOST_KNOWN:
                self.fixed.clear()
            kernel = resized(self.kernel, dict(zip(self.names, values, strict=True)))
            self.fixed[values] = get_device(self.device).compile([kernel])[0]
        return self.fixed[values]

    def form(self, values: tuple[int, ...]) -> Form | None:
        """The form for these sizes, if there is one."""
        return next((form for form in self.forms if form.accepts(*values)), None)

    def text(self, values: tuple[int, ...]) -> Text | None:
        """What a form for sizes like these is compiled from; None if it must be fixed."""
        near = awkward(values) if min(values, default=0) > FEW else values
        for hints in dict.fromkeys((near, values)):
            trace = Trace(dict(zip(self.names, hints, strict=True)))
            try:
                rendered = self._rendered(trace)
            except CannotLower:
                continue
            if trace.chosen:
                narrow(trace, NEAR)
            if acceptor(trace)(*values):
                return trace, rendered
        self.failures += 1
        return None

    def _rendered(self, trace: Trace) -> KernelText:
        found = get_device(self.device).rendered(resized(self.kernel, trace))  # type: ignore[attr-defined]
        if any("%sym." in part for part in (found.text, *found.library)) or _TYPES.search(
            found.text
        ):
            raise CannotLower("a size where a number must be")
        return found  # type: ignore[no-any-return]


def add_forms(kernels: Sequence[SizedKernel], values: tuple[int, ...]) -> None:
    """Forms for these sizes of kernels that have none, compiled together."""
    found: dict[SizedKernel, Text] = {}
    for kernel in kernels:
        if values in kernel.fixed:
            continue
        if kernel.is_stored:
            raise NoForm
        text = kernel.text(values) if kernel.failures < MOST_FAILURES else None
        if text is not None:
            found[kernel] = text
    try:
        _compile(found)
    except CompilerError:  # a size where LLVM wants a number
        for kernel, text in found.items():
            try:
                _compile({kernel: text})
            except CompilerError:
                kernel.failures += 1


def _compile(texts: Mapping[SizedKernel, Text]) -> None:
    """Add the forms of texts to their kernels."""
    from ..cpu import toolchain

    if not texts:
        return
    before = [(t, dict(t.low), dict(t.high), dict(t.guards)) for t, _ in texts.values()]
    rendered = dict(enumerate([text for _, text in texts.values()]))
    made = toolchain.natives([kernel.kernel for kernel in texts], rendered)
    for trace, low, high, guards in before:  # launches are worked out again
        trace.low, trace.high, trace.guards = low, high, guards
    for (kernel, (trace, text)), native in zip(texts.items(), made, strict=True):
        kernel.forms.append(Form(trace, _keys(text), native))
        kernel.failures = 0


def _launch(form: Form, values: tuple[int, ...]) -> Executable:
    """The launch of a form for sizes."""
    numbers = form.numbers(*values)
    found = form.known.get(numbers)
    if found is None:
        native = form.native
        packed, rest = native.prepacked, numbers
        if packed is not None:
            count = 2 * len(packed.launches) + 1 + len(packed.numbers)
            packed, rest = _launched(packed, numbers[-count:]), numbers[:-count]
        made = _launched(native, rest)._replace(prepacked=packed)
        if len(form.known) >= MOST_KNOWN:
            form.known.clear()
        found = form.known[numbers] = made
    return found


def _launched(native: Any, numbers: Sequence[int]) -> Any:
    """Launches with these numbers: units and work of phases, workspace, and what kernels read."""
    is_shared = _rule_of_sharing()
    phases = numbers[: 2 * len(native.launches)]
    launches = [
        (symbol, units, is_shared(units, work))
        for (symbol, _, _), units, work in zip(
            native.launches, phases[::2], phases[1::2], strict=True
        )
    ]
    workspace, *rest = numbers[len(phases) :]
    return native._replace(launches=tuple(launches), workspace=workspace, numbers=tuple(rest))


@cache
def _rule_of_sharing() -> Callable[[int, int], int]:
    """What says whether the units of a launch are shared: looked up once, as it is asked often."""
    with FORK_LOCK:
        from ..cpu.objects import shared
    return shared


def _keys(rendered: KernelText) -> list[Key]:
    """The numbers of a launch as polynomials: units and work of phases, workspace, numbers.

    Those of the form for an operand that was packed before follow.
    """
    found: list[int] = []
    for form in (rendered, rendered.prepacked):
        if form is not None:
            for phase in form.launches:
                found += [phase.units, phase.work]
            found += [form.workspace, *form.numbers]
    return [size_key(n) for n in found]


def size_key(number: Any) -> Key:
    """A number as a polynomial."""
    if type(number) is Sym:
        return number.key
    return (((), number),) if number else ()


class ScheduleOfSizes:
    """A schedule of sizes that vary, with numbers for them when somebody asks."""

    def __init__(self, schedule: Schedule, names: Sequence[str]) -> None:
        self.schedule = schedule
        sizes: dict[Any, int] = {}
        self.slots: dict[int, list[tuple[int, int]]] = {}  # that vary: axes, and by which size
        self.shapes: dict[int, Hashable] = {}  # of these slots, the same for equal ones
        for place, slot in enumerate(schedule.slots):
            if slot is not None and any([varies(n) for n in slot.shape]):
                self.slots[place] = [
                    (axis, sizes.setdefault(n, len(sizes)))
                    for axis, n in enumerate(slot.shape)
                    if varies(n)
                ]
                fixed = [None if varies(n) else n for n in slot.shape]
                self.shapes[place] = (slot.dtype, *fixed, *self.slots[place])
        self.evaluate = evaluator([n.key for n in sizes], names)

    def at(self, values: tuple[int, ...]) -> Schedule:
        """The schedule with numbers for sizes."""
        sizes = self.evaluate(*values)
        slots = list(self.schedule.slots)
        for place in self.slots:
            slots[place] = self.slot_at(place, sizes)
        return self.schedule._replace(slots=tuple(slots))

    def results_at(self, values: tuple[int, ...]) -> Callable[[Any], Any]:
        """A function from results of other sizes to those of these; slots of one shape share."""
        from ..cpu.frame_layout import result_of

        sizes, known = self.evaluate(*values), dict[Hashable, tuple[Any, ...]]()

        def result(old: Any) -> Any:
            shape = self.shapes.get(old[0])
            if shape is None:
                return old
            if shape not in known:
                known[shape] = result_of(self.slot_at(old[0], sizes), old[0])[1:]
            return (old[0], *known[shape])

        return result

    def slot_at(self, place: int, sizes: Sequence[int]) -> Slot:
        """A slot with these numbers for the sizes that vary."""
        slot = self.schedule.slots[place]
        assert slot is not None, "only what is there varies"
        shape = list(slot.shape)
        for axis, which in self.slots.get(place, ()):
            shape[axis] = sizes[which]
        return slot._replace(shape=tuple(shape))

    def kernels_of(self, code: Sequence[Executable]) -> list[CompiledKernel]:
        """Its kernels with their code."""
        known: dict[int, CompiledKernel] = {}
        for item, made in zip(self.schedule.items, code, strict=True):
            if id(made) not in known:
                known[id(made)] = CompiledKernel(item.kernel, made)
        return [known[id(made)] for made in code]


class SizedPlan:
    """A schedule of sizes that vary, and the plans that were asked for."""

    def __init__(
        self, schedule: Schedule, trace: Trace, device: str,
        stored: Sequence[SizedKernel] = (),
    ) -> None:  # fmt: skip
        self.schedule, self.device, self.trace = schedule, device, trace
        self.names = tuple(trace.hints)
        for name, hint in trace.hints.items():  # what is good for many is good for few
            trace.high[name] = min(trace.high[name], hint * FAR)
        self.guards = guard_texts(trace)
        self.accepts = acceptor(trace)
        self.hints = dict(trace.hints)
        known: dict[Kernel, SizedKernel] = {}
        self.kernels = list(stored)  # one for each item
        for item in schedule.items if not stored else ():
            made = known.get(item.kernel)
            if made is None:
                made = known[item.kernel] = SizedKernel(item.kernel, self.names, device)
            self.kernels.append(made)
        self.distinct = [*dict.fromkeys(self.kernels)]
        self.at_sizes = ScheduleOfSizes(schedule, self.names)
        self._varying: list[SizedKernel] | None = None  # kernels whose launches depend on sizes
        self._steady: dict[SizedKernel, Executable] = {}  # the launches of the others
        self._items: dict[SizedKernel, tuple[int, ...]] = {
            kernel: tuple([i for i, k in enumerate(self.kernels) if k is kernel])
            for kernel in self.distinct
        }
        # the latest plan of one call, what it is found by, and the forms of its launches that vary
        self._again: tuple[Plan, Hashable, list[tuple[tuple[int, ...], Any]]] | None = None
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._latest: dict[Hashable, Plan] = {}  # by the launches of its kernels
        self._layouts: dict[tuple[int, ...], Layout] = {}  # by sizes with room to grow
        self.lock = threading.RLock()

    @property
    def is_stored(self) -> bool:
        """True if it came from the disk: no form is added to it."""
        return any([kernel.is_stored for kernel in self.distinct])

    @property
    def forms(self) -> int:
        """How many forms its kernels have by now."""
        return sum([len(kernel.forms) for kernel in self.distinct])

    def plan_at(self, values: tuple[int, ...]) -> tuple[Plan, bool] | None:
        """The plan for sizes, and whether kernels got forms for it.

        None if the sizes fail a guard, or what was kept on disk has no form for them.
        """
        known = self._plans.get(values)
        if known is not None:
            return known, False
        forms = self.forms
        try:
            return (self.at(values), self.forms > forms) if self.accepts(*values) else None
        except NoForm:
            return None

    def cover(self, values: tuple[int, ...]) -> bool:
        """Compile the forms that a plan for sizes needs; False if they fail a guard.

        Raises `NoForm` of what was kept on disk without one.
        """
        if not self.accepts(*values):
            return False
        with self.lock:
            add_forms([kernel for kernel in self.distinct if kernel.form(values) is None], values)
        return True

    def at(self, values: tuple[int, ...]) -> Plan:
        """The plan for sizes that pass the guards."""
        with self.lock:
            found = self._plans.get(values)
            if found is None:
                found = self._plans[values] = self._made(values)
                while len(self._plans) > MOST_KNOWN:
                    self._plans.pop(next(iter(self._plans)))
        return found

    def numbered(self, values: tuple[int, ...]) -> Plan:
        """The plan for sizes in which nothing varies any more, to be described to others."""
        plan, sizes = self.at(values), dict(zip(self.names, values, strict=True))
        known = {k: resized(k.kernel, sizes) for k in self.distinct}
        made: dict[int, CompiledKernel] = {}
        for kernel, compiled in zip(self.kernels, plan.kernels, strict=True):
            made.setdefault(id(compiled), CompiledKernel(known[kernel], compiled.code))
        kernels = tuple([made[id(compiled)] for compiled in plan.kernels])
        return Plan(self.at_sizes.at(values), self.device, kernels, plan.layout, plan.executor)

    def _made(self, values: tuple[int, ...]) -> Plan:
        """The plan for sizes: that of other sizes with other numbers, where it is of one call."""
        again = self._made_again(values)
        if again is not None:
            return again
        from ..cpu.executor import Program, changes_between, signature_of

        forms, known = self._launches(values)
        code: Any = [known[kernel] for kernel in self.kernels]
        layout = self._laid_out(values)
        signature = signature_of(known.values())
        latest = self._latest.get(signature)
        plan: Plan | None = None
        if latest is not None and isinstance(latest.executor, Program):
            changes = changes_between(latest.executor.code, code)
            plan = None if changes is None else self._resized(latest, values, changes, layout)
        if plan is None:
            schedule = self.at_sizes.at(values)
            plan = link(schedule, self.at_sizes.kernels_of(code), layout, get_device(self.device))
            plan.shared = True
        self._latest[signature] = plan
        varying = [(self._items[k], form) for k, form in forms.items() if k not in self._steady]
        is_one = isinstance(plan.executor, Program) and None not in forms.values()
        self._again = (plan, signature, varying) if is_one else None
        return plan

    def _made_again(self, values: tuple[int, ...]) -> Plan | None:
        """The latest plan with the numbers of other sizes, if its forms are for them, too."""
        if self._again is None:
            return None
        latest, signature, varying = self._again
        if not all([form.accepts(*values) for _, form in varying]):
            return None
        changes = {items: _launch(form, values) for items, form in varying}
        made = self._resized(latest, values, changes, self._laid_out(values))
        if made is not None:
            self._latest[signature] = made
            self._again = made, signature, varying
        return made

    def _resized(
        self, latest: Plan, values: tuple[int, ...], changes: Any, layout: Layout
    ) -> Plan | None:
        """A plan of one call with other launches for other sizes."""
        of_sizes = self.at_sizes  # not this plan: nothing holds itself
        executor: Any = latest.executor.resized(  # type: ignore[attr-defined]
            lambda: of_sizes.at(values), of_sizes.results_at(values), changes, layout
        )
        return None if executor is None else PlanOfSizes(self.device, of_sizes, layout, executor)

    def _launches(
        self, values: tuple[int, ...]
    ) -> tuple[dict[SizedKernel, Form | None], dict[SizedKernel, Executable]]:
        """The code of every kernel for sizes, and its form, but of those that depend on none."""
        varying = self.distinct if self._varying is None else self._varying
        forms = {kernel: kernel.form(values) for kernel in varying}
        if None in forms.values():
            add_forms([kernel for kernel, form in forms.items() if form is None], values)
            forms = {kernel: kernel.form(values) for kernel in varying}
        found = {kernel: kernel.at(values, form) for kernel, form in forms.items()}
        if self._varying is None:
            self._steady = {k: found[k] for k, form in forms.items() if form and form.is_steady}
            self._varying = [kernel for kernel in self.distinct if kernel not in self._steady]
        return forms, {**self._steady, **found}

    def _laid_out(self, values: tuple[int, ...]) -> Layout:
        """Places in an arena with some room: sizes that grow step by step keep their places."""
        roomy = tuple([with_room(n) for n in values])
        now, most = self.at_sizes.evaluate(*values), self.at_sizes.evaluate(*roomy)
        if not all(map(le, now, most)):
            return lay_out(self.at_sizes.at(values), self.device).layout
        found = self._layouts.get(roomy)
        if found is None:
            if len(self._layouts) >= MOST_KNOWN:
                self._layouts.clear()
            found = lay_out(self.at_sizes.at(roomy), self.device).layout
            self._layouts[roomy] = found
        return found


class PlanOfSizes(Plan):
    """A plan of many sizes at some of them; what only people look at is worked out for them."""

    def __init__(
        self, device: str, of_sizes: ScheduleOfSizes, layout: Layout, executor: Any
    ) -> None:
        self.device, self.executor, self.runs, self.shared = device, executor, 0, True
        self.layout = layout._replace(workspace_bytes=executor.workspace)
        self.inputs, self.aliases = of_sizes.schedule.inputs, of_sizes.schedule.aliases
        self._of_sizes = of_sizes

    @property
    def schedule(self) -> Schedule:  # type: ignore[override]
        """What it runs, with numbers for sizes."""
        return self.executor.schedule  # type: ignore[attr-defined,no-any-return]

    @cached_property
    def kernels(self) -> tuple[CompiledKernel, ...]:  # type: ignore[override]
        """Its kernels in the order they run."""
        return tuple(self._of_sizes.kernels_of(self.executor.code))  # type: ignore[attr-defined]


# --- sizes ---------------------------------------------------------------------------------------


def resized(kernel: Kernel, to: Trace | Mapping[str, int]) -> Kernel:
    """A kernel with the sizes of another trace, or with numbers."""
    moved, known = _mover(to)
    plan = sized(kernel.plan, known["change"], known)
    return Kernel(kernel.kind, moved(kernel.body), kernel.inputs, None, plan)


def numbered(nodes: Sequence[Node], sizes: Mapping[str, int]) -> list[Node]:
    """Nodes with numbers for their sizes."""
    return [*map(_mover(sizes)[0], nodes)]


def _mover(to: Trace | Mapping[str, int]) -> tuple[Callable[[Any], Any], dict[Any, Any]]:
    """A function that gives a node other sizes, and what it remembers."""
    if isinstance(to, Trace):

        def change(size: Sym) -> int:
            return Sym.of(to, size.polynomial)  # type: ignore[no-any-return]
    else:
        names = list(to)

        def change(size: Sym) -> int:
            return evaluator([size.key], names)(*to.values())[0]

    nodes: dict[Node, Node] = {}
    known: dict[Any, Any] = {"change": change}

    def moved(root: Any) -> Any:
        if not isinstance(root, Node):
            return root
        stack = [root]
        while stack:
            node = stack[-1]
            if node in nodes:
                stack.pop()
            elif pending := [s for s in node.src if s not in nodes]:
                stack.extend(pending)
            else:
                arg = sized(node.arg, change, known)
                src = tuple([nodes[s] for s in node.src])
                made = make(node.op, node.dtype, src, arg, node.tag)
                nodes[node] = remember(made, node.origins) if node.origins else made
                stack.pop()
        return nodes[root]

    known["node"] = moved
    return moved, known


def awkward(values: Sequence[int]) -> tuple[int, ...]:
    """Sizes nearby that divide nothing and equal no other: what they decide holds for many."""
    found: list[int] = []
    for value in values:
        hint = max(3, value) | 1
        while hint % 3 == 0 or hint % 5 == 0 or hint % 7 == 0 or hint in found:
            hint += 2
        found.append(hint)
    return tuple(found)


def with_room(size: int) -> int:
    """A size rounded up by an eighth at most, or to 16: the next ones have the same."""
    step = max(16, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def narrow(trace: Trace, times: int) -> None:
    """Keep sizes within so many times the hints; small ones are all alike."""
    for name, hint in trace.hints.items():
        low = hint // times
        trace.low[name] = max(trace.low[name], low if low > times else 2)
        trace.high[name] = min(trace.high[name], hint * times, MOST)


def acceptor(trace: Trace) -> Callable[..., bool]:
    """A function that says whether sizes pass the guards."""
    text = " and ".join(guard_texts(trace)) or "True"
    found: Callable[..., bool] = eval(f"lambda {', '.join(trace.hints)}: {text}", {"min": min})
    return found
