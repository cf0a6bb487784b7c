"""What is in a module: its parts with their dotted names, and what is still to be drawn.

In: a module, or the value of an attribute. Out: modules by name, in the order of attributes; a part
in a list or dict has its place or key in its name, as in torch's containers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...tensor import Tensor
from .parameter import Parameter
from .pytree import CACHE, KINDS, is_module

if TYPE_CHECKING:
    from . import Module


def is_fresh(tensor: Any) -> bool:
    """Is it a value that its module drew or filled, which nobody has asked for yet?"""
    if not isinstance(tensor, Tensor) or tensor.is_realized:
        return False
    return isinstance(tensor, Parameter) or (tensor.node.device is None and not tensor.node.watched)


def walk(module: Module, path: str, met: set[int] | None) -> Iterator[tuple[str, Module]]:
    """A module and all in it with their dotted names; those in `met` are left out."""
    if met is not None:
        if id(module) in met:
            return
        met.add(id(module))
    yield path, module
    for name, value in list(vars(module).items()):
        for inner, child in modules_in(name, value):
            yield from walk(child, f"{path}.{inner}" if path else inner, met)


def modules_in(name: str, value: Any) -> Iterator[tuple[str, Module]]:
    """The modules that an attribute is or holds in lists, tuples and dicts."""
    if is_module(value):
        yield name, value
    elif isinstance(value, list | tuple) and name != "_hooks":
        for place, item in enumerate(value):
            yield from modules_in(f"{name}.{place}", item)
    elif isinstance(value, dict) and name not in (KINDS, CACHE):
        for key, item in value.items():
            yield from modules_in(f"{name}.{key}", item)
