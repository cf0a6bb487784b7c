"""Launching jobs from tests: `fulgurite launch` on a script of `jobs/`, with a limit on time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from fulgurite.cli.launch import find_mpiexec

JOBS = Path(__file__).parent / "jobs"
ROOT = Path(__file__).parents[2]
HAS_MPI = importlib.util.find_spec("mpi4py") is not None and find_mpiexec() is not None
needs_mpi = pytest.mark.skipif(
    not HAS_MPI, reason="needs mpi4py and mpiexec: fulgurite[distributed]"
)


class Ended(NamedTuple):
    """A job that has ended."""

    code: int
    text: str
    seconds: float


def launch(
    script: str | Path, *arguments: str, ranks: int = 2, timeout: float = 4.0, limit: float = 120.0,
    environment: dict[str, str] | None = None,
) -> Ended:  # fmt: skip
    """Run a script on ranks; what it printed on both streams."""
    path = JOBS / script if isinstance(script, str) else script
    command = [sys.executable, "-m", "fulgurite", "launch", "-n", str(ranks), "--timeout",
               str(timeout), str(path), *arguments]  # fmt: skip
    given = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    start = time.monotonic()
    done = subprocess.run(
        command, env=given | (environment or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=limit, cwd=ROOT,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, time.monotonic() - start)
