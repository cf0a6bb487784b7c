"""`fg.explain(x)`: what would run, why, at what cost, and whether the cache knows it.

In: tensors. Out: an `Explanation`: `str` prints it; `.kernels` have `.kind`, `.bytes`, `.flops`,
`.lines`, `.reason` and `.text`; `.stages` hold each stage's text; `.cache` says hit or miss and,
for a miss, what differs from the nearest graph that is known; `.sizes` says which are fixed, which
vary and which guard makes it compile again; `.peak_bytes` is known before anything runs; `.tiny`
says that NumPy runs it instead. The stages are those that `realize` runs, for the bodies of loops
as well. Explaining computes nothing and changes no cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .._lazy import FORK_LOCK
from ..config import current
from ..core.node import Node, toposort
from ..core.ops.control import Loop
from ..core.ops.leaf import PARAM
from ..core.ops.reduce import REDUCE, SCAN
from ..core.passes import Observe, Pass, Watch, listed, passes_up_to, show
from ..core.shape import upper
from ..errors import ArgumentError
from ..graph.ir.cache_key import Normal, normalize, restore
from ..graph.ir.kernel import Item, Kernel, Schedule
from ..graph.ir.kernel_kind import KernelKind
from ..graph.ir.queries import elements
from ..graph.ir.reshape_groups import CannotLower
from ..graph.memory.arena import bytes_moved
from ..graph.memory.in_place import Donated
from ..graph.tiny import is_tiny
from ..runtime.device import get_device
from ..runtime.donation import assigned_tensors, candidates
from ..runtime.pipeline import (
    BEFORE_COMPILE,
    PIPELINE,
    Context,
    Reports,
    run_pipeline,
)
from ..runtime.plan_key import cache_key, may_be_tiny
from ..runtime.realize import FAMILIES, is_realized
from ..runtime.sizes.report import has_plan, sizes_report
from ..runtime.views import view_of
from ..tensor import Tensor

if TYPE_CHECKING:
    from ..graph.fusion.report import RegionReport

EARLY = frozenset([one.name for one in passes_up_to(PIPELINE, "tiny")])


class KernelReport(NamedTuple):
    """One kernel of the plan."""

    kind: str
    bytes: int  # read and written, each value once
    flops: int  # scalar operations
    lines: tuple[str, ...]  # the user's lines it computes
    reason: str  # why it is a kernel of its own
    text: str  # its body in index notation
    inner: tuple[KernelReport, ...] = ()  # of a loop or a choice: the kernels of its bodies

    def __str__(self) -> str:
        where = ", ".join(self.lines[:3]) + (" ..." if len(self.lines) > 3 else "")
        size = f"{self.bytes:,} bytes, {self.flops:,} operations"
        lines = [f"{self.kind}: {size}", f"    because: {self.reason}",
                 f"    from: {where or 'no line known'}"]  # fmt: skip
        for number, kernel in enumerate(self.inner, start=1):
            lines += [f"    {line}" for line in f"step {number}. {kernel}".split("\n")]
        return "\n".join(lines)


class Explanation(NamedTuple):
    """What would run for some tensors."""

    kernels: tuple[KernelReport, ...]
    stages: dict[str, str]
    cache: str
    peak_bytes: int
    regions: tuple[RegionReport, ...] = ()  # what search looked at, what it found and chose
    tiny: bool = False  # NumPy runs it all as one step; the kernels are those of tier="native"
    sizes: tuple[str, ...] = ()  # which are fixed, which vary, and which guard is in the way

    def __str__(self) -> str:
        kernels = "1 kernel" if len(self.kernels) == 1 else f"{len(self.kernels)} kernels"
        lines = [f"{kernels}, peak {self.peak_bytes:,} bytes; cache: {self.cache}"]
        if self.tiny:
            lines.append('too small to be compiled: NumPy runs it; with tier="native" it would be')
        lines += [f"sizes: {line}" for line in self.sizes]
        lines += [f"{i}. {kernel}" for i, kernel in enumerate(self.kernels, start=1)]
        shown, same = "", list[str]()
        for name, text in self.stages.items():
            if text != shown:
                lines += ["", f"--- {name} ---", text]
            else:
                same.append(name)
            shown = text
        if same:
            lines += ["", f"--- nothing changed: {', '.join(same)} ---"]
        return "\n".join(lines)


def _check_arguments(tensors: Sequence[object], stage: str | None) -> None:
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            theirs = type(tensor).__module__.partition(".")[0] == "torch"
            hint = "fulgurite.torch.explain(model, *inputs)" if theirs else "pass tensors"
            raise ArgumentError(f"{type(tensor).__name__} is not a tensor", hint)
    if stage is not None and stage not in (names := [one.name for _, one in listed(PIPELINE)]):
        raise ArgumentError(f"there is no pass {stage!r}", f"one of {', '.join(names)}")


def explain(*tensors: Tensor, stage: str | None = None) -> Explanation:
    """What computing these tensors would run, and why.

    `stages` of the answer has the text after every pass over the graph, by the names of
    `fulgurite.runtime.pipeline.PIPELINE`. With `stage`, the name of any pass, it has the texts
    before and after that one alone, of every kernel where a pass is about kernels.

    >>> import fulgurite as fg
    >>> x = fg.ones((4, 8)).realize()
    >>> report = fg.explain(fg.softmax(x, axis=-1))
    >>> [kernel.kind for kernel in report.kernels], report.cache
    (['reduce'], 'miss: no graph of this kind is known')
    """
    _check_arguments(tensors, stage)
    pending = pending_graph(tensors)
    if isinstance(pending, str):
        return Explanation((), {}, pending, 0)
    normal, donated = pending
    options = current()
    sink = restore(normal.structure, normal.constants, (), normal.nodes)
    stages = {"normalize": show(sink)}
    device = tensors[0].device
    reports = Reports()
    native = replace(options, tier="native")  # what is too small to be compiled shows its kernels
    context = Context(native, device, len(normal.buffers), donated, reports=reports)
    graph = sink

    seen: list[tuple[str, str]] = []  # of the stage that is asked for: before and after

    def looked(one: Pass, before: Any, after: Any) -> None:
        if one.name == stage:
            seen.append((one.level_in.show(before), one.level_out.show(after)))

    def see(one: Pass, before: Any, after: Any) -> None:
        nonlocal graph
        looked(one, before, after)
        if one.name in EARLY:
            graph = after
        same = one.level_out is one.level_in and after is before
        stages[one.name] = next(reversed(stages.values())) if same else one.level_out.show(after)

    found, layout = run_pipeline(sink, context, BEFORE_COMPILE, see)
    tiny = may_be_tiny(options, context.device) and is_tiny(graph)
    if reports.regions:
        stages["search"] = "\n".join(map(str, reports.regions))
    kernels = tuple([_report(item, found, device) for item in found.items])
    if stage is not None:
        _trace(found, device, looked)
        stages = _stage(stage, seen)
    beside = get_device(device).workspace_bytes([item.kernel for item in found.items])
    peak = layout._replace(workspace_bytes=beside).peak_bytes
    may_vary = options.dynamic and get_device(device).sizes_vary and not normal.values and not tiny
    state, sizes = _cache_state(normal, cache_key(device, options, donated), may_vary)
    return Explanation(kernels, stages, state, peak, reports.regions, tiny, sizes)


class Pending(NamedTuple):
    """The graph of what is to be computed, and the memory it may write over."""

    normal: Normal
    donated: Donated


def pending_graph(tensors: Sequence[Tensor]) -> Pending | str:
    """What computing these tensors would compile; a text says why there is nothing."""
    roots = [t.node for t in tensors if not is_realized(t.node)]
    if not roots:
        return "nothing to compute: every value is known"
    normal = normalize(roots)
    if normal.assigned:  # what is assigned on the way is a result as well
        roots = list(dict.fromkeys([*roots, *assigned_tensors(normal)]))
        normal = normalize(roots)
    elif len(roots) == 1 and view_of(roots[0]) is not None:
        return "nothing to compute: its memory is a piece of another's"
    return Pending(normal, candidates(roots, normal).pairs if normal.assigned else ())


def _stage(name: str, seen: list[tuple[str, str]]) -> dict[str, str]:
    """The texts before and after a pass, of all kernels."""
    if not seen:
        return {name: "it does not run for this graph"}
    before, after = ["\n\n".join(texts) for texts in zip(*seen, strict=True)]
    return {f"before {name}": before, name: after}


def _trace(schedule: Schedule, device: str, observe: Observe) -> None:
    for kernel in dict.fromkeys([item.kernel for item in schedule.items]):
        trace_kernel(kernel, device, observe)


def trace_kernel(kernel: Kernel, device: str, observe: Observe) -> None:
    """Show the passes of a kernel, and of the stream that it is."""
    if kernel.kind is KernelKind.FOLD:
        with FORK_LOCK:
            from ..kernel.stream import price
        price.find_stream(kernel, Watch(observe=observe))
    if not kernel.kind.is_control and kernel.kind is not KernelKind.USER:
        with suppress(CannotLower):
            get_device(device).trace(kernel, observe)


def _report(item: Item, found: Schedule, device: str) -> KernelReport:
    inner = _inner(item.kernel, device)
    flops = flops_of(item.kernel.body) + _times(item.kernel) * sum([k.flops for k in inner])
    return KernelReport(
        item.kernel.kind, bytes_moved(found, item), flops, item.lines,
        item.reason + _by_library(item, device), _text(item), inner,
    )  # fmt: skip


def _by_library(item: Item, device: str) -> str:
    """Who but us runs a kernel, which `deterministic=False` allows."""
    if item.kernel.kind is KernelKind.LIBRARY:  # the search has said so
        return ""
    found = get_device(device).library_name(item.kernel)
    return f"; run by {found}" if found else ""


def _inner(kernel: Kernel, device: str) -> tuple[KernelReport, ...]:
    """The kernels of the bodies that a loop or a choice runs."""
    if not kernel.kind.is_control:
        return ()
    with FORK_LOCK:
        from ..runtime import control
    made = control.schedules(kernel, get_device(device).name)
    return tuple([_report(item, found, device) for found in made for item in found.items])


def _text(item: Item) -> str:
    try:
        return show(item.kernel.indexed.body)
    except CannotLower as reason:
        return f"{show(item.kernel.body)}\n# run on the host: {reason}"


def flops_of(body: Node) -> int:
    """Scalar operations: one for each element of a map, one for each that a fold takes in."""
    total = 0
    for node in toposort([body]):
        if node.op in (REDUCE, SCAN):
            total += elements(node.src[0].shape)
        elif node.op.family == "elementwise" and node.op is not PARAM:
            total += elements(node.shape)
    return total


def _times(kernel: Kernel) -> int:
    """How often a kernel runs its bodies, at most; once if nobody knows."""
    steps = Loop.of(kernel.body.src[0]).steps if kernel.kind is KernelKind.LOOP else 1
    return 1 if steps is None else steps if isinstance(steps, int) else upper(steps)


# --- the cache -----------------------------------------------------------------------------------


def _cache_state(
    normal: Normal, rest: tuple[Hashable, ...], may_vary: bool
) -> tuple[str, tuple[str, ...]]:
    """Whether a graph's plan is known, and what is known of its sizes where they may vary."""
    state = _member_state(normal, rest)
    if not may_vary:
        return state, ()
    if state != "hit" and has_plan(normal, rest):
        state = "hit: a plan for many sizes"
    return state, sizes_report(*normal.key, rest)


