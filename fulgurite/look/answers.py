"""`fg.why(...)`: answers to the questions that people ask of a compiler, each with what to do.

In: nothing (what was compiled and captured lately), tensors (the kernels that would run), a jitted
function (its captures) or a profile (where its time went). Out: `Answers`: each has a question,
reasons and a suggestion; `str` prints them. docs/why.md has ten questions; its tests do what each
answer suggests, and see that it helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ..core.dtype import decode
from ..core.origin import Origin
from ..errors import ArgumentError
from ..graph.fusion.report import RegionReport
from ..graph.ir.cache_key import constant_uses
from ..graph.ir.size_key import SKELETONS
from ..runtime.holders import number_of, readable
from ..runtime.plan_key import cache_key
from ..runtime.recording import HISTORY, Event
from ..runtime.sizes.report import may_vary, sizes_report
from ..tensor import Tensor
from .attribution import line_of
from .bottlenecks import below_limit, outside_kernels
from .inspection import Inspection, graph_of, inspect_graph, inspection_of
from .memory import alive_bytes
from .profiler import Profile

TOPICS = ("compiled", "captured", "kernels", "plans", "memory", "limits", "time")


class Answer(NamedTuple):
    """One question with its answer."""

    topic: str  # one of TOPICS
    question: str
    because: tuple[str, ...]
    advice: str = ""

    def __str__(self) -> str:
        lines = [self.question, *[f"    {line}" for line in self.because]]
        return "\n".join([*lines, f"    try: {self.advice}"] if self.advice else lines)


class Answers(tuple[Answer, ...]):
    """Answers that print one after the other."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) if self else "nothing to answer: nothing was compiled here"

    __repr__ = __str__

    def about(self, topic: str) -> Answers:
        """The answers to questions of one kind."""
        if topic not in TOPICS:
            raise ArgumentError(f"there is no topic {topic!r}", f"one of {', '.join(TOPICS)}")
        return Answers([answer for answer in self if answer.topic == topic])


def why(*things: Any) -> Answers:
    """Answers about tensors, jitted functions and profiles; of nothing: about what was compiled."""
    if not things:
        return Answers([*compiled_again(list(HISTORY)), *captured_again(HISTORY)])
    found: list[Answer] = []
    tensors = [thing for thing in things if isinstance(thing, Tensor)]
    if tensors:
        found += _about_tensors(tensors)
    for thing in things:
        if isinstance(thing, Profile):
            found += _about_profile(thing)
        elif hasattr(thing, "__fulgurite_jit__"):
            found += _about_function(thing)
        elif not isinstance(thing, Tensor):
            raise ArgumentError(
                f"there is no answer about {type(thing).__name__}",
                "give tensors, functions of fg.jit or what fg.profile() gave",
            )
    return Answers(found)


def _about_function(function: Any) -> Sequence[Answer]:
    """The captures of one jitted function: others may have its name."""
    function = getattr(function, "__func__", function)  # of a method
    kept = [e for e in HISTORY if e.kind == "capture" and e.about["function"]() is function]
    if kept:
        return [*captured_again(kept, first=True)]
    name = getattr(function.function, "__qualname__", "the function").rpartition(".")[2]
    if function.captured:
        because = f"it was, {function.captured} times, which is no longer remembered in detail"
        advice = "ask sooner: the latest compilations and captures are kept, clear_caches() drops "
        return [Answer("captured", f"why was {name} captured?", (because,), f"{advice}them")]
    because = "it was not called yet, or only inside of other functions of fg.jit and transforms"
    return [Answer("captured", f"why was {name} not captured?", (because,), "call it once before")]


def _about_tensors(tensors: Sequence[Tensor]) -> Iterator[Answer]:
    yield from about_graph(inspection_of(tensors, texts=False))


def about_script(profile: Profile) -> Answers:
    """All answers about what ran, and about every graph that was compiled for it."""
    found = [*_about_profile(profile)]
    for event in profile.events:
        if event.kind == "graph":
            found += about_graph(inspect_graph(graph_of(event), texts=False))
    return Answers(dict.fromkeys(found))


def about_graph(seen: Inspection) -> Iterator[Answer]:
    """The kernels of a graph, its plan and its memory."""
    yield from own_kernels(seen)
    yield from plans(seen)
    yield memory_needed(seen)


def _about_profile(profile: Profile) -> Iterator[Answer]:
    yield Answer("time", *outside_kernels(profile))
    for question, because, advice in below_limit(profile):
        yield Answer("limits", question, because, advice)
    yield from compiled_again(profile.events)
    yield from captured_again(profile.events)


