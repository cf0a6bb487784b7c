"""torch's schedulers by their names: how the learning rate changes as training goes on.

In: an optimiser and torch's settings. Out: a `Schedule` that sets each group's rate from its first
one and the number of `step()` calls, in closed form: two schedulers on one optimiser do not
multiply as in torch; `SequentialLR` puts one after the other. `OneCycleLR` leaves momentum alone,
`CyclicLR` cycles it unless told otherwise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from .optimizer import Optimizer
from .schedule import Schedule, positive

Rate = Callable[[float, int], float]  # of a group's first rate and the count of steps


class LRScheduler(Schedule):
    """Rates by a function of each group's first rate and the count; use one of its subclasses."""

    def __init__(self, optimizer: Optimizer, rate: Rate) -> None:
        self.rate = rate
        super().__init__(optimizer, lambda step: 1.0)

    def _rate(self, place: int, base: float) -> float:
        return self.rate(base, self.count)

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group now."""
        return self.rates()

    @property
    def last_epoch(self) -> int:
        """How often `step` was called."""
        return self.count


class LambdaLR(LRScheduler):
    """The first rate times a function of the count; a list has one for each group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Any) -> None:
        self.lambdas = _of_each(optimizer, lr_lambda, "functions")
        super().__init__(optimizer, lambda base, step: base)

    def _rate(self, place: int, base: float) -> float:
        return base * float(self.lambdas[place](self.count))


class StepLR(LRScheduler):
    """A factor of `gamma` for each `step_size` steps.

    >>> optimizer = fg.optim.SGD([fg.ones(2)], lr=1.0)
    >>> schedule = fg.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> for _ in range(4):
    ...     schedule.step()
    >>> schedule.get_last_lr()
    [0.25]
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        positive("step_size", step_size)
        super().__init__(optimizer, lambda base, step: base * gamma ** (step // step_size))


class MultiStepLR(LRScheduler):
    """A factor of `gamma` from each milestone on."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        rising = sorted(milestones)
        super().__init__(optimizer, lambda base, step: base * gamma ** bisect_right(rising, step))


class ExponentialLR(LRScheduler):
    """A factor of `gamma` for each step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        super().__init__(optimizer, lambda base, step: base * gamma**step)


class ConstantLR(LRScheduler):
    """A factor for so many steps, then the first rate."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5) -> None:
        super().__init__(
            optimizer, lambda base, step: base * (factor if step < total_iters else 1.0)
        )


class LinearLR(LRScheduler):
    """From one factor to another in so many steps."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:  # fmt: skip
        positive("total_iters", total_iters)

        def rate(base: float, step: int) -> float:
            share = min(step, total_iters) / total_iters
            return base * (start_factor + (end_factor - start_factor) * share)

        super().__init__(optimizer, rate)


class PolynomialLR(LRScheduler):
    """Down to 0 in so many steps, as a power of what is left."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0) -> None:
        positive("total_iters", total_iters)
        super().__init__(
            optimizer,
            lambda base, step: base * (1 - min(step, total_iters) / total_iters) ** power,
        )


