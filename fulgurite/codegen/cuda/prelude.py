# mypy: ignore-errors
"""Device functions that the generated kernels call, in Triton's language.

Read by Triton alone, which is imported here and nowhere near the user's first line. Each function
has the meaning that the op table gives its op in NumPy, to the bit where NumPy's own is exact.
Small floats (float8, float16, bfloat16) are held in float32; `fg_round_*` puts a number on their
grid, and float8 is encoded and decoded by integer arithmetic: no chip before Hopper has it, and
Hopper's own conversion saturates where the grid has NaN.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

# --- arithmetic ----------------------------------------------------------------------------------


@triton.jit
def fg_neg(a):
    """-a of a float: Triton's own minus is 0 - a, which loses the sign of zero."""
    return a * -1.0


@triton.jit
def fg_div(a, b):
    """The quotient, rounded to nearest."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def fg_safe_scale(b):
    """A power of two that brings a float32 to where its reciprocal is a normal number."""
    a = tl.abs(b)
    return tl.where(
        a > 18446744073709551616.0,
        5.421010862427522e-20,
        tl.where(a < 5.421010862427522e-20, 18446744073709551616.0, 1.0),
    )


@triton.jit
def fg_reciprocal(b, scale):
    """1 / (b scale) of a float32, rounded to nearest; the scale is finite."""
    return tl.div_rn(scale * 0.0 + 1.0, b * scale)


@triton.jit
def fg_short_reciprocal(b, scale):
    """1 / (b scale) of a float32 within 1 ulp, in one instruction; the scale is finite."""
    return fg_fast_reciprocal(b * scale)


@triton.jit
def fg_inverse(b):
    """1 / b of a float32, rounded to nearest; of denormals it is infinite."""
    return tl.div_rn(tl.where(b == b, 1.0, 1.0), b)


@triton.jit
def fg_narrow_exp(x):
    """exp(x) within 2^-17, which 16 bits do not tell from exact; denormals are kept."""
    return fg_exp2(x * 1.442695)


@triton.jit
def fg_exp(x):
    """exp(x); float32 without libdevice, whose linking takes half of a small text's time."""
    if x.dtype == tl.float64:
        return libdevice.exp(x)
    else:
        return fg_exp_of_float32(x)


@triton.jit
def fg_exp_of_float32(x):
    """2 ** p for the rounded product p = x log2(e), times 1 + log(2) (x log2(e) - p)."""
    p = x * 1.4426950216293335
    rest = tl.fma(x, 1.4426950216293335, p * -1.0)
    rest = tl.fma(x, 1.925963033500e-08, rest)
    near = fg_exp2(p)
    exact = tl.fma(near, rest * 0.6931472, near)
    return tl.where((p > -150.0) & (p < 128.0), exact, near)  # others are 0, infinite or NaN


@triton.jit
def fg_rsqrt(x):
    """1 / sqrt(x); float32 in one instruction, without libdevice."""
    if x.dtype == tl.float64:
        return libdevice.rsqrt(x)
    else:
        return fg_rsqrt_of_float32(x)


