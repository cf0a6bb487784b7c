"""Models both ways: modules of torch as modules of ours, and back.

In: a module, an exported program, a `.pt2` file or a tensor. Out: the same of the other library.
Layers correspond by name: where a class of `torch.nn` has a namesake here, its settings are read
from the attributes that the constructor names, and weights are taken over by name. A module of the
user's own class has no namesake; it is exported (`torch.export`), for which inputs are needed.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import numpy as np
import torch

import fulgurite as fg

from ..errors import ArgumentError
from ..tensor import Tensor
from .dtypes import TO_OURS, TO_TORCH
from .exported import Exported

CONTAINERS = ("Sequential", "ModuleList")


def from_torch(source: Any, *args: Any, **named: Any) -> Any:
    """A tensor or module of ours from one of torch's; see `fg.from_torch`."""
    if isinstance(source, torch.Tensor):
        return fg.from_numpy(array_of(source))  # shares its memory
    if isinstance(source, str | os.PathLike):
        return Exported(torch.export.load(os.fspath(source)))
    if isinstance(source, torch.export.ExportedProgram):
        return Exported(source)
    if not isinstance(source, torch.nn.Module):
        raise ArgumentError(
            f"{type(source).__name__} is no model of torch",
            "give a torch.nn.Module, an exported program, the path of a .pt2 file or a tensor",
        )
    found = _namesake(source, torch.nn, fg.nn)
    if found is not None:
        found.load_state_dict({k: array_of(v) for k, v in source.state_dict().items()})
        return found.train(source.training)
    if not args and not named:
        raise ArgumentError(
            f"{type(source).__name__} has no layers that correspond to ours",
            "give inputs to export it with: fg.from_torch(module, x)",
        )
    return Exported(torch.export.export(source, args, named))


def to_torch(source: Any) -> Any:
    """A tensor or module of torch's from one of ours; see `fg.to_torch`."""
    if isinstance(source, Tensor):
        return tensor_of(source)
    if isinstance(source, dict):
        return {name: tensor_of(value) for name, value in source.items()}
    if not isinstance(source, fg.nn.Module):
        raise ArgumentError(f"{type(source).__name__} is no model of ours", "give an nn.Module")
    found = _namesake(source, fg.nn, torch.nn)
    if found is None:
        raise ArgumentError(
            f"{type(source).__name__} has layers without a namesake in torch.nn",
            "take its weights: module.load_state_dict(fg.to_torch(model.state_dict()))",
        )
    found.load_state_dict(to_torch(source.state_dict()))
    return found.train(source.training)


def array_of(tensor: Any) -> Any:
    """torch's values as a NumPy array."""
    tensor = tensor.detach().cpu().resolve_conj().contiguous()
    dtype = TO_OURS[tensor.dtype].numpy
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        width = torch.uint8 if tensor.element_size() == 1 else torch.int16
        return tensor.view(width).numpy().view(dtype)
    return tensor.numpy()


def tensor_of(x: Tensor) -> Any:
    """Our values as a torch tensor of its own."""
    array = np.ascontiguousarray(x.numpy()).reshape(tuple(x.shape))
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
    return flat.view(TO_TORCH[x.dtype]).reshape(tuple(x.shape))


def _namesake(module: Any, here: Any, there: Any) -> Any:
    """The module that another library has under the same name; None if it has none like it."""
    kind = type(module)
    name = kind.__name__
    if getattr(here, name, None) is not kind or not hasattr(there, name):
        return None
    children = list(module.named_children())
    if name in CONTAINERS:
        found = [_namesake(child, here, there) for _, child in children]
        if any([one is None for one in found]):
            return None
        return getattr(there, name)(*found) if name == "Sequential" else getattr(there, name)(found)
    target = getattr(there, name)
    settings: dict[str, Any] = {}
    for key in inspect.signature(target.__init__).parameters:
        if key in ("self", "device", "dtype", "args", "kwargs") or not hasattr(module, key):
            continue
        settings[key] = _setting(getattr(module, key))
    try:
        made = target(**settings)
    except (TypeError, fg.errors.FulguriteError):
        return None
    mine = {k: tuple(v.shape) for k, v in module.state_dict().items()}
    theirs = {k: tuple(v.shape) for k, v in made.state_dict().items()}
    return made if mine == theirs else None


def _setting(value: Any) -> Any:
    """A constructor's argument from a module's attribute: a parameter stands for True."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor | Tensor):
        return True
    return value
