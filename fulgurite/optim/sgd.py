"""SGD, RMSprop and Adagrad: steps along the gradient, scaled by what was seen before.

In: a parameter, its gradient and what is kept for it. Out: the new values, as in torch to the last
option. Momentum's first value is the gradient itself, whatever the dampening.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..functional.math.elementwise import where
from ..tensor import Tensor
from .optimizer import Group, Now, Optimizer, Slots, State, Updated


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov's variant and weight decay.

    >>> w = fg.Tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = fg.optim.SGD([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.tolist()
    [0.0, 0.0]
    """

    positive = (*Optimizer.positive, "momentum")
    slots_vary = True

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
            nesterov=nesterov, maximize=maximize,
        )  # fmt: skip

    def _check(self, options: Any) -> None:
        super()._check(options)
        if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
            raise ArgumentError(
                "Nesterov's variant needs a momentum and no dampening", "give momentum=0.9"
            )

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"momentum_buffer": 0.0} if group["momentum"] else {}

    def scalars(self, group: Group, step: Tensor) -> Now:
        now = {"lr": group.rate}
        if group["momentum"] and group["dampening"]:
            share = where(step == 1, step * 0 + 1, step * 0 + (1 - group["dampening"]))
            now["share"] = share.contiguous()
        return now

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        if group["weight_decay"]:
            grad = grad + param * group["weight_decay"]
        if not group["momentum"]:
            return param - now["lr"] * grad, {}
        added = grad * now["share"] if "share" in now else grad
        moved = state["momentum_buffer"] * group["momentum"] + added
        way = grad + moved * group["momentum"] if group["nesterov"] else moved
        return param - now["lr"] * way, {"momentum_buffer": moved}


class RMSprop(Optimizer):
    """Gradients divided by the root of their running mean square."""

    positive = (*Optimizer.positive, "momentum", "alpha")
    slots_vary = True

    def __init__(
        self, params: Any, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
            centered=centered, maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        found: Slots = {"square_avg": 0.0}
        if group["momentum"]:
            found["momentum_buffer"] = 0.0
        if group["centered"]:
            found["grad_avg"] = 0.0
        return found

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        alpha = group["alpha"]
        if group["weight_decay"]:
            grad = grad + param * group["weight_decay"]
        square = state["square_avg"] * alpha + grad * grad * (1 - alpha)
        kept = {"square_avg": square}
        spread = square
        if group["centered"]:
            mean = state["grad_avg"] + (grad - state["grad_avg"]) * (1 - alpha)
            kept["grad_avg"] = mean
            spread = square - mean * mean
        way = grad / (spread.sqrt() + group["eps"])
        if group["momentum"]:
            way = state["momentum_buffer"] * group["momentum"] + way
            kept["momentum_buffer"] = way
        return param - now["lr"] * way, kept


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of all their squares."""

    positive = (*Optimizer.positive, "lr_decay", "initial_accumulator_value")

    def __init__(
        self, params: Any, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, eps=eps, maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"sum": float(group["initial_accumulator_value"])}

    def scalars(self, group: Group, step: Tensor) -> Now:
        rate = group.rate
        if group["lr_decay"]:
            rate = (rate / (1 + (step - 1) * group["lr_decay"])).contiguous()
        return {"lr": rate}

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        if group["weight_decay"]:
            grad = grad + param * group["weight_decay"]
        total = state["sum"] + grad * grad
        return param - now["lr"] * grad / (total.sqrt() + group["eps"]), {"sum": total}
