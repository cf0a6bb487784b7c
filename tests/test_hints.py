"""Tests of fulgurite/_hints.py and fulgurite/_signatures.py: what users of other libraries meet."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_overloads

import pytest

import fulgurite as fg
from fulgurite import _hints

X = fg.Tensor([1.0, 2.0])


@pytest.mark.parametrize(("code", "hint"), [
    ("fg.manual_seed(0)", "fg.random.seed(0)"), ("fg.sofmax(X)", "softmax"), ("fg.long", "int64"),
    ("fg.nn.Lineer", "Linear"), ("fg.optim.Adem", "Adam"), ("fg.linalg.invv", "inv"),
    ("fg.random.PRNGKey(0)", "fg.random.key(0)"), ("fg.io.load_safetensor", "load_safetensors"),
    ("fg.tree.flaten", "flatten"), ("fg.fft.FFT", "fft"), ("fg.data.Dataloader", "DataLoader"),
    ("X.cuda()", "x.to("), ("X.data", "x.detach()"), ("X.unsqueeze_(0)", "x = x.unsqueeze("),
    ("fg.nn.functional.reluu", "relu"), ("fg.nn.functional.conv2D", "conv2d"),
    ("fg.nn.Linear(1, 1).cuda()", "x.to("), ("fg.nn.Linear(1, 1).weight.data", "x.detach()"),
])  # fmt: skip
def test_a_name_of_elsewhere_or_misspelt_is_an_error_with_a_hint(code: str, hint: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute") as caught:
        eval(code)
    assert hint in str(caught.value).partition("try: ")[2]


@pytest.mark.parametrize(("code", "hint"), [
    ("fg.jit(static_argnums=0)", "leave it out"), ("fg.jit(donate_argnums=0)", "donate=(0,)"),
    ("fg.sum(X, axes=0)", "axis"), ("X.sum(dimension=0)", "it takes axis"),
    ("X.size(0)", "x.shape"), ("X.size()", "x.shape"), ("fg.softmax(X, dimm=0)", "dim"),
])  # fmt: skip
def test_a_call_as_elsewhere_is_a_type_error_with_a_hint(code: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        eval(code)
    assert hint in str(caught.value).partition("try: ")[2]


def test_python_itself_tells_the_nearest_attribute_of_a_tensor() -> None:
    program = "import fulgurite as fg; fg.Tensor(1.0).sofmax()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Did you mean: 'softmax'" in ran.stderr


def test_hints_are_of_names_that_are_not_there_and_say_names_that_are() -> None:
    holders: dict[str, Any] = {
        "Tensor": X, "Module": fg.nn.Module(), "fulgurite": fg, "fulgurite.random": fg.random,
        "fulgurite.nn": fg.nn, "fulgurite.jit": None,
    }  # fmt: skip
    assert set(holders) == set(_hints.FOREIGN)
    for where, table in _hints.FOREIGN.items():
        for name, hint in table.items():
            assert not hasattr(holders[where], name), f"{where} has {name}: no hint is needed"
            for path in re.findall(r"\bfg((?:\.[a-zA-Z_0-9]+)+)", hint):
                found: Any = fg
                for part in path[1:].split("."):
                    found = getattr(found, part)
            for method in re.findall(r"\bx\.([a-z_]+)", hint):
                assert hasattr(X, method), f"{hint}: a tensor has no {method}"
    assert all(hasattr(X, name[:-1]) and not hasattr(X, name) for name in _hints.IN_PLACE)


def test_dir_lists_what_there_is_and_nothing_else() -> None:
    shown = dir(fg)
    assert {"nn", "optim", "io", "load", "save", "softmax", "cat", "tensor", "random"} <= set(shown)
    for module in (fg, fg.nn, fg.optim, fg.random, fg.linalg, fg.fft, fg.io, fg.data, fg.onnx):
        for name in dir(module):
            getattr(module, name)
        assert not {"np", "annotations", "Any", "surface", "_surface"} & set(dir(module))
    assert not [n for n in shown if n.startswith("_") and not n.endswith("__")]
    assert {"sum", "shape", "view", "entry"} <= set(dir(X)) and "cuda" not in dir(X)
    assert "weight" in dir(fg.nn.Linear(1, 1)) and "cuda" not in dir(fg.nn.Linear(1, 1))


def test_asking_in_vain_costs_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> str:
        raise AssertionError("a hint that nobody reads")

    monkeypatch.setattr(_hints, "hint_for", unwanted)
    assert not hasattr(fg, "sofmax") and not hasattr(fg.nn, "Lineer") and not hasattr(X, "cuda")


def test_the_number_of_elements_is_a_number_everywhere() -> None:
    size = fg.zeros((2, 3)).size
    assert size == 6 and isinstance(size, int) and repr(size) == str(size) == f"{size}" == "6"
    assert json.dumps(size) == "6" and fg.zeros(size).shape == (6,)
    assert type(fg.zeros(size).shape[0]) is int and type(size + 0) is int
    assert type(pickle.loads(pickle.dumps(size))) is int and copy.deepcopy(size) == 6
    assert fg.jit(lambda x: x.sum() / x.size)(fg.ones(4)).item() == 1.0


# --- types ---------------------------------------------------------------------------------------

USER = """
import fulgurite as fg
x = fg.tensor([1.0], requires_grad=True)
reveal_type(x)
@fg.jit
def step(x: fg.Tensor, rate: float) -> fg.Tensor: return x * rate
reveal_type(step(x, 0.1))
@fg.jit(donate=("x",))
def pair(x: fg.Tensor) -> tuple[fg.Tensor, int]: return x, 1
reveal_type(pair(x))
class Net(fg.nn.Module):
    def __init__(self) -> None: self.layer = fg.nn.Linear(1, 1)
    @fg.jit
    def loss(self, x: fg.Tensor) -> fg.Tensor: return self(x)[0].sum()
    def forward(self, x: fg.Tensor, scale: float = 1.0) -> tuple[fg.Tensor, float]:
        return self.layer(x) * scale, scale
