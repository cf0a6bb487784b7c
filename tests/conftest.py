"""What every test shares: its device, the count of tests left out, goldens, hypothesis profiles.

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
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import settings

from tests.devices import GPU, chosen_devices, default_mark, devices_of, running_on
from tests.parallel import make_scheduler, write_seconds

pytest_plugins = ("tests.backends.plugin",)

MARKS = ("slow", "cuda", "browser")
ELSEWHERE = "elsewhere"  # stands for the device of tests that this run leaves out
TESTS = Path(__file__).parent
GOLDENS = TESTS / "golden"

_left_out = pytest.StashKey[Counter[str]]()
_seconds = pytest.StashKey[dict[str, float]]()

# nobody's cache is read or filled by tests, and what is tested is made, not found
os.environ["FULGURITE_DISK_CACHE"] = "0"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a second thread would wait for a core, busily
_cache = tempfile.TemporaryDirectory(prefix="fulgurite-tests-")
os.environ["FULGURITE_CACHE_DIR"] = _cache.name
# but library text is compiled once for all processes that share the tests
_libraries = Path(os.environ.setdefault("FULGURITE_TEST_LIBRARIES", f"{_cache.name}/libraries"))

# `--hypothesis-profile` chooses one; tests/properties.py has the shares of costly examples
settings.register_profile("fast", deadline=None, max_examples=20)
settings.register_profile("ci", deadline=None, max_examples=100, derandomize="CI" in os.environ)
settings.register_profile("nightly", deadline=None, max_examples=2000)
settings.load_profile("ci")  # in CI it is derandomised: a red run can be repeated


class Golden(Protocol):
    """The type of the `golden` fixture."""

    def __call__(self, text: str, name: str) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden with what the code produces now; read the diff afterwards",
    )
    parser.addoption(
        "--update-seconds",
        action="store_true",
        help="write down in tests/seconds.json what tests take, for runs with -n",
    )
    parser.addoption(
        "--device",
        default="",
        help="devices to run tests on, as their marks say (default: all but cuda; with -m cuda it)",
    )


# --- devices -------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Tensors that a file makes when it is imported are where its tests run."""
    chosen = chosen_devices(config.getoption("--device"), config.getoption("-m"))
    if len(chosen) == 1 and (chosen != [GPU] or gpu_count()):
        module: Any = importlib.import_module("fulgurite.config")
        module._defaults = replace(module.from_environment(), device=chosen[0])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each device it runs on; a device that is the only one is in no name."""
    mark = metafunc.definition.get_closest_marker("device")
    file = metafunc.definition.path.relative_to(TESTS).as_posix()
    forced = os.environ.get("FULGURITE_DEVICE")
    config = metafunc.config
    chosen = chosen_devices(config.getoption("--device"), config.getoption("-m"))
    said = mark.args if mark else default_mark(file)
    names = [forced] if forced else devices_of(said, chosen)
    names = names or [ELSEWHERE]
    ids = names if len(names) > 1 else [pytest.HIDDEN_PARAM]
    # a device that an environment variable forces is tested whatever marks are asked for
    marks = [[pytest.mark.cuda] if n == GPU and not forced else [] for n in names]
    values = [pytest.param(n, marks=m) for n, m in zip(names, marks, strict=True)]
    metafunc.parametrize("_device", values, ids=ids, indirect=True, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that run on none of the devices of this run, and slow ones nobody named."""
    unstable = [item.nodeid for item in items if " at 0x" in item.nodeid.lower()]
    if unstable:  # processes that share tests call each by its name
        raise pytest.UsageError(f"an address is in the name of {unstable[0]}: give it other ids")
    elsewhere = [i for i in items if i.callspec.params["_device"] == ELSEWHERE]  # type: ignore[attr-defined]
    marks = config.getoption("-m")
    if "slow" not in marks and GPU in chosen_devices("", marks):  # -m cuda replaces -m "not slow"
        elsewhere += [i for i in items if i.get_closest_marker("slow") is not None]
    if elsewhere:
        left = set(map(id, elsewhere))
        items[:] = [item for item in items if id(item) not in left]
        config.hook.pytest_deselected(items=elsewhere)


