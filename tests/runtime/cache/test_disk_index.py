"""Tests of runtime/cache/disk_index.py: one index among processes, in a folder of our own."""

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fulgurite.errors import CacheWarning
from fulgurite.runtime.cache import disk_index
from fulgurite.runtime.cache.disk import Store
from tests.stores import (
    BIG,
    A,
    B,
    C,
    files_of,
    give_away,
    index_of,
    run_script,
    swap_for_a_folder,
    swap_for_a_link,
    swap_for_a_pipe,
    unlink_all,
)

# ---- a damaged index ----


def other_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as index, index:
        index.executescript("drop table entries; create table entries (colour text)")


INDEX_DAMAGES: dict[str, Callable[[Path], object]] = {
    "noise": lambda path: path.write_bytes(os.urandom(9000)),
    "text": lambda path: path.write_text("hello"),
    "half": lambda path: os.truncate(path, 4096),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "page": lambda path: path.write_bytes(path.read_bytes()[:4096] + os.urandom(4096)),
    "another table": other_table,
    "writable": lambda path: path.chmod(0o666),
    "foreign": give_away,
    "link": swap_for_a_link,
    "folder": swap_for_a_folder,
    "pipe": swap_for_a_pipe,
}


@pytest.mark.parametrize("damage", INDEX_DAMAGES)
def test_a_damaged_index_is_set_aside_and_begun_anew(store: Store, damage: str) -> None:
    store.put("object", A, b"x")
    store.close()
    unlink_all(store)
    INDEX_DAMAGES[damage](index_of(store))
    with pytest.warns(CacheWarning, match=r"index\.sqlite .*index\.sqlite\.damaged") as caught:
        assert store.get("object", A) is None
        assert store.stats().entries == 0
    assert len(caught) == 1
    assert os.path.lexists(f"{index_of(store)}.damaged")
    store.put("object", A, b"x")
    assert store.get("object", A) == b"x"


def test_an_empty_index_is_an_empty_cache(store: Store) -> None:
    store.put("object", A, b"x")
    store.close()
    unlink_all(store)
    index_of(store).write_bytes(b"")
    assert store.get("object", A) is None
    store.put("object", A, b"x")
    assert store.get("object", A) == b"x"


# ---- folders that cannot be used ----


