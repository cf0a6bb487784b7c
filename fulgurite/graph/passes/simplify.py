"""Algebraic simplification: graph in, smaller graph out, every bit of every value the same.

The laws are in `laws.py`; here are the rules, for what needs Python: folding constants, what
bounds decide, chains of casts, and movement and reduction ops that merge. They are exact too
(only which NaN it is may differ): tests/graph/passes/test_simplify.py evaluates every firing of
every rule before and after, on hostile numbers, and fails if a rule never fires. Bounds are the
sound ones throughout, and a symbolic size that cannot be decided leaves its node alone.
"""

from __future__ import annotations

from math import gcd, isinf

import numpy as np

from ...core import shape as sizes
from ...core.dtype import DType, array_of_bits, bool_
from ...core.node import Node, Size, constant, constant_bits, constant_like
from ...core.ops.effect import COPY
from ...core.ops.elementwise import BITCAST, CAST, CEIL, FLOOR, MAX, MIN, MUL, ROUND, TRUNC
from ...core.ops.leaf import CONST
from ...core.ops.movement import (
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SHRINK,
    WINDOW,
    expand,
    flip,
    pad,
    pairs,
    permute,
    reshape,
    shrink,
)
from ...core.ops.reduce import REDUCE, SCAN, identity_of, reduce_node
from ...core.rewriting.pattern import constant_op, p, stays_whole
from ...core.rewriting.rewrite import rewrite
from ...core.symbolic.sym import varies
from .laws import SIMPLIFY, a, b, counted, floating, k, m, n, ordered, q, whole

rule = SIMPLIFY.rule


def simplify(root: Node) -> Node:
    """The same values from a smaller graph."""
    return rewrite(root, SIMPLIFY)


# --- constants -----------------------------------------------------------------------------------


@rule(constant_op("elementwise"))
def fold_constants(node: Node) -> Node | None:
    """An op on constants is a constant: the op's own meaning says which."""
    meaning = node.op.numpy
    if meaning is None or any([varies(s.arg[0]) for s in node.src]):  # which kernels work out
        return None
    arrays = [array_of_bits(s.arg[0], s.dtype) for s in node.src]
    with np.errstate(all="ignore"):
        found = np.asarray(meaning(node, *arrays))
    assert found.dtype == node.dtype.numpy, f"{node.op} gives {found.dtype}, not {node.dtype}"
    return constant_bits(int.from_bytes(found.tobytes(), "little"), node.dtype, node.shape)


@rule(p(COPY, p(COPY, a)))
def copy_twice_to_one_device(node: Node, a: Node) -> Node | None:
    """What was copied to a device is there."""
    return node.src[0] if node.arg == node.src[0].arg else None


@rule(p(COPY, a))
def copy_of_a_constant(node: Node, a: Node) -> Node | None:
    """A constant is on every device."""
    return a if a.op is CONST else None


# --- what sound bounds decide --------------------------------------------------------------------


