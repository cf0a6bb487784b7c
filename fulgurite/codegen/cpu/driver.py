"""The native driver: one call walks a plan's records and shares large launches among threads.

In: nothing; this is text, compiled once for a machine and cached like any kernel. Out: function
`fulgurite_call` (a Python builtin's body: program, frame, pool, threads, then addresses for the
first slots), over three blocks of 64-bit words that Python lays out, the calling convention of
plans: a program (offsets of the frame's parts, then records), a frame (one run's slots, variables
and scratch) and the pool. All state is in these blocks, so the code itself holds nothing writable.
What few plans need is text of its own, compiled when it is first needed and called through an
address: threads (`driver_pool.py`, an address in the pool) and loops (`driver_loops.py`, an address
in their records). Steps of its own loops are opaque (`freeze`): LLVM's strength reduction, which
gains nothing here, takes a sixth of the compile time. Between large launches and steps of loops,
once a second, Python's signals are looked at: Ctrl-C ends a long plan there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from ...core.lazy_dataclass import dataclass


class Record:
    """Kinds of records of a program."""

    END = 0
    LAUNCH = 1
    COPY = 2  # to a slot and an offset there, from a slot, so many bytes
    LOOP = 3  # another program, so many times: see `driver_loops.py`


class Word:
    """Words of a frame."""

    STATUS = 0  # the record that failed
    SIZE = 1  # that was broken
    SLOTS = 2  # the first slot


class Pool:
    """Bytes of a pool: each word that threads fight for has a cache line of its own."""

    GENERATION = 0
    OPEN = 64
    STARTED = 128  # threads that may raise a flag, with the caller
    JOB = 192
    BUSY = 256
    SLEEPERS = 320
    STOP = 384
    MUTEX = 448
    CONDITION = 576
    TOGETHER = 704  # the function that shares a launch
    WORKERS = 768


@dataclass(frozen=True, slots=True)
class Limits:
    """What blocks have room for."""

    header_words: int = 4  # of a program: where slots, variables, params and values begin
    fixed_arguments: int = 4  # of a call before the addresses that go into the first slots
    workers: int = 256
    processors: int = 1024  # of a set of them
    spins: int = 4000  # looks at the next job before a worker lies down: some 100 us


END, LAUNCH, COPY, LOOP = Record.END, Record.LAUNCH, Record.COPY, Record.LOOP
SIZE, SLOTS = Word.SIZE, Word.SLOTS
LIMITS = Limits()
NEXTS = Pool.WORKERS + 3 * 8 * LIMITS.workers  # of each thread's part, how far it is
FLAGS = NEXTS + 64 * LIMITS.workers  # of each thread, whether it is inside a job
POOL_BYTES = FLAGS + 64 * LIMITS.workers


def filled(text: str, names: Mapping[str, int | str]) -> str:
    """A text of the driver with numbers in the places of their names, and subscripts spelled out.

    `ptr %a[n]` at the end of a line is the word of 64 bits at that place of an array.
    """
    words = {name.lower(): n for kind in (Record, Pool) for name, n in vars(kind).items()}
    words |= names
    parts = text.split("$")  # every other one is a name
    parts[1::2] = [str(words[name]) for name in parts[1::2]]
    count = itertools.count()

    def word(found: re.Match[str]) -> str:
        line, array, place = found.groups()
        at = f"%word.{next(count)}"
        return f"  {at} = getelementptr i64, ptr {array}, i64 {place}\n{line}ptr {at}"

    return re.sub(r"^(.*)ptr (%[\w.]+)\[(\S+)\]$", word, "".join(parts), flags=re.MULTILINE)


def driver_text() -> str:
    """The driver, for any architecture and system."""
    names = {"header": LIMITS.header_words, "fixed": LIMITS.fixed_arguments}
    return filled(_TEXT + CHECK_SIGNALS, names)


CHECK_SIGNALS = """
define internal i64 @check_signals(ptr %place, i64 %seen) noinline nounwind {
entry:
  %now = call i64 @time(ptr null)
  %is.first = icmp eq i64 %seen, 0
  %is.same = icmp eq i64 %seen, %now
  %go.on = or i1 %is.first, %is.same
  br i1 %go.on, label %done, label %look
look:
  %state = load ptr, ptr %place
  call void @PyEval_RestoreThread(ptr %state)
  %raised = call i32 @PyErr_CheckSignals()
  %state.next = call ptr @PyEval_SaveThread()
  store ptr %state.next, ptr %place
  %stops = icmp ne i32 %raised, 0
  br i1 %stops, label %stopped, label %done
stopped:
  ret i64 -1
done:
  ret i64 %now
}
"""
_TEXT = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLong(ptr)
declare ptr @PyLong_FromLong(i64)
declare i32 @PyErr_CheckSignals()
declare i64 @time(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

define internal i64 @run(
    ptr %program, ptr %frame, ptr %pool, i64 %threads, ptr %place) nounwind {
entry:
  %records = getelementptr i64, ptr %program, i64 $header$
  %slots.at = load i64, ptr %program
  %slots = getelementptr i64, ptr %frame, i64 %slots.at
  %variables.at = load i64, ptr %program[1]
  %variables = getelementptr i64, ptr %frame, i64 %variables.at
  %params.at = load i64, ptr %program[2]
  %params = getelementptr i64, ptr %frame, i64 %params.at
  %values.at = load i64, ptr %program[3]
  %values = getelementptr i64, ptr %frame, i64 %values.at
  %broken = getelementptr i64, ptr %values, i64 1
  %numbers = getelementptr i64, ptr %values, i64 2
  %several = icmp ugt i64 %threads, 1
  br label %next
next:
  %record = phi ptr [ %records, %entry ], [ %after, %ran ], [ %after, %timed ],
                    [ %behind, %copy ], [ %beyond, %loop ]
  %order = phi i64 [ 1, %entry ], [ %order.next, %ran ], [ %order.next, %timed ],
                   [ %order.copied, %copy ], [ %order.looped, %loop ]
  %seen = phi i64 [ 0, %entry ], [ %seen, %ran ], [ %now, %timed ],
                  [ %seen, %copy ], [ %seen, %loop ]
  %kind = load i64, ptr %record
  %length = load i64, ptr %record[1]
  switch i64 %kind, label %finished [ i64 $launch$, label %launch
                                      i64 $copy$, label %copy
                                      i64 $loop$, label %loop ]
launch:
  %function = load ptr, ptr %record[2]
  %units = load i64, ptr %record[3]
  %shared = load i64, ptr %record[4]
  %param.count = load i64, ptr %record[5]
  %variable.count = load i64, ptr %record[6]
  %number.count = load i64, ptr %record[7]
  %params.in = getelementptr i64, ptr %record, i64 8
  %variables.in = getelementptr i64, ptr %params.in, i64 %param.count
  %numbers.in = getelementptr i64, ptr %variables.in, i64 %variable.count
  br label %param
param:
  %p = phi i64 [ 0, %launch ], [ %p.next, %param.put ]
  %p.some = icmp ult i64 %p, %param.count
  br i1 %p.some, label %param.put, label %variable
param.put:
  %slot = load i64, ptr %params.in[%p]
  %address = load i64, ptr %slots[%slot]
  store i64 %address, ptr %params[%p]
  %p.more = add i64 %p, 1
  %p.next = freeze i64 %p.more
  br label %param
variable:
  %v = phi i64 [ 0, %param ], [ %v.next, %variable.put ]
  %v.some = icmp ult i64 %v, %variable.count
  br i1 %v.some, label %variable.put, label %number
variable.put:
  %name = load i64, ptr %variables.in[%v]
  %bound = load i64, ptr %variables[%name]
  store i64 %bound, ptr %numbers[%v]
  %v.more = add i64 %v, 1
  %v.next = freeze i64 %v.more
  br label %variable
number:
  %numbers.to = getelementptr i64, ptr %numbers, i64 %variable.count
  br label %each
each:
  %n = phi i64 [ 0, %number ], [ %n.next, %number.put ]
  %n.some = icmp ult i64 %n, %number.count
  br i1 %n.some, label %number.put, label %start
number.put:
  %given = load i64, ptr %numbers.in[%n]
  store i64 %given, ptr %numbers.to[%n]
  %n.more = add i64 %n, 1
  %n.next = freeze i64 %n.more
  br label %each
start:
  store i64 0, ptr %values
  %large = icmp ne i64 %shared, 0
  %split = and i1 %large, %several
  br i1 %split, label %many, label %one
many:
  %together.at = getelementptr i8, ptr %pool, i64 $together$
  %together = load ptr, ptr %together.at
  call void %together(ptr %function, ptr %params, ptr %values, i64 %units,
    ptr %pool, i64 %threads)
  br label %check
one:
  call void %function(ptr %params, ptr %values, i64 0, i64 %units)
  br label %check
check:
  %wrong = load i64, ptr %values
  %is.wrong = icmp ne i64 %wrong, 0
  %after = getelementptr i64, ptr %record, i64 %length
  %order.next = add i64 %order, 1
  br i1 %is.wrong, label %fail, label %ran
ran:
  br i1 %large, label %timed, label %next
timed:
  %now = call i64 @check_signals(ptr %place, i64 %seen)
  %stops = icmp slt i64 %now, 0
  br i1 %stops, label %stopped, label %next
stopped:
  ret i64 -1
copy:
  %to.slot = load i64, ptr %record[2]
  %to.offset = load i64, ptr %record[3]
  %from.slot = load i64, ptr %record[4]
  %bytes = load i64, ptr %record[5]
  %to.base = load ptr, ptr %slots[%to.slot]
  %to = getelementptr i8, ptr %to.base, i64 %to.offset
  %from = load ptr, ptr %slots[%from.slot]
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  %behind = getelementptr i64, ptr %record, i64 %length
  %order.copied = add i64 %order, 1
  br label %next
loop:
  %steps = load ptr, ptr %record[7]
  %looped = call i64 %steps(ptr %record, ptr %frame, ptr %slots, ptr %pool, i64 %threads,
    ptr %place, ptr @run)
  %beyond = getelementptr i64, ptr %record, i64 %length
  %order.looped = add i64 %order, 1
  %is.over = icmp eq i64 %looped, 0
  br i1 %is.over, label %next, label %broke
broke:
  ret i64 %looped
fail:
  store i64 %order, ptr %frame
  %size = load i64, ptr %broken
  store i64 %size, ptr %frame[1]
  ret i64 %order
finished:
  ret i64 0
}

define ptr @fulgurite_call(ptr %self, ptr %arguments, i64 %count) {
entry:
  %place = alloca [1 x i64]
  %o0 = load ptr, ptr %arguments
  %o1 = load ptr, ptr %arguments[1]
  %o2 = load ptr, ptr %arguments[2]
  %o3 = load ptr, ptr %arguments[3]
  %program = call ptr @PyLong_AsVoidPtr(ptr %o0)
  %frame = call ptr @PyLong_AsVoidPtr(ptr %o1)
  %pool = call ptr @PyLong_AsVoidPtr(ptr %o2)
  %threads = call i64 @PyLong_AsLong(ptr %o3)
  %slots.at = load i64, ptr %program
  %slots = getelementptr i64, ptr %frame, i64 %slots.at
  br label %slot
slot:
  %n = phi i64 [ $fixed$, %entry ], [ %n.next, %slot.put ]
  %some = icmp ult i64 %n, %count
  br i1 %some, label %slot.put, label %go
slot.put:
  %object = load ptr, ptr %arguments[%n]
  %address = call ptr @PyLong_AsVoidPtr(ptr %object)
  %number = sub i64 %n, $fixed$
  store ptr %address, ptr %slots[%number]
  %n.more = add i64 %n, 1
  %n.next = freeze i64 %n.more
  br label %slot
go:
  %state = call ptr @PyEval_SaveThread()
  store ptr %state, ptr %place
  %status = call i64 @run(ptr %program, ptr %frame, ptr %pool, i64 %threads, ptr %place)
  %state.now = load ptr, ptr %place
  call void @PyEval_RestoreThread(ptr %state.now)
  %stops = icmp eq i64 %status, -1
  br i1 %stops, label %stop, label %end
stop:
  ret ptr null
end:
  %result = call ptr @PyLong_FromLong(i64 %status)
  ret ptr %result
}
"""
