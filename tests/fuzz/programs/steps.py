"""Where programs begin, and the whole table of what may follow."""

from __future__ import annotations

from collections.abc import Callable

from . import layers, shaping
from .table import STEPS
from .writer import Writer

__all__ = ["START", "STEPS", "layers", "shaping"]


def picture(w: Writer) -> str:
    """(batch, channels, height, width)."""
    side = w.one(4, 6, 7, 8, 8, 9, 9)
    other = side if w.often(0.8) else w.one(4, 5, 6)
    return w.input((w.one(1, 2, 2, 4), w.one(1, 2, 3, 3, 4), side, other), letter="x")


def features(w: Writer) -> str:
    """(batch, many channels, height, width): vectors of channels, and some left over."""
    side = w.one(4, 5, 6, 7, 8, 9)
    return w.input((1, w.one(8, 12, 16, 17), side, side if w.often(0.7) else 5), letter="x")


def line(w: Writer) -> str:
    """(batch, channels, length)."""
    return w.input((w.one(1, 2, 4), w.one(1, 2, 3, 4), w.one(6, 9, 12, 16, 32, 64)), letter="x")


def volume(w: Writer) -> str:
    """(batch, channels, depth, height, width)."""
    side = w.one(4, 4, 5)
    return w.input((w.one(1, 2), w.one(1, 2, 3), w.one(3, 4), side, side), letter="x")


def tokens(w: Writer) -> str:
    """(batch, time, width), from a table or as they are."""
    batch, time, width = w.one(1, 2, 3), w.one(3, 4, 6, 8), w.one(4, 6, 8)
    if w.often(0.4):
        index = w.input((batch, time), "rng.integers(0, 7, {shape})", "i")
        return w.say(f"{w.weight(7, width)}[{index}]")
    return w.input((batch, time, width), letter="x")


def rows(w: Writer) -> str:
    """(batch, features)."""
    return w.input((w.one(2, 3, 5, 8), w.one(3, 4, 6, 8, 12)), letter="x")


START: list[tuple[float, Callable[[Writer], str]]] = [
    (10, picture), (4, features), (6, line), (2, volume), (6, tokens), (3, rows),
]  # fmt: skip
