"""Modules: plain Python objects that hold parameters, buffers and other modules.

In: classes that set tensors and modules as attributes and define `forward`. Out: their parameters
by dotted name, as torch names them; calls that know where in the model they are (`path`), so that
every node's origin and every error names the layer. A module is a tree (`structure.py`): `fg.grad`,
`fg.jit` and `fg.tree.map` take and give whole modules. Binding an attribute anew is noted with
`fulgurite.tree.rebound()`, in `__setattr__` and `__delattr__` and nowhere else; values change by
`assign`, which binds nothing. The first use of a module draws all its parameters together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar

from ... import tree
from ..._hints import names_in, warn_off
from ...core.dtype import DType
from ...core.origin import scope
from ...core.shape import show
from ...errors import ArgumentError, ShapeError
from ...functional.common import as_tensor
from ...tensor import Tensor, TensorLike, realize_all, realize_among
from . import pytree
from .names import is_fresh, modules_in, walk
from .parameter import Parameter
from .pytree import CACHE, KINDS, Kinds
from .state_dict import Loaded, load_state_dict, moved, state_dict

Self = TypeVar("Self", bound="Module")


class _Calls(threading.local):
    """Which modules are being called in this thread."""

    names: Mapping[int, str] | None = None  # of the parts of the outermost one
    root: str = ""
    path: str = ""


_calls = _Calls()


class Handle:
    """What takes a hook away again: `remove()`, a call, or the end of a `with`."""

    __slots__ = ("remove",)

    def __init__(self, remove: Callable[[], None]) -> None:
        self.remove = remove

    def __call__(self) -> None:
        self.remove()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


P = ParamSpec("P")
Result = TypeVar("Result", covariant=True)


class _Forward(Protocol[P, Result]):
    """What has a `forward`: the types of a module's call are read from it."""

    def forward(self, *args: P.args, **keywords: P.kwargs) -> Result: ...


