"""The reader of the wire format: what it reads, and that nothing it is given can hurt."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.errors import FulguriteError
from fulgurite.onnx import ModelError, load
from fulgurite.onnx.proto import parse
from fulgurite.onnx.wire import varints
from tests.onnx.models import field, perceptron, varint

pytestmark = pytest.mark.device("none")


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_packed_numbers_are_read_as_they_were_written(numbers: list[int]) -> None:
    packed = b"".join(varint(n) for n in numbers)
    raw = np.frombuffer(packed, np.uint8)
    assert varints(raw, True, AssertionError) == numbers
    tensor = parse(memoryview(field(7, packed)), "Tensor")
    assert list(tensor.int64_data) == numbers
    apart = parse(memoryview(b"".join(field(7, n) for n in numbers)), "Tensor")
    assert list(apart.int64_data) == numbers


def test_fields_that_are_not_known_are_skipped() -> None:
    unknown = field(999, "what") + field(998, 7) + varint(997 << 3 | 5) + b"abcd"
    assert parse(memoryview(unknown + field(1, "key")), "Entry").key == "key"


def test_a_vocabulary_in_the_metadata_is_no_name_and_may_be_long() -> None:
    words = "word " * 40_000
    found = parse(memoryview(field(14, field(1, "vocabulary") + field(2, words))), "Model")
    assert found.metadata_props[0].value == words
    with pytest.raises(ModelError, match="letters"):
        parse(memoryview(field(2, words)), "Model")


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\x0f",  # a string of 4 GiB
        b"\x80" * 11,  # a number without end
        b"\x0b",  # a group, which has not been in the format for long
        b"\x00\x00",  # field 0
        b"\x0d\x00",  # ends within a float
        b"\x0a\x02\xff\xfe",  # no UTF-8
        field(7, field(1, field(5, field(6, b"\x0a\x7f")))),  # a length beyond its parent
    ],
)
def test_what_breaks_a_rule_is_an_error_that_says_where(data: bytes) -> None:
    with pytest.raises(ModelError, match="byte"):
        parse(memoryview(data), "Model" if data[0] == 0x3A else "Entry")


def test_graphs_inside_graphs_end_somewhere() -> None:
    data = b""
    for _ in range(200):
        data = field(1, field(5, field(6, data)))
    with pytest.raises(ModelError, match="nest"):
        parse(memoryview(field(7, data)), "Model")


def test_a_file_of_many_empty_parts_costs_little() -> None:
    hostile = field(7, field(1, b"\x2a\x00" * 300_000))
    start = time.process_time()
    model = parse(memoryview(hostile), "Model")
    assert len(model.graph.node[0].attribute) == 300_000
    assert time.process_time() - start < 20  # far from for ever, whatever the machine


def mutations(count: int, seed: int) -> Iterator[bytes]:
    """A sound model with bytes changed, cut, doubled, or numbers made huge."""
    sound = perceptron()
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 1, 2, 5))):
            if len(data) < 8:
                break
            place = rng.randrange(len(data))
            way = rng.randrange(6)
            if way == 0:
                data[place] ^= 1 << rng.randrange(8)
            elif way == 1:
                data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif way == 2:
                del data[place : place + rng.randrange(1, 20)]
            elif way == 3:
                data[place:place] = data[place : place + rng.randrange(1, 40)]
            elif way == 4:
                data[place:place] = varint(rng.choice((2**31, 2**63 - 1, 2**64 - 1)))
            else:
                data = data[:place] or data
        yield bytes(data)


def survives(data: bytes, build: bool) -> bool:
    """Load a mutated model, and perhaps build it; only errors of ours may come out."""
    try:
        model = load(data)
        if build:
            given = {p.name: fg.zeros((2, 4)) for p in model.inputs if p.form == "tensor"}
            model(**given)
    except FulguriteError as problem:
        assert str(problem)
        return False
    return True


def test_5000_mutated_models_give_errors_and_nothing_else() -> None:
    results = [
        survives(data, build=number % 5 == 0) for number, data in enumerate(mutations(5000, 1))
    ]
    assert 0 < sum(results) < len(results)


@pytest.mark.slow
def test_100000_mutated_models_give_errors_and_nothing_else() -> None:
    for number, data in enumerate(mutations(100_000, 2)):
        survives(data, build=number % 10 == 0)
