"""Tests of fulgurite/cli/tune.py: the command that measures this machine."""

from __future__ import annotations

import importlib
import os
from dataclasses import fields
from pathlib import Path

import pytest

from fulgurite.cli import main
from fulgurite.cli.tune import far_and_cache
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.graph.fusion.machine import CostTable
from fulgurite.runtime.tuning import read_table, write_table

pytestmark = pytest.mark.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder that a command writes to."""
    monkeypatch.setenv("FULGURITE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FULGURITE_DISK_CACHE", "1")
    options = importlib.import_module(
        "fulgurite.config"
    )  # what it reads now is not for later tests
    monkeypatch.setattr(options, "_defaults", options._defaults)
    return str(tmp_path / "tune")


def test_tune_writes_a_table_of_this_machine(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--quick", "--rounds", "2"]) == 0
    said = capsys.readouterr()
    assert "table.json" in said.out and "tune" in said.err  # progress
    table = read_table(folder)
    assert isinstance(table, CostTable) and table == table.quantised()
    for f in fields(CostTable):
        assert getattr(table, f.name) > 0
        assert f"  {f.name}" in said.out
    assert table.digest != SHIPPED.digest


def test_show_says_whose_rates_they_are(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--show"]) == 0
    assert "those that ship" in capsys.readouterr().out
    write_table(folder, SHIPPED)
    assert main(["tune", "--show"]) == 0
    assert f"measured, {folder}" in capsys.readouterr().out
    Path(folder, "table.json").write_text("{}")
    assert main(["tune", "--show"]) == 1
    assert "is not used" in capsys.readouterr().err


def test_reset_removes_what_tuning_wrote(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(folder, SHIPPED)
    assert main(["tune", "--reset"]) == 0
    assert "removed 1 file from" in capsys.readouterr().out and os.listdir(folder) == []


def test_without_a_disk_cache_there_is_nowhere_to_write(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FULGURITE_DISK_CACHE", "0")
    assert main(["tune"]) == 1
    assert "FULGURITE_DISK_CACHE" in capsys.readouterr().err and not os.path.exists(folder)


def test_a_folder_that_cannot_be_written_is_one_line(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(folder).write_text("a file")
    assert main(["tune", "--quick", "--rounds", "1"]) == 1
    assert "fulgurite tune:" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--rounds", "x"], ["--show", "--reset"]])
def test_what_makes_no_sense_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tune", *words])
    assert stopped.value.code == 2 and "usage" in capsys.readouterr().err


def test_help_says_what_it_does_and_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tune", "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "FULGURITE_TUNE" in said and "--rounds" in said and "cache folder" in said


def test_the_rate_of_memory_is_that_of_what_caches_do_not_hold() -> None:
    near, far, cache = 80.0, 16.0, 4e6

    def time(moved: float) -> float:
        return min(moved, cache) / near + max(0.0, moved - cache) / far

    found = far_and_cache(near, [(2e7, time(2e7)), (8e7, time(8e7))], SHIPPED)
    assert found == pytest.approx((far, cache))
    small = far_and_cache(near, [(1e6, time(1e6)), (2e6, time(2e6))], SHIPPED)
    assert small == (SHIPPED.dram_bw, SHIPPED.cache_bytes)  # memory was not seen
    late = far_and_cache(near, [(2e7, 5e6), (8e7, 4e6)], SHIPPED)  # a noisy clock
    assert 0 < late[0] <= near and late[1] > 0
