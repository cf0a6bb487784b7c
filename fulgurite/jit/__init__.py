"""Capturing functions and replaying them: see function.py, and docs/jit.md for users.

In: a function of tensors. Out: one that captures itself when it is first called. Everything else
here is imported then: programs without jit do not pay for it.
"""

from __future__ import annotations

from typing import Any

from ..forks import late


def jit(function: Any = None, *, dynamic: Any = None, donate: Any = ()) -> Any:
    """Capture a function of tensors into one plan that later calls replay with one native call.

    `dynamic={"x": {0: fg.Var("n", 1, 64)}}` names axes of arguments whose size varies. `donate`
    names arguments (or their numbers) whose memory results may take over: do not use them again.

    >>> @fg.jit
    ... def step(x, w, rate):
    ...     w -= rate * (x @ w)
    ...     return w.sum()
    >>> w = fg.ones((2, 2))
    >>> step(fg.ones((2, 2)), w, 0.25).item(), step(fg.ones((2, 2)), w, 0.25).item()
    (2.0, 1.0)
    """
    if function is None:
        return lambda function: jit(function, dynamic=dynamic, donate=donate)
    return late("jit.function").jitted(function, dynamic, donate)
