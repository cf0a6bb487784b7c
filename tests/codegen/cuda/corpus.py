"""A corpus of kernels for the generated code: `python -m tests.codegen.cuda.corpus HOW`.

Samples of every op of the table with hostile numbers, random graphs, and functions that fuse, each
with the tiles of a GPU and with tiny ones, under which small sizes take every path: loops over
blocks, split folds, scans in chunks, merged runs, segments over many programs. `interpret` runs
them in Triton's interpreter against the reference's own; `read` lets Triton read every text. Prints
what was counted, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

os.environ |= {"FULGURITE_DEVICE": "reference", "FULGURITE_DISK_CACHE": "0"}
os.environ["FULGURITE_SHADOW"] = sys.argv[1] if len(sys.argv) > 1 else "interpret"

import numpy as np

import fulgurite as fg
from fulgurite.codegen.cuda.render import render
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable, in_plain_triton
from fulgurite.core.dtype import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int32,
    int64,
)
from fulgurite.core.node import Node, Shape, constant, toposort
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import ASSIGN
from fulgurite.core.ops.elementwise import CAST, NEG
from fulgurite.core.ops.index import GUARD
from fulgurite.core.ops.indexing import gather
from fulgurite.core.ops.leaf import PARAM, SINK, VAR, param, variable
from fulgurite.core.ops.movement import expand, reshape, shrink
from fulgurite.core.ops.reduce import reduce_node, scan_node
from fulgurite.core.shape import upper
from fulgurite.errors import FulguriteError
from fulgurite.graph.ir.kernel import Extractor, Kernel, params_of
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.runtime.host.evaluate import size_value
from fulgurite.runtime.host.index_interpreter import Runner
from tests import fuzz
from tests.codegen.cuda import shadow
from tests.codegen.cuda.folds import FOLDS
from tests.codegen.cuda.gluon_on_gpu import case, compared
from tests.codegen.cuda.workloads import attention, graph_of, rendered, scheduled
from tests.graph.scheduling import schedule
from tests.samples import sample

Array = np.ndarray[Any, Any]
FAMILIES = ("elementwise", "movement", "reduce", "indexing", "random")
LARGE = in_plain_triton(HOPPER)
TINY = GpuTable(
    processors=2, map_bytes=64, transpose_block=4, row_block=8, chunk_elements=4, small_rows=8,
    column_bytes=16, column_elements=8, programs=2, split_short=4, split_elements=16,
    split_least=4, dot_rows=16, dot_depth=16, dot_least=2, scan_block=4, scan_chunk=4, sort_tile=2,
    sort_run=4, segment_block=4, row_peel=2, streaming=True, short_functions=True,
    stream_fast_exp=True, gluon=False, gluon_stream=False,
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-45, -1e-40, 1e-3, 95.0, 100.0, -100.0, 6e4, 1e30, np.inf,
    -np.inf, np.nan,
)  # fmt: skip


def numbers(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, index: bool) -> Array:
    """Numbers that break careless code; places inside of any axis where they are indices."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        if index:
            return rng.integers(0, 2, shape).astype(dtype.numpy)
        low, high = dtype.limits
        ends = rng.choice(np.array([low, high, low + 1, high - 1], dtype.numpy), shape)
        small = rng.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype.numpy)
        return np.where(rng.random(shape) < 0.2, ends, small)
    plain = rng.normal(size=shape) * 3
    if dtype.kind == "c":
        return np.asarray(plain + 1j * rng.normal(size=shape)).astype(dtype.numpy)
    rare = rng.choice(FLOATS, shape)
    return np.where(rng.random(shape) < 0.4, rare, plain).astype(dtype.numpy)


def values_of(kernel: Kernel) -> dict[str, int]:
    """Values of a kernel's variables, below their upper bounds."""
    found = [n.arg for n in toposort([kernel.body]) if n.op is VAR]
    return {name: min(max(low, 5), high) for name, low, high, *_ in found}


