"""Tests of fulgurite/graph/ir/cache_key.py: what is in the key and what is not."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fulgurite.core import build, node
from fulgurite.core.dtype import float16, float32, int32
from fulgurite.core.node import Node, constant, make
from fulgurite.core.ops.effect import HOST_FUNCTIONS, HostFunction, custom, register_host
from fulgurite.core.ops.elementwise import ADD, EXP
from fulgurite.core.ops.movement import expand, reshape
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.core.origin import scope
from fulgurite.errors import ArgumentError, VariableError
from fulgurite.graph.ir.cache_key import normalize

pytestmark = pytest.mark.device("none")

ROOT = Path(__file__).parents[3]


def buffer(shape: tuple[int, ...] = (4,), dtype: object = float32) -> Node:
    return build.buffer(shape, dtype)


def key(*roots: Node) -> object:
    return normalize(roots).key


def test_same_shape_with_other_buffers_has_the_same_key() -> None:
    a, b, c, d = (buffer() for _ in range(4))
    assert key(EXP(a) + b) == key(EXP(c) + d)


def test_which_buffer_is_used_twice_is_in_the_key() -> None:
    a, b = buffer(), buffer()
    assert key((a + b) * a) != key((a + b) * b)


def test_other_shape_op_dtype_and_output_order_have_other_keys() -> None:
    a, b, c = buffer(), buffer((5,)), buffer((4,), float16)
    one, two = EXP(a), -a
    assert len({key(EXP(a)), key(EXP(b)), key(EXP(c)), key(-a)}) == 4
    assert key(one, two) != key(two, one)
    assert key(one, two) != key(one)
    assert key(one, one) != key(one)


def test_reduced_axes_and_target_shapes_are_in_the_key() -> None:
    a = buffer((2, 3))
    assert key(reduce_node("add", a, (0,))) != key(reduce_node("add", a, (1,)))
    assert key(reshape(a, (6,))) != key(reshape(a, (3, 2)))
    assert key(expand(reshape(a, (2, 3, 1)), (2, 3, 4))) != key(
        expand(reshape(a, (2, 3, 1)), (2, 3, 5))
    )


def test_devices_are_in_the_key() -> None:
    a = build.buffer((4,), float32, "reference")
    b = build.buffer((4,), float32, "cpu")
    assert key(EXP(a)) != key(EXP(b))


def test_constants_are_a_second_level_of_the_key() -> None:
    a = buffer()
    one, two = normalize([a * 2.0]), normalize([a * 3.0])
    assert one.structure == two.structure
    assert one.constants != two.constants


def test_numbers_that_happen_to_be_equal_do_not_change_the_structure() -> None:
    a = buffer()
    apart = normalize([(a * 2.0) + constant(3.0, float32, (4,))])
    equal = normalize([(a * 2.0) + constant(2.0, float32, (4,))])
    assert apart.structure == equal.structure
    assert len(equal.constants) == 2


def test_the_sign_of_zero_is_in_the_key() -> None:
    a = buffer()
    assert key(a * 0.0) != key(a * -0.0)


def test_origins_scopes_and_tags_are_not_in_the_key() -> None:
    a, b = buffer(), buffer()
    with scope("elsewhere"):
        other = build.apply(ADD, b, b)
    assert key(build.apply(ADD, a, a)) == key(other)
    assert key(make(ADD, float32, (a, a), None, "t")) == key(a + a)


def test_bound_values_are_not_in_the_key_but_bounds_are() -> None:
    n = build.variable("n", 0, 9)
    three, seven = normalize([build.bind(n, 3) + 1]), normalize([build.bind(n, 7) + 1])
    assert three.key == seven.key
    assert three.values == {"n": 3} and seven.values == {"n": 7}
    assert normalize([build.bind(build.variable("n", 0, 8), 3) + 1]).key != three.key


def test_two_values_for_one_variable_are_an_error() -> None:
    n = build.variable("n", 0, 9)
    with pytest.raises(VariableError, match="3 and to 7"):
        normalize([build.bind(n, 3) + build.bind(n, 7)])


def test_a_key_makes_no_node() -> None:
    top = EXP(buffer()) * 2.0
    before = node.live_count()
    normalize([top, top])
    assert node.live_count() == before


def test_buffers_are_numbered_on_first_visit() -> None:
    a, b = buffer(), buffer()
    assert normalize([b + a]).buffers == (b, a)


def test_a_constant_root_is_part_of_the_key() -> None:
    assert key(constant(1, int32, (3,))) != key(constant(2, int32, (3,)))
    assert key(constant(1, int32, (3,))) != key(constant(1, int32, (4,)))


def test_a_host_function_is_keyed_by_identity_and_needs_a_name_for_a_digest() -> None:
    def double(a: np.ndarray[tuple[int], np.dtype[np.float32]]) -> object:
        return a * 2

    one, two = HostFunction("double", double), HostFunction("double", double)
    a = buffer()
    assert key(custom(one, (a,), (4,), float32)) != key(custom(two, (a,), (4,), float32))
    with pytest.raises(ArgumentError, match="register"):
        _ = normalize([custom(one, (a,), (4,), float32)]).digest
    register_host(one)
    try:
        assert normalize([custom(one, (a,), (4,), float32)]).digest
    finally:
        del HOST_FUNCTIONS["double"]


PINNED = """
from fulgurite.core import build
from fulgurite.core.dtype import float32
from fulgurite.core.ops.elementwise import EXP
from fulgurite.core.ops.reduce import reduce_node
from fulgurite.graph.ir.cache_key import normalize
a, b = build.buffer((4, 3), float32), build.buffer((4, 3), float32)
n = build.variable("n", 1, 8)
top = reduce_node("add", EXP(a * 0.5 + b), (1,))
print(normalize([top, build.cast(a, "bfloat16"), build.expand(top, (4, n))]).digest)
"""


def test_the_digest_is_the_same_in_two_processes_with_different_hash_seeds_and_pinned() -> None:
    digests = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-c", PINNED],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        digests.append(run.stdout.strip())
    assert digests[0] == digests[1]
    assert digests[0] == "5f128d9147b7c964a2e81500b450da53"
