"""The character model that `fulgurite train charlm` writes, as a language model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.data import encoded
from fulgurite.models import Generator, SamplingOptions, load
from fulgurite.models.finetune import WEIGHTS, Settings, finetune
from fulgurite.train.charlm import GPT, exported

pytest.importorskip("tokenizers")


@pytest.mark.device("first")
def test_a_character_model_is_read_as_a_gpt2_with_the_same_logits(tmp_path: Path) -> None:
    fg.random.seed(1)
    model: Any = GPT(96, 16, 1, 2, 64)
    exported(model, str(tmp_path))
    found = load(tmp_path)
    ids = np.array([encoded("The loop is\na loop")], np.int32)
    with fg.no_grad():
        wanted = model(fg.Tensor(ids)).numpy()
        assert np.allclose(found.decoder(fg.Tensor(ids)).numpy(), wanted, atol=1e-5)
    assert found.encode("The loop is\na loop") == ids[0].tolist()
    options = SamplingOptions(max_tokens=5, temperature=0, ignore_eos=True)
    tokens = list(Generator(found).generate("The ", options))
    assert len("".join(token.text for token in tokens)) == 5


@pytest.mark.slow
@pytest.mark.device("cpu")
def test_a_lora_of_the_trained_model_learns_another_text_and_survives_a_kill(
    tmp_path: Path,
) -> None:
    run = [sys.executable, "-m", "fulgurite"]
    base, text = str(tmp_path / "charlm"), tmp_path / "text.txt"
    subprocess.run([*run, "train", "charlm", "--steps", "150", "--save", base], check=True)
    text.write_text("def f(x):\n    return x * 2  # twice\n\n" * 40 + "class A:\n    pass\n\n" * 40)
    settings = Settings(steps=60, batch=4, length=48, rate=0.01, rank=8, save_every=10)
    report = finetune(load(base), str(text), str(tmp_path / "whole"), settings)
    print(f"held-out loss {report.before:.3f} before, {report.after:.3f} after")
    assert report.after < report.before - 0.5
    command = [*run, "finetune", base, str(text), "--save", str(tmp_path / "killed")]
    for name in ("steps", "batch", "length", "rate", "rank"):
        command += [f"--{name}", str(getattr(settings, name))]
    process = subprocess.Popen([*command, "--save-every", "10"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 33:"):
            process.kill()
            break
    process.communicate()
    resumed = finetune(load(base), str(text), str(tmp_path / "killed"), resume=True)
    assert resumed.first >= 30 and resumed.losses == report.losses
    bits = [(tmp_path / run / WEIGHTS).read_bytes() for run in ("whole", "killed")]
    assert bits[0] == bits[1]
