"""The hash-consed node: equal computations are one object.

In: an op, a dtype, sources, an argument and a tag. Out: the one live `Node` with these fields, in
any thread. So `is` decides structural equality, a dict keyed by node is a memo table, and a
subgraph used twice is computed once. The invariant: a node never changes, and the table holds it
weakly, so a node that nobody uses goes away by itself, without the collector.
Sources are keyed by identity (they are interned, so that is structure) and constants by bits; ids
grow and are never used again. What depends on a node alone (shape, bounds, slice) is computed
on first use, without recursion, and kept.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ..errors import VariableError
from .dtype import DType, Number, decode, encode
from .extension import compiled, give
from .operators import OPS, Operators
from .origin import MAX_ORIGINS, Origin

if TYPE_CHECKING:
    from .op import Op

Size: TypeAlias = "int | Node"  # a symbolic size is a whole-number node of no dimensions
Shape: TypeAlias = tuple[Size, ...]
Bounds: TypeAlias = tuple[int, int]
T = TypeVar("T")
Key: TypeAlias = "tuple[Op, DType, tuple[Node, ...], Hashable, Hashable]"


class Source:
    """In an argument, stands for "the size that is source number `index`"."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"${self.index}"


SOURCES = tuple(Source(i) for i in range(256))  # singletons, compared by identity
Dims: TypeAlias = tuple[int | Source, ...]


@compiled
class NodeFields:
    """What a node is made of, and what is known of it."""

    __slots__ = (
        "__weakref__", "_bounds", "_device", "_likely_bounds", "_shape", "_slice", "_watched",
        "arg", "dtype", "id", "memory", "meta", "op", "origins", "parents", "realized", "src",
        "tag", "tensors",
    )  # fmt: skip

    op: Op
    dtype: DType
    src: tuple[Node, ...]
    arg: Any
    tag: Hashable
    id: int
    origins: tuple[Origin, ...]  # the user's lines that made it; beside the node, not in it
    meta: object  # typed metadata of an un-interned copy, else None
    # weak: the interned nodes that have this one as a source; most have one, kept without a list
    parents: _Entry | WeakList | None
    tensors: WeakList | None  # weak: the registry's entries whose root this node is
    memory: Any  # of a BUFFER, if it has any: the registry's
    realized: weakref.ref[Node] | None  # the buffer that holds its value already, if any
    _shape: Shape  # this and the next are computed on first use: see the properties
    _device: str | None
    _bounds: Bounds | None
    _likely_bounds: Bounds | None
    _watched: frozenset[int]
    _slice: tuple[Node, ...]

    def __init__(
        self, op: Op, dtype: DType, src: tuple[Node, ...], arg: Hashable, tag: Hashable
    ) -> None:
        self.op, self.dtype, self.src, self.arg, self.tag = op, dtype, src, arg, tag
        self.id = next(_ids)
        self.origins = ()
        self.meta = None
        self.parents = self.tensors = self.realized = self.memory = None

    # Properties, not `__getattr__`: a class that has it pays for it at every attribute, 30 times.

    @property
    def shape(self) -> Shape:
        """The sizes of its dimensions."""
        try:
            return self._shape
        except AttributeError:
            return _find_shape(self)

    @property
    def device(self) -> str | None:
        """Where it is; None: anywhere (made of constants only)."""
        try:
            return self._device
        except AttributeError:
            return _find_device(self)

    @property
    def watched(self) -> frozenset[int]:
        """The gradient scopes whose leaves it depends on."""
        try:
            return self._watched
        except AttributeError:
            return _find_watched(self)


