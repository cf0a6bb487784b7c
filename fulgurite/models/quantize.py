"""Quantisation: matrices of a model as blocks of small whole numbers with scales.

In: a Hugging Face folder or a GGUF file, and the name of a type. Out: the same with its matrices in
that type. GGUF's types are written as its own files have them; a folder keeps its layout, and its
packed matrices are uint8 tensors (outputs, blocks, bytes) that `quantization_config` names, in any
of GGUF's types or in two of ours (I8G64, I4G64). Rounding is to the nearest; scales are those
that reach the largest value of a block.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..core.op import Array
from ..errors import ArgumentError
from ..io.files import MissingFileError, Path, path_of, write_whole
from ..io.gguf import GgufFile
from ..io.quants import _IQ4 as IQ4_VALUES
from ..io.quants import GROUPS, QUANTS, Quant
from ..io.safetensors import save_safetensors
from .gguf import plain_kind, save_gguf
from .weights import INDEX, Folder, read_json

METHOD = "fulgurite"
ROWS = 1 << 16  # blocks that are packed at once
KEPT = ("position_embd", "wpe", "ffn_gate_inp", ".gate.weight", "rope_f")  # small, or not for this


def _halves(numbers: Array) -> tuple[Array, Array]:
    """Scales as the float16 they are stored as: their bytes, and the numbers to divide by."""
    with np.errstate(over="ignore"):
        half = numbers.astype(np.float16)
    wide = half.astype(np.float32)
    return half.reshape(-1, 1).view(np.uint8), np.where(wide == 0, 1, wide)


def _nearest(x: Array, low: int, high: int) -> Array:
    found: Array = np.clip(np.rint(np.nan_to_num(x)), low, high).astype(np.int32)
    return found


def _extreme(x: Array) -> Array:
    """The value of each row that is farthest from 0."""
    found: Array = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]
    return found


def _nibbles(q: Array) -> Array:
    """Two halves of each row, in one byte."""
    half = q.shape[-1] // 2
    found: Array = (q[..., :half] | q[..., half:] << 4).astype(np.uint8)
    return found


def _symmetric(bits: int, x: Array) -> tuple[Array, Array]:
    """A scale that takes the farthest value to the lowest number, and numbers from 0 on."""
    middle = 1 << bits - 1
    raw, scale = _halves(_extreme(x) / -middle)
    return raw, _nearest(x / scale[:, None] + middle, 0, 2 * middle - 1)


def _affine(bits: int, x: Array) -> tuple[Array, Array]:
    least, most = x.min(-1), x.max(-1)
    raw, scale = _halves((most - least) / ((1 << bits) - 1))
    raw_least, low = _halves(least)
    low = np.where(least == 0, 0, low)
    q = _nearest((x - low[:, None]) / scale[:, None], 0, (1 << bits) - 1)
    return np.concatenate([raw, raw_least], -1), q


def _fives(head: Array, q: Array) -> Array:
    bits = np.packbits((q >> 4).astype(np.uint8), axis=-1, bitorder="little")
    return np.concatenate([head, bits, _nibbles(q & 15)], -1)


def _fours(head: Array, q: Array) -> Array:
    return np.concatenate([head, _nibbles(q)], -1)


def _eight(x: Array) -> Array:
    raw, scale = _halves(np.abs(x).max(-1) / 127)
    return np.concatenate(
        [raw, _nearest(x / scale[:, None], -127, 127).astype(np.int8).view(np.uint8)], -1
    )


def _iq4(x: Array) -> Array:
    raw, scale = _halves(_extreme(x) / -127)
    values = IQ4_VALUES.astype(np.float32)
    between = (values[1:] + values[:-1]) / 2
    return _fours(raw, np.searchsorted(between, x / scale[:, None]).astype(np.int32))


def _k_affine(bits: int, x: Array) -> tuple[Array, Array]:
    """Q4_K and Q5_K: eight runs of 32, whose scales and minima have six bits each."""
    runs = x.reshape(-1, 8, 32)
    least = np.minimum(runs.min(-1), 0)
    wanted = (runs.max(-1) - least) / ((1 << bits) - 1)
    raw, scale = _halves(wanted.max(-1) / 63)
    raw_least, low = _halves(-least.min(-1) / 63)
    s, m = _nearest(wanted / scale[:, None], 0, 63), _nearest(-least / low[:, None], 0, 63)
    step = np.where(s == 0, 1, s * scale[:, None])[..., None]
    q = _nearest((runs + (m * low[:, None])[..., None]) / step, 0, (1 << bits) - 1)
    q = np.where(s[..., None] == 0, 0, q)
    first = s[:, :4] | s[:, 4:] >> 4 << 6
    second = m[:, :4] | m[:, 4:] >> 4 << 6
    third = (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    parts = [part.astype(np.uint8) for part in (first, second, third)]
    return np.concatenate([raw, raw_least, *parts], -1), q


def _k_nibbles(q: Array) -> Array:
    pairs = q.reshape(-1, 4, 64)
    return _nibbles(pairs).reshape(len(pairs), 128)


def _q4_k(x: Array) -> Array:
    head, q = _k_affine(4, x)
    return np.concatenate([head, _k_nibbles(q)], -1)


def _q5_k(x: Array) -> Array:
    head, q = _k_affine(5, x)
    high = np.zeros((len(q), 32), np.int32)
    for run in range(8):
        high |= (q[:, run] >> 4) << run
    return np.concatenate([head, high.astype(np.uint8), _k_nibbles(q & 15)], -1)


def _q6_k(x: Array) -> Array:
    runs = x.reshape(-1, 16, 16)
    wanted = _extreme(runs) / -32
    raw, scale = _halves(_extreme(wanted) / -127)
    s = _nearest(wanted / scale[:, None], -127, 127)
    step = np.where(s == 0, 1, s * scale[:, None])[..., None]
    q = np.where(s[..., None] == 0, 32, _nearest(runs / step, -32, 31) + 32).reshape(-1, 2, 4, 32)
    low = _nibbles((q & 15).reshape(-1, 2, 128)).reshape(len(q), 128)
    high = q[:, :, 0] >> 4
    for part in (1, 2, 3):
        high = high | (q[:, :, part] >> 4) << 2 * part
    scales = s.astype(np.int8).view(np.uint8)
    return np.concatenate([low, high.reshape(len(q), 64).astype(np.uint8), scales, raw], -1)


ENCODERS: dict[str, Callable[[Array], Array]] = {
    "Q8_0": _eight,
    "Q4_0": lambda x: _fours(*_symmetric(4, x)),
    "Q4_1": lambda x: _fours(*_affine(4, x)),
    "Q5_0": lambda x: _fives(*_symmetric(5, x)),
    "Q5_1": lambda x: _fives(*_affine(5, x)),
    "IQ4_NL": _iq4,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "I8G64": _eight,
    "I4G64": lambda x: _fours(*_symmetric(4, x)),
}
BY_NAME: dict[str, Quant] = {q.name: q for q in (*QUANTS.values(), *GROUPS.values())}
NUMBERS = {quant.name: number for number, quant in QUANTS.items()}


def quant_of(kind: str) -> Quant:
    """The type of a name, or an error that lists those that can be written."""
    if kind.upper() not in ENCODERS:
        raise ArgumentError(f"{kind!r} is no type to quantise to", ", ".join(ENCODERS))
    return BY_NAME[kind.upper()]


def packed(values: Array, kind: str) -> Array:
    """A matrix (..., inputs) as blocks, (..., blocks, bytes) of uint8."""
    quant = quant_of(kind)
    if values.shape[-1] % quant.count:
        raise ArgumentError(
            f"rows of {values.shape[-1]} are not made of blocks of {quant.count}", "another type"
        )
    rows = np.ascontiguousarray(values).reshape(-1, quant.count)
    found = np.empty((len(rows), quant.bytes), np.uint8)
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS].astype(np.float32)
        found[start : start + ROWS] = ENCODERS[quant.name](some)
    return found.reshape(*values.shape[:-1], -1, quant.bytes)


def quantize(source: Path, target: Path, kind: str) -> dict[str, int]:
    """Write a model with its matrices quantised; gives the number of tensors of each type.

    >>> fulgurite.models.quantize("model", "model-q4", "Q4_K")     # doctest: +SKIP
    """
    name, goal = path_of(source), path_of(target)
    if not os.path.exists(name):
        raise MissingFileError(f"there is no file {name!r}", "look at the path")
    if os.path.isdir(name) and goal.lower().endswith(".gguf"):
        raise ArgumentError(
            f"{name!r} is a folder, and its packed model is one too", f"write to {goal[:-5]!r}"
        )
    if os.path.exists(goal) and os.path.samefile(name, goal):
        raise ArgumentError("the model would be written over itself", "choose another target")
    quant = quant_of(kind)
    _check_target(name, goal)
    counts = (_folder if os.path.isdir(name) else _file)(name, goal, kind.upper())
    if counts.keys() == {"plain"}:
        warnings.warn(
            f"no matrix of {name!r} was packed: none has rows of blocks of {quant.count}",
            stacklevel=2,
        )
    return counts


def _check_target(name: str, goal: str) -> None:
    """An error for a target that is something else; a long time before it would be written."""
    if not os.path.exists(goal):
        return
    hint = "choose another target"
    if not os.path.isdir(name):
        if not os.path.isfile(goal):
            raise ArgumentError(f"{goal!r} is there, and is no regular file", hint)
        return
    if not os.path.isdir(goal):
        raise ArgumentError(f"{goal!r} is there, and is no folder", hint)
    inside = os.listdir(goal)
    if INDEX in inside or (inside and "config.json" not in inside):
        raise ArgumentError(f"the folder {goal!r} has other files", hint)


def _choices(name: str, shape: tuple[int, ...], kind: str) -> str | None:
    """The type a tensor gets: another one where rows are not made of its blocks, or none."""
    if len(shape) < 2 or not name.endswith(("weight", "_proj")) or any(k in name for k in KEPT):
        return None
    fitting = [k for k in (kind, "Q8_0") if shape[-1] % BY_NAME[k].count == 0]
    return fitting[0] if fitting else None


def _file(name: str, goal: str, kind: str) -> dict[str, int]:
    if kind not in NUMBERS:
        raise ArgumentError(f"GGUF files have no {kind}", "use one of their own types")
    file, tensors, counts = GgufFile(name), {}, dict[str, int]()
    for own in file:
        values = file[own].numpy()
        chosen = _choices(own, values.shape, kind)
        if chosen is None:
            tensors[own] = plain_kind(values), values.shape, values
        else:
            tensors[own] = NUMBERS[chosen], values.shape, packed(values, chosen)
        counts[chosen or "plain"] = counts.get(chosen or "plain", 0) + 1
    save_gguf(goal, file.metadata, tensors)
    return counts


def _folder(name: str, goal: str, kind: str) -> dict[str, int]:
    config = read_json(os.path.join(name, "config.json"))
    if not isinstance(config, dict):
        raise ArgumentError(f"the config.json of {name!r} is no mapping", "get the model anew")
    if config.get("quantization_config"):
        raise ArgumentError(
            f"matrices of {name!r} are packed already", "give the model that it was made from"
        )
    is_transposed = config.get("model_type") == "gpt2"
    counts: dict[str, int] = {}
    tensors: dict[str, Any] = {}
    for own, values in _tensors(name):
        turn = is_transposed and any(part in own for part in ("c_attn", "c_proj", "c_fc"))
        turn = turn and values.ndim == 2
        inputs = values.T if turn else values
        fits = inputs.shape[-1:] and inputs.shape[-1] % BY_NAME[kind].count == 0
        chosen = _choices(own, inputs.shape, kind) if fits else None
        tensors[own] = packed(inputs, kind) if chosen else values
        counts[chosen or "plain"] = counts.get(chosen or "plain", 0) + 1
    os.makedirs(goal, exist_ok=True)
    for other in os.listdir(name):
        path = os.path.join(name, other)
        if os.path.isfile(path) and not other.endswith(".safetensors") and other != INDEX:
            shutil.copyfile(path, os.path.join(goal, other))
    save_safetensors(tensors, os.path.join(goal, "model.safetensors"), {"format": "pt"})
    config["quantization_config"] = {"quant_method": METHOD, "type": kind}
    text = json.dumps(config, indent=2).encode()
    write_whole(os.path.join(goal, "config.json"), lambda file: file.write(text))
    return counts


def _tensors(name: str) -> Iterator[tuple[str, Array]]:
    folder = Folder(name)
    for own in folder:
        yield own, folder[own].numpy()
