"""Tests of fulgurite/codegen/cuda/compilation/compiler.py: what is loaded of Triton, and how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.codegen.cuda.subprocesses import needs_triton

ROOT = Path(__file__).parents[4]

LOADED = """
import sys
from fulgurite.codegen.cuda.compilation import compiler
compiler.load_ahead().join()
assert "triton" in sys.modules and compiler._GENERATOR in sys.modules
assert compiler._GLUON not in sys.modules, "a third of the time"
from triton.compiler.code_generator import CodeGenerator
functions = CodeGenerator.statically_implemented_functions
import triton.language as tl
import triton.experimental.gluon.language as gluon  # and somebody else may use it
for name in ("static_assert", "static_print"):
    assert functions.get(getattr(gluon, name)) is not None
    assert functions.get(getattr(tl, name)) is not None
assert functions.get(int) is not None and functions.get(print) is None
print("fine")
"""


@needs_triton
def test_gluon_is_not_loaded_by_us_and_works_for_others() -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, text=True, capture_output=True, timeout=300,
        env=clean | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "fine", done.stderr


VERSION = """
import sys
from fulgurite.codegen.cuda.generator import triton_version
before = {*sys.modules}
found = triton_version()
assert not {"email", "zipfile", "triton"} & ({*sys.modules} - before), "some 30 ms"
from importlib.metadata import version
assert found == version("triton"), found
print("fine")
"""


@needs_triton
def test_the_version_is_known_without_parsers_of_metadata() -> None:
    done = subprocess.run(
        [sys.executable, "-c", VERSION], cwd=ROOT, text=True, capture_output=True, timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "fine", done.stderr
