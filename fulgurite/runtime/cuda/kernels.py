"""Kernels as loaded machine code: compiled once by text, in parallel, for this process and others.

In: `KernelSource`s. Out: a `CudaKernel` for each: functions on the GPU, grids, arguments. A launch
has a digest over its text, signature, warps and stages, the GPU's capability and the compiler; a
cubin that was made before, here or (through the disk store) by another process, is loaded and not
compiled. Triton is imported when a text must be compiled and not before.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._lazy import FORK_LOCK
from ...codegen.cuda.source import (
    LOCK,
    NUMBER,
    PARAM,
    Argument,
    KernelSource,
    Launch,
    TensorMap,
)
from ...config import current
from ...core.digest import digest_of
from ...errors import CompilerError
from ..cache.disk import store_for
from ..device import DeviceError
from . import driver as cuda

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from ...codegen.cuda.compilation.compiler import Cubin

ABOUT = ("symbol", "shared", "warps")  # what loading a cubin must know


class LoadedLaunch(NamedTuple):
    """One function on the GPU and how it is launched."""

    digest: str
    function: cuda.Function
    grid: int
    arguments: tuple[Argument, ...]

    @property
    def is_fixed(self) -> bool:
        """False: an instantiated graph can give it other arguments."""
        return False

    def launch(self, driver: cuda.Driver, arguments: cuda.Arguments, stream: cuda.Stream) -> None:
        """Run it, after what the stream was given before."""
        cuda.launch(driver, self.function, self.grid, arguments, stream)

    def add_to(self, graph: cuda.Graph, arguments: cuda.Arguments, after: list[int]) -> int:
        """A node of a graph."""
        return graph.add(self.function, self.grid, arguments, after)

    def update_in(self, graph: cuda.Graph, node: int, arguments: cuda.Arguments) -> bool:
        """Give a node of an instantiated graph other arguments; True: that is always possible."""
        graph.update(node, self.function, self.grid, arguments)
        return True


def cells_of(
    arguments: Sequence[Argument],
) -> tuple[list[tuple[str, Any]], dict[int, tuple[str, Any]]]:
    """Types and values of a launch's arguments; which of them come from where, and of what."""
    cells: list[tuple[str, Any]] = []
    uses: dict[int, tuple[str, Any]] = {}
    for one in arguments:
        place, value = len(cells), one.value
        if isinstance(value, TensorMap):
            uses[place] = PARAM, value.param
            cells += cuda.tensor_cells(value)
        elif one.source == NUMBER:
            cells.append((one.type, int(value)))
        else:
            uses[place] = one.source, value
            cells.append(("i64", 0))
    return [*cells, ("ptr", 0), ("ptr", 0)], uses  # scratch memory that none of ours has


class CudaKernel(NamedTuple):
    """A kernel as launches, one after the other."""

    launches: tuple[LoadedLaunch, ...]
    workspace: int
    variables: tuple[str, ...]
    reports_bounds: bool

    @property
    def is_exchange(self) -> bool:
        """True if it is a collective, which has no machine code."""
        return any(n.is_fixed for n in self.launches)

    @property
    def is_library(self) -> bool:
        """True if its first launch is a product of a vendor's library."""
        first = self.launches[:1]
        return any([not isinstance(n, LoadedLaunch) and not n.is_fixed for n in first])

    @property
    def is_guarded(self) -> bool:
        """True if it does nothing while the lock is set."""
        return not self.reports_bounds and all(
            any(a.source == LOCK for a in n.arguments) for n in self.launches
        )


