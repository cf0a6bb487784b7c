"""A fixed sample of the node tests of the `onnx` package, and its nine small architectures.

All of them: `python -m fulgurite.onnx.conformance`. These choose their device themselves.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.onnx import conformance, load
from fulgurite.onnx.conformance import BY_DESIGN, Result, difference, main, run_case, table
from fulgurite.onnx.proto import parse
from fulgurite.onnx.types import STRING
from fulgurite.onnx.weights import Files, array_of

onnx = pytest.importorskip("onnx")

SAMPLE = 300
SLOW_TO_MAKE = ("averagepool", "lppool", "maxpool")  # seconds in the onnx package itself
NOT_BUILT = {"ImageDecoder": "decoding pictures is not a kernel"}


@pytest.fixture(scope="module")
def sample() -> list[tuple[Any, str]]:
    from fulgurite.onnx.conformance import cases, operators_of

    every = cases(without=SLOW_TO_MAKE)
    operators = operators_of(every)
    every = [case for case in every if operators[case.name] not in (*BY_DESIGN, *NOT_BUILT)]
    step = len(every) // SAMPLE
    return [(case, operators[case.name]) for case in every[::step][:SAMPLE]]


def is_rounding(result: Result) -> bool:
    """Half floats rounded at every step, or noise in the expected numbers: known, and named."""
    about = any(word in result.name for word in ("attention", "dft_inverse"))
    return about and result.reason.startswith("output 0: rounding")


def test_a_sample_of_300_node_tests_passes_in_native_code(sample: list[tuple[Any, str]]) -> None:
    assert len(sample) == SAMPLE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [run_case(case, operator) for case, operator in sample]
    failed = [r for r in results if not r.passed and not is_rounding(r)]
    assert not failed, table(failed)


def test_a_host_step_does_not_pass(sample: list[tuple[Any, str]]) -> None:
    from fulgurite.onnx.table import OPERATORS, Call, Entry

    case = next(case for case, operator in sample if operator == "Abs")
    known = OPERATORS["", "Abs"]

    def on_host(op: Call) -> Any:
        return fg.custom(np.abs, op[0], shape=op[0].shape)

    OPERATORS["", "Abs"] = Entry("Abs", "", on_host, 1, False, False)
    try:
        found = run_case(case, "Abs")
    finally:
        OPERATORS["", "Abs"] = known
    assert not found.passed and found.reason.startswith("host")


def test_wrong_numbers_types_and_shapes_are_differences() -> None:
    ours = fg.Tensor([1.0, 2.0])
    assert difference(ours, np.array([1, 2], np.float32), 1e-3, 1e-7) == ""
    assert "1 of 2 numbers" in difference(ours, np.array([1, 3], np.float32), 1e-3, 1e-7)
    assert "element type" in difference(ours, np.array([1, 2], np.float64), 1e-3, 1e-7)
    assert "shape" in difference(ours, np.array([[1, 2]], np.float32), 1e-3, 1e-7)
    assert "sequence" in difference(ours, [np.array([1, 2], np.float32)], 1e-3, 1e-7)


def test_the_table_names_every_failure_with_its_reason() -> None:
    text = table([Result("test_a", "Abs", True), Result("test_b", "Add", False, "because")])
    assert "test_b: because" in text and text.endswith("1 of 2 passed")


def test_the_command_runs_what_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = conformance.cases(without=SLOW_TO_MAKE)
    monkeypatch.setattr(conformance, "cases", lambda: quick)
    assert main(["--only", "^test_(abs|relu)$", "--device", "reference", "--least", "2"]) == 0
    assert "2 of 2 passed" in capsys.readouterr().out
    assert main(["--only", "^test_abs$", "--device", "reference", "--least", "2"]) == 1


LIGHT = Path(str(onnx.__file__)).parent / "backend" / "test" / "data" / "light"
QUICK = ("light_zfnet512", "light_squeezenet")
ALL = sorted(path.stem for path in LIGHT.glob("light_*.onnx"))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ALL]
)
def test_an_architecture_gives_its_expected_output(name: str) -> None:
    model = load(LIGHT / f"{name}.onnx", device="cpu")
    shape: Any = model.inputs[0].shape
    count = int(np.prod(shape))
    given = (np.arange(count).reshape(shape) / count).astype(np.float32)
    stored = parse(memoryview((LIGHT / f"{name}_output_0.pb").read_bytes()), "Tensor")
    expected, _ = array_of(stored, Files(None))
    np.testing.assert_allclose(model(given)[0].numpy(), expected, rtol=1e-3, atol=1e-7)


def test_all_nine_architectures_are_there() -> None:
    assert len(ALL) == 9


STORED = LIGHT.parent
WHAT = ["pytorch-converted", "pytorch-operator", "simple"]


def stored(path: Path) -> Any:
    return array_of(parse(memoryview(path.read_bytes()), "Tensor"), Files(None))[0]


@pytest.mark.parametrize("kind", WHAT)
def test_models_stored_in_the_onnx_package_give_their_stored_outputs(kind: str) -> None:
    ran = 0
    for folder in sorted((STORED / kind).iterdir()):
        if not (folder / "model.onnx").exists() or "gradient" in folder.name:
            continue
        model = load(folder / "model.onnx", device="reference")
        if any(port.form != "tensor" or port.kind is STRING for port in model.inputs):
            continue  # stored as other messages; the node tests have them
        for data in sorted(folder.glob("test_data_set_*")):
            inputs = [stored(data / f"input_{i}.pb") for i in range(len(model.inputs))]
            found = model(*inputs)
            for number, ours in enumerate(found.values()):
                want = stored(data / f"output_{number}.pb")
                why = difference(ours, want, 1e-3, 1e-4)
                assert not why, f"{folder.name}: {why}"
            ran += 1
    assert ran >= 15
