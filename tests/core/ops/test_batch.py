"""Batch rules: batching an op equals stacking what a Python loop over the examples gives."""

from __future__ import annotations

import numpy as np
import pytest

from fulgurite.core.dtype import float32
from fulgurite.core.op import Op
from fulgurite.core.operators import OPS
from fulgurite.core.ops.leaf import param, variable
from fulgurite.core.ops.movement import expand, reshape
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.cases import CASES, ELEMENTWISE, Case
from tests.core.ops.samples import assert_same, leaf

TENSOR_OPS = [op for op in OPS.values() if "tensor" in op.levels]
NO_BATCH = {
    "start_all_reduce": "made by the compiler, after gradients and batches",
    "wait_all_reduce": "made by the compiler, after gradients and batches",
    "const": "a leaf: the same for every example",
    "var": "a leaf: the same for every example",
    "iota": "a leaf: the same for every example",
    "buffer": "a leaf: what is batched is its value",
    "param": "a leaf: what is batched is its value",
    "bind": "a leaf: its variable is the same for every example",
    "sink": "no value: its sources are batched one by one",
    "example": "gone before an outer batch is made",
}


@pytest.mark.parametrize("examples", [3, 1])
@pytest.mark.parametrize("case", [*ELEMENTWISE, *CASES], ids=str)
def test_a_batch_equals_a_loop_over_its_examples(case: Case, examples: int) -> None:
    for seed in range(3):
        random = np.random.default_rng(seed)
        drawn = [case.draw(random) for _ in range(examples)]
        single = [leaf(a) for a in drawn[0]]
        y = case.build(*single)
        assert y.src[: len(single)] == tuple(single) and y.op.batch is not None
        stacked = [np.stack(arrays) for arrays in zip(*drawn, strict=True)]
        leaves = [leaf(a) for a in stacked]
        batched = y.op.batch(y, tuple(leaves))
        assert batched.dtype is y.dtype and batched.shape == (examples, *y.shape)
        assert batched.op.check(batched) is None
        (together,) = evaluate([batched], dict(zip(leaves, stacked, strict=True)))
        one_by_one = [evaluate([y], dict(zip(single, a, strict=True)))[0] for a in drawn]
        assert_same(together, np.stack(one_by_one))


def test_a_batch_rule_keeps_symbolic_sizes() -> None:
    n = variable("n", 1, 9)
    x, many = param(0, (n, 1), float32), param(1, (4, n, 1), float32)
    array = np.arange(12, dtype=np.float32).reshape(4, 3, 1)
    for y in (expand(x, (n, n)), reshape(x, (1, n))):
        assert y.op.batch is not None
        batched = y.op.batch(y, (many,))
        (together,) = evaluate([batched], {many: array}, {"n": 3})
        rows = [evaluate([y], {x: row}, {"n": 3})[0] for row in array]
        np.testing.assert_array_equal(together, np.stack(rows))


@pytest.mark.parametrize("op", TENSOR_OPS, ids=str)
def test_every_op_has_a_batch_rule_with_a_case_or_a_reason(op: Op) -> None:
    if op.name in NO_BATCH:
        assert op.batch is None, f"{op} has a batch rule now: give it a case"
        return
    assert op.batch is not None, f"{op} needs a batch rule or a reason"
    covered = {case.name.split("-")[0] for case in (*ELEMENTWISE, *CASES)}
    assert op.name in covered, f"{op} needs an example in cases.py"
