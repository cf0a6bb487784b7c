"""Values of torch's tensors as NumPy arrays, and of ours as torch's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import ArgumentError
from ..tensor import Tensor
from .dtypes import TO_OURS, TO_TORCH


def array_of(tensor: Any) -> Any:
    """torch's values as a NumPy array, over their memory where that is dense and on the host."""
    if tensor.dtype not in TO_OURS or tensor.layout is not torch.strided or tensor.is_meta:
        raise ArgumentError(
            f"a tensor of torch is {tensor.dtype}, {tensor.layout}, on {tensor.device}",
            "only dense tensors with values, of types that both have, are taken over",
        )
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    dtype = TO_OURS[tensor.dtype].numpy
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        width = torch.uint8 if tensor.element_size() == 1 else torch.int16
        return tensor.view(width).numpy().view(dtype)
    return tensor.numpy()


def tensor_of(x: Tensor) -> Any:
    """Our values as a torch tensor of its own."""
    array = np.ascontiguousarray(x.numpy()).reshape(tuple(x.shape))
    if array.size == 0:
        return torch.empty(tuple(x.shape), dtype=TO_TORCH[x.dtype])
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
    return flat.view(TO_TORCH[x.dtype]).reshape(tuple(x.shape))