class CosineAnnealingLR(LRScheduler):
    """Down half a wave of the cosine to `eta_min` in `T_max` steps, and up again."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        positive("T_max", T_max)

        def rate(base: float, step: int) -> float:
            return eta_min + (base - eta_min) * (1 + math.cos(math.pi * step / T_max)) / 2

        super().__init__(optimizer, rate)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half waves of the cosine, each `T_mult` times as long as the one before."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0
    ) -> None:
        positive("T_0", T_0)
        positive("T_mult", T_mult)

        def rate(base: float, step: int) -> float:
            length = T_0
            while step >= length:
                step, length = step - length, length * T_mult
            return eta_min + (base - eta_min) * (1 + math.cos(math.pi * step / length)) / 2

        super().__init__(optimizer, rate)


class OneCycleLR(LRScheduler):
    """Up to `max_lr` in a first part of the steps, then down to almost nothing."""

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float],
        total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos",
        div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False,
    ) -> None:  # fmt: skip
        count = total_steps or (epochs or 0) * (steps_per_epoch or 0)
        positive("total_steps, or epochs * steps_per_epoch,", count)
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"anneal_strategy is {anneal_strategy!r}", 'use "cos" or "linear"')
        self.tops: list[float] = _of_each(optimizer, max_lr, "rates")
        top, first = float(pct_start * count) - 1, 1 / div_factor
        self.phases = [(top, first, 1.0)]  # where each ends, and the factors it goes between
        if three_phase:
            self.phases.append((2 * top, 1.0, first))
        self.phases.append((count - 1, self.phases[-1][2], first / final_div_factor))
        self.straight = anneal_strategy == "linear"
        super().__init__(optimizer, lambda base, step: base)

    def _rate(self, place: int, base: float) -> float:
        ends = [phase[0] for phase in self.phases]
        number = min(sum([self.count > end for end in ends]), len(ends) - 1)
        begin = ends[number - 1] if number else 0.0
        end, low, high = self.phases[number]
        share = min(1.0, (self.count - begin) / (end - begin)) if end > begin else 1.0
        share = share if self.straight else (1 - math.cos(math.pi * share)) / 2
        return self.tops[place] * (low + (high - low) * share)


class CyclicLR(LRScheduler):
    """Up from `base_lr` to `max_lr` and down again, over and over.

    "triangular" keeps the height of the cycles, "triangular2" halves it with each, "exp_range"
    shrinks it by `gamma` with each step; `scale_fn` is a factor of your own, of the number of the
    cycle or of the step (`scale_mode`). With `cycle_momentum` the momentum (or the first beta)
    goes the other way, from `max_momentum` to `base_momentum`.

    >>> optimizer = fg.optim.SGD([fg.ones(2)], lr=1.0, momentum=0.9)
    >>> schedule = fg.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.5, step_size_up=2)
    >>> schedule.step()
    >>> [round(rate, 2) for rate in schedule.get_last_lr()]
    [0.3]
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: float | Sequence[float],
        max_lr: float | Sequence[float], step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle",
        cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
    ) -> None:  # fmt: skip
        positive("step_size_up", step_size_up)
        down = step_size_up if step_size_down is None else step_size_down
        positive("step_size_down", down)
        self.length, self.rising = step_size_up + down, step_size_up / (step_size_up + down)
        if scale_fn is None:
            if mode not in ("triangular", "triangular2", "exp_range"):
                raise ArgumentError(
                    f"mode is {mode!r}", 'use "triangular", "triangular2" or "exp_range"'
                )
            scale_mode = "iterations" if mode == "exp_range" else "cycle"
            scales: dict[str, Callable[[float], float]] = {
                "triangular": lambda cycle: 1.0,
                "triangular2": lambda cycle: 0.5 ** (cycle - 1),
                "exp_range": lambda step: gamma**step,
            }
            scale_fn = scales[mode]
        if scale_mode not in ("cycle", "iterations"):
            raise ArgumentError(f"scale_mode is {scale_mode!r}", 'use "cycle" or "iterations"')
        self.scale_fn, self.by_cycle = scale_fn, scale_mode == "cycle"
        self.lows: list[float] = _of_each(optimizer, base_lr)
        self.tops: list[float] = _of_each(optimizer, max_lr)
        self.moments: list[tuple[float, float]] = []
        if cycle_momentum:
            if not all(_momentum_of(group) for group in optimizer.param_groups):
                raise ArgumentError(
                    "the optimiser has no momentum to cycle", "give cycle_momentum=False"
                )
            ends = (_of_each(optimizer, m) for m in (base_momentum, max_momentum))
            self.moments = list(zip(*ends, strict=True))
        super().__init__(optimizer, lambda base, step: base)

    def _height(self) -> float:
        """How far up the rate is, from 0 to 1, times the scale of this cycle."""
        cycle = math.floor(1 + self.count / self.length)
        part = 1 + self.count / self.length - cycle
        up = part / self.rising if part <= self.rising else (part - 1) / (self.rising - 1)
        return up * float(self.scale_fn(cycle if self.by_cycle else self.count))

    def _rate(self, place: int, base: float) -> float:
        low = self.lows[place]
        return low + (self.tops[place] - low) * self._height()

    def _apply(self) -> None:
        super()._apply()
        for group, (low, high) in zip(self.optimizer.param_groups, self.moments, strict=False):
            moment = high - (high - low) * self._height()
            if "momentum" in group:
                group["momentum"] = moment
            else:
                group["betas"] = (moment, *group["betas"][1:])


