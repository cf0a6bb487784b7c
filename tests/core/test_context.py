"""The compiler's context: tables that tests can have afresh and threads can share."""

import gc
import threading

from fulgurite.core.context import Table, WeakMemo, context, fresh_context


class Key:
    """Something that a memo may hold weakly."""


def test_a_table_is_one_in_a_context_and_another_in_a_fresh_one() -> None:
    table: Table[dict[str, int]] = Table(dict)
    table()["a"] = 1
    assert table() == {"a": 1}
    outer = context()
    with fresh_context() as inner:
        assert context() is inner and inner is not outer
        assert table() == {}
    assert context() is outer and table() == {"a": 1}


def test_threads_that_ask_at_once_get_one_table() -> None:
    table: Table[dict[str, int]] = Table(dict)
    found: list[dict[str, int]] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        found.append(table())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(t is found[0] for t in found)


def test_an_entry_of_a_memo_is_made_once_and_goes_with_its_key() -> None:
    memo: WeakMemo[Key, list[int]] = WeakMemo()
    key = Key()
    first = memo.get_or_make(key, lambda: [1])
    assert memo.get_or_make(key, lambda: [2]) is first and len(memo) == 1
    del key
    gc.collect()
    assert len(memo) == 0


def test_a_graph_is_compiled_anew_in_a_fresh_context() -> None:
    import fulgurite as fg

    def misses() -> int:
        (fg.ones((3, 5)) * 7 - 2).realize()
        return fg.cache_stats()["schedule"]["misses"]

    misses()
    known = misses()
    assert misses() == known
    with fresh_context():
        assert misses() == 1
    assert misses() == known
