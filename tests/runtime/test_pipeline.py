"""Tests of runtime/pipeline.py: every pass is listed, fires somewhere, and keeps every value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.core.ops.collective import ALL_GATHER, SHARD
from fulgurite.core.ops.leaf import SINK
from fulgurite.core.passes import Pass, Watch, listed
from fulgurite.errors import ArgumentError
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Kernel
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.graph.tables import GRAPH
from fulgurite.kernel.stream.price import find_stream
from fulgurite.runtime.device import get_device
from fulgurite.runtime.donation import candidates
from fulgurite.runtime.pipeline import PIPELINE, Context, run_pipeline
from fulgurite.runtime.realize import value_node
from fulgurite.runtime.sizes.growth import appends_of
from fulgurite.tensor import wrap
from tests.conftest import Golden
from tests.graph.searching import lowered

pytest.importorskip("llvmlite")

Tensors = Sequence[fg.Tensor]
NAMES = list(dict.fromkeys([one.name for _, one in listed(PIPELINE)]))
PLAIN = {"search": False, "simplify": False, "device": "reference"}


@dataclass(frozen=True)
class Sample:
    """A graph for which a pass fires."""

    make: Callable[[], Tensors]
    options: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    is_fold: bool = False  # True if the whole graph is tried as one fold


def numbers(seed: int, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> fg.Tensor:
    drawn = np.random.default_rng(seed).standard_normal(shape) * scale
    return fg.Tensor(drawn.astype(dtype))


def padded_bytes() -> fg.Tensor:
    bytes_ = fg.Tensor(np.arange(3 * 4 * 8, dtype=np.uint8).reshape(3, 4, 8))
    return fg.pad(bytes_, ((1, 0), (1, 2), (0, 0)), constant_values=7)


def attention(*shape: int, dtype: Any = np.float32) -> fg.Tensor:
    q, k, v = (numbers(i, *shape, dtype=dtype) for i in range(3))
    return fg.softmax(q @ k.mT, axis=-1) @ v


def attention_gradients(rows: int, size: int) -> Tensors:
    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        return (fg.softmax(q @ k.mT, axis=-1) @ v).square().sum()

    return list(fg.grad(loss, (0, 1, 2))(*[numbers(i, 2, rows, size) for i in range(3)]))


def shared_keys() -> Tensors:
    """Gradients of attention whose heads share keys and values."""
    g = numbers(4, 2, 4, 160, 32)

    def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
        return (fg.softmax(q @ k.mT * 0.2, axis=-1) @ v * g).sum()

    given = numbers(1, 2, 4, 160, 32), numbers(2, 2, 1, 160, 32), numbers(3, 2, 1, 160, 32)
    return list(fg.grad(loss, (0, 1, 2))(*given))


def with_a_kernel() -> Tensors:
    """A kernel of the user that stands in for an expression."""

    def eye(a: fg.Tensor) -> fg.Tensor:
        return fg.where(fg.arange(a.shape[0])[:, None] == fg.arange(a.shape[0])[None, :], 1.0, 0.0)

    def diagonal(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
        return (a @ b * eye(a)).sum(axis=1)

    @fg.kernel(out=lambda a, b: a.shape[:1], pattern=diagonal)
    def diagonal_of_product(i: Any, *, a: Any, b: Any) -> Any:
        return fg.sum_over(lambda k: a[i, k] * b[k, i], a.shape[1])

    return [diagonal(numbers(1, 128, 128), numbers(2, 128, 128))]


def updated() -> Tensors:
    x = numbers(1, 4, 8).realize()
    x[2] = fg.ones(8) * 3
    return [x]


def longer() -> Tensors:
    """A value with a row behind it along an inner axis, and what is computed of both."""
    rows = fg.concat([numbers(1, 3, 4, 2).realize(), numbers(2, 3, 1, 2) * 2], axis=1)
    return [rows, rows.sum(axis=1)]


def reversed_state() -> Tensors:
    """A state whose every element is made of another one: it cannot be written in place."""
    x = numbers(1, 8).realize()
    x.assign(fg.flip(x, 0) * 2)
    return [x]


def ended_rows() -> fg.Tensor:
    scores = numbers(1, 2, 6, 4) @ numbers(2, 2, 4, 9)
    powers = fg.exp(fg.concatenate([scores, numbers(3, 2, 6, 1)], axis=-1))
    return (powers / powers.sum(axis=-1, keepdims=True))[..., :9]


def grouped_queries() -> Tensors:
    def loss(q: fg.Tensor, k: fg.Tensor) -> fg.Tensor:
        return fg.softmax(q @ k.repeat_interleave(2, 1).mT, axis=-1).square().sum()

    return list(fg.grad(loss, (0, 1))(numbers(1, 1, 4, 6, 4), numbers(2, 1, 2, 6, 4)))


def softmax_gradient() -> Tensors:
    weight = numbers(2, 3, 33)

    def loss(s: fg.Tensor) -> fg.Tensor:
        powers = fg.exp(s - s.max(axis=-1, keepdims=True))
        return (powers / powers.sum(axis=-1, keepdims=True) * weight).sum()

    return [fg.grad(loss)(numbers(1, 3, 33))]


def scaled_sums() -> Tensors:
    x = numbers(1, 4, 6)
    return [(x * numbers(i, 4, 1)).sum(axis=-1) for i in (2, 3, 4)]


def weighed() -> Tensors:
    a, b, g = numbers(1, 3, 8, 10), numbers(2, 3, 10, 4), numbers(3, 3, 8, 4)
    return [a @ b, (a * fg.grad(lambda a: (a @ b * g).sum())(a)).sum(axis=-1)]


def slopes() -> Tensors:
    def loss(q: fg.Tensor, k: fg.Tensor, s: fg.Tensor) -> fg.Tensor:
        return fg.softmax(q @ k.mT * s, axis=-1).square().sum()

    given = numbers(1, 2, 16, 8), numbers(2, 2, 16, 8), numbers(3, 2, 1, 1)
    return list(fg.grad(loss, (0, 1, 2))(*given))


def layers() -> Tensors:
    def loss(*given: fg.Tensor) -> fg.Tensor:
        x, *weights = given
        for w in weights:
            x = fg.tanh(x @ w)
        return x.square().sum()

    return list(fg.grad(loss, (1, 2, 3))(*[numbers(i, 64, 64, scale=0.125) for i in range(4)]))


def classes(log: bool) -> fg.Tensor:
    scores = numbers(1, 6, 4) @ numbers(2, 4, 32)
    if log:
        return fg.exp(scores - fg.log(fg.exp(scores).sum(axis=-1, keepdims=True))) @ numbers(
            3, 32, 4
        )
    hit = fg.arange(32)[None, :] == fg.Tensor(np.arange(6))[:, None]
    return fg.where(hit, scores, 0.0).sum(axis=-1) / fg.exp(scores).sum(axis=-1)


def entropy() -> fg.Tensor:
    scores = numbers(1, 6, 4) @ numbers(2, 4, 32)
    return -(fg.softmax(scores, axis=-1) * fg.log_softmax(scores, axis=-1)).sum(axis=-1)


def masked() -> fg.Tensor:
    mask = fg.Tensor(np.random.default_rng(3).random((6, 32)) < 0.5)
    scores = fg.where(mask, numbers(1, 6, 4) @ numbers(2, 4, 32), 0.0)
    return fg.where(mask.any(axis=-1), fg.exp(scores).sum(axis=-1), 0.0)


def around_zeros() -> Tensors:
    x, y = (fg.Tensor(np.arange(n, dtype=np.uint8).reshape(8, 8)) for n in (64, 64))
    return [(x.astype(fg.int32) - 128) @ (y.astype(fg.int32) - 3)]


def called() -> Tensors:
    from tests.test_kernel import native

    return list(native()(numbers(1, 3, 4).T))


def two_convolutions() -> Tensors:
    """Images between kernels: the first convolution's, which the second one reads."""
    first = fg.conv2d(numbers(1, 2, 3, 6, 6), numbers(2, 4, 3, 3, 3))
    return [fg.conv2d(fg.relu(first), numbers(3, 5, 4, 3, 3))]


