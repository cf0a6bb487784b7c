"""Every LLVM spelling parses and verifies, for one number and for vectors; Triton's parses too.

A renderer fills in {0}, {1}, {2} (operands), {T} (operand type), {S} (its suffix: f32, v8i32), {M}
(the type of a mask: i1 or a vector of it), {W} (bits), {R} (result type) and {arg}. Functions of
our own (`fulgurite.*`) are declared here and written by the native layer; an intrinsic must be one
that LLVM knows, so none may be left over as a symbol in the assembly.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from fulgurite.core.op import Op
from fulgurite.core.operators import OPS

llvm: Any = pytest.importorskip("llvmlite.binding")

PLACEHOLDERS = {"cast"}  # written by the renderer: depends on both dtypes
WIDTHS = {"b": (1,), "i": (8, 16, 32, 64), "u": (8, 16, 32, 64), "f": (32, 64)}
PARTS = {"real", "imag", "pair"}  # kernel/transform/complex_to_real.py leaves none of them
ELEMENTWISE = [op for op in OPS.values() if op.family == "elementwise" and op.name not in PARTS]
SPELLED = [
    (op, kind)
    for op in ELEMENTWISE
    for kind, text in op.llvm.items()
    if text and op.name not in PLACEHOLDERS
]
CALL = re.compile(r"call (.+?) @([\w.]+)\((.*)\)$")


def type_of(kind: str, bits: int, lanes: int) -> str:
    one = {32: "float", 64: "double"}[bits] if kind == "f" else f"i{bits}"
    return one if lanes == 1 else f"<{lanes} x {one}>"


def suffix_of(kind: str, bits: int, lanes: int) -> str:
    one = f"{'f' if kind == 'f' else 'i'}{bits}"
    return one if lanes == 1 else f"v{lanes}{one}"


def rendered(op: Op, kind: str, bits: int, lanes: int) -> tuple[str, set[str]]:
    """A function that applies the op, and the declarations it needs."""
    value_kind = "f" if op.name == "where" else kind  # a condition chooses between any values
    bits = 32 if op.name == "where" else bits
    operand, mask = type_of(value_kind, bits, lanes), type_of("b", 1, lanes)
    reversed_kind = {"f": "i", "i": "f", "u": "f"}.get(kind, kind)
    other = type_of(reversed_kind, bits, lanes) if bits >= 32 else operand
    text = op.llvm[kind].format(
        "%a0", "%a1", "%a2", T=operand, S=suffix_of(value_kind, bits, lanes), M=mask, W=bits,
        R=other, arg=1,
    )  # fmt: skip
    result = mask if op.dtype is not None and _gives_bool(op) else operand
    if op.name == "bitcast":
        result = other
    sources = [operand] * (op.arity or 1)
    if op.name == "where":
        sources[0] = mask
    declared = set()
    if call := CALL.match(text):
        types = ", ".join(part.rsplit(" ", 1)[0] for part in _split(call[3]))
        declared.add(f"declare {call[1]} @{call[2]}({types})")
    name = f"{op.name}.{kind}.{bits}.{lanes}"
    parameters = ", ".join(f"{t} %a{i}" for i, t in enumerate(sources))
    body = f"  %r = {text}\n  ret {result} %r"
    return f"define {result} @{name}({parameters}) {{\n{body}\n}}", declared


def _gives_bool(op: Op) -> bool:
    return op.name in ("lt", "le", "eq", "ne")


def _split(arguments: str) -> list[str]:
    """The arguments of a call; commas inside of <...> do not occur in LLVM's types."""
    return [part.strip() for part in arguments.split(",")]


def module_of(parts: list[tuple[str, set[str]]]) -> str:
    declared = sorted(set().union(*[d for _, d in parts]))
    return "\n".join([*declared, *[text for text, _ in parts]])


@pytest.mark.parametrize(("op", "kind"), SPELLED, ids=str)
def test_an_llvm_spelling_parses_and_verifies(op: Op, kind: str) -> None:
    parts = [rendered(op, kind, bits, lanes) for bits in WIDTHS[kind] for lanes in (1, 8)]
    llvm.parse_assembly(module_of(parts)).verify()


def test_every_intrinsic_is_one_that_llvm_lowers() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parts = [
        rendered(op, kind, bits, lanes)
        for op, kind in SPELLED
        for bits in WIDTHS[kind]
        for lanes in (1, 4)
    ]
    module = llvm.parse_assembly(module_of(parts))
    module.verify()
    target = llvm.Target.from_default_triple().create_target_machine()
    left = set(re.findall(r"\bllvm\.[\w.]+", target.emit_assembly(module)))
    assert not left, f"not intrinsics: {left}"


@pytest.mark.parametrize("op", ELEMENTWISE, ids=str)
def test_every_elementwise_op_is_spelled_for_every_kind_it_takes(op: Op) -> None:
    kinds = {kind for kind in op.kinds if kind != "c"}  # complex numbers: reference only
    assert {kind for kind, text in op.llvm.items() if text} == kinds
    assert op.triton


@pytest.mark.parametrize("op", ELEMENTWISE, ids=str)
def test_a_triton_spelling_is_a_python_expression_of_its_operands(op: Op) -> None:
    names = [f"a{i}" for i in range(op.arity or 1)]
    tree = ast.parse(op.triton.format(*names, arg="tl.float32"), mode="eval")
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used >= set(names)
    helpers = {name for name in used - set(names) if not name.startswith("fg_")}
    assert helpers <= {"tl", "libdevice"}
