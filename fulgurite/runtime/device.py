"""Devices: where values live and who runs kernels. The protocol that every backend fills.

In: shapes, dtypes, host arrays, kernels. Out: buffers and callables. Everything above this line
(plans, caches, realize) speaks only of `Device` and `Buffer`; a backend is one class here and one
renderer in `codegen/`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from .._lazy import lazy_import
from ..core.dtype import DType
from ..core.op import Array
from ..errors import FulguriteError
from ..graph.ir.kernel import Kernel, Schedule
from ..graph.memory.arena import Layout


class DeviceError(FulguriteError, RuntimeError):
    """A device that does not exist or cannot do what was asked."""


class MemoryLimitError(FulguriteError, MemoryError):
    """Memory that could not be had."""


@runtime_checkable
class Buffer(Protocol):
    """Memory on one device."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    @property
    def device(self) -> str:
        """The device it lives on."""


Executable = Any
"""A compiled kernel, as its device knows it."""


class Linked(Protocol):
    """Compiled kernels joined to something that runs."""

    workspace: int  # bytes that a kernel needs beside its values, at most

    def run(self, inputs: Sequence[Buffer], values: dict[str, int], poison: bool) -> list[Buffer]:
        """Run all kernels in order; a fresh buffer for each output."""


class Device(Protocol):
    """What a backend must offer."""

    name: str

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> Buffer:
        """Memory for a value; contents are undefined, or garbage on purpose."""

    def arena(self, nbytes: int, poison: bool = False) -> Buffer:
        """Raw memory for the intermediates of a plan."""

    def part(self, arena: Buffer, offset: int, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """A value's place in an arena."""

    def from_host(self, array: Array, share: bool = False) -> Buffer:
        """A host array's values in a buffer; with `share`, its very memory."""

    def to_host(self, buffer: Buffer) -> Array:
        """The values as a host array, which may share the buffer's memory."""

    def compile(self, kernels: Sequence[Kernel]) -> list[Executable]:
        """Code for kernels that are all different, made together."""

    def beside(self, kernels: Sequence[Kernel]) -> int:
        """Bytes that a kernel needs beside its values, at most; nothing is compiled for that."""

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Linked:
        """The kernels of a schedule, one piece of code for each item, joined to run in order."""


_devices: dict[str, Device] = {}
_makers: dict[str, Callable[[], Device]] = {}
_lock = threading.RLock()


def register_device(name: str, make: Callable[[], Device]) -> None:
    """Make a backend known; it is started when first used."""
    _makers[name] = make


def get_device(name: str) -> Device:
    """The device of this name."""
    found = _devices.get(name)
    if found is not None:
        return found
    with _lock:
        if name not in _devices:
            if name not in _makers:
                known = ", ".join(sorted(_makers))
                raise DeviceError(f"there is no device {name!r}", f"one of {known}")
            _devices[name] = _makers[name]()
        return _devices[name]


def several_devices() -> bool:
    """Is more than one device in use?"""
    return len(_devices) > 1


def device_names() -> list[str]:
    """The devices that can be asked for."""
    return sorted(_makers)


def _cpu() -> Device:
    """Native code if its compiler can be used, else the reference device and one warning."""
    compiler = lazy_import("codegen.cpu.llvm.versions")
    reason = compiler.unusable()
    if reason is not None:
        warnings.warn(
            f"{reason}: kernels run on the reference device, slowly. "
            f"Install it with: pip install {compiler.requirement()}",
            RuntimeWarning,
            stacklevel=2,
        )
        return get_device("reference")
    from .cpu.device import CpuDevice

    return CpuDevice()


register_device("cpu", _cpu)
