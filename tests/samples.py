"""A few valid nodes of every op, for the tests that a new op gets without writing one.

In: an op of the table. Out: nodes of it over the dtypes and kinds it takes, of two dimensions, of
none, empty, and with symbolic sizes. Elementwise ops are sampled from their entry alone; every
other op says here what fitting arguments are. Inputs are params, so a test can give them arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fulgurite.core.dtype import (
    DTYPES,
    DType,
    Number,
    bfloat16,
    bool_,
    complex64,
    float32,
    int8,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
    void,
)
from fulgurite.core.node import SOURCES, Node, Shape, Size, constant, make
from fulgurite.core.op import Op
from fulgurite.core.ops import (
    collective,
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
from fulgurite.core.ops.body import Body
from fulgurite.core.ops.leaf import param, variable
from fulgurite.core.shape import add, mul

N = variable("n", 1, 64)  # kept alive: the size of all symbolic samples
SHAPES: tuple[Shape, ...] = ((2, 3), (), (0, 3), (N, 3))
SOME = (float32, bfloat16, int32, bool_, complex64)  # one dtype of each kind, and a small float
RULE = transform.Rule("tests.samples.rule", lambda flows, *inputs: [flows[0], None])
effect.register_host(RULE)
HOST = effect.register_host(effect.HostFunction("tests.samples.double", lambda a: a + a))


def sample(op: Op) -> list[Node]:
    """Valid nodes of an op."""
    special = _SAMPLES.get(op.name)
    if special is not None:
        return special()
    if op.family == "index":
        return [node for node in _index_notation() if node.op is op]
    assert op.family == "elementwise", f"say in tests/samples.py what a node of {op} looks like"
    return _elementwise(op)


def memory(shape: tuple[int, ...], dtype: DType = float32) -> Node:
    """A buffer that is the same one each time."""
    return make(leaf.BUFFER, dtype, (), (1_000_000, shape, "reference"))


def _dtypes(kinds: str) -> list[DType]:
    return [dtype for dtype in DTYPES if dtype.kind in kinds]


def _elementwise(op: Op) -> list[Node]:
    assert op.arity is not None
    dtypes = _dtypes(op.kinds)
    kinds = [((2, 3), dtype) for dtype in dtypes] + [(shape, dtypes[-1]) for shape in SHAPES]
    return [op(*[param(i, shape, d) for i in range(op.arity)]) for shape, d in kinds]


def _index_notation() -> list[Node]:
    """Nodes of a kernel's body: every op of index notation, plain and with a dynamic index."""
    place = (3, ((0, 12), (1, 4), (("//", (1, ((2, 1),)), 5), 2)))
    dynamic = (0, ((SOURCES[0], 8), (0, 1)))
    conditions = (((-1, ((0, 1),)), 7), ((0, ((("%", (0, ((1, 3),)), 4), 1),)), 2))
    load = make(index.LOAD, float32, (), (0, place, ()))
    chosen = make(index.LOAD, int32, (), (1, (0, ((0, 1),)), conditions))
    guard = index.GUARD(chosen, arg=9)
    bits = [
        make(index.LOAD, d, (), (i, (i, ()), ())) for i, d in enumerate((uint32, uint32, uint64))
    ]
    at = index.INDEX(arg=place)
    return [
        load, chosen, guard, at,
        index.INDEX(guard, arg=dynamic),
        make(index.LOAD, float32, (guard,), (0, dynamic, ())),
        index.VALID(arg=conditions),
        index.VALID(guard, arg=((dynamic, 5),)),
        index.FOLD(load, arg=("add", (1,))),
        index.FOLD(load, arg=("max", (1, 2))),
        index.RUN(load, arg=("mul", (0, 2), True)),
        index.RUN(load, load, arg=("affine", (0,), False)),
        index.ORDER(load, arg=((1,), True)),
        index.BITS(*bits, at),
        index.STORE(load, arg=(2, place, "set")),
        make(index.STORE, void, (load, guard), (2, (0, ((SOURCES[1], 4),)), "add")),
    ]  # fmt: skip


# --- elementwise ops that take more than equal sources -------------------------------------------


def _where() -> list[Node]:
    where = elementwise.WHERE
    kinds = [((2, 3), dtype) for dtype in DTYPES] + [(shape, float32) for shape in SHAPES]
    return [where(param(0, s, bool_), param(1, s, d), param(2, s, d)) for s, d in kinds]


