"""Everything in float64, also what a model computes in float32 by its own text.

In: a block that runs a model whose parameters and inputs are float64. Out: the same values with no
rounding to float32 between: where an operator asks for float32 (a softmax, a mask, positions) it
gets float64, and so do tensors in float32 that a model holds. A `TorchDispatchMode` below autograd,
so gradients are as wide. Views and writes in place keep their memory and with it their type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@contextmanager
def widened() -> Iterator[None]:
    """Run a block in float64, whatever a model says."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)


class _Widened(TorchDispatchMode):  # type: ignore[misc]  # torch's has no types
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        shared = [each.alias_info for each in (*func._schema.arguments, *func._schema.returns)]
        if all([each is None for each in shared]):
            args, kwargs = tree_map(_wider, args), tree_map(_wider, kwargs or {})
        return _OWN.get(func, func)(*args, **kwargs or {})


def _wider(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to(_WIDER[x.dtype]) if x.dtype in _WIDER else x
    return _WIDER.get(x, x) if isinstance(x, torch.dtype) else x


def _grouped_mm(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Products of groups (of rows, of columns or of sums), which torch has in float32 at most."""
    if offs is None:
        return a @ b
    ends = offs.tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == 2 and b.dim() == 3:
        parts = [a[s] @ b[i] for i, s in enumerate(spans)]
        rest = a.new_zeros(a.shape[0] - ends[-1], b.shape[-1])
        return torch.cat([*parts, rest])
    if a.dim() == 3:
        parts = [a[i] @ b[:, s] for i, s in enumerate(spans)]
        rest = a.new_zeros(a.shape[1], b.shape[1] - ends[-1])
        return torch.cat([*parts, rest], 1)
    return torch.stack([a[:, s] @ b[s] for s in spans])


_OWN = {torch.ops.aten._grouped_mm.default: _grouped_mm}
