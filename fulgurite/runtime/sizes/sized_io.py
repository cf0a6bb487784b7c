"""Plans for many sizes as text for the disk: the next process makes no pass and no kernel.

In: a `SizedPlan`, or the bytes that were kept. Out: those bytes (JSON: sizes as polynomials, guards
as data, the names of texts; no code), or the plan, linked to native functions of the store. It has
the forms that were needed until then; sizes that none of them takes make a plan anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.dtype import dtype_of
from ...core.symbolic.polynomial import OPAQUE, Key
from ...core.symbolic.sym import Sym, Trace
from ...graph.ir.cache_key import Normal
from ...graph.ir.kernel import Item, Schedule, Slot
from ...graph.ir.kernel_kind import KernelKind
from ...graph.memory.arena import replaceable
from ..cache.plan_io import StoredKernel, origins_of, places_of, shown
from ..device import get_device
from .specialize import Form, SizedKernel, SizedPlan, resized, size_key

SIGNS = frozenset({"==", "!=", "<", "<=", ">", ">="})


# --- to text -------------------------------------------------------------------------------------


def dump_sized(plan: SizedPlan, normal: Normal) -> dict[str, Any] | None:
    """What JSON can hold of a plan; None if a kernel has no form for many sizes."""
    numbers: dict[int, int] = {}
    kernels: list[Any] = []
    for kernel in plan.kernels:
        if id(kernel) not in numbers:
            if not kernel.forms or kernel.fixed:
                return None
            numbers[id(kernel)] = len(kernels)
            kernels.append(_kernel(kernel, plan.hints))
    places, schedule = places_of(normal), plan.schedule
    items = [
        [numbers[id(kernel)], item.reads, item.writes,
         [places[o] for o in item.origins if o in places], item.reason]
        for item, kernel in zip(schedule.items, plan.kernels, strict=True)
    ]  # fmt: skip
    slots = [
        None if s is None else [s.dtype.name, [*map(size_key, s.shape)], s.device, s.bits]
        for s in schedule.slots
    ]  # fmt: skip
    return {
        "guards": kept_guards(plan.trace), "inputs": schedule.inputs, "outputs": schedule.outputs,
        "aliases": schedule.aliases, "joined": schedule.joined, "slots": slots,
        "items": items, "kernels": kernels,
    }  # fmt: skip


def _kernel(sized: SizedKernel, hints: Mapping[str, int]) -> list[Any]:
    kernel = sized.kernel
    if sized.is_stored:
        assert isinstance(kernel, StoredKernel)
        text = kernel.text
    else:
        text = shown(resized(kernel, hints).body)
    forms = [
        [kept_guards(form.trace), form.keys, form.native.digest,
         [symbol for symbol, _, _ in form.native.launches], form.native.variables,
         _prepacked(form.native.prepacked)]
        for form in sized.forms
    ]  # fmt: skip
    over = sorted(replaceable(kernel)) if kernel.kind is KernelKind.MAP else []
    return [kernel.kind, kernel.inputs, kernel.name, text, over, forms]


def _prepacked(form: Any) -> Any:
    """A prepacked form as far as it is the same for all sizes: the rest is among the keys."""
    if form is None:
        return None
    launches = [(symbol, 1, 0) for symbol, _, _ in form.launches]
    return form._replace(launches=launches, numbers=[0] * len(form.numbers), workspace=0)


def kept_guards(trace: Trace) -> list[Any]:
    """What is known of sizes as data: hints, bounds and comparisons."""
    ranges = [[name, hint, trace.low[name], trace.high[name]] for name, hint in trace.hints.items()]
    return [ranges, list(trace.guards)]


# --- from text -----------------------------------------------------------------------------------


def load_sized(whole: Mapping[str, Any], normal: Normal, where: str) -> SizedPlan | None:
    """The plan of what was kept; None if some of its code is gone. Raises if it is no plan."""
    trace = kept_trace(whole["guards"])
    names = tuple(trace.hints)
    kernels: list[SizedKernel] = []
    for kind, inputs, name, text, over, forms in whole["kernels"]:
        kernel = StoredKernel(kind, inputs, name, text, frozenset([(p, q) for p, q in over]))
        made = [_form(form, kernel, where) for form in forms]
        if None in made or not made:
            return None
        kernels.append(SizedKernel(kernel, names, where, [f for f in made if f is not None]))
    items = tuple([
        Item(kernels[number].kernel, tuple(reads), tuple(writes), origins_of(normal, lines), reason)
        for number, reads, writes, lines, reason in whole["items"]
    ])  # fmt: skip
    slots = tuple([None if s is None else _slot(trace, *s) for s in whole["slots"]])
    aliases = tuple([(slot, place) for slot, place in whole["aliases"]])
    joined = tuple([(slot, place) for slot, place in whole["joined"]])
    schedule = Schedule(whole["inputs"], slots, items, tuple(whole["outputs"]), aliases, joined)
    return SizedPlan(schedule, trace, where, [kernels[row[0]] for row in whole["items"]])


def _form(kept: Sequence[Any], kernel: StoredKernel, where: str) -> Form | None:
    guards, keys, digest, symbols, variables, packed = kept
    dumped = [digest, [(symbol, 1, 0) for symbol in symbols], variables, (), 0, packed]
    native = get_device(where).load_code(kernel, dumped)
    trace = kept_trace(guards)
    names = frozenset(trace.hints)
    return None if native is None else Form(trace, [key_from(key, names) for key in keys], native)


def kept_trace(kept: Sequence[Any]) -> Trace:
    """The same from data."""
    ranges, guards = kept
    trace = Trace({str(name): int(hint) for name, hint, _, _ in ranges})
    for name, _, low, high in ranges:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no variable")
        trace.low[name], trace.high[name] = int(low), int(high)
    for key, sign in guards:
        if sign not in SIGNS:
            raise ValueError(f"{sign!r} compares nothing")
        trace.guards[key_from(key, frozenset(trace.hints)), sign] = None
    return trace


def _slot(
    trace: Trace, dtype: str, shape: Sequence[Any], device: str | None, bits: int | None
) -> Slot:
    names = frozenset(trace.hints)
    sizes = tuple([Sym.of(trace, dict(key_from(key, names))) for key in shape])
    return Slot(dtype_of(dtype), sizes, device, bits)


def key_from(kept: Sequence[Any], names: frozenset[str]) -> Key:
    """A polynomial of these variables, checked: it becomes Python."""
    return tuple([(tuple([_atom(a, names) for a in monomial]), int(c)) for monomial, c in kept])


def _atom(kept: Any, names: frozenset[str]) -> Any:
    if isinstance(kept, str):
        if kept not in names:
            raise ValueError(f"there is no variable {kept!r}")
        return kept
    sign, a, b = kept
    if sign not in OPAQUE:
        raise ValueError(f"there is no operation {sign!r}")
    return sign, key_from(a, names), key_from(b, names)
