"""safetensors files: byte-equal with the reference package, read in place, and never believed."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.core.op import Array
from fulgurite.errors import ArgumentError
from fulgurite.io.files import FileError, MissingFileError
from fulgurite.io.safetensors import (
    ORDER,
    SafetensorsFile,
    load_safetensors,
    save_safetensors,
    to_bytes,
)
from fulgurite.runtime.host.device import SharedBuffer
from fulgurite.runtime.realize import storage_of, value_node

from .samples import safetensors_file

pytestmark = pytest.mark.device("none")


def reference(arrays: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    package = pytest.importorskip("safetensors.numpy")
    made: bytes = package.save(arrays, metadata)
    return made


def test_every_dtype_is_written_as_the_reference_package_writes_it() -> None:
    arrays = {
        f"{name}.{place}": np.arange(2 + place).astype(dtype.numpy)
        for place in (1, 0)
        for name, dtype in ORDER
    }
    assert to_bytes(arrays) == reference(arrays)
    assert to_bytes(arrays, {"format": "np"}) == reference(arrays, {"format": "np"})


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(
            st.sampled_from([d.numpy for _, d in ORDER]),
            st.lists(st.integers(0, 3), max_size=3),
        ),
        max_size=5,
    )
)
def test_any_names_and_shapes_give_the_same_bytes(entries: dict[str, Any]) -> None:
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in entries.items()}
    assert to_bytes(arrays) == reference(arrays)


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {name: fg.Tensor(np.arange(6).reshape(2, 3).astype(d.numpy)) for name, d in ORDER}
    tensors |= {
        "turned": fg.arange(6).reshape(2, 3).mT,
        "none": fg.zeros((0, 4)),
        "one": fg.ones(()),
    }
    save_safetensors(tensors, path, {"made": "here"})
    found = SafetensorsFile(path)
    assert found.metadata == {"made": "here"} and set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype is tensor.dtype
        assert np.array_equal(found[name].numpy(), tensor.numpy())


def test_loading_shares_the_mapped_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_safetensors({"w": fg.ones((512, 512))}, path)
    tensor = load_safetensors(path)["w"]
    node = value_node(tensor.node)
    assert node is not None and isinstance(storage_of(node), SharedBuffer)
    tensor += 1
    assert tensor.sum().item() == 2 * 512 * 512
    assert load_safetensors(path)["w"].sum().item() == 512 * 512


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "short": (b"\1\2", "shorter than a header"),
    "huge header": (struct.pack("<Q", 1 << 40) + b"{}", "larger than the format allows"),
    "header beyond the end": (struct.pack("<Q", 1 << 20) + b"{}", "goes beyond its end"),
    "no object": (safetensors_file(b"[1]     ", b""), "no JSON object"),
    "no JSON": (safetensors_file(b"{nonsense", b""), "damaged"),
    "deep": (safetensors_file(b'{"a":' + b"[" * 100_000, b""), "damaged"),
    "twice": (
        safetensors_file(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x",
        ),
        "has 'a' twice",
    ),
    "overlap": (
        safetensors_file({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "overlap",
    ),
    "gap": (safetensors_file({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)), "gap"),
    "left over": (safetensors_file({"a": entry()}, bytes(9)), "belong to no tensor"),
    "outside": (safetensors_file({"a": entry()}, bytes(7)), "outside"),
    "backwards": (safetensors_file({"a": entry(offsets=(8, 0))}, bytes(8)), "outside"),
    "wrong size": (safetensors_file({"a": entry(shape=(3,))}, bytes(8)), "does not take 8 bytes"),
    "negative": (safetensors_file({"a": entry(shape=(-1, -2))}, bytes(8)), "has the shape"),
    "overflowing": (safetensors_file({"a": entry(shape=(1 << 62, 4))}, bytes(8)), "too many"),
    "true as a size": (safetensors_file({"a": entry(shape=(True, 2))}, bytes(8)), "has the shape"),
    "extra": (safetensors_file({"a": entry() | {"code": "x"}}, bytes(8)), "is not described"),
    "metadata": (safetensors_file({"__metadata__": {"a": 1}}, b""), "not text by name"),
    "odd truth": (safetensors_file({"a": entry("BOOL", (1,), (0, 1))}, b"\7"), "truth value"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_words(name: str, tmp_path: Path) -> None:
    data, words = BAD[name]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"bad\.safetensors") as caught:
        load_safetensors(path)
    assert words in str(caught.value) and "try:" in str(caught.value)


def test_a_dtype_that_does_not_exist_is_named_when_the_tensor_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_file({"a": entry("F4", (4,), (0, 2))}, bytes(2)))
    file = SafetensorsFile(path)
    assert "a" in file and "b" not in file
    with pytest.raises(TypeError, match="F4"):
        file["a"]


def test_what_is_no_file_or_no_tensor_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no file"):
        load_safetensors(tmp_path / "absent")
    with pytest.raises(FileError, match="no regular file"):
        load_safetensors(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="no regular file"):
        load_safetensors(tmp_path / "pipe")  # and nobody waits for a writer
    (tmp_path / "pipe").unlink()
    with pytest.raises(FileError, match="cannot be written"):
        save_safetensors({}, tmp_path / "absent" / "x")
    for wrong in ({1: fg.ones(1)}, {"a": 1.0}, [fg.ones(1)], {"\ud800": fg.ones(1)}):
        with pytest.raises(ArgumentError):
            save_safetensors(wrong, tmp_path / "x")
    with pytest.raises(ArgumentError, match="metadata"):
        save_safetensors({}, tmp_path / "x", {"a": 1})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())  # nothing half-written is left
