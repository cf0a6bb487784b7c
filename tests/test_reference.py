"""Tests of docs/tools/reference.py: the pages say what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgurite.core.operators import OPS
from fulgurite.graph.passes.laws import SIMPLIFY
from fulgurite.kernel.stream.laws import LAWS
from tests.test_site import tool

pytestmark = pytest.mark.device("none")

DOCS = Path(__file__).parents[1] / "docs"
reference = tool("reference")
PAGES = reference.PAGES


@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_is_what_the_tables_say(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text == PAGES[name](), "run python docs/tools/reference.py --write, and read the diff"


def test_every_op_and_function_has_a_line() -> None:
    page = PAGES["ops.md"]()
    assert all(f"| `{name}` |" in page for name in OPS)
    functions = PAGES["functions.md"]()
    assert "| `softmax` |" in functions and "## fg.linalg" in functions
    assert not [line for line in functions.splitlines() if line.endswith("|  |")]


def test_every_law_and_rule_has_a_line() -> None:
    page = PAGES["laws.md"]()
    assert all(f"| {rule.name} | " in page for rule in SIMPLIFY.rules)
    assert "| sum-factor | `sum(cs * ys)` | `cs * sum(ys)` |" in page
    assert all(f"| {law.name} | " in page for law in LAWS)


def test_pages_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main([]) == 0
    assert "# Ops" in capsys.readouterr().out
