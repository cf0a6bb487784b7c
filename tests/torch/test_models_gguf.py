"""GGUF against the `gguf` package: values of every type, files that it writes, our own writer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.io.gguf import GgufFile
from fulgurite.io.quants import QUANTS
from fulgurite.models.gguf import save_gguf
from fulgurite.models.quantize import ENCODERS, NUMBERS, packed
from tests.io.samples import blocks
from tests.models.gguf_samples import gguf_from
from tests.models.samples import golden, golden_folder

gguf = pytest.importorskip("gguf")

WRITTEN = [name for name in ENCODERS if name in NUMBERS]


@pytest.mark.parametrize("name", [*WRITTEN, "Q2_K", "Q3_K", "IQ4_XS"])
def test_values_are_those_of_the_gguf_package(name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[name]
    raw = blocks(int(kind), 8, seed=3).reshape(4, -1)
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_tensor("w", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    wanted = gguf.quants.dequantize(raw, kind)
    file = GgufFile(path)
    got = file["w"].numpy()
    assert got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-6, atol=1e-6)
    assert file.metadata["llama.block_count"] == 1 and file.kind("w") == name
    x = np.random.default_rng(0).normal(size=got.shape[1]).astype(np.float32)
    data, quant = file.packed("w")
    assert quant is not None
    if quant.runs is None:
        return
    product = quant.dot(fg.Tensor(x), data).numpy()
    assert (np.abs(product - wanted @ x) <= 1e-6 * (np.abs(wanted) @ np.abs(x))).all()


@pytest.mark.parametrize("name", WRITTEN)
def test_the_package_reads_what_we_quantise(name: str, tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(6, 512)).astype(np.float32)
    path = tmp_path / "x.gguf"
    save_gguf(
        path, {"general.architecture": "llama", "a": 1, "b": 2.5, "c": ["x", "é"], "d": [1, 2]},
        {"w": (NUMBERS[name], values.shape, packed(values, name))},
    )  # fmt: skip
    reader: Any = gguf.GGUFReader(path)
    (tensor,) = reader.tensors
    assert tensor.name == "w" and tensor.tensor_type.name == name
    back = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    got = GgufFile(path)["w"].numpy()
    assert np.allclose(got, back, rtol=1e-6, atol=1e-6)
    bits = {"Q8_0": 8, "Q6_K": 6}.get(name, int(name[1]) if name[0] == "Q" else 4)
    assert np.sqrt(np.mean((got - values) ** 2)) < 2.5 / 2**bits
    assert QUANTS[NUMBERS[name]].name == name


def _keys(part: Any) -> set[str]:
    """The keys that the package knows, without the name of an architecture."""
    found = set()
    for value in vars(part).values():
        if isinstance(value, type):
            found |= _keys(value)
        elif isinstance(value, str):
            found.add(value.removeprefix("{arch}."))
    return found


@pytest.mark.parametrize("name", golden())
def test_files_of_every_architecture_have_names_that_the_package_knows(
    name: str, tmp_path: Path
) -> None:
    path = gguf_from(golden_folder(golden()[name], tmp_path / "x"), tmp_path / "x.gguf", True)
    reader: Any = gguf.GGUFReader(path)
    kind = GgufFile(path).metadata["general.architecture"]
    numbers = {word: number for number, word in gguf.MODEL_ARCH_NAMES.items()}
    known = {gguf.TENSOR_NAMES[one] for one in gguf.MODEL_TENSORS[numbers[kind]]}
    for tensor in reader.tensors:
        own = re.sub(r"\.(weight|bias)$", "", re.sub(r"^blk\.\d+", "blk.{bid}", tensor.name))
        extra = ("rope_factors_long", "rope_factors_short", "rope_freqs")
        assert own in known or own in extra, tensor.name
    keys = _keys(gguf.constants.Keys)
    for key in GgufFile(path).metadata:
        assert key.removeprefix(f"{kind}.") in keys, key
