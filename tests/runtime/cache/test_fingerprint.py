"""Tests of fulgurite/runtime/cache/fingerprint.py: an edited source is another compiler."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fulgurite.codegen.cpu.target import EFFORT, Target
from fulgurite.runtime.cache import fingerprint
from fulgurite.runtime.cache.disk import Store
from fulgurite.runtime.cache.fingerprint import content_digest, fingerprint_of, sources

PACKAGE = Path(fingerprint.PACKAGE)
FOLDERS = sorted({path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")})
COMPILER = [folder for folder in FOLDERS if not {*folder.parts[:1]} & fingerprint.FRONT_ENDS]
BIG = 1 << 20


def test_the_package_is_all_of_it() -> None:
    assert PACKAGE.name == "fulgurite" and (PACKAGE / "codegen" / "cpu" / "render.py").is_file()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, to be edited."""
    found = tmp_path_factory.mktemp("copied") / "fulgurite"
    shutil.copytree(PACKAGE, found, ignore=shutil.ignore_patterns("__pycache__"))
    return found


def now_of(package: Path, store: Store) -> str | None:
    return fingerprint_of(str(package), store, time.time_ns() + 10**12)


@pytest.mark.parametrize("folder", COMPILER, ids=str)
def test_an_edit_in_any_folder_is_seen_also_if_size_and_times_are_as_before(
    copy: Path, store: Store, folder: Path
) -> None:
    before = now_of(copy, store)
    assert before is not None and now_of(copy, store) == before
    path = min((copy / folder).glob("*.py"))
    text, status = path.read_bytes(), path.stat()
    edited = text.replace(b"e", b"f", 1) if b"e" in text else text + b"#"
    path.write_bytes(edited)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the clock's grain, or an archive
    assert now_of(copy, store) != before
    path.write_bytes(text)
    assert now_of(copy, store) == before  # by its content: what was kept is found again


def test_front_ends_are_folders_that_no_layer_can_import(copy: Path, store: Store) -> None:
    from tests.test_layers import LAYERS, SHARED

    assert not fingerprint.FRONT_ENDS & {*LAYERS, *SHARED}
    assert {folder.parts[0] for folder in FOLDERS if folder.parts} >= fingerprint.FRONT_ENDS
    before = now_of(copy, store)
    (copy / "nn" / "__init__.py").write_text("x = 1\n")
    assert now_of(copy, store) == before


def test_files_that_come_go_or_move_are_seen_in_folders_nobody_knew(
    copy: Path, store: Store
) -> None:
    seen = [now_of(copy, store)]
    new = copy / "native" / "later" / "deeper"
    new.mkdir(parents=True)
    seen.append(now_of(copy, store))
    (new / "one.py").write_text("x = 1\n")
    seen.append(now_of(copy, store))
    (new / "one.py").rename(new / "two.py")
    seen.append(now_of(copy, store))
    shutil.rmtree(copy / "native" / "later")
    seen.append(now_of(copy, store))
    assert seen[0] == seen[1] == seen[4] and len({*seen}) == 3 and None not in seen


def test_bytes_are_read_once_and_then_found_by_their_status(
    copy: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = now_of(copy, store)
    monkeypatch.setattr(fingerprint, "content_digest", lambda *_: pytest.fail("read again"))
    assert now_of(copy, store) == first


@pytest.fixture
def listed(copy: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> str:
    """The fingerprint of a copy whose files and folders are listed."""
    monkeypatch.setattr(fingerprint, "SETTLED_NS", -(10**18))
    found = now_of(copy, store)
    assert found is not None
    return found


def test_folders_whose_status_is_known_are_not_listed_again(
    copy: Path, store: Store, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("listed again"))
    assert now_of(copy, store) == listed


def test_a_list_of_the_whole_package_says_what_plans_depend_on_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "SETTLED_NS", -(10**18))
    monkeypatch.setattr(fingerprint, "_parts", {})
    loaded = time.time_ns() + 10**12
    plain = fingerprint_of(fingerprint.PACKAGE, store, loaded)
    for known in ({}, {loaded: plain}):
        assert fingerprint_of(fingerprint.PACKAGE, store, loaded, True) not in (plain, None)
        assert fingerprint._parts == known
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: pytest.fail("asked again"))
        found = fingerprint.fingerprint(store, loaded)
    assert found == plain


