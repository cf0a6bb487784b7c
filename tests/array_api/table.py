"""How every function of the array API standard is called in tests.

In: hypothesis's `draw`. Out: for each name, arrays and keywords that the standard allows: dtypes
of the right kinds, shapes that fit, special values. `tests/array_api/test_standard.py` calls ours
and the strict implementation with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

Draw = Callable[[Any], Any]
Array = np.ndarray[Any, Any]

BOOL, SIGNED, UNSIGNED = ["bool"], ["int8", "int16", "int32", "int64"], [
    "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip
INTEGER = SIGNED + UNSIGNED
FLOAT, COMPLEX = ["float32", "float64"], ["complex64", "complex128"]
REAL = INTEGER + FLOAT
NUMERIC = REAL + COMPLEX
ALL = BOOL + NUMERIC
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 10.0, 1e-30, 3e30, np.inf, -np.inf, np.nan]


@dataclass(frozen=True)
class Call:
    """Arrays (lists of them stay lists), further arguments, and keywords."""

    arrays: tuple[Any, ...]
    plain: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


def shapes(least: int = 0, most: int = 3, smallest: int = 0) -> Any:
    return hnp.array_shapes(min_dims=least, max_dims=most, min_side=smallest or 0, max_side=4)


def array(draw: Draw, dtypes: list[str], shape: Any = None, special: bool = True) -> Array:
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(shapes() if shape is None else st.just(shape))
    return filled(draw, dtype, shape, special)


def filled(draw: Draw, dtype: Any, shape: tuple[int, ...], special: bool = True) -> Array:
    dtype = np.dtype(dtype)
    generator = np.random.default_rng(draw(st.integers(0, 2**20)))
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        whole = generator.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
        edge = generator.random(shape) < (0.1 if special else 0)
        ends = np.where(generator.random(shape) < 0.5, np.iinfo(dtype).min, np.iinfo(dtype).max)
        return np.where(edge, ends.astype(dtype), whole).astype(dtype)
    if dtype.kind == "c":
        part = "float32" if dtype == np.complex64 else "float64"
        found = np.empty(shape, dtype)
        found.real, found.imag = (filled(draw, part, shape, False) for _ in range(2))
        return found
    numbers = generator.normal(size=shape) * 3
    if special:
        odd = generator.choice(np.array(SPECIAL), size=shape)
        numbers = np.where(generator.random(shape) < 0.4, odd, numbers)
    return np.asarray(numbers, dtype)


def unary(dtypes: list[str], special: bool = True) -> Any:
    return lambda draw: Call((array(draw, dtypes, special=special),))


def binary(dtypes: list[str], special: bool = True) -> Any:
    """Two arrays of one dtype whose shapes broadcast."""

    def made(draw: Draw) -> Call:
        both = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3))
        dtype = draw(st.sampled_from(dtypes))
        return Call(tuple(filled(draw, dtype, s, special) for s in both.input_shapes))

    return made


def mixed(kinds: list[list[str]]) -> Any:
    """Two arrays of two dtypes of one kind: promotion."""

    def made(draw: Draw) -> Call:
        dtypes = draw(st.sampled_from(kinds))
        shape = draw(shapes())
        return Call(tuple(array(draw, dtypes, shape) for _ in range(2)))

    return made


def either(*makers: Any) -> Any:
    return lambda draw: draw(st.sampled_from(makers))(draw)


def shift(draw: Draw) -> Call:
    a = array(draw, INTEGER)
    width = a.dtype.itemsize * 8
    by = np.random.default_rng(draw(st.integers(0, 999))).integers(0, width, a.shape)
    return Call((a, by.astype(a.dtype)))


def power(draw: Draw) -> Call:
    a = array(draw, REAL, special=False)
    b = filled(draw, a.dtype, a.shape, False)
    return Call((a, np.abs(b) % 4 if a.dtype.kind in "iu" else b))


def divisible(dtypes: list[str]) -> Any:
    """Divisors other than whole zeros: what those give is nobody's word."""

    def made(draw: Draw) -> Call:
        a = array(draw, dtypes)
        b = filled(draw, a.dtype, a.shape)
        if a.dtype.kind in "iu":
            low = a.dtype.kind == "i" and np.iinfo(a.dtype).min
            b = np.where((b == 0) | ((b == -1) & (a == low)), np.ones_like(b), b).astype(a.dtype)
        return Call((a, b))

    return made


