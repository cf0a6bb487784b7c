"""Thousands of damaged files: every one is read right or refused in words, and none does harm.

Each file of each format is cut, flipped, spliced and overwritten (ONNX: tests/onnx/test_wire.py).
A reader may give values or raise an error of ours; it may not raise anything else, take memory or
time out of proportion, import, execute or open anything but the file.
"""

from __future__ import annotations

import random
import resource
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import FulguriteError
from fulgurite.io import load_gguf, load_npz, load_safetensors, load_torch, load_tree, save_tree
from fulgurite.io.npz import save_npz
from fulgurite.io.safetensors import to_bytes

from .samples import gguf_sample, legacy_sample, torch_sample

MOST_MEMORY = 32 << 20
MEASURED = 50  # every so many files the memory is measured, which takes longer than reading
ROUNDS = {"safetensors": 5000, "gguf": 5000, "plan": 5000}
OTHERS = 330  # of every other format
WATCHED = ("exec", "import", "os.system", "os.exec", "subprocess", "socket", "pickle", "ctypes")


class Watch:
    """Notes what the interpreter is asked to do while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.events: list[str] = []
        sys.addaudithook(self.hook)  # for good: it cannot be taken away, only turned off

    def hook(self, event: str, arguments: Any) -> None:
        if self.on and event.startswith(WATCHED):
            self.events.append(f"{event}{arguments!r:.100}")


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def files(folder: Path) -> dict[str, tuple[bytes, Callable[[Any], Any]]]:
    arrays = {"a": np.arange(20, dtype=np.float32), "b": np.ones((3, 4), np.int64)}
    save_npz(arrays, folder / "x.npz")
    save_npz(arrays, folder / "y.npz", compress=True)
    save_tree(folder / "x.fgc", {"w": fg.arange(4), "n": [1, 2.5, {"a": None}]})
    with fg.config(device="cpu"):
        fg.schedule(fg.exp(fg.Tensor([1.0, 2.0])) + 1).save(folder / "x.plan")
    return {
        "safetensors": (to_bytes(arrays, {"made": "here"}), load_safetensors),
        "npz": ((folder / "x.npz").read_bytes(), load_npz),
        "compressed npz": ((folder / "y.npz").read_bytes(), load_npz),
        "torch": (torch_sample(), load_torch),
        "old torch": (legacy_sample(), load_torch),
        "gguf": (gguf_sample(), load_gguf),
        "checkpoint": ((folder / "x.fgc").read_bytes(), load_tree),
        "plan": ((folder / "x.plan").read_bytes(), fg.load_schedule),
    }


def mutated(data: bytes, dice: random.Random, others: list[bytes]) -> bytes:
    found = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        at = dice.randrange(len(found) + 1)
        size = dice.choice((1, 1, 2, 4, 8, 30))
        match dice.randrange(7):
            case 0:
                del found[at:]
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = dice.randbytes(size)
            case 3:
                found[at : at + size] = bytes([dice.choice((0, 255, 127, 128))]) * size
            case 4:
                found[at : at + size] = dice.randbytes(size)
            case 5 if at < len(found):
                found[at] ^= 1 << dice.randrange(8)
            case _:
                other = dice.choice(others)
                start = dice.randrange(len(other))
                found[at : at + size] = other[start : start + size]
        if not found:
            found = bytearray(b"\0")
    return bytes(found)


def touch(found: Any) -> None:
    """Read every value that costs no computing."""
    if isinstance(found, fg.Tensor):
        if found.is_realized:
            found.numpy()
    elif isinstance(found, dict):
        for value in found.values():
            touch(value)
    elif isinstance(found, list | tuple):
        for value in found:
            touch(value)


def attack(folder: Path, watch: Watch, times: int) -> dict[str, int]:
    """Mutate each format's file many times; how many of them were refused."""
    refused: dict[str, int] = {}
    known = files(folder)
    others = [data for data, _ in known.values()]
    path = folder / "mutated"
    for name, (data, read) in known.items():
        path.write_bytes(data)
        touch(read(path))  # whole it is fine, and everything is imported
        dice = random.Random(name)
        refused[name] = 0
        for number in range(ROUNDS.get(name, OTHERS) * times):
            path.unlink()  # a new file: to cut one that was mapped takes milliseconds
            path.write_bytes(mutated(data, dice, others))
            measured = number % MEASURED == 0
            if measured:
                tracemalloc.start()
            watch.on = True
            try:
                touch(read(path))
            except FulguriteError as error:
                assert "try:" in str(error) or error.hint == "", str(error)
                refused[name] += 1
            finally:
                watch.on = False
                peak = tracemalloc.get_traced_memory()[1] if measured else 0
                tracemalloc.stop()
            assert peak < MOST_MEMORY, f"{name} {number}: {peak} bytes"
            assert not watch.events, f"{name} {number}: {watch.events}"
    return refused


def test_thousands_of_damaged_files_do_no_harm(tmp_path: Path, watch: Watch) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = attack(tmp_path, watch, 1)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert all(count > ROUNDS.get(name, OTHERS) // 3 for name, count in refused.items()), refused
    assert refused["checkpoint"] >= 320 and refused["plan"] >= 4900  # all that differ
    assert after - before < 300 << (20 if sys.platform == "darwin" else 10), "of any of them"


@pytest.mark.slow
def test_a_hundred_thousand_damaged_files_of_each_kind_do_no_harm(
    tmp_path: Path, watch: Watch
) -> None:
    attack(tmp_path, watch, 20)
