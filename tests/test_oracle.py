"""Sessions of random programs give what NumPy in float64 gives, which shares no code with us."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from tests.fuzz import eager, oracle
from tests.fuzz.plain import Value, own
from tests.threads import together

pytest.importorskip("llvmlite")

pytestmark = pytest.mark.device("cpu")


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    fg.clear_caches()


def sessions(seeds: range) -> None:
    for failure in oracle.failures(seeds):
        raise AssertionError(failure)


@pytest.mark.parametrize("part", range(4))
def test_random_sessions_give_what_numpy_gives(part: int) -> None:
    sessions(range(part * 8, part * 8 + 8))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_two_thousand_random_sessions_give_what_numpy_gives(part: int) -> None:
    sessions(range(1000 + part * 200, 1000 + part * 200 + 200))


def test_sessions_in_two_threads_give_what_numpy_gives() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change often
    try:
        together(2, lambda number: sessions(range(100 + 4 * number, 104 + 4 * number)))
    finally:
        sys.setswitchinterval(before)


def test_values_of_the_oracle_share_no_memory() -> None:
    x = own(np.arange(6.0).reshape(2, 3))
    parts = x[1], x.T, x.reshape(-1), x[::-1], oracle.PLAIN.flip(x), oracle.PLAIN.squeeze(x[None])
    x += 1
    x[0] = 9
    assert isinstance(parts[1], Value)
    assert [p.sum() for p in parts] == [12, 15, 15, 15, 15, 15]


def stale(function: Callable[..., Any]) -> Callable[..., Any]:
    """A jit that keeps the numbers of its first call."""
    first: dict[str, Any] = {}

    def call(*args: Any, **options: Any) -> Any:
        first.setdefault("c0", options.get("c0"))
        return function(*args, **(options | first if "c0" in options else options))

    return call


PLANTED: dict[str, Any] = {
    "an assignment that is lost": ("Tensor.__imul__", lambda self, other: self),
    "numbers of an earlier call": ("jit", stale),
    "a mean that is a sum": ("Tensor.mean", fg.Tensor.sum),
}


@pytest.mark.parametrize("what", PLANTED)
def test_sessions_notice(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, other = PLANTED[what]
    monkeypatch.setattr(f"fulgurite.{place}", other)
    with fg.config(disk_cache=False), pytest.raises(AssertionError, match="seed"):
        sessions(range(30))


@pytest.mark.parametrize("part", range(3))
def test_statements_typed_one_by_one_give_what_numpy_gives(part: int) -> None:
    for seed in range(part * 6, part * 6 + 6):
        eager.check(seed)


def test_statements_that_are_interrupted_leave_every_value_as_it_was() -> None:
    for seed in range(50, 55):
        eager.check(seed, interrupts=True)
