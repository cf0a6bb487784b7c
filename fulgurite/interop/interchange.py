"""Meeting the neighbours: DLPack, NumPy's protocols, the array API namespace.

In: tensors of ours, arrays of others. Out: theirs and ours, sharing memory where it can be shared.
What we hand out is read-only: a tensor's memory may hold several tensors' values. DLPack capsules
are NumPy's own, so that their lifetime is NumPy's care; for the dtypes that NumPy does not send
(bfloat16, float8) the type in the capsule is set to what the bytes mean.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from ..core.dtype import (
    DTYPES,
    DType,
    bfloat16,
    default_complex,
    default_float,
    default_int,
    float8_e4m3fn,
    float8_e5m2,
)
from ..core.op import Array
from ..errors import ArgumentError, DataError, FulguriteError
from ..runtime.device import device_names
from ..tensor import Tensor, from_numpy, realize_among

VERSION = "2025.12"
_CPU = (1, 0)  # DLPack's name of the host
_CODES = {bfloat16: 4, float8_e4m3fn: 10, float8_e5m2: 12}  # DLPack's codes that NumPy lacks
_BY_CODE = {code: dtype for dtype, code in _CODES.items()}


# --- DLPack --------------------------------------------------------------------------------------


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Contents(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("dtype", _Type), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Contents),
    )  # fmt: skip


def _contents(capsule: object) -> _Contents:
    """What a capsule that nobody has consumed tells about its array."""
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = api.PyCapsule_GetPointer.argtypes = (
        ctypes.py_object, ctypes.c_char_p,
    )  # fmt: skip
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    for name, kind in ((b"dltensor_versioned", _Versioned), (b"dltensor", _Contents)):
        if api.PyCapsule_IsValid(capsule, name):
            found = kind.from_address(api.PyCapsule_GetPointer(capsule, name))
            return found.tensor if isinstance(found, _Versioned) else found
    raise DataError("this is no DLPack capsule", "pass an array of a library that knows DLPack")


class _Once:
    """A capsule on its way to somebody who asks an array for it."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


def to_dlpack(
    x: Tensor, max_version: tuple[int, int] | None, dl_device: Any, copy: bool | None
) -> object:
    """A capsule with the tensor's value; consumers that know no read-only arrays get a copy."""
    if dl_device is not None and tuple(map(int, dl_device)) != _CPU:
        raise BufferError(f"the tensor is in host memory, not on {dl_device}")
    if not all([isinstance(n, int) for n in x.shape]):
        x = Tensor(x.numpy())
    shown = x.__array__()
    narrow = _CODES.get(x.dtype)
    raw = shown if narrow is None else shown.view(f"u{x.dtype.itemsize}")
    versioned = max_version is not None and max_version[0] >= 1
    if copy or not versioned:
        if copy is False:
            raise BufferError("a read-only tensor is shared with consumers of DLPack 1.0 only")
        raw = raw.copy()
    capsule = raw.__dlpack__(max_version=max_version) if versioned else raw.__dlpack__()
    if narrow is not None:
        _contents(capsule).dtype.code = narrow
    return capsule


def from_dlpack(x: Any, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with the value of another library's array, sharing its memory unless `copy`.

    >>> import numpy as np
    >>> fg.from_dlpack(np.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    if isinstance(x, Tensor):
        return Tensor(x, device=device)
    if not hasattr(x, "__dlpack__"):
        raise DataError(f"{type(x).__name__} does not know DLPack", "use fg.asarray(data)")
    if tuple(map(int, x.__dlpack_device__())) != _CPU:
        raise DataError("the array is not in host memory", "move it to the CPU first")
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # written before version 1.0
        capsule = x.__dlpack__()
    about = _contents(capsule).dtype
    narrow: DType | None = _BY_CODE.get(about.code)
    if narrow is not None:
        about.code = 1  # unsigned integers of the same width
    array = np.from_dlpack(_Once(capsule))  # type: ignore[arg-type]
    array = array if narrow is None else array.view(narrow.numpy)
    return Tensor(array, device=device) if copy else from_numpy(array, device)


# --- the array API namespace ---------------------------------------------------------------------


class Info:
    """What the standard asks about a namespace: devices, default and known dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """What may depend on data, and how many dimensions there are at most."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Where tensors live if nothing is said."""
        return Tensor(0).device

    def default_dtypes(self, *, device: object = None) -> dict[str, DType]:
        """The dtypes of Python numbers, and of indices."""
        return {
            "real floating": default_float, "complex floating": default_complex,
            "integral": default_int, "indexing": default_int,
        }  # fmt: skip

    def devices(self) -> tuple[str, ...]:
        """Where tensors may live."""
        return tuple(device_names())

    def dtypes(self, *, device: object = None, kind: object = None) -> dict[str, DType]:
        """The dtypes of the standard, of one or several kinds."""
        from ..functional.datatypes import isdtype

        return {
            d.name: d for d in DTYPES
            if d.bits in (1, 8, 16, 32, 64, 128) and d not in _CODES and d.name != "float16"
            and (kind is None or isdtype(d, kind))
        }  # fmt: skip


def namespace(version: str | None) -> ModuleType:
    """The module with the standard's functions."""
    import fulgurite

    known = ("2021.12", "2022.12", "2023.12", "2024.12", VERSION)
    if version is not None and version not in known:
        raise ArgumentError(f"array API version {version!r}", f"one of {', '.join(known)}")
    return fulgurite


# --- NumPy's protocols ---------------------------------------------------------------------------

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


def shown_as_html(x: Tensor) -> str:
    """A tensor in a notebook: what it is, and its value if that is known or small."""
    from html import escape

    return f"<pre>{escape(repr(x))}</pre>"


def buffer_of(x: Tensor) -> memoryview:
    """The value as a read-only buffer."""
    array: Array = x.__array__()
    return memoryview(np.ascontiguousarray(array)).toreadonly()  # type: ignore[arg-type]
