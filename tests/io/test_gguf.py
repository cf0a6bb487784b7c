"""GGUF files: metadata, plain and quantised tensors against a scalar decoder, and refusals."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.io.files import FileError
from fulgurite.io.gguf import GgufFile, load_gguf
from fulgurite.io.quants import QUANTS

from .samples import _text, blocks, gguf_file, gguf_sample

pytestmark = pytest.mark.device("none")


def half(block: Array, at: int) -> float:
    return float(block[at : at + 2].copy().view(np.float16)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def scale_and_least(s: list[int], j: int) -> tuple[int, int]:
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4


def decoded(name: str, block: Array) -> list[float]:
    """One block, value by value, from the description of its layout."""
    b = [int(x) for x in block]
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        fifth, least = name[1] == "5", name[3] == "1"
        head = 4 if least else 2
        bits = int.from_bytes(bytes(b[head : head + 4]), "little") if fifth else 0
        low = b[head + 4 * fifth :]
        found = []
        for i in range(32):
            q = low[i % 16] >> (4 if i >= 16 else 0) & 15
            q |= (bits >> i & 1) << 4
            d = half(block, 0)
            found.append(q * d + half(block, 2) if least else (q - (16 if fifth else 8)) * d)
        return found
    if name in ("Q8_0", "Q8_1"):
        return [signed(x) * half(block, 0) for x in b[2 if name == "Q8_0" else 4 :]]
    table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
    if name == "IQ4_XS":
        high, found = b[2] | b[3] << 8, []
        for i in range(256):
            run = i // 32
            s = (b[4 + run // 2] >> 4 * (run % 2) & 15) | (high >> 2 * run & 3) << 4
            q = b[8 + run * 16 + i % 16] >> (4 if i % 32 >= 16 else 0) & 15
            found.append(half(block, 0) * (s - 32) * table[q])
        return found
    if name == "IQ4_NL":
        low = [b[2 + i % 16] >> (4 if i >= 16 else 0) & 15 for i in range(32)]
        return [table[q] * half(block, 0) for q in low]
    if name == "Q8_K":
        scale = float(block[:4].copy().view(np.float32)[0])
        return [signed(x) * scale for x in b[4:260]]
    found = []
    for i in range(256):
        part, j, place = i // 128, i % 128 // 32, i % 32
        group = i // 16
        if name == "Q2_K":
            q = b[16 + part * 32 + place] >> 2 * j & 3
            s = b[group]
            found.append(half(block, 80) * (s & 15) * q - half(block, 82) * (s >> 4))
        elif name == "Q3_K":
            q = b[32 + part * 32 + place] >> 2 * j & 3
            q -= 0 if b[place] >> (part * 4 + j) & 1 else 4
            s = (b[96 + group % 8] >> (4 if group >= 8 else 0)) & 15
            s |= (b[104 + group % 4] >> 2 * (group // 4) & 3) << 4
            found.append(half(block, 108) * (s - 32) * q)
        elif name == "Q6_K":
            lower = b[part * 64 + (j % 2) * 32 + place] >> (4 if j >= 2 else 0) & 15
            high = b[128 + part * 32 + place] >> 2 * j & 3
            s = signed(b[192 + group])
            found.append(half(block, 208) * s * ((lower | high << 4) - 32))
        else:  # Q4_K and Q5_K
            wide = name == "Q5_K"
            pair, upper = i // 64, i % 64 >= 32
            q = b[(48 if wide else 16) + pair * 32 + place] >> (4 if upper else 0) & 15
            if wide:
                q |= (b[16 + place] >> (2 * pair + upper) & 1) << 4
            s, m = scale_and_least(b[4:16], 2 * pair + upper)
            found.append(half(block, 0) * s * q - half(block, 2) * m)
    return found


@pytest.mark.parametrize("kind", QUANTS, ids=lambda kind: QUANTS[kind].name)
def test_every_quantised_type_is_what_its_layout_says(kind: int, tmp_path: Path) -> None:
    quant = QUANTS[kind]
    rows = blocks(kind, 6, seed=kind)
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_file({"w": (kind, (3, 2 * quant.count), rows.tobytes())}))
    file = GgufFile(path)
    expected = np.array([decoded(quant.name, row) for row in rows]).reshape(3, -1)
    assert file.kind("w") == quant.name and not file["w"].is_realized
    assert np.allclose(file["w"].numpy(), expected, rtol=1e-6, atol=1e-5)


ROWS = [kind for kind, quant in QUANTS.items() if quant.runs]


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: QUANTS[kind].name)
def test_a_row_is_multiplied_run_by_run(kind: int) -> None:
    quant = QUANTS[kind]
    packed = blocks(kind, 6, seed=kind)
    x = np.random.default_rng(1).normal(size=2 * quant.count).astype(np.float32)
    with fg.config(device="reference"):
        values = quant.values(fg.Tensor(packed)).numpy().reshape(3, -1)
        got = quant.dot(fg.Tensor(x), fg.Tensor(packed.reshape(3, 2, -1))).numpy()
    bound = np.abs(values) @ np.abs(x) * 1e-5
    assert (np.abs(got - values.astype(np.float64) @ x) <= bound).all()


def test_a_product_unpacks_inside_its_own_graph(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_file({"w": (8, (4, 64), blocks(8, 8).tobytes())}))
    weight = load_gguf(path)["w"]
    x = fg.ones((2, 64))
    assert np.allclose((x @ weight.mT).numpy(), np.ones((2, 64)) @ weight.numpy().T, rtol=1e-4)


def test_metadata_and_plain_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_sample())
    file = GgufFile(path)
    assert file.metadata == {
        "general.name": "a model", "layers": 12, "words": ["a", "é"], "sizes": [1, 2, 3],
    }  # fmt: skip
    assert file["plain"].tolist() == [[0, 1, 2], [3, 4, 5]] and file.kind("plain") == "F32"
    assert file["brain"].dtype is fg.bfloat16 and file["brain"].tolist() == [1, 2]
    assert set(load_gguf(path)) == {"plain", "brain", "q8"}


def deep(levels: int) -> bytes:
    return _text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * levels


F32 = np.zeros(4, np.float32).tobytes()
BAD = {
    "magic": (b"GGML" + bytes(40), "does not begin with GGUF"),
    "version": (gguf_file({}, version=1), "version 1"),
    "many": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "more than it has room"),
    "many pairs": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "more than it has room"),
    "long text": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 40) + bytes(8), "room",
    ),
    "deep": (gguf_file({}, deep(50), 1), "nested too deep"),
    "unknown value": (gguf_file({}, _text("a") + struct.pack("<I", 99), 1), "unknown type 99"),
    "type": (gguf_file({"w": (19, (256,), bytes(50))}), "type 19"),
    "blocks": (gguf_file({"w": (2, (3, 33), bytes(99))}), "blocks of 32"),
    "outside": (gguf_file({"w": (0, (5,), F32)}), "outside"),
    "huge": (gguf_file({"w": (0, (1 << 40, 1 << 40), F32)}), "too many"),
    "alignment": (
        gguf_file({}, _text("general.alignment") + struct.pack("<II", 4, 7), 1), "power of two",
    ),
    "twice": (gguf_file({}, (_text("a") + struct.pack("<II", 4, 7)) * 2, 2), "'a' twice"),
    "cut": (gguf_sample()[:100], "too early"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_words(name: str, tmp_path: Path) -> None:
    data, words = BAD[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"bad\.gguf") as caught:
        load_gguf(path)
    assert words in str(caught.value)