# --- compiled again ------------------------------------------------------------------------------


def compiled_again(events: Sequence[Event]) -> Iterator[Answer]:
    """Why graphs were compiled that are nearly those of before."""
    graphs = [event for event in events if event.kind == "graph"]
    known = [event for event in HISTORY if event.kind == "graph"]
    for event in graphs:
        lines = _lines(event)
        earlier = [
            other for other in reversed(known)
            if other.begin < event.begin and not set(lines).isdisjoint(_lines(other))
        ]  # fmt: skip
        near = min(earlier, key=lambda other: _distance(other, event), default=None)
        if near is None or _distance(near, event)[0] > max(4, len(event.about["structure"]) // 2):
            continue
        because, advice = _difference(near, event)
        took = (event.end - event.begin) / 1e6
        how = "loaded from disk" if event.about["loaded"] else "compiled"
        where = f" at {lines[0]}" if lines else ""
        head = f"why was the graph{where} compiled again?"
        last = f"it was {how} in {took:.1f} ms: {number_of(event.about['kernels'], 'kernel')}"
        yield Answer("compiled", head, (*because, last), advice)


def _lines(event: Event) -> list[str]:
    return [line_of(origins[0]) for origins in reversed(event.about["lines"]) if origins]


def _distance(a: Event, b: Event) -> tuple[int, int]:
    """In how many entries two graphs differ, then in how much else."""
    mine, theirs = a.about["structure"], b.about["structure"]
    if SKELETONS.key(mine)[0] == SKELETONS.key(theirs)[0]:  # sizes that follow from others differ
        mine, theirs = [[e for e in s if _is_input(e)] for s in (mine, theirs)]
    differ = sum([x != y for x, y in zip(mine, theirs, strict=False)])
    rest = sum([a.about[k] != b.about[k] for k in ("device", "options", "constants")])
    return abs(len(mine) - len(theirs)) + differ, rest


def _difference(old: Event, new: Event) -> tuple[tuple[str, ...], str]:
    """What differs from the nearest graph that was known, and what to do about it."""
    a, b = old.about, new.about
    pairs = enumerate(zip(a["structure"], b["structure"], strict=False))
    entries = [i for i, (x, y) in pairs if x != y and not _are_alike(x, y)]
    if entries or len(a["structure"]) != len(b["structure"]):
        return _other_structure(a, b, entries)
    if a["device"] != b["device"]:
        return (f"it runs on {b['device']}, the other one ran on {a['device']}",), (
            "keep tensors on one device"
        )
    changed = [
        f.name for f in fields(a["options"])
        if f.metadata["in_key"] and getattr(a["options"], f.name) != getattr(b["options"], f.name)
    ]  # fmt: skip
    if changed:
        listed = ", ".join(
            f"{n} is {getattr(b['options'], n)!r}, was {getattr(a['options'], n)!r}"
            for n in changed
        )
        return (f"options differ that plans depend on: {listed}",), (
            "choose them once, around everything: each choice has plans of its own"
        )
    if a["constants"] != b["constants"]:
        return _other_constants(a, b)
    return ("the very same graph was known: its plan was dropped or may not be used",), (
        "a larger fg.config(schedule_cache=...), or do not call clear_caches(); an assignment that "
        "may not write over its memory has a plan of its own"
    )


def _other_structure(a: Any, b: Any, entries: list[int]) -> tuple[tuple[str, ...], str]:
    inputs = [i for i in entries if _is_input(b["structure"][i]) and _is_input(a["structure"][i])]
    if not inputs:
        at = entries[0] if entries else min(len(a["structure"]), len(b["structure"])) - 1
        line = _line_at(b, at)
        return (
            f"{len(b['structure'])} entries, not {len(a['structure'])}; the first that differs is "
            f"{_entry(b['structure'], at)}, not {_entry(a['structure'], at)}{line}",
        ), "another branch or length of Python's was taken: use fg.where, fg.cond or fg.scan"
    because = []
    for i in inputs[:3]:
        new, old, place = b["structure"][i], a["structure"][i], inputs.index(i)
        because.append(
            f"input {place} is {new[1]}{list(new[3])}, not {old[1]}{list(old[3])}"
            f"{_line_at(b, _first_use(b['structure'], i))}"
        )
    dtypes = any([a["structure"][i][1] != b["structure"][i][1] for i in inputs])
    if dtypes:
        return tuple(because), "give it the same dtype each time: x.astype(...) where it is made"
    rest = cache_key(b["device"], b["options"], b["donated"])
    if may_vary(b["structure"], rest):
        because += [f"sizes: {line}" for line in sizes_report(b["structure"], b["constants"], rest)]
        return tuple(because), (
            "nothing, if it is the second or third size: one plan serves all that come later"
        )
    return tuple(because), (
        'let one plan serve many sizes: x[:fg.Var("n", low, high).bind(n)] of memory that is as '
        "large as it gets, or pad to a few sizes"
    )


def _is_input(entry: Any) -> bool:
    return isinstance(entry, tuple) and bool(entry) and entry[0] == "param"


def _are_alike(one: Any, other: Any) -> bool:
    """True of inputs that differ in nothing but their device."""
    both = _is_input(one) and _is_input(other)
    return both and (one[1], one[3]) == (other[1], other[3])


def _first_use(structure: Sequence[Any], place: int) -> int:
    """The first entry that reads another one."""
    for i, entry in enumerate(structure):
        if isinstance(entry, tuple) and not _is_input(entry) and place in entry[3:]:
            return i
    return place


def _line_at(about: Any, place: int) -> str:
    lines: Sequence[Sequence[Origin]] = about["lines"]
    origins = lines[place] if place < len(lines) else ()
    return f", read at {line_of(origins[0])}" if origins else ""


def _entry(structure: Sequence[Any], place: int) -> str:
    entry = structure[place] if 0 <= place < len(structure) else None
    if isinstance(entry, tuple) and entry and hasattr(entry[0], "name"):
        return str(entry[0].name)
    return "the end" if entry is None else "a result" if isinstance(entry, int) else "a constant"


def _other_constants(a: Any, b: Any) -> tuple[tuple[str, ...], str]:
    uses = list(constant_uses(b["structure"]))
    pairs = enumerate(zip(a["constants"], b["constants"], strict=True))
    because = []
    for i, (old, new) in pairs:
        if old != new:
            dtype = uses[i][1]
            because.append(f"a constant is {decode(new, dtype)}, was {decode(old, dtype)}")
    made = "it is a run-time number from now on" if b["lifted"] else "it is part of a size"
    return (*because[:3], made), (
        "nothing, if it is one compilation: later numbers need none. Give "
        "fg.Tensor(np.array(number)), which is data, to spare this one too"
    )


# --- captured again ------------------------------------------------------------------------------


def captured_again(events: Iterable[Event], first: bool = False) -> Iterator[Answer]:
    """Why jitted functions were captured again, or not replayed; the first time too if asked."""
    for event in events:
        if event.kind != "capture":
            continue
        about, name = event.about, event.name.rpartition(".")[2]
        where = f" called at {about['line']}" if about["line"] else ""
        if about["refused"]:
            question = f"why is {name}{where} not replayed?"
            yield Answer("captured", question, (about["refused"],), _unreplayed(about["refused"]))
        elif not about["first"]:
            question = f"why was {name}{where} captured again?"
            because = (f"the guard that failed: {about['why']}", f"capture {about['times']} of it")
            yield Answer("captured", question, because, about["advice"])
        elif first:
            yield Answer("captured", f"why was {name}{where} captured?", ("its first call",))


def _unreplayed(reason: str) -> str:
    if "has a gradient" in reason:
        return "with fg.no_grad(): around the call, or take the gradient inside the function"
    return "mend that, or leave fg.jit out: each attempt costs more than the call"


# --- kernels -------------------------------------------------------------------------------------

# how a reason begins -> what it means, and what to do about it
REASONS = {
    "a contraction": (
        "products of matrices are tiled and packed; what follows element by element is done in "
        "the same kernel",
        "nothing: it is as it should be; a chain like attention is merged if that is cheaper",
    ),
    "its rows are not": (
        "it reduces along other rows than the kernel before it, whose values must all be there",
        "reduce along the same axis, or let the one before be the transposed one",
    ),
    "a result": (
        "somebody asks for this value itself: it is returned, or a tensor of it is held",
        "do not return or realize what is only needed on the way, and let its tensor go",
    ),
    "it is read by several": (
        "several kernels read it, and to compute it in each would cost more than storing it",
        "nothing, unless one of the readers can be left out",
    ),
    "its readers would look up": (
        "parts that are put together, or reordered, are costly to read element by element",
        "nothing: it is written once in the order in which it is read",
    ),
    "costly and read": (
        "it is costly to compute and read more than once, so it is stored",
        "nothing: computing it again would cost more",
    ),
    "as much as": (
        "the kernel before it holds as many ops as one kernel may",
        "nothing: a longer kernel would spill registers",
    ),
    "fusion is off": ("the option fuse is off", "fg.config(fuse=True)"),
    "a reduction": ("it is the first reduction over these rows", ""),
    "fold": ("kernels were merged into one pass over blocks, which stores nothing between", ""),
}


def own_kernels(seen: Inspection) -> Iterator[Answer]:
    """Why each kernel of a schedule is one of its own."""
    for number, item in enumerate(seen.schedule.items, start=1):
        lines = [line_of(origin) for origin in item.origins]
        where = f" at {lines[-1]}" if lines else ""
        meaning, advice = _meaning(item.reason)
        because = (f"{item.reason}: {meaning}",) if meaning else (item.reason,)
        if item.kernel.name.startswith("map:contiguous"):
            advice = "leave contiguous() out"
        question = f"why is kernel {number} ({item.kernel.name}){where} a kernel of its own?"
        yield Answer("kernels", question, because, advice)


def _meaning(reason: str) -> tuple[str, str]:
    for begin, found in REASONS.items():
        if reason.startswith(begin):
            return found
    if reason.startswith(("loop ", "cond ", "while ")):
        return "it runs bodies, which have kernels of their own", ""
    if "is a kernel of its own" in reason:
        return "it looks at whole rows at once, so nothing else shares its loops", ""
    return "", ""


# --- plans ---------------------------------------------------------------------------------------


def plans(seen: Inspection) -> Iterator[Answer]:
    """Why this plan and not another: what was compared, at what cost."""
    options = seen.options
    off: Sequence[tuple[bool, str, str]] = (
        (options.exact, "exact=True forbids to reassociate sums, which merged kernels do",
         "fg.config(exact=False)"),
        (not options.search, "search=False: greedy kernels are taken as they are",
         "fg.config(search=True)"),
        (not options.fuse, "fuse=False: every op has a kernel", "fg.config(fuse=True)"),
    )  # fmt: skip
    for is_off, because, advice in off:
        if is_off:
            yield Answer("plans", "why are kernels not merged?", (because,), advice)
            return
    for report in seen.reports.regions:
        if report.segments > 1 or report.alternatives:
            yield Answer("plans", *_plan(report))


def _plan(report: RegionReport) -> tuple[str, tuple[str, ...], str]:
    chosen = [a for a in report.alternatives if a.chosen]
    rest = sorted([a for a in report.alternatives if not a.chosen], key=lambda a: a.cost)
    as_they_are = f"as they are: {report.greedy / 1e3:.1f} us"
    head = f"why is this the plan of {report.segments} kernels?"
    lines = [f"chosen: {a.what}: {a.cost / 1e3:.1f} us" for a in chosen] or [
        f"chosen: the kernels {as_they_are}, which is the cheapest"
    ]
    if chosen:
        lines.append(f"refused: the {report.segments} kernels {as_they_are}")
    for a in rest:
        cost, count = f"{a.cost / 1e3:.1f} us", f"for {a.replaces} of the kernels"
        lines.append(f"refused: {a.what}: {cost} {count}")
    if report.memory:
        lines.append("refused: what was cheaper needs more memory at once")
    if report.apart:
        lines.append("refused: what was cheaper compares sums of two kernels, whose bits differ")
    if report.untried:
        lines.append(f"{report.untried} more could not pay, whatever they had turned out to cost")
    advice = "FULGURITE_TUNE=full times them all before it chooses, ties those of about equal cost"
    return head, tuple(lines), advice


# --- memory --------------------------------------------------------------------------------------


def memory_needed(seen: Inspection) -> Answer:
    """Where a graph needs most memory at once, and for what."""
    schedule = seen.schedule
    alive = alive_bytes(schedule)
    at = max(range(len(alive)), key=alive.__getitem__, default=0)
    item = schedule.items[at]
    lines = [line_of(origin) for origin in item.origins]
    where = f" at {lines[-1]}" if lines else ""
    layout = seen.layout
    because = (
        f"most is alive in kernel {at + 1} of {len(alive)} ({item.kernel.name}){where}",
        f"{readable(layout.input_bytes)} of inputs, {readable(layout.output_bytes)} of results, "
        f"{readable(layout.arena_bytes)} between kernels",
    )
    advice = (
        "fg.checkpoint(layer) computes what a layer keeps for its gradient again"
        if layout.arena_bytes > layout.output_bytes
        else "ask for fewer results at once, or give memory away: fg.jit(f, donate=...)"
    )
    return Answer("memory", f"why {readable(layout.peak_bytes)} of memory?", because, advice)
