"""Tests of tests/runtime/cuda/h200.py: no lease of a GPU is spent on a word that is wrong."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fulgurite.codegen.cuda.tiling import HOPPER
from tests.runtime.cuda import h200

ROOT = Path(__file__).parents[3]
LEASE = 1800  # seconds of the GPU machine, of which starting it and copies take a part
COMMAND = 600


class Noted:
    """A part that is not run."""

    every: list[tuple[list[str], float]] = []  # noqa: RUF012 (of a test)
    took = 1.0

    def __init__(self, name: str, command: list[str], limit: float, **environment: str) -> None:
        self.name, self.log = name, ROOT / "README.md"
        self.every.append((command, limit))

    def wait(self) -> str:
        """Nothing is said."""
        return ""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[list[str], float]]:
    """What would be run, and for how long at most."""
    monkeypatch.setattr(h200, "Part", Noted)
    monkeypatch.setattr(h200, "OUT", tmp_path)
    monkeypatch.setattr(Noted, "every", [])
    return Noted.every


def source_of(command: list[str]) -> str:
    """The text of what a command runs."""
    if command[1] == "-c":
        return command[2]
    if command[1] == "-m":
        spec = find_spec(command[2])
        assert spec is not None and spec.origin is not None, command[2]
        return Path(spec.origin).read_text(encoding="utf-8")
    return (ROOT / command[1]).read_text(encoding="utf-8")


def test_the_run_book_fits_into_half_an_hour_and_names_parts_that_are_there() -> None:
    seconds = [h200.asked([page])[0] for page in h200.RUN_BOOK]
    assert sum(seconds) <= LEASE - 100 and max(seconds) <= COMMAND - 30
    parts = [part for page in h200.RUN_BOOK for part in h200.asked([page])[1]]
    assert len(parts) == len({*parts}) and {*parts} <= {*h200.ALONE, *h200.BESIDE}
    assert h200.asked(["70", "cold"]) == (70, ["cold"])
    with pytest.raises(SystemExit, match="parts are gluon"):
        h200.asked(["170", "fuss"])


def test_all_that_is_run_is_there_and_knows_its_options(commands: list[Any]) -> None:
    h200.alone(1e9, [*h200.ALONE])
    assert len(commands) > 40
    for command, _ in commands:
        text = source_of(command)
        compile(text, command[1], "exec")
        for word in command[2:] if "pytest" not in command else ():
            assert not word.startswith("--") or f'"{word}"' in text, command


def test_fields_that_are_tried_are_those_of_the_table_and_are_off(commands: list[Any]) -> None:
    h200.alone(1e9, [part for _, parts in h200.RUN_BOOK.values() for part in parts])
    words = ",".join([word for command, _ in commands if "-c" not in command for word in command])
    tried = {*re.findall(r"\b(\w+)=(?:True|\d)", words)}
    assert {"narrow_tanh", "gluon_contracted", "joined_row_products", "many_rows"} <= tried
    for field in tried - {"many"}:
        assert not getattr(HOPPER, field), field


def test_a_page_that_is_short_of_time_ends_in_time(
    commands: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h200, "left", lambda until: 5.0)
    h200.alone(1.0, h200.RUN_BOOK["third"][1])
    assert len(commands) == 2  # the C extension, and what GPU it is
    assert "cpu: no time" in capsys.readouterr().out
