"""Decomposition of operators on lists of tensors (`_foreach_add`): one operator for each tensor.

In: nothing. Out: a table of decompositions. What torch runs in one launch for many small tensors
(steps of optimisers, `clip_grad_norm_`) becomes many nodes of a graph, which fuses them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten
OTHERS = {"mm", "powsum"}  # with a meaning of their own


def _norm(x: Any, order: Any = 2, dtype: Any = None) -> Any:
    return aten.linalg_vector_norm(x, order, dtype=dtype)


def _fused(operator: Any, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return operator(x, a, b, value=value)


def _extreme(of_tensors: Any, by_number: Any, x: Any, y: Any) -> Any:
    return (of_tensors if isinstance(y, torch.Tensor) else by_number)(x, y)


SPELLED: dict[str, Callable[..., Any]] = {  # otherwise than the operator of the same name
    "norm": _norm,
    "zero": aten.zeros_like,
    "addcmul": partial(_fused, aten.addcmul),
    "addcdiv": partial(_fused, aten.addcdiv),
    "maximum": partial(_extreme, aten.maximum, aten.clamp_min),
    "minimum": partial(_extreme, aten.minimum, aten.clamp_max),
}


def one_by_one() -> dict[Any, Callable[..., Any]]:
    """Decompositions of all operators on lists that give lists."""
    found: dict[Any, Callable[..., Any]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        packet, _, overload = full.removeprefix("aten::").partition(".")
        name = packet.removeprefix("_foreach_")
        if full == name or name == packet or name.endswith("_") or name in OTHERS:
            continue
        if overload.endswith("out") or (name in ("addcmul", "addcdiv") and overload == "Tensor"):
            continue  # numbers in a tensor are read by torch
        function = SPELLED.get(name) or getattr(aten, name)
        found[getattr(getattr(aten, packet), overload or "default")] = partial(_each, function)
    return found


def _each(function: Callable[..., Any], *args: Any, **named: Any) -> list[Any]:
    """What a function gives for each place of lists; other arguments are the same for all."""
    (count, *_) = [len(a) for a in args if isinstance(a, list | tuple)]
    return [
        function(*[a[i] if isinstance(a, list | tuple) else a for a in args], **named)
        for i in range(count)
    ]
