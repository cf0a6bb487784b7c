"""Pipeline parallel: stages on different ranks, micro-batches by the 1F1B schedule.

In: the stages of a network, a loss, a batch. Out: the loss, and the gradients of this rank's stage
in `grad`. Stage i runs on the ranks at place i of one mesh axis. After a warm-up each rank runs one
forward and one backward pass in turn (PipeDream-flush, Narayanan et al. 2021), so it holds at most
as many micro-batches as there are stages behind it. A backward pass computes its forward pass
again: nothing but the inputs of micro-batches is held. Stages are different programs, so values
travel by sends and receives between plans, not inside them. In one process the same passes run in
order: the gradients are the same sums. Random numbers are those of the step, micro-batch and stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import random
from ..core import ranks
from ..core.dtype import DTYPES, dtype_of
from ..core.op import Array
from ..errors import ArgumentError
from ..tensor import Tensor, no_grad, realize_all
from .mesh import Mesh

if TYPE_CHECKING:
    from ..nn import Module

_DRAWS = 1 << 32  # random numbers that one pass of a stage may draw
_DTYPES = list(DTYPES)
_HEADER = 16  # numbers that say the shape of what follows


def order_1f1b(stages: int, micro_batches: int, stage: int) -> list[tuple[str, int]]:
    """The passes of one stage in order: ("forward" or "backward", number of the micro-batch).

    >>> from fulgurite.distributed.pipeline import order_1f1b
    >>> [what[0] + str(number) for what, number in order_1f1b(2, 3, 0)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    warm = min(stages - 1 - stage, micro_batches)
    found = [("forward", m) for m in range(warm)]
    for m in range(micro_batches - warm):
        found += [("forward", warm + m), ("backward", m)]
    return found + [("backward", m) for m in range(micro_batches - warm, micro_batches)]


class Pipeline:
    """Stages of a network over one axis of a mesh."""

    def __init__(
        self, stages: Sequence[Module], mesh: Mesh, loss: Callable[[Tensor, Tensor], Tensor],
        micro_batches: int, axis: str = "pipe",
    ) -> None:  # fmt: skip
        if len(stages) != mesh[axis]:
            raise ArgumentError(
                f"{len(stages)} stages for {mesh[axis]} ranks along {axis!r}",
                "give as many stages as the axis has ranks",
            )
        if mesh.is_spread and mesh.size != mesh[axis]:
            raise ArgumentError(f"{mesh} has other axes", "a pipeline's mesh has one axis")
        self.stages, self.mesh, self.axis, self.loss = list(stages), mesh, axis, loss
        self.micro_batches = micro_batches
        world = ranks.world()
        self.place = ranks.coordinates(mesh.shape, world.rank)[axis] if mesh.is_spread else 0
        self.shapes: dict[str, tuple[Any, ...]] = {}  # of what travels

    @property
    def own(self) -> list[Module]:
        """The stages that this process runs."""
        return [self.stages[self.place]] if self.mesh.is_spread else self.stages

    def parameters(self) -> Iterator[Tensor]:
        """Those of its stages: what its optimizer updates."""
        return (parameter for stage in self.own for parameter in stage.parameters())

    def step(self, x: Any, target: Any) -> float:
        """The loss of a batch; gradients of this rank's stages are added to `grad`."""
        xs, targets = self._split(x), self._split(target)
        state = random.get_state()
        total = self._spread(xs, targets, state) if self.mesh.is_spread else self._alone(
            xs, targets, state)  # fmt: skip
        self._draw_from(state, self.micro_batches, 0)
        return total

    def _split(self, batch: Any) -> list[Array]:
        array = batch.numpy() if isinstance(batch, Tensor) else np.asarray(batch)
        if array.shape[0] % self.micro_batches:
            raise ArgumentError(
                f"a batch of {array.shape[0]} has no {self.micro_batches} equal parts",
                "choose another batch or another number of micro-batches",
            )
        return np.split(array, self.micro_batches)

    def _draw_from(self, state: dict[str, Any], micro: int, stage: int) -> None:
        """Let random numbers be those of one pass."""
        number = micro * len(self.stages) + stage
        random.set_state({**state, "counter": state["counter"] + number * _DRAWS})

    # --- passes ----------------------------------------------------------------------------------

    def _forward(self, stage: int, micro: int, x: Tensor, state: Any, target: Any) -> Tensor:
        """What a stage makes of a micro-batch; the last one its share of the loss."""
        self._draw_from(state, micro, stage)
        found: Tensor = self.stages[stage](x)
        if stage == len(self.stages) - 1:
            found = self.loss(found, Tensor(target)) / self.micro_batches
        return found

    def _backward(self, stage: int, x: Tensor, y: Tensor, gradient: Array | None) -> Array | None:
        """Add the gradients of a stage's weights; that of its input."""
        y.backward(None if gradient is None else Tensor(gradient))
        grads = [p.grad for p in self.stages[stage].parameters() if p.grad is not None]
        own = [] if x.grad is None else [x.grad]
        realize_all(*grads, *own)
        return own[0].numpy() if own else None

    def _input(self, array: Array, stage: int) -> Tensor:
        x = Tensor(array)
        return x.requires_grad_() if stage and x.dtype.is_inexact else x

    def _alone(self, xs: list[Array], targets: list[Array], state: Any) -> float:
        total = 0.0
        last = len(self.stages) - 1
        for micro, array in enumerate(xs):
            held = []
            for stage in range(last + 1):
                x = self._input(array, stage)
                y = self._forward(stage, micro, x, state, targets[micro])
                array = y.numpy()
                held.append((x, y))
            total += float(array)
            gradient: Array | None = None
            for stage in range(last, -1, -1):
                gradient = self._backward(stage, *held[stage], gradient)
        return total

    def _spread(self, xs: list[Array], targets: list[Array], state: Any) -> float:
        stage, last = self.place, len(self.stages) - 1
        held: dict[int, tuple[Tensor, Tensor]] = {}
        pending: Array | None = None  # a gradient for the stage before, which its next input takes
        total = 0.0
        order = order_1f1b(last + 1, self.micro_batches, stage)
        for number, (what, micro) in enumerate(order):
            if what == "forward":
                array = xs[micro] if stage == 0 else self._receive_input(pending)
                pending = None
                x = self._input(array, stage)
                y = self._forward(stage, micro, x, state, targets[micro])
                held[micro] = x, y
                value = y.numpy()
                if stage == last:
                    total += float(value)
                else:
                    both = number + 1 < len(order) and order[number + 1][0] == "backward"
                    self._send_output(value, both)
                continue
            x, y = held.pop(micro)
            gradient = self._gradient(y) if stage < last else None
            found = self._backward(stage, x, y, gradient)
            if stage:
                assert found is not None
                more = number + 1 < len(order) and order[number + 1][0] == "forward"
                pending = found if more else None
                if not more:
                    self._to(stage - 1, found, "a gradient")
        return self._everywhere(total)

    # --- what travels ----------------------------------------------------------------------------

    def _rank(self, stage: int) -> int:
        return ranks.rank_at(self.mesh.shape, {self.axis: stage}, ranks.world().rank)

    def _to(self, stage: int, array: Array, what: str) -> None:
        label = f"the send of {what} to stage {stage}"
        ranks.world().route([self._rank(stage)], [], np.ascontiguousarray(array), label)

    def _from(self, stage: int, like: Array, what: str) -> Array:
        label = f"the wait for {what} of stage {stage}"
        return ranks.world().route([], [self._rank(stage)], like, label)[0]

    def _swap(self, stage: int, array: Array, what: str) -> Array:
        """Send a value and receive one of its shape: no rank waits for one that waits for it."""
        rank = self._rank(stage)
        label = f"the exchange of {what} with stage {stage}"
        return ranks.world().route([rank], [rank], np.ascontiguousarray(array), label)[0]

    def _send_output(self, value: Array, both: bool) -> None:
        """Send what this stage made; if a backward pass is next, with the gradient for it."""
        self._came: Array | None = None
        if "output" not in self.shapes:
            self.shapes["output"] = value.shape
            header = np.zeros(_HEADER, np.int64)
            header[0], header[1 : 1 + value.ndim] = value.ndim, value.shape
            header[-1] = _DTYPES.index(dtype_of(value.dtype))
            self._to(self.place + 1, header, "a shape")
        if both:
            self._came = self._swap(self.place + 1, value, "an output and a gradient")
        else:
            self._to(self.place + 1, value, "an output")

    def _receive_input(self, pending: Array | None) -> Array:
        """The next input, for which a gradient may go back."""
        if pending is not None:
            return self._swap(self.place - 1, pending, "a gradient and an input")
        if "input" not in self.shapes:
            header = self._from(self.place - 1, np.zeros(_HEADER, np.int64), "a shape")
            shape = tuple(int(n) for n in header[1 : 1 + header[0]])
            self.shapes["input"] = shape, _DTYPES[int(header[-1])].numpy
        shape, dtype = self.shapes["input"]
        return self._from(self.place - 1, np.empty(shape, dtype), "an input")

    def _gradient(self, y: Tensor) -> Array:
        found = getattr(self, "_came", None)
        self._came = None
        if found is None:
            like = np.empty(y.shape, y.dtype.numpy)
            found = self._from(self.place + 1, like, "a gradient")
        return found

    def _everywhere(self, total: float) -> float:
        """The last stage's number on every rank."""
        world = ranks.world()
        told = world.gather(list(range(world.size)), np.array(total), "the loss")
        return float(told[self._rank(len(self.stages) - 1)])

    def collect(self) -> None:
        """Give every rank the weights of all stages, for a checkpoint or a test."""
        if not self.mesh.is_spread:
            return
        world = ranks.world()
        for number, stage in enumerate(self.stages):
            stage.settle()
            for tensor in (*stage.parameters(), *stage.buffers()):
                told = world.gather(list(range(world.size)), tensor.numpy(), "weights")
                if number != self.place:
                    with no_grad():
                        tensor.assign(told[self._rank(number)])
