"""Tests of codegen/cpu/render.py: every kernel has a native form, but for named exceptions."""

from collections import Counter

import pytest

import fulgurite as fg
from fulgurite.core.node import Node, toposort
from fulgurite.core.operators import OPS
from fulgurite.core.ops.leaf import PARAM, SINK
from fulgurite.graph.ir.kernel import param_dtypes
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.kernel.transform.passes import TypedKernel
from tests import fuzz
from tests.graph.scheduling import schedule
from tests.samples import sample

pytest.importorskip("llvmlite")

from fulgurite.codegen.cpu.render import render
from fulgurite.codegen.cpu.target import target
from fulgurite.runtime.cpu.device import CpuDevice
from fulgurite.runtime.device import get_device

FAMILIES = ("elementwise", "movement", "reduce", "indexing", "random")
COMPLEX = ("complex numbers",)  # functions with branch cuts, products over an axis: NumPy's
NOT_AFFINE = ("mixes variable sizes", "windows of variable size", "does not run in order")
# no kernel on any device: their place in memory is no polynomial of fixed sizes


def reasons(node: Node) -> list[str]:
    """Why kernels of a node have no native form."""
    inputs = 1 + max([n.arg[0] for n in toposort([node]) if n.op is PARAM], default=-1)
    found = []
    for item in schedule(SINK(node), inputs).items:
        kernel = item.kernel
        if kernel.kind == "host":
            found.append("a host function")
            continue
        try:
            render(TypedKernel(kernel.indexed, param_dtypes(kernel)), target())
        except CannotLower as reason:
            found.append(str(reason))
    return found


@pytest.mark.parametrize("op", [o for o in OPS.values() if o.family in FAMILIES], ids=str)
def test_every_op_of_every_dtype_renders(op: object) -> None:
    for node in sample(op):  # type: ignore[arg-type]
        for reason in reasons(node):
            assert any(known in reason for known in (*COMPLEX, *NOT_AFFINE)), f"{node!r}: {reason}"


def test_random_graphs_run_without_interpretation() -> None:
    fg.clear_caches()
    device = get_device("cpu")
    assert isinstance(device, CpuDevice)
    before, native = len(device.interpreted), device.native
    for seed in range(60):
        fuzz.check(seed, device="cpu", smallest=False)
    found = Counter(line.partition(": ")[2] for line in device.interpreted[before:])
    allowed = ("a host function", *COMPLEX, *NOT_AFFINE)
    assert not [reason for reason in found if not any(known in reason for known in allowed)]
    assert device.native - native > 100
