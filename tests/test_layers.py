"""The folders are layers: imports point only to the left; importing is light.

Holds for imports inside functions and under TYPE_CHECKING too: a layer that only
names a type of a later layer still cannot be read without it.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fulgurite"
LAYERS = ["core", "graph", "kernel", "codegen", "runtime"]  # also the order data flows
SHARED = ["errors", "config", "_lazy"]  # the top-level modules that every layer may import
HEAVY = {"llvmlite", "triton", "onnx", "torch", "jax", "tqdm", "platformdirs", "opt_einsum"}

SOURCES = sorted(PACKAGE.glob("**/*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imported(relative: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and top-level name inside fulgurite ("" is the package itself) of each import."""
    package = ("fulgurite", *relative.parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = [*base, *(node.module.split(".") if node.module else ())]
            modules = [[*prefix, alias.name] for alias in node.names]
        else:
            continue
        for module in modules:
            if module[0] == "fulgurite":
                yield node.lineno, module[1] if len(module) > 1 else ""


def violations(relative: Path, source: str) -> list[str]:
    """The imports of one file that do not point left; user-side files have none."""
    layer = relative.parts[0]
    if layer not in LAYERS:
        return []
    allowed = {*LAYERS[: LAYERS.index(layer) + 1], *SHARED}
    return [
        f"fulgurite/{relative}:{line} imports {target or 'fulgurite itself'}: "
        f"{layer}/ may import {', '.join(sorted(allowed))}"
        for line, target in imported(relative, ast.parse(source))
        if target not in allowed
    ]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_point_left(path: Path) -> None:
    found = violations(path.relative_to(PACKAGE), path.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("core/node.py", "from ..graph import registry"),
        ("core/node.py", "from ..graph.ir.registry import Entry"),
        ("core/node.py", "from .. import graph"),
        ("core/node.py", "from fulgurite.runtime.plan import Plan"),
        ("core/node.py", "import fulgurite.runtime.plan"),
        ("core/node.py", "import fulgurite"),
        ("core/node.py", "from fulgurite import tensor"),
        ("core/node.py", "from ..tensor import Tensor"),
        ("core/node.py", "def f():\n    from ..graph import registry"),
        ("core/ops/elementwise.py", "from ...graph import registry"),
        ("core/ops/__init__.py", "from ...graph import registry"),
        ("codegen/cpu/loops/template.py", "from ....runtime import device"),
        ("runtime/plan.py", "from ..nn import Module"),
    ],
)
def test_an_import_to_the_right_is_caught(file: str, source: str) -> None:
    assert len(violations(Path(file), source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("core/node.py", "from . import ops\nfrom .dtype import DType\nfrom .. import errors"),
        ("core/ops/elementwise.py", "from ..dtype import DType\nfrom ...errors import Error"),
        ("core/ops/__init__.py", "from . import elementwise"),
        (
            "graph/passes/simplify.py",
            "from ...core.node import Node\nfrom ...config import options",
        ),
        ("runtime/realize.py", "from ..codegen import cpu\nimport fulgurite.core.node"),
        ("core/node.py", "import numpy.core\nfrom graph import x"),
        ("tensor/methods.py", "from ..runtime import realize"),
        ("nn/linear.py", "from .. import tensor"),
    ],
)
def test_an_import_to_the_left_is_fine(file: str, source: str) -> None:
    assert not violations(Path(file), source)


def test_importing_fulgurite_imports_nothing_heavy_or_optional() -> None:
    code = "import sys; old = set(sys.modules); import fulgurite; print(*set(sys.modules) - old)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert "fulgurite" in loaded
    assert not loaded & HEAVY
