"""cuBLASLt by ctypes: products of matrices as work of a stream.

In: a `Gemm` and addresses. Out: work of a stream, or an error in the library's own words. The
library is found by FULGURITE_LIBCUBLASLT, beside installed packages of NVIDIA or torch (nothing of
which is imported), or by its name. The heuristic is asked once for each problem; its answer, 64
bytes that are good for one version of the library and one kind of GPU, is kept on disk under both.
Sums are in float32 with partial results in float32: no scheme that rounds them, or whose order
depends on timing, may be chosen. So one GPU and one version give the same bits on every run.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

from ...codegen.cuda.library import Gemm, Matrix
from ...config import current
from ...core.digest import digest_of
from ...errors import FulguriteError
from ..cache.disk import store_for
from . import driver as cuda
from .shared_library import declare, open_library

LIBRARIES = ("libcublasLt.so.13", "libcublasLt.so.12")
LEAST_VERSION = 120000
MAJORS = (12, 13)  # whose functions and numbers are those below
PARAM_BYTES = 16  # that params begin at multiples of
WORKSPACE_BYTES = 32 << 20  # that a product may use, as NVIDIA recommends for Hopper

COMPUTE = {"float32": 68, "tf32": 77, "float64": 70}  # cublasComputeType_t
TYPES = {
    "float32": 0, "float64": 1, "float16": 2, "bfloat16": 14, "float8_e4m3fn": 28,
    "float8_e5m2": 29,
}  # fmt: skip
TRANSPOSE_LEFT, TRANSPOSE_RIGHT = 3, 4  # cublasLtMatmulDescAttributes_t
BATCH_COUNT, BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
MOST_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # ...PreferenceAttributes_t
IN_COMPUTE_TYPE = 2  # of CUBLASLT_REDUCTION_SCHEME: partial sums in the type of the sum


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", c_uint64 * 8),)


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    )  # fmt: skip


_Handle, _Out = c_void_p, POINTER(c_void_p)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_Out,),
    "cublasLtDestroy": (_Handle,),
    "cublasLtMatmulDescCreate": (_Out, c_int, c_int),
    "cublasLtMatmulDescDestroy": (_Handle,),
    "cublasLtMatmulDescSetAttribute": (_Handle, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (_Out, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (_Handle,),
    "cublasLtMatrixLayoutSetAttribute": (_Handle, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceCreate": (_Out,),
    "cublasLtMatmulPreferenceDestroy": (_Handle,),
    "cublasLtMatmulPreferenceSetAttribute": (_Handle, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (
        *[_Handle] * 7, c_int, POINTER(Heuristic), POINTER(c_int),
    ),
    "cublasLtMatmulAlgoCheck": (
        *[_Handle] * 6, POINTER(Algorithm), POINTER(Heuristic),
    ),
    "cublasLtMatmul": (
        _Handle, _Handle, c_void_p, c_uint64, _Handle, c_uint64, _Handle, c_void_p, c_uint64,
        _Handle, c_uint64, _Handle, POINTER(Algorithm), c_uint64, c_size_t, _Handle,
    ),
}  # fmt: skip


class CublasError(FulguriteError, RuntimeError):
    """cuBLASLt is not there, or refused something."""


class Choice(NamedTuple):
    """An algorithm for a product."""

    algorithm: bytes
    workspace: int  # bytes


class CublasLt:
    """The library, opened, with every function declared."""

    def __init__(self) -> None:
        self.library = open_library(candidates(), _no_cublas)
        self.functions = declare(self.library, _FUNCTIONS, _old_cublas)
        self.library.cublasLtGetVersion.argtypes = ()
        self.library.cublasLtGetVersion.restype = c_size_t
        self.version = int(self.library.cublasLtGetVersion())
        if self.version < LEAST_VERSION or self.version // 10_000 not in MAJORS:
            raise CublasError(f"cuBLASLt is of version {self.text}", "install cuBLAS 12 or 13")
        self._words = getattr(self.library, "cublasLtGetStatusString", None)
        if self._words is not None:
            self._words.argtypes, self._words.restype = (c_int,), c_char_p

    @property
    def text(self) -> str:
        """The version, as people write it."""
        return f"{self.version // 10_000}.{self.version // 100 % 100}.{self.version % 100}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise what it reports."""
        code = self.functions[name](*arguments)
        if code:
            said = self._words(code) if self._words is not None else None
            words = said.decode(errors="replace") if said else "an error"
            raise CublasError(f"{name}: {words} ({code})", 'fg.config(cublas="off") does without')

    def made(self, name: str, *arguments: Any) -> int:
        """The handle that a function makes."""
        found = c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return int(found.value or 0)

    def set(self, what: str, handle: int, attribute: int, value: Any) -> None:
        """Set an attribute of a descriptor."""
        name = f"cublasLt{what}SetAttribute"
        self.call(name, handle, attribute, ctypes.byref(value), ctypes.sizeof(value))


