"""Planted bugs: each one, put into the source as text, is caught by a check that did not change.

A bug is (function, the text it has, the text it gets). The check is the fuzzer over a fixed list of
seeds, or a named test of the suite where random graphs cannot see it. A plant whose text is gone
fails, so that the list keeps up with the code.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import pytest

from fulgurite.core.cache import WeakCache
from fulgurite.core.context import Table, WeakMemo
from fulgurite.graph.fusion import build_schedule, greedy
from fulgurite.graph.ir import affine, kernel, lower, reshape_groups
from fulgurite.graph.memory import arena
from fulgurite.graph.passes import drop_empty
from fulgurite.runtime import pipeline, plan, realize
from fulgurite.runtime.host import device, index_interpreter
from tests import fuzz
from tests.graph.fusion import test_greedy
from tests.graph.ir import test_affine, test_lower
from tests.runtime.host import test_index_interpreter

pytestmark = pytest.mark.device("none")

MODULES = (
    affine, reshape_groups, lower, kernel, greedy, build_schedule, drop_empty, arena,
    index_interpreter, device, plan, realize,
    pipeline,
    test_affine, test_lower, test_greedy, test_index_interpreter,
)  # fmt: skip
SEEDS = range(1500)  # the fuzzer stops at the first that fails


def fuzzed() -> None:
    """The fuzzer, without making what it finds small."""
    for seed in SEEDS:
        fuzz.check(seed, smallest=False)


def fuzzed_in_tiles() -> None:
    """Large graphs, which have more intermediates, in tiles of a few elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_interpreter, "TILE", 3)
        for seed in SEEDS[:120]:
            fuzz.check(seed, steps=40, smallest=False)


@dataclass(frozen=True)
class Plant:
    """A bug and the test that catches it (the fuzzer, if none is named)."""

    name: str
    where: ModuleType | type
    function: str
    old: str
    new: str
    caught_by: Callable[[], None] = fuzzed


_Lower, _Greedy, _Tile = lower._Lower, greedy._Greedy, index_interpreter._Tile

