"""Where a graph's tensors are: torch's device, the device of ours over the same memory, streams.

In: the tensors that torch knows of. Out: a `Home`. Kernels read and write torch's memory where it
is. On a GPU they run in a stream of ours, which waits for torch's current stream before a call, and
for which that stream waits afterwards: torch's allocator sees one order of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..config import current
from ..core.node import Node
from ..runtime.device import device_at, get_device
from .dtypes import TO_TORCH
from .layout import Layout

HOST = torch.device("cpu")
DLPACK_CUDA = 2
Run = Callable[[Sequence[Any]], list[Any]]


class Home(NamedTuple):
    """A device of torch, and the device of ours that shares its memory."""

    torch: Any
    ours: str

    @property
    def is_gpu(self) -> bool:
        """True if kernels run in a stream, over memory that the host does not see."""
        return get_device(self.ours).dlpack[0] == DLPACK_CUDA

    def ordered(self, run: Run) -> Run:
        """A call in the order of torch's current stream."""
        if not self.is_gpu:
            return run
        device: Any = get_device(self.ours)

        def call(tensors: Sequence[Any]) -> list[Any]:
            stream = current_stream(self.torch)
            device.follow(stream)
            try:
                return run(tensors)
            finally:
                device.lead(stream)

        return call

    def options(self) -> dict[str, Any]:
        """What torch's own settings say of numbers on this device."""
        tf32 = self.is_gpu and torch.get_float32_matmul_precision() != "highest"
        return {"matmul_precision": "tf32"} if tf32 else {}

    def buffer(self, tensor: Any, root: Node) -> Any:
        """torch's memory as a buffer of the shape that a plan reads."""
        device: Any = get_device(self.ours)
        if not self.is_gpu:
            return device.from_host(_array(tensor, root), share=True)
        return device.borrow(Owned(tensor, root))

    def result(self, buffer: Any, root: Node, layout: Layout) -> Any:
        """A buffer of ours as a torch tensor: over the same memory, or a copy on a GPU."""
        device: Any = get_device(self.ours)
        if not self.is_gpu:
            return _tensor(device.to_host(buffer, root.shape, root.dtype), root, layout)
        made = torch.empty_strided(
            layout.size, layout.stride, dtype=TO_TORCH[root.dtype], device=self.torch
        )
        if made.numel():
            device.copy(buffer, device.borrow(Owned(made, root)))
        return made


class Owned(NamedTuple):
    """A torch tensor as the owner of memory that is borrowed."""

    tensor: Any
    root: Node

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.tensor.data_ptr())

    @property
    def dtype(self) -> Any:
        """Of ours."""
        return self.root.dtype

    @property
    def shape(self) -> Any:
        """As a plan reads it."""
        return self.root.shape

    def close(self) -> None:
        """Nothing: torch has it back when this is gone."""


def home_of(values: Sequence[Any]) -> Home:
    """Where a graph runs: on the first GPU that its tensors are on, else on the host."""
    for value in values:
        place = place_of(value)
        if place.type == "cuda":
            return on_gpu(place)
    chosen = current().device
    return Home(HOST, chosen if get_device(chosen).dlpack[0] == 1 else "cpu")


def on_gpu(place: Any) -> Home:
    """A GPU of torch's, and ours over its memory."""
    member = place.index or 0
    name = device_at((DLPACK_CUDA, member))
    if name is None:
        return Home(HOST, "cpu")  # its nodes are left to torch
    return Home(torch.device(place.type, member), name)


def current_stream(place: Any) -> int:
    """The stream in which torch launches now, as the driver calls it."""
    return int(torch.cuda.current_stream(place).cuda_stream)


def place_of(tensor: Any) -> Any:
    """The device of a tensor, or of the one that a stand-in is for."""
    return getattr(tensor, "place", tensor.device)


def offset_of(tensor: Any) -> Any:
    """How many elements of its memory are before a tensor's first, or the one a stand-in is for."""
    return tensor.offset if hasattr(tensor, "offset") else tensor.storage_offset()


def stand_in(
    size: Sequence[int], stride: Sequence[int], dtype: Any, place: Any, offset: int
) -> Any:
    """A tensor without memory, which says where memory would be."""
    made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    made.place, made.offset = place, offset
    return made


def _array(tensor: Any, root: Node) -> Any:
    """torch's memory as a NumPy array of the shape that a plan reads."""
    shape: Any = root.shape
    raw = tensor.detach()
    if tensor.numel() == 0:
        return np.zeros(shape, root.dtype.numpy)
    flat = raw.as_strided((_held(raw),), (1,), raw.storage_offset())
    array = flat.view(torch.uint8).numpy()
    return array.view(root.dtype.numpy).reshape(shape)


def _held(tensor: Any) -> int:
    """How many elements are in a tensor's memory, from the first to the last."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + int(sum([(n - 1) * s for n, s in pairs]))


def _tensor(array: Any, root: Node, layout: Layout) -> Any:
    """A NumPy array in the layout that torch expects, sharing its memory where it can."""
    dtype = TO_TORCH[root.dtype]
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8)) if array.size else None
    if flat is None:
        return torch.empty(layout.size, dtype=dtype)
    return flat.view(dtype).as_strided(layout.size, layout.stride)
