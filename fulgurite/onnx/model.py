"""A loaded model: a function from named inputs to named outputs.

In: NumPy arrays (or tensors, lists, numbers) by name or in order. Out: `Outputs`, a dict of tensors
in the model's order. For each set of input shapes the graph is built once, scheduled, and kept: a
call copies its inputs into the plan's own and runs it. If building looked at the numbers of an
input (a shape that is computed from it), the plan is good for these numbers only and is chosen by
them. Where results decide shapes the graph is built at every call. Dimensions may be variables
(`dims=`): then other sizes reuse what is compiled. One that is not said to be a variable is none
where plans for its sizes are quicker (sizes.py).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from math import inf
from typing import Any

import numpy as np

import fulgurite as fg

from ..aot.schedule import TensorSchedule
from ..config import current
from ..core.op import Array
from ..errors import ArgumentError, FulguriteError, ShapeError
from ..runtime.device import get_device
from ..runtime.gc_pause import held_back
from ..runtime.realize import storage_of
from ..tensor import Tensor
from .errors import ModelError
from .graph import FOLDED, Build, Program
from .ports import Port, checked_dims, converted, names_of, port_of
from .proto import read_model
from .sizes import WORTH, patience
from .types import STRING, carried, kind_of_array, kind_of_dtype, shown
from .values import NOTHING, Maps, Value, is_symbolic
from .weights import Files

PATIENCE = 2  # sizes of a dimension that get a plan each, before it becomes a variable
ROOM = 1 << 22  # elements up to which an input has room for sizes that did not come yet,
MOST_ROOM = 512  # for so many along each axis
PLANS = 16  # sets of shapes (and numbers) whose plans are kept


class Outputs(dict[Any, Any]):
    """What a model gave, by name in the model's order; a number counts from the first."""

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, int) and -len(self) <= key < len(self):
            return list(self.values())[key]
        raise KeyError(key)


def load(
    source: object, device: str | None = None, dims: Mapping[str, object] | None = None
) -> Model:
    """A model from a path or from bytes; nothing is computed and no weight is read yet.

    `dims` fixes named dimensions (`{"batch": 4}`) or lets them vary without compiling again
    (`{"batch": fg.Var("batch", 1, 64)}`).
    """
    return Model(source, device, dims)


