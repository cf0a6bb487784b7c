"""Rows of the judge in a file, and the table that they make.

In: rows, one for each model and kind (forward, training), as they are found. Out: a file with a
line of JSON for each, from which a run that was ended goes on; and a table in Markdown with a line
for each architecture: forward, training, and the reason where one does not agree.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KINDS = ("forward", "training")
Row = dict[str, Any]


def read(path: str) -> list[Row]:
    """The rows of a file; none if there is no file. A later row takes the place of an earlier."""
    if not path or not Path(path).exists():
        return []
    found: dict[tuple[str, ...], Row] = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[row["suite"], row["name"], row["kind"]] = row
    return list(found.values())


def summary(rows: Sequence[Row]) -> str:
    """A line for each suite and kind: how many agree, of those that eager torch runs."""
    lines = []
    for suite, kind in dict.fromkeys([(row["suite"], row["kind"]) for row in rows]):
        counts = Counter([r["status"] for r in rows if (r["suite"], r["kind"]) == (suite, kind)])
        ran = counts.total() - counts["skipped"]
        share = 100 * counts["agrees"] / ran if ran else 100.0
        others = [f"{n} {status}" for status, n in counts.items() if status != "agrees"]
        lines.append("; ".join([f"{suite}, {kind}: {counts['agrees']} of {ran} agree"
                                f" ({share:.1f} %)", *others]))  # fmt: skip
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    """Rows in Markdown, those of one architecture in one line; whatever eager torch cannot run
    is counted by reason, and not listed."""
    models: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        models.setdefault((row["suite"], row["name"]), {})[row["kind"]] = row
    lines = [
        "| suite | architecture | forward | training | reason |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (suite, name), kinds in sorted(models.items()):
        if all([row["status"] == "skipped" for row in kinds.values()]):
            continue
        shown = [kinds[kind]["status"] if kind in kinds else "" for kind in KINDS]
        lines.append(f"| {suite} | {name} | {' | '.join(shown)} | {_reason(kinds)} |")
    skipped = Counter([_short(row["why"]) for row in rows if row["status"] == "skipped"])
    lines += ["", "| skipped: rows | why |", "| --- | --- |"]
    lines += [f"| {count} | {_cell(why)} |" for why, count in skipped.most_common()]
    return "\n".join(lines) + "\n"


def _reason(kinds: dict[str, Row]) -> str:
    """Why an architecture's rows are what they are, with what torch ran of it."""
    whys = dict.fromkeys(
        [row.get("why", "") for row in kinds.values() if row["status"] != "agrees"]
    )
    left = dict.fromkeys(
        [name for row in kinds.values() for name in row.get("eager_operators", {})]
    )
    found = [why for why in whys if why]
    return _cell("; ".join([*found, f"torch ran {', '.join(left)}"] if left else found))


def _short(why: str) -> str:
    """The beginning of a reason, which many models share."""
    return why.removeprefix("eager torch: ")[:60]


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
