"""Tests of graph/passes/unwindow.py: overlapping windows become contractions of equal sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.aot.explain import Explanation
from fulgurite.core import shape as sizes
from fulgurite.core.dtype import DType, bfloat16, float64, int32
from fulgurite.core.node import Node, toposort
from fulgurite.core.ops.effect import CONTIGUOUS
from fulgurite.core.ops.elementwise import MAX, MUL
from fulgurite.core.ops.leaf import SINK, param, variable
from fulgurite.core.ops.movement import (
    UNWINDOW,
    expand,
    flip,
    pad,
    permute,
    reshape,
    shrink,
    unwindow,
)
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.core.verify import verify
from fulgurite.graph.passes.unwindow import unwindow as unwindow_pass
from fulgurite.runtime.host.evaluate import evaluate
from tests.properties import arithmetic, program

Array = np.ndarray[Any, Any]
CONV: list[Any] = [None, fg.conv1d, fg.conv2d, fg.conv3d]
TRANSPOSE: list[Any] = [None, fg.conv_transpose1d, fg.conv_transpose2d, fg.conv_transpose3d]


def whole(seed: int, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
    """Small whole numbers: any order of a sum gives the same bits."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def left(*roots: Node) -> int:
    """How many UNWINDOWs a graph has."""
    return sum(node.op is UNWINDOW for node in toposort(roots))


def _has_windows(report: Explanation) -> bool:
    """True if a kernel of a schedule still sums overlapping windows."""
    return any("unwindow" in kernel for kernel in _kernels(report))


def _kernels(report: Explanation) -> list[str]:
    return [line.split("#")[0] for line in report.stages["schedule"].split("\n")]


def rewritten(root: Node, **variables: int) -> Node:
    """The root after the stage, which keeps the grammar and the value."""
    sink = SINK(root)
    found = unwindow_pass(sink)
    verify(found, "tensor", "overlap")
    params = {node for node in toposort([sink, found]) if node.op.name == "param"}
    arrays = {p: whole(p.arg[0], _sizes(p, variables), p.dtype.numpy) for p in params}
    (before,), (after,) = (evaluate([r], arrays, variables) for r in (root, found.src[0]))
    assert before.dtype == after.dtype
    np.testing.assert_array_equal(before, after)
    return found.src[0]


def _sizes(node: Node, variables: dict[str, int]) -> tuple[int, ...]:
    return tuple(n if isinstance(n, int) else variables[n.arg[0]] for n in node.shape)


# --- any windows ---------------------------------------------------------------------------------


@st.composite
def products(draw: st.DrawFn) -> Node:
    """Windows along one to three dimensions, in any order, of a sum of products, partly cut."""
    axes = draw(st.integers(1, 3))
    small = st.integers(1, 4)
    counts = [draw(st.integers(1, 5)) for _ in range(axes)]
    inside = [draw(small) for _ in range(axes)]
    batch, folded, out = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    full = (batch, folded, out, *counts, *inside)
    a_shape = (batch, folded, draw(st.sampled_from([1, out])), *counts, *[1] * axes)
    b_shape = (draw(st.sampled_from([1, batch])), folded, out, *[1] * axes, *inside)
    dtype: DType = draw(st.sampled_from([float64, int32]))
    factors = [expand(param(i, s, dtype), full) for i, s in enumerate((a_shape, b_shape))]
    kind = draw(st.sampled_from(["both", "both", "both", "windows", "weights"]))
    if kind == "both":
        value = MUL(*(factors if draw(st.booleans()) else factors[::-1]))
    else:
        value = factors[0] if kind == "windows" else factors[1]
    if draw(st.booleans()):
        value = MUL(value, expand(param(2, (1, 1, out, *[1] * 2 * axes), dtype), full))
    value = reduce_node("add", value, (1,) if draw(st.booleans()) else ())
    if draw(st.booleans()):
        value = flip(value, (2,))
    if draw(st.booleans()):
        value = pad(value, [(0, 0)] * 2 + [(1, 0)] + [(0, 0)] * 2 * axes)
    order = draw(st.permutations(range(3 + axes)))
    value = permute(value, (*order, *range(3 + axes, 3 + 2 * axes)))
    wanted = []
    for d in reversed(range(axes)):
        stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        least = (counts[d] - 1) * stride + (inside[d] - 1) * dilation + 1
        length = least + draw(st.integers(0, 2))
        value = unwindow(value, order.index(3 + d), length, stride, dilation)
        wanted.append((order.index(3 + d), length))
    cuts = [(0, n) for n in value.shape]
    for axis, length in wanted:
        start = draw(st.integers(0, length - 1))
        cuts[axis] = (start, draw(st.integers(start + 1, length)))
    return shrink(value, cuts) if draw(st.booleans()) else value


