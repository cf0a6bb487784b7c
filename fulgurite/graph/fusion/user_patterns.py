"""Expressions for which the user has a kernel: what a search may put in their place.

In: pairs of functions from nodes to a node, the expression and the kernel. Out: a list that the
search goes through (`graph/fusion/pattern_matching.py`). It is a module of its own so that
registering loads nothing; `version` is part of the key of every plan that was searched, so that a
plan which was made before a kernel was registered is not taken for one made after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node

Build = Callable[[Sequence[Node]], Node]


class Pattern(NamedTuple):
    """A kernel of the user and the expression it may stand for."""

    name: str
    operands: int
    expression: Build
    kernel: Build


PATTERNS: list[Pattern] = []


def version() -> tuple[int, ...]:
    """Which kernels there are: as long as they are registered, no two have one id."""
    return tuple([id(pattern) for pattern in PATTERNS])
