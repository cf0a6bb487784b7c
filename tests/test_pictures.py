"""Tests of bench/pictures.py and bench/readme.py: what documents show is what is there."""

from pathlib import Path
from typing import Any

import pytest

from bench import pictures, readme

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.device("none")


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_what_the_passes_do(name: str) -> None:
    kept = (pictures.FOLDER / name).read_text(encoding="utf-8")
    assert pictures.PICTURES[name]() == kept, "draw it again: python bench/pictures.py"


def test_every_pass_is_in_the_picture_and_some_change_the_expression() -> None:
    rows, texts = pictures.followed()
    assert len(rows) > 40 and {row.what for row in rows} == set(pictures.WORDS)
    assert "mul" in texts["normalize"] and "mul" not in texts["simplify"]


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert readme.updated(text, readme.figures()) == text, "write them: python bench/readme.py"
    assert "*" not in readme.table(readme.figures()), "a figure needs no excuse"


def measured(script: str, works: dict[str, dict[str, float]]) -> dict[str, Any]:
    rows = {
        w: {s: {"best": t, "cold_cpu_s": t} for s, t in cells.items()} for w, cells in works.items()
    }
    about = {"date": "2026-01-01", "commit": "abc", "cpu": "EPYC", "vectors": "AVX-512",
             "threads": "1", "load": "0.1", "peers": "torch 2.13"}  # fmt: skip
    return {"machine": about, "rows": rows, "name": script}


def test_figures_are_collected_of_one_commit_and_one_machine() -> None:
    four = {"ours": 1.0, "torch": 2.0, "torch.compile": 3.0, "jax": 4.0}
    products = {
        "a": {"ours": 1.0, "numpy": 2.0, "torch": 8.0},
        "b": {"ours": 4.0, "numpy": 9.0, "torch": 8.0},
    }
    own = {"ours": 3.0, "torch": 4.0}
    found = {
        "cpu": measured("cpu", dict.fromkeys(("matmul", "mlp", "conv", "gpt", "gpt step"), four)),
        "contract": measured("contract", products),
        "attention": measured("attention", {"attention": own, "attention, causal": own}),
    }
    kept = readme.collected(found)
    rows = {row["what"]: row for row in kept["rows"]}
    assert len(rows) == len(readme.ROWS) and "commit abc" in kept["measured"]
    assert rows["2 products and convolutions, geometric mean"]["ours"] == 2.0
    assert rows["2 products and convolutions, geometric mean"]["peers"] == {"NumPy or torch": 4.0}
    assert rows["first call of that step, compiled"]["peers"] == {"torch.compile": 3.0, "JAX": 4.0}
    assert max(map(len, kept["measured"].splitlines())) <= 100
    found["contract"]["machine"] = {**found["contract"]["machine"], "commit": "def"}
    with pytest.raises(AssertionError, match="one commit"):
        readme.collected(found)


def test_what_is_measured_for_the_readme_are_works_that_there_are() -> None:
    from bench import models, networks, systems

    works = {row.work for row in readme.ROWS if row.script == "cpu"}
    assert works <= models.WORKLOADS.keys() | networks.TITLES.keys()
    assert all({"ours", *row.peers} <= systems.SYSTEMS.keys() for row in readme.ROWS)
    assert all((readme.ROOT / "bench" / f"{script}.py").exists() for script in readme.COMMANDS)


def test_ratios_are_of_the_best_peer(tmp_path: Path) -> None:
    row = {"what": "sum", "unit": "ms", "ours": 2.0, "peers": {"torch": 4.0, "jax": 8.0}}
    assert readme.line(row) == "| sum | 2 ms | 4 ms (torch) | 0.50 |"
