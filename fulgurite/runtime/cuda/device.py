"""An NVIDIA GPU: memory of its own, kernels in Triton's machine code, plans as CUDA graphs.

In: scheduled kernels and host arrays. Out: asynchronous launches in the order of one stream, and
copies. A kernel that has no form in Triton runs on the host, over copies; `interpreted` says which
and why. The context is the primary one, which torch, JAX and CuPy of the same process share.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._lazy import FORK_LOCK
from ...config import current
from ...core.dtype import DType, dtype_of
from ...core.node import Node
from ...core.op import Array
from ...core.ranks import local_rank
from ...errors import BoundsError
from ...graph.ir.kernel import Kernel, Schedule, is_collective
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.reshape_groups import CannotLower
from ...graph.memory.arena import Layout
from ..cache import has_nothing
from ..device import Buffer, Device, DeviceError, Executable, Executor, MemoryLimitError
from ..device_base import CONTROL, HOST, BaseDevice
from ..recording import Recorder
from ..step_executor import StepCode
from . import driver as cuda
from .kernels import CudaKernel, KernelTable
from .memory import BorrowedBlock, CudaBuffer, MemoryPool
from .staging import STAGED_BYTES, Staging
from .start import Start

if TYPE_CHECKING:
    from ...codegen.cuda.source import KernelSource
    from ...codegen.cuda.tiling import GpuTable
    from ...graph.fusion.proposals import Source
    from .collectives import Links
    from .cublaslt import Blas
    from .timing import StreamTimes

POISON = 0xA5
FLAG_BYTES = 4096  # of words by which programs of a launch wait for each other
DLPACK_CUDA = 2
BATCH = 4  # launches whose checks are looked at together
_threads = threading.local()  # the device whose context is current in each


def count() -> int:
    """How many GPUs there are; 0 without a driver."""
    try:
        return cuda.the_driver().devices()
    except cuda.CudaError:
        return 0


# A launch of which it is not known yet whether its indices were inside: its `ErrorWords`, its
# results, and what raises the error with the user's line.
Unchecked = tuple[Any, Sequence[weakref.ref[Any]], Callable[[], None] | None]


class Returned:
    """Memory that crosses back between libraries, once nobody works on it."""

    def __init__(self, device: CudaDevice, held: Any) -> None:
        self.device, self.held = device, held

    def close(self) -> None:
        """Wait for everything on the GPU, and let go of it."""
        held, self.held = self.held, None
        self.device.context.synchronize()
        if hasattr(held, "close"):
            held.close()
        elif held.block.holders == 1:
            held.block.exported = None


class CudaDevice(BaseDevice):
    """One GPU."""

    guards_writes = True
    keeps_addresses = True  # they are in its graphs

    properties: cuda.Properties  # there when the driver has started, as is `dlpack`
    context: cuda.Context  # this and all that follows: when there is a context
    stream: cuda.Stream
    pool: MemoryPool
    lock: CudaBuffer
    flags: CudaBuffer
    _mark: cuda.Event

    def __init__(self, name: str = "cuda") -> None:
        self.expect_compiles()  # while the driver starts, which takes as long
        self.driver, self.name = cuda.the_driver(), name
        self.launch_graph = self.driver.functions["cuGraphLaunch"]
        self._discarded: list[cuda.Graph | cuda.Pinned | Returned] = []
        self._lost = ""
        self.programs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.interpreted: list[str] = []
        self.times: StreamTimes | None = None  # while somebody records
        self.unchecked: list[Unchecked] = []
        self._settling = threading.RLock()
        self.start = Start(self)
        os.register_at_fork(before=self.start.join, after_in_child=self._after_fork)

    def ordinal(self) -> int:
        """The driver's number of the GPU."""
        given = self.name.partition(":")[2]
        return int(given) if given else local_rank() % max(1, self.driver.devices())

    def find_out(self) -> None:
        """Ask the driver, which has started, what the GPU is."""
        ordinal = self.ordinal()
        found = cuda.properties_of(self.driver, cuda.device_of(self.driver, ordinal))
        vars(self).update(properties=found, dlpack=(DLPACK_CUDA, ordinal))

    def make_context(self) -> None:
        """Make the context current in this thread, a stream and memory: all of it or nothing."""
        driver = self.driver
        with ExitStack() as made:
            context = cuda.Context(driver, self.ordinal())
            made.callback(context.close)
            stream = cuda.Stream(driver)
            made.callback(stream.close)
            pool = MemoryPool(context, stream)
            made.callback(pool.close)
            words: list[CudaBuffer] = []
            made.callback(words.clear)
            for nbytes in (256, FLAG_BYTES):
                block = pool.take(nbytes)
                words.append(CudaBuffer(block, block.address, nbytes))
                cuda.fill(driver, block.address, 0, nbytes, stream)
            mark = cuda.Event(driver)
            made.pop_all()
        pool.reclaim = self._reclaim
        lock, flags = words
        vars(self).update(
            context=context, stream=stream, pool=pool, lock=lock, flags=flags, _mark=mark
        )
        _threads.device = self

    def expect_compiles(self) -> None:
        """Load the compiler meanwhile, if there is nothing on disk that could be used instead."""
        if has_nothing(current()):
            with FORK_LOCK:
                from ...codegen.cuda import generator
            generator.load_compiler_ahead()

    def _after_fork(self) -> None:
        global _threads
        _threads = threading.local()
        self.start.after_fork()
        if self.start.is_done:
            self._lost = "this process is a fork of one that used the GPU"

    def enter(self) -> None:
        """Make the GPU the calling thread's; an error in a forked process."""
        if getattr(_threads, "device", None) is not self:
            if self._lost:
                raise DeviceError(
                    self._lost, "start it with the 'spawn' method, or use the GPU only in children"
                )
            self.context.use()
            _threads.device = self
        while self._discarded:  # what is closed may discard more: the memory it was lent
            discarded, self._discarded = self._discarded, []
            for owned in discarded:
                owned.close()

    def discard(self, owned: cuda.Graph | cuda.Pinned | Returned) -> None:
        """Close something at the next launch: the garbage collector must not call the driver."""
        self._discarded.append(owned)

    def _reclaim(self) -> None:
        for program in list(self.programs):
            program.forget()
        if "copies" in vars(self):
            self.copies.empty()

    # --- checks of indices that are waited for later ---------------------------------------------

    def leave_unchecked(
        self, errors: Any, made: Sequence[weakref.ref[Any]], tell: Callable[[], None] | None
    ) -> None:
        """Find out later whether a launch that writes only if its checks are good did so."""
        waiting = self.unchecked
        waiting.append((errors, made, tell))
        count = len(waiting)
        if count == BATCH:
            self._mark.record(self.stream)
        elif count == 2 * BATCH:  # the first half has run by now, unless the host is far ahead
            self._mark.synchronize()
            if any([errors.words[0] for errors in {errors for errors, _, _ in waiting}]):
                self.settle()
                return
            del waiting[:BATCH]
            self._mark.record(self.stream)

    def settle(self) -> None:
        """Wait for checks that nobody asked about yet; an error if one failed."""
        if self.unchecked:
            self.enter()
            self.stream.synchronize()
            self.judge()

    def judge(self) -> None:
        """Raise the error of the first launch whose check failed; it and later ones did nothing."""
        with self._settling:
            waiting, self.unchecked = self.unchecked, []
            wrong = {id(errors): errors for errors, _, _ in waiting if errors.words[0]}
            if not wrong:
                return
            (problem, *_) = [errors.taken() for errors in wrong.values()]
            first = 0
            for number, (errors, _, tell) in enumerate(waiting):
                if id(errors) in wrong and tell is not None:
                    try:
                        tell()
                    except BoundsError as named:
                        first, problem = number, named
                        break
            for _, made, _ in waiting[first:]:
                for found in made:
                    buffer = found()
                    if buffer is not None:
                        buffer.block.failed, buffer.address = problem, 0
        raise problem

    def unlock(self) -> None:
        """Let kernels write over inputs again."""
        self.fill(self.lock, 0)

    # --- memory ----------------------------------------------------------------------------------

    def taken(self, nbytes: int) -> CudaBuffer:
        """Memory for so many bytes."""
        self.enter()
        if nbytes > self.properties.memory:
            raise MemoryLimitError(
                f"no memory for {nbytes} bytes: {self.properties.name} has "
                f"{self.properties.memory}",
                "use smaller shapes",
            )
        block = self.pool.take(nbytes)
        return CudaBuffer(block, block.address, nbytes)

    def allocate(self, shape: tuple[int, ...], dtype: DType, poison: bool = False) -> CudaBuffer:
        """Memory for a value; its contents are undefined, or garbage on purpose."""
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        try:
            made = self.taken(nbytes)
        except MemoryLimitError as problem:
            raise MemoryLimitError(
                f"{problem.what}, for {dtype} of shape {shape}", problem.hint
            ) from problem
        if poison:
            self.fill(made, POISON)
        return made

    def view(self, buffer: Buffer, offset: int, shape: tuple[int, ...], dtype: DType) -> CudaBuffer:
        """A value inside a buffer, so many bytes from its beginning; it keeps the buffer alive."""
        assert isinstance(buffer, CudaBuffer)
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        return CudaBuffer(buffer.block, buffer.address + offset, nbytes)

    def from_host(self, array: Array, share: bool = False) -> Buffer:
        """A copy of an array's values; large ones are copied while kernels run."""
        return self.copied_in(array)

    def copied_in(self, array: Array) -> CudaBuffer:
        """A copy of an array's values in memory of the GPU."""
        if array.nbytes >= STAGED_BYTES:
            self.enter()
            with self._timed("to the device", array.nbytes):
                made = self.copies.put(np.ascontiguousarray(array))
            if made is not None:
                return made
        made = self.allocate(array.shape, dtype_of(array.dtype))
        self.copy_in(np.ascontiguousarray(array), made)
        return made

    def copy_in(self, host: Array, to: Buffer) -> None:
        """Values of a contiguous host array; pageable memory is staged before this returns."""
        self.enter()
        with self._timed("to the device", host.nbytes):
            cuda.copy_in(self.driver, to.address, host.ctypes.data, host.nbytes, self.stream)

    def copy_out(self, source: Buffer, host: Array) -> None:
        """Values into a contiguous host array, when all that was launched before has run."""
        self.enter()
        if not source.address and source.block.failed is not None:  # type: ignore[attr-defined]
            raise source.block.failed  # type: ignore[attr-defined]
        with self._timed("to the host", host.nbytes):
            cuda.copy_out(self.driver, host.ctypes.data, source.address, host.nbytes, self.stream)
        self.stream.synchronize()
        if self.unchecked:
            self.judge()

    def copy(self, source: Buffer, to: Buffer) -> None:
        """All of a buffer into another one, after what was launched before."""
        self.enter()
        with self._timed("within the device", source.nbytes):
            cuda.copy(self.driver, to.address, source.address, source.nbytes, self.stream)

    def duplicated(self, source: Buffer) -> CudaBuffer:
        """The same values in memory of their own."""
        made = self.taken(source.nbytes)
        self.copy(source, made)
        return made

    def fill(self, buffer: Buffer, byte: int) -> None:
        """One byte everywhere."""
        self.enter()
        cuda.fill(self.driver, buffer.address, byte, buffer.nbytes, self.stream)

    def copy_from(
        self, other: Device, source: Buffer, shape: tuple[int, ...], dtype: DType
    ) -> Buffer:
        """A value of another device, by way of the host."""
        return self.from_host(np.ascontiguousarray(other.to_host(source, shape, dtype)))

    # --- other libraries on the same GPU ---------------------------------------------------------

    def lend(self, buffer: Any, stream: object) -> Callable[[], None]:
        """Let a consumer read memory, on a stream of its own, after all that was launched.

        -1 stands for one that waits for nothing. Out: what gives the memory back: when it is next
        used, whoever had it must be done with it.
        """
        self.settle()
        self.enter()
        if stream is None:
            self.stream.synchronize()
        elif int(str(stream)) >= 0:  # 1 and 2 are the driver's names of default streams too
            self._mark.record(self.stream)
            self.driver.call("cuStreamWaitEvent", int(str(stream)), self._mark.handle, 0)
        buffer.block.exported = "DLPack"
        return lambda: self.discard(Returned(self, buffer))

    def follow(self, stream: int) -> None:
        """Launch from here on after what another library's stream has been given so far."""
        self.enter()
        self.driver.call("cuEventRecord", self._mark.handle, stream)
        self.driver.call("cuStreamWaitEvent", self.stream.handle, self._mark.handle, 0)

    def lead(self, stream: int) -> None:
        """Let another library's stream wait for all that was launched."""
        self._mark.record(self.stream)
        self.driver.call("cuStreamWaitEvent", stream, self._mark.handle, 0)

    def borrow(self, owner: Any) -> CudaBuffer:
        """Memory of another library, on which our stream waits for what made it."""
        nbytes = owner.dtype.itemsize * prod(owner.shape)
        block = BorrowedBlock(owner, lambda held: self.discard(Returned(self, held)))
        return CudaBuffer(block, block.address, nbytes)

    def record(self, recorder: Recorder | None) -> None:
        """Events in the stream time launches and copies; they are asked when recording ends."""
        super().record(recorder)
        if self.times is not None:
            self.times.stop()
            self.times = None
        if recorder is not None:
            with FORK_LOCK:
                from . import timing
            self.times = timing.StreamTimes(self, recorder)

    def stopwatch(self) -> Callable[[Callable[[], object]], float]:
        """Events around a run, behind fills that take the host's time and empty the cache."""
        with FORK_LOCK:
            from . import timing
        found: Callable[[Callable[[], object]], float] = timing.ColdRuns(self)
        return found

    def _timed(self, what: str, nbytes: int) -> AbstractContextManager[None]:
        """Note a copy if somebody records."""
        return nullcontext() if self.times is None else self.times.copy(what, nbytes)

    def synchronize(self) -> None:
        """Wait until all that was launched has run; an error if a check failed."""
        self.enter()
        self.stream.synchronize()
        self.judge()
        if self.times is not None:
            self.times.tell()

    def memory_stats(self, reset_peak: bool = False) -> dict[str, int]:
        """Figures of the pool."""
        return self.pool.stats(reset_peak)

    def empty_cache(self) -> int:
        """Give memory that no value uses back to the driver."""
        self.enter()
        self._reclaim()
        return self.pool.empty()

    @property
    def copies(self) -> Staging:
        """The stream that large arrays come by; the thread that starts the GPU asks for it too."""
        found: Staging | None = vars(self).get("copies")
        if found is None:
            with self.start.lock:
                found = vars(self).get("copies") or vars(self).setdefault("copies", Staging(self))
        return found

    # --- code ------------------------------------------------------------------------------------

    @property
    def preferred(self) -> GpuTable:
        """What kernels of this GPU are chosen by: for who plans, not for plans from the disk."""
        with FORK_LOCK:
            from ...codegen.cuda import tiling
        found: GpuTable = tiling.HOPPER
        return found

    @property
    def joins_column_sums(self) -> bool:  # type: ignore[override]
        """True if one launch has rows and partial sums of their columns."""
        return self.preferred.joined_sums

    @property
    def compares_results(self) -> bool:  # type: ignore[override]
        """True if a rectifier's condition is told by its result."""
        return self.preferred.compared_results

    @property
    def joins_small_maps(self) -> bool:  # type: ignore[override]
        """True if small maps are launched together."""
        return self.preferred.joined_maps

    @property
    def joins_in_place(self) -> bool:  # type: ignore[override]
        """True if parts of a joined array are stored where it has them."""
        return self.preferred.joined_in_place

    @property
    def operand_reuse(self) -> int:  # type: ignore[override]
        """Products of an element for which its rounded value is stored."""
        return self.preferred.operand_reuse

    @property
    def channels_last(self) -> bool:  # type: ignore[override]
        """True if images between kernels have their channels last."""
        return self.preferred.channels_last

    @cached_property
    def codegen(self) -> Any:  # type: ignore[override]
        """Triton for this GPU."""
        with FORK_LOCK:
            from ...codegen.cuda import generator
        return generator.CudaCodeGenerator(self)

    @cached_property
    def table(self) -> KernelTable:
        """The functions that are loaded."""
        capability, key = self.properties.capability, self.codegen.key
        return KernelTable(self.driver, capability, key, self.enter, self.properties.shared)

    # --- products of a vendor's library ----------------------------------------------------------

    @cached_property
    def blas(self) -> Blas | None:
        """cuBLASLt on this GPU; None if it is not there."""
        with FORK_LOCK:
            from . import library
        made: Blas | None = library.opened(self)
        return made

    @cached_property
    def capture(self) -> cuda.Stream:
        """The stream that a library's work is captured from."""
        self.enter()
        return cuda.Stream(self.driver)

    @property
    def asks_library(self) -> bool:  # type: ignore[override]
        """True if cuBLASLt may compute products."""
        options = current()
        return options.cublas != "off" and not options.exact

    @property
    def providers(self) -> Sequence[Source]:
        """cuBLASLt, whose bits are the same on every run on one GPU."""
        if not self.asks_library:
            return ()
        with FORK_LOCK:
            from . import library
        return (library.provider(self),)

    def keeps_float8(self, fold: Node) -> bool:
        """True if cuBLASLt takes a product of float8 as it is."""
        if not self.asks_library:
            return False
        with FORK_LOCK:
            from . import library
        return bool(library.takes_float8(self, fold))

    def library_kernel(self, kernel: Kernel) -> CudaKernel | None:
        """A kernel that a search gave to the library, if that is there."""
        if kernel.kind is not KernelKind.LIBRARY:
            return None
        with FORK_LOCK:
            from . import library
        found: CudaKernel | None = library.library_kernel(self, kernel)
        return found

    def code_key(self) -> Hashable:
        """Code for this GPU depends on the kernel and how exact products are."""
        return current().matmul_precision

    def compile(self, kernels: Sequence[Kernel]) -> list[Executable]:
        """Machine code for kernels; those that have none run on the host."""
        return self.compile_guarded(kernels, frozenset())

    def compile_guarded(self, kernels: Sequence[Kernel], over: Set[Kernel]) -> list[Executable]:
        """The same; those that write over inputs look at the lock before."""
        found: list[Executable] = [None] * len(kernels)
        places: list[int] = []  # of those that were rendered

        def rendered() -> Iterator[KernelSource]:
            for number, kernel in enumerate(kernels):
                if kernel.kind in (*CONTROL, *HOST):
                    found[number] = self.exchange(kernel) or self.step_code(kernel)
                    continue
                product = None if kernel in over else self.library_kernel(kernel)
                if product is not None:
                    found[number] = product
                    continue
                try:
                    make = self.codegen.guarded if kernel in over else self.codegen.render
                    made = make(kernel)
                except CannotLower as reason:
                    self.interpreted.append(f"{kernel.name}: {reason}")
                    found[number] = self.staged(kernel)
                    continue
                places.append(number)
                yield made

        loaded = self.table.add(rendered())  # compiles the first while the next is rendered
        for number, code in zip(places, loaded, strict=True):
            found[number] = code
        return found

    def compile_ahead(self, kernels: Sequence[Kernel], over: Set[Kernel]) -> None:
        """Send texts to the compiler as the GPU wants them that tiles are chosen for.

        Which this is may not be known yet: if it is another, they are rendered and compiled again.
        """
        with FORK_LOCK:
            from ...codegen.cuda import generator
        begun = [k for k in kernels if k.kind not in (*CONTROL, *HOST, KernelKind.LIBRARY)]
        generator.compile_ahead(begun, over)

    @property
    def has_collectives(self) -> bool:
        """True if GPUs exchange data themselves, by NCCL."""
        with FORK_LOCK:
            from . import collectives
        return collectives.are_wanted()

    @cached_property
    def links(self) -> Links:
        """Communicators with other GPUs."""
        with FORK_LOCK:
            from . import collectives
        made: Links = collectives.Links(self)
        return made

    def exchange(self, kernel: Kernel) -> CudaKernel | None:
        """A collective as work of the GPU, if it is one that NCCL does."""
        if not is_collective(kernel) or not self.has_collectives:
            return None
        with FORK_LOCK:
            from . import collectives
        found: CudaKernel | None = collectives.exchange_of(self, kernel)
        return found

    def staged(self, kernel: Kernel) -> StepCode:
        """A kernel that the host interprets, over copies."""
        with FORK_LOCK:
            from .. import device_base
        made: StepCode = device_base.StagedStep(self, kernel)
        return made

    def workspace_bytes(self, kernels: Sequence[Kernel]) -> int:
        """What texts say that they need."""
        most = 0
        for kernel in dict.fromkeys(kernels):
            if kernel.kind not in (*CONTROL, *HOST):
                try:
                    most = max(most, self.codegen.render(kernel).workspace)
                except CannotLower:
                    continue
        return most

    def link(self, schedule: Schedule, code: Sequence[Executable], layout: Layout) -> Executor:
        """Segments of kernels, which are graphs from the second run on."""
        self.enter()
        with FORK_LOCK:
            from . import executor
        program = executor.CudaProgram
        made: Executor = program(self, schedule, code, layout)
        return made

    # --- code on disk ----------------------------------------------------------------------------

    def plan_key(self) -> str | None:
        """The compiler and the GPU it compiles for."""
        nccl = " nccl" if self.has_collectives else ""
        compiler = f"{self.codegen.key} sm_{self.properties.capability}{nccl}"
        return f"{compiler} {self.library_key()}".rstrip()

    def library_key(self) -> str:
        """The file of cuBLASLt, where that may be asked for anything.

        Plans with its products of float8 find out when they run: whatever it is then, it is asked.
        """
        if not self.asks_library or current().cublas == "float8":
            return ""
        with FORK_LOCK:
            from . import cublaslt
        found: str = cublaslt.identity()
        return found

    def dump_code(self, code: Executable) -> list[Any] | None:
        """Launches by the digests of their machine code; nothing of host steps."""
        if not isinstance(code, CudaKernel) or code.is_exchange:
            return None
        if code.is_library:
            with FORK_LOCK:
                from . import library
            found: list[Any] = library.dump(self, code)
            return found
        return self.table.dump(code)

    def load_code(self, kernel: Kernel, dumped: list[Any] | None) -> Executable | None:
        """Machine code from the store; host steps are made again."""
        if dumped is not None and isinstance(dumped[0], str):
            with FORK_LOCK:
                from . import library
            found: CudaKernel | None = library.restored(self, kernel, dumped)
            return found
        if dumped is not None:
            return self.table.restored(dumped)
        if kernel.kind in (*CONTROL, *HOST):
            return self.exchange(kernel) or self.step_code(kernel)
        return self.staged(kernel)

    def export_code(self, code: Sequence[Executable], members: dict[str, bytes]) -> dict[str, Any]:
        """The cubins of all kernels, and the GPU they are for."""
        return self.table.export(code, members)

    def import_code(self, about: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
        """Load exported cubins."""
        self.enter()
        self.table.install(about, members)
