"""Tests of fulgurite/core/cache.py: bounded, made once, nobody waits for ever."""

import gc
import threading
import time

import pytest

from fulgurite.core.cache import Cache, Stats, WeakCache
from tests.threads import together


def fresh(most: int = 8) -> Cache[str, object]:
    return Cache("test", lambda: most)


class Thing:
    """A value that can be referred to weakly."""


def test_a_value_is_made_once_and_found_after() -> None:
    cache, made = fresh(), object()
    assert cache.get_or_make("k", lambda: made) is made
    assert cache.get_or_make("k", object) is made
    assert (cache.stats.hits, cache.stats.misses) == (1, 1)


def test_the_least_recently_used_goes_first() -> None:
    cache = fresh(2)
    for key in ("a", "b", "a", "c"):
        cache.get_or_make(key, object)
    assert cache.get("b") is None
    assert cache.get("a") is not None and cache.get("c") is not None
    assert cache.stats.evictions == 1 and len(cache) == 2


def miss_together() -> None:
    cache, made = fresh(), []

    def make() -> object:
        made.append(1)
        return object()

    got = together(4, lambda _: cache.get_or_make("k", make))
    assert len(made) == 1
    assert len({id(value) for value in got}) == 1


def test_threads_that_miss_together_make_one_value_100_times_over() -> None:
    for _ in range(100):
        miss_together()


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_waiters_survive_a_leader_that_fails(failure: type[BaseException]) -> None:
    cache, leading = fresh(), threading.Event()
    good = object()

    def fail() -> object:
        leading.set()
        while cache.stats.waits == 0:  # until the other thread waits for us
            time.sleep(0.001)
        raise failure

    def lead() -> None:
        with pytest.raises(failure):
            cache.get_or_make("k", fail)

    leader = threading.Thread(target=lead)
    leader.start()
    leading.wait()
    assert cache.get_or_make("k", lambda: good) is good
    leader.join()
    assert cache.stats.failures == 1 and cache.stats.misses == 2


def test_an_interrupt_at_any_moment_leaves_nobody_waiting() -> None:
    cache = fresh()

    class Interrupted(Stats):
        """Statistics at whose first miss Ctrl-C arrives."""

        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, value)
            if name == "misses" and value == 1:
                raise KeyboardInterrupt

    cache.stats = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        cache.get_or_make("k", object)
    later = threading.Thread(target=lambda: cache.get_or_make("k", object), daemon=True)
    later.start()
    later.join(20)
    assert not later.is_alive()


def test_clearing_forgets_values_and_keeps_statistics() -> None:
    cache = fresh()
    cache.get_or_make("k", object)
    cache.clear()
    assert len(cache) == 0 and cache.stats.misses == 1


def test_a_weak_entry_lives_as_long_as_its_value() -> None:
    cache: WeakCache[str, Thing] = WeakCache("test")
    thing = cache.get_or_make("k", Thing)
    assert cache.get_or_make("k", Thing) is thing
    assert len(cache) == 1
    del thing
    gc.collect()
    assert len(cache) == 0
