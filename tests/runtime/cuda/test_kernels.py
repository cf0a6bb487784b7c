"""Tests of fulgurite/runtime/cuda/kernels.py: in which order launches are compiled."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from fulgurite.codegen.cuda.compiler import Cubin
from fulgurite.codegen.cuda.source import KernelSource, Launch
from fulgurite.runtime.cuda import kernels

pytestmark = pytest.mark.usefixtures("library")


def launch(text: str, language: str = "triton") -> Launch:
    return Launch(text, "kernel", 1, 4, 1, (), language)


def test_what_takes_longest_is_compiled_first(
    gpu: Any, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Table(kernels.KernelTable):
        def cubin(self, launch: Launch) -> Cubin:
            order.append(launch.text)
            return Cubin(f"0 {launch.text}".encode() + b"\0", launch.text, 0, 4, 1, 0)

    monkeypatch.setattr("os.cpu_count", lambda: 1)
    short, long = "x = 1", "x = tl.load(p0 + 0) + 1"
    product = "tl.dot(a, b)"
    table = Table(gpu.driver, 90, "fake")
    made = table.add([KernelSource((launch(t),)) for t in (short, product, long)])
    assert order == [product, long, short]
    digests = [table.digest(launch(t)) for t in (short, product, long)]
    assert [one.launches[0].digest for one in made] == digests
    assert [table.images[d][1]["symbol"] for d in digests] == [short, product, long]
    assert launch(short, "gluon").effort > launch(long).effort
