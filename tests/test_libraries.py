"""Tests of tests/libraries.py: library text is compiled once for a run, kernels each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulgurite.codegen.cpu.llvm.compiler import Refusal, compile_object
from fulgurite.codegen.cpu.target import Target, target
from fulgurite.runtime.cpu.objects import Code
from tests import libraries

pytest.importorskip("llvmlite")
pytestmark = pytest.mark.device("cpu")

LIBRARY = "define i64 @library_one() {\n  ret i64 1\n}\n"
KERNEL = """declare i64 @library_one()
define i64 @kernel() {
  %one = call i64 @library_one()
  ret i64 %one
}
"""


def test_the_second_process_compiles_the_kernel_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Code, "have", Code.have)  # what is shared by the run comes back
    compiled: list[list[str]] = []

    def counted(texts: list[str], chosen: Target) -> bytes:
        compiled.append(texts)
        return compile_object(texts, chosen)

    monkeypatch.setattr(libraries, "compile_object", counted)
    libraries.share(tmp_path)
    for _ in range(2):
        code = Code(target())
        digest = code.digest(KERNEL)
        code.have([(digest, KERNEL, (LIBRARY,))])
        assert code.compiled == 1 and f"k{digest}" in code.functions
    assert compiled == [[LIBRARY]]
    assert [path.name for path in tmp_path.iterdir()] == [code.digest(LIBRARY)]


def test_library_text_that_is_refused_is_refused_with_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Code, "have", Code.have)
    libraries.share(tmp_path)
    code = Code(target())
    with pytest.raises(Refusal):
        code.have([(code.digest(KERNEL), KERNEL, (LIBRARY.replace("i64 1", "i64 x"),))])
    assert not list(tmp_path.iterdir())
