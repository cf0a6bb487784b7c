"""Checks that no unsound law or rule passes: what guards the real ones, and is tested itself.

In: a law, or a set of rules and a corpus of graphs. `check_law` evaluates both sides with the op
table's own NumPy on hostile numbers (all numbers of 8-bit types), `prove` asks Z3 about whole
numbers, `check_rules` evaluates every firing of every rule before and after. Results must agree in
every bit, except in which NaN they are. Out: nothing, or an AssertionError that shows the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

try:
    import z3
except ModuleNotFoundError:
    pytest.skip("z3 is not installed", allow_module_level=True)

from fulgurite.core.dtype import (
    DTYPES,
    DType,
    bfloat16,
    bool_,
    decode,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint64,
)
from fulgurite.core.node import Node, Shape, constant_bits, constant_like, toposort
from fulgurite.core.op import Array, Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops import movement, reduce
from fulgurite.core.ops.leaf import PARAM, SINK, VAR, iota, param, variable
from fulgurite.core.rewriting.pattern import Law, Pattern, Rule, Rules, builder, variables_of
from fulgurite.core.rewriting.rewrite import rewrite
from fulgurite.graph.passes.laws import positive
from fulgurite.runtime.host.evaluate import evaluate

# --- hostile numbers -----------------------------------------------------------------------------

_EIGHT_BITS = (int8, uint8, float8_e4m3fn, float8_e5m2)


def hostile(dtype: DType) -> Array:
    """The numbers of a dtype that laws break on: zeros, extremes, NaN, and some plain ones."""
    with np.errstate(all="ignore"):
        if dtype.kind == "b":
            return np.array([False, True])
        if dtype.kind in "iu":
            low, high = dtype.limits
            plain = [0, 1, 2, 3, 5, 7, 12, 64, 100, dtype.bits - 1, dtype.bits, high, high - 1]
            signs = [-1, -2, -3, -7, -100, low, low + 1]
            return np.array([v for v in plain + signs if low <= v <= high], dtype.numpy)
        if dtype.kind == "c":
            part = np.float32 if dtype.bits == 64 else np.float64
            parts = np.array([0.0, -0.0, 1.0, -2.5, np.inf, np.nan, 1e-40], part)
            pairs = np.stack(np.meshgrid(parts, parts), -1)
            return pairs.reshape(-1).view(dtype.numpy)
        finfo = np.finfo(np.float64) if dtype.bits == 64 else None
        edges = [float(finfo.max), float(finfo.tiny), 5e-324] if finfo else _edges(dtype)
        plain_floats = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 0.1, 1 / 3, 7.0, 100.0, 16777217.0, *edges]
        both = [v * sign for v in plain_floats for sign in (1, -1)]
        return np.array([*both, np.inf, -np.inf, np.nan], np.float64).astype(dtype.numpy)


def _edges(dtype: DType) -> list[float]:
    """The largest number, the smallest normal one, and the smallest of all."""
    bits = [decode(b, dtype) for b in (1, 2, 3)]
    finfo: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return [float(finfo.max), float(finfo.tiny), *[float(b.real) for b in bits]]


def numbers(dtype: DType, count: int) -> Array:
    """What one of `count` variables is to be: all there is, where that is few enough."""
    if dtype in _EIGHT_BITS and count <= 2:
        return np.arange(256, dtype=np.uint8).view(dtype.numpy)
    return hostile(dtype)


def difference(before: Array, after: Array) -> Array | None:
    """Where two arrays differ in any bit (NaN and NaN do not), or None if nowhere."""
    assert before.dtype == after.dtype, f"{before.dtype} became {after.dtype}"
    assert before.shape == after.shape, f"shape {before.shape} became {after.shape}"
    if before.dtype.kind == "c":
        part = np.float32 if before.dtype.itemsize == 8 else np.float64
        parts = [np.ascontiguousarray(a).reshape(-1).view(part) for a in (before, after)]
        wrong = _unequal(parts[0], parts[1]).reshape(-1, 2)
        unequal: Array = (wrong[:, 0] | wrong[:, 1]).reshape(before.shape)
    else:
        unequal = _unequal(before, after)
    return unequal if unequal.any() else None


def _unequal(before: Array, after: Array) -> Array:
    raw = np.dtype(f"u{before.dtype.itemsize}")
    bits = [np.ascontiguousarray(a).view(raw).reshape(a.shape) for a in (before, after)]
    if before.dtype.kind in "biu":
        return np.asarray(bits[0] != bits[1])
    return np.asarray((bits[0] != bits[1]) & ~(np.isnan(before) & np.isnan(after)))


# --- laws ----------------------------------------------------------------------------------------


def applicable(root: Node) -> bool:
    """Do all ops under a node take the dtypes they are given?"""
    nodes = [n for n in toposort([root]) if n.src]
    return all(n.src[0].dtype.kind in n.op.kinds and n.op.check(n) is None for n in nodes)


def _stand_ins(law: Law, dtype: DType, shape: Shape) -> dict[str, Node]:
    found = variables_of(law.left)
    kinds = {name: v.dtype or dtype for name, v in found.items()}
    return {name: param(i, shape, kinds[name]) for i, name in enumerate(found)}


def _instance(law: Law, dtype: DType, shape: Shape) -> tuple[Node, Node, dict[str, Node]] | None:
    """Both sides of a law on params; None where the ops or its numbers rule the dtype out."""
    if dtype not in law.dtypes:
        return None
    given = _stand_ins(law, dtype, shape)
    names, nodes = list(given), list(given.values())
    try:
        left = builder(law.left, names)(nodes[0], *nodes)
    except KeyError:  # a number that the dtype does not have
        return None
    if not applicable(left):
        return None
    return left, builder(law.right, names)(left, *nodes), given


def _grid(law: Law, dtype: DType) -> dict[str, Array]:
    """Every combination of numbers for the variables of a law, flat."""
    found = variables_of(law.left)
    axes = []
    for v in found.values():
        values = numbers(v.dtype or dtype, len(found))
        if law.unwrapped and dtype in (int64, uint64):  # small enough never to wrap
            values = values[np.abs(values.astype(np.float64)) < 1 << 20]
        if v.test is not None:
            bits = [int.from_bytes(value.tobytes(), "little") for value in values]
            values = values[[v.test(constant_bits(b, dtype)) for b in bits]]
        axes.append(values)
    mesh = np.meshgrid(*axes, indexing="ij") if axes else []
    return {name: grid.reshape(-1) for name, grid in zip(found, mesh, strict=True)}


def check_law(law: Law, dtype: DType) -> bool:
    """Evaluate both sides; False where the law says nothing about the dtype."""
    values = _grid(law, dtype) if dtype in law.dtypes else {}
    size = len(next(iter(values.values()), ()))
    made = _instance(law, dtype, (size,))
    if made is None:
        return False
    left, right, given = made
    assert left.shape == right.shape, f"{law}: shape {left.shape} becomes {right.shape}"
    before, after = evaluate([left, right], {given[name]: v for name, v in values.items()})
    if not law.exact:
        np.testing.assert_allclose(before, after, rtol=1e-2)
        return True
    wrong = difference(before, after)
    if wrong is not None and law.unwrapped:
        wrong &= _unwrapped(law, dtype, values)
    if wrong is not None and wrong.any():
        at = int(np.argmax(wrong))
        case = ", ".join(f"{name} = {v[at]!r}" for name, v in values.items())
        raise AssertionError(f"{law} in {dtype}: {case} gives {before[at]!r} and {after[at]!r}")
    return True


def _unwrapped(law: Law, dtype: DType, values: dict[str, Array]) -> Array:
    """Where every step of both sides stays in the dtype when computed with room to spare."""
    size = len(next(iter(values.values())))
    made = _instance(law, int64, (size,))
    assert made is not None, f"{law}: an unwrapped law must hold for int64"
    left, right, given = made
    steps = [n for n in toposort([left, right]) if n.op is not PARAM and n.dtype is int64]
    wide = {given[name]: v.astype(np.int64) for name, v in values.items()}
    low, high = dtype.limits
    inside = np.ones(size, bool)
    for step in evaluate(steps, wide):
        inside &= (step >= low) & (step <= high)
    return inside


# --- proofs --------------------------------------------------------------------------------------


class Untranslatable(Exception):
    """Z3 has no word for an op."""


def prove(law: Law, timeout: int = 2000) -> bool | None:
    """Is a law a theorem of whole numbers (bit operations: of 16 bits)? None: Z3 cannot say."""
    try:
        if not _has_bits(law):
            return _proved(law, None, timeout)
        results = [_proved(law, dtype, timeout) for dtype in (int16, uint16) if dtype in law.dtypes]
        return all(results) if None not in results else None
    except Untranslatable:
        return None


def _has_bits(law: Law) -> bool:
    words = {"and", "or", "xor", "not", "shl", "shr"}
    below = [q for side in (law.left, law.right) for q in _walk(side)]
    return any((q.op and q.op.name in words) or callable(q.number) for q in below)


def _walk(pattern: Pattern) -> Iterator[Pattern]:
    yield pattern
    for source in pattern.src:
        yield from _walk(source)


def _proved(law: Law, dtype: DType | None, timeout: int) -> bool | None:
    solver = z3.Solver()
    solver.set("timeout", timeout)
    known: dict[str, Any] = {}
    for name, v in variables_of(law.left).items():
        if v.dtype is bool_:
            known[name] = z3.Bool(name)
        else:
            known[name] = z3.Int(name) if dtype is None else z3.BitVec(name, dtype.bits)
        if v.test is positive:
            solver.add(known[name] > 0)
        elif v.test is not None:
            raise Untranslatable(f"{law}: {v.test}")
        if law.unwrapped and dtype is not None and v.constant:  # a shift that bounds allow
            solver.add(z3.And(known[name] >= 0, known[name] < 64))
    left, right = (_formula(side, known, dtype) for side in (law.left, law.right))
    if isinstance(right, bool | int):
        right = left.sort().cast(right) if dtype is None else _literal(right, left, dtype)
    solver.add(left != right)
    answer = solver.check()
    return None if answer == z3.unknown else bool(answer == z3.unsat)


def _literal(value: Any, like: Any, dtype: DType) -> Any:
    if z3.is_bool(like):
        return z3.BoolVal(bool(value))
    return z3.BitVecVal(int(value), dtype.bits)


def _formula(pattern: Pattern, known: dict[str, Any], dtype: DType | None) -> Any:
    if pattern.number is not None:
        value = pattern.number(dtype or int16) if callable(pattern.number) else pattern.number
        assert value is not None and not isinstance(value, complex)
        return bool(value) if isinstance(value, bool) else int(value)
    if pattern.op is None:
        return known[pattern.name]
    given = [_formula(s, known, dtype) for s in pattern.src]
    meaning = _MEANINGS.get(pattern.op.name)
    if meaning is None:
        raise Untranslatable(pattern.op.name)
    unsigned = dtype is not None and dtype.kind == "u"
    return meaning(unsigned, *given)


def _less(unsigned: bool, a: Any, b: Any) -> Any:
    if z3.is_bool(a):
        return z3.And(z3.Not(a), b)
    return z3.ULT(a, b) if unsigned else a < b


def _not_above(unsigned: bool, a: Any, b: Any) -> Any:
    return z3.ULE(a, b) if unsigned else a <= b


def _floordiv(unsigned: bool, a: Any, b: Any) -> Any:
    a, b = (z3.IntVal(v) if isinstance(v, int) else v for v in (a, b))
    return z3.If(b == 0, 0, z3.If(b > 0, a / b, -a / -b))  # z3 rounds down if b is positive


def _logic(of_bools: Callable[..., Any], of_bits: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(unsigned: bool, *given: Any) -> Any:
        return of_bools(*given) if any(z3.is_bool(g) for g in given) else of_bits(*given)

    return meaning


_MEANINGS: dict[str, Callable[..., Any]] = {
    "add": lambda u, a, b: a + b,
    "sub": lambda u, a, b: a - b,
    "mul": lambda u, a, b: a * b,
    "neg": lambda u, a: -a,
    "abs": lambda u, a: a if u else z3.If(a < 0, -a, a),
    "sign": lambda u, a: z3.If(a == 0, 0, z3.If(a > 0, 1, -1)),
    "floordiv": _floordiv,
    "mod": lambda u, a, b: z3.If(b == 0, 0, a - b * _floordiv(u, a, b)),
    "lt": _less,
    "le": _not_above,
    "eq": lambda u, a, b: a == b,
    "ne": lambda u, a, b: a != b,
    "max": lambda u, a, b: z3.If(_less(u, a, b), b, a),
    "min": lambda u, a, b: z3.If(_less(u, a, b), a, b),
    "where": lambda u, x, a, b: (a if x else b) if isinstance(x, bool) else z3.If(x, a, b),
    "and": _logic(z3.And, lambda a, b: a & b),
    "or": _logic(z3.Or, lambda a, b: a | b),
    "xor": _logic(z3.Xor, lambda a, b: a ^ b),
    "not": _logic(z3.Not, lambda a: ~a),
    "shl": lambda u, a, b: _bits_of(a, b) << b,
    "shr": lambda u, a, b: z3.LShR(_bits_of(a, b), b) if u else _bits_of(a, b) >> b,
}


def _bits_of(a: Any, like: Any) -> Any:
    return z3.BitVecVal(a, like.size()) if isinstance(a, int) else a


# --- rules ---------------------------------------------------------------------------------------


def check_rules(rules: Rules, corpus: Iterable[Node], must_fire: bool = True) -> None:
    """Evaluate every firing over a corpus before and after; a rule that never fires fails."""
    seen: set[tuple[Rule, Node]] = set()
    for root in corpus:
        for rule, before, after in firings(rules, root):
            if (rule, before) not in seen:
                seen.add((rule, before))
                check_same(before, after, str(rule))
    fired = {rule for rule, _ in seen}
    never = [str(rule) for rule in rules.rules if rule not in fired]
    assert not (never and must_fire), f"never fired, so never checked: {never}"


def firings(rules: Rules, root: Node) -> list[tuple[Rule, Node, Node]]:
    """What fires while rewriting, and what would, if it came first, on each node as it is."""
    found: list[tuple[Rule, Node, Node]] = []
    rewrite(root, rules, watch=lambda *firing: found.append(firing))
    for node in toposort([root]):
        for rule in rules.rules:
            after = rule.apply(node)
            if after is not None:
                found.append((rule, node, after))
    return found


def check_same(before: Node, after: Node, what: str, trials: int = 4) -> None:
    """Two graphs have one shape, dtype and value, whatever their inputs are."""
    assert before.dtype is after.dtype, f"{what}: {before.dtype} became {after.dtype}"
    assert before.shape == after.shape, f"{what}: shape {before.shape} became {after.shape}"
    leaves = toposort([before, after])
    for trial in range(trials):
        arrays, known = inputs(leaves, trial)
        old, new = evaluate([before, after], arrays, known)
        wrong = difference(old, new)
        if wrong is not None:
            at = tuple(np.argwhere(wrong)[0])
            raise AssertionError(
                f"{what}: {before!r} is {old[at]!r} at {at}, its replacement {after!r} {new[at]!r}"
            )


def inputs(nodes: Sequence[Node], seed: int) -> tuple[dict[Node, Array], dict[str, int]]:
    """Hostile arrays for every leaf that needs one, and values for the variables."""
    rng = np.random.default_rng(seed)
    known: dict[str, int] = {}
    for node in nodes:
        if node.op is VAR:
            name, low, high, _ = node.arg
            choices = [low, high, int(rng.integers(low, high, endpoint=True))]
            known[name] = int(choices[min(seed, 2)])
    arrays: dict[Node, Array] = {}
    for node in nodes:
        if node.op.numpy is None and node.op.arity == 0 and node.op is not VAR:
            sizes = [
                s if isinstance(s, int) else int(evaluate([s], {}, known)[0]) for s in node.shape
            ]
            arrays[node] = rng.choice(hostile(node.dtype), size=sizes)
    return arrays, known


def law_instances(rule: Rule, shape: Shape = (4, 6)) -> list[Node]:
    """Graphs that a pattern of plain ops matches, in several dtypes."""
    made: list[Node] = []
    found = variables_of(rule.left)
    for dtype in DTYPES:
        if dtype not in rule.dtypes:
            continue
        for numbers_ in ((2, 3), (4, 2), (1, 0)):
            given = [_stand_in(v, i, dtype, shape, numbers_) for i, v in enumerate(found.values())]
            try:
                node = builder(rule.left, list(found))(given[0], *given)
            except (KeyError, AssertionError):
                continue
            if applicable(node):
                made.append(node)
    return made


def _stand_in(v: Pattern, i: int, dtype: DType, shape: Shape, numbers_: tuple[int, int]) -> Node:
    dtype = v.dtype or dtype
    if v.constant:
        value = numbers_[i % 2] if v.test is None else max(1, numbers_[i % 2])
        value = min(value, 1) if dtype is bool_ else value
        return constant_bits(_encoded(value, dtype), dtype, shape)
    if dtype.kind in "iu" and numbers_[0] % 2 == 0:  # with bounds, so that nothing wraps
        return variable(f"v{i}", 0 if dtype.kind == "u" else -5, 5, shape, dtype)
    return param(i, shape, dtype)


def _encoded(value: int, dtype: DType) -> int:
    return int.from_bytes(np.asarray(value).astype(dtype.numpy).tobytes(), "little")


# --- random graphs -------------------------------------------------------------------------------

_DTYPES = (bool_, int8, uint8, int32, int64, float16, bfloat16, float32, float64)
_SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (3, 1, 2), (4,), ())
_OPS = [  # whose NumPy meaning gives the same bits however an array lies in memory
    OPS[name]
    for name in (
        "add", "sub", "mul", "div", "floordiv", "mod", "neg", "abs", "sign", "max", "min", "floor",
        "ceil", "trunc", "round", "sqrt", "lt", "le", "eq", "ne", "where", "and", "or", "xor",
        "not", "shl", "shr",
    )
]  # fmt: skip


def random_graph(choose: Random, steps: int = 12) -> Node:
    """Elementwise, movement and reduction ops at random, with many chances to simplify."""
    shape, dtype = choose.choice(_SHAPES), choose.choice(_DTYPES)
    pool = [param(i, shape, dtype) for i in range(2)]
    if dtype.kind in "iu" and shape:
        pool += [iota(shape, 0, dtype), variable("v", 0, 6, shape, dtype)]
    ops = choose.sample(_OPS, 5)  # few of them meet more often
    while len(pool) < steps:
        a = choose.choice(pool[-4:])
        way = choose.randrange(8)
        if way < 5:
            made = _compute(choose, a, pool, ops)
        else:
            made = (_convert, _move, _fold)[way - 5](choose, a)
        if made.op.check(made) is None:
            pool.append(made)
    return SINK(*pool[-4:])


def _compute(choose: Random, a: Node, pool: list[Node], ops: list[Op]) -> Node:
    fitting = [op for op in ops if op.kinds == "b" or a.dtype.kind in op.kinds]
    if not fitting:
        return _convert(choose, a)
    op = choose.choice(fitting)
    partners = [b for b in pool if b.dtype is a.dtype and b.shape == a.shape]
    if op.name == "where":
        bools = [b for b in pool if b.dtype is bool_ and b.shape == a.shape] or [
            OPS["ne"](a, constant_like(0, a))
        ]
        return op(choose.choice(bools), a, choose.choice(partners))
    if op.arity == 1:
        return op(a)
    low, high = a.dtype.limits if a.dtype.is_integer else (-9, 9)
    number = choose.choice([n for n in (0, 1, 2, 3, 4, -1, 6, high) if low <= n <= high])
    b = constant_like(-0.0 if number == 0 and choose.random() < 0.5 else number, a)
    if choose.random() < 0.5:
        b = choose.choice(partners)
    return op(a, b) if choose.random() < 0.7 else op(b, a)


def _convert(choose: Random, a: Node) -> Node:
    return OPS["cast"](a, arg=choose.choice(_DTYPES))


def _move(choose: Random, a: Node) -> Node:
    shape = [n for n in a.shape if isinstance(n, int)]
    axes = list(range(len(shape)))
    kind = choose.randrange(6)
    if kind == 0:
        return movement.reshape(a, choose.choice([(*shape, 1), (1, *shape), tuple(shape[::-1])]))
    if kind == 1:
        return movement.permute(a, tuple(choose.sample(axes, len(axes))))
    if kind == 2:
        return movement.flip(a, tuple(i for i in axes if choose.random() < 0.5))
    if kind == 3:
        return movement.expand(a, tuple(choose.choice((1, 2)) if n == 1 else n for n in shape))
    if kind == 4 and np.prod(shape) < 100:
        return movement.pad(a, [(choose.randrange(3), choose.randrange(2)) for _ in shape])
    starts = [choose.randrange(n) if n else 0 for n in shape]
    cuts = zip(starts, shape, strict=True)
    return movement.shrink(a, [(s, choose.randint(s, n)) for s, n in cuts])


def _fold(choose: Random, a: Node) -> Node:
    """A reduction; of floats that add up or multiply over one axis only, so that order is fixed."""
    names = [n for n in ("add", "mul", "max", "min") if a.dtype.kind in reduce.REDUCERS[n].kinds]
    name = choose.choice(names)
    axes = [i for i in range(a.ndim) if choose.random() < 0.6]
    if name in ("add", "mul") and a.dtype.is_float:
        axes = axes[:1]
    return reduce.reduce_node(name, a, tuple(axes))
