"""The steps a random graph is grown by, one function each, and the graph of a seed.

A new op that takes part in fuzzing is one more step here; its weight says how often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fulgurite.core import build
from fulgurite.core.dtype import bool_, float32, int32, int64, uint8, uint32, uint64
from fulgurite.core.node import Node, constant, toposort
from fulgurite.core.op import Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.effect import AFTER, REMAT
from fulgurite.core.ops.elementwise import (
    ADD,
    BITCAST,
    CAST,
    DIV,
    EQ,
    EXP,
    LE,
    LT,
    MAX,
    MIN,
    MOD,
    MUL,
    NE,
    POW,
    RSQRT,
    SUB,
    WHERE,
)
from fulgurite.core.ops.indexing import SCATTERS
from fulgurite.core.ops.leaf import BUFFER, VIEW, new_buffer
from fulgurite.core.ops.movement import unwindow
from fulgurite.core.ops.reduce import REDUCERS

from .generator import DTYPES, FLOATS, MOST, Generator, Rejected, sizes_of
from .graph import EXACT, Graph, adds_to_zero

Step = Callable[[Generator], Node]
STEPS: list[tuple[int, Step]] = []  # how often, and what


def step(weight: int) -> Callable[[Step], Step]:
    """Enter a step in the table."""

    def enter(function: Step) -> Step:
        STEPS.append((weight, function))
        return function

    return enter


def _ops(arity: int, kind: str, exact: bool) -> list[Op]:
    return [
        op for op in OPS.values()
        if op.family == "elementwise" and op.arity == arity and kind in op.kinds
        and op not in (CAST, BITCAST, WHERE, POLY) and (op, kind) != (POW, "c")
        and (not exact or kind in "biu" or op.name in EXACT)
    ]  # fmt: skip


POLY = OPS["polygamma"]


def _inside(g: Generator, op: Op, x: Node) -> Node:
    """x within the domain of an op, where that is not everything."""
    low, high = op.domain
    if (low, high) == (-3.0, 3.0) or g.exact or not x.dtype.is_float:
        return x
    return build.apply(MIN, build.apply(MAX, x, low), high)


@step(14)
def binary(g: Generator) -> Node:
    x = g.pick()
    if x.dtype is int32 and g.random.random() < 0.05:
        return OPS["dot4"](x, g.mate(x), g.mate(x))
    op = g.random.choice(_ops(2, x.dtype.kind, g.exact))
    y = g.mate(x)
    pair = (x, y) if g.random.random() < 0.5 else (y, x)
    if op.name in ("shl", "shr"):
        pair = (x, build.apply(OPS["and"], y, 7))
    return op(*[_inside(g, op, s) for s in pair])


@step(10)
def unary(g: Generator) -> Node:
    x = g.pick()
    if x.dtype.is_float and not g.exact and g.random.random() < 0.05:
        return build.polygamma(g.random.randrange(3), _inside(g, POLY, x))
    op = g.random.choice(_ops(1, x.dtype.kind, g.exact))
    return op(_inside(g, op, x))


@step(4)
def choice(g: Generator) -> Node:
    x = g.pick()
    if g.random.random() < 0.5:
        op = g.random.choice([EQ, NE] if x.dtype.kind == "c" else [LT, LE, EQ, NE])
        condition = op(x, g.mate(x))
    else:
        condition = g.mate(x, bool_)
    return WHERE(condition, x, g.mate(x))


@step(4)
def conversion(g: Generator) -> Node:
    x = g.pick()
    same = [d for d in (int32, uint32, float32) if d.bits == x.dtype.bits and x.dtype.kind in "iuf"]
    if g.random.random() < 0.3 and same:
        if any(adds_to_zero(n) for n in toposort([x])):
            raise Rejected  # the sign of a zero would become a number
        return build.bitcast(x, g.random.choice(same))
    target = g.random.choice([d for d in DTYPES if d.kind != "c" or x.dtype.kind == "c"])
    if x.dtype.kind == "c" and target.kind != "c":
        raise Rejected
    return build.cast(x, target)


def factors(g: Generator, count: int) -> list[int]:
    """Sizes with a product, ones among them."""
    sizes: list[int] = []
    while count > 1:
        size = g.random.choice([d for d in range(2, count + 1) if count % d == 0])
        sizes.append(size)
        count //= size
    for _ in range(g.random.choice((0, 0, 0, 1, 2))):
        sizes.insert(g.random.randint(0, len(sizes)), 1)
    return sizes


@step(10)
def reshaped(g: Generator) -> Node:
    x = g.pick()
    count = math.prod(sizes_of(x))
    if count == 0:
        return build.reshape(x, g.random.sample(list(x.shape), x.ndim))
    return build.reshape(x, tuple(factors(g, count)))


@step(7)
def permuted(g: Generator) -> Node:
    x = g.pick(ndim=2)
    return build.permute(x, g.random.sample(range(x.ndim), x.ndim))


@step(5)
def expanded(g: Generator) -> Node:
    x = g.pick(most=60)
    shape = [g.random.randint(1, 4) if n == 1 else n for n in sizes_of(x)]
    if g.random.random() < 0.6:
        place = g.random.randint(0, x.ndim)
        x = build.reshape(x, (*x.shape[:place], 1, *x.shape[place:]))
        shape.insert(place, g.random.randint(1, 4))
    return build.expand(x, shape)


@step(6)
def padded(g: Generator) -> Node:
    x = g.pick(ndim=1)
    return build.pad(x, [(g.random.choice((0, 0, 1, 2)), g.random.choice((0, 0, 1, 3)))
                         for _ in x.shape])  # fmt: skip


@step(6)
def shrunk(g: Generator) -> Node:
    x = g.pick(ndim=1)
    cuts = []
    for n in sizes_of(x):
        start = g.random.randint(0, n)
        stop = g.random.randint(start, n)
        if stop == start and g.random.random() < 0.95:
            start, stop = 0, n
        cuts.append((start, stop))
    return build.shrink(x, cuts)


@step(4)
def flipped(g: Generator) -> Node:
    x = g.pick(ndim=1)
    return build.flip(x, g.some_axes(x))


def slide(g: Generator, x: Node, axis: int) -> tuple[int, int, int]:
    """Size, stride and dilation of windows that fit."""
    n = x.shape[axis]
    size, stride, dilation = g.random.randint(1, 3), g.random.randint(1, 3), g.random.randint(1, 2)
    if not isinstance(n, int) or (size - 1) * dilation + 1 > n:
        raise Rejected
    return size, stride, dilation


@step(5)
def windows(g: Generator) -> Node:
    x = g.pick(ndim=1)
    axis = g.axis(x)
    out = build.window(x, axis, *slide(g, x, axis))
    if g.random.random() < 0.3 and x.dtype.kind in "biuf":
        return folded(g, "max", out, (out.ndim - 1,), False)
    return out


@step(5)
def windows_added(g: Generator) -> Node:
    x = g.pick("iufc", ndim=2)
    axis = g.random.randrange(x.ndim - 1)
    count, size = sizes_of(x)[axis], sizes_of(x)[-1]
    stride, dilation = g.random.randint(1, 3), g.random.randint(1, 2)
    length = max(0, count - 1) * stride + max(0, size - 1) * dilation + 1 + g.random.randrange(3)
    return unwindow(x, axis, length, stride, dilation)


def _reducer(g: Generator, x: Node) -> str:
    names = [name for name, op in REDUCERS.items() if x.dtype.kind in op.kinds]
    return g.random.choice(names)


def folded(g: Generator, name: str, x: Node, axes: tuple[int, ...], keep: bool = True) -> Node:
    """A reduction that exists: no maximum of nothing."""
    if name in ("max", "min") and not math.prod(sizes_of(x)):
        raise Rejected
    return build.fold(name, x, axes, keep)


@step(9)
def reduced(g: Generator) -> Node:
    x = g.pick(ndim=1)
    return folded(g, _reducer(g, x), x, g.some_axes(x), g.random.random() < 0.5)


@step(8)
def diamond(g: Generator) -> Node:
    """A value joined again with its own rows: the shape of every normalisation."""
    x = g.pick("iuf", ndim=1)
    axes = g.some_axes(x)
    row = build.expand(folded(g, _reducer(g, x), x, axes), x.shape)
    y = g.random.choice([SUB, ADD, MUL, MAX])(x, row)
    if g.random.random() < 0.5:
        return y
    again = build.expand(folded(g, _reducer(g, y), y, axes), x.shape)
    return g.random.choice([SUB, ADD, MUL])(y, again)


@step(3)
def softmax(g: Generator) -> Node:
    x = g.pick("f", ndim=1)
    axes = g.some_axes(x)
    shifted = SUB(x, build.expand(folded(g, "max", x, axes), x.shape))
    if g.exact:
        total = build.expand(folded(g, "add", shifted, axes), x.shape)
        return SUB(total, shifted)
    e = EXP(shifted)
    return DIV(e, build.expand(folded(g, "add", e, axes), x.shape))


@step(2)
def layernorm(g: Generator) -> Node:
    x = g.pick("f", ndim=1)
    axes = g.some_axes(x)
    centred = SUB(x, build.expand(folded(g, "add", x, axes), x.shape))
    power = build.expand(folded(g, "add", MUL(centred, centred), axes), x.shape)
    return SUB(centred, power) if g.exact else MUL(centred, RSQRT(build.apply(ADD, power, 1)))


@step(3)
def argmax(g: Generator) -> Node:
    x = g.pick("iuf", ndim=1)
    axis = g.axis(x)
    top = EQ(x, build.expand(folded(g, "max", x, (axis,)), x.shape))
    place = build.iota(x.shape, axis)
    return folded(g, "min", WHERE(top, place, constant(99, int32, x.shape)), (axis,), False)


@step(7)
def contraction(g: Generator) -> Node:
    """Σ over some axes of a product of two values that each miss some: matmul, einsum."""
    x = g.pick("iuf", ndim=1, most=60)
    ndim = x.ndim + g.random.randint(0, 2)
    places = sorted(g.random.sample(range(ndim), x.ndim))
    full = [g.random.randint(1, 4) for _ in range(ndim)]
    spread = [1] * ndim
    for place, n in zip(places, sizes_of(x), strict=True):
        full[place] = spread[place] = n
    if math.prod(full) > 2 * MOST:
        raise Rejected
    keep = [n if g.random.random() < 0.7 else 1 for n in full]
    shared = [n for n in g.pool if n.shape == tuple(keep) and n.dtype is x.dtype]
    y = g.random.choice(shared) if shared else g.leaf(keep, x.dtype)
    pair = MUL(build.expand(build.reshape(x, spread), full), build.expand(y, full))
    axes = tuple(sorted(g.random.sample(range(ndim), g.random.randint(1, ndim))))
    return folded(g, "add", pair, axes, g.random.random() < 0.3)


@step(4)
def matmul(g: Generator) -> Node:
    x = g.pick("iuf", ndim=2, most=100)
    *batch, m, k = sizes_of(x)
    n = g.random.randint(1, 4)
    mates = [y for y in g.pool if y.dtype is x.dtype and y.shape[-2:-1] == (k,) and y.ndim == 2]
    y = g.random.choice(mates) if mates and g.random.random() < 0.5 else g.leaf((k, n), x.dtype)
    n = sizes_of(y)[-1]
    full = (*batch, m, k, n)
    left = build.expand(build.reshape(x, (*batch, m, k, 1)), full)
    right = build.expand(build.reshape(y, (*[1] * (len(batch) + 1), k, n)), full)
    if math.prod(full) > 4 * MOST:
        raise Rejected
    out = folded(g, "add", MUL(left, right), (len(full) - 2,), False)
    return ADD(out, build.expand(g.leaf((n,), x.dtype), out.shape))


@step(4)
def convolution(g: Generator) -> Node:
    """Channels last: windows along one or two axes times weights, summed."""
    x = g.pick("iuf", ndim=2, most=80)
    if g.random.random() < 0.5:
        x = build.pad(x, [(0, 0), *[(1, 1)] * (x.ndim - 1)])
    axes = [a for a in range(x.ndim) if g.random.random() < 0.6][:2] or [x.ndim - 1]
    out = x
    for axis in axes:
        out = build.window(out, axis, *slide(g, x, axis))
    kernel = [1] * x.ndim + [n for n in out.shape[x.ndim :] if isinstance(n, int)]
    channels = g.random.randint(1, 3)
    full = (channels, *sizes_of(out))
    if math.prod(full) > 4 * MOST:
        raise Rejected
    weights = g.leaf((channels, *kernel), x.dtype)
    product_ = MUL(build.expand(out, full), build.expand(weights, full))
    return folded(g, "add", product_, tuple(range(x.ndim + 1, len(full))), False)


@step(5)
def concat(g: Generator) -> Node:
    x = g.pick(ndim=1)
    axis = g.axis(x)
    fits = [
        p for p in g.pool
        if p.dtype is x.dtype and p.ndim == x.ndim
        and all(d == axis or n == m for d, (n, m) in enumerate(zip(p.shape, x.shape, strict=True)))
    ]  # fmt: skip
    y = g.random.choice(fits) if fits and g.random.random() < 0.8 else g.leaf(sizes_of(x), x.dtype)
    a, b = sizes_of(x)[axis], sizes_of(y)[axis]
    first = build.pad(x, [(0, b if d == axis else 0) for d in range(x.ndim)])
    second = build.pad(y, [(a if d == axis else 0, 0) for d in range(x.ndim)])
    place = build.iota(first.shape, axis)
    return WHERE(LT(place, constant(a, int32, first.shape)), first, second)


def places(g: Generator, shape: Sequence[int], size: int) -> Node:
    """Indices inside an axis: data that needs a guard, or computed so that bounds prove them."""
    if not 0 < size < 200:
        raise Rejected
    way = g.random.random()
    dtype = g.random.choice((int32, int64, uint8))
    if way < 0.5:
        node = g.leaf(shape, dtype)
        first = int(way < 0.2)  # counted from 1: where a pad reads 0 instead, 0 - 1 is no error
        numbers = g.numbers.integers(first, size + first, tuple(shape)).astype(dtype.numpy)
        base = node.src[0] if node.op is VIEW else node
        if node.op is VIEW:
            flat = g.arrays[base].copy()
            flat[node.arg[0] : node.arg[0] + numbers.size] = numbers.ravel()
            numbers = flat
        g.arrays[base] = g.values[base] = numbers
        return build.apply(SUB, node, first) if first else node
    whole = [n for n in g.pool if n.shape == tuple(shape) and n.dtype.kind in "iu"]
    x = g.random.choice(whole) if whole else g.leaf(shape, dtype)
    if way < 0.8:
        return build.apply(MOD, x, size)
    if way < 0.83 and shape and max(shape) <= size:
        return build.iota(shape, g.random.randrange(len(shape)), int32)
    if way < 0.9 or not shape:
        return build.apply(MIN, build.apply(MAX, x, 0), size - 1)
    small = [n if g.random.random() < 0.5 else 1 for n in shape]
    line = build.apply(MOD, g.leaf(small, dtype), size)
    return build.expand(line, tuple(shape))


@step(6)
def gathered(g: Generator) -> Node:
    x = g.pick(ndim=1)
    axis = g.axis(x)
    shape = list(sizes_of(x))
    shape[axis] = g.random.randint(1, 5)
    return build.gather(x, places(g, shape, sizes_of(x)[axis]), axis)


@step(2)
def embedding(g: Generator) -> Node:
    x = g.pick(ndim=2)
    if x.ndim != 2:
        raise Rejected
    rows, width = sizes_of(x)
    index = places(g, (g.random.randint(1, 5),), rows)
    count = sizes_of(index)[0]
    return build.gather(x, build.expand(build.reshape(index, (count, 1)), (count, width)), 0)


@step(5)
def updated(g: Generator) -> Node:
    x = g.pick(ndim=1)
    if 0 in x.shape:
        raise Rejected
    starts, steps, counts = [], [], []
    for n in sizes_of(x):
        steps.append(g.random.choice((1, 1, 1, 2, 3)))
        starts.append(g.random.randrange(n))
        counts.append(g.random.randint(1, 1 + (n - 1 - starts[-1]) // steps[-1]))
    part = g.mate(constant(0, x.dtype, tuple(counts)))
    return build.update(x, part, starts, steps)


@step(5)
def scattered(g: Generator) -> Node:
    x = g.pick(ndim=1)
    names = [n for n in SCATTERS if n == "set" or x.dtype.kind in REDUCERS[n].kinds]
    axis = g.axis(x)
    shape = list(sizes_of(x))
    shape[axis] = g.random.randint(0 if g.random.random() < 0.05 else 1, 5)
    index = places(g, shape, sizes_of(x)[axis])
    return build.scatter(g.random.choice(names), x, index, g.mate(index, x.dtype), axis)


@step(3)
def sorting(g: Generator) -> Node:
    x = g.pick("biuf", ndim=1)
    axis = g.axis(x)
    order = build.sort_order(x, axis, g.random.random() < 0.5)
    return order if g.random.random() < 0.4 else build.gather(x, order, axis)


@step(5)
def running(g: Generator) -> Node:
    x = g.pick(ndim=1)
    axis, reverse = g.axis(x), g.random.random() < 0.5
    if x.dtype is not bool_ and g.random.random() < 0.3:
        return build.affine_scan(x, g.mate(x), axis, reverse)
    return build.scan(_reducer(g, x), x, axis, reverse)


@step(2)
def random_bits(g: Generator) -> Node:
    shape = g.shape()
    batch = tuple(g.ints(1, 3, 1)) if g.random.random() < 0.3 else ()
    key, counter = new_buffer((*batch, 2), uint32), new_buffer(batch, uint64)
    for node, high in ((key, 1 << 32), (counter, 1 << 34)):
        numbers = g.numbers.integers(0, high, sizes_of(node), np.uint64)
        g.arrays[node] = g.values[node] = np.asarray(numbers).astype(node.dtype.numpy)
    bits = build.random_bits(key, counter, shape)
    kept = build.apply(OPS["shr"], bits, constant(g.random.choice((8, 28)), uint32, bits.shape))
    return bits if g.random.random() < 0.2 else build.cast(kept, g.random.choice((float32, int32)))


@step(2)
def counting(g: Generator) -> Node:
    x = g.pick("iuf", ndim=1)
    return ADD(x, build.iota(x.shape, g.axis(x), x.dtype))


@step(3)
def effects(g: Generator) -> Node:
    x = g.pick()
    way = g.random.randrange(4)
    if way == 0:
        return build.detach(x)
    if way == 1:
        return AFTER(x, g.pick())
    return REMAT(x, g.pick()) if way == 2 else build.contiguous(x)


@step(2)
def variables(g: Generator) -> Node:
    """A variable number, as a value or as the size of a part."""
    x = g.pick("iuf", ndim=1)
    axis = g.axis(x)
    size = sizes_of(x)[axis]
    if size == 0:
        raise Rejected
    low = g.random.choice((0, 1, 1))
    var = build.variable(f"n{low}_{size}", low, size)
    value = low + g.seed % (size - low + 1)
    bound = build.bind(var, value)
    g.values[var] = g.values[bound] = np.asarray(value)
    g.fixed[var] = g.fixed[bound] = constant(value, int64)
    if g.random.random() < 0.4:
        number = build.cast(build.reshape(bound, (1,) * x.ndim), x.dtype)
        return MUL(x, build.expand(number, x.shape))
    part = build.shrink(x, [(0, bound if d == axis else n) for d, n in enumerate(x.shape)])
    name = g.random.choice(("add", "max")) if value else "add"  # nothing has no maximum
    if g.random.random() < 0.5:
        row = build.fold(name, part, axis, True)
        part = SUB(part, build.expand(row, part.shape))
    if g.random.random() < 0.3:
        return part if g.random.random() < 0.5 else build.scan("add", part, axis)
    return build.fold(name, part, axis, True)


def generate(seed: int, steps: int | None = None) -> Graph:
    """The graph of a seed."""
    g = Generator(seed, seed % 2 == 0)
    random = g.random
    for _ in range(random.randint(1, 3)):
        dtype = random.choice(DTYPES if random.random() < 0.5 else FLOATS)
        g.pool.append(g.leaf(g.shape(), dtype))
    leaves = len(g.pool)
    wanted = steps or random.choice((2, 4, 6, 9, 12, 18))
    weights, functions = zip(*STEPS, strict=True)
    for _ in range(3 * wanted):
        if len(g.pool) - leaves >= wanted:
            break
        try:
            g.keep(random.choices(functions, weights)[0](g))
        except Rejected:
            continue
    used = {s for n in toposort(g.pool) for s in n.src}
    ends = [n for n in g.pool if n not in used]
    others = [n for n in g.pool if n in used]
    roots = ends if random.random() < 0.5 else [random.choice(ends)]
    if others and random.random() < 0.4:
        roots = [*roots, *random.sample(others, min(len(others), random.randint(1, 2)))]
    roots = roots[-4:]
    random.shuffle(roots)
    if random.random() < 0.05:
        roots.append(random.choice(roots))
    roots += g.symbolic[:1]
    arrays = {n: g.arrays[n] for n in toposort(roots) if n.op is BUFFER}
    return Graph(roots, arrays, g.exact, random.random() < 0.2)
