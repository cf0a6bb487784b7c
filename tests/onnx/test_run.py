"""`fulgurite run`: inputs, times, checks, files and errors, through the command itself."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fulgurite.cli import main
from fulgurite.onnx import load
from fulgurite.onnx.run import _distance, inputs_for
from tests.cli.test_png import png
from tests.onnx.models import graph, model, node, port, simple

pytestmark = pytest.mark.device("reference")


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "m.onnx").write_bytes(simple("Exp"))
    return str(tmp_path / "m.onnx")


def test_a_model_runs_on_random_inputs_and_says_what_came_out(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", path, "--dim", "n=4"]) == 0
    text = capsys.readouterr().out
    assert "takes x0: float[n, 3]" in text and "y: float32[4, 3]" in text and "first run" in text


def test_outputs_and_figures_are_written(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    out = str(tmp_path / "out.npz")
    words = ["--input", f"x0={tmp_path}/x.npy", "--output", out, "--time", "3", "--json"]
    assert main(["run", path, *words]) == 0
    np.testing.assert_allclose(np.load(out)["y"], np.full((2, 3), np.e), rtol=1e-6)
    figures = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    assert {"cold_ms", "warm_ms", "p99_ms", "peak_bytes"} <= set(figures)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--input", "z=5"], "no such input"),
        (["--input", "x0=what"], "rand:1x3x224x224"),
        (["--input", "x0=rand:2xtwo"], "no shape"),
        (["--input", "x0=missing.npy"], "cannot be read"),
        (["--input", "x0=missing.png"], "cannot be read"),
        (["--input", "x0=rand:5"], "the model takes"),
        (["--dim", "m=4"], "no such dimension"),
        (["--dim", "n=4", "--input", "x0=rand:2x3"], "--dim n=4, and 2 in --input x0=rand:2x3"),
        (["--dim", "n"], "--dim batch=4"),
        (["--device", "toaster"], "no device"),
        (["--time", "-1"], "0 or more"),
        (["--seed", "-1"], "0 or more"),
        (["--dim", "n=²"], "--dim batch=4"),
        (["--input", "x0=rand:99999999999x3"], "smaller shapes"),
        (["--output", "/no such folder/x.npz"], "no such folder"),
    ],
)
def test_a_mistake_is_two_lines_and_exit_code_1(
    path: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", path, *words]) == 1
    found = capsys.readouterr().err
    assert text in found and "Traceback" not in found


def test_outputs_keep_their_names_and_none_is_lost(tmp_path: Path) -> None:
    nodes = [node("Exp", "self", "file"), node("Neg", "self", "a/b"), node("Abs", "self", "a_b")]
    outputs = [port(name, shape=["n"]) for name in ("file", "a/b", "a_b")]
    text = model(graph(nodes, [port("self", shape=["n"])], outputs))
    (tmp_path / "m.onnx").write_bytes(text)
    words = ["--input", "self=-2", "--dim", "n=3", "--output", str(tmp_path / "out")]
    assert main(["run", str(tmp_path / "m.onnx"), *words]) == 0
    with np.load(tmp_path / "out.npz") as found:
        assert found["file"].shape == (3,)
        assert [found[name][0] for name in ("a_b", "a_b_")] == [2.0, 2.0]


def test_numbers_that_an_input_cannot_hold_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = model(graph([node("Neg", "x", "y")], [port("x", "int64", [2])], [port("y", "int64")]))
    (tmp_path / "m.onnx").write_bytes(text)
    np.save(tmp_path / "x.npy", np.array([0.5, 1]))
    for what in (f"x={tmp_path}/x.npy", "x=1.5", "x=1e30"):
        assert main(["run", str(tmp_path / "m.onnx"), "--input", what]) == 1
        assert "does not hold" in capsys.readouterr().err
    words = ["--input", "x=9007199254740993", "--output", str(tmp_path / "out.npz")]
    assert main(["run", str(tmp_path / "m.onnx"), *words]) == 0
    assert np.load(tmp_path / "out.npz")["y"].tolist() == [-9007199254740993] * 2


def test_a_file_that_is_no_model_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tmp_path / "none.onnx")]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "kind", "wanted"),
    [
        ([1, 3, 4, 4], "float32", (1, 3, 4, 4)),
        ([1, 4, 4, 3], "float32", (1, 4, 4, 3)),
        (["n", 1, 8, 6], "float32", (1, 1, 8, 6)),
        ([3, "h", "w"], "uint8", (3, 2, 2)),
    ],
)
def test_a_picture_is_put_into_the_inputs_layout_and_size(
    tmp_path: Path, shape: Any, kind: str, wanted: tuple[int, ...]
) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20
    (tmp_path / "p.png").write_bytes(png(pixels, [0]))
    made = load(model(graph([node("Identity", "x", "y")], [port("x", kind, shape)], [port("y")])))
    found = inputs_for(made, [f"{tmp_path}/p.png"], [], 0)["x"]
    assert found.shape == wanted and found.dtype.name == kind
    assert found.max() <= (1 if kind == "float32" else 255)
    if kind == "uint8":
        np.testing.assert_array_equal(found, np.moveaxis(pixels, 2, 0))


def stand_in(factor: float) -> types.ModuleType:
    """An onnxruntime that computes exp, nearly."""
    module = types.ModuleType("onnxruntime")

    class Session:
        def __init__(self, *_: object, **__: object) -> None: ...

        def run(self, _: object, given: dict[str, Any]) -> list[Any]:
            return [np.exp(given["x0"]) * np.float32(factor)]

    module.InferenceSession = Session  # type: ignore[attr-defined]
    module.SessionOptions = types.SimpleNamespace  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.01, 1)])
def test_a_check_passes_or_fails_by_the_outputs(
    path: str, factor: float, code: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "onnxruntime", stand_in(factor))
    assert main(["run", path, "--check", "onnxruntime", "--time", "2"]) == code
    text = capsys.readouterr().out
    assert ("DIFFERS" in text) == bool(code) and "times as fast" in text


def test_a_check_without_onnxruntime_says_what_to_install(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["run", path, "--check", "onnxruntime"]) == 1
    assert "pip install onnxruntime" in capsys.readouterr().err


def test_distance_is_relative_and_strict_about_types() -> None:
    a = np.array([1, 100], np.float32)
    assert _distance(a, a + np.array([0, 1], np.float32)) == pytest.approx(1 / 101)
    assert _distance(a, a.astype(np.float64)) == float("inf")
    assert _distance(a, np.array([np.nan, 100], np.float32)) == float("inf")
    assert _distance(np.array([np.inf], np.float32), np.array([np.inf], np.float32)) == 0


def test_an_error_names_the_inputs_and_sizes_that_were_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = node("Conv", "x w", "y")
    ports = [port("x", shape=["batch", 1, "time"])]
    weights = {"w": np.ones((1, 1, 16), np.float32)}
    (tmp_path / "m.onnx").write_bytes(model(graph([made], ports, [port("y")], weights)))
    path = str(tmp_path / "m.onnx")
    assert main(["run", path]) == 1
    text = capsys.readouterr().err
    assert "--dim batch=4 --dim time=4 --input x=rand:1x1x1" in text and "Conv" in text
    assert main(["run", path, "--dim", "time=20"]) == 0
    assert main(["run", path, "--input", "x=rand:1x1x4"]) == 1
    assert "--dim" not in capsys.readouterr().err
