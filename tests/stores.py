"""What the tests of the disk store share: entries, damages, and scripts in a process of their own.

Tests that fork, kill or limit a process do so in a Python of their own: the one that runs the
tests may have threads.
"""

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fulgurite.runtime.cache.disk import Store

ROOT = Path(__file__).parents[1]
BIG = 1 << 20


def key_of(number: int) -> str:
    return hashlib.blake2b(b"%d" % number, digest_size=16).hexdigest()


def bytes_of(key: str) -> bytes:
    """The only right bytes of a key: from 64 to 16,000 of them."""
    return hashlib.blake2b(key.encode()).digest() * (1 + int(key[:4], 16) % 250)


A, B, C = key_of(1), key_of(2), key_of(3)


def files_of(store: Store) -> list[Path]:
    return sorted(Path(store.folder, "v1", "data").iterdir())


def index_of(store: Store) -> Path:
    return Path(store.folder, "v1", "index.sqlite")


def unlink_all(store: Store) -> None:
    """Leave what a store has to its index."""
    for path in Path(store.folder, "v1", "links").iterdir():
        path.unlink()


def run_script(body: str, *arguments: object) -> str:
    """Run a script with the names of this module in a process of its own; what it printed."""
    head = """
        import errno, os, random, signal, sqlite3, sys, tempfile, threading, time
        import traceback, warnings
        from pathlib import Path
        from fulgurite.errors import CacheWarning
        from fulgurite.runtime.cache import disk_index
        from fulgurite.runtime.cache.disk import Store
        from tests.stores import A, B, C, BIG, bytes_of, files_of, index_of, key_of
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking in a process with threads
        warnings.simplefilter("error", CacheWarning)

        def in_children(count, work):
            children = []
            for number in range(count):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        work(number)
                        code = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        os._exit(code)
                children.append(child)
            codes = [os.waitpid(child, 0)[1] for child in children]
            assert codes == [0] * count, codes
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(body), *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def swap_for_a_link(path: Path) -> None:
    outside = path.parents[3] / "outside"
    os.replace(path, outside)
    path.symlink_to(outside)


def swap_for_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap_for_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def give_away(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to somebody else")
    os.chown(path, 12345, 12345)