def _cast() -> list[Node]:
    from_each = [elementwise.CAST(param(0, (2, 3), dtype), arg=float32) for dtype in DTYPES]
    to_each = [elementwise.CAST(param(0, (2, 3), float32), arg=dtype) for dtype in DTYPES]
    return from_each + to_each + [elementwise.CAST(param(0, s, int8), arg=int64) for s in SHAPES]


def _bitcast() -> list[Node]:
    dtypes = _dtypes("iuf")
    pairs = [(a, b) for a in dtypes for b in dtypes if a.bits == b.bits]
    return [elementwise.BITCAST(param(0, (2, 3), a), arg=b) for a, b in pairs] + [
        elementwise.BITCAST(param(0, shape, float32), arg=uint32) for shape in SHAPES
    ]


def _polygamma() -> list[Node]:
    first = [elementwise.polygamma(0, param(0, (2, 3), dtype)) for dtype in _dtypes("f")]
    return first + [elementwise.polygamma(3, param(0, shape, float32)) for shape in SHAPES]


def _dot4() -> list[Node]:
    return [elementwise.DOT4(*[param(i, s, int32) for i in range(3)]) for s in SHAPES]


# --- leaves --------------------------------------------------------------------------------------


def _numbers(dtype: DType) -> list[Number]:
    match dtype.kind:
        case "b":
            return [False, True]
        case "f":
            return [0.0, -0.0, 0.1, -1.5, float("inf"), float("nan")]
        case "c":
            return [0j, 0.1 - 2j, complex(float("inf"), float("nan")), complex(-0.0, -0.0)]
        case _:
            return [0, 1, *dtype.limits]


def _const() -> list[Node]:
    return [constant(number, dtype) for dtype in DTYPES for number in _numbers(dtype)] + [
        constant(0.1, float32, shape) for shape in (*SHAPES, (N, mul(N, 2), N))
    ]


def _var() -> list[Node]:
    scalars = [variable("i", 0, 100, (), dtype) for dtype in _dtypes("iu")]
    return [*scalars, *[variable("k", -5, 5, shape) for shape in SHAPES], N]


def _iota() -> list[Node]:
    lines = [leaf.iota((2, 3), 1, dtype) for dtype in DTYPES if dtype is not bool_]
    return lines + [leaf.iota(shape, 0) for shape in SHAPES if shape]


def _buffer() -> list[Node]:
    typed = [memory((2, 3), dtype) for dtype in DTYPES]
    return [*typed, memory(()), memory((0, 3)), memory((2, 3))]


def _param() -> list[Node]:
    typed = [param(0, (2, 3), dtype) for dtype in DTYPES]
    return typed + [param(5, shape, float32, "cpu:1") for shape in SHAPES]


def _view() -> list[Node]:
    pieces: tuple[tuple[int, tuple[int, ...]], ...] = ((0, (4, 3)), (3, (2,)), (5, ()), (12, (0,)))
    return [leaf.view(memory((4, 3), d), at, shape) for d in SOME for at, shape in pieces]


def _bind() -> list[Node]:
    return [leaf.bind(N, 7), leaf.bind(variable("k", -5, 5), -3)] + [
        leaf.bind(variable("i", 0, 100, (), dtype), 100) for dtype in _dtypes("iu")
    ]


def _sink() -> list[Node]:
    x, y = param(0, (2, 3), float32), param(1, (N,), int32)
    return [leaf.SINK(), leaf.SINK(x), leaf.SINK(x, y, -x)]


# --- movement ------------------------------------------------------------------------------------


def _reshape() -> list[Node]:
    ways: list[tuple[Shape, Shape]] = [
        ((2, 3), (6,)),
        ((1, 1), ()),
        ((), (1,)),
        ((0, 3), (0,)),
        ((N, 3), (3, N)),
        ((N, 3), (mul(N, 3),)),
    ]
    return [movement.reshape(param(0, a, d), b) for d in SOME for a, b in ways]


def _expand() -> list[Node]:
    ways: list[tuple[Shape, Shape]] = [
        ((2, 1), (2, 3)),
        ((1, 3), (0, 3)),
        ((1, 3), (N, 3)),
        ((N, 1), (N, mul(N, N))),
    ]
    return [movement.expand(param(0, a, d), b) for d in SOME for a, b in ways]


