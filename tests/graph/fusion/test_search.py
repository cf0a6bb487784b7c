"""Tests of graph/fusion/search.py: who competes, who is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.codegen.cpu.providers import SOURCES
from fulgurite.core.cache import Cache
from fulgurite.core.context import Table, WeakMemo
from fulgurite.core.node import Node
from fulgurite.graph.fusion import has_choice
from fulgurite.graph.fusion import search as choosing
from fulgurite.graph.fusion.budget import BUDGET
from fulgurite.graph.fusion.extract import Producer, extract
from fulgurite.graph.fusion.machine import (
    CostTable,
    least_time,
    spill_time,
    time_of,
    work_of,
)
from fulgurite.graph.fusion.proposals import Proposal, Source
from fulgurite.graph.fusion.providers import Timing, WideSearcher
from fulgurite.graph.fusion.report import RegionReport
from fulgurite.graph.fusion.search import Searcher
from fulgurite.graph.ir.kernel import Kernel, Schedule
from fulgurite.graph.ir.limits import LIMITS
from fulgurite.kernel.stream import online, rules
from tests.graph.scheduling import schedule
from tests.graph.searching import ATTENTION, INTO_PRODUCTS, ROWS, Program, kinds, lowered, numbers
from tests.threads import together

pytestmark = pytest.mark.device("none")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every search is made anew."""
    monkeypatch.setattr(choosing, "REGIONS", Cache("regions", lambda: 512))
    monkeypatch.setattr(online, "STREAMS", Table(WeakMemo))
    yield


def gradients(heads: int, length: int, size: int, causal: bool = False) -> list[fg.Tensor]:
    """Those of a product of weights and values, in all three."""
    q, k, v, g = (numbers(i, heads, length, size) for i in range(4))

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        name = "causal" if causal else "plain"
        return (ATTENTION[name](q, k, v) * g).sum()

    return list(fg.grad(loss, argnums=(0, 1, 2))(q, k, v))


def classes(rows: int, size: int, count: int) -> list[fg.Tensor]:
    """A linear layer with its loss and gradients."""
    goal = fg.Tensor(np.random.default_rng(5).integers(0, count, rows))
    loss = fg.value_and_grad(lambda h, w: fg.cross_entropy(h @ w, goal), argnums=(0, 1))
    value, grads = loss(numbers(1, rows, size), numbers(2, size, count))
    return [value, *grads]


def searched(tensors: Sequence[fg.Tensor], who: Searcher) -> Schedule:
    """The schedule that a searcher gives."""
    return schedule(*lowered(*tensors), True, who)


def _of_three(make: Program, length: int) -> fg.Tensor:
    return make(*[numbers(i, 2, length, 16) for i in range(3)])


def _of_one(make: Callable[[fg.Tensor], fg.Tensor], length: int) -> fg.Tensor:
    return make(numbers(1, length, 64))


def attended(length: int = 64) -> fg.Tensor:
    """A product of weights and values."""
    return _of_three(ATTENTION["plain"], length)


# --- who competes --------------------------------------------------------------------------------


def test_pieces_as_they_are_merged_ones_a_library_and_stored_rows_compete() -> None:
    """Unfused, fused, library and copy: what is stored for several readers, or worked out again."""

    def library(kernel: Kernel, table: CostTable) -> Proposal | None:
        return Proposal("library", 1.0, "a library") if kernel.kind == "contract" else None

    found = []
    for alone in ([], [Source("library", library)]):
        who = WideSearcher(SOURCES, SHIPPED, alone)
        who.curious = True
        searched([*gradients(2, 64, 16), numbers(1, 70, 70) @ numbers(2, 70, 70)], who)
        found.append(max(who.reports, key=lambda report: report.segments))
    plain, region = found
    assert region.greedy < plain.greedy  # inside a region the library competes as well
    offers = [a.what for a in region.alternatives]
    assert region.segments == 6 and region.greedy > 0  # as they are
    assert sum(what.startswith("fold") for what in offers) >= 3
    assert any("max row, add row" in what and "columns" not in what for what in offers)  # stored
    single = [[a.what for a in r.alternatives] for r in who.reports if r.segments == 1]
    assert ["our own contract kernel", "a library"] in single


def test_the_cheapest_is_chosen_and_the_choice_is_kept() -> None:
    asked = []

    def priced(cost: float) -> Source:
        def propose(kernel: Kernel, table: CostTable) -> Proposal | None:
            found = SOURCES[0].propose(kernel, table)
            asked.append(cost)
            return found and replace(found, cost=cost, what=f"one for {cost}")

        return Source(f"priced {cost}", propose)

    plans = []
    for _ in range(2):
        who = Searcher([priced(9e9), priced(2.0), priced(5.0)], SHIPPED)
        plans.append(kinds(searched([attended()], who)))
        chosen = [a.what for report in who.reports for a in report.alternatives if a.chosen]
        assert chosen == ["one for 2.0"]
    assert plans == [["fold"], ["fold"]] and who.searched == 0 and who.reports[0].cached
    assert len(asked) == len(set(asked))  # each of the three once


