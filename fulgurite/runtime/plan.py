"""Plans: a schedule compiled for a device, run again and again with other buffers.

In: a `Schedule`, or for `run` the buffers of its inputs. Out: fresh output buffers. Three passes
make one: memory is laid out, kernels are compiled, code is linked. A plan holds no buffer of any
caller: intermediates live in an arena that a call checks out, so two threads can run one plan, and
outputs are allocated for each call, so none aliases an earlier one. How the kernels are run one
after the other is the device's own business (`Device.link`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from typing import Any

from ..config import current
from ..core.cache import WeakCache
from ..core.context import Table
from ..core.lazy_named_tuple import NamedTuple
from ..errors import CompilerError
from ..graph.ir.kernel import Kernel, Schedule
from ..graph.memory.arena import Layout, plan_memory
from .device import Buffer, Device, Executable, Executor, Values, get_device


class CompiledKernel:
    """A kernel and its code on one device."""

    __slots__ = ("__weakref__", "code", "kernel")

    def __init__(self, kernel: Kernel, code: Executable) -> None:
        self.kernel, self.code = kernel, code


KERNELS: Table[WeakCache[tuple[str, Hashable, object], CompiledKernel]] = Table(
    lambda: WeakCache("kernels")
)


class Plan:
    """Replayable steps; `run` gives the outputs for other inputs without compiling."""

    def __init__(
        self, schedule: Schedule, device: str, kernels: tuple[CompiledKernel, ...], layout: Layout,
        executor: Executor,
    ) -> None:  # fmt: skip
        self.schedule, self.device, self.layout, self.executor = schedule, device, layout, executor
        self.inputs, self.aliases = schedule.inputs, schedule.aliases
        self.kernels = kernels  # in the order they run
        self.runs = 0
        self.shared = False  # are its kernels those of other sizes as well?

    def run(
        self, inputs: Sequence[Buffer], values: Values | None = None, poison: bool = False,
        held: Any = None,
    ) -> list[Buffer]:  # fmt: skip
        """One pass over the kernels; a fresh buffer for each output.

        It may still be running when this returns, but no index in it is outside its axis. `held`
        runs in the place of its executor for inputs that stay.
        """
        assert len(inputs) == self.inputs, "a plan takes exactly its inputs"
        self.runs += 1
        executor = self.executor
        found: list[Buffer] = (held or executor).run(inputs, values or {}, poison)
        if executor.deferred:
            executor.check()
        return found

    def run_into(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """One pass from given memory into given memory, without variables: a body's."""
        executor = self.executor
        executor.run_into(inputs, outputs, {})
        if executor.deferred:
            executor.check()


class LaidOut(NamedTuple):
    """A schedule whose intermediates have their places in an arena."""

    schedule: Schedule
    layout: Layout

    def __str__(self) -> str:
        places = [f"[{slot}] at {place}" for slot, place in self.layout.offsets.items()]
        return "\n".join([f"arena of {self.layout.arena_bytes} bytes", *places])


class Compiled(NamedTuple):
    """A schedule with a place for every value and code for every kernel."""

    schedule: Schedule
    layout: Layout
    kernels: tuple[CompiledKernel, ...]

    def __str__(self) -> str:
        return "\n".join([f"{k.kernel.name}: {type(k.code).__name__}" for k in self.kernels])


def lay_out(schedule: Schedule, device: str) -> LaidOut:
    """Intermediates laid out in an arena."""
    schedule = without_joints(schedule)
    return LaidOut(schedule, plan_memory(schedule, get_device(device).align))


def without_joints(schedule: Schedule) -> Schedule:
    """The schedule without copies of joined arrays onto themselves."""
    joints = {place for _, place in schedule.joined}
    items = tuple([item for item in schedule.items if joints.isdisjoint(item.writes)])
    return schedule._replace(items=items) if joints else schedule


def written_over(schedule: Schedule) -> Set[Kernel]:
    """The kernels that write over inputs."""
    taken = {slot for slot, _ in schedule.aliases}
    return frozenset([item.kernel for item in schedule.items if taken & {*item.writes}])


def compile_schedule(laid_out: LaidOut, device: str) -> Compiled:
    """Kernels through the kernel cache."""
    schedule, layout = laid_out
    try:
        kernels = compile_kernels(
            [item.kernel for item in schedule.items], get_device(device), written_over(schedule)
        )
    except CompilerError as problem:  # an item knows its lines, a kernel alone does not
        item = next((i for i in schedule.items if i.kernel is problem.kernel), None)
        if item is None:
            raise
        where = ", ".join(item.lines[:3])
        raise CompilerError(problem.what, problem.hint, where) from None
    return Compiled(schedule, layout, tuple(kernels))


def link_compiled(compiled: Compiled, device: str) -> Plan:
    """The plan of a compiled schedule."""
    schedule, layout, kernels = compiled
    return link(schedule, kernels, layout, get_device(device))


def plan_of_host_step(schedule: Schedule, device: str) -> Plan:
    """The plan of a schedule that the host runs: there is nothing to lower."""
    return link_compiled(compile_schedule(lay_out(schedule, device), device), device)


def link(
    schedule: Schedule, kernels: Sequence[CompiledKernel], layout: Layout, backend: Device
) -> Plan:
    """A plan of compiled kernels."""
    code = [kernel.code for kernel in kernels]
    executor = backend.link(schedule, code, layout)
    layout = layout._replace(workspace_bytes=executor.workspace)
    return Plan(schedule, backend.name, tuple(kernels), layout, executor)


def _key(kernel: Kernel) -> object:
    """What equal code has in common: of a loop also the options, by which its body is compiled."""
    if kernel.kind.is_alternative:
        return kernel.key, kernel.kind
    return (kernel.key, current().key) if kernel.kind.is_control else kernel.key


def compile_kernels(
    kernels: Sequence[Kernel], backend: Device, over: Set[Kernel] = frozenset()
) -> list[CompiledKernel]:
    """The code of every kernel; those that are new are compiled together.

    Those that write `over` inputs have code of their own on a device that guards them.
    """
    target = backend.code_key()
    guarded = over if backend.guards_writes else frozenset()
    keys = [
        (backend.name, (target, True) if kernel in guarded else target, _key(kernel))
        for kernel in kernels
    ]
    held = {key: found for key in keys if (found := KERNELS().get(key)) is not None}
    new = {key: k for key, k in zip(keys, kernels, strict=True) if key not in held}
    compiled = (
        backend.compile_guarded(list(new.values()), guarded)
        if guarded
        else backend.compile(list(new.values()))
    )
    made = dict(zip(new, compiled, strict=True))
    for key, kernel in new.items():
        held[key] = KERNELS().get_or_make(key, lambda k=kernel, m=made[key]: CompiledKernel(k, m))  # type: ignore[misc]
    return [held[key] for key in keys]