@cache
def gpu_count() -> int:
    """How many NVIDIA GPUs there are."""
    found: int = importlib.import_module("fulgurite.runtime.cuda.device").count()
    return found


@pytest.fixture(autouse=True, scope="module")
def _device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device that is the default in a file's tests, with no plans from other tests."""
    if request.param == GPU and not gpu_count():
        pytest.skip("there is no NVIDIA GPU")
    with running_on(request.param):
        importlib.import_module("fulgurite").clear_caches()
        gc.collect()
        gc.freeze()  # a collection inside a test walks over what the file's own tests made
        yield request.param


@pytest.fixture(autouse=True, scope="session")
def _donated_at_any_size() -> None:
    """Tests of memory that is written over have small tensors."""
    module: Any = importlib.import_module("fulgurite.runtime.donation")
    module.COPIED_BYTES = 0


@pytest.fixture
def on_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look inside the reference device, whatever device the run is for."""
    module = importlib.import_module("fulgurite.config")  # `fulgurite.config` is the function
    chosen = replace(module.from_environment(), device="reference")
    monkeypatch.setattr(module, "_defaults", chosen)


# --- the run -------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Parts of files, the longest first, where `-n` shares tests out among processes."""
    return make_scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Tests and modules live until the end: no collection need walk over them again."""
    _libraries.mkdir(exist_ok=True)
    importlib.import_module("tests.libraries").share(_libraries)
    gc.collect()
    gc.freeze()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        counts = item.config.stash.setdefault(_left_out, Counter())
        counts.update(mark for mark in MARKS if item.get_closest_marker(mark) is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Take down the processor time of a test, with that of processes it started."""
    before = sum(os.times()[:4])
    result = yield
    taken = item.config.stash.setdefault(_seconds, {})
    taken[item.nodeid] = taken.get(item.nodeid, 0.0) + sum(os.times()[:4]) - before
    return result


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that ran a share of the tests tells the one that prints."""
    counts, seconds = _told(session.config)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["fulgurite"] = dict(counts), seconds
    elif session.config.getoption("--update-seconds"):
        write_seconds(seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    counts, seconds = getattr(node, "workeroutput", {}).get("fulgurite", ({}, {}))
    node.config.stash[_left_out] = Counter(counts)  # each process left out the same
    node.config.stash.setdefault(_seconds, {}).update(seconds)


def _told(config: pytest.Config) -> tuple[Counter[str], dict[str, float]]:
    return config.stash.get(_left_out, Counter()), config.stash.get(_seconds, {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts, seconds = _told(config)
    listed = ", ".join(f"{counts[mark]} {mark}" for mark in MARKS)
    hint = " (run them with: -m slow, -m cuda, -m browser)" if counts.total() else ""
    terminalreporter.write_line(f"processor time of tests: {sum(seconds.values()):.0f} s")
    terminalreporter.write_line(f"left out: {listed}{hint}")


# --- fixtures ------------------------------------------------------------------------------------


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


@pytest.fixture
def quiet() -> Iterator[None]:
    """The collector switched off: what must be freed without it is freed by counting alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def clean_hosts() -> Iterator[None]:
    """Host functions that a test registers are gone after it."""
    known = importlib.import_module("fulgurite.core.ops.host").HOST_FUNCTIONS
    before = dict(known)
    yield
    known.clear()
    known.update(before)


@pytest.fixture(autouse=True)
def no_patterns_left() -> Iterator[None]:
    """A kernel that a test registers with a pattern stands in for nothing in later tests."""
    known = importlib.import_module("fulgurite.graph.fusion.user_patterns").PATTERNS
    before = list(known)
    yield
    known[:] = before
