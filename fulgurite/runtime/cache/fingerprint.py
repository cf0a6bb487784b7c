"""The fingerprint of the package: a content hash of every source, memoised by file status.

In: a store. Out: a digest of all that this package's code is, or None where that cannot be known:
there are no sources to read, or one was changed after it was loaded. It is part of the key of every
kept plan, so a plan that other sources made is never found. No list of folders to forget one in:
every `.py` file counts, wherever it is, but for folders that only make graphs (`FRONT_ENDS`), which
no layer of the compiler can import; what is kept of a whole model depends on them too (`whole`).
Reading them all takes ten times as long as asking the file system for their status, so the hash is
kept in the store under a digest of the status (size, times, inode), and read again when that
differs. Status alone would not do: archives and images hand out equal times, and a copy of the
package on another machine has other times and the same code. Nor are folders listed again, which
takes longer than asking for the status of what was in them: a folder's own times say whether a
file came or went.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
from functools import lru_cache
from operator import attrgetter

from ...core.digest import blake2b, digest_of
from .disk import Store, is_hex

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

FRONT_ENDS = frozenset(
    {"cli", "data", "functional", "interop", "io", "look", "models", "nn", "onnx", "optim", "serve",
     "torch", "train"}
)  # fmt: skip


# a file's path from the package's folder, with /, or a folder's, which ends with one; its size;
# when it was modified, and changed (POSIX sets that with every change, whatever a program says the
# time is), in ns; its inode
Source = tuple[str, int, int, int, int]
_STATUS = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
SETTLED_NS = 2 * 10**9  # since the last change, after which times say that a folder is the same


def sources(package: str = PACKAGE, whole: bool = False) -> list[Source]:
    """Every Python file of a package that plans depend on, or the whole of it, in order."""
    return [s for s in files_and_folders(package, whole) if not s[0].endswith("/")]


def files_and_folders(package: str = PACKAGE, whole: bool = False) -> list[Source]:
    """The same with the folders that have them: whose times are those of before it was listed."""
    left_out = frozenset() if whole else FRONT_ENDS
    found: list[Source] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        found.append(_source(package, folder or "./"))
        with os.scandir(os.path.join(package, folder)) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".py"):
                    s = entry.stat()
                    row = (s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)
                    found.append((folder + name, *row))
                elif "." in name or name == "__pycache__" or (name in left_out and not folder):
                    continue
                elif entry.is_dir():
                    folders.append(f"{folder}{name}/")
    found.sort()
    return found


def _source(package: str, path: str) -> Source:
    size, modified, changed, inode = _STATUS(os.stat(f"{package}/{path}"))
    return path, size, modified, changed, inode


def status_digest(found: list[Source], package: str = PACKAGE) -> str:
    """A digest of what the file system says."""
    lines = [f"{s[0]} {s[1]} {s[2]} {s[3]} {s[4]}" for s in found]  # names cost a millisecond here
    return digest_of("\n".join([package, *lines]))


def content_digest(found: list[Source], package: str = PACKAGE) -> str:
    """A digest of names and bytes: the same wherever the same package is."""
    state = blake2b(digest_size=16)
    for source in found:
        known = _read.get((package, source))
        if known is None:
            known = _read[package, source] = _file_digest(f"{package}/{source[0]}", source[1])
        state.update(f"{source[0]}\n{known}\n".encode())
    return state.hexdigest()


_read: dict[tuple[str, Source], str] = {}  # digests of files, while their status is the same


def _file_digest(path: str, size: int) -> str:
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        data = os.read(file, size + 1)  # short only if somebody writes to it
    finally:
        os.close(file)
    return blake2b(data, digest_size=16).hexdigest()


def is_stale(found: list[Source], loaded: int) -> bool:
    """True if a source was changed after `loaded`, so that what runs is not what it says.

    A time yet to come says nothing: the clock was wrong then, or is now.
    """
    now = time.time_ns()
    times = [s[2] if sys.platform == "win32" else s[3] for s in found if s[0][-1] != "/"]
    return any([loaded < t <= now for t in times])


@lru_cache(maxsize=8)
def fingerprint(store: Store, loaded: int, whole: bool = False) -> str | None:
    """What this process runs, by its content; None: unknown."""
    if not whole and loaded in _parts:  # all of them were asked for a moment ago
        return _parts[loaded]
    known = None if whole else _walked.get(loaded)
    return fingerprint_of(PACKAGE, store, loaded, whole, known)


_walked: dict[int, list[Source]] = {}
_parts: dict[int, str] = {}  # what a list of the whole package says of those that plans depend on


def fingerprint_of(
    package: str, store: Store, loaded: int, whole: bool = False, known: list[Source] | None = None
) -> str | None:
    """The digest of a package's sources, from the store if their status is known there."""
    try:
        if known is not None:
            return _named(package, store, loaded, whole, known)
        return _listed(package, store, loaded, whole) or _walk(package, store, loaded, whole)
    except OSError:
        return None