_AT_HINTS = """if not (at_hints(low) >= 0 and at_hints(high) < at_hints(by)):
        return False
"""
PLANTS = [
    # the laws of indices
    Plant("a wrong coefficient in a sum", affine, "add", "coefficient * factor", "coefficient"),
    Plant("a constant forgotten in a sum", affine, "add", "a[0] + b[0] * factor", "a[0]"),
    Plant("a remainder that may be as large as the divisor", affine, "_is_within",
          f"{_AT_HINTS}    return low >= 0 and high < by", "return low >= 0 and high <= by + 1",
          test_affine.test_a_quotient_and_remainder_are_pythons_at_every_value),
    Plant("a negative remainder", affine, "_is_within",
          f"{_AT_HINTS}    return low >= 0 and high < by", "return high < by",
          test_affine.test_a_quotient_and_remainder_are_pythons_at_every_value),
    Plant("steps of memory in the wrong order", affine, "strides",
          "tuple(reversed(out))", "tuple(out)"),
    Plant("a step that forgets the last size", affine, "strides", "step *= size",
          "step *= max(1, size - 1)"),
    Plant("bounds of negative coefficients the wrong way round", affine, "bounds",
          "low + coefficient * most, high + coefficient * least",
          "low + coefficient * least, high + coefficient * most"),
    Plant("runs of dimensions that are too short", affine, "regroup",
          "while p != q:", "while p != q and p % q and q % p:"),
    Plant("every index a bijection", affine, "is_bijection", "return False", "return True",
          test_lower.test_a_column_of_an_output_does_not_stand_for_the_output),
    Plant("a bijection that repeats an axis", affine, "is_bijection",
          "coefficient != step or atom in seen", "coefficient != step",
          test_affine.test_what_is_not_a_bijection_is_refused),
    Plant("renaming that forgets divisions", affine, "rename",
          "(atom[0], rename(atom[1], new), atom[2])", "atom",
          test_affine.test_renaming_is_a_change_of_names_also_inside_divisions),
    Plant("conditions that are never checked", affine.Domain, "simplify",
          "low < first or high >= last", "low < first and high >= last"),
    # lowering
    Plant("a reduction that captures an axis in use", _Lower, "fresh",
          "axes_of(found) & used", "False"),
    Plant("a reduction that captures an axis of a condition", _Lower, "reduce",
          "*map(self.uses, kept), *[self.uses(i) for i, _ in valid]", "*map(self.uses, kept)",
          test_lower.
          test_a_reduction_does_not_capture_an_axis_that_is_free_in_the_condition_of_a_pad),
    Plant("a reduction that captures an axis of a dynamic index", _Lower, "uses",
          "found |= self.reach[source.index]", "pass",
          test_lower.test_a_reduction_does_not_capture_an_axis_that_a_dynamic_index_depends_on),
    Plant("an output stored where a condition holds only", _Lower, "value",
          "and not place.valid", "",
          test_lower.test_an_output_met_under_a_condition_is_not_stored_there),
    Plant("a split with its halves swapped", _Lower, "axis",
          'add(self.axis((*name, "inner"), factor), outer, factor)',
          'add(self.axis((*name, "inner"), factor), outer, size // factor)'),
    Plant("quotient and remainder swapped in a reshape", _Lower, "reshaped",
          "out[d], place = self.divided(place, step)", "place, out[d] = self.divided(place, step)"),
    Plant("a pad without its condition", _Lower, "zero_outside",
          "inside = Domain(checks).simplify(self.bound)", "inside = Domain()"),
    Plant("a pad whose zero is left out", _Lower, "zero_outside",
          "if is_zero_outside(inner, inside) else", "if True else"),
    Plant("a window without its stride", _Lower, "window", "index[place], stride",
          "index[place], 1"),
    Plant("a window without its dilation", _Lower, "window", "index[-1], dilation", "index[-1], 1"),
    Plant("windows added up where the stride does not meet", _Lower, "unwindow",
          "checks = [(left, 1)]", "checks = []"),
    Plant("a flip that is off by one", _Lower, "flip", "number(-1)", "number(0)"),
    Plant("a permutation the wrong way round", _Lower, "permute", "out[d] = part",
          "out[node.arg.index(d)] = index[d]"),
    Plant("a fold over the first axis only", _Lower, "folded", "tuple(sorted(axes))",
          "tuple(sorted(axes))[:1]"),
    Plant("a gather without its guard", _Lower, "dynamic_index",
          "if not isinstance(size, int) or low < 0 or high >= size:", "if False:",
          test_index_interpreter.test_an_index_out_of_range_is_an_error_that_names_it),
    Plant("a gather along the wrong axis", _Lower, "gather",
          "(*index[:place], row, *index[place + 1 :])", "(row, *index[1:])"),
    Plant("a scan that forgets its direction", _Lower, "scan", "(name, along, reverse)",
          "(name, along, False)"),
    Plant("a scatter that combines equal updates once", _Lower, "scatter", ", name, at)",
          ", name)"),
    # scheduling
    Plant("a kernel joined by what runs after it", _Greedy, "join",
          "if target.number is not None and deps > target.number - 1:", "if False:",
          test_greedy.test_no_reduction_scan_sort_or_scatter_of_random_graphs_is_done_twice),
    Plant("kernels merged whatever they run over", _Greedy, "merge",
          "agree = a.full == b.full and (a.axes == b.axes or \"map\" in (a.kind, b.kind))",
          "agree = True", test_greedy.test_kernels_over_other_rows_are_not_merged),
    Plant("kernels merged into one that runs before", _Greedy, "merge",
          "(a.number is not None and b.deps > a.number - 1)", "False",
          test_greedy.test_a_kernel_that_would_close_a_cycle_is_not_made),
    Plant("a kernel that forgets an output", _Greedy, "cut", "key=position.__getitem__)",
          "key=position.__getitem__)[-1:]"),
    Plant("roots in the wrong order", build_schedule, "build_schedule",
          "for root in partition.sink.src])", "for root in partition.sink.src[::-1]])"),
    Plant("constants mixed up", kernel.Extractor, "_copied", "(node.arg[0], node.dtype)",
          "(0, node.dtype)"),
    Plant("inputs numbered anew for each use", kernel.Extractor, "_copied",
          "self.param(number, ", "self.param(0, "),
    Plant("stores dropped that are read", _Greedy, "cut", "wanted.update(cut[1])", "pass",
          test_greedy.test_no_reduction_scan_sort_or_scatter_of_random_graphs_is_done_twice),
    Plant("an empty sum that starts at one", drop_empty, "drop_empty",
          'start = 0 if name == "add"', 'start = 1 if name == "add"',
          test_greedy.test_nothing_is_computed_for_values_of_no_elements),
    # memory and running
    Plant("memory taken over while it is read", arena, "_may_replace",
          "return (param, out) in replaceable(item.kernel)", "return True",
          test_index_interpreter.test_memory_is_not_taken_over_by_what_reads_it_at_other_places),
    Plant("lives that overlap in one place", arena, "_place",
          "if other_last < first or last < other_first:", "if other_last <= first:",
          fuzzed_in_tiles),
    Plant("a scatter in the reverse order", _Tile, "store", "place.ravel(), spread.ravel()",
          "place.ravel()[::-1], spread.ravel()[::-1]"),
    Plant("writing before everything is read", index_interpreter.Runner, "__init__",
          "key=lambda n: n.op is STORE", "key=lambda n: False",
          test_index_interpreter.test_everything_is_read_before_anything_is_written),
    Plant("a contraction over axes of one factor only", _Tile, "widened",
          "shape[axis] = stop - start", "shape[axis] = max(1, stop - start - 1)"),
    Plant("tiles that miss their last row", index_interpreter.Runner, "_tiles",
          "min(start + chunk, size)", "min(start + chunk, size - 1)"),
    Plant("a load that reads where its condition fails", _Tile, "load",
          "return np.where(holds, found, np.zeros((), memory.dtype))", "return found"),
]  # fmt: skip


