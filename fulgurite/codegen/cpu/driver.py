"""The native driver: one call walks a plan's records and shares large launches among threads.

In: nothing; this is text, compiled once for a machine and cached like any kernel. Out: functions
`fulgurite_call` (a Python builtin's body: program, frame, pool, threads, then addresses for the
first slots), `fulgurite_start` and `fulgurite_stop` (the pool's workers), over three blocks of
64-bit words that Python lays out, the calling convention of plans: a program (offsets of the
frame's parts, then records), a frame (one run's slots, variables and scratch) and the pool. All
state is in these blocks, so the code itself holds nothing writable.
A launch may be taken over by idle workers: each enters by raising a flag of its own, then looks
whether the job is still `open`; the caller closes the job, then waits until no flag is up. So a
worker that sleeps is never waited for, and none sees a job that is over. One word that all raise
would go from core to core, and so would the words of others' parts if a worker wrote there to see
that nothing is left: it reads them first, all at once. A pool that is busy is not waited for:
the second caller does its launch alone. A worker on the processor of its caller could run in its
place only, so it takes itself off that one. Each thread has a part of the units, the same one in
every run, so that memory stays in its cache; an idle worker steals from the others. Between large
launches and steps of loops, once a second, Python's signals are looked at: Ctrl-C ends a long plan
there.
"""

from __future__ import annotations

import sys

from ...core.lazy_dataclass import dataclass
from .driver_loops import LOOP_TEXT, Length


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
    WORKERS = 704


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
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
# where a thread runs, and where it may: systems that have no such calls never know
_PLACES = {
    "sched_getcpu": "",
    "sched_getaffinity": "i32, i64, ptr",
    "sched_setaffinity": "i32, i64, ptr",
}


def driver_text(arch: str, system: str = sys.platform) -> str:
    """The driver for an architecture and a system."""
    declared, pause = _PAUSE[arch]
    head, body = ("declare", "") if system == "linux" else ("define internal", " { ret i32 -1 }")
    places = "\n".join([f"{head} i32 @{name}({types}){body}" for name, types in _PLACES.items()])
    words = {name.lower(): n for kind in (Record, Pool) for name, n in vars(kind).items()}
    names = words | {
        "declared": declared, "pause": pause, "spin": LIMITS.spins, "header": LIMITS.header_words,
        "nexts": NEXTS, "flags": FLAGS, "fixed": LIMITS.fixed_arguments, "processor": places,
        "arguments": Pool.WORKERS + 8 * LIMITS.workers, "processors": LIMITS.processors,
        "loop_words": Length.LOOP, "move_words": Length.MOVE, "carry_words": Length.CARRY,
        "bytes": LIMITS.processors // 8, "words": LIMITS.processors // 64,
    }  # fmt: skip
    parts = (_TEXT + LOOP_TEXT).split("$")  # every other one is a name
    parts[1::2] = [str(names[name]) for name in parts[1::2]]
    return "".join(parts)


