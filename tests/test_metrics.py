"""Measures of the package's own text that may only get better: a ratchet.

Complexity is McCabe's over the syntax tree: 1, and 1 for each `if`, `for`, `while`, `except`,
conditional expression, further operand of `and` and `or`, clause of a comprehension and `case`;
functions inside a function count in it and for themselves. A tuning constant is a number in
capitals at the top of a module of the compiler, outside the tables of a target.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import fulgurite

pytestmark = pytest.mark.device("none")

PACKAGE = Path(__file__).parents[1] / "fulgurite"
COMPLEX, MOST_COMPLEX = 15, 30  # branches of a function that wants another data structure
LAYERS = ("graph", "kernel", "codegen")  # where a tuning constant needs a home
TABLES = ("tiling.py", "target.py", "tables.py")  # which it has here


@dataclass(frozen=True)
class Limits:
    """What the package has; lower a number when it has less (the goal is behind it)."""

    complex_functions: int = 21
    most_complex_functions: int = 0
    class_depth: int = 4
    tuning_constants: int = 15


LIMITS = Limits()


NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.alias)  # most nodes
ONE = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)


def complexities(tree: ast.AST) -> list[tuple[int, str]]:
    """McCabe's number and the place of each function in a tree, with those inside it."""
    found = []

    def branches(node: ast.AST) -> int:
        if isinstance(node, LEAVES):
            return 0
        total = sum(map(branches, ast.iter_child_nodes(node)))
        if isinstance(node, ONE):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((1 + total, f"{node.lineno} {node.name}"))
        return total

    branches(tree)
    return found


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(p.relative_to(PACKAGE), ast.parse(p.read_text(encoding="utf-8"))) for p in paths]


@cache
def functions() -> list[tuple[int, str]]:
    """Complexity and place of every function, the most complex first."""
    found = [(n, f"{path}:{at}") for path, tree in trees() for n, at in complexities(tree)]
    return sorted(found, reverse=True)


def functions_over(limit: int) -> list[str]:
    return [f"{name}: {number}" for number, name in functions() if number > limit]


def constants(tree: ast.Module) -> Iterator[str]:
    """The names of a module in capitals whose values are numbers, written out."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from _numbers(target, node.value)


def _numbers(target: ast.expr, value: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, part in zip(target.elts, value.elts, strict=True):
            yield from _numbers(name, part)
    elif isinstance(target, ast.Name) and NAME.fullmatch(target.id) and _is_number(value):
        yield target.id


def _is_number(value: ast.expr) -> bool:
    """True if an expression of literals alone is a number; a truth value is none."""
    if any(isinstance(node, ast.Name | ast.Call | ast.Attribute) for node in ast.walk(value)):
        return False
    try:
        found = eval(compile(ast.Expression(value), "constant", "eval"), {"__builtins__": {}})
    except Exception:
        return False
    return isinstance(found, int | float) and not isinstance(found, bool)


def depth(kind: type) -> int:
    """How many classes of the package a class derives from, with itself."""
    own = [base for base in kind.__bases__ if base.__module__.partition(".")[0] == "fulgurite"]
    return 1 + max(map(depth, own), default=0)


def classes() -> set[type]:
    found: set[type] = set()
    for module in pkgutil.walk_packages(fulgurite.__path__, "fulgurite."):
        if not module.name.endswith("__main__"):
            try:
                members = vars(importlib.import_module(module.name)).values()
            except ModuleNotFoundError as missing:
                extras = ("torch", "triton", "starlette")  # not installed everywhere
                assert missing.name in extras
                continue
            found |= {m for m in members if inspect.isclass(m) and m.__module__ == module.name}
    return found


def holds(found: list[str], limit: int, what: str) -> None:
    listed = "\n".join(found)
    assert len(found) <= limit, f"{len(found)} {what}, {limit} were allowed:\n{listed}"


def test_no_more_functions_are_complex_than_were() -> None:
    holds(functions_over(COMPLEX), LIMITS.complex_functions, f"functions over {COMPLEX}")
    most = functions_over(MOST_COMPLEX)
    holds(most, LIMITS.most_complex_functions, f"functions over {MOST_COMPLEX}")


def test_no_class_is_deeper_than_the_deepest_was() -> None:
    known = [c for c in classes() if not issubclass(c, BaseException)]
    found = {f"{c.__module__}.{c.__name__}": depth(c) for c in known}
    deep = {name: d for name, d in found.items() if d > LIMITS.class_depth}
    assert not deep


def test_no_more_tuning_constants_are_outside_of_the_tables() -> None:
    found = [
        f"{path}: {name}"
        for path, tree in trees()
        if path.parts[0] in LAYERS and path.name not in TABLES
        for name in constants(tree)
    ]
    holds(found, LIMITS.tuning_constants, "tuning constants outside of tables")


def test_every_branch_counts_once() -> None:
    text = """
def f(x):
    def g():
        return 1 if x else 2
    for a in x:
        while a and x or g:
            try: pass
            except E: pass
    match x:
        case 1: pass
        case _: pass
    return [a for b in x for a in b if a if b]
"""
    assert complexities(ast.parse(text)) == [(2, "3 g"), (1 + 1 + 1 + 1 + 2 + 1 + 2 + 4, "2 f")]


def test_numbers_that_are_written_out_are_constants_and_others_are_not() -> None:
    text = "A, _B = 1 << 4, 2.5\nC: int = -3\nD = (1, 2)\nE = True\nF = A\nlow = 1\nG = len('ab')"
    assert list(constants(ast.parse(text))) == ["A", "_B", "C"]


def test_depth_counts_classes_of_the_package_alone() -> None:
    from fulgurite.errors import FulguriteError

    assert depth(FulguriteError) == 1
    assert depth(type("Inner", (FulguriteError,), {"__module__": "fulgurite.x"})) == 2
