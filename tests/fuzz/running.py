"""A graph through the whole pipeline, and what is wrong with the answer.

In: a graph. Out: None, or a line of text. The pipeline is the real one with poisoned memory, the
oracle the reference evaluator on the graph as it was built.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fulgurite.config import Options
from fulgurite.core.dtype import DType, dtype_of
from fulgurite.core.node import toposort
from fulgurite.core.op import Array
from fulgurite.errors import FulguriteError
from fulgurite.graph.ir.cache_key import constant_uses, normalize, size_constants
from fulgurite.runtime.device import Buffer, get_device
from fulgurite.runtime.host.evaluate import evaluate
from fulgurite.runtime.realize import compile_graph
from fulgurite.runtime.step_executor import concrete

from .bounds import truth
from .graph import Graph, adds_to_zero


def pipeline(graph: Graph, simplify: bool = True, fuse: bool = True) -> list[Array]:
    """The roots as the real pipeline computes them, in memory that was poisoned first."""
    normal = normalize(graph.roots)
    exact = not finite_under_windows(graph)
    options = Options(simplify=simplify, fuse=fuse, exact=exact, verify=True, tier="native")
    lifted: dict[int, DType] = {}
    if graph.lifted:
        fixed = size_constants(normal.structure)
        dtypes = [dtype for _, dtype in constant_uses(normal.structure)]
        lifted = {i: d for i, d in enumerate(dtypes) if i % 2 and i not in fixed}
    device = get_device(graph.device)
    inputs = [device.from_host(graph.arrays[buffer]) for buffer in normal.buffers]
    sizes = [(graph.arrays[b].shape, b.dtype) for b in normal.buffers]
    before = [device.to_host(b, *s).copy() for b, s in zip(inputs, sizes, strict=True)]
    for i, dtype in lifted.items():
        inputs.append(device.from_host(np.array(_of_bits(normal.constants[i], dtype))))
    plan = compile_graph(normal, graph.device, options, lifted).plan
    outputs = plan.run(inputs, normal.values, poison=True)
    about = [(concrete(root.shape, normal.values), root.dtype) for root in graph.roots]

    def read(buffers: Sequence[Buffer]) -> list[Array]:
        return [device.to_host(b, *a) for b, a in zip(buffers, about, strict=True)]

    if graph.lifted:  # run again: the arena is used a second time, the first results are kept
        first = [found.tobytes() for found in read(outputs)]
        again = [found.tobytes() for found in read(plan.run(inputs, normal.values))]
        assert again == first, "a second run gives other results"
        assert [found.tobytes() for found in read(outputs)] == first, "results were overwritten"
    for old, buffer, size in zip(before, inputs, sizes, strict=False):
        assert old.tobytes() == device.to_host(buffer, *size).tobytes(), "an input was written to"
    assert len({id(o) for o in outputs}) == len(outputs), "two outputs are one buffer"
    return read(outputs)


def finite_under_windows(graph: Graph) -> bool:
    """Are all numbers finite that overlapping windows are made of?

    Sums of windows may be products with padding, and 0 * inf is no number; `exact` forbids that.
    """
    added = [node for node in graph.nodes if node.op.name == "unwindow"]
    below = [n for n in toposort(added) if n.dtype.is_inexact] if added else []
    values = evaluate(below, graph.arrays) if below else []
    return all(np.isfinite(value.astype(np.complex128)).all() for value in values)


def _of_bits(bits: int, dtype: DType) -> Array:
    return np.frombuffer(bits.to_bytes(dtype.numpy.itemsize, "little"), dtype.numpy).reshape(())


def problem(graph: Graph, **options: bool) -> str | None:
    """What is wrong with the pipeline's answer for a graph, if anything."""
    expected = evaluate(graph.roots, graph.arrays)
    try:
        found = pipeline(graph, **options)
    except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as e:
        return f"raised {type(e).__name__}: {e}".split("\n")[0]
    except FulguriteError as e:
        return f"raised {type(e).__name__}: {e}".split("\n")[0]
    bounds = None if graph.exact else truth(graph)
    signs = not any(adds_to_zero(node) for node in graph.nodes)
    for place, (right, got) in enumerate(zip(expected, found, strict=True)):
        if right.size != got.size or right.dtype != got.dtype:
            return f"root {place} is {got.dtype}{got.shape}, not {right.dtype}{right.shape}"
        got = got.reshape(right.shape)  # memory: a reshape of a stored value is that value's
        if bounds is None:
            wrong = ~_same_bits(right, got, signs)
        else:
            value, error_ = bounds[place]
            assert not _outside(right, value, error_).any(), "the bound does not hold the oracle"
            wrong = _outside(got, value, error_)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"root {place} differs at {at}: {got[at]} for {right[at]}"
    return None


def _same_bits(a: Array, b: Array, signs: bool) -> Array:
    if a.dtype.kind == "c":  # multiplying by 1 changes the signs of complex zeros
        return _same_bits(a.real, b.real, False) & _same_bits(a.imag, b.imag, False)
    if dtype_of(a.dtype).is_float:
        same = (a == b) & ((np.signbit(a) == np.signbit(b)) | (not signs))
        return np.asarray(same | (np.isnan(a) & np.isnan(b)))
    return np.asarray(a == b)


def _outside(found: Array, value: Array, error: Array) -> Array:
    """Where a result is further from the float64 value than its bound."""
    if found.dtype.kind in "biu":
        return np.asarray((found != value) & ~np.isinf(error))
    with np.errstate(all="ignore"):
        wide = found.astype(value.dtype)
        same = (wide == value) | (np.isnan(wide) & np.isnan(value))
        return np.asarray(~same & ~(np.abs(wide - value) <= error) & ~np.isinf(error))
