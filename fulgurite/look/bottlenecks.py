"""Bottlenecks: why kernels are below the machine's roofline, and where other time goes.

In: a profile. Out: questions, reasons and suggestions. A kernel is held back by memory, arithmetic,
latency (it is so short that launching it counts), threads (one does all) or tails (threads wait for
the last); figures of the profile say which. Where Python ran it, none of these is the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.ir.kernel_kind import KernelKind
from ..runtime.holders import readable
from ..runtime.recording import HOSTS
from .profiler import union
from .tables import duration

if TYPE_CHECKING:
    from .profiler import KernelRun, Profile, Row

Diagnosis = tuple[str, tuple[str, ...], str]  # question, reasons, advice


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on something is the reason."""

    share: float = 0.05  # of the time in kernels: less is not asked about
    short: float = 5e-6  # seconds of a kernel that its launch counts in
    reached: float = 0.6  # of the limit
    busy: float = 0.75  # of the threads
    alone: float = 1.15  # threads that worked, on average


THRESHOLDS = Thresholds()
CONTROL = frozenset([str(kind) for kind in KernelKind if kind.is_control])


def outside_kernels(profile: Profile) -> Diagnosis:
    """Where time goes that is in no kernel."""
    whole = profile.seconds
    spans = {"kernels": [(run.begin, run.end) for run in profile.runs]}
    for kind, what in (("graph", "compiling"), ("capture", "capturing")):
        spans[what] = [(e.begin, e.end) for e in profile.events if e.kind == kind]
    parts: dict[str, float] = {}
    known: list[tuple[int, int]] = []
    for what, some in spans.items():  # what is in several, of several threads too, counts once
        parts[what] = (union([*known, *some]) - union(known)) / 1e9
        known += some
    parts["Python"] = max(0.0, whole - sum(parts.values()))
    because = tuple(
        [f"{duration(t)} ({t / max(whole, 1e-12):.0%}) in {n}" for n, t in parts.items()]
    )
    if not profile.runs and not profile.events:
        lazy = "compute something inside: tensors wait until realize(), numpy() or print asks"
        return f"where do {duration(whole)} go?", ("no kernel ran, nothing was compiled",), lazy
    largest = max(parts, key=parts.__getitem__)
    first = "call it once before: captures and compiled graphs are kept, these also on disk"
    advice = {
        "kernels": "see the kernels that take longest: fg.why(profile).about('limits')",
        "compiling": first,
        "capturing": first,
        "Python": "put the step into a function and fg.jit it: a call is one launch then",
    }[largest]
    looked = profile.cache.get("schedule hits", 0) or spans["compiling"]
    if largest == "Python" and (spans["capturing"] or not looked):  # it is replayed already
        advice = (
            "look at what is between calls (reading data, printing, asking for values); if that is "
            "nothing, a call does too little: a larger batch, or several steps in one function"
        )
    return f"where do {duration(whole)} go?", because, advice


def below_limit(profile: Profile) -> Iterator[Diagnosis]:
    """For each kernel that counts, what holds it back."""
    for row in profile.kernels:
        if row.share >= THRESHOLDS.share:
            yield _kernel(profile, row)


def _kernel(profile: Profile, row: Row) -> Diagnosis:
    each = row.seconds / row.calls
    runs = [r for r in profile.runs if r.facts.name == row.name and (*r.facts.lines,) == row.lines]
    if runs and all([run.by for run in runs]):
        question = f"why does {row.name} at {row.lines[0]} take {duration(each)}?"
        return question, *_by_python(runs[0])
    threads = max([r.threads for r in runs], default=0)
    question = (
        f"why does {row.name} at {row.lines[0]} take {duration(each)}, at {row.limit:.0%} of the "
        "limit?"
    )
    facts = (
        f"{readable(row.bytes / row.calls)} at {row.bytes / row.seconds / 1e9:.1f} GB/s, "
        f"{row.flops / row.calls:.3g} operations at {row.flops / row.seconds / 1e9:.1f} GFLOP/s"
    )
    reason, advice = _reason(row, each, threads)
    callers = {run.thread for run in profile.runs}
    if reason.startswith("threads") and len(callers) > 1:
        reason = "threads: one did it alone; kernels of another Python thread may have had the rest"
        advice = "call it from one Python thread: a kernel uses all processors by itself"
    return question, (reason, facts), advice


def _by_python(run: KernelRun) -> tuple[tuple[str, ...], str]:
    """What is said of a kernel that Python ran: limits of the machine have no say in it."""
    if run.facts.kind in CONTROL:
        return (
            (f"Python runs its bodies one after the other: this is what is between their kernels, "
             f"{run.device} runs those",),
            "fewer steps that do more each: several rows at once, or no loop at all",
        )  # fmt: skip
    because = f"host: it was run by {HOSTS[run.by]}"
    advice = {
        "tiny": "fg.jit over the whole step, so that it is a part of more, or larger data; "
        "fg.config(tier='native') compiles even this",
        "steps": "fg.config(device='cpu'), which compiles it where it can: fulgurite doctor says "
        "if it does here",
        "host": "other ops in its place, or larger data, of which it is a smaller part",
    }
    return (because,), advice[run.by]


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
