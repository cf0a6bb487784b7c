"""Plans as text for the disk: the next process neither searches, nor lowers, nor compiles.

In: a compiled plan and the key of its graph, or the bytes that were kept. Out: those bytes (JSON:
slots, items, launches, layout; no code, no pickle), or a plan that is linked to native functions
of the store. A kernel's graph is kept as text and parsed on demand. Lines of the
user's program are no part of it: an item keeps the places of nodes in the key, and takes the lines
from the graph at hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..._lazy import FORK_LOCK
from ...config import Options
from ...core.digest import digest_of
from ...core.dtype import DType, dtype_of
from ...core.node import Node, Shape
from ...core.ops.leaf import SINK
from ...errors import ArgumentError
from ...graph.ir.cache_key import Normal, digest
from ...graph.ir.kernel import Item, Kernel, Schedule, Slot
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import IndexKernel, lower_kernel
from ...graph.ir.reshape_groups import CannotLower
from ...graph.memory.arena import Layout
from ..device import Device, get_device
from ..plan import CompiledKernel, Plan, link

_FORMAT = 3


def plan_key(
    normal: Normal, lifted: dict[int, DType], device: str, options: Options, build: str,
    donated: tuple[tuple[int, ...], ...] = (), body: bool = False,
) -> str | None:  # fmt: skip
    """What a plan of a `build` of this package is kept under.

    None if a host function in it has no name of its own. NumPy folds constants, so its version
    counts.
    """
    constants = tuple([-1 if i in lifted else c for i, c in enumerate(normal.constants)])
    try:
        graph = digest(normal.structure, constants)
    except ArgumentError:
        return None
    rest = (_FORMAT, build, np.__version__, get_device(device).plan_key(), device,
            options.key, options.tier, sorted(lifted), donated, body)  # fmt: skip
    return digest_of(f"{graph}\n{rest!r}")


def shown(node: Node) -> str:
    """A graph as text."""
    with FORK_LOCK:
        from ...core.text import show  # a process that only runs what is kept does without
    return show(node)


def _parse(text: str) -> Node:
    with FORK_LOCK:
        from ...core.text import parse
    return parse(text)


class StoredKernel(Kernel):
    """A kernel whose graph is parsed, and lowered, when first looked at."""

    __slots__ = ("_body", "_lowered", "_name", "_text", "in_place")
    _body: Node | None
    _lowered: IndexKernel | CannotLower | None
    _name: str
    _text: str

    in_place: frozenset[tuple[int, int]] | None  # params that may be one memory, if that is kept

    def __init__(
        self, kind: str, inputs: int, name: str, text: str,
        in_place: frozenset[tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        put = object.__setattr__
        put(self, "kind", KernelKind(kind))
        put(self, "in_place", in_place)
        for field, value in (("inputs", inputs), ("_name", name), ("_text", text), ("_body", None)):
            put(self, field, value)
        for field in ("_lowered", "plan"):
            put(self, field, None)

    @property
    def body(self) -> Node:
        """SINK of the outputs."""
        if self._body is None:
            object.__setattr__(self, "_body", _parse(self._text))
        assert self._body is not None
        return self._body

    @property
    def text(self) -> str:
        """Its graph as it was kept."""
        return self._text

    @property
    def lowered(self) -> IndexKernel | CannotLower | None:
        """Its body in index notation."""
        if self._lowered is None:
            plain = Kernel(self.kind, self.body, self.inputs)
            object.__setattr__(self, "_lowered", lower_kernel(plain).lowered)
        return self._lowered

    @property
    def name(self) -> str:
        """A readable name."""
        return self._name


# --- to text -------------------------------------------------------------------------------------


def dump(plan: Plan, normal: Normal) -> bytes:
    """The bytes that stand for a plan."""
    return json.dumps(described(plan, normal), separators=(",", ":")).encode()


def described(plan: Plan, normal: Normal) -> dict[str, Any]:
    """A plan in numbers, texts, lists and dicts."""
    places = places_of(normal)
    numbers: dict[int, int] = {}
    kernels: list[list[Any]] = []
    device = get_device(plan.device)
    for compiled in plan.kernels:
        if id(compiled) not in numbers:
            numbers[id(compiled)] = len(kernels)
            kernels.append(_kernel(compiled, device))
    schedule, layout = plan.schedule, plan.layout
    items = [
        [numbers[id(compiled)], item.reads, item.writes,
         [places[o] for o in item.origins if o in places], item.reason]
        for item, compiled in zip(schedule.items, plan.kernels, strict=True)
    ]  # fmt: skip
    sizes = [layout.arena_bytes, layout.live_bytes, layout.input_bytes, layout.output_bytes]
    return {
        "inputs": schedule.inputs, "outputs": schedule.outputs,
        "slots": [None if s is None else [s.dtype.name, _shape(s.shape), s.device, s.bits]
                  for s in schedule.slots],
        "kernels": kernels, "items": items, "offsets": list(layout.offsets.items()),
        "sizes": sizes, "aliases": schedule.aliases, "joined": schedule.joined,
    }  # fmt: skip


def places_of(normal: Normal) -> dict[Any, int]:
    """Where in a graph each of the user's lines is first."""
    return {n.origins[0]: i for i, n in reversed(list(enumerate(normal.nodes))) if n.origins}