@pytest.mark.parametrize("folder", ["v1", "v1/data"])
@pytest.mark.parametrize("damage", ["others may write", "belongs to user", "not a folder"])
def test_a_folder_that_is_not_ours_alone_is_not_used(
    store: Store, tmp_path: Path, folder: str, damage: str
) -> None:
    store.put("object", A, b"x")
    store.close()
    path = Path(store.folder, folder)
    if damage == "others may write":
        path.chmod(0o777)
    elif damage == "belongs to user":
        give_away(path)
    else:
        os.replace(path, tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    before = sorted(path.rglob("*"))
    with pytest.warns(CacheWarning, match=f"{damage}.*FULGURITE_CACHE_DIR") as caught:
        assert store.get("object", A) is None
        store.put("object", B, b"y")
        assert store.get("object", B) is None
    assert len(caught) == 1  # reading and writing fail for one reason
    assert sorted(path.rglob("*")) == before


def test_a_read_only_folder_is_read_and_writing_to_it_warns_once() -> None:
    run_script(
        """
        with tempfile.TemporaryDirectory() as place:
            if os.geteuid() == 0:  # whom no permission stops
                os.chown(place, 65534, 65534)
                os.setegid(65534), os.seteuid(65534)
            Store(place, BIG).put("object", A, b"x")
            paths = [Path(place), *Path(place).rglob("*")]
            modes = [path.stat().st_mode for path in paths]
            for path in paths:
                if path.name != "index.sqlite-journal":
                    path.chmod(0o500 if path.is_dir() else 0o400)
            files = sorted(Path(place).rglob("*"))
            os.utime(files_of(Store(place, BIG))[0], (1, 1))
            store = Store(place, BIG)
            assert store.get("object", A) == b"x" and store.stats().entries == 1
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                disk_index.REST = 0.0
                for _ in range(3):
                    store.put("object", B, b"y")
                    assert store.get("object", B) is None and store.get("object", A) == b"x"
                with store.lease(B) as mine:
                    assert not mine
                assert store.clear().entries == 0
            assert len(caught) == 1 and caught[0].category is CacheWarning, caught
            assert "cannot be stored" in str(caught[0].message), caught[0].message
            assert store.get("object", A) == b"x"
            assert sorted(Path(place).rglob("*")) == files
            for path, mode in zip(paths, modes):
                path.chmod(mode)
            os.seteuid(os.getuid())
        """
    )


def test_a_file_in_place_of_the_folder_warns_once(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with closing(Store(tmp_path / "cache", BIG)) as store:
        assert store.get("plan", A) is None
        with pytest.warns(
            CacheWarning, match=r"cannot be stored .*cache.*FULGURITE_CACHE_DIR"
        ) as w:
            store.put("plan", A, b"x")
            store.put("plan", A, b"x")
            assert store.get("plan", A) is None
    assert len(w) == 1


@pytest.mark.parametrize("most", [0, 30_000])
def test_a_full_disk_warns_once_and_leaves_nothing_half_written(tmp_path: Path, most: int) -> None:
    run_script(
        """
        import resource
        folder, most = sys.argv[1], int(sys.argv[2])
        store = Store(folder, BIG)
        store.put("object", A, b"x")
        before = files_of(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            disk_index.REST = 0.0
            for _ in range(2):
                assert store.put_many([("object", B, b"y" * 20), ("plan", B, b"y" * 50_000)]) == 0
        assert len(caught) == 1 and "cannot be stored" in str(caught[0].message), caught
        assert not [path for path in files_of(store) if path.name.startswith("tmp-")]
        assert store.get("object", A) == b"x" and store.get("plan", B) is None
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        store.put("plan", B, b"y" * 50_000)
        assert store.get("plan", B) == b"y" * 50_000
        """,
        tmp_path / "cache", most,
    )  # fmt: skip


def test_an_index_that_stays_locked_is_a_miss_and_is_left_alone_for_a_while(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("object", A, b"x")
    store.close()
    unlink_all(store)
    monkeypatch.setattr(disk_index, "PATIENCE", 0.02)
    with closing(sqlite3.connect(index_of(store), isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.warns(CacheWarning, match="cannot be read .*locked"):
            assert store.get("object", A) is None
        other.execute("commit")
    assert store.get("object", A) is None, "it rests"
    store._index._not_before.clear()
    assert store.get("object", A) == b"x"


def test_a_write_that_fails_midway_leaves_no_temporary_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("object", A, b"x")

    def full(*paths: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.warns(CacheWarning, match="No space left"):
            store.put("object", B, b"y")
    assert len(files_of(store)) == 1 and store.get("object", A) == b"x"


def test_ctrl_c_in_a_transaction_does_not_leave_the_index_locked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("object", A, b"x")

    def interrupted(digest: str) -> float:
        raise KeyboardInterrupt

    store.limit = 1
    with monkeypatch.context() as patch:
        patch.setattr(store, "_last_use", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put("object", B, b"y")
    with closing(Store(store.folder, BIG)) as other:
        other.put("object", C, b"z")
        assert (other.get("object", A), other.get("object", B)) == (b"x", None)


# ---- processes ----


def test_a_process_killed_at_any_moment_leaves_a_consistent_store(tmp_path: Path) -> None:
    out = run_script(
        """
        folder, written, killed_writing, left = sys.argv[1], 0, 0, 0
        random.seed(1)
        for round in range(50):
            started, start = os.pipe()
            child = os.fork()
            if child == 0:
                store = Store(folder, 300_000)
                os.write(start, b"!")
                for i in range(round * 1000, 10**9, 2):
                    with store.lease(key_of(0)):
                        keys = [key_of(i), key_of(i + 1), key_of(i % 7)]
                        store.put_many([("object", key, bytes_of(key)) for key in keys])
            os.read(started, 1)
            time.sleep(random.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(started), os.close(start)
            store = Store(folder, 300_000)
            entries = store.entries()
            for kind, key in entries:
                assert store.get(kind, key) == bytes_of(key)
            assert store.stats().size <= 300_000
            written += len(entries)
            left_before, left = left, len(files_of(store)) - len(entries) if entries else 0
            killed_writing += left > left_before
            if entries:
                index = sqlite3.connect(index_of(store))
                assert index.execute("pragma integrity_check").fetchone() == ("ok",)
                index.close()
            with store.lease(key_of(0), wait=5) as mine:
                assert mine, "the lock of a dead process"
            store.close()
        store = Store(folder, 300_000)
        for path in files_of(store):
            os.utime(path, (1, 1))
        os.utime(Path(folder, "v1", "swept"), (1, 1))
        store.put("object", A, b"x")
        files = {path.name for path in files_of(store)}
        assert len(files) == store.stats().entries, "what was left behind is swept"
        print(written, killed_writing)
        """,
        tmp_path / "cache",
    )
    written, killed_writing = map(int, out.split())
    assert written > 100 and killed_writing > 0, "the test must hit the moments it is about"


def test_four_processes_use_the_same_keys_and_each_entry_is_made_once(tmp_path: Path) -> None:
    run_script(
        """
        folder, log = sys.argv[1:]
        keys = [key_of(i) for i in range(12)]

        def work(number):
            store = Store(folder, BIG)
            random.Random(number).shuffle(keys)
            for key in keys:
                if store.get("object", key) is None:
                    with store.lease(key, wait=60) as mine:
                        assert mine
                        if store.get("object", key) is None:
                            with open(log, "a") as file:
                                file.write(f"{key}\\n")
                            time.sleep(0.005)
                            store.put("object", key, bytes_of(key))
                assert store.get("object", key) == bytes_of(key)

        in_children(4, work)
        assert sorted(open(log).read().split()) == sorted(keys)
        assert Store(folder, BIG).stats().entries == 12
        assert not [p for p in files_of(Store(folder, BIG)) if p.name.startswith(("lock", "tmp"))]
        """,
        tmp_path / "cache", tmp_path / "log",
    )  # fmt: skip


def test_four_processes_write_evict_and_clear_at_once_without_a_lease(tmp_path: Path) -> None:
    run_script(
        """
        def work(number):
            store = Store(sys.argv[1], 60_000)
            choose = random.Random(number)
            for step in range(30):
                key = key_of(choose.randrange(20))
                store.put("object", key, bytes_of(key))
                key = key_of(choose.randrange(20))
                assert store.get("object", key) in (None, bytes_of(key))
                if step % 12 == 11:
                    store.clear()

        in_children(4, work)
        store = Store(sys.argv[1], 60_000)
        assert store.stats().size <= 60_000
        for kind, key in store.entries():
            assert store.get(kind, key) in (None, bytes_of(key))
        """,
        tmp_path / "cache",
    )


def test_a_child_opens_its_own_connection_while_the_parents_threads_write(tmp_path: Path) -> None:
    run_script(
        """
        store = Store(sys.argv[1], 1 << 30)
        store.put("plan", A, b"x")
        parents = store._index._connection
        done = threading.Event()

        def write():
            number = 100
            while not done.is_set():
                number += 1
                store.put("object", key_of(number % 150), bytes_of(key_of(number % 150)))
                time.sleep(0.001)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()

        def child(number):
            assert store.get("plan", A) == b"x"
            assert store._index._connection is not parents
            store.put("object", key_of(number), bytes_of(key_of(number)))

        for _ in range(3):
            in_children(4, child)
        done.set()
        thread.join()
        assert store._index._connection is parents
        for i in range(4):
            assert store.get("object", key_of(i)) == bytes_of(key_of(i))
        index = sqlite3.connect(index_of(store))
        assert index.execute("pragma integrity_check").fetchone() == ("ok",)
        """,
        tmp_path / "cache",
    )