def _permute() -> list[Node]:
    shapes: list[Shape] = [(2, 3, 4), (0, 3, 1), (N, 3, N)]
    made = [movement.permute(param(0, s, d), (2, 0, 1)) for d in SOME for s in shapes]
    return [*made, movement.PERMUTE(param(0, (), float32), arg=())]


def _pad() -> list[Node]:
    grown = [movement.pad(param(0, (2, 3), d), [(1, 0), (0, 2)]) for d in SOME]
    return [
        *grown,
        movement.pad(param(0, (0, 3), float32), [(0, 4), (0, 0)]),
        movement.pad(param(0, (N, 3), float32), [(0, N), (N, add(N, 1))]),
        movement.PAD(param(0, (), float32), arg=()),
    ]


def _shrink() -> list[Node]:
    cut = [movement.shrink(param(0, (2, 3), d), [(1, 2), (0, 2)]) for d in SOME]
    return [
        *cut,
        movement.shrink(param(0, (2, 3), float32), [(1, 1), (0, 3)]),
        movement.shrink(param(0, (add(N, 2), 3), float32), [(1, add(N, 1)), (0, 3)]),
        movement.shrink(param(0, (64, 3), float32), [(0, N), (1, 3)]),
        movement.SHRINK(param(0, (), float32), arg=()),
    ]


def _flip() -> list[Node]:
    flipped = [movement.flip(param(0, (2, 3), d), (0, 1)) for d in SOME]
    return flipped + [movement.flip(param(0, s, float32), (1,)) for s in SHAPES if s]


def _window() -> list[Node]:
    slid = [movement.window(param(0, (2, 9), d), 1, 3, 2, 2) for d in SOME]
    return [*slid, movement.window(param(0, (add(N, 4), 3), float32), 0, 3, 2)]


def _unwindow() -> list[Node]:
    numeric = [d for d in SOME if d is not bool_]
    added = [movement.unwindow(param(0, (2, 3, 3), d), 1, 9, 2, 2) for d in numeric]
    length = add(N, 2)
    return [*added, movement.unwindow(param(0, (N, 3, 3), float32), 0, length)]


# --- reductions, indexing, random bits -----------------------------------------------------------


def _reduce() -> list[Node]:
    typed = [
        reduce.reduce_node(name, param(0, (2, 3), dtype), (1,))
        for name, op in reduce.REDUCERS.items()
        for dtype in _dtypes(op.kinds)
    ]
    x = param(0, (0, 3), float32)
    return [
        *typed,
        reduce.reduce_node("add", x, (0,)),
        reduce.reduce_node("max", param(0, (N, 3), float32), (0, 1)),
        reduce.REDUCE(param(0, (), float32), arg=("add", ())),
    ]


def _scan() -> list[Node]:
    typed = [
        reduce.scan_node(name, param(0, (2, 3), dtype), 1, dtype.is_float)
        for name, op in reduce.REDUCERS.items()
        for dtype in _dtypes(op.kinds)
    ]
    more = [s for s in SHAPES if s]
    affine = [reduce.affine_scan(param(0, s, float32), param(1, s, float32), 0) for s in more]
    return typed + affine


def _gather() -> list[Node]:
    typed = [indexing.gather(param(0, (4, 3), d), param(1, (2, 3), int32), 0) for d in DTYPES]
    return [
        *typed,
        indexing.gather(param(0, (4, 3), float32), param(1, (0, 3), uint8), 0),
        indexing.gather(param(0, (N, 3), float32), param(1, (N, 5), int64), 1),
    ]


def _scatter() -> list[Node]:
    index, more = param(1, (2, 3), int32), param(1, (N, 3), int64)
    dtypes = (float32, bfloat16, int32)
    return [
        indexing.scatter(name, param(0, (4, 3), d), index, param(2, (2, 3), d), 0)
        for name in indexing.SCATTERS
        for d in dtypes
    ] + [
        indexing.scatter("add", param(0, (N, 4), float32), more, param(2, (N, 3), float32), 1),
        indexing.scatter("set", param(0, (2, 3), bool_), index, param(2, (2, 3), bool_), 1),
    ]