def test_nothing_costs_zero_and_more_work_costs_more() -> None:
    given = [partial(_of_three, make) for make in ATTENTION.values()]
    given += [partial(_of_one, make) for make in ROWS.values()]
    for make in given:
        costs = []
        for length in (32, 64, 128):
            items = schedule(*lowered(make(length))).items
            assert all(time_of(i.kernel, SHIPPED) >= SHIPPED.launch_ns > 0 for i in items)
            assert all(least_time(work_of(i.kernel), SHIPPED) >= SHIPPED.launch_ns for i in items)
            costs.append(sum(time_of(i.kernel, SHIPPED) for i in items))
        assert costs == sorted(costs) and costs[0] < costs[-1]
    assert spill_time([100], SHIPPED) == 0.0 < spill_time([10**9], SHIPPED)


def test_what_many_read_is_paid_once() -> None:
    shared = Producer("shared", ("s",), frozenset(), 100.0)
    readers = [Producer(f"reader {i}", (f"r{i}",), frozenset(["s"]), 1.0) for i in range(9)]
    own = [Producer(f"own {i}", (f"r{i}",), frozenset(), 12.0) for i in range(9)]
    found = extract([shared, *readers, *own], [f"r{i}" for i in range(9)])
    assert found.cost == min(109.0, 9 * 12.0) == 108.0  # a tree would count shared nine times
    few = extract([shared, *readers, *[replace(p, cost=13.0) for p in own]],
                  [f"r{i}" for i in range(9)])  # fmt: skip
    assert few.cost == 109.0 and shared in few.producers


def test_shared_terms_are_counted_once_in_a_chain_of_doublings() -> None:
    from fulgurite.core.rewriting.egraph import EGraph, cheapest

    graph = EGraph()
    value = graph.add("x")
    for _ in range(64):
        value = graph.add("add", value, value)
    asked = [0]

    def price(term: tuple[object, ...], number: int) -> float:
        asked[0] += 1
        return 1.0

    assert len(cheapest(graph, [value], price)) == 65 and asked[0] == 65


def test_a_search_is_bounded_by_counts() -> None:
    hard = [Producer(f"{a} {b}", (a, b), frozenset(), 3.0 + 0.01 * a * b)
            for a in range(14) for b in range(14) if a != b]  # fmt: skip
    found = extract(hard, range(14), steps=500)
    assert not found.complete and found.steps <= 500
    who = Searcher(SOURCES, SHIPPED)
    searched([*gradients(2, 64, 16), *classes(64, 16, 200)], who)
    for report in who.reports:
        assert report.nodes <= LIMITS.egraph_terms and report.asked <= BUDGET.proposals
        assert report.steps <= BUDGET.plan_steps + BUDGET.proposals * BUDGET.bound_steps


# --- who is asked --------------------------------------------------------------------------------

PROGRAMS: dict[str, Callable[[], Sequence[fg.Tensor]]] = {
    "gradients": lambda: gradients(2, 70, 16),
    "larger gradients": lambda: gradients(8, 256, 64),
    "gradients of causal scores": lambda: gradients(4, 512, 32, causal=True),
    "classes": lambda: classes(128, 64, 1000),
}
NAMES = [*PROGRAMS, *INTO_PRODUCTS, *ATTENTION]


def program(name: str) -> Sequence[fg.Tensor]:
    """A graph in which there is something to choose."""
    if name in PROGRAMS:
        return PROGRAMS[name]()
    if name in ATTENTION:
        return [_of_three(ATTENTION[name], 80)]
    return [_of_one(INTO_PRODUCTS[name], 120)]


@pytest.mark.parametrize("name", NAMES)
def test_asking_only_what_may_pay_finds_what_asking_everything_finds(name: str) -> None:
    costs, asked, plans = [], [], []
    for eager in (False, True):
        choosing.REGIONS.clear()
        who = Searcher(SOURCES, SHIPPED)
        who.eager = eager
        plans.append(kinds(searched(program(name), who)))
        known = [r for r in who.reports if r.segments > 1]
        costs.append([report.cost for report in known])
        asked.append(sum(report.asked for report in known))
    assert costs[0] == pytest.approx(costs[1], rel=1e-6) and plans[0] == plans[1]
    assert asked[0] <= asked[1]


