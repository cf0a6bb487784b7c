"""What makes native code and runs it, one of each for the process.

In: kernels and schedules. Out: rendered text, the table of native functions (`code`), the driver
with its threads (`workers`), programs. Everything here is made on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..._lazy import FORK_LOCK
from ...codegen.cpu.driver import driver_text
from ...codegen.cpu.llvm.compiler import Refusal
from ...codegen.cpu.target import VECTORS, target
from ...config import current
from ...core.cache import Cache
from ...core.origin import places
from ...errors import ArgumentError
from ...graph.ir.kernel import Kernel, Schedule
from ...graph.ir.kernel_kind import KernelKind
from ...graph.memory.arena import Layout
from ..device import Executable
from ..host.device import HostDevice
from .executor import Program
from .objects import Code, Native
from .threads import Workers

if TYPE_CHECKING:
    from ...codegen.common.api import KernelText


def rendering(kernel: Kernel) -> KernelText:
    """A kernel as text; `CannotLower` says why not."""
    with FORK_LOCK:
        from ...codegen.cpu.generator import CpuCodeGenerator
    found = CpuCodeGenerator().render(kernel)
    if kernel.kind is KernelKind.USER:
        _check_user(kernel, found)
    return found


def _check_user(kernel: Kernel, found: KernelText) -> None:
    """The user's own text is read alone first: its faults are named."""
    made = code()
    if not made.fetch(made.digest(found.text)):
        with FORK_LOCK:
            from ...codegen.cpu.llvm import compiler
        problem = compiler.fault(found.text)
        if problem is not None:
            host = kernel.body.src[0].arg[1]
            raise ArgumentError(
                f"the text of native kernel {host.name!r} is refused: {problem}",
                "correct the LLVM IR",
                places(kernel.body.src[0].origins),
            )


def natives(kernels: Sequence[Kernel], texts: Mapping[int, KernelText]) -> list[Native]:
    """Functions for the texts of some kernels; `CompilerError` says whose is refused."""
    made = code()
    try:
        return made.add(list(texts.values()))
    except Refusal as problem:
        found: Kernel | None = None
        for number, text in texts.items():
            if problem.digest in [made.digest(t) for t in (text.text, *text.library)]:
                found = kernels[number]
        alone = kernels[next(iter(texts))] if len(texts) == 1 else None
        with FORK_LOCK:
            from . import refusals
        raise refusals.refused(problem, found or alone) from None


_CODES: Cache[str, Code] = Cache("code", lambda: len(VECTORS) + 1)
_WORKERS: Cache[str, Workers] = Cache("workers", lambda: 2)


def code_for(wish: str) -> Code:
    """The native functions for vectors of some kind: one table, also for threads that ask at once.

    A kernel is compiled by one call and linked by another; both must find the same table.
    """

    def make() -> Code:
        made = Code(target(wish))
        os.register_at_fork(after_in_child=made.after_fork)
        return made

    return _CODES.get_or_make(wish, make)


def code() -> Code:
    """The native functions for the chosen vector width."""
    return code_for(current().vectors)


def workers() -> Workers:
    """The driver and its threads."""

    def make() -> Workers:
        made = code_for("auto")
        text = driver_text(made.target.arch)
        try:
            made.have([(made.digest(text), text, ())])
        except Refusal as problem:
            with FORK_LOCK:
                from . import refusals
            raise refusals.refused(problem, None) from None
        return Workers(made.functions)

    return _WORKERS.get_or_make("", make)


def timed_workers() -> Workers:
    """The driver with a clock and threads of its own, to record launches."""

    def make() -> Workers:
        made = code_for("auto")
        with FORK_LOCK:
            from ...codegen.cpu import timed_driver
        text = timed_driver.timed_driver_text(made.target.arch)
        made.have([(made.digest(text), text, ())])
        return Workers(made.functions, "fulgurite_timed")

    return _WORKERS.get_or_make("timed", make)


def driver_digest() -> str:
    """What the text of the driver is called."""
    made = code_for("auto")
    return made.digest(driver_text(made.target.arch))


def program(
    device: HostDevice, schedule: Schedule, made: Sequence[Executable], layout: Layout
) -> Program:
    """A schedule and the code of its kernels as records for the driver."""
    functions = code().functions
    natives_or_steps: Any = made
    return Program(device, schedule, natives_or_steps, layout, functions.__getitem__, workers())
