"""What is done to whole modules: clipping, flat vectors of parameters, weights put in other words.

In: modules, or their parameters. Out: torch's functions of the same names. `parametrize` computes a
parameter from others each time it is asked for; `rnn` lays sequences side by side.
"""

from ...optim.gradients import clip_grad_norm_, clip_grad_value_
from . import parametrizations, parametrize, rnn
from .fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from .parametrizations import spectral_norm, weight_norm
from .vectors import get_total_norm, parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "fuse_conv_bn_eval",
    "fuse_linear_bn_eval",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "rnn",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]
