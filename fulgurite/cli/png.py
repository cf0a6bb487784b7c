"""PNG files as arrays, by zlib alone; other formats if Pillow is installed.

In: the bytes of a picture. Out: uint8 of shape (height, width, channels): grey, grey and alpha,
RGB or RGBA; palettes are looked up, 16-bit samples lose their low byte, interlaced files are for
Pillow. Sizes are checked before memory is taken, and data that is cut off is an error.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from ..core.op import Array
from ..errors import ArgumentError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
MOST_PIXELS = 1 << 28


def read_picture(path: Path) -> Array:
    """A picture as (height, width, channels)."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise ArgumentError(f"{path} cannot be read: {problem.strerror}", "give a file") from None
    if data.startswith(SIGNATURE) and data[28:29] == b"\0":
        return read_png(data)
    return _by_pillow(path)


def _by_pillow(path: Path) -> Array:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ArgumentError(
            f"{path} is not a plain PNG file", "install Pillow for other pictures, or give .npy"
        ) from None
    try:
        with Image.open(path) as image:
            found = np.asarray(
                image.convert("RGB" if image.mode not in ("L", "RGBA") else image.mode)
            )
    except (UnidentifiedImageError, OSError, ValueError) as problem:
        raise ArgumentError(f"{path} is no picture: {problem}", "give a PNG file") from None
    return found if found.ndim == 3 else found[:, :, None]


def read_png(data: bytes) -> Array:
    """The pixels of a PNG file that is not interlaced."""
    chunks = _chunks(data)
    header, palette = chunks.get(b"IHDR", b""), chunks.get(b"PLTE", b"")
    if len(header) != 13:
        raise _damaged("it has no header")
    width, height, bits, kind, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if kind not in CHANNELS or bits not in (1, 2, 4, 8, 16) or interlaced:
        raise _damaged(f"its kind ({kind}, {bits} bits) is not read here")
    if not 0 < width * height <= MOST_PIXELS:
        raise _damaged(f"it has {width} by {height} pixels")
    channels = CHANNELS[kind]
    row = (width * channels * bits + 7) // 8
    rows = _unfiltered(_inflated(chunks[b"IDAT"], height * (row + 1)), height, row, channels * bits)
    samples = _samples(rows, width * channels, bits, scale=kind != 3)
    found = samples.reshape(height, width, channels)
    if kind == 3:
        colours = np.frombuffer(palette, np.uint8)
        if not colours.size or colours.size % 3 or found.max() >= colours.size // 3:
            raise _damaged("its palette is too small")
        found = colours.reshape(-1, 3)[found[:, :, 0]]
    return found


def _chunks(data: bytes) -> dict[bytes, bytes]:
    """The chunks of a PNG file by name; the pieces of the picture's data are one."""
    found: dict[bytes, bytes] = {}
    parts: list[bytes] = []
    place = len(SIGNATURE)
    while place + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        if len(body) != length:
            raise _damaged("it is cut off")
        if name == b"IEND":
            break
        if name == b"IDAT":
            parts.append(body)
        else:
            found[name] = body
        place += 12 + length
    return {**found, b"IDAT": b"".join(parts)}


def _damaged(why: str) -> ArgumentError:
    return ArgumentError(f"the PNG file cannot be read: {why}", "save it again")


def _inflated(packed: bytes, wanted: int) -> bytes:
    """Exactly so many bytes: a small file cannot unpack to a large one."""
    try:
        found = zlib.decompressobj().decompress(packed, wanted)
    except zlib.error as problem:
        raise _damaged(str(problem)) from None
    if len(found) != wanted:
        raise _damaged("it is cut off")
    return found


def _unfiltered(data: bytes, height: int, row: int, bits: int) -> Array:
    """Rows as they were before each was predicted from its neighbours."""
    lines = np.frombuffer(data, np.uint8).reshape(height, row + 1)
    step = max(1, bits // 8)
    found = np.zeros((height + 1, row + step), np.uint8)  # a row and a pixel of zeros before
    for y in range(height):
        way, line = int(lines[y, 0]), lines[y, 1:]
        above = found[y]
        here = found[y + 1]
        if way == 0:
            here[step:] = line
        elif way == 2:
            here[step:] = line + above[step:]
        elif way == 1:
            padded = np.zeros(-(-row // step) * step, np.uint8)
            padded[:row] = line
            summed = np.cumsum(padded.reshape(-1, step), axis=0, dtype=np.uint8)
            here[step:] = summed.reshape(-1)[:row]
        elif way in (3, 4):
            _predicted(here, above, line, step, way)
        else:
            raise _damaged(f"it has a filter {way}")
    return found[1:, step:]


def _predicted(here: Array, above: Array, line: Array, step: int, way: int) -> None:
    """Mean (3) or Paeth (4) of the neighbours: each byte needs the one before."""
    now, before = here.tolist(), above.tolist()
    for i, value in enumerate(line.tolist(), start=step):
        left, up, corner = now[i - step], before[i], before[i - step]
        if way == 3:
            guess = (left + up) // 2
        else:
            near = left + up - corner
            a, b, c = abs(near - left), abs(near - up), abs(near - corner)
            guess = left if a <= b and a <= c else up if b <= c else corner
        now[i] = (value + guess) & 255
    here[:] = now


def _samples(rows: Array, count: int, bits: int, scale: bool) -> Array:
    if bits == 8:
        return np.ascontiguousarray(rows)
    if bits == 16:
        return np.ascontiguousarray(rows[:, ::2])
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    values = (rows[:, :, None] >> shifts & (2**bits - 1)).reshape(len(rows), -1)[:, :count]
    return np.asarray(values * (255 // (2**bits - 1)) if scale else values)
