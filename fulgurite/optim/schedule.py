"""Schedules: how the learning rate changes as training goes on.

In: the number of steps taken so far. Out: a factor of each group's first learning rate. A shape is
a plain function of the step (`cosine(1000)`, or one of your own), so it can be drawn, joined and
resumed; `Schedule` applies one to an optimiser. Setting a rate writes one number into memory: it
compiles nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from .optimizer import Optimizer

Shape = Callable[[int], float]


def constant(factor: float = 1.0) -> Shape:
    """The same rate for ever.

    >>> fg.optim.constant(0.5)(10)
    0.5
    """
    return lambda step: factor


def linear(steps: int, start: float = 1.0, end: float = 0.0) -> Shape:
    """From one factor to another in so many steps, and so on after.

    >>> [fg.optim.linear(4)(step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    positive("steps", steps)
    return lambda step: start + (end - start) * min(step, steps) / steps


def cosine(steps: int, end: float = 0.0) -> Shape:
    """Down half a wave of the cosine in so many steps, then the end for ever.

    >>> [round(fg.optim.cosine(4)(step), 3) for step in (0, 2, 4, 9)]
    [1.0, 0.5, 0.0, 0.0]
    """
    positive("steps", steps)
    return lambda step: end + (1 - end) * (1 + math.cos(math.pi * min(step, steps) / steps)) / 2


def warmup(steps: int, then: Shape | None = None, start: float = 0.0) -> Shape:
    """Up from `start` in so many steps; `then` counts its steps from there.

    >>> [fg.optim.warmup(2, fg.optim.linear(4))(step) for step in (0, 1, 2, 4)]
    [0.0, 0.5, 1.0, 0.5]
    """
    return join([linear(steps, start, 1.0), then or constant()], [steps])


def step_decay(every: int, gamma: float = 0.1) -> Shape:
    """A factor of `gamma` for each `every` steps.

    >>> [fg.optim.step_decay(10, 0.5)(step) for step in (0, 9, 10, 25)]
    [1.0, 1.0, 0.5, 0.25]
    """
    positive("every", every)
    return lambda step: float(gamma ** (step // every))


def join(shapes: Sequence[Shape], boundaries: Sequence[int]) -> Shape:
    """One shape after another; each counts its steps from its own beginning.

    >>> [fg.optim.join([fg.optim.constant(), fg.optim.linear(2)], [3])(s) for s in (2, 3, 4)]
    [1.0, 1.0, 0.5]
    """
    if len(shapes) != len(boundaries) + 1 or list(boundaries) != sorted(boundaries):
        raise ArgumentError(
            f"{len(shapes)} shapes and boundaries {list(boundaries)}",
            "give one boundary, rising, between each two shapes",
        )

    def joined(step: int) -> float:
        place = sum(step >= boundary for boundary in boundaries)
        return shapes[place](step - (boundaries[place - 1] if place else 0))

    return joined


def positive(name: str, value: int) -> None:
    """Refuse a number of steps that is none."""
    if value < 1:
        raise ArgumentError(f"{name} is {value}", "give it 1 or more")


class Schedule:
    """Applies a shape to an optimiser: call `step()` after each step of it.

    >>> w = fg.Tensor([1.0], requires_grad=True)
    >>> optimizer = fg.optim.SGD([w], lr=0.1)
    >>> schedule = fg.optim.Schedule(optimizer, fg.optim.linear(10))
    >>> schedule.step()
    >>> round(optimizer.param_groups[0]["lr"], 6)
    0.09
    """

    def __init__(self, optimizer: Optimizer, shape: Shape) -> None:
        if not isinstance(optimizer, Optimizer) or not callable(shape):
            raise ArgumentError(
                "a schedule needs an optimiser and a function of the step",
                "fg.optim.Schedule(optimizer, fg.optim.cosine(1000))",
            )
        self.optimizer, self.shape, self.count = optimizer, shape, 0
        self._apply()

    def step(self) -> None:
        """One step was taken: set the rates of the next."""
        self.count += 1
        self._apply()

    def _apply(self) -> None:
        for place, group in enumerate(self.optimizer.param_groups):  # those added meanwhile too
            if "initial_lr" not in group:  # else nobody asks for a rate, which is a tensor
                group["initial_lr"] = group["lr"]
            group["lr"] = self._rate(place, group["initial_lr"])

    def _rate(self, place: int, base: float) -> float:
        """The rate of a group now, by its first one."""
        return base * self.shape(self.count)

    def rates(self) -> list[float]:
        """The learning rate of each group now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The number of steps taken."""
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        try:
            self.count = int(state["count"])
        except (KeyError, TypeError, ValueError):
            raise ArgumentError("this is no state of a schedule", "give its state_dict()") from None
        self._apply()
