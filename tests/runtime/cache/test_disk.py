"""Tests of fulgurite/runtime/cache/disk.py: right bytes or none, whatever happens."""

import fcntl
import os
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.config import Options
from fulgurite.errors import ArgumentError, CacheWarning
from fulgurite.runtime.cache.disk import HOUR, Store, store_for
from tests.stores import (
    BIG,
    A,
    B,
    C,
    bytes_of,
    files_of,
    give_away,
    index_of,
    key_of,
    run_script,
    swap_for_a_folder,
    swap_for_a_link,
    swap_for_a_pipe,
    unlink_all,
)
from tests.threads import together

# ---- storing and finding ----


def test_bytes_come_back_in_a_later_store(store: Store) -> None:
    assert store.get("plan", A) is None
    store.put("plan", A, b"one")
    store.put("object", A, b"")
    store.close()
    with closing(Store(store.folder, BIG)) as later:
        assert (later.get("plan", A), later.get("object", A)) == (b"one", b"")
        assert later.get("driver", A) is None and later.get("plan", B) is None


def test_an_entry_can_be_replaced_and_its_old_file_goes(store: Store) -> None:
    store.put("plan", A, b"old")
    store.put("plan", A, b"new")
    assert store.get("plan", A) == b"new" and len(files_of(store)) == 1
    store.put("plan", A, b"new")
    assert store.get("plan", A) == b"new"


def test_a_miss_in_an_empty_place_makes_no_folder_and_does_not_import_sqlite(
    tmp_path: Path,
) -> None:
    out = run_script(
        """
        for name in [n for n in sys.modules if "sqlite" in n]:
            del sys.modules[name]
        store = Store(sys.argv[1], BIG)
        assert store.get("plan", A) is None and store.stats().entries == 0
        print("sqlite3" in sys.modules, os.path.exists(sys.argv[1]))
        """,
        tmp_path / "cache",
    )
    assert out.split() == ["False", "False"]


@pytest.mark.parametrize(("kind", "key"), [("pickle", A), ("plan", "../../etc"), ("plan", "AB")])
def test_a_kind_or_key_of_another_form_is_our_own_mistake(
    store: Store, kind: str, key: str
) -> None:
    with pytest.raises(ArgumentError):
        store.get(kind, key)
    with pytest.raises(ArgumentError):
        store.put(kind, key, b"")


def test_statistics_count_by_kind_and_clearing_removes_the_files(store: Store) -> None:
    assert store.put_many([("plan", A, b"12"), ("object", A, b"345"), ("object", B, b"6")]) == 3
    kinds = store.stats().kinds
    assert (kinds["plan"], kinds["object"], kinds["driver"]) == ((1, 2), (2, 4), (0, 0))
    removed = store.clear()
    assert (removed.entries, removed.size) == (3, 6)
    assert store.stats().entries == 0 and files_of(store) == []
    assert store.get("plan", A) is None


def test_the_folders_and_files_are_private(store: Store) -> None:
    umask = os.umask(0)
    try:
        store.put("plan", A, b"x")
    finally:
        os.umask(umask)
    folders = [Path(store.folder), Path(store.folder, "v1"), Path(store.folder, "v1", "data")]
    assert [path.stat().st_mode & 0o777 for path in folders] == [0o700] * 3
    assert files_of(store)[0].stat().st_mode & 0o777 == 0o600
    assert index_of(store).stat().st_mode & 0o022 == 0


def test_a_folder_that_others_can_read_is_made_private(store: Store) -> None:
    store.put("plan", A, b"x")
    store.close()
    os.chmod(Path(store.folder, "v1"), 0o755)
    assert store.get("plan", A) == b"x"
    assert Path(store.folder, "v1").stat().st_mode & 0o777 == 0o700


def test_threads_share_a_store(store: Store) -> None:
    def work(number: int) -> list[bytes | None]:
        for i in range(20):
            store.put("object", key_of(i), bytes_of(key_of(i)))
        return [store.get("object", key_of(i)) for i in range(20)]

    right = [bytes_of(key_of(i)) for i in range(20)]
    assert together(4, work) == [right] * 4


def test_the_options_choose_the_store_of_the_process(tmp_path: Path) -> None:
    options = Options(cache_dir=str(tmp_path), cache_limit=77)
    found = store_for(options)
    assert found is not None and found is store_for(options)
    assert (found.folder, found.limit) == (str(tmp_path), 77)
    assert store_for(Options(cache_dir=str(tmp_path), disk_cache=False)) is None


def test_a_relative_folder_is_where_it_was_when_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        store = store_for(Options(cache_dir="cache"))
        assert store is not None
        found.append(store)
    assert [store.folder for store in found] == [
        str(tmp_path / "here" / "cache"), str(tmp_path / "there" / "cache"),
    ]  # fmt: skip


# ---- the bound ----


