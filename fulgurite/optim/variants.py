"""Adamax, NAdam, RAdam, Adadelta, Rprop and ASGD: torch's, to the options they have here.

In: a parameter, its gradient and what is kept for it. Out: the new values. What depends on the
count of steps alone is computed once for a group, from a tensor: no step compiles anything new.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..functional.math.elementwise import abs as absolute
from ..functional.math.elementwise import clip, maximum, pow, sign, where
from ..tensor import Tensor
from .adam import Adam
from .optimizer import Group, Now, Optimizer, Slots, State, Updated, bias


class Adamax(Adam):
    """Adam with the largest gradient so far, slowly forgotten, in place of the mean square."""

    def __init__(
        self, params: Any, lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        Optimizer.__init__(
            self, params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
            maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"exp_avg": 0.0, "exp_inf": 0.0}

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        b1, b2 = group["betas"]
        if group["weight_decay"]:
            grad = grad + param * group["weight_decay"]
        mean = state["exp_avg"] + (grad - state["exp_avg"]) * (1 - b1)
        largest = maximum(state["exp_inf"] * b2, absolute(grad) + group["eps"])
        return param - now["size"] * mean / largest, {"exp_avg": mean, "exp_inf": largest}


class _Decaying(Adam):
    """Adam with a mean of its own; `decoupled_weight_decay` shrinks the weights themselves."""

    def _decayed(self, group: Group, param: Tensor, grad: Tensor, rate: Tensor) -> Any:
        if not group["weight_decay"]:
            return param, grad
        if group["decoupled_weight_decay"]:
            return param * (1 - rate * group["weight_decay"]), grad
        return param, grad + param * group["weight_decay"]

    def _means(self, group: Group, grad: Tensor, state: State) -> State:
        b1, b2 = group["betas"]
        mean = state["exp_avg"] + (grad - state["exp_avg"]) * (1 - b1)
        return {"exp_avg": mean, "exp_avg_sq": state["exp_avg_sq"] * b2 + grad * grad * (1 - b2)}


class NAdam(_Decaying):
    """Adam with Nesterov's momentum, whose size grows to beta 1."""

    positive = (*Optimizer.positive, "momentum_decay")

    def __init__(
        self, params: Any, lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        Optimizer.__init__(
            self, params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
            momentum_decay=momentum_decay, decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"mu_product": np.ones(()), "exp_avg": 0.0, "exp_avg_sq": 0.0}

    def scalars(self, group: Group, step: Tensor) -> Now:
        b1, b2 = group["betas"]

        def share(count: Tensor) -> Tensor:
            lasting = pow(0.96, count * group["momentum_decay"])
            found: Tensor = (1 - 0.5 * lasting) * b1
            return found.contiguous()

        root = bias(step, b2).sqrt().contiguous()
        return {"lr": group.rate, "mu": share(step), "next": share(step + 1), "root": root}

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        param, grad = self._decayed(group, param, grad, now["lr"])
        kept = self._means(group, grad, state)
        product = (state["mu_product"] * now["mu"]).contiguous()
        below = kept["exp_avg_sq"].sqrt() / now["root"] + group["eps"]
        own = now["lr"] * (1 - now["mu"]) / (1 - product)
        past = now["lr"] * now["next"] / (1 - product * now["next"])
        return param - (grad * own + kept["exp_avg"] * past) / below, kept | {"mu_product": product}


class RAdam(_Decaying):
    """Adam that divides by the mean square only once that is known well enough."""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, decoupled_weight_decay: bool = False, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        Optimizer.__init__(
            self, params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay, maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def scalars(self, group: Group, step: Tensor) -> Now:
        b1, b2 = group["betas"]
        below = bias(step, b2)
        most = 2 / (1 - b2) - 1
        length = most - 2 * step * (1 - below) / below
        known = length > 5
        safe = where(known, length, 6.0)
        part = (safe - 4) * (safe - 2) * most / ((most - 4) * (most - 2) * safe)
        return {
            "lr": group.rate,
            "size": (group.rate / bias(step, b1)).contiguous(),
            "known": known.contiguous(),
            "rectified": (part.sqrt() * below.sqrt()).contiguous(),
        }

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        param, grad = self._decayed(group, param, grad, now["lr"])
        kept = self._means(group, grad, state)
        adapted = now["rectified"] / (kept["exp_avg_sq"].sqrt() + group["eps"])
        way = kept["exp_avg"] * where(now["known"], adapted, 1.0)
        return param - now["size"] * way, kept


class Adadelta(Optimizer):
    """Steps as long as past steps were for gradients like this one."""

    positive = (*Optimizer.positive, "rho")

    def __init__(
        self, params: Any, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize
        )

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        rho, eps = group["rho"], group["eps"]
        if group["weight_decay"]:
            grad = grad + param * group["weight_decay"]
        square = state["square_avg"] * rho + grad * grad * (1 - rho)
        way = grad * (state["acc_delta"] + eps).sqrt() / (square + eps).sqrt()
        taken = state["acc_delta"] * rho + way * way * (1 - rho)
        return param - now["lr"] * way, {"square_avg": square, "acc_delta": taken}


class Rprop(Optimizer):
    """Steps by the signs of gradients, each number's longer while its sign stays; whole batches."""

    def __init__(
        self, params: Any, lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0), *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr=lr, etas=etas, step_sizes=step_sizes, maximize=maximize)

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"prev": 0.0, "step_size": float(group["lr"])}

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        less, more = group["etas"]
        turned = grad * state["prev"]
        size = state["step_size"]
        size = where(turned > 0, size * more, where(turned < 0, size * less, size))
        size = clip(size, *group["step_sizes"])
        grad = where(turned < 0, 0.0, grad)
        return param - sign(grad) * size, {"prev": grad, "step_size": size}


class ASGD(Optimizer):
    """Averaged gradient descent: steps shrink, and `ax` in the state is the mean of the weights.

    The mean begins after `t0` steps (Polyak and Juditsky 1992); until then it is the weights.
    """

    positive = (*Optimizer.positive, "lambd", "alpha")

    def __init__(
        self, params: Any, lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75,
        t0: float = 1e6, weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr=lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay,
            maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"eta": np.array(float(group["lr"])), "mu": np.ones(()), "ax": 0.0}

    def scalars(self, group: Group, step: Tensor) -> Now:
        slower = pow(1 + group["lambd"] * group.rate * step, group["alpha"])
        share = 1 / maximum(step - group["t0"], 1.0)
        return {"eta": (group.rate / slower).contiguous(), "mu": share.contiguous()}

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        if group["weight_decay"]:
            grad = grad + param * group["weight_decay"]
        eta, mu = state["eta"], state["mu"]
        new = param * (1 - eta * group["lambd"]) - grad * eta
        mean = where(mu == 1, new, state["ax"] + (new - state["ax"]) * mu)
        return new, {"ax": mean, "eta": now["eta"], "mu": now["mu"]}
