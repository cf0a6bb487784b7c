"""Derivatives of log gamma as a Triton function, one for each order.

In: the order. Out: text. Worked out in float64 whatever the argument's dtype is, and rounded once.
Arguments above 0 use direct terms and an asymptotic series (Euler-Maclaurin); those below are
mirrored: the difference is a derivative of pi * cot(pi x). Poles at -1, -2, ... give NaN, those at
±0 infinities, as the op table's NumPy meaning has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core.ops.special import DIGAMMA_COEFFICIENTS, cot_coefficients, zeta_coefficients

_DIRECT = 12  # terms summed one by one before the series


def _f64(value: float) -> str:
    return f"tl.full((), {value!r}, tl.float64)"


def _polynomial(name: str, coefficients: Sequence[float]) -> str:
    """Σ c[k] * x ** k by Horner's rule."""
    text = _f64(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        text = f"({text} * {name} + {_f64(c)})"
    return text


def _power(name: str, exponent: int) -> str:
    return " * ".join([name] * exponent) if exponent else "1.0"


def polygamma_function(order: int) -> str:
    """The text of `fg_polygamma_<order>`."""
    lines = [
        "@triton.jit",
        f"def fg_polygamma_{order}(value):",
        "    x = value.to(tl.float64)",
        "    mirrored = x <= 0",
        "    y = tl.where(mirrored, 1.0 - x, x)",
        "    last = y + 12.0",
        "    step = 1.0 / last",
        "    square = step * step",
    ]
    lines += _digamma() if order == 0 else _zeta(order)
    cot = _polynomial("cot", cot_coefficients(order))
    pole = "float('inf')"
    sign = "" if order % 2 else " * tl.where(x.to(tl.int64, bitcast=True) < 0, 1.0, -1.0)"
    lines += [
        f"    cot = 1.0 / libdevice.tan((x - libdevice.rint(x)) * {_f64(math.pi)})",
        f"    slope = {cot} * {_f64(math.pi ** (order + 1))}",
        "    found = tl.where(mirrored, found - slope, found)",
        "    found = tl.where(mirrored & (x == tl.floor(x)), float('nan'), found)",
        f"    found = tl.where(x == 0, {pole}{sign}, found)",
        f"    found = tl.where(x == float('inf'), {pole if order == 0 else '0.0'}, found)",
        "    return found.to(value.dtype)",
    ]
    return "\n".join(lines)


def _digamma() -> list[str]:
    lines = [
        f"    found = libdevice.log(last) - 0.5 * step - square * "
        f"{_polynomial('square', DIGAMMA_COEFFICIENTS)}"
    ]
    return lines + [f"    found = found - 1.0 / (y + {k}.0)" for k in reversed(range(_DIRECT))]


def _zeta(order: int) -> list[str]:
    """Hurwitz zeta of order + 1, times ±order!; mirrored arguments change the sign for odd ones."""
    s = order + 1
    size = float(math.factorial(order))
    lines = [f"    found = 1.0 / ({_power('y', s)})"]
    for k in range(1, _DIRECT):
        lines += [f"    z = y + {k}.0", f"    found = found + 1.0 / ({_power('z', s)})"]
    lines += [
        f"    before = 1.0 / ({_power('last', s - 1)})",
        f"    series = {_polynomial('square', zeta_coefficients(s))}",
        f"    found = found + before * {_f64(1 / (s - 1))}",
        "    found = found + before * step * (0.5 + step * series)",
        f"    found = found * {_f64(size if order % 2 else -size)}",
    ]
    if order % 2:
        lines.append("    found = tl.where(mirrored, found * -1.0, found)")
    return lines