def _kernel(compiled: CompiledKernel, device: Device) -> list[Any]:
    kernel, launch = compiled.kernel, device.dump_code(compiled.code)
    body = (
        SINK() if kernel.kind is KernelKind.USER else kernel.body
    )  # of those the code is all there is
    text = shown(body)
    return [kernel.kind, kernel.inputs, kernel.name, text, launch]


def _shape(shape: Shape) -> list[int | str]:
    return [n if isinstance(n, int) else shown(n) for n in shape]


# --- from text -----------------------------------------------------------------------------------


def load_plan(data: bytes, normal: Normal, where: str) -> Plan | None:
    """The plan of kept bytes; None if some of its code is gone."""
    return plan_of(json.loads(data), normal, where)


def plan_of(whole: Mapping[str, Any], normal: Normal, where: str) -> Plan | None:
    """The plan that was described; None if some of its code is gone."""
    device = get_device(where)
    kernels = []
    for kind, inputs, name, text, launch in whole["kernels"]:
        kernel = StoredKernel(kind, inputs, name, text)
        made = device.load_code(kernel, launch)
        if made is None:
            return None
        kernels.append(CompiledKernel(kernel, made))
    items = tuple(
        Item(kernels[number].kernel, tuple(reads), tuple(writes), origins_of(normal, lines), reason)
        for number, reads, writes, lines, reason in whole["items"]
    )
    slots = tuple(None if s is None else _slot(*s) for s in whole["slots"])
    aliases = tuple((slot, place) for slot, place in whole["aliases"])
    joined = tuple((slot, place) for slot, place in whole["joined"])
    schedule = Schedule(whole["inputs"], slots, items, tuple(whole["outputs"]), aliases, joined)
    layout = Layout(dict(map(tuple, whole["offsets"])), *whole["sizes"])
    return link(schedule, [kernels[row[0]] for row in whole["items"]], layout, device)


def _slot(dtype: str, shape: Sequence[int | str], device: str | None, bits: int | None) -> Slot:
    sizes = tuple([n if isinstance(n, int) else _parse(n) for n in shape])
    return Slot(dtype_of(dtype), sizes, device, bits)


def origins_of(normal: Normal, lines: Sequence[int]) -> tuple[Any, ...]:
    """The user's lines at places of a graph."""
    nodes = [normal.nodes[i] for i in lines if 0 <= i < len(normal.nodes)]
    return tuple(dict.fromkeys([n.origins[0] for n in nodes if n.origins]))