class Compilations:
    """Launches on their way through the compiler: of those that wait, the most laborious is next.

    What ends last would be waited for (longest processing time first).
    """

    def __init__(self, compiled: Callable[[Launch], Cubin]) -> None:
        self.compiled = compiled
        self.begun: set[str] = set()
        self._waiting: list[tuple[bool, int, str, Launch]] = []  # a heap
        self._lock = threading.Lock()
        self._done: SimpleQueue[tuple[str, Cubin | BaseException]] = SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Compilations:
        return self

    def begin(self, digest: str, launch: Launch) -> None:
        """Compile one as soon as a thread is free."""
        if self._threads is None:
            with FORK_LOCK:
                from concurrent.futures import ThreadPoolExecutor

                from ...codegen.cuda.compilation import pool
            self._threads = ThreadPoolExecutor(pool.width())
        self.begun.add(digest)
        is_product, size = launch.effort
        with self._lock:
            heappush(self._waiting, (not is_product, -size, digest, launch))
        self._threads.submit(self._next)

    def _next(self) -> None:
        with self._lock:
            *_, digest, launch = heappop(self._waiting)
        try:
            self._done.put((digest, self.compiled(launch)))
        except BaseException as problem:  # raised where it is waited for
            self._done.put((digest, problem))

    def finished(self) -> Iterator[tuple[str, Cubin]]:
        """All that was begun, as it is done."""
        for _ in self.begun:
            digest, made = self._done.get()
            if isinstance(made, CompilerError):  # the line it was asked at is this thread's
                raise CompilerError(made.what, made.hint) from made
            if isinstance(made, BaseException):
                raise made
            yield digest, made

    def __exit__(self, *problem: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


class KernelTable:
    """All functions that are loaded on one GPU."""

    def __init__(
        self, driver: cuda.Driver, capability: int, key: str, enter: Callable[[], None],
        shared: int,
    ) -> None:  # fmt: skip
        self.driver, self.capability, self.key = driver, capability, key
        self.shared = shared  # bytes that a program may have
        self.enter = enter  # waits for the context: kernels are compiled before there is one
        self.functions: dict[str, cuda.Function] = {}
        self.images: dict[str, tuple[bytes, dict[str, Any]]] = {}  # for those who ship code
        self.modules: list[cuda.Module] = []
        self.compiled = 0  # launches that went through the compiler here
        self._lock = threading.RLock()

    def add(self, sources: Iterable[KernelSource]) -> list[CudaKernel]:
        """Loaded kernels; launches that nobody compiled yet are compiled while others are made."""
        kept: list[KernelSource] = []
        with self._lock, Compilations(self.cubin) as work:
            for source in sources:
                kept.append(source)
                for launch in source.launches:
                    digest = self.digest(launch)
                    if digest not in work.begun and not self.fetch(digest):
                        work.begin(digest, launch)
            for digest, cubin in work.finished():
                self._keep(digest, cubin)
        return [self._kernel(source) for source in kept]

    def digest(self, launch: Launch) -> str:
        """What a launch's machine code depends on."""
        return digest_of(f"{self.key}\n{self.capability}\n{launch.key!r}".encode())

    def _kernel(self, source: KernelSource) -> CudaKernel:
        launches = []
        for launch in source.launches:
            digest = self.digest(launch)
            launches.append(
                LoadedLaunch(digest, self.functions[digest], launch.grid, launch.arguments)
            )
        return CudaKernel(
            tuple(launches), source.workspace, source.variables, source.reports_bounds
        )

    def _keep(self, digest: str, cubin: Cubin) -> None:
        """Load what was compiled, and store it."""
        assert not cubin.scratch, "a kernel wants scratch memory"
        about = {"symbol": cubin.symbol, "shared": cubin.shared, "warps": cubin.warps}
        self._load(digest, cubin.image, about)
        store = store_for(current())
        if store is not None:
            name = digest_of(cubin.image)
            text = json.dumps({"object": name, **about}).encode()
            store.put_many([("object", name, cubin.image), ("kernel", digest, text)])
        self.compiled += 1

    def cubin(self, launch: Launch) -> Cubin:
        """Machine code of a launch, with as many steps on their way as the GPU has room for."""
        with FORK_LOCK:
            from ...codegen.cuda.compilation import pool
        found: Cubin = pool.compile_launch(launch, self.capability)
        while found.shared > self.shared:
            if launch.stages == 1:
                raise DeviceError(
                    f"a kernel wants {found.shared} bytes of shared memory, of which this GPU has "
                    f"{self.shared}",
                    "use float16 or bfloat16, smaller heads, or another GPU",
                )
            launch = replace(launch, stages=launch.stages - 1)
            found = pool.compile_launch(launch, self.capability)
        return found

    def fetch(self, digest: str) -> bool:
        """True if a launch's code is loaded, or can be loaded from the disk."""
        if digest in self.functions:
            return True
        with self._lock:
            return digest in self.functions or self._fetch(digest)

    def _fetch(self, digest: str) -> bool:
        store = store_for(current())
        found = store.get("kernel", digest) if store is not None else None
        if store is None or found is None:
            return False
        try:
            about = json.loads(found)
            image = store.get("object", about["object"])
            if image is None:
                return False
            self._load(digest, image, about)
        except (cuda.CudaError, ValueError, KeyError, TypeError) as problem:
            if isinstance(problem, cuda.DeviceLostError | cuda.CudaMemoryError):
                raise
            warnings.warn(f"a stored kernel is not used: {problem}", RuntimeWarning, stacklevel=2)
            return False
        return True

    def _load(self, digest: str, image: bytes, about: dict[str, Any]) -> None:
        self.enter()
        module = cuda.Module(self.driver, image)
        self.modules.append(module)
        self.images[digest] = image, {name: about[name] for name in ABOUT}
        self.functions[digest] = module.function(
            about["symbol"], about["warps"] * 32, about["shared"]
        )

    # --- code for other processes ----------------------------------------------------------------

    def export(self, code: Sequence[Any], members: dict[str, bytes]) -> dict[str, Any]:
        """The cubins of kernels, those inside loops and choices too, as members of a file."""
        cubins: dict[str, Any] = {}
        waiting = list(code)
        while waiting:
            one = waiting.pop()
            for launch in self._own(one):
                image, about = self.images[launch.digest]
                cubins[launch.digest] = about
                members[f"cubins/{launch.digest}"] = image
            for plan in getattr(one, "plans", ()):
                waiting += [kernel.code for kernel in plan.kernels]
        return {"cubins": cubins, "capability": self.capability}

    @staticmethod
    def _own(code: Any) -> list[LoadedLaunch]:
        """The launches that have machine code, that in the place of a library's too."""
        if not isinstance(code, CudaKernel) or code.is_exchange:
            return []
        if not code.is_library:
            return list(code.launches)
        first: Any = code.launches[0]
        return [*first.instead().launches, *code.launches[1:]]

    def install(self, about: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
        """Load exported cubins, if they are for such a GPU."""
        if about["capability"] != self.capability:
            raise DeviceError(f"it is for sm_{about['capability']}, this is sm_{self.capability}")
        for digest, known in about["cubins"].items():
            if digest not in self.functions:
                self._load(digest, members[f"cubins/{digest}"], known)

    # --- code on disk ----------------------------------------------------------------------------

    def dump(self, kernel: CudaKernel) -> list[Any]:
        """What JSON can hold of a kernel."""
        launches = [[n.digest, n.grid, [list(a) for a in n.arguments]] for n in kernel.launches]
        return [launches, kernel.workspace, list(kernel.variables), kernel.reports_bounds]

    def restored(self, dumped: Sequence[Any]) -> CudaKernel | None:
        """The kernel that was dumped; None if its machine code is gone."""
        listed, workspace, variables, reports = dumped
        launches = []
        for digest, grid, arguments in listed:
            if not self.fetch(digest):
                return None
            found = tuple([Argument.restored(a) for a in arguments])
            launches.append(LoadedLaunch(digest, self.functions[digest], grid, found))
        return CudaKernel(tuple(launches), workspace, tuple(variables), bool(reports))
