"""Generated kernels, run in Triton's interpreter and compiled ahead of time, without a GPU."""

from __future__ import annotations

import pytest

from tests.codegen.cuda.subprocesses import counted, needs_triton

SHARED = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448}  # bytes a block may have
REGISTERS = 65_536  # of a processor
KNOWN = (
    "complex numbers",  # functions with branch cuts, products over an axis: NumPy's
    "fold: no template takes it",  # chosen for the host; for a GPU the search asks for its tiles
)


@needs_triton
def test_kernels_in_the_interpreter_agree_with_the_reference() -> None:
    found = counted("corpus", "interpret")
    bad = [b for b in found["bad"] if b["kind"] != "cannot"]
    assert not bad, f"{len(bad)}: {bad[0]}"
    assert found["counts"]["ran"] > 1200 and found["counts"]["checks"] == 120
    unknown = [r for r in found["reasons"] if not any(known in r for known in KNOWN)]
    assert not unknown


@needs_triton
def test_sums_about_a_maximum_or_a_mean_read_memory_once() -> None:
    found = counted("rows", "")
    assert not found["bad"], found["bad"][:5]
    assert found["ran"] == found["once"] == 42


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("how", ["interpret", "read"])
def test_folds_that_no_rule_was_written_for_agree_with_the_reference(how: str) -> None:
    found = counted("unseen", how)
    assert not found["bad"], found["bad"][0]
    assert found["counts"]["ran"] >= 26


@needs_triton
def test_triton_reads_every_text() -> None:
    found = counted("corpus", "read")
    bad = [b for b in found["bad"] if b["kind"] != "cannot"]
    assert not bad, f"{len(bad)}: {bad[0]}"
    assert found["counts"]["texts"] > 800


# Functions of many branches; gradients of attention by a persistent grid keep a few numbers of
# the next one beside 168 registers, and were timed to be quicker so.
SPILLED = ("functions", "gluon_gradient")


@needs_triton
def test_machine_code_fits_every_gpu() -> None:
    made = counted("compiling", "")
    assert {one["capability"] for one in made} == set(SHARED)
    for one in made:
        # those of a persistent grid keep a thread's place in local memory, outside of their loops
        most = {"functions": 64, "gluon_gradient_persistent": 32, "gluon_causal_persistent": 128}
        assert one["stack"] <= most.get(one["name"], 0), one
        assert 0 < one["registers"] <= 255 and not one["scratch"], one
        assert one["registers"] * one["threads"] <= REGISTERS, one
        assert one["shared"] <= SHARED[one["capability"]], one
        assert one["params"][0] == one["params"][1], one
    assert all([one["params"][0] for one in made if one["name"].startswith("gluon")])