@triton.jit
def fg_rsqrt_of_float32(x):
    """1 / sqrt(x) within 2 ulp."""
    return tl.inline_asm_elementwise(
        "rsqrt.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def fg_with_sign(x, sign):
    """x of float32 with the sign of another."""
    return tl.inline_asm_elementwise(
        "copysign.f32 $0, $2, $1;", "=f,f,f", [x, sign], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def fg_exp2(x):
    """2 ** x within 2 ulp."""
    return tl.inline_asm_elementwise(
        "ex2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def fg_fast_exp2(x):
    """2 ** x within 2 ulp, of numbers that are not below -126."""
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def fg_fast_reciprocal(x):
    """1 / x within 1 ulp, of numbers that are not below 2^-126 nor above 2^126: 0 there."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def fg_fast_exp(x):
    """exp(x) within 2^-20 of numbers that matter beside 1; below -87 it is 0."""
    return fg_fast_exp2(x * 1.442695)


@triton.jit
def fg_fast_exp_apart(a, b):
    """exp(a - b) in one product for each a, within |b| 2^-23 more.

    Beyond 2^30, where numbers are so far apart that only equal ones give more than 0, the factor is
    1: the product with b is exact then, and finite. A score that stands for a mask is the largest
    of a block that has no other.
    """
    factor = tl.where(tl.abs(b) < 1073741824.0, 1.442695, 1.0)
    return fg_fast_exp2(tl.fma(a, factor, b * factor * -1.0))


@triton.jit
def fg_tanh(x):
    """tanh of float32 within 2 ulp and without a branch: x + x P(x^2) below 1, else by exp2."""
    a = tl.abs(x)
    s = a * a
    p = tl.fma(s, -0.00035845092, 0.0023013609)
    p = tl.fma(p, s, -0.0079461015)
    p = tl.fma(p, s, 0.021486654)
    p = tl.fma(p, s, -0.053879802)
    p = tl.fma(p, s, 0.13332345)
    p = tl.fma(p, s, -0.33333295)
    small = tl.fma(p * s, a, a)
    e = fg_fast_exp2(a * 2.88539) + 1.0
    large = tl.fma(fg_fast_reciprocal(e), -2.0, 1.0)
    return fg_with_sign(tl.where(a < 1.0, small, large), x)


@triton.jit
def fg_narrow_tanh(x):
    """tanh(x) within 2^-19 of it and 2^-22, for what is rounded to 16 bits in the end."""
    s = x * x
    small = tl.fma(tl.fma(s, 0.13333334, -0.33333334) * s, x, x)
    large = tl.fma(fg_fast_reciprocal(fg_fast_exp2(x * 2.88539) + 1.0), -2.0, 1.0)
    return tl.where(tl.abs(x) < 0.15, small, large)


@triton.jit
def fg_approximate_tanh(x):
    """tanh(x) within 2^-11 of it, in one instruction."""
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def fg_fast_tanh(x, factor):
    """tanh(x * factor / 2.88539) within 2^-22, not relative to it."""
    return tl.fma(fg_fast_reciprocal(fg_fast_exp2(x * factor) + 1.0), -2.0, 1.0)


@triton.jit
def fg_sqrt(a):
    """The square root, rounded to nearest."""
    if a.dtype == tl.float64:
        return libdevice.sqrt(a)
    else:
        return tl.sqrt_rn(a)


@triton.jit
def fg_max(a, b):
    """IEEE 754-2019 maximum: NaN wins, 0.0 is above -0.0."""
    top = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    if a.dtype == tl.float64:
        return tl.where((a == 0) & (b == 0), a + b, top)
    else:
        return top


@triton.jit
def fg_min(a, b):
    """IEEE 754-2019 minimum: NaN wins, -0.0 is below 0.0."""
    low = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    if a.dtype == tl.float64:
        return tl.where((a == 0) & (b == 0), (a * -1.0 + b * -1.0) * -1.0, low)
    else:
        return low


@triton.jit
def fg_add(a, b):
    """a + b, as a combiner."""
    return a + b


@triton.jit
def fg_mul(a, b):
    """a * b, as a combiner."""
    return a * b


@triton.jit
def fg_or(a, b):
    """a | b, as a combiner."""
    return a | b


@triton.jit
def fg_and(a, b):
    """a & b, as a combiner."""
    return a & b


@triton.jit
def fg_imax(a, b):
    """The larger whole number."""
    return tl.maximum(a, b)


@triton.jit
def fg_imin(a, b):
    """The smaller whole number."""
    return tl.minimum(a, b)


@triton.jit
def fg_sign(a):
    """-1, 0 or 1; NaN stays."""
    one = (a > 0).to(a.dtype) - (a < 0).to(a.dtype)
    return tl.where(a == a, one, a)


@triton.jit
def fg_sign_unsigned(a):
    """0 or 1."""
    return (a != 0).to(a.dtype)


@triton.jit
def fg_floordiv(a, b):
    """NumPy's floor division of signed numbers: by 0 it is 0, the least by -1 wraps around."""
    odd = (b == 0) | (b == -1)
    by = tl.where(odd, 1, b).to(a.dtype)
    quotient = a // by
    rest = a - quotient * by
    down = quotient - ((rest != 0) & ((rest < 0) != (by < 0))).to(a.dtype)
    return tl.where(b == 0, 0, tl.where(b == -1, 0 - a, down)).to(a.dtype)


@triton.jit
def fg_mod(a, b):
    """NumPy's remainder of signed numbers: the sign of b; by 0 it is 0."""
    odd = (b == 0) | (b == -1)
    by = tl.where(odd, 1, b).to(a.dtype)
    rest = a - (a // by) * by
    up = rest + tl.where((rest != 0) & ((rest < 0) != (by < 0)), by, 0).to(a.dtype)
    return tl.where(odd, 0, up).to(a.dtype)


@triton.jit
def fg_floordiv_unsigned(a, b):
    """The quotient; by 0 it is 0."""
    by = tl.where(b == 0, 1, b).to(a.dtype)
    return tl.where(b == 0, 0, a // by).to(a.dtype)


@triton.jit
def fg_mod_unsigned(a, b):
    """The remainder; by 0 it is 0."""
    by = tl.where(b == 0, 1, b).to(a.dtype)
    return tl.where(b == 0, 0, a % by).to(a.dtype)


@triton.jit
def fg_mod_float(a, b):
    """NumPy's remainder: the sign of b, also of a zero."""
    rest = libdevice.fmod(a, b)
    moved = tl.where((rest < 0) != (b < 0), rest + b, rest)
    zero = tl.where(b < 0, tl.abs(rest) * -1.0, tl.abs(rest))
    return tl.where(rest == 0, zero, moved)


@triton.jit
def fg_floordiv_float(a, b):
    """NumPy's floor division: from the remainder, so that quotient and remainder agree."""
    rest = libdevice.fmod(a, b)
    whole = fg_div(a - rest, b)
    whole = tl.where((rest != 0) & ((rest < 0) != (b < 0)), whole - 1, whole)
    down = tl.floor(whole)
    down = tl.where(whole - down > 0.5, down + 1, down)
    exact = fg_div(a, b)
    return tl.where(b == 0, exact, tl.where(whole == 0, exact * 0.0, down))


@triton.jit
def fg_ipow(a, b):
    """Whole powers by squaring, wrapping around; negative ones are 0 but for 1 and -1."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    result = a - a + 1
    base = a + 0
    left = b + 0
    for _ in tl.static_range(bits):
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    odd = (b & 1) != 0
    inverse = tl.where(a == 1, 1, tl.where(a == -1, tl.where(odd, -1, 1), 0)).to(a.dtype)
    return tl.where(b < 0, inverse, result).to(a.dtype)


@triton.jit
def fg_ipow_unsigned(a, b):
    """Whole powers by squaring, wrapping around."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    result = a - a + 1
    base = a + 0
    left = b + 0
    for _ in tl.static_range(bits):
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    return result.to(a.dtype)


@triton.jit
def fg_shl(a, b):
    """NumPy's left shift: by the width or more it is 0."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    fits = (b >= 0) & (b < bits)
    by = tl.where(fits, b, 0).to(a.dtype)
    return tl.where(fits, a << by, 0).to(a.dtype)


@triton.jit
def fg_shr(a, b):
    """NumPy's right shift: by the width or more only the sign is left."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    fits = (b >= 0) & (b < bits)
    by = tl.where(fits, b, 0).to(a.dtype)
    if a.dtype.is_int_signed():
        beyond = tl.where(a < 0, -1, 0).to(a.dtype)
    else:
        beyond = a ^ a
    return tl.where(fits, a >> by, beyond).to(a.dtype)


@triton.jit
def fg_dot4(a, b, c):
    """c plus the four bytes of a, unsigned, times those of b, signed."""
    c += (a & 255) * ((b << 24) >> 24)
    c += ((a >> 8) & 255) * ((b << 16) >> 24)
    c += ((a >> 16) & 255) * ((b << 8) >> 24)
    return c + ((a >> 24) & 255) * (b >> 24)


# --- conversion ----------------------------------------------------------------------------------


@triton.jit
def fg_saturate(a, low, high, least, most):
    """A float as a whole number: limits beyond the range, 0 for NaN."""
    inside = (a > low) & (a < high)
    whole = tl.where(inside, a, 0).to(least.dtype)
    return tl.where(a >= high, most, tl.where(a <= low, least, whole))


@triton.jit
def fg_odd_float32(a):
    """A float64 as float32, rounded to odd, so that rounding it again is right."""
    near = a.to(tl.float32)
    wide = near.to(tl.float64)
    bits = near.to(tl.int32, bitcast=True)
    past = tl.where(tl.abs(wide) > tl.abs(a), bits - 1, bits)
    exact = (wide == a) | (a != a) | (tl.abs(a) == float("inf"))
    return tl.where(exact, bits, past | 1).to(tl.float32, bitcast=True)


@triton.jit
def fg_odd_signed(a):
    """An int64 as float64, rounded to odd."""
    low = a & 2047
    big = (a > 4503599627370496) | (a < -4503599627370496)
    odd = (a ^ low) | tl.where(low != 0, 1024, 0).to(tl.int64)
    return tl.where(big, odd, a).to(tl.float64)


@triton.jit
def fg_odd_unsigned(a):
    """A uint64 as float64, rounded to odd: its halves are exact, their sum is not."""
    big = a >= 9007199254740992
    kept = (a >> 11) | ((a & 2047) != 0).to(tl.uint64)
    wide = tl.where(big, kept, a).to(tl.int64).to(tl.float64)
    return wide * tl.where(big, 2048.0, 1.0).to(tl.float64)


@triton.jit
def fg_round_float8_e5m2(a):
    """A float32 on the grid of float8_e5m2, halves to even; it overflows to infinity."""
    bits = a.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    sign = bits ^ size
    near = (size + 0xFFFFF + ((size >> 21) & 1)) & 0xFFE00000
    near = tl.where(near > 0x47600000, 0x7F800000, near).to(tl.uint32)
    small = (tl.abs(a) + 128.0) - 128.0  # where numbers are 2 ** -16 apart
    near = tl.where(size < 0x38800000, small.to(tl.uint32, bitcast=True), near)
    near = tl.where(size > 0x7F800000, 0x7FC00000, near).to(tl.uint32)
    return (near | sign).to(tl.float32, bitcast=True)


@triton.jit
def fg_round_float8_e4m3fn(a):
    """A float32 on the grid of float8_e4m3fn, halves to even; it overflows to NaN."""
    bits = a.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    sign = bits ^ size
    near = (size + 0x7FFFF + ((size >> 20) & 1)) & 0xFFF00000
    near = tl.where(near > 0x43E00000, 0x7FC00000, near).to(tl.uint32)
    small = (tl.abs(a) + 16384.0) - 16384.0  # where numbers are 2 ** -9 apart
    near = tl.where(size < 0x3C800000, small.to(tl.uint32, bitcast=True), near)
    return (near | sign).to(tl.float32, bitcast=True)


@triton.jit
def fg_encode_float8_e5m2(a):
    """The byte of a number that is on the grid; the sign of NaN, which the chip drops, is kept."""
    near = fg_round_float8_e5m2(a)
    bits = near.to(tl.uint32, bitcast=True)
    half = near.to(tl.float16).to(tl.uint16, bitcast=True)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return tl.where(nan, ((bits >> 24) & 0x80) | 0x7E, half >> 8).to(tl.uint8)


@triton.jit
def fg_decode_float8_e5m2(a):
    """The number of a byte: the upper half of a float16; NaN keeps its sign."""
    number = (a.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    nan = ((a.to(tl.uint32) & 0x80) << 24) | 0x7FC00000
    bits = tl.where((a & 0x7F) > 0x7C, nan, number.to(tl.uint32, bitcast=True))
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def fg_encode_float8_e4m3fn(a):
    """The byte of a number that is on the grid."""
    bits = fg_round_float8_e4m3fn(a).to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    sign = (bits ^ size) >> 24
    small = (size.to(tl.float32, bitcast=True) * 512.0).to(tl.int32).to(tl.uint32)
    byte = tl.where(size < 0x3C800000, small, (size >> 20) - 960).to(tl.uint32)
    byte = tl.where(size > 0x43E00000, 0x7F, byte).to(tl.uint32)
    return (byte | sign).to(tl.uint8)


@triton.jit
def fg_decode_float8_e4m3fn(a):
    """The number of a byte."""
    byte = a.to(tl.uint32)
    size = byte & 0x7F
    large = ((size + 960) << 20).to(tl.float32, bitcast=True)
    found = tl.where(size < 8, size.to(tl.float32) * 0.001953125, large)
    bits = found.to(tl.uint32, bitcast=True)
    bits = tl.where(size == 0x7F, 0x7FC00000, bits).to(tl.uint32)
    return (bits | ((byte >> 7) << 31)).to(tl.float32, bitcast=True)


# --- keys ----------------------------------------------------------------------------------------


@triton.jit
def fg_float_key(a):
    """A signed number whose order is that of floats: -0.0 equals 0.0, NaN is above all."""
    if a.dtype == tl.float64:
        bits = (a + 0.0).to(tl.int64, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
        return tl.where(a == a, key, 0x7FFFFFFFFFFFFFFF).to(tl.int64)
    else:
        bits = (a + 0.0).to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        return tl.where(a == a, key, 0x7FFFFFFF).to(tl.int32)


@triton.jit
def fg_unsigned_key(a):
    """A signed number whose order is that of unsigned ones."""
    if a.dtype == tl.uint64:
        return (a ^ 0x8000000000000000).to(tl.int64, bitcast=True)
    else:
        return (a.to(tl.uint32) ^ 0x80000000).to(tl.int32, bitcast=True)


# --- random bits ---------------------------------------------------------------------------------


@triton.jit
def fg_rotate(x, by: tl.constexpr):
    """Rotated to the left."""
    return (x << by) | (x >> (32 - by))


@triton.jit
def fg_mix(x, y, a: tl.constexpr, b: tl.constexpr, c: tl.constexpr, d: tl.constexpr):
    """Four rounds of Threefry."""
    x += y
    y = fg_rotate(y, a) ^ x
    x += y
    y = fg_rotate(y, b) ^ x
    x += y
    y = fg_rotate(y, c) ^ x
    x += y
    y = fg_rotate(y, d) ^ x
    return x, y


@triton.jit
def fg_bits(low, high, counter, place):
    """Threefry-2x32-20 at a position: word place % 2 of block number counter + place // 2."""
    block = counter + (place.to(tl.uint64) >> 1)
    x = (block & 0xFFFFFFFF).to(tl.uint32)
    y = (block >> 32).to(tl.uint32)
    third = low ^ high ^ 0x1BD11BDA
    x += low
    y += high
    x, y = fg_mix(x, y, 13, 15, 26, 6)
    x += high
    y += third + 1
    x, y = fg_mix(x, y, 17, 29, 16, 24)
    x += third
    y += low + 2
    x, y = fg_mix(x, y, 13, 15, 26, 6)
    x += low
    y += high + 3
    x, y = fg_mix(x, y, 17, 29, 16, 24)
    x += high
    y += third + 4
    x, y = fg_mix(x, y, 13, 15, 26, 6)
    x += third
    y += low + 5
    return tl.where((place & 1) != 0, y, x)


# --- segments ------------------------------------------------------------------------------------
# combiners of a segmented scan: a flag begins a segment


@triton.jit
def fg_segment_add(f, a, g, b):
    """Sums that begin anew at flags."""
    return f | g, tl.where(g != 0, b, a + b)


@triton.jit
def fg_segment_mul(f, a, g, b):
    """Products that begin anew at flags."""
    return f | g, tl.where(g != 0, b, a * b)


@triton.jit
def fg_segment_or(f, a, g, b):
    """Disjunctions that begin anew at flags."""
    return f | g, tl.where(g != 0, b, a | b)


@triton.jit
def fg_segment_and(f, a, g, b):
    """Conjunctions that begin anew at flags."""
    return f | g, tl.where(g != 0, b, a & b)


@triton.jit
def fg_segment_max(f, a, g, b):
    """Maxima that begin anew at flags."""
    return f | g, tl.where(g != 0, b, fg_max(a, b))


@triton.jit
def fg_segment_min(f, a, g, b):
    """Minima that begin anew at flags."""
    return f | g, tl.where(g != 0, b, fg_min(a, b))


@triton.jit
def fg_segment_imax(f, a, g, b):
    """Maxima of whole numbers that begin anew at flags."""
    return f | g, tl.where(g != 0, b, tl.maximum(a, b))


@triton.jit
def fg_segment_imin(f, a, g, b):
    """Minima of whole numbers that begin anew at flags."""
    return f | g, tl.where(g != 0, b, tl.minimum(a, b))
