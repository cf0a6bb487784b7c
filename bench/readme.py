"""The README's figures: `python bench/readme.py` writes them from bench/results/readme.json.

`python bench/readme.py --measure --peers PYTHON` measures them first, where PYTHON is an
interpreter with torch and JAX: it runs `cpu.py`, `contract.py` and `attention.py` one after the
other on a single core, so that all rows are of one commit (a clean tree) and one machine. In: the
JSON files of those, or readme.json: what was measured in words, and rows of `what`, `unit`, `ours`
and `peers` (numbers, the less the better). Out: the table between the two marks of README.md: ours,
the best peer, and the time of ours over theirs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FIGURES = ROOT / "bench" / "results" / "readme.json"
BEGIN, END = "<!-- figures: python bench/readme.py -->", "<!-- end of figures -->"
COMMANDS = {  # script -> its options, beside those that all have
    "cpu": ["--only", "matmul,mlp,conv,gpt", "--systems", "ours,torch,torch.compile,jax"],
    "contract": ["--systems", "ours,numpy,torch"],
    "attention": ["--clock", "cpu"],
}
EVERY = "every"  # a row over all works of a script


@dataclass(frozen=True)
class Row:
    """A row of the table, and where its figures are: a work of a script, a figure of its cells."""

    what: str
    script: str
    work: str
    peers: Mapping[str, str]  # system -> its name in the table
    figure: str = "best"
    unit: str = "ms"


_ALL = {"torch": "torch", "torch.compile": "torch.compile", "jax": "JAX"}
_COMPILERS = {"torch.compile": "torch.compile", "jax": "JAX"}
_OWN = {"torch": "torch's own"}
ROWS = (
    Row("matmul 1024", "cpu", "matmul", _ALL),
    Row("MLP forward", "cpu", "mlp", _ALL),
    Row("conv block", "cpu", "conv", _ALL),
    Row("{count} products and convolutions, geometric mean", "contract", EVERY,
        {"numpy": "NumPy", "torch": "torch"}),
    Row("attention 1x8x4096x64 from plain code", "attention", "attention", _OWN),
    Row("the same, causal", "attention", "attention, causal", _OWN),
    Row("GPT 4x256 forward", "cpu", "gpt", _ALL),
    Row("GPT 4x256 AdamW step", "cpu", "gpt step", _ALL),
    Row("first call of that step, compiled", "cpu", "gpt step", _COMPILERS, "cold_cpu_s", "s"),
)  # fmt: skip


def measure(peers: str) -> dict[str, Any]:
    """Run the benchmarks, on one core; what they wrote, by script."""
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
        sys.exit("there are changes that no commit has: commit them, then measure")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for script, options in COMMANDS.items():
            out = Path(folder, f"{script}.json")
            command = [sys.executable, f"bench/{script}.py", "--peers", peers, "--threads", "1"]
            subprocess.run([*command, "--json", str(out), *options], cwd=ROOT, check=True)
            found[script] = json.loads(out.read_text(encoding="utf-8"))
    return found


def collected(found: Mapping[str, Any]) -> dict[str, Any]:
    """What readme.json keeps of what the benchmarks wrote."""
    machines = [script["machine"] for script in found.values()]
    about = machines[0]
    same = {(m["commit"], m["cpu"], m["threads"]) for m in machines}
    assert len(same) == 1, f"all rows are of one commit and one machine, not of {same}"
    text = (
        f"Measured on {about['date']} at commit {about['commit']} on one core of an "
        f"{about['cpu']} ({about['vectors']}, load {about['load']}): CPU time with one thread, the "
        f"least of runs in turns; peers are {about['peers']}. Below 1 is quicker. All that was "
        "measured is in [bench/results](bench/results)."
    )
    rows = [_collect(row, found[row.script]["rows"]) for row in ROWS]
    return {"measured": textwrap.fill(text, 100, break_on_hyphens=False), "rows": rows}


def _collect(row: Row, works: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a row, to three digits; of every work: of our best and the peers' best."""
    chosen = list(works.values()) if row.work == EVERY else [works[row.work]]
    pairs = []
    for cells in chosen:
        peers = {n: cells[s][row.figure] for s, n in row.peers.items() if row.figure in cells[s]}
        if row.figure in cells["ours"] and peers:
            pairs.append((cells["ours"][row.figure], peers))
    assert pairs, f"{row.what}: nothing was measured"
    ours, peers = pairs[0]
    if row.work == EVERY:
        ours = geometric_mean([own for own, _ in pairs])
        peers = {
            " or ".join(row.peers.values()): geometric_mean([min(p.values()) for _, p in pairs])
        }
    return {
        "what": row.what.format(count=len(pairs)), "unit": row.unit, "ours": _rounded(ours),
        "peers": {name: _rounded(value) for name, value in peers.items()},
    }  # fmt: skip


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run the benchmarks first")
    parser.add_argument("--peers", default=sys.executable, help="an interpreter with the peers")
    given = parser.parse_args()
    if given.measure:
        kept = collected(measure(given.peers))
        FIGURES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    README.write_text(updated(README.read_text(encoding="utf-8"), figures()), encoding="utf-8")
    print(f"wrote {README}")
