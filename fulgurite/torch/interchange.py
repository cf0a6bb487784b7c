"""Models both ways: modules of torch as modules of ours, and back.

In: a module, an exported program, a `.pt2` file or a tensor. Out: the same of the other library.
Layers correspond by name: where a class of `torch.nn` has a namesake here, its settings are read
from the attributes that the constructor names, and weights are taken over by name. What a layer
is beside its weights stays: its type, whether it trains, which parameters are frozen, which of
them and which layers are one object. A module of the user's own class has no namesake, nor has
one with hooks or with a setting that the other library lacks; it is exported (`torch.export`), for
which inputs are needed.
"""

from __future__ import annotations

import inspect
import os
from collections import OrderedDict
from typing import Any

import torch

import fulgurite as fg

from ..errors import ArgumentError
from ..tensor import Tensor
from .arrays import array_of, tensor_of
from .dtypes import TO_OURS, TO_TORCH
from .exported import Exported, load

CONTAINERS = ("Sequential", "ModuleList")
NO_SETTING = {"self", "device", "dtype"}
SEEN = {"bias", "add_bias_kv", "init", "values"}  # among the weights
NO_MATTER = {"inplace", "sparse"} | SEEN  # to values
MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
KEPT_AS = {"p": "norm"}  # settings whose attribute, in both libraries, has another name
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_hooks")


def from_torch(source: Any, *args: Any, **named: Any) -> Any:
    """A tensor or module of ours from one of torch's; see `fg.from_torch`."""
    if isinstance(source, torch.Tensor):
        return fg.from_numpy(array_of(source))  # shares its memory
    if isinstance(source, str | os.PathLike):
        return Exported(load(os.fspath(source)))
    if isinstance(source, torch.export.ExportedProgram):
        return Exported(source)
    if not isinstance(source, torch.nn.Module):
        raise ArgumentError(
            f"{type(source).__name__} is no model of torch",
            "give a torch.nn.Module, an exported program, the path of a .pt2 file or a tensor",
        )
    found = _namesake(source, torch.nn, fg.nn, {})
    if found is not None:
        found.load_state_dict({k: array_of(v) for k, v in source.state_dict().items()})
        return _alike(source, found)
    if not args and not named:
        raise ArgumentError(
            f"{type(source).__name__} or a layer in it has no like among ours",
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
    found = _namesake(source, fg.nn, torch.nn, {})
    if found is None:
        raise ArgumentError(
            f"{type(source).__name__} has layers without a namesake in torch.nn",
            "take its weights: module.load_state_dict(fg.to_torch(model.state_dict()))",
        )
    found.load_state_dict(to_torch(source.state_dict()))
    return _alike(source, found)


def _namesake(module: Any, here: Any, there: Any, made: dict[int, Any]) -> Any:
    """The module that another library has under the same name; None if it has none like it."""
    kind = type(module)
    name = kind.__name__
    if id(module) in made:
        return made[id(module)]  # one layer at two places
    if getattr(here, name, None) is not kind or not hasattr(there, name) or _is_hooked(module):
        return None
    if name in CONTAINERS:
        found = _container(module, here, there, made)
    else:
        found = _layer(module, getattr(there, name))
    if found is not None:
        found.training = module.training
        made[id(module)] = found
    return found


def _container(module: Any, here: Any, there: Any, made: dict[int, Any]) -> Any:
    """A container with the same names, and the same layer wherever it was the same."""
    parts = {n: _namesake(part, here, there, made) for n, part in _parts(module)}
    if any([part is None for part in parts.values()]):
        return None
    target = getattr(there, type(module).__name__)
    if list(parts) == [str(i) for i in range(len(parts))]:
        items = list(parts.values())
        return target(*items) if target.__name__ == "Sequential" else target(items)
    return target(OrderedDict(parts))


def _parts(module: Any) -> list[tuple[str, Any]]:
    """What a container holds, by name, and what it holds twice as well."""
    if isinstance(module, torch.nn.Module):
        return list(module._modules.items())
    return [(name, x) for name, x in vars(module).items() if isinstance(x, fg.nn.Module)]


def _is_hooked(module: Any) -> bool:
    """True if somebody's function is called with a module's calls."""
    return any([len(vars(module).get(name) or ()) > 0 for name in HOOKS])


def _layer(module: Any, target: Any) -> Any:
    """A layer of another class with the same settings and types; None if there is none."""
    keys = _keys(target)
    if any([_is_lost(module, key, x, keys) for key, x in _keys(type(module)).items()]):
        return None
    read = {key: _attribute(module, key) for key in keys}
    settings = {key: _setting(getattr(module, x)) for key, x in read.items() if hasattr(module, x)}
    try:
        made = target(**settings)
    except (TypeError, ValueError, fg.errors.FulguriteError):
        return None
    floats = [x.dtype for x in module.state_dict().values() if _is_float(x)]
    if floats:
        made = made.to(_other(floats[0]))
    made.train(module.training)
    return made if _looks(module) == _looks(made) else None


def _is_lost(module: Any, key: str, default: Any, keys: dict[str, Any]) -> bool:
    """True if a setting is one that the other library has not, or that nobody can read."""
    if key in NO_MATTER:
        return False
    if key in keys:
        return not hasattr(module, _attribute(module, key))
    given = getattr(module, key, default)
    return given is not default and bool(given != default)


def _attribute(module: Any, key: str) -> str:
    """Where a module keeps a setting."""
    return key if hasattr(module, key) else KEPT_AS.get(key, key)


def _keys(kind: Any) -> dict[str, Any]:
    """The settings that a class is made with, and their defaults."""
    found: dict[str, Any] = {}
    for each in kind.__mro__:  # torch's recurrent layers leave theirs to a class below
        if "__init__" in vars(each):
            signature = inspect.signature(each.__init__).parameters
            one = [p for k, p in signature.items() if k not in NO_SETTING and p.kind not in MANY]
            found = {p.name: p.default for p in one} | found
            if not any([p.kind is p.VAR_KEYWORD for p in signature.values()]):
                break
    if issubclass(kind, torch.nn.RNNBase):
        del found["mode"]  # the class says it
        if kind is not torch.nn.LSTM:
            del found["proj_size"]
    return found | ({"nonlinearity": "tanh"} if kind is torch.nn.RNN else {})


def _is_float(x: Any) -> bool:
    dtype = TO_OURS.get(x.dtype) if isinstance(x, torch.Tensor) else x.dtype
    return dtype is not None and dtype.is_inexact


def _other(dtype: Any) -> Any:
    """An element type of torch as ours, or the other way."""
    return TO_OURS[dtype] if isinstance(dtype, torch.dtype) else TO_TORCH[dtype]


def _looks(module: Any) -> dict[str, Any]:
    """Shapes, and types of floats, by name."""
    return {
        name: (tuple(x.shape), _is_float(x) and str(x.dtype).removeprefix("torch."))
        for name, x in module.state_dict().items()
    }


def _alike(source: Any, found: Any) -> Any:
    """A module whose parameters are one, and are frozen, where those of another are."""
    first: dict[int, Any] = {}
    for name, parameter in source.named_parameters(remove_duplicate=False):
        folder, _, last = name.rpartition(".")
        mine = first.setdefault(id(parameter), found.get_parameter(name))
        if mine is not found.get_parameter(name):
            setattr(found.get_submodule(folder), last, mine)
        mine.requires_grad_(parameter.requires_grad)
    return found


def _setting(value: Any) -> Any:
    """A constructor's argument from a module's attribute: a parameter stands for True."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor | Tensor):
        return True
    return value
