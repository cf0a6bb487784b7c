"""The README's figures: `python bench/readme.py` writes them from bench/results/readme.json.

In: one JSON file: the machine and the day in words, and rows of `what`, `unit`, `ours` and `peers`
(numbers, the less the better). Out: the table between the two marks of README.md: ours, the best
peer, and the time (or memory) of ours over theirs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FIGURES = ROOT / "bench" / "results" / "readme.json"
BEGIN, END = "<!-- figures: python bench/readme.py -->", "<!-- end of figures -->"


def figures() -> dict[str, Any]:
    """What was measured last."""
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def line(row: dict[str, Any]) -> str:
    """A row of the table; the ratio is to the best peer."""
    name, best = min(row["peers"].items(), key=lambda pair: float(pair[1]))
    unit, ours = row["unit"], row["ours"]
    return f"| {row['what']} | {ours:g} {unit} | {best:g} {unit} ({name}) | {ours / best:.2f} |"


def table(found: dict[str, Any]) -> str:
    """All figures as Markdown."""
    head = ["| | ours | best peer | ours / peer |", "| --- | --- | --- | --- |"]
    return "\n".join([f"{found['measured']}", "", *head, *map(line, found["rows"])])


def updated(text: str, found: dict[str, Any]) -> str:
    """The README with the figures between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"README.md has no {BEGIN} ... {END}"
    return f"{before}{BEGIN}\n{table(found)}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(updated(README.read_text(encoding="utf-8"), figures()), encoding="utf-8")
    print(f"wrote {README}")
