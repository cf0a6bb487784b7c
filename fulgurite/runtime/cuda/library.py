"""Products of a plan that cuBLASLt computes: launches beside kernels, in the same graphs.

In: a kernel that is a product, with an epilogue or without. Out: a launch of the library's, then
those of the epilogue. Run alone the product is work of the stream; in a CUDA graph it is a child
graph, captured from a stream of its own, and another one when addresses change (the library packs
them into its kernels' arguments in a way of its own). Whatever the library refuses, then or later,
is computed by the kernel of our own that it stood for, from there on.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...codegen.cuda import source
from ...codegen.cuda.library import Gemm, LibraryKernel, find_library, float8_gemm
from ...codegen.cuda.library_rates import gain_of
from ...codegen.cuda.source import Argument
from ...config import current
from ...core.node import Node
from ...graph.fusion.machine import CostTable, memory_time, time_of
from ...graph.fusion.proposals import Proposal, Source
from ...graph.ir.kernel import Kernel, params_of
from ...graph.ir.kernel_kind import KernelKind
from . import driver as cuda
from .cublaslt import Blas, Choice, CublasError, CublasLt, Product
from .kernels import CudaKernel, cells_of

if TYPE_CHECKING:
    from .device import CudaDevice

NAME = "library"  # before what is kept of such kernels
ALWAYS = 0.01  # of a kernel's cost, where the library is asked for wherever it can be


class LibraryLaunch:
    """A product that the library computes: a launch whose arguments are where its values are."""

    grid = 1
    is_fixed = False

    def __init__(
        self, device: CudaDevice, kernel: Kernel, gemm: Gemm, choice: Choice, version: str,
        arguments: tuple[Argument, ...],
    ) -> None:  # fmt: skip
        """Arguments are the product's params in order, and the workspace if it has any."""
        self.device, self.kernel, self.gemm = device, kernel, gemm
        self.choice, self.version, self.arguments = choice, version, arguments
        self.digest = "cublaslt"
        self.product: Product | None = None
        self.failed = False
        self.own: CudaKernel | None = None  # what is launched if the library failed
        self._memory: Any = None  # its workspace

    def launch(self, driver: cuda.Driver, arguments: cuda.Arguments, stream: cuda.Stream) -> None:
        """Run it, after what the stream was given before."""
        if not self.failed:
            try:
                self._multiply(arguments, stream)
                return
            except CublasError as problem:
                self._give_up(problem)
        self._run_own(arguments, stream)

    def add_to(self, graph: cuda.Graph, arguments: cuda.Arguments, after: list[int]) -> int:
        """A node of a graph."""
        return graph.add_child(self._captured(graph, arguments), after)

    def update_in(self, graph: cuda.Graph, node: int, arguments: cuda.Arguments) -> bool:
        """Give a node of an instantiated graph other addresses; False: build the graph anew."""
        child = self._captured(graph, arguments)
        try:
            return graph.update_child(node, child)
        finally:
            graph.drop_child(child)

    def _captured(self, graph: cuda.Graph, arguments: cuda.Arguments) -> list[int]:
        """The work as a graph; if the library refuses, that of a kernel of ours."""
        stream = self.device.capture
        if not self.failed:
            try:
                with graph.captured(stream) as child:
                    self._multiply(arguments, stream)
                return child
            except CublasError as problem:
                self._give_up(problem)
        self.instead()  # which is no work to be captured
        with graph.captured(stream) as child:
            self._run_own(arguments, stream)
        return child

    def _multiply(self, arguments: cuda.Arguments, stream: cuda.Stream) -> None:
        if self.product is None:
            self.product = self._described()
        cells, gemm = arguments.cells, self.gemm
        params = gemm.left.param, gemm.right.param, gemm.result.param
        left, right, result = [int(cells[number]) for number in params]
        workspace = int(cells[len(self.arguments) - 1]) if self.choice.workspace else 0
        self.product.launch(left, right, result, workspace, stream)

    def _described(self) -> Product:
        blas = self.device.blas
        if blas is None:
            raise CublasError("cuBLASLt is not there")
        choice: Choice | None = self.choice
        if blas.name != self.version:  # algorithms of another one mean nothing
            choice = blas.choice(self.gemm)
        if choice is None or choice.workspace > self.choice.workspace:
            raise CublasError(f"{blas.name} has no algorithm for a product")
        return Product(blas, self.gemm, choice)

    # --- without the library ---------------------------------------------------------------------

    def _give_up(self, problem: CublasError) -> None:
        self.failed = True
        warnings.warn(f"{problem.what}; a kernel of our own is used", RuntimeWarning, stacklevel=2)

    def instead(self) -> CudaKernel:
        """The kernel of ours that computes the same."""
        if self.own is None:
            device, found = self.device, found_in(self.kernel)
            assert found is not None, "it was a product"
            (self.own,) = device.table.add([device.codegen.render(found.product)])
        if self._memory is None:
            self._memory = self.device.taken(self.own.workspace)
        return self.own

    def _run_own(self, arguments: cuda.Arguments, stream: cuda.Stream) -> None:
        """Launch our own kernel over the same addresses."""
        driver = self.device.driver
        for launch in self.instead().launches:
            cells, uses = cells_of(launch.arguments)
            given = cuda.Arguments(cells)
            for place, (where, number) in uses.items():
                inside = where == source.PARAM
                known = int(arguments.cells[number]) if inside else self._memory.address + number
                given.set(driver, place, known)
            launch.launch(driver, given, stream)

    # --- on disk ---------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """What JSON can hold of it."""
        choice = [self.choice.algorithm.hex(), self.choice.workspace]
        own = None if self.own is None else self.device.table.dump(self.own)
        return [list(self.gemm), choice, self.version, [list(a) for a in self.arguments], own]

    @staticmethod
    def restored(device: CudaDevice, kernel: Kernel, dumped: Sequence[Any]) -> LibraryLaunch:
        """One that went through JSON."""
        gemm, (algorithm, workspace), version, arguments, own = dumped
        choice = Choice(bytes.fromhex(algorithm), workspace)
        known = tuple([Argument.restored(a) for a in arguments])
        made = LibraryLaunch(device, kernel, Gemm.restored(gemm), choice, version, known)
        made.own = None if own is None else device.table.restored(own)
        return made


