"""NVIDIA's driver API by ctypes: libcuda and nothing else.

In: calls with plain numbers. Out: plain numbers, or an error with the driver's own name and words.
Every function that we use is declared once, with its types, in `_FUNCTIONS`; a missing one names
the driver version that has it. Handles are whole numbers; the classes below own them and give them
back, in an order that the driver allows. Nothing here keeps state of its own but the library.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import FulguriteError
from .shared_library import declare, open_library

if TYPE_CHECKING:
    from ...codegen.cuda.source import TensorMap

LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
LEAST_VERSION = 12000  # graphs with explicit nodes as they are used here

OUT_OF_MEMORY, NOT_READY = 2, 600
CAPTURE_OF_THREAD = 1  # other threads may call what must not be called meanwhile
LOST = frozenset({46, 700, 702, 714, 715, 716, 717, 718, 719, 999})  # the context is gone

Handle = c_void_p
_Out = POINTER(c_void_p)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_Out, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (Handle,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (_Out, c_char_p),
    "cuModuleUnload": (Handle,),
    "cuModuleGetFunction": (_Out, Handle, c_char_p),
    "cuFuncSetAttribute": (Handle, c_int, c_int),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, Handle),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemPoolCreate": (_Out, c_void_p),
    "cuMemPoolDestroy": (Handle,),
    "cuMemPoolSetAttribute": (Handle, c_int, c_void_p),
    "cuMemPoolGetAttribute": (Handle, c_int, c_void_p),
    "cuMemPoolTrimTo": (Handle, c_size_t),
    "cuMemAllocFromPoolAsync": (POINTER(c_uint64), c_size_t, Handle, Handle),
    "cuMemFreeAsync": (c_uint64, Handle),
    "cuMemHostAlloc": (_Out, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, Handle),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, Handle),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, Handle),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, Handle),
    "cuStreamCreate": (_Out, c_uint),
    "cuStreamDestroy_v2": (Handle,),
    "cuStreamSynchronize": (Handle,),
    "cuStreamQuery": (Handle,),
    "cuStreamWaitEvent": (Handle, Handle, c_uint),
    "cuStreamBeginCapture_v2": (Handle, c_int),
    "cuStreamEndCapture": (Handle, _Out),
    "cuEventCreate": (_Out, c_uint),
    "cuEventDestroy_v2": (Handle,),
    "cuEventRecord": (Handle, Handle),
    "cuEventQuery": (Handle,),
    "cuEventSynchronize": (Handle,),
    "cuEventElapsedTime": (POINTER(c_float), Handle, Handle),
    "cuLaunchKernel": (Handle, *[c_uint] * 7, Handle, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (c_void_p, c_int, c_uint, c_uint64, *[c_void_p] * 4, *[c_int] * 4),
    "cuGraphCreate": (_Out, c_uint),
    "cuGraphDestroy": (Handle,),
    "cuGraphAddKernelNode_v2": (_Out, Handle, c_void_p, c_size_t, c_void_p),
    "cuGraphAddChildGraphNode": (_Out, Handle, c_void_p, c_size_t, Handle),
    "cuGraphInstantiateWithFlags": (_Out, Handle, c_uint64),
    "cuGraphExecKernelNodeSetParams_v2": (Handle, Handle, c_void_p),
    "cuGraphExecChildGraphNodeSetParams": (Handle, Handle, Handle),
    "cuGraphExecDestroy": (Handle,),
    "cuGraphUpload": (Handle, Handle),
    "cuGraphLaunch": (Handle, Handle),
}


class CudaError(FulguriteError, RuntimeError):
    """The driver refused something."""

    def __init__(self, what: str, hint: str = "", code: int = 0) -> None:
        super().__init__(what, hint)
        self.code = code


class CudaMemoryError(CudaError, MemoryError):
    """The GPU's memory is used up."""


class NoCudaError(CudaError):
    """There is no driver, or none that is new enough, or no GPU."""


class DeviceLostError(CudaError):
    """A kernel or the hardware failed: all memory of the GPU is lost to this process."""


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
        ("params", c_void_p), ("extra", c_void_p), ("kernel", c_void_p), ("context", c_void_p),
    )  # fmt: skip


class _PoolProperties(ctypes.Structure):
    """CUmemPoolProps: pinned memory of one device."""

    _fields_ = (
        ("allocation", c_int), ("handles", c_int), ("location", c_int), ("device", c_int),
        ("security", c_void_p), ("most", c_size_t), ("usage", ctypes.c_ushort),
        ("reserved", c_ubyte * 54),
    )  # fmt: skip


