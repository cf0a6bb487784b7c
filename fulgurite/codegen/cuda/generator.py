"""The GPU as a target: what its device and the search ask of it.

In: kernels in the tensor grammar. Out: Triton text with launches, and cubins. The compiler is
loaded when a text must be compiled: plans that come from the disk need none.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..._lazy import FORK_LOCK
from ...config import current
from ...core.passes import Observe, Pass, Watch
from ...graph.ir.kernel import Kernel, param_dtypes
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import lower_kernel
from ...graph.ir.reshape_groups import CannotLower
from . import tiling
from .source import KernelSource, Launch

if TYPE_CHECKING:
    from ...graph.fusion.proposals import Source


def load_compiler_ahead() -> None:
    """Have the compiler get ready in processes of its own, or in the background here."""
    if find_spec("triton") is None:
        return
    with FORK_LOCK:
        from .compilation import pool
    if pool.start() is None:
        with FORK_LOCK:
            from .compilation import compiler
        compiler.load_ahead()


def compile_ahead(kernels: Sequence[Kernel], over: Set[Kernel]) -> None:
    """Have the texts of kernels compiled for the GPU that the table of tiles is for."""
    capability, shared = tiling.HOPPER.capability, tiling.HOPPER.shared_bytes
    about = SimpleNamespace(capability=capability, shared=shared)
    codegen = CudaCodeGenerator(SimpleNamespace(properties=about))
    launches: list[Launch] = []
    for kernel in dict.fromkeys(kernels):
        with suppress(CannotLower):  # the host runs it
            made = codegen.guarded(kernel) if kernel in over else codegen.render(kernel)
            launches += made.launches
    with FORK_LOCK:
        from .compilation import pool
    pool.begin(launches, capability)


def triton_version() -> str:
    """The version of Triton by the name of its folder of metadata; empty if it is not installed.

    Reading that metadata would load parsers of mails and archives, in every process.
    """
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    for folder in Path(spec.origin).parents[1].glob("triton-*.dist-info"):
        return folder.name.removeprefix("triton-").removesuffix(".dist-info")
    with FORK_LOCK:
        from importlib import metadata
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


class CudaCodeGenerator:
    """Triton for one GPU."""

    language = "triton"

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu  # whose properties are known when the driver has started

    @property
    def properties(self) -> Any:
        """What the GPU is."""
        return self.gpu.properties

    @cached_property
    def key(self) -> str:
        """The version of the compiler."""
        return f"triton {version}" if (version := triton_version()) else "triton"

    @property
    def hardware(self) -> str:
        """The GPU, by its name and how many processors it has."""
        return f"{self.properties.name}, {self.properties.processors} processors"

    @property
    def machine(self) -> Any:
        """The rates of the GPU."""
        with FORK_LOCK:
            from . import machine as machine_module
        return machine_module.HOPPER

    @property
    def sources(self) -> Sequence[Source]:
        """Streaming folds, and rows with what is picked from them or multiplied by them."""
        load_compiler_ahead()  # a graph is scheduled: it was not found on disk
        with FORK_LOCK:
            from . import providers
        found: Sequence[Source] = providers.sources_of(tiling.HOPPER)
        return found

    @property
    def passes(self) -> Sequence[Pass]:
        """From index notation to text."""
        with FORK_LOCK:
            from . import render
        return render.PASSES

    def guarded(self, kernel: Kernel) -> KernelSource:
        """A kernel as text that does nothing while the lock is set."""
        made = self.render(kernel)
        if not made.may_be_guarded:
            made = self.render(kernel, plain=True)
        return made.guarded()

    def render(
        self, kernel: Kernel, observe: Observe | None = None, plain: bool = False
    ) -> KernelSource:
        """A kernel as text, if asked for in plain Triton; `CannotLower` says why not."""
        with FORK_LOCK:
            from . import render
        watch = Watch.of(current(), observe)
        table = tiling.TF32 if current().matmul_precision == "tf32" else tiling.HOPPER
        if plain or self.properties.capability != table.capability:
            table = tiling.in_plain_triton(table, self.properties.shared)
        if kernel.kind is KernelKind.FOLD:
            return render.render_fold(kernel.plan, table, watch)
        indexed = lower_kernel(kernel).indexed
        return render.render(indexed, param_dtypes(kernel), table, watch)

    def listings(self, kernel: Kernel) -> dict[str, str]:
        """PTX and SASS of every launch, compiled ahead of time; or which tool is missing."""
        if find_spec("triton") is None:
            return {"PTX": "none: Triton is not installed (the extra 'cuda' brings it)"}
        with FORK_LOCK:
            from .compilation import compiler
        capability = self.properties.capability
        found = [compiler.listings_of(one, capability) for one in self.render(kernel).launches]
        return {name: "\n\n".join([one[name] for one in found]) for name in found[0]}

    def compile(self, texts: Sequence[str]) -> bytes:
        """Launches are compiled one by one, each with its signature: see `compile_launch`."""
        raise NotImplementedError("a text alone has no signature: compile_launch takes a launch")
