"""Every operator of ONNX that is built, by family; importing this package fills the table."""

from ..table import OPERATORS
from . import (
    casting,
    control,
    deprecated,
    elementwise,
    ensembles,
    folding,
    indexing,
    learning,
    movement,
    quantised,
    random,
    reduction,
    sequences,
    shaping,
    signal,
    sorting,
    strings,
    training,
)
from .contrib import arithmetic as contrib_arithmetic
from .contrib import attention as contrib_attention
from .contrib import epilogues, language
from .contrib import image as contrib_image
from .contrib import normalization as contrib_normalization
from .contrib import quantized as contrib_quantized
from .nn import (
    activation,
    attention,
    convolution,
    image,
    linear,
    losses,
    normalization,
    pooling,
    recurrent,
    resizing,
)

FAMILIES = (
    activation, attention, casting, contrib_arithmetic, contrib_attention, contrib_image,
    contrib_normalization, contrib_quantized, control, convolution, deprecated, elementwise,
    ensembles, epilogues, folding, image, indexing, language, learning, linear, losses, movement,
    normalization, pooling, quantised, random, recurrent, reduction, resizing, sequences, shaping,
    signal, sorting, strings, training,
)  # fmt: skip

__all__ = ["FAMILIES", "OPERATORS"]
