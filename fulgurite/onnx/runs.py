"""What runs a model for one set of shapes: memory for its inputs, and a schedule that reads it.

In: inputs of the shapes it was made for. Out: `Outputs`. A run copies the inputs into memory of
the plan, which its kernels read where it is. It is made by building the model's graph (plans.py)
or from what an earlier process kept (recall.py): here is what both have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

import fulgurite as fg

from ..aot.schedule import Given, TensorSchedule
from ..core.lazy_named_tuple import NamedTuple
from ..core.op import Array
from ..runtime.device import get_device
from ..runtime.realize import storage_of, value_node
from ..tensor import Tensor
from .ports import Port

DIRECT = 1 << 14  # bytes from which reading an input where it is costs less than copying it


class Routes(NamedTuple):
    """How each input gets into a run."""

    copied: list[tuple[str, Array]]  # its name, and the memory it is copied to
    direct: list[tuple[str, int]]  # its name, and which input of the plan is read from its array
    sent: bool  # must copies be sent to a device?


class Outputs(dict[Any, Any]):
    """What a model gave, by name in the model's order; a number counts from the first."""

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, int) and -len(self) <= key < len(self):
            return list(self.values())[key]
        raise KeyError(key)


class Runs(ABC):
    """A model for one set of shapes."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.held: dict[str, Any] = {}
        self.variables: dict[str, dict[int, fg.Var]] = {}  # of each input, by axis
        self.shared: list[tuple[Array, Tensor]] = []  # what is held, and who reads it
        self.left = inf  # runs until a plan for the sizes of this one would have cost less
        self.kinds = {name: kind_and_rank(v) for name, v in given.items()}
        self.consulted: dict[str, Any] = {}  # the numbers of inputs that it is for
        self.dynamic = False  # do results decide shapes?
        self.hosts: set[str] = set()  # operators whose work is Python's
        self.schedule: TensorSchedule | None = None
        self._routes: Routes | None = None  # once runs replay

    def share(self, array: Array) -> Tensor:
        """A tensor that reads an array where it is."""
        tensor = fg.from_numpy(array)
        self.shared.append((array, tensor))
        return tensor

    @property
    def is_split(self) -> bool:
        """Is a part of the graph the same at every call, though results decide shapes?"""
        return False

    def send(self) -> None:
        """Copy what is held to devices that cannot read it where it is."""
        for array, tensor in self.shared:
            device = get_device(tensor.device)
            if not device.host_visible:
                device.copy_in(array, storage_of(tensor.node))

    def fits(self, given: Mapping[str, Any]) -> bool:
        """Is it good for the numbers of these inputs?"""
        return all(frozen(given[name]) == value for name, value in self.consulted.items())

    def bound(self, given: Mapping[str, Any]) -> Any:
        """The same for other sizes of its variables; None where there are none."""
        return None

    def first(self, given: Mapping[str, Any], ports: Sequence[Port]) -> Outputs:
        """The results for the inputs it was made from."""
        return self._results(ports)

    def run(self, given: Mapping[str, Any], ports: Sequence[Port]) -> Outputs:
        """The results for other inputs of the same shapes."""
        routes = self._routes
        if routes is None:
            for name, held in self.held.items():
                np.copyto(held, given[name])
            self.send()
            if self.schedule is not None and self.schedule.is_replayed:
                self._routes = self._routed(self.schedule)
            return self._results(ports)
        for name, held in routes.copied:
            np.copyto(held, given[name])
        if routes.sent:
            self.send()
        return self._results(ports, [(place, given[name]) for name, place in routes.direct])

    def _routed(self, schedule: TensorSchedule) -> Routes:
        """Large floats of fixed sizes are read where users have them; numbers that may be indices
        are copied, so that none changes after it was checked."""
        routes = Routes([], [], False)
        places = {id(array): tensor for array, tensor in self.shared}
        for name, held in self.held.items():
            tensor, found = places.get(id(held)), list[int]()
            if tensor is not None and held.dtype.kind == "f" and held.nbytes >= DIRECT:
                visible = get_device(tensor.device).host_visible
                node = value_node(tensor.node) if visible else None
                found = [] if node is None else schedule.places_of(node)
            if len(found) == 1:
                routes.direct.append((name, found[0]))
            else:
                routes.copied.append((name, held))
        devices = {tensor.device for _, tensor in self.shared}
        return routes._replace(sent=not all([get_device(d).host_visible for d in devices]))

    @abstractmethod
    def _results(self, ports: Sequence[Port], given: Given = ()) -> Outputs:
        """What the plan gives for the inputs that are held now, or given in their place."""


def kind_and_rank(value: Any) -> Any:
    """What inputs of one plan for many sizes have in common."""
    return (value.dtype, value.ndim) if isinstance(value, np.ndarray) else None


def frozen(value: Any) -> Any:
    """An input's numbers, to compare by."""
    if isinstance(value, list):
        return tuple(frozen(v) for v in value)
    if isinstance(value, np.ndarray):
        return tuple(value.reshape(-1)) if value.dtype == object else value.tobytes()
    return value