def candidates() -> list[str]:
    """Where the library may be: an environment variable says, in packages, or by its name."""
    named = os.environ.get("FULGURITE_LIBCUBLASLT")
    return [named] if named else [*_installed(tuple(sys.path)), *LIBRARIES]


def identity() -> str:
    """The file that would be opened, or the name: what plans with the library depend on."""
    first = candidates()[0]
    try:
        about = os.stat(first)
    except OSError:
        return first
    return f"{first} {about.st_size} {about.st_mtime_ns}"


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> list[str]:
    """Libraries inside packages of NVIDIA and of torch on a path, none of which is imported."""
    folders: list[str] = []
    for package in ("nvidia", "torch"):
        try:
            found = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        places = list(found.submodule_search_locations or ()) if found is not None else []
        for place in places:
            folders += [place] if package == "torch" else _subfolders(place)
    every = [os.path.join(folder, "lib", name) for name in LIBRARIES for folder in folders]
    return [one for one in every if os.path.exists(one)]


def _subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return sorted([one.path for one in found if one.is_dir()])
    except OSError:
        return []


def _no_cublas(problem: str) -> CublasError:
    return CublasError(f"no cuBLASLt: {problem}", "pip install nvidia-cublas, or do without")


def _old_cublas(name: str) -> CublasError:
    return CublasError(f"the library has no {name}", "install cuBLAS 12 or 13")


class Blas:
    """The library on one GPU: its handle, and the algorithms that were chosen."""

    def __init__(self, library: CublasLt, gpu: str) -> None:
        self.library, self.gpu = library, gpu
        self.handle = library.made("cublasLtCreate")
        self.known: dict[Gemm, Choice | None] = {}

    @property
    def name(self) -> str:
        """What it is, for people and for keys."""
        return f"cuBLASLt {self.library.text}"

    def choice(self, gemm: Gemm) -> Choice | None:
        """The algorithm of a product, asked for once; None: the library has none, or fails."""
        if gemm not in self.known:
            try:
                self.known[gemm] = self._stored(gemm) or self._asked(gemm)
            except CublasError:
                self.known[gemm] = None
        return self.known[gemm]

    def keep(self, gemm: Gemm, choice: Choice) -> None:
        """Remember an algorithm, for other processes too."""
        self.known[gemm] = choice
        store = store_for(current())
        if store is not None:
            text = json.dumps({"algorithm": choice.algorithm.hex(), "bytes": choice.workspace})
            store.put("kernel", self._key(gemm), text.encode())

    def _key(self, gemm: Gemm) -> str:
        return digest_of(f"{self.name}\n{self.gpu}\n{tuple(gemm)!r}".encode())

    def _stored(self, gemm: Gemm) -> Choice | None:
        """What an earlier process chose, if the library still takes it."""
        store = store_for(current())
        found = store.get("kernel", self._key(gemm)) if store is not None else None
        if found is None:
            return None
        try:
            kept = json.loads(found)
            choice = Choice(bytes.fromhex(kept["algorithm"]), int(kept["bytes"]))
        except (ValueError, KeyError, TypeError):
            return None
        if len(choice.algorithm) != ctypes.sizeof(Algorithm):
            return None
        with Product(self, gemm, choice) as product:
            return choice if product.is_valid() else None

    def _asked(self, gemm: Gemm) -> Choice | None:
        with Product(self, gemm) as product:
            found = product.proposals(1)
        if not found:
            return None
        self.keep(gemm, found[0])
        return found[0]


