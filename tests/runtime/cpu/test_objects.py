"""Tests of fulgurite/runtime/cpu/objects.py: what the disk has of compiled texts."""

from pathlib import Path

import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.target import target
from fulgurite.config import current
from fulgurite.runtime.cache.disk import store_for

pytest.importorskip("llvmlite")
from fulgurite.runtime.cpu.objects import Code

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
