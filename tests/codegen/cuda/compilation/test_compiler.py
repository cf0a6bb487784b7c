"""Tests of fulgurite/codegen/cuda/compilation/compiler.py: what is loaded of Triton, and how."""

from __future__ import annotations

from tests.codegen.cuda.subprocesses import last_word, needs_triton

LOADED = """
import sys
from fulgurite.codegen.cuda.compilation import compiler
compiler.load_ahead().join()
assert "triton" in sys.modules and compiler._GENERATOR in sys.modules
assert compiler._GLUON not in sys.modules, "a third of the time"
from triton.compiler.code_generator import CodeGenerator
functions = CodeGenerator.statically_implemented_functions
import triton.language as tl
import triton.experimental.gluon.language as gluon  # and somebody else may use it
for name in ("static_assert", "static_print"):
    assert functions.get(getattr(gluon, name)) is not None
    assert functions.get(getattr(tl, name)) is not None
assert functions.get(int) is not None and functions.get(print) is None
print("fine")
"""


@needs_triton
def test_gluon_is_not_loaded_by_us_and_works_for_others() -> None:
    assert last_word(LOADED) == "fine"


ABSENT = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
from fulgurite.codegen.cuda.compilation import compiler
from fulgurite.errors import CompilerError
try:
    compiler.load()
except CompilerError as problem:
    assert "compiled by Triton" in problem.what and "No module named 'triton" in problem.what
    assert "pip install" in problem.hint
    print("fine")
"""


def test_without_triton_the_error_says_what_to_install() -> None:
    assert last_word(ABSENT) == "fine"


VERSION = """
import sys
from fulgurite.codegen.cuda.generator import triton_version
before = {*sys.modules}
found = triton_version()
assert not {"email", "zipfile", "triton"} & ({*sys.modules} - before), "some 30 ms"
from importlib.metadata import version
assert found == version("triton"), found
print("fine")
"""


@needs_triton
def test_the_version_is_known_without_parsers_of_metadata() -> None:
    assert last_word(VERSION) == "fine"


CARRIED = r"""
import re
from unittest.mock import patch
from fulgurite.codegen.cuda.compilation import compiler
from fulgurite.codegen.cuda.source import PARAM, Argument, Launch, number
compiler.load()
from triton.compiler.code_generator import CodeGenerator
ours, dry, met = CodeGenerator._find_carries, CodeGenerator._find_carries.__wrapped__, []

def counted(*given, **more):
    met.append(given)
    return dry(*given, **more)

def parsed(text, function):  # values by their numbers, without lines
    with patch.object(CodeGenerator, "_find_carries", function):
        module = str(compiler._Compilation(Launch(text, "kernel", 1, 1, 1, arguments), 90).module)
    names = {}
    lines = [re.sub(r" loc\(.*", "", line) for line in module.splitlines() if line[:4] != "#loc"]
    return [re.sub(r"%\w+", lambda m: names.setdefault(m[0], f"%{len(names)}"), n) for n in lines]

arguments = (Argument("x", "*fp32", True, PARAM), number("n", 48), number("m", 32))
text = '''
@triton.jit
def kernel(x, n, m):
    total, place = tl.zeros((16,), tl.float32), 0
    W: tl.constexpr = 4
    for r0 in range(0, n, 16):
        part = tl.load(x + r0 + tl.arange(0, 16))
        for r1 in tl.range(0, m, 1, num_stages=2):
            if r1 > 3:
                part, other = part * 2, part
            else:
                other = part
            total += other
        for r1 in range(2, m):
            place += r1 * W
        total = total + part + place
    tl.store(x + tl.arange(0, 16), total)
'''
found = parsed(text, counted)
assert len(met) > 3, "one dry run for each loop, and for those in dry runs"
assert parsed(text, ours) == found
for function in (ours, dry):
    try:
        parsed(text.replace("total += other", "total = tl.sum(other, 0)"), function)
    except Exception:
        continue
    raise AssertionError("a carried variable has one type")
print("fine")
"""


@needs_triton
def test_carried_variables_are_those_that_a_dry_run_finds() -> None:
    assert last_word(CARRIED) == "fine"