class Product:
    """A product of matrices in the library's descriptors."""

    def __init__(self, blas: Blas, gemm: Gemm, choice: Choice | None = None) -> None:
        self.handles: list[tuple[str, int]] = []  # what is destroyed at the end
        self.blas, self.library, self.gemm, self.choice = blas, blas.library, gemm, choice
        self.algorithm = Algorithm()
        if choice is not None:
            ctypes.memmove(ctypes.byref(self.algorithm), choice.algorithm, 64)
        number = ctypes.c_double if gemm.precision == "float64" else c_float
        self.one, self.zero = number(1.0), number(0.0)
        try:
            self._describe()
        except BaseException:
            self.close()
            raise

    def _describe(self) -> None:
        gemm, library = self.gemm, self.library
        scale = TYPES["float64" if gemm.precision == "float64" else "float32"]
        self.matmul = self._made("MatmulDesc", COMPUTE[gemm.precision], scale)
        for attribute, on in zip((TRANSPOSE_LEFT, TRANSPOSE_RIGHT), gemm.transposed, strict=True):
            library.set("MatmulDesc", self.matmul, attribute, c_int(int(on)))
        self.layouts = [self._layout(one) for one in (gemm.left, gemm.right, gemm.result)]

    def _made(self, what: str, *arguments: Any) -> int:
        handle = self.library.made(f"cublasLt{what}Create", *arguments)
        self.handles.append((f"cublasLt{what}Destroy", handle))
        return handle

    def _layout(self, matrix: Matrix) -> int:
        made = self._made(
            "MatrixLayout", TYPES[matrix.dtype], matrix.rows, matrix.columns, matrix.step
        )
        if self.gemm.batches > 1:
            count, stride = c_int(self.gemm.batches), c_int64(matrix.stride)
            self.library.set("MatrixLayout", made, BATCH_COUNT, count)
            self.library.set("MatrixLayout", made, BATCH_STRIDE, stride)
        return made

    def proposals(self, count: int) -> list[Choice]:
        """The algorithms that the heuristic puts first."""
        gemm, library = self.gemm, self.library
        wish = self._made("MatmulPreference")
        library.set("MatmulPreference", wish, MOST_WORKSPACE, c_uint64(WORKSPACE_BYTES))
        library.set("MatmulPreference", wish, REDUCTIONS, c_uint32(IN_COMPUTE_TYPE))
        matrices = gemm.left, gemm.right, gemm.result, gemm.result
        for attribute, matrix in zip(ALIGNMENTS, matrices, strict=True):
            library.set(
                "MatmulPreference", wish, attribute, c_uint32(gcd(PARAM_BYTES, matrix.offset))
            )
        found, returned = (Heuristic * count)(), c_int()
        library.call(
            "cublasLtMatmulAlgoGetHeuristic", self.blas.handle, self.matmul, *self.layouts,
            self.layouts[2], wish, count, found, ctypes.byref(returned),
        )  # fmt: skip
        good = [one for one in found[: returned.value] if one.state == 0]
        good = [one for one in good if one.workspace <= WORKSPACE_BYTES]
        return [Choice(bytes(one.algorithm), int(one.workspace)) for one in good]

    def is_valid(self) -> bool:
        """True if the library takes the algorithm for this product."""
        assert self.choice is not None
        found = Heuristic()
        try:
            self.library.call(
                "cublasLtMatmulAlgoCheck", self.blas.handle, self.matmul, *self.layouts,
                self.layouts[2], ctypes.byref(self.algorithm), ctypes.byref(found),
            )  # fmt: skip
        except CublasError:
            return False
        return bool(found.state == 0 and found.workspace <= self.choice.workspace)

    def launch(
        self, left: int, right: int, result: int, workspace: int, stream: cuda.Stream
    ) -> None:
        """Multiply, after what the stream was given before."""
        assert self.choice is not None
        first, second, third = self.layouts
        gemm, one, zero = self.gemm, ctypes.byref(self.one), ctypes.byref(self.zero)
        to = result + gemm.result.offset
        self.library.call(
            "cublasLtMatmul", self.blas.handle, self.matmul, one, left + gemm.left.offset, first,
            right + gemm.right.offset, second, zero, to, third, to, third,
            ctypes.byref(self.algorithm), workspace, self.choice.workspace, stream.handle,
        )  # fmt: skip

    def close(self) -> None:
        """Destroy the descriptors."""
        while self.handles:
            name, handle = self.handles.pop()
            self.library.functions[name](handle)

    def __enter__(self) -> Product:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
