"""Losses as modules: the functions of the same names with their settings.

In: predictions and what was wanted. Out: one number (`reduction` "mean" or "sum"), or one for each
element ("none"). Weights of classes are buffers, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ..errors import ArgumentError
from ..functional.common import as_tensor
from ..functional.nn import ctc, losses
from ..tensor import Tensor, TensorLike
from .module import Module


class _Loss(Module):
    """A function of tensors and settings; a class says which, and what they are called."""

    function: ClassVar[Callable[..., Tensor]]
    settings: ClassVar[tuple[str, ...]] = ()
    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")

    def __init__(self, reduction: str = "mean", **settings: Any) -> None:
        if reduction not in self.reductions:
            raise ArgumentError(
                f"reduction is {reduction!r}", f"one of {', '.join(self.reductions)}"
            )
        self.reduction = reduction
        for name, value in settings.items():
            setattr(self, name, value)

    def _weights(self, **weights: TensorLike | None) -> None:
        for name, value in weights.items():
            self.register_buffer(name, None if value is None else as_tensor(value))

    def forward(self, *tensors: TensorLike) -> Tensor:
        """The loss."""
        own = vars(self)
        settings = {name: own[name] for name in (*self.settings, "reduction")}
        return type(self).function(*tensors, **settings)

    def extra_repr(self) -> str:
        """The settings."""
        own = vars(self)
        shown = [f"{n}={own[n]}" for n in self.settings if not isinstance(own[n], Tensor | None)]
        return ", ".join([*shown, f"reduction={self.reduction!r}"])


class L1Loss(_Loss):
    """The absolute distance.

    >>> fg.nn.L1Loss()(fg.Tensor([1.0, 2.0]), fg.Tensor([1.0, 4.0])).item()
    1.0
    """

    function = staticmethod(losses.l1_loss)


class MSELoss(_Loss):
    """The squared distance.

    >>> fg.nn.MSELoss()(fg.Tensor([1.0, 2.0]), fg.Tensor([1.0, 4.0])).item()
    2.0
    """

    function = staticmethod(losses.mse_loss)


class SmoothL1Loss(_Loss):
    """The absolute distance, rounded off to a parabola where it is below beta.

    >>> fg.nn.SmoothL1Loss()(fg.Tensor([0.0]), fg.Tensor([3.0])).item()
    2.5
    """

    function, settings = staticmethod(losses.smooth_l1_loss), ("beta",)

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction, beta=beta)


class HuberLoss(_Loss):
    """Half the squared distance, which goes on as a line from delta.

    >>> fg.nn.HuberLoss(delta=2.0)(fg.Tensor([0.0]), fg.Tensor([3.0])).item()
    4.0
    """

    function, settings = staticmethod(losses.huber_loss), ("delta",)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction, delta=delta)


class CrossEntropyLoss(_Loss):
    """How badly scores predict classes, or probabilities of classes.

    >>> loss = fg.nn.CrossEntropyLoss(label_smoothing=0.1)
    >>> round(loss(fg.zeros((2, 4)), fg.Tensor([0, 3])).item(), 4)
    1.3863
    """

    function = staticmethod(losses.cross_entropy)
    settings = ("weight", "ignore_index", "label_smoothing")

    def __init__(
        self,
        weight: TensorLike | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)
        self._weights(weight=weight)


class NLLLoss(_Loss):
    """Minus the logarithm at the target class.

    >>> fg.nn.NLLLoss()(fg.Tensor([[-1.0, -2.0]]), fg.Tensor([1])).item()
    2.0
    """

    function, settings = staticmethod(losses.nll_loss), ("weight", "ignore_index")

    def __init__(
        self, weight: TensorLike | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction, ignore_index=ignore_index)
        self._weights(weight=weight)


class BCELoss(_Loss):
    """How badly probabilities predict targets from 0 to 1.

    >>> round(fg.nn.BCELoss()(fg.Tensor([0.5]), fg.Tensor([1.0])).item(), 4)
    0.6931
    """

    function, settings = staticmethod(losses.binary_cross_entropy), ("weight",)

    def __init__(self, weight: TensorLike | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._weights(weight=weight)


class BCEWithLogitsLoss(_Loss):
    """BCELoss of sigmoid(x); `pos_weight` counts the ones more.

    >>> round(fg.nn.BCEWithLogitsLoss()(fg.Tensor([0.0]), fg.Tensor([1.0])).item(), 4)
    0.6931
    """

    function = staticmethod(losses.binary_cross_entropy_with_logits)
    settings = ("weight", "pos_weight")

    def __init__(
        self,
        weight: TensorLike | None = None,
        reduction: str = "mean",
        pos_weight: TensorLike | None = None,
    ) -> None:
        super().__init__(reduction)
        self._weights(weight=weight, pos_weight=pos_weight)


class KLDivLoss(_Loss):
    """Σ target * (log target - x), x being logarithms.

    >>> loss = fg.nn.KLDivLoss(reduction="batchmean")
    >>> loss(fg.Tensor([[-1.0, 0.0]]), fg.Tensor([[1.0, 0.0]])).item()
    1.0
    """

    function, settings = staticmethod(losses.kl_div), ("log_target",)
    reductions = ("mean", "sum", "none", "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction, log_target=log_target)


class PoissonNLLLoss(_Loss):
    """Minus the logarithm of Poisson's probability.

    >>> fg.nn.PoissonNLLLoss()(fg.Tensor([0.0]), fg.Tensor([3.0])).item()
    1.0
    """

    function, settings = staticmethod(losses.poisson_nll_loss), ("log_input", "full", "eps")

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction, log_input=log_input, full=full, eps=eps)


class GaussianNLLLoss(_Loss):
    """Minus the logarithm of the normal density, called with predictions, targets and variances.

    >>> one = fg.Tensor([1.0])
    >>> fg.nn.GaussianNLLLoss()(one, one * 3, one).item()
    2.0
    """

    function, settings = staticmethod(losses.gaussian_nll_loss), ("full", "eps")

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction, full=full, eps=eps)


class HingeEmbeddingLoss(_Loss):
    """x where the target is 1; how far it is below the margin where that is -1.

    >>> fg.nn.HingeEmbeddingLoss()(fg.Tensor([0.25]), fg.Tensor([-1])).item()
    0.75
    """

    function, settings = staticmethod(losses.hinge_embedding_loss), ("margin",)

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * x)).

    >>> round(fg.nn.SoftMarginLoss()(fg.Tensor([0.0]), fg.Tensor([1.0])).item(), 4)
    0.6931
    """

    function = staticmethod(losses.soft_margin_loss)