class Driver:
    """The library, opened, with every function declared; `devices` starts it."""

    def __init__(self, library: str | None = None) -> None:
        self.library = open_library((library,) if library else LIBRARIES, _no_driver)
        self.functions = declare(self.library, _FUNCTIONS, _old_driver)
        self.is_started, self.starting = False, threading.Lock()
        self.version = self.number("cuDriverGetVersion")
        if self.version < LEAST_VERSION:
            major, minor = self.version // 1000, self.version % 1000 // 10
            raise NoCudaError(
                f"the NVIDIA driver is of CUDA {major}.{minor}", "install one of CUDA 12 or newer"
            )

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise what it reports."""
        code = self.functions[name](*arguments)
        if code:
            raise self.error(name, code)

    def number(self, name: str, *arguments: Any) -> int:
        """The whole number that a function writes to its first argument."""
        kind = _FUNCTIONS[name][0]._type_
        found = kind()
        self.call(name, ctypes.byref(found), *arguments)
        return int(found.value or 0)

    def is_ready(self, name: str, handle: int) -> bool:
        """True if what a query asks about is done."""
        code = self.functions[name](handle)
        if code not in (0, NOT_READY):
            raise self.error(name, code)
        return bool(code == 0)

    def error(self, name: str, code: int) -> CudaError:
        """The error of a code, in the driver's words."""
        what = f"{name}: {self._words('cuGetErrorName', code)}"
        what += f" ({self._words('cuGetErrorString', code)})"
        if code == OUT_OF_MEMORY:
            return CudaMemoryError(what, "free some tensors or use less", code)
        if code in LOST:
            return DeviceLostError(what, "start the process again", code)
        if name == "cuInit":
            return NoCudaError(what, "is there a GPU, and may this process use it?", code)
        return CudaError(what, "", code)

    def _words(self, name: str, code: int) -> str:
        text = c_char_p()
        if self.functions[name](code, ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return text.value.decode()

    def devices(self) -> int:
        """How many GPUs there are; the driver is started if that was not asked before."""
        with self.starting:
            if not self.is_started:
                self.call("cuInit", 0)
                self.is_started = True
        return self.number("cuDeviceGetCount")


_opening = threading.Lock()
_driver: Driver | None = None


def the_driver() -> Driver:
    """libcuda, opened once and not started; `NoCudaError` says why it cannot be used."""
    global _driver
    with _opening:
        if _driver is None:
            _driver = Driver(os.environ.get("FULGURITE_LIBCUDA") or None)
        return _driver


def start_ahead() -> None:
    """Start the driver in a thread: that takes longer than importing what uses it."""
    with suppress(CudaError):  # said by who uses it
        threading.Thread(target=_start, args=(the_driver(),), name="fulgurite-driver").start()


def _start(driver: Driver) -> None:
    with suppress(CudaError):
        driver.devices()


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    if _driver is not None:
        _driver.starting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _no_driver(problem: str) -> NoCudaError:
    return NoCudaError(f"no NVIDIA driver: {problem}", "install it, or use another device")


def _old_driver(name: str) -> NoCudaError:
    return NoCudaError(f"the NVIDIA driver has no {name}", "install driver 525 or newer (CUDA 12)")


class Properties(NamedTuple):
    """What a GPU is."""

    name: str
    memory: int  # bytes
    capability: int  # 90 for 9.0
    processors: int
    shared: int  # bytes that a block may ask for


def device_of(driver: Driver, ordinal: int) -> int:
    """The driver's name of a GPU, which needs no context."""
    count = driver.devices()
    if not 0 <= ordinal < count:
        raise NoCudaError(f"there is no GPU number {ordinal}", f"there are {count}")
    return driver.number("cuDeviceGet", ordinal)


def properties_of(driver: Driver, device: int) -> Properties:
    """What a GPU is, which needs no context."""

    def attribute(number: int) -> int:
        return driver.number("cuDeviceGetAttribute", number, device)

    name = ctypes.create_string_buffer(128)
    driver.call("cuDeviceGetName", name, 128, device)
    return Properties(
        name.value.decode(),
        driver.number("cuDeviceTotalMem_v2", device),
        attribute(75) * 10 + attribute(76),
        attribute(16),
        attribute(97),
    )


class Context:
    """The primary context of a GPU, which other libraries of the process share."""

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        self.driver, self.device = driver, device_of(driver, ordinal)
        self.handle = driver.number("cuDevicePrimaryCtxRetain", self.device)
        self.use()

    def use(self) -> None:
        """Make it the calling thread's."""
        self.driver.call("cuCtxSetCurrent", self.handle)

    def properties(self) -> Properties:
        """What the GPU is."""
        return properties_of(self.driver, self.device)

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all bytes."""
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def synchronize(self) -> None:
        """Wait for everything."""
        self.driver.call("cuCtxSynchronize")

    def close(self) -> None:
        """Give the context back."""
        if self.handle:
            self.handle = 0
            self.driver.call("cuDevicePrimaryCtxRelease_v2", self.device)


class Stream:
    """Work in order; non-blocking, so the default stream does not wait for it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = driver.number("cuStreamCreate", 1)

    # how to wait for work of other GPUs, if it has such
    wait_for_others: Callable[[Stream], None] | None = None

    def synchronize(self) -> None:
        """Wait for what was given to it."""
        if self.wait_for_others is not None:
            self.wait_for_others(self)
        self.driver.call("cuStreamSynchronize", self.handle)

    def is_idle(self) -> bool:
        """True if all its work is done."""
        return self.driver.is_ready("cuStreamQuery", self.handle)

    def wait(self, event: Event) -> None:
        """Let later work wait for an event."""
        self.driver.call("cuStreamWaitEvent", self.handle, event.handle, 0)

    def close(self) -> None:
        """Destroy it; work that was given to it is still done."""
        if self.handle:
            handle, self.handle = self.handle, 0
            self.driver.call("cuStreamDestroy_v2", handle)


class Event:
    """A place in a stream's work."""

    def __init__(self, driver: Driver, timing: bool = False) -> None:
        self.driver = driver
        self.handle = driver.number("cuEventCreate", 0 if timing else 2)

    def record(self, stream: Stream) -> None:
        """Put it after what the stream has been given so far."""
        self.driver.call("cuEventRecord", self.handle, stream.handle)

    def is_done(self) -> bool:
        """True if the stream has come there."""
        return self.driver.is_ready("cuEventQuery", self.handle)

    def synchronize(self) -> None:
        """Wait until the stream has come there."""
        self.driver.call("cuEventSynchronize", self.handle)

    def since(self, start: Event) -> float:
        """Milliseconds between two events that measure time."""
        found = c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(found), start.handle, self.handle)
        return found.value

    def close(self) -> None:
        """Destroy it."""
        if self.handle:
            handle, self.handle = self.handle, 0
            self.driver.call("cuEventDestroy_v2", handle)


