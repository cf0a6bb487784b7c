"""Extraction: which producers to run, so that everything asked for is there and the sum is least.

In: producers, each with the values it makes, those it needs and its cost; the values asked for; a
cap on steps and, if wanted, on the bytes that stay in memory. Out: producers in an order that
works. A value that two consumers share is paid once. `greedily` is the answer that always exists:
for each value the producer that is cheapest with all it needs. `extract` begins there and improves
it by branch and bound: it settles one missing value after the other, first by producers that cost
the least for each value they settle, and leaves a branch whose cost plus the least that is still
missing cannot beat the best. More steps never give a costlier answer, since the best so far is only
ever replaced by a cheaper one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeAlias

from ...core.lazy_dataclass import dataclass
from .budget import BUDGET

Value: TypeAlias = Hashable


@dataclass(frozen=True, eq=False)
class Producer:
    """A kernel that could be run; each is one of its own."""

    name: str
    makes: tuple[Value, ...]
    needs: frozenset[Value]
    cost: float
    bytes: int = 0  # that it leaves in memory


Agree: TypeAlias = Callable[[Sequence[Producer]], bool]


@dataclass(frozen=True)
class Extraction:
    """What to run, in order."""

    producers: tuple[Producer, ...]
    cost: float
    steps: int
    complete: bool  # was every alternative looked at, or excluded?


class NoPlanError(Exception):
    """A value is asked for that nothing makes, or not within the memory there is."""


def extract(
    producers: Sequence[Producer], wanted: Iterable[Value], given: Iterable[Value] = (),
    steps: int = BUDGET.plan_steps, memory: int | None = None, agree: Agree | None = None,
    start: Sequence[Producer] = (),
) -> Extraction:  # fmt: skip
    """The cheapest producers found within so many steps, of those that agree with each other.

    `start` is an answer that is known.
    """
    return _Search(producers, wanted, given, steps, memory, agree).run(start)


class _Search:
    def __init__(
        self, producers: Sequence[Producer], wanted: Iterable[Value], given: Iterable[Value],
        steps: int, memory: int | None, agree: Agree | None,
    ) -> None:  # fmt: skip
        self.agree = agree
        self.wanted, self.given = list(dict.fromkeys(wanted)), frozenset(given)
        self.limit, self.memory = steps, memory
        self.makers: dict[Value, list[Producer]] = {}
        if agree is None:  # or what beats a producer in everything may be what does not agree
            producers = _undominated(producers)
        for producer in producers:
            for value in producer.makes:
                self.makers.setdefault(value, []).append(producer)
        for makers in self.makers.values():
            makers.sort(key=lambda p: p.cost)  # stable: of equal ones the first given
        self.order = {value: i for i, value in enumerate(self.makers)}
        self.needs = {p: self.ordered(p.needs - self.given) for p in producers}
        self.bounds: dict[frozenset[Value], float] = {}  # what some missing values cost at least
        self.steps, self.complete = 0, True
        self.best: tuple[float, tuple[Producer, ...]] | None = None

    def run(self, start: Sequence[Producer]) -> Extraction:
        if start:
            self.offer(tuple(start))
        first = self.greedily()
        if first is not None:
            self.offer(first)
        self.branch([v for v in self.wanted if v not in self.given], frozenset(), {}, 0.0, 0)
        if self.best is None:
            raise NoPlanError("nothing makes what is asked for")
        cost, chosen = self.best
        return Extraction(self.sorted(chosen), cost, self.steps, self.complete)

    def ordered(self, values: Iterable[Value]) -> list[Value]:
        """Values in the order in which producers make them; what nobody makes comes last."""
        return sorted(values, key=lambda v: self.order.get(v, len(self.order)))

    # --- the answer that always exists -----------------------------------------------------------

    def greedily(self) -> tuple[Producer, ...] | None:
        """For each value the producer that is cheapest with all it needs, paid each time."""
        price: dict[Value, tuple[float, Producer]] = {}
        changed = True
        while changed:
            changed = False
            for value, makers in self.makers.items():
                for maker in makers:
                    parts = [self.price(price, n) for n in maker.needs]
                    if any(p is None for p in parts):
                        continue
                    cost = maker.cost + sum([p for p in parts if p is not None])
                    if value not in price or cost < price[value][0]:
                        price[value] = cost, maker
                        changed = True
        chosen: dict[Producer, None] = {}
        stack, seen = list(self.wanted), set[Value]()
        while stack:
            value = stack.pop()
            if value in self.given or value in seen:
                continue
            seen.add(value)
            if value not in price:
                return None
            maker = price[value][1]
            chosen[maker] = None
            stack.extend(self.needs[maker])
        return tuple(chosen)

    def price(self, price: dict[Value, tuple[float, Producer]], value: Value) -> float | None:
        if value in self.given:
            return 0.0
        return price[value][0] if value in price else None

    def offer(self, chosen: tuple[Producer, ...]) -> None:
        """A complete choice: without what the others make superfluous, if it is the best."""
        if self.memory is not None and sum([p.bytes for p in chosen]) > self.memory:
            return
        cost = sum([p.cost for p in chosen])
        if self.best is not None and cost >= self.best[0] - 1e-9:
            return
        if (self.agree is None or self.agree(chosen)) and self.sorted(chosen):
            self.best = cost, chosen

    # --- branch and bound ------------------------------------------------------------------------

    def branch(
        self, missing: list[Value], made: frozenset[Value], chosen: dict[Producer, None],
        cost: float, resident: int,
    ) -> None:  # fmt: skip
        if self.steps >= self.limit:
            self.complete = False
            return
        self.steps += 1
        open_values = frozenset(missing)
        if not missing:
            self.offer(tuple(chosen))
        if not missing or self.is_pruned(missing, open_values, cost, resident):
            return
        value = min(missing, key=lambda v: (len(self.makers[v]), self.order[v]))
        for maker in sorted(
            self.makers[value], key=lambda p: p.cost / len(open_values.intersection(p.makes))
        ):  # what it costs for each of the values that it saves others
            if not self.complete:
                return
            if maker in chosen:
                continue
            now = made.union(maker.makes)
            rest = [v for v in missing if v not in now]
            more = [v for v in self.needs[maker] if v not in now and v not in rest]
            self.branch(
                rest + more, now, {**chosen, maker: None}, cost + maker.cost, resident + maker.bytes
            )

    def is_pruned(
        self, missing: list[Value], values: frozenset[Value], cost: float, resident: int
    ) -> bool:
        """True if no plan of a branch fits into memory, makes all, and beats the best."""
        if self.memory is not None and resident > self.memory:
            return True
        if not all([v in self.makers for v in missing]):
            return True
        return self.best is not None and cost + self.bound(missing, values) >= self.best[0] - 1e-9

    def bound(self, missing: list[Value], values: frozenset[Value]) -> float:
        """What it costs at least to make some values: each its share of what makes it."""
        if values not in self.bounds:
            shared, most = 0.0, 0.0
            for value in missing:
                makers = self.makers[value]
                shared += min([p.cost / len(values.intersection(p.makes)) for p in makers])
                most = max(most, makers[0].cost)
            self.bounds[values] = max(shared, most)
        return self.bounds[values]

    def sorted(self, chosen: tuple[Producer, ...]) -> tuple[Producer, ...]:
        """The producers in an order that works, or nothing if there is none."""
        ready, left, out = set(self.given), list(chosen), []
        while left:
            able = [p for p in left if p.needs <= ready]
            if not able:
                return ()
            for producer in able:
                left.remove(producer)
                out.append(producer)
                ready.update(producer.makes)
        return tuple(out)


def _undominated(producers: Sequence[Producer]) -> list[Producer]:
    """The producers without those than which another makes as much of as little for less."""
    found: list[Producer] = []
    makes = {p: frozenset(p.makes) for p in producers}
    for producer in sorted(producers, key=lambda p: p.cost):  # stable: of equal ones the first
        mine = makes[producer]
        if not any(
            mine <= makes[other] and other.needs <= producer.needs and other.bytes <= producer.bytes
            for other in found
        ):
            found.append(producer)
    return found
