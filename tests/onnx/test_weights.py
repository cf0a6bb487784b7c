"""Stored tensors: every way of storing them, and external data that stays in its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fulgurite.onnx import ModelError, load
from fulgurite.onnx.proto import parse
from fulgurite.onnx.weights import Files, array_of
from tests.onnx.models import external, field, graph, model, node, port, tensor

pytestmark = pytest.mark.device("none")


def read(data: bytes) -> np.ndarray:
    return array_of(parse(memoryview(data), "Tensor"), Files(None))[0]


def test_raw_and_listed_floats_are_the_same() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for raw in (True, False):
        np.testing.assert_array_equal(read(tensor("w", array, raw)), array)


def test_four_bit_numbers_are_two_in_a_byte_the_first_in_the_low_half() -> None:
    data = field(1, 3) + field(2, 22) + field(9, bytes([0x8F, 0x07]))
    assert read(data).tolist() == [-1, -8, 7]
    data = field(1, 3) + field(2, 21) + field(5, bytes([0x1F, 0x07]))
    assert read(data).tolist() == [15, 1, 7]


@pytest.mark.parametrize(
    "data",
    [
        field(1, 2**40) + field(2, 1),  # nothing stored
        field(1, 2**40) + field(1, 2**40) + field(2, 1) + field(9, b"abcd"),
        field(1, -1) + field(2, 1),
        field(1, 3) + field(2, 1) + field(9, b"abcdefgh"),
        field(1, 2) + field(2, 8) + field(6, "one"),
    ],
)
def test_a_tensor_whose_shape_and_data_disagree_is_an_error(data: bytes) -> None:
    with pytest.raises(ModelError):
        read(data)


def stored(place: str, offset: str = "0", length: str = "16") -> bytes:
    entries = {"location": place, "offset": offset, "length": length}
    made = external("w", [4], entries)
    return model(
        graph([node("Add", "x w", "y")], [port("x", shape=[4])], [port("y")], stored=[made])
    )


def test_external_data_is_read_from_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"pad." + np.arange(4, dtype=np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(stored("data.bin", "4"))
    found = load(tmp_path / "m.onnx")(np.ones(4, np.float32))
    assert found["y"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("place", ["../secret.bin", "/etc/hostname", "link.bin", "", ".", "a\0b"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "m.onnx").write_bytes(stored(place))
    with pytest.raises(ModelError, match="outside"):
        load(folder / "m.onnx")(np.ones(4, np.float32))


@pytest.mark.parametrize(("offset", "length"), [("8", "16"), ("99", "0"), ("-1", "16"), ("x", "4")])
def test_external_data_beyond_its_file_is_an_error(
    tmp_path: Path, offset: str, length: str
) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(16))
    (tmp_path / "m.onnx").write_bytes(stored("data.bin", offset, length))
    with pytest.raises(ModelError, match="weight 'w'"):
        load(tmp_path / "m.onnx")(np.ones(4, np.float32))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "data.bin")
    (tmp_path / "m.onnx").write_bytes(stored("data.bin"))
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path / "m.onnx")(np.ones(4, np.float32))


def test_a_model_from_bytes_has_no_folder_for_external_data() -> None:
    with pytest.raises(ModelError, match="load the model by its path"):
        load(stored("data.bin"))(np.ones(4, np.float32))
