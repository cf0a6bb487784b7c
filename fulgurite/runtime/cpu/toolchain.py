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

    return _WORKERS.get_or_make("", lambda: Workers(_functions(driver_text()), _pool))


def _functions(text: str) -> Mapping[str, int]:
    """All functions there are, with those of a part of the driver."""
    made = code_for("auto")
    try:
        made.have([(made.digest(text), text, ())])
    except Refusal as problem:
        with FORK_LOCK:
            from . import refusals
        raise refusals.refused(problem, None) from None
    return made.functions


def _pool() -> Mapping[str, int]:
    with FORK_LOCK:
        from ...codegen.cpu import driver_pool
    return _functions(driver_pool.pool_text(code_for("auto").target.arch))


def loop_function() -> int:
    """The address of what runs the records of loops."""
    with FORK_LOCK:
        from ...codegen.cpu import driver_loops
    return _functions(driver_loops.loop_text())["fulgurite_loop"]


def timed_workers() -> Workers:
    """The driver with a clock and threads of its own, to record launches."""

    def make() -> Workers:
        with FORK_LOCK:
            from ...codegen.cpu import timed_driver
        functions = _functions(timed_driver.timed_driver_text(code_for("auto").target.arch))
        return Workers(functions, lambda: functions, "fulgurite_timed")

    return _WORKERS.get_or_make("timed", make)


def program(
    device: HostDevice, schedule: Schedule, made: Sequence[Executable], layout: Layout
) -> Program:
    """A schedule and the code of its kernels as records for the driver."""
    functions = code().functions
    natives_or_steps: Any = made
    return Program(device, schedule, natives_or_steps, layout, functions.__getitem__, workers())