def _update() -> list[Node]:
    typed = [
        update.update(param(0, (4, 3), d), param(1, (2, 2), d), (1, 0), (2, 1)) for d in DTYPES
    ]
    more = update.update(param(0, (N, 4), float32), param(1, (1, 4), float32), (0, 0), (1, 1))
    start = variable("start", 0, 3)
    at = update.update(param(0, (4, 3), float32), param(1, (1, 3), float32), (start, 0), (1, 1))
    return [*typed, more, at, update.update(param(0, (), float32), param(1, (), float32), (), ())]


def _sort() -> list[Node]:
    typed = [indexing.sort_order(param(0, (2, 3), d), 1, d.is_float) for d in _dtypes("biuf")]
    return typed + [indexing.sort_order(param(0, s, float32), 0) for s in SHAPES if s]


def _random() -> list[Node]:
    key, counter = param(0, (2,), uint32), param(1, (), uint64)
    keys, counters = param(0, (4, 2), uint32), param(1, (4,), uint64)
    return [random.random_bits(key, counter, shape) for shape in SHAPES] + [
        random.random_bits(keys, counters, (2, 3))
    ]


# --- effects -------------------------------------------------------------------------------------


def _inputs() -> list[Node]:
    typed = [param(0, (2, 3), dtype) for dtype in DTYPES]
    return typed + [param(0, shape, float32) for shape in SHAPES]


def _watch() -> list[Node]:
    return [effect.WATCH(x, arg=(1, i)) for i, x in enumerate(_inputs(), start=1_000_000)]


def _assign() -> list[Node]:
    typed = [effect.ASSIGN(memory((2, 3), d), param(0, (2, 3), d)) for d in DTYPES]
    whole, part = param(0, (4, 3), float32), param(1, (2, 3), float32)
    corner = (constant(1, int64), constant(0, int64))
    index = param(2, (2, 3), int32)
    return [
        *typed,
        effect.ASSIGN(leaf.view(memory((4, 3)), 3, (2,)), param(0, (2,), float32)),
        effect.ASSIGN(whole, part, *corner, arg=("box", 2, 1)),
        effect.ASSIGN(whole, part, index, arg=("at", 0)),
    ]


def _after() -> list[Node]:
    stored = effect.ASSIGN(memory((2, 3)), param(1, (2, 3), float32))
    return [effect.AFTER(x, stored, N) for x in _inputs()]


def _collective() -> list[Node]:
    x, y = param(0, (2, 3), float32), param(1, (2, 3), float32)
    n, m = param(0, (N, 3), float32), param(1, (N, 3), float32)
    ways = [("all_reduce", "add"), ("all_reduce", "max"), ("all_gather", 1), ("broadcast", 1)]
    return [effect.COLLECTIVE(x, y, arg=way) for way in ways] + [
        effect.COLLECTIVE(n, m, arg=("all_gather", 1)),
        effect.COLLECTIVE(n, m, n, arg=("all_gather", 0)),
    ]


MESH = (("data", 2), ("model", 3))


def _all_reduce() -> list[Node]:
    ways = ("add", "mul", "max", "min")
    floats_ = [x for x in _inputs() if x.dtype is float32]
    return [collective.ALL_REDUCE(x, arg=(MESH, ("data",), how)) for x in floats_ for how in ways]


_EXCHANGED = (
    *("all_gather", "reduce_scatter", "all_to_all", "send_recv", "local", "unshard", "shard"),
)


def _exchanged(name: str) -> list[Node]:
    """Nodes of a collective that splits or joins dimensions."""
    x, n = param(0, (4, 6), float32), param(0, (N, 6), float32)
    both = (MESH, ("data", "model"))
    layout = (("data",), ("model",))
    return {
        "all_gather": [collective.ALL_GATHER(y, arg=(*both, 1)) for y in (x, n)],
        "reduce_scatter": [collective.REDUCE_SCATTER(y, arg=(*both, 1)) for y in (x, n)],
        "all_to_all": [collective.ALL_TO_ALL(y, arg=(*both, 1, 0)) for y in (x, n)],
        "send_recv": [
            collective.SEND_RECV(y, arg=(MESH, ("model",), ((0, 1), (1, 2)))) for y in (x, n)
        ],
        "local": [collective.LOCAL(x, arg=(MESH, layout))],
        "unshard": [collective.UNSHARD(x, arg=(MESH, layout, False))],
        "shard": [collective.SHARD(x, arg=(MESH, layout, True))],
    }[name]


