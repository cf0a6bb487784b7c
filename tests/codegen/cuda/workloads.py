"""Functions whose kernels are looked at, compiled and timed, at sizes that matter.

In: a name. Out: the schedule of its graph over memory that does not exist: nothing is computed
here, so sizes may be any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import fulgurite as fg
from fulgurite.codegen.cuda.render import render, render_fold
from fulgurite.codegen.cuda.source import KernelSource
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable
from fulgurite.config import current
from fulgurite.core.dtype import dtype_of
from fulgurite.core.node import Node
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Kernel, Schedule, params_of
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.graph.ir.lower import lower
from fulgurite.runtime.pipeline import Context, schedule_of
from fulgurite.tensor import wrap

Shape = tuple[int, ...]
ROWS, COLUMNS = 16384, 4096


class Workload(NamedTuple):
    """A function, its inputs, and the bytes it must move."""

    name: str
    build: Callable[..., Any]
    inputs: tuple[tuple[Shape, str], ...]
    nbytes: int


def _rms(x: Any, r: Any, g: Any) -> Any:
    h = (x + r).astype("float32")
    scale = fg.rsqrt((h * h).mean(axis=-1, keepdims=True) + 1e-6)
    return (h * scale).astype("bfloat16") * g


def attention(q: Any, k: Any, v: Any, window: int | None = None) -> Any:
    """Attention; with a window, each query sees so many keys up to its own."""
    scores = (q @ fg.swapaxes(k, -1, -2)) * (1 / q.shape[-1] ** 0.5)
    if window is not None:
        rows, columns = fg.arange(q.shape[-2])[:, None], fg.arange(k.shape[-2])
        seen = (columns <= rows) & (rows < columns + window)
        scores = fg.where(seen, scores, -float("inf"))
    return fg.softmax(scores, axis=-1) @ v


_MATRIX = ((ROWS, COLUMNS), "bfloat16")
_VECTOR = ((COLUMNS,), "bfloat16")
_CELLS = ROWS * COLUMNS
WORKLOADS = (
    Workload("softmax", lambda x: fg.softmax(x, axis=-1), (_MATRIX,), 4 * _CELLS),
    Workload("layernorm", lambda x, g, b: fg.layer_norm(x, (COLUMNS,), g, b),
             (_MATRIX, _VECTOR, _VECTOR), 4 * _CELLS),
    Workload("rmsnorm", _rms, (_MATRIX, _MATRIX, _VECTOR), 6 * _CELLS),
    Workload("gelu", lambda x, b, r: fg.gelu(x + b, approximate="tanh") + r,
             (_MATRIX, _VECTOR, _MATRIX), 6 * _CELLS),
    Workload("sum", lambda x: x.sum(), (((1 << 28,), "float32"),), 4 << 28),
    Workload("column_sum", lambda x: x.sum(axis=0), (((ROWS, COLUMNS), "float32"),), 4 * _CELLS),
    Workload("row_max", lambda x: x.max(axis=1), (((ROWS, COLUMNS), "float32"),), 4 * _CELLS),
    Workload("transpose", lambda x: x.T + 1, (((8192, 8192), "bfloat16"),), 4 * 8192 * 8192),
    Workload("add", lambda x, y: x + y, ((((1 << 26),), "float32"),) * 2, 12 << 26),
    Workload("scan", lambda x: fg.cumulative_sum(x, axis=0), (((1 << 24,), "float32"),), 8 << 24),
    Workload("sort", lambda x: fg.argsort(x, axis=0), (((1 << 22,), "float32"),), 8 << 22),
    Workload("embedding_grad",
             lambda t, i, g: fg.scatter_add(t, 0, fg.broadcast_to(i, (16384, 768)), g),
             (((50257, 768), "float32"), ((16384, 1), "int64"), ((16384, 768), "float32")),
             4 * 768 * (2 * 50257 + 2 * 16384)),
    Workload("matmul_bf16", lambda a, b: a @ b, (((1024, 1024), "bfloat16"),) * 2, 6 << 20),
    Workload("attention", attention, (((1, 16, 2048, 64), "bfloat16"),) * 3, 4 * 4 << 20),
    Workload("causal_attention", lambda q, k, v: attention(q, k, v, 2048),
             (((4, 16, 2048, 128), "bfloat16"),) * 3, 4 * 32 << 20),
    *[Workload(f"gemm_{n}", lambda a, b: a @ b, (((n, n), "bfloat16"),) * 2, 6 * n * n)
      for n in (2048, 4096, 8192)],
    Workload("gemm_nt", lambda a, b: a @ fg.swapaxes(b, 0, 1),
             (((8192, 4096), "bfloat16"), ((1024, 4096), "bfloat16")), 2 * 8192 * 5120),
    Workload("gemm_gelu", lambda a, b, c: fg.gelu(a @ b + c, approximate="tanh"),
             (((4096, 4096), "bfloat16"),) * 2 + (((4096,), "bfloat16"),), 6 * 4096 * 4096),
    Workload("causal_long", lambda q, k, v: attention(q, k, v, 4096),
             (((4, 32, 4096, 128), "bfloat16"),) * 3, 4 * 128 << 20),
    Workload("attention_long", attention, (((4, 16, 8192, 128), "bfloat16"),) * 3, 4 * 128 << 20),
    Workload("attention_64", attention, (((4, 16, 8192, 64), "bfloat16"),) * 3, 4 * 64 << 20),
    Workload("matmul_f32", lambda a, b: fg.relu(a @ b), (((1024, 1024), "float32"),) * 2, 12 << 20),
)  # fmt: skip


def scheduled(build: Callable[..., Any], inputs: Sequence[tuple[Shape, str]]) -> Schedule:
    """The kernels of a function, of one result or several, of memory with these shapes."""
    return ordered(build, inputs)[0]


def ordered(
    build: Callable[..., Any], inputs: Sequence[tuple[Shape, str]]
) -> tuple[Schedule, list[int]]:
    """The kernels of a function, and which input each of the first slots is.

    Slots are numbered as a graph meets its inputs, not as they were given.
    """
    with fg.config(device="reference"):
        leaves = [wrap(new_buffer(shape, dtype_of(dtype))) for shape, dtype in inputs]
        given = [leaf.entry.node for leaf in leaves]
        found = build(*leaves)
        roots = found if isinstance(found, tuple) else (found,)
        normal = normalize([root.entry.node for root in roots])
        sink = restore(normal.structure, normal.constants, {}, normal.nodes)
        schedule = schedule_of(sink, Context(current(), "reference", len(normal.buffers)))
        return schedule, [given.index(node) for node in normal.buffers]


def graph_of(build: Callable[..., Any], inputs: Sequence[tuple[Shape, str]]) -> Node:
    """The graph of a function of several results, of memory with these shapes."""
    with fg.config(device="reference"):
        leaves = [wrap(new_buffer(shape, dtype_of(dtype))) for shape, dtype in inputs]
        normal = normalize([root.entry.node for root in build(*leaves)])
        return restore(normal.structure, normal.constants, {}, normal.nodes)


def rendered(kernel: Kernel, table: GpuTable = HOPPER) -> KernelSource:
    """A kernel as launches."""
    if kernel.kind is KernelKind.FOLD:
        return render_fold(kernel.plan, table)
    return render(lower(kernel.body, kernel.inputs), [p.dtype for p in params_of(kernel)], table)


def workload(name: str) -> Workload:
    """One of them by name."""
    return next(w for w in WORKLOADS if w.name == name)
