"""Mixed precision as a policy: compute in few bits, keep and update weights in many.

In: a loss as a function of a model (or any nest of parameters) and batches. Out: a function that
gives its value and gradients, computed in the policy's dtype; the weights themselves, which the
optimiser updates, stay float32, and so do gradients and the loss. float16 has too few small
numbers for gradients: `LossScaler` multiplies the loss, and skips a step whose gradients overflow;
`GradScaler` is the same thing in torch's four calls, for `backward()` under `fg.autocast`.
Buffers of a model (running statistics) are not cast, so what is assigned to them is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import tree
from ..autodiff.grad import value_and_grad
from ..core.dtype import dtype_of, float16, float32
from ..core.ops.elementwise import CAST
from ..errors import ArgumentError, DTypeError
from ..functional.math.elementwise import isfinite, maximum, minimum, where
from ..tensor import Tensor, no_grad, node_of, realize_among, wrap
from .gradients import _mapped
from .optimizer import _listed, scalar


class Policy:
    """The dtype to compute in; weights, gradients and losses are float32.

    >>> policy = fg.optim.Policy("bfloat16")
    >>> w, x = fg.Tensor([[1.0, 2.0]]), fg.Tensor([[3.0], [4.0]])
    >>> value, grads = policy.value_and_grad(lambda w, x: (w @ x).sum())(w, x)
    >>> value.dtype, grads.dtype, grads.tolist()
    (float32, float32, [[3.0, 4.0]])
    """

    def __init__(self, compute: object = "bfloat16", scaler: LossScaler | None = None) -> None:
        self.compute = dtype_of(compute)
        if self.compute.kind != "f":
            raise DTypeError(f"{self.compute} is no dtype to compute in", "bfloat16 or float16")
        self.scaler = scaler
        if self.compute is float16 and scaler is None:
            self.scaler = LossScaler()

    def cast(self, nest: Any) -> Any:
        """A nest whose float32 tensors are of the policy's dtype; a model's buffers stay."""
        buffers = getattr(nest, "buffers", None)
        kept = {id(buffer) for buffer in buffers()} if callable(buffers) else set()

        def one(leaf: Any) -> Any:
            wide = isinstance(leaf, Tensor) and leaf.dtype is float32 and id(leaf) not in kept
            return leaf.astype(self.compute) if wide else leaf

        return tree.map(one, nest)

    def value_and_grad(self, function: Callable[..., Any], has_aux: bool = False) -> Any:
        """As `fg.value_and_grad` by the first argument, computed in the policy's dtype."""

        def lowered(model: Any, *args: Any, **keywords: Any) -> Any:
            given = [self.cast(arg) for arg in args]
            found = function(self.cast(model), *given, **keywords)
            loss, aux = found if has_aux else (found, None)
            loss = _unrounded(loss)
            scaled = loss if self.scaler is None else loss * self.scaler.scale
            return scaled, aux

        both = value_and_grad(lowered, has_aux=True)

        def differentiated(model: Any, *args: Any, **keywords: Any) -> Any:
            (loss, aux), grads = both(model, *args, **keywords)
            if self.scaler is not None:
                loss, grads = loss / self.scaler.scale, self.scaler.unscale(grads)
            if not has_aux:
                return loss, grads
            return (loss, _mapped(lambda found: found.detach(), aux)), grads

        return differentiated


def _unrounded(loss: Tensor) -> Tensor:
    """A loss in float32; what was computed in that and rounded at the very end is not rounded."""
    node = node_of(loss)
    wide = node.op is CAST and node.src[0].dtype is float32
    return wrap(node.src[0]) if wide else loss.astype(float32)


