"""Amortised growth: a concatenation at the end of memory with room, as a list appends.

In: roots that are to be computed. Out: those that join a value in memory with something behind it,
known. What is there stays where it is, and only what is new is computed and copied; memory without
room is copied once into twice as much (amortised doubling). Bytes that a value has are never
written again: its end must be the end of what is in use, so of two values that grow from one the
second is copied, and whoever holds the old value keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any

from ...core.dtype import DType
from ...core.node import Node, toposort
from ...core.ops.elementwise import WHERE
from ...core.ops.leaf import BUFFER, new_buffer
from ...core.ops.movement import PAD
from ...graph.ir.registry import REGISTRY
from ...graph.memory.append import Joined, joined
from ...graph.memory.in_place import Append
from ..device import Buffer, Device, Growing, get_device
from ..views import COPIED_VIEW_BYTES

_WHOLE = {int}


def append_of(root: Node, known: Callable[[Node], Node | None]) -> Joined | None:
    """The memory that a root begins with and what it goes on with, if it is such a value."""
    if root.op is not WHERE or root.watched or not {*map(type, root.shape)} <= _WHOLE:
        return None
    found = joined(root)
    memory = known(found.first) if found is not None else None
    if found is None or memory is None or memory.op is not BUFFER or memory.device != root.device:
        return None
    return Joined(memory, found.second, found.axis)


def grow(
    roots: Collection[Node], known: Callable[[Node], Node | None], computed: Callable[[Node], Node]
) -> dict[Node, Node]:
    """The roots that could grow where they are, and the buffers that hold them now."""
    found: dict[Node, Node] = {}
    for root in roots:
        append = append_of(root, known) if _may_be_flat(root) and not _is_small(root) else None
        if append is None or prod(root.shape[: append.axis]) != 1:
            continue
        if prod(append.first.shape) * root.dtype.itemsize < COPIED_VIEW_BYTES:
            continue
        if known(append.second) is None and not _is_apart(append.second, root, roots):
            continue  # others would compute what it is made of again
        buffer = _grown(root, append, computed)
        if buffer is not None:
            found[root] = buffer
    return found


def _is_small(root: Node) -> bool:
    """True if what a root begins with is copied in any case: all of it is no more than that."""
    if not {*map(type, root.shape)} <= _WHOLE:
        return False
    shape: Any = root.shape
    return bool(prod(shape) * root.dtype.itemsize < COPIED_VIEW_BYTES)


def _may_be_flat(root: Node) -> bool:
    """False of a root whose axes before the first one that is padded have several elements."""
    if root.op is not WHERE or root.src[1].op is not PAD:
        return False
    pads, shape = root.src[1].arg, root.shape
    if shape and type(shape[0]) is int and shape[0] != 1:  # then only along the first axis
        return bool(pads[0] or pads[1] or not any(pads))
    place = next((i // 2 for i, n in enumerate(pads) if n), 0)
    return prod(shape[:place]) == 1


def _grown(root: Node, append: Joined, computed: Callable[[Node], Node]) -> Node | None:
    device, memory = get_device(root.device or ""), REGISTRY.memory(append.first)
    part = computed(append.second)
    shape: Any = root.shape
    behind: Any = REGISTRY.memory(part)
    if memory is None or behind is None:
        return None
    made: Buffer | None = device.extended(memory, behind, shape, root.dtype)  # type: ignore[arg-type]
    if made is None:
        return None
    buffer = new_buffer(shape, root.dtype, root.device or "")
    buffer.origins = root.origins
    REGISTRY.attach(buffer, made)
    return buffer


# --- inside a plan -------------------------------------------------------------------------------


def appends_of(
    roots: Sequence[Node], buffers: Sequence[Node], known: Callable[[Node], Node | None]
) -> tuple[Append, ...]:
    """The roots that go on behind an input of their plan, one for each input."""
    found: dict[Node, Append] = {}
    for place, root in enumerate(roots):
        append = append_of(root, known)
        if append is not None and append.first not in found:
            found[append.first] = Append(0, place, append.axis)
    if not found:
        return ()
    number = {buffer: i for i, buffer in enumerate(buffers) if buffer in found}
    return tuple([a._replace(param=number[b]) for b, a in found.items() if b in number])


def program_of(plan: Any, appends: Sequence[Append]) -> Any:
    """The one launch of a plan, if it writes all of these behind its inputs; else None."""
    program = plan.executor.replay(True) if plan.aliases else None
    if program is None:
        return None
    taken = dict(plan.aliases)
    behind = [taken.get(program.returned[a.root]) == a.param for a in appends]
    return program if all(behind) and len(taken) == len(appends) else None


def growing(
    roots: Sequence[Node], memories: Mapping[Append, Any], device: Device
) -> tuple[Append, ...]:
    """Those whose memory has room, or may get some."""
    shapes: Any = [root.shape for root in roots]
    return tuple([
        append for append, memory in memories.items()
        if device.may_grow(memory, append.axis, shapes[append.root])
    ])  # fmt: skip


class Appending:
    """Inputs of a plan that grow where they are, for one run of it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._made: list[tuple[Append, Growing, Any]] = []
        self._held: list[Any] = []  # memory that must be there while it runs

    def grow(
        self, append: Append, memory: Any, shape: tuple[int, ...], dtype: DType
    ) -> Growing | None:
        """Memory for the result; None if this input does not grow."""
        made = self._device.grown(memory, append.axis, shape, dtype)
        if made is not None:
            self._made.append((append, made, memory))
        return made

    def grow_all(
        self, appends: Sequence[Append], inputs: Sequence[Any], roots: Sequence[Node]
    ) -> bool:
        """Memory for these results: all of them, or none."""
        for append in appends:
            root: Any = roots[append.root]
            if self.grow(append, inputs[append.param], root.shape, root.dtype) is None:
                self.give_up()
                return False
        return True

    def addresses(self, inputs: Sequence[Any]) -> list[int]:
        """Where inputs are; what is strided, and does not grow, is copied for this run."""
        taken = {append.param for append, _, _ in self._made}
        held: list[Any] = [b if b._address or i in taken else self._device.contiguous(b)
                for i, b in enumerate(inputs)]  # fmt: skip
        self._held = held
        return [b._address or b.address for b in held]

    def give_up(self) -> None:
        """Nothing was written: who comes next may have the room."""
        for _, made, memory in self._made:
            made.give_up(memory)
        self._made.clear()

    def run(
        self, program: Any, addresses: list[int], values: Sequence[int], places: Sequence[int]
    ) -> list[Any]:
        """One pass; the memory of every output."""
        for append, made, _ in self._made:
            addresses[append.param] = made.start
        try:
            results: list[Any] = program.launch_growing(addresses, values, places)
        except BaseException:
            self.give_up()
            raise
        for append, made, _ in self._made:
            assert results[append.root] is None, "it was written behind an input"
            results[append.root] = made
        return results


def _is_apart(part: Node, root: Node, roots: Iterable[Node]) -> bool:
    """True if no other root is made of what a part is made of, but through the grown value."""
    others = [r for r in roots if r is not root]
    if not others:
        return True
    inside = {n for n in toposort([part]) if n.src}
    seen = {root}
    stack = list(others)
    while stack:
        node = stack.pop()
        if node in inside:
            return False
        if node not in seen:
            seen.add(node)
            stack.extend(node.src)
    return True
