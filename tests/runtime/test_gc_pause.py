"""Tests of fulgurite/runtime/gc_pause.py: held back while compiling, and never left off."""

import gc

import pytest

from fulgurite.runtime.gc_pause import held_back
from tests.stores import run_script
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


def test_what_is_made_to_stay_is_not_walked_when_a_hold_ends() -> None:
    run_script(
        """
        import gc
        from fulgurite.runtime.gc_pause import MOST_IMMORTAL, held_back, made_to_stay
        runs = []
        gc.unfreeze()  # what the interpreter's own start may have frozen
        gc.collect()  # which counts immortal objects as frozen from Python 3.12 on
        gc.callbacks.append(lambda phase, about: runs.append(about["generation"]))
        with held_back():
            kept = [[n] for n in range(10_000)]
            made_to_stay()
        assert gc.isenabled(), "a hold that ends lets it run"
        assert not runs, (runs, gc.get_threshold(), gc.get_count())
        assert gc.get_freeze_count() < MOST_IMMORTAL, gc.get_freeze_count()
        assert len(gc.get_objects(2)) > 10_000
        with held_back():
            more = [[n] for n in range(10_000)]
        for _ in range(3):  # from Python 3.12 on it comes at the next turn of a loop or call
            last = [[], []]
        assert runs, "without it a collection comes at once"
        """
    )


def test_what_a_user_froze_stays_frozen_and_few_things_are_made_to_stay() -> None:
    run_script(
        """
        import gc
        from fulgurite.runtime import gc_pause
        kept = [[n] for n in range(2 * gc_pause.MOST_IMMORTAL)]
        gc.freeze()
        gc_pause.made_to_stay()
        assert gc.get_freeze_count() > len(kept) and gc_pause._stayed == 0
        gc.unfreeze()
        for _ in range(2 * gc_pause.MOST_TO_STAY):
            gc_pause.made_to_stay()
        assert gc_pause._stayed == gc_pause.MOST_TO_STAY
        """
    )
