"""A loaded model: a function from named inputs to named outputs.

In: NumPy arrays (or tensors, lists, numbers) by name or in order. Out: `Outputs`, a dict of tensors
in the model's order. For each set of input shapes the graph is built once, scheduled, and kept: a
call copies its inputs into the plan's own and runs it (large floats are read where they are); one
like the latest goes to its plan at once. If building looked at the numbers of an
input (a shape that is computed from it), the plan is good for these numbers only and is chosen by
them. Where results decide shapes the graph is built at every call. Dimensions may be variables
(`dims=`): then other sizes reuse what is compiled. One that is not said to be a variable is one
from its second size on, or from the first where no kernel is slower for it; it is none where plans
for its sizes are quicker (sizes.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

import fulgurite as fg

from .._lazy import FORK_LOCK
from ..config import Options, current
from ..core.lazy_named_tuple import NamedTuple
from ..errors import ArgumentError, BoundsError, FulguriteError, ShapeError
from ..runtime.device import get_device
from ..runtime.gc_pause import held_back, made_to_stay
from ..tensor import Tensor
from .ports import Port, Signature, checked_dims, converted, names_of
from .recall import Recall, Recalled
from .runs import Outputs, Runs, kind_and_rank
from .source import opened

if TYPE_CHECKING:
    from ..aot.schedule import TensorSchedule
    from .graph import Build, Program
    from .plans import Plan

PATIENCE = 2  # sizes of a dimension that get a plan each, before it becomes a variable
ROOM = 1 << 22  # elements up to which an input has room for sizes that did not come yet,
MOST_ROOM = 512  # for so many along each axis
Run = Callable[[Mapping[str, Any], Sequence[Port]], Outputs]
PLANS = 16  # sets of shapes (and numbers) whose plans are kept
BOUND = 256  # and of sizes of a plan for many


def load(
    source: object, device: str | None = None, dims: Mapping[str, object] | None = None
) -> Model:
    """A model from a path or from bytes; nothing is computed and no weight is read yet.

    `dims` fixes named dimensions (`{"batch": 4}`) or lets them vary without compiling again
    (`{"batch": fg.Var("batch", 1, 64)}`).
    """
    with held_back():
        return Model(source, device, dims)


class _Latest(NamedTuple):
    """The plan of the latest call, and the arrays that it is for."""

    options: Options
    arrays: list[tuple[str, tuple[int, ...], Any]]
    plan: Runs

    @classmethod
    def of(
        cls, options: Options, plan: Runs, given: Mapping[str, Any], ports: Mapping[str, Port]
    ) -> _Latest | None:
        """None of a plan that depends on more than shapes, or takes what is converted first."""
        plain = [type(v) is np.ndarray and ports[n].takes(v.dtype) for n, v in given.items()]
        if plan.consulted or not all(plain):
            return None
        return cls(options, [(n, v.shape, v.dtype) for n, v in given.items()], plan)

    def takes(self, given: dict[str, Any]) -> bool:
        """True if a call would find this plan."""
        if len(given) != len(self.arrays) or current() is not self.options:
            return False
        for name, shape, dtype in self.arrays:
            value = given.get(name)
            if type(value) is not np.ndarray or value.shape != shape or value.dtype is not dtype:
                return False
        return True


class Model:
    """A function from named inputs to named outputs."""

    def __init__(
        self,
        source: object,
        device: str | None = None,
        dims: Mapping[str, object] | None = None,
    ) -> None:
        self.source = opened(source)
        self._program: Program | None = None
        self._lock = threading.RLock()
        self.device = device
        if device is not None:
            with fg.config(device=device):  # an unknown device is an error now
                pass
        self._recall = Recall(self.source)
        self.signature = self._recall.signature() or self._read_signature()
        self.inputs, self.optional, self.outputs, self.opset = self.signature
        self._ports = [*self.inputs, *self.optional]
        self._by_name = {port.name: port for port in self._ports}
        self.dims = checked_dims(dims or {}, self._ports)
        self.reasons: list[str] = []  # why a variable dimension was fixed after all
        self.builds = 0
        self.last: Runs | None = None  # of the latest graph that was built
        self._sizes: dict[str, set[int]] = {}  # of every named dimension, what came so far
        self._guesses = True  # may a dimension be a variable when its first size comes?
        self._fixed: set[tuple[str, str]] = set()  # of a device: dimensions that varied in vain
        self._plans: OrderedDict[Any, list[Runs]] = OrderedDict()
        self._latest: _Latest | None = None

    @property
    def program(self) -> Program:
        """The parsed file; a process that only runs what is kept does without."""
        with self._lock:
            if self._program is None:
                with FORK_LOCK:
                    from .graph import Program
                    from .proto import model_in
                    from .weights import Files
                source = self.source
                with held_back():
                    parsed = model_in(source.data)
                self._program = Program(parsed, Files(source.folder, source.data), source.name)
            return self._program

    def _read_signature(self) -> Signature:
        program = self.program
        stored = program.weights_of(program.graph).makers
        return Signature.of(program.graph, stored, program.opsets.get("", 0))

    def __repr__(self) -> str:
        given = ", ".join(map(str, self.inputs))
        return f"Model({given} -> {', '.join(map(str, self.outputs))})"

    def __call__(self, *values: object, **named: object) -> Outputs:
        """The outputs for some inputs, in order or by name."""
        latest = self._latest
        if latest is not None:
            by_name = named if not values else values[0] if len(values) == 1 else None
            if type(by_name) is dict and not (values and named) and latest.takes(by_name):
                with self._lock, suppress(BoundsError):  # whose line is found below
                    if self._latest is latest and latest.plan.left >= 1:
                        return latest.plan.run(by_name, self.outputs)
        outer = current()
        with nullcontext() if self.device is None else fg.config(device=self.device):
            given = self._given(values, named)
            if any(_is_lazy(v) for v in given.values()):
                return self._lazy(given)
            with self._lock:
                return self._run(given, outer)

    # --- inputs ----------------------------------------------------------------------------------

    def _given(self, values: Sequence[object], named: Mapping[str, object]) -> dict[str, Any]:
        """Every input by name, as arrays of the right kinds (or lazy tensors)."""
        ports, known = self._ports, self._by_name
        if len(values) == 1 and isinstance(values[0], Mapping):  # names need not be Python's
            named, values = {**values[0], **named}, ()
        if len(values) > len(ports):
            raise ArgumentError(
                f"{len(values)} inputs for a model of {len(self.inputs)}",
                f"{names_of(self.inputs)}",
            )
        found = {port.name: value for port, value in zip(ports, values, strict=False)}
        for name, value in named.items():
            if name not in known:
                raise ArgumentError(f"there is no input {name!r}", names_of(self.inputs))
            if name in found:
                raise ArgumentError(f"input {name!r} is given twice", "by order or by name")
            found[name] = value
        for port in self.inputs:
            if port.name not in found and port.form != "optional":
                raise ArgumentError(f"input {port} is missing", names_of(self.inputs))
        return {p.name: converted(found[p.name], p) for p in ports if p.name in found}

    def _check_sizes(self, given: Mapping[str, Any]) -> None:
        sizes: dict[str, tuple[int, str]] = {}
        for name, value in self.dims.items():
            if isinstance(value, int):
                sizes[name] = (value, "dims")
        for port in self._ports:
            value = given.get(port.name)
            if not isinstance(value, np.ndarray | Tensor) or port.shape is None:
                continue
            shape: Any = value.node.shape if isinstance(value, Tensor) else value.shape
            if len(shape) != len(port.shape):
                raise ShapeError(
                    f"input {port.name!r} has shape {tuple(shape)}", f"the model takes {port}"
                )
            for want, size in zip(port.shape, shape, strict=True):
                if not isinstance(size, int):
                    continue
                if isinstance(want, int) and want != size:
                    raise ShapeError(
                        f"input {port.name!r} has shape {tuple(shape)}", f"the model takes {port}"
                    )
                if isinstance(want, str):
                    before = sizes.setdefault(want, (size, port.name))
                    if before[0] != size:
                        raise ShapeError(
                            f"dimension {want!r} is {size} in {port.name!r} and {before[0]} in "
                            f"{before[1]!r}",
                            "a name stands for one size",
                        )

    # --- running ---------------------------------------------------------------------------------

    def _run(self, given: dict[str, Any], options: Options) -> Outputs:
        """A plan for these inputs, found or made, and its results; `options` are the caller's."""
        shapes = tuple([(name, _signature(value)) for name, value in given.items()])
        key = (current().device, shapes)
        plans = self._plans.setdefault(key, [])
        self._plans.move_to_end(key)
        for number, plan in enumerate(plans):
            if plan.fits(given):
                if plan.left >= 1:
                    self._latest = _Latest.of(options, plan, given, self._by_name)
                    return self._checked(plan, given, plan.run)
                plans[number] = self.last = self._plan(given)
                return plans[number].first(given, self.outputs)
        self._latest = None
        self._check_sizes(given)  # a plan that was found has these shapes already
        with held_back():
            plan = self.last = self._bound(given) or self._built(given)
            if isinstance(plan, Recalled):
                made_to_stay()
        if plan.schedule is not None or not plan.dynamic or plan.is_split:
            plans.insert(0, plan)
            del plans[PLANS:]
        most = BOUND if plan.variables else PLANS  # other sizes of one plan take little
        while len(self._plans) > most:
            self._plans.popitem(last=False)
        return self._checked(plan, given, plan.first)

    def _checked(self, plan: Runs, given: dict[str, Any], run: Run) -> Outputs:
        """What a plan gives; an index outside its axis is an error with the line of a graph."""
        try:
            return run(given, self.outputs)
        except BoundsError:
            if isinstance(plan, Recalled):
                self._plan(given).first(given, self.outputs)
            raise

    def _plan(self, given: dict[str, Any], variables: Mapping[str, fg.Var] | None = None) -> Plan:
        """A plan that is built now, and kept on disk where that is of use."""
        with FORK_LOCK:
            from .plans import Plan
        self._recall.begin()
        plan = Plan(self, given, variables or {})
        if plan.schedule is not None:
            self._recall.keep(plan, self)
        return plan

    def _bound(self, given: dict[str, Any]) -> Plan | None:
        """A plan with variable dimensions that was made for other sizes, if it pays for these."""
        device, kinds = current().device, {name: kind_and_rank(v) for name, v in given.items()}
        for (where, shapes), plans in self._plans.items():
            for plan in plans if where == device and len(shapes) == len(given) else ():
                if plan.variables and plan.kinds == kinds and plan.fits(given):
                    found: Plan | None = plan.bound(given)
                    if found is not None:
                        return found if found.left >= 1 else self._plan(given)
        return None

    def _built(self, given: dict[str, Any]) -> Runs:
        """A plan with variable dimensions where there are some and that is no worse."""
        kept = self._recall.find(given, self.dims) if not self.builds else None
        if kept is not None:
            return kept
        variables = self._variables(given)
        if not variables:
            return self._recall.find(given, self.dims) or self._plan(given)
        found = self._varying(given, variables)
        if isinstance(found, str):
            found = self._without_few(given, variables) or found
        if not isinstance(found, str):
            return found
        plan = self._plan(given)  # or the inputs are to blame, which is no reason
        self._give_up(variables, found)
        return plan

    def _without_few(self, given: dict[str, Any], variables: Mapping[str, fg.Var]) -> Plan | None:
        """A plan in which dimensions that came in few sizes are fixed, if these are in the way."""
        few = {n for n in variables if n not in self.dims and len(self._sizes[n]) <= PATIENCE}
        if not 0 < len(few) < len(variables):
            return None
        found = self._varying(given, {n: v for n, v in variables.items() if n not in few})
        if isinstance(found, str):
            return None
        self._fixed |= {(current().device, name) for name in few}
        return found

    def _give_up(self, variables: Mapping[str, fg.Var], why: str) -> None:
        """Fix dimensions for which no plan with variable ones is as good."""
        if all([n not in self.dims and len(self._sizes[n]) == 1 for n in variables]):
            self._guesses = False  # what did not vary yet need not: other dimensions may
            return
        self._say(why)
        device, chosen = current().device, variables.keys() - self.dims.keys()
        self._fixed |= {(device, name) for name in chosen or variables}

    def _varying(self, given: dict[str, Any], variables: Mapping[str, fg.Var]) -> Plan | str:
        """A plan with variable dimensions, or why there should be none; users may want it slow."""
        try:
            plan = self._plan(given, variables)
        except FulguriteError as problem:
            return str(problem).split("\n")[0]
        if variables.keys() <= self.dims.keys() or plan.schedule is None:
            return plan
        if slow := plan.slow():
            return f"with variable sizes {', '.join(slow)} is Python's work"
        if self._is_sized:  # a run computes what its sizes need
            return plan
        with FORK_LOCK:
            from .sizes import WORTH, patience
        plan.chosen, plan.left = True, patience(plan.schedule, plan.sizes_of(plan.held) or {})
        if plan.left < WORTH:
            return "with variable sizes a run computes all of their upper bounds"
        if self._is_slower(plan, plan.schedule):
            return "with variable sizes kernels are slower than those for a size"
        return plan

    def _is_slower(self, plan: Plan, schedule: TensorSchedule) -> bool:
        """True if kernels of variable sizes lose too much against those for a size."""
        with FORK_LOCK:
            from .sizes import WORTH, patience
        for known in [known for plans in self._plans.values() for known in plans]:
            alike = known.kinds == plan.kinds and not known.variables
            sizes = plan.sizes_of(known.held) if alike else None
            if sizes is None or known.schedule is None:
                continue
            if patience(schedule, sizes, known.schedule) < WORTH:
                return True
        return False

    def _variables(self, given: Mapping[str, Any]) -> dict[str, fg.Var]:
        """The dimensions that vary: those the user says, and those that came in many sizes."""
        device = current().device
        found = {name: var for name, var in self.dims.items() if isinstance(var, fg.Var)}
        named = list(self._named_sizes(given))
        for name, size, _ in named:
            if name not in self.dims and size:
                self._sizes.setdefault(name, set()).add(size)
            elif name in found and not found[name].low <= size <= found[name].high:
                self._say(f"{name} is {size}, which is not in {found[name]}")
                del found[name]  # for this call
        for name, _, others in named:
            if self._comes_in_many(name):
                found.setdefault(name, self._variable(name, others))
        return {name: var for name, var in found.items() if (device, name) not in self._fixed}

    def _comes_in_many(self, name: str) -> bool:
        """True if a dimension came in so many sizes that it should vary.

        Where runs cost what their sizes need, a second size is enough: the model says that it may.
        The first is if no kernel is the slower for it; 1 says nothing.
        """
        sizes = self._sizes.get(name, set())
        if not self._is_sized:
            return len(sizes) > PATIENCE
        likely = self._guesses and bool(sizes - {1}) and self.program.is_for_any_size
        return len(sizes) > 1 or likely

    def _variable(self, name: str, others: int) -> fg.Var:
        """A dimension as a variable, with room for sizes that did not come yet."""
        number = list(self._sizes).index(name)  # names may hold any letters
        most = 1 << max(4, (max(self._sizes[name]) - 1).bit_length())
        while self._is_sized and most < MOST_ROOM and 8 * most * others <= ROOM:
            most *= 2
        return fg.Var(f"onnx_{number}", 1, most)

    def _named_sizes(self, given: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
        """Every named dimension of the inputs: its size, and how many elements it is of."""
        for port in self._ports:
            value = given.get(port.name)
            if isinstance(value, np.ndarray) and port.shape is not None:
                for name, size in zip(port.shape, value.shape, strict=True):
                    if isinstance(name, str):
                        yield name, size, value.size // max(1, size)

    @property
    def _is_sized(self) -> bool:
        """True if kernels of sizes that vary run at the sizes of a call."""
        return current().dynamic and get_device(current().device).sizes_vary

    def _say(self, reason: str) -> None:
        """Why a dimension is fixed after all, once."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def _lazy(self, given: dict[str, Any]) -> Outputs:
        """Outputs as expressions of tensors that are expressions themselves."""
        self._check_sizes(given)
        with FORK_LOCK:
            from .graph import Build
            from .plans import shown_value, value_of
        build = Build(self.program)
        self.builds += 1
        found = self._outputs(build, [value_of(given.get(p.name), p) for p in self._ports])
        return Outputs({p.name: shown_value(v) for p, v in zip(self.outputs, found, strict=True)})

    def _outputs(self, build: Build, values: Sequence[Any]) -> list[Any]:
        """The outputs of the whole graph for values in the order of its ports."""
        by_name = dict(zip([p.name for p in self._ports], values, strict=True))
        order = [by_name.get(info.name) for info in self.program.graph.input]
        return build.graph(self.program.graph, order)


# --- ports and inputs ----------------------------------------------------------------------------


def _is_lazy(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_lazy(v) for v in value)
    return isinstance(value, Tensor)


def _signature(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_signature(v) for v in value)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return None
