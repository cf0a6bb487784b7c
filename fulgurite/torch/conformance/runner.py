"""A pool of worker processes for the judge: a crash or a hang is one model's.

In: a suite and which of its models. Out: a row for each model: its status, the worst difference,
reasons, and seconds of each stage. A worker reads a name a line and prints a line of JSON; one that
takes too long or dies is ended with all that it started, and the next model has another. Behind a
deadline no model is begun, and those under way are ended without a row.
"""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, Queue
from typing import Any, NamedTuple

from .judge import AS_CLOSE, TOLERANCE, Trial, Verdict, compare, tensors_in, together, weigh
from .wide import widened

ROUNDINGS = 10  # at most of a model that one run does not show to be as close to float64
LIMIT_SECONDS = 300  # for a model, before it counts as a hang
MODELS = 24  # of one worker: importing torch takes seconds, but dynamo keeps what it traced
Task = tuple[str, str, str]  # a suite, a model of it, and forward or training


def measure(
    name: str, make: Callable[[], Any], train: bool, backend: str, timed: bool = True
) -> dict[str, Any]:
    """Run a model in eager torch and through a backend, and compare."""
    import torch

    from ..reporting import REPORT
    from .models import calm

    row: dict[str, Any] = {"name": name}
    torch.manual_seed(0)
    try:
        model, given = make()
        model = calm(model).train(train)
        row["parameters"] = sum([p.numel() for p in model.parameters()])
        state = copy.deepcopy(model.state_dict())
        theirs = _step(model, model, given, train)
    except Exception as problem:
        return row | {"status": "skipped", "why": f"eager torch: {_text(problem)}"}
    if not theirs:
        return row | {"status": "skipped", "why": "it gives no tensors"}
    if timed:
        row["eager_seconds"] = _timed(lambda: _step(model, model, given, train))
    model.load_state_dict(state)
    torch._dynamo.reset()
    REPORT.reset()
    try:
        start = time.perf_counter()
        call = torch.compile(model, backend=backend)
        ours = _step(model, call, given, train)
        row["first_seconds"] = round(time.perf_counter() - start, 3)
        if timed:
            row["warm_seconds"] = _timed(lambda: _step(model, call, given, train))
    except Exception as problem:
        return row | {"status": "failed", "why": _text(problem)}
    row["eager_operators"] = dict(REPORT.eager)
    row["compile_seconds"] = round(REPORT.seconds, 3)

    case = Case(model, state, train)
    found = _arbitrated(case, call, given, ours, theirs, backend)
    if not found.agrees and found.judged and (why := _no_case(case, given, ours, theirs)):
        return row | {"status": "skipped", "why": why}
    row |= {"error": found.error, "why": found.why, "judged": found.judged}
    return row | {"status": "agrees" if found.agrees else "differs"}