def run_kernel(kernel: Kernel, seed: int, mean: float | None = None) -> None:
    """One kernel on random inputs: hostile ones, or normal ones about a mean."""
    try:
        body = lower(kernel.body, kernel.inputs)
    except CannotLower:
        shadow.counts["not in index notation"] += 1
        return
    made = shadow.attempted(kernel)
    if made is None:
        return
    values = values_of(kernel)
    rng = np.random.default_rng(seed)
    index = any(n.op is GUARD for n in toposort([body.body]))
    arrays: list[Array] = []
    for place, node in enumerate(params_of(kernel)):
        shape = tuple([upper(n) for n in node.shape])
        if place < kernel.inputs:
            plain = mean is not None and node.dtype.kind == "f"
            tame = np.asarray(rng.normal(mean or 0.0, 1.0, shape)).astype(node.dtype.numpy)
            arrays.append(tame if plain else numbers(node.dtype, shape, rng, index))
        else:
            arrays.append(np.zeros(shape, node.dtype.numpy))
    if max([a.size for a in arrays], default=0) > shadow.LARGEST:
        shadow.counts["passed over"] += 1
        return
    parts = [_used(node.shape, values) for node in params_of(kernel)]
    meant = [a.copy() for a in arrays]
    try:
        Runner(body).run([a.reshape(-1) for a in meant], dict(values))
    except FulguriteError:
        shadow.counts["refused by the reference"] += 1
        return
    before = [a[parts[i]] for i, a in enumerate(arrays[: kernel.inputs])]
    want = [a[parts[kernel.inputs + i]] for i, a in enumerate(meant[kernel.inputs :])]
    shadow.compare(kernel, made, before, want, dict(values))


def _used(shape: Shape, values: dict[str, int]) -> tuple[slice, ...]:
    """The part of memory at its upper bound that sizes of this run have."""
    return tuple([slice(n if isinstance(n, int) else size_value(n, values)) for n in shape])


def op_samples() -> Iterator[Node]:
    """Nodes of every op that kernels are made of."""
    for op in OPS.values():
        if op.family in FAMILIES:
            yield from sample(op)


def functions(n: int) -> list[Any]:
    """Functions that fuse, of odd sizes."""
    rng = np.random.default_rng(n)
    x = fg.Tensor(rng.normal(size=(3, n)).astype(np.float32))
    y = fg.Tensor(rng.normal(size=(n, 5)).astype(np.float32))
    index = fg.Tensor(rng.integers(0, n, (7,)))
    half, wide = x.astype("bfloat16"), x.astype("float64")
    return [
        fg.softmax(x, axis=-1), fg.softmax(half, axis=0), fg.log_softmax(wide, axis=1),
        fg.layer_norm(half, (n,)), fg.gelu(x + 1.0) * x, fg.relu(x @ y),
        half @ y.astype("bfloat16"),
        x.sum(), (x * x).mean(axis=0), x.max(axis=1), fg.argmax(x, axis=1), x.T + 1.0,
        fg.var(x, axis=1), fg.cumulative_sum(x, axis=1), fg.cumulative_sum(x, axis=0),
        fg.sort(x, axis=1), fg.argsort(half, axis=1, descending=True),
        fg.scatter_add(fg.zeros((n,)), 0, index, fg.ones((7,))), fg.concat([x, x * 2.0], axis=1),
        x[:, ::-1], fg.where(x > 0, x, -x).prod(axis=1), (x > 0).any(axis=0),
        fg.random.normal((n, 3)), (x.astype("int32") % 3).sum(axis=1),
        fg.one_hot(index, n).sum(axis=0), fg.logsumexp(fg.broadcast_to(x, (3, 3, n)), axis=0),
        fg.logsumexp(fg.broadcast_to(x[0], (40, n)), axis=0),
        fg.arange(10**10).reshape(10**5, 10**5)[::9000, 0],  # numbers beyond 32 bits
    ]  # fmt: skip


def check(holds: bool, what: str) -> None:
    """Count a check that is no comparison of whole kernels."""
    shadow.counts["checks"] += 1
    if not holds:
        shadow.note("wrong", what)