def one_hot_rows() -> Tensors:
    """Sums of rows with one element each, as the gradient of a choice has them."""
    hit = fg.arange(32)[None, :] == fg.Tensor(np.arange(6) * 5)[:, None]
    return [fg.where(hit, numbers(1, 6, 1), 0.0).sum(axis=-1)]


def joined_sums() -> Tensors:
    """Sums that are stored side by side."""
    parts = [numbers(i, 4, 3, 32).sum(axis=1).contiguous() for i in (1, 2)]
    pads = [((0, 4), (0, 0)), ((4, 0), (0, 0))]
    both = fg.pad(parts[0], pads[0]) + fg.pad(parts[1], pads[1])
    return [both.contiguous() @ numbers(3, 32, 5)]


def varying() -> Tensors:
    n = fg.Var("n", 1, 8)
    return [numbers(1, 3, 8)[:, : n.bind(5)] * 2]


def split_rows() -> Tensors:
    """Sums over a dimension that a mesh splits; the mesh has one rank, so that one can run it."""
    rows = SHARD(numbers(1, 4, 6).node, arg=((("data", 1),), (("data",), ()), False))
    return [wrap(rows).sum(axis=0)]


def gathered_columns() -> Tensors:
    """Columns that are joined over a mesh of one rank."""
    node = (numbers(1, 4, 6) * 2).node
    return [wrap(ALL_GATHER(node, arg=((("data", 1),), ("data",), 1))) + 1]


