"""Rotary positions: pairs of a head's numbers turn by an angle that grows with the place.

In: places, (batch, length). Out: cosines and sines, (batch, length, pairs), and heads that are
rotated by them. How fast each pair turns is known beforehand; a context that was made longer turns
some of them more slowly (linear, llama3, YaRN), or by factors of its own (longrope): there are two
sets of these, and all of a text that is longer than the original context has the second.
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import numpy as np

import fulgurite as fg

from ..core.op import Array
from .config import Rope


def speeds(rope: Rope) -> tuple[Array, Array | None]:
    """The angle from place to place for each pair; another one beyond the original context."""
    plain = rope.theta ** (-np.arange(0, rope.size, 2, dtype=np.float64) / rope.size)
    if rope.kind == "linear":
        plain = plain / rope.factor
    elif rope.kind == "llama3":
        turns = rope.original * plain / (2 * pi)  # within the original context
        smooth = np.clip((turns - rope.low) / (rope.high - rope.low), 0, 1)
        plain = plain * (smooth + (1 - smooth) / rope.factor)
    elif rope.kind == "yarn":
        low, high = (_pair_that_turns(rope, turns) for turns in (rope.high, rope.low))
        if rope.whole:
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, rope.size - 1)
        ramp = (np.arange(rope.size // 2) - low) / (high - low if high > low else 0.001)
        smooth = 1 - np.clip(ramp, 0, 1)
        plain = plain * (smooth + (1 - smooth) / rope.factor)
    elif rope.kind == "longrope":
        short, long = (plain / np.array(factors) for factors in (rope.short, rope.long))
        return short.astype(np.float32), long.astype(np.float32)
    return plain.astype(np.float32), None


def _pair_that_turns(rope: Rope, turns: float) -> float:
    """Which pair turns so many times within the original context, as a fraction."""
    return rope.size * log(rope.original / (turns * 2 * pi)) / (2 * log(rope.theta))


def angles(
    rope: Rope, places: fg.Tensor, is_long: fg.Tensor | None = None
) -> tuple[fg.Tensor, fg.Tensor]:
    """Cosines and sines of places, for one head: (batch, 1, length, pairs).

    `is_long` says of each text whether it is beyond the original context; None: by these places.
    """
    short, long = speeds(rope)
    speed: fg.Tensor = fg.Tensor(short)
    if long is not None:
        if is_long is None:
            is_long = places.max(axis=1) >= rope.original
        speed = fg.where(is_long[:, None, None], fg.Tensor(long), speed)
    angle = (places[:, :, None].astype(fg.float32) * speed)[:, None]
    return fg.cos(angle) * rope.attention, fg.sin(angle) * rope.attention


def rotated(rope: Rope, x: fg.Tensor, turn: tuple[fg.Tensor, fg.Tensor]) -> fg.Tensor:
    """Heads (batch, heads, length, size) whose first numbers are rotated."""
    cos, sin = turn
    part, rest = x[..., : rope.size], x[..., rope.size :]
    if rope.pairs:
        couples = part.reshape(*part.shape[:-1], rope.size // 2, 2)
        a, b = couples[..., 0], couples[..., 1]
        both = fg.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        found = both.reshape(*part.shape)
    else:
        a, b = part[..., : rope.size // 2], part[..., rope.size // 2 :]
        found = fg.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return fg.concat([found, rest], axis=-1) if rope.size < x.shape[-1] else found
