"""What a search did, for people: alternatives with costs, the one chosen, rules, budget.

In: what was counted on the way. Out: text for `fg.explain`. A report belongs to a region, to one
kernel that somebody else might run, or to the places of a kernel of the user. It holds no nodes, so
keeping it keeps no graph alive.
"""

from __future__ import annotations

from dataclasses import field

from ...core.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Alternative:
    """One way to compute a segment of a region, for people."""

    what: str
    cost: float
    chosen: bool
    replaces: int  # greedy segments


@dataclass
class RegionReport:
    """What was found for one region."""

    segments: int
    alternatives: list[Alternative] = field(default_factory=list)
    rules: dict[str, int] = field(default_factory=dict)
    nodes: int = 0  # most of an e-graph
    steps: int = 0  # of branch and bound
    asked: int = 0  # merged kernels that sources were asked for
    untried: int = 0  # merged kernels that could not pay, whatever they had turned out to cost
    bounds: list[tuple[float, int]] = field(default_factory=list)  # the least some would cost
    complete: bool = True
    greedy: float = 0.0
    cost: float = 0.0
    cached: bool = False
    memory: bool = False  # would the choice need more of it at once?
    apart: bool = False  # would it compare what two kernels compute?

    def __str__(self) -> str:
        plain = self.cost >= self.greedy
        head = f"region of {self.segments} kernels: {self.greedy / 1e3:.1f} us as they were, "
        head += f"{self.cost / 1e3:.1f} us chosen: "
        head += "nothing is cheaper" if plain else f"{1 - self.cost / self.greedy:.0%} saved"
        rules = ", ".join(f"{name} x{count}" for name, count in sorted(self.rules.items()))
        budget = f"{self.asked} kernels asked for, {self.nodes} terms, {self.steps} steps"
        how = "all alternatives" if self.complete else "as far as the budget went"
        lines = [head, f"    rules: {rules or 'none'}; {budget}; {how}"]
        if self.cached:
            lines[1] += "; known from an equal region"
        if self.memory:
            lines.append("    left as they were: what was chosen needs more memory at once")
        if self.apart:
            lines.append("    left as they were: what was chosen compares sums of two kernels")
        for a in self.alternatives:
            mark = "chosen" if a.chosen else "not chosen"
            lines.append(f"    {a.what}: {a.cost / 1e3:.1f} us, {mark}")
        if self.untried:
            least = ", ".join(f"{cost / 1e3:.1f} us for {count}" for cost, count in self.bounds)
            lines.append(f"    {self.untried} more could not pay; at least {least} of the kernels")
        return "\n".join(lines)