class Pool:
    """Memory of a GPU, handed out and taken back in the order of a stream's work."""

    def __init__(self, context: Context, keep: int = 1 << 62) -> None:
        self.driver = context.driver
        wanted = _PoolProperties(allocation=1, handles=0, location=1, device=context.device)
        self.handle = self.driver.number("cuMemPoolCreate", ctypes.byref(wanted))
        held = c_uint64(keep)  # bytes that stay with the pool when they are free
        self.driver.call("cuMemPoolSetAttribute", self.handle, 4, ctypes.byref(held))

    def allocate(self, nbytes: int, stream: Stream) -> int:
        """The address of fresh memory, at a multiple of 256."""
        return self.driver.number(
            "cuMemAllocFromPoolAsync", max(nbytes, 1), self.handle, stream.handle
        )

    def free(self, address: int, stream: Stream) -> None:
        """Take memory back after the stream's work so far."""
        self.driver.call("cuMemFreeAsync", address, stream.handle)

    def used(self) -> tuple[int, int]:
        """Bytes handed out, and bytes that the pool has of the GPU."""
        found = []
        for attribute in (7, 5):
            value = c_uint64()
            self.driver.call("cuMemPoolGetAttribute", self.handle, attribute, ctypes.byref(value))
            found.append(value.value)
        return found[0], found[1]

    def trim(self) -> None:
        """Give free memory back to the GPU."""
        self.driver.call("cuMemPoolTrimTo", self.handle, 0)

    def close(self) -> None:
        """Destroy it; memory that is in use goes when it is freed."""
        if self.handle:
            handle, self.handle = self.handle, 0
            self.driver.call("cuMemPoolDestroy", handle)


def copy_in(driver: Driver, to: int, host: int, nbytes: int, stream: Stream) -> None:
    """Host to device, in the stream's order; asynchronous if the host memory is pinned."""
    if nbytes:
        driver.call("cuMemcpyHtoDAsync_v2", to, host, nbytes, stream.handle)


