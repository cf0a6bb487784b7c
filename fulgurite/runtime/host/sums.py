"""All-reduce as steps of a plan on the host: its start and the wait for it.

In: a kernel that is one START or one WAIT of a param of fixed size. Out: a callable over buffers,
with all that follows from the kernel alone worked out once: a training step has one for every
weight. What it does is what the op table says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.node import Node
from ...core.ops.collective import (
    START,
    WAIT,
    finish_sum,
    group_for,
    label_of,
    start_sum,
    wait_label,
)
from ...core.ops.leaf import PARAM
from ...core.ranks import World, world
from ...graph.ir.kernel import Kernel
from ..device import Buffer, Values
from ..step_executor import StepCode


class StartStep:
    """A sum begun."""

    def __init__(self, node: Node) -> None:
        self.node, self.label = node, label_of(node)
        self._known: tuple[World, list[int]] | None = None  # a group depends on the rank

    def __call__(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        here, known = world(), self._known
        if known is None or known[0] is not here:
            known = self._known = here, group_for(self.node)
        array = inputs[0].array  # type: ignore[attr-defined]
        outputs[0].array[...] = start_sum(self.node, array, known[1], self.label)  # type: ignore[attr-defined]


class WaitStep:
    """A sum that is there."""

    def __init__(self, node: Node) -> None:
        self.label = wait_label(node)

    def __call__(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
        ticket = int(inputs[0].array)  # type: ignore[attr-defined]
        to = outputs[0].array  # type: ignore[attr-defined]
        if to.flags.c_contiguous:
            finish_sum(ticket, self.label, to.reshape(-1))
        else:
            np.copyto(to, finish_sum(ticket, self.label, None).reshape(to.shape))


def sum_step(kernel: Kernel) -> StepCode | None:
    """The step of a kernel that starts a sum or waits for one; None if it is another."""
    if len(kernel.body.src) != 1:
        return None
    (root,) = kernel.body.src
    if len(root.src) != 1 or root.src[0].op is not PARAM:
        return None
    if not all([isinstance(n, int) for n in (*root.shape, *root.src[0].shape)]):
        return None
    return StartStep(root) if root.op is START else WaitStep(root) if root.op is WAIT else None
