"""torch checkpoints before 1.6: read as the zip archives are, and nothing in them is executed."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.io.files import FileError
from fulgurite.io.torchfile import load_torch
from fulgurite.io.torchtensors import STORAGES

from .samples import (
    ORDERED,
    Call,
    Evil,
    Named,
    Stored,
    legacy_file,
    legacy_sample,
    torch_sample,
    torch_tensor,
)


def loaded(tmp_path: Path, data: bytes) -> Any:
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    return load_torch(path)


def test_a_file_of_pickles_holds_what_an_archive_does(tmp_path: Path) -> None:
    old, new = loaded(tmp_path, legacy_sample()), loaded(tmp_path, torch_sample())
    assert old.keys() == new.keys() and old["nest"] == new["nest"]
    for name in ("w", "turned", "wide", "b"):
        assert old[name].dtype is new[name].dtype
        assert old[name].tolist() == new[name].tolist()
    (tmp_path / "y.bin").write_bytes(legacy_sample())
    assert fg.load(tmp_path / "y.bin")["b"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", STORAGES)
def test_every_storage_has_its_dtype(kind: str, tmp_path: Path) -> None:
    data = np.array([0, 1, 1], np.int32).astype(STORAGES[kind].numpy)
    tensor = torch_tensor("a", kind, 3, 1, (2,), (1,), part=None)
    found = loaded(tmp_path, legacy_file(tensor, [("a", 3, data.tobytes())]))
    assert found.dtype is STORAGES[kind] and found.tolist() == [1, 1]


def test_what_torch_conjugates_later_is_so_now(tmp_path: Path) -> None:
    made = torch_tensor("a", "ComplexFloat", 1, 0, (1,), (1,), part=None)
    data = np.array([1 + 2j], np.complex64).tobytes()
    marked = Call(made.function, (*made.arguments, {"conj": True}))
    assert loaded(tmp_path, legacy_file(marked, [("a", 1, data)])).tolist() == [1 - 2j]


def test_parts_of_storages_and_the_first_way_to_make_tensors_are_read(tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float32).tobytes()
    part = torch_tensor("a", "Float", 6, 1, (2,), (1,), part=("b", 2, 4))
    first = Call(Named("torch._utils", "_rebuild_tensor"), part.arguments[:4])
    empty = torch_tensor("e", "Float", 0, 0, (0, 3), (3, 1), part=None)
    value = Call(ORDERED, ([("part", part), ("first", first), ("empty", empty)],))
    found = loaded(tmp_path, legacy_file(value, [("a", 6, data), ("e", 0, b"")]))
    assert found["part"].tolist() == found["first"].tolist() == [3.0, 4.0]
    assert found["empty"].shape == (0, 3)


def one(**changes: Any) -> bytes:
    """A file of one tensor of two numbers, with something wrong."""
    given = {"count": 2, "size": (2,), "part": None, "says": 2, "data": bytes(8), **changes}
    tensor = torch_tensor("a", "Float", given["count"], 0, given["size"], (1,), part=given["part"])
    return legacy_file(tensor, [("a", given["says"], given["data"])])


NAMES = Named("torch", "FloatStorage")
BAD: dict[str, tuple[bytes, str]] = {
    "version": (legacy_file(None, [], (0x1950A86A20F9469CFC6C, 1002, {})), "version 1002"),
    "machine": (legacy_file(None, [], (0x1950A86A20F9469CFC6C, 1001, 3)), "the machine"),
    "cut in a storage": (one(data=bytes(7)), "shorter"),
    "cut before a storage": (one()[:-12], "ends before its storage"),
    "another count": (one(says=3), "shorter"),
    "a huge count": (one(count=1 << 29, says=1 << 29), "shorter"),
    "a negative count": (one(says=-2), "shorter"),
    "beyond its storage": (one(size=(3,)), "beyond its storage"),
    "part beyond": (one(part=("b", 1, 2)), "goes beyond it"),
    "part before": (one(part=("b", -1, 2)), "goes beyond it"),
    "part of nothing": (one(part=3), "without its place"),
    "no list": (legacy_file(None, [], keys={"a": 1}), "list its storages"),
    "unknown key": (legacy_file(None, [("a", 0, b"")]), "does not name"),
    "twice": (
        legacy_file(torch_tensor("a", "Float", 1, 0, (1,), (1,), part=None),
                    [("a", 1, bytes(4)), ("a", 1, bytes(4))]),
        "does not name",
    ),
    "missing": (
        legacy_file(torch_tensor("a", "Float", 1, 0, (1,), (1,), part=None), []), "is missing",
    ),
    "two dtypes": (
        legacy_file([torch_tensor("a", kind, 1, 0, (1,), (1,), part=None)
                     for kind in ("Float", "Int")], [("a", 1, bytes(4))]),
        "two sizes or dtypes",
    ),
    "five parts": (
        legacy_file(torch_tensor("a", "Float", 1, 0, (1,), (1,)), [("a", 1, bytes(4))]),
        "no storage",
    ),
    "module": (legacy_file(Stored(("module", 1, "x.py", "import os")), []), "whole module"),
    "class": (legacy_file(Named("torch.nn.modules.linear", "Linear"), []), "never executed"),
    "storage as a value": (legacy_file(Stored(("storage", NAMES, "a", "cpu", 0, None)),
                                       [("a", 0, b"")]), "storage itself"),
    "storage in the head": (
        b"\x80\x02" + b"N" + b"Q.", "where none can be",
    ),
    "no end": (legacy_file(b"\x80\x02]", [])[:-20], "ends too early"),
    "long name": (legacy_file(b"\x80\x02c" + b"a" * 9999 + b"\nb\n.", []), "too long"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_words(name: str, tmp_path: Path) -> None:
    data, words = BAD[name]
    with pytest.raises(FileError, match=r"x\.pt") as caught:
        loaded(tmp_path, data)
    assert words in str(caught.value)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, __import__])
def test_no_pickle_of_the_file_runs_code(place: int, function: Any, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    argument = f"touch {marker}" if function is os.system else f"open({str(marker)!r}, 'w')"
    values: list[Any] = [0x1950A86A20F9469CFC6C, 1001, {}, None, []]
    parts = [pickle.dumps(value, 2) for value in values]
    parts[place] = pickle.dumps({"a": [Evil(function, argument)]}, 2)
    with pytest.raises(FileError):
        loaded(tmp_path, b"".join(parts) + struct.pack("<q", 0))
    assert not marker.exists()


def test_what_torch_saves_without_an_archive_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.5)
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    base = torch.randn(4, 6)
    saved = {"model": layer.state_dict(), "optimizer": optimizer.state_dict(),
             "views": [base.t()[1:], base[::2, 1:3], base.bfloat16(), base > 0, base.long(),
                       torch.zeros(0, 2), torch.tensor(3.5), base.to(torch.complex64),
                       torch.nn.Parameter(base), base.to(torch.float8_e5m2)]}  # fmt: skip
    for protocol in (2, 4):
        torch.save(saved, tmp_path / "x.pt", pickle_protocol=protocol,
                   _use_new_zipfile_serialization=False)  # fmt: skip
        found = load_torch(tmp_path / "x.pt")
        for name, value in saved["model"].items():
            assert np.array_equal(found["model"][name].numpy(), value.numpy())
        for ours, theirs in zip(found["views"], saved["views"], strict=True):
            kind = "complex64" if theirs.is_complex() else "float64"
            wide = theirs.detach().to(getattr(torch, kind)).numpy()
            assert ours.shape == wide.shape
            assert np.array_equal(ours.astype(kind).numpy(), wide)
        assert found["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
