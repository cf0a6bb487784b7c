"""Edges of CUDA graphs against all pairs of items."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.runtime.cuda.dependencies import Span, dependencies

Touched = tuple[list[Span], list[Span]]
OWNERS: list[int | str] = ["arena", 3, "workspace"]

spans = st.lists(
    st.tuples(st.sampled_from(OWNERS), st.integers(0, 12), st.integers(0, 8)).map(
        lambda s: (s[0], s[1], s[1] + s[2])
    ),
    max_size=3,
)
plans = st.lists(st.tuples(spans, spans), max_size=24)


def meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    """True if memory is in both."""
    return any(a == b and max(c, e) < min(d, f) for a, c, d in some for b, e, f in others)


def reached(edges: list[list[int]]) -> list[set[int]]:
    """For each item all that it comes after."""
    found: list[set[int]] = []
    for before in edges:
        found.append({*before}.union(*[found[m] for m in before]))
    return found


def needed(plan: list[Touched]) -> list[set[int]]:
    """For each item the earlier ones with which it has a hazard."""
    return [
        {
            m
            for m in range(n)
            if meet(plan[m][1], [*reads, *writes]) or meet(plan[m][0], writes)
        }
        for n, (reads, writes) in enumerate(plan)
    ]  # fmt: skip


@given(plan=plans, branches=st.integers(1, 5), seed=st.randoms())
def test_every_hazard_is_ordered_and_no_edge_is_reached_through_another(
    plan: list[Touched], branches: int, seed: object
) -> None:
    fills = [seed.random() < 0.3 for _ in plan]  # type: ignore[attr-defined]
    edges = dependencies(plan, branches, fills)
    behind = reached(edges)
    for mine, wanted in zip(behind, needed(plan), strict=True):
        assert wanted <= mine
    for before in edges:
        for m in before:
            assert not any(m in behind[other] for other in before)


@given(plan=plans)
def test_with_branches_for_all_only_hazards_are_ordered(plan: list[Touched]) -> None:
    edges = dependencies(plan, len(plan) + 1, [False] * len(plan))
    wanted: list[set[int]] = []
    for direct in needed(plan):
        wanted.append(direct.union(*[wanted[m] for m in direct]))
    assert reached(edges) == wanted


@pytest.mark.parametrize("branches", [2, 3])
@given(plan=plans)
def test_no_more_items_than_branches_run_side_by_side(branches: int, plan: list[Touched]) -> None:
    behind = reached(dependencies(plan, branches, [False] * len(plan)))
    # Dilworth: the least number of chains that hold all items is the greatest width
    chains: dict[int, int] = {}

    def follows(n: int, seen: set[int]) -> bool:
        for m in behind[n] - seen:
            seen.add(m)
            if m not in chains or follows(chains[m], seen):
                chains[m] = n
                return True
        return False

    matched = sum(follows(n, set()) for n in range(len(plan)))
    assert len(plan) - matched <= branches


def test_items_that_fill_the_gpu_are_a_chain_and_small_ones_run_beside() -> None:
    plan: list[Touched] = [([], [(n, 0, 1)]) for n in range(6)]
    edges = dependencies(plan, 4, [True, False, True, False, True, False])
    assert edges == [[], [], [0], [], [2], []]
    assert dependencies(plan, 1, [False] * 6) == [[], [0], [1], [2], [3], [4]]