class Module:
    """A part of a network: attributes that are parameters, buffers or modules, and `forward`.

    >>> class Net(fg.nn.Module):
    ...     def __init__(self):
    ...         self.layers = [fg.nn.Linear(4, 8), fg.nn.Linear(8, 2)]
    ...     def forward(self, x):
    ...         return self.layers[1](fg.relu(self.layers[0](x)))
    >>> net = Net()
    >>> net(fg.ones((3, 4))).shape, [name for name, _ in net.named_parameters()][:2]
    ((3, 2), ['layers.0.weight', 'layers.0.bias'])
    """

    __fulgurite_module__ = True
    training: bool

    if TYPE_CHECKING:  # attributes may be set by name, as containers do

        def __getattr__(self, name: str) -> Any: ...

    def __dir__(self) -> list[str]:
        return names_in(self)

    def __new__(cls, *args: Any, **keywords: Any) -> Any:
        made = object.__new__(cls)
        vars(made).update({"training": True, KINDS: Kinds()})
        return made

    def __init__(self) -> None:
        """There is nothing to do: a subclass may call it or not."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        tree.register(cls, pytree.apart, pytree.together, pytree.names)

    # --- attributes ------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(getattr(type(self), name, None), "__set__"):
            object.__setattr__(self, name, value)  # a property knows what to do
            return
        own = vars(self)
        kinds: Kinds = own[KINDS]
        if isinstance(value, Parameter):
            kinds.setdefault(name, "parameter")
        elif name in kinds and not isinstance(value, Tensor | None):
            del kinds[name]
        elif kinds.get(name) == "parameter" and value is not None:
            self._not_frozen(name)
        elif isinstance(value, list | tuple | dict):
            _no_parameters_in(value, type(self).__name__, name)
        if name in own and own[name] is value:
            return
        own[name] = value
        own.get(CACHE, {}).get("leaves", {}).pop(name, None)
        tree.rebound()

    def _not_frozen(self, name: str) -> None:
        """Refuse a plain tensor over a parameter, unless a transform put one there before."""
        held = vars(self).get(name)
        if isinstance(held, Parameter | None):
            raise ArgumentError(
                f"{type(self).__name__}.{name} is a parameter: a plain tensor would not be learned",
                "nn.Parameter(value) to learn it, .assign(value) to change its value, or "
                f"`del module.{name}` first to hold a constant",
            )

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        vars(self)[KINDS].pop(name, None)
        tree.rebound()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold everything but what can be found again."""
        realize_among([*self.parameters(), *self.buffers()])
        kept = {name: value for name, value in vars(self).items() if name != CACHE}
        return kept | {KINDS: Kinds(kept[KINDS])}

    def register_parameter(self, name: str, value: Tensor | None) -> None:
        """Make an attribute a parameter; None holds the name's place."""
        vars(self)[KINDS][_plain(name)] = "parameter"
        known = value is None or isinstance(value, Parameter)
        setattr(self, name, value if known else Parameter(value))  # type: ignore[arg-type]

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Make an attribute a buffer: state that is not learned, saved if it is persistent."""
        if value is not None and not isinstance(value, Tensor):
            raise ArgumentError(f"buffer {name!r} is {type(value).__name__}", "give a tensor")
        vars(self)[KINDS][_plain(name)] = "buffer" if persistent else "passing"
        setattr(self, name, value)

    def add_module(self, name: str, module: Module | None) -> None:
        """Make a module an attribute."""
        setattr(self, _plain(name), module)

    # --- what it holds ---------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules that it holds itself, also in lists and dicts, each once."""
        met: set[int] = set()
        for name, value in list(vars(self).items()):
            for path, child in modules_in(name, value):
                if id(child) not in met:
                    met.add(id(child))
                    yield path, child

    def children(self) -> Iterator[Module]:
        """The modules that it holds itself."""
        return (child for _, child in self.named_children())

    def named_modules(
        self, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """It and all modules in it, with their dotted names."""
        return walk(self, prefix, set() if remove_duplicate else None)

    def modules(self) -> Iterator[Module]:
        """It and all modules in it."""
        return (module for _, module in self.named_modules())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Its parameters and those of all modules in it, each once."""
        return self._named({"parameter"}, prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """Its parameters and those of all modules in it."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Its buffers and those of all modules in it, each once."""
        return self._named({"buffer", "passing"}, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Its buffers and those of all modules in it."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def _named(
        self, wanted: set[str], prefix: str, recurse: bool, once: bool
    ) -> Iterator[tuple[str, Tensor]]:
        met: set[int] = set()
        whole = self.named_modules(prefix, once) if recurse else iter([(prefix, self)])
        for path, module in whole:
            own = vars(module)
            for name, kind in list(own[KINDS].items()):
                value = own.get(name)
                if kind in wanted and value is not None and not (once and id(value) in met):
                    met.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def get_submodule(self, path: str) -> Module:
        """The module of a dotted name; of "" the module itself."""
        found = dict(self.named_modules(remove_duplicate=False)).get(path)
        if found is None:
            raise ArgumentError(f"{type(self).__name__} has no module {path!r}", "see its repr")
        return found

    def get_parameter(self, path: str) -> Tensor:
        """The parameter of a dotted name."""
        return self._one("parameter", dict(self.named_parameters(remove_duplicate=False)), path)

    def get_buffer(self, path: str) -> Tensor:
        """The buffer of a dotted name."""
        return self._one("buffer", dict(self.named_buffers(remove_duplicate=False)), path)

    def _one(self, kind: str, known: Mapping[str, Tensor], path: str) -> Tensor:
        if path not in known:
            raise ArgumentError(f"{type(self).__name__} has no {kind} {path!r}", "see its repr")
        return known[path]

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and persistent buffers by name, with the values they have now."""
        return state_dict(self, prefix)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Loaded:
        """Take the values of a state; names or shapes that do not fit are reported together.

        Nothing is changed unless all fits. With strict=False names may be missing or unexpected,
        and are returned.
        """
        return load_state_dict(self, state, strict)

    def settle(self: Self) -> Self:
        """Draw all parameters that have no values yet, together; the first use does it."""
        cache = vars(self).setdefault(CACHE, {})
        if cache.get("settled") != tree.epoch():
            tensors = [*self.parameters(), *self.buffers()]
            fresh = [t for t in tensors if is_fresh(t)]
            if fresh:
                realize_all(*fresh)
            cache["settled"] = tree.epoch()
        return self

    def shard(self: Self, plan: Any) -> Self:
        """Keep the parameters over a mesh as a plan says; make optimizers after it.

        Plans are in `fulgurite.distributed.plans`: `data_parallel`, `zero`, `tensor_parallel`.
        """
        plan.apply(self)
        return self

    def train(self: Self, mode: bool = True) -> Self:
        """Behave as in training: dropout drops, batch statistics are taken."""
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self: Self) -> Self:
        """Behave as after training."""
        return self.train(False)

    def requires_grad_(self: Self, on: bool = True) -> Self:
        """Do `backward()` and optimisers reach the parameters?"""
        for parameter in self.parameters():
            parameter.requires_grad_(on)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that `backward()` has added up."""
        for parameter in self.parameters():
            parameter.grad = None

    def to(self: Self, *targets: object, dtype: object = None, device: str | None = None) -> Self:
        """In another float dtype, on another device, or both; the module itself is changed."""
        moved(self, [*targets, *[t for t in (dtype, device) if t is not None]])
        return self

    def float(self: Self) -> Self:
        """In float32."""
        return self.to("float32")

    def double(self: Self) -> Self:
        """In float64."""
        return self.to("float64")

    def half(self: Self) -> Self:
        """In float16."""
        return self.to("float16")

    def bfloat16(self: Self) -> Self:
        """In bfloat16."""
        return self.to("bfloat16")

    @property
    def dtype(self) -> DType | None:
        """The dtype of the first float parameter or buffer."""
        found = [t.dtype for t in (*self.parameters(), *self.buffers()) if t.dtype.is_inexact]
        return found[0] if found else None

    def apply(self: Self, function: Callable[[Module], Any]) -> Self:
        """Call a function with each module inside, the inner ones first."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    # --- calls -----------------------------------------------------------------------------------

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """What the module computes: a subclass says so."""
        raise ArgumentError(f"{type(self).__name__} has no forward", "define forward(self, x)")

    if TYPE_CHECKING:  # a call has the types of the subclass's forward

        def __call__(self: _Forward[P, Result], *args: P.args, **keywords: P.kwargs) -> Result: ...

    else:

        def __call__(self, *args: Any, **keywords: Any) -> Any:
            return self._called(args, keywords)

    def _called(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        before = _calls.names, _calls.root, _calls.path
        label = type(self).__name__
        if before[0] is None:
            self.settle()
            _calls.names, _calls.root, _calls.path = self._paths(), label, ""
        else:
            path = before[0].get(id(self))
            if path:
                label, _calls.path = path.removeprefix(before[2] + "."), path
        try:
            with scope(label):
                return self._hooked(args, keywords)
        finally:
            _calls.names, _calls.root, _calls.path = before

    def _paths(self) -> Mapping[int, str]:
        cache = vars(self).setdefault(CACHE, {})
        seen, found = cache.get("paths", (-1, {}))
        if seen != tree.epoch():
            found = {id(module): name for name, module in self.named_modules()}
            cache["paths"] = tree.epoch(), found
        return found  # type: ignore[no-any-return]

    def _hooked(self, args: Any, keywords: Any) -> Any:
        hooks = vars(self).get("_hooks")
        if not hooks:
            return self.forward(*args, **keywords)
        for when, hook in list(hooks):
            if when == "before":
                changed = hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        result = self.forward(*args, **keywords)
        for when, hook in list(hooks):
            if when == "after":
                changed = hook(self, args, result)
                result = result if changed is None else changed
        return result

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call hook(module, args) before forward; what it returns replaces the arguments.

        `remove()` of what is returned takes the hook away again.
        """
        return self._add_hook("before", hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call hook(module, args, result) after forward; what it returns replaces the result.

        `remove()` of what is returned takes the hook away again.
        """
        return self._add_hook("after", hook)

    def _add_hook(self, when: str, hook: Callable[..., Any]) -> Handle:
        entry = (when, hook)
        self._hooks = (*vars(self).get("_hooks", ()), entry)

        def remove() -> None:
            self._hooks = tuple([kept for kept in self._hooks if kept is not entry])

        return Handle(remove)

    # --- text ------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """The settings that its repr shows."""
        return ""

    def __repr__(self) -> str:
        held = [pair for name, value in vars(self).items() for pair in modules_in(name, value)]
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in held]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        about = [self.extra_repr()] if self.extra_repr() else []
        return "\n  ".join([f"{type(self).__name__}(", *about, *lines]) + "\n)"

    def as_input(self, x: TensorLike) -> Tensor:
        """A tensor as it is; anything else as one where the module's parameters are."""
        return as_tensor(x, None if isinstance(x, Tensor) else next(iter(self.parameters()), None))

    def misfit(self, expected: str, *got: Tensor, hint: str = "") -> NoReturn:
        """Raise what a wrong input is: which layer, what it takes, what came."""
        path = ".".join([part for part in (_calls.root, _calls.path) if part])
        shapes = " and ".join([show(x.node.shape) for x in got])
        where = f"{path}: " if path and path != type(self).__name__ else ""
        what = f"{where}{type(self).__name__}({self.extra_repr()}) takes {expected}, got {shapes}"
        raise ShapeError(what, hint or "give an input of that shape, or make another layer")


tree.register(Module, pytree.apart, pytree.together, pytree.names)


def _plain(name: str) -> str:
    if not isinstance(name, str) or not name or "." in name:
        raise ArgumentError(f"{name!r} is no attribute's name", "use a name without dots")
    return name


def _no_parameters_in(value: Any, owner: str, name: str) -> None:
    items = value.values() if isinstance(value, dict) else value
    if any([isinstance(item, Parameter) for item in items]):
        raise ArgumentError(
            f"{owner}.{name} is a {type(value).__name__} of parameters, which would not be found",
            "use nn.ParameterList or nn.ParameterDict",
        )


warn_off(Module, "Module")
