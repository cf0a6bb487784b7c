"""Gradients between `backward` and `step`: clipped, added up over batches, averaged over time.

In: gradients as a list, a dict, a module, or parameters that hold them in `grad`. Out: the same
nest with other values, lazy, so that clipping is part of the step's plan. `Accumulator` adds up the
gradients of several small batches in memory of its own; `EMA` keeps a running mean of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import tree
from ..core.dtype import float32, float64
from ..errors import ArgumentError
from ..functional.math.elementwise import abs as absolute
from ..functional.math.elementwise import clip, maximum
from ..tensor import Tensor, no_grad, realize_among
from .optimizer import _array, _listed, _parameters, scalar
from .realize_step import realize_step


def global_norm(grads: Any, norm_type: float = 2.0) -> Tensor:
    """The norm of all gradients as if they were one vector; inf gives the largest.

    >>> fg.optim.global_norm([fg.Tensor([3.0]), fg.Tensor([4.0])]).item()
    5.0
    """
    found = [_wide(g) for g in _listed(grads) if g is not None]
    if not found:
        raise ArgumentError("there are no gradients", "give some")
    if norm_type == float("inf"):
        total = absolute(found[0]).max()
        for grad in found[1:]:
            total = maximum(total, absolute(grad).max())
        return total
    if not norm_type > 0:
        raise ArgumentError(f"norm_type is {norm_type}", "give 2, another positive number or inf")
    parts = [(g * g).sum() if norm_type == 2 else (absolute(g) ** norm_type).sum() for g in found]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.sqrt() if norm_type == 2 else total ** (1 / norm_type)


def _wide(grad: Tensor) -> Tensor:
    """A gradient in a dtype that adds up well: float32, or float64 if it is of that."""
    return grad if grad.dtype is float64 else grad.astype(float32)


def clip_by_norm(grads: Any, max_norm: float, norm_type: float = 2.0) -> tuple[Any, Tensor]:
    """The gradients, shrunk together if their norm is above `max_norm`, and their norm.

    >>> clipped, norm = fg.optim.clip_by_norm([fg.Tensor([3.0, 4.0])], 1.0)
    >>> [round(x, 3) for x in clipped[0].tolist()], norm.item()
    ([0.6, 0.8], 5.0)
    """
    if not max_norm >= 0:
        raise ArgumentError(f"max_norm is {max_norm}", "give it 0 or more")
    norm = global_norm(grads, norm_type)
    factor = clip(max_norm / (norm + 1e-6), None, 1.0).contiguous()
    return _mapped(lambda g: (g * factor).astype(g.dtype), grads), norm


def clip_by_value(grads: Any, limit: float) -> Any:
    """The gradients with every number between -limit and limit.

    >>> fg.optim.clip_by_value([fg.Tensor([3.0, -0.5])], 1.0)[0].tolist()
    [1.0, -0.5]
    """
    if not limit >= 0:
        raise ArgumentError(f"limit is {limit}", "give it 0 or more")
    return _mapped(lambda g: clip(g, -limit, limit), grads)


def _mapped(function: Any, grads: Any) -> Any:
    return tree.map(lambda g: function(g) if isinstance(g, Tensor) else g, grads)


def clip_grad_norm_(params: Any, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Shrink the `grad` of parameters together if their norm is above `max_norm`; the norm."""
    holders = _with_grad(params)
    if not holders:
        return Tensor(0.0)
    clipped, norm = clip_by_norm([param.grad for param in holders], max_norm, norm_type)
    for param, grad in zip(holders, clipped, strict=True):
        param.grad = grad
    return norm


def clip_grad_value_(params: Any, limit: float) -> None:
    """Bring every number of the `grad` of parameters between -limit and limit."""
    for param in _with_grad(params):
        param.grad = clip_by_value([param.grad], limit)[0]


def _with_grad(params: Any) -> list[Tensor]:
    if hasattr(params, "parameters"):
        params = params.parameters()
    return [param for param in _parameters(params) if param.grad is not None]


