"""RANDOM: the generator's published vectors, and that bits depend on key and counter alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulgurite.core.dtype import uint32, uint64
from fulgurite.core.node import Node, constant
from fulgurite.core.op import Array
from fulgurite.core.ops.leaf import param, variable
from fulgurite.core.ops.random import RANDOM, random_bits, threefry
from fulgurite.runtime.host.evaluate import evaluate
from tests.core.ops.samples import run

# Random123's kat_vectors, threefry2x32 with 20 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def draw(key: tuple[int, int], counter: int, shape: tuple[int, ...]) -> Array:
    return run(
        lambda k, c: random_bits(k, c, shape),
        np.array(key, np.uint32),
        np.array(counter, np.uint64),
    )


def python_threefry(key: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """The definition again, in Python's whole numbers."""
    mask, keys = 0xFFFFFFFF, (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (block[0] + keys[0]) & mask, (block[1] + keys[1]) & mask
    for number in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x = (x + y) & mask
        y = ((y << turn | y >> 32 - turn) & mask) ^ x
        if number % 4 == 3:
            group = number // 4 + 1
            x = (x + keys[group % 3]) & mask
            y = (y + keys[(group + 1) % 3] + group) & mask
    return x, y


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_the_generator_gives_its_published_answers(
    counter: tuple[int, int], key: tuple[int, int], result: tuple[int, int]
) -> None:
    words = [np.array([w], np.uint32) for w in (*key, *counter)]
    out = threefry((words[0], words[1]), (words[2], words[3]))
    assert (int(out[0][0]), int(out[1][0])) == result
    block = counter[0] | counter[1] << 32  # the first word of a block is the low half
    assert draw(key, block, (2,)).tolist() == list(result)


@given(st.tuples(*[st.integers(0, 2**32 - 1)] * 2), st.integers(0, 2**64 - 1), st.integers(0, 7))
def test_element_i_is_word_i_mod_2_of_block_counter_plus_i_half(
    key: tuple[int, int], counter: int, count: int
) -> None:
    expected = []
    for i in range(count):
        block = (counter + i // 2) % 2**64
        expected.append(python_threefry(key, (block & 0xFFFFFFFF, block >> 32))[i % 2])
    assert draw(key, counter, (count,)).tolist() == expected


def test_drawing_more_keeps_what_was_drawn_before() -> None:
    long = draw((1, 2), 5, (101,))
    for count in (0, 1, 2, 7, 50, 100):
        np.testing.assert_array_equal(draw((1, 2), 5, (count,)), long[:count])


def test_the_shape_only_folds_the_same_numbers() -> None:
    flat = draw((1, 2), 9, (24,))
    np.testing.assert_array_equal(draw((1, 2), 9, (2, 3, 4)), flat.reshape(2, 3, 4))
    assert draw((1, 2), 9, ()) == flat[0]
    assert draw((1, 2), 9, (3, 0)).shape == (3, 0)


def test_an_advanced_counter_continues_the_sequence_across_32_bits() -> None:
    start = 2**32 - 3
    whole = draw((3, 4), start, (12,))
    np.testing.assert_array_equal(draw((3, 4), start + 4, (4,)), whole[8:])
    assert len(set(whole.tolist())) == 12


def test_the_counter_wraps_around_at_64_bits() -> None:
    whole = draw((3, 4), 2**64 - 1, (4,))
    np.testing.assert_array_equal(whole[2:], draw((3, 4), 0, (2,)))


@pytest.mark.parametrize("batch", [(3,), (2, 2), (0,)], ids=str)
def test_a_batch_of_keys_equals_separate_draws(batch: tuple[int, ...]) -> None:
    keys = np.random.default_rng(0).integers(0, 2**32, (*batch, 2), dtype=np.uint32)
    counters = np.random.default_rng(1).integers(0, 2**64, batch, dtype=np.uint64)
    value = run(lambda k, c: random_bits(k, c, (5,)), keys, counters)
    assert value.shape == (*batch, 5)
    for place in np.ndindex(*batch):
        key = (int(keys[place][0]), int(keys[place][1]))
        np.testing.assert_array_equal(value[place], draw(key, int(counters[place]), (5,)))


def test_a_draw_takes_a_symbolic_size() -> None:
    n = variable("n", 1, 9)
    key, counter = param(0, (2,), uint32), param(1, (), uint64)
    node = random_bits(key, counter, (n, 2))
    arrays: dict[Node, Array] = {key: np.array([1, 2], np.uint32), counter: np.array(7, np.uint64)}
    (value,) = evaluate([node], arrays, {"n": 3})
    np.testing.assert_array_equal(value, draw((1, 2), 7, (3, 2)))


def test_bits_are_balanced_and_keys_independent() -> None:
    ones = np.unpackbits(draw((1, 2), 0, (4096,)).view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.01
    assert not np.array_equal(draw((1, 2), 0, (8,)), draw((2, 1), 0, (8,)))


def test_a_wrong_key_or_counter_does_not_pass_the_check() -> None:
    key, counter = constant(0, uint32, (2,)), constant(0, uint64)
    assert RANDOM.check(random_bits(key, counter, (3,))) is None
    assert "key" in (RANDOM.check(random_bits(counter, counter, (3,))) or "")
    assert "key" in (RANDOM.check(random_bits(constant(0, uint32, (3,)), counter, (3,))) or "")
    assert "counter" in (RANDOM.check(random_bits(key, constant(0, uint32), (3,))) or "")
