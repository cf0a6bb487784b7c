"""The native driver with a clock: the same text, which notes when launches begin and end.

In: the driver and its pool (`driver.py`, `driver_pool.py`). Out: text whose functions are called
`fulgurite_timed_...`. Its call takes one more argument, the address of a log: for each launch its
begin and its end, then the same of each thread's part, in nanoseconds of the clock that
`time.perf_counter_ns` reads. The driver without a clock is not touched: without profiling it costs
nothing.
"""

from __future__ import annotations

import sys

from .driver import LIMITS, driver_text
from .driver_pool import pool_text

_CLOCKS = {"linux": 1, "darwin": 8}  # of clock_gettime: what perf_counter reads
_NOW = """declare i64 @time(ptr)
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() noinline nounwind {
  %both = alloca [2 x i64]
  %a = call i32 @clock_gettime(i32 $clock$, ptr %both)
  %seconds = load i64, ptr %both
  %rest.at = getelementptr i64, ptr %both, i64 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}"""
# what each place of the driver becomes; a job's word 7 is where the log of its threads begins
_EDITS = (
    ("declare i64 @time(ptr)", _NOW),
    (
        "  br label %part\npart:",
        """  %log.at = getelementptr i64, ptr %job, i64 7
  %log = load ptr, ptr %log.at
  %mine = getelementptr [2 x i64], ptr %log, i64 %self
  %begun = call i64 @now()
  store i64 %begun, ptr %mine
  br label %part
part:""",
    ),
    (
        "done:\n  ret void\n}\n\ndefine internal void @leave",
        """done:
  %ended = call i64 @now()
  %mine.end = getelementptr i64, ptr %mine, i64 1
  store i64 %ended, ptr %mine.end
  ret void
}

define internal void @leave""",
    ),
    (
        "i64 %units, ptr %pool, i64 %threads) nounwind {",
        "i64 %units, ptr %pool, i64 %threads, ptr %log) nounwind {",
    ),
    (
        "  store atomic i64 %here, ptr %caller.at monotonic, align 8\n",
        """  store atomic i64 %here, ptr %caller.at monotonic, align 8
  %log.at = getelementptr i64, ptr %job, i64 7
  store ptr %log, ptr %log.at
""",
    ),
    (
        "    ptr %pool, i64 %threads)\n  br label %check",
        "    ptr %pool, i64 %threads, ptr %log.threads)\n  br label %check",
    ),
    (
        "start:\n  store i64 0, ptr %values\n",
        """start:
  store i64 0, ptr %values
  %log.at = getelementptr i64, ptr %place, i64 1
  %log = load ptr, ptr %log.at
  %log.threads = getelementptr i64, ptr %log, i64 2
  %begin = call i64 @now()
  store i64 %begin, ptr %log
""",
    ),
    (
        "check:\n",
        """check:
  %ended = call i64 @now()
  %log.end = getelementptr i64, ptr %log, i64 1
  store i64 %ended, ptr %log.end
  %log.next = getelementptr [2 x i64], ptr %log.threads, i64 %threads
  store ptr %log.next, ptr %log.at
""",
    ),
    ("  %place = alloca [1 x i64]\n", "  %place = alloca [2 x i64]\n"),
    (
        "  %threads = call i64 @PyLong_AsLong(ptr %o3)\n",
        """  %threads = call i64 @PyLong_AsLong(ptr %o3)
  %a4 = getelementptr ptr, ptr %arguments, i64 4
  %o4 = load ptr, ptr %a4
  %log = call ptr @PyLong_AsVoidPtr(ptr %o4)
  %log.at = getelementptr i64, ptr %place, i64 1
  store ptr %log, ptr %log.at
""",
    ),
    (
        f"%n = phi i64 [ {LIMITS.fixed_arguments}, %entry ]",
        f"%n = phi i64 [ {LIMITS.fixed_arguments + 1}, %entry ]",
    ),
    (
        f"%number = sub i64 %n, {LIMITS.fixed_arguments}\n",
        f"%number = sub i64 %n, {LIMITS.fixed_arguments + 1}\n",
    ),
)


def timed_driver_text(arch: str, system: str = sys.platform) -> str:
    """The driver with a clock, for an architecture and a system."""
    text = driver_text() + pool_text(arch, system)
    for old, new in _EDITS:
        assert text.count(old) == 1, f"the driver has {text.count(old)} places like {old!r}"
        text = text.replace(old, new)
    text = text.replace("$clock$", str(_CLOCKS.get(system, 1)))
    return text.replace("@fulgurite_", "@fulgurite_timed_")
