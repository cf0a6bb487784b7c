"""Tests of docs/where.md: the files that answer a question exist, and have the word in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in (ROOT / "docs" / "where.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`" in line
]


def test_there_are_twenty_questions_or_more() -> None:
    assert len(ROWS) >= 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_word_is_in_the_files_that_answer(row: tuple[str, str, str]) -> None:
    _, word, files = row
    paths = re.findall(r"`([^`]+)`", files)
    assert 1 <= len(paths) <= 3
    texts = [(ROOT / path).read_text(encoding="utf-8").lower() for path in paths]
    assert any(word.strip("`").lower() in text for text in texts)
