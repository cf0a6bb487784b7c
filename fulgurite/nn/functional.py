"""torch's `nn.functional`: the functions of layers and losses with torch's names and arguments.

In: tensors, and settings by torch's keywords (`input`, `dim`, `inplace`). Out: what `fulgurite`'s
own function of the name makes of them; where torch means something else by a name (`pad`,
`cross_entropy`'s third argument, `batch_norm`'s running statistics, `unfold`, `one_hot`) it is
torch's meaning. `inplace` changes nothing: values are never shared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from .._hints import surface
from ..core import build
from ..errors import ArgumentError
from ..functional.array import lookup as _lookup
from ..functional.autocast import added
from ..functional.common import as_tensor, astype, floating, wide
from ..functional.math import special as _maths
from ..functional.math.elementwise import maximum
from ..functional.math.products import einsum
from ..functional.math.reduction import argmax, p_norm
from ..functional.math.reduction import max as _max
from ..functional.nn import activation as _activation
from ..functional.nn import convolution as _convolution
from ..functional.nn import ctc as _ctc
from ..functional.nn import fold_unfold as _folding
from ..functional.nn import grid_sample as _sampling
from ..functional.nn import losses as _losses
from ..functional.nn import normalization as _normalization
from ..functional.nn import pooling as _pooling
from ..functional.nn import resampling as _resampling
from ..functional.nn import unpooling as _unpooling
from ..functional.nn.attention import scaled_dot_product_attention as _attention
from ..random import dropout as _dropout
from ..random import uniform
from ..tensor import Tensor, TensorLike, wrap
from ..tensor.torch_aliases import accept_keywords
from . import activation as _layers
from . import dropout as _drops
from . import normalization as _normalization_layers
from .linear import linear as _linear
from .padding import padded

_WORDS = {"input1": "x1", "input2": "x2"}


def _torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which takes torch's keywords for its own; `inplace` means nothing."""
    code = inspect.unwrap(function).__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    inner = accept_keywords(function)

    @wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        keywords.pop("inplace", None)
        for theirs, ours in (("input", known[0]), *_WORDS.items()):
            if theirs in keywords and theirs not in known:
                keywords[ours] = keywords.pop(theirs)
        return inner(*args, **keywords)

    return called


# --- activations ---------------------------------------------------------------------------------

relu, relu6, leaky_relu = (
    _torch(_activation.relu),
    _torch(_activation.relu6),
    _torch(_activation.leaky_relu),
)
elu, selu, celu = _torch(_activation.elu), _torch(_activation.selu), _torch(_activation.celu)
gelu, silu, mish = _torch(_activation.gelu), _torch(_activation.silu), _torch(_activation.mish)
sigmoid, tanh = _torch(_activation.sigmoid), _torch(_maths.tanh)
hardtanh, hardswish = _torch(_activation.hardtanh), _torch(_activation.hardswish)
hardsigmoid, hardshrink = _torch(_activation.hardsigmoid), _torch(_activation.hardshrink)
softsign, softshrink = _torch(_activation.softsign), _torch(_activation.softshrink)
tanhshrink, threshold = _torch(_activation.tanhshrink), _torch(_activation.threshold)
logsigmoid, prelu, glu = (
    _torch(f) for f in (_activation.log_sigmoid, _activation.prelu, _activation.glu)
)


