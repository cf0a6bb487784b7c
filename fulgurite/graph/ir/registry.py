"""The tensor registry: every live lazy tensor, rewritten together when a value becomes known.

In: `becomes({node: buffer, ...})` after a plan has run. Out: every live tensor whose graph holds
one of these nodes reads the buffer from now on. One SINK of the affected roots, one substitution,
one memo; the affected ones are found upward from the keys, so a thousand unrelated tensors cost
nothing. Write-back is compare-and-swap: an entry that changed meanwhile is substituted again,
never overwritten. Tensors hold their entries, the registry holds them weakly; memory belongs to
its BUFFER node and goes with it.
A tensor that a gradient scope watches keeps its expression (the gradient needs it); its node then
remembers the buffer instead, and `normalize` reads that. A leaf needs only its name, not what it
was computed from: it is rebuilt over its buffer.
Memory that is written over is taken from its BUFFER first, so that no other thread can begin to
read it, and given to the next version after; who needs it meanwhile waits.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Protocol

from ...core.extension import compiled, give
from ...core.node import Node, WeakList, above, live_nodes
from ...core.ops.collective import is_memory
from ...core.ops.effect import ASSIGN, TAPE, WATCH
from ...core.ops.leaf import BUFFER, SINK
from ...core.rewriting.substitute import substitute
from ...errors import FulguriteError


class Storage(Protocol):
    """What the registry must know of device memory."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


@compiled
class EntryFields:
    """What an entry is made of."""

    __slots__ = ("__weakref__", "id", "key", "node", "value")
    id: int
    key: int
    node: Node
    value: Node | None  # of a watched tensor: keeps the realized buffer alive


class Entry(EntryFields):
    """The slot of one live tensor: what it is computed by, and the buffer once it is.

    The key says which memory it has: while it is the same, the memory is. No other entry ever has
    it, as a node may be given other memory.
    """

    __slots__ = ()

    def __init__(self, ident: int, node: Node) -> None:
        self.id = ident
        self.node = node
        self.key = -ident
        self.value = None


IDS = itertools.count(1)  # of entries and of their keys
_hanging = threading.RLock()  # re-entrant: the collector may run here


@compiled
def enter(node: Node) -> Entry:
    """A new entry whose root is this node."""
    entry = Entry(next(IDS), node)
    admit(entry, node)
    return entry


@compiled
def admit(entry: Entry, node: Node) -> None:
    """Note at a node that an entry has it as its root."""
    slot = weakref.ref(entry)
    with _hanging:
        if node.tensors is None:
            node.tensors = WeakList([slot])
        else:
            node.tensors.add(slot)


@compiled
def entries_of(nodes: Iterable[Node]) -> list[Entry]:
    """The live entries whose roots some nodes are."""
    found: list[Entry] = []
    for node in nodes:
        slots = list(node.tensors) if node.tensors else ()
        found += [e for slot in slots if (e := slot()) is not None and e.node is node]
    return found


def entries_at(node: Node) -> list[Entry]:
    """The live entries whose root a node is."""
    return entries_of((node,))


give(Entry=Entry, ids=IDS)


class IdentityError(FulguriteError, RuntimeError):
    """Memory was given twice to one buffer: a fault of ours, never repaired silently."""


class LostError(FulguriteError, RuntimeError):
    """A value that was being written over when its computation was interrupted."""


class MovedError(FulguriteError, RuntimeError):
    """Memory that became that of a later version: look at the graph again."""


class Reader(Protocol):
    """A replay in progress."""

    left: list[Node]  # what entries were bound to while it is: held for its sake


