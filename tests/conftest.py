"""What every test shares: the count of tests left out, goldens, hypothesis settings.

A run that deselects tests says how many of each mark, so that a green run never
hides that the slow or the CUDA tests did not take part.
"""

from __future__ import annotations

import gc
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

pytest_plugins = ("tests.backends.plugin",)

MARKS = ("slow", "cuda", "browser")
GOLDENS = Path(__file__).parent / "golden"

# tests/devices.py runs the suite on each device; folders, files and tests that compute nothing, or
# choose their device themselves, are in one of these groups instead, each a run of its own
GROUPS = {
    "code": [
        "codegen/cpu", "kernel", "runtime/cache/test_disk.py", "runtime/cache/test_disk_index.py",
        "runtime/cache/test_archive.py", "runtime/cache/test_fingerprint.py",
        "runtime/cache/test_plan_io.py",
        "runtime/cpu/test_threads.py", "runtime/cpu/test_toolchain.py",
        "runtime/cpu/test_refusals.py",
        "runtime/cpu/test_pool.py", "runtime/cpu/test_executor.py", "runtime/test_device.py",
        "runtime/cpu/test_blas.py", "runtime/test_tuning.py", "runtime/test_user_kernels.py",
        "cli/test_tune.py", "control/test_control.py", "test_control_choice.py", "test_passes.py",
        "test_programs.py", "test_variables.py", "test_train.py", "test_examples.py", "data",
        "io/test_hostile.py", "io/test_checkpoint.py", "onnx/test_conformance.py",
        "kernel/stream/test_bit_stable.py", "runtime/test_control.py",
        "random/test_random.py::test_every_device_and_thread_count_draws_the_same_bits",
    ],
    "meaning": [
        "core", "codegen", "runtime/cuda", "array_api",
        "graph/test_planted.py", "graph/test_fuzz.py", "graph/ir/test_affine.py",
        "graph/passes/test_simplify.py", "graph/fusion/test_greedy.py",
        "graph/ir/test_cache_key.py",
        "graph/ir/test_lower.py", "graph/memory/test_arena.py", "graph/memory/test_in_place.py",
        "graph/memory/test_reorder.py", "io/test_gguf.py", "io/test_npz.py",
        "io/test_safetensors.py",
        "io/test_torchfile.py", "test_tree.py", "cli/test_gen_docs.py", "test_config.py",
        "test_layers.py", "test_conftest.py", "test_mechanisms.py", "test_docs.py", "test_bench.py",
        "cli/test_cli.py", "test_state.py", "test_state_machine.py",
        "nn/test_known_odd.py", "nn/test_functional.py", "functional/nn/test_activation.py",
        "functional/nn/test_losses.py", "functional/nn/test_ctc.py",
        "functional/nn/test_resampling.py",
        "onnx/test_wire.py", "onnx/test_weights.py", "cli/test_png.py", "onnx/test_run.py",
        "graph/fusion/test_search.py", "kernel/stream/test_transposed.py",
        "kernel/stream/test_reject_early.py",
        "graph/fusion/test_segments.py", "graph/ir/test_registry.py",
        "graph/fusion/test_providers.py",
        "runtime/host/test_index_interpreter.py", "runtime/host/test_evaluate.py",
        "graph/test_attended.py::test_gradients_keep_no_matrix",
        "graph/test_attended.py::test_gradients_of_small_floats_keep_no_matrix",
        "graph/test_search.py::test_repairs_hold_for_every_block_and_every_split",
        "graph/test_search.py::test_two_processes_choose_the_same_plan",
        "graph/test_search.py::test_branch_and_bound_finds_what_trying_everything_finds",
        "kernel/stream/test_canonicalize.py::test_programs_nobody_thought_of_are_one_fold_without_a_matrix",
        "graph/passes/test_split_reduce.py::test_what_scores_share_gets_its_adjoint_from_the_walk",
        "graph/passes/test_unwindow.py::test_windows_of_products_are_summed_with_none_left_and_equal_values",
        "graph/passes/test_unwindow.py::test_slices_of_any_windows_add_up_to_the_same",
        "graph/passes/test_unwindow.py::test_dimensions_that_were_merged_or_split_add_up_to_the_same",
        "graph/test_gpt.py::test_it_is_at_most_140_kernels_of_which_40_are_distinct",
        "graph/test_gpt.py::test_twelve_layers_are_the_same_kernels_as_four",
    ],
}  # fmt: skip
_GROUP_OF = {name: group for group, listed in GROUPS.items() for name in listed}
SUITE = os.environ.get("FULGURITE_SUITE", "")  # a group, a device, or all of it


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that have nothing for this run."""
    if not SUITE or collection_path.is_dir():
        return None
    name = str(collection_path.relative_to(Path(__file__).parent))
    if any(test.startswith(f"{name}::") for test in GROUPS.get(SUITE, ())):
        return None
    return not is_run(name)


def is_run(name: str) -> bool:
    """Is a file, or one of its tests, in this run? The devices run what no group does."""
    return group_of(name) == (SUITE if SUITE in GROUPS else None)


def group_of(name: str) -> str | None:
    """The group that a file or test, or what it is part of, is in."""
    file = name.partition("::")[0]
    names = [name, file, *map(str, Path(file).parents)]
    return next((_GROUP_OF[part] for part in names if part in _GROUP_OF), None)


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out tests that are in another run than the rest of their file."""
    if SUITE:
        folder = Path(__file__).parent
        file = {path: str(path.relative_to(folder)) for path in {item.path for item in items}}
        items[:] = [i for i in items if is_run(f"{file[i.path]}::{_function(i)}")]


def _function(item: pytest.Item) -> str:
    return item.name.partition("[")[0]


def pytest_collection_finish() -> None:
    """Tests and modules live until the end: no collection need walk over them again."""
    gc.collect()
    gc.freeze()


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
    known = importlib.import_module("fulgurite.graph.fusion.user_patterns").PATTERNS
    before = list(known)
    yield
    known[:] = before


@pytest.fixture
def on_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look inside the reference device, whatever device the run is for."""
    module = importlib.import_module("fulgurite.config")  # `fulgurite.config` is the function
    chosen = replace(module.from_environment(), device="reference")
    monkeypatch.setattr(module, "_defaults", chosen)
