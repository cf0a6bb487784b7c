"""What was compiled and what was left to torch: counts, and one warning for each operator."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from dataclasses import dataclass, field


class FallbackWarning(RuntimeWarning):
    """An operator that torch runs, one by one, inside a compiled graph."""


@dataclass
class Report:
    """What happened since the process began, or since `reset()`."""

    graphs: int = 0  # that AOTAutograd gave us
    programs: int = 0  # that were compiled or loaded for them, one for each set of sizes
    operators: int = 0  # lowered, in all graphs
    eager: Counter[str] = field(default_factory=Counter)  # left to torch, by operator
    reasons: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # spent on lowering and compiling
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def left(self, name: str, why: str, quiet: bool) -> None:
        """Count an operator that torch runs; the first time somebody is told."""
        with self._lock:
            self.eager[name] += 1
            new = name not in self.reasons
            self.reasons.setdefault(name, why)
        if new and not quiet:
            warnings.warn(
                f"torch runs {shown(name)} inside a graph that fulgurite compiled: {why}",
                FallbackWarning, stacklevel=2,
            )  # fmt: skip

    def reset(self) -> None:
        """Begin to count anew; operators are told of again."""
        self.graphs = self.programs = self.operators = 0
        self.seconds = 0.0
        self.eager.clear()
        self.reasons.clear()

    def __str__(self) -> str:
        lines = [
            f"{self.graphs} graphs, {self.programs} programs, {self.operators} operators compiled,"
            f" {self.seconds:.2f} s",
            *[f"  torch ran {shown(name)} ({count}): {self.reasons[name]}"
              for name, count in self.eager.most_common()],
        ]  # fmt: skip
        return "\n".join(lines)


REPORT = Report()


def shown(name: str) -> str:
    """An operator's name with its library."""
    return name if "::" in name else f"aten.{name}"


def report() -> Report:
    """What the backend compiled, and which operators it left to torch, with reasons."""
    return REPORT
