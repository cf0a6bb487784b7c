"""Assignment as a state machine: sequences of steps mirrored on NumPy arrays, and made smaller.

Seeds make most of the sequences, which is quick; hypothesis leads through others. What either finds
to fail is shown with as few steps as fail.
"""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

import fulgurite as fg
from fulgurite.runtime import donation
from tests import mirror
from tests.properties import arithmetic, program
from tests.threads import together

pytestmark = pytest.mark.device("none")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that fail when `mirror.Fault` says so."""
    yield from mirror.failing_kernels(monkeypatch)


@pytest.mark.parametrize("block", range(8))
def test_programs_do_to_tensors_what_they_do_to_arrays(block: int, faults: None) -> None:
    with fg.config(device="reference"):
        for seed in range(block * 200, block * 200 + 200):
            mirror.check(seed, length=10)


def test_programs_in_native_code_do_what_they_do_to_arrays(faults: None) -> None:
    with fg.config(device="cpu", tier="native"):
        for seed in range(50_000, 50_120):
            mirror.check(seed)


def test_tiny_programs_on_the_cpu_do_what_they_do_to_arrays(faults: None) -> None:
    with fg.config(device="cpu", tier="auto"):
        for seed in range(60_000, 60_300):
            mirror.check(seed)


STEP = st.sampled_from(mirror.NAMES).flatmap(
    lambda name: st.tuples(st.just(name), *[st.integers(0, 999)] * mirror.STEPS[name][1])
)


class Mirrored(RuleBasedStateMachine):
    """Steps that hypothesis chooses, on tensors and arrays; it makes smaller what fails."""

    def __init__(self) -> None:
        super().__init__()
        self.state = mirror.State()

    @initialize(seed=st.integers(0, 999))
    def begin(self, seed: int) -> None:
        mirror.do(self.state, ("new", seed, 2))

    @rule(step=STEP)
    def do(self, step: mirror.Step) -> None:
        mirror.do(self.state, step)

    def teardown(self) -> None:
        mirror.Fault.left = -1
        mirror.compare(self.state)


SIZES = [
    ("reference", arithmetic), ("cpu", program),
    pytest.param("reference", settings(max_examples=20_000), marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_states_that_hypothesis_leads_through_are_those_of_arrays(
    name: str, size: settings, faults: None
) -> None:
    chosen = settings(size, stateful_step_count=12, database=None)
    with fg.config(device=name, tier="native"):
        run_state_machine_as_test(Mirrored, settings=chosen)


def test_hypothesis_makes_a_sequence_that_fails_as_short_as_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(mirror.STEPS, "alias", (lambda s, i: 1 // 0, 1, 1))
    phases = (Phase.generate, Phase.shrink)
    chosen = settings(max_examples=200, deadline=None, database=None, phases=phases)
    with fg.config(device="reference"), pytest.raises(ZeroDivisionError) as problem:
        run_state_machine_as_test(Mirrored, settings=chosen)
    shown = "\n".join(problem.value.__notes__)
    assert shown.count("state.do(") == 1 and "'alias'" in shown, shown


@pytest.mark.slow
def test_very_many_programs_do_what_they_do_to_arrays(faults: None) -> None:
    with fg.config(device="reference"):
        for seed in range(100_000, 200_000):
            mirror.check(seed)
    with fg.config(device="cpu", tier="native"):
        for seed in range(200_000, 202_000):
            mirror.check(seed, length=16)


@pytest.mark.parametrize("planted", ["lost", "_ours"])
def test_programs_notice_memory_that_is_written_over_too_early(
    planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if planted == "lost":  # whoever else reads an old version is forgotten
        monkeypatch.setattr(donation.ReferenceCounts, "lost", lambda between, taken: 0)
    else:  # arrays that show memory are forgotten
        monkeypatch.setattr(donation, "_ours", lambda storages, more: [True] * len(storages))
    fg.clear_caches()
    try:
        with fg.config(device="reference"), pytest.raises(AssertionError, match="seed"):
            for seed in range(1500):
                mirror.check(seed, length=16)
    finally:
        fg.clear_caches()


def test_a_program_that_fails_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mirror.STEPS, "fail", (lambda s, i, j: 1 // 0, 2, 2))
    steps: mirror.Program = [("new", 1, 2), ("check", 0), ("fail", 1, 2), ("realize", 0, 0)]
    assert mirror.smaller(steps) == [("new", 1, 2), ("fail", 1, 2)]


def test_programs_in_several_threads_do_what_they_do_to_arrays() -> None:
    def work(number: int) -> None:
        with fg.config(device="reference"):
            for seed in range(70_000 + 60 * number, 70_060 + 60 * number):
                mirror.check(seed)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change often
    try:
        together(4, work)
    finally:
        sys.setswitchinterval(before)
