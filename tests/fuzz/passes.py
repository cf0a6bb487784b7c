"""Which pass makes a value wrong: the pipeline under prefixes, with passes left out, in subsets.

In: something to compute. Out: a `Verdict` that names the pass after which its values part from
those with every optional pass left out. The passes are those of `PIPELINE`, by their names there;
the driver is given others in their place. Those that nothing is right without are `NEEDED`.
The laws of `simplify` are tried one by one as well: a wrong law is named, not only its pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from random import Random
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import passes as driver
from fulgurite.core.context import Table, context
from fulgurite.core.op import Array
from fulgurite.core.passes import Pass, listed
from fulgurite.core.rewriting.egraph import Report
from fulgurite.runtime.pipeline import PIPELINE

Compute = Callable[[], Sequence[Array]]
Run = Callable[[Any, Any], Any]
SUBSETS = 20
ALWAYS = "what is never left out"
TOLERANCE = 1e-9
NEEDED = frozenset({  # of passes within a level: what comes after relies on them
    "append_in_place", "user_kernels", "distinct_roots", "assign_updates", "drop_empty",
    "materialize_operands", "copy_leaf_roots", "separate_folds", "alias", "complex_to_real",
    "pad_dynamic_axes",
})  # fmt: skip


def _given(value: Any, context: Any) -> Any:
    return value


def _unsaturated(candidate: Any, context: Any) -> Any:
    return replace(candidate, report=Report())


NEUTRAL: dict[str, Run] = {  # what stands in for a pass that is left out
    one.name: _given
    for _, one in listed(PIPELINE)
    if one.level_in is one.level_out and one.name not in NEEDED
} | {"saturate": _unsaturated}
OPTIONAL = list(dict.fromkeys([one.name for _, one in listed(PIPELINE) if one.name in NEUTRAL]))
NATIVE = {one.name for depth, one in listed(PIPELINE) if depth}  # they shape native code only
MEMOS: tuple[tuple[str, str], ...] = (  # what earlier runs worked out
    ("fulgurite.kernel.stream.online", "STREAMS"),
    ("fulgurite.graph.fusion.search", "REGIONS"),
    ("fulgurite.graph.ir.lower", "_lowered_sinks"),
    ("fulgurite.runtime.plan", "KERNELS"),
)
INSTEAD: list[Callable[[Pass], Pass]] = []  # what becomes of each pass, the first one first


def _changed(one: Pass) -> Pass:
    for change in INSTEAD:
        one = change(one)
    return one


def _run_passes(value: Any, context: Any, passes: Sequence[Pass], *given: Any, **more: Any) -> Any:
    return driver.run_passes(value, context, [_changed(one) for one in passes], *given, **more)


@contextmanager
def instead(change: Callable[[Pass], Pass]) -> Iterator[None]:
    """Other passes for those that are listed, wherever the driver runs some."""
    for name in ("kernel.stream.price", "codegen.cpu.render"):  # others would load them later
        import_module(f"fulgurite.{name}")
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            known = module.__dict__.get("run_passes") if name.startswith("fulgurite.") else None
            if known is driver.run_passes and module is not driver:
                patch.setattr(module, "run_passes", _run_passes)
        INSTEAD.append(change)
        try:
            yield
        finally:
            INSTEAD.remove(change)


def put(name: str, other: Callable[[Pass], Run]) -> Callable[[Pass], Pass]:
    """Another function in the place of a pass."""
    return lambda one: replace(one, run=other(one)) if one.name == name else one


def _forget() -> None:
    """Empty every memo."""
    fg.clear_caches()
    for module, attribute in MEMOS:
        found = _found(module, attribute)
        if isinstance(found, Table):
            context().tables.pop(found, None)
        else:
            found.clear()


def _found(module: str, attribute: str) -> Any:
    return getattr(import_module(module), attribute)


@dataclass
class Verdict:
    """What was found: the guilty pass, or none; and the smallest set of passes that goes wrong."""

    name: str | None = None
    law: str | None = None  # of simplify, if one alone is guilty
    subset: tuple[str, ...] = ()
    runs: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.name is None:
            return f"no pass parts the values ({self.runs} runs)"
        law = f", its law {self.law}" if self.law else ""
        return f"values part after {self.name}{law}; passes that suffice: {self.subset}"


@contextmanager
def only(kept: Collection[str], laws_out: Collection[str] = ()) -> Iterator[None]:
    """Leave out every optional pass but these, and some laws, with nothing remembered."""
    rules = _found("fulgurite.graph.passes.laws", "SIMPLIFY")

    def left_out(one: Pass) -> Pass:
        gone = one.name in NEUTRAL and one.name not in kept
        return replace(one, run=NEUTRAL[one.name]) if gone else one

    with pytest.MonkeyPatch.context() as patch, instead(left_out):
        if laws_out:
            patch.setattr(rules, "rules", [r for r in rules.rules if r.name not in laws_out])
            patch.setattr(rules, "_tables", {})
        _forget()
        try:
            with fg.config(disk_cache=False):
                yield
        finally:
            _forget()


def active(compute: Compute, native: bool) -> list[str]:
    """The passes that change something on the way to these values, in order."""
    changed: set[str] = set()

    def watched(one: Pass) -> Pass:
        def run(value: Any, context: Any) -> Any:
            found = one.run(value, context)
            if one.name in NEUTRAL and found is not value:
                changed.add(one.name)
            return found

        return replace(one, run=run)

    with instead(watched):
        _forget()
        try:
            with fg.config(disk_cache=False):
                compute()
        except Exception as error:  # what a wrong pass gives may be no graph at all
            changed.update(OPTIONAL)
            del error
        finally:
            _forget()
    return [name for name in OPTIONAL if name in changed and (native or name not in NATIVE)]


def guilty(
    compute: Compute, seed: int = 0, subsets: int = SUBSETS, native: bool = False,
    tolerance: float = TOLERANCE, want: Sequence[Array] | None = None,
) -> Verdict:  # fmt: skip
    """The first pass of the pipeline after which values part from `want`, if any does."""
    verdict = Verdict()
    if want is None:
        with only(()):
            want = [np.array(a) for a in compute()]

    def is_right(kept: Collection[str], laws_out: Collection[str] = ()) -> bool:
        verdict.runs += 1
        try:
            with only(kept, laws_out):
                got = compute()
        except Exception as error:
            verdict.notes.append(f"raised {type(error).__name__}: {error}".split("\n")[0])
            return False
        return all(_close(a, np.asarray(b), tolerance) for a, b in zip(want, got, strict=True))

    if not is_right(()):
        verdict.name = ALWAYS
        return verdict
    names = active(compute, native)
    others = {name for name in OPTIONAL if name not in names}  # change nothing: left in
    random = Random(seed)
    tried: list[Sequence[str]] = [names[:count] for count in range(1, len(names) + 1)]
    tried += [[n for n in names if n != name] for name in names]
    tried += [[n for n in names if random.random() < 0.5] for _ in range(subsets)]
    for kept in {tuple(kept): None for kept in tried}:
        if not is_right({*kept, *others}):
            smallest = _smallest(kept, lambda some: not is_right({*some, *others}))
            verdict.subset, verdict.name = smallest, smallest[-1] if smallest else kept[-1]
            break
    if verdict.name == "simplify":
        verdict.law = _guilty_law(lambda laws: is_right({"simplify", *others}, laws))
    return verdict


def _smallest(kept: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """A set of passes that goes wrong and of which none can be left out."""
    kept = list(kept)
    for name in list(kept):
        fewer = [n for n in kept if n != name]
        if is_wrong(fewer):
            kept = fewer
    return tuple(kept)


def _guilty_law(is_right: Callable[[Collection[str]], bool]) -> str | None:
    """The law without which simplification is right."""
    rules = _found("fulgurite.graph.passes.laws", "SIMPLIFY")
    names = list(dict.fromkeys([rule.name for rule in rules.rules]))
    out: list[str] = []  # halve what must be left out
    if not is_right(names):
        return None
    while len(names) > 1:
        half = names[: len(names) // 2]
        if is_right([*out, *half]):
            names = half
        else:
            out, names = [*out, *half], names[len(names) // 2 :]
    return str(names[0])


def _close(a: Array, b: Array, tolerance: float) -> bool:
    if a.shape != b.shape:
        return False
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        near = np.abs(a - b) <= tolerance * (1 + np.abs(a[np.isfinite(a)]).max(initial=0))
    return bool(np.all(same | near))
