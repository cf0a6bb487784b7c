"""NumPy under Fulgurite's names: what a program means, without any of our code.

A `Value` is an array whose slices, reshapes and transposes are values of their own, as a tensor's
are; only assignment to it changes it. `Plain` has the functions under the array API's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Tree = Any


class Value(np.ndarray[Any, Any]):
    """An array that shares its memory with nobody."""

    def __getitem__(self, index: Any) -> Any:
        return own(np.asarray(self)[_indices(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        np.asarray(self)[_indices(index)] = np.array(value)

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    @property
    def T(self) -> Any:
        return own(np.asarray(self).T)

    @property
    def mT(self) -> Any:
        return own(np.asarray(self).mT)

    def reshape(self, *shape: Any) -> Any:  # type: ignore[override]
        return own(np.asarray(self).reshape(*shape))


def own(array: Any) -> Any:
    """A copy as a `Value`; trees of arrays leaf by leaf."""
    if isinstance(array, tuple | list):
        return type(array)([own(a) for a in array])
    return np.array(array, copy=True, order="C").view(Value)


def _indices(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple([_indices(i) for i in index])
    return np.asarray(index) if isinstance(index, Value) else index


def _bare(value: Any) -> Any:
    if isinstance(value, Value):
        return np.asarray(value)
    if isinstance(value, tuple | list):
        return type(value)([_bare(v) for v in value])
    return value


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def logsumexp(x: Any, axis: int = -1) -> Any:
    top = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - top).sum(axis=axis)) + top.squeeze(axis)


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def ranked(name: str, least: int) -> Callable[..., Any]:
    """NumPy's function of this name, which wants so many dimensions at least."""

    def function(x: Any, *args: Any, **options: Any) -> Any:
        if np.ndim(x) < least:
            raise ValueError(f"{name} of {np.ndim(x)} dimensions")
        return getattr(np, name)(x, *args, **options)

    return function


RANKED = {
    "tril": 2, "triu": 2, "cumulative_sum": 1, "sort": 1, "argsort": 1, "repeat": 1, "diff": 1,
    "take": 1,
}  # fmt: skip


FUNCTIONS: dict[str, Callable[..., Any]] = {  # that NumPy lacks, or takes more of
    "softmax": softmax, "logsumexp": logsumexp, "relu": relu, "sigmoid": sigmoid,
    **{n: ranked(n, least) for n, least in RANKED.items()},
}  # fmt: skip


class Plain:
    """`xp` for programs: NumPy's functions, which give values of their own."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = FUNCTIONS.get(name) or getattr(np, name)

        def called(*args: Any, **options: Any) -> Any:
            options = {key: _bare(value) for key, value in options.items()}
            return own(function(*[_bare(a) for a in args], **options))

        return called

    def scan(self, step: Any, carry: Tree, xs: Any, reverse: bool = False) -> Any:
        """The loop that it stands for."""
        rows = []
        for i in reversed(range(len(xs))) if reverse else range(len(xs)):
            carry, row = step(carry, xs[i])
            rows.append(row)
        return carry, own(np.stack(rows[::-1] if reverse else rows))

    def cond(self, chosen: Any, yes: Any, no: Any, *args: Any) -> Any:
        return yes(*[own(a) for a in args]) if bool(chosen) else no(*[own(a) for a in args])

    def while_loop(self, test: Any, body: Any, value: Any, max_steps: int | None = None) -> Any:
        value, steps = own(value), 0
        while bool(test(value)) and steps != max_steps:
            value, steps = body(value), steps + 1
        return value

    def fori_loop(self, low: int, high: int, body: Any, value: Any) -> Any:
        value = own(value)
        for i in range(low, high):
            value = body(i, value)
        return value

    def part(self, x: Any, low: int, count: int) -> Any:
        """Some rows of x, whose number varies."""
        return x[low : low + count]
