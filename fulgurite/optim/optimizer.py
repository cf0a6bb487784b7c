"""What every optimiser shares: parameter groups, state, and a step that is one plan.

In: parameters (or groups of them) and, at each step, their gradients: those that `backward()` left
in `grad`, or a list, a dict or a module of them as `fg.grad` gives. Out: the parameters, assigned.
A subclass says what it keeps for a parameter (`slots`) and what one update is (`update`); nothing
else. The learning rate and the count of steps are tensors, so changing them compiles nothing, and
a captured step reads them too; equal updates are one kernel, whatever the shapes. `state_dict` has
torch's layout and names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from .. import tree
from ..core.dtype import float64
from ..core.origin import one_line
from ..distributed.layouts import state_like, value_like
from ..errors import ArgumentError, DTypeError, ShapeError, is_ours
from ..functional.math.elementwise import where
from ..tensor import Tensor, no_grad, realize_among
from .realize_step import realize_step

State = dict[str, Tensor]
Now = dict[str, Tensor]  # numbers that all updates of a group share
Updated = tuple[Tensor, State]
Slots = dict[str, float | tuple[int, ...] | np.ndarray[Any, Any]]


class Group(MutableMapping[str, Any]):
    """Options of some parameters, as a dict has them.

    The learning rate is in memory and nowhere else, so that no code can depend on its value but by
    reading that memory: a step that was captured reads the rate of the day.
    """

    def __init__(self, options: Mapping[str, Any], device: str | None) -> None:
        self._options = dict(options)
        rate = _number("lr", self._options.pop("lr"))
        self.wide = any(param.dtype is float64 for param in options["params"])
        self.rate = scalar(rate, device, self.wide)  # what steps compute with
        self._exact = scalar(rate, device, wide=True)  # what was given

    def __getitem__(self, name: str) -> Any:
        return self._exact.item() if name == "lr" else self._options[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name != "lr":
            self._options[name] = value
            return
        rate = _number(name, value)
        self.rate.assign(scalar(rate, self.rate.device, self.wide))
        self._exact.assign(scalar(rate, self.rate.device, wide=True))

    def __delitem__(self, name: str) -> None:
        del self._options[name]

    def __iter__(self) -> Iterator[str]:
        yield "lr"
        yield from self._options

    def __len__(self) -> int:
        return len(self._options) + 1

    def __repr__(self) -> str:
        return repr(dict(self))


def scalar(value: float, device: str | None = None, wide: bool = False) -> Tensor:
    """A number in memory: an input of plans, never a constant of one."""
    return Tensor(np.array(value, np.float64 if wide else np.float32), device=device)


class Optimizer:
    """The base of all optimisers; use one of its subclasses."""

    positive: tuple[str, ...] = ("lr", "weight_decay", "eps")  # options that must be 0 or more
    slots_vary = False  # do options that can be set later decide what is kept?

    def __init__(self, params: Any, **defaults: Any) -> None:
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.params: list[Tensor] = []
        self.state: dict[int, State] = {}
        for options in _groups(params):
            self.add_param_group(options)

    # --- what a subclass says ------------------------------------------------------------------

    def slots(self, group: Group, param: Tensor) -> Slots:
        """What is kept for a parameter: a number for its shape, a shape of zeros, or an array."""
        raise NotImplementedError

    def scalars(self, group: Group, step: Tensor) -> Now:
        """Numbers that all updates of a group share, computed once for all of them."""
        return {"lr": group.rate}

    def update(self, group: Group, param: Tensor, grad: Tensor, state: State, now: Now) -> Updated:
        """The new value of a parameter, and of what is kept for it."""
        raise NotImplementedError

    # --- parameters ----------------------------------------------------------------------------

    def add_param_group(self, options: Mapping[str, Any]) -> None:
        """Take further parameters, with options of their own."""
        unknown = options.keys() - self.defaults.keys() - {"params", "initial_lr"}
        if unknown:
            raise ArgumentError(
                f"{type(self).__name__} has no option {', '.join(sorted(unknown))}",
                f"it has {', '.join(self.defaults)}",
            )
        params = _parameters(options.get("params"))
        known = {id(param) for param in self.params}
        if len({id(p) for p in params} | known) != len(params) + len(known):
            raise ArgumentError("a parameter is given twice", "give each to one group, once")
        merged = {**self.defaults, **options, "params": params}
        merged["lr"] = _number("lr", merged["lr"])
        self._check(merged)
        device = params[0].device if params else None
        group = Group(merged, device)
        step = scalar(0.0, device, group.wide)
        for param in params:
            index = len(self.params)
            self.params.append(param)
            self.state[index] = {"step": step, **self._fresh(group, param)}
        self.param_groups.append(group)

    def _check(self, options: Mapping[str, Any]) -> None:
        for name in self.positive:
            value = options.get(name, 0)
            if isinstance(value, int | float) and not value >= 0:
                raise ArgumentError(f"{name} is {value}", "give it 0 or more")
        betas = options.get("betas", ())
        if not isinstance(betas, Sequence):
            raise ArgumentError(f"betas are {betas!r}", "give two numbers, such as (0.9, 0.999)")
        for value in betas:
            if not 0 <= value < 1:
                raise ArgumentError(f"betas are {options['betas']}", "each is from 0 to below 1")

    def _fresh(self, group: Group, param: Tensor) -> State:
        made = {}
        for name, kind in self.slots(group, param).items():
            if isinstance(kind, tuple):
                kind = np.zeros(kind)
            filled = kind if isinstance(kind, np.ndarray) else np.full(param.shape, kind)
            kept = Tensor(filled.astype(param.dtype.numpy), device=param.device)
            made[name] = state_like(param, kept)
        return made

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that `backward()` left."""
        for param in self.params:
            param.grad = None

    # --- steps ---------------------------------------------------------------------------------

    def step(self, grads: Any = None, when: Tensor | None = None) -> Any:
        """Update every parameter by its gradient, all in one plan.

        Without `grads` the gradients are those that `backward()` left. With `when`, a truth value
        (are all gradients finite?), everything stays as it is unless it is true. A function in
        place of gradients is called first, as torch does: it leaves them, and its loss comes back.
        """
        if callable(grads) and not hasattr(grads, "parameters"):
            loss = grads()
            self.step(when=when)
            return loss
        found = self._gradients(grads)
        changed: list[Tensor] = []
        before = [param.node for param in self.params]
        with no_grad(), one_line() if self._is_ours() else nullcontext():
            index = 0
            for group in self.param_groups:
                count = len(group["params"])
                members = [i for i in range(index, index + count) if found[i] is not None]
                index += count
                self._complete(group, members)
                for step, sharing in self._by_step(members):
                    changed += self._advance(group, step, sharing, found, when)
        realize_step(changed, before, [grad for grad in found if grad is not None])
        return None

    def _is_ours(self) -> bool:
        """True if no line of an update is the user's own: a step has the line of the call."""
        codes = [getattr(method, "__code__", None) for method in (self.update, self.scalars)]
        return all([code is not None and is_ours(code.co_filename) for code in codes])

    def _complete(self, group: Group, members: Sequence[int]) -> None:
        """Start what an option needs that was set after the parameters were given."""
        for i in members if self.slots_vary else ():
            wanted = self.slots(group, self.params[i]).keys()
            if not wanted <= self.state[i].keys():
                self.state[i] = {**self._fresh(group, self.params[i]), **self.state[i]}

    def _by_step(self, members: list[int]) -> list[tuple[Tensor, list[int]]]:
        """Members by the count they share; those that go on without others get their own."""
        shared: dict[int, list[int]] = {}
        for i in members:
            shared.setdefault(id(self.state[i]["step"]), []).append(i)
        result = []
        for which, sharing in shared.items():
            holders = [i for i in self.state if id(self.state[i]["step"]) == which]
            step = self.state[sharing[0]]["step"]
            if len(holders) != len(sharing):
                step = step.detach().contiguous()  # no value is asked for: it may be captured
                for i in sharing:
                    self.state[i]["step"] = step
            result.append((step, sharing))
        return result

    def _advance(
        self, group: Group, step: Tensor, members: list[int], found: Sequence[Tensor | None],
        when: Tensor | None,
    ) -> list[Tensor]:  # fmt: skip
        """Assign the new values of some parameters of a group; all that was assigned."""
        following = step + 1
        now = self.scalars(group, following)
        pairs: list[tuple[Tensor, Tensor]] = [(step, following)]
        for i in members:
            param, grad, state = self.params[i], found[i], self.state[i]
            assert grad is not None
            if group["maximize"]:
                grad = -grad
            new, kept = self.update(group, param, grad, state, now)
            pairs.append((param, value_like(param, new)))
            pairs += [(state[name], value) for name, value in kept.items()]
        for target, value in pairs:
            target.assign(value if when is None else where(when, value, target))
        return [target for target, _ in pairs]

    def _gradients(self, grads: Any) -> list[Tensor | None]:
        if grads is None:
            found: list[Tensor | None] = [param.grad for param in self.params]
            if not any(grad is not None for grad in found):
                raise ArgumentError(
                    "no parameter has a gradient",
                    "call loss.backward() first, or give the gradients: step(grads)",
                )
        else:
            found = _listed(grads)
            if len(found) != len(self.params):
                raise ArgumentError(
                    f"{len(found)} gradients for {len(self.params)} parameters",
                    "give one for each parameter, in their order (None for none)",
                )
        for index, (grad, param) in enumerate(zip(found, self.params, strict=True)):
            if grad is not None and grad.shape != param.shape:
                raise ShapeError(
                    f"gradient {index} has shape {grad.shape}, its parameter {param.shape}",
                    "give the gradients in the order of the parameters",
                )
        return found

    # --- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a later process needs to go on, in torch's layout."""
        groups, index = [], 0
        for group in self.param_groups:
            places = list(range(index, index + len(group["params"])))
            index += len(places)
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": places})
        return {"state": {i: dict(kept) for i, kept in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` gave, of this library or of torch."""
        groups, states = _checked_state(state)
        sizes = [len(group["params"]) for group in self.param_groups]
        given = [len(group["params"]) for group in groups]
        if sizes != given:
            raise ArgumentError(
                f"the state is for groups of {given} parameters, not {sizes}",
                "make the optimiser with the same groups",
            )
        fresh: dict[int, dict[str, Any]] = {}
        realize_among([value for kept in states.values() for value in kept.values()])
        for group, saved in zip(self.param_groups, groups, strict=True):
            later = self._with_options(group, saved)
            for param in group["params"]:
                i = len(fresh)
                fresh[i] = self._loaded(i, self._fresh(later, param), states.get(i, {}))
        realize_step(self._take_over(fresh), [])
        for group, saved in zip(self.param_groups, groups, strict=True):
            for name, value in saved.items():
                if name in group and name != "params":
                    group[name] = tuple(value) if isinstance(value, list) else value
                elif name == "initial_lr":
                    group[name] = value

    def _take_over(self, fresh: Mapping[int, dict[str, Any]]) -> list[Tensor]:
        """Let each parameter's state be what was loaded; the tensors that changed."""
        steps: dict[tuple[float, bool], Tensor] = {}
        changed = []
        for i, values in fresh.items():
            count, mine = values.pop("step"), self.state[i]
            wide = mine["step"].dtype is float64
            mine["step"] = steps.setdefault(
                (count, wide), scalar(count, self.params[i].device, wide)
            )
            for name, value in values.items():
                if name in mine:
                    mine[name].assign(value)
                else:
                    mine[name] = value
                changed.append(mine[name])
        return changed

    def _with_options(self, group: Group, saved: Mapping[str, Any]) -> Group:
        """A group as it will be with the saved options, which are checked."""
        known = {name: saved.get(name, value) for name, value in group.items()}
        merged = {**known, "lr": _number("lr", known["lr"]), "params": group["params"]}
        self._check(merged)
        return Group(merged, group.rate.device)

    def _loaded(self, index: int, start: State, saved: Mapping[str, Any]) -> dict[str, Any]:
        """What is kept for a parameter, from a saved state or from the start; all of it checked."""
        found: dict[str, Any] = {**start, "step": 1.0 if saved else 0.0}
        if saved.get("step") is not None:
            found["step"] = float(_array(saved["step"]).reshape(()))
        for name, known in start.items():
            if saved.get(name) is None:
                if saved:
                    raise ArgumentError(
                        f"the state of parameter {index} has no {name}",
                        "load the state of the same kind of optimiser, with the same options",
                    )
                continue
            value = _array(saved[name])
            if value.shape != known.shape:
                raise ShapeError(
                    f"{name} of parameter {index} has shape {value.shape}, not {known.shape}",
                    "load the state of the same model",
                )
            found[name] = Tensor(value, known.dtype, device=known.device)
        return found

    def __repr__(self) -> str:
        names = [name for name in self.defaults if name != "maximize"]
        lines = [
            f"  {len(group['params'])} parameters: "
            + ", ".join(f"{name}={group[name]!r}" for name in names)
            for group in self.param_groups
        ]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


def bias(step: Tensor, beta: float) -> Tensor:
    """1 - beta ** step, without the digits that the subtraction would lose."""
    return 1 - step * 0 if beta == 0 else -(step * math.log(beta)).expm1()


def _number(name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} is {value!r}", "give a number") from None
    if not found >= 0:
        raise ArgumentError(f"{name} is {found}", "give it 0 or more")
    return found


def _array(value: Any) -> np.ndarray[Any, Any]:
    """A tensor of ours or of another library, or a number, as an array."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
    return np.asarray(value)


def _groups(params: Any) -> list[Mapping[str, Any]]:
    """Parameters as groups of them."""
    if isinstance(params, Tensor):
        raise ArgumentError("one tensor is no list of parameters", "give [tensor]")
    if hasattr(params, "parameters"):
        params = params.parameters()
    if isinstance(params, Mapping):
        params = params.values()
    if not isinstance(params, Iterable):
        raise ArgumentError(f"{type(params).__name__} is no list of parameters", "give tensors")
    listed = list(params)
    if not listed:
        raise ArgumentError("there are no parameters", "give model.parameters()")
    if all(isinstance(item, Mapping) for item in listed):
        return listed
    return [{"params": listed}]


def _parameters(params: Any) -> list[Tensor]:
    if isinstance(params, Tensor):
        params = [params]
    if not isinstance(params, Iterable):
        raise ArgumentError("a group has no parameters", 'give {"params": [...], "lr": ...}')
    found = []
    for param in params:
        if isinstance(param, tuple) and len(param) == 2 and isinstance(param[0], str):
            param = param[1]  # named_parameters()
        if not isinstance(param, Tensor):
            raise ArgumentError(f"{type(param).__name__} is no parameter", "give tensors")
        if param.dtype.kind != "f":
            raise DTypeError(f"a {param.dtype} parameter cannot be learned", "use a float dtype")
        found.append(param)
    return found


def _listed(grads: Any) -> list[Tensor | None]:
    """Gradients of a module, a dict, a list or a nest of them, in order."""
    if hasattr(grads, "parameters"):
        return list(grads.parameters())
    leaves = tree.leaves(grads)
    for leaf in leaves:
        if leaf is not None and not isinstance(leaf, Tensor):
            raise ArgumentError(f"{type(leaf).__name__} is no gradient", "give tensors")
    return leaves


def _checked_state(state: Any) -> tuple[list[Any], Mapping[Any, Any]]:
    try:
        groups, states = state["param_groups"], state["state"]
        for group in groups:
            len(group["params"])
        states = {int(index): kept for index, kept in states.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ArgumentError(
            "this is no state of an optimiser", "give what state_dict() gave"
        ) from None
    return groups, states
