"""Tests of fulgurite/runtime/tuning.py: tables, times, races."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.llvm.versions import identity
from fulgurite.codegen.cpu.machine import SHIPPED
from fulgurite.codegen.cpu.target import hardware
from fulgurite.config import current
from fulgurite.core.context import Table
from fulgurite.core.node import Node, toposort
from fulgurite.core.ops.leaf import PARAM
from fulgurite.errors import CacheWarning
from fulgurite.graph.fusion.providers import Timing
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Kernel
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.graph.passes.simplify import simplify
from fulgurite.runtime import tuning
from fulgurite.runtime.host.evaluate import evaluate
from fulgurite.runtime.plan_key import cache_key
from fulgurite.runtime.tuning import Entrant, Key, Race, Times
from fulgurite.runtime.user_kernels import race_for
from tests.graph.scheduling import schedule

pytestmark = pytest.mark.device("cpu")

OTHER = replace(SHIPPED, launch_ns=700.0, cache_bw=90.0)


def numbers(*shape: int) -> fg.Tensor:
    return fg.Tensor(np.random.default_rng(1).normal(size=shape).astype(np.float32), device="cpu")


def graph(tensor: fg.Tensor) -> tuple[Node, int]:
    """A tensor's graph over params, and how many there are."""
    normal = normalize([tensor.node])
    sink = restore(normal.structure, normal.constants, {}, normal.nodes)
    return simplify(sink), len(normal.buffers)


def kernel_of(tensor: fg.Tensor) -> Kernel:
    """The only kernel of a tensor."""
    (item,) = schedule(*graph(tensor)).items
    return item.kernel


class Clock:
    """Goes on by so many nanoseconds whenever it is looked at."""

    def __init__(self, step: int) -> None:
        self.now, self.step, self.looks = 0, step, 0

    def __call__(self) -> int:
        self.looks += 1
        self.now += self.step
        return self.now


# --- off -----------------------------------------------------------------------------------------


def test_with_tuning_off_nothing_is_read_or_written(tmp_path: Path) -> None:
    tuning.write_table(str(tmp_path / "tune"), OTHER)
    before = sorted(os.listdir(tmp_path / "tune"))
    q, k, v = (numbers(2, 40, 16) for _ in range(3))
    with fg.config(search=True, disk_cache=True, cache_dir=str(tmp_path)):
        assert tuning.table_for(current()) is SHIPPED
        lazy = fg.softmax(q @ k.mT, axis=-1) @ v
        fg.explain(lazy)
        lazy.numpy()
    assert sorted(os.listdir(tmp_path / "tune")) == before == ["table.json"]


def test_without_a_disk_cache_times_stay_in_memory(tmp_path: Path) -> None:
    with fg.config(search=True, tune="full", disk_cache=False, cache_dir=str(tmp_path)):
        q, k, v = (numbers(2, 40, 16) for _ in range(3))
        report = fg.explain(fg.softmax(q @ k.mT, axis=-1) @ v)
    assert "(measured)" in report.stages["search"]
    assert not os.listdir(tmp_path)


# --- tables --------------------------------------------------------------------------------------


def test_a_table_is_read_as_it_was_written_and_is_part_of_the_key(tmp_path: Path) -> None:
    with fg.config(search=True, tune="ties", disk_cache=True, cache_dir=str(tmp_path)):
        options = current()
        before = cache_key("cpu", options)
        assert tuning.table_for(options) is SHIPPED
        tuning.write_table(str(tmp_path / "tune"), OTHER)
        assert tuning.table_for(options) == OTHER
        assert cache_key("cpu", options) != before
        assert cache_key("cpu", replace(options, tune="off")) == cache_key(
            "cpu", replace(options, tune="off", cache_dir="")
        )


def test_a_table_is_kept_to_two_digits(tmp_path: Path) -> None:
    tuning.write_table(str(tmp_path), replace(SHIPPED, cache_bw=61.234, launch_ns=1234.5))
    found = tuning.read_table(str(tmp_path))
    assert found is not None and (found.cache_bw, found.launch_ns) == (61.0, 1200.0)