@pytest.mark.device("none")
@arithmetic
@given(products())
def test_windows_of_products_are_summed_with_none_left_and_equal_values(root: Node) -> None:
    assert left(rewritten(root)) == 0


@st.composite
def merged(draw: st.DrawFn) -> Node:
    """Windows of a product whose dimensions were merged, split or moved before and after it."""
    small = st.integers(1, 3)
    parts = [draw(small) for _ in range(4)]  # of the windows' number, and of their size
    count, size = parts[0] * parts[1], parts[2] * parts[3]
    full = (draw(st.integers(1, 2)), count, size)

    def regrouped(value: Node, order: list[int]) -> Node:
        """Windows as three dimensions, whichever way they are kept as five."""
        value = permute(value, (0, *[order.index(d) + 1 for d in range(4)]))
        return reshape(value, full)

    factors = []
    for i, varies in enumerate(((1, 1, 0, 0), (0, 0, 1, 1))):
        kept = [draw(st.integers(0, 1)) for _ in range(4)] if draw(st.booleans()) else varies
        order = draw(st.permutations(range(4)))
        mine = [parts[d] if kept[d] else 1 for d in order]
        stored = param(i, (full[0], *mine), float64)
        factors.append(expand(stored, (full[0], *[parts[d] for d in order])))
        factors[i] = regrouped(factors[i], order)
    value = MUL(*factors)
    if draw(st.booleans()):
        wide = (full[0], *parts)
        value = reshape(
            MUL(reshape(value, wide), expand(param(2, (1, *parts), float64), wide)), full
        )
    stride, dilation = draw(small), draw(small)
    length = (count - 1) * stride + (size - 1) * dilation + 1 + draw(st.integers(0, 2))
    value = unwindow(value, 1, length, stride, dilation)
    start = draw(st.integers(0, length - 1))
    cuts = [(0, full[0]), (start, draw(st.integers(start + 1, length)))]
    return shrink(value, cuts) if draw(st.booleans()) else value


@pytest.mark.device("none")
@arithmetic
@given(merged())
def test_dimensions_that_were_merged_or_split_add_up_to_the_same(root: Node) -> None:
    rewritten(root)


def test_windows_with_numbers_of_their_own_are_a_few_slices_or_stay_as_they_are() -> None:
    few = rewritten(unwindow(param(0, (2, 5, 3), float64), 1, 7))
    assert {n.op.name for n in toposort([few])} & {"unwindow", "reduce"} == set()
    sink = SINK(unwindow(param(0, (2, 5, 30), float64), 1, 34))
    assert unwindow_pass(sink) is sink
    both = expand(param(1, (2, 5, 1), float64), (2, 5, 30))
    assert left(rewritten(unwindow(MUL(param(0, (2, 5, 30), float64), both), 1, 34))) == 1
    assert left(rewritten(unwindow(MAX(param(0, (2, 5, 30), float64), both), 1, 34))) == 1


@pytest.mark.device("none")
@given(st.data())
def test_slices_of_any_windows_add_up_to_the_same(data: st.DataObject) -> None:
    draw = data.draw
    stride, dilation, size = (draw(st.integers(1, 4)) for _ in range(3))
    count = draw(st.integers(1, 6))
    length = (count - 1) * stride + (size - 1) * dilation + 1 + draw(st.integers(0, 3))
    start = draw(st.integers(0, length - 1))
    stop = draw(st.integers(start + 1, length))
    root = unwindow(param(0, (2, count, size), float64), 1, length, stride, dilation)
    rewritten(shrink(root, [(0, 2), (start, stop)]))


