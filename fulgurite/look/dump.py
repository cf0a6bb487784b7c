"""Everything that a picture of a compilation shows, as data that JSON can hold.

In: tensors that are not computed yet, a captured function, or a graph that was compiled; perhaps a
profile. Out: a dict. Nothing is computed and no cache changes; kernels are rendered, and with
`assembly` compiled once more to be read. Its keys:

format      1
device      where it runs
options     those in force, by name
graph       nodes: id (their place), op, arg, dtype, shape, src (ids), lines (ids of `lines`),
            path (module path in pieces), kernels (places in `kernels` that compute it, as far as
            line and op tell, else its line);
            roots: ids; text: the graph in the notation of `fg.explain`
lines       file, line, path (module path) and code of each user line; node: of an ONNX model its
            op and name, instead of a line
passes      in order: name, level, changed, text (after it; None: as before), and of `simplify` the
            laws that fired: law, source (where it is written), before, after, lines
fusion      regions: segments, greedy and cost (nanoseconds), rules (how often each fired), terms,
            steps, complete, cached, memory, apart, untried, bounds, and alternatives: what, cost,
            chosen, replaces (segments)
kernels     of each item of the schedule: name, kind, reason, lines, reads and writes (slots),
            bytes, flops, least (nanoseconds, a roofline), bound, estimate (nanoseconds by the
            model) and code (a place in `codes`)
codes       of each kernel that is another: body (tensor ops), index (index notation), language,
            text, assembly (texts by notation: assembly, or PTX and SASS), passes (name, before,
            after of each that changed something), and egraph of a streaming one: fired, and classes
            with several terms
memory      arena, peak, inputs, outputs, workspace (bytes), alive (bytes in each kernel), slots:
            slot, kind (input, output, constant, arena), bytes, dtype, shape, offset (in the arena),
            first and last (places in `kernels` between which it is alive)
timeline    of a profile: Chrome's trace events, and flame: a flame graph's tree; else None
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..aot.explain import trace_kernel
from ..core.dtype import decode
from ..core.node import Node, toposort
from ..core.ops.index import FOLD, LOAD
from ..core.ops.leaf import CONST, PARAM
from ..core.origin import Origin
from ..core.passes import Pass, show
from ..core.rewriting.egraph import EGraph
from ..errors import ArgumentError
from ..graph.fusion.machine import time_of
from ..graph.fusion.report import RegionReport
from ..graph.ir.kernel import Item, Kernel, Schedule
from ..graph.ir.kernel_kind import KernelKind
from ..graph.ir.limits import LIMITS
from ..graph.ir.reshape_groups import CannotLower
from ..graph.memory.arena import slot_bytes
from ..kernel.stream.terms import Terms
from ..runtime.device import get_device
from ..runtime.recording import Event
from ..tensor import Tensor
from .attribution import facts_of
from .inspection import Firing, Graph, Inspection, PassStep, graph_of, inspect_graph, inspection_of
from .limits import rates_of
from .memory import alive_bytes
from .profiler import Profile

FORMAT = 1
MOST_CLASSES = 200  # of an e-graph that are listed


def viz_data(*things: Any, profile: Profile | None = None, assembly: bool = True) -> dict[str, Any]:
    """The data of tensors, of a jitted function's newest capture, or of a compiled graph."""
    if profile is not None and not isinstance(profile, Profile):
        raise ArgumentError(
            f"profile is {type(profile).__name__}", "give what `with fg.profile() as p` made"
        )
    return _Dump(_inspected(things), assembly).data(profile)


def _inspected(things: Sequence[Any]) -> Inspection:
    if things and all([isinstance(thing, Tensor) for thing in things]):
        return inspection_of(things)
    if len(things) == 1 and isinstance(things[0], Event) and things[0].kind == "graph":
        return inspect_graph(graph_of(things[0]))
    if len(things) == 1 and hasattr(things[0], "__fulgurite_jit__"):
        captures = things[0].captures
        if not captures:
            raise ArgumentError("this function has not been captured yet", "call it once before")
        replay = captures[0].replay
        if replay.recalled:
            raise ArgumentError(
                "this capture is from the disk, without its graph",
                "call the function within fg.config(disk_cache=False)",
            )
        normal = replay.normal
        return inspect_graph(
            Graph(normal.structure, normal.constants, normal.nodes, len(normal.buffers),
                  replay.pairs, replay.device, replay.options)
        )  # fmt: skip
    raise ArgumentError(
        "there is nothing to show of this", "give tensors, or a function of fg.jit that was called"
    )


