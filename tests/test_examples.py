"""The examples: each is short, runs, and learns in a few steps."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fulgurite as fg


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """Examples are for native code, whatever device the suite's run is for."""
    with fg.config(device="cpu"):
        yield


FOLDER = Path(__file__).parents[1] / "examples"
LONGEST = 150


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LONGEST
    assert f"python examples/{path.name}" in text


def test_the_perceptron_learns_in_a_few_steps() -> None:
    assert example("mlp").main(["--steps", "30", "--hidden", "16"]) > 0.5


def test_the_autoencoder_learns_in_a_few_steps() -> None:
    assert example("autoencoder").main(["--steps", "40"]) < 0.15


def test_the_residual_network_takes_steps() -> None:
    options = ["--steps", "2", "--width", "4", "--side", "8", "--batch", "4"]
    assert example("resnet").main(options) >= 0
    assert len(list(example("resnet").ResNet18(width=4).parameters())) == 62  # as torchvision's


def test_the_parallel_model_takes_steps_in_one_process(tmp_path: Path) -> None:
    path = str(tmp_path / "model.safetensors")
    options = ["--width", "16", "--batch", "4", "--length", "8", "--checkpoint", path]
    first = example("gpt_parallel").main([*options, "--steps", "1"])
    assert example("gpt_parallel").main([*options, "--steps", "2"]) < first + 0.5


def test_the_recurrent_model_takes_steps_and_writes() -> None:
    options = ["--steps", "3", "--size", "16", "--length", "8", "--letters", "5"]
    assert example("lstm").main(options) < 5


def test_256_tokens_are_one_compile() -> None:
    options = ["--steps", "2", "--size", "16", "--layers", "1", "--tokens", "256"]
    gpt = example("gpt")
    assert gpt.main(options) == 1 and gpt.GPT.step.captured == 1


def test_writing_with_a_cache_is_what_the_whole_window_says() -> None:
    gpt = example("gpt")
    fg.random.seed(1)
    model = gpt.GPT(16, 2, 4, 12)
    letters = np.arange(8, dtype=np.int32) % 5
    whole = model(fg.Tensor(letters[None])).numpy()[0]
    place, caches = fg.Var("place", 0, 11), model.caches()
    for at, letter in enumerate(letters):
        one = model.step(np.array([[letter]]), caches, place.bind(at))
        assert np.allclose(one.numpy(), whole[at], atol=1e-4)


def test_attention_in_plain_code_is_one_kernel_unless_sums_must_stay_as_written() -> None:
    options = ["--heads", "2", "--length", "64", "--size", "16"]
    assert example("attention").main(options) == 1
    assert example("attention").main([*options, "--exact"]) == 3


def test_the_onnx_model_is_written_and_run(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    options = ["--output", str(tmp_path / "model.onnx"), "--channels", "4", "--batch", "2"]
    assert 0.1 <= example("onnx_model").main(options) <= 1