def test_of_a_chain_what_can_be_summed_is() -> None:
    wide = (2, 15, 6, 13, 14)
    rows, both = param(0, (2, 15, 6, 1, 14), float64), param(1, (2, 1, 1, 13, 1), float64)
    value = MUL(expand(rows, wide), expand(both, wide))  # rows vary inside their windows
    assert left(rewritten(unwindow(unwindow(value, 2, 19), 1, 27))) == 1
    cut = shrink(unwindow(unwindow(value, 2, 19), 1, 27), [(1, 2), (1, 26), (2, 18)])
    assert left(rewritten(cut)) == 1


def test_windows_of_windows_of_one_dimension_are_cut_once() -> None:
    value = expand(param(0, (4, 1, 1), float64), (4, 3, 2))
    chain = unwindow(unwindow(value, 0, 5), 0, 11, 2)
    assert left(rewritten(shrink(chain, [(1, 6)]))) == 0


def test_windows_that_do_not_meet_are_only_moved() -> None:
    for stride, dilation in ((3, 1), (5, 2), (4, 1)):
        root = unwindow(param(0, (2, 4, 3), float64), 1, 20, stride, dilation)
        found = rewritten(root)
        assert {n.op.family for n in toposort([found])} <= {"movement", "leaf"}, stride


def test_few_long_windows_are_summed_over_the_windows() -> None:
    full = (3, 40, 2)
    a, b = param(0, (3, 1, 2), float64), param(1, (1, 40, 2), float64)
    value = permute(MUL(expand(a, full), expand(b, full)), (0, 2, 1))
    found = rewritten(unwindow(value, 0, 42))
    sums = [n for n in toposort([found]) if n.op.name == "reduce"]
    assert [n.src[0].shape[d] for n in sums for d in n.arg[1]] == [3]


def test_a_batch_of_variable_size_is_no_hindrance_but_windows_of_it_stay() -> None:
    n = variable("n", 3, 9)
    a, b = param(0, (n, 5, 1), float64), param(1, (1, 1, 3), float64)
    value = MUL(expand(a, (n, 5, 3)), expand(b, (n, 5, 3)))
    assert left(rewritten(unwindow(value, 1, 7), n=4)) == 0
    swapped = permute(value, (1, 0, 2))
    root = unwindow(swapped, 1, 12)
    assert unwindow_pass(SINK(root)) is SINK(root)


def test_small_floats_are_added_in_float32() -> None:
    full = (256, 256)
    value = expand(param(0, (256, 1), bfloat16), full)
    (found,) = evaluate(
        [unwindow_pass(SINK(unwindow(value, 0, 511))).src[0]],
        {param(0, (256, 1), bfloat16): np.ones((256, 1), bfloat16.numpy)},
    )
    assert found.astype(np.float32).max() == 256


def test_even_windows_that_begin_between_strides_take_no_more_products() -> None:
    full = (8, 6, 5, 4)
    a, b = param(0, (8, 6, 5, 1), float64), param(1, (8, 1, 1, 4), float64)
    value = reshape(reduce_node("add", MUL(expand(a, full), expand(b, full)), (0,)), full[1:])
    found = rewritten(shrink(unwindow(value, 0, 14, 2), [(1, 13), (0, 5)]))
    (product,) = [n for n in toposort([found]) if n.op is MUL]
    assert sizes.prod(product.shape) == 8 * 5 * 7 * 2 * 2  # of 14 results, each has 2 taps


def test_nothing_of_no_size_is_summed() -> None:
    empty = expand(param(0, (0, 4, 1), float64), (0, 4, 3))
    assert left(rewritten(unwindow(empty, 1, 6))) == 1


def test_nothing_in_another_shape_between_zeros_is_summed() -> None:
    nothing = reshape(param(0, (3, 0), float64), (0, 3))
    rewritten(unwindow(pad(nothing, [(4, 0), (0, 0)]), 0, 6))


