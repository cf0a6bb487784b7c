"""Running one kernel's machine code by hand: any vectors, any order of units, unaligned memory.

In: a lazy tensor that is one kernel. Out: what the code wrote and what the kernel interpreter says
it means, for the same random params. Units are run one at a time, last first, and memory of params
begins at an odd address, so code that leans on order or alignment fails here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.codegen.common.api import KernelText
from fulgurite.codegen.cpu.target import Target, target
from fulgurite.core.dtype import DType
from fulgurite.graph.ir.kernel import params_of
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.runtime.host.index_interpreter import Runner
from tests.codegen.cpu.launch import functions, looped

Array = np.ndarray[Any, Any]
VECTORS = ("avx512", "avx2", "sse2")
HOSTILE = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 1.5)
_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class Subject:
    """A kernel and its params."""

    kernel: IndexKernel
    dtypes: list[DType]
    sizes: list[int]
    inputs: int

    def render(self, vectors: str = "auto") -> KernelText:
        return looped(self.kernel, self.dtypes, wanted(vectors))

    def params(self, seed: int, hostile: float) -> list[Array]:
        """Random inputs, some of them hostile, and outputs full of rubbish."""
        rng = np.random.default_rng(seed)
        found: list[Array] = []
        for number, (dtype, size) in enumerate(zip(self.dtypes, self.sizes, strict=True)):
            array = np.full(size, 77, dtype.numpy)
            if number < self.inputs:
                array = (rng.normal(size=size) * (3 if dtype.kind == "f" else 40)).astype(
                    dtype.numpy
                )
                if dtype.kind == "f" and size > 1:
                    where = rng.random(size) < hostile
                    array[where] = rng.choice(HOSTILE, size=int(where.sum()))
            found.append(array)
        return found


def subject(y: fg.Tensor) -> Subject:
    """The one kernel of a tensor."""
    (item,) = fg.schedule(y).items
    kernel = item.kernel
    params = params_of(kernel)
    sizes = [prod([n for n in p.shape if isinstance(n, int)]) for p in params]
    indexed = lower(kernel.body, kernel.inputs)
    return Subject(indexed, [p.dtype for p in params], sizes, kernel.inputs)


def wanted(vectors: str) -> Target:
    """A target of this machine with at most these vectors."""
    return target(vectors)


def run(
    rendered: KernelText,
    params: list[Array],
    vectors: str = "auto",
    variables: Mapping[str, int] | None = None,
    at_once: bool = False,
) -> list[Array]:
    """The params after the code ran over copies of them, unit by unit or all at once."""
    found = functions(rendered, wanted(vectors))
    rooms = [np.full(a.nbytes + 65, 0xA5, np.uint8) for a in params]
    places = [room[1 : 1 + a.nbytes] for room, a in zip(rooms, params, strict=True)]
    for place, array in zip(places, params, strict=True):
        place[:] = array.view(np.uint8)
    workspace = np.full(rendered.workspace + 128, 0xA5, np.uint8)
    pad = -workspace.ctypes.data % 64
    addresses = [*[p.ctypes.data for p in places], workspace.ctypes.data + pad]
    table = (ctypes.c_void_p * len(addresses))(*addresses)
    numbers = [0, 0, *[(variables or {})[v] for v in rendered.variables], *rendered.numbers]
    values = (ctypes.c_int64 * len(numbers))(*numbers)
    for launch in rendered.launches:
        call = _Function(found[launch.symbol])
        pieces = [(unit, unit + 1) for unit in reversed(range(launch.units))]
        for first, last in [(0, launch.units)] if at_once else pieces:
            call(ctypes.addressof(table), ctypes.addressof(values), first, last)
    for room, place in zip(rooms, places, strict=True):
        assert room[0] == 0xA5 and np.all(room[1 + place.size :] == 0xA5), "wrote outside"
    assert np.all(workspace[:pad] == 0xA5)
    assert np.all(workspace[pad + rendered.workspace :] == 0xA5), "wrote beyond the workspace"
    return [place.copy().view(a.dtype) for place, a in zip(places, params, strict=True)]


def both(
    y: fg.Tensor, vectors: str = "auto", seed: int = 0, hostile: float = 0.0
) -> list[tuple[Array, Array]]:
    """(what the code gives, what the kernel means) for each output."""
    what = subject(y)
    params = what.params(seed, hostile)
    meant = [a.copy() for a in params]
    Runner(what.kernel).run(meant, {})
    got = run(what.render(vectors), params, vectors)
    return list(zip(got[what.inputs :], meant[what.inputs :], strict=True))
