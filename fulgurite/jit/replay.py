"""A captured call, run again: memory bound to one plan, one native call, results wrapped.

In: the tensors, arrays and numbers that the checks of a capture found in this call. Out: fresh
tensors for the results; tensors that the function assigned have their new value. The plan is the
capture's own; what differs from call to call is addresses and a few numbers. Where nobody else can
see the old value of an assigned tensor, the plan that writes over it runs, and not even a node is
made; else one that copies. Nothing is changed before the plan has succeeded, and if another thread
assigned one of the tensors meanwhile, the call is run again.
"""

from __future__ import annotations

import struct
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import FORK_LOCK
from ..autodiff.grad import tape_leaf
from ..config import Options, config
from ..core.dtype import DType, array_of_bits, encode
from ..core.extension import compiled
from ..core.lazy_dataclass import dataclass
from ..core.node import Node, Shape
from ..core.ops.collective import COMMUNICATES, UNSHARD
from ..core.ops.effect import WATCH
from ..core.ops.leaf import BUFFER, new_buffer
from ..core.rewriting.substitute import substitute
from ..core.shape import show
from ..core.symbolic.polynomial import evaluator
from ..core.symbolic.sym import varies
from ..errors import BoundsError, ConstantError
from ..graph.ir.cache_key import Normal, hosts_in
from ..graph.ir.registry import REGISTRY, Entry
from ..graph.memory.in_place import Append
from ..random.generator import GENERATOR
from ..runtime.derived import DERIVED
from ..runtime.device import Buffer, Held, NumberBlock, get_device
from ..runtime.device import Replay as Launcher
from ..runtime.realize import (
    Compiled,
    adopt,
    check_finite,
    inputs_of,
    joined,
    lookup,
    memory_node,
    name_the_line,
    realize_together,
    value_node,
)
from ..runtime.step_executor import concrete
from ..runtime.unmaterialized import About, Fresh
from ..tensor import Tensor, wrap
from .dynamic_shapes import Varying, padded, sizes_of, unbound
from .exclusive import are_sole, counts_are_exact, counts_of_leaves, is_sole
from .sizes import CallSizes
from .variables import without_values

if TYPE_CHECKING:
    from ..runtime.sizes.automatic import SizedGraph

_FORMATS = {"float32": "f", "float64": "d", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
            "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"}  # fmt: skip


def _counting(blocks: Any, sizes: CallSizes | None) -> Callable[..., tuple[int, ...]] | None:
    """How many blocks of random numbers a call takes, where that follows from its sizes."""
    return (
        evaluator([blocks.key], sizes.variables) if sizes is not None and varies(blocks) else None
    )


MOST_SIZES = 64  # of a capture whose launches are remembered
ONE = "two tensors are one"
new_tensor: Callable[[type[Tensor]], Tensor] = Tensor.__new__
FREE_COPIES = 2  # of what others hold too, before a plan that copies is compiled
MOST_PATIENCE = 16  # calls after which memory that changed before is believed to stay


class GuardFailure(Exception):
    """A capture does not hold for the tensors of this call; the text says why."""


@dataclass(frozen=True)
class Place:
    """What a plan's input is: a tensor, an array, a number of the call, or something that stays."""

    kind: str  # tensor, array, number, key, counter or constant
    number: int = 0
    memory: Any = None


@dataclass(frozen=True)
class Expected:
    """What a tensor must be for a capture to hold for it."""

    type: type
    shape: tuple[int, ...]
    dtype: DType
    device: str
    leaf: bool  # does it require a gradient?
    path: str
    varying: Varying | None = None
    free: frozenset[int] = frozenset()  # axes whose sizes vary, and are looked at together
    split: Any = None  # mesh, layout and whether that is weak, if it is kept in shards

    def memory(self, tensor: Any) -> Any:
        """The memory of a tensor, None if it is pending; raises `GuardFailure` if it is another."""
        entry, kind = tensor.entry, type(tensor)
        if type(entry) is Fresh and kind is self.type:
            value: Any = entry.value
            plain = not self.leaf and self.split is None
            if type(value) is tuple and plain and self.is_like(*value[1]):
                return value[0]  # without making a node for it
        node = entry.node
        base = value_node(node)
        if base is None and not all([type(n) is int for n in node.shape]):
            return None  # its sizes are known with its value
        problem = self.mismatch(tensor)
        if problem:
            raise GuardFailure(problem)
        return None if base is None else _memory(node)

    def fits(self, shape: Shape) -> bool:
        """True if a shape is another only in sizes that vary."""
        if self.varying is not None:
            return self.varying.fits(shape)
        return len(shape) == len(self.shape) and all(
            [n == m or d in self.free
             for d, (n, m) in enumerate(zip(shape, self.shape, strict=True))]
        )  # fmt: skip

    @property
    def about(self) -> Any:
        """What a result like it is, as `Fresh` says it."""
        return self.shape, self.dtype, self.device

    def is_like(self, shape: Shape, dtype: DType, device: str) -> bool:
        """True of a result that may take its place, as `Fresh` says what it is."""
        same = dtype is self.dtype and device == self.device
        return same and (shape == self.shape or self.fits(shape))

    def mismatch(self, tensor: Any) -> str:
        """How a tensor differs from what is expected; empty if it does not."""
        kind: Any = type(tensor)
        if kind is not self.type:
            return f"{self.path} is {type(tensor).__name__}, not {self.type.__name__}"
        node = tensor.entry.node
        base = value_node(node)
        shape = node.shape if base is None else base.shape
        if shape != self.shape and not self.fits(shape):
            return f"{self.path} has shape {show(shape)}, not {show(self.shape)}"
        if base is not None and (base.arg if base.op is UNSHARD else None) != self.split:
            return f"{self.path} is split over ranks in another way"
        if node.dtype is not self.dtype:
            return f"{self.path} is {node.dtype}, not {self.dtype}"
        if (node.device or self.device) != self.device:
            return f"{self.path} is on {node.device}, not {self.device}"
        if bool(node.watched) is not self.leaf or (self.leaf and node.op is not WATCH):
            return f"{self.path} {'does not require' if self.leaf else 'requires'} a gradient"
        return ""


