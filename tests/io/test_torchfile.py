"""torch checkpoints: views, storages and nests come out right, and nothing in them is executed."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.io.files import FileError
from fulgurite.io.torchfile import load_torch
from fulgurite.io.torchtensors import STORAGES

from .samples import Call, Evil, Named, Stored, torch_file, torch_sample, torch_tensor

pytestmark = pytest.mark.device("none")


def loaded(tmp_path: Path, data: bytes) -> Any:
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    return load_torch(path)


def test_views_parameters_and_nests_come_out_as_torch_has_them(tmp_path: Path) -> None:
    found = loaded(tmp_path, torch_sample())
    whole = np.arange(12, dtype=np.float32)
    assert found["w"].tolist() == whole.reshape(3, 4).tolist()
    assert found["turned"].tolist() == [[1, 5, 9], [2, 6, 10]]
    assert found["wide"].tolist() == [[2, 3]] * 5
    assert found["b"].dtype is fg.bfloat16 and found["b"].tolist() == [1, 2]
    assert found["nest"] == {"step": 3, "rates": [0.5, (1, 2)], "none": None}


@pytest.mark.parametrize("kind", STORAGES)
def test_every_storage_has_its_dtype(kind: str, tmp_path: Path) -> None:
    dtype = STORAGES[kind].numpy
    data = np.array([0, 1, 1], np.int32).astype(dtype)
    tensor = torch_tensor("0", kind, 3, 1, (2,), (1,))
    assert loaded(tmp_path, torch_file(tensor, {"0": data.tobytes()})).tolist() == [1, 1]
    big = data.astype(dtype.newbyteorder(">")) if dtype.itemsize > 1 and dtype.kind != "V" else data
    if dtype.kind != "V":
        file = torch_file(tensor, {"0": big.tobytes()}, more={"byteorder": b"big"})
        assert loaded(tmp_path, file).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("flags", "want"),
    [({"conj": True}, 1 - 2j), ({"neg": True}, -1 - 2j), ({"conj": False, "x": True}, 1 + 2j),
     ({"conj": True, "neg": True}, -1 + 2j), (None, 1 + 2j)],
)  # fmt: skip
def test_what_torch_conjugates_or_negates_later_is_so_now(
    flags: Any, want: complex, tmp_path: Path
) -> None:
    made = torch_tensor("0", "ComplexFloat", 1, 0, (1,), (1,))
    data = {"0": np.array([1 + 2j], np.complex64).tobytes()}
    second = Call(made.function, (*made.arguments, flags))
    assert loaded(tmp_path, torch_file(second, data)).tolist() == [want]
    third = Call(Named("torch._utils", "_rebuild_tensor_v3"),
                 (*made.arguments, Named("torch", "complex64"), flags))  # fmt: skip
    assert loaded(tmp_path, torch_file(third, data)).tolist() == [want]


def test_dtypes_devices_sizes_and_numpy_data_are_plain_values(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        torch_file(
            {
                "dtype": Named("torch", "float16"),
                "device": Call(Named("torch", "device"), ("cuda", 1)),
                "size": Call(Named("torch", "Size"), ((2, 3),)),
                "set": Call(Named("builtins", "set"), ([1, 2],)),
            },
            {},
        ),
    )
    assert found == {"dtype": fg.float16, "device": "cuda:1", "size": (2, 3), "set": {1, 2}}


def test_a_compressed_copy_is_read_as_well(tmp_path: Path) -> None:
    tensor = torch_tensor("0", "Float", 2, 0, (2,), (1,))
    file = torch_file(tensor, {"0": np.ones(2, np.float32).tobytes()}, zipfile.ZIP_DEFLATED)
    assert loaded(tmp_path, file).tolist() == [1, 1]


def view(offset: int, size: tuple[Any, ...], stride: tuple[Any, ...], count: int = 12) -> bytes:
    tensor = torch_tensor("0", "Float", count, offset, size, stride)
    return torch_file(tensor, {"0": bytes(48)})


BAD: dict[str, tuple[bytes, str]] = {
    "outside": (view(0, (13,), (1,)), "beyond its storage"),
    "outside by its stride": (view(0, (3, 4), (5, 1)), "beyond its storage"),
    "offset": (view(12, (1,), (1,)), "beyond its storage"),
    "negative stride": (view(3, (2,), (-1,)), "strides"),
    "negative size": (view(0, (-2,), (1,)), "has the shape"),
    "sizes": (view(0, (2, 2), (1,)), "more sizes than strides"),
    "short storage": (view(0, (2,), (1,), count=1000), "shorter"),
    "missing": (torch_file(torch_tensor("7", "Float", 1, 0, (1,), (1,)), {}), "missing"),
    "no storage": (torch_file(Stored(("storage", 1, 2, 3, 4)), {}), "no storage"),
    "module": (torch_file(Named("torch.nn", "Linear"), {}), "'torch.nn.Linear'"),
    "another pickle": (pickle.dumps({}, 2), "not one of torch.save"),
    "neither": (b"hello, world", "no zip archive and no pickle"),
    "tar": (bytes(257) + b"ustar" + bytes(250), "tar archive"),
    "script": (torch_file({}, {}, more={"constants.pkl": b""}), "TorchScript"),
    "unread": (torch_file(b"\x80\x02", {}), "ends too early"),
    "mark": (torch_file(b"\x80\x02t.", {}), "mark"),
    "stack": (torch_file(b"\x80\x02R.", {}), "not there"),
    "left over": (torch_file(b"\x80\x02NN.", {}), "leaves values behind"),
    "big number": (torch_file(b"\x80\x02\x8b\xff\xff\xff\x7f.", {}), "whole number"),
    "deep": (torch_file(b"\x80\x02" + b"]" * 999 + b"a" * 998 + b".", {}), "nested"),
    "deep key": (torch_file(b"\x80\x02}N" + b"\x85" * 99_999 + b"Ns.", {}), "key"),
    "protocol 0": (torch_file(b"(dp0\n.", {}), "opcode"),
    "build": (torch_file(b"\x80\x02Nb.", {}), "not there"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_words(name: str, tmp_path: Path) -> None:
    data, words = BAD[name]
    with pytest.raises(FileError, match=r"x\.pt") as caught:
        loaded(tmp_path, data)
    assert words in str(caught.value)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, __import__, os.unlink])
def test_a_pickle_that_would_run_code_runs_nothing(
    protocol: int, function: Any, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    text = f"open({str(marker)!r}, 'w')"
    argument = f"touch {marker}" if function is os.system else text
    for nest in (Evil(function, argument), {"a": [Evil(function, argument)]}):
        with pytest.raises(FileError):
            loaded(tmp_path, torch_file(pickle.dumps(nest, protocol), {}))
    assert not marker.exists()


def test_what_torch_saves_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.5)
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    base = torch.randn(4, 6)
    saved = {"model": layer.state_dict(), "optimizer": optimizer.state_dict(),
             "views": [base.t()[1:], base[::2, 1:3], base.bfloat16()]}  # fmt: skip
    torch.save(saved, tmp_path / "x.pt")
    found = load_torch(tmp_path / "x.pt")
    for name, value in saved["model"].items():
        assert np.array_equal(found["model"][name].numpy(), value.numpy())
    for ours, theirs in zip(found["views"], saved["views"], strict=True):
        assert np.array_equal(ours.astype("float32").numpy(), theirs.float().numpy())
    assert found["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
