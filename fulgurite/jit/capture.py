"""Capturing a call: the function runs once, on placeholders, and becomes a plan to be replayed.

In: a function and the arguments of a call. Out: a `Captured`, whose `call(args, keywords)` replays
it where its checks hold. While the function runs, every tensor that it can reach is bound to new
memory nodes, so nothing that was computed before can be mistaken for what it computes; looking at a
value raises. Then everything is put back as it was. A tensor that the function hid somewhere, or
took from where the survey did not look, is found in the graph: such a call is settled like any
lazy code, and nothing of it is kept.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cached_property, partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .._lazy import FORK_LOCK
from ..config import Options, current
from ..core.dtype import uint32, uint64
from ..core.lazy_dataclass import dataclass
from ..core.lazy_named_tuple import NamedTuple
from ..core.node import Node, constant
from ..core.ops.body import sizes_vary
from ..core.ops.collective import COMMUNICATES, UNSHARD
from ..core.ops.effect import TAPE, WATCH
from ..core.ops.leaf import new_buffer
from ..core.symbolic.sym import at_hints
from ..errors import ArgumentError, BoundsError, JitError
from ..graph.ir.cache_key import Normal, hosts_in, normalize
from ..graph.ir.registry import REGISTRY, Entry
from ..graph.memory.append import joined
from ..graph.memory.in_place import Append
from ..random.generator import GENERATOR, Tape
from ..runtime.derived import DERIVED
from ..runtime.device import get_device, several_devices
from ..runtime.realize import (
    OBSERVER,
    memory_node,
    realize,
    realize_together,
    storage_of,
    value_node,
)
from ..tensor import SCOPES, Tensor, is_recording
from ..tensor.from_data import array_node
from ..tree import map as map_tree
from .dynamic_shapes import Varying, varying
from .output_template import CannotRemake, Template
from .reachability import Survey
from .replay import ONE, Expected, Place, Replay, fresh_tensor
from .side_effects import MISSING, Effect
from .sizes import CallSizes, Seen, sizes_that_vary
from .symbolic_number import Number, Numbers, plain

if TYPE_CHECKING:
    from .recall import Recall

MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()
_TEST, _MISSES = re.compile(r"if (.*): return @\d+"), ": return MISS"
_ASKED = re.compile(r"return @(\d+)$")
_LATER = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_LOOKUPS = (ArithmeticError, AttributeError, KeyError, IndexError, TypeError, ValueError)


class Mismatch(NamedTuple):
    """Why a capture does not hold: the path to the number or the tensor's shape that changed.

    `distance` orders captures by how near they are to a call: those of other options are farthest,
    then those of which most checks are left behind the one that failed, then those of which most
    tensors differ.
    """

    why: str
    number: str = ""
    shape: str = ""
    distance: tuple[int, int] = (0, 0)


class Inline(Exception):
    """A call that is better not captured; the text says why."""


class RetryCapture(Exception):
    """A call to be captured again, with more numbers that are what they are, or all of them."""

    def __init__(self, all_fixed: bool = True) -> None:
        self.all_fixed = all_fixed


class SizesDecide(Exception):
    """A call that is captured for its sizes alone: they decided something."""


@dataclass
class Placeholder:
    """A tensor while a function is captured."""

    tensor: Tensor
    path: str
    old: Node  # what it was
    base: Node  # the buffer of that
    buffer: Node  # the memory that stands for it
    node: Node  # what it is meanwhile
    varying: Varying | None
    free: frozenset[int] = frozenset()  # axes whose sizes vary

    @property
    def entry(self) -> Entry:
        return self.tensor.entry


class _Outcome(NamedTuple):
    """What a function did, in a form that can be done again."""

    template: Template
    statements: list[str]  # its effects
    made: str  # its result
    assigned: list[int]  # the tensors that it assigned; their new values are the last roots
    roots: list[Node]
    normal: Normal
    places: list[Place]


class Captured:
    """A captured call: checks, a plan, and what is made of its results, as one Python function."""

    def __init__(
        self, survey: Survey, numbers: Numbers, variables: list[str], template: Template,
        result: str, effects: list[str], replay: Replay, recording: bool,
    ) -> None:  # fmt: skip
        self.replay, self.options, self.recording = replay, replay.options, recording
        self._checks, self._reasons, self._counted = survey.lines, survey.reasons, survey.counted
        self._tensors = [name for name, _, _ in survey.tensors]
        self._arrays = [name for name, _, _ in survey.arrays]
        self._numbers = [source for source, _ in numbers.inputs]
        self._values = variables
        self._computed = [f"{name} = {source}" for name, source in template.numbers]
        self._after = [*effects, f"return {result}"]
        self._known = {
            **survey.known, **numbers.constants, **template.known, "LOOKUPS": _LOOKUPS,
            "MISS": MISS, "BOUNDS": BoundsError, "registry": REGISTRY, "reading": REGISTRY.reading,
            "idle": replay.idle, "make": replay.bound, "bind": replay.bind, "run": replay.run,
            "named": replay.name_the_line, "Tensor": Tensor,
        }  # fmt: skip
        self.call: Callable[[Any, Any], Any]
        self.keep: Callable[[], None] | None = None  # writes it to the disk, once it has run

    def settle(self) -> None:
        """Compile what the next call needs."""
        self.replay.settle()
        self.call = self._function(_joined(self._checks), "return MISS", self._source())

    def _source(self) -> list[str]:
        """What a call does once its checks hold."""
        tensors = f"[{', '.join(self._tensors)}]"
        arrays = "".join([f"{name}, " for name in self._arrays])
        numbers = "".join([f"{source}, " for source in self._numbers])
        if self.replay.bare is not None:
            constants, places = self.replay.bare
            self._known |= {"constants": constants, "places": places, "derived": DERIVED}
            self._known |= {"hold": self.replay.hold, "fresh_tensor": fresh_tensor}
            self._known |= {"abouts": self.replay.abouts, "results": self.replay.results}
            values = ", values, places" if self._values else ""
            run = ["if not b.strided:",
                   "    if b.mark != derived.mark:",
                   f"        hold(b, {tensors})",
                   "    try:",
                   f"        m = b.launch(b.addresses + constants{values})",
                   "    except BOUNDS:",
                   f"        named({tensors}, values)",
                   "        raise",
                   "    o = [*map(fresh_tensor, m[:results], abouts)]",
                   "    break"]  # fmt: skip
            first = []
        else:
            run, first = [], [f"tensors = {tensors}"]
            tensors = "tensors"
        renewed, known = self._renewed()
        keys = ", ".join([f"{self._tensors[i]}.entry.key" for i in self.replay.keyed])
        return [
            *self._given(numbers),
            *first,
            "try:",
            "    b = idle.pop()",
            "except IndexError:",
            "    b = make()",
            "try:",
            "    reading.add(b)",  # from here on no other thread begins to write over what we read
            "    while True:",
            "        if registry.writing:",
            "            registry.wait()",
            "        try:",
            f"            keys = [{keys}]",
            *[f"            {line}" for line in known],
            "        except AttributeError:",
            "            return MISS",
            f"        if keys != b.read{renewed}:",
            f"            bind(b, {tensors})",
            *[f"        {line}" for line in run],
            f"        o = run(b, {tensors}, ({arrays}), numbers, values)",
            "        if o is not None:",
            "            break",
            "finally:",
            "    reading.discard(b)",
            "    if b.left:",
            "        b.left.clear()",
            "idle.append(b)",
            *self._after,
        ]

    def _renewed(self) -> tuple[str, list[str]]:
        """A test for tensors that the plan does not use, and lines that it needs before."""
        lines, tests = [], []
        for i, about in self.replay.renewed.items():
            name, like = self._tensors[i], f"like{i}"
            self._known[like] = about
            lines.append(f"r{i} = {name}.entry.value")
            tests.append(
                f" or type(r{i}) is not tuple or (r{i}[1] is not {like} and r{i}[1] != {like})"
                f" or type({name}) is not Tensor"
            )
        return "".join(tests), lines

    def _given(self, numbers: str) -> list[str]:
        """Lines that compute numbers: where that raises, the function is to do it itself."""
        values = "".join([f"{source}, " for source in self._values])
        if not numbers and not self._computed:  # nothing that can fail: it was checked
            return ["numbers = ()", f"values = ({values})"]
        lines = [f"numbers = ({numbers})", f"values = ({values})", *self._computed]
        return ["try:", *[f"    {line}" for line in lines], "except LOOKUPS:",
                "    return MISS"]  # fmt: skip

    def _function(self, checks: list[str], otherwise: str, rest: list[str]) -> Any:
        body = ["def call(args, keywords):", "    try:", "        pass",
                *[f"        {line}" for line in checks], "    except LOOKUPS:",
                f"        {otherwise}", *[f"    {line}" for line in rest]]  # fmt: skip
        space = dict(self._known)
        exec(compile("\n".join(body), "<fulgurite jit>", "exec"), space)
        return space["call"]

    def mismatch(self, args: Any, keywords: Any) -> Mismatch:
        """Why it does not hold for a call."""
        if current() != self.options or is_recording() is not self.recording:
            changed = self._situation()
            return Mismatch(", ".join(changed), distance=(len(self._reasons) + 2, len(changed)))
        found = self._asked(args, keywords)
        if isinstance(found, tuple):
            place, now = found
            far = (len(self._reasons) - place, 0)
            if place in self._counted:
                path = self._counted[place][0]
                before = self._reasons[place].removeprefix(f"{path} ")
                return Mismatch(f"{path} is {now!r}, and {before}", path, distance=far)
            why = self._reasons[place] if place >= 0 else "something is gone"
            return Mismatch(why, distance=far)
        pairs = zip(self.replay.expected, found, strict=True)
        problems = [(e.path, problem) for e, tensor in pairs if (problem := e.mismatch(tensor))]
        if problems:
            path, problem = problems[0]
            shape = path if " has shape " in problem else ""
            return Mismatch(problem, shape=shape, distance=(0, len(problems)))
        if len({*map(id, found)}) != len(found):
            return Mismatch(ONE)
        sizes = self.replay.sizes
        if sizes is not None and sizes.values([tensor.shape for tensor in found]) is None:
            return Mismatch(f"its sizes are not {', '.join(sizes.guards)}")
        return Mismatch("")

    def _situation(self) -> list[str]:
        """How options, or whether gradients are recorded, differ from those of the capture."""
        now, was = current(), self.options
        changed = [
            f"{f.name} is {getattr(now, f.name)!r}, and was {getattr(was, f.name)!r}"
            for f in fields(now)
            if getattr(now, f.name) != getattr(was, f.name)
        ]
        if is_recording() is not self.recording:
            words = "not recorded, and were" if self.recording else "recorded, and were not"
            changed.append(f"gradients are {words}")
        return changed

    @cached_property
    def _asked(self) -> Callable[[Any, Any], Any]:
        """The checks as a function that says which one fails first; else the call's tensors."""
        checks = [_ASKED.sub(self._told, line) for line in self._checks]
        return self._function(checks, "return -1, None", [f"return [{', '.join(self._tensors)}]"])  # type: ignore[no-any-return]

    def _told(self, asked: re.Match[str]) -> str:
        """The end of a check that says which one it is, and what was found."""
        _, name = self._counted.get(int(asked[1]), ("", "None"))
        return f"return {asked[1]}, {name}"