class Node(NodeFields, Operators):
    """One op applied to source nodes. Never mutated; made only by `make` and `annotate`."""

    __slots__ = ()
    __array_ufunc__ = None  # arrays do not take a node for an object of theirs

    @property
    def bounds(self) -> Bounds | None:
        """Sound: no run can leave them; None for inexact dtypes."""
        try:
            return self._bounds
        except AttributeError:
            return _find_bounds(self)

    @property
    def likely_bounds(self) -> Bounds | None:
        """Optimistic: if no arithmetic wraps around."""
        try:
            return self._likely_bounds
        except AttributeError:
            return _find_likely_bounds(self)

    def __repr__(self) -> str:
        sources = ", ".join(f"%{s.id}" for s in self.src)
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"<%{self.id} = {self.op.name}({sources}){arg} : {self.dtype}>"

    def __reduce__(self) -> Any:
        raise TypeError("a node is not pickled: print it with core.text and parse the text")

    def _apply(self, op: Op, operands: tuple[Any, ...]) -> Node:
        """Operators on nodes are for rules, gradients and sizes: equal shapes and dtypes are given.

        What is neither a node nor a number, such as a tensor, says itself what it does with a node.
        """
        for x in operands:
            if not isinstance(x, _OPERANDS) and not hasattr(x, "as_constant"):
                return NotImplemented  # type: ignore[no-any-return]
        return op(*[x if isinstance(x, Node) else constant_like(x, self) for x in operands])

    def __bool__(self) -> bool:
        """True, as for any object; a comparison of variables would seem to have an answer."""
        if self.dtype.kind == "b" and any([n.op.name in ("var", "bind") for n in toposort([self])]):
            raise VariableError(
                "the truth of a comparison of variables is not known while a graph is built",
                "compare the numbers that you bind, or use fg.where",
            )
        return True

    @property
    def value(self) -> Number:
        """The Python number of a constant."""
        assert self.op.name == "const", f"{self!r} is not a constant"
        return decode(self.arg[0], self.dtype)

    @property
    def slice(self) -> tuple[Node, ...]:
        """Every node this one is computed from, sources first, itself left out; kept."""
        if not hasattr(self, "_slice"):
            self._slice = tuple(toposort(self.src))
        return self._slice

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)


give(Node=Node)
_OPERANDS = (Node, int, float, complex, np.generic)


# --- interning -----------------------------------------------------------------------------------


class _Entry(weakref.ref[Node]):
    """A weak reference that knows its key, so that one shared callback can remove it."""

    __slots__ = ("key",)
    key: Key | None  # None once the node is gone: a dead key must keep nothing alive


class WeakList(list["weakref.ref[Any]"]):
    """Weak references, of which the dead ones go when as many again were added: amortised."""

    __slots__ = ("limit",)

    def __init__(self, references: Iterable[weakref.ref[Any]]) -> None:
        super().__init__(references)
        self.limit = 64

    def add(self, reference: weakref.ref[Any]) -> None:
        """One more."""
        self.append(reference)
        if len(self) > self.limit:
            self[:] = [r for r in self if r() is not None]
            self.limit = max(64, 2 * len(self))


_ids = itertools.count(1)
_live: dict[Key, _Entry] = {}
_lock = threading.RLock()  # re-entrant: the collector may run _forget while we hold it


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


@compiled
def make(
    op: Op, dtype: DType, src: tuple[Node, ...] = (), arg: Hashable = None, tag: Hashable = None, /
) -> Node:
    """Return the one live node with these fields, creating it if there is none."""
    key = (op, dtype, src, arg, tag)
    entry = _live.get(key)
    if entry is not None:
        found = entry()
        if found is not None:
            return found
    with _lock:
        entry = _live.get(key)  # another thread may have made it meanwhile
        if entry is not None and (found := entry()) is not None:
            return found
        created = Node(op, dtype, src, arg, tag)
        entry = _Entry(created, _forget)
        entry.key = key
        _live[key] = entry
        for source in src:
            parents = source.parents
            if parents is None:
                source.parents = entry
            elif type(parents) is WeakList:
                parents.add(entry)
            else:
                alive = parents() is not None  # type: ignore[operator]
                source.parents = WeakList([parents, entry]) if alive else entry  # type: ignore[list-item]
        return created


def _forget(entry: Any) -> None:
    # no global but the table's: at interpreter exit others may be gone before the last node
    lock: Any = _lock
    live: Any = _live
    if lock is None or live is None:  # and even these
        return
    with lock:
        key, entry.key = entry.key, None
        if key is not None and live.get(key) is entry:  # unless an equal node was made since
            del live[key]