@rule(a < b, a <= b, a.eq(b), a.ne(b), a // b, a % b, a >> b, a & b, when=counted)
def only_one_value(node: Node, a: Node, b: Node) -> Node | None:
    """A result that can be only one number is that number."""
    low, high = node.bounds or (0, 1)
    return constant_like(low, node) if low == high else None


@rule(p(MAX, a, b), p(MIN, a, b), when=counted)
def one_is_never_beaten(node: Node, a: Node, b: Node) -> Node | None:
    """A maximum (minimum) whose first source is never below (above) the second is that source."""
    if a.bounds is None or b.bounds is None:
        return None
    wins = a.bounds[0] >= b.bounds[1] if node.op is MAX else a.bounds[1] <= b.bounds[0]
    return a if wins else None


@rule(abs(a), when=whole)
def already_positive(node: Node, a: Node) -> Node | None:
    """The magnitude of what is never negative."""
    return a if a.bounds is not None and a.bounds[0] >= 0 else None


@rule(a % n, when=whole)
def already_smaller(node: Node, a: Node, n: Node) -> Node | None:
    """A remainder of what is below the divisor."""
    bounds = a.bounds
    return a if bounds is not None and bounds[0] >= 0 and bounds[1] < _whole(n) else None


@rule(a & k, when=whole)
def mask_of_all_bits_there_are(node: Node, a: Node, k: Node) -> Node | None:
    """Masking with 2**i - 1 what fits i bits."""
    mask, bounds = _whole(k), a.bounds
    if bounds is None or mask < 0 or mask & (mask + 1):
        return None
    return a if bounds[0] >= 0 and bounds[1] <= mask else None


@rule((a * k) // n, when=whole)
def floordiv_by_a_common_factor(node: Node, a: Node, k: Node, n: Node) -> Node | None:
    """(a*6) // 4 is (a*3) // 2, if nothing wraps around."""
    factor = gcd(_whole(k), _whole(n))
    if factor == 1 or not stays_whole(node.src[0]):
        return None
    return a * (_whole(k) // factor) // (_whole(n) // factor)


@rule((a * k) % n, when=whole)
def mod_by_a_common_factor(node: Node, a: Node, k: Node, n: Node) -> Node | None:
    """(a*6) % 4 is (a*3) % 2 * 2, if nothing wraps around."""
    factor = gcd(_whole(k), _whole(n))
    if factor == 1 or not stays_whole(node.src[0]):
        return None
    return a * (_whole(k) // factor) % (_whole(n) // factor) * factor


@rule((a * k + m) // n, when=whole)
def floordiv_of_a_sum_by_a_common_factor(
    node: Node, a: Node, k: Node, m: Node, n: Node
) -> Node | None:
    """(a*6 + 5) // 4 is (a*3 + 2) // 2, if nothing wraps around."""
    factor = gcd(_whole(k), _whole(n))
    total = node.src[0]
    scaled = total.src[0] if total.src[1] is m else total.src[1]
    if factor == 1 or not (stays_whole(total) and stays_whole(scaled)):
        return None
    term = a * (_whole(k) // factor) + _whole(m) // factor
    return term // (_whole(n) // factor) if stays_whole(term) else None


@rule((a % n) % q, when=whole)
def mod_by_a_divisor(node: Node, a: Node, n: Node, q: Node) -> Node | None:
    """(a % 12) % 4 is a % 4."""
    return a % q if _whole(n) % _whole(q) == 0 else None


def _whole(node: Node) -> int:
    value = node.value
    assert isinstance(value, int)
    return int(value)


# --- floats --------------------------------------------------------------------------------------


@rule(a / k, when=floating)
def div_by_a_power_of_two(node: Node, a: Node, k: Node) -> Node | None:
    """Dividing by 4.0 is multiplying by 0.25: both round the same real number."""
    value = k.value
    assert isinstance(value, float)
    if value == 0 or isinf(value) or np.frexp(value)[0] not in (0.5, -0.5):
        return None
    with np.errstate(all="ignore"):
        inverse = constant_like(1 / value, k)
    return MUL(a, inverse) if inverse.value == 1 / value else None


# --- conversion ----------------------------------------------------------------------------------


def holds(wide: DType, narrow: DType) -> bool:
    """True if every value of one dtype is a value of another."""
    if wide is narrow or narrow is bool_:
        return True
    if wide is bool_ or (wide.kind, narrow.kind) in (("i", "f"), ("u", "f"), ("u", "i")):
        return False
    if wide.kind in "iu":
        return narrow.kind != "c" and wide.bits - (wide.kind == "i") >= narrow.bits - (
            narrow.kind == "i"
        )
    if narrow.kind in "iu":  # all its bits must fit the significand, and its range the exponent
        return wide.kind in "fc" and _significand(wide) >= narrow.bits - (narrow.kind == "i")
    return (wide.name, narrow.name) in _WIDER


_SIGNIFICAND = {
    "float8_e4m3fn": 4, "float8_e5m2": 3, "bfloat16": 8, "float16": 11, "float32": 24,
    "float64": 53, "complex64": 24, "complex128": 53,
}  # fmt: skip
_FLOATS_WITHIN = {
    "bfloat16": ("float8_e4m3fn", "float8_e5m2"),
    "float16": ("float8_e4m3fn", "float8_e5m2"),
    "float32": ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"),
    "float64": ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32"),
    "complex64": ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32"),
    "complex128": (
        "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "float64", "complex64",
    ),
}  # fmt: skip
_WIDER = frozenset((wide, narrow) for wide, within in _FLOATS_WITHIN.items() for narrow in within)


def _significand(dtype: DType) -> int:
    return _SIGNIFICAND[dtype.name]


@rule(p(CAST, a))
def cast_to_itself(node: Node, a: Node) -> Node | None:
    """A cast to the dtype that a value has."""
    return a if a.dtype is node.dtype else None


@rule(p(CAST, p(CAST, a)))
def cast_chain(node: Node, a: Node) -> Node | None:
    """A detour over a dtype that changes nothing on the way is left out."""
    source, middle, target = a.dtype, node.src[0].dtype, node.dtype
    if target is source and (holds(middle, source) or _bounded(a, middle)):
        return a
    if source.kind in "iu" and middle.kind in "iu" and target.kind in "iu":
        exact = holds(middle, source) or middle.bits >= target.bits
        return CAST(a, arg=target) if exact else None
    if source.kind in "iu" and target.kind in "iu":
        return None  # floats saturate where whole numbers wrap
    return CAST(a, arg=target) if holds(middle, source) else None


def _bounded(a: Node, dtype: DType) -> bool:
    """True if sound bounds show that every value fits an integer dtype."""
    if a.bounds is None or dtype.kind not in "iu":
        return False
    low, high = dtype.limits
    return low <= a.bounds[0] and a.bounds[1] <= high


@rule(*[p(op, p(CAST, a)) for op in (FLOOR, CEIL, TRUNC, ROUND)])
def round_whole_number(node: Node, a: Node) -> Node | None:
    """A whole number in a float needs no rounding."""
    return node.src[0] if a.dtype.is_integer else None


@rule(p(BITCAST, a))
def bitcast_to_itself(node: Node, a: Node) -> Node | None:
    """The bits read as the dtype that they have."""
    return a if a.dtype is node.dtype else None


@rule(p(BITCAST, p(BITCAST, a)))
def bitcast_chain(node: Node, a: Node) -> Node:
    """Only the last reading of the bits counts."""
    return BITCAST(a, arg=node.arg)


# --- movement ------------------------------------------------------------------------------------


@rule(*[p(op, k) for op in (RESHAPE, EXPAND, PERMUTE, SHRINK, FLIP, WINDOW)])
def move_constant(node: Node, k: Node) -> Node:
    """A number that is the same everywhere is so at other places too."""
    return constant_bits(k.arg[0], k.dtype, node.shape)


@rule(p(PAD, p(CONST, arg=lambda arg: arg[0] == 0)))
def pad_zeros(node: Node) -> Node:
    """Zeros around zeros (a -0.0 has other bits)."""
    return constant_bits(0, node.dtype, node.shape)


@rule(p(RESHAPE, a), p(EXPAND, a))
def shape_it_has(node: Node, a: Node) -> Node | None:
    """A reshape or expansion to the same shape."""
    return a if a.shape == node.shape else None


@rule(p(RESHAPE, p(RESHAPE, a)))
def merge_reshapes(node: Node, a: Node) -> Node:
    """Only the last shape counts."""
    return reshape(a, node.shape)


@rule(p(EXPAND, p(EXPAND, a)))
def merge_expands(node: Node, a: Node) -> Node:
    """Only the last shape counts."""
    return expand(a, node.shape)


@rule(p(PERMUTE, p(PERMUTE, a)))
def merge_permutes(node: Node, a: Node) -> Node:
    """The order of an order."""
    first = node.src[0].arg
    return permute(a, tuple([first[i] for i in node.arg]))


@rule(p(PERMUTE, a))
def permute_only_ones(node: Node, a: Node) -> Node | None:
    """Moving dimensions of size 1 past others is a reshape."""
    rest = [i for i in node.arg if a.shape[i] != 1]
    return reshape(a, node.shape) if rest == sorted(rest) else None


@rule(p(PAD, a))
def pad_by_nothing(node: Node, a: Node) -> Node | None:
    """Padding of no width."""
    return a if not any(node.arg) else None


@rule(p(PAD, p(PAD, a)))
def merge_pads(node: Node, a: Node) -> Node:
    """Zeros around zeros."""
    both = zip(pairs(node.src[0]), pairs(node), strict=True)
    return pad(a, [(sizes.add(l1, l2), sizes.add(h1, h2)) for (l1, h1), (l2, h2) in both])


@rule(p(SHRINK, a))
def shrink_to_all(node: Node, a: Node) -> Node | None:
    """A cut that leaves all there is."""
    return a if shrink(a, pairs(node)) is a else None


@rule(p(SHRINK, p(SHRINK, a)))
def merge_shrinks(node: Node, a: Node) -> Node:
    """A part of a part."""
    both = zip(pairs(node.src[0]), pairs(node), strict=True)
    return shrink(a, [(sizes.add(s1, s2), sizes.add(s1, e2)) for (s1, _), (s2, e2) in both])


@rule(p(FLIP, a))
def flip_of_one(node: Node, a: Node) -> Node | None:
    """One element has no direction."""
    axes = tuple([i for i in node.arg if a.shape[i] != 1])
    return flip(a, axes) if len(axes) < len(node.arg) else None


@rule(p(FLIP, p(FLIP, a)))
def merge_flips(node: Node, a: Node) -> Node:
    """Backwards twice is forwards."""
    return flip(a, tuple(set(node.arg) ^ set(node.src[0].arg)))


@rule(p(SHRINK, p(PAD, a)))
def shrink_of_pad(node: Node, a: Node) -> Node | None:
    """Padding that is cut off again is never added."""
    cuts: list[tuple[Size, Size]] = []
    pads: list[tuple[Size, Size]] = []
    for size, padding, cut in zip(a.shape, pairs(node.src[0]), pairs(node), strict=True):
        found = _cut_padding(size, padding, cut)
        if found is None:
            return None
        cuts.append(found[0])
        pads.append(found[1])
    if any(start == stop for start, stop in cuts):
        return constant(0, node.dtype, node.shape)
    return pad(shrink(a, cuts), pads)


def _cut_padding(
    size: Size, padding: tuple[Size, Size], cut: tuple[Size, Size]
) -> tuple[tuple[Size, Size], tuple[Size, Size]] | None:
    """What a cut leaves of one padded dimension: a cut of it, and padding around that."""
    (low, high), (start, stop) = padding, cut
    if low == 0 and high == 0:
        return cut, (0, 0)
    end = sizes.add(low, size)
    if sizes.same(start, low) and sizes.same(stop, end):
        return (0, size), (0, 0)
    if isinstance(size, int) and isinstance(low, int) and isinstance(end, int):
        if not (isinstance(start, int) and isinstance(stop, int)):
            return None
        first, last = min(max(start - low, 0), size), min(max(stop - low, 0), size)
        return (first, last), (max(low - start, 0), max(stop - end, 0))
    return None


@rule(p(WINDOW, a))
def window_of_one(node: Node, a: Node) -> Node | None:
    """Windows of one element, at every place, are the elements."""
    _, size, stride, _ = node.arg
    return reshape(a, node.shape) if size == 1 and stride == 1 else None


# --- reductions ----------------------------------------------------------------------------------


@rule(p(REDUCE, a))
def reduce_of_nothing(node: Node, a: Node) -> Node | None:
    """An empty sum is 0, and -0.0 only where there is a -0.0 to add."""
    name, axes = node.arg
    if 0 not in [a.shape[axis] for axis in axes]:
        return None
    return constant(0 if name == "add" else identity_of(name, node.dtype), node.dtype, node.shape)


@rule(p(REDUCE, a), when=ordered)
def reduce_of_one(node: Node, a: Node) -> Node | None:
    """One element is its own sum (not of complex numbers: 0 + -0.0 is 0.0)."""
    name, axes = node.arg
    rest = tuple([axis for axis in axes if a.shape[axis] != 1])
    return reduce_node(name, a, rest) if len(rest) < len(axes) else None


@rule(p(REDUCE, p(REDUCE, a)), when=ordered)
def merge_reductions(node: Node, a: Node) -> Node | None:
    """One reduction over the axes of both, where order does not matter to the last bit."""
    (name, axes), (inner, first) = node.arg, node.src[0].arg
    exact = name in ("max", "min") or node.dtype.is_integer
    return reduce_node(name, a, tuple({*axes, *first})) if name == inner and exact else None


@rule(p(REDUCE, k), when=ordered)
def reduce_constant(node: Node, k: Node) -> Node | None:
    """The extreme of equal numbers is the number; whole ones also add up and multiply."""
    name, axes = node.arg
    count = sizes.prod([k.shape[axis] for axis in axes])
    if not isinstance(count, int) or count == 0:
        return None
    if name in ("max", "min"):
        return constant_bits(k.arg[0], k.dtype, node.shape)
    if not whole(k.dtype):
        return None
    modulus = 1 << k.dtype.bits
    bits = k.arg[0] * count if name == "add" else pow(k.arg[0], count, modulus)
    return constant_bits(bits % modulus, k.dtype, node.shape)


@rule(p(REDUCE, p(EXPAND, a)), when=ordered)
def extreme_of_repetitions(node: Node, a: Node) -> Node | None:
    """The extreme of one number repeated is the number."""
    name, axes = node.arg
    wide = node.src[0]
    repeated = [i for i in axes if a.shape[i] == 1 and _at_least_one(wide.shape[i])]
    if name not in ("max", "min") or not repeated:
        return None
    shape = tuple([1 if i in repeated else size for i, size in enumerate(wide.shape)])
    return reduce_node(name, expand(a, shape), tuple([i for i in axes if i not in repeated]))


def _at_least_one(size: Size) -> bool:
    return size >= 1 if isinstance(size, int) else bool(size.bounds and size.bounds[0] >= 1)


@rule(p(SCAN, a))
def scan_of_one(node: Node, a: Node) -> Node | None:
    """The running fold of one element is that element."""
    name, axis, _ = node.arg
    return a if name != "affine" and a.shape[axis] == 1 else None