class _Evicting(str):
    """A name that has all regions forgotten whenever a table looks for it: another thread may."""

    __slots__ = ()

    def __hash__(self) -> int:
        choosing.REGIONS.clear()
        return super().__hash__()


def test_a_region_that_is_evicted_while_it_is_looked_up_is_searched_anew() -> None:
    wanted = kinds(searched(program(NAMES[0]), Searcher(SOURCES, SHIPPED)))
    sources = [replace(source, name=_Evicting(source.name)) for source in SOURCES]
    assert kinds(searched(program(NAMES[0]), Searcher(sources, SHIPPED))) == wanted


def test_threads_that_search_at_once_while_regions_are_forgotten_find_what_one_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choosing, "REGIONS", Cache("regions", lambda: 1))
    programs = [program(name) for name in NAMES[:2]]
    wanted = [kinds(searched(p, Searcher(SOURCES, SHIPPED))) for p in programs]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        places = [(0, 1, 0), (1, 0, 1), (0, 0, 1), (1, 1, 0)]
        found = together(
            4,
            lambda n: [kinds(searched(programs[i], Searcher(SOURCES, SHIPPED))) for i in places[n]],
        )
    finally:
        sys.setswitchinterval(before)
    assert found == [[wanted[i] for i in some] for some in places]


@pytest.mark.device("cpu")
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_region_with_another_constant_gets_no_plan_of_the_first(first: int) -> None:
    x, often = np.random.default_rng(0).normal(size=6), np.arange(1, 7)
    weights = fg.Tensor(often)
    fg.clear_caches()
    for less in (first, 0, 1, 2, 3):  # laws of folds name some, which are constants there
        found = fg.cov(fg.Tensor(x), fweights=weights, correction=less)
        np.testing.assert_allclose(found.numpy(), np.cov(x, fweights=often, ddof=less))


def test_where_nothing_pays_nobody_is_asked() -> None:
    who = Searcher(SOURCES, SHIPPED)
    assert "fold" not in kinds(searched(gradients(16, 64, 192), who))
    assert [(r.asked, r.nodes) for r in who.reports] == [(0, 0)] and who.reports[0].untried > 0
    assert "could not pay; at least" in str(who.reports[0])


def test_layers_are_regions_of_their_own() -> None:
    """A value that must be stored in any case joins nothing."""
    x, w = numbers(1, 2, 64, 16), [numbers(i, 16, 16) for i in range(6)]

    def loss(x: fg.Tensor, *w: fg.Tensor) -> fg.Tensor:
        for k in w:
            x = x + fg.softmax(x @ (x @ k).mT, axis=-1) @ (x @ k)
            x = (x - x.mean(axis=-1, keepdims=True)) * fg.rsqrt(
                (x * x).mean(axis=-1, keepdims=True)
            )
        return (x * x).sum()

    grads = fg.grad(loss, argnums=tuple(range(7)))(x, *w)
    who = Searcher(SOURCES, SHIPPED)
    searched(grads, who)
    assert max(report.segments for report in who.reports) <= BUDGET.region_segments
    assert who.searched <= 4 < 6 <= len(who.reports)  # the first and the last have other ends


def test_a_plain_row_has_a_fold_among_the_alternatives_and_the_cheapest_wins() -> None:
    for name in ("entropy", "divergence", "weighted variance", "logsumexp", "log-likelihood"):
        report = fg.explain(ROWS[name](numbers(1, 60, 200)))
        assert [kernel.kind for kernel in report.kernels] == ["reduce"]
        assert any(
            a.what.startswith("fold over 200") for r in report.regions for a in r.alternatives
        )
        assert all(r.cost <= r.greedy for r in report.regions)


def test_a_report_says_what_fired_what_it_cost_and_what_was_spent() -> None:
    report = fg.explain(attended())
    (region,) = report.regions
    text = report.stages["search"]
    assert [a.chosen for a in region.alternatives].count(True) == 1
    for part in ("us as they were", "% saved", "sum-factor x", "kernels asked for", "terms,",
                 "steps;", "all alternatives", "us, chosen"):  # fmt: skip
        assert part in text


def test_looking_does_not_change_the_choice() -> None:
    for tensors in (gradients(2, 70, 16), gradients(8, 256, 64), classes(128, 64, 1000)):
        plain, curious = Searcher(SOURCES, SHIPPED), Searcher(SOURCES, SHIPPED)
        curious.curious = True
        found = kinds(searched(tensors, plain))
        choosing.REGIONS.clear()  # what is known is not asked again
        assert kinds(searched(tensors, curious)) == found
        assert sum(r.asked for r in curious.reports) >= sum(r.asked for r in plain.reports)


