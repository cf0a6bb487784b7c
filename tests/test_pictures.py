"""Tests of bench/pictures.py and bench/readme.py: what documents show is what is there."""

from pathlib import Path

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


def test_ratios_are_of_the_best_peer(tmp_path: Path) -> None:
    row = {"what": "sum", "unit": "ms", "ours": 2.0, "peers": {"torch": 4.0, "jax": 8.0}}
    assert readme.line(row) == "| sum | 2 ms | 4 ms (torch) | 0.50 |"
