"""Tests of fulgurite/kernel/contract/vnni.py: bytes that memory has by fours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.gemm.strategies import choose, cpu_problem
from fulgurite.codegen.cpu.target import Target, target
from fulgurite.kernel.contract.vnni import as_vnni
from tests.codegen.cpu.launch import lowered, run

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(203)
VNNI = Target("x86_64", "avx512", frozenset({"avx512_vnni"}))
ENDS = {"uint8": (0, 1, 127, 128, 255), "int8": (-128, -127, -1, 0, 127)}


def hostile(kind: str, *shape: int) -> Array:
    return RNG.choice(ENDS[kind], shape).astype(kind)


def by_fours(b: Array) -> fg.Tensor:
    """Columns with four neighbours of k next to each other."""
    k, n = b.shape
    return fg.Tensor(np.ascontiguousarray(b.reshape(k // 4, 4, n).transpose(0, 2, 1)))


def product(a: fg.Tensor, fours: fg.Tensor) -> fg.Tensor:
    k = fours.shape[0]
    left = fg.reshape(a.astype(fg.int32), (*a.shape[:-1], 1, k, 4))
    return fg.sum(left * fg.moveaxis(fours, 1, 0).astype(fg.int32), axis=(-2, -1))


def windows(x: fg.Tensor, step: int) -> fg.Tensor:
    """Windows of 3 by 3 with channels at the end (im2col)."""
    _, h, w, c = x.shape
    rows = [x[:, i : i + h - 2 : step, j : j + w - 2 : step] for i in range(3) for j in range(3)]
    return fg.reshape(fg.stack(rows, axis=3), (-1, 9 * c))


def test_both_operands_must_have_the_same_four_neighbours() -> None:
    a, b = fg.Tensor(hostile("uint8", 8, 32)), hostile("int8", 32, 20)
    found = cpu_problem(*lowered(product(a, by_fours(b))))
    assert found is not None
    words = as_vnni(found)
    assert words is not None and words.k == 8 and found.k == 32
    assert words.left.dtype is fg.int32 and words.left.arg[1][1] == ((0, 8), (2, 1))
    plain = cpu_problem(*lowered(a.astype(fg.int32) @ fg.Tensor(b).astype(fg.int32)))
    assert plain is not None and as_vnni(plain) is None
    odd = fg.Tensor(hostile("uint8", 8, 33))[:, :32]  # rows begin anywhere
    shifted = fg.Tensor(hostile("uint8", 8, 36))[:, 1:33]
    for view in (odd, shifted):
        problem = cpu_problem(*lowered(product(view, by_fours(b))))
        assert problem is not None and as_vnni(problem) is None


def test_words_are_chosen_where_an_instruction_multiplies_them() -> None:
    a, fours = fg.Tensor(hostile("uint8", 64, 64)), by_fours(hostile("int8", 64, 48))
    problem = cpu_problem(*lowered(product(a, fours)))
    assert problem is not None
    found, tiles = choose(problem, VNNI), choose(problem, Target("x86_64", "avx512"))
    assert found is not None and found[1].registers.words
    assert (found[1].tiles.left, found[1].tiles.right) == ("dense", "dense")
    assert tiles is None or not tiles[1].registers.words
    signed = cpu_problem(*lowered(product(fg.Tensor(hostile("int8", 64, 64)), fours)))
    assert signed is not None
    both = choose(signed, VNNI)
    assert both is not None and not both[1].registers.words


@pytest.mark.skipif(not target().multiplies_words, reason="no such instruction")
@pytest.mark.parametrize("kinds", ["uint8 int8", "int8 uint8", "int8 int8"])
def test_products_of_words_are_exact_at_odd_addresses(kinds: str) -> None:
    first, second = kinds.split()
    for m, k, n in ((1, 8, 1), (1, 64, 33), (3, 20, 17), (7, 260, 100), (50, 36, 5), (19, 12, 49),
                    (200, 1040, 3)):  # fmt: skip
        a, b = hostile(first, m, k), hostile(second, k, n)
        (found,), _ = run(product(fg.Tensor(a), by_fours(b)), seed=m)
        np.testing.assert_array_equal(found, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.skipif(not target().multiplies_words, reason="no such instruction")
@pytest.mark.parametrize("step", [1, 2])
def test_windows_of_words_are_exact(step: int) -> None:
    for c, n in ((4, 16), (12, 33), (32, 20)):
        x, b = hostile("uint8", 2, 9, 8, c), hostile("int8", 9 * c, n)
        lines = windows(fg.Tensor(x), step)
        (found,), _ = run(product(lines, by_fours(b)), seed=c)
        want = lines.numpy().astype(np.int32) @ b.astype(np.int32)
        np.testing.assert_array_equal(found, want)


@pytest.mark.skipif(not target().multiplies_words, reason="no such instruction")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_epilogue_may_read_the_bytes_that_are_multiplied(threads: int) -> None:
    """The same memory as words and as bytes; rounded, saturated and stored as bytes."""
    a, b = hostile("uint8", 130, 64), hostile("int8", 64, 64)
    with fg.config(tier="native", threads=threads):
        x = fg.Tensor(a)
        total = product(x, by_fours(b)) + x.astype(fg.int32)
        found = fg.round(total.astype(fg.float32) * 0.013).astype(fg.uint8).numpy()
    want = a.astype(np.int32) @ b.astype(np.int32) + a
    want = np.clip(np.round(want.astype(np.float32) * np.float32(0.013)), 0, 255)
    np.testing.assert_array_equal(found, want.astype(np.uint8))
