"""The fake GPU of these tests: a libcuda and a libnccl of our own, installed once for a module."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import fulgurite as fg
from fulgurite.runtime.device import get_device


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The libcuda in place of the driver's."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to make a libcuda with")
    from tests.runtime.cuda import fake

    return fake.install()


@pytest.fixture
def gpu(library: ctypes.CDLL) -> Iterator[Any]:
    """The device, of which no call fails by itself."""
    library.fake_fail(b"", 0, 0)
    with fg.config(device="cuda", disk_cache=False):
        yield get_device("cuda")
    library.fake_fail(b"", 0, 0)
