"""Adam and its relatives: AdamW, Lion and LAMB.

In: a parameter, its gradient and two running means. Out: the new values. The corrections of the
means' bias are two numbers of the group, computed once for all its parameters from the count of
steps, which is a tensor: no step compiles anything new. Adam and AdamW are torch's, Lion is of
Chen et al. 2023, LAMB of You et al. 2020.
"""

from __future__ import annotations

from typing import Any

from ..functional.math.elementwise import maximum, sign, where
from ..tensor import Tensor
from .optimizer import Group, Now, Optimizer, Slots, State, Updated, bias


class Adam(Optimizer):
    """Running means of the gradient and of its square; `weight_decay` is added to the gradient.

    >>> w = fg.Tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = fg.optim.Adam([w], lr=0.1)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> [round(x, 4) for x in w.tolist()]
    [0.9, -1.9]
    """

    decoupled = False
    slots_vary = True

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
            maximize=maximize,
        )  # fmt: skip

    def slots(self, group: Group, param: Tensor) -> Slots:
        found: Slots = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        return found | {"max_exp_avg_sq": 0.0} if group["amsgrad"] else found

    def scalars(self, group: Group, step: Tensor) -> Now:
        b1, b2 = group["betas"]
        now = {
            "size": (group.rate / bias(step, b1)).contiguous(),
            "root": bias(step, b2).sqrt().contiguous(),
        }
        if self.decoupled and group["weight_decay"]:
            now["keep"] = (1 - group.rate * group["weight_decay"]).contiguous()
        return now

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        b1, b2 = group["betas"]
        if "keep" in now:
            param = param * now["keep"]
        elif group["weight_decay"]:
            grad = grad + param * group["weight_decay"]
        mean = state["exp_avg"] + (grad - state["exp_avg"]) * (1 - b1)
        square = state["exp_avg_sq"] * b2 + grad * grad * (1 - b2)
        kept = {"exp_avg": mean, "exp_avg_sq": square}
        largest = square
        if group["amsgrad"]:
            largest = kept["max_exp_avg_sq"] = maximum(state["max_exp_avg_sq"], square)
        new = param - now["size"] * mean / (largest.sqrt() / now["root"] + group["eps"])
        return new, kept


class AdamW(Adam):
    """Adam whose weight decay shrinks the weights themselves.

    >>> w = fg.Tensor([1.0], requires_grad=True)
    >>> optimizer = fg.optim.AdamW([w], lr=0.1, weight_decay=0.5)
    >>> optimizer.step([fg.zeros(1)])
    >>> [round(x, 4) for x in w.tolist()]
    [0.95]
    """

    decoupled = True

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class Lion(Optimizer):
    """Steps of one size along the sign of a mean of gradients; the weights decay by themselves."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"exp_avg": 0.0}

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        b1, b2 = group["betas"]
        mean = state["exp_avg"]
        way = sign(mean * b1 + grad * (1 - b1))
        if group["weight_decay"]:
            way = way + param * group["weight_decay"]
        return param - now["lr"] * way, {"exp_avg": mean * b2 + grad * (1 - b2)}


class LAMB(Optimizer):
    """Adam's step for each parameter, as long as a share of the parameter itself."""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6, weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize
        )

    def slots(self, group: Group, param: Tensor) -> Slots:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def scalars(self, group: Group, step: Tensor) -> Now:
        b1, b2 = group["betas"]
        return {
            "lr": group.rate,
            "first": bias(step, b1).contiguous(),
            "root": bias(step, b2).sqrt().contiguous(),
        }

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        b1, b2 = group["betas"]
        mean = state["exp_avg"] + (grad - state["exp_avg"]) * (1 - b1)
        square = state["exp_avg_sq"] * b2 + grad * grad * (1 - b2)
        way = mean / now["first"] / (square.sqrt() / now["root"] + group["eps"])
        if group["weight_decay"]:
            way = way + param * group["weight_decay"]
        size, length = (param * param).sum().sqrt(), (way * way).sum().sqrt()
        both = (size > 0) & (length > 0)
        trust = where(both, size / where(both, length, length * 0 + 1), size * 0 + 1)
        return param - now["lr"] * trust * way, {"exp_avg": mean, "exp_avg_sq": square}
