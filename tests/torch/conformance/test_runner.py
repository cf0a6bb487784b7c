"""Workers of the judge: every model has a row, whatever happens to its process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from fulgurite.torch.conformance import results, runner

WORKER = """
    import json, os, sys, time
    print("@ready", flush=True)
    for line in sys.stdin:
        name, kind = line.split()
        print("a model's own words")
        if name == "hangs":
            os.fork()
            time.sleep(1000)
        if name == "dies":
            os._exit(3)
        print("@row " + json.dumps({"name": name, "status": "agrees"}), flush=True)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Workers that judge nothing; the processes that were started."""
    script, popen = tmp_path / "worker.py", subprocess.Popen
    found: list[Any] = []
    script.write_text(textwrap.dedent(WORKER))

    def start(command: list[str], **named: Any) -> Any:
        found.append(popen([sys.executable, str(script)], **named))
        return found[-1]

    monkeypatch.setattr("fulgurite.torch.conformance.runner.subprocess.Popen", start)
    return found


@pytest.mark.parametrize("jobs", [1, 3])
def test_workers_in_parallel_give_a_row_for_each_model(jobs: int, started: list[Any]) -> None:
    tasks = [("timm", f"model{i}", "forward") for i in range(2 * runner.MODELS + 1)]
    rows = list(runner.judged(tasks, jobs=jobs))
    assert sorted([row["name"] for row in rows]) == sorted([name for _, name, _ in tasks])
    assert len(started) >= 3  # a worker is replaced after so many models
    assert all([process.poll() is not None for process in started])


def test_a_model_that_hangs_or_dies_is_one_row_and_the_next_has_another_worker(
    started: list[Any],
) -> None:
    names = ["one", "hangs", "two", "dies", "three"]
    rows = list(runner.judged([("timm", n, "training") for n in names], limit=2.0))
    assert [row["status"] for row in rows] == ["agrees", "crashed", "agrees", "crashed", "agrees"]
    assert "no result after 2 seconds" in rows[1]["why"] and "ended with 3" in rows[3]["why"]
    assert all([row["kind"] == "training" and row["suite"] == "timm" for row in rows])
    assert len(started) == 3 and all([process.poll() is not None for process in started])


def test_behind_the_deadline_nothing_has_a_row_and_no_process_is_left(started: list[Any]) -> None:
    tasks = [("timm", name, "forward") for name in ("one", "hangs", "two")]
    rows = list(runner.judged(tasks, deadline=time.monotonic() + 3))
    assert [row["name"] for row in rows] == ["one"]
    assert all([process.poll() is not None for process in started])


def test_suites_share_workers_and_a_worker_keeps_its_suite_while_it_has_models(
    started: list[Any],
) -> None:
    tasks = [(suite, f"{suite}{i}", "forward") for suite, n in (("timm", 9), ("torchvision", 3))
             for i in range(n)]  # fmt: skip
    rows = list(runner.judged(tasks, jobs=2))
    assert sorted([(row["suite"], row["name"], row["kind"]) for row in rows]) == sorted(tasks)
    assert 2 <= len(started) <= 4  # at most one each for the other suite
    left = runner.Tasks(tasks)
    assert [left.take(None), left.take(None)] == [tasks[0], tasks[1]]  # 9 / 1, 8 / 2, 7 / 3
    assert left.take("torchvision") == tasks[9]


def test_the_table_has_a_line_for_each_architecture_and_a_file_of_rows_is_read_back(
    tmp_path: Path,
) -> None:
    rows: list[results.Row] = [
        {"suite": "timm", "name": "a", "kind": "forward", "status": "agrees",
         "eager_operators": {"qr": 1}},
        {"suite": "timm", "name": "a", "kind": "training", "status": "differs", "why": "x | y"},
        {"suite": "timm", "name": "b", "kind": "forward", "status": "skipped", "why": "no"},
    ]  # fmt: skip
    shown = results.table(rows)
    assert "| timm | a | agrees | differs | x / y; torch ran qr |" in shown
    assert "| b |" not in shown and "| 1 | no |" in shown
    assert "timm, training: 0 of 1 agree (0.0 %); 1 differs" in results.summary(rows)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join([json.dumps(row) + "\n" for row in [*rows, rows[1]]]))
    assert results.read(str(file)) == rows and results.read("") == []


class Masked(torch.nn.Module):  # type: ignore[misc]
    """A model that computes something else when it is traced, if it is told to."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.asks, self.linear = asks, torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        found = self.linear(x)
        return found.tril() if self.asks and torch.compiler.is_compiling() else found