def in_place() -> None:
    """Outputs that take an input's memory, as plans let them: what is read there is read before."""
    from tests.codegen.cuda import interpret

    x, y = param(0, (6, 10), float32), param(1, (6, 10), float32)
    top = expand(reduce_node("max", x, (1,)), (6, 10))
    roots = [
        (1, 0, NEG(x)), (1, 0, scan_node("add", x, 1)), (1, 0, scan_node("add", x, 0, True)),
        (2, 1, top - y), (2, 0, NEG(x) + y),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    for table in (LARGE, TINY):
        for inputs, given, root in roots:
            arrays = [rng.normal(size=(6, 10)).astype(np.float32) for _ in range(inputs + 1)]
            made = render(lower(SINK(root), inputs), [float32] * (inputs + 1), table)
            apart, _ = interpret.run(made, arrays, {})
            found, _ = interpret.run(made, arrays, {}, 1, {inputs: given})
            check(apart[inputs].tobytes() == found[inputs].tobytes(), f"in place: {root!r}")


def boxes() -> None:
    """A part set at a place that a variable says is one launch, which writes nothing else."""
    from tests.codegen.cuda import interpret

    x, rows, row = (param(n, shape, float32) for n, shape in enumerate(((6, 5, 9), (6, 9), (5, 9))))
    at, zero = variable("at", 0, 4), constant(0, int64)
    deep = ASSIGN(x, reshape(rows, (6, 1, 9)), zero, at, zero, arg=("box", 1, 1, 1))
    first = ASSIGN(x, reshape(row, (1, 5, 9)), at, zero, zero, arg=("box", 1, 1, 1))
    half = shrink(reshape(rows, (6, 1, 9)), [(0, 6), (0, 1), (0, 5)])
    third = ASSIGN(x, half, zero, at, zero, arg=("box", 1, 1, 2))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((6, 5, 9), (6, 9), (5, 9), (6, 5, 9))]
    for table in (LARGE, TINY):
        for place in (0, 3, 4):
            for root in (deep, first, third):
                made = render(lower(SINK(root), 3), [float32] * 4, table)
                want = arrays[0].copy()
                if root is first:
                    want[place] = arrays[2]
                else:
                    want[:, place, :: root.arg[3]] = arrays[1][:, : 9 if root is deep else 5]
                found, _ = interpret.run(made, arrays, {"at": place}, 1, {3: 0})
                check(found[3].tobytes() == want.tobytes(), f"a box at {place}: {root!r}")
                check(len(made.launches) == 1, f"{len(made.launches)} launches for a box")


def guards() -> None:
    """An index outside of its axis sets the error words, and nothing is read there."""
    from tests.codegen.cuda import interpret

    root = gather(param(0, (8,), float32), param(1, (5,), int32), 0)
    made = render(lower(SINK(root), 2), [float32, int32, float32])
    memory = np.arange(8, dtype=np.float32)
    for index, words in (([0, 7, 3, 1, 2], (0, 0)), ([0, 8, 3, 1, 2], (1, 8)),
                         ([0, 1, -1, 1, 2], (1, 8))):  # fmt: skip
        arrays = [memory, np.array(index, np.int32), np.zeros(5, np.float32)]
        _, error = interpret.run(made, arrays, {})
        check(error == words, f"indices {index} give error words {error}")


def locked() -> None:
    """A guarded kernel does what it did, and nothing at all while the lock is set."""
    from tests.codegen.cuda import interpret

    x = param(0, (6, 70), float32)
    for root in (NEG(x), reduce_node("add", x, (1,)), scan_node("add", x, 1)):
        made = render(lower(SINK(root), 1), [float32, float32])
        data = np.random.default_rng(0).standard_normal((6, 70)).astype(np.float32)
        shape: Any = root.shape
        arrays = [data, np.full(shape, 7, np.float32)]
        plain, _ = interpret.run(made, arrays, {})
        same, _ = interpret.run(made.guarded(), arrays, {})
        kept, _ = interpret.run(made.guarded(), arrays, {}, locked=1)
        check(plain[1].tobytes() == same[1].tobytes(), f"guarded: {root!r}")
        check(bool((kept[1] == 7).all()), f"locked: {root!r}")


def streams() -> None:
    """Online reductions as one kernel: odd sizes, masks that skip blocks, rows, small floats."""
    small = replace(TINY, stream_rows=32, stream_block=32, processors=2)
    sizes = ((2, 70, 90, 20, 24), (1, 130, 130, 32, 16), (2, 1, 90, 20, 24))
    for seed, (batch, rows, columns, depth, width) in enumerate(sizes):
        cases = (("float32", None), ("float32", 1000), ("bfloat16", 40))
        for dtype, window in cases if rows > 1 else cases[:1]:
            shapes = ((batch, rows, depth), (batch, columns, depth), (batch, columns, width))
            given = tuple([(shape, dtype) for shape in shapes])
            found = scheduled(lambda q, k, v, w=window: attention(q, k, v, w), given)
            (item,) = found.items
            check(item.kernel.kind == "fold", f"attention {shapes} {window} is {item.kernel.name}")
            for table in (LARGE, small):
                stream_once(item.kernel, table, seed, window, shapes)


