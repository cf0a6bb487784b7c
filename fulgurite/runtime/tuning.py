"""Autotuning: the machine's own table of rates, and races between kernels.

In: options, and kernels that cost about the same. Out: a `CostTable` that `fulgurite tune` wrote,
or the one that ships; and times. Nothing here is reached with `tune="off"`: then no file is read or
written and plans depend on the graph alone. Candidates of a race are checked first: a result that
is not the reference's is a verdict, not a time. Runs take turns and the least time of each counts,
to two digits. Times are kept in SQLite by kernel digest, shape bucket, device, compiler and
sources: later processes choose the same. Damaged files are a warning, and then as if they were not
there.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import numpy as np

from ..codegen.cpu.machine import SHIPPED
from ..codegen.cpu.target import hardware
from ..config import Options, current
from ..core.context import Table
from ..core.digest import digest_of
from ..core.dtype import dtype_of
from ..core.node import Node, toposort
from ..core.op import Array
from ..core.ops.elementwise import MUL
from ..core.ops.leaf import PARAM, VAR
from ..core.ops.movement import EXPAND
from ..core.ops.reduce import REDUCE
from ..core.text import show
from ..errors import CacheWarning
from ..graph.fusion.machine import CostTable, two_digits
from ..graph.fusion.providers import Timing
from ..graph.ir.kernel import Item, Kernel, Schedule, Slot, params_of
from ..graph.ir.kernel_kind import KernelKind
from ..graph.ir.queries import elements
from .cache import cache_folder
from .device import MemoryLimitError, get_device
from .pipeline import compiled
from .plan import Plan

FORMAT = 3
ROUNDS = 12  # turns in a race
TURN_NANOSECONDS = 200_000  # of one turn at least, in as many runs as that takes
MAX_CHECKED_ELEMENTS = 1 << 26  # of the largest value of a kernel that the reference checks


def folder_of(options: Options) -> str | None:
    """The folder of tables and times, or None if nothing is kept on disk."""
    return os.path.join(cache_folder(options.cache_dir), "tune") if options.disk_cache else None


# --- the table -----------------------------------------------------------------------------------

_tables: Table[dict[str, CostTable]] = Table(dict)


def table_for(options: Options, device: str = "") -> CostTable:
    """The rates of this machine if they were measured and tuning is on, else those that ship.

    What is measured are the rates of the processor; other targets have their own model.
    """
    model = get_device(device or options.device).machine
    folder = folder_of(options) if options.tune != "off" else None
    if folder is None or model is not SHIPPED:
        return model
    found = _tables().get(folder)  # another thread may write a table and forget this one
    if found is None:
        found = _tables()[folder] = read_table(folder) or SHIPPED
    return found


def read_table(folder: str) -> CostTable | None:
    """The table that was written, if there is one, it is whole and it is of this machine."""
    path = os.path.join(folder, "table.json")
    try:
        with open(path, encoding="utf-8") as file:
            whole = json.load(file)
        return _checked(whole)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as problem:
        warnings.warn(
            f"{path} is not used: {problem}; run 'fulgurite tune' again", CacheWarning, stacklevel=2
        )
        return None


def _checked(whole: Any) -> CostTable:
    """A table from what a file says, or an error that says what is wrong."""
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ValueError("it is not in the format of this version")
    numbers = whole["table"]
    names = {f.name for f in fields(CostTable)}
    if not isinstance(numbers, dict) or set(numbers) != names:
        raise ValueError("its numbers are not those of this version")
    for name, number in numbers.items():
        if not isinstance(number, float) or not math.isfinite(number) or number <= 0:
            raise ValueError(f"{name} is {number!r}")
    table = CostTable(**numbers)
    if table.digest != whole["digest"] or table != table.quantised():
        raise ValueError("it is damaged")
    if whole["machine"] != hardware():
        raise ValueError(f"it is of another machine ({whole['machine']})")
    return table


def write_table(folder: str, table: CostTable) -> str:
    """Write a table in one step, so that nobody reads half of it; gives its path."""
    os.makedirs(folder, exist_ok=True)
    table = table.quantised()
    whole = {
        "format": FORMAT,
        "machine": hardware(),
        "digest": table.digest,
        "table": asdict(table),
    }
    path = os.path.join(folder, "table.json")
    handle, draft = tempfile.mkstemp(prefix="table.", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(whole, file, indent=1)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    _tables().pop(folder, None)
    return path


# --- times ---------------------------------------------------------------------------------------


class Key(NamedTuple):
    """What a time is of."""

    kernel: str
    bucket: str
    device: str
    compiler: str


class Times:
    """Times that were measured, in memory and (with a folder) in SQLite."""

    def __init__(self, folder: str | None) -> None:
        self.folder, self.known = folder, dict[Key, Timing]()
        self.lock = threading.Lock()
        self.warned = False

    def get(self, key: Key) -> Timing | None:
        """What is known of a kernel."""
        if key not in self.known:
            rows = self._do(
                "SELECT nanoseconds, right FROM times WHERE kernel=? AND bucket=? AND device=? "
                "AND compiler=?", key,
            )  # fmt: skip
            for nanoseconds, right in rows:
                if isinstance(nanoseconds, float) and nanoseconds > 0 and right in (0, 1):
                    self.known[key] = Timing(nanoseconds, bool(right))
        return self.known.get(key)

    def put(self, key: Key, timing: Timing) -> None:
        """Keep a time."""
        self.known[key] = timing
        self._do(
            "INSERT OR REPLACE INTO times VALUES (?, ?, ?, ?, ?, ?)",
            (*key, timing.nanoseconds, int(timing.right)),
        )

    def _do(self, command: str, values: Sequence[object]) -> list[Any]:
        """Run a command; a damaged file is begun anew, one that cannot be used is left alone."""
        if self.folder is None:
            return []
        with self.lock:
            for attempt in (0, 1):
                try:
                    return self._run(command, values)
                except (sqlite3.Error, OSError) as problem:
                    damaged = isinstance(problem, sqlite3.DatabaseError) and not isinstance(
                        problem, sqlite3.OperationalError
                    )
                    if not self.warned:
                        self.warned = True
                        path = os.path.join(self.folder, "times.sqlite3")
                        warnings.warn(
                            f"{path}: {problem}; kernels are timed again",
                            CacheWarning,
                            stacklevel=4,
                        )
                    if not damaged or attempt:
                        return []
                    with suppress(OSError):
                        os.unlink(os.path.join(self.folder, "times.sqlite3"))
        return []

    def _run(self, command: str, values: Sequence[object]) -> list[Any]:
        assert self.folder is not None
        os.makedirs(self.folder, exist_ok=True)
        connection = sqlite3.connect(os.path.join(self.folder, "times.sqlite3"), timeout=5)
        try:
            with connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS times (kernel TEXT, bucket TEXT, device TEXT, "
                    "compiler TEXT, nanoseconds REAL, right INTEGER, "
                    "PRIMARY KEY (kernel, bucket, device, compiler))"
                )
                return connection.execute(command, tuple(values)).fetchall()
        finally:
            connection.close()


_times: Table[dict[str | None, Times]] = Table(dict)
os.register_at_fork(after_in_child=lambda: _times().clear())  # a lock of theirs may be held


def times_for(options: Options) -> Times:
    """The times of a folder."""
    folder = folder_of(options)
    return _times().setdefault(folder, Times(folder))


# --- races ---------------------------------------------------------------------------------------


class Entrant(NamedTuple):
    """A candidate of a race: something to run, and what it should give."""

    schedule: Schedule
    expected: tuple[Node, ...]  # over PARAMs whose numbers are those of its inputs
    text: str  # what it is: equal texts are one entrant


class Race:
    """Times kernels on a device; one race for each process and set of options."""

    def __init__(
        self, mode: str, times: Times,
        clock: Callable[[], int] = time.perf_counter_ns, device: str = "cpu", build: str = "",
    ) -> None:  # fmt: skip
        self.mode, self.times, self.clock, self.device = mode, times, clock, device
        # a verdict on the code of other sources is none on ours
        codegen = get_device(device).codegen
        assert codegen is not None, "times of what is interpreted say nothing"
        self.machine = codegen.hardware
        known = [*codegen.key.split("\n"), get_device(device).library_key(), build]
        self.compiler = " ".join([text for text in known if text])
        self.timed = 0  # entrants that really ran

    def __call__(self, kernels: Sequence[Kernel], table: CostTable) -> list[Timing | None]:
        """A timing for each kernel; None: it cannot be run alone."""
        return self.run([entrant_of(kernel) for kernel in kernels], table)

    def run(self, entrants: Sequence[Entrant | None], table: CostTable) -> list[Timing | None]:
        """A timing for each entrant, measured now if it is not known."""
        keys = [None if e is None else self.key(e) for e in entrants]
        missing: dict[Key, Entrant] = {}
        for key, entrant in zip(keys, entrants, strict=True):
            if key is not None and entrant is not None and self.times.get(key) is None:
                missing[key] = entrant
        ready: dict[Key, Callable[[], object]] = {}
        for key, entrant in missing.items():
            try:
                plan, inputs = prepared(entrant, self.device)
                right = is_right(entrant, plan, inputs)
            except (MemoryError, MemoryLimitError):
                continue  # it keeps its predicted cost
            if right:
                ready[key] = lambda plan=plan, inputs=inputs: plan.run(inputs)  # type: ignore[misc]
            else:
                self.times.put(key, Timing(1.0, False))
        if ready:
            self.timed += len(ready)
            empty, one = prepared(EMPTY, self.device)
            runs = [lambda: empty.run(one), *ready.values()]
            try:
                base, *least = self.raced(runs)
            except (MemoryError, MemoryLimitError):
                return [None] * len(entrants)
            for key, nanoseconds in zip(ready, least, strict=True):
                own = two_digits(max(nanoseconds - base, 1.0) + table.launch_ns)
                self.times.put(key, Timing(own, True))
        return [None if key is None else self.times.get(key) for key in keys]

    def raced(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        """The least time of each, in turns; by the device's own clock where it has one."""
        timed = get_device(self.device).stopwatch()
        if timed is not None:
            turns = [[timed(run) for run in runs] for _ in range(1 + ROUNDS)]
            return [min(times) for times in zip(*turns[1:], strict=True)]
        repeats = []
        for run in runs:
            run()
            start = self.clock()
            run()
            repeats.append(max(1, min(100, TURN_NANOSECONDS // max(1, self.clock() - start))))
        least = [float("inf")] * len(runs)
        for _ in range(ROUNDS):
            for i, run in enumerate(runs):
                for _ in range(repeats[i]):
                    start = self.clock()
                    run()
                    least[i] = min(least[i], float(self.clock() - start))
        return least

    def key(self, entrant: Entrant) -> Key:
        """What its time is kept under."""
        shapes = [s.shape for s in entrant.schedule.slots if s is not None]
        bucket = ",".join([str(max(0, elements(shape) - 1).bit_length()) for shape in shapes])
        return Key(digest_of(entrant.text), bucket, f"{self.device} {self.machine}", self.compiler)


def entrant_of(kernel: Kernel) -> Entrant | None:
    """A kernel alone in a schedule, if it can be run and checked so."""
    if not kernel.kind.is_timeable or not is_checkable(kernel.body):
        return None
    params = params_of(kernel)
    slots = tuple([Slot(p.dtype, p.shape, p.device) for p in params])
    reads, writes = tuple(range(kernel.inputs)), tuple(range(kernel.inputs, len(params)))
    item = Item(kernel, reads, writes, ())
    schedule = Schedule(kernel.inputs, slots, (item,), writes)
    return Entrant(schedule, kernel.body.src, f"{kernel.kind}\n{show(kernel.body)}")


def is_checkable(body: Node) -> bool:
    """True if all sizes are static and the reference computes it in reasonable time and memory."""
    order = toposort([body])
    if any(n.op is VAR or not all([isinstance(s, int) for s in n.shape]) for n in order):
        return False
    largest = max([elements(n.shape) for n in order if not is_virtual(n)], default=0)
    return largest <= MAX_CHECKED_ELEMENTS


def is_virtual(node: Node) -> bool:
    """True if a value is never materialized when it is computed for a check."""
    return node.op is EXPAND or (node.op is MUL and all(s.op is EXPAND for s in node.src))


def expected_values(roots: Sequence[Node], arrays: Mapping[Node, Array]) -> list[Array]:
    """What the reference gives, but sums of products without the product."""
    values = dict(arrays)
    order = toposort(roots)
    later = _summed_products(order) - set(roots)
    with np.errstate(all="ignore"):
        for node in order:
            if node in values or node in later:
                continue
            meaning = node.op.numpy
            assert meaning is not None, f"no array was given for {node!r}"
            if node.op is REDUCE and node.src[0] in later:
                a, b = [values[s] for s in node.src[0].src]
                total = _sum_of_products(a, b, node.arg[1]).astype(node.dtype.numpy)
                values[node] = total.reshape([n for n in node.shape if isinstance(n, int)])
            else:
                values[node] = meaning(node, *[values[s] for s in node.src])
    return [values[root] for root in roots]


def _summed_products(order: Sequence[Node]) -> set[Node]:
    """Products of broadcast operands that nothing but sums reads: they are not laid out."""
    others = {s for n in order if n.op is not REDUCE or n.arg[0] != "add" for s in n.src}
    return {n for n in order if is_virtual(n) and n.op is MUL} - others


def _sum_of_products(a: Array, b: Array, axes: Sequence[int]) -> Array:
    """The sum of a * b over some axes, from what of each is in memory."""
    (left, left_dims), (right, right_dims) = _in_memory(a), _in_memory(b)
    every = range(a.ndim)
    virtual = {*every} - {*left_dims, *right_dims}  # axes that both are broadcast along
    out = sorted({*every} - {*axes} - virtual)
    total = np.einsum(left, left_dims, right, right_dims, out, optimize=True)
    total = total * math.prod([a.shape[d] for d in virtual & {*axes}])
    shape = [a.shape[d] if d in out else 1 for d in every]
    whole = [1 if d in axes else a.shape[d] for d in every]
    return np.broadcast_to(total.reshape(shape), whole)


def _in_memory(array: Array) -> tuple[Array, list[int]]:
    """An array without the axes it is broadcast along, at least in float32; those it has."""
    dims = [d for d in range(array.ndim) if array.strides[d] != 0 and array.shape[d] != 1]
    small = array[tuple([slice(None) if d in dims else 0 for d in range(array.ndim)])]
    return small.astype(np.result_type(small.dtype, np.float32)), dims


def _empty() -> Entrant:
    from ..core.dtype import float32
    from ..core.ops.effect import CONTIGUOUS
    from ..core.ops.leaf import SINK, param

    kernel = Kernel(KernelKind.MAP, SINK(CONTIGUOUS(param(0, (1,), float32, None))), 1)
    found = entrant_of(kernel)
    assert found is not None
    return found


EMPTY = _empty()  # next to nothing: what it takes is what running anything takes


def prepared(entrant: Entrant, device: str) -> tuple[Plan, list[Any]]:
    """The compiled plan of an entrant and inputs for it."""
    plan = compiled(entrant.schedule, current(), device)
    return plan, [get_device(device).from_host(a) for a in inputs_of(entrant)]


def inputs_of(entrant: Entrant) -> list[Array]:
    """Numbers to run with, always the same; whole numbers are 0, which is inside every index."""
    rng = np.random.default_rng(0)
    found: list[Array] = []
    for slot in entrant.schedule.slots[: entrant.schedule.inputs]:
        if slot is None:
            found.append(np.zeros((), np.float32))
            continue
        shape = tuple([n for n in slot.shape if isinstance(n, int)])
        if slot.dtype.is_inexact:
            found.append(rng.normal(size=shape).astype(slot.dtype.numpy))
        else:
            found.append(np.zeros(shape, slot.dtype.numpy))
    return found


def is_right(entrant: Entrant, plan: Plan, inputs: Sequence[Any]) -> bool:
    """True if a candidate gives what the reference gives."""
    given = inputs_of(entrant)
    arrays = {
        node: given[node.arg[0]].reshape([n for n in node.shape if isinstance(n, int)])
        for node in toposort(entrant.expected) if node.op is PARAM
    }  # fmt: skip
    wanted = expected_values(entrant.expected, arrays)
    device = get_device(plan.device)
    found = plan.run(inputs, None, True)
    shapes = [(a.shape, dtype_of(a.dtype)) for a in wanted]
    arrays_found = [device.to_host(b, *about) for b, about in zip(found, shapes, strict=True)]
    return all([close(a, b) for a, b in zip(wanted, arrays_found, strict=True)])


def close(wanted: Array, found: Array) -> bool:
    """True if values are equal up to reassociation of sums."""
    if wanted.dtype.kind not in "fc" and wanted.dtype.name != "bfloat16":
        return bool(np.array_equal(wanted, found))
    narrow = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-3, "complex64": 1e-3}
    tolerance = narrow.get(wanted.dtype.name, 1e-9)
    wide: Any = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = wanted.astype(wide), found.astype(wide)
    odd = ~np.isfinite(a)
    if not np.array_equal(odd, ~np.isfinite(b)) or not np.array_equal(
        a[odd], b[odd], equal_nan=True
    ):
        return False
    scale = np.abs(a[~odd]).max(initial=0.0)
    return bool(np.abs(a[~odd] - b[~odd]).max(initial=0.0) <= tolerance * scale)