def plant(bug: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a bug into every place that holds the function, with nothing left in the caches."""
    original = getattr(bug.where, bug.function)
    source = textwrap.dedent(inspect.getsource(original))
    old, new = textwrap.dedent(bug.old), textwrap.dedent(bug.new)
    assert source.count(old) >= 1, f"{bug.function} changed: {old!r} is not in it any more"
    plain = inspect.unwrap(original)
    assert isinstance(plain, FunctionType)
    names: dict[str, Any] = dict(plain.__globals__)
    exec(compile(source.replace(old, new), f"<{bug.name}>", "exec"), names)
    wrong = names[bug.function]
    if isinstance(bug.where, type):
        monkeypatch.setattr(bug.where, bug.function, wrong)
        for op, step in list(lower._STEPS.items()):
            if step is original:
                monkeypatch.setitem(lower._STEPS, op, wrong)
    for module in MODULES:
        if getattr(module, bug.function, None) is original:
            monkeypatch.setattr(module, bug.function, wrong)
    monkeypatch.setattr(lower, "_lowered_sinks", Table(WeakMemo))
    monkeypatch.setattr(plan, "KERNELS", Table(lambda: WeakCache("planted")))


@pytest.mark.parametrize("bug", PLANTS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_caught(bug: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(bug, monkeypatch)
    with pytest.raises(Exception) as caught:
        bug.caught_by()
    assert not isinstance(caught.value, ImportError | NameError | SyntaxError)


def test_without_a_bug_the_checks_pass() -> None:
    for check in dict.fromkeys(bug.caught_by for bug in PLANTS):
        if check is not fuzzed:  # its seeds are among those of test_fuzz.py
            check()


def test_there_are_enough_bugs_and_each_is_its_own() -> None:
    assert len(PLANTS) >= 12
    assert len({bug.name for bug in PLANTS}) == len(PLANTS)
    assert len({(bug.where, bug.function, bug.new) for bug in PLANTS}) == len(PLANTS)
