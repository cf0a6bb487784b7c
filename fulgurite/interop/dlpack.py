"""DLPack: tensors of ours as capsules, arrays of others as tensors.

In: tensors of ours, arrays of others. Out: theirs and ours, sharing memory where it can be shared.
What we hand out is read-only: a tensor's memory may hold several tensors' values. Capsules are
NumPy's own, so that their lifetime is NumPy's care; for the dtypes that NumPy does not send
(bfloat16, float8) the type in the capsule is set to what the bytes mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import build
from ..core.dtype import DType, dtype_of
from ..errors import DataError
from ..graph.ir.registry import REGISTRY
from ..runtime.device import device_at, get_device
from ..runtime.realize import storage_of, value_node
from ..tensor import Tensor, from_numpy, wrap
from .device_dlpack import SMALL, Borrowed, contents, lent_capsule

_CPU = (1, 0)  # DLPack's name of the host
_BY_CODE = {code: dtype_of(name) for name, code in SMALL.items()}


class _Once:
    """A capsule on its way to somebody who asks an array for it."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


def to_dlpack(
    x: Tensor, max_version: tuple[int, int] | None, dl_device: Any, copy: bool | None,
    stream: Any = None,
) -> object:  # fmt: skip
    """A capsule with the tensor's value; consumers that know no read-only arrays get a copy.

    Memory of a GPU is for consumers that ask for it, by its device or with a stream; others get a
    copy in the memory of the host.
    """
    place = tuple(map(int, dl_device)) if dl_device is not None else None
    versioned = max_version is not None and max_version[0] >= 1
    backend: Any = get_device(x.device)
    asked = place or (None if stream is None else backend.dlpack)
    if asked is not None and asked != _CPU:
        if asked != backend.dlpack:
            raise BufferError(f"the tensor is not on {dl_device}, nor in its host memory")
        return _lent(x, backend, versioned, copy, stream)
    return _shown(x, max_version if versioned else None, copy)


def _shown(x: Tensor, version: tuple[int, int] | None, copy: bool | None) -> object:
    """A capsule over host memory."""
    if not all([isinstance(n, int) for n in x.shape]):
        x = Tensor(x.numpy())
    shown = x.__array__()
    narrow = SMALL.get(x.dtype.name)
    raw = shown if narrow is None else shown.view(f"u{x.dtype.itemsize}")
    if copy or version is None:
        if copy is False:
            raise BufferError("a read-only tensor is shared with consumers of DLPack 1.0 only")
        raw = raw.copy()
    capsule = raw.__dlpack__() if version is None else raw.__dlpack__(max_version=version)
    if narrow is not None:
        contents(capsule)[1].tensor.dtype.code = narrow
    return capsule


def _lent(x: Tensor, backend: Any, versioned: bool, copy: bool | None, stream: Any) -> object:
    """A capsule over a device's own memory; old consumers, who may write to it, get a copy."""
    if copy is False and not versioned:
        raise BufferError("a read-only tensor is shared with consumers of DLPack 1.0 only")
    found = value_node(x.realize().entry.node)
    assert found is not None, "a tensor that was realized has a value"
    buffer: Any = storage_of(found)
    shape: Any = found.shape
    if copy or not versioned:
        buffer = backend.duplicated(buffer)
    returned = backend.lend(buffer, stream)
    return lent_capsule(buffer, shape, x.dtype, backend.dlpack, versioned, returned)


def _borrowed(x: Any, place: tuple[int, int], device: str | None, copy: bool | None) -> Tensor:
    """A tensor over an array of another library in the memory of a GPU, or by way of the host."""
    name = device_at(place)
    backend: Any = None if name is None else get_device(name)
    if not hasattr(backend, "borrow"):
        raise DataError("the array is not in host memory", "move it to the CPU first")
    try:
        capsule = x.__dlpack__(stream=backend.stream.handle, max_version=(1, 0))
    except TypeError:  # written before version 1.0, or for hosts
        return _from_host(x, device, copy)
    found = Borrowed(capsule)
    if not found.is_contiguous:
        found.close()
        raise DataError("the array's elements do not follow each other", "make it contiguous first")
    node = build.buffer(found.shape, found.dtype, backend.name)
    REGISTRY.attach(node, backend.borrow(found))
    made = Tensor(wrap(node)) if copy else wrap(node)
    return made if device in (None, backend.name) else made.to(device)


def from_dlpack(x: Any, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with the value of another library's array, sharing its memory unless `copy`.

    >>> import numpy as np
    >>> fg.from_dlpack(np.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    if isinstance(x, Tensor):
        return Tensor(x, device=device)
    if not hasattr(x, "__dlpack__"):
        raise DataError(f"{type(x).__name__} does not know DLPack", "use fg.asarray(data)")
    kind, member = map(int, x.__dlpack_device__())
    place = kind, member
    return _from_host(x, device, copy) if place == _CPU else _borrowed(x, place, device, copy)


def _from_host(x: Any, device: str | None, copy: bool | None) -> Tensor:
    """An array in the memory of the host."""
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # written before version 1.0
        capsule = x.__dlpack__()
    about = contents(capsule)[1].tensor.dtype
    narrow: DType | None = _BY_CODE.get(about.code)
    if narrow is not None:
        about.code = 1  # unsigned integers of the same width
    array = np.from_dlpack(_Once(capsule))  # type: ignore[arg-type]
    array = array if narrow is None else array.view(narrow.numpy)
    return Tensor(array, device=device) if copy else from_numpy(array, device)
