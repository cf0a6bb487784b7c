"""Tests of the table of operators: every core ATen operator has an entry or a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fulgurite.torch import ops
from fulgurite.torch.backend import decompositions
from fulgurite.torch.table import HOST, TABLE, name_of

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