@_torch
def softplus(x: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself above the threshold."""
    return _layers.Softplus(beta, threshold)(x)


@_torch
def rrelu(
    x: TensorLike, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> Tensor:
    """x where it is positive, else a part of it: in training a random one."""
    return _layers.RReLU(lower, upper).train(training)(x)


def _along(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A softmax as torch has it: with a dtype to compute in."""

    @wraps(function)
    def called(x: TensorLike, axis: int = -1, dtype: object = None) -> Tensor:
        return function(as_tensor(x) if dtype is None else as_tensor(x).astype(dtype), axis)

    called.__dict__.pop("__wrapped__")  # its own arguments count
    return _torch(called)


softmax, log_softmax = _along(_activation.softmax), _along(_activation.log_softmax)
softmin = _along(_activation.softmin)


@_torch
def gumbel_softmax(
    logits: TensorLike, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, axis: int = -1
) -> Tensor:
    """A random sample of classes as probabilities; `hard` gives one-hot with their gradient."""
    scores = floating(logits)
    if tau <= 0:
        raise ArgumentError(f"tau is {tau}", "a temperature is above 0")
    drawn = uniform(scores.shape, 1e-7, 1.0, device=scores.device)
    noise = -_maths.log(-_maths.log(drawn))
    soft = _activation.softmax((scores + astype(noise, scores.dtype)) / tau, axis)
    if not hard:
        return soft
    place = wrap(build.iota(soft.node.shape, build.as_axis(axis, soft.ndim)))
    picked = astype(place == argmax(soft, axis, keepdims=True), soft.dtype)
    return (picked - soft).detach() + soft


# --- layers --------------------------------------------------------------------------------------

conv1d, conv2d, conv3d = (
    _torch(f) for f in (_convolution.conv1d, _convolution.conv2d, _convolution.conv3d)
)
conv_transpose1d = _torch(_convolution.conv_transpose1d)
conv_transpose2d = _torch(_convolution.conv_transpose2d)
conv_transpose3d = _torch(_convolution.conv_transpose3d)
embedding, embedding_bag = _torch(_lookup.embedding), _torch(_lookup.embedding_bag)
layer_norm, group_norm = _torch(_normalization.layer_norm), _torch(_normalization.group_norm)
local_response_norm = _torch(_normalization.local_response_norm)
scaled_dot_product_attention = _torch(_attention)
fold, unfold = _torch(_folding.fold), _torch(_folding.unfold)
channel_shuffle = _torch(_folding.channel_shuffle)
pixel_shuffle, pixel_unshuffle = (
    _torch(f) for f in (_resampling.pixel_shuffle, _resampling.pixel_unshuffle)
)
interpolate = upsample = _torch(_resampling.interpolate)
grid_sample, affine_grid = _torch(_sampling.grid_sample), _torch(_sampling.affine_grid)


@_torch
def linear(x: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Tensor:
    """x @ weight.T + bias."""
    table = as_tensor(weight)
    added_last = None if bias is None else as_tensor(bias, table)
    return _linear(as_tensor(x, table), table, added_last)


@_torch
def bilinear(
    x1: TensorLike, x2: TensorLike, weight: TensorLike, bias: TensorLike | None = None
) -> Tensor:
    """Σ over i and j of x1[i] * weight[o, i, j] * x2[j], plus bias."""
    found = einsum("...i,oij,...j->...o", as_tensor(x1), as_tensor(weight), as_tensor(x2))
    return found if bias is None else found + added(as_tensor(bias), found)


@_torch
def pad(
    x: TensorLike, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """x with elements added around its last axes: (left, right, top, bottom, ...)."""
    return padded(as_tensor(x), pad, mode, 0 if value is None else value)


@_torch
def one_hot(x: TensorLike, num_classes: int = -1) -> Tensor:
    """1 at the place that x names, as int64; -1 classes are as many as x names, which is read."""
    places = as_tensor(x)
    count = int(_max(places).numpy()) + 1 if num_classes == -1 else num_classes
    return _lookup.one_hot(places, count, "int64")


@_torch
def batch_norm(
    x: TensorLike,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel with mean 0 and variance 1; in training the running statistics are changed."""
    settings = (weight, bias, training, momentum, eps)
    found = _normalization.batch_norm(x, running_mean, running_var, *settings)
    if training:
        for old, new in ((running_mean, found[1]), (running_var, found[2])):
            if old is not None and new is not None:
                old.assign(new)
    return found.output


@_torch
def instance_norm(
    x: TensorLike,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each element with mean 0 and variance 1, of its own or of the past."""
    if not use_input_stats:
        return _normalization.batch_norm(x, running_mean, running_var, weight, bias, eps=eps).output
    if running_mean is not None and running_var is not None:
        _normalization_layers.take_in(wide(x), running_mean, running_var, momentum)
    return _normalization.instance_norm(x, weight=weight, bias=bias, eps=eps)


@_torch
def rms_norm(
    x: TensorLike,
    normalized_shape: int | Sequence[int],
    weight: TensorLike | None = None,
    eps: float | None = None,
) -> Tensor:
    """x over the root of its mean square in its last dimensions, then scaled."""
    step = _normalization_layers.smallest_step(floating(x)) if eps is None else eps
    return _normalization.rms_norm(x, normalized_shape, weight, step)


@_torch
def normalize(x: TensorLike, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """x over its p-norm along an axis, which counts as eps at least."""
    tensor = wide(x)
    length = p_norm(tensor, p, axis, True)
    return astype(tensor / maximum(length, eps), floating(x).dtype)


# --- dropout -------------------------------------------------------------------------------------


def _dropping(layer: type[Any]) -> Callable[..., Tensor]:
    """What a layer of dropout does, as a function."""

    def called(x: TensorLike, p: float = 0.5, training: bool = True) -> Tensor:
        return layer(p).train(training)(x)  # type: ignore[no-any-return]

    called.__doc__ = layer.__doc__
    return _torch(called)


dropout = _torch(_dropout)
dropout1d, dropout2d = _dropping(_drops.Dropout1d), _dropping(_drops.Dropout2d)
dropout3d = _dropping(_drops.Dropout3d)
alpha_dropout = _dropping(_drops.AlphaDropout)
feature_alpha_dropout = _dropping(_drops.FeatureAlphaDropout)

# --- pools ---------------------------------------------------------------------------------------

avg_pool1d, avg_pool2d = _torch(_pooling.avg_pool1d), _torch(_pooling.avg_pool2d)
avg_pool3d = _torch(_pooling.avg_pool3d)
adaptive_avg_pool1d = _torch(_pooling.adaptive_avg_pool1d)
adaptive_avg_pool2d = _torch(_pooling.adaptive_avg_pool2d)
adaptive_avg_pool3d = _torch(_pooling.adaptive_avg_pool3d)


def _with_places(
    count: int, before: int, plain: Callable[..., Tensor], telling: Callable[..., Any]
) -> Callable[..., Any]:
    """A pool that also tells places, if asked to: by keyword, or after so many settings."""

    @wraps(plain)
    def called(x: TensorLike, *settings: Any, return_indices: bool = False, **more: Any) -> Any:
        tells = return_indices or any(settings[before:])
        given = settings[:before]
        return telling(count, x, *given, **more) if tells else plain(x, *given, **more)

    called.__dict__.pop("__wrapped__")
    return _torch(called)


max_pool1d, max_pool2d, max_pool3d = (
    _with_places(n + 1, 5, plain, _unpooling.max_pool_with_indices)
    for n, plain in enumerate((_pooling.max_pool1d, _pooling.max_pool2d, _pooling.max_pool3d))
)
_ADAPTIVE = (
    _pooling.adaptive_max_pool1d,
    _pooling.adaptive_max_pool2d,
    _pooling.adaptive_max_pool3d,
)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    _with_places(n + 1, 1, plain, _unpooling.adaptive_max_pool_with_indices)
    for n, plain in enumerate(_ADAPTIVE)
)


def _of_axes(count: int, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that is told how many axes of space there are."""

    @wraps(function)
    def called(x: TensorLike, *settings: Any, **more: Any) -> Tensor:
        return function(count, x, *settings, **more)

    called.__dict__.pop("__wrapped__")
    return _torch(called)


max_unpool1d, max_unpool2d, max_unpool3d = (_of_axes(n, _unpooling.max_unpool) for n in (1, 2, 3))
lp_pool1d, lp_pool2d, lp_pool3d = (_of_axes(n, _unpooling.lp_pool) for n in (1, 2, 3))

# --- losses and distances ------------------------------------------------------------------------

mse_loss, nll_loss, l1_loss = (
    _torch(_losses.mse_loss),
    _torch(_losses.nll_loss),
    _torch(_losses.l1_loss),
)
smooth_l1_loss, huber_loss = _torch(_losses.smooth_l1_loss), _torch(_losses.huber_loss)
binary_cross_entropy = _torch(_losses.binary_cross_entropy)
binary_cross_entropy_with_logits = _torch(_losses.binary_cross_entropy_with_logits)
kl_div, ctc_loss = _torch(_losses.kl_div), _torch(_ctc.ctc_loss)
poisson_nll_loss = _torch(_losses.poisson_nll_loss)
gaussian_nll_loss = _torch(_losses.gaussian_nll_loss)
hinge_embedding_loss = _torch(_losses.hinge_embedding_loss)
soft_margin_loss = _torch(_losses.soft_margin_loss)
margin_ranking_loss = _torch(_losses.margin_ranking_loss)
cosine_embedding_loss = _torch(_losses.cosine_embedding_loss)
triplet_margin_loss = _torch(_losses.triplet_margin_loss)
triplet_margin_with_distance_loss = _torch(_losses.triplet_margin_with_distance_loss)
multi_margin_loss = _torch(_losses.multi_margin_loss)
multilabel_margin_loss = _torch(_losses.multilabel_margin_loss)
multilabel_soft_margin_loss = _torch(_losses.multilabel_soft_margin_loss)
cosine_similarity = _torch(_losses.cosine_similarity)
pairwise_distance = _torch(_losses.pairwise_distance)


@_torch
def cross_entropy(
    x: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """How badly the scores x predict the target: class numbers, or a probability for each class."""
    return _losses.cross_entropy(x, target, weight, ignore_index, reduction, label_smoothing)


@_torch
def pdist(x: TensorLike, p: float = 2.0) -> Tensor:
    """The distances of all pairs of rows, each once: (0, 1), (0, 2), ..., (1, 2), ..."""
    rows = as_tensor(x)
    if rows.ndim != 2:
        raise ArgumentError(f"pdist of shape {rows.shape}", "give a matrix of rows")
    pairs = [(i, j) for i in range(rows.shape[0]) for j in range(i + 1, rows.shape[0])]
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    return _losses.pairwise_distance(rows[first], rows[second], p, 0.0)


__getattr__, _ = surface(__name__)
