"""What is read again and again is stored once: a pool under the windows of a convolution."""

from __future__ import annotations

import numpy as np

import fulgurite as fg
from fulgurite.core.node import Shape, toposort
from fulgurite.core.ops.effect import CONTIGUOUS
from fulgurite.core.ops.leaf import SINK
from fulgurite.core.passes import show
from fulgurite.graph.ir.lower import IndexKernel
from fulgurite.graph.passes.materialize_operands import materialize_operands
from fulgurite.tensor import wrap

RNG = np.random.default_rng(2)


def texts(y: fg.Tensor) -> list[tuple[str, str]]:
    """The kinds of a value's kernels and their text."""
    with fg.config(tier="native"):
        kernels = [item.kernel for item in fg.schedule(y).items]
    return [
        (k.kind, show(k.lowered.body)) for k in kernels if isinstance(k.lowered, IndexKernel)
    ]  # fmt: skip


def normal(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.standard_normal(shape).astype(np.float32))


def test_a_pool_is_stored_before_the_windows_of_a_convolution() -> None:
    x, w = normal(1, 8, 32, 32), normal(16, 8, 3, 3)
    found = texts(fg.conv2d(fg.maximum(x[..., ::2], x[..., 1::2]), w, padding=1))
    assert [" max " in text for kind, text in found if kind == "contract"] == [False]


def test_what_is_only_moved_before_a_loop_is_laid_out_by_a_kernel_and_constants_are_not() -> None:
    rows = normal(3, 5)
    value = fg.scan(lambda c, x: (c + x, None), fg.zeros(3), rows.T)[0]
    with fg.config(tier="native"):
        assert [item.kernel.kind for item in fg.schedule(value).items] == ["map", "loop"]
    np.testing.assert_allclose(value.numpy(), rows.numpy().sum(axis=1), rtol=1e-5)


def heads(merge: tuple[int, ...]) -> list[fg.Tensor]:
    """A product over all heads side by side, and sums of what each head made."""
    a, b, w = (normal(*shape).cast("bfloat16") for shape in ((2, 3, 8, 4), (2, 3, 4, 16), (48, 32)))
    each = fg.realize(a)[0] @ b
    return [each.permute(*merge).reshape(-1, 48) @ w, each.cast("float32").sum(axis=-1)]


def rows_first(tensors: list[fg.Tensor]) -> tuple[list[fg.Tensor], list[Shape]]:
    """The same values as tensor cores want them, and what is stored for that."""
    sink = SINK(*[t.entry.node for t in tensors])
    found = materialize_operands(sink, toposort([sink]), 64)
    stored = [n.shape for n in toposort([found]) if n.op is CONTIGUOUS]
    return [wrap(root) for root in found.src], stored


def test_what_products_read_in_rows_is_stored_in_rows() -> None:
    plain = heads((0, 2, 1, 3))
    changed, stored = rows_first(plain)
    assert (2, 8, 3, 16) in stored
    for a, b in zip(fg.realize(*plain), fg.realize(*changed), strict=True):
        np.testing.assert_allclose(
            a.cast("float32").numpy(), b.cast("float32").numpy(), rtol=2e-2, atol=2e-2
        )


def test_rows_that_are_turned_themselves_and_results_stay_as_they_are() -> None:
    assert (2, 8, 16, 3) not in rows_first(heads((0, 2, 3, 1)))[1]
    product, total = heads((0, 2, 1, 3))
    each = product.entry.node
    while each.shape != (2, 3, 8, 16) or each.dtype.itemsize != 2:
        each = next(n for n in toposort([each])[::-1] if n.shape == (2, 3, 8, 16))
    assert (2, 8, 3, 16) not in rows_first([product, total, wrap(each)])[1]


def weights_of(turned: bool) -> tuple[fg.Tensor, list[fg.Tensor]]:
    """A product in 16 bits with weights as they lie, or turned."""
    x, w = normal(128, 40).realize(), normal(*((24, 40) if turned else (40, 24))).realize()
    with fg.autocast("bfloat16"):
        return x @ (w.T if turned else w), [x, w]


def test_rounded_weights_are_stored_as_they_lie() -> None:
    for turned in (True, False):
        product, (_, w) = weights_of(turned)
        sink = SINK(product.entry.node)
        found = materialize_operands(sink, toposort([sink]), 64)
        stored = [n.shape for n in toposort([found]) if n.op is CONTIGUOUS]
        assert stored == [w.shape]
        np.testing.assert_array_equal(
            wrap(found.src[0]).astype("float32").numpy(), product.astype("float32").numpy()
        )