def _momentum_of(group: Mapping[str, Any]) -> bool:
    """True if a group has a momentum, or betas."""
    return "momentum" in group or "betas" in group


def _of_each(optimizer: Optimizer, value: Any, what: str = "numbers") -> list[Any]:
    """One number, or function, for each group."""
    count = len(optimizer.param_groups)
    found = list(value) if isinstance(value, Sequence) else [value] * count
    if len(found) != count:
        raise ArgumentError(f"{len(found)} {what}", f"give one for each of {count} groups")
    return found


class SequentialLR(LRScheduler):
    """One scheduler after another; each counts its steps from its own milestone."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        if len(schedulers) != len(milestones) + 1:
            raise ArgumentError(
                f"{len(schedulers)} schedulers and {len(milestones)} milestones",
                "give one milestone between each two",
            )
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, lambda base, step: base)

    def _rate(self, place: int, base: float) -> float:
        number = bisect_right(self.milestones, self.count)
        inner = self.schedulers[number]
        inner.count = self.count - (self.milestones[number - 1] if number else 0)
        return inner._rate(place, base)


class ReduceLROnPlateau:
    """A factor for the rates when a figure has not become better for `patience` steps.

    >>> optimizer = fg.optim.SGD([fg.ones(2)], lr=1.0)
    >>> plateau = fg.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    >>> for loss in (1.0, 1.0, 1.0):
    ...     plateau.step(loss)
    >>> plateau.get_last_lr()
    [0.1]
    """

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs") or factor >= 1:
            raise ArgumentError(
                f"mode {mode!r}, threshold_mode {threshold_mode!r}, factor {factor}",
                '"min" or "max", "rel" or "abs", and a factor below 1',
            )
        self.least = _of_each(optimizer, min_lr, "rates")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.relative = threshold, threshold_mode == "rel"
        self.cooldown, self.eps = cooldown, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.bad, self.cooling, self.count = 0, 0, 0

    def _better(self, figure: float) -> bool:
        way = -1 if self.mode == "min" else 1
        if not math.isfinite(self.best):
            return way * figure > way * self.best
        margin = abs(self.best) * self.threshold if self.relative else self.threshold
        return way * figure > way * self.best + margin

    def step(self, metrics: Any) -> None:
        """Look at a figure; lower the rates if it has stood still for too long."""
        figure = float(metrics)
        self.count += 1
        self.best, self.bad = (figure, 0) if self._better(figure) else (self.best, self.bad + 1)
        if self.cooling:
            self.cooling, self.bad = self.cooling - 1, 0
        if self.bad > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.least, strict=False):
                lower = max(group["lr"] * self.factor, least)
                if group["lr"] - lower > self.eps:
                    group["lr"] = lower
            self.cooling, self.bad = self.cooldown, 0

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What it has seen."""
        return {"best": self.best, "bad": self.bad, "cooling": self.cooling, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        try:
            found = {name: state[name] for name in self.state_dict()}
        except (KeyError, TypeError):
            raise ArgumentError("this is no state of a schedule", "give its state_dict()") from None
        vars(self).update(found)