class Case(NamedTuple):
    """A model, the state that it begins with, and what is done with it."""

    model: Any
    state: Any
    train: bool

    def step(self, call: Any, given: dict[str, Any]) -> list[Any]:
        """A step from the first state."""
        self.model.load_state_dict(self.state)
        return _step(self.model, call, given, self.train)

    def wide(self, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The model and its inputs in float64."""
        self.model.load_state_dict(self.state)
        moved = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
        return copy.deepcopy(self.model).double(), moved

    def moved(self, given: dict[str, Any]) -> tuple[Case, dict[str, Any]]:
        """The model and its inputs with every number moved by a unit in the last place."""
        return self._replace(state=_all_moved(self.state)), _all_moved(given)

    def exact(self, given: dict[str, Any]) -> list[Any]:
        """A step in which nothing is float32."""
        model, given = self.wide(given)
        with widened():
            return _step(model, model, given, self.train)


def _arbitrated(
    case: Case, call: Any, given: dict[str, Any], ours: list[Any], theirs: list[Any], backend: str
) -> Verdict:
    """Do results agree, if need be by how far both are off float64, over several roundings?

    Where torch's own float32 is so far off that to be as close says little, and where we are
    further off, the same model compiled in float64 says whether our graph is right.
    """
    trials: list[Trial] = []

    def exact() -> Sequence[Any]:
        trials.append(Trial(ours, theirs, case.exact(given)))
        return trials[0].truth

    try:
        found = compare(ours, theirs, exact)
        if not found.judged:
            return found
        while not found.agrees and len(trials) < ROUNDINGS:
            other, numbers = case.moved(given)
            mine, torchs = [other.step(which, numbers) for which in (call, case.model)]
            trials.append(Trial(mine, torchs, trials[0].truth))
            found = weigh(trials)
    except Exception as problem:
        return Verdict(False, math.inf, f"float64: {_text(problem)}")
    if found.agrees and not found.weak:
        return found
    right, why = _in_float64(case, given, backend)
    return replace(found, agrees=found.agrees and right, why=found.why + why)


def _all_moved(numbers: dict[str, Any]) -> dict[str, Any]:
    """A copy, of a state with its versions, whose numbers are moved."""
    found = copy.copy(numbers)
    found.update({name: _moved(x) for name, x in numbers.items()})
    return found


def _moved(x: Any) -> Any:
    """Numbers that are each moved by a unit in the last place, up or down; tokens as they are."""
    import torch

    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, torch.float64):
        return x
    unit = torch.finfo(x.dtype).eps
    return x * (1 + unit * (2 * torch.randint_like(x, 2) - 1))


def _no_case(case: Case, given: dict[str, Any], ours: list[Any], theirs: list[Any]) -> str:
    """Why a model on which we differ tells nothing about us; empty if it does."""
    return _of_chance(case, given) or _of_dynamo(case, given, ours, theirs)


def _of_chance(case: Case, given: dict[str, Any]) -> str:
    """Why the model is no case for anybody: torch's own results in float64 are others when every
    number is moved by a unit in the last place. Empty if they are not.

    A batch normalisation of two values that are nearly equal is such a model.
    """
    try:
        model, numbers = case.wide(given)
        moved = _all_moved(model.state_dict())
        first = _step(model, model, numbers, case.train)
        model.load_state_dict(moved)
        apart = together(_step(model, model, numbers, case.train), first)
    except Exception:
        return ""
    if apart <= TOLERANCE:
        return ""
    return f"rounding alone decides its results, in float64 too: torch's own are {apart:.0e} apart"


def _of_dynamo(case: Case, given: dict[str, Any], ours: list[Any], theirs: list[Any]) -> str:
    """Why the model is no case for us: it computes something else under dynamo, whose graph torch
    runs itself with the result that is ours. Empty if we differ from torch on the same graph.

    A model may ask whether it is traced: UMT5 of transformers 5.17 has its causal mask only then.
    """
    import torch

    def traced(model: Any) -> Any:
        return torch.compile(model, backend="eager")

    def exact() -> list[Any]:
        model, moved = case.wide(given)
        return _step(model, traced(model), moved, case.train)

    torch._dynamo.reset()
    try:
        captured = case.step(traced(case.model), given)
        apart = compare(captured, theirs, lambda: case.exact(given))
        if apart.agrees or not apart.judged or not compare(ours, captured, exact).agrees:
            return ""
    except Exception:
        return ""
    return f"it is another model under dynamo: as torch itself runs dynamo's graph, {apart.why}"


def _in_float64(case: Case, given: dict[str, Any], backend: str) -> tuple[bool, str]:
    """Is our graph right, by how far both are apart in float64, where rounding decides little?
    True where torch cannot tell. A model with parts that are float32 by name rounds there, torch as
    well as we: then both are compared with a step in which nothing is."""
    import torch

    wide, moved = case.wide(given)
    first = copy.deepcopy(wide.state_dict())
    try:
        theirs = _step(wide, wide, moved, case.train)
        wide.load_state_dict(first)
    except Exception as problem:
        return True, f"; in float64: {_text(problem)}"
    torch._dynamo.reset()
    try:
        ours = _step(wide, torch.compile(wide, backend=backend), moved, case.train)
        found = together(ours, theirs)
        right = found <= TOLERANCE
        if not right and not _of_chance(case, given):
            truth = case.exact(given)
            right = together(ours, truth) <= AS_CLOSE * together(theirs, truth)
    except Exception as problem:
        return False, f"; compiled in float64: {_text(problem)}"
    return right, f"; computed in float64 both are {found:.0e} apart"


def _step(model: Any, call: Any, given: dict[str, Any], train: bool) -> list[Any]:
    """Results of a model, and with `train` the gradients of all its parameters."""
    import torch

    model.zero_grad(set_to_none=True)
    args = [given[""]] if "" in given else []
    named = {k: v for k, v in given.items() if k}
    with torch.set_grad_enabled(train):
        results = [t for t in tensors_in(_plain(call(*args, **named))) if t.is_floating_point()]
    if not train:
        return results
    loss = sum([(t.float().square().mean() if t.dtype != torch.float64 else t.square().mean())
                for t in results if t.requires_grad])  # fmt: skip
    if isinstance(loss, torch.Tensor):
        loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [*[t.detach() for t in results], *[g.detach().clone() for g in grads]]


def _plain(result: Any) -> Any:
    return list(result.values()) if isinstance(result, dict) else result


def _timed(function: Callable[[], Any], runs: int = 3) -> float:
    """The least seconds of a few runs."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
        if best > 2:
            break
    return round(best, 5)


def _text(problem: BaseException) -> str:
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {' '.join(lines[:2])[:200]}"


def work(suite: str, backend: str, timed: bool = True) -> None:
    """What a worker does: reads a model's name and kind a line, prints a line of JSON."""
    import torch

    import fulgurite.torch

    from .models import SUITES

    assert fulgurite.torch, "the backend is known by its name"
    warnings.simplefilter("ignore")
    if threads := int(os.environ.get("FULGURITE_THREADS", "0")):
        torch.set_num_threads(threads)
    makers = {each.name: each.make for each in SUITES[suite]()}
    print("@ready", flush=True)
    for line in sys.stdin:
        name, _, kind = line.strip().partition(" ")
        row = {"name": name, "status": "skipped", "why": f"this {suite} does not have it"}
        if name in makers:
            row = measure(name, makers[name], kind == "training", backend, timed)
        print("@row " + json.dumps(row), flush=True)


class Worker:
    """A process that judges one model after the other."""

    def __init__(
        self, suite: str, backend: str, jobs: int, limit: float, deadline: float, timed: bool
    ) -> None:
        command = [sys.executable, "-m", "fulgurite.torch.conformance", "--worker", suite,
                   "--backend", backend, *["--untimed"] * (not timed)]  # fmt: skip
        self.suite, self.limit, self.deadline, self.models = suite, limit, deadline, 0
        environment = {
            "FULGURITE_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)),
            **os.environ,
        }
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: Queue[str | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            if line.startswith("@"):  # models print as well
                self.lines.put(line)
        self.lines.put(None)

    def _line(self) -> str | None:
        """The next line; none if the process ended. `Empty` if there is none in time."""
        return self.lines.get(timeout=max(0.0, min(self.limit, self.deadline - time.monotonic())))

    def row(self, name: str, kind: str) -> dict[str, Any] | None:
        """A model's row, whatever happens to the process; none if time is over."""
        self.models += 1
        why = "its process ended"
        try:
            line: str | None = self._line() if self.models == 1 else ""
            if line is not None:
                assert self.process.stdin is not None
                self.process.stdin.write(f"{name} {kind}\n")
                self.process.stdin.flush()
                line = self._line()
            if line is not None:
                return {**json.loads(line.removeprefix("@row ")), "kind": kind}
            why += f" with {self.process.wait(10)}"
        except Empty:
            if time.monotonic() >= self.deadline:
                return None
            why = f"no result after {self.limit:.0f} seconds"
        except (OSError, subprocess.TimeoutExpired):
            pass  # the pipe is broken, as the process is
        self.models = MODELS
        return {"name": name, "kind": kind, "status": "crashed", "why": why}

    def end(self) -> None:
        """End the process and those that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Tasks:
    """What is left to judge. Suites are taken from in the share that is left of each, and a worker
    gets models of its own suite as long as there are any."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.lock, self.workers = threading.Lock(), Counter[str]()
        self.left: dict[str, deque[Task]] = {}
        for task in tasks:
            self.left.setdefault(task[0], deque()).append(task)

    def take(self, worker: str | None) -> Task | None:
        """The next task for a worker of a suite, or for one that is not yet begun."""
        with self.lock:
            suites = [suite for suite, left in self.left.items() if left]
            if not suites:
                return None
            if worker not in suites:
                worker = max(suites, key=lambda s: len(self.left[s]) / (self.workers[s] + 1))
                self.workers[worker] += 1
            return self.left[worker].popleft()


def judged(
    tasks: Sequence[Task], backend: str = "fulgurite", jobs: int = 1,
    limit: float = LIMIT_SECONDS, deadline: float = math.inf, timed: bool = True,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Rows of tasks as they come, until a time of the clock."""
    left = Tasks(tasks)
    rows: Queue[dict[str, Any] | None] = Queue()

    def serve() -> None:
        worker: Worker | None = None
        suite: str | None = None
        try:
            while time.monotonic() < deadline and (task := left.take(suite)):
                if worker is not None and (worker.suite != task[0] or worker.models >= MODELS):
                    worker.end()
                    worker = None
                suite, name, kind = task
                worker = worker or Worker(suite, backend, jobs, limit, deadline, timed)
                if found := worker.row(name, kind):
                    rows.put(found | {"suite": suite})
        finally:
            if worker is not None:
                worker.end()
            rows.put(None)

    for _ in range(jobs):
        threading.Thread(target=serve, daemon=True).start()
    for _ in range(jobs):
        while (row := rows.get()) is not None:
            yield row
