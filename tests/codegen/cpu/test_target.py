"""What is known of the processor without a compiler."""

from __future__ import annotations

import builtins
import io
import platform
from collections.abc import Iterator
from typing import Any

import pytest

import fulgurite.codegen.cpu.target as module
from fulgurite.codegen.cpu.target import VECTORS, Target, target

WIDE = "fpu avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 sse2"


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    target.cache_clear()
    yield
    target.cache_clear()


def _machine(monkeypatch: pytest.MonkeyPatch, name: str, flags: str | None) -> None:
    """Let the operating system speak of this processor."""

    def opened(path: Any, *args: Any, **kwargs: Any) -> Any:
        assert path == "/proc/cpuinfo"
        if flags is None:
            raise FileNotFoundError(path)
        return io.BytesIO(f"processor : 0\nflags\t\t: {flags}\n".encode())

    monkeypatch.setattr(platform, "machine", lambda: name)
    monkeypatch.setattr(builtins, "open", opened)


@pytest.mark.parametrize(
    ("flags", "vectors"),
    [
        (WIDE, "avx512"),
        (WIDE.replace("avx512vl", ""), "avx2"),
        ("avx2 fma f16c avx_vnni", "avx2"),
        ("avx2 fma", "sse2"),  # without half floats nothing is gained by another kind
        ("sse2", "sse2"),
        (None, "sse2"),  # no such file: what every processor of this kind has
    ],
)
def test_the_widest_vectors_that_are_whole_are_used(
    monkeypatch: pytest.MonkeyPatch, flags: str | None, vectors: str
) -> None:
    _machine(monkeypatch, "x86_64", flags)
    assert target().vectors == vectors
    assert target().lanes == VECTORS[vectors]


def test_a_wish_narrows_and_never_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, "AMD64", WIDE)
    assert [target(w).vectors for w in ("sse2", "avx2", "avx512")] == ["sse2", "avx2", "avx512"]
    target.cache_clear()
    _machine(monkeypatch, "AMD64", "avx2 fma f16c")
    assert [target(w).vectors for w in ("sse2", "avx2", "avx512")] == ["sse2", "avx2", "avx2"]


def test_narrower_vectors_bring_no_feature_of_wider_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, "x86_64", WIDE)
    assert "avx512_vnni" in target().features
    assert target("avx2").features == {"avx2", "fma", "f16c"}
    assert target("sse2") == Target("x86_64", "sse2")


@pytest.mark.parametrize(
    ("vendor", "family", "halves"),
    [("AuthenticAMD", 25, True), ("AuthenticAMD", 26, False), ("GenuineIntel", 6, False)],
)
def test_one_family_has_wide_vectors_in_halves(
    monkeypatch: pytest.MonkeyPatch, vendor: str, family: int, halves: bool
) -> None:
    told = f"processor : 0\nvendor_id : {vendor}\ncpu family : {family}\nflags : {WIDE}\n"
    _machine(monkeypatch, "x86_64", WIDE)
    monkeypatch.setattr(builtins, "open", lambda *_: io.BytesIO(told.encode()))
    assert target().halves == halves
    assert not target("avx2").halves


def test_another_architecture_has_its_own_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, "arm64", None)
    assert target() == target("avx2") == Target("aarch64", "neon")


def test_flags_nobody_asks_about_do_not_enter_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, "x86_64", WIDE)
    first = target()
    target.cache_clear()
    _machine(monkeypatch, "x86_64", WIDE + " ibrs_enhanced")
    assert target() == first
    assert target.cache_info().currsize == 1


def test_tiles_are_used_where_the_system_grants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, "x86_64", f"{WIDE} amx_tile amx_bf16 amx_int8")
    monkeypatch.setattr(module, "may_use_tiles", lambda features: True)
    assert {"amx_tile", "amx_bf16"} <= target().features
    target.cache_clear()
    monkeypatch.setattr(module, "may_use_tiles", lambda features: False)
    assert not [feature for feature in target().features if "amx" in feature]
