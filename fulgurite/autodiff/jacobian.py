"""JAX's names for all derivatives of a function: `jacfwd` and `jacrev`.

In: a function of tensors (trees of them too). Out: a function that returns `fg.jacobian` in one of
its two modes and, with `has_aux`, what else the function gave. Forward mode costs a run for each
element of the arguments, reverse mode one for each element of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from ..errors import ArgumentError
from .grad import _scopes_of, _without, check_callable
from .transforms import jacobian


def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The Jacobian by forward mode: best where results are more than arguments.

    The shape of a derivative is the result's, then the argument's. With `has_aux` the function
    returns a pair, and so does this: the derivatives of the first, and the second as it is.

    >>> fg.jacfwd(lambda x: fg.stack([x.sum(), x.prod()]))(fg.Tensor([2.0, 3.0])).tolist()
    [[1.0, 1.0], [3.0, 2.0]]
    """
    return _jacobian(fun, argnums, has_aux, "forward")


def jacrev(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The Jacobian by reverse mode: best where results are fewer than arguments.

    The shape of a derivative is the result's, then the argument's. With `has_aux` the function
    returns a pair, and so does this: the derivatives of the first, and the second as it is.

    >>> fg.jacrev(lambda x: fg.stack([x.sum(), x.prod()]))(fg.Tensor([2.0, 3.0])).tolist()
    [[1.0, 1.0], [3.0, 2.0]]
    """
    return _jacobian(fun, argnums, has_aux, "reverse")


def _jacobian(
    fun: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, mode: str
) -> Callable[..., Any]:
    check_callable(fun)
    if not has_aux:
        return jacobian(fun, argnums, mode)

    @wraps(fun)
    def differentiated(*args: Any, **keywords: Any) -> Any:
        seen: list[Any] = []

        def first(*inside: Any, **named: Any) -> Any:
            pair = fun(*inside, **named)
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise ArgumentError(
                    f"the function returned {type(pair).__name__}", "return a pair: (result, aux)"
                )
            seen.append(_without(pair[1], _scopes_of(inside) - _scopes_of(args)))
            return pair[0]

        return jacobian(first, argnums, mode)(*args, **keywords), seen[0]

    return differentiated
