"""Kernel passes that every target runs first: index notation in the form that templates take.

In: a `TypedKernel`, a kernel in index notation and the dtypes of its params. Out: the same without
complex numbers, sizes that variables decide, floats that are only moved, and axes that memory does
not tell apart. What a search looks into is what is compiled: both run `TRANSFORMS`.
"""

from __future__ import annotations

from ...core.dtype import DType
from ...core.lazy_named_tuple import NamedTuple
from ...core.passes import Level, Pass, show, verify_index
from ...core.shape import size_text
from ...graph.ir.lower import IndexKernel
from .complex_to_real import complex_to_real
from .merge_axes import merge_axes
from .move_as_bits import move_as_bits
from .pad_dynamic_axes import pad_dynamic_axes


class TypedKernel(NamedTuple):
    """A kernel in index notation, and the dtypes of its params: inputs, then outputs."""

    kernel: IndexKernel
    dtypes: tuple[DType, ...]

    def of(self, kernel: IndexKernel, dtypes: tuple[DType, ...] | None = None) -> TypedKernel:
        """Another kernel over the same params; itself if nothing changed."""
        if kernel is self.kernel and dtypes in (None, self.dtypes):
            return self
        return TypedKernel(kernel, self.dtypes if dtypes is None else dtypes)

    def __str__(self) -> str:
        axes = ", ".join([size_text(size) for size in self.kernel.axes])
        return f"axes [{axes}], {', '.join(map(str, self.dtypes))}\n{show(self.kernel.body)}"


INDEX = Level("index", verify=lambda value, name: verify_index(value.kernel.body.src, name))


TRANSFORMS: tuple[Pass, ...] = (
    Pass("complex_to_real", lambda v, c: v.of(*complex_to_real(*v)), INDEX, INDEX),
    Pass("pad_dynamic_axes", lambda v, c: v.of(pad_dynamic_axes(v.kernel)), INDEX, INDEX),
    Pass("move_as_bits", lambda v, c: v.of(*move_as_bits(*v)), INDEX, INDEX),
    Pass("merge_axes", lambda v, c: v.of(merge_axes(v.kernel)), INDEX, INDEX),
)