def _kind(param: Tensor) -> Any:
    """NumPy's dtype of sums of a parameter's gradients."""
    return np.float64 if param.dtype is float64 else np.float32


class Accumulator:
    """The mean gradient of several small batches, as one large batch would give.

    >>> w = fg.Tensor([1.0, 2.0], requires_grad=True)
    >>> total = fg.optim.Accumulator([w])
    >>> for scale in (1.0, 3.0):
    ...     total.add([w * scale])
    >>> total.take()[0].tolist()
    [2.0, 4.0]
    """

    def __init__(self, params: Any) -> None:
        if hasattr(params, "parameters"):
            params = params.parameters()
        self.params = _parameters(params)
        self.sums = [
            Tensor(np.zeros(param.shape, _kind(param)), device=param.device)
            for param in self.params
        ]
        self.count = scalar(0.0, self.params[0].device)
        self.empty = True

    def add(self, grads: Any = None) -> None:
        """Add the gradients of one batch, those in `grad` if none are given; computed now."""
        given = [p.grad for p in self.params] if grads is None else _listed(grads)
        if len(given) != len(self.sums):
            raise ArgumentError(
                f"{len(given)} gradients for {len(self.sums)} parameters", "give one for each"
            )
        before = [param.node for param in self.params]
        changed = [self.count]
        with no_grad():
            self.count.assign(self.count + 1)
            for total, grad in zip(self.sums, given, strict=True):
                if grad is not None:
                    total.assign(total + grad.astype(total.dtype))
                    changed.append(total)
        self.empty = False
        realize_step(changed, before, [grad for grad in given if grad is not None])
        if grads is None:
            for param in self.params:
                param.grad = None

    def take(self) -> list[Tensor]:
        """The mean so far, for `optimizer.step(...)`; the next sum begins at zero."""
        if self.empty:
            raise ArgumentError("nothing was added", "call add(grads) first")
        mean = [total / self.count for total in self.sums]
        self.empty = True
        self.count.assign(scalar(0.0, self.count.device))
        for total in self.sums:
            total.assign(Tensor(np.zeros(total.shape, _kind(total)), device=total.device))
        return mean


class EMA:
    """A running mean of weights: call `update()` after each step.

    >>> w = fg.Tensor([0.0])
    >>> ema = fg.optim.EMA([w], decay=0.5)
    >>> w = w.assign([4.0])
    >>> ema.update()
    >>> with ema.swapped():
    ...     print(w.tolist())
    [2.0]
    """

    def __init__(self, params: Any, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ArgumentError(f"decay is {decay}", "give a number from 0 to below 1")
        if hasattr(params, "parameters"):
            params = params.parameters()
        self.params, self.decay = _parameters(params), decay
        realize_among(self.params)
        self.shadow = [Tensor(param.numpy(), device=param.device) for param in self.params]

    def update(self) -> None:
        """Move the means toward the weights."""
        with no_grad():
            for mean, param in zip(self.shadow, self.params, strict=True):
                mean.assign(mean + (param - mean) * (1 - self.decay))
        realize_step(self.shadow, [])

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within, the parameters are the means."""
        kept = [param.detach() for param in self.params]
        self._put(self.shadow)
        try:
            yield
        finally:
            self._put(kept)

    def _put(self, values: Iterable[Tensor]) -> None:
        with no_grad():
            for param, value in zip(self.params, list(values), strict=True):
                param.assign(value)

    def state_dict(self) -> dict[str, Any]:
        """The means and the decay."""
        return {"decay": self.decay, "shadow": list(self.shadow)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        try:
            realize_among(state["shadow"])
            values = [_array(value) for value in state["shadow"]]
            decay = float(state["decay"])
            fits = [v.shape for v in values] == [m.shape for m in self.shadow]
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise ArgumentError("this is no state of these means", "give their state_dict()")
        self.decay = decay
        for mean, value in zip(self.shadow, values, strict=True):
            mean.assign(Tensor(value, mean.dtype, device=mean.device))
