"""`fg.memory_report()`: who holds what, where plans need most, and what grew between two reports.

In: the registry, living modules and optimisers, and the plans that are cached. Out: a
`MemoryReport`: every value in memory with its size, user line, module path and name; for every
compiled graph the kernel at which most is alive; the figures of each device's pool. `later -
earlier` is what came and what went: a leak is what comes at each step. Cycles that nobody reaches
are collected first: what is left is held.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.node import Node
from ..errors import DataError, is_ours
from ..graph.ir.kernel import Schedule
from ..graph.ir.registry import REGISTRY
from ..graph.memory.arena import slot_bytes
from ..runtime.device import devices_in_use
from ..runtime.holders import Holder, holder_of, number_of, place_of, readable
from ..runtime.plan import Plan
from ..runtime.realize import FAMILIES
from ..runtime.unmaterialized import Fresh
from ..tensor import Tensor
from .attribution import line_of
from .tables import columns


class PlanPeak(NamedTuple):
    """Where a compiled graph needs most memory."""

    bytes: int  # alive at once: inputs, results so far and intermediates
    line: str  # of the kernel at which that is
    kernel: str
    arena: int  # bytes that are set aside for intermediates
    runs: int


class MemoryReport:
    """Who holds what at one moment."""

    def __init__(
        self, holders: Sequence[Holder], devices: Mapping[str, Mapping[str, int]],
        peaks: Sequence[PlanPeak],
    ) -> None:  # fmt: skip
        self.holders = sorted(holders, key=lambda holder: -holder.nbytes)
        self.devices, self.peaks = devices, peaks

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return sum([holder.nbytes for holder in self.holders])

    def by_line(self) -> dict[str, int]:
        """Bytes of the values that each user line made, the most first."""
        return _summed(self.holders, lambda holder: holder.line or "no line known")

    def by_module(self) -> dict[str, int]:
        """Bytes of the values of each module: its parameters, and what its calls made."""
        return _summed(self.holders, _module)

    def peak_by_line(self) -> dict[str, int]:
        """The most bytes that are alive at once while a kernel of a line runs."""
        found: dict[str, int] = {}
        for peak in self.peaks:
            found[peak.line] = max(found.get(peak.line, 0), peak.bytes)
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def __sub__(self, earlier: MemoryReport) -> MemoryDifference:
        if not isinstance(earlier, MemoryReport):
            raise DataError(
                f"a memory report less {type(earlier).__name__}",
                "subtract an earlier fg.memory_report()",
            )
        before = {holder.key for holder in earlier.holders}
        now = {holder.key for holder in self.holders}
        return MemoryDifference(
            [h for h in self.holders if h.key not in before],
            [h for h in earlier.holders if h.key not in now],
        )

    def __repr__(self) -> str:
        held = f"{number_of(len(self.holders), 'value')}, {readable(self.bytes)}"
        return f"<memory report of {held}: print shows a table>"

    def __str__(self) -> str:
        lines = [f"{number_of(len(self.holders), 'value')}, {readable(self.bytes)}"]
        for name, stats in self.devices.items():
            if stats["used"] or stats["idle"]:
                lines.append(
                    f"{name}: {readable(stats['used'])} in use, {readable(stats['peak'])} at most, "
                    f"{readable(stats['idle'])} kept for later"
                )
        lines += ["", *_table(self.holders)]
        if self.peaks:
            rows = [("alive at once", "kernel", "line")]
            rows += [(readable(p.bytes), p.kernel, p.line) for p in self.peaks[:5]]
            lines += ["", "where compiled graphs need most:", *columns(rows, left=(1, 2))]
        return "\n".join(lines)


class MemoryDifference(NamedTuple):
    """What came and what went between two reports."""

    came: list[Holder]
    went: list[Holder]

    @property
    def bytes(self) -> int:
        """Bytes that came, less those that went."""
        return sum([h.nbytes for h in self.came]) - sum([h.nbytes for h in self.went])

    def by_line(self) -> dict[str, int]:
        """Bytes that came, by the user line that made them."""
        return _summed(self.came, lambda holder: holder.line or "no line known")

    def by_module(self) -> dict[str, int]:
        """Bytes that came, by the module that they are of, or whose calls made them."""
        return _summed(self.came, _module)

    def __str__(self) -> str:
        came = readable(sum([h.nbytes for h in self.came]))
        head = (
            f"{number_of(len(self.came), 'value')} came ({came}), "
            f"{len(self.went)} went ({readable(sum([h.nbytes for h in self.went]))})"
        )
        return "\n".join([head, *(_table(self.came) if self.came else [])])


def memory_report() -> MemoryReport:
    """Who holds memory now."""
    gc.collect()
    devices = {device.name: device.memory_stats() for device in devices_in_use()}
    return MemoryReport(named_holders(), devices, _peaks())


def named_holders() -> list[Holder]:
    """Every value in memory, with what it is called."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    names = _names()
    entries: dict[int, list[Tensor]] = {}
    holders: list[Holder] = []
    for tensor in tensors:
        entry: Any = getattr(tensor, "entry", None)
        if type(entry) is Fresh:
            holders.append(_fresh(entry, names.get(id(tensor), "")))
        elif entry is not None:
            entries.setdefault(_buffer_id(entry), []).append(tensor)
    for node, storage in REGISTRY.holdings():
        named = [names[id(t)] for t in entries.get(node.id, ()) if id(t) in names]
        holder = holder_of(node, storage.nbytes)
        holders.append(holder._replace(name=named[0] if named else "", line=_near(holder.line)))
    return holders


