"""What was compiled, kept on disk for the next process: bytes by kind and key.

In: a kind, a key (a hex digest of all that the bytes depend on) and the bytes. Out: exactly those
bytes, in any later process of this user, or None. Each entry is one file, named by the digest of
its kind, key and bytes and put in place by rename; only then the index says that the key has it.
The invariant: bytes come out only after their digest, owner and permissions were checked, so a
killed process, a power cut or a stranger can cost entries but never make a wrong one (which is why
nothing waits for the disk). In a folder of its own each key has a symbolic link to its file: who
finds one need not load SQLite to ask the index, which knows better wherever a link leads nowhere.
Trouble with the folder is one warning and a miss, never an error: a cache is not worth a crash. A
file's modification time is its last use, to the hour, so reading never writes to the index.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ...core.context import Table
from ...core.digest import blake2b
from ...core.lazy_named_tuple import NamedTuple
from ...errors import ArgumentError
from . import cache_folder
from .disk_index import Index, Untrusted, distrust

if TYPE_CHECKING:
    from sqlite3 import Connection

    from ...config import Options

Entry = tuple[str, str, bytes]  # kind, key, bytes
Row = tuple[str, str, str, int]  # kind, key, digest, size

KINDS = ("plan", "sizes", "kernel", "object", "driver", "model", "capture", "sources")
LOCAL = ("sources",)  # what says something of this machine's files, and goes to no other
LAYOUT = "v1"  # a subfolder for each layout: versions live side by side, each in a private folder
HOUR = 3600.0
SPARE = 0.1  # the part of the limit that is freed at once, so that not every put evicts
HEX = re.compile(r"[0-9a-f]{8,128}")
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
_NOT_FILES = {errno.ELOOP: "a symbolic link", errno.EISDIR: "a folder", errno.ENXIO: "a socket"}


def store_for(options: Options) -> Store | None:
    """This process's store under these options, or None if the disk cache is switched off."""
    if not options.disk_cache:
        return None
    place = (cache_folder(options.cache_dir), options.cache_limit)
    stores = _stores()
    found = stores.get(place)
    if found is None:
        found = stores.setdefault(place, Store(*place))  # atomic: of two threads' one stays
        atexit.register(found.close)
    return found


_stores: Table[dict[tuple[str, int], Store]] = Table(dict)


class StoreStats(NamedTuple):
    """What a store holds: for each kind the number of entries and their bytes."""

    folder: str
    limit: int
    kinds: dict[str, tuple[int, int]]

    @property
    def entries(self) -> int:
        """The number of entries of all kinds."""
        return sum(count for count, _ in self.kinds.values())

    @property
    def size(self) -> int:
        """The bytes of all kinds."""
        return sum(size for _, size in self.kinds.values())