class Model:
    """A function from named inputs to named outputs."""

    def __init__(
        self,
        source: object,
        device: str | None = None,
        dims: Mapping[str, object] | None = None,
    ) -> None:
        with held_back():
            parsed, data, folder = read_model(source)
        name = os.path.basename(source) if isinstance(source, str | os.PathLike) else ""
        self.program = Program(parsed, Files(folder, data), str(name))
        self.device = device
        if device is not None:
            with fg.config(device=device):  # an unknown device is an error now
                pass
        graph = self.program.graph
        stored = self.program.weights_of(graph).makers
        ports = [port_of(info) for info in graph.input]
        self.inputs = [port for port in ports if port.name not in stored]
        self.optional = [port for port in ports if port.name in stored]
        self.outputs = [port_of(info) for info in graph.output]
        self._ports = [*self.inputs, *self.optional]
        self._by_name = {port.name: port for port in self._ports}
        self.dims = checked_dims(dims or {}, ports)
        self.opset = self.program.opsets.get("", 0)
        self.reasons: list[str] = []  # why a variable dimension was fixed after all
        self.builds = 0
        self.last: _Plan | None = None  # of the latest graph that was built
        self._sizes: dict[str, set[int]] = {}  # of every named dimension, what came so far
        self._fixed: set[tuple[str, str]] = set()  # of a device: dimensions that varied in vain
        self._plans: OrderedDict[Any, list[_Plan]] = OrderedDict()
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        given = ", ".join(map(str, self.inputs))
        return f"Model({given} -> {', '.join(map(str, self.outputs))})"

    def __call__(self, *values: object, **named: object) -> Outputs:
        """The outputs for some inputs, in order or by name."""
        with nullcontext() if self.device is None else fg.config(device=self.device):
            given = self._given(values, named)
            if any(_is_lazy(v) for v in given.values()):
                return self._lazy(given)
            with self._lock:
                return self._run(given)

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

    def _run(self, given: dict[str, Any]) -> Outputs:
        """A plan for these inputs, found or made, and its results."""
        shapes = tuple([(name, _signature(value)) for name, value in given.items()])
        key = (current().device, shapes)
        plans = self._plans.setdefault(key, [])
        self._plans.move_to_end(key)
        for number, plan in enumerate(plans):
            if plan.fits(given):
                if plan.left >= 1:
                    return plan.run(given, self.outputs)
                plans[number] = self.last = _Plan(self, given, {})
                return plans[number].first(self.outputs)
        self._check_sizes(given)  # a plan that was found has these shapes already
        with held_back():
            plan = self.last = self._bound(given) or self._built(given)
        if plan.schedule is not None or not plan.dynamic:
            plans.insert(0, plan)
            del plans[PLANS:]
        while len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        return plan.first(self.outputs)

    def _bound(self, given: dict[str, Any]) -> _Plan | None:
        """A plan with variable dimensions that was made for other sizes, if it pays for these."""
        device, kinds = current().device, {name: _kind_and_rank(v) for name, v in given.items()}
        for (where, shapes), plans in self._plans.items():
            for plan in plans if where == device and len(shapes) == len(given) else ():
                if plan.variables and plan.kinds == kinds and plan.fits(given):
                    found = plan.bound(given)
                    if found is not None:
                        return found if found.left >= 1 else _Plan(self, given, {})
        return None

    def _built(self, given: dict[str, Any]) -> _Plan:
        """A plan with variable dimensions where there are some and that is no worse."""
        variables = self._variables(given)
        if not variables:
            return _Plan(self, given, {})
        found = self._varying(given, variables)
        few = {n for n in variables if n not in self.dims and len(self._sizes[n]) <= PATIENCE}
        if isinstance(found, str) and 0 < len(few) < len(variables):
            without = self._varying(given, {n: v for n, v in variables.items() if n not in few})
            if isinstance(without, _Plan):  # what came in few sizes was in the way
                self._fixed |= {(current().device, name) for name in few}
                found = without
        if isinstance(found, _Plan):
            return found
        plan = _Plan(self, given, {})  # or the inputs are to blame, which is no reason
        self._say(found)
        device, chosen = current().device, variables.keys() - self.dims.keys()
        self._fixed |= {(device, name) for name in chosen or variables}
        return plan

    def _varying(self, given: dict[str, Any], variables: Mapping[str, fg.Var]) -> _Plan | str:
        """A plan with variable dimensions, or why there should be none; users may want it slow."""
        try:
            plan = _Plan(self, given, variables)
        except FulguriteError as problem:
            return str(problem).split("\n")[0]
        if variables.keys() <= self.dims.keys() or plan.schedule is None:
            return plan
        if slow := plan.slow():
            return f"with variable sizes {', '.join(slow)} is Python's work"
        if self._is_sized:  # a run computes what its sizes need
            return plan
        plan.chosen, plan.left = True, patience(plan.schedule, plan.sizes_of(plan.held) or {})
        if plan.left < WORTH:
            return "with variable sizes a run computes all of their upper bounds"
        if self._is_slower(plan, plan.schedule):
            return "with variable sizes kernels are slower than those for a size"
        return plan

    def _is_slower(self, plan: _Plan, schedule: TensorSchedule) -> bool:
        """True if kernels of variable sizes lose too much against those for a size."""
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
        """
        least = 1 if self._is_sized else PATIENCE
        return len(self._sizes.get(name, ())) > least

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
        build = Build(self.program)
        self.builds += 1
        found = self._outputs(build, [_value(given.get(p.name), p) for p in self._ports])
        return Outputs({p.name: _shown_value(v) for p, v in zip(self.outputs, found, strict=True)})

    def _outputs(self, build: Build, values: Sequence[Any]) -> list[Any]:
        """The outputs of the whole graph for values in the order of its ports."""
        by_name = dict(zip([p.name for p in self._ports], values, strict=True))
        order = [by_name.get(info.name) for info in self.program.graph.input]
        return build.graph(self.program.graph, order)


class _Plan:
    """The graph for one set of shapes, built, and scheduled unless it must be built each time."""

    def __init__(
        self, model: Model, given: dict[str, Any], variables: Mapping[str, fg.Var]
    ) -> None:
        self.held: dict[str, Any] = {}
        self.variables: dict[str, dict[int, fg.Var]] = {}  # of each input, by axis
        self.whole: dict[str, Array] = {}  # what is held, at the variables' upper bounds
        self.shared: list[tuple[Array, Tensor]] = []  # what is held, and who reads it
        self.chosen = False  # did nobody say that these sizes vary?
        self.left = inf  # runs until a plan for the sizes of this one would have cost less
        self.kinds = {name: _kind_and_rank(v) for name, v in given.items()}
        build = Build(model.program)
        build.floats = frozenset({n for n, v in given.items() if _is_float(v)})
        model.builds += 1
        values = [self._input(port, given.get(port.name), variables) for port in model._ports]
        self.values = [_own(value) for value in model._outputs(build, values)]
        self.dynamic, self.hosts = build.dynamic, build.hosts
        self.consulted = {
            name: _frozen(value)
            for name, value in given.items()
            if name in build.consulted or name not in self.held
        }
        tensors = [t for t in _tensors(self.values) if not t.is_realized]
        self.schedule: TensorSchedule | None = None
        if not build.dynamic and tensors:
            _realize_kept(build)
            self.schedule = fg.schedule(*tensors)
            self.schedule.compile(any_size=True)
            for weights in model.program.weights.values():
                weights.forget(self.schedule.buffers)
            model.program.files.release_pages()
        elif tensors:
            fg.realize(*tensors)
        self.tensors = tensors

    def _input(self, port: Port, value: Any, variables: Mapping[str, fg.Var]) -> Any:
        if isinstance(value, np.ndarray) and port.kind is not STRING:
            return self._held(port, value, variables)
        return _value(value, port, frozenset({port.name}))

    def _held(self, port: Port, value: Array, variables: Mapping[str, fg.Var]) -> Value:
        """An input in memory of the plan, with its numbers if they are few."""
        sources = frozenset({port.name})
        found = {
            axis: variables[want]
            for axis, want in enumerate(port.shape or ())
            if isinstance(want, str) and want in variables
        }
        if not found:
            self.held[port.name] = np.array(value, order="C")
            tensor = self._shared(self.held[port.name])
            few = value.size <= FOLDED
            return Value(tensor, port.kind, np.array(value) if few else None, sources)
        self.variables[port.name] = found
        most = [found[axis].high if axis in found else n for axis, n in enumerate(value.shape)]
        cuts = [
            slice(0, found[axis].bind(n)) if axis in found else slice(None)
            for axis, n in enumerate(value.shape)
        ]
        whole = self.whole[port.name] = np.full(most, 0, value.dtype)  # as dynamic_shapes pads
        self.held[port.name] = whole[tuple([slice(0, n) for n in value.shape])]
        np.copyto(self.held[port.name], value)
        return Value(self._shared(whole)[tuple(cuts)], port.kind, None, sources)

    def _shared(self, array: Array) -> Tensor:
        tensor = fg.from_numpy(array)
        self.shared.append((array, tensor))
        return tensor

    def _send(self) -> None:
        """Copy what is held to devices that cannot read it where it is."""
        for array, tensor in self.shared:
            device = get_device(tensor.device)
            if not device.host_visible:
                device.copy_in(array, storage_of(tensor.node))

    def slow(self) -> dict[str, None]:
        """The lines of kernels that native code should have and has not."""
        plans = self.schedule.plans if self.schedule is not None else ()
        kernels = [item for plan in plans for item in plan.executor.host_items]
        plain = [item for item in kernels if item.kernel.kind in ("map", "reduce", "contract")]
        return dict.fromkeys([f"a {item.kernel.kind} kernel" for item in plain])

    def bound(self, given: Mapping[str, Any]) -> _Plan | None:
        """The same plan for other sizes of its variables; None where they do not fit it."""
        sizes = self.sizes_of(given)
        if self.schedule is None or sizes is None:
            return None
        made = copy(self)
        made.held = dict(self.held)
        for name in self.held:
            if name in self.variables:
                cuts = tuple([slice(0, n) for n in given[name].shape])
                made.held[name] = self.whole[name][cuts]
            np.copyto(made.held[name], given[name])
        made._send()
        made.schedule = self.schedule.bound(sizes)
        made.left = patience(self.schedule, sizes) if self.chosen else inf
        return made

    def sizes_of(self, given: Mapping[str, Any]) -> dict[str, int] | None:
        """The sizes of its variables for some inputs; None where they do not fit it."""
        sizes: dict[str, int] = {}
        for name, held in self.held.items():
            axes = self.variables.get(name, {})
            for axis, (old, new) in enumerate(zip(held.shape, given[name].shape, strict=True)):
                var = axes.get(axis)
                if var is None:
                    if old != new:
                        return None
                elif not var.low <= new <= var.high or sizes.setdefault(var.name, new) != new:
                    return None
        return sizes

    def fits(self, given: Mapping[str, Any]) -> bool:
        """Is it good for the numbers of these inputs?"""
        return all(_frozen(given[name]) == value for name, value in self.consulted.items())

    def first(self, ports: Sequence[Port]) -> Outputs:
        """The results for the inputs it was made from."""
        return self._results(ports)

    def run(self, given: Mapping[str, Any], ports: Sequence[Port]) -> Outputs:
        """The results for other inputs of the same shapes."""
        for name, held in self.held.items():
            np.copyto(held, given[name])
        self._send()
        return self._results(ports)

    def _results(self, ports: Sequence[Port]) -> Outputs:
        self.left -= 1
        fresh = self.schedule.run() if self.schedule is not None else self.tensors
        found = dict(zip(map(id, self.tensors), fresh, strict=True))
        return Outputs(
            {p.name: _shown_value(v, found) for p, v in zip(ports, self.values, strict=True)}
        )


def _kind_and_rank(value: Any) -> Any:
    return (value.dtype, value.ndim) if isinstance(value, np.ndarray) else None


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "biuOUST"


def _own(value: Any) -> Any:
    """A value that is no input's memory: a plan writes into that at its next run."""
    if isinstance(value, list):
        return [_own(v) for v in value]
    if isinstance(value, Value) and value._array is not None and is_symbolic(value._array):
        return Value(value.tensor, value.kind)
    if not isinstance(value, Value) or not value.sources or value._tensor is None:
        return value
    if isinstance(value, Maps):
        return Maps(value._tensor.contiguous(), value.keys)
    return Value(value._tensor.contiguous(), value.kind) if value._tensor.is_realized else value