def age(store: Store, data: bytes, hours: float) -> None:
    """Pretend that the entry with these bytes was last used so long ago."""
    (path,) = [path for path in files_of(store) if path.read_bytes() == data]
    os.utime(path, (time.time() - hours * HOUR,) * 2)


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    with closing(Store(tmp_path, 100)) as store:
        for key, hours in ((A, 3), (B, 2), (C, 4)):
            store.put("object", key, key.encode())  # 32 bytes each
            age(store, key.encode(), hours)
        assert store.get("object", C) == C.encode()  # a use: now A is the oldest
        store.put("object", key_of(4), b"x" * 20)
        assert [store.get("object", k) is None for k in (A, B, C, key_of(4))] == [True] + [
            False
        ] * 3
        assert len(files_of(store)) == 3


def test_a_use_is_noted_at_most_once_an_hour(store: Store) -> None:
    store.put("plan", A, b"x")
    for hours, noted in ((0.5, False), (1.5, True)):
        age(store, b"x", hours)
        before = files_of(store)[0].stat().st_mtime
        store.get("plan", A)
        assert (files_of(store)[0].stat().st_mtime != before) is noted


@given(sizes=st.lists(st.integers(0, 400), max_size=12), limit=st.integers(0, 1000))
def test_the_bound_holds_after_every_put(sizes: list[int], limit: int) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp"), f"fulgurite-bound-{os.getpid()}")
    try:
        with closing(Store(folder, limit)) as store:
            for number, size in enumerate(sizes):
                store.put("object", key_of(number), b"x" * size)
                assert store.stats().size <= limit
                kept = [path for path in files_of(store)] if store.stats().entries else []
                assert sum(path.stat().st_size for path in kept) == store.stats().size
                if size <= limit:  # what was just made is what is needed
                    assert store.get("object", key_of(number)) == b"x" * size
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- planted and damaged files ----


DAMAGES: dict[str, Callable[[Path], object]] = {
    "bytes instead of": lambda path: os.truncate(path, 3),
    "have changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
    "others may write": lambda path: path.chmod(0o602),
    "others may write to it": lambda path: path.chmod(0o620),
    "belongs to user 12345": give_away,
    "a symbolic link": swap_for_a_link,
    "not a regular file|a folder": swap_for_a_folder,
    "not a regular file": swap_for_a_pipe,
}


@pytest.mark.parametrize("says", DAMAGES)
def test_a_planted_or_damaged_file_is_ignored_with_one_warning(store: Store, says: str) -> None:
    for key in (A, B):
        store.put("object", key, bytes_of(key))
    for path in files_of(store):
        DAMAGES[says](path)
    with pytest.warns(CacheWarning, match=f"v1/data/[0-9a-f]+ .*({says}).*cache clear") as caught:
        assert store.get("object", A) is None
        assert store.get("object", B) is None
        assert store.get("object", A) is None
    assert len(caught) == 1
    if "folder" not in says:  # in whose place no file can be put
        store.put("object", A, bytes_of(A))
        assert store.get("object", A) == bytes_of(A)


def test_an_entry_never_stands_in_for_another(store: Store) -> None:
    store.put("object", A, b"a")
    store.put("object", B, b"b")
    unlink_all(store)
    with closing(sqlite3.connect(index_of(store))) as index, index:
        (digest,) = index.execute("select digest from entries where key = ?", (A,)).fetchone()
        index.execute("update entries set digest = ? where key = ?", (digest, B))
    with pytest.warns(CacheWarning, match="have changed"):
        assert store.get("object", B) is None


@pytest.mark.parametrize(
    "digest", ["../../../outside", "/etc/passwd", "", "a\0b", None, 7, b"\xff"]
)
def test_a_row_that_names_no_file_of_ours_is_ignored(store: Store, digest: object) -> None:
    Path(store.folder).parent.joinpath("outside").write_bytes(b"x")
    store.put("object", A, b"x")
    unlink_all(store)
    with closing(sqlite3.connect(index_of(store))) as index, index:
        index.execute("update entries set digest = ?", (digest,))
    with pytest.warns(CacheWarning, match="does not name a file"):
        assert store.get("object", A) is None
    assert Path(store.folder).parent.joinpath("outside").exists()
    store.limit = 1  # eviction looks at such rows too
    store.put("object", B, b"y")
    assert store.get("object", B) == b"y"


def link_of(store: Store, kind: str, key: str) -> Path:
    return Path(store.folder, "v1", "links", f"{kind}-{key}")


def test_a_link_finds_an_entry_without_sqlite_and_the_index_makes_one_again(tmp_path: Path) -> None:
    with closing(Store(tmp_path, BIG)) as store:
        store.put("object", A, b"x")
    run_script(
        """
        sys.modules["sqlite3"] = None  # who imports it fails
        assert Store(sys.argv[1], BIG).get("object", A) == b"x"
        """,
        tmp_path,
    )
    with closing(Store(tmp_path, BIG)) as store:
        unlink_all(store)
        assert store.get("object", A) == b"x" and link_of(store, "object", A).is_symlink()


