"""Which kernels a GPU's rates choose for training: no matrix of scores is kept between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pytest

import fulgurite as fg
from fulgurite.codegen.cuda.machine import HOPPER
from fulgurite.config import current
from fulgurite.core.dtype import dtype_of
from fulgurite.core.ops.leaf import new_buffer
from fulgurite.graph.fusion.machine import time_of, work_of
from fulgurite.graph.ir.cache_key import normalize, restore
from fulgurite.graph.ir.kernel import Schedule
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.runtime.cuda.executor import at_most
from fulgurite.runtime.pipeline import Context, schedule_of
from fulgurite.tensor import wrap

if shutil.which("cc") is None:
    pytest.skip("there is no C compiler to make a libcuda with", allow_module_level=True)

from tests.runtime.cuda import fake

BATCH, HEADS, LENGTH, WIDTH = 8, 12, 1024, 64


def planned(build: Callable[..., Any], *inputs: tuple[Sequence[int], str]) -> Schedule:
    """The kernels of a function of memory that does not exist, on a GPU."""
    fake.install()
    with fg.config(device="cuda", disk_cache=False):
        given = [wrap(new_buffer(tuple(s), dtype_of(d), "cuda")) for s, d in inputs]
        normal = normalize([root.entry.node for root in build(*given)])
        graph = restore(normal.structure, normal.constants, {}, normal.nodes)
        return schedule_of(graph, Context(current(), "cuda", len(normal.buffers)))


def folds(schedule: Schedule) -> int:
    return sum([item.kernel.kind is KernelKind.FOLD for item in schedule.items])


def largest(schedule: Schedule) -> int:
    """Elements of the largest value that a kernel leaves to others."""
    slots = [schedule.slots[place] for item in schedule.items for place in item.writes]
    return max([prod(at_most(slot.shape)) for slot in slots if slot is not None])


def gradients(attend: Callable[..., fg.Tensor]) -> Callable[..., Any]:
    """The gradients of a loss of what is seen."""

    def build(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor, g: fg.Tensor) -> Any:
        def loss(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
            return (attend(q, k, v).astype("float32") * g).sum()

        return fg.grad(loss, argnums=(0, 1, 2))(q, k, v)

    return build


def written_out(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    return fg.softmax(q @ fg.swapaxes(k, -1, -2) * 0.125, axis=-1) @ v


def causal(q: fg.Tensor, k: fg.Tensor, v: fg.Tensor) -> fg.Tensor:
    return fg.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize(
    ("attend", "shape"),
    [
        (causal, (BATCH, HEADS, LENGTH, WIDTH)),
        (fg.scaled_dot_product_attention, (4, 16, 2048, 64)),
        (written_out, (4, 16, 2048, 64)),
        (written_out, (4, 16, 8192, 128)),
    ],
)
def test_attention_and_its_gradients_are_folds_and_nothing_else(
    attend: Callable[..., fg.Tensor], shape: tuple[int, ...]
) -> None:
    schedule = planned(gradients(attend), *[(shape, "bfloat16")] * 4)
    assert len(schedule.items) == folds(schedule) == 3  # statistics of rows; dQ; dK and dV
    assert largest(schedule) == prod(shape)


def test_products_of_16_bits_are_priced_by_the_tensor_cores() -> None:
    def time(dtype: str) -> float:
        (item,) = planned(lambda a, b: [a @ b], *[((4096, 4096), dtype)] * 2).items
        assert work_of(item.kernel).narrow == (dtype != "float32") * work_of(item.kernel).products
        return time_of(item.kernel, HOPPER)

    assert time("bfloat16") == time("float16") < time("float32") / 8


def test_attention_in_a_layer_that_is_trained_keeps_no_scores() -> None:
    inner = HEADS * WIDTH

    def layer(x: fg.Tensor, w: fg.Tensor, o: fg.Tensor, g: fg.Tensor) -> Any:
        def loss(x: fg.Tensor, w: fg.Tensor, o: fg.Tensor) -> fg.Tensor:
            with fg.autocast("bfloat16"):
                parts = (x @ w).reshape(BATCH, LENGTH, 3, HEADS, WIDTH)
                q, k, v = fg.unstack(parts.permute(2, 0, 3, 1, 4))
                seen = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
                y = seen.permute(0, 2, 1, 3).reshape(BATCH, LENGTH, inner) @ o
            return (y * g).sum()

        return loss(x, w, o), *fg.grad(loss, argnums=(0, 1, 2))(x, w, o)

    stream = ((BATCH, LENGTH, inner), "float32")
    matrices = ((inner, 3 * inner), "float32"), ((inner, inner), "float32")
    schedule = planned(layer, stream, *matrices, stream)
    assert 3 <= folds(schedule) <= 4
    assert largest(schedule) <= 3 * BATCH * LENGTH * inner < BATCH * HEADS * LENGTH * LENGTH
