"""Asynchronous start: a GPU's context comes up in a thread while the caller builds and plans.

In: a `CudaDevice` whose library is open. Out: the same device with its context, stream and memory.
Until then it is of a class that waits for what is asked of it and not there yet: properties, which
need the driver and no context, or all of it. Arrays that it is given are kept on the host, as they
are now, and copied by the same thread; reading such a value back needs no GPU. What fails in the
thread is tried again where it is waited for: errors are raised there, as without a thread.
A fork waits for the thread: no child has half a driver.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ..cache import has_nothing
from .memory import CudaBuffer

if TYPE_CHECKING:
    from ...config import Options
    from ...core.op import Array
    from .device import CudaDevice

ARRIVING_BYTES = 1 << 26  # of arrays that are kept meanwhile; more are waited for


class Start:
    """The start of one device, which is over when its thread is."""

    def __init__(self, device: CudaDevice) -> None:
        self.device, self.kind = device, type(device)
        self.known, self.over = threading.Event(), threading.Event()
        self.lock = threading.RLock()  # of what arrives, and of a second try
        self.arriving: list[ref[ArrivingBuffer]] = []
        self.nbytes = 0
        self.is_done = False
        self.at_work = 0  # the thread that starts it
        device.__class__ = waiting(self.kind)  # type: ignore[arg-type]  # classes have a hash
        self.thread = threading.Thread(target=self._run, name="fulgurite-cuda")
        self.thread.start()

    def _run(self) -> None:
        with suppress(Exception):  # said where it is waited for
            self.bring_up()
        self.at_work = 0
        self.known.set()
        self.over.set()

    def bring_up(self) -> None:
        """Start the driver and make the context; copy what came meanwhile."""
        self.at_work = threading.get_ident()
        self.device.driver.devices()
        self.known.set()
        self.device.make_context()
        self.device.find_out()
        with self.lock:
            self.is_done, self.device.__class__ = True, self.kind
        self.over.set()
        for buffer in self.arriving:
            arrived = buffer()
            if arrived is not None:
                with suppress(Exception):  # it is copied, or fails, where its address is used
                    arrived.land()
        self.arriving.clear()

    def wait(self, name: str) -> None:
        """Return when the device has an attribute; an error if its start failed."""
        if threading.get_ident() == self.at_work:
            raise AttributeError(f"the start of a device has no {name!r} yet")
        if name in ("properties", "dlpack"):
            self.known.wait()
            if self.device.driver.is_started:  # the thread is making the context
                self.device.find_out()
                return
        self.over.wait()
        with self.lock:
            if not self.is_done:
                try:
                    self.bring_up()
                finally:
                    self.at_work = 0

    def join(self) -> None:
        """Wait for the thread."""
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def take(self, array: Array) -> CudaBuffer | None:
        """A copy of an array, which is on its way; None if it is not to be kept here."""
        with self.lock:
            if self.over.is_set() or self.is_done or self.nbytes + array.nbytes > ARRIVING_BYTES:
                return None
            made = ArrivingBuffer(self.device, np.array(array, order="C"))
            self.nbytes += array.nbytes
            self.arriving.append(ref(made))
        return made

    def after_fork(self) -> None:
        """Nobody else holds the lock: the fork waited for the thread."""
        self.lock = threading.RLock()


class Waiting:
    """What a device does while it starts: it waits for what it has not, and keeps arrays."""

    start: Start

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the start will make, when it is made."""
            if name.startswith("__"):
                raise AttributeError(name)
            self.start.wait(name)
            return getattr(self, name)

    @property
    def dlpack(self) -> tuple[int, int]:
        """DLPack's name of its memory, which depends on how many GPUs there are."""
        self.start.wait("dlpack")
        found: tuple[int, int] = vars(self)["dlpack"]
        return found

    def from_host(self, array: Array, share: bool = False) -> Any:
        """A copy of an array's values, which is on its way if the GPU is not there yet."""
        start = self.start  # which may be over by the next line, and this of its own class
        return start.take(array) or start.kind.from_host(start.device, array, share)

    def copy_out(self, source: Any, host: Array) -> None:
        """Values that are on their way come back at once."""
        array = array_of(source)
        if array is None:
            self.start.kind.copy_out(self.start.device, source, host)
        else:
            host.reshape(-1).view(np.uint8)[:] = array.reshape(-1).view(np.uint8)

    def plans_first(self, options: Options) -> bool:
        """True if nothing is on disk: texts can be compiled while the driver starts."""
        return has_nothing(options)


@cache
def waiting(kind: type) -> Any:
    """The class of a device of some class while it starts: waiting costs nothing afterwards."""
    return type(kind.__name__, (Waiting, kind), {})


class ArrivingBuffer(CudaBuffer):
    """A value that is still on the host: it has a place on the GPU once somebody asks for that."""

    __slots__ = ()

    def __init__(self, device: CudaDevice, array: Array) -> None:
        self.arrival, self.nbytes = (device, array), array.nbytes

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Its place, when it has one."""
            if name not in ("address", "block"):
                raise AttributeError(name)
            self.land()
            return getattr(self, name)

    def land(self) -> None:
        """Copy it to the GPU; from then on it is a buffer as any other."""
        try:
            device, array = self.arrival
        except AttributeError:  # another thread was quicker
            return
        device.enter()  # waits for the start, before the lock that this may want
        with device.start.lock:
            if isinstance(self, ArrivingBuffer):
                made = device.copied_in(array)
                made.block.holders += 1
                self.block, self.address = made.block, made.address
                self.__class__ = CudaBuffer  # type: ignore[assignment]
                del self.arrival

    def __del__(self) -> None:
        """Nothing on the GPU is given back."""

    exported = None
    shared = False

    def exclusive(self) -> bool:
        """True: nobody else knows it."""
        return True


def array_of(buffer: Any) -> Array | None:
    """The value of a buffer that is still on the host; None of others."""
    try:
        found: Array = buffer.arrival[1]
    except AttributeError:
        return None
    return found
