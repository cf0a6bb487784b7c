"""`fg.compare(fn, "cpu", "reference")`: the first op whose values differ on two devices.

In: a function and its arguments. Out: a `Comparison`. The function is called once (of `fg.jit` the
function inside); its graph is given to both devices with the same inputs. What it reads or realizes
on the way is computed once and is such an input: the lines where that happened are named. If
results part, the op that began it is looked for by bisection: nodes of the graph, in order, are
computed alone on both devices, each as a device would compute it if it were asked for nothing else,
until one parts whose sources all agree. What parts only as a whole, when all is fused, is the
result itself: no op before it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import tree
from ..config import config
from ..core.dtype import DType
from ..core.node import Node, toposort
from ..core.op import Array
from ..core.ops.leaf import BUFFER, SINK, new_buffer
from ..core.origin import places
from ..core.rewriting.substitute import substitute
from ..errors import ArgumentError
from ..graph.ir.cache_key import normalize
from ..graph.ir.registry import REGISTRY
from ..jit.function import Jitted
from ..runtime.device import get_device, has_device
from ..runtime.realize import inputs_of, lookup, storage_of, value_node
from ..runtime.step_executor import concrete
from ..tensor import Tensor
from .profiler import Profile

_RELATIVE = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}
_NARROW = 2e-2  # of floats of 16 bits and fewer


class Comparison(NamedTuple):
    """Whether two devices agree, and if not where they begin to part."""

    devices: tuple[str, str]
    equal: bool
    error: float  # the largest difference of a result, relative to its largest number
    op: str = ""  # the first whose values part
    line: str = ""  # of the user
    shape: tuple[int, ...] = ()
    place: tuple[int, ...] = ()  # of the element that differs most
    values: tuple[Any, Any] = (0.0, 0.0)  # there, on both devices
    probes: int = 0  # nodes that were computed on both
    inside: tuple[str, ...] = ()  # lines whose values were computed in the call, on one device

    def __str__(self) -> str:
        a, b = self.devices
        told = [f"  not compared, as the call itself computed it, on {a}: {', '.join(self.inside)}"]
        told = told if self.inside else []
        if self.equal:
            head = f"{a} and {b} agree: results differ by {self.error:.2g} at most"
            return "\n".join([head, *told])
        at = f" at {list(self.place)}" if self.place else ""
        return "\n".join([
            f"{a} and {b} part at {self.op} of shape {list(self.shape)}",
            f"  at {self.line or 'no line known'}",
            f"  {self.values[0]} on {a}, {self.values[1]} on {b}{at}; all it reads agrees",
            f"  found by {self.probes} probes; results differ by {self.error:.2g}", *told,
        ])  # fmt: skip


def compare(
    function: Callable[..., Any], device_a: str, device_b: str, *arguments: Any,
    rtol: float | None = None, **keywords: Any,
) -> Comparison:  # fmt: skip
    """The first op of a function's graph whose values part on two devices."""
    for name in (device_a, device_b):
        if not has_device(name):
            raise ArgumentError(f"there is no device {name!r}", "fulgurite doctor lists them")
    if not callable(function):
        raise ArgumentError(f"{type(function).__name__} is not a function", "give a function")
    if rtol is not None and not rtol >= 0:
        raise ArgumentError(f"rtol is {rtol}", "give a number from 0 on")
    if isinstance(function, Jitted):
        function = function.__wrapped__
    with config(device=device_a), Profile() as ran:
        made = function(*arguments, **keywords)
    results = [leaf for leaf in tree.leaves(made) if isinstance(leaf, Tensor)]
    if not results:
        raise ArgumentError("the function returns no tensor", "let it return what is compared")
    found = _Bisection([t.node for t in results], (device_a, device_b), rtol).run()
    return found._replace(inside=tuple([row.name for row in ran.lines]))


