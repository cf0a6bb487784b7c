"""Devices: where values live and who runs kernels. The protocols that every backend fills.

In: shapes, dtypes, host arrays, kernels. Out: buffers and executors. Everything above this line
(plans, caches, realize, jit, loops) speaks only of `Device`, `Buffer` and `Executor`: memory is
reached by copies, launches may be asynchronous, and what a device can do it says by attributes,
never by its name. `runtime/device_base.py` fills in all that follows from the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableSequence, Sequence, Set
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from .._lazy import FORK_LOCK
from ..core.dtype import DType, dtype_of
from ..core.node import Node
from ..core.op import Array
from ..core.passes import Observe
from ..errors import DTypeError, FulguriteError, user_line
from ..graph.ir.kernel import Item, Kernel, Schedule
from ..graph.memory.arena import Layout
from .holders import MOST_HOLDERS, largest_holders, largest_part
from .recording import NOW, Recorder

if TYPE_CHECKING:
    from ..codegen.common.api import CodeGenerator
    from ..config import Options
    from ..graph.fusion.machine import MachineModel
    from ..graph.fusion.proposals import Source


class DeviceError(FulguriteError, RuntimeError):
    """A device that does not exist or cannot do what was asked."""


class MemoryLimitError(FulguriteError, MemoryError):
    """Memory that could not be had; `holders` are the largest values that there are."""

    def __init__(self, what: str, hint: str = "", where: str | None = None) -> None:
        super().__init__(what, hint, user_line(2) if where is None else where)
        self.holders = largest_holders(MOST_HOLDERS)
        if self.holders:
            lines = [f"    {holder}" for holder in self.holders]
            self.args = ("\n".join([*self.args, "  the largest values are:", *lines]),)


@contextmanager
def memory_between(schedule: Callable[[], Schedule], layout: Layout) -> Iterator[None]:
    """Where there is no memory for what is between kernels, the error names the largest part."""
    try:
        yield
    except MemoryLimitError as problem:
        part = largest_part(schedule(), layout)
        raise MemoryLimitError(f"{problem.what}{part}", problem.hint) from problem


class Buffer(Protocol):
    """Memory on one device. It can be referenced weakly, and is freed with its last reference."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    @property
    def address(self) -> int:
        """Where it begins, as its device counts: n more is n bytes further. 0: not contiguous."""

    @property
    def exported(self) -> object | None:
        """What may show the memory to others, such as a host array; None: nothing does."""

    def exclusive(self) -> bool:
        """True if this buffer alone shows its memory, so that its holder may write over it."""


def is_shared(buffer: Buffer) -> bool:
    """True if somebody else may write to a buffer's memory: what it holds may differ next time."""
    return getattr(buffer, "shared", False)


Executable = Any
"""A compiled kernel, as its device knows it."""

Values = Mapping[str, int]
"""The values of variables in one run."""


class Growing(Buffer, Protocol):
    """Memory with room behind a value, of which the end is still to be written."""

    @property
    def start(self) -> int:
        """Where it begins, for kernels that append to it."""

    def give_up(self, shorter: Any) -> None:
        """What is behind the shorter value that it was grown from was not written after all."""


class Arena(Protocol):
    """The intermediates of a run whose memory outlives it, as its executor knows them."""

    @property
    def memory(self) -> Buffer:
        """Where they are, as the layout says."""


class Pass(Protocol):
    """One pass after another over given memory: the body of a loop.

    Addresses are put into `words`: those of inputs and outputs where these say, and the address of
    an input also at each of its aliases. A launch reads them as they are then.
    """

    @property
    def words(self) -> MutableSequence[int]:
        """What is read at each launch."""

    @property
    def inputs(self) -> Sequence[int]:
        """The words of inputs."""

    @property
    def outputs(self) -> Sequence[int]:
        """The words of outputs."""

    @property
    def aliases(self) -> Sequence[tuple[int, int]]:
        """Words for the memory of an input that is written over, and which input that is."""

    def launch(self) -> None:
        """Run the kernels."""

    def release(self) -> None:
        """Say that there is no further pass."""


