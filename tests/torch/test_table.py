"""Tests of the table of operators: every core ATen operator has an entry or a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fulgurite as fg
from fulgurite.torch import ops
from fulgurite.torch.backend import decompositions
from fulgurite.torch.table import HOST, TABLE, Use, name_of

pytestmark = pytest.mark.device("none")
assert ops, "the table is filled"
SYMBOLIC = ("sym_numel", "sym_size", "sym_storage_offset", "sym_stride")  # numbers, not tensors


def core() -> Iterator[Any]:
    """The overloads that torch tags as core."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            if torch.Tag.core in getattr(packet, overload).tags:
                yield getattr(packet, overload)


def test_every_core_operator_is_lowered_decomposed_or_left_to_torch_for_a_reason() -> None:
    missing = [
        name_of(op)
        for op in core()
        if name_of(op) not in TABLE
        and name_of(op) not in HOST
        and op not in decompositions()
        and not op._can_decompose()  # a composite: autograd has decomposed it before
        and not name_of(op).startswith(SYMBOLIC)
        and not op._schema.is_mutable  # functionalisation has replaced these
    ]
    assert missing == []
    assert len(list(core())) > 150


def test_what_the_table_has_is_not_decomposed() -> None:
    assert not [op for op in decompositions()
                if isinstance(op, torch._ops.OpOverload) and name_of(op) in TABLE]  # fmt: skip


def test_every_entry_is_an_operator_of_some_torch() -> None:
    unknown = [name for name in TABLE if not hasattr(torch.ops.aten, name.partition(".")[0])]
    assert len(unknown) <= 4, unknown  # names that only another release has


@pytest.mark.parametrize("kept", [True, False])
def test_batch_norm_of_inference_gives_the_statistics_that_torch_keeps(kept: bool) -> None:
    # torch says that a GPU keeps mean and inverse deviation, and the host nothing
    rng = np.random.default_rng(0)
    x, mean = rng.normal(size=(2, 3, 5)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    var = rng.uniform(0.5, 2, 3).astype(np.float32)
    room = torch.empty(3 if kept else 0, device="meta")
    name = "_native_batch_norm_legit_no_training.default"
    use = Use(name, [torch.empty(2, 3, 5, device="meta"), room, room], (), set(), "cpu")
    numbers = (fg.tensor(x), None, None, fg.tensor(mean), fg.tensor(var), 0.1, 1e-5)
    found = [each.numpy() for each in TABLE[name](use, *numbers)]
    rstd = 1 / np.sqrt(var + 1e-5)
    want: list[Any] = [
        (x - mean[:, None]) * rstd[:, None],
        mean if kept else [],
        rstd if kept else [],
    ]
    for ours, theirs in zip(found, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
