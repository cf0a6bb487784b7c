"""Where a test runs: the `device` mark, its default for each folder, and the switch to a device.

In: `pytestmark = pytest.mark.device(...)` of a file or a test, and the devices that a run is for
(`--device cpu,reference`). Out: for each test the devices it runs on, one after the other in the
same process; what compiles for one device says nothing about another, so every device's tests are
tests of their own, `test_x[cpu]` and `test_x[reference]`. A mark holds one of these words, or
names of devices:

    every   on every device of the run: what a device has to do itself
    first   on the first device of the run: what is the same program on every device
    hosts   on every device but the GPU: what is about prices of kernels, which are others there
    none    once: it computes nothing, or chooses its devices itself

`FULGURITE_DEVICE=cpu pytest tests/x.py` runs what is named on that device, whatever its mark says.
`pytest -m cuda` runs on an NVIDIA GPU what says `every` or `first`; without one, that is skipped.
A new device is one more line of `DEVICES`.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

DEVICES: dict[str, dict[str, str]] = {  # options that are the defaults of tests there
    # every graph compiled, however small; few threads, for other tests run beside
    "cpu": {"device": "cpu", "tier": "native", "threads": "2"},
    "reference": {"device": "reference"},
    "remote": {"device": "remote"},  # tests/backends/remote.py
    "cuda": {"device": "cuda"},  # for `pytest -m cuda`: see `chosen_devices`
}
GPU = "cuda"
NOWHERE = "reference"  # the defaults of tests that need no device
FOLDERS = {  # marks of files that have none, by the folder that is nearest
    "": ("first",),
    "aot": ("every",),
    "array_api": ("reference",),
    "backends": ("none",),
    "codegen": ("none",),
    "codegen/cpu": ("cpu",),
    "core": ("none",),
    "extend": ("every",),
    "graph": ("every",),
    "interop": ("every",),
    "kernel": ("cpu",),
    "runtime": ("every",),
    "runtime/cache": ("cpu",),
    "runtime/cpu": ("cpu",),
    "runtime/cuda": ("none",),
    "runtime/host": ("none",),
    "tensor": ("every",),
    "torch": ("cpu",),
}


def devices_of(mark: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """The devices that a test with a mark runs on, in a run for some; none: it is left out."""
    match tuple(mark):
        case ("every",):
            return list(chosen)
        case ("first",):
            return list(chosen[:1])
        case ("hosts",):
            return [name for name in chosen if name != GPU]
        case ("none",):
            return [NOWHERE]
        case names if names and all(name in DEVICES for name in names):
            return [name for name in chosen if name in names]
    known = ", ".join(["every", "first", "hosts", "none", *DEVICES])
    raise ValueError(f"mark.device{tuple(mark)}: give it one of {known}, or several devices")


def chosen_devices(given: str, marks: str) -> list[str]:
    """The devices of a run: those that are given, else `cuda` for `-m cuda`, else all others."""
    if given:
        return given.split(",")
    wanted = re.search(r"(?<!not )\bcuda\b", marks) is not None
    return [name for name in DEVICES if (name == GPU) == wanted]


def default_mark(file: str) -> tuple[str, ...]:
    """The mark of a file that has none: its folder's, or that of the nearest around it."""
    folders = [str(folder) for folder in PurePosixPath(file).parents]
    return next(FOLDERS[f] for f in [*folders, ""] if f in FOLDERS)


@contextmanager
def running_on(device: str) -> Iterator[None]:
    """Make a device and its options the defaults, of this process and of those it starts."""
    config: Any = importlib.import_module("fulgurite.config")  # `fulgurite.config` is the function
    names = {name for options in DEVICES.values() for name in options}
    wanted = {f"FULGURITE_{name.upper()}": DEVICES[device].get(name) for name in names}
    environment, defaults = {name: os.environ.get(name) for name in wanted}, config._defaults
    _set(wanted)
    config._defaults = config.from_environment()
    try:
        yield
    finally:
        _set(environment)
        config._defaults = defaults


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
