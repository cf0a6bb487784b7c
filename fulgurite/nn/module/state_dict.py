"""The state of modules: names and values out, and in again, all of it or nothing.

In: a module, and a mapping from dotted names to tensors or arrays. Out: a dict of the values as
they are now (later steps do not change it); or a module with other values. Loading looks at every
name and shape first and reports all that does not fit in one error; only then it assigns, so a
failed load changes nothing. Tensors stay the same objects: optimisers go on with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...core import build
from ...core.dtype import DType
from ...core.node import Node
from ...errors import ArgumentError, DataError, DTypeError, ShapeError
from ...graph.ir.registry import REGISTRY
from ...interop.dlpack import from_dlpack
from ...runtime.device import device_or_dtype
from ...tensor import Tensor, no_grad
from ...tree import rebound
from .pytree import KINDS

if TYPE_CHECKING:
    from . import Module

MOST_SHOWN = 8  # names of one kind in a report


class Loaded(NamedTuple):
    """The names that a state lacked, and those that the module has no use for."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def saved_tensors(module: Module, prefix: str = "") -> dict[str, Tensor]:
    """The parameters and persistent buffers themselves, by every name they have."""
    found: dict[str, Tensor] = {}
    for path, part in module.named_modules(prefix.removesuffix("."), remove_duplicate=False):
        own = vars(part)
        for wanted in ("parameter", "buffer"):
            for name, kind in own[KINDS].items():
                if kind == wanted and own.get(name) is not None:
                    found[f"{path}.{name}" if path else name] = own[name]
    return found


def state_dict(module: Module, prefix: str = "") -> dict[str, Tensor]:
    """The values of a module by name, as they are now."""
    module.settle()
    return {name: tensor.detach() for name, tensor in saved_tensors(module, prefix).items()}


def load_state_dict(module: Module, state: Mapping[str, Any], strict: bool = True) -> Loaded:
    """Give a module the values of a state, if all of them fit."""
    if not isinstance(state, Mapping):
        raise ArgumentError(f"a state is a mapping, not {type(state).__name__}", "give a dict")
    own = saved_tensors(module)
    missing = [name for name in own if name not in state]
    unexpected = [str(name) for name in state if name not in own]
    values = {name: _value(name, state[name]) for name in own if name in state}
    misshaped = _unlike(own, values, "shape", lambda here, there: here == there)
    kinds = _unlike(own, values, "dtype", lambda here, there: _rank(there) <= _rank(here))
    reports = {"missing": missing, "unexpected": unexpected} if strict else {}
    reports |= {"mis-shaped": misshaped, "of another kind": kinds}
    text = "\n".join([f"  {line}" for what in reports for line in _report(what, reports[what])])
    if text:
        loose = not [*misshaped, *kinds]
        raise (ArgumentError if loose else ShapeError)(
            f"the state does not fit {type(module).__name__}; nothing was loaded\n{text}",
            "strict=False leaves out names" if loose else "make the module with the same sizes",
        )
    with no_grad():
        for name, value in values.items():
            _assign(own[name], value)
    return Loaded(missing, unexpected)


def _unlike(
    own: Mapping[str, Tensor], values: Mapping[str, Tensor], what: str, fits: Callable[..., bool]
) -> list[str]:
    """Where an attribute of a value does not fit that of the tensor it is for."""
    pairs = [(name, getattr(own[name], what), getattr(values[name], what)) for name in values]
    return [f"{name}: {a} here, {b} in the state" for name, a, b in pairs if not fits(a, b)]


def _assign(tensor: Tensor, value: Tensor) -> None:
    # a node of its own would be one more that holds the memory, which a step cannot write over
    fitting = (value.detach() if value.node.watched else value).astype(tensor.dtype)
    if value.node.device not in (None, tensor.device):
        fitting = fitting.to(tensor.device)
    tensor.assign(fitting)


def _rank(dtype: DType) -> int:
    """What may be cast to what: whole numbers to floats to complex numbers."""
    return 2 if dtype.kind == "c" else int(dtype.is_inexact)


def _value(name: str, value: Any) -> Tensor:
    try:
        if isinstance(value, Tensor):
            return value
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            # torch's tensors: bfloat16 too, which NumPy does not take, and those with a gradient
            plain = value.detach() if hasattr(value, "detach") else value
            return from_dlpack(plain, copy=True)
        return Tensor(value)
    except (DataError, DTypeError) as problem:
        raise DataError(f"{name} in the state: {problem.what}", problem.hint) from None


def _report(what: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    rest = [f"... and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
    return [f"{len(lines)} {what}:", *["  " + line for line in [*lines[:MOST_SHOWN], *rest]]]


# --- another dtype or device ---------------------------------------------------------------------


def moved(module: Module, targets: Sequence[object]) -> None:
    """Change the dtype of all floats in a module, or the device of everything, in place."""
    dtype: DType | None = None
    device: str | None = None
    for target in targets:
        found = device_or_dtype(target)
        if isinstance(found, str):
            device = found
            continue
        dtype = found
        if not dtype.is_inexact:
            raise DTypeError(f"a module is not cast to {dtype}", "use a float dtype")
    for _, tensor in [*module.named_parameters(), *module.named_buffers()]:
        for each in (tensor, tensor.grad):
            if each is not None:
                _rebind(each, dtype, device)
    rebound()


def _rebind(tensor: Tensor, dtype: DType | None, device: str | None) -> None:
    """The same tensor object with its value in another dtype or place."""
    on = tensor.requires_grad
    if on:
        tensor.requires_grad_(False)
    while True:
        old: Node = tensor.entry.node
        new = build.cast(old, dtype) if dtype is not None and old.dtype.is_inexact else old
        if device is not None and tensor.device != device:
            new = build.copy_to(new, device)
        if REGISTRY.rebind(tensor.entry, old, new):
            break
    if on:
        tensor.requires_grad_()
