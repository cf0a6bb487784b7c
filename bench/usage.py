"""What a process has used: CPU time with its helpers', and memory, from Linux's own books."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path


class CpuClock:
    """CPU seconds since it was made, of this process and its descendants, ended or alive."""

    def __init__(self) -> None:
        self._helpers = _helpers()
        self._own = time.process_time()  # last, and first below: looking takes time as well

    def seconds(self) -> float:
        """What was spent."""
        own = time.process_time() - self._own
        return own + _helpers() - self._helpers


def _helpers() -> float:
    """CPU seconds of all descendants of this process."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    found: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        found[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in family} - family:
        family |= more
        total += sum(found[pid][1] for pid in more) / os.sysconf("SC_CLK_TCK")
    return total


def memory(field: str) -> float:
    """Megabytes that this process holds (`VmRSS`) or held at most (`VmHWM`)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1e3
    raise LookupError(field)


def forget_peak() -> None:
    """Let the peak start from now, where the system allows it."""
    with suppress(OSError):  # where it is not, the peak includes what importing held
        Path("/proc/self/clear_refs").write_text("5")
