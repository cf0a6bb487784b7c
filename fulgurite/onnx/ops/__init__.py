"""Every operator of ONNX that is built, by family; importing this package fills the table."""

from ..table import OPERATORS
from . import (
    activation,
    attention,
    casting,
    control,
    convolution,
    elementwise,
    ensembles,
    folding,
    image,
    indexing,
    learning,
    linear,
    losses,
    microsoft,
    microsoft_attention,
    microsoft_more,
    microsoft_quantised,
    movement,
    normalization,
    pooling,
    quantised,
    random,
    recurrent,
    reduction,
    resizing,
    sequences,
    shaping,
    signal,
    sorting,
    strings,
    training,
)

FAMILIES = (
    activation, attention, casting, control, convolution, elementwise, ensembles, folding, image,
    indexing, learning, linear, losses, microsoft, microsoft_attention, microsoft_more,
    microsoft_quantised, movement, normalization, pooling, quantised, random, recurrent, reduction,
    resizing, sequences, shaping, signal, sorting, strings, training,
)  # fmt: skip

__all__ = ["FAMILIES", "OPERATORS"]
