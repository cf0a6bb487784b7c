"""Tests of fulgurite/runtime/device.py: devices by name, and life without a compiler."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import fulgurite as fg
from fulgurite.runtime.device import DeviceError, device_names, get_device

pytestmark = pytest.mark.device("cpu")

ROOT = Path(__file__).parents[2]


def test_devices_are_known_by_name_and_made_once() -> None:
    assert {"cpu", "reference"} <= set(device_names())
    assert get_device("reference") is get_device("reference")
    with pytest.raises(DeviceError, match=r"one of .*reference"):
        get_device("abacus")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NumPy and nothing else that we could use: no llvmlite."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("numpy", "ml_dtypes"):
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        package = Path(spec.origin).parent
        (folder / name).symlink_to(package)
        libraries = package.parent / f"{name}.libs"
        if libraries.exists():
            (folder / libraries.name).symlink_to(libraries)
    (folder / "fulgurite").symlink_to(ROOT / "fulgurite")
    return folder


def run_bare(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("FULGURITE", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-S", "-c", text], capture_output=True, text=True, timeout=120,
        env=settings | {"PYTHONPATH": str(folder), "FULGURITE_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip


def test_without_a_compiler_all_works_on_the_reference_device_with_one_warning(bare: Path) -> None:
    done = run_bare(
        bare,
        """
import fulgurite as fg
try:
    import llvmlite
    raise SystemExit("this environment has llvmlite")
except ImportError:
    pass
x = fg.Tensor([[1.0, 2.0], [3.0, 4.0]])
print((x @ x + 1).tolist(), fg.softmax(fg.ones((300, 400)), axis=-1).sum().round().item())
print(fg.schedule(x * 2 + 1).run()[0].tolist())
g = fg.grad(lambda a: (a * a).sum())(x)
print(g.tolist())
""",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("[[8.0, 11.0], [16.0, 23.0]] 300.0")
    assert lines[1] == "[[3.0, 5.0], [7.0, 9.0]]" and lines[2] == "[[2.0, 4.0], [6.0, 8.0]]"
    assert done.stderr.count("RuntimeWarning") == 1 and "pip install 'llvmlite>=" in done.stderr


@pytest.mark.parametrize("how", ["forbidden", "None", "a stand-in", "an empty folder"])
def test_a_compiler_that_cannot_be_imported_is_none(bare: Path, how: str, tmp_path: Path) -> None:
    (tmp_path / "llvmlite").mkdir()
    done = run_bare(
        bare,
        f"""
import sys, types
class Forbids:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "llvmlite":
            raise ImportError("not here")
how = {how!r}
if how == "forbidden":
    sys.meta_path.insert(0, Forbids())
elif how == "an empty folder":
    sys.path.append({str(tmp_path)!r})
else:
    sys.modules["llvmlite"] = None if how == "None" else types.ModuleType("llvmlite")
import fulgurite as fg
print(fg.softmax(fg.ones((300, 400)), axis=-1).sum().round().item())
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "300.0"
    assert done.stderr.count("RuntimeWarning") == 1 and "pip install 'llvmlite>=" in done.stderr


def test_a_compiler_that_is_too_old_is_none_and_the_doctor_fails(
    bare: Path, tmp_path: Path
) -> None:
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    (tmp_path / "llvmlite-0.44.0.dist-info").mkdir()
    done = run_bare(
        bare,
        f"""
import sys
sys.path.append({str(tmp_path)!r})
import fulgurite as fg
print(fg.softmax(fg.ones((300, 400)), axis=-1).sum().round().item())
from fulgurite.cli import main
sys.exit(main(["doctor"]))
""",
    )
    assert done.returncode == 1 and done.stdout.startswith("300.0")
    assert "llvmlite 0.44.0 is too old" in done.stderr
    assert "FAILED: llvmlite 0.44.0 is too old" in done.stdout and ">=0.45" in done.stdout


def test_without_a_compiler_the_doctor_says_so(bare: Path) -> None:
    done = run_bare(bare, "import sys; from fulgurite.cli import main; sys.exit(main(['doctor']))")
    assert "llvmlite" in done.stdout


def test_a_device_that_is_asked_for_in_the_options_must_exist() -> None:
    with pytest.raises(DeviceError, match="abacus"), fg.config(device="abacus"):
        pass


# --- the boundary --------------------------------------------------------------------------------

PACKAGE = Path(fg.__file__).parent
HOST_DEVICES = ("runtime/host", "runtime/cpu")
ABOVE = [
    path for path in sorted(PACKAGE.rglob("*.py"))
    if not path.relative_to(PACKAGE).as_posix().startswith(HOST_DEVICES)
]  # fmt: skip


def test_no_device_is_asked_for_by_its_name() -> None:
    names, found = {"cpu", "reference", "cuda", "host"}, []
    for path in ABOVE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            each = [e for s in sides for e in (s.elts if isinstance(s, ast.Tuple) else [s])]
            texts = {e.value for e in each if isinstance(e, ast.Constant)}
            kinds = [ast.unparse(s) for s in sides]
            if texts & names and any("device" in k or ".name" in k for k in kinds):
                found.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    assert not found, "say it by an attribute of the device:\n" + "\n".join(found)


def test_nobody_above_the_host_devices_knows_their_buffers() -> None:
    words = ("HostBuffer", "BlockBuffer", "SharedBuffer", "ReferenceDevice", "CpuDevice")
    found = [
        f"{path}: {word}" for path in ABOVE if path.name != "device_base.py"
        for word in words if word in path.read_text(encoding="utf-8")
    ]  # fmt: skip
    assert not found, "speak of `Device` and `Buffer`:\n" + "\n".join(found)
