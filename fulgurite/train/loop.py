"""The training loop: steps, progress, checkpoints, and an end that says what happened.

In: a task and how to run it. Out: a `Report`, and a folder with the checkpoint, the weights and the
loss curve. Everything that a step depends on is in the checkpoint, so a run that was killed and
resumed ends with the bits of one that was not. Ctrl-C ends after the step that is running, with a
checkpoint; a second Ctrl-C ends at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fulgurite as fg

from ..cli.progress import Progress
from ..errors import ArgumentError
from ..io import load_checkpoint, save_checkpoint, save_safetensors
from ..io.files import FileError
from .curve import curve
from .tasks import Task, tasks

CHECKPOINT, WEIGHTS, CURVE = "checkpoint.fgc", "weights.safetensors", "loss.svg"


@dataclass(frozen=True)
class Plan:
    """How to run a task."""

    task: str
    folder: str
    steps: int | None = None  # None: as the task, or the checkpoint, says
    seed: int | None = None
    jit: bool | None = None
    resume: str | None = None  # the checkpoint to go on from
    save_every: int = 200


@dataclass
class Report:
    """What happened."""

    task: str
    steps: int
    first: int  # the step that this run began with
    losses: list[float]
    stopped: bool = False  # before the last step
    result: float = float("nan")
    sentence: str = ""
    sample: str = ""
    seconds: float = 0.0
    first_seconds: float = 0.0
    cpu_seconds: float = 0.0
    samples: int = 0
    files: dict[str, str] = field(default_factory=dict)


def train(plan: Plan) -> Report:
    """Run a task to its end, or to Ctrl-C."""
    known = tasks()
    if plan.task not in known:
        raise ArgumentError(f"there is no task {plan.task!r}", f"one of {', '.join(known)}")
    kind = known[plan.task]
    settings = _settings(plan, kind)
    task = kind(settings["seed"], settings["steps"])
    report = Report(plan.task, settings["steps"], 0, [])
    if plan.resume is not None:
        saved = load_checkpoint(
            plan.resume, model=task.model, optimizer=task.optimizer, schedule=task.schedule,
            loader=task.loader,
        )  # fmt: skip
        report.first, report.losses = saved["step"], list(saved["losses"])
    os.makedirs(plan.folder, exist_ok=True)
    _run(task, settings, plan, report)
    _finish(task, settings, plan, report)
    return report


def _settings(plan: Plan, kind: type[Task]) -> dict[str, Any]:
    """Seed, steps and jit: as asked for, as the checkpoint says, or the usual ones."""
    found: dict[str, Any] = {"steps": kind.steps, "seed": 0, "jit": True}
    asked = {"steps": plan.steps, "seed": plan.seed, "jit": plan.jit}
    asked = {name: value for name, value in asked.items() if value is not None}
    if plan.resume is not None:
        saved = load_checkpoint(plan.resume, generator=False)
        if saved.get("task") != plan.task or "settings" not in saved:
            raise FileError(
                f"{plan.resume!r} is a checkpoint of {saved.get('task')!r}, not of {plan.task!r}",
                "resume the task that it belongs to",
            )
        found = saved["settings"]
        for name in ("steps", "seed"):
            if asked.get(name, found[name]) != found[name]:
                raise ArgumentError(
                    f"the checkpoint is of a run with {name} {found[name]}, not {asked[name]}",
                    f"leave --{name} out, or begin anew without --resume",
                )
    found = {**found, **asked}
    if found["steps"] < 1:
        raise ArgumentError("there is nothing to do in less than one step", "give --steps 1")
    if plan.save_every < 1:
        raise ArgumentError(f"no checkpoint every {plan.save_every} steps", "give --save-every 1")
    return found


def _run(task: Task, settings: dict[str, Any], plan: Plan, report: Report) -> None:
    plain = task.stepper()
    step = fg.jit(plain) if settings["jit"] else plain
    steps = Progress(range(report.first, settings["steps"]), plan.task)
    batches = task.loader.forever()
    begin, cpu = time.perf_counter(), time.process_time()
    with _interruptible() as interrupted:
        for number in steps:
            batch = next(batches)
            report.losses.append(float(step(*batch)))
            task.schedule.step()
            report.samples += batch[0].shape[0]
            seconds = time.perf_counter() - begin
            if number == report.first:
                report.first_seconds = seconds
            steps.note(f"loss {report.losses[-1]:.4f}, {report.samples / seconds:,.0f} samples/s")
            done = number + 1
            report.stopped = interrupted.is_set() and done < settings["steps"]
            if report.stopped or done % plan.save_every == 0 or done == settings["steps"]:
                _save(task, settings, plan, report, done)
            if report.stopped:
                break
    batches.close()  # type: ignore[attr-defined]  # a generator
    report.steps = len(report.losses)
    report.seconds = time.perf_counter() - begin
    report.cpu_seconds = time.process_time() - cpu


def _save(task: Task, settings: dict[str, Any], plan: Plan, report: Report, done: int) -> None:
    path = os.path.join(plan.folder, CHECKPOINT)
    save_checkpoint(
        path, model=task.model, optimizer=task.optimizer, schedule=task.schedule,
        loader=task.loader, step=done, task=plan.task, settings=settings,
        losses=report.losses,
    )  # fmt: skip
    report.files["checkpoint"] = path


def _finish(task: Task, settings: dict[str, Any], plan: Plan, report: Report) -> None:
    picture = os.path.join(plan.folder, CURVE)
    title = f"{plan.task}: loss over {len(report.losses):,} steps, seed {settings['seed']}"
    with open(picture, "w", encoding="utf-8") as file:
        file.write(curve(report.losses, title))
    report.files["curve"] = picture
    if report.stopped:
        return
    report.result, report.sentence = task.result()
    report.sample = task.sample()
    task.export(plan.folder)
    weights = os.path.join(plan.folder, WEIGHTS)
    save_safetensors(task.model, weights, {"task": plan.task})
    report.files["weights"] = weights


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Within, the first Ctrl-C is noted; the next one ends everything, as ever."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        noted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def peak_bytes() -> int:
    """The most memory that this process has had."""
    import sys

    try:
        import resource
    except ImportError:  # Windows has none
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
