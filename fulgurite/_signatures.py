"""The types of what transforms give, for type checkers alone: nothing here is imported at run time.

A transform keeps the signature of the function that it is given. These are protocols and not
`Callable`, so that a result of an unannotated lambda is no untyped call, binds as a method where it
stands in a class, and keeps the attributes that `fg.jit` adds.
"""

from __future__ import annotations

from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")
Out = TypeVar("Out", covariant=True)


class Function(Protocol[P, Out]):
    """A function with the signature of another."""

    def __call__(self, *args: P.args, **keywords: P.kwargs) -> Out: ...
    @overload
    def __get__(self, owner: None, kind: type | None = None) -> Function[P, Out]: ...
    @overload
    def __get__(
        self: Function[Concatenate[S, Q], T], owner: S, kind: type | None = None
    ) -> Function[Q, T]: ...
    def __getattr__(self, name: str) -> Any: ...


class Gradient(Protocol[A, P]):
    """Takes what the function takes, and gives what the first argument is."""

    def __call__(self, first: A, /, *args: P.args, **keywords: P.kwargs) -> A: ...


class ValueAndGradient(Protocol[A, P, Out]):
    """Takes what the function takes, and gives its result and what the first argument is."""

    def __call__(self, first: A, /, *args: P.args, **keywords: P.kwargs) -> tuple[Out, A]: ...
