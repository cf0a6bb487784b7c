"""NCCL by ctypes: collectives between GPUs, as work of a stream.

In: addresses, counts and a stream. Out: work that other GPUs take part in, or an error in NCCL's
own words. A communicator is made for each group of ranks that a plan names; its unique id comes
from the first of them, over the world that started the job (MPI). NCCL reports a failure of
another rank later, through the communicator: who waits for the stream asks for it. The library is
found by FULGURITE_LIBNCCL, beside the installed `nvidia.nccl`, or by its name.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np

from ...core.ranks import World
from ...errors import FulguriteError
from . import driver as cuda
from .shared_library import declare, open_library

LIBRARIES = ("libnccl.so.2", "libnccl.so")
LEAST_VERSION = 21900  # captured work that may be mixed with other work
ID_BYTES = 128
IN_PROGRESS = 7
BYTE = 1  # ncclUint8
TYPES = {
    "bool": 1, "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
FOLDS = {"add": 0, "mul": 1, "max": 2, "min": 3}


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("bytes", ctypes.c_ubyte * ID_BYTES),)


_Handle = c_void_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRank": (POINTER(c_void_p), c_int, UniqueId, c_int),
    "ncclCommAbort": (_Handle,),
    "ncclCommGetAsyncError": (_Handle, POINTER(c_int)),
    "ncclAllReduce": (c_uint64, c_uint64, c_size_t, c_int, c_int, _Handle, _Handle),
    "ncclAllGather": (c_uint64, c_uint64, c_size_t, c_int, _Handle, _Handle),
    "ncclReduceScatter": (c_uint64, c_uint64, c_size_t, c_int, c_int, _Handle, _Handle),
    "ncclBroadcast": (c_uint64, c_uint64, c_size_t, c_int, c_int, _Handle, _Handle),
    "ncclSend": (c_uint64, c_size_t, c_int, c_int, _Handle, _Handle),
    "ncclRecv": (c_uint64, c_size_t, c_int, c_int, _Handle, _Handle),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}


class NcclError(FulguriteError, RuntimeError):
    """NCCL refused something, or another rank failed."""


class Nccl:
    """The library, opened, with every function declared."""

    def __init__(self, library: str | None = None) -> None:
        names = (library,) if library else (*_installed(), *LIBRARIES)
        self.library = open_library(names, _no_nccl)
        self.functions = declare(self.library, _FUNCTIONS, _old_nccl)
        self.library.ncclGetErrorString.argtypes = (c_int,)
        self.library.ncclGetErrorString.restype = c_char_p
        found = c_int()
        self.call("ncclGetVersion", ctypes.byref(found))
        self.version = found.value
        if self.version < LEAST_VERSION:
            raise NcclError(f"NCCL is of version {self.text}", "install NCCL 2.19 or newer")

    @property
    def text(self) -> str:
        """The version, as people write it."""
        scale = 10_000 if self.version >= 10_000 else 1000
        return f"{self.version // scale}.{self.version % scale // 100}.{self.version % 100}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise what it reports."""
        code = self.functions[name](*arguments)
        if code not in (0, IN_PROGRESS):
            raise self.error(name, code)

    def error(self, name: str, code: int, of: str = "") -> NcclError:
        """The error of a code, in NCCL's words."""
        words = (self.library.ncclGetErrorString(code) or b"").decode(errors="replace")
        last = getattr(self.library, "ncclGetLastError", None)
        said = ""
        if last is not None:
            last.argtypes, last.restype = (c_void_p,), c_char_p
            said = (last(None) or b"").decode(errors="replace").strip()
        more = f": {said}" if said else ""
        return NcclError(f"{name}{of}: {words} ({code}){more}", "NCCL_DEBUG=INFO says more")

    def unique_id(self) -> bytes:
        """A name for a new communicator."""
        found = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(found))
        return bytes(found.bytes)


def _installed() -> list[str]:
    """The library of the package `nvidia.nccl`, if that is there."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return []
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    paths = [os.path.join(folder, "lib", LIBRARIES[0]) for folder in folders]
    return [path for path in paths if os.path.exists(path)]


def _no_nccl(problem: str) -> NcclError:
    return NcclError(
        f"no NCCL, which exchanges data between GPUs: {problem}",
        "pip install nvidia-nccl-cu12, name it in FULGURITE_LIBNCCL, or set FULGURITE_NCCL=0 to "
        "exchange data through the host",
    )


def _old_nccl(name: str) -> NcclError:
    return NcclError(f"the NCCL library has no {name}", "install NCCL 2.19 or newer")


class Communicator:
    """A group of ranks that exchange data."""

    def __init__(self, nccl: Nccl, world: World, group: Sequence[int]) -> None:
        self.nccl, self.group = nccl, list(group)
        self.place = self.group.index(world.rank)
        mine = nccl.unique_id() if self.place == 0 else bytes(ID_BYTES)
        if len(self.group) > 1:
            told = world.gather(
                self.group, np.frombuffer(mine, np.uint8).copy(), "the making of a communicator"
            )
            mine = bytes(told[0])
        id_ = UniqueId.from_buffer_copy(mine)
        handle = c_void_p()
        nccl.call("ncclCommInitRank", ctypes.byref(handle), len(self.group), id_, self.place)
        self.handle = int(handle.value or 0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Calls that are one piece of work (a group, in NCCL's words)."""
        self.nccl.call("ncclGroupStart")
        try:
            yield
        finally:
            self.nccl.call("ncclGroupEnd")

    def all_reduce(
        self, of: int, to: int, count: int, dtype: int, fold: int, stream: cuda.Stream
    ) -> None:
        """The values of all ranks folded."""
        self._call("ncclAllReduce", of, to, count, dtype, fold, stream)

    def all_gather(self, of: int, to: int, nbytes: int, stream: cuda.Stream) -> None:
        """The bytes of all ranks, one behind the other."""
        self._call("ncclAllGather", of, to, nbytes, BYTE, stream)

    def reduce_scatter(
        self, of: int, to: int, count: int, dtype: int, fold: int, stream: cuda.Stream
    ) -> None:
        """This rank's part, of so many elements, of the values of all ranks folded."""
        self._call("ncclReduceScatter", of, to, count, dtype, fold, stream)

    def broadcast(self, of: int, to: int, nbytes: int, root: int, stream: cuda.Stream) -> None:
        """The bytes of one rank on all."""
        self._call("ncclBroadcast", of, to, nbytes, BYTE, root, stream)

    def send(self, of: int, nbytes: int, to: int, stream: cuda.Stream) -> None:
        """Bytes to a member of the group."""
        self._call("ncclSend", of, nbytes, BYTE, to, stream)

    def receive(self, to: int, nbytes: int, of: int, stream: cuda.Stream) -> None:
        """Bytes of a member of the group."""
        self._call("ncclRecv", to, nbytes, BYTE, of, stream)

    def _call(self, name: str, *arguments: Any) -> None:
        *numbers, stream = arguments
        self.nccl.call(name, *numbers, self.handle, stream.handle)

    def check(self) -> None:
        """An error if work that was given to the GPU failed meanwhile."""
        code = c_int()
        self.nccl.call("ncclCommGetAsyncError", self.handle, ctypes.byref(code))
        if code.value not in (0, IN_PROGRESS):
            of = f" in a group of ranks {self.group}"
            self.abort()
            raise self.nccl.error("a collective", code.value, of)

    def abort(self) -> None:
        """Give up all work of it, so that the GPU can go on."""
        if self.handle:
            handle, self.handle = self.handle, 0
            self.nccl.functions["ncclCommAbort"](handle)
