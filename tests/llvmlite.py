"""The oldest and the newest llvmlite that we say we support, each in a virtual environment.

In: versions, or none for those of `fulgurite/codegen/cpu/llvm/versions.py` (0.45 for Intel Macs,
whose wheels ended there, up to 0.50). Out: the output of a short run of native code in each, and 1
if one failed. Run it with `make test-llvmlite`; environments are kept in .venv/llvmlite for the
next time. What runs: the self-test of `fulgurite doctor`, which compiles maps, reductions,
products, folds and every vectorised function, and a few files of the suite that compile each kind
of kernel.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fulgurite.codegen.cpu.llvm.versions import NEWEST, OLDEST

ROOT = Path(__file__).parents[1]
TOOLS = ("numpy", "ml_dtypes", "pytest>=8.4", "hypothesis>=6.100")
SMOKE = (
    "tests/codegen/cpu/irregular/test_scatter.py", "tests/codegen/cpu/irregular/test_sort.py",
    "tests/codegen/cpu/gemm/test_plan.py",
    "tests/codegen/cpu/stream/test_two_pass.py", "tests/runtime/test_control.py",
    "tests/runtime/cpu/test_refusals.py",
)  # fmt: skip


def python_of(package: str, version: str, tools: Sequence[str] = TOOLS) -> Path:
    """The interpreter of an environment with this version of a package, made if there is none."""
    folder = Path(sys.prefix) / package / version
    found = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done = folder / ".installed"
    if not done.exists():
        print(f"Installing {package} {version} into {folder} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(found), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, f"{package}=={version}.*", *tools], check=True)
        done.touch()
    return found


def passes(version: str, files: Sequence[str] = SMOKE) -> bool:
    """True if native code works with this version."""
    python = str(python_of("llvmlite", version))
    settings = os.environ | {
        "PYTHONPATH": str(ROOT), "FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native",
        "FULGURITE_DISK_CACHE": "0",
    }  # fmt: skip
    codes = []
    for command in (["fulgurite", "doctor"], ["pytest", "-q", "-x", *files]):
        print(f"llvmlite {version}: {' '.join(command[:2])}", flush=True)
        codes.append(subprocess.run([python, "-m", *command], cwd=ROOT, env=settings).returncode)
    return codes == [0, 0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Try every version; 1 if one does not work."""
    parser = argparse.ArgumentParser(prog="python -m tests.llvmlite", description=__doc__)
    ends = [".".join(map(str, version)) for version in (OLDEST, NEWEST)]
    parser.add_argument("versions", nargs="*", default=ends, help="such as 0.46")
    failed = [v for v in parser.parse_args(arguments).versions if not passes(v)]
    print(f"native code FAILS with llvmlite {', '.join(failed)}" if failed else "native code works")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