@compiled
def annotate(node: Node, meta: object) -> Node:
    """An un-interned copy that carries typed metadata; equal only to itself."""
    copy = Node(node.op, node.dtype, node.src, node.arg, node.tag)
    copy.origins = node.origins
    copy.meta = meta
    return copy


def remember(node: Node, origins: Iterable[Origin]) -> Node:
    """Note beside a node which user lines made it, on a hit as well as on a miss."""
    have = node.origins
    for origin in origins:
        if origin not in have and len(have) < MAX_ORIGINS:
            have = (*have, origin)
    node.origins = have
    return node


_NUMBERS = frozenset({bool, int, float, complex})


def constant(number: Number, dtype: DType, shape: Shape = ()) -> Node:
    """A number on its dtype's grid, as a tensor of this shape."""
    if type(number) not in _NUMBERS and hasattr(number, "as_constant"):
        made = number.as_constant(dtype, shape)
        if isinstance(made, Node):  # a number that is known at run time only
            return made
        number = made
    return constant_bits(encode(number, dtype), dtype, shape)


def constant_bits(bits: int, dtype: DType, shape: Shape = ()) -> Node:
    """The constant with exactly these bits."""
    dims, sizes = dims_of(shape, 0)
    return make(OPS["const"], dtype, sizes, (bits, dims))


def constant_like(number: Number, node: Node) -> Node:
    """A number in the dtype and shape of a node."""
    return constant(number, node.dtype, node.shape)


@compiled
def parents_of(node: Node) -> list[Node]:
    """The live interned nodes that have this one as a source."""
    parents = node.parents
    if parents is None:
        return []
    # copying a list is one step, whatever other threads append to it
    entries = tuple(parents) if isinstance(parents, list) else (parents,)
    return [parent for entry in entries if (parent := entry()) is not None]


@compiled
def above(nodes: Iterable[Node]) -> list[Node]:
    """These nodes and every live interned node that is computed from one of them."""
    seen = set(nodes)
    order = list(seen)
    for node in order:  # which grows meanwhile
        parents = node.parents
        if type(parents) is _Entry:  # most have one; for the rest see `parents_of`
            parent = parents()
            if parent is not None and parent not in seen:
                seen.add(parent)
                order.append(parent)
        elif parents is not None:
            for parent in parents_of(node):
                if parent not in seen:
                    seen.add(parent)
                    order.append(parent)
    return order


# --- symbolic sizes: sources of the node, named in its argument ----------------------------------


def dims_of(shape: Shape, offset: int) -> tuple[Dims, tuple[Node, ...]]:
    """A shape as an argument: symbolic sizes become sources number `offset` and up."""
    for size in shape:
        if type(size) is not int:
            break
    else:
        return shape, ()  # type: ignore[return-value]
    sizes: dict[Node, Source] = {}
    dims: list[int | Source] = []
    for size in shape:
        if isinstance(size, Node):
            dims.append(sizes.setdefault(size, SOURCES[offset + len(sizes)]))
        else:
            dims.append(size)
    return tuple(dims), tuple(sizes)


def shape_of(dims: Dims, src: tuple[Node, ...]) -> Shape:
    """The shape that an argument names, with its symbolic sizes read from the sources."""
    if not src or all([type(d) is int for d in dims]):
        return dims  # type: ignore[return-value]
    return tuple([src[d.index] if isinstance(d, Source) else d for d in dims])


# --- walking -------------------------------------------------------------------------------------


@compiled
def toposort(roots: Iterable[Node]) -> list[Node]:
    """Every node under the roots, sources first, each once, in depth-first order."""
    order: list[Node] = []
    seen: set[Node] = set()
    path: list[Node] = []
    stack = [iter(roots)]  # iterators are three times faster than (node, flag) pairs
    while stack:
        for node in stack[-1]:
            if node not in seen:
                seen.add(node)
                if node.src:
                    path.append(node)
                    stack.append(iter(node.src))
                    break
                order.append(node)
        else:
            stack.pop()
            if path:
                order.append(path.pop())
    return order