def copy_out(driver: Driver, host: int, of: int, nbytes: int, stream: Stream) -> None:
    """Device to host, in the stream's order."""
    if nbytes:
        driver.call("cuMemcpyDtoHAsync_v2", host, of, nbytes, stream.handle)


def copy(driver: Driver, to: int, of: int, nbytes: int, stream: Stream) -> None:
    """Device to device."""
    if nbytes:
        driver.call("cuMemcpyDtoDAsync_v2", to, of, nbytes, stream.handle)


def fill(driver: Driver, to: int, byte: int, nbytes: int, stream: Stream) -> None:
    """Set bytes."""
    if nbytes:
        driver.call("cuMemsetD8Async", to, byte, nbytes, stream.handle)


class Pinned:
    """Host memory that copies do not wait for."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.driver, self.nbytes = driver, nbytes
        self.address = driver.number("cuMemHostAlloc", max(nbytes, 1), 0)

    def close(self) -> None:
        """Give it back."""
        if self.address:
            address, self.address = self.address, 0
            self.driver.call("cuMemFreeHost", address)


class Function:
    """A kernel that is loaded: what a launch needs."""

    __slots__ = ("block", "handle", "shared")

    def __init__(self, handle: int, block: int, shared: int) -> None:
        self.handle, self.block, self.shared = handle, block, shared


class Module:
    """Machine code on the GPU."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self.driver = driver
        self.handle = driver.number("cuModuleLoadData", image)

    def function(self, symbol: str, block: int, shared: int) -> Function:
        """One of its kernels, for blocks of so many threads with so much shared memory."""
        handle = self.driver.number("cuModuleGetFunction", self.handle, symbol.encode())
        if shared > 48 * 1024:
            self.driver.call("cuFuncSetAttribute", handle, 8, shared)
        return Function(handle, block, shared)

    def close(self) -> None:
        """Unload it."""
        if self.handle:
            handle, self.handle = self.handle, 0
            self.driver.call("cuModuleUnload", handle)


MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
_MAP_TYPES = {"float16": 6, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLES, _PROMOTION_128 = {32: 1, 64: 2, 128: 3}, 2  # CUtensorMapSwizzle, L2promotion


class Map:
    """A CUtensorMap in memory: a tensor for the copy engine, encoded when its address is known."""

    __slots__ = ("address", "memory", "spec")

    def __init__(self, spec: TensorMap) -> None:
        self.spec = spec
        self.memory = (c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
        first = ctypes.addressof(self.memory)
        self.address = first + -first % MAP_ALIGNMENT

    def encode(self, driver: Driver, tensor: int) -> None:
        """Describe the tensor at an address; the driver counts axes from the contiguous one."""
        spec, rank = self.spec, len(self.spec.shape)
        sizes = (c_uint64 * rank)(*spec.shape[::-1])
        strides = (c_uint64 * rank)(*[2 * n for n in spec.strides[-2::-1]])
        box, ones = (c_uint * rank)(*spec.box[::-1]), (c_uint * rank)(*[1] * rank)
        driver.call(
            "cuTensorMapEncodeTiled", self.address, _MAP_TYPES[spec.dtype], rank,
            tensor + spec.offset, sizes, strides, box, ones, 0, _SWIZZLES[spec.swizzle],
            _PROMOTION_128, 0,
        )  # fmt: skip


def tensor_cells(spec: TensorMap) -> list[tuple[str, Any]]:
    """The arguments that a tensor map is in Triton's machine code: it, its shape, its strides."""
    sizes: list[tuple[str, Any]] = [("i32", n) for n in spec.shape]
    return [("map", spec), *sizes, *[("i64", n) for n in spec.strides]]


class Arguments:
    """Values of a kernel's arguments in memory, and the table of their addresses."""

    __slots__ = ("address", "cells", "maps", "table")

    def __init__(self, values: Sequence[tuple[str, Any]]) -> None:
        """Pairs of a type ("i32", "map", else 64 bits) and a number or what a map is of."""
        self.cells = (c_uint64 * max(1, len(values)))()
        self.table = (c_void_p * max(1, len(values)))()
        self.maps: dict[int, Map] = {}
        first = ctypes.addressof(self.cells)
        for place, (kind, value) in enumerate(values):
            if kind == "map":
                found = self.maps[place] = Map(value)
                self.table[place] = found.address
                continue
            mask = 0xFFFFFFFF if kind == "i32" else 0xFFFFFFFFFFFFFFFF
            self.cells[place] = value & mask
            self.table[place] = first + 8 * place
        self.address = ctypes.addressof(self.table)

    def set(self, driver: Driver, place: int, value: int) -> None:
        """Change a 64-bit value, or the address of a map's tensor."""
        if place in self.maps:
            self.maps[place].encode(driver, value)
        else:
            self.cells[place] = value & 0xFFFFFFFFFFFFFFFF


def launch(
    driver: Driver, function: Function, grid: int, arguments: Arguments, stream: Stream
) -> None:
    """One kernel, after what the stream was given before."""
    driver.call(
        "cuLaunchKernel", function.handle, grid, 1, 1, function.block, 1, 1, function.shared,
        stream.handle, arguments.address, None,
    )  # fmt: skip


class Graph:
    """Kernels with explicit order, launched as one."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = driver.number("cuGraphCreate", 0)
        self.executable = 0
        self.children: list[int] = []  # graphs that were captured, of which it has copies
        self._launch = driver.functions["cuGraphLaunch"]

    def add(
        self, function: Function, grid: int, arguments: Arguments, after: Sequence[int] = ()
    ) -> int:
        """A kernel node, after others; its arguments are copied."""
        node = _node(function, grid, arguments)
        before = (c_void_p * max(1, len(after)))(*after)
        return self.driver.number(
            "cuGraphAddKernelNode_v2", self.handle, before, len(after), ctypes.byref(node)
        )

    @contextmanager
    def captured(self, stream: Stream) -> Iterator[list[int]]:
        """Record what a stream is given within as a graph: the one number of the list."""
        self.driver.call("cuStreamBeginCapture_v2", stream.handle, CAPTURE_OF_THREAD)
        found: list[int] = []
        handle = c_void_p()
        try:
            yield found
        except BaseException:
            self.driver.functions["cuStreamEndCapture"](stream.handle, ctypes.byref(handle))
            raise
        self.driver.call("cuStreamEndCapture", stream.handle, ctypes.byref(handle))
        found.append(int(handle.value or 0))
        self.children.append(found[0])

    def add_child(self, child: list[int], after: Sequence[int] = ()) -> int:
        """A captured graph as one node, after others."""
        before = (c_void_p * max(1, len(after)))(*after)
        return self.driver.number(
            "cuGraphAddChildGraphNode", self.handle, before, len(after), child[0]
        )

    def drop_child(self, child: list[int]) -> None:
        """Destroy a captured graph of which no copy is needed any more."""
        self.children.remove(child[0])
        self.driver.call("cuGraphDestroy", child[0])

    def update_child(self, node: int, child: list[int]) -> bool:
        """Give a node of the instantiated graph the work of another captured graph.

        False if that is no like the one before: the graph must be built anew.
        """
        code = self.driver.functions["cuGraphExecChildGraphNodeSetParams"](
            self.executable, node, child[0]
        )
        if code in LOST:
            raise self.driver.error("cuGraphExecChildGraphNodeSetParams", code)
        return bool(code == 0)

    def instantiate(self) -> None:
        """Make it ready; nodes are fixed from here on, their arguments are not."""
        self.executable = self.driver.number("cuGraphInstantiateWithFlags", self.handle, 0)

    def update(self, node: int, function: Function, grid: int, arguments: Arguments) -> None:
        """Give a node of the instantiated graph other arguments or another grid."""
        params = _node(function, grid, arguments)
        self.driver.call(
            "cuGraphExecKernelNodeSetParams_v2", self.executable, node, ctypes.byref(params)
        )

    def launch(self, stream: Stream) -> None:
        """All of it, after what the stream was given before."""
        code = self._launch(self.executable, stream.handle)
        if code:
            raise self.driver.error("cuGraphLaunch", code)

    def close(self) -> None:
        """Destroy it."""
        if self.executable:
            handle, self.executable = self.executable, 0
            self.driver.call("cuGraphExecDestroy", handle)
        if self.handle:
            handle, self.handle = self.handle, 0
            self.driver.call("cuGraphDestroy", handle)
        while self.children:
            self.driver.call("cuGraphDestroy", self.children.pop())


def _node(function: Function, grid: int, arguments: Arguments) -> KernelNode:
    return KernelNode(
        function.handle, (c_uint * 3)(grid, 1, 1), (c_uint * 3)(function.block, 1, 1),
        function.shared, arguments.address, None, None, None,
    )  # fmt: skip
