"""The op table as a whole: every entry is complete, and one entry is all that a new op needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core import build, operators
from fulgurite.core.dtype import DTYPES, DType, float64
from fulgurite.core.gradient import gradient
from fulgurite.core.node import Node
from fulgurite.core.op import Array, Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import ABS, elementwise
from fulgurite.core.ops.leaf import param
from fulgurite.core.rewriting.pattern import Rules, p, variables
from fulgurite.core.rewriting.rewrite import rewrite
from fulgurite.core.text import parse, show
from fulgurite.graph.ir.cache_key import normalize
from fulgurite.runtime.host.evaluate import evaluate
from fulgurite.tensor import wrap
from tests.core.ops.samples import assert_same, leaf, run
from tests.lawcheck import check_law

OUTSIDE = {"var", "buffer", "param", "sink"}  # their values come from outside, or are none


@pytest.mark.parametrize("op", OPS.values(), ids=str)
def test_an_entry_is_complete(op: Op) -> None:
    assert OPS[op.name] is op and repr(op) == op.name
    assert op.doc and "\n" not in op.doc and not op.doc.endswith(".")
    assert op.levels and op.levels <= {"tensor", "index"}
    assert set(op.kinds) <= set("biufc") and op.kinds
    assert op.cost >= 0 and op.domain[0] < op.domain[1] and op.monotone in (-1, 0, 1)
    if "tensor" in op.levels:
        assert (op.numpy is None) == (op.name in OUTSIDE)
    if op.commutative or op.associative:
        assert op.arity == 2
    if op.identity is not None:
        assert op.associative


def test_an_op_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        Op(name="add", family="elementwise", doc="again", arity=2, numpy=None)
    assert OPS["add"].doc == "a + b"


def test_an_op_that_derives_no_dtype_is_made_with_one() -> None:
    with pytest.raises(AssertionError, match="say the dtype"):
        OPS["const"](arg=(0, ()))


# --- an op of tomorrow ---------------------------------------------------------------------------


def _softsign_grad(g: Node, y: Node, a: Node) -> tuple[Node | None, ...]:
    size = 1 + ABS(a)
    return (g / (size * size),)


def declare_softsign() -> Op:
    """The one entry of a new op, as its author would write it."""
    return elementwise(
        "softsign", lambda a: a / (1 + np.abs(a)), "a / (1 + |a|)", arity=1, kinds="f",
        grad=_softsign_grad, triton="{0} / (1 + tl.abs({0}))", monotone=1, cost=6,
        llvm="call {T} @fulgurite.softsign.{S}({T} {0})",
    )  # fmt: skip


@pytest.fixture
def softsign() -> Iterator[Op]:
    """An op that exists for one test, entered in OPS and in nothing else."""
    op = declare_softsign()
    yield op
    del OPS[op.name]


def exact_softsign(x: Array) -> Array:
    return np.sign(x) * (1 - 1 / (1 + np.abs(x)))


def test_a_new_op_has_a_meaning_a_gradient_and_a_batch_rule_at_once(softsign: Op) -> None:
    x = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(run(softsign, x), exact_softsign(x), rtol=1e-15)
    source = leaf(x)
    y = softsign(source)
    (slope,) = gradient(y, [source])
    assert slope is not None
    np.testing.assert_allclose(evaluate([slope], {source: x})[0], 1 / (1 + np.abs(x)) ** 2)
    (bend,) = gradient(slope, [source])
    assert bend is not None
    expected = -2 * np.sign(x) / (1 + np.abs(x)) ** 3
    np.testing.assert_allclose(evaluate([bend], {source: x})[0], expected)
    rows = leaf(np.stack([x, -x]))
    assert softsign.batch is not None
    (both,) = evaluate([softsign.batch(y, (rows,))], {rows: np.stack([x, -x])})
    np.testing.assert_allclose(both, exact_softsign(np.stack([x, -x])))


def test_a_new_op_is_printed_parsed_keyed_fused_and_simplified_by_a_law(softsign: Op) -> None:
    x = np.linspace(-3, 3, 7).astype(np.float32)
    tensor = fg.Tensor(x)
    top = wrap(build.apply(softsign, (tensor * 2).node))
    assert parse(show(top.node)) is top.node
    assert normalize([top.node]).digest
    report = fg.explain(top)
    assert [kernel.kind for kernel in report.kernels] == ["map"]
    assert "softsign" in report.kernels[0].text
    np.testing.assert_allclose(top.numpy(), exact_softsign(2 * x), rtol=1e-6)

    rules, (a,) = Rules("tomorrow"), variables("a")
    rules.law("softsign-is-odd", p(softsign, -a), -p(softsign, a), when=lambda d: d.is_float)
    for law in rules.laws():
        check_law(law, float64)
    node = param(0, (3,), float64)
    assert rewrite(softsign(-node), rules) is -softsign(node)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind == "f"], ids=str)
def test_a_new_op_takes_every_float_without_more_code(softsign: Op, dtype: DType) -> None:
    x = np.array([0.0, 1.0, -3.0, 0.5]).astype(dtype.numpy)
    wide = x.astype(np.float64 if dtype is float64 else np.float32)
    expected = (wide / (1 + np.abs(wide))).astype(dtype.numpy)
    assert_same(run(softsign, x), expected)


def test_a_new_op_is_in_no_table_but_one() -> None:
    before = dict(OPS)
    op = declare_softsign()
    assert {name for name in OPS if name not in before} == {"softsign"}
    assert operators.OPS["softsign"] is op
    del OPS["softsign"]
    assert before == OPS
