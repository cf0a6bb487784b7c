"""Jobs that go well and jobs in which one rank does not: both end, and say why."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import pytest

from fulgurite.cli import launch as command
from fulgurite.runtime.distributed import launcher
from tests.distributed.launching import launch, needs_mpi

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
    given = argparse.Namespace(n=2, hosts="", timeout=0.0, script="x.py", arguments=[])
    assert command._run(given) == 1 and "fulgurite[distributed]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "cause"),
    [(3, "exit code 3"), (-signal.SIGTERM, "SIGTERM"), (9, "SIGKILL"), (139, "SIGSEGV")],
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


def test_last_words_go_to_standard_error_without_a_folder(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(launcher.LAST_WORDS, raising=False)
    monkeypatch.setattr(launcher, "_FORWARD_SECONDS", 0.0)
    launcher.write_last_words("rank 1 failed\n")
    assert capfd.readouterr().err == "rank 1 failed\n"
