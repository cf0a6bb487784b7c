"""What a benchmark found, as Markdown for readers and JSON for the next run to compare with.

In: rows of cells, one cell for each system (`median` or `best`, or `error`), and goals. Out: text.
The result that was committed last is what a new one is compared with: `since last: x1.05` means
that we now take 1.05 times what we took then.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Cell = dict[str, Any]
Rows = dict[str, dict[str, Cell]]
OURS = "ours"
_PEERS = ("numpy", "torch", "jax", "tinygrad")


def machine(peers: str, threads: int) -> dict[str, str]:
    """What the figures depend on besides the code."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    pairs = (line.partition(":") for line in lines)
    known = {name.strip(): value.strip() for name, _, value in pairs}
    flags = known.get("flags", known.get("Features", "")).split()
    vectors = {"avx512f": "AVX-512", "avx2": "AVX2", "sse2": "SSE2", "asimd": "NEON"}
    return {
        "date": str(date.today()),
        "cpu": known.get("model name", platform.processor() or platform.machine()),
        "cores": str(os.cpu_count()),
        "threads": str(threads),
        "vectors": next((name for flag, name in vectors.items() if flag in flags), "unknown"),
        "python": platform.python_version(),
        "peers": _versions(peers),
        "load": f"{os.getloadavg()[0]:.1f}",
        "commit": _output("git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD").strip(),
    }


def _versions(python: str) -> str:
    ask = (
        "from importlib.metadata import version, packages_distributions as known\n"
        f"print(', '.join(f'{{p}} {{version(p)}}' for p in {_PEERS} if p in known()))"
    )
    return _output(python, "-c", ask).strip()


def _output(*command: str) -> str:
    """What a command prints; nothing if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def last_result(path: Path) -> dict[str, Any] | None:
    """The result that was committed last; the file itself where there is no repository."""
    text = _output("git", "-C", str(path.parent), "show", f"HEAD:./{path.name}")
    if not text and path.exists() and not _output("git", "-C", str(path.parent), "rev-parse"):
        text = path.read_text()
    found: dict[str, Any] | None = json.loads(text) if text else None
    return found


@dataclass(frozen=True)
class Report:
    """All that a benchmark found; `value` is the figure of a cell that is compared."""

    name: str
    machine: dict[str, str]
    rows: Rows
    titles: dict[str, str]
    goals: dict[str, float | None]
    value: str

    def as_json(self) -> dict[str, Any]:
        """For the next run."""
        return {
            "name": self.name, "machine": self.machine, "goals": self.goals, "rows": self.rows,
        }  # fmt: skip

    @property
    def systems(self) -> list[str]:
        """Every system that has a cell, ours first."""
        found = dict.fromkeys(system for cells in self.rows.values() for system in cells)
        return sorted(found, key=lambda system: not system.startswith(OURS))

    def ratio(self, row: str, value: str | None = None) -> float | None:
        """Our figure over the best peer's."""
        cells, value = self.rows[row], value or self.value
        peers = [c[value] for s, c in cells.items() if not s.startswith(OURS) and value in c]
        ours = cells.get(OURS, {}).get(value)
        return ours / min(peers) if ours is not None and peers and min(peers) else None

    def since(self, row: str, last: dict[str, Any] | None) -> float | None:
        """Our figure over the one of the last result."""
        then = (last or {}).get("rows", {}).get(row, {}).get(OURS, {}).get(self.value)
        now = self.rows[row].get(OURS, {}).get(self.value)
        return now / then if then and now is not None else None

    def markdown(self, last: dict[str, Any] | None = None) -> str:
        """The report as it is printed."""
        about = self.machine
        found = [
            f"# bench/{self.name}.py\n",
            f"{about['date']}, {about['cpu']}, {about['threads']} of {about['cores']} cores, "
            f"{about['vectors']}, Python {about['python']}, load {about['load']}, "
            f"commit {about['commit'] or 'unknown'}; peers: {about['peers'] or 'none'}.",
        ]
        if last:
            then = last["machine"]
            other = "" if then["cpu"] == about["cpu"] else f", on another machine ({then['cpu']})"
            found.append(f"Last result: {then['date']}, commit {then['commit']}{other}.")
        if self.value == "median":
            found += self._works(last)
        else:
            found += self._figures(last)
        errors: dict[str, list[str]] = {}
        for row, cells in self.rows.items():
            for system, cell in cells.items():
                if "error" in cell:
                    rows = errors.setdefault(f"{system}: {cell['error']}", [])
                    rows.append(self.titles.get(row, row))
        if errors:
            found += ["", "Not measured:"]
            found += [f"- {error} [{'; '.join(rows)}]" for error, rows in errors.items()]
        return "\n".join(found) + "\n"

    def _works(self, last: dict[str, Any] | None) -> list[str]:
        goals = [
            [_times(self.ratio(r)), _times(self.ratio(r, "best")), _number(self.goals.get(r)),
             _since(self.since(r, last))]
            for r in self.rows
        ]  # fmt: skip
        extra = ["ours / best peer", "by bests", "goal", "since last"]
        warm = self._table("warm median ms (best)", _warm, extra, goals)
        cold = self._table("cold first call, CPU s (wall s)", _cold)
        return [*warm, *cold, *self._table("peak MB over import", _peak)]

    def _figures(self, last: dict[str, Any] | None) -> list[str]:
        goals = [[_number(self.goals.get(r)), _since(self.since(r, last))] for r in self.rows]
        return self._table(
            "figure", lambda cell: _number(cell["best"]), ["goal", "since last"], goals
        )

    def _table(
        self, title: str, show: Callable[[Cell], str],
        extra: list[str] | None = None, more: list[list[str]] | None = None,
    ) -> list[str]:  # fmt: skip
        systems = self.systems
        lines = ["", _line([title, *systems, *(extra or [])])]
        lines.append("| --- " * (1 + len(systems) + len(extra or [])) + "|")
        for i, (row, cells) in enumerate(self.rows.items()):
            shown = [_cell(cells.get(system), show) for system in systems]
            lines.append(_line([self.titles.get(row, row), *shown, *(more[i] if more else [])]))
        return lines


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell | None, show: Callable[[Cell], str]) -> str:
    if cell is None:
        return "-"
    problem = cell.get("error", "")
    return problem if problem.startswith("over ") else "error" if problem else show(cell)


def _warm(cell: Cell) -> str:
    return f"{_number(cell['median'])} ({_number(cell['best'])})"


def _cold(cell: Cell) -> str:
    return f"{_number(cell['cold_cpu_s'])} ({_number(cell['cold_s'])})"


def _peak(cell: Cell) -> str:
    return f"{cell['peak_mb']:.0f}"


def _number(value: float | None) -> str:
    """Three digits that count."""
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _since(value: float | None) -> str:
    return "-" if value is None else f"x{value:.2f}"
