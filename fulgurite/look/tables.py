"""Tables for the terminal: rows of a profile under a head that says what they add up to.

In: a profile and its rows. Out: text of at most a hundred columns or so, the longest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..runtime.holders import number_of, readable

if TYPE_CHECKING:
    from .profiler import Profile, Row


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds:.0f} s"
    return f"{seconds * 1e9:.0f} ns"


def columns(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Rows of cells under each other; columns in `left` begin, others end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _head(profile: Profile) -> list[str]:
    inside, whole = profile.covered_seconds, max(profile.seconds, 1e-9)
    threads = len({run.thread for run in profile.runs})
    together = f", {duration(profile.kernel_seconds)} of {threads} threads together"
    lines = [
        f"{duration(whole)} in all, {duration(inside)} ({inside / whole:.1%}) in "
        f"{number_of(len(profile.runs), 'run')} of kernels{together if threads > 1 else ''}",
        *_compiled(profile),
    ]
    if profile.copies:
        moved = sum([c.nbytes for c in profile.copies])
        took = sum([c.end - c.begin for c in profile.copies]) / 1e9
        copies = "1 copy" if len(profile.copies) == 1 else f"{len(profile.copies)} copies"
        lines.append(f"{copies} of {readable(moved)} in {duration(took)}")
    if profile.memory:
        lines.append(f"at most {readable(max([used for _, used in profile.memory]))} in use")
    return [
        *lines, *[f"limit of {name}: {rates.source}" for name, rates in profile.rates.items()]
    ]  # fmt: skip


def _compiled(profile: Profile) -> list[str]:
    """What was compiled and captured, if anything was or could have been."""
    compiled = [e for e in profile.events if e.kind == "graph"]
    captured = [e for e in profile.events if e.kind == "capture"]
    known = profile.cache.get("schedule hits", 0)
    if not (compiled or captured or known):
        return []
    took = sum([e.end - e.begin for e in compiled]) / 1e9
    loaded = sum([e.about["loaded"] for e in compiled])
    return [
        f"{number_of(len(compiled), 'graph')} compiled in {duration(took)} ({loaded} of them "
        f"loaded from disk), {known} found in the cache, {number_of(len(captured), 'capture')}"
    ]


def show_profile(profile: Profile, rows: Sequence[Row], by: str, most: int) -> str:
    """A profile as a table."""
    if not rows:
        return "\n".join([*_head(profile), "", "no kernel ran: nothing was computed in the block"])
    head = ["time", "share", "calls", "GB/s", "GFLOP/s", "limit", "bound", "threads", by]
    cells = [head + (["from"] if by == "kernel" else [])]
    for row in rows[:most]:
        took = max(row.seconds, 1e-9)
        line = [
            duration(row.seconds), f"{row.share:.1%}", str(row.calls),
            f"{row.bytes / took / 1e9:.1f}", f"{row.flops / took / 1e9:.1f}",
            f"{row.limit:.0%}", row.bound, f"{row.busy:.0%}", row.name,
        ]  # fmt: skip
        if by == "kernel":
            line.append(row.lines[0] + (" ..." if len(row.lines) > 1 else ""))
        cells.append(line)
    text = [*_head(profile), "", *columns(cells, left=(6, 8, 9))]
    if len(rows) > most:
        rest = sum([row.seconds for row in rows[most:]])
        text.append(f"{len(rows) - most} more, {duration(rest)}")
    return "\n".join(text)
