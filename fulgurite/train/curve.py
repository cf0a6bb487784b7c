"""The loss curve as an SVG picture: one file, no library, readable in any browser.

In: losses, one for each step. Out: the text of an SVG: every loss as a thin line, their running
mean as a thick one, axes with round numbers. Equal losses give equal text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 36, 40
MOST_POINTS = 1000


def curve(losses: Sequence[float], title: str) -> str:
    """A picture of losses over steps."""
    finite = [(step, loss) for step, loss in enumerate(losses, start=1) if math.isfinite(loss)]
    shown = finite[:: max(1, len(finite) // MOST_POINTS)] or [(1, 0.0)]
    smooth = _smooth(shown)
    high = max(max(loss for _, loss in shown), 1e-12)
    low = min(0.0, min(loss for _, loss in shown))
    last = max(2, len(losses))

    def place(step: float, loss: float) -> str:
        x = LEFT + (step - 1) / (last - 1) * (WIDTH - LEFT - RIGHT)
        y = TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    def line(points: Sequence[tuple[int, float]], style: str) -> str:
        path = " ".join([place(step, loss) for step, loss in points])
        return f'<polyline fill="none" {style} points="{path}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for value in ticks(low, high):
        x, y = place(1, value).split(",")
        parts.append(
            f'<line x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for value in ticks(0, last):
        if value >= 1:
            x = place(value, low).split(",")[0]
            parts.append(f'<text x="{x}" y="{HEIGHT - 18}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">step</text>')
    parts.append(line(shown, 'stroke="#9bbcd9" stroke-width="1"'))
    parts.append(line(smooth, 'stroke="#1f5f99" stroke-width="2"'))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers between two others."""
    span = max(high - low, 1e-12)
    step = 10.0 ** math.floor(math.log10(span / 5))
    step *= next((m for m in (1, 2, 5) if span / (step * m) <= 6), 10)
    first = math.ceil(low / step)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + i) * step, 12) for i in range(count)]


def _smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The running mean, corrected for its beginning."""
    keep = 1 - 1 / max(2, len(points) // 30)
    mean, weight, found = 0.0, 0.0, []
    for step, loss in points:
        mean, weight = keep * mean + (1 - keep) * loss, keep * weight + 1 - keep
        found.append((step, mean / weight))
    return found
