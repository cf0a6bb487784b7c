"""Every operator of ONNX that is built, by family; importing this package fills the table."""

from ..table import OPERATORS
from . import (
    casting,
    control,
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
from .contrib import (
    attention as microsoft_attention,
)
from .contrib import (
    fused as microsoft,
)
from .contrib import (
    more as microsoft_more,
)
from .contrib import (
    quantized as microsoft_quantised,
)
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
    activation, attention, casting, control, convolution, elementwise, ensembles, folding, image,
    indexing, learning, linear, losses, microsoft, microsoft_attention, microsoft_more,
    microsoft_quantised, movement, normalization, pooling, quantised, random, recurrent, reduction,
    resizing, sequences, shaping, signal, sorting, strings, training,
)  # fmt: skip

__all__ = ["FAMILIES", "OPERATORS"]