def sum_and_product() -> Tensors:
    """A sum over ranks that is needed only after a product."""
    (total,) = split_rows()
    return [total + (numbers(2, 5, 9) @ numbers(3, 9, 6)).max(axis=0)]


def shuffled(x: fg.Tensor) -> fg.Tensor:
    """Channels in turns, then across memory."""
    return (fg.reshape(fg.permute_dims(x, (1, 0, 2)), (-1, x.shape[-1])).T * 2).contiguous()


def many_ops() -> Tensors:
    """A tiny graph of more nodes than are left as they are built."""
    x = numbers(1, 3)
    for _ in range(GRAPH.unsimplified_nodes + 1):
        x = fg.sin(x)
    return [x]


def rectified() -> Tensors:
    """A rectifier and its gradient."""
    x = numbers(1, 8)
    y, pull = fg.vjp(fg.relu, x)
    return [y, pull(numbers(2, 8))[0]]


def normalised_rows() -> Tensors:
    """Gradients of a normalisation, and of the bias before it."""

    def loss(x: fg.Tensor, bias: fg.Tensor, scale: fg.Tensor, shift: fg.Tensor) -> fg.Tensor:
        y = fg.layer_norm(x + bias, (64,), scale, shift)
        return (y * numbers(7, 4, 256, 64)).sum()

    given = numbers(0, 4, 256, 64), *[numbers(i, 64) for i in (1, 2, 3)]
    return list(fg.grad(loss, (0, 1, 2, 3))(*given))


