"""Calls of the native driver whose launches are timed, in the place of plain ones.

In: a recorder. Out: every native call of the process goes through the driver with a clock
(`codegen/cpu/timed_driver.py`), which has a pool of threads of its own, until `stop`. Plain calls
are the attribute `Workers.call`, so that there is no check where nothing is recorded. A loop
inside a call is reported as if Python had run it: each step's launches, then the loop itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING

from ..recording import Launches, Recorder
from .executor import Program
from .frame_layout import Inlined
from .pool import KEEPERS, POOL

if TYPE_CHECKING:
    from .threads import Workers

Items = Sequence[int | tuple[int, Inlined]]


class TimedCalls:
    """What stands in for `Workers.call`."""

    def __init__(self, plain: Workers, timed: Workers, recorder: Recorder, device: str) -> None:
        self.plain, self.timed, self.recorder, self.device = plain, timed, recorder, device
        self.before = plain.call
        self.known: dict[int, tuple[Program, Items]] = {}  # programs stay where they are
        plain.call = self

    def stop(self) -> None:
        """Let calls be plain again."""
        self.plain.call = self.before

    def __call__(self, records: int, frame: int, pool: int, threads: int, *addresses: int) -> int:
        program, items = self.known.get(records) or self._found(records)
        timed = self.timed
        if threads > 1:
            threads = timed.ready()
        log = array("q", bytes(16 * (1 + threads) * _launches(items)))
        at = log.buffer_info()[0]
        status = timed.call(records, frame, timed.pool, threads, at, *addresses)
        _Report(self.recorder, self.device, threads, log, POOL.stats.used).tell(program, items)
        return status

    def _found(self, records: int) -> tuple[Program, Items]:
        """The program of some records, and the item of each of its launches."""
        for keeper in list(KEEPERS):
            if isinstance(keeper, Program) and records in keeper.launched:
                self.known[records] = keeper, keeper.launched[records]
        return self.known[records]


def _items(program: Program) -> Items:
    """The items of a program that is one native call."""
    (items,) = program.launched.values()
    return items


def _launches(items: Items) -> int:
    """How many launches there are, with those of loops."""
    return sum(
        [1 if isinstance(i, int) else i[1].count * _launches(_items(i[1].body)) for i in items]
    )


class _Report:
    """A log that is told from beginning to end."""

    def __init__(
        self, recorder: Recorder, device: str, threads: int, log: Sequence[int], used: int
    ) -> None:
        self.recorder, self.device, self.threads, self.log = recorder, device, threads, log
        self.used, self.at, self.each = used, 0, 2 + 2 * threads

    def tell(self, program: Program, items: Items) -> None:
        """What ran of a program: launches between loops together, loops step by step."""
        plain: list[int] = []
        for item in items:
            if isinstance(item, int):
                plain.append(item)
                continue
            self._launched(program, plain)
            plain, begin = [], self.at
            number, loop = item
            for _ in range(loop.count):
                self.tell(loop.body, _items(loop.body))
            if self.at > begin:
                stamps = self.log[begin], self.log[self.at - self.each + 1]
                self._say(program, (number,), stamps, 0)
        self._launched(program, plain)

    def _launched(self, program: Program, items: Sequence[int]) -> None:
        if items:
            begin, self.at = self.at, self.at + self.each * len(items)
            self._say(program, items, self.log[begin : self.at], self.threads)

    def _say(
        self, program: Program, items: Sequence[int], stamps: Sequence[int], threads: int
    ) -> None:
        thread = get_ident()
        self.recorder.launched(
            Launches(program.schedule, self.device, thread, items, stamps, threads, self.used)
        )