def _walk(package: str, store: Store, loaded: int, whole: bool) -> str | None:
    """The fingerprint of what is in the package's folders, which are listed for the next one."""
    walked = files_and_folders(package, whole)
    found = [s for s in walked if s[0][-1] != "/"]
    name = _named(package, store, loaded, whole, found)
    if name is None:
        return None
    part: str | None = ""
    if whole:
        few = [s for s in found if s[0].partition("/")[0] not in FRONT_ENDS]
        _walked[loaded] = few
        part = _named(package, store, loaded, False, few)
    if part is not None:
        _list(package, store, whole, walked, (name, part))
    return name


def _named(package: str, store: Store, loaded: int, whole: bool, found: list[Source]) -> str | None:
    """The digest of what files hold, from the store if their status is known there."""
    if not found or is_stale(found, loaded):
        return None
    status = status_digest(found, package)
    kept = store.get("sources", status)
    name = "" if kept is None else kept.decode("ascii", "replace")
    if is_hex(name):
        return name
    name = content_digest(found, package)
    if sources(package, whole) != found:  # somebody writes to them right now
        return None
    store.put("sources", status, name.encode())
    return name


def _list_key(package: str, whole: bool) -> str:
    return digest_of(f"files of {package} {whole}")


def _list(
    package: str, store: Store, whole: bool, found: list[Source], names: tuple[str, str]
) -> None:
    """Keep what to ask the status of, and a digest of the answers, where nobody writes to them."""
    latest, now = max([max(s[2:4]) for s in found]), time.time_ns()
    paths = [f"{package}/{s[0]}" for s in found]
    if latest > now - SETTLED_NS or any(["\n" in path for path in paths]):
        return
    lines = [*names, _digest_of_rows([s[1:] for s in found]), *paths]
    store.put("sources", _list_key(package, whole), "\n".join(lines).encode())


def _listed(package: str, store: Store, loaded: int, whole: bool) -> str | None:
    """The fingerprint, if every file and folder of the list has the status it had."""
    kept = store.get("sources", _list_key(package, whole))
    if kept is None:
        return None
    try:
        name, part, status, *paths = kept.decode().split("\n")
        rows: list[tuple[int, int, int, int]] = [*map(_STATUS, map(os.stat, paths))]
    except (ValueError, OSError):  # one of them is gone
        return None
    if _digest_of_rows(rows) != status or not is_hex(name):
        return None
    if is_stale([(path, *row) for path, row in zip(paths, rows, strict=True)], loaded):
        return None
    if whole and package == PACKAGE and is_hex(part):
        _parts[loaded] = part
    return name


def _digest_of_rows(rows: list[tuple[int, int, int, int]]) -> str:
    """A digest of status without paths; text of numbers would take longer than asking for them."""
    return digest_of(marshal.dumps(rows, 2))  # a version that writes equal rows as equal bytes
