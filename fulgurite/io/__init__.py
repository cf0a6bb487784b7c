"""Reading and writing weights: `fg.load(path)` and `fg.save(tensors, path)`, by the extension.

In: a path, and tensors by name. Out: tensors that share the file's bytes, or the file. Each format
is one module: safetensors, NumPy's archives, torch's checkpoints (read only, nothing executed),
GGUF (read only, block-quantised types too), and training checkpoints. Files are never trusted:
whatever is wrong with one is a `FileError` that says what and where.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._hints import surface as _surface
from ..errors import ArgumentError
from ..tensor import Tensor
from .checkpoint import load_checkpoint, load_tree, save_checkpoint, save_tree
from .files import FileError, MissingFileError, Path, path_of
from .gguf import GgufFile, load_gguf
from .npz import load_npz, save_npz
from .safetensors import SafetensorsFile, load_safetensors, save_safetensors
from .torchfile import load_torch

__all__ = [
    "FileError", "GgufFile", "MissingFileError", "SafetensorsFile", "load", "load_checkpoint",
    "load_gguf", "load_npz", "load_safetensors", "load_torch", "load_tree", "save",
    "save_checkpoint", "save_npz", "save_safetensors", "save_tree",
]  # fmt: skip

_READERS: dict[str, Any] = {
    ".safetensors": load_safetensors, ".npz": load_npz, ".npy": load_npz, ".gguf": load_gguf,
    ".pt": load_torch, ".pth": load_torch, ".bin": load_torch, ".ckpt": load_torch,
}  # fmt: skip


def load(path: Path, device: str | None = None) -> Any:
    """The tensors of a file by name; of a torch checkpoint or a training checkpoint, its nest.

    The extension says what it is: `.safetensors`, `.npz`, `.npy` (the array itself), `.gguf`,
    `.pt`, `.pth`, `.bin` and `.ckpt` (torch). Tensors share the file's memory-mapped bytes.

    >>> fg.save({"w": fg.arange(3)}, "/tmp/fulgurite-doc.safetensors")
    >>> fg.load("/tmp/fulgurite-doc.safetensors")["w"].tolist()
    [0, 1, 2]
    """
    name = path_of(path)
    extension = os.path.splitext(name)[1].lower()
    reader = _READERS.get(extension)
    if reader is None:
        raise ArgumentError(
            f"{name!r} has no extension that says what it is",
            f"one of {', '.join(_READERS)}, or a function of fg.io",
        )
    found = reader(name, device)
    return found["array"] if extension == ".npy" else found


def save(tensors: Mapping[str, Tensor] | Any, path: Path) -> None:
    """Write named tensors, or a module's, to a `.safetensors` or `.npz` file.

    >>> fg.save({"w": fg.ones(2)}, "/tmp/fulgurite-doc.npz")
    >>> fg.load("/tmp/fulgurite-doc.npz")["w"].tolist()
    [1.0, 1.0]
    """
    if isinstance(tensors, str | os.PathLike) and not isinstance(path, str | os.PathLike):
        raise ArgumentError("the path comes second", "fg.save(tensors, path)")
    name = path_of(path)
    extension = os.path.splitext(name)[1].lower()
    if extension == ".safetensors":
        save_safetensors(tensors, name)
    elif extension == ".npz":
        save_npz(tensors, name)
    else:
        raise ArgumentError(
            f"{name!r} has no extension that can be written",
            "use .safetensors (or .npz); training state goes through fg.io.save_checkpoint",
        )


__getattr__, __dir__ = _surface(__name__)