class _Bisection:
    """One graph on two devices."""

    def __init__(self, roots: Sequence[Node], devices: tuple[str, str], rtol: float | None) -> None:
        self.roots, self.devices, self.rtol = list(roots), devices, rtol
        self.order = toposort(self.roots)
        self.graphs = [self._moved(device) for device in devices]
        self.known: dict[Node, tuple[float, Array, Array]] = {}

    def _moved(self, device: str) -> dict[Node, Node]:
        """Every node of the graph as it is on a device."""
        inputs: dict[Node, Node] = {}
        for node in self.order:
            value = node if node.op is BUFFER else value_node(node)
            if value is not None:
                inputs[node] = self._copied(value, device)
        computed = [node for node in self.order if node not in inputs]
        moved = substitute(SINK(*computed), inputs).src if computed else ()
        return inputs | dict(zip(computed, moved, strict=True))

    def _copied(self, buffer: Node, device: str) -> Node:
        shape: Any = buffer.shape
        here, there = get_device(buffer.device or device), get_device(device)
        array = here.to_host(storage_of(buffer), shape, buffer.dtype)
        made = new_buffer(shape, buffer.dtype, device)
        REGISTRY.attach(made, there.from_host(np.array(array)))
        return made

    def run(self) -> Comparison:
        """Compare the results, and look for what began it."""
        worst = max(self.roots, key=self.difference)
        error = self.difference(worst)
        if error <= self.tolerance(worst.dtype):
            return Comparison(self.devices, True, error)
        node = self.first(worst)
        _, a, b = self.known[node]
        gap = np.abs(np.nan_to_num(_wide(a)) - np.nan_to_num(_wide(b)))
        gap += np.isnan(_wide(a)) != np.isnan(_wide(b))
        index = tuple([int(i) for i in np.unravel_index(int(np.argmax(gap)), gap.shape)])
        return Comparison(
            self.devices, False, error, node.op.name, places(node.origins) or "", a.shape, index,
            (a[index].item(), b[index].item()), len(self.known),
        )  # fmt: skip

    def first(self, bad: Node) -> Node:
        """A node that parts, none of whose sources does: bisection over the graph in order."""
        while True:
            order = [n for n in toposort([bad]) if n.src and n not in self.leaves]
            low, high = 0, len(order) - 1
            while low < high:
                middle = (low + high) // 2
                if self.parts(order[middle]):
                    high = middle
                else:
                    low = middle + 1
            below = [s for s in order[low].src if s not in self.leaves and self.parts(s)]
            if not below:
                return order[low]
            bad = below[0]

    @property
    def leaves(self) -> set[Node]:
        """What both devices are given."""
        return {n for n in self.order if n.op is BUFFER or value_node(n) is not None}

    def parts(self, node: Node) -> bool:
        """True if a node's values differ on the two devices."""
        return self.difference(node) > self.tolerance(node.dtype)

    def tolerance(self, dtype: DType) -> float:
        """The relative difference that arithmetic in another order may make."""
        if not dtype.is_inexact:
            return 0.0
        return _RELATIVE.get(str(dtype), _NARROW) if self.rtol is None else self.rtol

    def difference(self, node: Node) -> float:
        """The largest difference of a node's values, relative to the largest number."""
        if node not in self.known:
            pairs = zip(self.graphs, self.devices, strict=True)
            a, b = [_value(graph[node], device) for graph, device in pairs]
            self.known[node] = _difference(a, b), a, b
        return self.known[node][0]


def _value(node: Node, device: str) -> Array:
    """The value of one node, computed on a device as if nothing else were asked for."""
    if node.op is BUFFER:
        shape: Any = node.shape
        return get_device(device).to_host(storage_of(node), shape, node.dtype)
    with config(device=device, tier="native"):
        normal = normalize([node])
        compiled = lookup(normal, device)
        (found,) = compiled.plan.run(inputs_of(normal, compiled), normal.values)
        return get_device(device).to_host(found, concrete(node.shape, normal.values), node.dtype)


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _difference(a: Array, b: Array) -> float:
    if not a.size:
        return 0.0
    wide_a, wide_b = _wide(a), _wide(b)
    with np.errstate(all="ignore"):
        same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
        gap = np.where(same, 0.0, np.abs(wide_a - wide_b))
        largest = np.abs(wide_b[np.isfinite(wide_b)]).max(initial=0.0)
    if np.isnan(gap).any() or np.isinf(gap).any():
        return float("inf")
    return float(gap.max() / max(largest, np.finfo(np.float64).tiny))
