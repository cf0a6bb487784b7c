"""Small files of every format, written by hand from the formats' descriptions, for tests."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fulgurite.core.op import Array
from fulgurite.io.quants import QUANTS


class Named(NamedTuple):
    """A global of a pickle."""

    module: str
    name: str


class Call(NamedTuple):
    """A call in a pickle."""

    function: Named
    arguments: tuple[Any, ...]


class Stored(NamedTuple):
    """A persistent id of a pickle."""

    parts: tuple[Any, ...]


class Evil:
    """What calls a function when it is read by `pickle`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def pickled(value: Any) -> bytes:
    """A pickle of protocol 2."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, Named):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return _opcodes(value.function) + _opcodes(value.arguments) + b"R"
    if isinstance(value, Stored):
        return _opcodes(value.parts) + b"Q"
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_opcodes, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    assert isinstance(value, dict), value
    return b"}(" + b"".join(_opcodes(k) + _opcodes(v) for k, v in value.items()) + b"u"


REBUILD = Named("torch._utils", "_rebuild_tensor_v2")
ORDERED = Named("collections", "OrderedDict")


def torch_tensor(
    key: str, kind: str, count: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...],
    **more: Any,
) -> Call:  # fmt: skip
    """A tensor as torch describes it; before 1.6 a storage had one part more."""
    parts = ("storage", Named("torch", f"{kind}Storage"), key, "cpu", count, *more.values())
    storage = Stored(parts)
    return Call(REBUILD, (storage, offset, size, stride, False, Call(ORDERED, ())))


def torch_file(
    value: Any,
    storages: Mapping[str, bytes],
    method: int = zipfile.ZIP_STORED,
    more: Mapping[str, bytes] | None = None,
) -> bytes:
    """A zip checkpoint."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("archive/data.pkl", value if isinstance(value, bytes) else pickled(value))
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
        for name, data in {"version": b"3\n", **(more or {})}.items():
            archive.writestr(f"archive/{name}", data)
    return made.getvalue()


def torch_value(**more: Any) -> Any:
    """Views, a bfloat16 tensor, nests and a parameter."""
    whole = torch_tensor("0", "Float", 12, 0, (3, 4), (4, 1), **more)
    parameter = Named("torch._utils", "_rebuild_parameter")
    return {
        "w": Call(parameter, (whole, True, Call(ORDERED, ()))),
        "turned": torch_tensor("0", "Float", 12, 1, (2, 3), (1, 4), **more),
        "wide": torch_tensor("0", "Float", 12, 2, (5, 2), (0, 1), **more),
        "b": torch_tensor("1", "BFloat16", 2, 0, (2,), (1,), **more),
        "nest": {"step": 3, "rates": [0.5, (1, 2)], "none": None},
    }


TORCH_STORAGES = {
    "0": np.arange(12, dtype=np.float32).tobytes(),
    "1": np.array([0x3F80, 0x4000], np.uint16).tobytes(),  # 1 and 2 in bfloat16
}


def torch_sample() -> bytes:
    """A zip checkpoint."""
    return torch_file(torch_value(), TORCH_STORAGES)


def legacy_file(
    value: Any,
    storages: Sequence[tuple[str, int, bytes]],
    head: Sequence[Any] = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}),
    keys: Any = None,
) -> bytes:
    """A checkpoint as torch wrote it before 1.6: pickles, then (key, count, bytes) of storages."""
    listed = [key for key, _, _ in storages] if keys is None else keys
    made = b"".join([pickle.dumps(part, 2) for part in head])
    made += value if isinstance(value, bytes) else pickled(value)
    made += pickle.dumps(listed, 2)
    return made + b"".join([struct.pack("<q", count) + data for _, count, data in storages])


def legacy_sample() -> bytes:
    """The same value in a file without a zip archive."""
    counts = {"0": 12, "1": 2}
    storages = [(key, counts[key], data) for key, data in TORCH_STORAGES.items()]
    return legacy_file(torch_value(part=None), storages)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_file(tensors: Mapping[str, tuple[int, tuple[int, ...], bytes]], more: bytes = b"",
              pairs: int = 0, version: int = 3) -> bytes:  # fmt: skip
    """A GGUF file of (type, shape, bytes) by name."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), pairs) + more
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        data += b"\0" * (-len(data) % 32)
        head += _text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += raw
    return head + b"\0" * (-len(head) % 32) + data


def blocks(kind: int, count: int, seed: int = 0) -> Array:
    """Random blocks of a quantised type whose scales are ordinary numbers."""
    random = np.random.default_rng(seed)
    quant = QUANTS[kind]
    found = random.integers(0, 256, (count, quant.bytes), dtype=np.uint8)
    for place in HALVES[quant.name]:
        scale = random.normal(size=(count, 1)).astype(np.float16)
        found[:, place : place + 2] = scale.view(np.uint8)
    if quant.name == "Q8_K":
        found[:, 0:4] = random.normal(size=(count, 1)).astype(np.float32).view(np.uint8)
    return found


HALVES = {  # where a block's float16 numbers lie
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q8_1": [0, 2],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q8_K": [],
    "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip


def gguf_sample() -> bytes:
    """A file with metadata of several kinds and a few tensors."""
    more = _text("general.name") + struct.pack("<I", 8) + _text("a model")
    more += _text("layers") + struct.pack("<II", 4, 12)
    more += _text("words") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("é")
    more += _text("sizes") + struct.pack("<IIQ3H", 9, 2, 3, 1, 2, 3)
    return gguf_file(
        {
            "plain": (0, (2, 3), np.arange(6, dtype=np.float32).tobytes()),
            "brain": (30, (2,), np.array([0x3F80, 0x4000], np.uint16).tobytes()),
            "q8": (8, (2, 32), blocks(8, 2).tobytes()),
        },
        more,
        4,
    )


def safetensors_file(header: Any, data: bytes) -> bytes:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
