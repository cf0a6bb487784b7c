"""Processes of their own for Triton: it decides when it is imported whether it interprets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def last_word(script: str) -> str:
    """What a script says last; Triton may have said before what it does not like."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True, timeout=300,
        env=clean | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


@lru_cache(maxsize=4)
def counted(module: str, how: str) -> Any:
    """What a module of these tests prints as JSON on its last line."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "FULGURITE_"))}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.codegen.cuda.{module}", how], cwd=ROOT, text=True,
        env=clean | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
