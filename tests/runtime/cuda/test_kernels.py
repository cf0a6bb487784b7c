"""Tests of fulgurite/runtime/cuda/kernels.py: in which order launches are compiled."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fulgurite.codegen.cuda.compilation import pool
from fulgurite.codegen.cuda.compilation.compiler import Cubin
from fulgurite.codegen.cuda.source import KernelSource, Launch
from fulgurite.errors import CompilerError
from fulgurite.runtime.cuda import kernels
from fulgurite.runtime.device import DeviceError

ROOM = 101_376  # bytes of shared memory that a program has on GPUs for desks: sm_86, 89 and 120
pytestmark = pytest.mark.usefixtures("library")


def launch(text: str, language: str = "triton") -> Launch:
    return Launch(text, "kernel", 1, 4, 1, (), language)


def test_of_texts_that_wait_the_longest_is_compiled_next_and_the_first_at_once(
    gpu: Any, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    begun, all_rendered = threading.Event(), threading.Event()

    class Table(kernels.KernelTable):
        def cubin(self, launch: Launch) -> Cubin:
            order.append(launch.text)
            begun.set()
            assert all_rendered.wait(60)
            return Cubin(f"0 {launch.text}".encode() + b"\0", launch.text, 0, 4, 1, 0)

    monkeypatch.setattr(pool, "width", lambda: 1)
    first, short, long = "x = 0", "x = 1", "x = tl.load(p0 + 0) + 1"
    product = "tl.dot(a, b)"
    texts = (first, short, product, long)

    def rendered() -> Iterator[KernelSource]:
        for text in texts:
            yield KernelSource((launch(text),))
            assert begun.wait(60), "nothing is compiled while texts are rendered"
        all_rendered.set()

    table = Table(gpu.driver, 90, "fake", gpu.enter, 1 << 17)
    made = table.add(rendered())
    assert order == [first, product, long, short]
    digests = [table.digest(launch(t)) for t in texts]
    assert [one.launches[0].digest for one in made] == digests
    assert [table.images[d][1]["symbol"] for d in digests] == list(texts)
    assert launch(short, "gluon").effort > launch(long).effort


def test_an_error_of_the_compiler_or_of_who_renders_is_raised_and_what_waits_is_dropped(
    gpu: Any, library: ctypes.CDLL
) -> None:
    class Table(kernels.KernelTable):
        def cubin(self, launch: Launch) -> Cubin:
            if launch.text == "bad":
                raise ArithmeticError(launch.text)
            return Cubin(f"0 {launch.text}".encode() + b"\0", launch.text, 0, 4, 1, 0)

    table = Table(gpu.driver, 90, "fake", gpu.enter, 1 << 17)
    with pytest.raises(ArithmeticError, match="bad"):
        table.add([KernelSource((launch(text),)) for text in ("good", "bad")])

    def broken() -> Iterator[KernelSource]:
        yield KernelSource((launch("good"),))
        raise KeyError("rendering")

    with pytest.raises(KeyError, match="rendering"):
        table.add(broken())
    (again,) = table.add([KernelSource((launch("good"),))])
    assert again.launches[0].digest == table.digest(launch("good"))


def test_a_kernel_has_no_more_steps_on_their_way_than_the_gpu_has_room_for(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def compiled(launch: Launch, capability: int) -> Cubin:
        asked.append(launch.stages)
        return Cubin(b"0 x\0", "x", 16_384 + 45_000 * launch.stages, 4, 1, 0)

    monkeypatch.setattr(pool, "compile_launch", compiled)
    wanted = Launch("x", "kernel", 1, 4, 3, ())
    assert kernels.KernelTable(gpu.driver, 90, "a", gpu.enter, 1 << 18).cubin(wanted).shared > ROOM
    assert asked == [3]
    table = kernels.KernelTable(gpu.driver, 89, "b", gpu.enter, ROOM)
    (made,) = table.add([KernelSource((wanted,))])
    assert asked == [3, 3, 2, 1] and table.images[made.launches[0].digest][1]["shared"] == 61_384
    small = kernels.KernelTable(gpu.driver, 75, "c", gpu.enter, 50_000)
    with pytest.raises(DeviceError, match="61384 bytes of shared memory, of which this GPU has"):
        small.add([KernelSource((wanted,))])


def test_what_no_compiler_is_there_for_is_told_at_the_users_line(gpu: Any) -> None:
    class Table(kernels.KernelTable):
        def cubin(self, launch: Launch) -> Cubin:
            raise CompilerError("there is none", "get one")

    table = Table(gpu.driver, 90, "fake", gpu.enter, 1 << 17)
    with pytest.raises(CompilerError, match="there is none") as told:
        table.add([KernelSource((launch("x"),))])
    assert __file__ in (told.value.where or "") and told.value.hint == "get one"