class Replay(Protocol):
    """A plan that is one launch from addresses to results, for the calls of a jitted function.

    `places` say where the values of variables go (`places_of`). Only addresses and values differ
    from launch to launch. `launch_in_place` is for plans that write over inputs. A launch need not
    have run when it returns, but for the kernels that check an index: it raises `BoundsError`.
    A plan that writes over inputs may leave that for later if it is `deferred`: it writes nothing
    then, and the frame's `tell` names the user's line when the error is found.
    """

    deferred: bool

    def places_of(self, names: Sequence[str]) -> list[int]:
        """Where the values of these variables go."""

    def launch(
        self, addresses: list[int], values: Sequence[int] = (), places: Sequence[int] = ()
    ) -> list[Buffer]:
        """A pass over the addresses of its inputs; fresh results."""

    def launch_into(self, addresses: Sequence[int], threads: int = 0) -> None:
        """A pass over the addresses of its inputs and, behind them, of memory for its results."""

    def bind(self, addresses: Sequence[int]) -> Any:
        """A frame for passes that write over these inputs; its `begun` says if one has begun to."""

    def launch_in_place(
        self, frame: Any, addresses: list[int], status: list[int], late: list[BaseException],
        values: Sequence[int] = (), places: Sequence[int] = (),
    ) -> list[Buffer | None]:  # fmt: skip
        """A pass that writes over inputs; None for each output that is an input's memory now.

        When it is over, its status is there. An interruption that comes then is put into `late`.
        """


