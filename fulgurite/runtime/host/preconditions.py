"""What must hold of sizes that vary before kernels run: an extreme needs an element.

In: the kernels of a schedule. Out: the sizes that must not be 0, each with the name of the fold
that needs it. Native code folds over the upper bound of a size and would give the identity.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...core.node import Node, Shape, toposort
from ...core.ops.reduce import REDUCE
from ...errors import ShapeError
from ...graph.ir.kernel import Kernel
from ..device import Values
from ..step_executor import concrete
from .evaluate import size_value

Extreme = tuple[str, Node, tuple[Shape, ...]]  # max or min, a size, the results it goes into


def sizes_of_extremes(kernels: Iterable[Kernel]) -> list[Extreme]:
    """Sizes that max or min is taken over and that may turn out to be 0."""
    found: dict[Extreme, None] = {}
    for kernel in kernels:
        results = tuple([root.shape for root in kernel.body.src])
        for node in toposort([kernel.body]):
            if node.op is not REDUCE or node.arg[0] not in ("max", "min"):
                continue
            for axis in node.arg[1] if node.dtype.kind != "b" else ():
                size = node.src[0].shape[axis]
                if isinstance(size, Node) and (size.bounds or (0, 0))[0] <= 0:
                    found[node.arg[0], size, results] = None
    return list(found)


def check_extremes(sizes: Iterable[Extreme], values: Values) -> None:
    """Raise if one of the sizes is 0 and somebody gets to see what was taken over it."""
    for name, size, results in sizes:
        if size_value(size, values) == 0 and any(0 not in concrete(s, values) for s in results):
            raise ShapeError(f"the {name} of no elements does not exist", "bind a size above 0")