class _Dump:
    """One inspection on its way to data."""

    def __init__(self, seen: Inspection, assembly: bool) -> None:
        self.seen, self.assembly = seen, assembly
        self.lines: dict[Place, int] = {}
        self.codes: dict[Kernel, int] = {}
        self.backend = get_device(seen.device)

    def data(self, profile: Profile | None) -> dict[str, Any]:
        """All of it."""
        seen = self.seen
        kernels = [self.kernel(item) for item in seen.schedule.items]
        found = {
            "format": FORMAT,
            "device": seen.device,
            "options": asdict(seen.options),
            "graph": self.graph(),
            "passes": [self.step(step) for step in seen.steps],
            "fusion": {"regions": [_region(report) for report in seen.reports.regions]},
            "kernels": kernels,
            "codes": [self.code(kernel) for kernel in self.codes],
            "memory": _memory(seen),
            "timeline": None if profile is None else _timeline(profile),
        }
        return found | {"lines": [_line(place) for place in self.lines]}

    def line_ids(self, origins: Sequence[Origin]) -> list[int]:
        """The places of user lines in the list of them."""
        places = dict.fromkeys([_place(origin) for origin in origins])
        return [self.lines.setdefault(place, len(self.lines)) for place in places]

    # --- graphs ----------------------------------------------------------------------------------

    def graph(self) -> dict[str, Any]:
        """The graph as it was given."""
        order = [n for n in toposort([self.seen.sink]) if n is not self.seen.sink]
        ids = {node: i for i, node in enumerate(order)}
        computed = self.computed()
        return {
            "nodes": [self.node(node, ids, computed) for node in order],
            "roots": [ids[root] for root in self.seen.sink.src],
            "text": show(self.seen.sink),
        }

    def computed(self) -> Makers:
        """The kernels that compute a line, and those that compute an op of it."""
        ops: dict[Kernel, set[tuple[str, int, str]]] = {}
        found: dict[tuple[Place, str], list[int]] = {}
        for number, item in enumerate(self.seen.schedule.items):
            if item.kernel not in ops:
                ops[item.kernel] = {
                    (o.file, o.line, n.op.name) for n in toposort([item.kernel.body])
                    for o in n.origins if n.op is not PARAM
                }  # fmt: skip
            for place in {_place(origin) for origin in item.origins}:
                inside = [op for *line, op in ops[item.kernel] if tuple(line) == place[:2]]
                for op in ("", *inside):
                    found.setdefault((place, op), []).append(number)
        return found

    def node(self, node: Node, ids: Mapping[Node, int], computed: Makers) -> dict[str, Any]:
        """One op."""
        places = [_place(origin) for origin in node.origins]
        makers = [computed.get((p, node.op.name)) or computed.get((p, ""), []) for p in places]
        kernels = {number for some in makers for number in some}
        return {
            "id": ids[node], "op": node.op.name, "arg": "" if node.arg is None else repr(node.arg),
            "dtype": str(node.dtype), "shape": [_size(n) for n in node.shape],
            "src": [ids[source] for source in node.src], "lines": self.line_ids(node.origins),
            "path": list(node.origins[0].scopes) if node.origins else [],
            "kernels": sorted(kernels),
        }  # fmt: skip

    def step(self, step: PassStep) -> dict[str, Any]:
        """One pass."""
        return {
            "name": step.name, "level": step.level, "changed": step.changed,
            "text": step.after if step.changed else None,
            "laws": [self.firing(firing) for firing in step.firings],
        }  # fmt: skip

    def firing(self, firing: Firing) -> dict[str, Any]:
        """One law that fired."""
        lines = self.line_ids(firing.node.origins)
        return {"law": firing.law, "source": firing.source, "before": firing.before,
                "after": firing.after, "lines": lines}  # fmt: skip

    # --- kernels ---------------------------------------------------------------------------------

    def kernel(self, item: Item) -> dict[str, Any]:
        """One item of the schedule."""
        kernel, model = item.kernel, self.backend.machine
        facts = facts_of(self.seen.schedule, item, rates_of(self.seen.device).model)
        return {
            "name": kernel.name, "kind": str(kernel.kind), "reason": item.reason,
            "lines": self.line_ids(item.origins), "reads": list(item.reads),
            "writes": list(item.writes), "bytes": facts.bytes, "flops": facts.flops,
            "least": facts.least, "bound": facts.bound, "estimate": time_of(kernel, model),
            "code": self.codes.setdefault(kernel, len(self.codes)),
        }  # fmt: skip

    def code(self, kernel: Kernel) -> dict[str, Any]:
        """How a kernel is written, from tensor ops down to machine code."""
        found: dict[str, Any] = {
            "body": show(kernel.body), "index": "", "language": "", "text": "", "assembly": {},
            "passes": [], "egraph": None,
        }  # fmt: skip
        with suppress(CannotLower):
            found["index"] = show(kernel.indexed.body)
        if kernel.kind.is_control or kernel.kind is KernelKind.USER:
            return found
        steps: list[dict[str, str]] = []

        def observe(one: Pass, before: Any, after: Any) -> None:
            texts = one.level_in.show(before), one.level_out.show(after)
            if one.name == "saturate" and found["egraph"] is None:
                found["egraph"] = _alternatives(before)
            if texts[0] != texts[1]:
                steps.append({"name": one.name, "before": texts[0], "after": texts[1]})

        trace_kernel(kernel, self.seen.device, observe)
        found["passes"] = steps
        return found | self.machine_code(kernel)

    def machine_code(self, kernel: Kernel) -> dict[str, Any]:
        """The text of a kernel in its target's language, and its machine code."""
        codegen = self.backend.codegen
        if codegen is None:
            return {}
        try:
            source: Any = codegen.render(kernel)
        except CannotLower as reason:
            return {"text": f"run on the host: {reason}"}
        texts = [source.text] if hasattr(source, "text") else [one.text for one in source.launches]
        text = "\n\n".join(texts)
        return {
            "language": codegen.language, "text": text,
            "assembly": codegen.listings(kernel) if self.assembly else {},
        }  # fmt: skip


