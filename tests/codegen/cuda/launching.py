"""Generated kernels on the GPU, by our own driver: memory, machine code and launches.

In: a `KernelSource`, arrays for its params, values of its variables. Out: the arrays after all
launches, and the error words. Modules are kept by their launch's key; memory is taken anew and its
surroundings are poisoned, so that a store that misses shows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fulgurite.codegen.cuda import source
from fulgurite.codegen.cuda.compilation.compiler import Cubin, compile_launch
from fulgurite.codegen.cuda.source import KernelSource, Launch
from fulgurite.codegen.cuda.tiling import HOPPER
from fulgurite.runtime.cuda import driver as cuda

Array = np.ndarray[Any, Any]
AROUND = 256  # poisoned bytes after each array
POISON = 0xA5
PATIENCE = 5.0  # seconds for kernels that take milliseconds


def compiled(launch: Launch) -> Cubin | str:
    """A launch's machine code, or why there is none."""
    try:
        return compile_launch(launch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Gpu:
    """One GPU with a stream and a pool."""

    def __init__(self, ordinal: int = 0) -> None:
        self.driver = cuda.Driver()
        self.context = cuda.Context(self.driver, ordinal)
        self.properties = self.context.properties()
        self.stream = cuda.Stream(self.driver)
        self.pool = cuda.Pool(self.context)
        self.loaded: dict[object, tuple[cuda.Module, cuda.Function]] = {}
        self.words: dict[int, int] = {}  # values of variables in memory
        self.cubins: dict[object, Cubin] = {}  # that were compiled before

    def function(self, launch: Launch) -> cuda.Function:
        """A launch's kernel, compiled and loaded once."""
        if launch.key not in self.loaded:
            made = self.cubins.get(launch.key)
            made = made or compile_launch(launch, self.properties.capability)
            assert not made.scratch, "a kernel wants scratch memory"
            module = cuda.Module(self.driver, made.image)
            kernel = module.function(made.symbol, made.warps * 32, made.shared)
            self.loaded[launch.key] = module, kernel
        return self.loaded[launch.key][1]

    def arguments(
        self, launch: Launch, params: Sequence[int], bases: Mapping[str, int],
        values: Mapping[str, int],
    ) -> cuda.Arguments:  # fmt: skip
        """A launch's arguments, with the two scratch pointers that Triton's kernels end with."""
        found: list[tuple[str, Any]] = []
        tensors: dict[int, int] = {}
        for one in launch.arguments:
            value = one.value
            if isinstance(value, source.TensorMap):
                tensors[len(found)] = params[value.param]
                found += cuda.tensor_cells(value)
            elif one.source == source.PARAM:
                found.append(("ptr", params[int(value)]))
            elif one.source in bases:
                found.append(("ptr", bases[one.source] + int(value)))
            elif one.source == source.VARIABLE:
                found.append(("ptr", self.word(values[str(value)])))
            else:
                found.append((one.type, int(value)))
        packed = cuda.Arguments([*found, ("ptr", 0), ("ptr", 0)])
        for place, address in tensors.items():
            packed.set(self.driver, place, address)
        return packed

    def word(self, value: int) -> int:
        """A variable's value in memory, where all kernels that have it find it."""
        if value not in self.words:
            self.words[value] = self.put(np.array([value], np.int64))
        return self.words[value]

    def put(self, array: Array) -> int:
        """An array on the GPU, with poison after it."""
        array = np.ascontiguousarray(array)
        padded = np.full(array.nbytes + AROUND, POISON, np.uint8)
        padded[: array.nbytes] = array.reshape(-1).view(np.uint8)
        address = self.pool.allocate(padded.nbytes, self.stream)
        cuda.copy_in(self.driver, address, padded.ctypes.data, padded.nbytes, self.stream)
        self.stream.synchronize()
        return address

    def get(self, address: int, like: Array) -> Array:
        """An array from the GPU; what was poison must still be."""
        padded = np.empty(like.nbytes + AROUND, np.uint8)
        cuda.copy_out(self.driver, padded.ctypes.data, address, padded.nbytes, self.stream)
        self.stream.synchronize()
        assert (padded[like.nbytes :] == POISON).all(), "a kernel writes outside of its memory"
        return padded[: like.nbytes].view(like.dtype).reshape(like.shape)

    def arena(self, nbytes: int) -> int:
        """Memory of random numbers, but for the first MiB, which is zeros: flags and locks."""
        place = self.pool.allocate(nbytes, self.stream)
        cuda.fill(self.driver, place, 0, nbytes, self.stream)
        numbers = np.random.default_rng(0).standard_normal(1 << 24).astype(np.float32)
        chunk = (numbers.view(np.uint32) >> 16).astype(np.uint16)  # of bfloat16
        for at in range(place + (1 << 20), place + nbytes - chunk.nbytes, chunk.nbytes):
            cuda.copy_in(self.driver, at, chunk.ctypes.data, chunk.nbytes, self.stream)
        self.stream.synchronize()
        return place

    def times(self, launches: Sequence[tuple[Any, int, Any]], rounds: int) -> list[float]:
        """Microseconds of functions with grids and arguments, one behind the other in a graph."""
        graph, node, found = cuda.Graph(self.driver), None, []
        for function, grid, packed in launches:
            node = graph.add(function, grid, packed, [] if node is None else [node])
        graph.instantiate()
        for _ in range(rounds):
            start, stop = cuda.Event(self.driver, True), cuda.Event(self.driver, True)
            start.record(self.stream)
            graph.launch(self.stream)
            stop.record(self.stream)
            self.wait()
            stop.synchronize()
            found.append(stop.since(start) * 1e3)
        graph.close()
        return found

    def wait(self) -> None:
        """Wait for all kernels, but not for ever: a barrier may be one that nobody reaches."""
        end = time.monotonic() + PATIENCE
        while not self.stream.is_idle():
            if time.monotonic() > end:
                raise TimeoutError(f"a kernel did not end in {PATIENCE} s")

    def run(
        self, made: KernelSource, arrays: Sequence[Array], values: Mapping[str, int]
    ) -> tuple[list[Array], tuple[int, int]]:
        """Copies of the params after all launches, and the error words."""
        functions = [self.function(launch) for launch in made.launches]
        params = [self.put(a) for a in arrays]
        error = self.put(np.zeros(2, np.int64))
        lock = self.put(np.zeros(1, np.int32))
        room = self.put(np.full(made.workspace, POISON, np.uint8))
        flags = self.put(np.zeros(HOPPER.flags, np.int32))
        bases = {source.ROOM: room, source.ERROR: error, source.LOCK: lock, source.FLAGS: flags}
        for launch, function in zip(made.launches, functions, strict=True):
            packed = self.arguments(launch, params, bases, values)
            cuda.launch(self.driver, function, launch.grid, packed, self.stream)
        self.wait()
        found = [self.get(p, a) for p, a in zip(params, arrays, strict=True)]
        words = self.get(error, np.zeros(2, np.int64))
        left = self.get(flags, np.zeros(HOPPER.flags, np.int32))
        assert not left.any(), "flags are not as they were"
        for address in (*params, error, room, lock, flags):
            self.pool.free(address, self.stream)
        return found, (int(words[0]), int(words[1]))