def opened(device: CudaDevice) -> Blas | None:
    """The library on a GPU; None if it cannot be used."""
    try:
        library = CublasLt()
        device.enter()
        return Blas(library, device.codegen.hardware)
    except CublasError:
        return None


def found_in(kernel: Kernel) -> LibraryKernel | None:
    """A kernel as the library's product, by the options in force."""
    return find_library(kernel, current().matmul_precision)


def provider(device: CudaDevice) -> Source:
    """cuBLASLt beside our own kernels, as a search asks it."""

    def propose(kernel: Kernel, table: CostTable) -> Proposal | None:
        return proposed(device, kernel, table)

    return Source(f"cublaslt {current().cublas}", propose, kind=KernelKind.LIBRARY)


def proposed(device: CudaDevice, kernel: Kernel, table: CostTable) -> Proposal | None:
    """The library as an alternative to our own kernel for a product, by recorded rates.

    Asked for by an option, wherever it has the product; with tuning, wherever it may be timed.
    """
    options = current()
    if kernel.kind not in (KernelKind.CONTRACT, KernelKind.REDUCE):
        return None
    if options.cublas == "float8" and not any([p.dtype.bits == 8 for p in params_of(kernel)]):
        return None
    found = found_in(kernel)
    if found is None or (options.cublas == "float8" and not found.gemm.is_float8):
        return None
    own = time_of(kernel, table)
    gain = gain_of(found.gemm, device.preferred, found.rest is not None)
    between = memory_time(2 * found.temporary, table)
    between += table.launch_ns if found.rest is not None else 0.0
    cost = own * ALWAYS if options.cublas == "on" else gain.cost(own, between)
    if cost >= own and options.tune == "off":
        return None
    blas = device.blas
    if blas is None or blas.choice(found.gemm) is None:
        return None
    more = ", then its epilogue" if found.rest is not None else ""
    return Proposal("library", cost, f"{blas.name}{more}", plan=found)


def takes_float8(device: CudaDevice, fold: Node) -> bool:
    """True if the library will be given a sum of products of float8."""
    gemm = float8_gemm(fold)
    if gemm is None:
        return False
    wanted = current().cublas == "on" or gain_of(gemm, device.preferred).factor > 1
    blas = device.blas if wanted else None
    return blas is not None and blas.choice(gemm) is not None


# --- kernels -------------------------------------------------------------------------------------


def library_kernel(device: CudaDevice, kernel: Kernel) -> CudaKernel | None:
    """A kernel as launches of the library and of its epilogue; None: it has no such form."""
    blas = device.blas
    if blas is None:
        return None
    found = kernel.plan if isinstance(kernel.plan, LibraryKernel) else found_in(kernel)
    choice = blas.choice(found.gemm) if found is not None else None
    if found is None or choice is None:
        return None
    used = found.temporary
    params: list[tuple[str, int]] = [(source.PARAM, number) for number in found.reads]
    result = (source.ROOM, 0) if found.rest is not None else (source.PARAM, kernel.inputs)
    places = [*params, result]
    if choice.workspace:
        places.append((source.ROOM, used))
        used += -(-choice.workspace // source.ROOM_ALIGNMENT) * source.ROOM_ALIGNMENT
    arguments = tuple(
        [Argument(f"p{i}", "i64", True, where, n) for i, (where, n) in enumerate(places)]
    )
    first: Any = LibraryLaunch(device, kernel, found.gemm, choice, blas.name, arguments)
    if found.rest is None:
        return CudaKernel((first,), used, (), False)
    rest = device.table.add([device.codegen.render(found.rest)])[0]
    outputs = range(kernel.inputs, kernel.inputs + len(kernel.body.src))
    moved = [n._replace(arguments=_moved(n.arguments, [*found.rest_reads, *outputs], used))
             for n in rest.launches]  # fmt: skip
    return CudaKernel((first, *moved), used + rest.workspace, (), False)


def _moved(arguments: Sequence[Argument], params: Sequence[int], room: int) -> tuple[Argument, ...]:
    """Arguments of an epilogue's kernel as those of the whole one."""
    found = []
    for one in arguments:
        if one.source == source.ROOM:
            one = one._replace(value=int(one.value) + room)  # type: ignore[arg-type]
        elif one.source == source.PARAM:
            number = params[int(one.value)]  # type: ignore[arg-type]
            one = one._replace(value=number)
            if number < 0:
                one = one._replace(source=source.ROOM, value=0)
        found.append(one)
    return tuple(found)


def dump(device: CudaDevice, kernel: CudaKernel) -> list[Any]:
    """What JSON can hold of a kernel of the library's."""
    first: Any = kernel.launches[0]
    rest = device.table.dump(kernel._replace(launches=kernel.launches[1:]))
    return [NAME, first.dump(), rest]


def restored(device: CudaDevice, kernel: Kernel, dumped: Sequence[Any]) -> CudaKernel | None:
    """The kernel that was dumped; None if machine code of its epilogue is gone."""
    _, first, rest = dumped
    others = device.table.restored(rest)
    if others is None:
        return None
    launch: Any = LibraryLaunch.restored(device, kernel, first)
    return others._replace(launches=(launch, *others.launches))
