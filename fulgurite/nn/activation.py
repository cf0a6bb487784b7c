"""Activations as modules: each is its function with its settings, and shows them.

In: a tensor. Out: what the function of the same name in `fulgurite` makes of it. `inplace` is taken
for torch's sake and means nothing: values are never shared. PReLU alone learns something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ..functional.common import as_tensor, floating
from ..functional.math import special
from ..functional.math.elementwise import where
from ..functional.nn import activation
from ..random import uniform
from ..tensor import Tensor, TensorLike
from . import init as initial
from .linear import whole
from .module import Module


class Activation(Module):
    """A function of a tensor and settings; a class says which, and what they are called."""

    function: ClassVar[Callable[..., Tensor]]
    settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: TensorLike) -> Tensor:
        """The function of x."""
        return type(self).function(x, *[vars(self)[name] for name in self.settings])

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join([f"{name}={vars(self)[name]}" for name in self.settings])


class ReLU(Activation):
    """x where it is positive, else 0.

    >>> fg.nn.ReLU()(fg.Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    function = staticmethod(activation.relu)


class ReLU6(Activation):
    """x between 0 and 6.

    >>> fg.nn.ReLU6()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.relu6)


class SELU(Activation):
    """elu with the scale that keeps mean 0 and variance 1.

    >>> fg.nn.SELU()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.selu)


class SiLU(Activation):
    """x * sigmoid(x).

    >>> fg.nn.SiLU()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.silu)


class Mish(Activation):
    """x * tanh(softplus(x)).

    >>> fg.nn.Mish()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.mish)


class Hardswish(Activation):
    """x * hardsigmoid(x).

    >>> fg.nn.Hardswish()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.hardswish)


class Hardsigmoid(Activation):
    """x / 6 + 1 / 2 between 0 and 1.

    >>> fg.nn.Hardsigmoid()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.hardsigmoid)


class Tanh(Activation):
    """The hyperbolic tangent.

    >>> fg.nn.Tanh()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(special.tanh)


class Sigmoid(Activation):
    """1 / (1 + exp(-x)).

    >>> fg.nn.Sigmoid()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.sigmoid)


class LogSigmoid(Activation):
    """The logarithm of sigmoid.

    >>> fg.nn.LogSigmoid()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.log_sigmoid)


class Softsign(Activation):
    """x / (1 + |x|).

    >>> fg.nn.Softsign()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.softsign)


class Tanhshrink(Activation):
    """x - tanh(x).

    >>> fg.nn.Tanhshrink()(fg.Tensor([0.0])).shape
    (1,)
    """

    function = staticmethod(activation.tanhshrink)


class LeakyReLU(Activation):
    """x where it is positive, else a small part of it.

    >>> fg.nn.LeakyReLU(0.5)(fg.Tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    function = staticmethod(activation.leaky_relu)
    settings = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope, self.inplace = negative_slope, inplace


class RReLU(Module):
    """x where it is positive, else a part of it that is drawn in training.

    >>> fg.nn.RReLU(0.5, 0.5)(fg.Tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, x: TensorLike) -> Tensor:
        """x with its negative part scaled."""
        tensor = floating(x)
        if not self.training or self.lower == self.upper:
            return activation.leaky_relu(tensor, (self.lower + self.upper) / 2)
        settings = (self.lower, self.upper, tensor.dtype)
        slope = uniform(tensor.shape, *settings, device=tensor.device)
        return where(tensor > 0, tensor, tensor * slope)

    def extra_repr(self) -> str:
        """The limits of the slope."""
        return f"lower={self.lower}, upper={self.upper}"


class PReLU(Module):
    """x where it is positive, else x times a learned weight, one for all or for each channel.

    >>> fg.nn.PReLU()(fg.Tensor([-2.0, 1.0])).tolist()
    [-0.5, 1.0]
    """

    weight: Tensor

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: str | None = None,
        dtype: object = None,
    ) -> None:
        self.num_parameters = whole(num_parameters, "num_parameters")
        self.weight = initial.constant((num_parameters,), init, dtype, device)

    def forward(self, x: TensorLike) -> Tensor:
        """x with its negative part scaled."""
        tensor = as_tensor(x)
        if self.num_parameters > 1:
            channels = tensor.node.shape[1] if tensor.ndim > 1 else 1
            if channels != self.num_parameters:
                self.misfit(f"(batch, {self.num_parameters}, ...)", tensor)
        return activation.prelu(tensor, self.weight)

    def extra_repr(self) -> str:
        """How many weights there are."""
        return f"num_parameters={self.num_parameters}"


class ELU(Activation):
    """x where it is positive, else alpha * (exp(x) - 1).

    >>> fg.nn.ELU()(fg.Tensor([float("-inf"), 2.0])).tolist()
    [-1.0, 2.0]
    """

    function = staticmethod(activation.elu)
    settings = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha, self.inplace = alpha, inplace


class CELU(ELU):
    """x where it is positive, else alpha * (exp(x / alpha) - 1).

    >>> fg.nn.CELU(2.0)(fg.Tensor([float("-inf"), 2.0])).tolist()
    [-2.0, 2.0]
    """

    function = staticmethod(activation.celu)


class GELU(Activation):
    """x times the chance that a normal number is below it; approximate="tanh" is quicker.

    >>> fg.nn.GELU(approximate="tanh")(fg.Tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """

    function = staticmethod(activation.gelu)
    settings = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def extra_repr(self) -> str:
        """The formula."""
        return f"approximate={self.approximate!r}"


class Softplus(Activation):
    """log(1 + exp(beta * x)) / beta: a smooth relu; x itself above the threshold.

    >>> fg.nn.Softplus()(fg.Tensor([-1000.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """

    settings = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def forward(self, x: TensorLike) -> Tensor:
        """The function of x."""
        tensor = floating(x)
        return where(
            tensor * self.beta > self.threshold, tensor, activation.softplus(tensor, self.beta)
        )


class Hardtanh(Activation):
    """x between two bounds.

    >>> fg.nn.Hardtanh(-2.0, 2.0)(fg.Tensor([-3.0, 0.5])).tolist()
    [-2.0, 0.5]
    """

    function = staticmethod(activation.hardtanh)
    settings = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace


class Softshrink(Activation):
    """x moved towards 0 by `lambd`, and 0 where that is passed.

    >>> fg.nn.Softshrink()(fg.Tensor([-2.0, 0.25])).tolist()
    [-1.5, 0.0]
    """

    function = staticmethod(activation.softshrink)
    settings = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Hardshrink(Softshrink):
    """x, and 0 where it is within `lambd` of 0.

    >>> fg.nn.Hardshrink()(fg.Tensor([-2.0, 0.25])).tolist()
    [-2.0, 0.0]
    """

    function = staticmethod(activation.hardshrink)


class Threshold(Activation):
    """x above the threshold, else the value.

    >>> fg.nn.Threshold(2.0, 9.0)(fg.Tensor([1.0, 3.0])).tolist()
    [9.0, 3.0]
    """

    function = staticmethod(activation.threshold)
    settings = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        self.threshold, self.value, self.inplace = threshold, value, inplace