def _joined(checks: list[str]) -> list[str]:
    """Checks whose reasons nobody asks for: those in a row are one statement, sooner compiled."""
    lines: list[str] = []
    for check in checks:
        test = _TEST.fullmatch(check)
        if test is None:
            lines.append(check)
        elif lines and lines[-1].endswith(_MISSES):
            lines[-1] = f"{lines[-1].removesuffix(_MISSES)} or ({test[1]}){_MISSES}"
        else:
            lines.append(f"if ({test[1]}){_MISSES}")
    return lines


class Capture:
    """One run of a function on placeholders."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], keywords: dict[str, Any], fixed: dict[str, str],
        floating: set[str], dynamic: dict[Any, dict[int, Node]], donate: tuple[str | int, ...],
        all_fixed: bool = False, seen: Seen | None = None, recall: bool = False,
    ) -> None:  # fmt: skip
        self.seen = seen  # shapes of calls, if sizes may vary
        self.recall = recall  # may it come from the disk?
        self.kept_at: Recall | None = None
        self.sizes: CallSizes | None = None
        self.function = function
        self.options: Options = current()
        self.numbers = Numbers(fixed, self.options.device)
        self.numbers.all_fixed = all_fixed
        try:
            self.survey = Survey(function, args, keywords, self.numbers, floating)
        except RecursionError:
            raise Inline("what it reaches is nested too deeply") from None
        named = dict(enumerate(self.survey.labels))
        self.dynamic = {named.get(k, k): axes for k, axes in dynamic.items()}
        self.free = {named.get(k, k): axes for k, axes in (seen.free if seen else {}).items()}
        self.donate = [named.get(k, k) if isinstance(k, int) else k for k in donate]
        if self.survey.outside:
            raise Inline(self.survey.outside)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None and code.co_flags & _LATER:
            raise Inline("its body runs after the call")
        self._check_names("dynamic", [*self.dynamic, *self.free], code, keywords)
        self._check_names("donate", self.donate, code, keywords)
        self.recording = is_recording()
        self.placeholders: list[Placeholder] = []
        self.observed: JitError | None = None

    def _check_names(self, option: str, named: Iterable[Any], code: Any, keywords: Any) -> None:
        """Complain of a name in an option that no argument has, which would do nothing."""
        count = code.co_argcount + code.co_kwonlyargcount if code is not None else 0
        known = {*self.survey.labels, *keywords, *(code.co_varnames[:count] if code else ())}
        known |= {path for _, _, path in self.survey.tensors}
        for name in named:
            if name not in known and not (isinstance(name, int) and name < count):
                raise ArgumentError(
                    f"{option} names {name!r}, which is no argument of the function",
                    f"its arguments are {', '.join(self.survey.labels) or 'none'}",
                )

    # --- placeholders -----------------------------------------------------------------------------

    def _prepare(self) -> None:
        tensors = [tensor for _, tensor, _ in self.survey.tensors]
        realize_together([tensor.entry for tensor in tensors])
        nodes = [tensor.entry.node for tensor in tensors]
        given = self.given = [tensor.entry.node for _, tensor, _ in self.survey.arrays]
        devices = {node.device for node in [*nodes, *given] if node.device}
        if len(devices) > 1:
            raise Inline("its tensors are on several devices")
        self.device = next(iter(devices), self.options.device)
        self.numbers.device = self.device
        if self.seen is not None and not self.dynamic and get_device(self.device).sizes_vary:
            self.sizes = self._sizes(self.seen, nodes)
        for node in nodes:
            leaf = node.op is WATCH and node.arg[0] == TAPE
            if node.watched and not leaf:
                raise Inline("a gradient goes through one of its tensors")

    def _sizes(self, seen: Seen, nodes: Iterable[Node]) -> CallSizes | None:
        """Which sizes of the tensors of this call vary; of shards none does.

        Nor where the function may ask for their type, which is one of their own.
        """
        if "type" in self.survey.names.globals:
            return None
        bases = [base for node in nodes if (base := value_node(node)) is not None]
        shapes = [base.shape for base in bases if base.op is not UNSHARD]
        names = [name for name, _, _ in self.survey.tensors]
        paths = [path for _, _, path in self.survey.tensors]
        if len(shapes) != len(names):
            return None
        return sizes_that_vary(seen, paths, names, shapes, self.free)

    def _shape(self, number: int, base: Node) -> tuple[Any, frozenset[int]]:
        """The shape of a placeholder, and the axes of it that vary."""
        if self.sizes is None or not self.sizes.free[number]:
            return base.shape, frozenset()
        return self.sizes.shapes[number], self.sizes.free[number]

    def _bind_placeholders(self) -> None:
        """Bind every tensor to memory of no history, with the same contents for other threads."""
        for number, (name, tensor, path) in enumerate(self.survey.tensors):
            while True:
                old = tensor.entry.node
                base = value_node(old)
                if base is None:
                    realize([tensor.entry])
                    continue
                how = self._varying(name, path, base)
                shape: Any
                shape, free = self._shape(number, base)
                held = memory_node(base)
                shape = shape if held is base else held.shape
                buffer = new_buffer(how.most if how else shape, base.dtype, self.device)
                node = how.stand_in(buffer, base.shape) if how else buffer
                if how is None and not free:
                    REGISTRY.attach(buffer, storage_of(held))
                if base.op is UNSHARD:
                    node = UNSHARD(buffer, arg=base.arg)
                if old.op is WATCH and TAPE in old.watched:
                    node = WATCH(node, arg=old.arg)
                made = Placeholder(tensor, path, old, base, buffer, node, how, free)
                self.placeholders.append(made)  # noted before it is bound: see `_put_back`
                if REGISTRY.rebind(tensor.entry, old, node):
                    break
                self.placeholders.pop()

    def _varying(self, name: str, path: str, base: Node) -> Varying | None:
        """How the sizes of a tensor vary, if its argument is marked; its variables are noted."""
        axes = self.dynamic.get(path)
        if not axes:
            return None
        if base.op is UNSHARD:
            raise Inline(f"{path} is kept in shards, and its sizes are to vary")
        how = varying(axes, base.shape, path)  # type: ignore[arg-type]
        for d, var in how.axes:
            self.survey.variables.size(var, f"{name}.shape[{d}]", base.shape[d])  # type: ignore[arg-type]
        return how

    def _put_back(self) -> None:
        """Bind every tensor to what it was, unless another thread assigned it meanwhile."""
        for placeholder in self.placeholders:
            node = placeholder.entry.node
            if node is placeholder.node or placeholder.entry in self.changed:
                REGISTRY.rebind(placeholder.entry, node, placeholder.old)

    def _let_go(self, results: set[Entry]) -> None:
        """What other threads built on a placeholder meanwhile reads what it stood for."""
        bases = self._bases()
        if not results.issuperset(REGISTRY.above(bases)):
            REGISTRY.becomes(bases, walk=True)

    def _bases(self) -> dict[Node, Node]:
        """What each placeholder stands for, where its size is fixed."""
        fixed = [p for p in self.placeholders if p.varying is None and not p.free]
        return {p.buffer: memory_node(p.base) for p in fixed}

    def _forget(self) -> None:
        for placeholder in self.placeholders:
            REGISTRY.release(placeholder.buffer)

    # --- running ---------------------------------------------------------------------------------

    def _refuse(self) -> None:
        what, hint = _observation()
        problem = JitError(f"{what} while the function is captured: there is none yet", hint)
        self.observed = self.observed or problem
        raise problem

    def run(self) -> tuple[Captured | None, Any, str]:
        """The captured call; or None, the result, and why nothing could be kept."""
        self._prepare()
        found = self._recalled()
        return self._run() if found is None else (found, None, "")

    def _run(self) -> tuple[Captured | None, Any, str]:
        self.changed: set[Entry] = set()
        begin = new_buffer((), uint32, self.device)
        first = REGISTRY.enter(begin)
        key = new_buffer((2,), uint32, self.device)
        counter = new_buffer((), uint64, self.device)
        self.tape = Tape(key, counter)
        steps = SCOPES.backward
        before = SCOPES.changed
        try:
            self._bind_placeholders()
            if self.sizes is not None:
                self.sizes.settle(self.numbers)
            SCOPES.capturing, SCOPES.changed = True, self.changed
            SCOPES.binding = self.survey.variables.bind
            OBSERVER.refuse = self._refuse
            for holder, place, number in self.survey.installed:
                holder.put(place, number)
            try:
                with self.tape:
                    result = self.function(*self.survey.args, **self.survey.keywords)
            finally:
                OBSERVER.refuse = None
                SCOPES.capturing, SCOPES.changed, SCOPES.binding = False, before, None
                for holder, place, number in self.survey.installed:
                    if holder.held(place) is number:  # the function left it as it was
                        holder.put(place, holder.initial(place))
                # those of its own it may have let go: they must not live on here
                self.changed.intersection_update([p.entry for p in self.placeholders])
            if self.observed is not None:
                raise self.observed
            return self._kept(result, begin.id, first.id, SCOPES.backward > steps)
        except BaseException as problem:
            for holder in self.survey.holders:
                holder.restore()
            self._put_back()
            odd = type(problem) in (TypeError, AttributeError, KeyError)
            again = odd and self._saw_placeholder()
            self._substitute(draw=not again and not self._repeats(problem))
            if any([type(arg) is Number for arg in problem.args]):
                problem.args = tuple([plain(arg) for arg in problem.args])
            if again:  # something may not have taken a placeholder for a number
                raise RetryCapture from problem
            raise
        finally:
            self.numbers.open = False
            self._forget()

    def _repeats(self, problem: BaseException) -> bool:
        """True if the function runs once more after a problem, and draws then."""
        return type(problem) in (RetryCapture, Inline) or (
            self.sizes is not None and isinstance(problem, Exception)
        )

    def _recalled(self) -> Captured | None:
        """What an earlier process kept of such a capture."""
        if self.sizes is None:
            return None
        with FORK_LOCK:
            from . import recall
        self.kept_at = recall.recall_of(self)
        found = recall.find(self.kept_at, self) if self.kept_at and self.recall else None
        if found is None:
            return None
        return Captured(self.survey, self.numbers, [], Template(self.survey), found.made, [],
                        found.replay, self.recording)  # fmt: skip

    def _saw_placeholder(self) -> bool:
        """Did the function see a placeholder in place of a number?"""
        return any([path not in self.numbers.fixed for path, _, _ in self.numbers.met])

    def _kept(
        self, result: Any, begin: int, first: int, differentiated: bool
    ) -> tuple[Captured | None, Any, str]:
        """The captured call, with everything put back; or the result, and why it is not kept."""
        for (_, tensor, path), node in zip(self.survey.arrays, self.given, strict=True):
            if tensor.entry.node is not node:
                raise JitError(
                    f"the function assigns to {path}, a NumPy array, which it sees as a tensor",
                    "pass a tensor, or change the array outside",
                )
        if self.numbers.hashed:
            raise RetryCapture(all_fixed=False)
        effects = [effect for holder in self.survey.holders for effect in holder.effects()]
        try:
            outcome = self._outcome(result, effects, begin, first, differentiated)
        except CannotRemake as problem:
            reason = str(problem)
            if self.sizes is not None:  # what it returns would be of sizes that vary
                self._refuse_sizes()
        else:
            for holder in self.survey.holders:
                holder.restore()
            self._put_back()
            self._let_go({tensor.entry for tensor in outcome.template.results})
            return self._captured(outcome), None, ""
        return None, self._settled(result, effects), reason

    def _outcome(
        self, result: Any, effects: list[Effect], begin: int, first: int, differentiated: bool
    ) -> _Outcome:
        """What the function did, in a form that can be done again."""
        template, statements, made = self._template(result, effects)
        assigned = self._assigned()
        roots = [tensor.entry.node for tensor in template.results]
        roots += [self._assigned_root(placeholder) for _, placeholder in assigned]
        if not differentiated and any([root.watched for root in roots]):
            raise Inline("its result has a gradient; call it inside no_grad() to replay it")
        if not roots:
            roots = [constant(0, uint32)]
        self._close_sizes()
        escaped = self._escaped({t.entry for t in template.results}, first)
        normal = self._normalized(roots)
        places, foreign = self._places(normal.buffers, begin)
        if problem := escaped or foreign or self._elsewhere(roots):
            raise CannotRemake(problem)
        written = [i for i, _ in assigned]
        return _Outcome(template, statements, made, written, roots, normal, places)

    def _assigned(self) -> list[tuple[int, Placeholder]]:
        """The tensors that have another value now, with their numbers."""
        return [(i, s) for i, s in enumerate(self.placeholders) if s.entry.node is not s.node]

    def _normalized(self, roots: list[Node]) -> Normal:
        """The key of what the function computed; shards and bodies are of sizes that are known.

        So are graphs with sizes that variables are: an expression may hold both, and plans of
        many sizes hold numbers and polynomials alone.
        """
        found = normalize(roots)
        if self.sizes is not None and any(
            [node.op in COMMUNICATES or sizes_vary(node) for node in found.nodes]
            + [type(n) is Node for node in found.nodes for n in node.shape if found.values]
        ):
            self._refuse_sizes()
        return found

    def _refuse_sizes(self) -> NoReturn:
        """The call is to be captured for its sizes alone; after some of these none is tried."""
        assert self.seen is not None and self.sizes is not None
        self.seen.fixed[self.sizes.signature] += 1
        raise SizesDecide

    def _close_sizes(self) -> None:
        """Settle what sizes decided; an error where they decided everything."""
        if self.sizes is not None and not self.sizes.close():
            if self.numbers.pinned_sizes:
                raise RetryCapture(all_fixed=False)  # the number is known then
            self._refuse_sizes()

    def _elsewhere(self, roots: Iterable[Node]) -> str:
        """Text if a result is on a device of its own."""
        apart = several_devices() and any([r.device not in (None, self.device) for r in roots])
        return "its results are on another device" if apart else ""

    def _template(self, result: Any, effects: list[Effect]) -> tuple[Template, list[str], str]:
        template = Template(self.survey)
        try:
            statements = [template.effect(effect) for effect in effects]
            return template, statements, template.expression(result)
        except CannotRemake:
            if self._saw_placeholder():
                raise RetryCapture from None  # what it made may hold a placeholder
            raise

    def _assigned_root(self, placeholder: Placeholder) -> Node:
        """The new value of a tensor that the function assigned."""
        node = placeholder.entry.node
        leaf = node.op is WATCH and node.arg[0] == TAPE and not node.src[0].watched
        if placeholder.entry not in self.changed:
            raise CannotRemake(f"{placeholder.path} was changed meanwhile")
        if leaf != (placeholder.node.op is WATCH) or (node.watched and not leaf):
            raise CannotRemake(f"a gradient goes through {placeholder.path}")
        return node.src[0] if leaf else node

    def _captured(self, outcome: _Outcome) -> Captured:
        """The checks, the plan and the template as one call."""
        template, normal = outcome.template, outcome.normal
        results = len(template.results)
        expected = [
            Expected(type(s.tensor), s.base.shape, s.base.dtype, self.device,  # type: ignore[arg-type]
                     s.node.op is WATCH, s.path, s.varying, s.free,
                     s.base.arg if s.base.op is UNSHARD else None)
            for s in self.placeholders
        ]  # fmt: skip
        variables = self.survey.variables.settle(self.survey, normal.values)
        replay = Replay(
            expected, outcome.places, normal, outcome.roots, self.device, list(variables),
            [(i, results + k) for k, i in enumerate(outcome.assigned)], results,
            self.tape.blocks if self.tape.drawn else None,
            [dtype for _, dtype in self.numbers.inputs], self.options,
            self._given() if self.sizes is None else [], self.sizes,
        )  # fmt: skip
        replay.append(_appends(outcome, results))
        self.survey.settle_numbers()
        found = Captured(self.survey, self.numbers, list(variables.values()), template,
                         outcome.made, outcome.statements, replay, self.recording)  # fmt: skip
        if self.kept_at is not None and not variables and self._is_kept(outcome):
            inputs = [(buffer.dtype, buffer.shape) for buffer in normal.buffers]
            found.keep = partial(self._keep, self.kept_at, outcome.made, replay, inputs)
        return found

    def _is_kept(self, outcome: _Outcome) -> bool:
        """True if another process can do the same: it is a plan and tensors, and no more."""
        template, normal, kept = outcome.template, outcome.normal, self.kept_at
        more = outcome.statements or template.numbers or self.numbers.inputs or normal.values
        if more or self.tape.drawn or template.known.keys() != Template(self.survey).known.keys():
            return False
        if any([p.varying or p.node is not p.buffer for p in self.placeholders]):
            return False
        asks = any([type(e) is tuple and e[0] in COMMUNICATES for e in normal.structure])
        is_same = kept is not None and kept.checks == len(self.survey.lines)
        return is_same and not asks and not hosts_in(normal.structure)

    @staticmethod
    def _keep(kept: Recall, made: str, replay: Replay, inputs: list[Any]) -> None:
        with FORK_LOCK:
            from . import recall
        recall.keep(kept, made, replay, inputs)

    def _given(self) -> list[int]:
        """The tensors of arguments that the caller gives away."""
        return [
            i
            for i, placeholder in enumerate(self.placeholders)
            for name in self.donate
            if placeholder.path == name or placeholder.path.startswith((f"{name}[", f"{name}."))
        ]

    def _places(self, buffers: Iterable[Node], begin: int) -> tuple[list[Place], str]:
        """What every input of the plan is; text if one comes from somewhere else."""
        tensors = {s.buffer: i for i, s in enumerate(self.placeholders)}
        arrays = {t.entry.node: i for i, (_, t, _) in enumerate(self.survey.arrays)}
        numbers = {node: i for i, node in enumerate(self.numbers.inputs.values())}
        found: list[Place] = []
        for buffer in buffers:
            if buffer in tensors:
                found.append(Place("tensor", tensors[buffer]))
            elif buffer in arrays:
                found.append(Place("array", arrays[buffer]))
            elif buffer in numbers:
                found.append(Place("number", numbers[buffer]))
            elif buffer is self.tape.key:
                found.append(Place("key"))
            elif buffer is self.tape.counter:
                found.append(Place("counter", len(numbers)))
            elif buffer.id > begin:
                found.append(Place("constant", 0, storage_of(buffer)))
            else:
                return found, "it uses a tensor that it reaches in a way that cannot be followed"
        return found, ""

    # --- calls of which nothing is kept ----------------------------------------------------------

    def _inputs(self) -> list[Node]:
        mine = [s.buffer for s in self.placeholders]
        return [*mine, *self.numbers.inputs.values(), self.tape.key, self.tape.counter]

    def _escaped(self, known: set[Entry], first: int) -> str:
        """Is there a tensor made by the function that is neither a result nor a tensor's value?"""
        known = known | {s.entry for s in self.placeholders}
        for attempt in range(2):
            left = [e for e in REGISTRY.above(self._inputs()) if e not in known and e.id > first]
            if not left:
                return ""
            del left
            if attempt == 0:
                gc.collect()  # it may be held by a cycle that is garbage
        return "it keeps a tensor where a replay could not put it again"

    def _substitute(self, draw: bool = True) -> None:
        """Let every living tensor read what placeholders stood for."""
        becomes = self._bases()
        for (_, dtype), node in self.numbers.inputs.items():
            becomes[node] = constant(self.numbers.values[node], dtype)
        if self.tape.drawn and draw:
            key, first = GENERATOR.reserve(at_hints(self.tape.blocks), self.device)
            becomes[self.tape.key] = key
            becomes[self.tape.counter] = array_node(np.array(first, np.uint64), self.device, False)
        REGISTRY.becomes(becomes, walk=True)

    def _settled(self, result: Any, effects: list[Effect]) -> Any:
        """The result as the function itself would have left everything."""
        entries = {placeholder.entry for placeholder in self.placeholders}
        if any([e.node.watched for e in REGISTRY.above(self._inputs()) if e not in entries]):
            raise Inline("it makes a tensor that requires a gradient")
        for placeholder in self.placeholders:
            REGISTRY.rebind(placeholder.entry, placeholder.node, placeholder.old)
        self._substitute()
        for holder in self.survey.holders if self.numbers.inputs else ():
            for effect in holder.effects():
                holder.put(effect.key, _plainly(effect.value))
        return map_tree(plain, result) if self.numbers.met else result