def _realize_kept(build: Build) -> None:
    """What follows from weights alone, computed once."""
    wanted = {}
    for value in build.kept:
        tensor = value._tensor
        if tensor is not None and tensor.size > 1 and not tensor.is_realized:
            wanted[id(tensor)] = tensor
    if wanted:
        fg.realize(*wanted.values())


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Every tensor that must be computed for some values."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, list):
            found += _tensors(value)
        elif isinstance(value, Value) and value._tensor is not None:
            found.append(value._tensor)
    unique = {id(tensor): tensor for tensor in found}
    return list(unique.values())


def _shown_value(value: Any, fresh: Mapping[int, Tensor] | None = None) -> Any:
    """A value as users get it: a tensor, an array of what tensors cannot hold, a list, or None."""
    if isinstance(value, list):
        return [_shown_value(v, fresh) for v in value]
    if value is NOTHING or value is None:
        return None
    if value._tensor is None:
        array = value._array
        if value.kind is STRING:
            return np.array(array)
        if not value.kind.plain:
            return shown(np.array(array), value.kind)
        return copy(value.tensor)
    tensor = fresh.get(id(value._tensor)) if fresh is not None else None
    if tensor is None:  # the model's own, a weight perhaps: users may assign what they get
        tensor = copy(value._tensor)
    if isinstance(value, Maps):
        return value.dicts(tensor.numpy())
    return tensor if value.kind.plain else shown(tensor.numpy(), value.kind)


# --- ports and inputs ----------------------------------------------------------------------------


def _is_lazy(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_lazy(v) for v in value)
    return isinstance(value, Tensor)


def _value(value: Any, port: Port, sources: frozenset[str] = frozenset()) -> Any:
    """A given input as a value of the graph."""
    if value is None:
        return NOTHING if port.form == "optional" else None
    if isinstance(value, list):
        return [_value(v, Port(port.name, None, None), sources) for v in value]
    if isinstance(value, Tensor):
        return Value(value, port.kind or kind_of_dtype(value.dtype), None, sources)
    kind = port.kind or kind_of_array(value.dtype)
    if kind is None:
        raise ModelError(f"input {port.name!r} has no element type", "the model is not valid")
    if kind is STRING:
        return Value(None, kind, value, sources)
    return Value(fg.from_numpy(np.array(carried(value, kind))), kind, np.array(value), sources)


def _signature(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_signature(v) for v in value)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return None


def _frozen(value: Any) -> Any:
    """An input's numbers, to compare by."""
    if isinstance(value, list):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, np.ndarray):
        return tuple(value.reshape(-1)) if value.dtype == object else value.tobytes()
    return value
