"""The reference pages, made from the tables: `python docs/tools/reference.py --write`.

In: the op table, the laws, the public functions and the options. Out: docs/ops.md, docs/laws.md,
docs/functions.md and docs/config.md. A test compares them with the files, so none can say what is
no longer so.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import fulgurite
from fulgurite.config import Options
from fulgurite.core.operators import OPS
from fulgurite.core.rewriting.pattern import Law
from fulgurite.graph.passes import simplify  # noqa: F401  it enters its rules
from fulgurite.graph.passes.laws import SIMPLIFY
from fulgurite.kernel.stream.laws import LAWS, Pattern
from fulgurite.kernel.stream.terms import PRODUCT

KINDS = {"b": "bool", "i": "signed", "u": "unsigned", "f": "float", "c": "complex"}
PARTS = ("linalg", "fft", "random", "tree")


def ops_page() -> str:
    """The op table as a page."""
    lines = [
        "# Ops", "",
        "Everything a graph is made of, from the op table (`fulgurite/core/ops/`). Users call",
        "[functions](functions.md), which are compositions of these. Levels: a tensor graph,",
        "a kernel's body, or both. Made by `python docs/tools/reference.py --write`.",
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
        "it all, with an example. Made by `python docs/tools/reference.py --write`.",
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


LAWS_TEXT = """# Laws

What may replace what. `fg.explain(x, stage="simplify")` shows what they did, and the pages of
`fulgurite viz` name each one that fired. Made by `python docs/tools/reference.py --write`.

## Simplification

These keep every bit, in the types that are named; tests evaluate both sides on hostile numbers, and
prove those of whole numbers (`fulgurite/graph/passes/laws.py`). *unwrapped*: only where bounds show
that no whole number wraps around.
"""
RULES_TEXT = """
## Rules

What an equation cannot say is a function that answers or declines
(`fulgurite/graph/passes/simplify.py`).
"""
FOLDS_TEXT = """
## Folds

How an online reduction is found: what can leave a sum or an extreme (`kernel/stream/laws.py`).
They hold for real numbers and change last bits, so `exact=True` turns them off. `c` and `cs` are
the same for all that is folded, `v` is not, `ps` are positive, and `fs` were folded themselves;
`ys` and `zs` are several factors.
"""


def laws_page() -> str:
    """The laws of simplification and of folds, and the rules that are functions."""
    lines = [LAWS_TEXT, "| law | | becomes | of |", "| --- | --- | --- | --- |"]
    for law in SIMPLIFY.laws():
        kinds = {dtype.kind for dtype in law.dtypes}
        of = "any" if kinds == set(KINDS) else ", ".join(KINDS[k] for k in KINDS if k in kinds)
        of += ", unwrapped" if law.unwrapped else ""
        lines.append(f"| {law.name} | `{law.left!r}` | `{law.right!r}` | {of} |")
    lines += [RULES_TEXT, "| rule | |", "| --- | --- |"]
    rules = {rule.name: rule for rule in SIMPLIFY.rules if not isinstance(rule, Law)}
    for name, rule in rules.items():
        first = (inspect.getdoc(rule.build) or "").split("\n", 1)[0].replace("*", "\\*")
        lines.append(f"| {name} | {first} |")
    lines += [
        FOLDS_TEXT, "| law | | becomes |", "| --- | --- | --- |",
        *[f"| {law.name} | `{_written(law.left)}` | `{_written(law.right)}` |" for law in LAWS],
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _written(pattern: Pattern) -> str:
    """A pattern of folds as one would write it."""
    if not pattern.op:
        return pattern.name or str(pattern.number)
    parts = [_written(source) for source in pattern.src]
    if pattern.op == PRODUCT:
        inner = [source.op == PRODUCT for source in pattern.src]
        return " * ".join([f"({p})" if i else p for i, p in zip(inner, parts, strict=True)])
    name = {"add": "sum"}.get(pattern.fold, pattern.fold) or pattern.op
    return f"{name}({', '.join(parts)})"


def config_page() -> str:
    """The table of options as a page."""
    rows = [
        f"| `{f.name}` | `FULGURITE_{f.name.upper()}` | `{f.default!r}` | {f.metadata['doc']} |"
        for f in fields(Options)
    ]
    head = (
        "# Options\n\n`with fg.config(name=value):` for a block, the environment for a process.\n"
    )
    table = "| option | environment | default | what it does |\n| --- | --- | --- | --- |"
    return "\n".join([head, table, *rows]) + "\n"


PAGES = {
    "ops.md": ops_page,
    "laws.md": laws_page,
    "functions.md": functions_page,
    "config.md": config_page,
}


def main(arguments: list[str]) -> int:
    """Print the pages, or with --write put them into docs/."""
    for name, page in PAGES.items():
        if "--write" in arguments:
            target = Path(__file__).parents[1] / name
            target.write_text(page(), encoding="utf-8")
            print(f"wrote {target}")
        else:
            print(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