class MarginRankingLoss(_Loss):
    """How far x1 is from being above x2 by a margin (target 1), or below it (target -1).

    >>> loss = fg.nn.MarginRankingLoss()
    >>> loss(fg.Tensor([1.0]), fg.Tensor([3.0]), fg.Tensor([1.0])).item()
    2.0
    """

    function, settings = staticmethod(losses.margin_ranking_loss), ("margin",)

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction, margin=margin)


class CosineEmbeddingLoss(MarginRankingLoss):
    """1 - cosine where the target is 1; how far the cosine is above a margin where it is -1.

    >>> x = fg.Tensor([[1.0, 0.0]])
    >>> fg.nn.CosineEmbeddingLoss()(x, x, fg.Tensor([-1])).item()
    1.0
    """

    function = staticmethod(losses.cosine_embedding_loss)


class TripletMarginLoss(_Loss):
    """How far the positive is from being nearer to the anchor than the negative by a margin.

    >>> a, b = fg.Tensor([[0.0, 0.0]]), fg.Tensor([[3.0, 4.0]])
    >>> round(fg.nn.TripletMarginLoss()(a, b, a).item(), 3)
    6.0
    """

    function = staticmethod(losses.triplet_margin_loss)
    settings = ("margin", "p", "eps", "swap")

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction, margin=margin, p=p, eps=eps, swap=swap)


class MultiMarginLoss(_Loss):
    """By how much other classes come within a margin of the target's.

    >>> fg.nn.MultiMarginLoss()(fg.Tensor([[1.0, 0.5]]), fg.Tensor([0])).item()
    0.25
    """

    function, settings = staticmethod(losses.multi_margin_loss), ("p", "margin", "weight")

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: TensorLike | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction, p=p, margin=margin)
        self._weights(weight=weight)


class MultiLabelMarginLoss(_Loss):
    """By how much other classes come within 1 of the targets'; rows of targets end in -1.

    >>> fg.nn.MultiLabelMarginLoss()(fg.Tensor([[1.0, 0.5]]), fg.Tensor([[0, -1]])).item()
    0.25
    """

    function = staticmethod(losses.multilabel_margin_loss)


class MultiLabelSoftMarginLoss(_Loss):
    """The mean over classes of binary cross-entropies of scores.

    >>> loss = fg.nn.MultiLabelSoftMarginLoss()
    >>> round(loss(fg.zeros((1, 2)), fg.Tensor([[1.0, 0.0]])).item(), 4)
    0.6931
    """

    function, settings = staticmethod(losses.multilabel_soft_margin_loss), ("weight",)

    def __init__(self, weight: TensorLike | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._weights(weight=weight)


class TripletMarginWithDistanceLoss(_Loss):
    """TripletMarginLoss with a distance of your own.

    >>> loss = fg.nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs())
    >>> loss(fg.zeros(1), fg.zeros(1), fg.ones(1)).item()
    0.0
    """

    function = staticmethod(losses.triplet_margin_with_distance_loss)
    settings = ("distance_function", "margin", "swap")

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        own = {"distance_function": distance_function, "margin": margin, "swap": swap}
        super().__init__(reduction, **own)


class CTCLoss(_Loss):
    """The loss of a sequence against shorter labels, however aligned.

    >>> x = fg.log_softmax(fg.zeros((6, 1, 3)))
    >>> fg.nn.CTCLoss()(x, fg.Tensor([[1, 2]]), [6], [2]).shape
    ()
    """

    function, settings = staticmethod(ctc.ctc_loss), ("blank", "zero_infinity")

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction, blank=blank, zero_infinity=zero_infinity)
