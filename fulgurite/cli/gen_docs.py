"""The reference pages, made from the tables: `python -m fulgurite.cli.gen_docs --write`.

In: the op table and the public functions. Out: docs/ops.md and docs/functions.md. A test compares
them with the files, so neither can say what is no longer so.
"""

from __future__ import annotations

import inspect
import sys
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import fulgurite

from ..core.operators import OPS

KINDS = {"b": "bool", "i": "signed", "u": "unsigned", "f": "float", "c": "complex"}
PARTS = ("linalg", "fft", "random", "tree")


def ops_page() -> str:
    """The op table as a page."""
    lines = [
        "# Ops", "",
        "Everything a graph is made of, from the op table (`fulgurite/core/ops/`). Users call",
        "[functions](functions.md), which are compositions of these. Levels: a tensor graph,",
        "a kernel's body, or both. Made by `python -m fulgurite.cli.gen_docs --write`.",
    ]  # fmt: skip
    for family, ops in groupby(sorted(OPS.values(), key=_family), lambda op: op.family):
        lines += ["", f"## {family}", "", "| op | meaning | takes | gradient | level |",
                  "| --- | --- | --- | --- | --- |"]  # fmt: skip
        for op in ops:
            takes = "any" if set(op.kinds) == set(KINDS) else ", ".join(KINDS[k] for k in op.kinds)
            levels = "both" if len(op.levels) > 1 else next(iter(op.levels), "")
            slope = "yes" if op.grad is not None or op.siblings is not None else "no"
            doc = op.doc.replace("|", "\\|")
            lines.append(f"| `{op.name}` | {doc} | {takes} | {slope} | {levels} |")
    return "\n".join(lines) + "\n"


def _family(op: Any) -> tuple[str, str]:
    return op.family, op.name


def functions_page() -> str:
    """Every public function, with the first line of what it says of itself."""
    lines = [
        "# Functions", "",
        "Every public name, by where it is found. Names are the array API standard's; those of",
        "NumPy and torch work too (`fulgurite/tensor/torch_aliases.py`). `help(fg.softmax)` shows",
        "it all, with an example. Made by `python -m fulgurite.cli.gen_docs --write`.",
    ]  # fmt: skip
    lines += _section("fg", fulgurite, fulgurite.__all__)
    for part in PARTS:
        module = getattr(fulgurite, part)
        names = getattr(module, "__all__", None) or [
            n for n, f in vars(module).items()
            if not n.startswith("_") and getattr(f, "__module__", "") == module.__name__
            and callable(f)
        ]  # fmt: skip
        lines += _section(f"fg.{part}", module, names)
    return "\n".join(lines) + "\n"


def _section(title: str, module: ModuleType, names: list[str]) -> list[str]:
    lines = ["", f"## {title}", "", "| name | |", "| --- | --- |"]
    for name in sorted(names, key=str.lower):
        value = getattr(module, name)
        if callable(value) and not inspect.ismodule(value):
            first = (inspect.getdoc(value) or "").split("\n", 1)[0].replace("|", "\\|")
            lines.append(f"| `{name}` | {first} |")
    return lines


PAGES = {"ops.md": ops_page, "functions.md": functions_page}


def main(arguments: list[str]) -> int:
    """Print the pages, or with --write put them into docs/."""
    for name, page in PAGES.items():
        if "--write" in arguments:
            target = Path(__file__).parents[2] / "docs" / name
            target.write_text(page(), encoding="utf-8")
            print(f"wrote {target}")
        else:
            print(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
