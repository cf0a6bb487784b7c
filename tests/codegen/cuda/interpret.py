"""Triton's interpreter over NumPy memory: generated kernels run without a GPU.

In: a `KernelSource`, arrays for its params, values of its variables. Out: the arrays, written to,
and the error words. Import it in a process of its own: Triton decides when it is imported whether
it interprets. What is mended of the interpreter: whole numbers from tensors (NumPy 2.4 and newer),
the dtype of comparisons, denormals and products of bfloat16, reductions and scans element by
element (here by halves, which is also how a GPU does them), IEEE 754-2019 maximum and minimum, and
libdevice, which NumPy stands in for. Programs of a launch run in a shuffled order; memory around
arrays is poisoned and must stay so.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from fulgurite.codegen.cuda import prelude, source
from fulgurite.codegen.cuda.compilation.compiler import load_function
from fulgurite.codegen.cuda.source import KernelSource, Launch
from fulgurite.core.dtype import bfloat16
from fulgurite.core.ops import elementwise, special

Array = np.ndarray[Any, Any]
POISON = 0xA5
AROUND = 256  # poisoned bytes on both sides of memory
Handle: Any = interpreter.TensorHandle


def _tensor(data: Array, dtype: Any) -> Any:
    shape = list(data.shape)
    return tl.tensor(Handle(data, dtype), tl.block_type(dtype, shape) if shape else dtype)


# --- the interpreter, mended ---------------------------------------------------------------------


def _elementwise(function: Callable[..., Array]) -> Callable[..., Any]:
    """A NumPy function on tensors."""

    def apply(*values: Any) -> Any:
        first = values[0]
        data = [v.handle.data for v in values]
        found = np.asarray(function(*data), data[0].dtype).reshape(
            np.broadcast_shapes(*[d.shape for d in data])
        )
        if any([v.type.is_block() for v in values]):  # libdevice's functions spread numbers
            return _tensor(found, first.dtype)
        return tl.tensor(Handle(found, first.dtype), first.type)

    return apply


_FUNCTIONS: dict[str, Any] = {
    "trunc": np.trunc, "rint": np.rint, "cbrt": np.cbrt, "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt, "atan2": np.arctan2,
    "fmod": np.fmod, "pow": special.power, "rsqrt": special.rsqrt, "erf": special.erf,
    "erfc": special.erfc, "lgamma": special.lgamma, "copysign": np.copysign,
}  # fmt: skip


class _Libdevice:
    """NumPy in the place of NVIDIA's library of functions."""

    def __getattr__(self, name: str) -> Any:
        return _elementwise(_FUNCTIONS[name])


def _halves(op: Any, values: Sequence[Any], axis: int) -> list[Any]:
    """A reduction by halves: element i with element i + half, until one is left."""
    data = [np.moveaxis(v.handle.data, axis, 0) for v in values]
    dtypes = [v.dtype for v in values]
    while data[0].shape[0] > 1:
        half = data[0].shape[0] // 2
        both = [_tensor(d[:half], t) for d, t in zip(data, dtypes, strict=True)]
        both += [_tensor(d[half:], t) for d, t in zip(data, dtypes, strict=True)]
        data = _combined(op, both)
    return [np.moveaxis(d, 0, axis) for d in data]


def _combined(op: Any, values: Sequence[Any]) -> list[Array]:
    found = op.combine_fn.fn(*values)
    return [v.handle.data for v in (found if isinstance(found, tuple) else (found,))]


def _reduce(self: Any, values: Sequence[Any]) -> Any:
    axis = self.axis
    assert axis is not None
    data = _halves(self, values, axis)
    if not self.keep_dims:
        data = [d.reshape(d.shape[:axis] + d.shape[axis + 1 :]) for d in data]
    return [self.to_tensor(d if d.shape else d.item(), v.dtype)
            for d, v in zip(data, values, strict=True)]  # fmt: skip


