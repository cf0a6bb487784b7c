"""Whether one plan for all sizes pays: what its runs waste against what a plan for a size costs.

In: the schedule of a plan whose sizes vary, and the sizes of a call. Out: how many runs at these
sizes take no longer than to make a plan for them. Native kernels of variable sizes run at the upper
bounds of their axes, so a run does more than it needs to; a plan for the size does not, but has to
be made. The rule is that of renting or buying skis (Karlin et al. 1988): rent until the rent is the
price. Both are predicted by the cost model, from shapes alone, so the choice is that of any day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from .._lazy import FORK_LOCK
from ..aot.schedule import TensorSchedule
from ..config import current
from ..core.node import constant, toposort
from ..core.ops.leaf import PARAM, VAR, param
from ..core.ops.movement import SHRINK
from ..core.rewriting.substitute import substitute
from ..graph.ir.kernel import Kernel
from ..runtime.device import get_device

MAKING_NS = 1e6  # of each kernel of a plan for one more size: its text is mostly known
WORTH = 32  # runs that a plan for all sizes should be good for


def patience(
    schedule: TensorSchedule, sizes: Mapping[str, int], fixed: TensorSchedule | None = None
) -> float:
    """How many runs at some sizes waste no more than a plan for these sizes takes to make.

    With a plan for the sizes, what counts is how much worse these kernels would be at them.
    """
    kernels = _kernels(schedule)
    at_sizes = price(schedule, sizes)
    waste = _cost(kernels) - at_sizes if fixed is None else at_sizes - price(fixed, {})
    return len(kernels) * MAKING_NS / waste if waste > 0 else inf


def price(schedule: TensorSchedule, sizes: Mapping[str, int]) -> float:
    """Predicted nanoseconds of kernels, were they made for these sizes."""
    return _cost([_at(kernel, sizes) for kernel in _kernels(schedule)])


def _cost(kernels: Sequence[Kernel]) -> float:
    with FORK_LOCK:
        from ..graph.fusion.machine import total
    return total(kernels, get_device(current().device).machine)


def _kernels(schedule: TensorSchedule) -> list[Kernel]:
    """The kernels that run at upper bounds; what NumPy computes has the sizes of the call."""
    plans = [p for p in schedule.plans if get_device(p.device).codegen is not None]
    items = [item for plan in plans for item in plan.schedule.items]
    return [item.kernel for item in items if item.kernel.kind != "host"]


def _at(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """The kernel with numbers for variables, and inputs that hold no more than it reads."""
    variables = [n for n in toposort([kernel.body]) if n.op is VAR and n.arg[0] in sizes]
    if not variables:
        return kernel
    known = {n: constant(sizes[n.arg[0]], n.dtype) for n in variables}
    body = substitute(kernel.body, known)
    parts = [n for n in toposort([body]) if n.op is SHRINK and n.src[0].op is PARAM]
    read = {n: param(n.src[0].arg[0], n.shape, n.dtype, n.device) for n in parts}
    return Kernel(kernel.kind, substitute(body, read), kernel.inputs)
