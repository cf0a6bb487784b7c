"""Fine-tuning: the held-out loss falls, the weights are used again, and a kill changes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fulgurite.errors import FulguriteError, NonFiniteError
from fulgurite.models import Generator, SamplingOptions, load
from fulgurite.models.finetune import WEIGHTS, Settings, apply, finetune

from .samples import gguf_of

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.device("first")

TEXT = "the rest in the tin then " * 60
GREEDY = SamplingOptions(max_tokens=6, temperature=0, ignore_eos=True)
ONE: dict[str, Any] = {"llama.block_count": 1}
SETTINGS = Settings(steps=12, batch=2, length=16, rate=0.02, rank=4, save_every=3)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "text.txt").write_text(TEXT)
    return gguf_of(tmp_path / "tiny.gguf", **ONE), tmp_path / "text.txt"


def test_a_lora_learns_is_used_again_and_a_killed_run_ends_with_the_same_bits(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    path, text = map(str, files)
    model = load(path)
    before = [t.id for t in Generator(model).generate([5, 6], GREEDY)]
    report = finetune(model, text, str(tmp_path / "whole"), SETTINGS)
    assert report.after < report.before - 0.5 and len(report.losses) == 12
    after = [t.id for t in Generator(model).generate([5, 6], GREEDY)]
    again = apply(load(path), str(tmp_path / "whole"))
    assert [t.id for t in Generator(again).generate([5, 6], GREEDY)] == after != before
    command = [sys.executable, "-m", "fulgurite", "finetune", path, text, "--steps", "12",
               "--batch", "2", "--length", "16", "--rate", "0.02", "--rank", "4",
               "--save-every", "3"]  # fmt: skip
    process = subprocess.Popen(
        [*command, "--save", str(tmp_path / "killed")], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if line.startswith("step 5:"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL, seen
    resumed = finetune(load(path), text, str(tmp_path / "killed"), resume=True)
    assert resumed.first in (3, 6) and resumed.losses == report.losses
    assert resumed.after == report.after and resumed.before == report.before
    bits = [(tmp_path / run / WEIGHTS).read_bytes() for run in ("whole", "killed")]
    assert bits[0] == bits[1]


def test_all_weights_learn_from_lines_of_json_and_are_used_again(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"text": "the tin then"}\n\n' * 30)
    model = load(files[0])
    settings = Settings(steps=4, batch=2, length=8, rate=0.01, rank=0)
    report = finetune(model, str(lines), str(tmp_path / "full"), settings)
    assert report.after < report.before
    again = apply(load(files[0]), str(tmp_path / "full"))
    ours, theirs = model.decoder.top["embed"].data.numpy(), again.decoder.top["embed"].data.numpy()
    assert np.array_equal(ours, theirs)


@pytest.mark.device("none")
def test_what_cannot_be_trained_on_is_a_clear_error(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    model = load(files[0])
    wrong_data = {"a.txt": b"the", "b.jsonl": b'{"x": 1}', "c.jsonl": b"{", "d.txt": b"\xff"}
    for name, text in wrong_data.items():
        data = tmp_path / name
        data.write_bytes(text)
        with pytest.raises(FulguriteError):
            finetune(model, str(data), str(tmp_path / "no"), SETTINGS)
    for wrong in ({"steps": 0}, {"rate": float("nan")}, {"length": 1}, {"rank": -1}):
        with pytest.raises(FulguriteError):
            Settings(**wrong)
    with pytest.raises(FulguriteError):
        finetune(model, str(files[1]), str(tmp_path / "no"), resume=True)
    with pytest.raises(FulguriteError):
        apply(model, str(tmp_path))


def test_other_data_long_windows_and_halves_of_letters_are_refused(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    path, text = map(str, files)
    finetune(load(path), text, str(tmp_path / "run"), SETTINGS)
    kept = (tmp_path / "run" / WEIGHTS).read_bytes()
    other, lines = tmp_path / "other.txt", tmp_path / "x.jsonl"
    other.write_text("then the rest " * 80)
    lines.write_text('{"text": "a \\ud800 b"}\n')
    with pytest.raises(FulguriteError, match="other data"):
        finetune(load(path), str(other), str(tmp_path / "run"), resume=True)
    with pytest.raises(FulguriteError, match="lone surrogate"):
        finetune(load(path), str(lines), str(tmp_path / "run"), SETTINGS)
    with pytest.raises(FulguriteError, match="context of 2048"):
        finetune(load(path), text, str(tmp_path / "run"), replace(SETTINGS, length=4096))
    with pytest.raises(FulguriteError, match="seed is -1"):
        Settings(seed=-1)
    with pytest.raises(NonFiniteError, match="step"):
        finetune(load(path), text, str(tmp_path / "run"), replace(SETTINGS, rate=1e38))
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == kept
