"""NumPy's protocols: ufuncs, functions and buffers of tensors.

In: a function of NumPy's and its arguments. Out: what our function of that meaning gives, lazily;
where there is none, or it takes other arguments, NumPy's own result on the tensors' values. What
we hand out is read-only: a tensor's memory may hold several tensors' values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..core.op import Array
from ..errors import ArgumentError, FulguriteError
from ..tensor import Tensor, realize_among

_UFUNCS = {  # NumPy's names that are not ours
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "conjugate": "conj",
    "float_power": "pow", "invert": "bitwise_invert", "left_shift": "bitwise_left_shift",
    "power": "pow", "right_shift": "bitwise_right_shift", "rint": "round", "true_divide": "divide",
    "fabs": "abs", "mod": "remainder",
}  # fmt: skip
_FOLDS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
    "logical_or": "any",
}  # fmt: skip
_FUNCTIONS = {
    "concatenate": "concat", "cumsum": "cumulative_sum", "cumprod": "cumulative_prod",
    "amax": "max", "amin": "min", "transpose": "transpose", "around": "round",
}  # fmt: skip
_NAMELESS = inspect.Parameter.POSITIONAL_ONLY
_KEYWORDS = {"a_min": "min", "a_max": "max", "ddof": "correction"}
_INEXACT = ("fabs", "float_power")  # floats also of whole numbers
# Of our name, but with another meaning: torch's sizes, not NumPy's places; NumPy's writes.
_OTHERS = ("split", "put_along_axis")


def _ours(name: str) -> Callable[..., Any] | None:
    import fulgurite

    found = getattr(fulgurite, name, None) if name in fulgurite.__all__ else None
    return found if callable(found) and not isinstance(found, type) else None


def _plain(x: Any) -> Any:
    """The same with arrays instead of tensors."""
    if isinstance(x, Tensor):
        return x.__array__()
    if isinstance(x, list | tuple):
        return type(x)([_plain(item) for item in x])
    return {k: _plain(v) for k, v in x.items()} if isinstance(x, dict) else x


def _tensors_in(x: Any) -> Iterator[Tensor]:
    """The tensors that `_plain` would replace."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple | dict):
        for item in x.values() if isinstance(x, dict) else x:
            yield from _tensors_in(item)


def apply_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """A NumPy ufunc on tensors: our function of that meaning, lazily; else NumPy's, on values."""
    name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
    if method == "reduce":
        name = _FOLDS.get(ufunc.__name__, "")
        keywords.setdefault("axis", 0)
    function = _ours(name) if method in ("__call__", "reduce") else None
    if function is not None and not set(keywords) - {"axis", "keepdims"}:
        if ufunc.__name__ in _INEXACT:
            inputs = [_inexact(x) for x in inputs]
        return function(*inputs, **keywords)
    return _by_numpy(getattr(ufunc, method), inputs, keywords)


def _inexact(x: Any) -> Any:
    """Whole numbers as floats of the default type; a Python number stays."""
    import fulgurite

    whole = isinstance(x, Tensor | np.ndarray) and x.dtype.kind in "biu"
    return fulgurite.divide(x, 1) if whole else x


def apply_function(function: Any, arguments: Any, keywords: Any) -> Any:
    """A NumPy function on tensors: ours of that name and those arguments; else NumPy's."""
    name = _FUNCTIONS.get(function.__name__, function.__name__)
    known = function.__module__ == "numpy" and name not in _OTHERS
    mine = _ours(name) if known and "out" not in keywords else None
    if mine is None:
        return _by_numpy(function, arguments, keywords)
    try:
        places, names = _renamed(function, mine, arguments, keywords)
        return mine(*places, **names)
    except TypeError:  # it has other parameters
        return _by_numpy(function, arguments, keywords)
    except FulguriteError:  # it takes other values: `axis=None`, a mode that we lack
        with suppress(TypeError, ValueError, LookupError):
            return _by_numpy(function, arguments, keywords)
        raise  # NumPy refuses them too


def _renamed(
    function: Any, mine: Any, arguments: Sequence[Any], keywords: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of NumPy's function as ours takes them: what both need, then by name."""
    names = {_KEYWORDS.get(name, name): value for name, value in keywords.items()}
    theirs = list(inspect.signature(function).parameters.values())
    own = list(inspect.signature(mine).parameters.values())
    places: list[Any] = []
    for number, value in enumerate(arguments):
        parameter = theirs[min(number, len(theirs) - 1)]
        same = number < len(own) and own[number].name == parameter.name
        same = same and own[number].kind is not parameter.KEYWORD_ONLY
        if parameter.kind is parameter.VAR_POSITIONAL:
            return [*places, *arguments[number:]], names
        needed = parameter.default is parameter.empty or parameter.kind is _NAMELESS
        if len(places) == number and (needed or same):
            places.append(value)
        elif value is not parameter.default:
            names[_KEYWORDS.get(parameter.name, parameter.name)] = value
    return places, names


def _by_numpy(function: Callable[..., Any], arguments: Any, keywords: dict[str, Any]) -> Any:
    out = keywords.get("out")
    for target in out if isinstance(out, tuple) else [out]:
        if isinstance(target, Tensor):
            raise ArgumentError("NumPy does not write into tensors", "use x.assign(value)")
    realize_among(_tensors_in((arguments, keywords)))
    return function(*_plain(tuple(arguments)), **_plain(keywords))


def buffer_of(x: Tensor) -> memoryview:
    """The value as a read-only buffer of its shape; from Python 3.12 on NumPy reads it first."""
    array: Array = np.asarray(x.__array__(), order="C")  # ascontiguousarray would add an axis
    return memoryview(array).toreadonly()  # type: ignore[arg-type]
