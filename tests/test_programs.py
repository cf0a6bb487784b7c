"""Random programs as people write them give the gradients of oracles that share no compiler."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, replace
from io import StringIO
from random import Random

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import Options
from fulgurite.core.op import Op
from fulgurite.core.ops import elementwise
from fulgurite.graph.fusion import regions, search
from fulgurite.graph.fusion.regions import FusionCandidate
from fulgurite.graph.ir.kernel import Kernel
from tests.fuzz import programs
from tests.fuzz.programs import Failure, oracle, settings, smaller
from tests.fuzz.programs.constants import with_constants
from tests.fuzz.programs.oracle import Oracle, Unjudged
from tests.fuzz.programs.program import Input, Line, Program
from tests.fuzz.programs.shaking import shaken
from tests.fuzz.programs.table import STEPS

pytest.importorskip("llvmlite")

pytestmark = pytest.mark.device("cpu")
PARTS = 4


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    fg.clear_caches()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_have_the_gradients_of_the_oracle(part: int) -> None:
    programs.check(10, range(part * 30, part * 30 + 30))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_twenty_thousand_random_programs_have_the_gradients_of_the_oracle(part: int) -> None:
    programs.check(11, range(part * 1000, part * 1000 + 1000))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_random_programs_have_them_in_native_code(part: int) -> None:
    programs.check(12, range(part * 100, part * 100 + 100), device="cpu")


def in_torch(seed: int, numbers: range) -> None:
    torch = pytest.importorskip("torch")
    for number in numbers:
        found = programs.judged(seed, number)
        if found is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of even windows with padding "same"
            try:
                wrong = found.wide().in_torch(torch)
            except Unjudged:
                continue
        assert wrong is None, str(Failure(seed, number, found.program, programs.TORCH, wrong))


def test_the_oracle_agrees_with_torch() -> None:
    in_torch(13, range(60))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_oracle_agrees_with_torch_on_thousands_of_programs(part: int) -> None:
    in_torch(14, range(part * 1000, part * 1000 + 1000))


# --- the generator itself ------------------------------------------------------------------------


def lines_of(*code: str) -> tuple[Line, ...]:
    """Lines that bind v0, v1, ..."""
    return tuple([Line((f"v{i}",), text, text) for i, text in enumerate(code)])


def one_input(*code: str, shape: tuple[int, ...] = (3, 4)) -> Program:
    """A program of one input x0."""
    given = Input("x0", "rng.standard_normal({shape})", shape)
    return Program((given,), lines_of(*code), f"v{len(code) - 1}", 1)


def test_a_number_always_writes_the_same_program() -> None:
    assert programs.write(3, 5) == programs.write(3, 5)
    assert programs.write(3, 5) != programs.write(3, 6)


def test_every_step_is_written_and_layers_follow_each_other() -> None:
    written = [programs.write(0, number) for number in range(400)]
    text = "\n".join(line.text for program in written for line in program.lines)
    for name in (
        "conv1d(", "conv2d(", "conv3d(", "conv_transpose", "avg_pool", "max_pool", "adaptive_",
        "LPPool", "batch_norm(", "layer_norm(", "group_norm(", "attention(", "reshape(", "permute(",
        "pixel_", "concat(", "pad(", ".max(", ".var(", "logsumexp(", "topk(", "sort(", "median(",
        "cumsum(", "cross_entropy(", "groups=", "dilation=", "stride=", "is_causal", "enable_gqa",
    ):  # fmt: skip
        assert name in text, f"nobody wrote {name}"
    assert len(STEPS) > 40
    assert {program.dtype for program in written} == {"float64", "float32"}


def test_what_the_result_does_not_need_is_left_out() -> None:
    program = replace(one_input("x0.sum()", "x0.exp()"), result="v0").needed()
    assert [line.text for line in program.lines] == ["v0 = x0.sum()"]


# --- what it finds -------------------------------------------------------------------------------


@contextmanager
def a_wrong_gradient(op: Op) -> Iterator[None]:
    """The op has the gradient of what does nothing."""
    right = op.grad
    object.__setattr__(op, "grad", lambda g, y, a: (g,))
    try:
        yield
    finally:
        object.__setattr__(op, "grad", right)


def test_a_wrong_gradient_is_found_and_told_in_a_script_of_few_lines() -> None:
    program = one_input(
        "x0.reshape((2, 6))", "v0 * 2", "fg.tanh(v1)", "v2.swapaxes(0, 1)", "(v3 * v3).sum()"
    )
    setting = programs.DIFFERENCES
    assert programs.problem(program, setting) is None
    with a_wrong_gradient(elementwise.TANH):
        wrong = programs.problem(program, setting)
        assert wrong is not None and "slope" in wrong
        short = Failure(0, 0, program, setting, wrong).short()
    assert len(short.program.lines) <= 2
    assert "fg.tanh(" in str(short) and "fg.value_and_grad(f, varied)(*args)" in str(short)
    assert short.program.inputs[0].shape != (3, 4)


@pytest.mark.parametrize("setting", [settings.SHAKEN, *settings.CHEAP[:4]], ids=lambda s: s.name)
def test_a_script_runs_as_it_is_printed(setting: settings.Setting) -> None:
    program = programs.write(0, 4)
    said = StringIO()
    with redirect_stdout(said):
        exec(str(Failure(0, 4, program, setting, "nothing")).split("\n\n", 1)[1], {})
    apart = [float(line.split()[0]) for line in said.getvalue().splitlines()]
    assert len(apart) == 1 + len(program.varied)
    assert max(apart) < 1e-4


def test_every_option_that_plans_depend_on_is_changed_by_a_setting() -> None:
    changed = {name for one in (*settings.CHEAP, *settings.NATIVE) for name in one.options}
    wanted = {option.name for option in fields(Options) if option.metadata["in_key"]}
    alike = {"tune", "matmul_precision", "cublas"}  # plans of the same kernels; of GPUs alone
    assert not wanted - changed - alike
    assert {"tier", "threads", "poison"} <= changed


def test_sums_round_otherwise_each_time_when_they_are_shaken() -> None:
    x = np.random.default_rng(0).standard_normal((40, 50))

    def sums() -> np.ndarray:
        fg.clear_caches()
        with fg.config(device="reference"):
            return np.asarray(fg.Tensor(x).sum(1).numpy())

    plain = sums()
    assert np.array_equal(plain, sums())
    with shaken(0):
        first, second = sums(), sums()
    assert not np.array_equal(first, second)
    assert np.allclose(first, plain, rtol=1e-14) and np.allclose(second, plain, rtol=1e-14)
    assert np.array_equal(plain, sums())


def test_a_gradient_that_was_lost_is_a_problem() -> None:
    program = one_input("x0.sum(1)", "v0.max()")
    known = Oracle.of(program)
    found = settings.answer(program, settings.SHAKEN)
    assert known.problem(found) is None
    wrong = known.problem([found[0], np.zeros_like(found[1])])
    assert wrong is not None and "sums 0 for 4" in wrong


def test_a_tie_that_rounding_breaks_is_not_judged() -> None:
    """Two orders of one sum: which is larger is for rounding to say, and their gradients differ."""
    program = one_input(
        "x0.sum(1)", "x0.flip(1).sum(1) * 1.5 - v0 * 0.5", "fg.where(v0 < v1, v0, v1 * 2).sum()"
    )
    known = Oracle.of(program)
    assert known.problem(known.want) is None
    with pytest.raises(Unjudged):
        known.problem([a + 1 for a in known.want])


def test_rounding_alone_is_no_problem_in_float32() -> None:
    program = replace(one_input("x0.exp()", "v0.sum(0)", "v1.log().sum()"), dtype="float32")
    assert programs.problem(program, settings.CHEAP[0]) is None


def test_a_program_without_finite_numbers_is_refused() -> None:
    with pytest.raises(Unjudged, match="not finite"):
        Oracle.of(one_input("(x0 - x0).log()", "v0.sum()"))
    assert oracle.LARGEST == 1e6


def test_a_plan_that_is_kept_for_other_constants_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = one_input("x0 @ w0 + c0", "fg.logsumexp(v0, -1).sum()", shape=(120, 32))
    given = (*program.inputs, Input("w0", program.inputs[0].draw, (32, 200)))
    program = replace(program, inputs=given, constants=(0.5,), before=(2.0,))
    assert programs.problem(program, settings.SHAKEN) is None
    right = search._is_planned

    def is_planned(candidate: FusionCandidate, kernel: Kernel) -> bool:
        assert right(candidate, kernel), "a plan for another kernel"
        return True

    monkeypatch.setattr(search, "_is_planned", is_planned)
    monkeypatch.setattr(regions, "in_laws", lambda memory: False)
    fg.clear_caches()
    wrong = programs.problem(program, settings.SHAKEN)
    assert wrong is not None and "a plan for another kernel" in wrong
    assert "c0 = 2.0" in str(Failure(0, 0, program, settings.SHAKEN, wrong))


def test_constants_change_in_a_program_that_stays_the_same() -> None:
    program = programs.write(3, 5)
    found = with_constants(program, Random(0))
    assert found.first is not None and found.first.lines == found.lines
    assert len(found.constants) == len(found.before) > 0
    assert all(a != b for a, b in zip(found.constants, found.before, strict=True))
    assert found == with_constants(program, Random(0))
    assert programs.problem(found, settings.SHAKEN) is None


def test_shorter_programs_are_tried_from_the_largest_step_on() -> None:
    program = one_input("x0.exp()", "v0.sin()", "v1.sum()")
    tried = list(smaller.smaller(program))
    assert [line.code for line in tried[0].lines] == ["x0.exp()", "v0.sum()"]
    assert any(candidate.inputs[0].name == "y0" for candidate in tried)
    assert any(candidate.inputs[0].shape == (1, 4) for candidate in tried)