def damaged(what: str) -> str:
    """The text of a table with something wrong."""
    table: dict[str, Any] = asdict(OTHER)
    whole: dict[str, Any] = {
        "format": tuning.FORMAT, "machine": hardware(), "digest": OTHER.digest, "table": table
    }  # fmt: skip
    if what == "cut short":
        return json.dumps(whole)[:-20]
    if what == "another number":
        table["cache_bw"] = 61.0
    elif what == "not finite":
        table["cache_bw"] = float("nan")
    elif what == "negative":
        table["cache_bw"] = -1.0
    elif what == "a field is missing":
        del table["dram_bw"]
    elif what == "a field too many":
        table["more"] = 1.0
    elif what == "another format":
        whole["format"] = 99
    elif what == "another machine":
        whole["machine"] = "abacus"
    elif what == "no digest":
        del whole["digest"]
    elif what == "a list":
        return "[]"
    return json.dumps(whole)


@pytest.mark.parametrize(
    "what",
    [
        "cut short", "another number", "not finite", "negative", "a field is missing",
        "a field too many", "another format", "another machine", "no digest", "a list",
    ],
)  # fmt: skip
def test_a_table_that_is_not_whole_is_a_warning_and_not_used(what: str, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(damaged(what))
    with pytest.warns(CacheWarning, match="fulgurite tune"):
        assert tuning.read_table(str(tmp_path)) is None


def test_a_write_that_fails_leaves_the_table_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.write_table(str(tmp_path), OTHER)

    def fails(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="full"):
        tuning.write_table(str(tmp_path), SHIPPED)
    monkeypatch.undo()
    assert tuning.read_table(str(tmp_path)) == OTHER
    assert os.listdir(tmp_path) == ["table.json"]


# --- times ---------------------------------------------------------------------------------------

KEY = Key("kernel", "3,4", "cpu", "llvm 1")


def test_times_are_kept_for_the_next_process(tmp_path: Path) -> None:
    Times(str(tmp_path)).put(KEY, Timing(1200.0, True))
    again = Times(str(tmp_path))
    assert again.get(KEY) == Timing(1200.0, True)
    for other in (
        KEY._replace(kernel="b"), KEY._replace(bucket="3,5"), KEY._replace(device="b"),
        KEY._replace(compiler="llvm 2"),
    ):  # fmt: skip
        assert again.get(other) is None


def test_a_damaged_file_of_times_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite3"
    path.write_bytes(b"not a database" * 100)
    times = Times(str(tmp_path))
    with pytest.warns(CacheWarning, match="times"):
        assert times.get(KEY) is None
    times.put(KEY, Timing(5.0, True))
    assert Times(str(tmp_path)).get(KEY) == Timing(5.0, True)


def test_a_row_that_makes_no_sense_is_not_used(tmp_path: Path) -> None:
    Times(str(tmp_path)).put(KEY, Timing(5.0, True))
    with sqlite3.connect(tmp_path / "times.sqlite3") as connection:
        connection.execute("UPDATE times SET nanoseconds = -1.0")
    connection.close()
    assert Times(str(tmp_path)).get(KEY) is None


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    times = Times(str(tmp_path / "file" / "tune"))
    with pytest.warns(CacheWarning, match="timed again") as caught:
        times.put(KEY, Timing(5.0, True))
        times.put(KEY, Timing(6.0, True))
    assert len(caught) == 1
    assert times.get(KEY) == Timing(6.0, True)


# --- races ---------------------------------------------------------------------------------------


def test_a_wrong_kernel_never_enters_the_race() -> None:
    x = numbers(50)
    good = tuning.entrant_of(kernel_of(fg.exp(x)))
    assert good is not None
    wanted = graph(fg.exp(x) + 0.5)[0]
    bad = Entrant(good.schedule, wanted.src, "claims more than it does")
    clock = Clock(1000)
    race = Race("full", Times(None), clock=clock)
    assert race.run([bad], SHIPPED) == [Timing(1.0, False)]
    assert (race.timed, clock.looks) == (0, 0)
    found = race.run([good, bad], SHIPPED)
    assert [t is not None and t.right for t in found] == [True, False]
    assert race.timed == 1 and clock.looks > 0


def test_a_kernel_is_timed_once(tmp_path: Path) -> None:
    kernels = [kernel_of(fg.exp(numbers(50))), kernel_of(numbers(8, 9).sum(axis=1))]
    first = Race("full", Times(str(tmp_path)))
    found = first(kernels, SHIPPED)
    again = Race("full", Times(str(tmp_path)), clock=Clock(12345))
    assert (first.timed, again(kernels, SHIPPED), again.timed) == (2, found, 0)


def test_a_table_that_another_thread_writes_meanwhile_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgotten(dict[str, Any]):
        """As if another thread had written a table after every change of mine."""

        def __setitem__(self, key: str, value: Any) -> None:
            self.clear()

    monkeypatch.setattr(tuning, "_tables", Table(Forgotten))
    with fg.config(tune="full", disk_cache=True, cache_dir=str(tmp_path)):
        assert tuning.table_for(current()) == SHIPPED


def test_verdicts_on_code_of_other_sources_are_none_on_ours(tmp_path: Path) -> None:
    kernel = kernel_of(fg.exp(numbers(50)))
    for build, timed in (("old", 1), ("new", 1), ("old", 0)):
        race = Race("full", Times(str(tmp_path)), build=build)
        race([kernel], SHIPPED)
        assert race.timed == timed
    with fg.config(tune="full", disk_cache=True, cache_dir=str(tmp_path)):
        found = race_for(current(), "cpu")
        assert found is not None and found.compiler.startswith(f"{identity()} ")


def test_runs_take_turns_and_the_least_time_counts() -> None:
    order: list[str] = []
    clock = Clock(0)

    def runs(name: str, times: list[int]) -> Any:
        def run() -> None:
            order.append(name)
            clock.now += times[len(order) % len(times)]

        return run

    race = Race("full", Times(None), clock=clock)
    least = race.raced([runs("a", [500_000, 300_000]), runs("b", [400_000])])
    assert least == [300_000.0, 400_000.0]
    later = order[4:]
    assert later == ["a", "b"] * tuning.ROUNDS


def test_what_cannot_be_checked_is_not_timed() -> None:
    race = Race("full", Times(None))
    host = Kernel(KernelKind.HOST, kernel_of(fg.exp(numbers(5))).body, 1)
    assert race([host], SHIPPED) == [None]


@pytest.mark.parametrize("name", ["product", "batch", "row by column", "softmax", "attention"])
def test_checks_compute_what_the_reference_computes(name: str) -> None:
    a, b = numbers(3, 20, 30), numbers(3, 30, 10)
    made = {
        "product": lambda: a[0] @ b[0], "batch": lambda: a @ b * 2,
        "row by column": lambda: a[:, :1] @ b[:, :, :1], "softmax": lambda: fg.softmax(a, axis=-1),
        "attention": lambda: fg.softmax(a @ a.mT, axis=-1) @ a,
    }[name]()  # fmt: skip
    sink, _ = graph(made)
    rng = np.random.default_rng(0)
    arrays = {
        n: rng.normal(size=[int(s) for s in n.shape if isinstance(s, int)]).astype(n.dtype.numpy)
        for n in toposort([sink]) if n.op is PARAM
    }  # fmt: skip
    wanted, found = evaluate(sink.src, arrays), tuning.expected_values(sink.src, arrays)
    for x, y in zip(wanted, found, strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5)


@given(st.floats(-3, 3), st.sampled_from(["float32", "float64"]))
def test_close_values_are_close_and_others_are_not(number: float, name: str) -> None:
    a = np.array([1.0, number, -2.0], name)
    assert tuning.close(a, a.copy())
    assert not tuning.close(a, a + np.array([0, 0, 0.1], name))
    assert not tuning.close(a, np.array([1.0, np.nan, -2.0], name))


def test_whole_numbers_are_equal_or_wrong() -> None:
    a = np.array([1, 2], np.int32)
    assert tuning.close(a, a.copy()) and not tuning.close(a, a + np.array([0, 1], np.int32))
