"""One kernel as text: the first template that takes it renders it.

In: an `IndexKernel`, the dtypes of its params, the target. Out: a `Rendered`. A template is a
function that returns `None` where it does not apply; the last one, plain loops, takes everything
that has a native form and raises `CannotLower` otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..._lazy import FORK_LOCK
from ...core.dtype import DType
from ...graph.ir.lower import IndexKernel
from ...graph.ir.reshape_groups import CannotLower
from ...kernel.transform.complex_to_real import in_pairs
from ...kernel.transform.drop_implied_masks import assumed
from ...kernel.transform.merge_axes import merge_axes
from ...kernel.transform.move_as_bits import moved_as_bits
from ...kernel.transform.pad_dynamic_axes import fixed_sizes
from ..common.api import Rendered
from .gemm.template import gemms
from .irregular.parts import in_parts
from .loops.template import loops
from .relayout import relayouts
from .target import Target
from .vecmath import library

Template = Callable[[IndexKernel, Sequence[DType], Target], Rendered | None]
TEMPLATES: tuple[Template, ...] = (gemms, relayouts, loops)


def render(
    kernel: IndexKernel, dtypes: Sequence[DType], target: Target, kind: str = ""
) -> Rendered:
    """The kernel as functions of a module of its own."""
    kernel, dtypes = in_pairs(kernel, dtypes)
    kernel, dtypes = moved_as_bits(fixed_sizes(kernel), dtypes)
    merged = merge_axes(kernel)
    if kind == "fold":
        with FORK_LOCK:
            from .stream import template as template_module
        streamed: Rendered | None = template_module.stream_template(merged, dtypes, target)
        if streamed is None:
            raise CannotLower("no template streams it")
        return replace(streamed, library=(*streamed.library, *library(streamed.text)))
    found = in_parts(merged, dtypes, target, _plain) or _plain(merged, dtypes, target)
    return replace(found, library=(*found.library, *library(found.text)))


def _plain(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> Rendered:
    """A kernel without scans, sorts and scatters."""
    merged = merge_axes(assumed(kernel))
    for template in TEMPLATES:
        found = template(merged, dtypes, target)
        if found is not None:
            return found
    raise CannotLower("no template takes it")
