"""Workers of the judge: each in a process of its own, so that a crash or a hang is one model's.

In: a suite and which of its models. Out: a line of JSON for each model: its status, the worst
difference, reasons, and seconds of each stage. The parent starts the worker again behind a model
that took too long or took the process with it.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import Any

from .judge import Verdict, compare, tensors_in

LIMIT_SECONDS = 300  # for a model, before it counts as a hang
CHUNK = 6  # models of one worker: importing torch takes a few seconds


def measure(name: str, make: Callable[[], Any], train: bool, backend: str) -> dict[str, Any]:
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
    row["eager_seconds"] = _timed(lambda: _step(model, model, given, train))
    model.load_state_dict(state)
    torch._dynamo.reset()
    REPORT.reset()
    try:
        start = time.perf_counter()
        call = torch.compile(model, backend=backend)
        ours = _step(model, call, given, train)
        row["first_seconds"] = round(time.perf_counter() - start, 3)
        row["warm_seconds"] = _timed(lambda: _step(model, call, given, train))
    except Exception as problem:
        return row | {"status": "failed", "why": _text(problem)}
    row["eager_operators"] = dict(REPORT.eager)
    row["compile_seconds"] = round(REPORT.seconds, 3)

    def judged(given: dict[str, Any], ours: list[Any], theirs: list[Any]) -> Verdict:
        def exact() -> list[Any]:
            model.load_state_dict(state)
            wide = copy.deepcopy(model).double()
            moved = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
            return _step(wide, wide, moved, train)

        try:
            return compare(ours, theirs, exact)
        except Exception as problem:
            return Verdict(False, float("inf"), f"float64: {_text(problem)}")

    found = judged(given, ours, theirs)
    if not found.agrees and found.judged:
        found = _again(found, given, lambda other: judged(other, *[
            _fresh(model, state, which, other, train) for which in (call, model)
        ]))  # fmt: skip
    row |= {"error": found.error, "why": found.why, "judged": found.judged}
    return row | {"status": "agrees" if found.agrees else "differs"}


def _again(
    first: Verdict, given: dict[str, Any], judged: Callable[[dict[str, Any]], Verdict]
) -> Verdict:
    """The verdict over three inputs, two of which must agree.

    A value next to 0 may fall on either side of a relu, and its gradient is there or not: with
    another input another value is. What is wrong is wrong for all of them.
    """
    import torch

    def other(x: Any) -> Any:
        if not x.is_floating_point():
            return x
        return x + 0.1 * x.std(correction=0) * torch.randn_like(x)

    for _ in range(2):
        found = judged({k: other(v) for k, v in given.items()})
        if not found.agrees:
            return first
    return Verdict(True, first.error, f"with two other inputs; with the first {first.why}", True)


def _fresh(model: Any, state: Any, call: Any, given: dict[str, Any], train: bool) -> list[Any]:
    """A step from the state that the model began with."""
    model.load_state_dict(state)
    return _step(model, call, given, train)


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


def work(suite: str, names: list[str], train: bool, backend: str) -> None:
    """What a worker does: a line of JSON for each model."""
    import torch

    import fulgurite.torch

    from .models import SUITES

    assert fulgurite.torch, "the backend is known by its name"
    warnings.simplefilter("ignore")
    threads = int(os.environ.get("FULGURITE_THREADS", "0"))
    if threads:
        torch.set_num_threads(threads)
    for each in SUITES[suite]():
        if each.name in names:
            print(f"@begin {each.name}", flush=True)
            row = measure(each.name, each.make, train, backend)
            print("@row " + json.dumps(row), flush=True)


def judged(
    suite: str, names: list[str], train: bool, backend: str = "fulgurite",
    limit: float = LIMIT_SECONDS,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each model, whatever happens to its process."""
    left = list(names)
    while left:
        command = [
            sys.executable, "-m", "fulgurite.torch.conformance", "--worker", suite,
            "--backend", backend, "--names", ",".join(left), *(["--train"] * train),
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        lines: Queue[str | None] = Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        current, why = None, "its process ended"
        while True:
            try:
                line = lines.get(timeout=limit)
            except Empty:
                why = f"no result after {limit:.0f} seconds"
                process.kill()
                break
            if line is None:
                break
            if line.startswith("@begin "):
                current = line[7:].strip()
            elif line.startswith("@row "):
                row = json.loads(line[5:])
                left.remove(row["name"])
                current = None
                yield row
        process.wait()
        if current is not None and current in left:
            left.remove(current)
            yield {"name": current, "status": "crashed", "why": why}
        elif left:  # the worker knows none of them, or ended before the first
            for name in left:
                yield {"name": name, "status": "crashed", "why": why}
            return


def judged_in_parallel(
    suite: str, names: list[str], train: bool, backend: str, jobs: int, limit: float
) -> Iterator[dict[str, Any]]:
    """Rows of several workers at a time, as they come; each works through a few models."""
    rows: Queue[dict[str, Any]] = Queue()

    def chunk(some: list[str]) -> None:
        for row in judged(suite, some, train, backend, limit):
            rows.put(row)

    with ThreadPoolExecutor(jobs) as pool:
        for i in range(0, len(names), CHUNK):
            pool.submit(chunk, names[i : i + CHUNK])
        for _ in names:
            yield rows.get()


def _read(process: Any, lines: Any) -> None:
    for line in process.stdout:
        lines.put(line)
    lines.put(None)
