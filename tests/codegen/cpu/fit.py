"""Where every constant of codegen/cpu/vecmath comes from: fits by mpmath, printed as a module.

In: the functions below, each with an interval and how many coefficients either precision gets. Out:
`fulgurite/codegen/cpu/vecmath/tables.py`, by `python -m tests.codegen.cpu.fit --write`; without
`--write` the worst relative error of each fit, in bits. A fit meets the function at the Chebyshev
nodes, with 60 digits, and is rounded at the end: within a bit of the best polynomial, and quick to
redo.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np

TABLES = Path(__file__).parents[3] / "fulgurite" / "codegen" / "cpu" / "vecmath" / "tables.py"
mp.mp.dps = 60
Real = Any  # mpmath's numbers have no types


@dataclass(frozen=True)
class Fit:
    """A polynomial to fit: `exact` on an interval, with so many coefficients per precision."""

    name: str
    what: str
    exact: Callable[[Real], Real]
    low: Real
    high: Real
    single: int = 0  # coefficients for float32; 0: none
    double: int = 0
    wide: int = 0  # for a float32 that is computed in float64


@dataclass(frozen=True)
class Pieces:
    """A function of float32 in pieces, each a polynomial of so many coefficients around a centre.

    Which piece a number is in follows from the last four bits of something; pieces are in that
    order, and those that no number is in are 0. One that begins below 0 is of an odd function, and
    what is to be added to x.
    """

    name: str
    what: str
    exact: Callable[[Real], Real]
    ends: list[tuple[Real, Real] | None]
    count: int


def _near(function: Callable[[Real], Real]) -> Callable[[Real], Real]:
    """The function with its removable hole at 0 stepped over."""
    return lambda x: function(x if abs(x) > mp.mpf(10) ** -20 else mp.mpf(10) ** -20)


def _atanh_rest(z: Real) -> Real:
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / (s * z)


def _atanh_far(z: Real) -> Real:
    s = mp.sqrt(z)
    return (mp.atanh(s) / s - 1 - z / 3) / z**2


def _root(function: Callable[[Real, Real], Real]) -> Callable[[Real], Real]:
    """A function of z = x * x, given x and z."""
    return lambda z: function(mp.sqrt(z), z)


def _log_rest(base: int) -> Callable[[Real], Real]:
    return lambda f: (mp.log1p(f) - f) / (f**2 * mp.log(base))


def _scaled_erfc(middle: int) -> Callable[[Real], Real]:
    def exact(t: Real) -> Real:
        x = middle * (1 + t) / (1 - t)
        return (1 + 2 * x) * mp.erfc(x) * mp.exp(x * x)

    return exact


def _whole_erfc(t: Real) -> Real:
    x = 2 * ERFC_FROM / (1 - t) - ERFC_FROM
    return (x + ERFC_FROM) * mp.erfc(x) * mp.exp(x * x)


def _even_pieces(width: Real) -> list[tuple[Real, Real] | None]:
    """Pieces around the multiples of a width; a bit wider, as rounding decides where they end."""
    reach = width * mp.mpf("0.5001")
    return [(width * k - reach, width * k + reach) for k in range(16)]


def _growing_pieces() -> list[tuple[Real, Real] | None]:
    """Four pieces between powers of two of x + 1, by the last bits of its exponent."""
    found: list[tuple[Real, Real] | None] = [None] * 16
    for place in range(14):
        low, quarter = mp.mpf(2) ** (place // 4), mp.mpf(2) ** (place // 4 - 2)
        low += place % 4 * quarter - 1
        spare = quarter / 1000
        found[(place + 12) % 16] = (max(low - spare, mp.mpf(0)), low + quarter + spare)
    return found


def _stirling_rest(w: Real) -> Real:
    if w < mp.mpf(10) ** -12:  # the series itself, where subtracting would lose all digits
        return mp.mpf(1) / 12 - w / 360 + w * w / 1260
    x = 1 / mp.sqrt(w)
    plain = (x - mp.mpf(1) / 2) * mp.log(x) - x + mp.log(2 * mp.pi) / 2
    return (mp.loggamma(x) - plain) * x


HALF_LOG2 = mp.mpf("0.3475")  # a bit more than log(2) / 2
LOG_S = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
SLOPE = 1 - mp.euler  # of lgamma at 2
ERFC_MIDDLE = {"single": 3, "double": 4}
IN_TURN = ("ERFC_ALL",)  # where a coefficient of float32 is rounded before the next ones are fitted
ERFC_FROM = mp.mpf("1.5")
ERFC_LAST = {"single": mp.mpf("10.2"), "double": mp.mpf("27.3")}

FITS = [
    Fit("EXP", "(exp(r) - 1 - r) / r**2", _near(lambda r: (mp.expm1(r) - r) / r**2),
        -HALF_LOG2, HALF_LOG2, single=5, double=10),
    Fit("EXP2", "(2**r - 1) / r", _near(lambda r: mp.expm1(r * mp.log(2)) / r),
        mp.mpf("-0.501"), mp.mpf("0.501"), single=6, double=11, wide=8),
    Fit("COSH", "(cosh(r) - 1) / z, z = r * r", _near(_root(lambda r, z: (mp.cosh(r) - 1) / z)),
        mp.mpf(0), HALF_LOG2**2, single=3, double=6),
    Fit("SINH", "(sinh(r) - r) / (r * z)", _near(_root(lambda r, z: (mp.sinh(r) - r) / (r * z))),
        mp.mpf(0), HALF_LOG2**2, single=3, double=6),
    Fit("TANH", "(exp(2 r) - 1 - 2 r) / (2 r**2)",
        _near(lambda r: (mp.expm1(2 * r) - 2 * r) / (2 * r**2)),
        mp.mpf(0), HALF_LOG2, single=6),
    Fit("LOG", "(log(1 + f) - f + f * f / 2) / f**3",
        _near(lambda f: (mp.log1p(f) - f + f * f / 2) / f**3),
        mp.sqrt(mp.mpf(1) / 2) - 1, mp.sqrt(2) - 1, single=9),
    *[Fit(name, f"(log(1 + f) * c - f * c) / f**2, c = 1 / log({base})",
          _near(_log_rest(base)),
          mp.sqrt(mp.mpf(1) / 2) - 1, mp.sqrt(2) - 1, single=9)
      for name, base in (("LOG2", 2), ("LOG10", 10))],
    Fit("ATANH", "(2 * atanh(s) - 2 * s) / (s * z), z = s * s", _near(_atanh_rest),
        mp.mpf(0), LOG_S**2 * mp.mpf("1.001"), double=7, wide=5),
    Fit("ATANH_FAR", "(atanh(s) / s - 1 - z / 3) / z**2", _near(_atanh_far),
        mp.mpf(0), LOG_S**2 * mp.mpf("1.001"), double=8),
    Fit("SIN", "(sin(r) - r) / (r * z), |r| <= pi / 4",
        _near(_root(lambda r, z: (mp.sin(r) - r) / (r * z))),
        mp.mpf(0), (mp.pi / 4) ** 2 * mp.mpf("1.001"), double=6),
    Fit("COS", "(cos(r) - 1 + z / 2) / z**2, |r| <= pi / 4",
        _near(_root(lambda r, z: (mp.cos(r) - 1 + z / 2) / z**2)),
        mp.mpf(0), (mp.pi / 4) ** 2 * mp.mpf("1.001"), double=6),
    Fit("SIN", "(sin(r) - r) / (r * z), |r| <= pi / 4",
        _near(_root(lambda r, z: (mp.sin(r) - r) / (r * z))),
        mp.mpf(0), (mp.pi / 4) ** 2 * mp.mpf("1.001"), single=4),
    Fit("COS", "(cos(r) - 1) / z, |r| <= pi / 4",
        _near(_root(lambda r, z: (mp.cos(r) - 1) / z)),
        mp.mpf(0), (mp.pi / 4) ** 2 * mp.mpf("1.001"), single=4),
    Fit("COS_FAR", "(cos(r) - 1 + z / 2) / z**2, |r| <= pi / 4",
        _near(_root(lambda r, z: (mp.cos(r) - 1 + z / 2) / z**2)),
        mp.mpf(0), (mp.pi / 4) ** 2 * mp.mpf("1.001"), single=3),
    Fit("SIN_PI", "sin(pi * r) / r, |r| <= 1 / 2", _near(_root(lambda r, z: mp.sin(mp.pi * r) / r)),
        mp.mpf(0), mp.mpf("0.2501"), double=9, wide=6),
    Fit("ASIN", "(asin(x) - x) / (x * z), |x| <= 1 / 2",
        _near(_root(lambda x, z: (mp.asin(x) - x) / (x * z))),
        mp.mpf(0), mp.mpf("0.2501"), single=5, double=12),
    Fit("ATAN", "(atan(t) - t) / (t * z), |t| <= tan(pi / 8)",
        _near(_root(lambda t, z: (mp.atan(t) - t) / (t * z))),
        mp.mpf(0), mp.tan(mp.pi / 8) ** 2 * mp.mpf("1.001"), single=5, double=11),
    Fit("ERF", "erf(x) / x - 1, |x| <= 1 (float32: 0.9375)",
        _near(_root(lambda x, z: mp.erf(x) / x - 1)), mp.mpf(0), mp.mpf(1), double=12),
    Fit("ERF", "erf(x) / x - 1, |x| <= 1 (float32: 0.9375)",
        _near(_root(lambda x, z: mp.erf(x) / x - 1)), mp.mpf(0), mp.mpf("0.9375") ** 2, single=7),
    Fit("ERF_FAR", "-log(erfc(x)) / x, 0.9375 <= x <= 4", lambda x: -mp.log(mp.erfc(x)) / x,
        mp.mpf("0.93"), mp.mpf("4.02"), single=8),
    *[Fit("ERFC", "(1 + 2 x) exp(x * x) erfc(x) of t = (x - middle) / (x + middle), x >= 1 / 2",
          _scaled_erfc(middle), (mp.mpf("0.499") - middle) / (mp.mpf("0.499") + middle),
          (ERFC_LAST[which] - middle) / (ERFC_LAST[which] + middle), **{which: count})
      for (which, middle), count in zip(ERFC_MIDDLE.items(), (10, 22), strict=True)],
    Fit("ERFC_ALL", "(x + 3 / 2) exp(x * x) erfc(x) of 1 - 3 / (x + 3 / 2), x >= 0",
        _whole_erfc, mp.mpf(-1), 1 - 3 / (ERFC_LAST["single"] + ERFC_FROM), single=12),
    Fit("LGAMMA", "(lgamma(2 + d) - (1 - euler) * d) / d**2, |d| <= 1 / 2",
        _near(lambda d: (mp.loggamma(2 + d) - SLOPE * d) / d**2),
        mp.mpf("-0.501"), mp.mpf("0.501"), double=18, wide=10),
    Fit("STIRLING", "x * (lgamma(x) - Stirling's formula) of 1 / (x * x), x >= 8",
        _stirling_rest, mp.mpf(0), mp.mpf(1) / 64 * mp.mpf("1.001"), double=6, wide=3),
]  # fmt: skip
TANH_WIDTH, ERF_WIDTH = mp.mpf("0.586"), mp.mpf("0.2551")
PIECES = [
    Pieces("TANH", "tanh(x)", mp.tanh, _even_pieces(TANH_WIDTH), 8),
    Pieces("ERF", "erf(x)", mp.erf, _even_pieces(ERF_WIDTH), 7),
    Pieces("ERFC", "exp(x * x) erfc(x)", lambda x: mp.erfc(x) * mp.exp(x * x), _growing_pieces(),
           7),
]  # fmt: skip


def _through_nodes(f: Callable[[Real], Real], low: Real, high: Real, count: int) -> list[Real]:
    """The polynomial that meets a function at the Chebyshev nodes, highest power first."""
    angles = [mp.pi * (mp.mpf(j) + mp.mpf(1) / 2) / count for j in range(count)]
    middle, half = (low + high) / 2, (high - low) / 2
    values = [f(middle + half * mp.cos(angle)) for angle in angles]
    total = [mp.mpf(0)] * count  # lowest power first, of t = (x - middle) / half
    before, now = [mp.mpf(0)] * count, [mp.mpf(1)] + [mp.mpf(0)] * (count - 1)
    for k in range(count):
        weight = sum(v * mp.cos(k * angle) for v, angle in zip(values, angles, strict=True))
        weight *= (mp.mpf(1) if k == 0 else mp.mpf(2)) / count
        total = [t + weight * c for t, c in zip(total, now, strict=True)]
        factor = 1 if k == 0 else 2
        following = [factor * c - b for c, b in zip([mp.mpf(0), *now[:-1]], before, strict=True)]
        before, now = now, following
    found: list[Real] = []  # lowest power first, of x
    for coefficient in reversed(total):
        shifted = [c / half for c in [mp.mpf(0), *found]]
        lower = [-c * middle / half for c in [*found, mp.mpf(0)]]
        found = [a + b for a, b in zip(shifted, lower, strict=True)]
        found[0] += coefficient
    return found[:count][::-1]


def _rounded_in_turn(fit: Fit, count: int) -> list[float]:
    """Coefficients of float32, each of which makes up for the rounding of those of lower powers."""
    nodes = [mp.cos(mp.pi * (mp.mpf(j) + mp.mpf(1) / 2) / (4 * count)) for j in range(4 * count)]
    nodes = [(fit.low + fit.high) / 2 + (fit.high - fit.low) / 2 * node for node in nodes]
    exact = [fit.exact(node) for node in nodes]
    left, found = exact, []
    for power in range(count):
        rows = [[t**k / y for k in range(power, count)] for t, y in zip(nodes, exact, strict=True)]
        wanted = [rest / y for rest, y in zip(left, exact, strict=True)]
        best = mp.lu_solve(mp.matrix(rows), mp.matrix(wanted))  # by least squares
        found.append(float(np.float32(float(best[0]))))
        left = [rest - found[-1] * t**power for rest, t in zip(left, nodes, strict=True)]
    return found[::-1]


def _centre(exact: Callable[[Real], Real], low: Real, high: Real) -> float:
    """The float32 nearest to the middle, of many, at which the function is nearly one too."""
    if low < 0:
        return 0.0
    for step in range(1200):
        away = (high - low) * (-1) ** step * (step // 2) / 2000
        x = float(np.float32(float((low + high) / 2 + away)))
        y = exact(mp.mpf(x))
        close = np.float32(float(y))
        if abs(y - float(close)) * 32 < float(np.spacing(close)):
            return x
    raise ValueError(f"nothing between {low} and {high}")


def _piece(pieces: Pieces, low: Real, high: Real) -> list[float]:
    """A piece's centre and its coefficients, highest power first."""
    exact, centre = pieces.exact, _centre(pieces.exact, low, high)
    first = float(np.float32(float(exact(mp.mpf(centre)))))
    if low < 0:
        slope = _near(_root(lambda x, z: exact(x) / x))
        half = _through_nodes(slope, mp.mpf(0), high**2, pieces.count // 2)
        half[-1] -= 1
        found = [c for power in half for c in (power, mp.mpf(0))]
        found = [mp.mpf(0)] * (pieces.count % 2) + found
    else:
        slope = _near(lambda t: (exact(centre + t) - exact(mp.mpf(centre))) / t)
        found = _through_nodes(slope, low - centre, high - centre, pieces.count - 1)
        found.append(mp.mpf(first))
    return [centre, *[float(np.float32(float(c))) for c in found]]


def _pieces(pieces: Pieces) -> str:
    """The table of a function in pieces: centres, then coefficients, each of all pieces."""
    nothing = [0.0] * (1 + pieces.count)
    each = [_piece(pieces, *ends) if ends else nothing for ends in pieces.ends]
    rows = [f"({', '.join([str(np.float32(c)) for c in row])})," for row in zip(*each, strict=True)]
    lines = [f"# {pieces.what} in pieces: centres, then coefficients", f"{pieces.name}_PIECES = ("]
    for row in rows:
        lines += textwrap.wrap(row, 96, initial_indent="    ", subsequent_indent="     ")
    return "\n".join([*lines, ")  # fmt: skip"])


def _value(coefficients: list[Real], x: Real) -> Real:
    total = mp.mpf(0)
    for c in coefficients:
        total = total * x + c
    return total


def fitted(fit: Fit, count: int) -> tuple[list[Real], float]:
    """Coefficients, highest power first, and the worst error relative to the largest value."""
    coefficients = _through_nodes(fit.exact, fit.low, fit.high, count)
    worst, size = mp.mpf(0), mp.mpf(0)
    for i in range(201):
        x = fit.low + (fit.high - fit.low) * i / 200
        y = fit.exact(x)
        worst = max(worst, abs(_value(coefficients, x) - y))
        size = max(size, abs(y))
    return coefficients, float(mp.log(worst / size, 2))


def split(value: Real, bits: tuple[int, ...], single: bool = False) -> list[float]:
    """A number as a sum: parts of so many bits, then the rest rounded."""
    parts: list[float] = []
    for width in bits:
        exponent = int(mp.floor(mp.log(abs(value), 2)))
        unit = mp.mpf(2) ** (exponent - width + 1)
        part = mp.nint(value / unit) * unit
        parts.append(float(part))
        value -= part
    parts.append(float(np.float32(float(value))) if single else float(value))
    return parts


def _numbers(texts: Iterable[str]) -> str:
    """Numbers in rows, as the value of a name."""
    rows = textwrap.wrap(
        f"{', '.join(texts)},", 96, initial_indent="    ", subsequent_indent="    "
    )
    return "\n".join(["(", *rows, ")  # fmt: skip"])


def _parts(name: str, values: list[float]) -> str:
    """A short table, in one line if it fits."""
    line = f"{name} = {tuple(values)!r}"
    return line if len(line) <= 100 else f"{name} = {_numbers(map(repr, values))}"


def _table(name: str, numbers: Mapping[str, Real]) -> str:
    """Numbers by name."""
    return f"{name} = {json.dumps({key: float(value) for key, value in numbers.items()})}"


def module() -> str:
    """The text of tables.py."""
    lines = [
        '"""Minimax polynomials of the functions beside this file; written by '
        "tests/codegen/cpu/fit.py.",
        "",
        "Polynomials have their highest power first. A name ends in _32 for float32, in _64 for",
        "float64, in _WIDE for a float32 that is computed in float64. _PARTS are numbers as sums:",
        "where the leading ones are short, their product with a small whole number is exact.",
        '"""',
        "",
    ]  # fmt: skip
    for fit in FITS:
        for suffix, count in (("32", fit.single), ("64", fit.double), ("WIDE", fit.wide)):
            if not count:
                continue
            coefficients, bits = fitted(fit, count)
            narrow = suffix == "32"
            values = [float(np.float32(float(c))) if narrow else float(c) for c in coefficients]
            values = _rounded_in_turn(fit, count) if fit.name in IN_TURN else values
            lines.append(f"# {fit.what}: 2**{bits:.1f}")
            lines.append(f"{fit.name}_{suffix} = {_numbers(map(repr, values))}")
    lines += [_pieces(pieces) for pieces in PIECES]
    lines.append(_table("WIDTHS", {"tanh": TANH_WIDTH, "erf": ERF_WIDTH}))
    for name, value in (
        ("LN2", mp.log(2)),
        ("LOG10_2", mp.log(2) / mp.log(10)),
    ):
        lines.append(_parts(f"{name}_PARTS_32", split(value, (12,), True)))
        lines.append(_parts(f"{name}_PARTS_64", split(value, (32,))))
    for name, value, narrow_bits, wide_bits in (
        ("LOG2_E", 1 / mp.log(2), (24,), (53,)),
        ("LOG10_E", 1 / mp.log(10), (24,), (53,)),
        ("PI_2", mp.pi / 2, (24, 24), (33, 33, 33)),
        ("PI_2_PAIR", mp.pi / 2, (24,), (53,)),
        ("PI_4", mp.pi / 4, (21,), (50,)),
        ("PI_PAIR", mp.pi, (24,), (53,)),
        ("PI_2_WIDE", mp.pi / 2, (), (33,)),
        ("LGAMMA_SLOPE", SLOPE, (), (53,)),
        ("HALF_LOG_2PI", mp.log(2 * mp.pi) / 2, (), (53,)),
        ("LOG_PI", mp.log(mp.pi), (), (53,)),
        ("THIRD", mp.mpf(1) / 3, (), (53,)),
    ):
        if narrow_bits:
            lines.append(_parts(f"{name}_PARTS_32", split(value, narrow_bits, True)))
        if wide_bits:
            lines.append(_parts(f"{name}_PARTS_64", split(value, wide_bits)))
    for suffix, which in (("32", "single"), ("64", "double")):
        fit = next(f for f in FITS if f.name == "ERFC" and getattr(f, which))
        last = fitted(fit, getattr(fit, which))[0][-1]
        parts = split(last, (24,), True) if suffix == "32" else split(last, (53,))
        lines.append(_parts(f"ERFC_LAST_PARTS_{suffix}", parts))
    single, double = ERFC_MIDDLE.values()
    limits = {"from": ERFC_FROM, "float32": single, "float64": double}
    lines.append(_table("ERFC_LIMITS", limits))
    with mp.workdps(500):
        words = int(mp.floor(2 / mp.pi * mp.mpf(2) ** (64 * 20)))
    chunks = [(words >> (64 * (19 - i))) & ((1 << 64) - 1) for i in range(20)]
    lines.append("# the bits of 2 / pi after the point, 64 to a word, after a word of zeros")
    lines.append(f"TWO_OVER_PI = {_numbers([f'0x{c:016X}' for c in (0, *chunks)])}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the errors, or write the module."""
    if "--write" in sys.argv:
        TABLES.write_text(module(), encoding="utf-8")
        return
    for fit in FITS:
        for which in ("single", "double", "wide"):
            count = getattr(fit, which)
            if count:
                print(f"{fit.name:10} {which:7} {count:3}  2**{fitted(fit, count)[1]:.1f}")


if __name__ == "__main__":
    main()
