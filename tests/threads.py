"""Several threads that start together."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def together(count: int, work: Callable[[int], T]) -> list[T]:
    """The results of `work(0) ... work(count - 1)`, each in a thread, started at one barrier."""
    start = threading.Barrier(count)
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[i] for i in range(count)]
