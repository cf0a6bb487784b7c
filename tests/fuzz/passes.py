"""Which pass makes a value wrong: the pipeline under prefixes, with passes left out, in subsets.

In: something to compute. Out: a `Verdict` that names the pass after which its values part from
those with every optional pass left out. Passes are functions that take a value and give a value,
so leaving one out is to put in its place a function that gives back what it was given, wherever
it has been imported to. `PASSES` lists them in the order they run; who calls them does not matter.
The laws of `simplify` are tried one by one as well: a wrong law is named, not only its pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.egraph import Report
from fulgurite.core.op import Array

Compute = Callable[[], Sequence[Array]]
SUBSETS = 20
ALWAYS = "what is never left out"
TOLERANCE = 1e-9


class Pass(NamedTuple):
    """A pass that may be left out: where it is defined, and what stands in for it."""

    name: str
    module: str
    function: str
    neutral: Callable[..., Any]
    native: bool = False  # does it shape native code only?


def _given(value: Any, *others: Any, **more: Any) -> Any:
    return value


def _all(values: Sequence[Any], *others: Any) -> tuple[Any, ...]:
    return tuple(values)


def _list(values: Sequence[Any], *others: Any) -> list[Any]:
    return list(values)


def _both(first: Any, second: Any, *others: Any) -> tuple[Any, Any]:
    return first, second


def _stores_and_sizes(stores: Sequence[Any], sizes: Sequence[int]) -> tuple[Any, list[int]]:
    return tuple(stores), list(sizes)


def _unimproved(roots: Sequence[Any], sizes: Sequence[int]) -> tuple[list[Any], Report]:
    return list(roots), Report()


def _greedy(*given: Any, **more: Any) -> Callable[..., list[Any]]:
    return lambda pieces, roots: list(pieces)


GRAPH, STREAM = "fulgurite.graph", "fulgurite.kernel.stream"
PASSES: tuple[Pass, ...] = (
    Pass("simplify", f"{GRAPH}.passes.simplify", "simplify", _given),
    Pass("unwindow", f"{GRAPH}.passes.unwindow", "unwindow", _given),
    Pass("split_concat", f"{GRAPH}.passes.split_concat", "split_concat", _given),
    Pass("split_sums", f"{GRAPH}.passes.reassociate", "split_sums", _given),
    Pass("ungroup_broadcast", f"{GRAPH}.passes.ungroup_broadcast", "ungroup_broadcast", _given),
    Pass("cancel", f"{GRAPH}.passes.cancel", "cancel", _given),
    Pass("interchange_sums", f"{GRAPH}.passes.reassociate", "interchange_sums", _given),
    Pass("split_reduce", f"{GRAPH}.passes.split_reduce", "split_reduce", _given),
    Pass("widen_row_sums", f"{GRAPH}.passes.reassociate", "widen_row_sums", _given),
    Pass("choose", "fulgurite.runtime.pipeline", "chooser", _greedy),
    *[
        Pass(name, f"{STREAM}.canonicalize", name, _all, native=True)
        for name in (
            "widen_small_floats",
            "fold_conditions_as_floats",
            "gather_one_hot",
            "stabilize_logsumexp",
            "distribute_bases",
        )
    ],
    Pass("peel", f"{STREAM}.peel", "peel", _stores_and_sizes, native=True),
    Pass("split_merged_axes", f"{STREAM}.transposed", "split_merged_axes", _list, native=True),
    Pass("share_rows", f"{STREAM}.axis_names", "share_rows", _list, native=True),
    Pass("saturate", f"{STREAM}.rules", "saturate", _unimproved, native=True),
    Pass("sooner", f"{GRAPH}.memory.reorder", "sooner", _list),
    Pass(
        "moved_as_bits",
        "fulgurite.kernel.transform.move_as_bits",
        "moved_as_bits",
        _both,
        native=True,
    ),
    Pass("merge_axes", "fulgurite.kernel.transform.merge_axes", "merge_axes", _given, native=True),
    Pass(
        "assumed", "fulgurite.kernel.transform.drop_implied_masks", "assumed", _given, native=True
    ),
    Pass(
        "unrolled", "fulgurite.kernel.transform.unroll_short_axes", "unrolled", _given, native=True
    ),
    Pass("beside", "fulgurite.kernel.transform.unroll_outputs", "beside", _given, native=True),
)
MEMOS: tuple[tuple[str, str], ...] = (  # what earlier runs worked out
    (f"{STREAM}.online", "_known"),
    (f"{GRAPH}.fusion.search", "REGIONS"),
    (f"{GRAPH}.ir.lower", "_known"),
    ("fulgurite.runtime.plan", "KERNELS"),
)


@cache
def _load() -> None:
    """Import every module of the compiler: one that is imported later would keep a stand-in."""
    for layer in ("core", "graph", "kernel", "codegen", "runtime"):
        package = import_module(f"fulgurite.{layer}")
        for found in walk_packages(package.__path__, f"fulgurite.{layer}."):
            with suppress(ImportError):  # of what is not installed here
                import_module(found.name)


def put(patch: pytest.MonkeyPatch, one: Pass, other: Callable[..., Any]) -> None:
    """Another function in the place of a pass, in every module that has its name for it."""
    _load()
    known = _found(one.module, one.function)
    for name, module in list(sys.modules.items()):
        if name.startswith("fulgurite.") and module.__dict__.get(one.function) is known:
            patch.setattr(module, one.function, other)


def _forget() -> None:
    """Empty every memo."""
    fg.clear_caches()
    for module, attribute in MEMOS:
        found = _found(module, attribute)
        (found if hasattr(found, "clear") else found._values).clear()


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
    """Leave out every pass but these, and some laws, with nothing remembered from before."""
    rules = _found(f"{GRAPH}.passes.laws", "SIMPLIFY")
    with pytest.MonkeyPatch.context() as patch:
        for one in PASSES:
            if one.name not in kept:
                put(patch, one, one.neutral)
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

    def watched(one: Pass, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            found = run(*given, **more)
            plain = one.neutral(*given, **more)
            if one.neutral is _greedy or not _alike(found, plain):
                changed.add(one.name)
            return found

        return call

    with pytest.MonkeyPatch.context() as patch:
        for one in PASSES:
            put(patch, one, watched(one, _found(one.module, one.function)))
        _forget()
        try:
            with fg.config(disk_cache=False):
                compute()
        except Exception as error:  # what a wrong pass gives may be no graph at all
            changed.update([one.name for one in PASSES])
            del error
        finally:
            _forget()
    return [one.name for one in PASSES if one.name in changed and (native or not one.native)]


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))
    return bool(a is b or (isinstance(a, int | Report) and a == b))


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
    others = {one.name for one in PASSES if one.name not in names}  # change nothing: left in
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
    rules = _found(f"{GRAPH}.passes.laws", "SIMPLIFY")
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
