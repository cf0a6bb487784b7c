"""The `fulgurite train` command.

In: the parser of `fulgurite` and, later, the words after `fulgurite train`. Out: a progress bar on
standard error; the result, what was compiled, what it cost and where things are on standard output;
an exit code: 1 if it could not be done, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..train.loop import Plan, Report

TASKS = ("digits", "mnist", "charlm")
DESCRIPTION = """Train a small network on data that is already on this machine: digits comes with
the package, mnist with fulgurite[demo], charlm is Python's own documentation. A fifth of the data
is held out and looked at once, at the end."""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `train` to the parser of `fulgurite`."""
    parser = commands.add_parser(
        "train", help="watch a network learn: digits, mnist or charlm", description=DESCRIPTION,
        epilog="Ctrl-C ends with a checkpoint; --resume goes on from it, to the same bits.",
    )  # fmt: skip
    parser.add_argument("task", choices=TASKS, help="what to learn")
    parser.add_argument("--device", help="where to compute: cpu or reference")
    parser.add_argument("--steps", type=int, help="how many steps to train")
    parser.add_argument("--seed", type=int, help="of weights and of the data's order (0)")
    parser.add_argument(
        "--save", metavar="FOLDER", help="where checkpoint, weights and curve go (runs/TASK)"
    )
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="FILE",
        help="go on from this checkpoint, or from the one in the folder",
    )  # fmt: skip
    parser.add_argument(
        "--jit", action=argparse.BooleanOptionalAction, default=None,
        help="capture the step and replay it (the default), or run every step anew",
    )  # fmt: skip
    parser.add_argument(
        "--save-every", type=int, default=200, metavar="STEPS",
        help="how often to write a checkpoint (200)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train as the arguments say."""
    from ..config import config
    from ..errors import FulguriteError
    from ..train.loop import CHECKPOINT, Plan, train

    folder = arguments.save or os.path.join("runs", arguments.task)
    resume = arguments.resume
    if resume is not None:
        resume = resume or os.path.join(folder, CHECKPOINT)
        resume = os.path.join(resume, CHECKPOINT) if os.path.isdir(resume) else resume
    plan = Plan(
        arguments.task, folder, arguments.steps, arguments.seed, arguments.jit, resume,
        arguments.save_every,
    )  # fmt: skip
    options = {"device": arguments.device} if arguments.device else {}
    try:
        with config(**options):
            report = train(plan)
    except FulguriteError as error:
        print(f"fulgurite train: {error.what}", file=sys.stderr)
        if error.hint:
            print(f"  try: {error.hint}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"fulgurite train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the first step, after the last, or for the second time
        print("\nfulgurite train: stopped; checkpoints are whole or as before", file=sys.stderr)
        return 130
    print("\n".join(lines(plan, report)))
    return 130 if report.stopped else 0


def lines(plan: Plan, report: Report) -> list[str]:
    """The end of a run in words."""
    from ..runtime.realize import cache_stats
    from ..train.loop import peak_bytes

    ran = len(report.losses) - report.first
    found = [""]
    if report.sample:
        found += ["it writes:", *[f"  | {line}" for line in report.sample.split("\n")], ""]
    if report.stopped:
        again = f"fulgurite train {plan.task} --resume --save {plan.folder}"
        found.append(f"stopped after step {len(report.losses):,}; go on with: {again}")
    elif ran:
        found.append(f"{plan.task}: {report.sentence} (after {len(report.losses):,} steps)")
    else:
        found.append(f"{plan.task}: {report.sentence} (there was no step left to take)")
    stats = cache_stats()
    plans, kernels = stats["schedule"]["misses"], stats["kernel"]["misses"]
    found.append(f"compiled   {plans} plans with {kernels} different kernels{_native()}")
    if ran:
        rate = report.samples / max(report.seconds, 1e-9)
        later = (report.seconds - report.first_seconds) / max(1, ran - 1)
        found.append(
            f"cost       {report.seconds:.1f} s for {ran:,} steps ({rate:,.0f} samples/s): the "
            f"first {report.first_seconds:.2f} s, then {later * 1e3:.1f} ms each; "
            f"{report.cpu_seconds:.1f} s of CPU time, {peak_bytes() / 1e6:.0f} MB at most"
        )
    found += [f"{name:<10} {path}" for name, path in report.files.items()]
    found.append(f"cache      {_cache()}")
    return found


def _native() -> str:
    """How many kernels went through the compiler in this process, if any did."""
    from ..config import current
    from ..runtime.device import get_device

    module = sys.modules.get("fulgurite.runtime.cpu.toolchain")
    if module is None or get_device(current().device).codegen is None:
        return ""
    return f", {module.code().compiled} of them new to this machine"


def _cache() -> str:
    from ..config import current
    from ..runtime import cache

    options = current()
    folder = cache.cache_folder(options.cache_dir)
    return f"{folder}" if options.disk_cache else f"{folder} (switched off)"
