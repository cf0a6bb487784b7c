"""NumPy's `.npz` archives: a zip with one array in each member, never a pickle.

In: a path, or named tensors. Out: tensors by name, or the file. The invariant: a member is read
only after its header was read as the three plain facts that it is (nothing in it is evaluated, not
even as a literal), its dtype is a number's, and the sizes that zip and header claim agree with each
other and with what so few compressed bytes can hold; so
a small file cannot ask for much memory, and each array takes its own and no more. Checksums are
compared. bfloat16 and float8 have no name in this format and are refused on writing: safetensors
has them.
"""

from __future__ import annotations

import re
import zipfile
from math import prod
from typing import IO, Any

import numpy as np

from ..core.dtype import dtype_of
from ..core.op import Array
from ..errors import DTypeError
from ..tensor import Tensor, from_numpy
from .files import Path, Refusal, arrays_of, mapped, reading, sized, write_whole
from .zips import Archive, Window

LARGEST_NPY_HEADER = 10_000
CHUNK = 1 << 20


def load_npz(path: Path, device: str | None = None) -> dict[str, Tensor]:
    """All arrays of an `.npz` file by name; of an `.npy` file one, by the name `array`.

    >>> fg.io.save_npz({"w": fg.arange(3)}, "/tmp/fulgurite-doc.npz")
    >>> fg.io.load_npz("/tmp/fulgurite-doc.npz")["w"].tolist()
    [0, 1, 2]
    """
    arrays = reading(path, "an .npz file", _read)
    return {name: from_numpy(array, device) for name, array in arrays.items()}  # nobody else has it


def save_npz(tensors: object, path: Path, compress: bool = False) -> None:
    """Write named tensors (or a module's) to an `.npz` file, whole or not at all."""
    arrays = arrays_of(tensors, "save_npz")
    for name, array in arrays.items():
        if array.dtype.kind == "V" or dtype_of(array.dtype).numpy.kind == "V":
            raise DTypeError(
                f"{name!r} is {array.dtype}, which .npz files cannot hold",
                "use a .safetensors file, or cast it to float32",
            )
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{name}.npy")  # of 1980: equal tensors, equal bytes
                member.compress_type = method
                with archive.open(member, "w", force_zip64=True) as out:
                    np.lib.format.write_array(out, array, allow_pickle=False)

    write_whole(path, write)


def _read(name: str) -> dict[str, Array]:
    raw = mapped(name)
    if raw[:6].tobytes() == b"\x93NUMPY":
        return {"array": _array(Window(raw), raw.size, "the array")}
    archive = Archive(raw)
    found: dict[str, Array] = {}
    for member in archive:
        key = member.removesuffix(".npy")
        if key in found:
            raise Refusal(f"the array {key[:100]!r} is there twice")
        with archive.stream(member) as (data, size):
            found[key] = _array(data, size, f"the array {member[:100]!r}")
    return found


def _array(stream: Any, size: int, what: str) -> Array:
    """One array: its header, checked, and its bytes, all of them, read to where they stay."""
    head: bytes = stream.read(LARGEST_NPY_HEADER + 64)
    text, begin = _header(head, what)
    dtype, columns, sizes = _facts(text, what)
    if prod(sizes) * dtype.itemsize != size - begin:
        raise Refusal(f"{what} of {dtype}{list(sizes)} does not take {size - begin} bytes")
    body = np.empty(size - begin, np.uint8)
    first = head[begin:]
    body[: len(first)] = np.frombuffer(first, np.uint8)
    rest, at = memoryview(body), len(first)  # type: ignore[arg-type]  # arrays are buffers
    while at < size - begin:
        count = stream.readinto(rest[at : at + CHUNK])
        if not count:
            raise Refusal(f"{what} ends too early")
        at += count
    stream.read(1)  # at the end a compressed member's checksum is compared
    if dtype.kind == "b" and body.size and body.max() > 1:
        raise Refusal(f"{what} has a truth value that is neither 0 nor 1")
    flat = body.view(dtype).astype(dtype_of(dtype).numpy, copy=False)
    return flat.reshape(sizes[::-1]).T if columns else flat.reshape(sizes)


def _header(head: bytes, what: str) -> tuple[str, int]:
    """The text of a header, and where the elements begin."""
    version = tuple(head[6:8])
    if head[:6] != b"\x93NUMPY" or len(version) < 2:
        raise Refusal(f"{what} does not begin as an array does")
    if version not in _LENGTHS:
        raise Refusal(f"{what} is of version {version}, which is for arrays of records")
    begin = 8 + _LENGTHS[version]
    end = begin + int.from_bytes(head[8:begin], "little")
    if len(head) < begin or end > len(head) or end - begin > LARGEST_NPY_HEADER:
        raise Refusal(f"{what} has a header of {max(end - begin, 0)} bytes, not all of them there")
    return head[begin:end].decode("latin1"), end


_LENGTHS = {(1, 0): 2, (2, 0): 4}  # version -> bytes of the header's length
_ITEM = re.compile(
    r"""\s*(?:(['"])descr\1\s*:\s*(['"])(?P<descr>[^'"\\]*)\2
    |(['"])fortran_order\4\s*:\s*(?P<fortran_order>True|False)
    |(['"])shape\6\s*:\s*\((?P<shape>[-\s\dL,]*)\))\s*(?:,\s*|$)""",
    re.X | re.A,
)
_SIZES = re.compile(r"\s*|(?:\s*-?\d{1,30}L?\s*,)+(?:\s*-?\d{1,30}L?)?\s*", re.A)
_NUMBERS = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|c8|c16)")


def _facts(text: str, what: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    """What a header tells: dtype, whether columns come first, and the shape."""
    inside, at = text.lstrip(" \t").rstrip(), 0  # to Python a line that is indented is none
    if inside[:1] != "{" or inside[-1:] != "}":
        raise Refusal(f"the header of {what} is {inside[:60]!r}")
    inside = inside[1:-1].strip()
    found: dict[str, str] = {}
    while at < len(inside):
        item = _ITEM.match(inside, at)
        if item is None or not item.lastgroup or item.lastgroup in found:
            raise Refusal(f"the header of {what} has {inside[at : at + 60]!r}")
        found[item.lastgroup], at = item[item.lastgroup], item.end()
    if len(found) < 3:
        raise Refusal(f"the header of {what} tells only {', '.join(found) or 'nothing'}")
    if not _NUMBERS.fullmatch(found["descr"]):
        raise Refusal(f"{what} is {found['descr'][:100]!r}, not of numbers", "save plain numbers")
    if not _SIZES.fullmatch(found["shape"]):
        raise Refusal(f"{what} has the shape ({found['shape'][:100]})")
    shape = [int(n) for n in re.findall(r"-?\d+", found["shape"])]
    return np.dtype(found["descr"]), found["fortran_order"] == "True", sized(shape, what)
