"""One kernel as text: the first template that takes it renders it.

In: an `IndexKernel`, the dtypes of its params, the target. Out: a `Rendered`. A template is a
function that returns `None` where it does not apply; the last one, plain loops, takes everything
that has a native form and raises `CannotLower` otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.dtype import DType
from ..graph.lower import IndexKernel
from ..graph.regroup import CannotLower
from ..kernel.axes import merge_axes
from .code import Rendered
from .llvm import loops
from .target import Target

Template = Callable[[IndexKernel, Sequence[DType], Target], Rendered | None]
TEMPLATES: tuple[Template, ...] = (loops,)


def render(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> Rendered:
    """The kernel as functions of a module of its own."""
    merged = merge_axes(kernel)
    for template in TEMPLATES:
        found = template(merged, dtypes, target)
        if found is not None:
            return found
    raise CannotLower("no template takes it")
