"""Why kernels are below the machine's limit, and where time goes that is in no kernel.

In: a profile. Out: questions, reasons and suggestions. A kernel is held back by memory, arithmetic,
latency (it is so short that launching it counts), threads (one does all) or tails (threads wait for
the last); figures of the profile say which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runtime.holders import readable
from .tables import duration

if TYPE_CHECKING:
    from .profiler import Profile, Row

Found = tuple[str, tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on something is the reason."""

    share: float = 0.05  # of the time in kernels: less is not asked about
    short: float = 5e-6  # seconds of a kernel that its launch counts in
    reached: float = 0.6  # of the limit
    busy: float = 0.75  # of the threads
    alone: float = 1.15  # threads that worked, on average


THRESHOLDS = Thresholds()


def outside_kernels(profile: Profile) -> Found:
    """Where time goes that is in no kernel."""
    whole, inside = profile.seconds, profile.kernel_seconds
    spent = {
        kind: sum([e.end - e.begin for e in profile.events if e.kind == kind]) / 1e9
        for kind in ("graph", "capture")
    }
    captured = max(0.0, spent["capture"])
    compiled = spent["graph"]
    rest = max(0.0, whole - inside - compiled - captured)
    parts = {
        "kernels": inside, "compiling": compiled, "capturing": captured, "Python": rest,
    }  # fmt: skip
    because = tuple(
        [f"{duration(t)} ({t / max(whole, 1e-12):.0%}) in {n}" for n, t in parts.items()]
    )
    largest = max(parts, key=parts.__getitem__)
    first = "call it once before: captures and compiled graphs are kept, these also on disk"
    advice = {
        "kernels": "see the kernels that take longest: fg.why(profile).about('limits')",
        "compiling": first,
        "capturing": first,
        "Python": "put the step into a function and fg.jit it: a call is one launch then",
    }[largest]
    return f"where do {duration(whole)} go?", because, advice


def below_limit(profile: Profile) -> Iterator[Found]:
    """For each kernel that counts, what holds it back."""
    for row in profile.kernels:
        if row.share >= THRESHOLDS.share:
            yield _kernel(profile, row)


def _kernel(profile: Profile, row: Row) -> Found:
    each = row.seconds / row.calls
    threads = max([r.threads for r in profile.runs if r.facts.name == row.name], default=0)
    question = (
        f"why does {row.name} at {row.lines[0]} take {duration(each)}, at {row.limit:.0%} of the "
        "limit?"
    )
    facts = (
        f"{readable(row.bytes / row.calls)} at {row.bytes / row.seconds / 1e9:.1f} GB/s, "
        f"{row.flops / row.calls:.3g} operations at {row.flops / row.seconds / 1e9:.1f} GFLOP/s"
    )
    reason, advice = _reason(row, each, threads)
    return question, (reason, facts), advice


def _reason(row: Row, each: float, threads: int) -> tuple[str, str]:
    """What holds a kernel back, the most telling first."""
    if each < THRESHOLDS.short:
        return (
            f"latency: {duration(each)} is about what a launch costs",
            "give it more to do: a larger batch, or fg.jit over the whole step, which fuses more",
        )
    if row.limit >= THRESHOLDS.reached and row.bound == "memory":
        return (
            "memory: it moves bytes about as quickly as the machine can",
            "move fewer: a narrower dtype, or keep less between kernels",
        )
    if row.limit >= THRESHOLDS.reached:
        return (
            "arithmetic: it computes about as quickly as the machine can",
            "compute less, or in a narrower dtype",
        )
    if threads > 1 and row.busy * threads <= THRESHOLDS.alone:
        return (
            "threads: one of them did it alone, as there is too little to share",
            "a larger batch, or fewer and larger calls",
        )
    if threads > 1 and row.busy < THRESHOLDS.busy:
        return (
            "tails: threads waited for the last one",
            "sizes that divide evenly among threads, or a larger batch; is the machine busy?",
        )
    return (
        f"{row.bound}, below its rate: short rows, strides or conditions cost more than they do",
        "fulgurite tune measures this machine, FULGURITE_TUNE=ties times plans before they are "
        "chosen",
    )
