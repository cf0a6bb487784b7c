"""Capturing functions and replaying them: see function.py, and docs/jit.md for users.

In: a function of tensors. Out: one that captures itself when it is first called. Everything else
here is imported then: programs without jit do not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from .._lazy import FORK_LOCK

if TYPE_CHECKING:
    from .._signatures import Function, P, T


@overload
def jit(function: Callable[P, T], *, dynamic: Any = None, donate: Any = ()) -> Function[P, T]: ...
@overload
def jit(
    function: None = None, *, dynamic: Any = None, donate: Any = ()
) -> Callable[[Callable[P, T]], Function[P, T]]: ...


def jit(function: Any = None, *, dynamic: Any = None, donate: Any = (), **others: Any) -> Any:
    """Capture a function of tensors into one plan that later calls replay with one native call.

    `dynamic={"x": {0: fg.Var("n", 1, 64)}}` names axes of arguments whose size varies; `True` in
    place of a variable: without bounds, from the first call on. `donate` names arguments (or their
    numbers) whose memory results may take over: do not use them again.

    >>> @fg.jit
    ... def step(x, w, rate):
    ...     w -= rate * (x @ w)
    ...     return w.sum()
    >>> w = fg.ones((2, 2))
    >>> step(fg.ones((2, 2)), w, 0.25).item(), step(fg.ones((2, 2)), w, 0.25).item()
    (2.0, 1.0)
    """
    if others:
        with FORK_LOCK:
            from .._hints import UnknownKeywordError
        raise UnknownKeywordError("jit", next(iter(others)), ("dynamic", "donate"), "fulgurite.jit")
    if function is None:
        return lambda function: jit(function, dynamic=dynamic, donate=donate)
    with FORK_LOCK:
        from .function import jitted
    return jitted(function, dynamic, donate)
