"""`python -m fulgurite.torch.conformance`: a table of models and operators, with reasons."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from typing import Any

from .runner import LIMIT_SECONDS

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
    parser.add_argument("--suite", choices=["ops", "torchvision", "timm", "transformers"])
    parser.add_argument("--train", action="store_true", help="gradients as well")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--sample", action="store_true", help="a few models of every suite")
    parser.add_argument("--most", type=int, default=0, help="so many models of a suite")
    parser.add_argument("--samples", type=int, default=2, help="of each operator and dtype")
    parser.add_argument("--least", type=float, default=1.0, help="share that must agree (1)")
    parser.add_argument("--backend", default="fulgurite")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (1)")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of a model")
    parser.add_argument("--json", default="", help="a file for the rows")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--names", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        from .runner import work

        work(given.worker, given.names.split(","), given.train, given.backend)
        return 0
    rows: list[dict[str, Any]] = []
    suites = [given.suite] if given.suite else list(SAMPLE)
    for suite in suites:
        found = operators(given) if suite == "ops" else models(suite, given)
        rows += found
        print(summary(suite, found), flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    judged = [row for row in rows if row["status"] != "skipped"]
    agree = len([row for row in judged if row["status"] == "agrees"])
    return 0 if agree >= given.least * len(judged) else 1


def models(suite: str, given: Any) -> list[dict[str, Any]]:
    """Rows of a suite of models, printed as they come."""
    from .models import SUITES
    from .runner import judged_in_parallel

    try:
        names = [each.name for each in SUITES[suite]()]
    except ModuleNotFoundError as missing:
        print(f"{suite} is left out: {missing}", flush=True)
        return []
    if given.sample:
        names = [name for name in names if name in SAMPLE[suite]]
    names = [name for name in names if given.only in name]
    if given.most and len(names) > given.most:  # spread over the suite
        names = [names[i * len(names) // given.most] for i in range(given.most)]
    rows = []
    for row in judged_in_parallel(
        suite, names, given.train, given.backend, given.jobs, given.limit
    ):
        rows.append(row | {"suite": suite})
        print(line(row), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    seconds = " ".join(
        [f"{row[key]:9.4f}" if key in row else " " * 9
         for key in ("eager_seconds", "warm_seconds", "first_seconds")]
    )  # fmt: skip
    error = f"{row['error']:8.1e}" if "error" in row else " " * 8
    left = ", ".join(row.get("eager_operators", {}))
    why = row.get("why", "") + (f" [torch ran {left}]" if left else "")
    return f"{row['status']:8} {row['name']:36} {error} {seconds}  {why}"


def operators(given: Any) -> list[dict[str, Any]]:
    """Rows of the OpInfo samples; only those that do not agree are printed."""
    from .ops import cases, judge

    rows: list[dict[str, Any]] = []
    warnings.simplefilter("ignore")
    for info, dtype in cases(given.only):
        for number, found in judge(info, dtype, given.samples, given.train):
            row: dict[str, Any] = {"name": f"{info.formatted_name} {dtype} {number}"}
            if isinstance(found, str):
                row |= {"status": "skipped", "why": found}
            else:
                row |= {"status": "agrees" if found.agrees else "differs", "error": found.error,
                        "why": found.why}  # fmt: skip
            rows.append(row)
            if row["status"] == "differs":
                print(line(row), flush=True)
    return rows


def summary(suite: str, rows: list[dict[str, Any]]) -> str:
    """How many agree, of those that eager torch runs."""
    counts = Counter([row["status"] for row in rows])
    ran = len(rows) - counts["skipped"]
    share = 100 * counts["agrees"] / ran if ran else 100.0
    others = ", ".join([f"{n} {status}" for status, n in counts.items() if status != "agrees"])
    return f"{suite}: {counts['agrees']} of {ran} agree ({share:.1f} %)" + (
        f"; {others}" if others else ""
    )


if __name__ == "__main__":
    sys.exit(main())
