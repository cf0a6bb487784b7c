"""Tests of tests/conftest.py, devices.py and parallel.py: small runs in a folder of their own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices import FOLDERS, chosen_devices, default_mark, devices_of
from tests.parallel import LongestFirst, function_of, parts_of

pytestmark = pytest.mark.device("none")

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "backends").mkdir(parents=True)
    helpers = ("__init__", "conftest", "devices", "libraries", "parallel", "backends/plugin")
    for name in ("pyproject.toml", *[f"tests/{name}.py" for name in helpers]):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(
    project: Path, *arguments: str, device: str = "", no_gpu: bool = False
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FULGURITE_", "PYTEST_"))}
    chosen = clean | ({"FULGURITE_DEVICE": device} if device else {})
    chosen |= {"FULGURITE_LIBCUDA": "/nowhere/libcuda.so"} if no_gpu else {}
    return subprocess.run(command, cwd=project, capture_output=True, text=True, env=chosen)


DEVICES = """
import subprocess, sys
import pytest
from fulgurite.config import current

SHOW = "from fulgurite.config import current; print(current().device, current().tier)"

@pytest.fixture(autouse=True)
def show(request):
    with open("ran.txt", "a") as file:
        print(request.node.name, current().device, current().tier, file=file)

def test_default(): ...

@pytest.mark.device("every")
@pytest.mark.parametrize("case", [7])
def test_every(case):
    child = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True).stdout
    assert child.split() == [current().device, current().tier]

@pytest.mark.device("reference")
def test_reference(): ...

@pytest.mark.device("none")
def test_none(): ...
"""
CPU, REFERENCE = "cpu native", "reference auto"
RUNS: list[tuple[str, list[str], dict[str, str]]] = [
    ("", ["--device", "cpu,reference"],
     {"default": CPU, "every[cpu-7]": CPU, "every[reference-7]": REFERENCE, "none": REFERENCE,
      "reference": REFERENCE}),
    ("", ["--device", "cpu", "-n", "2", "--dist", "loadfile"],
     {"default": CPU, "every[7]": CPU, "none": REFERENCE}),
    ("cpu", [], {"default": CPU, "every[7]": CPU, "none": CPU, "reference": CPU}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(3), ids=["as-marked", "one-device", "whatever-the-mark"])
def test_a_test_and_the_processes_it_starts_run_where_its_mark_says(
    project: Path, number: int
) -> None:
    device, arguments, expected = RUNS[number]
    (project / "tests" / "test_marked.py").write_text(DEVICES)
    result = run(project, *arguments, device=device)
    assert result.returncode == 0, result.stdout
    ran = (project / "ran.txt").read_text().splitlines()
    assert sorted(ran) == [f"test_{name} {where}" for name, where in expected.items()]


def test_the_gpu_is_a_device_of_the_run_only_where_it_is_asked_for() -> None:
    others = ["cpu", "reference", "remote"]
    assert chosen_devices("", "not slow and not cuda and not browser") == others
    assert chosen_devices("", "") == others and chosen_devices("cpu,cuda", "") == ["cpu", "cuda"]
    assert chosen_devices("", "cuda") == chosen_devices("", "cuda and not slow") == ["cuda"]


def test_without_a_gpu_its_tests_are_skipped_and_counted(project: Path) -> None:
    (project / "tests" / "test_marked.py").write_text(DEVICES)
    result = run(project, "-m", "cuda", no_gpu=True)
    assert result.returncode == 0, result.stdout
    assert "2 skipped, 2 deselected" in result.stdout  # those of every device and of the first


def test_a_file_without_a_mark_has_that_of_the_nearest_folder() -> None:
    assert default_mark("test_jit.py") == default_mark("nn/module/test_module.py") == ("first",)
    assert default_mark("codegen/cuda/test_render.py") == ("none",)
    assert default_mark("codegen/cpu/gemm/test_plan.py") == ("cpu",)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_with_a_mark_exists(folder: str) -> None:
    assert (ROOT / "tests" / folder).is_dir()
    devices_of(FOLDERS[folder], ["cpu"])  # and the mark is one


def test_a_word_that_is_no_device_is_an_error() -> None:
    with pytest.raises(ValueError, match="one of every, first, hosts, none, cpu, reference"):
        devices_of(("gpu",), ["cpu"])
    with pytest.raises(ValueError, match="every"):
        devices_of((), ["cpu"])


# --- parts ---------------------------------------------------------------------------------------


def test_a_long_file_is_parts_and_a_long_function_is_shared_among_them() -> None:
    tests = ["a.py::x", *[f"a.py::y[{i}]" for i in range(6)], "b.py::z[cpu-1]", "b.py::z[cpu-2]"]
    parts = parts_of(tests, {"a.py::y": 24.0, "b.py::z[cpu]": 30.0})
    assert [part.tests for part in parts.values()] == [
        ["a.py::x", "a.py::y[0]", "a.py::y[1]"], ["a.py::y[2]", "a.py::y[3]"],
        ["a.py::y[4]", "a.py::y[5]"], ["b.py::z[cpu-1]"], ["b.py::z[cpu-2]"],
    ]  # fmt: skip
    queue = LongestFirst(parts)
    queue.update(dict.fromkeys(parts))
    assert [queue.popitem(last=False)[0] for _ in range(5)] == [
        "b.py 0", "b.py 1", "a.py 0", "a.py 1", "a.py 2",
    ]  # fmt: skip


def test_a_function_is_told_from_its_cases_but_not_from_its_device() -> None:
    assert function_of("a.py::f[3-cpu]") == function_of("a.py::f[cpus]") == "a.py::f"
    assert function_of("a.py::f[cpu]") == function_of("a.py::f[cpu-x[0]]") == "a.py::f[cpu]"


SPIN = """
import time

def test_long():
    end = time.process_time() + 0.8
    while time.process_time() < end: pass
"""


def test_processes_that_share_tests_leave_out_the_same_and_write_down_what_they_took(
    project: Path,
) -> None:
    (project / "tests" / "test_marked.py").write_text(MARKED)
    (project / "tests" / "test_spin.py").write_text(SPIN)
    gone = {"tests/test_spin.py::test_that_was": 9.0, "tests/test_was.py::test_long": 9.0}
    (project / "tests" / "seconds.json").write_text(json.dumps(gone))
    result = run(project, "-n", "2", "--dist", "loadfile", "--update-seconds")
    assert result.returncode == 0, result.stdout
    assert "left out: 2 slow, 1 cuda, 0 browser" in result.stdout
    listed = json.loads((project / "tests" / "seconds.json").read_text())
    assert "tests/test_spin.py::test_long" in listed and not listed.keys() & gone.keys()


# --- what is left out, and goldens ---------------------------------------------------------------


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
