"""Files of weights: what every format shares.

In: a path. Out: its bytes, memory-mapped and read-only, and tensors that share them: nothing is
read before a value is needed. Every complaint about a file is one `FileError` that names the file,
what is wrong with it and what to do. Files are written whole or not at all: to a temporary name
beside the target, then renamed, so that a reader never meets half of one. Sizes that a file claims
are compared with the bytes it has before any memory is asked for.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from math import prod
from typing import IO, Any, TypeVar

import numpy as np

from ..core.dtype import DType, dtype_of
from ..core.op import Array
from ..errors import ArgumentError, FulguriteError
from ..tensor import Tensor, from_numpy, realize_all

Path = str | os.PathLike[str]
T = TypeVar("T")
LARGEST_SIZE = 1 << 62  # elements or bytes of one tensor that a file may claim


class FileError(FulguriteError, ValueError):
    """A file that is damaged, hostile, or not of its kind."""


class MissingFileError(FileError, FileNotFoundError):
    """A file that is not there."""

    def __str__(self) -> str:
        return str(self.args[0])  # OSError would print an error number


class Refusal(Exception):
    """What is wrong with a file, in words; readers raise it, `reading` adds the file's name."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem, self.hint = problem, hint


def path_of(path: object) -> str:
    """A path as text, or an error."""
    if isinstance(path, str | os.PathLike):
        found = os.fspath(path)
        if isinstance(found, str) and "\0" not in found:
            return found
    raise ArgumentError(f"{path!r} is no path of a file", "give a str or a pathlib.Path")


# what the decoders of the standard library raise over bytes that make no sense to them
DAMAGES = (
    *(ValueError, TypeError, LookupError, ArithmeticError, EOFError, RecursionError),
    *(NotImplementedError, RuntimeError, AttributeError, MemoryError),
)


def reading(path: Path, kind: str, read: Callable[[str], T]) -> T:
    """What a reader makes of a file; whatever is wrong becomes one clear error."""
    name = path_of(path)
    try:
        return read(name)
    except MissingFileError:  # of another file, which it names
        raise
    except FileNotFoundError:
        raise MissingFileError(f"there is no file {name!r}", "look at the path") from None
    except OSError as error:
        text = error.strerror or str(error)
        raise FileError(f"{name!r} cannot be read: {text}", "give a readable file") from None
    except Refusal as refusal:
        hint = refusal.hint or f"get the file anew, or check that it is {kind}"
        raise FileError(f"{name!r} is refused: {refusal.problem}", hint) from None
    except FulguriteError:
        raise
    except DAMAGES as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise FileError(
            f"{name!r} is refused: it is damaged ({what[:200]})",
            f"get the file anew, or check that it is {kind}",
        ) from None


def mapped(name: str) -> Array:
    """A file's bytes, memory-mapped and read-only; they stay mapped while an array shows them."""
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise Refusal("it is no regular file")
    with open(name, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise Refusal("it is empty")
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def sized(shape: Iterable[Any], what: str) -> tuple[int, ...]:
    """Sizes that a file claims, if they are sizes at all."""
    sizes = tuple(shape)
    if not all(type(n) is int and 0 <= n <= LARGEST_SIZE for n in sizes):
        raise Refusal(f"{what} has the shape {str(list(sizes))[:100]}")
    if len(sizes) > 64 or prod([max(n, 1) for n in sizes]) > LARGEST_SIZE:
        raise Refusal(f"{what} has too many dimensions or elements")
    return sizes


def shared(raw: Array, dtype: DType, shape: tuple[int, ...], device: str | None) -> Tensor:
    """A tensor over bytes of a file; bytes that lie askew in memory are copied."""
    if dtype.name == "bool" and raw.size and raw.max() > 1:
        raise Refusal("a truth value is neither 0 nor 1")
    start: int = raw.__array_interface__["data"][0]
    if raw.size and start % dtype.numpy.alignment:
        raw = raw.copy()
    return from_numpy(raw.view(dtype.numpy).reshape(shape), device)


def arrays_of(tensors: object, what: str) -> dict[str, Array]:
    """Named tensors or arrays as host arrays, computed together; an error names what is none."""
    state = getattr(tensors, "state_dict", None)
    if not isinstance(tensors, Mapping) and callable(state):
        tensors = state()
    if not isinstance(tensors, Mapping):
        raise ArgumentError(
            f"{type(tensors).__name__} is no set of named tensors",
            f"give {what} a dict of tensors, or a module: fg.save(model, path)",
        )
    for name, value in tensors.items():
        if not isinstance(name, str) or not _is_text(name):
            raise ArgumentError(f"{name!r} is no name of a tensor", "use text")
        if not isinstance(value, Tensor | np.ndarray | np.generic):
            raise ArgumentError(
                f"{name!r} is {type(value).__name__}, not a tensor",
                "give tensors by name; a nest of them goes into a checkpoint",
            )
    realize_all(*[value for value in tensors.values() if isinstance(value, Tensor)])
    return {
        name: value._array() if isinstance(value, Tensor) else _little(np.asarray(value))
        for name, value in tensors.items()
    }


def _is_text(name: str) -> bool:
    with suppress(UnicodeEncodeError):
        name.encode()
        return True
    return False


def _little(array: Array) -> Array:
    """An array of one of our dtypes, in the byte order of files."""
    return array.astype(dtype_of(array.dtype).numpy, copy=False)


def bytes_of(array: Array) -> memoryview:
    """An array's bytes in row-major order, without a copy where they lie so."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return memoryview(flat.view(np.uint8))  # type: ignore[arg-type]  # arrays are buffers


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a temporary name beside its place, then put it there in one step.

    A link stays, and what it points to is written; nothing takes a device's place.
    """
    name = os.path.realpath(path_of(path))
    if os.path.exists(name) and not os.path.isfile(name):
        raise FileError(
            f"{name!r} cannot be written: it is no regular file", "choose another place"
        )
    temporary = f"{name}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name)
        sync_folder(name)
    except OSError as error:
        text = error.strerror or str(error)
        raise FileError(f"{name!r} cannot be written: {text}", "choose another place") from None
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def sync_folder(name: str) -> None:
    """Make a rename in a folder last, where the system can."""
    with suppress(OSError):
        folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def tensor_digest(text: str, tensors: Iterable[tuple[str, Tensor | Array]]) -> str:
    """A digest of text and of named tensors: names, dtypes, shapes and bytes."""
    found = blake2b(text.encode(), digest_size=16)
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        array = tensor._array() if isinstance(tensor, Tensor) else tensor
        found.update(f"\0{name}\0{array.dtype}{array.shape}".encode())
        found.update(bytes_of(array))
    return found.hexdigest()
