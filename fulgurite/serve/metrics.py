"""Counters and histograms in Prometheus' text format.

In: what happened. Out: the text of `/metrics`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds


class Histogram:
    """How often something took how long, in seconds."""

    def __init__(self) -> None:
        self.counts, self.total = [0] * (len(BOUNDS) + 1), 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, what: str) -> list[str]:
        """Its text."""
        found, so_far = [f"# HELP {name} {what}", f"# TYPE {name} histogram"], 0
        for bound, count in zip((*BOUNDS, "+Inf"), self.counts, strict=True):
            so_far += count
            found.append(f'{name}_bucket{{le="{bound}"}} {so_far}')
        return [*found, f"{name}_sum {self.total:.6f}", f"{name}_count {so_far}"]


class Metrics:
    """What a server counts; any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.answers: Counter[tuple[str, int]] = Counter()  # by path and status
        self.cancelled = 0
        self.first_token, self.whole = Histogram(), Histogram()

    def answered(self, path: str, status: int) -> None:
        """Count an answer."""
        with self._lock:
            self.answers[path, status] += 1

    def left(self) -> None:
        """Count a client who did not wait."""
        with self._lock:
            self.cancelled += 1

    def took(self, first: float | None, whole: float) -> None:
        """Count the seconds until the first token and until the end."""
        with self._lock:
            if first is not None:
                self.first_token.add(first)
            self.whole.add(whole)

    def text(self, counters: Mapping[str, float], gauges: Mapping[str, float]) -> str:
        """Everything, with numbers that others keep."""
        with self._lock:
            lines = [
                "# HELP fulgurite_requests_total Answers by path and status.",
                "# TYPE fulgurite_requests_total counter",
            ]
            for (path, status), count in sorted(self.answers.items()):
                lines.append(f'fulgurite_requests_total{{path="{path}",status="{status}"}} {count}')
            numbers = {"fulgurite_cancelled_total": self.cancelled, **counters}
            for kind, some in (("counter", numbers), ("gauge", gauges)):
                for name, value in some.items():
                    lines += [f"# TYPE {name} {kind}", f"{name} {value}"]
            lines += self.first_token.lines(
                "fulgurite_first_token_seconds", "Seconds until the first token."
            )
            lines += self.whole.lines("fulgurite_request_seconds", "Seconds of a whole text.")
        return "\n".join(lines) + "\n"