def wrong(module: Any, inputs: Any) -> Any:
    """A backend that is off by one."""
    return lambda *args: [result + 1 for result in module(*args)]


@pytest.mark.parametrize("train", [False, True])
def test_a_model_that_is_another_under_dynamo_is_no_case_but_a_wrong_backend_is(
    train: bool,
) -> None:
    def row(asks: bool, backend: Any) -> dict[str, Any]:
        return runner.measure("m", lambda: (Masked(asks), {"": torch.ones(4, 4)}), train, backend)

    found = row(True, "fulgurite")
    assert found["status"] == "skipped" and "another model under dynamo" in found["why"]
    assert row(False, "fulgurite")["status"] == "agrees"
    for asks in (False, True):
        assert row(asks, wrong)["status"] == "differs"


class NextToZero(torch.nn.Module):  # type: ignore[misc]
    """A model whose every result hangs on a relu of a sum that float32 takes for 0 or not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def _load_from_state_dict(self, state: Any, prefix: str, kept: Any, *rest: Any) -> None:
        assert kept.get("version") == 1, "a state has its versions"
        super()._load_from_state_dict(state, prefix, kept, *rest)

    def forward(self, x: Any) -> Any:
        found = self.linear(x)
        rest = (found * 3).sum(-1) - 3 * found.sum(-1) + 1e-8
        return (torch.relu(rest).sign() * found.mean(-1)).unbind()


def inexact(module: Any, inputs: Any) -> Any:
    """A backend that loses a third of the digits."""
    return lambda *args: [result.bfloat16().float() for result in module(*args)]


@pytest.mark.parametrize("train", [False, True])
def test_the_side_of_a_relu_that_rounding_decides_is_no_difference_but_lost_digits_are(
    train: bool,
) -> None:
    def row(model: Any, backend: Any) -> dict[str, Any]:
        return runner.measure("m", lambda: (model, {"": torch.randn(16, 64)}), train, backend)

    found = row(NextToZero(), "fulgurite")
    assert found["status"] == "agrees" and found["error"] > 0.1 and "roundings" in found["why"]
    assert row(torch.nn.Linear(64, 64), inexact)["status"] == "differs"


class Chaotic(torch.nn.Module):  # type: ignore[misc]
    """A model that makes any rounding a hundred times larger, thirty times."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        for _ in range(30):
            x = torch.sin(100 * self.linear(x))
        return x


def test_a_model_whose_results_are_rounding_in_float64_too_is_no_case() -> None:
    found = runner.measure("m", lambda: (Chaotic(), {"": torch.randn(4, 64)}), False, "fulgurite")
    assert found["status"] == "skipped" and "rounding alone decides" in found["why"]


class Narrow(torch.nn.Module):  # type: ignore[misc]
    """A model that loses its digits in a part that is float32 by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        found = self.linear(x)
        narrow = found.float()
        return (((narrow * 3).sum(-1) - 3 * narrow.sum(-1)) * 1e6).to(x.dtype) + found.sum(-1)


def test_parts_that_are_float32_by_name_round_in_float64_too_and_a_wrong_graph_is_found() -> None:
    def row(backend: Any) -> dict[str, Any]:
        return runner.measure("m", lambda: (Narrow(), {"": torch.randn(16, 64)}), False, backend)

    assert row("fulgurite")["status"] == "agrees"
    tenfold = row(lambda module, inputs: lambda *args: [10 * x for x in module(*args)])
    assert tenfold["status"] == "differs"