def choice(draw: Draw) -> Call:
    both = draw(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=3))
    a, b, c = both.input_shapes
    dtype = draw(st.sampled_from(ALL))
    return Call((filled(draw, "bool", a), filled(draw, dtype, b), filled(draw, dtype, c)))


def clipped(draw: Draw) -> Call:
    a = array(draw, FLOAT + SIGNED, special=False)
    low = filled(draw, a.dtype, a.shape, False)
    return Call((a, low, np.maximum(low, filled(draw, a.dtype, a.shape, False))))


def axis_of(draw: Draw, ndim: int, several: bool = True) -> Any:
    if not ndim:
        return None
    one = st.integers(-ndim, ndim - 1)
    pair = st.lists(st.integers(0, ndim - 1), min_size=1, unique=True).map(tuple)
    return draw(st.one_of(st.none(), one, pair) if several else one)


def fold(dtypes: list[str], empty: bool = True, special: bool = True, **choices: Any) -> Any:
    def made(draw: Draw) -> Call:
        shape = draw(shapes(smallest=0 if empty else 1))
        a = array(draw, dtypes, shape, special)
        keywords = {"axis": axis_of(draw, a.ndim), "keepdims": draw(st.booleans())}
        keywords |= {name: draw(st.sampled_from(values)) for name, values in choices.items()}
        return Call((a,), (), tuple(keywords.items()))

    return made


def along(dtypes: list[str], least: int = 1, special: bool = True, **choices: Any) -> Any:
    """One axis of an array with dimensions, none of them empty."""

    def made(draw: Draw) -> Call:
        a = array(draw, dtypes, draw(shapes(least, smallest=1)), special)
        keywords = {"axis": axis_of(draw, a.ndim, several=False)}
        keywords |= {name: draw(st.sampled_from(values)) for name, values in choices.items()}
        return Call((a,), (), tuple(keywords.items()))

    return made


def same_shape(draw: Draw, count: int, dtypes: list[str]) -> list[Array]:
    shape, dtype = draw(shapes(1, smallest=1)), draw(st.sampled_from(dtypes))
    return [filled(draw, dtype, shape) for _ in range(count)]


def joined(draw: Draw) -> Call:
    parts = same_shape(draw, draw(st.integers(1, 3)), ALL)
    axis = draw(st.one_of(st.none(), st.integers(-parts[0].ndim, parts[0].ndim - 1)))
    return Call((parts,), (), (("axis", axis),))


def stacked(draw: Draw) -> Call:
    parts = same_shape(draw, draw(st.integers(1, 3)), ALL)
    return Call((parts,), (), (("axis", draw(st.integers(-parts[0].ndim - 1, parts[0].ndim))),))