reveal_type(Net()(x))
reveal_type(Net().loss(x))
reveal_type(fg.nn.Linear(1, 1)(x))
reveal_type(fg.grad(step)(x, 0.1))
reveal_type(fg.value_and_grad(step)(x, 0.1))
reveal_type(fg.vmap(step)(x, 0.1))
reveal_type(fg.checkpoint(step)(x, 0.1))
fg.grad(lambda x: (x * x).sum())(x)
fg.jacobian(fg.jit(lambda x: x * x))(x)
step("x", 0.1)
Net()(x, scale="large")
fg.nn.Linear(1, 1)(x, x)
"""
TENSOR = "fulgurite.tensor.Tensor"
SEEN = [
    TENSOR, TENSOR, f"tuple[{TENSOR}, int]", f"tuple[{TENSOR}, float]", TENSOR, TENSOR, TENSOR,
    f"tuple[{TENSOR}, {TENSOR}]", TENSOR, TENSOR,
]  # fmt: skip


@pytest.mark.slow
def test_mypy_sees_the_types_of_a_users_program(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "user.py"]
    environment = {"MYPYPATH": str(Path(fg.__file__).parents[1]), "PATH": ""}
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    ).stdout
    assert re.findall(r'Revealed type is "(.*)"', found) == SEEN, found
    wrong = [line for line in found.splitlines() if "error:" in line]
    assert len(wrong) == 3 and all("user.py:" in line for line in wrong), found
    assert [int(line.split(":")[1]) for line in wrong] == [26, 27, 28]


def test_transforms_declare_what_they_keep_of_a_function() -> None:
    for transform in (fg.jit, fg.grad, fg.value_and_grad):
        assert len(get_overloads(transform)) == 2
    for keeping in (fg.vmap, fg.checkpoint, fg.jacobian, fg.hessian):
        assert "Function[P" in str(inspect.signature(keeping).return_annotation)
    package = Path(fg.__file__).parent
    assert (package / "py.typed").exists()
    tree = ast.parse((package / "__init__.py").read_text())
    known = [n.name for part in tree.body if isinstance(part, ast.If) for n in part.body
             if isinstance(n, ast.FunctionDef)]  # fmt: skip
    assert known == ["tensor"]
    assert "_Forward[P, Result]" in (package / "nn" / "module" / "__init__.py").read_text()
