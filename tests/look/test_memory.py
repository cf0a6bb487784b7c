"""Tests of look/memory.py and runtime/holders.py: who holds memory, and what grew."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import DataError
from fulgurite.look.memory import alive_bytes
from fulgurite.runtime import device, holders
from fulgurite.runtime.cpu import pool
from fulgurite.runtime.device import MemoryLimitError

ONES = np.ones((100, 100), np.float32)


class Net(fg.nn.Module):
    def __init__(self) -> None:
        self.first = fg.nn.Linear(100, 100)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        return fg.relu(self.first(x))


def line() -> int:
    """The line that calls."""
    import sys

    return sys._getframe(1).f_lineno


def test_a_value_is_named_by_its_variable_line_and_size() -> None:
    before = fg.memory_report()
    wide, here = fg.Tensor(ONES), line()
    (came,) = (fg.memory_report() - before).came
    assert (came.nbytes, came.shape, came.dtype, came.name) == (
        40_000,
        (100, 100),
        "float32",
        "wide",
    )
    assert came.line.endswith(f"test_memory.py:{here}")
    del wide
    difference = fg.memory_report() - before
    assert difference.came == [] and difference.bytes == 0


def test_what_was_computed_has_the_line_that_computed_it_also_from_a_replay() -> None:
    x = fg.Tensor(ONES).realize()
    double = fg.jit(lambda x: x * 2.0)
    double(x)
    before = fg.memory_report()
    lazy, here = (x + 1.0).realize(), line()
    replayed = double(x)
    lines = {h.name: h.line for h in (fg.memory_report() - before).came}
    assert lines["lazy"].endswith(f":{here}")
    assert lines["replayed"].endswith(f":{here - 3}")
    assert replayed.shape == (100, 100)  # now it is a node, and still of that line
    assert replayed.node is not None
    again = {h.name: h.line for h in (fg.memory_report() - before).came}
    assert again["replayed"] == lines["replayed"]
    del lazy


def test_parameters_and_states_of_optimisers_have_their_names_and_modules() -> None:
    net = Net().settle()
    adam = fg.optim.Adam(net.parameters(), 1e-3)
    net(fg.Tensor(ONES)).sum().backward()
    adam.step()
    fg.realize(*net.parameters(), *[t for s in adam.state.values() for t in s.values()])
    report = fg.memory_report()
    names = {h.name for h in report.holders}
    assert {"Net.first.weight", "Adam: exp_avg of Net.first.weight"} <= names
    assert report.by_module()["Net.first"] >= 3 * 40_000
    assert report.holders[0].line in str(report) and "values came" in str(report - report)


def test_a_leak_is_seen_by_its_line() -> None:
    x = fg.Tensor(ONES)
    kept: list[fg.Tensor] = []
    before = fg.memory_report()
    for _ in range(3):
        kept.append((x + len(kept)).realize())
    here = line() - 1
    ((where, held),) = (fg.memory_report() - before).by_line().items()
    assert where.endswith(f":{here}") and held == 3 * 40_000


def test_the_peak_of_compiled_graphs_is_known_by_line() -> None:
    fg.clear_caches()
    x = fg.Tensor(ONES)
    with fg.config(tier="native", fuse=False):
        (fg.exp(x) @ fg.tanh(x)).sum().realize()
        here = line() - 1
    report = fg.memory_report()
    ((where, most),) = report.peak_by_line().items()
    assert where.endswith(f":{here}") and most >= 4 * 40_000
    assert report.peaks[0].bytes == most and "need most" in str(report)


def test_what_is_alive_is_counted_for_each_kernel() -> None:
    x = fg.Tensor(ONES)
    with fg.config(tier="native", fuse=False):
        found = fg.schedule((fg.exp(x) @ x).sum())
        alive = alive_bytes(found.compile().schedule)
    assert len(alive) == len(found.items)
    assert max(alive) >= 3 * 40_000 and alive[-1] <= max(alive)


def test_an_error_of_memory_names_the_five_largest_values_and_their_lines() -> None:
    large, here = fg.Tensor(np.zeros((4096, 4096), np.float32)), line()
    with pytest.raises(MemoryLimitError, match="the largest values are") as caught:
        fg.zeros((1 << 28, 1 << 28)).realize()
    assert 1 <= len(caught.value.holders) <= 5
    assert caught.value.holders[0].nbytes == 4 * large.size
    assert re.search(rf"64.0 MiB float32\[4096, 4096\] large from .*:{here}\b", str(caught.value))
    assert f"at {__file__}" in str(caught.value)


@pytest.mark.device("cpu")
def test_an_error_of_memory_in_a_replay_names_the_users_line_what_is_needed_and_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llvmlite")
    net, x = Net().settle(), fg.Tensor(np.ones((3000, 100), np.float32))

    @fg.jit
    def step(x: fg.Tensor) -> fg.Tensor:
        return fg.sort(fg.sort(net(x), axis=0), axis=1)

    def full(raw: pool.Raw, size: int, slack: int = 8) -> None:
        if size > 1 << 20:
            raise MemoryError
        made(raw, size, slack)

    made = pool.Raw.__init__
    with fg.no_grad():
        kept = step(fg.Tensor(ONES))
        fg.empty_cache()
        monkeypatch.setattr(pool.Raw, "__init__", full)
        monkeypatch.setattr(device, "MOST_HOLDERS", 1000)  # other tests' values may be larger
        with pytest.raises(MemoryLimitError) as caught:
            step(x)
    monkeypatch.undo()
    said, here = str(caught.value), caught.tb.tb_lineno
    assert re.search(r"no memory for .* between kernels, of which 1.1 MiB for float32\[3000,", said)
    assert f"  at {__file__}:{here}\n" in said
    named = {holder.name: holder.shape for holder in caught.value.holders}
    assert named["x"] == (3000, 100) and named["kept"] == kept.shape == (100, 100)
    assert "Net.first.weight" in named


def test_where_names_cannot_be_found_an_error_of_memory_goes_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> Any:
        raise MemoryLimitError("no memory for names either")

    large = fg.Tensor(np.zeros((512, 512), np.float32))
    monkeypatch.setattr(holders, "NAMED", [fails])
    (first, *_) = MemoryLimitError("no memory").holders
    assert first.nbytes >= 4 * large.size and not first.name


def test_reports_are_subtracted_from_reports_and_differences_have_modules() -> None:
    net, before = Net().settle(), fg.memory_report()
    with fg.no_grad():
        made = net(fg.Tensor(ONES)).realize()
    difference = fg.memory_report() - before
    assert difference.by_module()["Net"] == 4 * made.size
    with pytest.raises(DataError, match=r"a memory report less int(.|\n)*an earlier fg.memory"):
        before - 3  # type: ignore[operator]


def test_cycles_that_nobody_reaches_are_no_part_of_a_difference() -> None:
    def lost() -> None:
        cycle: list[Any] = [fg.Tensor(np.ones(8, np.float32)).realize()]
        cycle.append(cycle)

    gc.collect()
    gc.disable()
    try:
        lost()
        before = fg.memory_report()
        gc.collect()
        assert not (fg.memory_report() - before).went
    finally:
        gc.enable()
