"""The table of steps: what may be written next, how often, and after values of how many axes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from .writer import Writer

Write = Callable[[Writer, str], str]


class Step(NamedTuple):
    """Something people write next."""

    name: str
    weight: float
    ndims: Collection[int]
    write: Write


STEPS: list[Step] = []
ANY = range(1, 7)
SPACE = (3, 4, 5)  # (batch, channels, space of one to three axes)


def step(weight: float, ndims: Collection[int] = ANY) -> Callable[[Write], Write]:
    """Put a function into the table."""

    def kept(write: Write) -> Write:
        STEPS.append(Step(write.__name__, weight, ndims, write))
        return write

    return kept
