"""A GPU without a GPU: the CUDA runtime over a libcuda whose kernels are interpreted.

`install()` puts it in place of the `cuda` device. Everything above the driver is real: pools,
streams, graphs, arguments, code on disk. Kernels are "compiled" to the name of their graph and a
count of arguments; when the fake library comes to one in its queue, the reference device
interprets the graph over the memory at the given addresses. `pytest -p tests.runtime.cuda.fake -m
cuda`, or with `FULGURITE_DEVICE=cuda`, runs any suite so.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fulgurite.codegen.cuda.compilation.compiler import Cubin
from fulgurite.codegen.cuda.source import (
    KernelSource,
    Launch,
    Place,
    error_words,
    lock_word,
    pointer,
    variable,
)
from fulgurite.core.digest import digest_of
from fulgurite.core.node import toposort
from fulgurite.core.ops.index import GUARD
from fulgurite.core.ops.leaf import VAR
from fulgurite.core.text import show
from fulgurite.errors import BoundsError
from fulgurite.graph.ir.kernel import Kernel, params_of
from fulgurite.graph.ir.lower import lower
from fulgurite.runtime.cuda import device as cuda_device
from fulgurite.runtime.cuda import kernels as cuda_kernels
from fulgurite.runtime.cuda.executor import at_most
from fulgurite.runtime.device import register_device
from fulgurite.runtime.host.device import HostBuffer, interpret
from fulgurite.runtime.step_executor import concrete

KNOWN: dict[str, Kernel] = {}
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))
failures: list[BaseException] = []


@lru_cache(maxsize=1)
def library() -> str:
    """The fake library, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("there is no C compiler to make a libcuda with")
    path = Path(tempfile.mkdtemp()) / "libcuda.so.1"
    source = Path(__file__).with_name("fakecublas.c")  # and in it fakenccl.c, and fakecuda.c
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-pthread", "-O1", "-o", path, source], check=True
    )
    return str(path)


class FakeLaunch(Launch):
    """A launch that stands for a kernel."""

    def guarded(self) -> Launch:
        """The same, with the lock as its last argument."""
        count, name, _ = self.text.split()
        text = f"{int(count) + 1} {name} guarded"
        return replace(self, text=text, arguments=(*self.arguments, lock_word()))


class FakeGenerator:
    """A target whose kernels are named and not rendered."""

    language = "triton"
    key = "fake"

    @property
    def machine(self) -> Any:
        """The GPU's."""
        from fulgurite.codegen.cuda.machine import HOPPER

        return HOPPER

    @property
    def sources(self) -> Any:
        """The GPU's."""
        from fulgurite.codegen.cuda.providers import sources_of
        from fulgurite.codegen.cuda.tiling import HOPPER

        return sources_of(HOPPER)

    @property
    def passes(self) -> Any:
        """The GPU's."""
        from fulgurite.codegen.cuda.render import PASSES

        return PASSES

    hardware = "fake"

    def guarded(self, kernel: Kernel) -> KernelSource:
        """One launch with the lock."""
        return self.render(kernel).guarded()

    def render(self, kernel: Kernel) -> KernelSource:
        """One launch that stands for the kernel."""
        indexed = lower(kernel.body, kernel.inputs)  # what has no index notation is refused too
        checks = any(n.op is GUARD for n in toposort([indexed.body]))
        name = digest_of(f"{show(kernel.body)} {kernel.inputs} {kernel.kind}".encode())
        KNOWN[name] = kernel
        arguments = [
            pointer(f"p{i}", p.dtype, Place("param", i)) for i, p in enumerate(params_of(kernel))
        ]
        names = sorted({n.arg[0] for n in toposort([kernel.body]) if n.op is VAR})
        arguments += [variable(f"v{n}", n) for n in names]
        arguments += [error_words(), lock_word()] if checks else []
        text = f"{len(arguments)} {name} {'checks' if checks else 'plain'}"
        return KernelSource((FakeLaunch(text, "kernel", 1, 4, 1, tuple(arguments)),), 256)


class FakeTable(cuda_kernels.KernelTable):
    """Kernels whose machine code is their name."""

    def cubin(self, launch: Launch) -> Cubin:
        """The name of a kernel as its machine code."""
        return Cubin(launch.text.encode() + b"\0", "kernel", 0, 4, 1, 0)


def _run(image: bytes, arguments: Any) -> None:
    """Interpret a kernel over memory."""
    try:
        count, name, role = image.decode().split()
        kernel, last = KNOWN[name], int(count) - 1
        params = params_of(kernel)
        if role == "guarded" and ctypes.c_int32.from_address(arguments[last]).value:
            return
        names = sorted({n.arg[0] for n in toposort([kernel.body]) if n.op is VAR})
        values = {
            one: ctypes.c_int64.from_address(arguments[len(params) + i]).value
            for i, one in enumerate(names)
        }
        buffers = []
        for place, param in enumerate(params):
            most, sizes = at_most(param.shape), concrete(param.shape, values)
            nbytes = prod(most) * param.dtype.numpy.itemsize
            raw = (ctypes.c_uint8 * max(nbytes, 1)).from_address(arguments[place])
            memory: Any = raw
            whole = np.frombuffer(memory, np.uint8, nbytes).view(param.dtype.numpy).reshape(most)
            corner: Any = (*[slice(n) for n in sizes], ...)
            buffers.append(HostBuffer(whole[corner]))
        try:
            with np.errstate(all="ignore"):
                interpret(kernel)(buffers[: kernel.inputs], buffers[kernel.inputs :], values)
        except BoundsError as problem:
            assert role == "checks", "a kernel without checks found an index outside its axis"
            words = (ctypes.c_int64 * 2).from_address(arguments[last - 1])
            words[0], words[1] = 1, int(problem.what.split()[-1])
            ctypes.c_int32.from_address(arguments[last]).value = 1
    except BaseException as problem:  # a callback of C cannot raise
        failures.append(problem)


_run_from_c = CALLBACK(_run)


class FakeCudaDevice(cuda_device.CudaDevice):
    """The CUDA device with named kernels."""

    begun: Callable[[Sequence[Kernel]], object] = len  # who looks at what is compiled ahead

    @cached_property
    def codegen(self) -> Any:  # type: ignore[override]
        """Names in the place of texts."""
        return FakeGenerator()

    @cached_property
    def table(self) -> Any:
        """Names in the place of machine code."""
        about = self.properties
        return FakeTable(self.driver, about.capability, "fake", self.enter, about.shared)

    def expect_compiles(self) -> None:
        """Nothing is compiled."""

    def compile_ahead(self, kernels: Sequence[Kernel], over: Set[Kernel]) -> None:
        """Say which kernels would be."""
        type(self).begun(kernels)

    def load_code(self, kernel: Kernel, dumped: Any) -> Any:
        """Learn the name of a kernel that another process made."""
        if dumped is not None:
            self.codegen.render(kernel)
        return super().load_code(kernel, dumped)

    def copy_out(self, source: Any, host: Any) -> None:
        """Raise what a kernel ran into."""
        super().copy_out(source, host)
        if failures:
            raise failures.pop()


def install() -> ctypes.CDLL:
    """Put the fake in place of the device `cuda`."""
    for name in ("CUDA", "NCCL", "CUBLASLT"):
        os.environ[f"FULGURITE_LIB{name}"] = library()
    made = ctypes.CDLL(library())
    made.fake_on_launch(_run_from_c)
    register_device("cuda", FakeCudaDevice, lambda: 2)
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """As a plugin: before anything asks which GPUs there are."""
    install()


if os.environ.get("FULGURITE_DEVICE", "").startswith("cuda"):
    install()
