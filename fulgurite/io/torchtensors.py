"""What a torch pickle is made of, as values of ours: tensors over storages, arrays, dtypes, dicts.

In: a pickle and, from a subclass, the bytes of its storages. Out: nests of dicts, lists, numbers,
text and tensors, the tensors over the file's memory-mapped bytes with their strides and shared
storages. The invariant: nothing in the file is executed (see `unpickle`), and every view lies
within its storage. dtypes become ours, devices their names, parameters plain tensors, NumPy
scalars numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import is_
from typing import Any

import numpy as np

from ..core import dtype as types
from ..core.dtype import DType, dtype_of
from ..core.op import Array
from ..functional.array.movement import broadcast_to
from ..functional.math.complex_numbers import conj
from ..tensor import Tensor
from .files import Refusal, shared, sized
from .unpickle import Buildable, Global, checked_key

STORAGES: dict[str, DType] = {
    "Float": types.float32, "Double": types.float64, "Half": types.float16,
    "BFloat16": types.bfloat16, "Long": types.int64, "Int": types.int32, "Short": types.int16,
    "Char": types.int8, "Byte": types.uint8, "Bool": types.bool_,
    "ComplexFloat": types.complex64, "ComplexDouble": types.complex128,
}  # fmt: skip
DTYPES = {
    **{d.name: d for d in types.DTYPES},
    **{"half": types.float16, "float": types.float32, "double": types.float64},
    **{"long": types.int64, "int": types.int32, "short": types.int16},
}
MOST_OVERLAP = 16  # elements of a view for each element of its storage


class Storage:
    """Bytes of the file, and the dtype that torch noted for them."""

    def __init__(self, raw: Array, dtype: DType | None) -> None:
        self.raw, self.dtype = raw, dtype


class _NumpyDType(Buildable):
    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code[:1] not in "biufc" or len(code) > 3:
            raise Refusal(f"it holds NumPy data of {str(code)[:50]!r}, not of numbers")
        self.dtype = np.dtype(code)
        self.known = dtype_of(self.dtype)

    def build(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _NumpyArray(Buildable):
    """An array that NumPy pickled into the file."""

    def __init__(self, *_: Any) -> None:
        self.array: Array | None = None

    def build(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise Refusal("it holds an array without its parts")
        _, shape, dtype, columns, raw = state
        self.array = _from_bytes(dtype, raw, shape, bool(columns))


def _from_bytes(dtype: Any, raw: Any, shape: Any, columns: bool = False) -> Array:
    if not (isinstance(dtype, _NumpyDType) and isinstance(raw, bytes) and isinstance(shape, tuple)):
        raise Refusal("it holds an array without its parts")
    sizes = sized(shape, "an array")
    if prod(sizes) * dtype.dtype.itemsize != len(raw):
        raise Refusal(f"an array of {list(sizes)} does not take {len(raw)} bytes")
    flat = np.frombuffer(raw, dtype.dtype).astype(dtype.known.numpy)
    return flat.reshape(sizes, order="F" if columns else "C")


class Rebuilder:
    """Makes the values that a pickle describes; a subclass knows where its storages are."""

    def __init__(self, device: str | None, swapped: bool = False) -> None:
        self.device = device
        self.swapped = swapped  # is the order of bytes in the file not ours?

    def storage(self, persistent: Any) -> Any:
        """What a persistent id of the pickle stands for."""
        raise NotImplementedError

    def globals(self) -> dict[str, Global]:
        """The names that a pickle may use, and what is called for each."""
        make: dict[str, Callable[..., Any] | None] = {
            "torch._utils._rebuild_tensor": self.tensor,
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor_v3": self.tensor_v3,
            "torch._utils._rebuild_parameter": lambda data, *_: data,
            "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
            "torch._tensor._rebuild_from_type_v2": self.subclass,
            "torch.Tensor": None,
            "torch.nn.parameter.Parameter": None,
            "torch.Size": lambda sizes=(): tuple(sizes),
            "torch.device": lambda kind, number=None: (
                f"{kind}" if number is None else f"{kind}:{int(number)}"
            ),
            "collections.OrderedDict": _dict,
            "collections.defaultdict": lambda factory=None, items=(): _dict(items),
            "torch.storage.UntypedStorage": None,
            "numpy.dtype": _NumpyDType,
            "numpy.ndarray": None,
            "_codecs.encode": _encode,
        }
        for module in ("__builtin__", "builtins"):
            make |= {f"{module}.set": _set, f"{module}.frozenset": _set, f"{module}.list": None}
            make |= {f"{module}.{kind}": None for kind in ("dict", "int", "float", "str", "bool")}
            make |= {f"{module}.complex": lambda re, im: complex(float(re), float(im))}
        for core in ("numpy.core.multiarray", "numpy._core.multiarray"):
            make[f"{core}.scalar"] = lambda dtype, raw: _from_bytes(dtype, raw, ())[()].item()
            make[f"{core}._reconstruct"] = _NumpyArray
        make |= {f"torch.{name}Storage": None for name in STORAGES}
        make |= {f"torch.storage.{name}Storage": None for name in STORAGES}
        make |= {f"torch.{name}": None for name in DTYPES}
        return {name: Global(name, function) for name, function in make.items()}

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Any:
        """A view of a storage, checked."""
        if not isinstance(storage, Storage) or storage.dtype is None:
            raise Refusal("it has a tensor without a storage")
        view = self._view(storage.raw, storage.dtype, offset, size, stride)
        return _flagged(view, rest[2] if len(rest) > 2 else None)

    def tensor_v3(
        self, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any,
        dtype: Any, *rest: Any,
    ) -> Any:  # fmt: skip
        """The same over a storage without a dtype."""
        name = dtype.name.removeprefix("torch.") if isinstance(dtype, Global) else ""
        if not isinstance(storage, Storage) or name not in DTYPES:
            raise Refusal("it has a tensor without a storage or a dtype")
        view = self._view(storage.raw, DTYPES[name], offset, size, stride)
        return _flagged(view, rest[0] if rest else None)

    def subclass(self, function: Any, kind: Any, arguments: Any, *_: Any) -> Any:
        """A tensor with attributes: the tensor."""
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise Refusal("it has a tensor without its parts")
        if function.make not in (self.tensor, self.tensor_v3) or function.make is None:
            raise Refusal(f"it has a tensor made by {function.name}")
        return function.make(*arguments)

    def _view(self, raw: Array, dtype: DType, offset: Any, size: Any, stride: Any) -> Any:
        if not isinstance(size, tuple) or not isinstance(stride, tuple):
            raise Refusal("it has a tensor without a shape")
        sizes, strides = sized(size, "a tensor"), sized(stride, "the strides of a tensor")
        (start,) = sized((offset,), "the offset of a tensor")
        if len(sizes) != len(strides):
            raise Refusal("it has a tensor with more sizes than strides, or fewer")
        item = dtype.numpy.itemsize
        count = raw.size // item
        if 0 in sizes:
            return shared(raw[:0], dtype, sizes, self.device)
        reach = start + sum([(n - 1) * s for n, s in zip(sizes, strides, strict=True)])
        if reach >= count:
            raise Refusal(f"a tensor of {list(sizes)} goes beyond its storage of {count}")
        kept = [i for i, s in enumerate(strides) if s and sizes[i] != 1]
        inner = tuple([sizes[i] for i in kept])
        if prod(inner) > MOST_OVERLAP * count:
            raise Refusal(f"a tensor of {list(sizes)} shows its storage of {count} too often")
        return self._strided(raw, dtype, start, sizes, strides, kept)

    def _strided(
        self, raw: Array, dtype: DType, start: int, sizes: tuple[int, ...],
        strides: tuple[int, ...], kept: list[int],
    ) -> Tensor:  # fmt: skip
        item = dtype.numpy.itemsize
        inner = tuple([sizes[i] for i in kept])
        steps = tuple([strides[i] for i in kept])
        dense = tuple([prod(inner[i + 1 :]) for i in range(len(inner))])
        if steps == dense and not self.swapped:
            part = shared(
                raw[start * item : (start + prod(inner)) * item], dtype, inner, self.device
            )
        else:
            flat = raw[: raw.size // item * item]
            if flat.__array_interface__["data"][0] % dtype.numpy.alignment:
                flat = flat.copy()
            if self.swapped and item > 1:
                word = item // 2 if dtype.kind == "c" else item
                flat = flat.reshape(-1, word)[:, ::-1].reshape(-1)
                flat = np.ascontiguousarray(flat)
            values = flat.view(dtype.numpy)[start:]
            found = np.lib.stride_tricks.as_strided(
                values, inner, tuple([s * item for s in steps]), writeable=False
            )
            part = shared(
                np.ascontiguousarray(found).reshape(-1).view(np.uint8), dtype, inner, self.device
            )
        whole = tuple([n if i in kept else 1 for i, n in enumerate(sizes)])
        return broadcast_to(part.reshape(whole), sizes) if whole != sizes else part.reshape(sizes)


def _flagged(view: Any, flags: Any) -> Any:
    """A view whose elements torch would conjugate or negate when it reads them."""
    if not isinstance(flags, dict) or not isinstance(view, Tensor):  # storages may be yet to come
        return view
    if flags.get("conj") is True:
        view = conj(view)
    return -view if flags.get("neg") is True else view


def claimed_storage(persistent: tuple[Any, ...]) -> tuple[str, DType | None, int]:
    """Name, dtype and size of a storage that a pickle refers to; None is the dtype of bytes."""
    tag, kind, key, _, count = persistent[:5]
    if tag != "storage" or not isinstance(kind, Global) or not isinstance(key, str):
        raise Refusal("its pickle refers to something that is no storage")
    dtype = STORAGES.get(kind.name.rpartition(".")[2].removesuffix("Storage"))
    if dtype is None and kind.name != "torch.storage.UntypedStorage":
        raise Refusal(f"it has a storage of {kind.name}")
    if type(count) is not int or count < 0:
        raise Refusal("it has a storage of no size")
    return key, dtype, count


def item_size(dtype: DType | None) -> int:
    """Bytes of an element; a storage without a dtype counts bytes."""
    return 1 if dtype is None else dtype.numpy.itemsize


def _dict(items: Any = ()) -> dict[Any, Any]:
    pairs = items.items() if isinstance(items, dict) else items
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise Refusal("it has a dict that is not made of pairs")
    return {checked_key(key): value for key, value in pairs}


def _set(items: Any = ()) -> set[Any]:
    return {checked_key(item) for item in items}


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refusal("it encodes what is no text of bytes")
    return text.encode("latin1")


DEEPEST = 100


def finished(found: Any, depth: int, seen: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """Stand-ins in the containers become what they stand for; each container is visited once."""
    seen = {} if seen is None else seen
    for kind, value in _STAND_INS.items():
        if isinstance(found, kind):
            return value(found)
    if not isinstance(found, dict | list | tuple):
        return found
    if id(found) in seen:
        return seen[id(found)][1]
    if depth > DEEPEST:
        raise Refusal(f"its containers are nested more than {DEEPEST} deep")
    seen[id(found)] = found, found  # the original too: its id must stay its own
    if isinstance(found, dict):
        for key, value in found.items():
            found[key] = finished(value, depth + 1, seen)
        return found
    made = [finished(value, depth + 1, seen) for value in found]
    if isinstance(found, list):
        found[:] = made
    elif not all(map(is_, made, found)):
        seen[id(found)] = found, tuple(made)
    return seen[id(found)][1]


def _named_dtype(found: Global) -> Any:
    name = found.name.removeprefix("torch.")
    if name not in DTYPES:
        raise Refusal(f"it holds {found.name} itself, which is no value")
    return DTYPES[name]


def _no_storage(found: Storage) -> Any:
    raise Refusal("it holds a storage itself", "save tensors")


_STAND_INS: dict[type, Callable[[Any], Any]] = {
    Global: _named_dtype,
    _NumpyArray: lambda found: None if found.array is None else Tensor(found.array),
    _NumpyDType: lambda found: found.known,
    Storage: _no_storage,
}
