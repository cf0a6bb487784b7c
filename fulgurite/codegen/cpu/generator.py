"""The processor as a target: what its device and the search ask of it.

In: kernels in the tensor grammar. Out: LLVM text for the chosen vector width, and objects.
The compiler and the renderer are loaded when they are first needed: plans that come from the disk
need neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..._lazy import FORK_LOCK
from ...config import current
from ...core.passes import Observe, Pass
from ...graph.fusion.machine import MachineModel
from ...graph.fusion.proposals import Source
from ...graph.ir.kernel import Kernel, param_dtypes
from ...graph.ir.kernel_kind import KernelKind
from ...graph.ir.lower import lower_kernel
from ...graph.ir.reshape_groups import CannotLower
from ..common.api import KernelText
from . import machine
from .llvm.versions import code_key
from .target import hardware, target


class CpuCodeGenerator:
    """LLVM for the processor of this machine."""

    language = "llvm"

    @property
    def key(self) -> str:
        """The compiler, and the target for the chosen vector width."""
        return code_key(current().vectors)

    @property
    def hardware(self) -> str:
        """The processor, and how much of it we may use."""
        return hardware(current().vectors)

    @property
    def machine(self) -> MachineModel:
        """The rates that ship; tuning has others."""
        return machine.SHIPPED

    @property
    def sources(self) -> Sequence[Source]:
        """Streaming folds, and rows with what is picked from them."""
        with FORK_LOCK:
            from . import providers
        return providers.SOURCES

    @property
    def passes(self) -> Sequence[Pass]:
        """From index notation to text."""
        with FORK_LOCK:
            from . import render
        return render.PASSES

    def render(self, kernel: Kernel, observe: Observe | None = None) -> KernelText:
        """A kernel as text; `CannotLower` says why not."""
        if kernel.kind is KernelKind.USER:
            with FORK_LOCK:
                from .llvm import user_kernel
            return user_kernel.render_user(kernel)
        with FORK_LOCK:
            from ...kernel.transform.passes import TypedKernel
            from . import render
        vectors = target(current().vectors)
        if kernel.kind is not KernelKind.FOLD:
            value = TypedKernel(lower_kernel(kernel).indexed, param_dtypes(kernel))
            return render.render(value, vectors, observe)
        with FORK_LOCK:
            from ...kernel.stream.roles import StreamedKernel
        if not isinstance(kernel.plan, StreamedKernel):
            raise CannotLower("a fold that nobody planned")
        return render.render(kernel.plan, vectors, observe)

    def listings(self, kernel: Kernel) -> dict[str, str]:
        """The assembly that the text becomes for the vectors that are asked for."""
        with FORK_LOCK:
            from .llvm import compiler
        text = self.render(kernel).text
        return {"assembly": compiler.compile_assembly(text, target(current().vectors))}

    def compile(self, texts: Sequence[str]) -> bytes:
        """An object that holds all texts."""
        with FORK_LOCK:
            from .llvm import compiler
        return compiler.compile_object(texts, target(current().vectors))