def _member_state(normal: Normal, rest: tuple[Hashable, ...]) -> str:
    family = FAMILIES().peek((normal.structure, *rest))
    if family is not None:
        if family.find(normal.constants) is not None:
            return "hit"
        known = family.members[0].constants if family.members else ()
        count = sum(a != b for a, b in zip(known, normal.constants, strict=False))
        return f"miss: {count} constants differ; they become run-time scalars"
    best: tuple[int, str] | None = None
    for key in FAMILIES().keys():  # noqa: SIM118 - it is not a dict
        structure: Any = key[0]
        distance, first = _difference(structure, normal.structure)
        if key[1:] != rest:
            first = "the device or an option differs"
        if best is None or distance < best[0]:
            best = distance, first
    if best is None or best[0] > max(4, len(normal.structure) // 2):
        return "miss: no graph of this kind is known"
    return f"miss: nearest known graph differs: {best[1]}"


def _difference(known: tuple[Any, ...], mine: tuple[Any, ...]) -> tuple[int, str]:
    """In how many entries two graphs differ, and the first of them in words."""
    count, first = abs(len(known) - len(mine)), ""
    for number, (a, b) in enumerate(zip(known, mine, strict=False)):
        if a != b:
            count += 1
            first = first or f"entry {number} is {_words(b)}, not {_words(a)}"
    return count, first or f"{len(mine)} entries, not {len(known)}"


def _words(entry: Any) -> str:
    if isinstance(entry, tuple) and entry and entry[0] == "param":
        return f"an input {entry[1]}{list(entry[3])} on {entry[2]}"
    return repr(entry)
