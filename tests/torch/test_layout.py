"""Tests of layouts: torch's strides as dense memory seen through a permutation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fulgurite as fg
from fulgurite.torch.layout import layout_of

CASES: list[tuple[str, Any, bool]] = [
    ("plain", torch.arange(24.0).reshape(2, 3, 4), True),
    ("transposed", torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2), True),
    ("channels last", torch.arange(48.0).reshape(2, 2, 3, 4).to(memory_format=torch.channels_last),
     True),
    ("expanded", torch.arange(3.0).reshape(3, 1).expand(3, 5), True),
    ("of size one", torch.arange(6.0).reshape(1, 6, 1).transpose(0, 1), True),
    ("a number", torch.tensor(3.0), True),
    ("nothing", torch.zeros(0, 3).t(), True),
    ("with gaps", torch.arange(24.0).reshape(4, 6)[:, ::2], False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tensor", "dense"), CASES, ids=[c[0] for c in CASES])
def test_a_layout_is_seen_as_the_tensor(name: str, tensor: Any, dense: bool) -> None:
    layout = layout_of(tensor)
    assert layout.dense is dense
    if dense and tensor.numel():
        flat = tensor.as_strided((int(np.prod(layout.held)),), (1,), 0).numpy()
        memory = fg.Tensor(flat.reshape(layout.held))
        assert np.array_equal(layout.seen(memory).numpy(), tensor.numpy())
        laid = layout.laid(fg.Tensor(tensor.contiguous().numpy()))
        assert np.array_equal(laid.numpy(), memory.numpy())
