"""The devices of the tests for pytest: `remote` is installed, and tests of host memory know it.

A test with the mark `host_memory` looks at the memory of values as NumPy sees it, shares an array
with a tensor, or counts what host devices count: no device of another process can pass it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

# as if a package of its own had brought the device, for child processes as well
PATHS = [str(FOLDER / "site"), str(FOLDER.parents[1])]
sys.path += PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "host_memory: needs a device whose memory is the host's")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a host device can pass."""
    out = [item for item in items if item.get_closest_marker("host_memory") and is_remote(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def is_remote(item: pytest.Item) -> bool:
    """True if a test is run on a device whose memory is not the host's."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    device = params.get("_device") or os.environ.get("FULGURITE_DEVICE", "")
    return str(device).partition(":")[0] in ("remote", "cuda")