def _scan(self: Any, values: Sequence[Any]) -> Any:
    """An inclusive scan by doubling: right halves take the last of the left ones."""
    data = [np.moveaxis(v.handle.data, self.axis, 0).copy() for v in values]
    dtypes = [v.dtype for v in values]
    half, n = 1, data[0].shape[0]
    while half < n:
        cut = [d.reshape(n // (2 * half), 2, half, *d.shape[1:]) for d in data]
        left = [np.broadcast_to(c[:, 0, -1:], c[:, 1].shape) for c in cut]
        both = [_tensor(d, t) for d, t in zip(left, dtypes, strict=True)]
        both += [_tensor(c[:, 1], t) for c, t in zip(cut, dtypes, strict=True)]
        for c, found in zip(cut, _combined(self, both), strict=True):
            c[:, 1] = found
        half *= 2
    return [self.to_tensor(np.moveaxis(d, 0, self.axis), v.dtype)
            for d, v in zip(data, values, strict=True)]  # fmt: skip


def _extreme(function: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    def create(self: Any, a: Any, b: Any) -> Any:
        return self.binary_op(a, b, function)

    return create


def _convert(convert: Any) -> Any:
    """bfloat16 keeps its denormals and rounds to nearest."""

    def converted(data: Array, have: Any, goal: Any, rounding: Any) -> Array:
        if have == tl.bfloat16 and goal == tl.float32:
            return data.view(np.uint16).astype(np.uint32) << 16
        if have == tl.float32 and goal == tl.bfloat16:
            return data.astype(bfloat16.numpy).view(np.uint16)
        found: Array = convert(data, have, goal, rounding)
        return found

    return converted


def _compare(create: Any) -> Any:
    def compared(self: Any, a: Any, b: Any) -> Any:
        return Handle(create(self, a, b).data.astype(np.bool_), tl.int1)

    return compared


def _dot(create: Any) -> Any:
    def exact(h: Any) -> Any:
        if h.dtype.scalar == tl.bfloat16:
            return Handle((h.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        return Handle(h.data.astype(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *more: Any) -> Any:
        return create(self, exact(a), exact(b), d, *more)

    return create_dot


_MACHINE_CODE: dict[str, Any] = {  # NumPy in the place of machine code
    "fg_rsqrt_of_float32": _elementwise(special.rsqrt),
    "fg_with_sign": _elementwise(np.copysign),
    "fg_exp2": _elementwise(np.exp2),
    "fg_fast_exp2": _elementwise(np.exp2),
    "fg_fast_reciprocal": _elementwise(np.reciprocal),
    "fg_approximate_tanh": _elementwise(np.tanh),
}


def _mend() -> None:
    # overflows of whole numbers are worked out and asked by nobody: two thirds of the time
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )
    builder: Any = interpreter.InterpreterBuilder
    builder.create_maximumf = _extreme(elementwise.maximum)
    builder.create_minimumf = _extreme(elementwise.minimum)
    builder.create_dot = _dot(builder.create_dot)
    for name in [n for n in vars(builder) if n.startswith(("create_icmp", "create_fcmp"))]:
        setattr(builder, name, _compare(getattr(builder, name)))
    interpreter._convert_float = _convert(interpreter._convert_float)
    interpreter.ReduceOps.generic_reduce = _reduce
    interpreter.ScanOps.generic_scan = _scan

    def call(self: Any, *values: Any, **named: Any) -> Any:
        return self.rewrite()(*values, **named)

    interpreter.InterpretedFunction.__call__ = call
    vars(prelude)["libdevice"] = _Libdevice()
    vars(prelude).update(_MACHINE_CODE)
    interpreter._patch_lang(prelude.fg_add.fn)
    interpreter._patch_lang(tl.zeros.fn)
    tl.tensor.__index__ = lambda self: int(self.handle.data.item())
    tl.tensor.__bool__ = lambda self: bool(self.handle.data.all())


_mend()

# --- running -------------------------------------------------------------------------------------


def memory(nbytes: int) -> tuple[Array, Array]:
    """Bytes at a multiple of 256 with poison around them, and all of it."""
    whole = np.full(nbytes + 2 * AROUND + 256, POISON, np.uint8)
    start = AROUND + (-(whole.ctypes.data + AROUND)) % 256
    return whole[start : start + nbytes], whole


def _is_kept(inner: Array, whole: Array) -> bool:
    """True if the poison around memory is as it was."""
    start = inner.ctypes.data - whole.ctypes.data
    around = np.concatenate([whole[:start], whole[start + inner.size :]])
    return bool((around == POISON).all())


def run(
    made: KernelSource, arrays: Sequence[Array], values: Mapping[str, int], seed: int = 0,
    over: Mapping[int, int] | None = None, locked: int = 0,
) -> tuple[list[Array], tuple[int, int]]:  # fmt: skip
    """Copies of the params after all launches, and the error words.

    `over` are outputs that take the memory of inputs; `locked` is the lock's value. A check that
    fails must set it.
    """
    taken = [memory(a.nbytes) for a in arrays]
    for output, given in (over or {}).items():
        taken[output] = taken[given]
    for place, ((inner, _), array) in enumerate(zip(taken, arrays, strict=True)):
        if place in (over or {}):
            continue
        inner[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    room, error, lock = memory(made.workspace), memory(16), memory(4)
    error[0][:] = 0
    lock[0].view(np.int32)[0] = locked
    bases = {
        source.ROOM: room[0].ctypes.data, source.ERROR: error[0].ctypes.data,
        source.LOCK: lock[0].ctypes.data,
    }  # fmt: skip
    shuffled = random.Random(seed)
    with np.errstate(all="ignore"):
        for launch in made.launches:
            _launch(launch, [t[0].ctypes.data for t in taken], bases, values, shuffled)
    for inner, whole in (*taken, room, error, lock):
        assert _is_kept(inner, whole), "a kernel writes outside of its memory"
    words = error[0].view(np.int64)
    assert lock[0].view(np.int32)[0] == (locked or words[0]), "the lock is set by failed checks"
    results = [t[0].view(a.dtype).reshape(a.shape) for t, a in zip(taken, arrays, strict=True)]
    return results, (int(words[0]), int(words[1]))


def _launch(
    launch: Launch, params: Sequence[int], bases: Mapping[str, int], values: Mapping[str, int],
    shuffled: random.Random,
) -> None:  # fmt: skip
    arguments: dict[str, Any] = {}
    words: list[Array] = []  # memory of variables
    for one in launch.arguments:
        kind, value = tl.str_to_ty(one.type, None), one.value
        assert not isinstance(value, source.TensorMap), "there is no interpreter for Gluon"
        if one.source == source.PARAM:
            data = np.array([params[int(value)]], np.uint64)
        elif one.source in bases:
            data = np.array([bases[one.source] + int(value)], np.uint64)
        elif one.source == source.VARIABLE:
            word = np.array([values[str(value)]], np.int64)
            words.append(word)
            data = np.array([word.ctypes.data], np.uint64)
        else:
            data = np.array([int(value)], np.int64 if one.type == "i64" else np.int32)
        arguments[one.name] = tl.tensor(Handle(data, kind), kind)
    function = load_function(launch.text, launch.symbol).rewrite()
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(launch.grid, 1, 1)
    programs = list(range(launch.grid))
    shuffled.shuffle(programs)
    for program in programs:
        builder.set_grid_idx(program, 0, 0)
        function(**arguments)
