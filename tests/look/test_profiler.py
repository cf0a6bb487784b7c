"""Tests of look/profiler.py and what it records: every device's kernels, lines, modules, events."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError
from fulgurite.look import limits
from fulgurite.look.profiler import Profile, union
from fulgurite.look.tables import duration
from fulgurite.runtime.device import get_device
from fulgurite.runtime.holders import readable
from fulgurite.runtime.recording import NOW

DATA = np.random.default_rng(5).normal(size=(64, 64)).astype(np.float32)


class Net(fg.nn.Module):
    def __init__(self) -> None:
        self.first = fg.nn.Linear(64, 64)
        self.second = fg.nn.Linear(64, 64)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        return self.second(fg.relu(self.first(x)))


@pytest.fixture(autouse=True)
def _native() -> Any:
    with fg.config(tier="native"):
        yield


def profiled() -> tuple[Profile, fg.Tensor]:
    """One call of a network, captured before."""
    net, x = Net(), fg.Tensor(DATA).realize()
    call = fg.jit(lambda x: net(x))
    with fg.no_grad():
        call(x)
        with fg.profile() as p:
            y = call(x)
    return p, y


def test_rows_by_kernel_line_and_module_add_up_to_the_time_in_kernels() -> None:
    p, _ = profiled()
    assert p.kernel_seconds > 0
    for rows in (p.kernels, p.lines, p.modules):
        assert sum(row.seconds for row in rows) == pytest.approx(p.kernel_seconds)
        assert sum(row.share for row in rows) == pytest.approx(1)
    assert p.seconds >= p.kernel_seconds


def test_a_kernel_has_its_user_line_and_module_path() -> None:
    p, _ = profiled()
    assert {row.name for row in p.modules} >= {"Net/first", "Net/second"}
    assert all("test_profiler.py:" in row.name for row in p.lines)
    products = [row for row in p.kernels if row.name.startswith(("contract", "fold"))]
    assert sum(row.flops for row in products) >= 2 * 2 * 64**3
    assert all(row.bytes > 0 and row.limit > 0 for row in products)


def test_a_profiled_call_gives_the_same_bits() -> None:
    net, x = Net(), fg.Tensor(DATA).realize()
    call = fg.jit(lambda x: net(x))
    plain = call(x).numpy()
    with fg.profile() as p:
        np.testing.assert_array_equal(call(x).numpy(), plain)
    np.testing.assert_array_equal(call(x).numpy(), plain)
    assert p.runs


def test_nothing_is_recorded_outside_of_the_block() -> None:
    p, y = profiled()
    count = len(p.runs)
    (y + 1).realize()
    assert len(p.runs) == count
    assert NOW.recorder is None and get_device(y.device).recorder is None


def test_compilations_and_captures_are_events() -> None:
    fg.clear_caches()
    x = fg.Tensor(DATA).realize()
    call = fg.jit(lambda x: (x * 3.25).sum())
    with fg.profile() as p:
        call(x)
        call(x)
    kinds = [event.kind for event in p.events]
    assert kinds.count("capture") == 1 and kinds.count("graph") == 1
    assert p.events[0].end > p.events[0].begin
    assert p.cache["schedule misses"] == 1


def test_a_loop_is_not_counted_twice() -> None:
    x = fg.Tensor(DATA).realize()
    with fg.profile() as p:
        fg.scan(lambda c, row: (fg.tanh(c @ x) + row, c.sum()), fg.zeros(64), x)[0].realize()
    loops = [run for run in p.runs if run.facts.kind == "loop"]
    assert loops and all(run.own < run.end - run.begin for run in loops)
    assert p.kernel_seconds <= p.seconds


def test_the_trace_is_what_perfetto_reads(tmp_path: Path) -> None:
    p, _ = profiled()
    p.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["cat"] for e in spans} >= {"kernel"}
    for e in spans:
        assert e["ts"] >= 0 and e["dur"] >= 0 and isinstance(e["pid"], int)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert fg.ones(1).device in names
    kernel = next(e for e in spans if e["cat"] == "kernel")
    assert kernel["args"]["lines"] and kernel["args"]["of the limit"] >= 0


def test_a_flame_graph_is_a_tree_whose_values_add_up() -> None:
    p, _ = profiled()
    tree = p.flame()
    assert tree["value"] == pytest.approx(p.kernel_seconds * 1e9)

    def check(node: dict[str, Any]) -> None:
        if node["children"]:
            assert node["value"] == pytest.approx(sum(c["value"] for c in node["children"]))
        for child in node["children"]:
            check(child)

    check(tree)
    assert "Net;first;" in p.folded()


def test_the_table_names_what_it_is_by_and_refuses_what_it_does_not_know() -> None:
    p, _ = profiled()
    assert str(p) == p.table("kernel") and "limit of" in str(p)
    assert "Net/first" in p.table("module") and "test_profiler.py" in p.table("line")
    assert "1 more" in p.table("kernel", most=len(p.kernels) - 1)
    with pytest.raises(ArgumentError, match="there is no table by 'colour'"):
        p.table("colour")
    with pytest.raises(ArgumentError, match="a table of -3 rows"):
        p.table(most=-3)


def test_profiles_nest_and_the_outer_one_has_all() -> None:
    x = fg.Tensor(DATA).realize()
    with fg.config(tier="native"), fg.profile() as outer:
        (x @ x).realize()
        with fg.profile() as inner:
            (x + x.sum()).realize()
        (x @ x @ x).realize()
    counts = [sum([row.calls for row in p.kernels]) for p in (inner, outer)]
    assert 0 < counts[0] < counts[1] and inner.seconds < outer.seconds


def test_none_is_left_behind_by_an_error() -> None:
    with pytest.raises(ZeroDivisionError), fg.profile():
        1 / 0  # noqa: B018
    with fg.profile() as p:
        pass
    assert p.kernels == [] and p.kernel_seconds == 0
    assert p.folded() == "" and "no kernel ran" in str(p)


def test_a_profile_is_taken_once_and_says_what_it_is() -> None:
    p = Profile()
    assert "nothing was recorded" in str(p)
    with p:
        (fg.Tensor(DATA) + 1).realize()
    assert repr(p).startswith("<profile of 1 run of kernels in ")
    with pytest.raises(ArgumentError, match="taken already"), p:
        pass
    with pytest.raises(ArgumentError, match="profile is int"):
        fg.viz(fg.Tensor(DATA) + 1, profile=3)  # type: ignore[arg-type]


def test_other_threads_are_recorded_too() -> None:
    x = fg.Tensor(DATA).realize()
    with fg.profile() as p:
        thread = threading.Thread(target=lambda: (x @ x).realize())
        with fg.config(tier="native"):
            thread.start()
            thread.join()
    assert threading.get_ident() not in {run.thread for run in p.runs}


def test_tiny_graphs_that_numpy_runs_are_recorded() -> None:
    with fg.config(tier="auto"), fg.profile() as p:
        (fg.Tensor([1.0, 2.0]) + 1).realize()
    assert len(p.runs) == 1


def test_a_profile_can_be_looked_at_inside_of_its_block_and_measures_nothing_of_that() -> None:
    x = fg.Tensor(DATA).realize()
    fg.clear_caches()
    with fg.profile() as p:
        assert "no kernel ran" in str(p) and p.folded() == ""
        (x @ x).realize()
        count = len(p.runs)
        limits._measured.clear()  # so that it is measured now
        assert p.seconds > 0 and "limit of" in str(p)
        (x + x.sum()).realize()
    assert len(p.runs) > count and {event.kind for event in p.events} == {"graph"}
    assert len(p.events) == 2
    assert sum([row.calls for row in p.kernels]) == len(p.runs) < 6  # none of the measurement


def test_kernels_of_threads_at_a_time_are_no_more_than_all_the_time_and_threads_have_names() -> (
    None
):
    x = fg.Tensor(np.ones((200, 200), np.float32)).realize()
    (x @ x).realize()
    gate = threading.Barrier(2)

    def work() -> None:
        gate.wait()
        for _ in range(20):
            (x @ x).realize()

    with fg.profile() as p:
        threads = [threading.Thread(target=work, name=f"reader {n}") for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert p.covered_seconds <= min(p.seconds, p.kernel_seconds)
    assert "of 2 threads together" in str(p)
    shares = [float(found) for found in re.findall(r"\((\d+)%\)", str(fg.why(p).about("time")))]
    assert sum(shares) <= 102  # rounded
    names = {e["args"]["name"] for e in p.trace()["traceEvents"] if e["name"] == "thread_name"}
    assert {"reader 0", "reader 1"} <= names


def test_the_union_of_spans_counts_what_overlaps_once() -> None:
    assert union([(5, 9), (0, 3), (1, 2), (2, 4), (8, 12)]) == 11 and union([]) == 0


@pytest.mark.device("cpu")
def test_threads_that_shared_a_kernel_have_parts_and_memory_is_noted() -> None:
    pytest.importorskip("llvmlite")
    x = fg.Tensor(np.ones((256, 256), np.float32), device="cpu").realize()
    with fg.config(threads=2), fg.profile() as p:
        y = (x @ x).realize()
    (run,) = [run for run in p.runs if run.threads == 2]
    assert 0 < run.busy <= 1.01
    assert all(run.begin <= begin <= end <= run.end for _, begin, end in run.parts)
    assert p.memory[-1][1] >= 4 * y.size


def test_times_and_sizes_have_units() -> None:
    assert [duration(t) for t in (2.0, 0.0123, 4.5e-5, 3e-8)] == [
        "2 s",
        "12.3 ms",
        "45 us",
        "30 ns",
    ]
    assert [readable(n) for n in (12, 3 << 10, 5 << 20, 7 << 30)] == [
        "12 B", "3.0 KiB", "5.0 MiB", "7.0 GiB",
    ]  # fmt: skip