class Registry:
    """All live tensors and buffers of the process."""

    def __init__(self) -> None:
        self.ids = IDS
        self._lock = threading.RLock()  # re-entrant: the collector may drop an entry while held
        self._returned = threading.Condition(self._lock)
        self._taken: dict[int, int] = {}  # id of a buffer whose memory is out -> thread
        self._gone: weakref.WeakKeyDictionary[Node, bool | str] = weakref.WeakKeyDictionary()
        self._later: weakref.WeakKeyDictionary[Node, Node] = weakref.WeakKeyDictionary()
        self.rewriting = threading.RLock()  # one thread at a time writes over memory or writes back
        self.writing = 0  # the thread that is writing over memory, which no other may read
        self.reading: set[Reader] = set()  # replays in progress that know addresses, not buffers
        self.rewritten = 0  # entries that `becomes` has written, for tests and statistics
        self.visited = 0  # nodes that `becomes` has looked at

    def after_fork(self) -> None:
        """In a child process no other thread lives: a lock it held is open again."""
        self._lock = threading.RLock()
        self._returned = threading.Condition(self._lock)
        self.rewriting = threading.RLock()
        self._taken.clear()
        self.writing = 0
        self.reading.clear()

    # --- entries -----------------------------------------------------------------------------

    enter, admit = staticmethod(enter), staticmethod(admit)

    def entries(self) -> list[Entry]:
        """Those of all live tensors, but of results that nobody has looked at."""
        return [entry for node in live_nodes() for entry in entries_at(node)]

    def entry_count(self) -> int:
        """How many tensors are alive."""
        return len(self.entries())

    def rebind(self, entry: Entry, old: Node, new: Node) -> bool:
        """Compare and swap: write `new` if the entry still holds `old`."""
        with self._lock:
            if entry.node is not old:
                return False
            entry.node = new
            entry.key = -next(self.ids)
            for reader in list(self.reading):  # it may know the address of this node's memory
                reader.left.append(old)
            admit(entry, new)
            return True

    def knows(self, entry: Entry, old: Node, buffer: Node) -> None:
        """Give one entry its value; leaves stay leaves, what gradients need stays an expression."""
        if _is_leaf(old):
            old.realized = weakref.ref(buffer)
            self.rebind(entry, old, WATCH(buffer, arg=old.arg))
        elif old.watched:
            self._note_value(entry, old, buffer)
        else:
            self.rebind(entry, old, buffer)

    def rebind_all(self, changes: Iterable[tuple[Entry, Node, Node]]) -> bool:
        """Compare and swap for several entries (each with its old and new node): all, or none."""
        with self._lock:
            listed = list(changes)
            if any([entry.node is not old and entry.node is not new for entry, old, new in listed]):
                return False  # `new` of a call that was interrupted
            for entry, old, new in listed:
                self.rebind(entry, old, new)
            return True

    # --- memory ------------------------------------------------------------------------------

    def attach(self, buffer: Node, storage: Storage) -> None:
        """Give a BUFFER node its memory, once."""
        assert buffer.op is BUFFER, f"{buffer!r} is not a buffer"
        with self._lock:
            if buffer.memory is not None:
                raise IdentityError(f"{buffer!r} has memory already", "please report this")
            buffer.memory = storage

    def storage(self, buffer: Node) -> Storage | None:
        """The memory of a BUFFER node, if it has any."""
        if self.writing:
            self.wait()
        found: Storage | None = buffer.memory
        return found

    def wait(self) -> None:
        """Wait until no other thread is writing over memory."""
        if self.writing != threading.get_ident():
            with self.rewriting:
                pass

    def memory(self, buffer: Node) -> Storage | None:
        """The memory of a BUFFER node; if a thread has taken it, wait what becomes of it."""
        if self.writing:
            self.wait()
        found: Storage | None = buffer.memory
        if found is not None:
            return found
        with self._returned:
            while (owner := self._taken.get(id(buffer))) is not None:
                assert owner != threading.get_ident(), f"{buffer!r} is being written over"
                self._returned.wait()
            found = buffer.memory
        if found is None and buffer in self._gone:
            if self._gone[buffer] == "given away":
                raise LostError(
                    "this tensor was given away to a jitted function, which wrote over its memory",
                    "use what the function returned, or do not donate it",
                )
            if self._gone[buffer]:
                raise LostError(
                    "this value was being written over when that was interrupted", "compute it anew"
                )
            raise MovedError(f"{buffer!r} has a later version")
        return found

    def replace(self, entry: Entry, buffer: Node, storage: Storage) -> None:
        """Give a BUFFER node other memory: only for one that this single entry knows."""
        buffer.memory = storage
        entry.key = -next(self.ids)

    def release(self, buffer: Node) -> None:
        """Let go of a buffer's memory, if it has any."""
        buffer.memory = None

    def take(self, buffer: Node) -> Storage | None:
        """Take a buffer's memory, to write over it or to give it back."""
        with self._lock:
            found: Storage | None = buffer.memory
            if found is not None:
                buffer.memory = None
                self._taken[id(buffer)] = threading.get_ident()
            return found

    def give_back(self, buffer: Node, storage: Storage) -> None:
        """The memory that was taken is this buffer's again."""
        with self._returned:
            buffer.memory = storage
            del self._taken[id(buffer)]
            self._returned.notify_all()

    def moved(self, buffer: Node, lost: bool = False) -> None:
        """The memory that was taken is another's now, or holds nothing of worth any more."""
        with self._returned:
            self._gone[buffer] = lost
            del self._taken[id(buffer)]
            self._returned.notify_all()

    def lose(self, buffer: Node, how: bool | str = True) -> None:
        """A buffer has no memory any more: its writing was interrupted, or it was given away."""
        with self._lock:
            buffer.memory = None
            self._gone[buffer] = how

    def give_away(self, entry: Entry, buffer: Node) -> None:
        """The memory of a tensor is another's now."""
        self.lose(buffer, "given away")
        entry.key = -next(self.ids)

    def becomes_later(self, root: Node, buffer: Node) -> None:
        """What is built on a root, now or by then, reads this buffer, as long as the root lives."""
        self._later[root] = buffer
        root.realized = weakref.ref(buffer)

    def buffer_count(self) -> int:
        """How many buffers have memory."""
        return len(self.holdings())

    def holdings(self) -> list[tuple[Node, Storage]]:
        """Every buffer that has memory, with that memory."""
        with self._lock:
            buffers = [node for node in live_nodes() if node.op is BUFFER]
            return [(b, b.memory) for b in buffers if b.memory is not None]

    # --- the becomes-map ---------------------------------------------------------------------

    def becomes(self, replace: Mapping[Node, Node], walk: bool = False) -> int:
        """Rewrite every live tensor in which a key occurs; how many were rewritten."""
        for old, new in replace.items():
            if old.device is not None and new.device is not None and old.device != new.device:
                raise IdentityError(
                    f"{old!r} on {old.device} cannot become a buffer on {new.device}",
                    "copy it to the other device instead",
                )
        with self.rewriting:
            return self._rewrite(replace, walk)

    def _rewrite(self, replace: Mapping[Node, Node], walk: bool) -> int:
        written: dict[Entry, Node] = {}
        while True:
            begin, bound = next(self.ids), 0
            found = [e for e in self._affected(replace) if written.get(e) is not e.node]
            if not found:
                break
            before = {entry: entry.node for entry in found}
            becomes = _rewritten(before.values(), replace, walk)
            for entry, old in before.items():
                new = self._write_back(entry, old, becomes[old])
                if new is not None:
                    written[entry] = new
                    bound += new is not old
            if before.keys() <= written.keys() and next(self.ids) == begin + bound + 1:
                break  # nobody else took a number: no tensor was made or bound meanwhile
        self.rewritten += len(written)
        return len(written)

    def _write_back(self, entry: Entry, old: Node, new: Node) -> Node | None:
        """Give an entry what its node became; what it holds then, None if it holds another."""
        if new.op is ASSIGN and is_memory(new.src[1]):
            new = new.src[1]  # there is nothing left to put anywhere
        if _is_leaf(old) and is_memory(new):
            old.realized = weakref.ref(new)  # for what was built on the leaf before
            new = WATCH(new, arg=old.arg)
        elif old.watched and not (_is_leaf(new) and is_memory(new.src[0])):
            self._note_value(entry, old, new)
            return old
        return new if self.rebind(entry, old, new) else None

    def _note_value(self, entry: Entry, old: Node, new: Node) -> None:
        if is_memory(new):
            entry.value = new
            old.realized = weakref.ref(new)

    def readers(self, nodes: Iterable[Node]) -> list[Entry]:
        """The live tensors that are computed from these nodes, or are one of them."""
        with self._lock:
            return self._affected(nodes)

    def above(self, keys: Iterable[Node]) -> list[Entry]:
        """The living tensors whose graphs hold one of these nodes."""
        with self.rewriting:
            return self._affected(keys)

    def _affected(self, keys: Iterable[Node]) -> list[Entry]:
        """The entries above the keys, found through the parents of live nodes."""
        nodes = above(keys)
        self.visited += len(nodes)
        return sorted(dict.fromkeys(entries_of(nodes)), key=lambda entry: entry.id)


def _is_leaf(node: Node) -> bool:
    """True if it is a leaf of the tape, which `backward` finds by its name."""
    return node.op is WATCH and node.arg[0] == TAPE and not node.src[0].watched


def _rewritten(nodes: Iterable[Node], replace: Mapping[Node, Node], walk: bool) -> dict[Node, Node]:
    """What each root becomes: one SINK, one substitution, one memo."""
    if all([node in replace for node in nodes]) and walk:
        return {node: replace[node] for node in nodes}
    roots = list(dict.fromkeys(nodes))
    return dict(zip(roots, substitute(SINK(*roots), replace, walk).src, strict=True))


def has_tensor(node: Node) -> bool:
    """True if a node is the root of a live tensor."""
    return bool(entries_of((node,)))


REGISTRY = Registry()


def _after_fork() -> None:
    global _hanging
    _hanging = threading.RLock()
    REGISTRY.after_fork()


os.register_at_fork(after_in_child=_after_fork)
