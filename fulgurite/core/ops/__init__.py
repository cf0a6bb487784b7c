"""The op table: everything the project knows about an op, in one place, by family.

Importing this package declares every op; `OPS` finds them by name.
"""

from ..op import Op
from ..operators import OPS
from . import (
    collective,
    complexes,
    control,
    effect,
    elementwise,
    host,
    index,
    indexing,
    leaf,
    movement,
    random,
    reduce,
    transform,
    update,
)

__all__ = [
    "OPS",
    "Op",
    "collective",
    "complexes",
    "control",
    "effect",
    "elementwise",
    "host",
    "index",
    "indexing",
    "leaf",
    "movement",
    "random",
    "reduce",
    "transform",
    "update",
]
