"""Jobs that go well and jobs in which one rank does not: both end, and say why."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from fulgurite.cli import launch as command
from fulgurite.cli import main
from fulgurite.runtime.distributed import launcher
from tests.distributed.launching import launch, needs_mpi
from tests.distributed.refusals import refused

pytestmark = pytest.mark.device("none")


@needs_mpi
@pytest.mark.slow
def test_a_job_runs_on_all_its_ranks() -> None:
    ended = launch("faults.py", "none", ranks=4)
    assert ended.code == 0 and "all steps done" in ended.text, ended.text


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("raise", "rank 1 of 2 failed:\nTraceback (most recent call last):"),
        ("raise", "ValueError: no data today"),
        ("exit", "rank 1 of 2 failed:\nexit code 3"),
        ("end", "rank 1 has ended its program"),
        ("leave", "the job ended, but not the program of ranks 0, 1"),
        ("crash", "rank 1 crashed:\nFatal Python error: Segmentation fault"),
        ("crash", "a rank was ended by SIGSEGV"),
        ("lock", "rank 1 does not answer: killed, stopped or cut off"),
        ("kill", "a rank was ended by SIGKILL"),
        ("hang", "rank 1 is not waiting: runs"),
        ("stop", "rank 1 does not answer: killed, stopped or cut off"),
        ("differ", "ranks run different programs"),
    ],
)
def test_a_fault_of_one_rank_ends_the_job_and_is_named(mode: str, message: str) -> None:
    ended = launch("faults.py", mode)
    assert ended.code == 1 and message in ended.text, ended.text


def test_a_command_names_ranks_hosts_and_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_mpiexec", lambda: "mpiexec")
    found = command.launch_command(4, ["train.py", "--steps", "3"], "a,b")
    assert found is not None and found[:5] == ["mpiexec", "-n", "4", "-hosts", "a,b"]
    assert found[5:] == [
        sys.executable, "-m", "fulgurite.runtime.distributed.rank", "train.py", "--steps", "3",
    ]  # fmt: skip


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_cores", lambda: 8)
    found = command.launch_environment(4, 12.0, environment={})
    assert found["FULGURITE_THREADS"] == "2" and found["FULGURITE_TIMEOUT"] == "12.0"
    assert "FULGURITE_THREADS" not in command.launch_environment(4, remote=True, environment={})


def test_without_mpiexec_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_mpiexec", lambda: None)
    assert main(["launch", "-n", "2", __file__]) == 1
    assert "fulgurite[distributed]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "there is no script 'nothing.py'"),
        (["-n", "0", "x.py"], "0 is no number from 1 on"),
        (["-n", "-1", "x.py"], "-1 is no number from 1 on"),
        (["--timeout", "-3", "x.py"], "-3 is no number of seconds over 0"),
        (["--timeout", "nan", "x.py"], "nan is no number of seconds over 0"),
    ],
)
def test_what_cannot_be_launched_is_said_in_a_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(["launch", *words], capsys)


def test_a_module_is_launched_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[str]] = []
    monkeypatch.setattr(command, "launch_command", lambda n, script, hosts: found.append(script))
    for words in (["-m", "a.b", "-n", "4"], ["--", "-m", "a.b", "-n", "4"]):
        assert main(["launch", "-n", "2", *words]) == 1
    assert found == [["-m", "a.b", "-n", "4"]] * 2


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (3, "exit code 3"),
        (75, "exit code 75"),
        (-signal.SIGTERM, "SIGTERM"),
        (9, "SIGKILL"),
        (139, "SIGSEGV"),
        (11, "SIGSEGV"),
    ],
)
def test_an_exit_code_is_read(code: int, cause: str) -> None:
    assert cause in command._cause(code)


@pytest.mark.parametrize("name", launcher.SIZES)
def test_a_launcher_is_known_by_what_it_sets(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for other in launcher.SIZES:
        monkeypatch.delenv(other, raising=False)
    assert not launcher.is_launched()
    monkeypatch.setenv(name, "3")
    assert launcher.is_launched() and launcher.launched_size() == 3


def test_last_words_reach_the_launcher_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(launcher.LAST_WORDS, str(tmp_path))
    for number in (7, 3):
        monkeypatch.setattr(os, "getpid", lambda number=number: number)
        launcher.write_last_words(f"rank {number} failed\n")
        os.utime(tmp_path / f"{number}.txt", ns=(10 - number, 10 - number))
    assert launcher.read_last_words(str(tmp_path)) == "rank 7 failed\nrank 3 failed\n"


def test_a_program_that_did_not_end_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faulthandler.enable", lambda file=None: file and file.close())
    launcher.begin_program(0)
    assert not launcher.has_ended(0)  # nobody knows: there is no folder
    monkeypatch.setenv(launcher.LAST_WORDS, str(tmp_path))
    for rank in (0, 3, 12):
        launcher.begin_program(rank)
    assert not launcher.has_ended(3)
    launcher.end_program(3)
    assert launcher.has_ended(3) and launcher.running_ranks(str(tmp_path)) == [0, 12]
    assert launcher.read_last_words(str(tmp_path)) == ""
    (tmp_path / "12.running").write_text("line 5\n")
    assert launcher.read_last_words(str(tmp_path)) == "fulgurite: rank 12 crashed:\nline 5\n"


def test_last_words_go_to_standard_error_without_a_folder(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(launcher.LAST_WORDS, raising=False)
    monkeypatch.setattr(launcher, "_FORWARD_SECONDS", 0.0)
    launcher.write_last_words("rank 1 failed\n")
    assert capfd.readouterr().err == "rank 1 failed\n"
