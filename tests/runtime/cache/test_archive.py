"""Tests of runtime/cache/archive.py: a store in one file, and files that only look like one."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fulgurite.errors import ArgumentError, CacheWarning
from fulgurite.runtime.cache import archive
from fulgurite.runtime.cache.archive import ArchiveError
from fulgurite.runtime.cache.disk import Store, digest_of

A, B = "aa" * 16, "bb" * 16
ENTRIES = [("driver", A, b""), ("object", A, bytes(range(256)) * 9), ("plan", B, b'{"x": 1}')]
Members = dict[str, bytes]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "full", 1 << 20)) as store:
        assert store.put_many(ENTRIES) == 3
        yield store


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "empty", 1 << 20)) as store:
        yield store


def contents(store: Store) -> list[tuple[str, str, bytes | None]]:
    return [(kind, key, store.get(kind, key)) for kind, key in store.entries()]


def test_what_is_exported_can_be_imported(full: Store, empty: Store, tmp_path: Path) -> None:
    assert full.export(tmp_path / "a.zip") == 3
    assert empty.import_(tmp_path / "a.zip") == (3, 3)
    assert contents(empty) == ENTRIES
    assert empty.import_(tmp_path / "a.zip") == (3, 3), "twice does no harm"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "empty", "full"]


def test_an_empty_store_can_be_exported(full: Store, empty: Store, tmp_path: Path) -> None:
    assert empty.export(tmp_path / "a.zip") == 0
    assert full.import_(tmp_path / "a.zip") == (0, 0)
    assert contents(full) == ENTRIES


def test_a_damaged_entry_is_not_exported(full: Store, empty: Store, tmp_path: Path) -> None:
    for path in Path(full.folder, "v1", "data").iterdir():
        if path.read_bytes() == ENTRIES[2][2]:
            path.write_bytes(b'{"x": 2}')
    with pytest.warns(CacheWarning, match="have changed"):
        assert full.export(tmp_path / "a.zip") == 2
    assert empty.import_(tmp_path / "a.zip") == (2, 2)


def test_an_export_that_fails_leaves_no_file_and_no_older_archive_is_lost(
    full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.zip").write_text("older")

    def fails(*values: object, **more: object) -> str:
        raise RuntimeError("no manifest")

    monkeypatch.setattr(json, "dumps", fails)
    with pytest.raises(RuntimeError):
        full.export(tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "full"]


def test_what_does_not_fit_is_counted(full: Store, tmp_path: Path) -> None:
    full.export(tmp_path / "a.zip")
    with closing(Store(tmp_path / "tiny", 100)) as tiny:
        assert tiny.import_(tmp_path / "a.zip") == (2, 3)


def test_a_missing_archive_is_the_usual_error(empty: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        empty.import_(tmp_path / "none.zip")


# ---- hostile archives ----


def changed_manifest(change: Callable[[Any], object]) -> Callable[[Members], object]:
    def apply(members: Members) -> None:
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return apply


def planted(name: str) -> Callable[[Members], object]:
    return lambda members: members.update({name: b"planted"})


def row(*values: object) -> Callable[[Members], object]:
    return changed_manifest(lambda manifest: manifest["entries"].append(list(values)))


def other_bytes(members: Members) -> None:
    name = max(members, key=lambda name: len(members[name]) if name != "manifest.json" else 0)
    members[name] = members[name][:-1] + b"!"


HOSTILE: dict[str, tuple[str, Callable[[Members], object]]] = {
    "a path upwards": ("members are not", planted("../../outside")),
    "an absolute path": ("members are not", planted("/tmp/outside")),
    "one file too many": ("members are not", planted("data/" + "ab" * 16)),
    "a missing file": ("members are not", row("plan", A, "ab" * 16, 3)),
    "a path as digest": ("makes no sense", row("plan", A, "../../outside", 7)),
    "a path as key": ("makes no sense", row("plan", "../../outside", "ab" * 16, 7)),
    "an unknown kind": ("makes no sense", row("pickle", A, "ab" * 16, 7)),
    "a list as kind": ("makes no sense", row(["plan"], A, "ab" * 16, 7)),
    "a text as size": ("makes no sense", row("plan", A, "ab" * 16, "7")),
    "a huge size": ("too large", row("plan", A, "ab" * 16, 1 << 40)),
    "a negative size": ("too large", row("plan", A, "ab" * 16, -1)),
    "a short row": ("makes no sense", row("plan", A)),
    "another format": ("format", changed_manifest(lambda m: m.update(format="fulgurite cache 9"))),
    "no entries": ("makes no sense", changed_manifest(lambda m: m.pop("entries"))),
    "no manifest": ("no manifest", lambda members: members.pop("manifest.json")),
    "a list as manifest": ("makes no", lambda members: members.update({"manifest.json": b"[]"})),
    "noise as manifest": ("makes no", lambda members: members.update({"manifest.json": b"\xff{"})),
    "a deep manifest": ("", lambda members: members.update({"manifest.json": b"[" * 200_000})),
    "other bytes": ("not those that were exported", other_bytes),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_as_a_whole(
    full: Store, empty: Store, tmp_path: Path, name: str
) -> None:
    full.export(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as source:
        members = {member: source.read(member) for member in source.namelist()}
    says, change = HOSTILE[name]
    change(members)
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as target:
        for member, data in members.items():
            target.writestr(member, data)
    with pytest.raises(ArchiveError, match=f"refused.*{says}"):
        empty.import_(tmp_path / "b.zip")
    assert empty.stats().entries == 0
    assert not (tmp_path / "outside").exists() and not Path("/tmp/outside").exists()


def test_a_bomb_is_refused_before_it_is_unpacked(
    empty: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST_ENTRY", 1000)
    data = bytes(100_000)
    digest = digest_of("plan", A, data)
    for claimed, says in ((len(data), "too large"), (10, "members are not")):
        with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as target:
            target.writestr(f"data/{digest}", data)
            entries = [["plan", A, digest, claimed]]
            text = json.dumps({"format": archive.FORMAT, "entries": entries})
            target.writestr("manifest.json", text)
        with pytest.raises(ArchiveError, match=says):
            empty.import_(tmp_path / "b.zip")
    monkeypatch.setattr(archive, "LARGEST_MANIFEST", 10)
    with pytest.raises(ArchiveError, match="sensible size"):
        empty.import_(tmp_path / "b.zip")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_compression_are_refused(empty: Store, tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w", method) as target:
        target.writestr("manifest.json", json.dumps({"format": archive.FORMAT, "entries": []}))
    with pytest.raises(ArchiveError, match="compressed"):
        empty.import_(tmp_path / "b.zip")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_archive_is_refused(empty: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.zip").write_bytes(content)
    with pytest.raises(ArgumentError, match="refused"):
        empty.import_(tmp_path / "b.zip")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_changed_byte_or_lost_end_is_imported(
    full: Store, tmp_path: Path, data: st.DataObject
) -> None:
    """Unless nothing that matters was changed (a date, say)."""
    full.export(tmp_path / "a.zip")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
        content[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(content), len(content) - 1, len(content) // 2]))
    (tmp_path / "b.zip").write_bytes(content[:end])
    shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
    with closing(Store(tmp_path / "fresh", 1 << 20)) as fresh:
        try:
            assert fresh.import_(tmp_path / "b.zip") == (3, 3)
            assert contents(fresh) == ENTRIES
        except ArchiveError:
            assert fresh.stats().entries == 0