_PLAIN = """
import sys
import numpy as np
import fulgurite as fg
with fg.config(tier="native", device="cpu"):
    x = fg.Tensor(np.ones((64, 64), "f"))
    fg.softmax(x, axis=-1).numpy(), (x @ x + x).numpy(), fg.layer_norm(x, (64,)).numpy()
print([m for m in sys.modules if m.startswith("fulgurite.graph.fusion.search") or "egraph" in m])
"""


def test_a_schedule_without_a_choice_loads_no_search() -> None:
    env = {**os.environ, "FULGURITE_DISK_CACHE": "0"}
    run = subprocess.run([sys.executable, "-c", _PLAIN], env=env, text=True,
                         capture_output=True, check=True)  # fmt: skip
    assert run.stdout.strip() == "[]"


def test_there_is_a_choice_where_a_fold_is_read() -> None:
    x = numbers(1, 64, 64)
    found = []

    def look(pieces: Sequence[tuple[str, list[Node], object]], roots: object) -> object:
        found.append(has_choice(pieces))  # type: ignore[arg-type]
        return pieces

    for tensor in (x + 1, fg.softmax(x, axis=-1), x @ x, fg.softmax(x @ x, axis=-1) @ x):
        schedule(*lowered(tensor), True, look)  # type: ignore[arg-type]
    assert found == [False, False, False, True]


# --- choosing again ------------------------------------------------------------------------------


class Said:
    """A measure that says what it was told."""

    def __init__(self, mode: str, fold: float, other: float) -> None:
        self.mode, self.fold, self.other = mode, fold, other

    def __call__(self, kernels: Sequence[Kernel], table: CostTable) -> list[Timing | None]:
        return [Timing(self.fold if k.kind == "fold" else self.other, True) for k in kernels]


def test_tuning_chooses_again_without_searching_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"asked": 0, "graphs": 0}
    saturate = rules.saturate

    def graphs(roots: Sequence[Node], sizes: Sequence[int]) -> object:
        counts["graphs"] += 1
        return saturate(roots, sizes)

    def propose(kernel: Kernel, table: CostTable) -> Proposal | None:
        counts["asked"] += 1
        return SOURCES[0].propose(kernel, table)

    monkeypatch.setattr(online, "saturate", graphs)
    sources = [replace(SOURCES[0], propose=propose)]
    tensor = attended()
    assert kinds(searched([tensor], Searcher(sources, SHIPPED))) == ["fold"]
    assert counts["asked"] > 0 and counts["graphs"] > 0
    counts.update(asked=0, graphs=0)
    near = Said("ties", 9e9, 1.0)  # costs are far apart: nothing is timed, and nothing searched
    assert kinds(searched([tensor], WideSearcher(sources, SHIPPED, measure=near))) == ["fold"]
    assert counts == {"asked": 0, "graphs": 0}
    full = WideSearcher(sources, SHIPPED, measure=Said("full", 9e9, 1.0))
    assert "fold" not in kinds(searched([tensor], full))  # by its time it does not pay
    assert counts["graphs"] <= 1  # of the one that had not been asked for
    counts.update(asked=0, graphs=0)
    other = replace(SHIPPED, stream_gemm_rate=SHIPPED.stream_gemm_rate * 2)
    assert kinds(searched([tensor], Searcher(sources, other))) == ["fold"]
    assert counts["asked"] > 0 and counts["graphs"] == 0  # other costs, the same e-graphs


class Layers:
    """Regions that are layers: some need more memory than allowed, each at its own time."""

    def __init__(self, count: int, heavy: Sequence[int]) -> None:
        self.count, self.heavy, self.tried = count, set(heavy), 0
        self.graph, self.segments = self, list(range(count))

    def assembled(self, made: Sequence[tuple[int, Any]]) -> list[int]:
        """The layers that are fused."""
        self.tried += 1
        return [place for place, _ in made]

    def live_bytes(self, fused: Sequence[int]) -> list[int]:
        """Bytes while each layer runs."""
        return [150 if i in self.heavy.intersection(fused) else 100 for i in range(self.count)]

    def peak_bytes(self, segments: Sequence[int]) -> int:
        """What the greedy schedule needs."""
        return 100


def test_layers_that_need_too_much_memory_are_found_in_steps_of_their_number() -> None:
    layers: Any = Layers(60, range(0, 60, 3))
    search = Searcher([], SHIPPED)
    search.reports = [RegionReport(1) for _ in range(60)]
    fused: Any = {i: [(i, None)] for i in range(60)}
    found: Any = search.within_memory(layers, fused)
    assert found == list(fused) == [i for i in range(60) if i % 3]
    assert [i for i, report in enumerate(search.reports) if report.memory] == list(range(0, 60, 3))
    assert layers.tried <= 1 + 60 + 2 * 20  # all of them, each alone, and a few for each choice
