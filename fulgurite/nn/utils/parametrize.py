"""Parameters that are computed from others each time they are asked for.

In: a module, the name of one of its parameters, and a module that computes it. Out: the module, in
which `module.parametrizations.NAME` learns the originals and `module.NAME` is what is made of them;
names are torch's. The module's class becomes one with a property of that name, so nothing is bound
anew by a call and `fg.jit` and `fg.grad` see the originals alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ArgumentError
from ...tensor import Tensor, no_grad
from ..containers import ModuleDict
from ..module import Module
from ..module.parameter import Parameter


class ParametrizationList(Module):
    """The originals of one parameter, and the modules that make it of them."""

    def __init__(self, parametrization: Module, original: Tensor) -> None:
        self.count = 0
        inverse = getattr(parametrization, "right_inverse", None)
        with no_grad():
            parts = original if inverse is None else inverse(original)
        self.several = isinstance(parts, Sequence)
        rows = list(parts) if self.several else [parts]
        for number, part in enumerate(rows):
            name = f"original{number}" if self.several else "original"
            self.register_parameter(name, Parameter(part, original.requires_grad))
        self.append(parametrization)

    def append(self, parametrization: Module) -> None:
        """Make one more module compute it, from what the others gave."""
        self.add_module(str(self.count), parametrization)
        self.count += 1

    def _originals(self) -> list[Tensor]:
        return list(self.parameters(recurse=False))

    def forward(self) -> Tensor:
        """The parameter."""
        value: Any = vars(self)["0"](*self._originals())
        for number in range(1, self.count):
            value = vars(self)[str(number)](value)
        return value  # type: ignore[no-any-return]

    def settle_on(self, value: Tensor) -> None:
        """Choose the originals so that the parameter has this value."""
        parts: Any = value
        for number in reversed(range(self.count)):
            inverse = getattr(vars(self)[str(number)], "right_inverse", None)
            if inverse is None:
                raise ArgumentError(
                    f"{type(vars(self)[str(number)]).__name__} has no right_inverse",
                    "define it, or assign to the originals",
                )
            parts = inverse(parts)
        with no_grad():
            rows = parts if self.several else [parts]
            for original, part in zip(self._originals(), rows, strict=True):
                original.assign(part)


_MADE: dict[tuple[type[Module], tuple[str, ...]], type[Module]] = {}


def _parametrized(cls: type[Module], names: tuple[str, ...]) -> type[Module]:
    """The class with properties of these names, always the same one."""

    def computed(name: str) -> property:
        def get(module: Module) -> Tensor:
            return module.parametrizations[name]()  # type: ignore[no-any-return]

        def put(module: Module, value: Tensor) -> None:
            module.parametrizations[name].settle_on(value)

        return property(get, put)

    members = {name: computed(name) for name in names}
    found = _MADE.get((cls, names))
    if found is None:
        made = type(f"Parametrized{cls.__name__}", (cls,), {**members, "parametrized": cls})
        found = _MADE.setdefault((cls, names), made)  # of two threads' one stays
    return found


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Is a parameter of the module computed: the one of this name, or any?"""
    held = vars(module).get("parametrizations")
    return held is not None and (tensor_name is None or tensor_name in held)


def register_parametrization(module: Module, tensor_name: str, parametrization: Module) -> Module:
    """Let a module compute a parameter of another one.

    >>> class Symmetric(fg.nn.Module):
    ...     def forward(self, x):
    ...         return x.triu() + x.triu(1).mT
    >>> layer = fg.nn.Linear(3, 3)
    >>> _ = fg.nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    >>> (layer.weight == layer.weight.mT).all().item(), list(layer.state_dict())
    (True, ['bias', 'parametrizations.weight.original'])
    """
    if is_parametrized(module, tensor_name):
        module.parametrizations[tensor_name].append(parametrization)
        return module
    held = vars(module).get(tensor_name)
    if not isinstance(held, Parameter):
        raise ArgumentError(
            f"{type(module).__name__} has no parameter {tensor_name!r}",
            f"one of {', '.join([n for n, _ in module.named_parameters(recurse=False)])}",
        )
    made = ParametrizationList(parametrization, held)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = made
    _become(module)
    return module


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Learn the parameter itself again: with the value it has, or its (only) original's."""
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(f"{tensor_name!r} is not computed", "it is a parameter already")
    made = module.parametrizations[tensor_name]
    originals = made._originals()
    if not leave_parametrized and len(originals) > 1:
        raise ArgumentError(f"{tensor_name!r} has several originals", "leave_parametrized=True")
    value = (made() if leave_parametrized else originals[0]).detach()
    del module.parametrizations[tensor_name]
    _become(module)
    module.register_parameter(tensor_name, Parameter(value, originals[0].requires_grad))
    return module


def _become(module: Module) -> None:
    """The class that computes just what is parametrized now."""
    plain: type[Module] = getattr(type(module), "parametrized", type(module))
    names = tuple(module.parametrizations)
    if not names:
        del module.parametrizations
    object.__setattr__(module, "__class__", _parametrized(plain, names) if names else plain)