def normalised(x: Any, weight: Any, bias: Any, given: Any) -> tuple[Any, ...]:
    """Batch normalisation of images whose channels are last, its statistics and gradients."""

    def f(x: Any, weight: Any, bias: Any) -> Any:
        wide = x.astype("float32")
        mean = wide.mean(axis=(0, 1, 2))
        spread = ((wide - mean) ** 2).mean(axis=(0, 1, 2))
        y = (wide - mean) * fg.rsqrt(spread + 1e-5) * weight + bias
        return fg.relu(y.astype(x.dtype)), mean, spread

    y, pull = fg.vjp(lambda *inputs: f(*inputs)[0], x, weight, bias)
    return (y, *f(x, weight, bias)[1:], *pull(given))


def column_folds() -> None:
    """Statistics of columns, what follows from them alone, and maps of both, split in parts."""
    sizes = (
        (3, 5, 7, 6), (2, 4, 4, 8), (7, 1, 11, 1), (1, 1, 1, 3), (2, 3, 5, 33), (2, 6, 8, 5),
    )  # fmt: skip
    for seed, (*places, channels) in enumerate(sizes):
        for dtype in ("float32", "bfloat16"):
            image, vector = ((*places, channels), dtype), ((channels,), "float32")
            for item in scheduled(normalised, (image, vector, vector, image)).items:
                for mean in (None, 0.0, 30.0):
                    run_kernel(item.kernel, seed, mean)


def normalised_rows(x: Any, g: Any, scale: Any, more: Any, old: Any) -> tuple[Any, ...]:
    """The gradient of a normalisation of rows, those of scale and shift, and a bias's update."""
    wide, given = x.astype("float32"), g.astype("float32")
    mean = wide.mean(axis=-1, keepdims=True)
    apart = wide - mean
    inverse = fg.rsqrt((apart * apart).mean(axis=-1, keepdims=True) + 1e-5)
    normal = apart * inverse
    weighted = given * scale
    means = [v.mean(axis=-1, keepdims=True) for v in (weighted, weighted * normal)]
    found = more + (weighted - means[0] - normal * means[1]) * inverse
    narrow = found.astype("bfloat16")
    bias = narrow.astype("float32").sum(axis=(0, 1))
    scales, shifts = (given * normal).sum(axis=(0, 1)), given.sum(axis=(0, 1))
    return found, narrow, mean, scales * 0.5 + old, shifts, bias * bias, scale - 0.1 * scales


def joined() -> None:
    """Rows and sums of their columns: two launches, of odd sizes, with blocks that overhang."""
    before = shadow.TABLE
    sizes = ((3, 5, 7), (2, 9, 33), (1, 64, 8), (4, 16, 12))
    for seed, (*places, columns) in enumerate(sizes):
        rows, vector = ((*places, columns), "float32"), ((columns,), "float32")
        given = rows, (rows[0], "bfloat16"), vector, rows, vector
        sink = graph_of(normalised_rows, given)
        params = {n for n in toposort([sink]) if n.op is PARAM}
        kernel = Extractor().cut("reduce", list(sink.src), params)[0]
        for tile in (1, 2, 4):
            shadow.TABLE = replace(
                before, joined_sums=True, joined_rows=tile, joined_programs=2, processors=2,
                joined_stages=tile,
                row_block=1024,
            )  # fmt: skip
            check(len(rendered(kernel, shadow.TABLE).launches) == 2, f"{places} {columns}: joined")
            for mean in (0.0, 3.0):
                run_kernel(kernel, seed, mean)
    shadow.TABLE = before


