"""Tests of fulgurite/cli.py and fulgurite/selftest.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from fulgurite import cli, selftest

ROOT = Path(__file__).parents[1]


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


def test_doctor_says_which_devices_are_only_planned() -> None:
    states = dict(cli.devices())
    assert states["reference"].startswith("ready")
    assert states["cpu"].startswith(("ready", "falls back"))
    assert states["cuda"].startswith("planned")


def test_doctor_fails_when_a_check_fails_and_runs_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken_sum() -> str:
        raise ArithmeticError("1 + 1 is 3")

    monkeypatch.setattr(selftest, "CHECKS", [broken_sum, *selftest.CHECKS])
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAILED: ArithmeticError: 1 + 1 is 3" in out
    assert f"1 of {len(selftest.CHECKS)} checks failed" in out
    assert out.count("ok: ") == len(selftest.CHECKS) - 1


@pytest.mark.parametrize("check", selftest.CHECKS, ids=lambda check: check.__name__)
def test_a_check_of_the_self_test_passes(check: selftest.Check) -> None:
    assert check()


def test_a_missing_library_is_shown_as_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "LIBRARIES", ("no-such-library-of-that-name",))
    assert cli.main(["doctor"]) == 0
    assert "no-such-library-of-that-name  not installed" in capsys.readouterr().out


def test_a_broken_installation_is_a_finding_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(monkeypatch, "fulgurite.selftest")
    monkeypatch.delattr("fulgurite.selftest")
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


def test_on_linux_platformdirs_and_the_fallback_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("platformdirs")
    if sys.platform != "linux":
        pytest.skip("other platforms have a folder of their own")
    monkeypatch.delenv("FULGURITE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with_library = cli.cache_folder()
    hide(monkeypatch, "platformdirs")
    assert cli.cache_folder() == with_library


def test_doctor_says_whether_the_cache_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_the_command_runs_as_a_module_and_doctor_imports_no_compiler() -> None:
    version = subprocess.run(
        [sys.executable, "-m", "fulgurite", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert version.returncode == 0
    assert version.stdout.startswith("fulgurite ")
    code = (
        "import sys; from fulgurite.cli import main; assert main(['doctor']) == 0; "
        "assert not {'llvmlite', 'triton', 'onnx'} & set(sys.modules)"
    )
    doctor = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert doctor.returncode == 0, doctor.stderr
