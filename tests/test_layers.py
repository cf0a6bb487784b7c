"""The folders are layers: imports point only to the left; importing is light.

Holds for imports inside functions and under TYPE_CHECKING too: a layer that only
names a type of a later layer still cannot be read without it.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.device("none")

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fulgurite"
LAYERS = ["core", "graph", "kernel", "codegen", "runtime"]  # also the order data flows
SUBLAYERS = {  # of a layer: its sub-packages, in the order data flows
    "graph": [["ir"], ["passes"], ["fusion"], ["memory"]],
    "kernel": [["transform"], ["contract"], ["stream"]],
    "codegen": [["common"], ["cpu", "cuda"]],
    "runtime": [["cache"], ["host"], ["cpu", "cuda"], ["sizes"], ["distributed"]],
}
SHARED = ["errors", "config", "_lazy"]  # the top-level modules that every layer may import
HEAVY = {
    *("llvmlite", "mpi4py", "triton", "onnx", "torch", "jax", "tqdm", "platformdirs", "opt_einsum")
}

SOURCES = sorted(PACKAGE.glob("**/*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(relative: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and top-level name inside fulgurite ("" is the package itself) of each import."""
    for line, module in modules_of(relative, tree):
        yield line, module[1] if len(module) > 1 else ""


def modules_of(relative: Path, tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Line and full name, in parts, of each import from inside fulgurite."""
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
                yield node.lineno, module


def violations(relative: Path, tree: ast.Module) -> list[str]:
    """The imports of one file that do not point left; user-side files have none."""
    layer = relative.parts[0]
    if layer not in LAYERS:
        return []
    allowed = {*LAYERS[: LAYERS.index(layer) + 1], *SHARED}
    return [
        f"fulgurite/{relative}:{line} imports {target or 'fulgurite itself'}: "
        f"{layer}/ may import {', '.join(sorted(allowed))}"
        for line, target in imported(relative, tree)
        if target not in allowed
    ]


def backward(relative: Path, tree: ast.Module) -> list[str]:
    """The imports of one file from a sub-package that is later than its own, or beside it."""
    if relative.parts[0] not in SUBLAYERS or len(relative.parts) < 3:
        return []
    layer, mine = relative.parts[:2]
    order = {name: (i, name) for i, some in enumerate(SUBLAYERS[layer]) for name in some}
    assert mine in order, f"fulgurite/{relative}: where does {layer}/{mine} stand in SUBLAYERS?"
    later = {name for name, place in order.items() if place[0] >= order[mine][0]} - {mine}
    return [
        f"fulgurite/{relative}:{line} imports {layer}/{module[2]}, which comes after {mine}"
        for line, module in modules_of(relative, tree)
        if module[1:2] == [layer] and len(module) > 2 and module[2] in later
    ]


def test_imports_point_left() -> None:
    found: list[str] = []
    for path in SOURCES:
        relative, tree = path.relative_to(PACKAGE), tree_of(path)
        found += [*violations(relative, tree), *backward(relative, tree)]
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
        ("core/node.py", "def f():\n    with FORK_LOCK:\n        from ..graph import registry"),
        ("core/ops/elementwise.py", "from ...graph import registry"),
        ("core/ops/__init__.py", "from ...graph import registry"),
        ("codegen/cpu/loops/template.py", "from ....runtime import device"),
        ("runtime/plan.py", "from ..nn import Module"),
    ],
)
def test_an_import_to_the_right_is_caught(file: str, source: str) -> None:
    assert len(violations(Path(file), ast.parse(source))) == 1


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
    assert not violations(Path(file), ast.parse(source))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("graph/ir/lower.py", "from ..passes import simplify"),
        ("graph/passes/cancel.py", "from ..fusion.machine import time_of"),
        ("graph/fusion/greedy.py", "def f():\n    from ..memory.reorder import sooner"),
        ("codegen/cpu/render.py", "from ..cuda.render import render"),
        ("codegen/cuda/render.py", "from fulgurite.codegen.cpu import render"),
    ],
)
def test_an_import_to_a_later_sub_package_is_caught(file: str, source: str) -> None:
    assert len(backward(Path(file), ast.parse(source))) == 1


def test_importing_fulgurite_imports_nothing_heavy_or_optional() -> None:
    code = "import sys; old = set(sys.modules); import fulgurite; print(*set(sys.modules) - old)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert "fulgurite" in loaded
    assert not loaded & HEAVY


FIRST_KERNEL = """
import sys, numpy, fulgurite as fg
fg.softmax(fg.Tensor(numpy.ones((64, 1024), "float32"))).numpy()
fg.layer_norm(fg.Tensor(numpy.ones((64, 256), "float32")), (256,)).numpy()
print(*[name for name in sys.modules if name.startswith("fulgurite.")])
"""
FIRST_KERNEL_MODULES = 264  # half a millisecond each: the first call waits for them
NOT_OF_SOFTMAX = (  # what the first kernel of a process has no use for
    "cli", "distributed", "interop", "jit", "look", "nn", "onnx", "optim", "torch", "train",
    "codegen.cpu.conv", "codegen.cpu.driver_", "codegen.cpu.gemm", "codegen.cpu.irregular",
    "codegen.cpu.stream", "codegen.cuda",
    "graph.passes.partition", "graph.passes.unwindow", "kernel.stream", "runtime.cuda.",
    "runtime.distributed.mpi", "runtime.sizes.automatic", "runtime.sizes.symbolic",
)  # fmt: skip


def test_the_first_kernel_loads_only_the_modules_it_needs(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FIRST_KERNEL], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "FULGURITE_CACHE_DIR": str(tmp_path), "FULGURITE_DEVICE": "cpu",
             "FULGURITE_TIER": "native", "FULGURITE_THREADS": "1"},
    )  # fmt: skip
    without = FIRST_KERNEL.replace("fg.softmax", "# ").replace("fg.layer_norm", "# ")
    before = subprocess.run(
        [sys.executable, "-c", without],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = result.stdout.split()
    new = {*loaded} - {*before.stdout.split()}
    assert "fulgurite.codegen.cpu.loops.template" in new
    unused = [n for n in new if n.removeprefix("fulgurite.").startswith(NOT_OF_SOFTMAX)]
    assert not unused
    assert len(loaded) <= FIRST_KERNEL_MODULES, len(loaded)


BY_NAME = {"import_module", "_import_module", "__import__", "lazy_import"}
# modules of users' names: found by `__getattr__`, or foreign
NAMED = {"__init__.py", "_ahead.py", "nn/__init__.py", "onnx/conformance.py", "runtime/device.py"}


def test_no_module_of_ours_is_imported_by_a_string() -> None:
    for path in [path for path in SOURCES if name_of(path) not in NAMED]:
        calls = [n.func for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call)]
        names = {f.id if isinstance(f, ast.Name) else getattr(f, "attr", "") for f in calls}
        assert not names & BY_NAME, f"{path}: import it by a statement, late ones under FORK_LOCK"


# packages that import each other, late or under TYPE_CHECKING too: why
KNOTS = {
    frozenset({"codegen", "config", "runtime"}): "options name a device, and targets have options",
    frozenset({"cli", "onnx", "train"}): "commands show how far what they run is, and run models",
    frozenset({"autodiff", "control", "distributed", "extend", "functional", "interop", "linalg",
               "nn", "optim", "random", "tensor"}):
        "a tensor's methods are the functions that take tensors",
}  # fmt: skip


def package_graph() -> dict[str, set[str]]:
    """The packages (or modules at the top) that each imports; `import fulgurite` is of all."""
    graph: dict[str, set[str]] = {}
    for path in SOURCES:
        relative = path.relative_to(PACKAGE)
        name = relative.parts[0].removesuffix(".py")
        found = imported(relative, tree_of(path))
        graph.setdefault(name, set()).update(target for _, target in found)
    del graph["__init__"]
    return {name: {t for t in targets if t in graph} for name, targets in graph.items()}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    stack = [start]
    while stack:
        for target in graph[stack.pop()] - found:
            found.add(target)
            stack.append(target)
    return found


def test_packages_that_import_each_other_are_known() -> None:
    graph = package_graph()
    reach = {name: reachable(graph, name) for name in graph}
    knots = {frozenset({b for b in reach[a] if a in reach[b]}) for a in graph}
    assert {knot for knot in knots if len(knot) > 1} == set(KNOTS)
