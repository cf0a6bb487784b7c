"""Runs on the remote device: it is installed for them, and tests of host memory are left out.

A test with `host_memory` looks at the memory of values as NumPy sees it, shares an array with a
tensor, or counts what host devices count; one that a device of another process cannot pass.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
IS_REMOTE = os.environ.get("FULGURITE_DEVICE", "").partition(":")[0] == "remote"

if IS_REMOTE:  # as if a package of its own had brought it, for child processes as well
    paths = [str(FOLDER / "site"), str(FOLDER.parents[1])]
    sys.path += paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "host_memory: needs a device whose memory is the host's")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a host device can pass."""
    if IS_REMOTE:
        out = [item for item in items if item.get_closest_marker("host_memory") is not None]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]
