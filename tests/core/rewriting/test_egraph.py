"""The e-graph: congruence against brute force, analyses, caps, extraction."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fulgurite.core.rewriting.egraph import Analysis, EGraph, Rewrite, Term, cheapest


class _Brute:
    """Congruence closure by looking at every pair until nothing changes."""

    def __init__(self) -> None:
        self.terms: list[tuple[str, tuple[int, ...]]] = []
        self.same: list[int] = []

    def add(self, op: str, *sources: int) -> int:
        self.terms.append((op, sources))
        self.same.append(len(self.same))
        return len(self.same) - 1

    def union(self, a: int, b: int) -> None:
        old, new = self.same[b], self.same[a]
        self.same = [new if s == old else s for s in self.same]

    def close(self, unordered: frozenset[str]) -> None:
        changed = True
        while changed:
            changed = False
            for i, (op, first) in enumerate(self.terms):
                for j, (other, second) in enumerate(self.terms[:i]):
                    if op != other or self.same[i] == self.same[j]:
                        continue
                    left, right = ([self.same[s] for s in x] for x in (first, second))
                    if op in unordered:
                        left, right = sorted(left), sorted(right)
                    if left == right:
                        self.union(i, j)
                        changed = True


@pytest.mark.parametrize("seed", range(150))
def test_congruence_is_what_looking_at_every_pair_finds(seed: int) -> None:
    rng = random.Random(seed)
    unordered = frozenset({"f"})
    graph, brute = EGraph(unordered), _Brute()
    numbers: list[int] = []
    for _ in range(rng.randint(5, 40)):
        count = rng.choice([0, 1, 2, 2, 3]) if numbers else 0
        sources = [rng.randrange(len(numbers)) for _ in range(count)]
        op = rng.choice("abc") if not count else rng.choice("fgh")
        numbers.append(graph.add(op, *[numbers[s] for s in sources]))
        brute.add(op, *sources)
        if rng.random() < 0.3:
            a, b = rng.randrange(len(numbers)), rng.randrange(len(numbers))
            graph.union(numbers[a], numbers[b])
            brute.union(a, b)
        if rng.random() < 0.2:
            graph.rebuild()
    graph.rebuild()
    brute.close(unordered)
    for i in range(len(numbers)):
        for j in range(i):
            together = graph.find(numbers[i]) == graph.find(numbers[j])
            assert together == (brute.same[i] == brute.same[j]), (seed, i, j)
    for number, terms in graph.terms.items():
        for term in terms:  # the table of terms knows every term by its classes of now
            assert graph.add(*term) == number


def test_sources_in_any_order_are_one_term_where_order_means_nothing() -> None:
    graph = EGraph({"add"})
    a, b = graph.add("a"), graph.add("b")
    assert graph.add("add", a, b) == graph.add("add", b, a)
    assert graph.add("sub", a, b) != graph.add("sub", b, a)


def _axes(graph: EGraph, term: Term) -> frozenset[str]:
    if isinstance(term[0], tuple):
        return frozenset(term[0][1])
    return frozenset[str]().union(*[graph.get("free", s) for s in term[1:]])


def test_what_is_known_of_a_class_reaches_all_that_is_above_it() -> None:
    graph = EGraph(analyses={"free": Analysis(_axes, frozenset.intersection)})
    x, y = graph.add(("x", "ij")), graph.add(("y", "i"))
    top = graph.add("exp", graph.add("neg", x))
    assert graph.get("free", top) == {"i", "j"}
    graph.union(x, y)
    graph.rebuild()
    assert graph.get("free", top) == {"i"}


def _doubled(graph: EGraph, owner: int, term: Term) -> Iterator[int]:
    """x + x = 2 * x, and back with one more pair around it."""
    if term[0] == "add" and term[1] == term[2]:
        yield graph.add("twice", term[1])


def _grows(graph: EGraph, owner: int, term: Term) -> Iterator[int]:
    if term[0] == "leaf":
        return
    yield graph.add(("more", len(graph)), owner)


def test_a_chain_of_doublings_ends_and_its_cost_counts_shared_terms_once() -> None:
    graph = EGraph({"add"})
    x = graph.add("x")
    for _ in range(64):
        x = graph.add("add", x, x)
    report = graph.run([Rewrite("double", _doubled)])
    assert report.stopped == "saturated" and report.fired == {"double": 64}
    found = cheapest(graph, [x], lambda term, _: {"add": 2.0, "twice": 1.0}.get(term[0], 0.0))
    assert [term[0] for term in found.values()].count("twice") == 64


def test_rules_stop_at_the_cap() -> None:
    graph = EGraph()
    graph.add("top", graph.add("leaf"))
    report = graph.run([Rewrite("grows", _grows)], nodes=50, rounds=100)
    assert report.stopped == "nodes" and len(graph) <= 52


def test_what_cannot_be_had_is_never_chosen() -> None:
    graph = EGraph()
    a, b = graph.add("a"), graph.add("b")
    graph.union(a, b)
    graph.rebuild()
    found = cheapest(graph, [a], lambda term, _: None if term[0] == "a" else 5.0)
    assert found[graph.find(a)] == ("b",)


def test_a_class_is_never_computed_from_itself() -> None:
    graph = EGraph()
    x = graph.add("x")
    y = graph.add("id", x)
    graph.union(x, y)
    graph.rebuild()
    found = cheapest(graph, [y], lambda term, _: 1.0 if term[0] == "x" else 0.0)
    assert found[graph.find(x)] == ("x",)


_PROGRAM = """
from tests.core.rewriting.test_egraph import *
graph = EGraph({"add"})
x = graph.add("x")
for name in "abcdefg":
    x = graph.add("add", x, graph.add(name))
graph.union(graph.add("a"), graph.add("c"))
graph.rebuild()
graph.run([Rewrite("double", _doubled)])
print([graph.digest(c).hex() for c in graph.classes()], graph.terms)
"""


def test_two_processes_make_the_same_e_graph() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", f"from {__name__} import _doubled\n{_PROGRAM}"],
            capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2)
    ]  # fmt: skip
    assert texts[0] == texts[1] and texts[0]