_TEXT = """
$declared$
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
declare i32 @getpid()
$processor$
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLong(ptr)
declare ptr @PyLong_FromLong(i64)
declare i32 @PyErr_CheckSignals()
declare i64 @time(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

define internal void @share(ptr %pool, i64 %self) nounwind {
entry:
  %job = getelementptr i8, ptr %pool, i64 $job$
  %nexts = getelementptr i8, ptr %pool, i64 $nexts$
  %function = load ptr, ptr %job
  %params.at = getelementptr i64, ptr %job, i64 1
  %params = load ptr, ptr %params.at
  %values.at = getelementptr i64, ptr %job, i64 2
  %values = load ptr, ptr %values.at
  %units.at = getelementptr i64, ptr %job, i64 3
  %units = load i64, ptr %units.at
  %chunk.at = getelementptr i64, ptr %job, i64 4
  %chunk = load i64, ptr %chunk.at
  %threads.at = getelementptr i64, ptr %job, i64 5
  %threads = load i64, ptr %threads.at
  br label %part
part:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %over ]
  %sum = add i64 %self, %turn
  %whose = urem i64 %sum, %threads
  %before = mul i64 %units, %whose
  %low = udiv i64 %before, %threads
  %until = add i64 %before, %units
  %high = udiv i64 %until, %threads
  %size = sub i64 %high, %low
  %line = shl i64 %whose, 6
  %next = getelementptr i8, ptr %nexts, i64 %line
  %own = icmp eq i64 %turn, 0
  br i1 %own, label %take, label %peek
peek:
  %far = load atomic i64, ptr %next monotonic, align 8
  %any = icmp ult i64 %far, %size
  br i1 %any, label %take, label %over
take:
  %taken = atomicrmw add ptr %next, i64 %chunk monotonic
  %some = icmp ult i64 %taken, %size
  br i1 %some, label %work, label %over
work:
  %first = add i64 %low, %taken
  %end = add i64 %first, %chunk
  %last = call i64 @llvm.umin.i64(i64 %end, i64 %high)
  call void %function(ptr %params, ptr %values, i64 %first, i64 %last)
  br label %take
over:
  %turn.next = add i64 %turn, 1
  %more = icmp ult i64 %turn.next, %threads
  br i1 %more, label %part, label %done
done:
  ret void
}

define internal void @leave(i64 %processor) nounwind {
entry:
  %set = alloca [$words$ x i64]
  %own = call i32 @getpid()
  %failed = call i32 @sched_getaffinity(i32 %own, i64 $bytes$, ptr %set)
  %known = icmp eq i32 %failed, 0
  %inside = icmp ult i64 %processor, $processors$
  %fine = and i1 %known, %inside
  br i1 %fine, label %clear, label %done
clear:
  %word = lshr i64 %processor, 6
  %at = getelementptr i64, ptr %set, i64 %word
  %old = load i64, ptr %at
  %bit = and i64 %processor, 63
  %one = shl i64 1, %bit
  %others = xor i64 %one, -1
  %new = and i64 %old, %others
  store i64 %new, ptr %at
  br label %each
each:
  %number = phi i64 [ 0, %clear ], [ %next, %each ]
  %any = phi i64 [ 0, %clear ], [ %more, %each ]
  %place = getelementptr i64, ptr %set, i64 %number
  %bits = load i64, ptr %place
  %more = or i64 %any, %bits
  %next = add i64 %number, 1
  %going = icmp ult i64 %next, $words$
  br i1 %going, label %each, label %all
all:
  %some = icmp ne i64 %more, 0
  br i1 %some, label %move, label %done
move:
  %a = call i32 @sched_setaffinity(i32 0, i64 $bytes$, ptr %set)
  br label %done
done:
  ret void
}

define internal ptr @worker(ptr %argument) nounwind {
entry:
  %pool = load ptr, ptr %argument
  %number.at = getelementptr i64, ptr %argument, i64 1
  %number = load i64, ptr %number.at
  %open = getelementptr i8, ptr %pool, i64 $open$
  %flags = getelementptr i8, ptr %pool, i64 $flags$
  %flag.line = shl i64 %number, 6
  %flag = getelementptr i8, ptr %flags, i64 %flag.line
  %limit.at = getelementptr i8, ptr %pool, i64 $job$
  %limit.in = getelementptr i64, ptr %limit.at, i64 5
  %caller.in = getelementptr i64, ptr %limit.at, i64 6
  %sleepers = getelementptr i8, ptr %pool, i64 $sleepers$
  %stop = getelementptr i8, ptr %pool, i64 $stop$
  %mutex = getelementptr i8, ptr %pool, i64 $mutex$
  %condition = getelementptr i8, ptr %pool, i64 $condition$
  br label %wait
wait:
  %seen = phi i64 [ 0, %entry ], [ %now, %left ], [ %seen, %awake ]
  br label %look
look:
  %count = phi i64 [ 0, %wait ], [ %more, %again ]
  %now = load atomic i64, ptr %pool seq_cst, align 8
  %ending = load atomic i64, ptr %stop seq_cst, align 8
  %ends = icmp ne i64 %ending, 0
  br i1 %ends, label %exit, label %fresh
fresh:
  %new = icmp ne i64 %now, %seen
  br i1 %new, label %where, label %again
again:
  $pause$
  %more = add i64 %count, 1
  %patient = icmp ult i64 %more, $spin$
  br i1 %patient, label %look, label %sleep
sleep:
  %a = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = atomicrmw add ptr %sleepers, i64 1 seq_cst
  br label %asleep
asleep:
  %then = load atomic i64, ptr %pool seq_cst, align 8
  %stopping = load atomic i64, ptr %stop seq_cst, align 8
  %same = icmp eq i64 %then, %seen
  %going = icmp eq i64 %stopping, 0
  %stay = and i1 %same, %going
  br i1 %stay, label %rest, label %awake
rest:
  %c = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %asleep
awake:
  %d = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  %e = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %wait
where:
  %processor = call i32 @sched_getcpu()
  %here = sext i32 %processor to i64
  %there = load atomic i64, ptr %caller.in monotonic, align 8
  %beside = icmp ne i64 %here, %there
  br i1 %beside, label %enter, label %aside
aside:
  call void @leave(i64 %here)
  br label %enter
enter:
  %f = atomicrmw xchg ptr %flag, i64 1 seq_cst
  %is.open = load atomic i64, ptr %open seq_cst, align 8
  %takes = icmp ne i64 %is.open, 0
  br i1 %takes, label %invited, label %left
invited:
  %limit = load i64, ptr %limit.in
  %welcome = icmp ult i64 %number, %limit
  br i1 %welcome, label %help, label %left
help:
  call void @share(ptr %pool, i64 %number)
  br label %left
left:
  store atomic i64 0, ptr %flag release, align 8
  br label %wait
exit:
  ret ptr null
}

define i64 @fulgurite_start(ptr %pool, i64 %from, i64 %to) nounwind {
entry:
  %mutex = getelementptr i8, ptr %pool, i64 $mutex$
  %condition = getelementptr i8, ptr %pool, i64 $condition$
  %begun = icmp eq i64 %from, 1
  br i1 %begun, label %init, label %each
init:
  %a = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %b = call i32 @pthread_cond_init(ptr %condition, ptr null)
  br label %each
each:
  %number = phi i64 [ %from, %entry ], [ %from, %init ], [ %next, %made ]
  %some = icmp ult i64 %number, %to
  br i1 %some, label %make, label %done
make:
  %next = add i64 %number, 1
  %started = getelementptr i8, ptr %pool, i64 $started$
  store atomic i64 %next, ptr %started seq_cst, align 8
  %pair = shl i64 %number, 1
  %arguments = getelementptr i8, ptr %pool, i64 $arguments$
  %argument = getelementptr i64, ptr %arguments, i64 %pair
  store ptr %pool, ptr %argument
  %number.at = getelementptr i64, ptr %argument, i64 1
  store i64 %number, ptr %number.at
  %handles = getelementptr i8, ptr %pool, i64 $workers$
  %handle = getelementptr i64, ptr %handles, i64 %number
  %failed = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %argument)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %done, label %made
made:
  br label %each
done:
  ret i64 %number
}

define void @fulgurite_stop(ptr %pool, i64 %count) nounwind {
entry:
  %stop = getelementptr i8, ptr %pool, i64 $stop$
  %mutex = getelementptr i8, ptr %pool, i64 $mutex$
  %condition = getelementptr i8, ptr %pool, i64 $condition$
  store atomic i64 1, ptr %stop seq_cst, align 8
  %a = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %condition)
  %c = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %each
each:
  %number = phi i64 [ 1, %entry ], [ %next, %join ]
  %some = icmp ult i64 %number, %count
  br i1 %some, label %join, label %done
join:
  %handles = getelementptr i8, ptr %pool, i64 $workers$
  %handle.at = getelementptr i64, ptr %handles, i64 %number
  %handle = load ptr, ptr %handle.at
  %d = call i32 @pthread_join(ptr %handle, ptr null)
  %next = add i64 %number, 1
  br label %each
done:
  ret void
}

define internal void @together(
    ptr %function, ptr %params, ptr %values, i64 %units, ptr %pool, i64 %threads) nounwind {
entry:
  %busy = getelementptr i8, ptr %pool, i64 $busy$
  %got = cmpxchg ptr %busy, i64 0, i64 1 seq_cst seq_cst
  %free = extractvalue { i64, i1 } %got, 1
  br i1 %free, label %post, label %alone
alone:
  call void %function(ptr %params, ptr %values, i64 0, i64 %units)
  ret void
post:
  %job = getelementptr i8, ptr %pool, i64 $job$
  %nexts = getelementptr i8, ptr %pool, i64 $nexts$
  %open = getelementptr i8, ptr %pool, i64 $open$
  %flags = getelementptr i8, ptr %pool, i64 $flags$
  %started.at = getelementptr i8, ptr %pool, i64 $started$
  %sleepers = getelementptr i8, ptr %pool, i64 $sleepers$
  %mutex = getelementptr i8, ptr %pool, i64 $mutex$
  %condition = getelementptr i8, ptr %pool, i64 $condition$
  store ptr %function, ptr %job
  %params.at = getelementptr i64, ptr %job, i64 1
  store ptr %params, ptr %params.at
  %values.at = getelementptr i64, ptr %job, i64 2
  store ptr %values, ptr %values.at
  %units.at = getelementptr i64, ptr %job, i64 3
  store i64 %units, ptr %units.at
  %parts = shl i64 %threads, 3
  %part = udiv i64 %units, %parts
  %chunk = call i64 @llvm.umax.i64(i64 %part, i64 1)
  %chunk.at = getelementptr i64, ptr %job, i64 4
  store i64 %chunk, ptr %chunk.at
  %limit.at = getelementptr i64, ptr %job, i64 5
  store i64 %threads, ptr %limit.at
  %caller.at = getelementptr i64, ptr %job, i64 6
  %processor = call i32 @sched_getcpu()
  %here = sext i32 %processor to i64
  store atomic i64 %here, ptr %caller.at monotonic, align 8
  br label %reset
reset:
  %whose = phi i64 [ 0, %post ], [ %whose.next, %reset ]
  %line = shl i64 %whose, 6
  %next = getelementptr i8, ptr %nexts, i64 %line
  store atomic i64 0, ptr %next monotonic, align 8
  %whose.next = add i64 %whose, 1
  %some = icmp ult i64 %whose.next, %threads
  br i1 %some, label %reset, label %opened
opened:
  store atomic i64 1, ptr %open seq_cst, align 8
  %old = atomicrmw add ptr %pool, i64 1 seq_cst
  %lying = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp ne i64 %lying, 0
  br i1 %any, label %wake, label %go
wake:
  %a = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %condition)
  %c = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %go
go:
  call void @share(ptr %pool, i64 0)
  %closed = atomicrmw xchg ptr %open, i64 0 seq_cst
  %started = load atomic i64, ptr %started.at seq_cst, align 8
  br label %worker
worker:
  %number = phi i64 [ 1, %go ], [ %number.next, %out ]
  %last = icmp uge i64 %number, %started
  br i1 %last, label %done, label %one
one:
  %flag.line = shl i64 %number, 6
  %flag = getelementptr i8, ptr %flags, i64 %flag.line
  br label %look
look:
  %count = phi i64 [ 0, %one ], [ %more, %again ], [ 0, %yield ]
  %inside = load atomic i64, ptr %flag seq_cst, align 8
  %over = icmp eq i64 %inside, 0
  br i1 %over, label %out, label %again
out:
  %number.next = add i64 %number, 1
  br label %worker
again:
  $pause$
  %more = add i64 %count, 1
  %patient = icmp ult i64 %more, $spin$
  br i1 %patient, label %look, label %yield
yield:
  %d = call i32 @sched_yield()
  br label %look
done:
  store atomic i64 0, ptr %busy seq_cst, align 8
  ret void
}

define internal i64 @run(
    ptr %program, ptr %frame, ptr %pool, i64 %threads, ptr %place) nounwind {
entry:
  %records = getelementptr i64, ptr %program, i64 $header$
  %slots.at = load i64, ptr %program
  %slots = getelementptr i64, ptr %frame, i64 %slots.at
  %h1 = getelementptr i64, ptr %program, i64 1
  %variables.at = load i64, ptr %h1
  %variables = getelementptr i64, ptr %frame, i64 %variables.at
  %h2 = getelementptr i64, ptr %program, i64 2
  %params.at = load i64, ptr %h2
  %params = getelementptr i64, ptr %frame, i64 %params.at
  %h3 = getelementptr i64, ptr %program, i64 3
  %values.at = load i64, ptr %h3
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
  %w1 = getelementptr i64, ptr %record, i64 1
  %length = load i64, ptr %w1
  switch i64 %kind, label %finished [ i64 $launch$, label %launch
                                      i64 $copy$, label %copy
                                      i64 $loop$, label %loop ]
launch:
  %w2 = getelementptr i64, ptr %record, i64 2
  %function = load ptr, ptr %w2
  %w3 = getelementptr i64, ptr %record, i64 3
  %units = load i64, ptr %w3
  %w4 = getelementptr i64, ptr %record, i64 4
  %shared = load i64, ptr %w4
  %w5 = getelementptr i64, ptr %record, i64 5
  %param.count = load i64, ptr %w5
  %w6 = getelementptr i64, ptr %record, i64 6
  %variable.count = load i64, ptr %w6
  %w7 = getelementptr i64, ptr %record, i64 7
  %number.count = load i64, ptr %w7
  %params.in = getelementptr i64, ptr %record, i64 8
  %variables.in = getelementptr i64, ptr %params.in, i64 %param.count
  %numbers.in = getelementptr i64, ptr %variables.in, i64 %variable.count
  br label %param
param:
  %p = phi i64 [ 0, %launch ], [ %p.next, %param.put ]
  %p.some = icmp ult i64 %p, %param.count
  br i1 %p.some, label %param.put, label %variable
param.put:
  %p.at = getelementptr i64, ptr %params.in, i64 %p
  %slot = load i64, ptr %p.at
  %slot.at = getelementptr i64, ptr %slots, i64 %slot
  %address = load i64, ptr %slot.at
  %p.to = getelementptr i64, ptr %params, i64 %p
  store i64 %address, ptr %p.to
  %p.next = add i64 %p, 1
  br label %param
variable:
  %v = phi i64 [ 0, %param ], [ %v.next, %variable.put ]
  %v.some = icmp ult i64 %v, %variable.count
  br i1 %v.some, label %variable.put, label %number
variable.put:
  %v.at = getelementptr i64, ptr %variables.in, i64 %v
  %name = load i64, ptr %v.at
  %name.at = getelementptr i64, ptr %variables, i64 %name
  %bound = load i64, ptr %name.at
  %v.to = getelementptr i64, ptr %numbers, i64 %v
  store i64 %bound, ptr %v.to
  %v.next = add i64 %v, 1
  br label %variable
number:
  %numbers.to = getelementptr i64, ptr %numbers, i64 %variable.count
  br label %each
each:
  %n = phi i64 [ 0, %number ], [ %n.next, %number.put ]
  %n.some = icmp ult i64 %n, %number.count
  br i1 %n.some, label %number.put, label %start
number.put:
  %n.at = getelementptr i64, ptr %numbers.in, i64 %n
  %given = load i64, ptr %n.at
  %n.to = getelementptr i64, ptr %numbers.to, i64 %n
  store i64 %given, ptr %n.to
  %n.next = add i64 %n, 1
  br label %each
start:
  store i64 0, ptr %values
  %large = icmp ne i64 %shared, 0
  %split = and i1 %large, %several
  br i1 %split, label %many, label %one
many:
  call void @together(ptr %function, ptr %params, ptr %values, i64 %units,
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
  %c2 = getelementptr i64, ptr %record, i64 2
  %to.slot = load i64, ptr %c2
  %c3 = getelementptr i64, ptr %record, i64 3
  %to.offset = load i64, ptr %c3
  %c4 = getelementptr i64, ptr %record, i64 4
  %from.slot = load i64, ptr %c4
  %c5 = getelementptr i64, ptr %record, i64 5
  %bytes = load i64, ptr %c5
  %to.at = getelementptr i64, ptr %slots, i64 %to.slot
  %to.base = load ptr, ptr %to.at
  %to = getelementptr i8, ptr %to.base, i64 %to.offset
  %from.at = getelementptr i64, ptr %slots, i64 %from.slot
  %from = load ptr, ptr %from.at
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  %behind = getelementptr i64, ptr %record, i64 %length
  %order.copied = add i64 %order, 1
  br label %next
loop:
  %looped = call i64 @loop(ptr %record, ptr %frame, ptr %slots, ptr %pool, i64 %threads, ptr %place)
  %beyond = getelementptr i64, ptr %record, i64 %length
  %order.looped = add i64 %order, 1
  %is.over = icmp eq i64 %looped, 0
  br i1 %is.over, label %next, label %broke
broke:
  ret i64 %looped
fail:
  store i64 %order, ptr %frame
  %size = load i64, ptr %broken
  %size.at = getelementptr i64, ptr %frame, i64 1
  store i64 %size, ptr %size.at
  ret i64 %order
finished:
  ret i64 0
}

define ptr @fulgurite_call(ptr %self, ptr %arguments, i64 %count) {
entry:
  %place = alloca [1 x i64]
  %o0 = load ptr, ptr %arguments
  %a1 = getelementptr ptr, ptr %arguments, i64 1
  %o1 = load ptr, ptr %a1
  %a2 = getelementptr ptr, ptr %arguments, i64 2
  %o2 = load ptr, ptr %a2
  %a3 = getelementptr ptr, ptr %arguments, i64 3
  %o3 = load ptr, ptr %a3
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
  %from = getelementptr ptr, ptr %arguments, i64 %n
  %object = load ptr, ptr %from
  %address = call ptr @PyLong_AsVoidPtr(ptr %object)
  %number = sub i64 %n, $fixed$
  %to = getelementptr i64, ptr %slots, i64 %number
  store ptr %address, ptr %to
  %n.next = add i64 %n, 1
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