def backward_slice(roots: Iterable[Node], ends: Callable[[Node], bool]) -> set[Node]:
    """The roots and all that they are computed from, but nothing below nodes that end the walk."""
    found: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if not ends(node):
                stack.extend(node.src)
    return found


def forward_slice(order: Iterable[Node], roots: Iterable[Node]) -> set[Node]:
    """Some nodes and all of an order, sources first, that is computed from one of them."""
    found = set(roots)
    for node in order:
        if any([s in found for s in node.src]):
            found.add(node)
    return found


def readers_of(order: Iterable[Node]) -> dict[Node, list[Node]]:
    """The nodes of an order that read each node, each once."""
    found: dict[Node, list[Node]] = {}
    for node in order:
        for source in dict.fromkeys(node.src):
            found.setdefault(source, []).append(node)
    return found


def _worked_out(node: Node, slot: str, compute: Callable[[Node], T]) -> T:
    """Fill a slot of a node, and first that of the sources that lack it, without recursion."""
    for source in node.src:
        if not hasattr(source, slot):
            break
    else:  # nearly always: graphs are built sources first
        found = compute(node)
        setattr(node, slot, found)
        return found
    stack = [node]
    while stack:
        missing = [s for s in stack[-1].src if not hasattr(s, slot)]
        if missing:
            stack.extend(missing)
            continue
        current = stack.pop()
        found = compute(current)
        setattr(current, slot, found)
    return found


def _shape(node: Node) -> Shape:
    return node.op.shape(node)


def _find_device(node: Any) -> str | None:
    """As `_worked_out`, but behind the first source that is somewhere none is looked at."""
    stack = [node]
    while stack:
        current = stack[-1]
        for source in current.src:
            if not hasattr(source, "_device"):
                stack.append(source)
                break
            if source._device is not None:
                current._device = current.op.device(current)
                stack.pop()
                break
        else:
            current._device = current.op.device(current)
            stack.pop()
    found: str | None = node._device
    return found


def _bounds(node: Node) -> Bounds | None:
    """Interval arithmetic in whole numbers; what may leave the dtype wraps to anywhere."""
    if not node.dtype.is_integer:
        return None
    low, high = node.dtype.limits
    found = node.op.interval(node, [s.bounds for s in node.src])
    if found is None or found[0] < low or found[1] > high:
        return low, high
    return found


def _likely_bounds(node: Node) -> Bounds | None:
    """The same, trusting that nothing wraps: what leaves the dtype is cut at its limits."""
    if not node.dtype.is_integer:
        return None
    low, high = node.dtype.limits
    found = node.op.interval(node, [s.likely_bounds for s in node.src])
    if found is None:
        return low, high
    return max(low, min(found[0], high)), min(high, max(found[1], low))


def _watched(node: Node) -> frozenset[int]:
    return node.op.watched(node)


def _find_shape(node: Any) -> Shape:
    return _worked_out(node, "_shape", _shape)


def _find_bounds(node: Any) -> Bounds | None:
    return _worked_out(node, "_bounds", _bounds)


def _find_likely_bounds(node: Any) -> Bounds | None:
    return _worked_out(node, "_likely_bounds", _likely_bounds)


def _find_watched(node: Any) -> frozenset[int]:
    return _worked_out(node, "_watched", _watched)


give(find_shape=_find_shape, find_device=_find_device, find_watched=_find_watched)


# --- diagnostics ---------------------------------------------------------------------------------


def gc_dead_refs() -> int:
    """Drop table entries whose node is gone (normally none are left); how many there were."""
    with _lock:
        dead = [key for key, entry in _live.items() if entry() is None]
        for key in dead:
            del _live[key]
    return len(dead)


@compiled
def live_nodes() -> list[Node]:
    """Every interned node that is alive now."""
    with _lock:
        entries = list(_live.values())
    return [node for entry in entries if (node := entry()) is not None]


def live_ids() -> frozenset[int]:
    """The ids of every interned node that is alive now."""
    return frozenset(node.id for node in live_nodes())


@compiled
def live_count() -> int:
    """How many nodes the table holds."""
    return len(_live)
