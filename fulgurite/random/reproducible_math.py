"""Functions whose bits are the same on every device: made of exactly rounded steps alone.

In: float32 or float64 nodes. Out: graphs of +, -, *, /, sqrt, choices and bits, each of which IEEE
754 defines to the last bit; `log` and `exp` of the op table differ between devices in that bit. So
random numbers of every distribution are the same wherever they are drawn. Accurate to a few units
in the last place, which is ample for sampling; arguments are those that sampling needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.dtype import DType, float32, float64, int32, int64
from ..core.node import Node, constant_like
from ..core.ops.elementwise import BITCAST, CAST, FLOOR, MIN, SHL, SHR, SQRT, WHERE

_LAYOUT = {float32: (int32, 23, 127), float64: (int64, 52, 1023)}  # bits of a float: mantissa, bias
_ODD_TERMS = {float32: 6, float64: 11}  # of the series of atanh up to 0.1716
_POWER_TERMS = {float32: 8, float64: 14}  # of the series of exp up to log(2) / 2
_LN2_HIGH = {float32: 0.693145751953125, float64: 0.6931471803691238}  # exact times an exponent
_LN2_LOW = {float32: 1.4286068203094172e-06, float64: 1.9082149292705877e-10}


def polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """c0 + c1 * x + c2 * x**2 + ..., from the last coefficient inward."""
    total = constant_like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def log(x: Node) -> Node:
    """The natural logarithm of a normal number above 0."""
    whole, width, bias = _LAYOUT[x.dtype]
    bits = BITCAST(x, arg=whole)
    exponent = SHR(bits, constant_like(width, bits)) - bias
    one = constant_like(bias << width, bits)
    mantissa = BITCAST(bits & ((1 << width) - 1) | one, arg=x.dtype)  # from 1 to 2
    large = mantissa > math.sqrt(2)
    mantissa = WHERE(large, mantissa * 0.5, mantissa)
    e = CAST(exponent, arg=x.dtype)
    e = WHERE(large, e + 1, e)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = [1 / (2 * k + 1) for k in range(_ODD_TERMS[x.dtype])]
    tail = s * square * polynomial(square, series[1:])
    return e * _LN2_HIGH[x.dtype] + (e * _LN2_LOW[x.dtype] + (s + tail) * 2)


def exp(x: Node) -> Node:
    """e to the power of a number that does not overflow; 0 where the result is not normal."""
    whole, width, bias = _LAYOUT[x.dtype]
    least = (1 - bias) * math.log(2) + 1
    tiny = x < least
    x = WHERE(tiny, constant_like(0, x), x)
    k = FLOOR(x * (1 / math.log(2)) + 0.5)
    rest = x - k * _LN2_HIGH[x.dtype] - k * _LN2_LOW[x.dtype]
    series = [1 / math.factorial(n) for n in range(_POWER_TERMS[x.dtype])]
    bits = CAST(k, arg=whole) + bias
    power = BITCAST(SHL(bits, constant_like(width, bits)), arg=x.dtype)
    return WHERE(tiny, constant_like(0, x), polynomial(rest, series) * power)


# Wichura's algorithm AS 241 (1988): the quantiles of the normal distribution as ratios of two
# polynomials, in the middle and in two parts of the tail; PPND7 for float32, PPND16 for float64.
_Ratio = tuple[tuple[float, ...], tuple[float, ...]]
_MIDDLE: dict[DType, _Ratio] = {
    float32: (
        (3.3871327179, 50.434271938, 159.29113202, 59.109374720),
        (1.0, 17.895169469, 78.757757664, 67.187563600),
    ),
    float64: (
        (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427,
         13731.693765509461125, 45921.953931549871457, 67265.770927008700853,
         33430.575583588128105, 2509.0809287301226727),
        (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
         21213.794301586595867, 39307.895800092710610, 28729.085735721942674,
         5226.4952788528545610),
    ),
}  # fmt: skip
_NEAR: dict[DType, _Ratio] = {  # at sqrt(-log(p)) - 1.6
    float32: (
        (1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103),
        (1.0, 0.73700164250, 0.12021132975),
    ),
    float64: (
        (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550,
         3.64784832476320460504, 1.27045825245236838258, 0.241780725177450611770,
         0.0227238449892691845833, 7.74545014278341407640e-4),
        (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
         0.148103976427480074590, 0.0151986665636164571966, 5.47593808499534494600e-4,
         1.05075007164441684324e-9),
    ),
}  # fmt: skip
_FAR: _Ratio = (  # at sqrt(-log(p)) - 5: what float32 never reaches
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580,
     0.296560571828504891230, 0.0265321895265761230930, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15),
)  # fmt: skip


def upper_quantile(p: Node) -> Node:
    """Where the normal distribution leaves a probability above it: p from above 0 up to 1/2."""
    q = 0.5 - p
    middle = q * _ratio(0.180625 - q * q, _MIDDLE[p.dtype])
    # the middle does not read the tail: a harmless number stands there, so that no NaN arises
    r = SQRT(-log(MIN(p, constant_like(0.1, p))))
    tail = _ratio(r - 1.6, _NEAR[p.dtype])
    if p.dtype is float64:
        tail = WHERE(r > 5.0, _ratio(r - 5.0, _FAR), tail)
    return WHERE(q <= 0.425, middle, tail)


def _ratio(x: Node, ratio: _Ratio) -> Node:
    above, below = ratio
    return polynomial(x, above) / polynomial(x, below)