def _call() -> list[Node]:
    return [
        node
        for x in _inputs()
        for returns in ([], [(x.shape, x.dtype)])
        for node in host.call(HOST, (x, x), returns, (1,))
    ]


def _custom() -> list[Node]:
    return [effect.custom(HOST, (x,), x.shape, x.dtype) for x in _inputs()]


# --- control flow --------------------------------------------------------------------------------


def body(*roots: Node) -> Body:
    """A body of roots over params."""
    return Body(leaf.SINK(*roots))


def _loop() -> list[Node]:
    carry, row, same = (param(i, (3,), float32, None) for i in range(3))
    inside = body(carry * same + row, carry - row)
    start, rest = param(0, (3,), float32), param(2, (3,), float32)
    steps: tuple[Size, ...] = (2, 0, N)
    loops = [
        control.loop(inside, [start], [param(1, (n, 3), float32)], [rest], n, reverse)
        for n in steps
        for reverse in (False, True)
    ]
    count = param(1, (), int32, None)
    more = body(count < 5, count + 1)
    first = [param(0, (), bool_), param(1, (), int32)]
    bounded = control.loop(more, first, [], [], 9, mode="while")
    open_ = control.loop(more, first, [], [], None, mode="while")
    only = body(param(0, (), int32, None) + 1)
    masked = control.loop(only, [param(1, (), int32)], [param(0, (4,), bool_)], [], 4, mode="where")
    nested = body(loops[0].item(0))
    outer = control.loop(nested, [start], [], [param(1, (2, 3), float32), rest], 3)
    return [
        *[found.item(i) for found in loops for i in range(3)],
        *[bounded.item(i) for i in range(4)], open_.item(0), open_.item(1), masked.item(0),
        outer.item(0), outer.item(1),
    ]  # fmt: skip


def _cond() -> list[Node]:
    a, b = (param(i, (2, 3), float32, None) for i in range(2))
    sources = [param(i, (2, 3), float32) for i in (1, 2)]
    chosen = param(0, (), bool_)
    return [
        *control.choice(chosen, body(a + b, a), body(a * b, b), sources),
        *control.choice(chosen, body(constant(1, int32)), body(constant(2, int32)), ()),
    ]


_SAMPLES: dict[str, Callable[[], list[Node]]] = {
    "where": _where,
    "cast": _cast,
    "bitcast": _bitcast,
    "polygamma": _polygamma,
    "dot4": _dot4,
    "const": _const,
    "var": _var,
    "iota": _iota,
    "buffer": _buffer,
    "param": _param,
    "view": _view,
    "bind": _bind,
    "sink": _sink,
    "reshape": _reshape,
    "expand": _expand,
    "permute": _permute,
    "pad": _pad,
    "shrink": _shrink,
    "flip": _flip,
    "window": _window,
    "unwindow": _unwindow,
    "reduce": _reduce,
    "scan": _scan,
    "gather": _gather,
    "scatter": _scatter,
    "update": _update,
    "sort": _sort,
    "random": _random,
    "contiguous": lambda: [effect.CONTIGUOUS(x) for x in _inputs()],
    "detach": lambda: [effect.DETACH(x) for x in _inputs()],
    "watch": _watch,
    "unwatch": lambda: [effect.UNWATCH(x, arg=1) for x in _watch()],
    "example": lambda: [transform.EXAMPLE(x, arg=1) for x in _inputs() if x.ndim],
    "override": lambda: [transform.override(RULE, 0, x, [x, x]) for x in _inputs()],
    "remat": lambda: [effect.REMAT(x, param(1, (2, 3), float32)) for x in _inputs()],
    "assign": _assign,
    "after": _after,
    "copy": lambda: [effect.copy_to(x, "cpu:1") for x in _inputs()],
    "collective": _collective,
    "all_reduce": _all_reduce,
    "start_all_reduce": lambda: [collective.started(x).src[0] for x in _all_reduce()],
    "wait_all_reduce": lambda: [collective.started(x) for x in _all_reduce()],
    **{name: partial(_exchanged, name) for name in _EXCHANGED},
    "custom": _custom,
    "call": _call,
    "loop": _loop,
    "cond": _cond,
}
