"""Where a model comes from: a mapped file, or bytes.

In: a path, or bytes. Out: `Source`: the bytes, the folder in which external data may lie, a name,
and what the file system says of the file. Nothing is read yet.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from ..core.lazy_named_tuple import NamedTuple
from .errors import ModelError


class Source(NamedTuple):
    """The bytes of a model."""

    data: memoryview
    folder: Path | None = None  # where its external data may lie
    name: str = ""  # of the file
    status: tuple[Any, ...] = ()  # path, device, inode, size, times in ns: of a file

    @property
    def changed(self) -> int:
        """When a file was last written to, or looked so, in ns."""
        *_, modified, changed = self.status
        return int(max(modified, changed))

    def release_pages(self) -> None:
        """Give the memory of what was read of a file back: the system can read it again."""
        release_pages(self.data)


def release_pages(view: memoryview) -> None:
    """Give the memory of what was read of a mapped file back."""
    if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)


def opened(source: object) -> Source:
    """The bytes of a model that is given by its path or as bytes."""
    if isinstance(source, str | os.PathLike):
        return _mapped(Path(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return Source(memoryview(source).cast("B").toreadonly())
    raise ModelError(
        f"a model is read from a path or bytes, not from {type(source).__name__}",
        "pass 'model.onnx', or model.SerializeToString()",
    )


def _mapped(path: Path) -> Source:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not status.st_size:
                raise ModelError(f"{path} is empty", "export the model again")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ModelError(f"{path} cannot be read: {reason}", "give the path of a file") from None
    path = path.absolute()
    about = (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns,
             status.st_ctime_ns)  # fmt: skip
    return Source(data, path.parent, path.name, about)
