"""Tests of fulgurite/runtime/cpu/objects.py: texts in parts, and what the disk has of them."""

import ctypes
from pathlib import Path

import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.target import target
from fulgurite.config import current
from fulgurite.runtime.cache.disk import store_for

pytest.importorskip("llvmlite")
from fulgurite.codegen.cpu.llvm.compiler import Refusal
from fulgurite.runtime.cpu.objects import PART, Code, _parts

pytestmark = pytest.mark.device("none")


def text(name: str, number: int = 0) -> str:
    """A function that stores a number."""
    return f"define void @{name}(ptr %a) {{\n  store i64 {number}, ptr %a\n  ret void\n}}\n"


def have(texts: list[str]) -> tuple[Code, list[str]]:
    """A table that compiles or finds some texts, and what it calls them."""
    code = Code(target("auto"))
    digests = [code.digest(one) for one in texts]
    code.have([(digest, one, ()) for digest, one in zip(digests, texts, strict=True)])
    return code, digests


def test_a_text_is_one_entry_and_of_several_the_first_has_the_object(tmp_path: Path) -> None:
    a, b, c = (text("kernel", n) for n in range(3))
    with fg.config(cache_dir=str(tmp_path), disk_cache=True):
        store = store_for(current())
        assert store is not None
        have([a])
        assert [kind for kind, _ in store.entries()] == ["kernel"]
        made, digests = have([b, c])
        assert made.compiled == 2 and len(store.entries()) == 3
        sizes = [len(store.get("kernel", digest) or b"") for digest in digests]
        assert sizes[0] > 300 > sizes[1]
        for wanted in ([c], [b], [c, a, b]):
            found, names = have(wanted)
            assert found.compiled == 0, "another process finds them"
            assert all(f"k{name}" in found.functions for name in names)


def test_a_text_whose_object_is_gone_or_was_compiled_anew_is_compiled_again(tmp_path: Path) -> None:
    a, b, c = (text("kernel", n) for n in range(3))
    with fg.config(cache_dir=str(tmp_path), disk_cache=True):
        store = store_for(current())
        assert store is not None
        _, (first, second) = have([a, b])
        other = Code(target("auto"))
        new = {other.digest(c): c, first: a}  # of a process that knew neither
        other._compile({d: (t.replace("@kernel", f"@k{d}"), []) for d, t in new.items()})
        found, _ = have([b])
        assert found.compiled == 1 and second in found.objects
        found, _ = have([b])
        assert found.compiled == 0


LIBRARY = "define i64 @fulgurite_seven() {\n  ret i64 7\n}\n"
CALLS = "declare i64 @fulgurite_seven()\n"


def calling(number: int, letters: int = 0) -> str:
    """A function that calls the library's, with a remark of some length."""
    body = f"  %a = call i64 @fulgurite_seven()\n  %b = add i64 %a, {number}\n  ret i64 %b\n"
    return f"define i64 @kernel() {{\n{body}}}\n{CALLS};{'x' * letters}\n"


def test_texts_are_shared_among_threads_when_there_is_much_of_them() -> None:
    new = {f"k{i}": ("x" * (i * PART // 4), ["library"]) for i in range(8)}
    new = {"library": ("x", []), **new}
    for threads, count in ((1, 1), (2, 2), (4, 4), (100, 7)):  # of 7 parts' letters
        parts = _parts(new, threads)
        assert len(parts) == count and parts[0][0] == "library"
        assert sorted([d for part in parts for d in part]) == sorted(new)
    small: dict[str, tuple[str, list[str]]] = {"a": ("x", []), "b": ("y", [])}
    assert _parts(small, 8) == [["a", "b"]]


def test_parts_call_the_library_of_the_first_here_and_from_the_disk(tmp_path: Path) -> None:
    with fg.config(threads=3, cache_dir=str(tmp_path), disk_cache=True):
        made = Code(target("auto"))
        wanted = [
            (made.digest(t), t, (LIBRARY,)) for t in [calling(i, PART // 2) for i in range(9)]
        ]
        made.have(wanted)
        assert len({id(made.objects[digest]) for digest, _, _ in wanted}) == 3
        for again in (made, Code(target("auto"))):
            again.have(wanted)
            found = [ctypes.CFUNCTYPE(ctypes.c_int64)(again.functions[f"k{d}"])()
                     for d, _, _ in wanted]  # fmt: skip
            assert found == [7 + i for i in range(9)]
        assert again is not made and again.compiled == 0


def test_a_refused_text_of_any_part_is_named() -> None:
    with fg.config(threads=3, disk_cache=False):
        made = Code(target("auto"))
        texts = [calling(i, PART) for i in range(5)]
        texts[3] = texts[3].replace("ret i64", "ret i63")
        with pytest.raises(Refusal) as caught:
            made.have([(made.digest(t), t, (LIBRARY,)) for t in texts])
        assert caught.value.digest == made.digest(texts[3])
        assert not any([made.digest(t) in made.objects for t in texts])
