"""Fulgurite: a lazy-tensor compiler and runtime.

`import fulgurite as fg`. Every public name is here and nowhere else: functions carry the names of
the array API standard, `tensor/torch_aliases.py` adds those of NumPy and torch.
"""

import builtins as _builtins
import math as _math
import os as _os
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _os.environ.get("FULGURITE_DEVICE", "cpu") != "cpu":
    from . import _ahead as _ahead  # its compiler takes as long to start as all that follows
from . import kernel as _kernel_package  # before the function of this name takes its place
from . import random, tree
from ._hints import surface as _surface
from .autodiff.custom_jvp import custom_jvp
from .autodiff.custom_vjp import custom_vjp
from .autodiff.grad import grad, value_and_grad, vjp
from .autodiff.jacobian import jacfwd, jacrev
from .autodiff.transforms import checkpoint, hessian, jacobian, jvp, vmap
from .config import config as _config
from .control import cond, fori_loop, scan, while_loop
from .control.associative import associative_scan
from .core.dtype import (
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .core.dtype import bool_ as bool
from .core.origin import scope
from .distributed.manual import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    reduce_scatter,
    send_recv,
    shard_map,
)
from .distributed.mesh import Mesh, shard
from .extend.host_callback import custom, register_host
from .extend.index_kernel import kernel, max_over, min_over, prod_over, sum_over
from .extend.llvm_kernel import native_kernel
from .functional.array.arrangement import (
    diag,
    diagonal,
    fliplr,
    flipud,
    kron,
    repeat,
    roll,
    rot90,
    sliding_window_view,
    tile,
    trace,
    unfold,
)
from .functional.array.creation import (
    Var,
    arange,
    array,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from .functional.array.indexing import gather, take, take_along_axis
from .functional.array.joining import column_stack, dstack, hstack, vstack
from .functional.array.lookup import one_hot
from .functional.array.movement import (
    broadcast_arrays,
    broadcast_to,
    chunk,
    concat,
    expand_dims,
    flatten,
    flip,
    matrix_transpose,
    moveaxis,
    pad,
    permute_dims,
    reshape,
    split,
    squeeze,
    stack,
    swapaxes,
    transpose,
    unstack,
)
from .functional.array.scatter import (
    index_add,
    index_copy,
    index_fill,
    put_along_axis,
    scatter,
    scatter_add,
    scatter_reduce,
)
from .functional.array.sorting import argsort, kthvalue, median, quantile, searchsorted, sort, topk
from .functional.array.unique_nonzero import (
    argwhere,
    isin,
    nonzero,
    unique,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from .functional.autocast import autocast
from .functional.datatypes import broadcast_shapes, can_cast, finfo, iinfo, isdtype, result_type
from .functional.math.comparison import allclose, isclose, nan_to_num
from .functional.math.complex_numbers import angle, complex, conj, imag, real
from .functional.math.counting import bincount, histogram, histogram_bin_edges
from .functional.math.distances import cdist
from .functional.math.elementwise import (
    abs,
    add,
    astype,
    bitcast,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    copysign,
    divide,
    equal,
    floor,
    floor_divide,
    greater,
    greater_equal,
    hypot,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    pow,
    reciprocal,
    remainder,
    round,
    sign,
    signbit,
    square,
    subtract,
    trunc,
    where,
)
from .functional.math.products import dot, einsum, matmul, outer, tensordot, vecdot
from .functional.math.quantiles import nanmedian, nanpercentile, nanquantile, percentile
from .functional.math.reduction import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    logsumexp,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from .functional.math.scan import (
    cummax,
    cummin,
    cumulative_max,
    cumulative_min,
    cumulative_prod,
    cumulative_sum,
    diff,
    logcumsumexp,
)
from .functional.math.special import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cbrt,
    cos,
    cosh,
    digamma,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    lgamma,
    log,
    log1p,
    log2,
    log10,
    rsqrt,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)
from .functional.math.statistics import corrcoef, cov
from .functional.nn.activation import (
    celu,
    elu,
    gelu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from .functional.nn.attention import scaled_dot_product_attention
from .functional.nn.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from .functional.nn.ctc import ctc_loss
from .functional.nn.interpolation import interp
from .functional.nn.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cosine_similarity,
    cross_entropy,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    multi_margin_loss,
    nll_loss,
    pairwise_distance,
    poisson_nll_loss,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from .functional.nn.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    rms_norm,
)
from .functional.nn.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from .functional.nn.resampling import interpolate, pixel_shuffle, pixel_unshuffle
from .jit import jit
from .look import compare, memory_report, profile, viz, viz_data, why
from .memory import empty_cache, memory_stats, synchronize
from .random import dropout, rand, randint, randn
from .random.weighted import multinomial
from .runtime.realize import cache_stats, clear_caches
from .tensor import Tensor, TensorLike, from_numpy, no_grad, stop_gradient
from .tensor import realize_all as realize
from .tensor.torch_aliases import install as _install

__version__ = "0.1.0"
__array_api_version__ = "2025.12"
e, inf, nan, pi, newaxis = _math.e, _math.inf, _math.nan, _math.pi, None

__all__ = [  # noqa: RUF022
    "__version__", "Tensor", "Var", "abs", "acos", "acosh", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "add", "all", "allclose", "angle", "any", "arange", "argmax", "argmin",
    "argsort", "argwhere", "array", "asarray", "asin", "asinh", "associative_scan", "astype",
    "atan", "atan2", "atanh", "autocast", "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm",
    "bfloat16", "binary_cross_entropy", "binary_cross_entropy_with_logits", "bincount",
    "bitcast",
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "bool", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "cache_stats",
    "can_cast", "cbrt", "cdist", "ceil", "celu", "checkpoint", "chunk", "clear_caches", "clip",
    "column_stack", "compare", "complex", "complex128", "complex64", "concat", "cond", "config",
    "conj", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "copysign", "corrcoef", "cos", "cosh", "cosine_embedding_loss",
    "cosine_similarity", "count_nonzero", "cov", "cross_entropy", "ctc_loss", "cummax", "cummin",
    "cumulative_max", "cumulative_min", "cumulative_prod", "cumulative_sum", "custom", "custom_jvp",
    "custom_vjp", "diag", "diagonal", "diff", "digamma", "divide", "dot", "dropout", "dstack", "e",
    "einsum", "elu", "empty", "empty_cache", "empty_like", "equal", "erf", "erfc", "exp", "exp2",
    "expand_dims", "explain", "expm1", "eye", "finfo", "flatten", "flip", "fliplr", "flipud",
    "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "floor", "floor_divide",
    "fori_loop", "from_dlpack", "from_numpy", "from_torch", "full", "full_like", "gather",
    "gaussian_nll_loss", "gelu", "glu", "grad", "greater", "greater_equal", "group_norm",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hessian", "hinge_embedding_loss",
    "histogram", "histogram_bin_edges", "hstack", "huber_loss", "hypot", "iinfo", "imag",
    "index_add", "index_copy", "index_fill", "inf", "instance_norm", "int16", "int32", "int64",
    "int8", "interp", "interpolate", "isclose", "isdtype", "isfinite", "isin", "isinf", "isnan",
    "jacfwd", "jacobian", "jacrev", "jit", "jvp", "kernel", "kl_div", "kron", "kthvalue", "l1_loss",
    "layer_norm", "leaky_relu", "less", "less_equal", "lgamma", "linspace", "load_schedule",
    "local_response_norm", "log", "log10", "log1p", "log2", "log_sigmoid", "log_softmax",
    "logaddexp", "logcumsumexp", "logical_and", "logical_not", "logical_or", "logical_xor",
    "logsumexp", "margin_ranking_loss", "matmul", "matrix_transpose", "max", "max_over",
    "max_pool1d", "max_pool2d", "max_pool3d", "maximum", "mean", "median", "memory_report",
    "memory_stats", "meshgrid", "min", "min_over", "minimum", "mish", "moveaxis", "mse_loss",
    "multi_margin_loss", "multinomial", "multiply", "nan", "nan_to_num", "nanmedian",
    "nanpercentile", "nanquantile", "native_kernel", "negative", "newaxis", "nextafter", "nll_loss",
    "no_grad", "nonzero", "not_equal", "one_hot", "ones", "ones_like", "outer", "pad",
    "pairwise_distance", "percentile", "permute_dims", "pi", "pixel_shuffle", "pixel_unshuffle",
    "poisson_nll_loss", "positive", "pow", "prelu", "prod", "prod_over", "profile",
    "put_along_axis", "quantile", "rand", "randint", "randn", "random", "real", "realize",
    "reciprocal", "register_host", "relu", "relu6", "remainder", "repeat", "reshape", "result_type",
    "rms_norm", "roll", "rot90", "round", "rsqrt", "scaled_dot_product_attention", "scan",
    "scatter", "scatter_add", "scatter_reduce", "schedule", "scope", "searchsorted", "selu",
    "sigmoid", "sign", "signbit", "silu", "sin", "sinh", "sliding_window_view", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "sort", "split",
    "sqrt", "square", "squeeze", "stack", "std", "stop_gradient", "subtract", "sum", "sum_over",
    "swapaxes", "synchronize", "take", "take_along_axis", "tan", "tanh", "tanhshrink", "tensordot",
    "threshold", "tile", "to_torch", "topk", "trace", "transpose", "tree", "tril",
    "triplet_margin_loss", "triu", "trunc", "uint16", "uint32", "uint64", "uint8", "unfold",
    "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack",
    "value_and_grad", "var", "vecdot", "viz", "viz_data", "vjp", "vmap", "vstack", "where",
    "while_loop", "why", "zeros", "zeros_like",
]  # fmt: skip

__all__ += [  # of many processes
    "Mesh", "all_gather", "all_reduce", "all_to_all", "axis_index", "reduce_scatter", "send_recv",
    "shard", "shard_map",
]  # fmt: skip

_LATER = (
    "fft",
    "linalg",
    "nn",
    "io",
    "onnx",
    "optim",
    "data",
    "models",
)  # packages that are imported when somebody asks for them
_FOUND_IN = {  # functions whose modules are imported when somebody asks for them
    "explain": "aot.explain",
    "from_torch": "torch_models",
    "load": "io",
    "load_schedule": "aot.schedule",
    "save": "io",
    "schedule": "aot.schedule",
    "to_torch": "torch_models",
}
_absent, _ = _surface(__name__)


def __array_namespace_info__() -> _Any:
    """Facts about this namespace, as the array API standard asks for them.

    >>> fg.__array_namespace_info__().default_dtypes()["integral"]
    int32
    """
    return _import_module(f"{__name__}.interop.array_api").Info()


def from_dlpack(x: object, /, *, device: str | None = None, copy: _Any = None) -> Tensor:
    """A tensor with the value of another library's array, sharing its memory unless `copy`.

    >>> import numpy as np
    >>> fg.from_dlpack(np.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    found: Tensor = _import_module(f"{__name__}.interop.dlpack").from_dlpack(x, device, copy)
    return found


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return _import_module(f"{__name__}.{name}")
    if name in _FOUND_IN:
        found = getattr(_import_module(f"{__name__}.{_FOUND_IN[name]}"), name)
        return globals().setdefault(name, found)
    return _absent(name)


def __dir__() -> list[str]:
    """The public names, with those that are imported when somebody asks for them."""
    modules = {"random", "tree", "tensor", *_LATER}
    found = {name for name, value in globals().items() if not isinstance(value, type(_sys))}
    private = {name for name in found if name.startswith("_") and not name.endswith("__")}
    return sorted((found - private) | modules | {*_FOUND_IN})


if _TYPE_CHECKING:  # what is found when it is asked for, and the module that can be called

    def tensor(
        data: TensorLike, dtype: object = None, device: str | None = None,
        requires_grad: _builtins.bool = False,
    ) -> Tensor:  # fmt: skip
        """A tensor with a copy of the data: `fg.Tensor(...)` by torch's name."""
        return Tensor(data, dtype, device, requires_grad)

    from . import data as data
    from . import fft as fft
    from . import io as io
    from . import linalg as linalg
    from . import models as models
    from . import nn as nn
    from . import onnx as onnx
    from . import optim as optim
    from .aot.explain import explain as explain
    from .aot.schedule import load_schedule as load_schedule
    from .aot.schedule import schedule as schedule
    from .io import load as load
    from .io import save as save
    from .torch_models import from_torch as from_torch
    from .torch_models import to_torch as to_torch


class _Making(type(_sys)):  # type: ignore[misc]
    """The module `fulgurite.tensor`, which makes a tensor when it is called, as torch's does."""

    def __call__(self, *arguments: _Any, **keywords: _Any) -> Tensor:
        return Tensor(*arguments, **keywords)


_sys.modules[f"{__name__}.tensor"].__class__ = _Making
config = _config  # last: until now the name is that of the module
_install(Tensor, globals())
assert _kernel_package
if "einops" in _sys.modules:
    _import_module(f"{__name__}.einops")