Place = tuple[str, int, tuple[str, ...], str]  # a file, a line, the module path, a model's node
Makers = Mapping[tuple[Place, str], list[int]]  # kernels by line and op, or any op of it


def _place(origin: Origin) -> Place:
    return origin.file, origin.line, origin.scopes, origin.text


def _line(place: Place) -> dict[str, Any]:
    file, line, scopes, node = place
    code = node or linecache.getline(file, line).strip()
    path = "/".join(scopes)
    return {"file": file, "line": line, "path": path, "code": code, "node": node}


def _size(size: Any) -> int | str:
    return size if isinstance(size, int) else str(size)


def _region(report: RegionReport) -> dict[str, Any]:
    """What the search compared."""
    found = asdict(report)
    found["terms"] = found.pop("nodes")
    found["bounds"] = [list(bound) for bound in report.bounds]
    return found


def _alternatives(candidate: Any) -> dict[str, Any]:
    """The classes of the e-graph of a candidate that have several equal terms."""
    from ..kernel.stream.rules import rules

    terms = Terms(candidate.sizes)
    terms.add([store.src[0] for store in candidate.stores])
    report = terms.graph.run(rules(terms), LIMITS.egraph_terms, LIMITS.egraph_rounds)
    graph: EGraph = terms.graph
    several = [number for number in graph.classes() if len(graph.terms[number]) > 1]
    return {
        "fired": report.fired, "terms": report.nodes, "rounds": report.rounds,
        "stopped": report.stopped, "classes": {
            str(number): [_term(terms, term) for term in graph.terms[number]]
            for number in several[:MOST_CLASSES]
        },
    }  # fmt: skip


def _term(terms: Terms, term: Any, depth: int = 2) -> str:
    """A term; of its sources those with one term are written out, the others are numbers."""
    sources = [terms.graph.find(source) for source in term[1:]]
    known = [terms.of(source) if depth else [] for source in sources]
    parts = [
        _term(terms, found[0], depth - 1) if len(found) == 1 else f"#{source}"
        for source, found in zip(sources, known, strict=True)
    ]
    return _head(terms, term[0]) + (f"({', '.join(parts)})" if parts else "")


def _head(terms: Terms, key: Any) -> str:
    """The op of a term: folds by what they do, inputs by their number, constants by their value."""
    if key not in terms.made:  # a product, or what it is divided by
        return str(key.name)
    op, dtype, arg = terms.made[key]
    if op is CONST:
        return f"{decode(arg[0], dtype):g}"
    if op is FOLD:
        return "sum" if arg[0] == "add" else str(arg[0])
    return f"{key.name} {arg[0]}" if op is LOAD else str(key.name)


# --- memory and time -----------------------------------------------------------------------------


def _memory(seen: Inspection) -> dict[str, Any]:
    """Where values are, and from when to when."""
    schedule, layout = seen.schedule, seen.layout
    return {
        "arena": layout.arena_bytes, "peak": layout.peak_bytes, "inputs": layout.input_bytes,
        "outputs": layout.output_bytes, "workspace": layout.workspace_bytes,
        "alive": alive_bytes(schedule),
        "slots": [
            _slot(schedule, slot, layout.offsets.get(slot)) for slot in range(len(schedule.slots))
            if schedule.slots[slot] is not None
        ],
    }  # fmt: skip


def _slot(schedule: Schedule, slot: int, offset: int | None) -> dict[str, Any]:
    known = schedule.slots[slot]
    assert known is not None
    uses = [i for i, item in enumerate(schedule.items) if slot in (*item.reads, *item.writes)]
    last = max(uses, default=0)
    kind = "arena" if offset is not None else "output"
    if slot in schedule.outputs:
        last = max(len(schedule.items) - 1, 0)
    if slot < schedule.inputs:
        kind = "input"
    elif known.bits is not None:
        kind = "constant"
    return {
        "slot": slot, "kind": kind, "bytes": slot_bytes(known), "dtype": str(known.dtype),
        "shape": [_size(n) for n in known.shape], "offset": offset,
        "first": 0 if slot < schedule.inputs else min(uses, default=0), "last": last,
    }  # fmt: skip


def _timeline(profile: Profile) -> dict[str, Any]:
    return {"events": profile.trace()["traceEvents"], "flame": profile.flame()}
