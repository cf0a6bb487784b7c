"""What every test shares: the count of tests left out, goldens, hypothesis settings.

A run that deselects tests says how many of each mark, so that a green run never
hides that the slow or the CUDA tests did not take part.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import settings

MARKS = ("slow", "cuda", "browser")
GOLDENS = Path(__file__).parent / "golden"

# tests/devices.py runs the suite on each device; what computes nothing, or chooses its device
# itself, is in one of these groups instead, each a run of its own
GROUPS = {
    "code": [
        "native", "kernel", "runtime/test_store.py", "runtime/test_store_index.py",
        "runtime/test_archive.py", "runtime/test_stored.py", "runtime/test_workers.py",
        "runtime/test_memory.py", "runtime/test_program.py", "runtime/test_device.py",
        "runtime/test_library.py", "runtime/test_tuning.py", "runtime/test_patterned.py",
        "test_tune_cli.py", "test_control.py", "test_control_choice.py",
        "test_variables.py", "test_train.py", "test_examples.py", "data", "io/test_hostile.py",
        "io/test_checkpoint.py", "onnx/test_conformance.py",
    ],
    "meaning": [
        "core", "array_api", "graph/test_planted.py", "graph/test_fuzz.py", "graph/test_affine.py",
        "graph/test_simplify.py", "graph/test_schedule.py", "graph/test_normalize.py",
        "graph/test_lower.py", "graph/test_memory.py", "graph/test_donate.py",
        "graph/test_sooner.py", "io/test_gguf.py", "io/test_npz.py", "io/test_safetensors.py",
        "io/test_torchfile.py", "test_tree.py", "test_reference.py", "test_config.py",
        "test_layers.py", "test_conftest.py", "test_mechanisms.py", "test_docs.py", "test_bench.py",
        "test_cli.py", "test_state.py", "test_state_machine.py",
        "nn/test_known_odd.py", "nn/test_functional.py", "functional/test_activation.py",
        "functional/test_losses.py", "functional/test_ctc.py", "functional/test_resampling.py",
        "onnx/test_wire.py", "onnx/test_weights.py", "onnx/test_pictures.py", "onnx/test_run.py",
    ],
}  # fmt: skip
SUITE = os.environ.get("FULGURITE_SUITE", "")  # a group, a device, or all of it


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what is not in this run."""
    if not SUITE or collection_path.is_dir():
        return None
    group = group_of(collection_path)
    return group != SUITE if SUITE in GROUPS else group is not None


def group_of(path: Path) -> str | None:
    """The group a file of tests is in, if it is in one."""
    names = {str(path.relative_to(Path(__file__).parent))}
    names.update(str(parent) for parent in Path(*names).parents)
    return next((group for group, listed in GROUPS.items() if names & set(listed)), None)


_left_out = pytest.StashKey[Counter[str]]()

# nobody's cache is read or filled by tests, and what is tested is made, not found
os.environ["FULGURITE_DISK_CACHE"] = "0"
os.environ.setdefault("FULGURITE_DEVICE", "reference")  # tests/devices.py says it for each run
_cache = tempfile.TemporaryDirectory(prefix="fulgurite-tests-")
os.environ["FULGURITE_CACHE_DIR"] = _cache.name

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)  # a red CI run can be repeated
settings.load_profile("ci" if os.environ.get("CI") else "local")


class Golden(Protocol):
    """The type of the `golden` fixture."""

    def __call__(self, text: str, name: str) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden with what the code produces now; read the diff afterwards",
    )


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        counts = item.config.stash.setdefault(_left_out, Counter())
        counts.update(mark for mark in MARKS if item.get_closest_marker(mark) is not None)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts = config.stash.get(_left_out, Counter())
    listed = ", ".join(f"{counts[mark]} {mark}" for mark in MARKS)
    hint = " (run them with: -m slow, -m cuda, -m browser)" if counts.total() else ""
    terminalreporter.write_line(f"left out: {listed}{hint}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare text with tests/golden/<name>, or rewrite that file under --update-golden."""

    def check(text: str, name: str) -> None:
        path = GOLDENS / name
        actual = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8", newline="\n")
            return
        if not path.exists():
            pytest.fail(f"there is no tests/golden/{name}: make it with pytest --update-golden")
        expected = path.read_text(encoding="utf-8")
        assert actual == expected, f"{name} changed; if that is right: pytest --update-golden"

    return check


@pytest.fixture(autouse=True)
def no_patterns_left() -> Iterator[None]:
    """A kernel that a test registers with a pattern stands in for nothing in later tests."""
    known = importlib.import_module("fulgurite.graph.patterns").PATTERNS
    before = list(known)
    yield
    known[:] = before


@pytest.fixture
def on_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look inside the reference device, whatever device the run is for."""
    module = importlib.import_module("fulgurite.config")  # `fulgurite.config` is the function
    chosen = replace(module.from_environment(), device="reference")
    monkeypatch.setattr(module, "_defaults", chosen)
