"""Tests of graph/fusion/providers.py: times in the place of guesses, and what is a near-tie."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.codegen.cpu.providers import SOURCES
from fulgurite.core.node import Node
from fulgurite.graph.fusion.build_schedule import Segment
from fulgurite.graph.fusion.extract import Producer, extract
from fulgurite.graph.fusion.machine import CostTable
from fulgurite.graph.fusion.proposals import Source
from fulgurite.graph.fusion.providers import Timing, WideSearcher, near_ties
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Kernel
from fulgurite.graph.passes.simplify import simplify
from tests.graph.scheduling import schedule

pytestmark = pytest.mark.device("none")


class Said:
    """A measure that says what it was told, and remembers who asked."""

    def __init__(self, mode: str, fold: Timing | None, other: Timing | None) -> None:
        self.mode, self.fold, self.other = mode, fold, other
        self.asked: list[str] = []

    def __call__(self, kernels: Sequence[Kernel], table: CostTable) -> list[Timing | None]:
        self.asked += [k.kind for k in kernels]
        return [self.fold if k.kind == "fold" else self.other for k in kernels]


def planned(measure: Said | None, length: int = 64) -> tuple[list[str], str]:
    """The kinds of kernels for a product of softmax, and the report."""
    rng = np.random.default_rng(length)
    q, k, v = (fg.Tensor(rng.normal(size=(2, length, 16)).astype("f")) for _ in range(3))
    normal = normalize([(fg.softmax(q @ k.mT, axis=-1) @ v).node])
    sink = simplify(restore(normal.structure, normal.constants, {}, normal.nodes))
    choose = WideSearcher(SOURCES, SHIPPED, measure=measure)
    found = schedule(sink, len(normal.buffers), True, choose)
    return [i.kernel.kind for i in found.items], "\n".join(map(str, choose.reports))


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search is made anew."""
    from fulgurite.core.cache import Cache
    from fulgurite.graph.fusion import search

    monkeypatch.setattr(search, "REGIONS", Cache("regions", lambda: 512))


def test_without_a_measure_the_choice_is_that_of_the_table() -> None:
    assert planned(None)[0] == ["fold"]


def test_full_times_everything_and_times_decide() -> None:
    fast, slow = Timing(1_000.0, True), Timing(9e9, True)
    measure = Said("full", slow, fast)
    kinds, report = planned(measure)
    assert "fold" not in kinds and len(measure.asked) > len(kinds)
    assert "(measured)" in report and "not chosen" in report
    assert planned(Said("full", fast, slow), 65)[0] == ["fold"]


def test_a_kernel_that_was_wrong_is_left_out_whatever_it_costs() -> None:
    kinds, report = planned(Said("full", Timing(1.0, False), Timing(9e9, True)))
    assert "fold" not in kinds and "its result was wrong: left out" in report


def test_what_cannot_be_timed_keeps_its_cost() -> None:
    assert planned(Said("full", None, None))[0] == planned(None)[0]


def test_ties_times_nothing_where_the_costs_are_clear() -> None:
    measure = Said("ties", Timing(9e9, True), Timing(1.0, True))
    planned(measure, 2048)
    clear = list(measure.asked)
    assert clear == []


def test_near_ties_are_those_in_which_plans_of_like_cost_differ() -> None:
    def made(name: str, makes: str, needs: str, cost: float) -> Producer:
        return Producer(name, tuple(makes), frozenset(needs), cost)

    producers = [
        made("first", "a", "", 100.0), made("second", "b", "a", 100.0),
        made("both", "b", "", 210.0), made("slow", "b", "a", 400.0), made("else", "c", "", 50.0),
    ]  # fmt: skip

    def names(limit: Sequence[Producer]) -> list[str]:
        found = near_ties(limit, lambda some: extract(some, ["b", "c"]))
        return [p.name for p in found]

    assert names(producers) == ["first", "second", "both"]
    assert names([p for p in producers if p.name != "both"]) == []


def test_equal_kernels_that_are_not_one_object_are_run_as_they_are() -> None:
    silent = Source("silent", lambda kernel, table: None)
    x = fg.Tensor(np.ones((5, 4)))
    normal = normalize([x.cumsum(0).cumsum(0).node])
    sink = restore(normal.structure, normal.constants, {}, normal.nodes)

    def choose(pieces: Sequence[Segment], roots: Set[Node]) -> list[Segment]:
        twins = [
            (why, outputs, (Kernel(k.kind, k.body, k.inputs), memory, origins))
            for why, outputs, (k, memory, origins) in pieces
        ]
        assert twins[0][2][0] == twins[1][2][0] and twins[0][2][0] is not twins[1][2][0]
        return WideSearcher(SOURCES, SHIPPED, alone=[silent])(twins, roots)

    found = schedule(sink, len(normal.buffers), True, choose)
    assert [item.kernel.kind for item in found.items] == ["scan", "scan"]
    assert not any("run by" in item.reason for item in found.items)