def stream_once(
    kernel: Kernel, table: GpuTable, seed: int, window: int | None, shapes: Sequence[Any]
) -> None:
    """Attention as one kernel beside float64; its params are q, k, a scale, v and the result."""
    from tests.codegen.cuda import interpret

    rng = np.random.default_rng(seed)
    sizes: list[Any] = [p.shape for p in params_of(kernel)]
    kinds = [p.dtype.numpy for p in params_of(kernel)]
    arrays = [rng.standard_normal(s).astype(k) for s, k in zip(sizes, kinds, strict=True)]
    exact = [a.astype(np.float64) for a in arrays]
    (scale,) = [a.item() for a in exact if a.size == 1]
    large = [a for a in exact if a.size > 1]
    q, k, v = [np.reshape(a, shape) for a, shape in zip(large, shapes, strict=False)]
    scores = (q @ k.swapaxes(-1, -2)) * scale
    if window is not None:
        rows, columns = np.arange(shapes[0][-2])[:, None], np.arange(shapes[1][-2])
        scores[..., (columns > rows) | (rows >= columns + window)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    found, _ = interpret.run(rendered(kernel, table), arrays, {}, seed)
    got = found[-1].astype(np.float64).reshape(want.shape)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    limit = 1e-5 if arrays[0].dtype == np.float32 else 6e-3
    check(bool(error < limit), f"attention {q.shape} {k.shape} {v.shape} {window}: {error}")


def scores() -> None:
    """Online reductions of scores that are changed, capped and masked, in 16 bits."""
    from tests.codegen.cuda import interpret

    for seed, one in enumerate(FOLDS):
        rng, shape = np.random.default_rng(seed), (1, 4, 150, 170, 16)
        inputs = one.inputs(*shape)
        found = case(one.name, shape, one, inputs, LARGE, one.exact, rng, "triton")
        assert found is not None, one.name
        arrays, _ = interpret.run(found.made, found.arrays, {}, seed)
        for place, want in zip(found.results, found.want(), strict=True):
            problem = compared(arrays[place], want)
            check(not problem, f"{one.name}: {problem}")


def small_floats() -> None:
    """Casts to small floats and back round once, to nearest even, whatever the bits."""
    from tests.codegen.cuda import interpret

    rng = np.random.default_rng(0)
    for small in (float8_e4m3fn, float8_e5m2, float16, bfloat16):
        every = np.arange(1 << small.bits).astype(f"u{small.itemsize}").view(small.numpy)
        grid = every.astype(np.float32)
        with np.errstate(all="ignore"):
            near = rng.choice(grid, 1500) * rng.choice(
                np.array([1, 1.0625, 1.125, 1.03125], np.float32), 1500
            )
        any_bits = rng.integers(0, 1 << 32, 1500, dtype=np.uint32).view(np.float32)
        x = np.concatenate([near, any_bits]).astype(np.float32)
        arrays = [x, np.zeros(x.shape, small.numpy)]
        root = CAST(param(0, x.shape, float32), arg=small)
        (_, found), _ = interpret.run(render(lower(SINK(root), 1), [float32, small]), arrays, {})
        want = x.astype(small.numpy)
        same = found.view(f"u{small.itemsize}") == want.view(f"u{small.itemsize}")
        both = np.isnan(found.astype(np.float32)) & np.isnan(want.astype(np.float32))
        check(bool((same | both).all()), f"float32 to {small}")
        back = CAST(param(0, every.shape, small), arg=float32)
        arrays = [every, np.zeros(every.shape, np.float32)]
        (_, wide), _ = interpret.run(render(lower(SINK(back), 1), [small, float32]), arrays, {})
        same = wide.view(np.uint32) == grid.view(np.uint32)
        check(bool((same | (np.isnan(wide) & np.isnan(grid))).all()), f"{small} to float32")


def main() -> None:
    """Run all of it."""
    warnings.simplefilter("ignore")
    graphs = int(os.environ.get("FULGURITE_CORPUS_GRAPHS", "25"))
    shadow.LARGEST = 3000
    for table in (LARGE, TINY):
        shadow.TABLE = table
        for seed, node in enumerate(op_samples()):
            if table is TINY and (node.op.family == "elementwise" or shadow.HOW == "read"):
                continue  # blocks do not change what it does, nor what Triton thinks of it
            inputs = 1 + max([n.arg[0] for n in toposort([node]) if n.op is PARAM], default=-1)
            for item in schedule(SINK(node), inputs).items:
                if item.kernel.kind != "host":
                    run_kernel(item.kernel, seed)
        column_folds()
        joined()
    shadow.counts["samples"] = shadow.counts["ran"]
    if shadow.HOW == "interpret":
        in_place()
        boxes()
        guards()
        locked()
        streams()
        scores()
        small_floats()
    shadow.pytest_configure(None)
    for table in (LARGE, TINY):
        shadow.TABLE = table
        shadow.seen.clear()
        fg.clear_caches()
        for n in (1, 37):
            for tensor in functions(n):
                tensor.numpy()
        # conditions that always hold, on axes of size 1; sums of what does not depend on their axis
        for seed in (*range(graphs), 98, 175, 87, 260, 385, 426, 448, 1299, 1425):
            fuzz.check(seed, device="reference", smallest=False)
        shadow.counts[f"after {'tiny' if table is TINY else 'large'} tiles"] = shadow.counts["ran"]
    print(json.dumps({"counts": shadow.counts, "reasons": shadow.reasons, "bad": shadow.bad}))


if __name__ == "__main__":
    main()