def channels_last(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    """A depthwise convolution of (batch, length, channels) with (window, channels) weights."""
    kernel = fg.expand_dims(fg.moveaxis(w, -1, 0), 1)
    return fg.moveaxis(fg.conv1d(fg.moveaxis(x, -1, 1), kernel, groups=len(kernel)), 1, -1)


def joined_heads() -> fg.Tensor:
    """Heads side by side in rows, and a product with these."""
    heads = numbers(1, 3, 5, 7) @ numbers(2, 3, 7, 4)
    return fg.permute_dims(heads, (1, 0, 2)).reshape(5, 12) @ numbers(3, 12, 6)


SAMPLES: dict[str, Sample] = {
    "tiny_as_built": Sample(lambda: [numbers(1, 3) * 2], {"tier": "auto"}),
    "partition": Sample(split_rows),
    "append_in_place": Sample(longer),
    "user_kernels": Sample(with_a_kernel),
    "simplify": Sample(lambda: [numbers(1, 3, 4) * 1 + 0]),
    "unwindow": Sample(
        lambda: [fg.grad(lambda a: fg.conv1d(a, numbers(2, 2, 2, 2)).sum())(numbers(1, 1, 2, 5))]
    ),
    "distinct_roots": Sample(lambda: [numbers(1, 3) * 2], context={"body": True}),
    "tiny": Sample(many_ops, {"tier": "auto"}),
    "assign_updates": Sample(updated),
    "split_concat": Sample(lambda: [ended_rows()]),
    "split_sums": Sample(lambda: [(numbers(1, 4, 1, 6) * numbers(2, 1, 5, 6)
                                   + numbers(3, 4, 1, 6) * numbers(4, 1, 5, 6)).sum(axis=-1)]),
    "factor_sums": Sample(scaled_sums),
    "ungroup_broadcast": Sample(grouped_queries),
    "cancel": Sample(softmax_gradient),
    "interchange_sums": Sample(weighed),
    "split_reduce": Sample(slopes),
    "widen_row_sums": Sample(lambda: [numbers(1, 3, 16, dtype=np.float16).sum(axis=-1)]),
    "mask_from_result": Sample(rectified, context={"joins": True}),
    "drop_empty": Sample(lambda: [fg.Tensor(np.ones((0, 3), np.float32)).sum(axis=0) + 1],
                         {"simplify": False}),
    "expand_zero_points": Sample(around_zeros),
    "materialize_operands": Sample(called),
    "pack_collectives": Sample(gathered_columns, context={"collectives": True}),
    "start_and_wait": Sample(split_rows),
    "copy_leaf_roots": Sample(lambda: [fg.arange(5)]),
    "fuse": Sample(lambda: [fg.softmax(numbers(1, 3, 8), axis=-1)]),
    "store_views": Sample(lambda: [shuffled(numbers(1, 2, 48, 288))]),
    "store_as_read": Sample(lambda: [joined_heads()]),
    "choose_kernels": Sample(lambda: [attention(2, 64, 16)]),
    "widen_small_floats": Sample(lambda: [attention(6, 4, dtype=np.float16)], is_fold=True),
    "fold_conditions_as_floats": Sample(lambda: [masked()], is_fold=True),
    "gather_one_hot": Sample(lambda: [classes(log=False)], is_fold=True),
    "stabilize_logsumexp": Sample(lambda: [classes(log=True)], is_fold=True),
    "distribute_bases": Sample(lambda: [entropy()], is_fold=True),
    "separate_folds": Sample(lambda: [attention(6, 4)], is_fold=True),
    "peel": Sample(lambda: [ended_rows()], is_fold=True),
    "split_merged_axes": Sample(shared_keys),
    "share_rows": Sample(lambda: attention_gradients(64, 16)),
    "share_folded": Sample(lambda: [attention(6, 4)], is_fold=True),
    "reject_early": Sample(lambda: [attention(6, 4)], is_fold=True),
    "saturate": Sample(lambda: [attention(6, 4)], is_fold=True),
    "assemble": Sample(lambda: [attention(6, 4)], is_fold=True),
    "join_column_sums": Sample(normalised_rows, context={"joins": True}),
    "join_small_maps": Sample(
        lambda: [numbers(i, 40) + float(i) for i in range(3)], {}, {"joins": True}
    ),
    "tile_rows": Sample(
        lambda: [fg.softmax(numbers(1, 64, 300) @ numbers(2, 300, 40), axis=-1).sum(axis=0)],
        {"strip_bytes": 4096},
    ),
    "schedule": Sample(lambda: [fg.softmax(numbers(1, 3, 8), axis=-1)]),
    "pick_one_hot": Sample(one_hot_rows),
    "reorder": Sample(layers),
    "channels_last": Sample(two_convolutions, {"channels_last": "on"}),
    "concat_in_place": Sample(joined_sums, {}, {"joins": True}),
    "hide_latency": Sample(sum_and_product),
    "lower": Sample(lambda: [fg.softmax(numbers(1, 3, 8), axis=-1)]),
    "alias": Sample(updated),
    "copy_back": Sample(reversed_state, context={"copies_back": True}),
    "plan_memory": Sample(lambda: [(numbers(1, 8, 16) @ numbers(2, 16, 8)).sum(axis=0)]),
    "compile": Sample(lambda: [numbers(1, 8, 16) @ numbers(2, 16, 8)]),
    "complex_to_real": Sample(lambda: [numbers(1, 4, dtype=np.complex64) * 2]),
    "pad_dynamic_axes": Sample(varying),
    "move_as_bits": Sample(lambda: [fg.flip(numbers(1, 3, 4, dtype=np.float16), 0)]),
    "merge_axes": Sample(lambda: [numbers(1, 3, 4) * 2]),
    "stream": Sample(lambda: [attention(2, 64, 16)]),
    "irregular": Sample(lambda: [fg.cumsum(numbers(1, 3, 8), 1) * 2]),
    "drop_implied_masks": Sample(
        lambda: [fg.pad(fg.exp(numbers(1, 6, 9) / 3.0 + 0.7), ((1, 2), (0, 1)))]
    ),
    "depthwise": Sample(lambda: [channels_last(numbers(1, 1, 9, 8), numbers(2, 3, 8))]),
    "gemm": Sample(lambda: [numbers(1, 8, 16) @ numbers(2, 16, 8)]),
    "concat": Sample(lambda: [fg.concatenate([numbers(1, 4, 6), numbers(2, 3, 6)])]),
    "move_as_words": Sample(lambda: [padded_bytes()]),
    "merge_masked_axes": Sample(lambda: [fg.pad(numbers(1, 3, 4, 5), ((0, 0), (1, 1), (0, 0)))]),
    "relayout": Sample(lambda: [fg.concatenate([numbers(1, 4, 6), 2 * numbers(2, 3, 6)])]),
    "unroll_short_axes": Sample(lambda: [numbers(1, 50, 3) * numbers(2, 3)], {"vectors": "sse2"}),
    "unroll_and_jam": Sample(lambda: [fg.abs(numbers(1, 3, 400) - numbers(2, 400)).sum(axis=-1)]),
    "split_reduction": Sample(lambda: [numbers(1, 300, 400).sum()]),
    "loops": Sample(lambda: [fg.softmax(numbers(1, 3, 8), axis=-1)]),
    "link": Sample(lambda: [numbers(1, 8, 16) @ numbers(2, 16, 8)]),
}  # fmt: skip


def shown(one: Pass, text: str) -> str:
    """A text without the user's lines; of code, which is long, its functions alone."""
    if one.level_out.name == "code":
        return "\n".join(re.findall(r"^define .*@(\w+)", text, re.M))
    return re.sub(r" +# .*", "", text)


def fired(name: str, tensors: Tensors, sample: Sample) -> tuple[str, str] | None:
    """The texts before and after a pass, where it first changes something."""
    found: list[tuple[str, str]] = []

    def see(one: Pass, before: Any, after: Any) -> None:
        if one.name == name:
            pair = shown(replace(one, level_out=one.level_in), one.level_in.show(before))
            now = shown(one, one.level_out.show(after))
            if one.level_in is not one.level_out or pair != now:
                found.append((pair, now))

    if sample.is_fold:
        sink, inputs = lowered(*tensors)
        find_stream(Kernel(KernelKind.FOLD, sink, inputs), Watch(True, observe=see))
        return found[0] if found else None
    roots = [t.node for t in tensors]
    normal = normalize(roots)
    sink = restore(normal.structure, normal.constants, (), normal.nodes)
    if sample.context:
        sink = SINK(*sink.src, *sink.src)
    donated: Any = candidates(roots, normal).pairs if normal.assigned else ()
    if name == "append_in_place":  # as if the memory had room
        donated = appends_of(roots, normal.buffers, value_node)
    inputs = len(normal.buffers)
    context = Context(current(), "cpu", inputs, donated, **sample.context)
    plan = run_pipeline(sink, context, PIPELINE, see)
    for kernel in dict.fromkeys([item.kernel for item in plan.schedule.items]):
        with suppress(CannotLower):
            if kernel.kind == "fold":
                find_stream(kernel, Watch(True, observe=see))
            get_device("cpu").trace(kernel, see)
    return found[0] if found else None


@pytest.mark.device("hosts")  # a GPU has passes of its own
def test_every_pass_has_a_graph_for_which_it_fires() -> None:
    assert list(SAMPLES) == NAMES


@pytest.mark.parametrize("name", SAMPLES)
def test_a_pass_before_and_after_and_its_values(name: str, golden: Golden) -> None:
    sample = SAMPLES[name]
    native = {"device": "cpu", "tier": "native", "verify": True, "disk_cache": False}
    with fg.config(**{**native, **sample.options}):
        pair = fired(name, sample.make(), sample)
        assert pair is not None, "it changed nothing"
        golden(f"before:\n{pair[0]}\n\nafter:\n{pair[1]}", f"passes/{name}.txt")
        got = [t.numpy() for t in sample.make()]
    with fg.config(**PLAIN):
        wanted = [t.numpy() for t in sample.make()]
    for a, b in zip(got, wanted, strict=True):
        near = 1e-2 if a.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(a, b, rtol=near, atol=near)


@pytest.mark.device("cpu", "reference", "remote")
def test_the_list_of_passes(golden: Golden) -> None:
    lines = [
        f"{'    ' * depth}{one.name}: {one.level_in} -> {one.level_out}"
        for depth, one in listed(PIPELINE)
    ]
    golden("\n".join(lines), "passes/PIPELINE.txt")


def test_a_pass_that_nobody_knows_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ArgumentError, match="there is no pass 'vanish'") as found:
        fg.explain(numbers(1, 3) * 2, stage="vanish")
    assert "simplify" in str(found.value) and "merge_axes" in str(found.value)


def test_explain_shows_a_pass_of_graphs_and_one_of_kernels() -> None:
    with fg.config(device="cpu", tier="native"):
        x = numbers(1, 3, 4) * 1
        graphs = fg.explain(x, stage="simplify").stages
        assert "mul" in graphs["before simplify"] and "mul" not in graphs["simplify"]
        kernels = fg.explain(x * 2, stage="merge_axes").stages
        assert "axes [3, 4]" in kernels["before merge_axes"]
        assert "axes [12]" in kernels["merge_axes"]
        assert "does not run" in fg.explain(x * 2, stage="tiny").stages["tiny"]