@dataclass(eq=False)
class Bound:
    """Addresses of one set of nodes; used by one call at a time."""

    addresses: list[int]
    block: NumberBlock  # where the numbers of a call are put
    keys: list[Any] = field(default_factory=list)  # of the entries of tensors
    read: list[Any] = field(default_factory=list)  # those of `Replay.keyed`
    over: list[Any] = field(default_factory=list)  # those of `Replay.over`
    memories: list[Any] = field(default_factory=list)  # weak, of tensors that are assigned
    shapes: list[Shape] = field(default_factory=list)  # of tensors, where sizes vary
    strided: bool = False  # is there memory whose elements do not follow each other?
    frame: Any = None  # of the plan that writes over its inputs
    left: list[Node] = field(default_factory=list)  # see `Registry.reading`
    sizes: tuple[int, ...] = ()  # of this call, where they vary
    held: Held | None = None  # the memory of tensors that stayed the same for some calls
    moving: set[int] = field(default_factory=set)  # tensors that did not
    launch: Any = None  # the launch of a plan that takes tensors and gives results, and no more
    mark: int = -1  # of what is derived from memory, when that was looked at last
    calls: int = 0  # until something was held
    patience: int = 2  # calls after which memory is believed to stay


class Replay:
    """One capture's plans, and how to feed them."""

    def __init__(
        self, expected: list[Expected], places: list[Place], normal: Normal, roots: list[Node],
        device: str, variables: list[str], assigned: list[tuple[int, int]], results: int,
        blocks: int | None, numbers: list[DType], options: Options, given: list[int],
        sizes: CallSizes | None = None,
    ) -> None:  # fmt: skip
        self.sizes = sizes
        # do all ranks run it together, and exchange values?
        self.is_spmd = any([type(e) is tuple and e[0] in COMMUNICATES for e in normal.structure])
        self._sized: SizedGraph | None = None
        self._sized_over: SizedGraph | None = None  # the same, written over what it may be
        self._sized_behind: SizedGraph | None = None  # the same, written behind tensors with room
        self.appends: tuple[Append, ...] = ()  # results that go on behind tensors of the call
        self.recalled: list[Any] = []  # both, of a capture that came from the disk
        self._launches: dict[Any, tuple[Launcher | None, list[int], list[Any]]] = {}
        self.expected, self.places, self.normal = expected, places, normal
        self.roots: Sequence[Any] = roots  # or all that is known of them, once they are let go
        self.device, self.assigned, self.results = device, assigned, results
        self.blocks, self.numbers, self.options = blocks, numbers, options
        self._count = _counting(blocks, sizes)
        self.variables = variables  # those whose values each call gives, in this order
        self.varies = any([e.varying is not None for e in expected])
        # do sizes of results differ from call to call?
        self.sized = any([type(n) is not int for root in roots for n in root.shape])
        self.at, self.arrays_at = self._of_kind("tensor"), self._of_kind("array")
        self.key_at = [place for place, _ in self._of_kind("key")]
        self.written = [i for i, _ in assigned]
        params = self.params = {number: place for place, number in self.at}
        self.gifts = self._gifts(given)  # results that may take a given tensor's memory
        self.pairs = self._pairs()
        self.over = [*self.written, *self.gifts.values()]
        self._picked = picker(self.over)
        self._read_over([i for i in self.over if i in params])  # the others get fresh memory
        self.abouts: list[Any] = [
            About.of(concrete(root.shape, normal.values), root, device) for root in roots
        ]
        self._growing: set[int] = set()  # the inputs of `appends`
        self._whole = [*params.values()]  # and the others that are tensors
        self.renewed = self._renewed()
        self.keyed = [i for i in range(len(expected)) if i not in self.renewed]
        self.format = self._quick_format()
        self._plans: dict[bool, tuple[Compiled, list[Buffer]]] = {}
        self._programs: dict[bool, Launcher | None] = {}
        self._value_places: dict[bool, list[int]] = {}  # of each, where values of variables go
        self._constant_addresses: dict[bool, list[int]] = {}
        self._lock = threading.RLock()
        self.idle: list[Bound] = []  # taken and given by single steps of a list: no lock
        # of a plan that takes tensors and gives results, and no more: what else it takes
        self.bare: tuple[list[int], list[int]] | None = None
        self.slow = False  # is no plan of it one native call?
        self.copies = 0  # calls that made copies of memory that others hold
        self.fed = bool(numbers or blocks is not None or self.arrays_at)
        # the tensors that may be indices: a launch whose checks nobody has asked about keeps them
        self.index_at = self._index_places()

    def _read_over(self, places: list[int]) -> None:
        """Note the tensors whose memory a pass may write over: nobody else may hold them then."""
        self.read_over, self._picked_read = places, picker(places)
        self.alone = counts_of_leaves([self.expected[i].leaf for i in places])

    def _index_places(self) -> list[int]:
        return [i for i, like in enumerate(self.expected) if like.dtype.kind in "iu"]

    def _of_kind(self, kind: str) -> list[tuple[int, int]]:
        """The inputs of a kind: place and number."""
        return [(at, place.number) for at, place in enumerate(self.places) if place.kind == kind]

    def _renewed(self) -> dict[int, About]:
        """Tensors that the plan neither reads nor writes, such as gradients of the step before.

        They are other tensors in every call; those that a replay made are known by what they are
        (`Fresh`), mostly the very object given here, as results come in the order of tensors.
        """
        made: list[About] = self.abouts[: self.results]
        found: dict[int, About] = {}
        met: Counter[Any] = Counter()
        for i, like in enumerate(self.expected):
            alike = [about for about in made if about == like.about]
            plain = not like.leaf and like.split is None and like.type is Tensor
            fixed = self.sizes is None and like.varying is None and not like.free
            used = i in self.params or i in self.over or not like.path.endswith(".grad")  # by `is`
            if alike and plain and fixed and not used:
                found[i] = alike[met[like.about] % len(alike)]
                met[like.about] += 1
        return found

    def _pairs(self) -> tuple[tuple[int, int], ...]:
        """The inputs whose memory results may take: of assigned and of given tensors."""
        exact = counts_are_exact() and not self.options.check_nan
        if self.is_spmd or hosts_in(self.normal.structure) or not exact:
            return ()
        fixed = [(i, out) for i, out in self.assigned if i in self.params
                 and self.expected[i].varying is None and self._is_alike(i, out)]  # fmt: skip
        gifts = [(i, out) for out, i in self.gifts.items()]
        return tuple([(self.params[i], out) for i, out in (*fixed, *gifts)])

    def _is_alike(self, i: int, out: int) -> bool:
        """True if a tensor has the shape and dtype of a result."""
        like, root = self.expected[i], self.roots[out]
        if self.sizes is None:
            return like.shape == root.shape and like.dtype is root.dtype
        with FORK_LOCK:
            from ..runtime.sizes.specialize import size_key
        shapes = self.sizes.shapes[i], root.shape  # compared for all sizes, not for the captured
        keys, wanted = [[size_key(n) for n in shape] for shape in shapes]
        return keys == wanted and like.dtype is root.dtype

    def append(self, appends: tuple[Append, ...]) -> None:
        """Let results of sizes that vary go on behind tensors, where these have room."""
        if self.sizes is not None and not self.pairs and not self.is_spmd and not self.is_watched:
            self.appends = appends
            self._growing = {append.param for append in appends}
            self._whole = [at for at in self.params.values() if at not in self._growing]

    def _quick_format(self) -> str:
        """How `struct` writes the numbers and the counter, eight bytes each; empty: it cannot."""
        codes = [_FORMATS.get(dtype.name, "") for dtype in self.numbers]
        if "" in codes:
            return ""
        return "<" + "".join([f"{code}{8 - struct.calcsize(code)}x" for code in codes]) + "Q"

    def _gifts(self, given: list[int]) -> dict[int, int]:
        """For results the given tensors whose memory they may take, of the same shape and dtype."""
        found: dict[int, int] = {}
        if self.is_spmd:
            return found
        left = [i for i in given if i in self.params and i not in self.written
                and self.expected[i].varying is None and not self.expected[i].leaf]  # fmt: skip
        for out in range(self.results):
            alike = [i for i in left if self._is_alike(i, out)]
            if alike:
                found[out] = alike[0]
                left.remove(alike[0])
        return found

    # --- plans -----------------------------------------------------------------------------------

    def plan(self, over: bool = False) -> tuple[Compiled, list[Buffer]]:
        """A plan and the constants it takes: the one that copies, or writes over what it may."""
        found = self._plans.get(over)
        if found is None:
            with self._lock, config(tier="native"):
                found = self._plans.get(over)
                if found is None:
                    compiled = lookup(self.normal, self.device, self.pairs if over else ())
                    found = compiled, inputs_of(self.normal, compiled, buffers=False)
                    self._plans[over] = found
                    aliases = compiled.plan.schedule.aliases
                    if over and not aliases:
                        self._plans[False] = found  # it writes over nothing
                    if over and self.sizes is None:
                        taken = {place for _, place in aliases}
                        self._read_over([i for i in self.read_over if self.params[i] in taken])
        return found

    def program(self, over: bool) -> Launcher | None:
        """The plan as one launch from addresses to results, if it is one."""
        if over not in self._programs:
            found = self.plan(over)[0].plan.executor.replay(over)
            if self.varies or self.is_spmd or self.is_watched:
                found = None
            self._value_places[over] = found.places_of(self.variables) if found else []
            self._programs[over] = found
        return self._programs[over]

    @property
    def graphs(self) -> list[SizedGraph]:
        """The graphs of sizes that vary: the one that copies, and the one that writes over."""
        return [g for g in (self._sized, self._sized_over) if g is not None]

    def cover(self, sizes: Sequence[tuple[int, ...]]) -> None:
        """Compile what calls of other sizes need; a `GuardFailure` of what is not on disk."""
        held = self.sizes
        if held is not None and sizes and len(held.variables) == len(sizes[0]):
            for graph in self.graphs:
                graph.cover([values for values in sizes if held.accepts(*values)], self.options)

    @property
    def is_spent(self) -> bool:
        """True of a capture from the disk that was asked for what is not there."""
        return any([graph.is_spent for graph in self.recalled])

    @cached_property
    def is_all_in_place(self) -> bool:
        """True if tensors that are assigned keep their memory in the plan that writes over it.

        Only then a check may fail later: nothing has changed but memory, and that has not.
        """
        schedule = self.plan(True)[0].plan.schedule
        taken = {slot for slot, _ in schedule.aliases}
        return all([schedule.outputs[out] in taken for _, out in self.assigned])

    def settle(self) -> None:
        """Compile what the next call needs."""
        if self.sizes is not None:
            sizes = self.sizes
            self.slow = True
            if self.recalled:
                self._sized, *over = self.recalled
                self._sized_over = over[0] if over else None
                return
            with FORK_LOCK:  # plans of one size may all be on the disk
                from ..runtime.sizes.automatic import SizedGraph
                from ..runtime.sizes.sized_store import Line, without_nodes
            self.normal = without_nodes(self.normal)
            self.roots = [Line(r.origins, r.op, r.shape, r.dtype) for r in self.roots]
            about = self.normal, sizes.variables, self.device, self.roots, sizes.largest
            self._sized = SizedGraph(*about)
            self._sized_over = SizedGraph(*about, self.pairs) if self.pairs else None
            return
        if self.pairs and self.program(True) is None:
            self.pairs = ()
        if self.pairs:
            return
        program = self.program(False)
        self.slow = program is None
        fed = {p.kind for p in self.places} - {"tensor", "constant"}
        if program is not None and not (self.assigned or fed or self.blocks is not None):
            self.bare = self._constants(False), self._value_places[False]

    # --- a call ----------------------------------------------------------------------------------

    def hold(self, bound: Bound, tensors: Sequence[Tensor]) -> None:
        """Do once what depends on memory alone that stayed the same for some calls.

        Each time that it changes after all, more calls are waited for.
        """
        mark = DERIVED.mark
        if bound.held is not None:
            if not bound.held.is_stale:
                bound.mark = mark
                return
            self._let_go(bound)
        program = self.program(False) if self._sized is None else None
        bound.calls += 1
        if bound.calls >= bound.patience:
            bound.held = get_device(self.device).hold(self._staying(bound, tensors))
            program = None if program is None else bound.held.of(program)
            bound.mark = DERIVED.mark
        bound.launch = None if program is None else program.launch

    def _staying(self, bound: Bound, tensors: Sequence[Tensor]) -> dict[int, Any]:
        """The memory of places that did not change from call to call, and that no call assigns."""
        found = {n: p.memory for n, p in enumerate(self.places) if p.kind == "constant"}
        for place, i in self.at:
            if i not in bound.moving and i not in self.over:
                node = value_node(tensors[i].entry.node)
                found[place] = None if node is None else REGISTRY.storage(memory_node(node))
        return {  # another thread may have assigned a tensor meanwhile
            place: memory for place, memory in found.items()
            if memory is not None and memory.address == bound.addresses[place]
        }  # fmt: skip

    def _let_go(self, bound: Bound) -> None:
        """Memory of a call is not what it was."""
        if bound.held is not None:
            bound.patience = min(2 * bound.patience, MOST_PATIENCE)
        bound.held, bound.launch, bound.mark, bound.calls = None, None, -1, 0
        bound.moving.clear()

    def _launcher(self, bound: Bound, tensors: Sequence[Tensor], program: Launcher) -> Launcher:
        """Who runs in the place of a plan."""
        if bound.mark != DERIVED.mark:
            self.hold(bound, tensors)
        found: Launcher = program if bound.held is None else bound.held.of(program)
        return found

    def bound(self) -> Bound:
        """Room for the addresses of one call at a time."""
        block = get_device(self.device).number_block(8 * (len(self.numbers) + 1))
        start = block.address
        addresses = [0] * len(self.places)
        for place, p in enumerate(self.places):
            if p.kind in ("number", "counter"):
                addresses[place] = start + 8 * p.number
            elif p.kind == "constant":
                addresses[place] = p.memory.address
        return Bound(addresses, block)

    def bind(self, bound: Bound, tensors: Sequence[Tensor]) -> None:
        """Find the memory of every tensor. Raises `GuardFailure` if one is not what is expected.

        Those that are pending are computed in one plan: they may share most of their graphs.
        """
        while pending := self._bind(bound, tensors):
            realize_together(pending)
        if len({*bound.keys}) != len(tensors):  # no two tensors have one key
            bound.keys, bound.read = [], []
            raise GuardFailure(ONE)
        if self.sizes is not None:
            values = self.sizes.values(bound.shapes)
            if values is None:
                bound.keys, bound.read = [], []
                raise GuardFailure(f"sizes are not {', '.join(self.sizes.guards)}")
            bound.sizes = values

    def _bind(self, bound: Bound, tensors: Sequence[Tensor]) -> list[Entry]:
        """Find the memory of every tensor, or what is to be computed first."""
        if not bound.keys:  # it is not known what changed
            self._let_go(bound)
        known = bound.keys or [None] * len(tensors)
        bound.keys, bound.read, bound.frame = [], [], None
        keys: list[Any] = []
        pending: list[Entry] = []
        if not bound.memories:
            bound.memories = [None] * len(tensors)
        if not bound.shapes:
            bound.shapes, known = [()] * len(tensors), [None] * len(tensors)
        for i, (tensor, expected) in enumerate(zip(tensors, self.expected, strict=True)):
            entry = tensor.entry
            if entry.key == known[i]:
                keys.append(known[i])
                continue
            if known[i] is not None and i not in bound.moving:
                if bound.held is not None:  # among others
                    self._let_go(bound)
                bound.moving.add(i)
            while True:
                key = entry.key
                memory = expected.memory(tensor)
                if entry.key == key:  # else another thread assigned it meanwhile
                    break
            if memory is None:
                pending.append(entry)
                keys.append(None)
                continue
            keys.append(key)
            if self.sizes is not None:
                bound.shapes[i] = _shape(entry)
            place = self.params.get(i)
            if place is not None:
                bound.addresses[place] = memory.address
                if i in self.over or place in self._growing:
                    bound.memories[i] = weakref.ref(memory)
        bound.strided = 0 in [bound.addresses[place] for place in self._whole]
        self._note(bound, keys)
        return pending

    def _note(self, bound: Bound, keys: list[Any]) -> None:
        """Remember the keys of tensors whose addresses are bound."""
        bound.keys = keys
        bound.read, bound.over = [keys[i] for i in self.keyed], [keys[i] for i in self.over]

    def run(
        self, bound: Bound, tensors: Sequence[Tensor], arrays: Sequence[Any],
        numbers: Sequence[Any], values: Sequence[int],
    ) -> list[Tensor] | None:  # fmt: skip
        """The results of a call; None: another thread assigned a tensor meanwhile."""
        state = self._reserved(bound) if self.blocks is not None else None
        if bound.strided or self.slow:
            return self._in_steps(bound, tensors, arrays, numbers, values, state)
        kept = self._filled(bound, arrays, numbers, state) if self.fed else None
        late: list[BaseException] = []
        try:
            memories: Sequence[Buffer | None] | None = None
            if self.pairs:
                again = (tensors, values, arrays, numbers, state)
                over = self._programs[True]
                assert over is not None
                memories = self._over(
                    bound, again, late, over, self._constants(True), self._value_places[True]
                )
                if memories is None and self._parted(tensors):
                    return None
            if memories is None:
                program = self.program(False)
                if program is None:
                    return self._slowly(bound, tensors, arrays, numbers, values, state)
                addresses = bound.addresses + self._constants(False)
                if not self.pairs:
                    program = self._launcher(bound, tensors, program)
                memories = program.launch(addresses, values, self._value_places[False])
        except BoundsError:
            self.name_the_line(tensors, values, arrays, numbers, state)
            raise
        del kept
        results = self._finished(bound, tensors, memories, self.abouts)
        if late and results is not None:  # interrupted, but everything is as it should be
            raise late[0]
        return results

    def _in_steps(
        self, bound: Bound, tensors: Sequence[Tensor], arrays: Sequence[Any],
        numbers: Sequence[Any], values: Sequence[int], state: Any,
    ) -> list[Tensor] | None:  # fmt: skip
        """The results of a call whose plan is that of its sizes, or no single launch."""
        if self._sized is not None and not bound.strided and not self.is_watched:
            return self._launched(self._sized, bound, tensors, arrays, numbers, values, state)
        return self._slowly(bound, tensors, arrays, numbers, values, state)

    def _reserved(self, bound: Bound) -> Any:
        """The key and the first of the blocks of random numbers that a call takes."""
        blocks = self.blocks if self._count is None else self._count(*bound.sizes)[0]
        assert blocks is not None
        return GENERATOR.reserve(blocks, self.device)

    @property
    def is_watched(self) -> bool:
        """True if memory is looked at before or after a run."""
        return self.options.poison or self.options.check_nan

    def _launched(
        self, sized: SizedGraph, bound: Bound, tensors: Sequence[Tensor], arrays: Sequence[Any],
        numbers: Sequence[Any], values: Sequence[int], state: Any,
    ) -> list[Tensor] | None:  # fmt: skip
        """The plan for the sizes of a call, in one launch if it is one."""
        kept = self._filled(bound, arrays, numbers, state) if self.fed else None
        late: list[BaseException] = []
        memories: Sequence[Buffer | None] | None = None
        try:
            if self.appends:
                memories, abouts = self._behind(bound, tensors, values)
                if memories is None and 0 in [bound.addresses[at] for at in self._growing]:
                    return self._slowly(bound, tensors, arrays, numbers, values, state)
            if self._sized_over is not None:
                program, places, abouts = self._at(self._sized_over, bound.sizes)
                if program is not None:
                    again = (tensors, values, arrays, numbers, state)
                    memories = self._over(bound, again, late, program, [], places)
            if memories is None:
                program, places, abouts = self._at(sized, bound.sizes)
                if program is None:
                    return self._slowly(bound, tensors, arrays, numbers, values, state)
                program = self._launcher(bound, tensors, program)
                memories = program.launch(list(bound.addresses), values, places)
                self._mark(memories, abouts)
        except BoundsError:
            inputs, known = self._inputs(tensors, arrays, numbers, values, state)
            roots, normal = sized.numbered(bound.sizes)
            name_the_line(roots, normal._replace(values=known), inputs)
            raise
        del kept
        results = self._finished(bound, tensors, memories, abouts)
        if late and results is not None:  # interrupted, but everything is as it should be
            raise late[0]
        return results

    def _behind(
        self, bound: Bound, tensors: Sequence[Tensor], values: Sequence[int]
    ) -> tuple[list[Buffer | None] | None, list[Any]]:
        """Run the plan that writes behind tensors with room, if they all have it or may get it."""
        device = get_device(self.device)
        at = [self.places[append.param].number for append in self.appends]
        held: list[Any] = [bound.memories[i]() for i in at]
        for append, i, memory in zip(self.appends, at, held, strict=True):
            if memory is None or not device.may_grow(memory, append.axis, bound.shapes[i]):  # type: ignore[arg-type]
                return None, []
        with FORK_LOCK:
            from ..runtime.sizes.automatic import SizedGraph
            from ..runtime.sizes.growth import Appending
        if self._sized_behind is None and self._sized is not None and self.sizes is not None:
            self._sized_behind = SizedGraph(
                self.normal, self.sizes.variables, self.device, self.roots, self.sizes.largest,
                self.appends,
            )  # fmt: skip
        assert self._sized_behind is not None, "a capture of many sizes"
        program, places, abouts = self._at(self._sized_behind, bound.sizes)
        if program is None:
            self.append(())  # it is not one launch, or reads what it would write behind
            return None, []
        work = Appending(device)
        for append, memory in zip(self.appends, held, strict=True):
            shape, dtype, _ = abouts[append.root]
            if work.grow(append, memory, shape, dtype) is None:
                work.give_up()
                return None, []
        program = self._launcher(bound, tensors, program)
        return work.run(program, list(bound.addresses), values, places), abouts

    def _mark(self, memories: Sequence[Any], abouts: Sequence[Any]) -> None:
        """Note which results were concatenated: the next call may write behind them."""
        for append in self.appends:
            shape = abouts[append.root][0]
            get_device(self.device).mark_joined(memories[append.root], append.axis, shape)

    def _at(
        self, sized: SizedGraph, values: tuple[int, ...]
    ) -> tuple[Launcher | None, list[int], list[Any]]:
        """The launch of a plan for some sizes, where it takes values, and what results are."""
        over: Any = sized.donated
        found = self._launches.get((over, values))
        if found is None:
            plan, shapes = sized.at(values, self.options)
            if sized is self._sized_behind:
                with FORK_LOCK:
                    from ..runtime.sizes.growth import program_of
                program = program_of(plan, self.appends)
            else:
                program = plan.executor.replay(sized is self._sized_over)
            places = program.places_of(self.variables) if program is not None else []
            known: dict[Any, About] = {}  # many results are alike
            abouts: list[Any] = []
            for shape, root in zip(shapes, self.roots, strict=True):
                like = shape, root.dtype, id(root.origins)
                if like not in known:
                    known[like] = About.of(shape, root, self.device)
                abouts.append(known[like])
            found = self._launches[over, values] = program, places, abouts
            while len(self._launches) > MOST_SIZES:
                self._launches.pop(next(iter(self._launches)), None)
        return found

    def _constants(self, over: bool) -> list[int]:
        """The addresses of constants that a plan takes at run time."""
        found = self._constant_addresses.get(over)
        if found is None:
            found = [b.address for b in self.plan(over)[1]]
            self._constant_addresses[over] = found
        return found

    def _filled(
        self, bound: Bound, arrays: Sequence[Any], numbers: Sequence[Any], state: Any
    ) -> list[Any]:
        """Put the numbers, arrays and random state of a call in; what must live until it ran."""
        kept: list[Any] = []
        if numbers or state is not None:
            counter = 0 if state is None else state[1]
            block = bound.block
            try:
                struct.pack_into(self.format, block.host, 0, *numbers, counter)
            except (struct.error, OverflowError):
                for k, (number, dtype) in enumerate(zip(numbers, self.numbers, strict=True)):
                    raw = _bits(number, dtype).to_bytes(8, "little")
                    block.host[8 * k : 8 * k + 8] = np.frombuffer(raw, np.uint8)
                raw = counter.to_bytes(8, "little")
                block.host[8 * len(numbers) :] = np.frombuffer(raw, np.uint8)
            if block.flush is not None:
                block.flush()
        if state is not None:
            kept.append(_memory(state[0]))
            for place in self.key_at:
                bound.addresses[place] = kept[-1].address
        for place, k in self.arrays_at:
            array = np.ascontiguousarray(arrays[k], arrays[k].dtype.newbyteorder("="))
            kept.append(get_device(self.device).from_host(array, share=True))
            bound.addresses[place] = kept[-1].address
        return kept

    def _over(
        self, bound: Bound, again: tuple[Any, ...], late: list[BaseException], program: Launcher,
        constants: list[int], places: list[int],
    ) -> list[Buffer | None] | None:  # fmt: skip
        """Run a plan that writes over its inputs, if by now it may.

        `again` is what names the user's line, if an index turns out to be outside.
        """
        status = list[int]()
        tensors: Sequence[Tensor] = again[0]
        values: Sequence[int] = again[1]
        addresses = bound.addresses + constants
        frame = bound.frame
        if frame is None:
            frame = bound.frame = program.bind(addresses)
        frame.begun = False
        if program.deferred and self.is_all_in_place:
            kept = [tensors[i] for i in self.index_at]
            frame.tell = partial(self.name_the_line_later, kept, *again[1:])
        with REGISTRY.rewriting:
            before, REGISTRY.writing = REGISTRY.writing, threading.get_ident()
            try:
                if len(REGISTRY.reading) > 1:
                    return None
                mine = self._picked(tensors)
                if [tensor.entry.key for tensor in mine] != bound.over:
                    return None  # another thread assigned what we are about to
                if self.read_over != self.over:
                    mine = self._picked_read(tensors)
                if not are_sole(mine, self.alone):
                    return None
                if DERIVED.of_any:
                    DERIVED.overwritten([bound.memories[i]() for i in self.read_over])
                memories: list[Buffer | None] = program.launch_in_place(
                    frame, addresses, status, late, values, places
                )
                for out, i in self.gifts.items():
                    if memories[out] is None:
                        memories[out] = bound.memories[i]()
                        entry = tensors[i].entry
                        REGISTRY.give_away(entry, _base(entry.node))
            except BoundsError:
                raise
            except BaseException:
                for i in self.read_over if frame.begun and not status else ():
                    REGISTRY.lose(_base(tensors[i].entry.node))
                raise
            finally:
                REGISTRY.writing = before
        return memories

    def _parted(self, tensors: Sequence[Tensor]) -> bool:
        """Copy on write: memory of their own for assigned tensors whose memory others hold too.

        False where the plan that copies runs instead: it is worth its compiling if that goes on.
        """
        if self.copies > FREE_COPIES or self.gifts:
            return False
        with REGISTRY.rewriting:
            before, REGISTRY.writing = REGISTRY.writing, threading.get_ident()
            try:
                if len(REGISTRY.reading) > 1:
                    return False
                rows = {leaf: counts_of_leaves([leaf]) for leaf in (False, True)}
                shared = [i for i in self.read_over
                          if not are_sole((tensors[i],), rows[self.expected[i].leaf])]  # fmt: skip
                if not all([_base(tensors[i].entry.node).op is BUFFER for i in shared]):
                    return False
                self.copies += 1
                anew = [(e, e.node, self._copy(e.node)) for e in [tensors[i].entry for i in shared]]
                return bool(anew) and REGISTRY.rebind_all(anew)
            finally:
                REGISTRY.writing = before

    def _copy(self, node: Node) -> Node:
        """The value of a node that is known in memory of its own; a leaf stays that leaf."""
        base, device = _base(node), get_device(self.device)
        shape = concrete(base.shape, {})
        made = new_buffer(shape, base.dtype, self.device)
        memory = device.allocate(shape, base.dtype)
        made.origins = base.origins
        device.copy(_memory(node), memory)
        REGISTRY.attach(made, memory)
        return WATCH(made, arg=node.arg) if node.op is WATCH else made

    def _current(self, bound: Bound, tensors: Sequence[Tensor]) -> bool:
        """Has no other thread assigned what we are about to?"""
        return [tensor.entry.key for tensor in self._picked(tensors)] == bound.over

    def _slowly(
        self, bound: Bound, tensors: Sequence[Tensor], arrays: Sequence[Any],
        numbers: Sequence[Any], values: Sequence[int], state: Any,
    ) -> list[Tensor] | None:  # fmt: skip
        """Any plan, fed with buffers."""
        inputs, known = self._inputs(tensors, arrays, numbers, values, state)
        if self._sized is not None:
            return self._of_sizes(self._sized, bound, tensors, inputs, known)
        compiled, constants = self.plan()
        if compiled.spmd is not None:
            known = {**joined(compiled.spmd, self.normal), **known}
        try:
            memories = compiled.plan.run([*inputs, *constants], known, self.options.poison)
        except BoundsError:
            if not self.is_spmd:
                self._name_the_line(inputs, known)
            raise
        if self.options.check_nan and not self.is_spmd:
            bound_roots, normal = self._bound_roots(), self.normal._replace(values=known)
            check_finite(bound_roots, normal, inputs, memories)
        if self.sized:
            abouts = [About.of(concrete(unbound(root.shape), known), root, self.device)
                      for root in self.roots]  # fmt: skip
            return self._finished(bound, tensors, memories, abouts)
        return self._finished(bound, tensors, memories, self.abouts)

    def _of_sizes(
        self, sized: SizedGraph, bound: Bound, tensors: Sequence[Tensor],
        inputs: Sequence[Buffer], known: dict[str, int],
    ) -> list[Tensor] | None:  # fmt: skip
        """The plan for the sizes of this call."""
        plan, shapes = sized.at(bound.sizes, self.options)
        try:
            memories = plan.run(inputs, known, self.options.poison)
        except BoundsError:
            roots, normal = sized.numbered(bound.sizes)
            name_the_line(roots, normal._replace(values=known), inputs)
            raise
        if self.options.check_nan:
            roots, normal = sized.numbered(bound.sizes)
            check_finite(roots, normal._replace(values=known), inputs, memories)
        abouts = [About.of(shape, root, self.device)
                  for shape, root in zip(shapes, self.roots, strict=True)]  # fmt: skip
        return self._finished(bound, tensors, memories, abouts)

    def _inputs(
        self, tensors: Sequence[Tensor], arrays: Sequence[Any], numbers: Sequence[Any],
        values: Sequence[int], state: Any,
    ) -> tuple[list[Buffer], dict[str, int]]:  # fmt: skip
        """The memory of every input of the plan, and the values of variables."""
        nodes = [tensor.entry.node for tensor in tensors]
        device = get_device(self.device)
        known = dict(zip(self.variables, values, strict=True))
        found: list[Buffer] = []
        if self.varies:
            shapes = [(e.varying, node.shape, e.path)
                      for e, node in zip(self.expected, nodes, strict=True)]  # fmt: skip
            known = sizes_of(shapes, known)
        for p in self.places:
            if p.kind == "tensor":
                varying = self.expected[p.number].varying
                memory = _memory(nodes[p.number])
                found.append(
                    padded(device, memory, nodes[p.number], varying) if varying else memory
                )
            elif p.kind == "array":
                found.append(device.from_host(arrays[p.number], share=True))
            elif p.kind == "number":
                bits = _bits(numbers[p.number], self.numbers[p.number])
                found.append(device.from_host(array_of_bits(bits, self.numbers[p.number])))
            elif p.kind == "key":
                found.append(_memory(state[0]))
            elif p.kind == "counter":
                found.append(device.from_host(np.array(state[1], np.uint64)))
            else:
                found.append(p.memory)
        return found, known

    def name_the_line(
        self, tensors: Sequence[Tensor], values: Sequence[int], arrays: Sequence[Any] = (),
        numbers: Sequence[Any] = (), state: Any = None,
    ) -> None:  # fmt: skip
        """Raise an index error again with the user's line."""
        self._name_the_line(*self._inputs(tensors, arrays, numbers, values, state))

    def name_the_line_later(
        self, kept: Sequence[Tensor], values: Sequence[int], arrays: Sequence[Any],
        numbers: Sequence[Any], state: Any,
    ) -> None:  # fmt: skip
        """The same when only indices are known any more; all else is 0."""
        tensors: list[Any] = [
            Tensor(np.zeros(e.shape, e.dtype.numpy), device=e.device) for e in self.expected
        ]
        for i, tensor in zip(self.index_at, kept, strict=True):
            tensors[i] = tensor
        realize_together([t.entry for t in tensors])
        self.name_the_line(tensors, values, arrays, numbers, state)

    def _name_the_line(self, inputs: list[Buffer], values: dict[str, int]) -> None:
        name_the_line(self._bound_roots(), self.normal._replace(values=values), inputs)

    def _bound_roots(self) -> list[Node]:
        """What is computed, bound to nothing of the call that was captured."""
        bound = without_values(self.roots)
        return [substitute(root, bound) for root in self.roots] if bound else [*self.roots]

    def _finished(
        self, bound: Bound, tensors: Sequence[Tensor], memories: Sequence[Any], abouts: list[Any]
    ) -> list[Tensor] | None:
        """Give assigned tensors their memory, all at one moment, and wrap the results."""
        if memories.count(None) != len(self.assigned):  # some did not keep their memory
            late = [(i, out) for i, out in self.assigned if memories[out] is not None]
            if not self._assign(late, bound, tensors, memories, abouts):
                return None
        if self.is_spmd:
            return [self._held(out, memories[out], abouts[out]) for out in range(self.results)]
        return [*map(fresh_tensor, memories[: self.results], abouts)]

    def _split(self, out: int) -> Any:
        """How a root is split over ranks, if it is."""
        spmd = self.plan()[0].spmd if self.is_spmd else None
        return None if spmd is None else spmd.layouts[out]

    def _held(self, out: int, memory: Any, about: Any) -> Tensor:
        """A tensor of memory that a plan has just written."""
        split = self._split(out)
        if split is not None:
            return wrap(adopt(self.roots[out], memory, self.device, {}, split))
        return fresh_tensor(memory, about)

    def _node(self, out: int, memory: Any, about: Any, split: Any) -> Node:
        """A node for memory that a plan has just written."""
        if split is not None:
            return adopt(self.roots[out], memory, self.device, {}, split)
        buffer = new_buffer(*about)
        buffer.origins = self.roots[out].origins
        REGISTRY.attach(buffer, memory)
        return buffer

    def _assign(
        self, late: list[tuple[int, int]], bound: Bound, tensors: Sequence[Tensor],
        memories: Sequence[Any], abouts: list[Any],
    ) -> bool:  # fmt: skip
        """Give tensors their new memory; not if one was assigned by another thread meanwhile.

        A node that nobody but its tensor knows gets the memory itself, else the tensor gets another
        node.
        """
        with REGISTRY.rewriting:
            before, REGISTRY.writing = REGISTRY.writing, threading.get_ident()
            try:
                if not self._current(bound, tensors):
                    return False
                alone = len(REGISTRY.reading) == 1 and counts_are_exact()
                anew: list[tuple[Entry, Node, Node]] = []
                for i, out in late:
                    shape, entry, expected = abouts[out][0], tensors[i].entry, self.expected[i]
                    split = self._split(out)
                    whole = split is None and expected.split is None
                    if alone and whole and shape == expected.shape and is_sole(entry):
                        continue
                    made = self._node(out, memories[out], abouts[out], split)
                    node = tape_leaf(made, tensors[i]) if expected.leaf else made
                    anew.append((entry, entry.node, node))
                try:
                    return self._rebound(late, anew, bound, tensors, memories)
                except BaseException:  # interrupted: of a step all tensors are new, or none is
                    self._rebound(late, anew, bound, tensors, memories)
                    raise
            finally:
                REGISTRY.writing = before

    def _rebound(
        self, late: list[tuple[int, int]], anew: list[tuple[Entry, Node, Node]], bound: Bound,
        tensors: Sequence[Tensor], memories: Sequence[Any],
    ) -> bool:  # fmt: skip
        """Give tensors other nodes, or their nodes other memory; a second time changes nothing."""
        if not REGISTRY.rebind_all(anew):
            return False
        fresh = {id(entry) for entry, _, _ in anew}
        for i, out in late:
            entry = tensors[i].entry
            if id(entry) not in fresh:
                REGISTRY.replace(entry, _base(entry.node), memories[out])
            bound.keys[i] = entry.key
            if i in self.params:
                bound.addresses[self.params[i]] = memories[out].address
                bound.memories[i] = weakref.ref(memories[out])
        self._note(bound, bound.keys)
        bound.frame, bound.shapes = None, []
        return True


@compiled
def fresh_tensor(memory: Any, about: Any) -> Tensor:
    """A tensor over memory that nobody has looked at."""
    tensor = new_tensor(Tensor)
    tensor.entry, tensor.grad = Fresh(memory, about), None
    return tensor


def picker(places: Sequence[int]) -> Callable[[Sequence[Tensor]], tuple[Tensor, ...]]:
    """What takes the things at these places from a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda given: tuple([given[i] for i in places])


def _bits(number: Any, dtype: DType) -> int:
    """A number as bits; one that does not fit is for the function itself to complain about."""
    try:
        return encode(number, dtype)
    except ConstantError as problem:
        raise GuardFailure(str(problem)) from None


def _base(node: Node) -> Node:
    """The BUFFER of a tensor that is known."""
    found = value_node(node)
    assert found is not None, f"{node!r} is known"
    return found


def _shape(entry: Entry) -> Shape:
    """The shape of a tensor that is known."""
    value: Any = entry.value if type(entry) is Fresh else None
    return value[1][0] if type(value) is tuple else _base(entry.node).shape


def _memory(node: Node) -> Any:
    memory = REGISTRY.memory(memory_node(_base(node)))
    assert memory is not None, f"{node!r} has memory"
    return memory
