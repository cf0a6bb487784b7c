"""Tests of tests/conftest.py: small pytest runs in a folder of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import GROUPS, group_of

ROOT = Path(__file__).parents[1]

MARKED = """
import pytest

@pytest.mark.slow
def test_a() -> None: ...

@pytest.mark.slow
@pytest.mark.cuda
def test_b() -> None: ...

def test_c() -> None: ...
"""

GOLDEN = """
def test_text(golden) -> None:
    golden("one\\ntwo", "text.txt")
"""


@pytest.mark.parametrize("name", [name for listed in GROUPS.values() for name in listed])
def test_every_group_names_files_and_tests_that_exist(name: str) -> None:
    file, _, test = name.partition("::")
    path = ROOT / "tests" / file
    assert path.exists()
    assert not test or f"\ndef {test}(" in path.read_text(encoding="utf-8")


def test_a_file_is_in_the_group_that_names_it_or_its_folder() -> None:
    assert group_of("core/ops/test_batch.py") == "meaning"
    assert group_of("runtime/cache/test_disk.py") == "code"
    assert group_of("runtime/test_realize.py") is None


def test_a_group_may_have_one_test_of_a_file_and_the_devices_the_others(project: Path) -> None:
    (project / "tests" / "graph").mkdir()
    text = "def test_gradients_keep_no_matrix(): ...\ndef test_other(): ...\n"
    for name in ("test_attended.py", "test_fuzz.py"):
        (project / "tests" / "graph" / name).write_text(text)
    for suite, ran in (("meaning", ["matrix", "matrix", "other"]), ("cpu", ["other"])):
        lines = [x for x in run(project, "-v", suite=suite).stdout.split("\n") if "%]" in x]
        assert len(lines) == len(ran) and all(map(str.__contains__, lines, ran)), lines


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "backends").mkdir(parents=True)
    for name in ("pyproject.toml", "tests/conftest.py", "tests/backends/plugin.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(project: Path, *arguments: str, suite: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    chosen = os.environ | {"FULGURITE_SUITE": suite}
    return subprocess.run(command, cwd=project, capture_output=True, text=True, env=chosen)


def test_a_run_prints_how_many_tests_each_mark_left_out(project: Path) -> None:
    (project / "tests" / "test_marked.py").write_text(MARKED)
    result = run(project)
    assert result.returncode == 0, result.stdout
    assert "1 passed, 2 deselected" in result.stdout
    assert "left out: 2 slow, 1 cuda, 0 browser" in result.stdout


def test_a_run_that_leaves_nothing_out_says_so(project: Path) -> None:
    (project / "tests" / "test_marked.py").write_text(MARKED)
    result = run(project, "-m", "")
    assert "3 passed" in result.stdout
    assert "left out: 0 slow, 0 cuda, 0 browser\n" in result.stdout


def test_an_unknown_mark_is_an_error(project: Path) -> None:
    (project / "tests" / "test_marked.py").write_text(MARKED.replace("slow", "slwo"))
    assert run(project).returncode != 0


def test_a_missing_golden_fails_with_a_hint_until_it_is_made(project: Path) -> None:
    (project / "tests" / "test_text.py").write_text(GOLDEN)
    missing = run(project)
    assert missing.returncode == 1
    assert "--update-golden" in missing.stdout

    assert run(project, "--update-golden").returncode == 0
    assert (project / "tests" / "golden" / "text.txt").read_text() == "one\ntwo\n"
    assert run(project).returncode == 0


def test_a_changed_golden_fails_with_a_hint(project: Path) -> None:
    (project / "tests" / "test_text.py").write_text(GOLDEN)
    (project / "tests" / "golden").mkdir()
    (project / "tests" / "golden" / "text.txt").write_text("one\nthree\n")
    changed = run(project)
    assert changed.returncode == 1
    assert "--update-golden" in changed.stdout