class LossScaler:
    """A factor of the loss that is as large as gradients allow; `step` skips what overflows.

    It doubles after `interval` good steps and halves after one that overflowed.
    """

    def __init__(self, scale: float = 2.0**15, interval: int = 2000, growth: float = 2.0,
                 backoff: float = 0.5) -> None:  # fmt: skip
        if not (scale > 0 and interval >= 1 and growth >= 1 and 0 < backoff <= 1):
            raise ArgumentError(
                f"scale {scale}, interval {interval}, growth {growth}, backoff {backoff}",
                "give a positive scale, an interval, growth >= 1 and backoff <= 1",
            )
        self.scale, self.good = scalar(scale), scalar(0.0)
        self.interval, self.growth, self.backoff = interval, growth, backoff

    def unscale(self, grads: Any) -> Any:
        """Gradients of the loss from those of the scaled loss."""
        return _mapped(lambda g: g.astype(float32) / self.scale, grads)

    def step(self, optimizer: Any, grads: Any) -> Tensor:
        """Step if every gradient is finite, and set the scale of the next; was it?"""
        fine = _are_finite(_listed(grads))
        self.follow(fine)
        optimizer.step(grads, when=fine)
        return fine

    def follow(self, fine: Tensor) -> None:
        """Set the scale of the next step after one whose gradients were finite, or were not."""
        with no_grad():
            counted = where(fine, self.good + 1, self.good * 0)
            grown = counted >= self.interval
            largest = minimum(self.scale * self.growth, 2.0**120)
            bigger = where(grown, largest, self.scale)
            smaller = maximum(self.scale * self.backoff, 2.0**-120)  # from 0 no way leads back
            self.scale.assign(where(fine, bigger, smaller))
            self.good.assign(where(grown, counted * 0, counted))

    def state_dict(self) -> dict[str, Any]:
        """The scale, and the number of good steps since it changed."""
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        try:
            realize_among(state.values())
            scale, good = [np.float32(np.asarray(state[name])) for name in ("scale", "good")]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ArgumentError("this is no state of a scaler", "give its state_dict()") from None
        self.scale.assign(scalar(float(scale)))
        self.good.assign(scalar(float(good)))


def _are_finite(grads: Sequence[Tensor | None]) -> Tensor:
    """True if every number of every gradient is finite."""
    found = [g for g in grads if g is not None]
    if not found:
        raise ArgumentError("there are no gradients", "call backward(), or give some")
    fine = isfinite(found[0]).all()
    for grad in found[1:]:
        fine = fine & isfinite(grad).all()
    return fine.contiguous()


class GradScaler:
    """Torch's scaler of losses: `scale`, `unscale_`, `step` and `update`, for float16.

    >>> w = fg.Tensor([2.0], requires_grad=True)
    >>> optimizer, scaler = fg.optim.SGD([w], lr=0.5), fg.optim.GradScaler()
    >>> with fg.autocast("float16"):
    ...     loss = (w * w).sum()
    >>> scaler.scale(loss).backward()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> w.tolist(), scaler.get_scale()
    ([0.0], 65536.0)
    """

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        self._scaler = LossScaler(init_scale, growth_interval, growth_factor, backoff_factor)
        self._enabled = enabled
        self._unscaled: set[int] = set()  # optimisers, by their ids, whose gradients are as meant
        self._fine: Tensor | None = None  # since the last update

    def scale(self, loss: Any) -> Any:
        """A loss, or a nest of them, times the factor of the day, in float32."""
        if not self._enabled:
            return loss
        return _mapped(lambda one: one.astype(float32) * self._scaler.scale, loss)

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimiser's parameters, to clip them before `step`."""
        if not self._enabled:
            return
        if id(optimizer) in self._unscaled:
            raise ArgumentError("the gradients are unscaled already", "once between updates")
        for param in optimizer.params:
            if param.grad is not None:
                param.grad = self._scaler.unscale(param.grad)
        self._unscaled.add(id(optimizer))
        fine = _are_finite([param.grad for param in optimizer.params])
        self._fine = fine if self._fine is None else (self._fine & fine).contiguous()

    def step(self, optimizer: Any) -> None:
        """The optimiser's step, unless a gradient is infinite or no number."""
        if not self._enabled:
            optimizer.step()
            return
        if id(optimizer) not in self._unscaled:
            self.unscale_(optimizer)
        optimizer.step(when=_are_finite([param.grad for param in optimizer.params]))

    def update(self) -> None:
        """Grow the factor after many good steps, shrink it after one that overflowed."""
        if not self._enabled:
            return
        if self._fine is None:
            raise ArgumentError("there was no step", "call step(optimizer) before update()")
        self._scaler.follow(self._fine)
        self._fine = None
        self._unscaled.clear()

    def get_scale(self) -> float:
        """The factor, read from memory."""
        return float(self._scaler.scale.numpy()) if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """True if losses are scaled at all."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The factor, and the number of good steps since it changed."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        self._scaler.load_state_dict(state)