def test_files_that_come_or_go_are_seen_where_folders_are_not_listed(
    copy: Path, store: Store, listed: str
) -> None:
    new = copy / "graph" / "ir" / "later.py"
    time.sleep(0.02)  # the grain of the file system's clock
    new.write_text("x = 1\n")
    assert now_of(copy, store) not in (listed, None)
    time.sleep(0.02)
    new.unlink()
    assert now_of(copy, store) == listed
    time.sleep(0.02)
    (copy / "fresh").mkdir()
    (copy / "fresh" / "later.py").write_text("x = 1\n")
    assert now_of(copy, store) not in (listed, None)
    shutil.rmtree(copy / "fresh")


def test_a_listed_source_that_is_edited_or_newer_than_what_runs_is_seen(
    copy: Path, store: Store, listed: str
) -> None:
    path = copy / "core" / "digest.py"
    text, status = path.read_bytes(), path.stat()
    assert fingerprint_of(str(copy), store, status.st_ctime_ns - 1) is None
    time.sleep(0.02)
    path.write_bytes(text.replace(b"e", b"f", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert now_of(copy, store) not in (listed, None)
    path.write_bytes(text)
    assert now_of(copy, store) == listed


def test_what_was_changed_a_moment_ago_is_not_listed(copy: Path, store: Store) -> None:
    (copy / "core" / "moment.py").write_text("x = 1\n")
    now_of(copy, store)
    assert store.get("sources", fingerprint._list_key(str(copy), False)) is None
    (copy / "core" / "moment.py").unlink()


@pytest.mark.parametrize("kept", [b"", b"x", b"\xff\n\n", b"0" * 32 + b"\n" + b"0" * 32 + b"\n\0"])
def test_a_list_that_says_nothing_is_not_believed(
    copy: Path, store: Store, listed: str, kept: bytes
) -> None:
    store.put("sources", fingerprint._list_key(str(copy), False), kept)
    assert now_of(copy, store) == listed


def test_a_process_reads_a_file_once_for_plans_and_for_whole_models(
    copy: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_read", {})
    read: list[str] = []
    once = fingerprint._file_digest

    def noted(path: str, size: int) -> str:
        read.append(path)
        return once(path, size)

    monkeypatch.setattr(fingerprint, "_file_digest", noted)
    for whole in (False, True):
        fingerprint_of(str(copy), store, time.time_ns() + 10**12, whole)
        assert len(read) == len({*read}) == len(sources(str(copy), whole))


def test_a_copy_elsewhere_has_the_same_fingerprint(copy: Path) -> None:
    here, there = sources(), sources(str(copy))
    assert here != there
    assert content_digest(here) == content_digest(there, str(copy))


def test_sources_changed_after_they_were_loaded_or_not_there_have_none(
    copy: Path, store: Store, tmp_path: Path
) -> None:
    loaded = time.time_ns() - 10**12
    assert fingerprint_of(str(copy), store, loaded) is None  # the copy was made later
    assert fingerprint_of(str(tmp_path / "nowhere"), store, loaded) is None
    (tmp_path / "empty").mkdir()
    assert fingerprint_of(str(tmp_path / "empty"), store, loaded) is None


def test_what_the_compiler_is_told_is_part_of_the_key_of_code() -> None:
    told = {t.settings for t in (Target("x86_64", "avx2"), Target("x86_64", "sse2"))}
    assert len(told) == 2 and all(f"{EFFORT})" in text for text in told)


WORK = """
import json, numpy as np, fulgurite as fg
x = np.linspace(-1, 1, 300, dtype=np.float32)
compiled = fg.schedule(fg.exp(fg.Tensor(x)))
values = compiled.run()[0].numpy()
right = bool(np.allclose(values, np.exp(x)))
print(json.dumps([right, sorted(compiled._compiled.seconds)]))
"""


def test_a_process_after_an_edit_of_exp_does_not_answer_with_the_old_one(tmp_path: Path) -> None:
    pytest.importorskip("llvmlite")
    package = tmp_path / "fulgurite"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))

    def work() -> list[object]:
        settings = os.environ | {
            "FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native", "FULGURITE_DISK_CACHE": "1",
            "FULGURITE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", WORK], capture_output=True, text=True, env=settings,
            timeout=300, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: list[object] = json.loads(done.stdout)
        return found

    assert work()[0] is True
    assert work() == [True, ["load"]]
    path = package / "codegen" / "cpu" / "vecmath" / "exponential.py"
    text = path.read_text()
    assert "return scaled(p + 1.0, shifted)" in text
    path.write_text(
        text.replace("return scaled(p + 1.0, shifted)", "return scaled(p + 2.0, shifted)")
    )
    right, stages = work()
    assert not right and "schedule" in stages  # type: ignore[operator]