def _appends(outcome: _Outcome, results: int) -> tuple[Append, ...]:
    """The results that are a tensor of the call with so many elements behind it along an axis."""
    number = {b: i for i, b in enumerate(outcome.normal.buffers)
              if outcome.places[i].kind == "tensor"}  # fmt: skip
    found: dict[int, Append] = {}
    for place, root in enumerate(outcome.roots[:results]):
        join = joined(root)
        param = None if join is None else number.get(join.first)
        if join is None or param is None or param in found or outcome.roots.count(root) > 1:
            continue
        if type(join.second.shape[join.axis]) is int:
            found[param] = Append(param, place, join.axis)
    return tuple(found.values())


def _plainly(value: Any) -> Any:
    """What a place holds, with numbers themselves."""
    return value if value is MISSING else map_tree(plain, value)


_HINTS = {
    "__bool__": ("the truth of a tensor is asked for",
                 "use fg.where or fg.cond in place of `if`, or decide outside of the function"),
    "__repr__": ("the value of a tensor is printed", "return it, and print it after the call"),
    "__index__": ("the value of a tensor is a size or an index of Python",
                  "index with the tensor itself, or pass the number as an argument"),
    "__iter__": ("the values of a tensor are iterated over", "use fg.scan, or return it"),
    "lines_of": ("how many elements a mask picks, which is a size, is asked for",
                 "use fg.where(mask, x, 0), or pick outside of the function"),
    "nonzero": ("how many values there are, which is a size, is asked for",
                "use fg.where, or look for them outside of the function"),
    "repeat": ("how often values are repeated, which is a size, is asked for",
               "give numbers that are no tensor, or repeat outside of the function"),
}  # fmt: skip


def _observation() -> tuple[str, str]:
    """What was asked of a tensor, and what to do instead."""
    frame: Any = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            break
        if frame.f_code.co_name in _HINTS and "fulgurite" in frame.f_code.co_filename:
            return _HINTS[frame.f_code.co_name]
        frame = frame.f_back
    return "the value of a tensor is asked for", "return it, and look at it after the call"
