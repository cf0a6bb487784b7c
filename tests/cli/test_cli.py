"""Tests of fulgurite/cli/__init__.py, fulgurite/cli/cache.py and fulgurite/cli/selftest.py."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fulgurite import cli
from fulgurite.cli import selftest
from fulgurite.cli.cache import human
from fulgurite.runtime.cache.disk import Store

pytestmark = pytest.mark.device("reference")

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _cache_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULGURITE_CACHE_DIR", str(tmp_path / "cache"))


def hide(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Make importing the module fail as if it were not installed."""
    monkeypatch.setitem(sys.modules, module, None)


def test_doctor_reports_each_section_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("versions", "numpy", "platform", "threads", "devices", "cache", "self-test"):
        assert word in out
    assert "all checks passed" in out


@pytest.mark.parametrize("found", [None, object()])
def test_doctor_says_whether_the_hot_path_is_c(
    found: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fulgurite.core.extension.EXTENSION", found)
    monkeypatch.setattr("fulgurite.core.extension.REASON", "there is no C compiler (cc)")
    monkeypatch.setattr(cli, "_selftest", lambda: [("nothing", True, "")])
    cli.main(["doctor"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "hot path" in line]
    assert ("no C compiler" in line) == (found is None)


def test_doctor_says_which_devices_are_here() -> None:
    states = dict(cli.devices())
    assert states["reference"].startswith("ready")
    assert states["cpu"].startswith(("ready", "falls back"))
    assert states["cuda"].startswith(("ready", "not here: "))


def test_doctor_fails_when_a_check_fails_and_runs_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken_sum() -> str:
        raise ArithmeticError("1 + 1 is 3")

    monkeypatch.setattr(selftest, "CHECKS", [broken_sum, *selftest.CHECKS])
    monkeypatch.setattr(selftest, "NATIVE", [])
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAILED: ArithmeticError: 1 + 1 is 3" in out
    assert f"1 of {len(selftest.CHECKS)} checks failed" in out
    assert out.count("ok: ") == len(selftest.CHECKS) - 1


@pytest.mark.parametrize("check", selftest.CHECKS, ids=lambda check: check.__name__)
def test_a_check_of_the_self_test_passes(check: selftest.Check) -> None:
    assert check()


def test_native_code_that_is_wrong_raises_or_ends_the_process_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("llvmlite")
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "from fulgurite.cli import selftest\n"
        "def native_map():\n    selftest._agree('a map', lambda t: t + 1, "
        "(selftest.np.ones(3),), selftest.np.ones(3), 0)\n"
        "def native_product():\n    raise ValueError('first line\\nsecond line')\n"
        "def native_fold():\n    os.write(2, b'LLVM ERROR: Cannot select: x\\n'); os.abort()\n"
        "selftest.NATIVE[:3] = [native_map, native_product, native_fold]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    checks = [selftest.native_map, selftest.native_product, selftest.native_fold]
    monkeypatch.setattr(selftest, "NATIVE", [*checks, selftest.native_functions])
    monkeypatch.setattr(selftest, "CHECKS", [])
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "native map" in out and "a map is off by 5.0e-01" in out
    assert "FULGURITE_DEVICE=reference" in out
    assert "ValueError: first line\n      second line" in out
    assert "ended with SIGABRT (LLVM ERROR: Cannot select: x)" in out and "pip install" in out
    assert "not run, because of that" in out and "4 of 4 checks failed" in out


def test_a_missing_library_is_shown_as_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "LIBRARIES", ("no-such-library-of-that-name",))
    monkeypatch.setattr(selftest, "NATIVE", [])
    assert cli.main(["doctor"]) == 0
    assert "no-such-library-of-that-name  not installed" in capsys.readouterr().out


def test_a_broken_installation_is_a_finding_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(monkeypatch, "fulgurite.cli.selftest")
    monkeypatch.delattr("fulgurite.cli.selftest")
    assert cli.main(["doctor"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_the_environment_chooses_the_cache_folder(tmp_path: Path) -> None:
    assert cli.cache_folder() == tmp_path / "cache"


def test_the_cache_folder_has_a_fallback_without_platformdirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "platformdirs")
    monkeypatch.delenv("FULGURITE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cli.cache_folder() == tmp_path / ".cache" / "fulgurite"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cli.cache_folder() == tmp_path / "xdg" / "fulgurite"


def test_on_linux_platformdirs_would_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platformdirs = pytest.importorskip("platformdirs")
    if sys.platform != "linux":
        pytest.skip("other platforms have a folder of their own")
    monkeypatch.delenv("FULGURITE_CACHE_DIR")
    for base in (str(tmp_path), ""):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        theirs = platformdirs.user_cache_dir("fulgurite", appauthor=False)
        assert cli.cache_folder() == Path(theirs)


def test_elsewhere_platformdirs_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("platformdirs")
    monkeypatch.delenv("FULGURITE_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name, appauthor: f"/Caches/{name}")
    assert cli.cache_folder() == Path("/Caches/fulgurite")


def test_doctor_says_whether_the_cache_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selftest, "NATIVE", [])
    cli.main(["doctor"])
    assert "cache (writable, not made yet)" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists(), "looking must not make it"
    (tmp_path / "cache").write_text("a file is in the way")
    cli.main(["doctor"])
    assert "NOT writable" in capsys.readouterr().out


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "doctor" in capsys.readouterr().out


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["docter"])
    assert caught.value.code == 2
    assert "docter" in capsys.readouterr().err


def test_the_command_runs_as_a_module_and_doctor_itself_imports_no_compiler() -> None:
    version = subprocess.run(
        [sys.executable, "-m", "fulgurite", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert version.returncode == 0
    assert version.stdout.startswith("fulgurite ")
    code = (
        "import sys; from fulgurite.cli import main; from fulgurite.cli import selftest\n"
        "selftest.NATIVE.clear(); assert main(['doctor']) == 0; "
        "assert not {'llvmlite', 'triton', 'onnx'} & set(sys.modules)"
    )
    doctor = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert doctor.returncode == 0, doctor.stderr


# ---- fulgurite cache ----

KEY = "ab" * 16


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "cache", 1 << 20)) as made:
        made.put_many([("plan", KEY, b"x" * 2000), ("object", KEY, b"y" * 3000)])
        yield made


def test_cache_stats_shows_folder_sizes_and_counts(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cache", "stats"]) == 0
    out = capsys.readouterr().out
    assert store.folder in out and "4.9 KiB, 0% of 1.0 GiB" in out
    assert "plans    1 entry, 2.0 KiB" in out and "drivers  0 entries, 0 bytes" in out


def test_cache_stats_of_no_cache_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FULGURITE_DISK_CACHE", "0")
    monkeypatch.setenv("FULGURITE_CACHE_LIMIT", "0")
    assert cli.main(["cache", "stats"]) == 0
    out = capsys.readouterr().out
    assert "switched off" in out and "limit 0" in out and not (tmp_path / "cache").exists()


def test_cache_clear_says_what_it_removed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "clear"]) == 0
    assert f"removed 2 entries (4.9 KiB) from {store.folder}" in capsys.readouterr().out
    assert store.stats().entries == 0
    assert cli.main(["cache", "clear"]) == 0
    assert "removed 0 entries" in capsys.readouterr().out


def test_cache_export_and_import_carry_the_entries(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "cache.zip")
    assert cli.main(["cache", "export", file]) == 0
    assert f"exported 2 entries to {file}" in capsys.readouterr().out
    cli.main(["cache", "clear"])
    assert cli.main(["cache", "import", file]) == 0
    assert "imported 2 entries" in capsys.readouterr().out
    assert store.get("plan", KEY) == b"x" * 2000


def test_cache_import_says_why_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cache", "import", str(tmp_path / "none.zip")]) == 1
    err = capsys.readouterr().err
    assert "none.zip cannot be read: No such file" in err and "cache export' wrote" in err
    (tmp_path / "bad.zip").write_text("hello")
    assert cli.main(["cache", "import", str(tmp_path / "bad.zip")]) == 1
    err = capsys.readouterr().err
    assert "refused" in err and "Traceback" not in err and "cache export' wrote" in err


@pytest.mark.parametrize("place", ["nowhere/cache.zip", "."])
def test_cache_export_says_what_to_do_where_it_cannot_write(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    file = str(tmp_path / place)
    assert cli.main(["cache", "export", file]) == 1
    err = capsys.readouterr().err
    assert f"{file} cannot be written" in err and "folder that exists" in err
    assert ".tmp" not in err and not list(tmp_path.rglob("*.tmp"))


def test_cache_import_into_a_folder_that_cannot_be_written_is_a_failure(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = str(tmp_path / "cache.zip")
    cli.main(["cache", "export", file])
    (tmp_path / "in the way").write_text("a file")
    monkeypatch.setenv("FULGURITE_CACHE_DIR", str(tmp_path / "in the way"))
    assert cli.main(["cache", "import", file]) == 1
    err = capsys.readouterr().err
    assert "2 entries could not be stored" in err and "FULGURITE_CACHE_DIR" in err


def test_a_damaged_cache_is_a_line_and_not_a_traceback(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.close()
    Path(store.folder, "v1", "index.sqlite").write_text("noise")
    assert cli.main(["cache", "stats"]) == 1
    assert "index.sqlite.damaged" in capsys.readouterr().err
    assert cli.main(["cache", "clear"]) == 0
    assert list(Path(store.folder, "v1", "data").iterdir()) == []
    assert not list(Path(store.folder).rglob("*.damaged"))


def test_a_wrong_environment_is_a_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FULGURITE_CACHE_LIMIT", "lots")
    assert cli.main(["cache", "stats"]) == 1
    assert "FULGURITE_CACHE_LIMIT is 'lots'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["stats"], ["clear"], ["export"], ["import"]])
def test_cache_has_help_for_newcomers(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["cache", *words, "--help"])
    assert caught.value.code == 0
    assert "FULGURITE_CACHE_DIR chooses the folder" in capsys.readouterr().out
    if not words:
        assert cli.main(["cache"]) == 0
        assert "import" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1.0 KiB"),
     (1 << 20, "1.0 MiB"), ((1 << 20) - 1, "1.0 MiB"), (1 << 30, "1.0 GiB"),
     (5 << 50, "5120.0 TiB")],
)  # fmt: skip
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert human(size) == text


def test_trace_runs_a_script_shows_a_table_and_writes_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "work.py", tmp_path / "trace.json"
    script.write_text(
        "import sys\nimport fulgurite as fg\nprint(sys.argv[1:])\n"
        "fg.softmax(fg.ones((8, 8)) * 2.0).sum().realize()\n"
    )
    stacks = tmp_path / "stacks"
    words = ["trace", "-o", str(out), "--by", "line", "--folded", str(stacks), str(script), "-x"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "['-x']" in shown and "work.py:4" in shown
    events = json.loads(out.read_text(encoding="utf-8"))["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert "work.py:4;" in stacks.read_text(encoding="utf-8")


def test_the_output_may_stand_behind_the_script_whose_own_words_come_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "work.py", tmp_path / "trace.json"
    script.write_text("import sys\nprint('given', sys.argv[1:])\n", encoding="utf-8")
    assert cli.main(["trace", str(script), "-o", str(out), "-x", "1"]) == 0
    assert out.exists() and "given ['-x', '1']" in capsys.readouterr().out
    assert cli.main(["trace", "-o", str(out), str(script), "-o", "mine"]) == 0
    assert "given ['-o', 'mine']" in capsys.readouterr().out


def test_trace_says_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", str(tmp_path / "nothing.py")]) == 1
    assert "there is no file" in capsys.readouterr().err
    script = tmp_path / "fails.py"
    script.write_text("raise ValueError('as it should')\n")
    assert cli.main(["trace", str(script)]) == 1
    assert "ValueError: as it should" in capsys.readouterr().err
    script.write_text("raise SystemExit(3)\n")
    assert cli.main(["trace", str(script)]) == 3
