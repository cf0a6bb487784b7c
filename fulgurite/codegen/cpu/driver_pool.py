"""The thread pool of the native driver: workers that take over parts of a large launch.

In: nothing; this is text, loaded when a process first asks for more than one thread. Out: functions
`fulgurite_start` and `fulgurite_stop` (the pool's workers). Starting leaves the address of what
shares a launch in the pool, where the driver finds it (`driver.py` has the calling convention).
A launch may be taken over by idle workers: each enters by raising a flag of its own, then looks
whether the job is still `open`; the caller closes the job, then waits until no flag is up. So a
worker that sleeps is never waited for, and none sees a job that is over. One word that all raise
would go from core to core, and so would the words of others' parts if a worker wrote there to see
that nothing is left: it reads them first, all at once. A pool that is busy is not waited for: the
second caller does its launch alone. A worker on the processor of its caller could run in its
place only, so it takes itself off that one. Each thread has a part of the units, the same one in
every run, so that memory stays in its cache; an idle worker steals from the others.
"""

from __future__ import annotations

import sys

from .driver import FLAGS, LIMITS, NEXTS, Pool, filled

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


def pool_text(arch: str, system: str = sys.platform) -> str:
    """The pool for an architecture and a system."""
    declared, pause = _PAUSE[arch]
    head, body = ("declare", "") if system == "linux" else ("define internal", " { ret i32 -1 }")
    places = "\n".join([f"{head} i32 @{name}({types}){body}" for name, types in _PLACES.items()])
    return filled(_TEXT, {
        "declared": declared, "pause": pause, "spin": LIMITS.spins, "nexts": NEXTS,
        "flags": FLAGS, "processor": places, "arguments": Pool.WORKERS + 8 * LIMITS.workers,
        "processors": LIMITS.processors, "bytes": LIMITS.processors // 8,
        "words": LIMITS.processors // 64,
    })  # fmt: skip


_TEXT = """
$declared$
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

define internal void @share(ptr %pool, i64 %self) nounwind {
entry:
  %job = getelementptr i8, ptr %pool, i64 $job$
  %nexts = getelementptr i8, ptr %pool, i64 $nexts$
  %function = load ptr, ptr %job
  %params = load ptr, ptr %job[1]
  %values = load ptr, ptr %job[2]
  %units = load i64, ptr %job[3]
  %chunk = load i64, ptr %job[4]
  %threads = load i64, ptr %job[5]
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
  %bits = load i64, ptr %set[%number]
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
  %number = load i64, ptr %argument[1]
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
  %shares = getelementptr i8, ptr %pool, i64 $together$
  store ptr @together, ptr %shares
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
  store i64 %number, ptr %argument[1]
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
  %handle = load ptr, ptr %handles[%number]
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
  store ptr %params, ptr %job[1]
  store ptr %values, ptr %job[2]
  store i64 %units, ptr %job[3]
  %parts = shl i64 %threads, 3
  %part = udiv i64 %units, %parts
  %chunk = call i64 @llvm.umax.i64(i64 %part, i64 1)
  store i64 %chunk, ptr %job[4]
  store i64 %threads, ptr %job[5]
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
"""
