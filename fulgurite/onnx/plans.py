"""The graph of a model for one set of shapes, built and scheduled.

In: a model and its inputs. Out: `Plan`, which copies inputs into memory of its own and runs. If
building looked at the numbers of an input (a shape that is computed from it), it is good for these
numbers only. Where results decide shapes the graph is built at every call. Values that follow from
weights alone are computed once, before the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

import fulgurite as fg

from ..aot.schedule import Given
from ..core.op import Array
from ..tensor import Tensor
from .errors import ModelError
from .graph import FOLDED, Build
from .ports import Port
from .rest import Rest, Unsplit
from .runs import Outputs, Runs, frozen
from .sizes import patience
from .types import STRING, carried, kind_of_array, kind_of_dtype, shown
from .values import NOTHING, Maps, Value, is_symbolic

if TYPE_CHECKING:
    from .model import Model


class Plan(Runs):
    """The graph for one set of shapes, built, and scheduled unless it must be built each time."""

    def __init__(
        self, model: Model, given: dict[str, Any], variables: Mapping[str, fg.Var]
    ) -> None:
        super().__init__(given)
        self.whole: dict[str, Array] = {}  # what is held, at the variables' upper bounds
        self.chosen = False  # did nobody say that these sizes vary?
        build = Build(model.program)
        build.floats = frozenset({n for n, v in given.items() if _is_float(v)})
        model.builds += 1
        values = [self._input(port, given.get(port.name), variables) for port in model._ports]
        self.values = [_own(value) for value in model._outputs(build, values)]
        self.dynamic, self.hosts = build.dynamic, build.hosts
        self.model, self.reading, self.floats = model, build.reading, build.floats
        self.rest: Rest | None = None
        self.consulted = {
            name: frozen(value)
            for name, value in given.items()
            if name in build.consulted or name not in self.held
        }
        tensors = [t for t in _tensors(self.values) if not t.is_realized]
        if not build.dynamic and tensors:
            _realize_kept(build)
            self.schedule = fg.schedule(*tensors)
            self.schedule.compile(any_size=True)
            self.schedule.own()
            for weights in model.program.weights.values():
                weights.forget(self.schedule.buffers)
            model.program.files.release_pages()
        elif tensors:
            fg.realize(*tensors)
        self.tensors = tensors
        self.names = [port.name for port in model.outputs]
        self.plain = _plain(self.values, tensors)  # outputs that are results as they are

    def _input(self, port: Port, value: Any, variables: Mapping[str, fg.Var]) -> Any:
        if isinstance(value, np.ndarray) and port.kind is not STRING:
            return self._held(port, value, variables)
        return value_of(value, port, frozenset({port.name}))

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
            tensor = self.share(self.held[port.name])
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
        return Value(self.share(whole)[tuple(cuts)], port.kind, None, sources)

    def slow(self) -> dict[str, None]:
        """The lines of kernels that native code should have and has not."""
        plans = self.schedule.plans if self.schedule is not None else ()
        kernels = [item for plan in plans for item in plan.executor.host_items]
        plain = [item for item in kernels if item.kernel.kind in ("map", "reduce", "contract")]
        return dict.fromkeys([f"a {item.kernel.kind} kernel" for item in plain])

    def bound(self, given: Mapping[str, Any]) -> Plan | None:
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
        made.send()
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

    @property
    def is_split(self) -> bool:
        """Is a part of the graph the same at every call, though results decide shapes?"""
        whole = all([isinstance(self.held.get(p.name), np.ndarray) for p in self.model._ports])
        return bool(self.reading) and whole and not self.variables

    def run(self, given: Mapping[str, Any], ports: Sequence[Port]) -> Outputs:
        """The results for other inputs of the same shapes."""
        if not self.dynamic:
            return super().run(given, ports)
        for name, held in self.held.items():
            np.copyto(held, given[name])
        self.send()
        if self.rest is None:
            self.rest = self._rest()
        if self.rest is None:
            return Plan(self.model, dict(given), {}).first(given, ports)
        self.values = [_own(value) for value in self.rest.outputs()]
        self.tensors = [t for t in _tensors(self.values) if not t.is_realized]
        fg.realize(*self.tensors)
        self.plain = _plain(self.values, self.tensors)
        return self._results(ports)

    def _rest(self) -> Rest | None:
        """What is to be built at every call; None where that is all of it."""
        places = {id(array): tensor for array, tensor in self.shared}
        values = {
            p.name: Value(places[id(self.held[p.name])], p.kind, None, frozenset({p.name}))
            for p in self.model._ports
        }
        try:
            return Rest(self.model, values, self.reading, self.floats)
        except Unsplit:
            self.reading.clear()
            return None

    def _results(self, ports: Sequence[Port], given: Given = ()) -> Outputs:
        self.left -= 1
        fresh = self.schedule.run(given=given) if self.schedule is not None else self.tensors
        if self.plain is not None:
            return Outputs(zip(self.names, [fresh[i] for i in self.plain], strict=True))
        found = dict(zip(map(id, self.tensors), fresh, strict=True))
        return Outputs(
            {p.name: shown_value(v, found) for p, v in zip(ports, self.values, strict=True)}
        )


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


def _plain(values: Sequence[Any], tensors: Sequence[Tensor]) -> list[int] | None:
    """Which result each output is; None if one is none, or is shown in another way."""
    places = {id(tensor): number for number, tensor in enumerate(tensors)}
    found = [
        places.get(id(v._tensor)) if type(v) is Value and v.kind.plain else None for v in values
    ]
    return None if None in found else found  # type: ignore[return-value]


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


def shown_value(value: Any, fresh: Mapping[int, Tensor] | None = None) -> Any:
    """A value as users get it: a tensor, an array of what tensors cannot hold, a list, or None."""
    if isinstance(value, list):
        return [shown_value(v, fresh) for v in value]
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


def value_of(value: Any, port: Port, sources: frozenset[str] = frozenset()) -> Any:
    """A given input as a value of the graph."""
    if value is None:
        return NOTHING if port.form == "optional" else None
    if isinstance(value, list):
        return [value_of(v, Port(port.name, None, None), sources) for v in value]
    if isinstance(value, Tensor):
        return Value(value, port.kind or kind_of_dtype(value.dtype), None, sources)
    kind = port.kind or kind_of_array(value.dtype)
    if kind is None:
        raise ModelError(f"input {port.name!r} has no element type", "the model is not valid")
    if kind is STRING:
        return Value(None, kind, value, sources)
    return Value(fg.from_numpy(np.array(carried(value, kind))), kind, np.array(value), sources)