class Executor(Protocol):
    """Compiled kernels joined to something that runs them in order."""

    workspace: int  # bytes that a kernel needs beside its values, at most
    deferred: bool  # launches return before it is known whether indices were inside: see `check`

    def run(self, inputs: Sequence[Buffer], values: Values, poison: bool) -> list[Buffer]:
        """Run all kernels; a fresh buffer for each output."""

    def run_into(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        """Run all kernels from given memory into given memory."""

    def check(self) -> None:
        """Wait until every kernel that checks an index has run; a `BoundsError` if one failed."""

    @property
    def host_items(self) -> Sequence[Item]:
        """What the host runs although the device has a target to compile for."""

    def keep(self, layout: Layout, poison: bool) -> Arena:
        """An arena for runs whose intermediates are looked at afterwards."""

    def run_keeping(
        self, arena: Any, inputs: Sequence[Buffer], values: Values, poison: bool
    ) -> list[Buffer]:
        """The same as `run`, with intermediates in this arena."""

    def replay(self, in_place: bool) -> Replay | None:
        """The plan as one launch, which writes over inputs or not; None if it is more than that."""

    def passes(self) -> Pass | None:
        """Launches over given addresses; None if a pass needs more than a launch."""


class Held(Protocol):
    """Inputs that stay: what depends on them alone is done once for all runs.

    It is good until one of them is written over (runtime/derived.py); who cannot keep that from
    happening asks whether it `is_stale` when the mark of derived values has changed.
    """

    @property
    def is_stale(self) -> bool:
        """True if one of the inputs was written over."""

    def of(self, executor: Any) -> Any:
        """Who runs in the place of an executor, or of a replay, for these inputs."""


class NumberBlock(Protocol):
    """A few bytes that the host writes before each launch and kernels read."""

    address: int  # on the device
    host: Any  # writable bytes

    @property
    def flush(self) -> Callable[[], None] | None:
        """What takes the bytes to the device before a launch; None: they are there.

        When it returns the host may write the next ones.
        """


class Device(Protocol):
    """What a backend must offer."""

    name: str
    host_visible: bool  # its memory is the host's: host code works on it where it is
    sizes_vary: bool  # are kernels compiled for sizes that vary?
    packs_operands: bool  # products copy what they multiply into tiles: its order matters
    keeps_addresses: bool  # a replay over the same memory is quicker than over other memory
    has_tiny_tier: bool  # tiny graphs are run by NumPy in its memory
    dlpack: tuple[int, int]  # DLPack's name of its memory
    align: int  # bytes: values inside an arena begin at multiples of it
    recorder: Recorder | None  # the receiver of launches
    guards_writes: bool  # kernels that write over inputs can wait for checks: `compile_guarded`

    @property
    def asks_library(self) -> bool:
        """True if a library with the same bits on every run may compete with its kernels."""

    @property
    def joins_column_sums(self) -> bool:
        """True if one launch has rows and partial sums of their columns."""

    @property
    def compares_results(self) -> bool:
        """True if a rectifier's condition is told by its result, not stored."""

    @property
    def joins_small_maps(self) -> bool:
        """True if a launch takes longer than a small map."""

    @property
    def joins_in_place(self) -> bool:
        """True if parts of a joined array are stored where it has them."""

    @property
    def operand_reuse(self) -> int:
        """Products of an element for which its rounded value is stored; 0: never."""

    @property
    def channels_last(self) -> bool:
        """True if images between kernels have channels last, unless an option says."""

    @property
    def vnni_layout(self) -> bool:
        """True if constant factors of bytes should lie by fours along k (VNNI)."""

    @property
    def has_collectives(self) -> bool:
        """True if collectives are work of the device, in the order of its launches."""

    @property
    def codegen(self) -> CodeGenerator | None:
        """The target of its kernels; None: they are interpreted."""

    @property
    def machine(self) -> MachineModel:
        """What kernels cost there, by which the search chooses."""

    @property
    def sources(self) -> Sequence[Source]:
        """Where the search gets kernels for merged graphs."""

    @property
    def providers(self) -> Sequence[Source]:
        """Providers of kernels besides our own, such as a vendor's library."""

    # --- memory ----------------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> Buffer:
        """Memory for a value; its contents are undefined, or garbage on purpose."""

    def arena(self, nbytes: int, poison: bool = False) -> Buffer:
        """Raw memory for the intermediates of a plan."""

    def view(self, buffer: Buffer, offset: int, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """A value inside a buffer, so many bytes from its beginning; it keeps the buffer alive."""

    def snapshot(
        self, buffer: Buffer, offset: int, shape: tuple[int, ...], dtype: DType
    ) -> Buffer | None:
        """The same for a value that never changes; None if somebody may write to the memory."""

    def copy_in(self, host: Array, to: Buffer) -> None:
        """Values of a contiguous host array; the array may be written to when this returns."""

    def copy_out(self, source: Buffer, host: Array) -> None:
        """Values into a contiguous host array, when all that was launched before has run."""

    def copy(self, source: Buffer, to: Buffer) -> None:
        """All of a buffer into another one of this device, after what was launched before."""

    def fill(self, buffer: Buffer, byte: int) -> None:
        """One byte everywhere."""

    def from_host(self, array: Array, share: bool = False) -> Buffer:
        """A host array's values in a buffer; with `share` its very memory, if that can be."""

    def to_host(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Array:
        """The values as a host array; it shares the buffer's memory if that is host-visible."""

    def copied(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Array:
        """The values as a host array that nobody else has."""

    def copy_from(
        self, other: Device, source: Buffer, shape: tuple[int, ...], dtype: DType
    ) -> Buffer:
        """A value of another device: by way of the host, unless the two can do better."""

    def contiguous(self, buffer: Buffer) -> Buffer:
        """A buffer that has an address: itself, or a copy."""

    def extended(
        self, buffer: Buffer, behind: Buffer, shape: tuple[int, ...], dtype: DType
    ) -> Buffer | None:
        """A value with another behind it, where the first is or with room to grow; None: copy."""

    def grown(
        self, buffer: Buffer, axis: int, shape: tuple[int, ...], dtype: DType
    ) -> Growing | None:
        """Memory for a longer value of this shape, which begins with a buffer; None: it is copied.

        Along the axis it comes first in this memory, and what is behind it is to be written.
        """

    def may_grow(self, buffer: Buffer, axis: int, shape: tuple[int, ...]) -> bool:
        """True if a value was concatenated along an axis before, and is worth room for more."""

    def mark_joined(self, buffer: Buffer, axis: int, shape: tuple[int, ...]) -> None:
        """Note that a value was concatenated: the next one behind it may find it with room."""

    def number_block(self, nbytes: int) -> NumberBlock:
        """Memory for the numbers that each launch of a replay takes from the host."""

    def synchronize(self) -> None:
        """Wait until all that was launched has run."""

    def record(self, recorder: Recorder | None) -> None:
        """Tell a recorder of all launches and copies from now on; None: nobody, all is told.

        An executor asks `recorder` once a run, or is another one while a recorder is set.
        """

    def memory_stats(self, reset_peak: bool = False) -> dict[str, int]:
        """Bytes `used`, `peak` and `idle`, and blocks `fresh` and `reused`."""

    def empty_cache(self) -> int:
        """Give memory that no value uses back; how many bytes that were."""

    # --- code ------------------------------------------------------------------------------------

    def code_key(self) -> Hashable:
        """What the code of a kernel depends on besides the kernel, under the options in force."""

    def compile(self, kernels: Sequence[Kernel]) -> list[Executable]:
        """Code for kernels that are all different, made together."""

    def compile_guarded(self, kernels: Sequence[Kernel], over: Set[Kernel]) -> list[Executable]:
        """The same; those that write `over` inputs do nothing once a check of an index failed."""

    def plans_first(self, options: Options) -> bool:
        """True if plans are best made before the disk is asked for them, which has none."""

    def compile_ahead(self, kernels: Sequence[Kernel], over: Set[Kernel]) -> None:
        """Begin what `compile_guarded` will be asked for."""

    def trace(self, kernel: Kernel, observe: Observe) -> None:
        """Run the passes of a kernel for an observer."""

    def workspace_bytes(self, kernels: Sequence[Kernel]) -> int:
        """Bytes that a kernel needs beside its values, at most; nothing is compiled for that."""

    def library_name(self, kernel: Kernel) -> str:
        """Whose library runs a kernel in place of our own code; empty: none."""

    def keeps_float8(self, fold: Node) -> bool:
        """True if a sum of products of float8 is best computed from float8 in memory."""

    def library_key(self) -> str:
        """Which library may compete with its kernels: part of what plans and times depend on."""

    def stopwatch(self) -> Callable[[Callable[[], object]], float] | None:
        """What gives the nanoseconds that launches take by the device's clock, its caches cold.

        None: the host's clock times them.
        """

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Executor:
        """The kernels of a schedule, one piece of code for each item, joined to run in order."""

    # --- code on disk ----------------------------------------------------------------------------

    def plan_key(self) -> str | None:
        """What plans on disk depend on: target and toolchain. None: they are not kept."""

    def hold(self, inputs: Mapping[int, Buffer]) -> Held:
        """Inputs, by their places, that stay as they are from run to run."""

    def dump_code(self, code: Executable) -> list[Any] | None:
        """What JSON can hold of the code of a kernel; None: it is made again from the kernel."""

    def load_code(self, kernel: Kernel, dumped: list[Any] | None) -> Executable | None:
        """The code that was dumped; None if it is gone."""

    def export_code(self, code: Sequence[Executable], members: dict[str, bytes]) -> dict[str, Any]:
        """Machine code as members of a file for another process, and what it is for."""

    def import_code(self, about: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
        """Make exported code known here; a `DeviceError` says why it cannot run."""


# --- which devices there are ---------------------------------------------------------------------

_devices: dict[str, Device] = {}
_factories: dict[str, tuple[Callable[[str], Device], Callable[[], int]]] = {}
_lock = threading.RLock()


def register_device(
    name: str, factory: Callable[[str], Device], members: Callable[[], int] = lambda: 1
) -> None:
    """Make a backend known; `factory(name)` starts it when it is first used.

    Of several members the first has the name itself, the others are `name:1`, `name:2`, ...
    """
    with _lock:
        _factories[name] = factory, members
        for known in [n for n in _devices if n.partition(":")[0] == name]:
            del _devices[known]


def get_device(name: str) -> Device:
    """The device of this name."""
    found = _devices.get(name)
    if found is not None:
        return found
    with FORK_LOCK, _lock:  # a backend is loaded now
        if name not in _devices:
            if not has_device(name):
                raise DeviceError(f"there is no device {name!r}", f"one of {known_devices()}")
            kind, _, member = name.partition(":")
            if member and not int(member):
                _devices[name] = get_device(kind)  # the first member has the name itself
            else:
                _devices[name] = _factories[kind][0](name)
                if NOW.recorder is not None:
                    _devices[name].record(NOW.recorder)
        return _devices[name]


def device_or_dtype(target: object) -> str | DType:
    """What `to(target)` means: the name of a device, or a dtype."""
    if has_device(target):
        return get_device(target).name
    try:
        return dtype_of(target)
    except DTypeError:
        raise DTypeError(
            f"{target!r} is neither an element type nor a device",
            f"a dtype such as float32, or a device: {', '.join(device_names())}",
        ) from None


def has_device(name: object) -> TypeGuard[str]:
    """True if there is a device of this name."""
    if not isinstance(name, str):
        return False
    kind, colon, member = name.partition(":")
    _discover()
    if kind not in _factories:
        _discover_installed(kind)
    if kind not in _factories:
        return False
    return not colon or (member.isdecimal() and int(member) < _factories[kind][1]())


@cache
def _discover() -> None:
    """Import every package next to this file: those of devices register themselves."""
    folder = os.path.dirname(__file__)
    for name in sorted(os.listdir(folder)):
        if os.path.exists(os.path.join(folder, name, "__init__.py")):
            with FORK_LOCK:
                import_module(f"{__package__}.{name}")


@cache
def _discover_installed(kind: str) -> None:
    """Import a device that another package brings: an entry point of group `fulgurite.devices`."""
    from importlib.metadata import entry_points  # slow, and seldom needed

    with FORK_LOCK:
        for found in entry_points(group="fulgurite.devices", name=kind):
            found.load()


def several_devices() -> bool:
    """True if more than one device is in use."""
    return len(_devices) > 1


def devices_in_use() -> list[Device]:
    """The devices that were started."""
    return list({id(device): device for device in list(_devices.values())}.values())


def device_names() -> list[str]:
    """The devices that can be requested."""
    _discover()
    counts = {kind: members() for kind, (_, members) in _factories.items()}
    return sorted(
        f"{kind}:{member}" if member else kind
        for kind, count in counts.items()
        for member in range(count)
    )


def device_at(place: tuple[int, int]) -> str | None:
    """The device whose memory DLPack calls so; None if there is none."""
    return next((name for name in device_names() if get_device(name).dlpack == place), None)


def known_devices() -> str:
    """The devices that can be requested, in words."""
    return ", ".join(device_names())


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
