"""Tests of fulgurite/runtime/cpu/refusals.py: what LLVM refuses is told in a few lines."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import CompilerError, FulguriteError

pytest.importorskip("llvmlite")
from fulgurite.codegen.cpu.gemm import microkernel
from fulgurite.codegen.cpu.llvm import compiler, masked, versions
from fulgurite.codegen.cpu.llvm.compiler import Refusal
from fulgurite.codegen.cpu.target import target


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fg.clear_caches()
    with fg.config(device="cpu", tier="native", disk_cache=False):
        yield
    fg.clear_caches()


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked loads as no LLVM reads them."""
    monkeypatch.setattr(masked, "reading", lambda how, kind, *_, **__: f"call {kind} @nowhere()")


def test_a_refused_kernel_names_the_versions_the_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil(monkeypatch)
    x = fg.Tensor(np.ones((7, 1237), np.float32))
    y = x.sum(axis=0) * 3.25  # this line
    with pytest.raises(CompilerError) as caught:
        y.realize()
    text = str(caught.value)
    assert isinstance(caught.value, FulguriteError) and isinstance(caught.value, RuntimeError)
    assert len(text.splitlines()) == 3 and len(text) < 800  # not pages of IR
    assert re.search(r"llvmlite \d+\.\d+.*LLVM \d+\.\d+.* reduce kernel of fulgurite \d", text)
    assert "undefined value '@nowhere'" in text and "doctor" in caught.value.hint
    assert f"{__file__}:" in caught.value.where
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    (file,) = tmp_path.glob("fulgurite-refused-*.ll")
    assert str(file) in text
    written = file.read_text()
    assert "define void @k" in written and "; <string>:" in written
    with pytest.raises(CompilerError):
        y.realize()
    assert len(list(tmp_path.glob("fulgurite-refused-*.ll"))) == 1


def test_of_several_kernels_the_one_that_is_refused_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(monkeypatch)
    monkeypatch.setattr(microkernel, "reading", lambda how, kind, *_, **__: "garbage")
    a = fg.Tensor(np.ones((64, 64), np.float32))
    whole = fg.sort(a, axis=1) @ a  # whole vectors need no mask, but the product does
    with pytest.raises(CompilerError, match=r"refuses a \w+ kernel of"):
        whole.realize()


def test_a_body_of_a_loop_names_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    x = fg.Tensor(np.ones((3, 1237), np.float32))
    y = fg.scan(lambda c, r: (c + r * 1.75, c.sum()), fg.zeros((1237,)), x)[0]
    with pytest.raises(CompilerError) as caught:
        y.realize()
    assert f"{__file__}:" in caught.value.where


def test_a_refusal_is_one_line_whatever_llvm_says() -> None:
    assert Refusal("", []).line == "no reason given"
    parsed = Refusal("LLVM IR parsing error\n<string>:2:48: error: expected type\ndefine ...", [])
    assert parsed.line == "expected type"
    assert len(Refusal("x" * 5000, []).line) == 160
    with pytest.raises(Refusal) as caught:
        compiler.compile_object(["define void @a() {\n  ret void\n}", "hello"], target())
    assert caught.value.number == 1 and caught.value.texts == ("hello",)


@pytest.mark.parametrize(
    ("found", "reason"),
    [("llvmlite-0.44.0", "too old"), ("llvmlite-0.9.1", "too old"), ("llvmlite-0.45.0", None),
     ("llvmlite-0.51.0", None), ("llvmlite of /somewhere", None)],
)  # fmt: skip
def test_a_version_that_cannot_work_is_never_asked(
    monkeypatch: pytest.MonkeyPatch, found: str, reason: str | None
) -> None:
    monkeypatch.setattr(versions, "identity", lambda: found)
    said = versions.unusable()
    assert (said is None) if reason is None else said is not None and reason in said


def test_a_version_that_nobody_tested_is_named_with_those_that_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fulgurite.runtime.cpu import refusals

    monkeypatch.setattr(refusals, "version", lambda: (0, 99))
    told = refusals.refused(Refusal("no such thing", ["text"]), None)
    assert versions.requirement() in told.hint and "the driver" in told.what


def test_the_versions_are_those_that_the_package_asks_for() -> None:
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    oldest, newest = [".".join(map(str, v)) for v in (versions.OLDEST, versions.NEWEST)]
    beyond = f"{versions.NEWEST[0]}.{versions.NEWEST[1] + 1}"
    assert f'"llvmlite>={oldest},<{beyond}; ' in pyproject
    assert f'"llvmlite>={oldest},<0.46; ' in pyproject  # Intel Macs
    assert versions.requirement() == f"'llvmlite>={oldest},<{beyond}'"
    assert newest in (Path(__file__).parents[2] / "llvmlite.py").read_text()
