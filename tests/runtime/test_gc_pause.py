"""Tests of fulgurite/runtime/gc_pause.py: held back while compiling, and never left off."""

import gc

import pytest

from fulgurite.runtime.gc_pause import held_back
from tests.threads import together


def test_the_collector_is_held_back_inside_and_runs_again_after() -> None:
    assert gc.isenabled()
    with held_back():
        assert not gc.isenabled()
        with held_back():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_lets_it_run_again() -> None:
    with pytest.raises(RuntimeError), held_back():
        raise RuntimeError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with held_back():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_that_overlap_leave_it_on() -> None:
    def work(_: int) -> None:
        for _ in range(200):
            with held_back():
                pass

    together(4, work)
    assert gc.isenabled()
