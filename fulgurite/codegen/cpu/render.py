"""One kernel as text: its passes and templates in order; the first template that takes it wins.

In: a `TypedKernel`, or the `StreamedKernel` that a search chose, and the target. Out: a
`KernelText`. `PASSES` reads top to bottom: what every target does first, kernels with scans, sorts
and scatters, then the templates with the passes that each needs before it. A template gives None
where it does not apply; the last one, plain loops, takes everything that has a native form and
raises `CannotLower` otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..._lazy import FORK_LOCK
from ...config import current
from ...core.dtype import DType
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import toposort
from ...core.ops.elementwise import WHERE
from ...core.ops.index import LOAD, STORE, VALID
from ...core.passes import Level, Observe, Pass, Watch, run_passes
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import is_irregular, sums_products
from ...graph.ir.reshape_groups import CannotLower
from ...kernel.transform.drop_implied_masks import drop_implied_masks
from ...kernel.transform.merge_axes import merge_axes
from ...kernel.transform.passes import INDEX, TRANSFORMS, TypedKernel
from ...kernel.transform.split_reduction import split_typed
from ...kernel.transform.unroll_and_jam import unroll_and_jam
from ...kernel.transform.unroll_short_axes import unroll_short_axes
from ..common.api import KernelText
from ..common.sizes import bind_sizes
from .loops.template import loops
from .relayout import relayouts
from .target import Target
from .tiling import CPU
from .vecmath import library

if TYPE_CHECKING:
    from ...kernel.stream.roles import StreamedKernel
    from .irregular.parts import Plain


class Rendering(NamedTuple):
    """What passes of a kernel may know besides it."""

    target: Target
    watch: Watch


STREAM = Level("streamed kernel")
PARTS = Level("parts")
CODE = Level("code", lambda rendered: rendered.text)

PLAIN: tuple[Pass, ...] = (  # of a kernel without scans, sorts and scatters
    Pass(
        "drop_implied_masks",
        lambda v, c: v.of(merge_axes(drop_implied_masks(v.kernel))),
        INDEX,
        INDEX,
    ),
    Pass("depthwise", lambda v, c: depthwise(v, c.target), INDEX, CODE),
    Pass("gemm", lambda v, c: gemm(v, c.target), INDEX, CODE),
    Pass("concat", lambda v, c: concat(v), INDEX, CODE),
    Pass("move_as_words", lambda v, c: words(v), INDEX, INDEX),
    Pass("merge_masked_axes", lambda v, c: masked(v), INDEX, INDEX),
    Pass("relayout", lambda v, c: relayouts(v.kernel, v.dtypes, c.target), INDEX, CODE),
    Pass(
        "unroll_short_axes",
        lambda v, c: v.of(
            merge_axes(unroll_short_axes(v.kernel, CPU.loops.unroll, CPU.loops.vector))
        ),
        INDEX,
        INDEX,
    ),
    Pass(
        "unroll_and_jam",
        lambda v, c: v.of(unroll_and_jam(v.kernel, CPU.loops.unroll, CPU.loops.vector)),
        INDEX,
        INDEX,
    ),
    Pass(
        "split_reduction",
        lambda v, c: split_typed(v.kernel, v.dtypes, CPU.loops.split),
        INDEX,
        PARTS,
    ),
    Pass("loops", lambda v, c: loops(v, c.target), PARTS, CODE),
)
PASSES: tuple[Pass, ...] = (
    *TRANSFORMS,
    Pass("stream", lambda v, c: stream(v, c.target), STREAM, CODE),
    Pass("irregular", lambda v, c: irregular(v, c), INDEX, CODE),
    *PLAIN,
)


def render(
    value: TypedKernel | StreamedKernel, target: Target, observe: Observe | None = None
) -> KernelText:
    """A kernel, or a fold as it was chosen, as functions of a module of its own."""
    level = INDEX if isinstance(value, TypedKernel) else STREAM
    watch = Watch.of(current(), observe)
    found = run_passes(value, Rendering(target, watch), PASSES, watch, level)
    if not isinstance(found, KernelText):
        raise CannotLower("no template takes it")
    found = bind_sizes(found)
    return replace(found, library=(*found.library, *library(found.text)))


def plain(context: Rendering) -> Plain:
    """The passes of a kernel without scans, sorts and scatters, as a function."""

    def rendered(kernel: IndexKernel, dtypes: Sequence[DType], target: Target) -> KernelText:
        value = TypedKernel(kernel, tuple(dtypes))
        made = run_passes(value, context, PLAIN, context.watch, INDEX)
        assert isinstance(made, KernelText), "loops take everything"
        return made

    return rendered


# --- templates and passes that are loaded by the first kernel they take ---------------------------


def words(value: TypedKernel) -> TypedKernel:
    """A kernel that only moves bytes, by fours."""
    if any(dtype.bits != 8 for dtype in value.dtypes):
        return value
    with FORK_LOCK:
        from ...kernel.transform.move_as_words import move_as_words
    return value.of(*move_as_words(*value))


def masked(value: TypedKernel) -> TypedKernel:
    """A kernel that asks conditions, its short rows merged."""
    order = toposort([value.kernel.body])
    if not any(n.op is VALID or (n.op is LOAD and n.arg[2]) for n in order):
        return value
    with FORK_LOCK:
        from ...kernel.transform.merge_masked_axes import merge_masked_axes
    return value.of(merge_masked_axes(value.kernel, CPU.loops.vector))


def irregular(value: TypedKernel, context: Rendering) -> KernelText | None:
    """A kernel with a scan, a sort or a scatter."""
    if not is_irregular(value.kernel.body):
        return None
    with FORK_LOCK:
        from .irregular import parts
    return parts.in_parts(value.kernel, value.dtypes, context.target, plain(context))


def depthwise(value: TypedKernel, target: Target) -> KernelText | None:
    """A kernel that sums products over a window, its lanes channels."""
    if not sums_products(value.kernel.body):
        return None
    with FORK_LOCK:
        from ...kernel.contract import depthwise as analysis
    found = analysis.find_depthwise(value.kernel) if target.has_masks else None
    if found is None:
        return None
    with FORK_LOCK:
        from .conv import depthwise as template
    return template.depthwise_text(found, value.dtypes, target)


def gemm(value: TypedKernel, target: Target) -> KernelText | None:
    """A kernel that sums a product over axes of both operands."""
    if not sums_products(value.kernel.body):
        return None
    with FORK_LOCK:
        from ...kernel.contract import problem
    found = problem.find_gemm(value.kernel, value.dtypes)
    if found is None:
        return None
    with FORK_LOCK:  # twenty modules
        from .gemm import template
    return template.gemm_text(found, target)


def concat(value: TypedKernel) -> KernelText | None:
    """A map that chooses between values by place."""
    if not all([n.op is STORE and n.src[0].op is WHERE for n in value.kernel.body.src]):
        return None
    with FORK_LOCK:
        from . import concat as template
    return template.concats(value.kernel, value.dtypes)


def stream(value: StreamedKernel, target: Target) -> KernelText | None:
    """A kernel that streams over an axis, as its search found it."""
    with FORK_LOCK:
        from .stream import template
    return template.stream_template(value, target)
