"""Loops in the native driver: a record that runs another program step by step.

In: nothing; this is text, compiled with the first loop. Out: the function of the record LOOP of the
driver (`driver.py`): the body's program, the slot that holds the address of its frame, a count of
steps, the lengths of two lists, the address of this function, then the lists. A moving word of the
body's frame has an address that changes by a stride: (word, slot, offset, stride); what stays has
stride 0. A carry is read where the step before wrote it: (the word it is read by, the word it is
written by, the slot of its first value, slot and offset of even and of odd steps, the stride of
both, the slot of its last value). The body may hold loops itself.
"""

from __future__ import annotations

from .driver import CHECK_SIGNALS, filled


class Length:
    """Words of parts of a record."""

    LOOP = 8  # before its lists
    MOVE = 4
    CARRY = 9
    COPY = 6


def loop_text() -> str:
    """The function of loops, for any architecture and system."""
    lengths = {"loop_words": Length.LOOP, "move_words": Length.MOVE, "carry_words": Length.CARRY}
    return filled(_TEXT + CHECK_SIGNALS, lengths)


_TEXT = """
declare i64 @time(ptr)
declare i32 @PyErr_CheckSignals()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

define internal ptr @address(ptr %slots, ptr %pair) alwaysinline nounwind {
entry:
  %slot = load i64, ptr %pair
  %offset = load i64, ptr %pair[1]
  %base = load ptr, ptr %slots[%slot]
  %address = getelementptr i8, ptr %base, i64 %offset
  ret ptr %address
}

define i64 @fulgurite_loop(
    ptr %record, ptr %outer, ptr %slots, ptr %pool, i64 %threads, ptr %place, ptr %run) nounwind {
entry:
  %body = load ptr, ptr %record[2]
  %frame.slot = load i64, ptr %record[3]
  %frame = load ptr, ptr %slots[%frame.slot]
  %count = load i64, ptr %record[4]
  %move.count = load i64, ptr %record[5]
  %carry.count = load i64, ptr %record[6]
  %moves = getelementptr i64, ptr %record, i64 $loop_words$
  %carries = getelementptr [$move_words$ x i64], ptr %moves, i64 %move.count
  br label %step
step:
  %now = phi i64 [ 0, %entry ], [ %after, %ran ]
  %seen = phi i64 [ 0, %entry ], [ %time, %ran ]
  %some = icmp ult i64 %now, %count
  br i1 %some, label %begin, label %done
begin:
  %after = add i64 %now, 1
  %is.first = icmp eq i64 %now, 0
  %is.last = icmp eq i64 %after, %count
  %parity = and i64 %after, 1
  br label %move
move:
  %m = phi i64 [ 0, %begin ], [ %m.next, %move.put ]
  %m.some = icmp ult i64 %m, %move.count
  br i1 %m.some, label %move.put, label %carry
move.put:
  %m.at = getelementptr [$move_words$ x i64], ptr %moves, i64 %m
  %m.word = load i64, ptr %m.at
  %m.pair = getelementptr i64, ptr %m.at, i64 1
  %m.base = call ptr @address(ptr %slots, ptr %m.pair)
  %m.stride = load i64, ptr %m.at[3]
  %m.far = mul i64 %m.stride, %now
  %m.address = getelementptr i8, ptr %m.base, i64 %m.far
  store ptr %m.address, ptr %frame[%m.word]
  %m.next = add i64 %m, 1
  br label %move
carry:
  %c = phi i64 [ 0, %move ], [ %c.next, %carry.put ]
  %c.some = icmp ult i64 %c, %carry.count
  br i1 %c.some, label %carry.look, label %launch
carry.look:
  %c.at = getelementptr [$carry_words$ x i64], ptr %carries, i64 %c
  %c.read = load i64, ptr %c.at
  %c.written = load i64, ptr %c.at[1]
  %c.start = load i64, ptr %c.at[2]
  %c.start.at = getelementptr i64, ptr %slots, i64 %c.start
  %c.write.to = getelementptr i64, ptr %frame, i64 %c.written
  %c.read.from = select i1 %is.first, ptr %c.start.at, ptr %c.write.to
  %c.before = load ptr, ptr %c.read.from
  store ptr %c.before, ptr %frame[%c.read]
  br i1 %is.last, label %carry.last, label %carry.go
carry.last:
  %c.last = load i64, ptr %c.at[8]
  %c.end = load ptr, ptr %slots[%c.last]
  br label %carry.put
carry.go:
  %c3 = getelementptr i64, ptr %c.at, i64 3
  %c.pair = getelementptr [2 x i64], ptr %c3, i64 %parity
  %c.base = call ptr @address(ptr %slots, ptr %c.pair)
  %c.stride = load i64, ptr %c.at[7]
  %c.far = mul i64 %c.stride, %after
  %c.place = getelementptr i8, ptr %c.base, i64 %c.far
  br label %carry.put
carry.put:
  %c.address = phi ptr [ %c.end, %carry.last ], [ %c.place, %carry.go ]
  store ptr %c.address, ptr %c.write.to
  %c.next = add i64 %c, 1
  br label %carry
launch:
  %status = call i64 %run(ptr %body, ptr %frame, ptr %pool, i64 %threads, ptr %place)
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %ran, label %failed
ran:
  %time = call i64 @check_signals(ptr %place, i64 %seen)
  %stops = icmp slt i64 %time, 0
  br i1 %stops, label %stopped, label %step
failed:
  %size = load i64, ptr %frame[1]
  store i64 %size, ptr %outer[1]
  ret i64 %status
stopped:
  ret i64 -1
done:
  ret i64 0
}
"""
