"""A store's entries in one file, to carry to another machine or into a container image.

In: a store, or an archive. Out: a zip of `manifest.json` and one member for each entry, or the
entries back in a store. The invariant: an archive is refused as a whole unless every name, size
and digest in it is as the manifest says, and before anything of it is stored; no name of an
archive is ever used as a path. There is no pickle in it, but there is machine code: a checked
archive is whole, not harmless.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ...errors import ArgumentError
from .disk import KINDS, LOCAL, Entry, Row, Store, digest_of, is_hex

FORMAT = "fulgurite cache 1"
MANIFEST = "manifest.json"
LARGEST_ENTRY = 1 << 28
LARGEST_MANIFEST = 1 << 26
BATCH = 256
# all that zipfile raises over bytes that are no archive, or that end or change in the middle
DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(NotImplementedError, RuntimeError, LookupError, UnicodeError, OverflowError),
)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ArchiveError(ArgumentError):
    """An archive that cannot be read, or is not what it says."""


def export(store: Store, path: str | os.PathLike[str]) -> int:
    """Write every sound entry of the store to an archive at the path; how many."""
    temporary = f"{os.fspath(path)}.{os.urandom(4).hex()}.tmp"
    manifest = []
    try:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED) as archive:
            for kind, key in store.entries():
                data = None if kind in LOCAL else store.get(kind, key)
                if data is not None and len(data) <= LARGEST_ENTRY:
                    digest = digest_of(kind, key, data)
                    archive.writestr(f"data/{digest}", data)
                    manifest.append([kind, key, digest, len(data)])
            text = json.dumps({"format": FORMAT, "entries": manifest}, indent=0)
            archive.writestr(MANIFEST, text)
        os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
    return len(manifest)


def import_(store: Store, path: str | os.PathLike[str]) -> tuple[int, int]:
    """Check a whole archive, then keep its entries; how many were kept, of how many."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise _refusal("it is not a regular file")
    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            rows = _manifest(archive)
            for _ in _entries(archive, rows):
                pass
        except DAMAGES as error:
            raise _refusal(f"it is damaged ({error})") from error
        entries = _entries(archive, rows)
        kept = 0
        while batch := list(islice(entries, BATCH)):
            kept += store.put_many(batch)
        return kept, len(rows)


def _manifest(archive: zipfile.ZipFile) -> list[Row]:
    """The entries an archive promises, if it has these members and no others."""
    members = {member.filename: member.file_size for member in archive.infolist()}
    rows = _rows(archive, members)
    expected = {MANIFEST: members[MANIFEST]}
    for kind, key, digest, size in rows:
        if kind not in KINDS or not is_hex(key) or not is_hex(digest) or type(size) is not int:
            raise _refusal(f"an entry of its {MANIFEST} makes no sense ({kind!r}, {key!r})")
        if not 0 <= size <= LARGEST_ENTRY:
            raise _refusal(f"the entry {key} of {size} bytes is too large")
        expected[f"data/{digest}"] = size
    if len(archive.infolist()) != len(expected) or members != expected:
        odd = sorted(set(members.items()) ^ set(expected.items()))
        raise _refusal(f"its members are not those of its {MANIFEST}, for example {odd[:1]}")
    return rows


def _rows(archive: zipfile.ZipFile, members: dict[str, int]) -> list[Row]:
    """The entries that the manifest names, as they stand there."""
    if members.get(MANIFEST, LARGEST_MANIFEST + 1) > LARGEST_MANIFEST:
        raise _refusal(f"it has no {MANIFEST} of a sensible size")
    if any(member.compress_type not in METHODS for member in archive.infolist()):
        raise _refusal("it is compressed in another way than 'export' does")
    try:
        manifest: Any = json.loads(_read(archive, MANIFEST, members[MANIFEST]))
        if manifest["format"] != FORMAT:
            raise _refusal(f"its format is {manifest['format']!r}, not {FORMAT!r}")
        return [(kind, key, digest, size) for kind, key, digest, size in manifest["entries"]]
    except ArchiveError:
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise _refusal(f"its {MANIFEST} makes no sense ({error})") from error


def _entries(archive: zipfile.ZipFile, rows: list[Row]) -> Iterator[Entry]:
    for kind, key, digest, size in rows:
        data = _read(archive, f"data/{digest}", size)
        if digest_of(kind, key, data) != digest:
            raise _refusal(f"the bytes of the entry {key} are not those that were exported")
        yield kind, key, data


def _read(archive: zipfile.ZipFile, name: str, size: int) -> bytes:
    """One member, reading no more than it claims to have."""
    with archive.open(name) as member:
        return member.read(size)


def _refusal(problem: str) -> ArchiveError:
    hint = "name a file that 'fulgurite cache export' wrote; if it is one, export it again"
    return ArchiveError(f"the archive is refused: {problem}", hint, where="")
