"""Calls of the native driver whose launches are timed, in the place of plain ones.

In: a recorder. Out: every native call of the process goes through the driver with a clock
(`codegen/cpu/timed_driver.py`), which has a pool of threads of its own, until `stop`. Plain calls
are the attribute `Workers.call`, so that there is no check where nothing is recorded.
"""

from __future__ import annotations

from array import array
from threading import get_ident
from typing import TYPE_CHECKING

from ..recording import Launches, Recorder
from .executor import Program
from .pool import KEEPERS, POOL

if TYPE_CHECKING:
    from .threads import Workers


class TimedCalls:
    """What stands in for `Workers.call`."""

    def __init__(self, plain: Workers, timed: Workers, recorder: Recorder, device: str) -> None:
        self.plain, self.timed, self.recorder, self.device = plain, timed, recorder, device
        self.before = plain.call
        self.known: dict[int, tuple[Program, list[int]]] = {}  # programs stay where they are
        plain.call = self

    def stop(self) -> None:
        """Let calls be plain again."""
        self.plain.call = self.before

    def __call__(self, records: int, frame: int, pool: int, threads: int, *addresses: int) -> int:
        program, items = self.known.get(records) or self._found(records)
        timed = self.timed
        if threads > 1:
            threads = timed.ready()
        log = array("q", bytes(16 * (1 + threads) * len(items)))
        at = log.buffer_info()[0]
        status = timed.call(records, frame, timed.pool, threads, at, *addresses)
        used = POOL.stats.used
        self.recorder.launched(
            Launches(program.schedule, self.device, get_ident(), items, log, threads, used)
        )
        return status

    def _found(self, records: int) -> tuple[Program, list[int]]:
        """The program of some records, and the item of each of its launches."""
        for keeper in list(KEEPERS):
            if isinstance(keeper, Program) and records in keeper.launched:
                self.known[records] = keeper, keeper.launched[records]
        return self.known[records]
