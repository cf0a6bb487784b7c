"""NumPy archives: read and written as NumPy does, without pickle, and never believed."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import DTypeError
from fulgurite.io.files import FileError
from fulgurite.io.npz import load_npz, save_npz
from tests.properties import arithmetic

pytestmark = pytest.mark.device("none")


def test_arrays_go_to_numpy_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    tensors = {"a": fg.arange(6).reshape(2, 3), "b/c": fg.ones(()), "none": fg.zeros((0, 2))}
    for compress in (False, True):
        save_npz(tensors, path, compress)
        with np.load(path, allow_pickle=False) as theirs:
            ours = load_npz(path)
            assert set(ours) == set(theirs) == set(tensors)
            for name, tensor in tensors.items():
                assert np.array_equal(theirs[name], tensor.numpy())
                assert np.array_equal(ours[name].numpy(), tensor.numpy())


def test_what_numpy_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    arrays = {
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "swapped": np.arange(3, dtype=">i4"),
        "truth": np.array([True, False]),
        "complex": np.ones(2, np.complex128),
    }
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    found = load_npz(path)
    for name, array in arrays.items():
        assert np.array_equal(found[name].numpy(), array)
    np.save(tmp_path / "x.npy", arrays["columns"])
    assert np.array_equal(fg.io.load(tmp_path / "x.npy").numpy(), arrays["columns"])


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    for name in "ab":
        save_npz({"w": fg.ones(3)}, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_dtype_without_a_name_in_the_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="safetensors"):
        save_npz({"w": fg.ones(3, "bfloat16")}, tmp_path / "x.npz")


PLAIN = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n"


def npy(array: object) -> bytes:
    made = io.BytesIO()
    np.save(made, np.asarray(array), allow_pickle=True)
    return made.getvalue()


def archive(**members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in members.items():
            out.writestr(f"{name}.npy", data)
    return made.getvalue()


def longer(claimed: str) -> bytes:
    header = PLAIN.replace("<i4", "<i8").replace("(2,)", claimed).encode("latin1")
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(16)


BAD = {
    "pickle": (archive(a=npy(np.array([{}], object))), "not of numbers"),
    "text": (archive(a=npy(np.array(["x"]))), "not of numbers"),
    "no array": (archive(a=b"hello"), "does not begin"),
    "wide floats": (archive(a=longer("(1,)").replace(b"<i8", b"<f16")), "not of numbers"),
    "records": (archive(a=npy(np.zeros(2, "f4,i4"))), "has \"'descr': ["),
    "code": (archive(a=longer("print(),")), "has \"'shape'"),
    "deep": (archive(a=longer("(" * 900)), "has \"'shape'"),
    "open text": (archive(a=longer("(2,'")), "has \"'shape'"),
    "a number for a shape": (archive(a=longer("(2)")), "has the shape (2)"),
    "no numbers": (archive(a=longer("(2 2, L)")), "has the shape (2 2, L)"),
    "a fact twice": (archive(a=longer("(2,), 'shape': (2,)")), "has \"'shape'"),
    "an indented line": (archive(a=b"\x93NUMPY\x01\0\x3c\0\n " + PLAIN.encode()), "is \"\\n {'d"),
    "no facts": (archive(a=b"\x93NUMPY\x01\0\x02\0{}"), "tells only nothing"),
    "no header": (archive(a=b"\x93NUMPY\x01\0\xff\x7f{}"), "not all of them there"),
    "no length": (archive(a=b"\x93NUMPY\x02\0\x02"), "not all of them there"),
    "version 3": (archive(a=b"\x93NUMPY\x03\0\x02\0\0\0{}"), "version (3, 0)"),
    "no zip": (b"hello, this is no zip archive at all", "no sound zip"),
    "cut": (archive(a=npy(np.arange(100)))[:-40], "no sound zip"),
    "more than there is": (archive(a=longer("(9,)")), "does not take"),
    "much more": (archive(a=longer("(1152921504606846976,)")), "does not take"),
    "negative": (archive(a=longer("(-1,)")), "has the shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_words(name: str, tmp_path: Path) -> None:
    data, words = BAD[name]
    path = tmp_path / "bad.npz"
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"bad\.npz") as caught:
        load_npz(path)
    assert words in str(caught.value)


PIECES = st.sampled_from([
    "{", "}", "(", ")", "[", "'", '"', "descr", "shape", "fortran_order", ":", ",", "<f4", "True",
    "-", "9" * 30, "\\", "\n", " ", "L", "\0", "\xff", "0x", "2", "None", "#", "|O", "*",
    "__import__",
])  # fmt: skip


@arithmetic
@given(
    at=st.integers(0, len(PLAIN)), gone=st.integers(0, 9), more=st.lists(PIECES, max_size=4),
    body=st.sampled_from([b"", bytes(8)]), version=st.sampled_from([1, 2]),
)  # fmt: skip
def test_any_header_is_read_as_numpy_reads_it_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, gone: int, more: list[str], body: bytes,
    version: int,
) -> None:  # fmt: skip
    header = (PLAIN[:at] + "".join(more) + PLAIN[at + gone :]).encode("latin1")
    length = len(header).to_bytes(2 * version, "little")
    path = tmp_path_factory.getbasetemp() / "any.npy"
    path.write_bytes(b"\x93NUMPY" + bytes((version, 0)) + length + header + body)
    try:
        found = load_npz(path)["array"].numpy()
    except FileError as error:
        assert "any.npy" in str(error) and "damaged" not in str(error)
    else:
        np.testing.assert_array_equal(found, np.load(path, allow_pickle=False), strict=True)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    data = bytearray(archive(a=npy(np.zeros(1000))))
    where = data.index(b"PK\1\2")
    data[where + 24 : where + 28] = (1 << 31).to_bytes(4, "little")  # the size in the directory
    path = tmp_path / "bomb.npz"
    path.write_bytes(bytes(data))
    with pytest.raises(FileError, match="more bytes than there are"):
        load_npz(path)


def test_a_wrong_checksum_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    save_npz({"w": fg.ones(100)}, path)
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FileError, match="checksum"):
        load_npz(path)


@pytest.mark.parametrize("compress", [False, True])
def test_an_array_takes_its_own_memory_and_no_more_while_it_is_read(
    tmp_path: Path, compress: bool
) -> None:
    path = tmp_path / "large.npz"
    array = np.arange(2_000_000, dtype=np.int32) % 1000
    save_npz({"w": array}, path, compress)
    tracemalloc.start()
    try:
        found = load_npz(path)["w"]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert array.nbytes <= most < 1.5 * array.nbytes
    np.testing.assert_array_equal(found.numpy(), array)
    path.write_bytes(b"")  # the file is not needed any more
    np.testing.assert_array_equal((found + 1).numpy(), array + 1)


@pytest.mark.parametrize("compress", [False, True])
def test_a_wrong_checksum_is_refused(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "x.npz"
    save_npz({"w": np.arange(100_000) % 77}, path, compress)
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"PK\x01\x02") + 16  # the directory's checksum
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FileError, match=r"x\.npz"):
        load_npz(path)
