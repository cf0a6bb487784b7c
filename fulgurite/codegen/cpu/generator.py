"""The processor as a target: what its device and the search ask of it.

In: kernels in the tensor grammar. Out: LLVM text for the vectors that are asked for, and objects.
The compiler and the renderer are loaded when they are first needed: plans that come from the disk
need neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..._lazy import FORK_LOCK
from ...config import current
from ...core.node import toposort
from ...core.ops.leaf import PARAM
from ...graph.fusion.machine import MachineModel
from ...graph.fusion.proposals import Source
from ...graph.ir.kernel import Kernel
from ...graph.ir.lower import lower
from ..common.api import Rendered
from . import machine
from .llvm.versions import identity
from .target import hardware, target


class CpuCodeGenerator:
    """LLVM for the processor of this machine."""

    language = "llvm"

    @property
    def key(self) -> str:
        """The compiler, and the target for the vectors that are asked for."""
        return f"{identity()}\n{target(current().vectors).settings}"

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
        found: Sequence[Source] = providers.SOURCES
        return found

    def render(self, kernel: Kernel) -> Rendered:
        """A kernel as text; `CannotLower` says why not."""
        if kernel.kind == "user":
            with FORK_LOCK:
                from .llvm import user_kernel
            user: Rendered = user_kernel.render_user(kernel)
            return user
        params = {n.arg[0]: n for n in toposort([kernel.body]) if n.op is PARAM}
        nodes = [*[params[i] for i in range(kernel.inputs)], *kernel.body.src]
        with FORK_LOCK:
            from . import render as render_module
        render = render_module.render
        indexed, vectors = lower(kernel.body, kernel.inputs), target(current().vectors)
        found: Rendered = render(indexed, [n.dtype for n in nodes], vectors, kernel.kind)
        return found

    def compile(self, texts: Sequence[str]) -> bytes:
        """An object that holds all texts."""
        with FORK_LOCK:
            from .llvm import compiler
        found: bytes = compiler.compile_object(texts, target(current().vectors))
        return found