# --- convolutions --------------------------------------------------------------------------------


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes, strides and so on of one convolution."""
    n, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    inner, outer = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    window = [draw(st.integers(1, 4)) for _ in range(n)]
    stride = [draw(st.integers(1, 3)) for _ in range(n)]
    dilation = [draw(st.integers(1, 3)) for _ in range(n)]
    padding = [draw(st.integers(0, 3)) for _ in range(n)]
    space = [
        max(1, (k - 1) * d + 1 - 2 * p) + draw(st.integers(0, 5))
        for k, d, p in zip(window, dilation, padding, strict=True)
    ]
    return {
        "x": (draw(st.integers(1, 2)), groups * inner, *space),
        "w": (groups * outer, inner, *window),
        "how": {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups},
    }


def loss(f: Any, how: dict[str, Any]) -> Callable[[fg.Tensor, fg.Tensor], fg.Tensor]:
    """A number whose gradients to image and weights depend on both."""

    def total(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        out: fg.Tensor = f(x, w, **how)
        return (out * fg.Tensor(whole(3, tuple(out.shape)))).sum()

    return total


def conv1(x: fg.Tensor, w: fg.Tensor, **how: Any) -> fg.Tensor:
    """A product at every place."""
    return fg.conv1d(x, w, **how)


def conv2(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    """The same of an image."""
    return fg.conv2d(x.reshape((2, 3, 6, 6)), w[..., None])


def with_windows(make: Callable[[], fg.Tensor]) -> Array:
    """The value as UNWINDOW adds it up."""
    with fg.config(exact=True):
        return make().numpy()


@program
@given(layers())
def test_gradients_of_convolutions_have_no_windows_left_and_equal_values(
    layer: dict[str, Any],
) -> None:
    x, w = fg.Tensor(whole(1, layer["x"])), fg.Tensor(whole(2, layer["w"]))
    total = loss(CONV[x.ndim - 2], layer["how"])
    first = fg.grad(total, 0)(x, w)
    assert not _has_windows(fg.explain(first))
    np.testing.assert_array_equal(first.numpy(), with_windows(lambda: fg.grad(total, 0)(x, w)))


def second(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    total = loss(fg.conv2d, {"stride": 2, "padding": 1})
    found: fg.Tensor = fg.grad(lambda x, w: (fg.grad(total, 1)(x, w) ** 2).sum(), 0)(x, w)
    return found


def mapped(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    total = loss(fg.conv2d, {"padding": 1})
    found: fg.Tensor = fg.vmap(lambda image: fg.grad(total, 0)(image, w))(x.reshape(2, 1, 4, 9, 8))
    return found


def forward(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    total = loss(fg.conv2d, {"dilation": 2})
    (moved,) = fg.jvp(lambda x: fg.grad(total, 0)(x, w), (x,), (x * 2,))[1:]
    along = fg.jvp(lambda w: fg.grad(total, 0)(x, w), (w,), (w * 2,))[1]
    found: fg.Tensor = moved + along
    return found


def transposed(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    found: fg.Tensor = fg.grad(loss(fg.conv_transpose2d, {"stride": 2, "padding": 1}), 0)(x, w)
    return found


@pytest.mark.parametrize("make", [second, mapped, forward, transposed])
def test_derivatives_of_any_order_and_kind_have_no_windows_left(make: Any) -> None:
    x, w = fg.Tensor(whole(1, (2, 4, 9, 8))), fg.Tensor(whole(2, (4, 4, 3, 2)))
    found = make(x, w)
    assert not _has_windows(fg.explain(found))
    np.testing.assert_array_equal(found.numpy(), with_windows(lambda: make(x, w)))


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ({"padding": 1}, ["contract"]),
        ({"padding": 1, "groups": 2}, ["contract"]),
        ({"padding": 1, "dilation": 2}, ["contract"]),
        ({"stride": 2, "padding": 1}, ["contract"]),
        ({"padding": 1, "groups": 4}, ["reduce"]),
    ],
)
def test_the_gradient_to_the_image_is_one_kernel(how: dict[str, Any], kinds: list[str]) -> None:
    x, w = (
        fg.Tensor(whole(1, (2, 4, 8, 8))),
        fg.Tensor(whole(2, (4, 4 // how.get("groups", 1), 3, 3))),
    )
    found = fg.explain(fg.grad(loss(fg.conv2d, how), 0)(x, w))
    assert [kernel.kind for kernel in found.kernels] == kinds
    assert "unwindow" in found.stages


def test_phases_of_deep_sums_are_kernels_of_their_own_and_copied_once() -> None:
    x, w = fg.Tensor(whole(1, (1, 4, 9, 9))), fg.Tensor(whole(2, (64, 4, 3, 3)))
    gradient = fg.grad(loss(fg.conv2d, {"stride": 2, "padding": 1}), 0)
    found = fg.explain(gradient(x, w))
    assert [kernel.kind for kernel in found.kernels] == ["contract", "contract", "map"]
    products = sum(kernel.flops for kernel in found.kernels if kernel.kind == "contract")
    assert products < 2 * 64 * 4 * 5 * 5 * 16  # what they would be with the taps of the longest
    np.testing.assert_array_equal(gradient(x, w).numpy(), with_windows(lambda: gradient(x, w)))


@pytest.mark.parametrize(("stride", "start"), [(2, 0), (2, 1), (3, 2), (2, 3)])
def test_phases_apart_are_equal_wherever_they_begin(stride: int, start: int) -> None:
    full = (40, 6, 5, 4)
    a, b = param(0, (40, 6, 5, 1), float64), param(1, (40, 1, 1, 4 if stride == 3 else 3), float64)
    full = (40, 6, 5, b.shape[3])  # type: ignore[assignment]
    value = reshape(reduce_node("add", MUL(expand(a, full), expand(b, full)), (0,)), full[1:])
    whole_ = unwindow(value, 0, 5 * stride + full[3], stride)
    found = rewritten(shrink(whole_, [(start, whole_.shape[0]), (0, 5)]))
    kept = [n for n in toposort([found]) if n.op is CONTIGUOUS]
    assert len(kept) == stride and not left(found)


def test_pooling_has_no_windows_left_and_equal_gradients() -> None:
    x = fg.Tensor(whole(1, (2, 3, 9, 9)) * 36)
    for pool in (fg.avg_pool2d, fg.max_pool2d):
        for stride in (1, 2, 3):

            def gradient(pool: Any = pool, stride: int = stride) -> fg.Tensor:
                found: fg.Tensor = fg.grad(lambda x: (pool(x, 3, stride) ** 2).sum())(x)
                return found

            assert not _has_windows(fg.explain(gradient()))
            np.testing.assert_allclose(gradient().numpy(), with_windows(gradient), 1e-12, 1e-12)


def tokens(y: fg.Tensor) -> fg.Tensor:
    """Places that attend to one another."""
    n, c, h, w = y.shape
    rows: fg.Tensor = y.reshape((n, c, h * w)).permute(0, 2, 1)
    return (rows @ rows.permute(0, 2, 1)).reshape((n, h, w, h, w)).max(axis=-1)


RELATIVES: dict[str, Callable[[fg.Tensor, fg.Tensor], fg.Tensor]] = {
    "space split": lambda x, w: conv1(x, w).reshape((2, 5, 6, 6)).max(axis=-1),
    "space split in three": lambda x, w: conv1(x, w).reshape((2, 5, 2, 3, 6)).max(axis=3),
    "space split, and padding": lambda x, w: conv1(x, w, padding=3)
        .reshape((2, 5, 6, 7)).max(axis=2),
    "space split, and a stride": lambda x, w: conv1(x, w, stride=3)
        .reshape((2, 5, 3, 4)).max(axis=3),
    "space split twice": lambda x, w: conv1(conv1(x, w).reshape((2, 5, 6, 6))
        .max(axis=-1), w[:, :1].expand(5, 5, 1)).reshape((2, 5, 2, 3)).max(axis=-1),
    "groups of channels": lambda x, w: fg.conv1d(x, w[:3, :1], groups=3)
        .reshape((2, 3, 9, 4)).max(axis=-1),
    "dilation": lambda x, w: fg.conv1d(x, w, dilation=2).reshape((2, 5, 4, 9)).max(axis=2),
    "windows of an image": lambda x, w: conv2(x, w).reshape((2, 5, 3, 2, 3, 2)).max(axis=(3, 5)),
    "adaptive pooling": lambda x, w: fg.adaptive_max_pool2d(conv2(x, w), 2),
    "adaptive pooling in one dimension": lambda x, w: fg.adaptive_max_pool1d(conv1(x, w), 4),
    "pixels into channels": lambda x, w: fg.pixel_unshuffle(conv2(x, w), 2) ** 2,
    "channels into pixels": lambda x, w: fg.pixel_shuffle(conv2(x, w)[:, :4], 2) ** 2,
    "space merged": lambda x, w: conv2(x, w).reshape((2, 5, 36)).max(axis=-1),
    "places as tokens": lambda x, w: tokens(conv2(x, w)),
    "a transposed convolution of a merged product": lambda x, w: fg.conv_transpose1d(
        conv2(x, w).reshape((2, 5, 36)), w, padding=1) ** 2,
    "a transposed convolution of merged repeats": lambda x, w: fg.conv_transpose1d(
        x[:, :, None, :6].expand(2, 3, 4, 6).reshape((2, 3, 24)), w[:3].expand(3, 3, 3)) ** 2,
    "a transposed convolution of split repeats": lambda x, w: fg.conv_transpose2d(
        x[:, :, :1].expand(2, 3, 24).reshape((2, 3, 4, 6)), w[:3, :, None].expand(3, 3, 3, 2)) ** 2,
    "two dimensions of a volume": lambda x, w: fg.conv3d(x.reshape((2, 3, 3, 3, 4)),
        w[..., None, None]).reshape((2, 5, 9, 2, 2)).max(axis=(2, 3)),
    "long windows": lambda x, w: fg.conv2d(x.reshape((2, 3, 6, 6)),
        w[..., None].expand(5, 3, 3, 1)).reshape((2, 5, 4, 2, 3)).max(axis=3),
    "a gradient of a gradient": lambda x, w: fg.grad(
        lambda x: (conv1(x, w).reshape((2, 5, 6, 6)).max(axis=-1) ** 3).sum())(x),
}  # fmt: skip


@pytest.mark.parametrize("name", RELATIVES)
def test_what_is_split_or_merged_behind_a_convolution_has_equal_gradients(name: str) -> None:
    x, w = fg.Tensor(whole(1, (2, 3, 36))), fg.Tensor(whole(2, (5, 3, 1)))

    def total(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        out = RELATIVES[name](x, w)
        return (out * fg.Tensor(whole(3, tuple(out.shape)))).sum()

    def gradients() -> fg.Tensor:
        found: fg.Tensor = fg.concatenate([g.reshape(-1) for g in fg.grad(total, (0, 1))(x, w)])
        return found

    np.testing.assert_array_equal(gradients().numpy(), with_windows(gradients))


def test_exact_sums_are_left_in_the_order_they_are_written_in() -> None:
    x, w = fg.Tensor(whole(1, (2, 4, 8, 8))), fg.Tensor(whole(2, (4, 4, 3, 3)))
    with fg.config(exact=True):
        found = fg.explain(fg.grad(loss(fg.conv2d, {}), 0)(x, w))
    assert "unwindow" not in found.stages and _has_windows(found)


def test_a_gradient_inside_a_loop_has_no_windows_left() -> None:
    x, w = fg.Tensor(whole(1, (1, 4, 6, 6))), fg.Tensor(whole(2, (4, 4, 3, 3)))
    gradient = fg.grad(lambda x: (fg.conv2d(x, w, padding=1) ** 2).sum())

    def run() -> fg.Tensor:
        found: fg.Tensor = fg.scan(lambda c, _: (c - gradient(c), None), x, length=2)[0]
        return found

    inner = [k.kind for kernel in fg.explain(run()).kernels for k in kernel.inner]
    assert inner.count("contract") == 2 and "reduce" not in inner
    np.testing.assert_array_equal(run().numpy(), with_windows(run))


def test_windows_of_windows_that_the_next_sum_takes_away_are_summed() -> None:
    y = fg.Tensor(np.arange(3.0).reshape(1, 3))
    found = fg.grad(lambda y: fg.avg_pool1d(y.unfold(1, 3, 2), 3, ceil_mode=True).sum())(y)
    np.testing.assert_allclose(found.numpy(), np.full((1, 3), 1 / 3))