class Store:
    """Entries in one folder, bounded in bytes; shared among threads and processes."""

    def __init__(self, folder: str | os.PathLike[str], limit_bytes: int) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self.limit = limit_bytes
        self._index = Index(os.path.join(self.folder, LAYOUT))

    def get(self, kind: str, key: str) -> bytes | None:
        """The bytes of a key, or None."""
        _check(kind, key)
        linked = self._linked(kind, key)
        if linked is not None:
            return linked
        query = "select digest, size from entries where kind = ? and key = ?"
        row = self._index.run("read", lambda index: index.execute(query, (kind, key)).fetchone())
        if row is None:
            return None
        digest, size = row
        path = self._path(str(digest))
        try:
            data = self._load(kind, key, digest, size)
            self._link(kind, key, digest)
            return data
        except FileNotFoundError:  # another process has just evicted it
            self._drop(kind, key, digest)
        except Untrusted as problem:
            self._drop(kind, key, digest)
            hint = "Such files are ignored and made again; 'fulgurite cache clear' removes all"
            self._index.warn("entry", f"{path} is not trusted: {problem}. {hint}")
        except OSError as error:
            hint = "It is ignored; 'fulgurite cache clear' removes all"
            self._index.warn("file", f"{path} cannot be read: {error.strerror}. {hint}")
        return None

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Keep the bytes of a key, if the folder allows."""
        self.put_many([(kind, key, data)])

    def put_many(self, entries: Iterable[Entry]) -> int:
        """Keep several entries with one write to the index; how many were kept."""
        wanted = [entry for entry in entries if len(entry[2]) <= self.limit]
        for kind, key, _ in wanted:
            _check(kind, key)

        def write(index: Connection) -> int:
            rows = [
                (kind, key, self._write(kind, key, data), len(data)) for kind, key, data in wanted
            ]
            self._unlink(self._enter(index, rows))
            for kind, key, digest, _ in rows:
                self._link(kind, key, digest)
            with suppress(OSError):  # the entries are safe already
                self._sweep(index)
            return len(rows)

        return (self._index.run("write", write) or 0) if wanted else 0

    def has(self, kind: str) -> bool:
        """True if there is an entry of a kind."""
        query = "select 1 from entries where kind = ? limit 1"
        row = self._index.run("read", lambda index: index.execute(query, (kind,)).fetchone())
        return row is not None

    def entries(self) -> list[tuple[str, str]]:
        """The kind and key of every entry, in order."""
        query = "select kind, key from entries order by kind, key"
        rows = self._index.run("read", lambda index: index.execute(query).fetchall()) or []
        return [(kind, key) for kind, key in rows if kind in KINDS and is_hex(key)]

    def stats(self) -> StoreStats:
        """How much is kept."""
        query = "select kind, count(*), cast(total(size) as integer) from entries group by kind"
        rows = self._index.run("read", lambda index: index.execute(query).fetchall()) or []
        kinds = {kind: (0, 0) for kind in KINDS}
        kinds.update((kind, (count, size)) for kind, count, size in rows if kind in kinds)
        return StoreStats(self.folder, self.limit, kinds)

    def clear(self) -> StoreStats:
        """Remove every entry; what was removed."""
        before = self.stats()

        def empty(index: Connection) -> bool:
            index.execute("delete from entries")
            index.execute("vacuum")
            # a temporary file may be another process's entry on its way
            self._remove_files(lambda name: not name.startswith(("tmp-", "lock-")))
            self._remove_links(lambda name: True)
            with suppress(FileNotFoundError):
                os.unlink(self._index.damaged)
            return True

        if os.path.lexists(self._index.folder) and self._index.run("write", empty):
            return before
        return StoreStats(self.folder, self.limit, {kind: (0, 0) for kind in KINDS})

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write every entry to one archive; how many."""
        from .archive import export

        return export(self, path)

    def import_(self, path: str | os.PathLike[str]) -> tuple[int, int]:
        """Check a whole archive, then keep its entries; how many were kept, of how many."""
        from .archive import import_

        return import_(self, path)

    def close(self) -> None:
        """Close the index; the next use opens it again."""
        self._index.close()

    @contextmanager
    def lease(self, key: str, wait: float = 10.0) -> Iterator[bool]:
        """Hold a key while its entry is made; once inside, look whether another made it.

        False if it was not to be had in time, or at all: go on, a second put does no harm.
        The lock dies with its owner, so nobody waits for a killed process.
        """
        assert is_hex(key), key
        path = self._path(f"lock-{key}")
        deadline = time.monotonic() + wait
        held: int | None = None
        if self._index.run("write", lambda index: True):
            with suppress(ImportError, OSError):  # no such locks on this system or in this folder
                while (held := _try_lock(path)) is None and time.monotonic() < deadline:
                    time.sleep(0.005)
        try:
            yield held is not None
        finally:
            if held is not None:
                with suppress(OSError):
                    os.unlink(path)  # before the lock goes: see _try_lock
                os.close(held)

    def _path(self, name: str) -> str:
        return os.path.join(self._index.data, name)

    def _linked(self, kind: str, key: str) -> bytes | None:
        """The bytes that the link of a key leads to, checked; None: ask the index."""
        try:
            if self._index.is_private:
                target = os.readlink(self._link_path(kind, key))
                return self._load(kind, key, os.path.basename(target))
        except (OSError, Untrusted):
            pass
        return None

    def _link(self, kind: str, key: str, digest: str) -> None:
        """Let the name of a key lead to its file, if the system has such links."""
        path, target = self._link_path(kind, key), os.path.join("..", "data", digest)
        with suppress(OSError):
            try:  # nearly always there is a folder, and no such link
                os.symlink(target, path)
            except FileNotFoundError:
                os.makedirs(self._index.links, 0o700, exist_ok=True)
                os.symlink(target, path)
            except FileExistsError:
                os.unlink(path)
                os.symlink(target, path)

    def _link_path(self, kind: str, key: str) -> str:
        return os.path.join(self._index.links, f"{kind}-{key}")

    def _load(self, kind: str, key: str, digest: str, size: int | None = None) -> bytes:
        """The bytes of a file, checked; `Untrusted` says what is wrong with it."""
        if not is_hex(digest):
            raise Untrusted("the index does not name a file")
        try:
            with open(
                self._path(digest), "rb", opener=lambda path, _: os.open(path, _READ)
            ) as file:
                status = os.fstat(file.fileno())
                problem = distrust(status)
                if not stat.S_ISREG(status.st_mode):
                    problem = "not a regular file"
                elif size is not None and status.st_size != size:
                    problem = f"{status.st_size} bytes instead of {size}"
                if problem:
                    raise Untrusted(problem)
                data = file.read()
                if digest_of(kind, key, data) != digest:
                    raise Untrusted("its bytes have changed")
                if abs(time.time() - status.st_mtime) > HOUR:
                    with suppress(OSError):  # a read-only folder keeps no last use
                        os.utime(file.fileno() if os.utime in os.supports_fd else file.name)
                return data
        except OSError as error:
            if error.errno in _NOT_FILES:
                raise Untrusted(_NOT_FILES[error.errno]) from error
            raise

    def _write(self, kind: str, key: str, data: bytes) -> str:
        """Put a file in place and return its digest."""
        digest = digest_of(kind, key, data)
        temporary = self._path(f"tmp-{os.urandom(8).hex()}")
        try:
            with open(os.open(temporary, _WRITE | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            os.replace(temporary, self._path(digest))
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return digest

    def _enter(self, index: Connection, rows: list[Row]) -> list[str]:
        """Enter rows for files that are in place; the digests that no row has any more."""
        fresh = {digest for _, _, digest, _ in rows}
        find = "select digest from entries where kind = ? and key = ?"
        index.execute("begin immediate")
        old = [digest for row in rows for (digest,) in index.execute(find, row[:2])]
        gone = [digest for digest in old if digest not in fresh]
        index.executemany("insert or replace into entries values (?, ?, ?, ?)", rows)
        (total,) = index.execute("select total(size) from entries").fetchone()
        if total > self.limit:
            query = "select kind, key, digest, ifnull(cast(size as integer), 0) from entries"
            known: list[Row] = index.execute(query).fetchall()
            known.sort(key=lambda row: (row[2] in fresh, self._last_use(row[2])))
            for kind, key, digest, size in known:
                if total <= self.limit * (1 if digest in fresh else 1 - SPARE):
                    break
                index.execute("delete from entries where kind = ? and key = ?", (kind, key))
                gone.append(digest)
                total -= size
        index.execute("commit")
        return gone

    def _last_use(self, digest: str) -> float:
        with suppress(OSError):
            return os.lstat(self._path(digest)).st_mtime if is_hex(digest) else 0.0
        return 0.0

    def _drop(self, kind: str, key: str, digest: str) -> None:
        """Remove one entry that cannot be used, if the folder allows."""
        query = "delete from entries where kind = ? and key = ? and digest = ?"
        values = (kind, key, digest)
        if self._index.run("drop", lambda index: index.execute(query, values)) is not None:
            self._unlink([digest])

    def _unlink(self, digests: Iterable[str]) -> None:
        for digest in filter(is_hex, digests):
            with suppress(OSError):
                os.unlink(self._path(digest))

    def _sweep(self, index: Connection) -> None:
        """Once an hour, remove what killed processes left behind more than an hour ago."""
        marker = os.path.join(self._index.folder, "swept")
        with suppress(FileNotFoundError):
            if abs(time.time() - os.lstat(marker).st_mtime) < HOUR:
                return
        os.close(os.open(marker, _WRITE, 0o600))
        os.utime(marker)
        rows = index.execute("select kind, key, digest from entries").fetchall()
        known = {digest for _, _, digest in rows}
        links = {f"{kind}-{key}" for kind, key, _ in rows}
        self._remove_files(lambda name: name not in known, time.time() - HOUR)
        self._remove_links(lambda name: name not in links)

    def _remove_files(self, chosen: Callable[[str], bool], before: float | None = None) -> None:
        for entry in list(os.scandir(self._index.data)):
            with suppress(OSError):  # another process may be at it too
                changed = entry.stat(follow_symlinks=False).st_mtime
                if chosen(entry.name) and (before is None or changed < before):
                    if entry.is_dir(follow_symlinks=False):  # somebody's; it is in the way
                        import shutil  # which loads every kind of compression

                        shutil.rmtree(entry.path)
                    else:
                        os.unlink(entry.path)

    def _remove_links(self, chosen: Callable[[str], bool]) -> None:
        with suppress(FileNotFoundError):
            for name in filter(chosen, os.listdir(self._index.links)):
                with suppress(OSError):
                    os.unlink(os.path.join(self._index.links, name))


def _try_lock(path: str) -> int | None:
    """The descriptor of the locked file, or None if somebody else holds it."""
    import fcntl

    descriptor = os.open(path, _WRITE, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # its last owner may have removed it since it was opened: such a lock keeps nobody out
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _check(kind: str, key: str) -> None:
    if kind not in KINDS or not is_hex(key):
        hint = f"a kind of {', '.join(KINDS)} and 8 to 128 lower-case hex digits"
        raise ArgumentError(f"no cache entry can be called {kind!r}, {key!r}", hint)


def is_hex(text: object) -> bool:
    """True if it is a digest as we write them."""
    return isinstance(text, str) and HEX.fullmatch(text) is not None


def digest_of(kind: str, key: str, data: bytes) -> str:
    """The name of an entry's file; the key is in it, so no entry can stand in for another."""
    state = blake2b(f"{kind} {key}\n".encode(), digest_size=16)
    state.update(data)
    return state.hexdigest()