def reshaped(draw: Draw) -> Call:
    a = array(draw, ALL, draw(shapes(smallest=1)))
    sizes = [n for n in range(1, a.size + 1) if a.size % n == 0]
    first = draw(st.sampled_from(sizes))
    target = draw(st.sampled_from([(first, a.size // first), (-1,), (a.size // first, -1)]))
    return Call((a,), (target,))


def permuted(draw: Draw) -> Call:
    a = array(draw, ALL)
    return Call((a,), (tuple(draw(st.permutations(range(a.ndim)))),))


def moved(draw: Draw) -> Call:
    a = array(draw, ALL, draw(shapes(1)))
    count = draw(st.integers(1, a.ndim))
    froms, tos = (tuple(draw(st.permutations(range(a.ndim)))[:count]) for _ in range(2))
    return Call((a,), (froms, tos))


def grown(draw: Draw) -> Call:
    a = array(draw, ALL)
    return Call((a,), (), (("axis", draw(st.integers(-a.ndim - 1, a.ndim))),))


def squeezed(draw: Draw) -> Call:
    a = array(draw, ALL, draw(shapes(0, 2)))
    place = draw(st.integers(0, a.ndim))
    return Call((np.expand_dims(a, place),), (place,))


def flipped(draw: Draw) -> Call:
    a = array(draw, ALL)
    return Call((a,), (), (("axis", axis_of(draw, a.ndim)),))


def shifted(draw: Draw) -> Call:
    a = array(draw, FLOAT + COMPLEX, draw(shapes(1)))
    return Call((a,), (), (("axes", axis_of(draw, a.ndim)),))


def rolled(draw: Draw) -> Call:
    a = array(draw, ALL, draw(shapes(1)))
    if draw(st.booleans()):
        return Call((a,), (draw(st.integers(-5, 5)),))
    axes = tuple(draw(st.permutations(range(a.ndim)))[: draw(st.integers(1, a.ndim))])
    return Call((a,), (tuple(draw(st.integers(-5, 5)) for _ in axes),), (("axis", axes),))


def broadcast(draw: Draw) -> Call:
    a = array(draw, ALL, draw(shapes(smallest=1)))
    shape = tuple(n if n > 1 else draw(st.integers(1, 3)) for n in a.shape)
    return Call((a,), ((draw(st.integers(0, 2)), *shape),))


def repeated(draw: Draw) -> Call:
    a = array(draw, ALL, draw(shapes(1, smallest=1)))
    axis = draw(st.one_of(st.none(), st.integers(-a.ndim, a.ndim - 1)))
    return Call((a,), (draw(st.integers(0, 3)),), (("axis", axis),))


def tiled(draw: Draw) -> Call:
    a = array(draw, ALL)
    return Call((a,), (tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))),))


def taken(draw: Draw) -> Call:
    a = array(draw, ALL, draw(shapes(1, smallest=1)))
    axis = draw(st.integers(-a.ndim, a.ndim - 1))
    n = a.shape[axis]
    index = np.asarray(draw(st.lists(st.integers(-n, n - 1), max_size=4)), np.int64)
    return Call((a, index), (), (("axis", axis),))


def taken_along(draw: Draw) -> Call:
    a = array(draw, ALL, draw(shapes(1, smallest=1)))
    axis = draw(st.integers(-a.ndim, a.ndim - 1))
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    index = generator.integers(-a.shape[axis], a.shape[axis], a.shape)
    return Call((a, index), (), (("axis", axis),))


def searched(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(FLOAT + INTEGER))
    rising = np.sort(filled(draw, dtype, (draw(st.integers(0, 40)),), False))
    wanted = filled(draw, dtype, draw(shapes(1)), False)
    return Call((rising, wanted), (), (("side", draw(st.sampled_from(["left", "right"]))),))


def members(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(INTEGER))
    a, b = (filled(draw, dtype, draw(shapes()), False) for _ in range(2))
    return Call((a, b))  # the strict implementation forgets `invert`


def product(draw: Draw) -> Call:
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    stack = draw(st.sampled_from([(), (2,), (1, 3)]))
    dtype = draw(st.sampled_from(NUMERIC))
    left = draw(st.sampled_from([(k,), (*stack, m, k)]))
    right = draw(st.sampled_from([(k,), (k, n), (*stack, k, n)]))
    return Call((filled(draw, dtype, left, False), filled(draw, dtype, right, False)))


def dotted(draw: Draw) -> Call:
    shape, dtype = draw(shapes(1, smallest=1)), draw(st.sampled_from(NUMERIC))
    axis = draw(st.integers(-len(shape), -1))
    pair = tuple(filled(draw, dtype, shape, False) for _ in range(2))
    return Call(pair, (), (("axis", axis),))


def tensor_product(draw: Draw) -> Call:
    common = draw(shapes(1, 2, 1))
    dtype = draw(st.sampled_from(NUMERIC))
    a = filled(draw, dtype, (*draw(shapes(0, 1, 1)), *common), False)
    b = filled(draw, dtype, (*common, *draw(shapes(0, 1, 1))), False)
    return Call((a, b), (), (("axes", len(common)),))


def matrices(square: bool = False, definite: bool = False, dtypes: list[str] | None = None) -> Any:
    def made(draw: Draw) -> Call:
        m, n = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        stack = draw(st.sampled_from([(), (2,), (0,), (1, 3)]))
        a = filled(draw, draw(st.sampled_from(dtypes or FLOAT + COMPLEX)),
                   (*stack, m, m if square else n), False)  # fmt: skip
        if definite:
            a = (a @ np.swapaxes(a, -1, -2).conj() + np.eye(m) * 5).astype(a.dtype)
        return Call((a,))

    return made


def with_options(maker: Any, **choices: Any) -> Any:
    def made(draw: Draw) -> Call:
        call = maker(draw)
        more = tuple((k, draw(st.sampled_from(v))) for k, v in choices.items())
        return Call(call.arrays, call.plain, call.keywords + more)

    return made


def solved(draw: Draw) -> Call:
    a = matrices(square=True, definite=True)(draw).arrays[0]
    right = (a.shape[-1],) if draw(st.booleans()) else (*a.shape[:-1], draw(st.integers(1, 3)))
    return Call((a, filled(draw, a.dtype, right, False)))


def crossed(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(FLOAT + SIGNED))
    return Call(tuple(filled(draw, dtype, (2, 3), False) for _ in range(2)))


def vectors(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(NUMERIC))
    return Call(tuple(filled(draw, dtype, (draw(st.integers(0, 4)),), False) for _ in range(2)))


def transform(dtypes: list[str], several: bool = False, least: int = 1) -> Any:
    def made(draw: Draw) -> Call:
        a = array(draw, dtypes, draw(shapes(1, smallest=least)), special=False)
        norm = ("norm", draw(st.sampled_from(["backward", "ortho", "forward"])))
        if several:
            axes = tuple(draw(st.permutations(range(a.ndim)))[: draw(st.integers(1, a.ndim))])
            return Call((a,), (), (("axes", axes), norm))
        axis = draw(st.integers(-a.ndim, a.ndim - 1))
        n = draw(st.one_of(st.none(), st.integers(2, 6)))
        return Call((a,), (), (("axis", axis), ("n", n), norm))

    return made


def plain(*strategies: Any, **keywords: Any) -> Any:
    """No arrays: numbers and shapes, with an explicit dtype."""

    def made(draw: Draw) -> Call:
        values = tuple(draw(s) for s in strategies)
        return Call((), values, tuple((k, draw(s)) for k, s in keywords.items()))

    return made


DTYPE = st.sampled_from(ALL)
DIAGONALS = st.integers(-3, 3) | st.sampled_from([2**31 - 1, 2**31, -(2**40)])
REAL_DTYPE = st.sampled_from([*FLOAT, "int32", "int64"])

TABLE: dict[str, Any] = {
    # elementwise
    **{n: unary(FLOAT) for n in ("ceil", "floor", "trunc")},
    **{n: unary(FLOAT) for n in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log",
        "log1p", "log2", "log10", "sin", "sinh", "sqrt", "tan", "tanh", "reciprocal", "signbit",
    )},
    **{n: unary(NUMERIC) for n in ("isfinite", "isinf", "isnan", "negative", "positive", "square")},
    **{n: unary(COMPLEX) for n in ("conj", "imag", "real")},
    "abs": unary(NUMERIC), "sign": unary(NUMERIC), "round": unary(NUMERIC),
    "bitwise_invert": unary(BOOL + INTEGER), "logical_not": unary(BOOL),
    **{n: either(binary(NUMERIC), mixed([SIGNED, UNSIGNED, FLOAT, COMPLEX, FLOAT + COMPLEX]))
       for n in ("add", "subtract", "multiply")},
    **{n: either(binary(ALL), mixed([SIGNED, UNSIGNED, FLOAT, COMPLEX]))
       for n in ("equal", "not_equal")},
    **{n: either(binary(REAL), mixed([SIGNED, UNSIGNED, FLOAT]))
       for n in ("less", "less_equal", "greater", "greater_equal")},
    **{n: binary(REAL) for n in ("maximum", "minimum")},
    **{n: binary(FLOAT) for n in ("atan2", "copysign", "hypot", "logaddexp", "nextafter")},
    "divide": binary(FLOAT + COMPLEX), "floor_divide": divisible(INTEGER),
    "remainder": divisible(INTEGER), "pow": power,
    **{n: either(binary(BOOL + INTEGER), mixed([SIGNED, UNSIGNED]))
       for n in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{n: shift for n in ("bitwise_left_shift", "bitwise_right_shift")},
    **{n: binary(BOOL) for n in ("logical_and", "logical_or", "logical_xor")},
    "clip": clipped, "where": choice,
    # folds and runs
    "sum": fold(NUMERIC, special=False), "prod": fold(NUMERIC, special=False),
    "max": fold(REAL, empty=False), "min": fold(REAL, empty=False),
    "mean": fold(FLOAT + COMPLEX, empty=False, special=False),
    "var": fold(FLOAT, empty=False, special=False, correction=[0, 0.5]),
    "std": fold(FLOAT, empty=False, special=False, correction=[0, 0.5]),
    "all": fold(ALL), "any": fold(ALL), "count_nonzero": fold(ALL),
    "argmax": along(REAL, keepdims=[True, False]), "argmin": along(REAL, keepdims=[True, False]),
    "cumulative_sum": along(NUMERIC, special=False, include_initial=[True, False]),
    "cumulative_prod": along(NUMERIC, special=False, include_initial=[True, False]),
    "diff": along(NUMERIC, special=False, n=[0, 1, 2]),
    # order and sets
    "sort": along(REAL, special=False, descending=[True, False]),
    "argsort": along(REAL, special=False, descending=[True, False]),
    "searchsorted": searched, "isin": members,
    **{n: (lambda draw: Call((array(draw, ALL, special=False),)))
       for n in ("unique_all", "unique_counts", "unique_inverse", "unique_values")},
    "nonzero": lambda draw: Call((array(draw, ALL, draw(shapes(1))),)),
    # shapes
    "broadcast_to": broadcast, "broadcast_arrays": binary(ALL), "concat": joined,
    "expand_dims": grown, "flip": flipped, "moveaxis": moved, "permute_dims": permuted,
    "repeat": repeated, "reshape": reshaped, "roll": rolled, "squeeze": squeezed,
    "stack": stacked, "tile": tiled, "unstack": along(ALL),
    "matrix_transpose": matrices(dtypes=ALL),
    "take": taken, "take_along_axis": taken_along,
    # creation
    "arange": plain(st.integers(-5, 5), st.integers(-5, 9), st.sampled_from([1, 2, -1, -3]),
                    dtype=REAL_DTYPE),
    "linspace": plain(st.sampled_from([0.0, -1.5]), st.sampled_from([1.0, 7.25]), st.integers(0, 6),
                      dtype=st.sampled_from(FLOAT), endpoint=st.booleans()),
    "eye": plain(st.integers(0, 4), st.integers(0, 4), k=DIAGONALS, dtype=DTYPE),
    "zeros": plain(shapes(), dtype=DTYPE), "ones": plain(shapes(), dtype=DTYPE),
    "full": plain(shapes(), st.sampled_from([0, 1, 3]), dtype=st.sampled_from(NUMERIC)),
    "zeros_like": unary(ALL), "ones_like": unary(ALL),
    "full_like": lambda draw: Call((array(draw, NUMERIC),), (3,)),
    "empty": plain(shapes(), dtype=DTYPE), "empty_like": unary(ALL),
    "tril": with_options(matrices(dtypes=ALL), k=[-1, 0, 2]),
    "triu": with_options(matrices(dtypes=ALL), k=[-1, 0, 2]),
    "meshgrid": lambda draw: Call(vectors(draw).arrays, (), (
        ("indexing", draw(st.sampled_from(["xy", "ij"]))),)),
    "asarray": unary(ALL), "from_dlpack": unary(ALL),
    # products
    "matmul": product, "tensordot": tensor_product, "vecdot": dotted,
    # linear algebra
    "linalg.matmul": product, "linalg.tensordot": tensor_product, "linalg.vecdot": dotted,
    "linalg.cholesky": with_options(matrices(square=True, definite=True), upper=[True, False]),
    "linalg.cross": crossed, "linalg.det": matrices(square=True),
    "linalg.diagonal": with_options(matrices(dtypes=ALL), offset=[-1, 0, 2]),
    "linalg.eigvalsh": matrices(square=True, definite=True),
    "linalg.inv": matrices(square=True, definite=True),
    "linalg.matrix_norm": with_options(matrices(), keepdims=[True, False],
                                       ord=["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf]),
    "linalg.matrix_power": lambda draw: Call(
        matrices(square=True, definite=True)(draw).arrays, (draw(st.sampled_from([0, 1, 3, -2])),)),
    "linalg.matrix_rank": matrices(), "linalg.matrix_transpose": matrices(dtypes=ALL),
    "linalg.outer": vectors, "linalg.pinv": matrices(), "linalg.slogdet": matrices(square=True),
    "linalg.solve": solved, "linalg.svdvals": matrices(),
    "linalg.trace": with_options(matrices(dtypes=NUMERIC), offset=[-1, 0, 1]),
    "linalg.vector_norm": fold(FLOAT + COMPLEX, empty=False, special=False,
                               ord=[0, 1, 2, 3, np.inf, -np.inf]),
    # Fourier transforms
    "fft.fft": transform(COMPLEX), "fft.ifft": transform(COMPLEX), "fft.rfft": transform(FLOAT),
    "fft.irfft": transform(COMPLEX, least=2), "fft.hfft": transform(COMPLEX, least=2),
    "fft.ihfft": transform(FLOAT), "fft.fftn": transform(COMPLEX, True),
    "fft.ifftn": transform(COMPLEX, True), "fft.rfftn": transform(FLOAT, True),
    "fft.irfftn": transform(COMPLEX, True, 2),
    "fft.fftfreq": plain(st.integers(1, 9), d=st.sampled_from([1.0, 0.5])),
    "fft.rfftfreq": plain(st.integers(1, 9), d=st.sampled_from([1.0, 0.5])),
    "fft.fftshift": shifted, "fft.ifftshift": shifted,
}  # fmt: skip
