"""Lowerings of ATen operators by subject; importing this package fills the table."""

from . import (
    attention,
    convolution,
    creation,
    elementwise,
    fourier,
    indexing,
    matmul,
    movement,
    normalization,
    pooling,
    randomness,
    reduction,
    resampling,
    sorting,
)

__all__ = [
    "attention", "convolution", "creation", "elementwise", "fourier", "indexing", "matmul",
    "movement", "normalization", "pooling", "randomness", "reduction", "resampling", "sorting",
]  # fmt: skip