@pytest.mark.parametrize("target", ["../data/no", "../../../../outside", "", "/etc/passwd", "B"])
def test_a_link_that_leads_elsewhere_is_left_to_the_index(store: Store, target: str) -> None:
    store.put("object", A, b"x")
    store.put("object", B, b"y")
    link, other = link_of(store, "object", A), link_of(store, "object", B)
    link.unlink()
    if target:
        link.symlink_to(os.readlink(other) if target == "B" else target)
    else:
        link.write_bytes(b"x")
    assert store.get("object", A) == b"x"
    assert os.readlink(link) != os.readlink(other)
    assert Path(os.path.realpath(link)) in files_of(store)  # mended


def test_links_go_with_their_entries(store: Store) -> None:
    store.put("object", A, bytes(1000))
    store.limit = 1500
    store.put("object", B, bytes(1000))
    assert store.get("object", A) is None and store.get("object", B) == bytes(1000)
    os.utime(Path(store.folder, "v1", "swept"), (1, 1))
    store.put("plan", C, b"x")  # which sweeps
    links = Path(store.folder, "v1", "links")
    assert sorted(p.name for p in links.iterdir()) == sorted([f"object-{B}", f"plan-{C}"])
    store.clear()
    assert not list(links.iterdir()) and store.get("object", B) is None


def test_a_file_that_is_gone_is_a_plain_miss(store: Store) -> None:
    store.put("object", A, b"x")
    files_of(store)[0].unlink()
    assert store.get("object", A) is None
    assert store.stats().entries == 0


def test_a_folder_removed_under_a_running_process_is_made_again(store: Store) -> None:
    store.put("object", A, b"x")
    shutil.rmtree(store.folder)
    assert store.get("object", A) is None
    store.put("object", A, b"x")
    assert store.get("object", A) == b"x"
    with closing(Store(store.folder, BIG)) as other:
        assert other.get("object", A) == b"x"


@given(data=st.data())
def test_no_changed_byte_or_lost_end_gives_a_wrong_answer(data: st.DataObject) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp"), f"fulgurite-bytes-{os.getpid()}")
    try:
        with closing(Store(folder, BIG)) as store, warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            for key in (A, B, C):
                store.put("object", key, bytes_of(key))
            store.close()
            path = data.draw(st.sampled_from([index_of(store), index_of(store), *files_of(store)]))
            content = bytearray(path.read_bytes())
            # SQLite fills pages from the end: without this, few changes would hit a row
            spots = [i for i, byte in enumerate(content) if byte]
            for at in data.draw(st.lists(st.sampled_from(spots), min_size=1, max_size=4)):
                content[at] = data.draw(st.integers(0, 255))
            path.write_bytes(content[: data.draw(st.sampled_from([len(content), *spots]))])
            for key in (A, B, C):
                assert store.get("object", key) in (None, bytes_of(key))
            store.entries(), store.stats()
            store.put("object", A, bytes_of(A))
            store.limit = 100
            store.put("plan", A, b"small")  # evicts, which reads every row
            assert store.get("plan", A) in (None, b"small")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- leases and leftovers ----


def test_a_lease_is_had_by_one_at_a_time_and_waiting_ends(store: Store) -> None:
    with store.lease(A) as first, store.lease(A, wait=0.02) as second, store.lease(B) as other:
        assert (first, second, other) == (True, False, True)
    with store.lease(A, wait=0.0) as again:
        assert again
    assert files_of(store) == []


def test_the_lock_of_a_file_that_its_last_owner_removed_is_no_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        asked.append(how)
        if len(asked) == 1:  # between our opening the file and our locking it
            files_of(store)[0].unlink()
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with store.lease(A) as mine:
        assert mine and len(asked) == 2 and len(files_of(store)) == 1


def test_threads_take_turns_at_a_lease(store: Store) -> None:
    inside: list[int] = []

    def work(number: int) -> int:
        with store.lease(A, wait=60) as mine:
            assert mine
            inside.append(number)
            seen = len(inside)
            time.sleep(0.002)
            inside.remove(number)
        return seen

    assert together(8, work) == [1] * 8


def test_a_lease_ends_with_an_error_inside(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.lease(A):
        _ = 1 / 0
    with store.lease(A, wait=0.0) as mine:
        assert mine


def test_leftovers_are_swept_after_an_hour_and_not_before(store: Store) -> None:
    store.put("object", A, b"x")
    data = files_of(store)[0].parent
    for name in ("tmp-old", "tmp-new", "lock-old", key_of(9)):
        (data / name).write_bytes(b"left behind")
    for path in files_of(store):
        if path.name != "tmp-new":
            os.utime(path, (time.time() - 2 * HOUR,) * 2)
    store.put("object", B, b"y")
    assert len(files_of(store)) == 6, "it was swept less than an hour ago"
    os.utime(Path(store.folder, "v1", "swept"), (1, 1))
    store.put("object", B, b"y")
    assert [path.name for path in files_of(store) if path.name.startswith(("tmp", "lock"))] == [
        "tmp-new"
    ]
    assert (store.get("object", A), store.get("object", B)) == (b"x", b"y")
    assert len(files_of(store)) == 3
