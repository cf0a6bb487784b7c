"""PNG files: every kind of pixel and filter, and files that are damaged."""

from __future__ import annotations

import contextlib
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.cli.png import SIGNATURE, read_picture, read_png
from fulgurite.errors import ArgumentError

pytestmark = pytest.mark.device("none")


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def filtered(rows: Any, ways: list[int], step: int) -> bytes:
    """Rows as a writer predicts them: 0 none, 1 left, 2 above, 3 mean, 4 Paeth."""
    out = b""
    above = np.zeros(rows.shape[1], np.int64)
    for y, row in enumerate(rows.astype(np.int64)):
        way = ways[y % len(ways)]
        left = np.concatenate([np.zeros(step, np.int64), row[:-step]])
        corner = np.concatenate([np.zeros(step, np.int64), above[:-step]])
        near = left + above - corner
        a, b, c = abs(near - left), abs(near - above), abs(near - corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, above, corner))
        guess = [0 * row, left, above, (left + above) // 2, paeth][way]
        out += bytes([way]) + ((row - guess) & 255).astype(np.uint8).tobytes()
        above = row
    return out


def png(pixels: Any, ways: list[int], kind: int | None = None, bits: int = 8) -> bytes:
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels] if kind is None else kind
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    rows = pixels.reshape(height, -1)
    data = zlib.compress(filtered(rows, ways, channels))
    middle = len(data) // 2
    parts = chunk(b"IDAT", data[:middle]) + chunk(b"IDAT", data[middle:])
    return SIGNATURE + chunk(b"IHDR", header) + parts + chunk(b"IEND", b"")


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31))
def test_pixels_come_back_whatever_the_filters(channels: int, h: int, w: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (h, w, channels), dtype=np.uint8)
    ways = rng.permutation(5).tolist()
    np.testing.assert_array_equal(read_png(png(pixels, ways)), pixels)


def test_a_palette_is_looked_up_and_bits_are_spread() -> None:
    header = struct.pack(">IIBBBBB", 3, 1, 2, 3, 0, 0, 0)
    data = zlib.compress(b"\0" + bytes([0b00_01_10_00]))
    palette = bytes([1, 2, 3, 4, 5, 6, 7, 8, 9])
    made = SIGNATURE + chunk(b"IHDR", header) + chunk(b"PLTE", palette) + chunk(b"IDAT", data)
    assert read_png(made).tolist() == [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]
    grey = struct.pack(">IIBBBBB", 4, 1, 2, 0, 0, 0, 0)
    data = zlib.compress(b"\0" + bytes([0b00_01_10_11]))
    found = read_png(SIGNATURE + chunk(b"IHDR", grey) + chunk(b"IDAT", data))
    assert found[0, :, 0].tolist() == [0, 85, 170, 255]


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_file_is_an_error_or_a_picture(place: int, value: int) -> None:
    data = bytearray(png(np.arange(48, dtype=np.uint8).reshape(4, 4, 3), [4, 3]))
    data[place % len(data)] = value
    with contextlib.suppress(ArgumentError):
        assert read_png(bytes(data)).dtype == np.uint8


def test_a_small_file_does_not_become_a_large_picture() -> None:
    header = struct.pack(">IIBBBBB", 2**31, 2**31, 8, 2, 0, 0, 0)
    bomb = SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    with pytest.raises(ArgumentError, match="pixels"):
        read_png(bomb)


def test_what_is_no_picture_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"hello")
    with pytest.raises(ArgumentError):
        read_picture(tmp_path / "x.png")
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_picture(tmp_path / "missing.png")
