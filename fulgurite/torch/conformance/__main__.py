"""`python -m fulgurite.torch.conformance`: a table of models and operators, with reasons."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from . import results
from .models import SUITES
from .runner import LIMIT_SECONDS, Task, judged, work

SAMPLE = {  # twenty-five models for every change: small, and of many kinds
    "torchvision": ["resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5",
                    "mnasnet0_5", "efficientnet_b0", "convnext_tiny", "lraspp_mobilenet_v3_large"],
    "timm": ["vit_tiny_patch16_224", "mixer_s32_224", "regnetx_002", "mobilevit_xxs",
             "edgenext_xx_small", "ghostnet_050", "convnext_atto", "gmlp_ti16_224", "resmlp_12_224",
             "deit_tiny_patch16_224"],
    "transformers": ["bert", "gpt2", "t5", "llama", "mistral", "bart", "vit"],
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run suites and print a table; 0 if enough agree."""
    parser = argparse.ArgumentParser(prog="python -m fulgurite.torch.conformance")
    parser.add_argument("--suite", choices=["ops", *SAMPLE], action="append")
    parser.add_argument("--train", action="store_true", help="a step of training, not forward")
    parser.add_argument("--both", action="store_true", help="forward, and a step of training")
    parser.add_argument("--only", default="", help="names that contain one of these: a,b")
    parser.add_argument("--sample", action="store_true", help="a few models of every suite")
    parser.add_argument("--most", type=int, default=0, help="so many models of a suite")
    parser.add_argument("--samples", type=int, default=2, help="of each operator and dtype")
    parser.add_argument("--least", type=float, default=1.0, help="share that must agree (1)")
    parser.add_argument("--backend", default="fulgurite")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (1)")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of a model")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the whole run")
    parser.add_argument("--rows", default="", help="a file of rows: those in it are not run again")
    parser.add_argument("--again", default="", help="but for those of these statuses: crashed,...")
    parser.add_argument(
        "--tasks", default="", help="a file: a suite, model and kind a line, in order"
    )
    parser.add_argument("--untimed", action="store_true", help="no seconds of warm steps")
    parser.add_argument("--table", default="", help="a file for the table, in Markdown")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        work(given.worker, given.backend, not given.untimed)
        return 0
    before = [
        row for row in results.read(given.rows) if row["status"] not in given.again.split(",")
    ]
    rows = before + run(given, before)
    print(results.summary(rows), flush=True)
    judged = [row for row in rows if row["status"] != "skipped"]
    agree = len([row for row in judged if row["status"] == "agrees"])
    return 0 if agree >= given.least * len(judged) else 1


def run(given: argparse.Namespace, before: list[results.Row]) -> list[results.Row]:
    """New rows of all suites, printed and written as they come; suites share the time."""
    end = time.monotonic() + given.seconds
    rows: list[results.Row] = []
    known: set[tuple[str, ...]] = {(row["suite"], row["name"], row["kind"]) for row in before}
    suites = given.suite or list(SAMPLE)
    wanted = [t for t in listed(given.tasks) if t not in known] if given.tasks else [
        (suite, *task) for suite in suites for task in tasks(suite, given, known)
    ]  # fmt: skip
    found = judged(wanted, given.backend, given.jobs, given.limit, end, not given.untimed)
    for row in chain(operators(given) if "ops" in suites else (), found):
        rows.append(row)
        keep(row, before + rows, given)
    if missed := len(wanted) - len([row for row in rows if row["suite"] != "ops"]):
        print(f"no time for {missed} of {len(wanted)}", flush=True)
    return rows


def keep(row: results.Row, rows: list[results.Row], given: argparse.Namespace) -> None:
    """Print a new row, and write it and the table of all rows to the files that are asked for."""
    if row["suite"] != "ops" or row["status"] == "differs":
        print(line(row), flush=True)
    if given.rows:
        with open(given.rows, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    if given.table:
        text = f"{results.summary(rows)}\n\n{results.table(rows)}"
        Path(given.table).write_text(text, encoding="utf-8")


def listed(path: str) -> list[Task]:
    """The tasks of a file, in its order."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [(suite, name, kind) for suite, name, kind in map(str.split, lines)]


def tasks(suite: str, given: Any, known: set[tuple[str, ...]]) -> list[tuple[str, str]]:
    """The models of a suite and kinds (forward, training) that have no row yet."""
    if suite == "ops":
        return []
    try:
        names = [each.name for each in SUITES[suite]()]
    except ModuleNotFoundError as missing:
        print(f"{suite} is left out: {missing}", flush=True)
        return []
    if given.sample:
        names = [name for name in names if name in SAMPLE[suite]]
    names = [name for name in names if any([part in name for part in given.only.split(",")])]
    kinds = results.KINDS if given.both else results.KINDS[given.train : 1 + given.train]
    every = [(name, kind) for name in names[: given.most or None] for kind in kinds]
    return [(name, kind) for name, kind in every if (suite, name, kind) not in known]


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    seconds = " ".join(
        [f"{row[key]:9.4f}" if key in row else " " * 9
         for key in ("eager_seconds", "warm_seconds", "first_seconds")]
    )  # fmt: skip
    error = f"{row['error']:8.1e}" if "error" in row else " " * 8
    left = ", ".join(row.get("eager_operators", {}))
    why = row.get("why", "") + (f" [torch ran {left}]" if left else "")
    return f"{row['status']:8} {row['kind']:8} {row['name']:36} {error} {seconds}  {why}"


def operators(given: Any) -> Iterator[dict[str, Any]]:
    """Rows of the OpInfo samples."""
    from .ops import cases, judge

    warnings.simplefilter("ignore")
    kind = results.KINDS[given.train]
    for info, dtype in cases(given.only):
        for number, found in judge(info, dtype, given.samples, given.train):
            row = {"name": f"{info.formatted_name} {dtype} {number}", "suite": "ops", "kind": kind}
            if isinstance(found, str):
                yield row | {"status": "skipped", "why": found}
            else:
                status = "agrees" if found.agrees else "differs"
                yield row | {"status": status, "error": found.error, "why": found.why}


if __name__ == "__main__":
    sys.exit(main())