def _fresh(entry: Any, name: str) -> Holder:
    """A result that nobody has looked at: memory without a node."""
    memory, about = entry.value
    shape, dtype, device = about
    line, module = place_of(about.origins)
    return Holder(
        memory.nbytes, shape, str(dtype), device, _near(line), module, name, key=-entry.id
    )


def _buffer_id(entry: Any) -> int:
    """The id of the BUFFER that an entry's value is in, as far as that is known."""
    node: Node = entry.node
    if entry.value is not None:
        return int(entry.value.id)
    while node.op.name in ("watch", "unwatch", "detach"):
        node = node.src[0]
    return node.id


def _near(line: str) -> str:
    """A line with its file as seen from here, if it is below."""
    file, colon, number = line.rpartition(":")
    if not os.path.isabs(file):
        return line
    near = os.path.relpath(file)
    return line if near.startswith("..") else f"{near}{colon}{number}"


def _module(holder: Holder) -> str:
    """The module of a value: of a parameter the one it is of, else the one that made it."""
    return (
        holder.name.rpartition(" of ")[2].rpartition(".")[0]
        or holder.module
        or "(outside of modules)"
    )


def _summed(holders: Sequence[Holder], key: Callable[[Holder], str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for holder in holders:
        found[key(holder)] = found.get(key(holder), 0) + holder.nbytes
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _table(holders: Sequence[Holder], most: int = 15) -> list[str]:
    rows = [("bytes", "value", "name", "line", "module")]
    for h in holders[:most]:
        shape = f"{h.dtype}{list(h.shape)}"
        rows.append((readable(h.nbytes), shape, h.name or "-", h.line or "-", h.module or "-"))
    lines = columns(rows, left=(1, 2, 3, 4))
    if len(holders) > most:
        rest = sum([h.nbytes for h in holders[most:]])
        lines.append(f"{len(holders) - most} more, {readable(rest)}")
    return lines


# --- names ---------------------------------------------------------------------------------------


def _names() -> dict[int, str]:
    """What tensors are called: parameters of modules, states of optimisers, variables in sight."""
    found: dict[int, str] = {}
    if "fulgurite.nn" in sys.modules:
        _name_parameters(found)
    if "fulgurite.optim" in sys.modules:
        _name_states(found)
    for name, value in _variables():
        if issubclass(type(value), Tensor):
            found.setdefault(id(value), name)
    return found


def _name_parameters(found: dict[int, str]) -> None:
    """Parameters and buffers by the outermost module that they are of."""
    from ..nn import Module

    modules = [one for one in gc.get_objects() if issubclass(type(one), Module)]
    inner = {id(part) for one in modules for part in one.modules() if part is not one}
    for one in [module for module in modules if id(module) not in inner]:
        for name, tensor in (*one.named_parameters(), *one.named_buffers()):
            found.setdefault(id(tensor), f"{type(one).__name__}.{name}")


def _name_states(found: dict[int, str]) -> None:
    """What optimisers keep for each parameter."""
    from ..optim import Optimizer

    for one in [other for other in gc.get_objects() if issubclass(type(other), Optimizer)]:
        for i, state in one.state.items():
            of = found.get(id(one.params[i]), f"parameter {i}")
            for name, tensor in state.items():
                found.setdefault(id(tensor), f"{type(one).__name__}: {name} of {of}")


def _variables() -> Iterator[tuple[str, Any]]:
    """The variables of the functions that are running, innermost first, and of their files."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not is_ours(frame.f_code.co_filename):
            yield from _locals(frame)
            yield from list(frame.f_globals.items())
        frame = frame.f_back


def _locals(frame: Any) -> list[tuple[str, Any]]:
    """The variables of a frame, without leaving a copy of them there that keeps values alive."""
    found = frame.f_locals
    listed = list(found.items())
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(found) is dict:
        found.clear()  # a copy, which Python 3.11 and 3.12 keep beside the frame
    return listed


# --- where plans need most -----------------------------------------------------------------------


def alive_bytes(schedule: Schedule) -> list[int]:
    """Bytes that are alive while each kernel runs: inputs, results so far, intermediates."""
    outputs = set(schedule.outputs)
    first: dict[int, int] = dict.fromkeys(range(schedule.inputs), 0)
    last = dict.fromkeys(first, len(schedule.items) - 1)
    for number, item in enumerate(schedule.items):
        for slot in item.writes:
            first.setdefault(slot, number)
            last[slot] = len(schedule.items) - 1 if slot in outputs else number
        for slot in item.reads:
            if slot in first:
                last[slot] = max(last[slot], number)
    over = dict(schedule.aliases)
    change = [0] * (len(schedule.items) + 1)
    for slot, begin in first.items():
        known = schedule.slots[slot]
        if known is not None and slot not in over:
            change[begin] += slot_bytes(known)
            change[last[slot] + 1] -= slot_bytes(known)
    alive, now = [], 0
    for delta in change[:-1]:
        now += delta
        alive.append(now)
    return alive


def _peaks() -> list[PlanPeak]:
    """Where each compiled graph that is known needs most, the largest first."""
    plans: list[Plan] = []
    families = FAMILIES()
    for key in families.keys():  # noqa: SIM118 - it is not a dict
        family = families.peek(key)
        plans += [member.plan for member in family.members] if family is not None else []
    found = []
    for plan in plans:
        alive = alive_bytes(plan.schedule)
        if alive:
            at = max(range(len(alive)), key=alive.__getitem__)
            item = plan.schedule.items[at]
            line = line_of(item.origins[0]) if item.origins else "no line known"
            peak = alive[at] + plan.layout.workspace_bytes
            found.append(PlanPeak(peak, line, item.kernel.name, plan.layout.arena_bytes, plan.runs))
    return sorted(found, key=lambda peak: -peak.bytes)
