"""RANDOM: bits that are a pure function of a key and a counter (Threefry-2x32, 20 rounds).

In: a key of two uint32 (last axis) and a uint64 counter, both data, so drawing again compiles
nothing. Out: uint32 bits of the shape in the argument, behind any leading batch axes of the key.
Element i is word i % 2 of the block number counter + i // 2, so the numbers depend on neither
device nor thread count nor the shape drawn before. tests hold the generator's published vectors.
"""

from __future__ import annotations

import numpy as np

from ..dtype import uint32, uint64
from ..node import Node, Shape, dims_of, shape_of
from ..op import Array, Op
from ..shape import prod

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def random_bits(key: Node, counter: Node, shape: Shape) -> Node:
    """Uniform uint32 bits."""
    dims, extra = dims_of(shape, 2)
    return RANDOM(key, counter, *extra, arg=dims)


def threefry(key: tuple[Array, Array], block: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two words of cipher text for a two-word key and a two-word block."""
    k = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):
        x, y = block[0] + k[0], block[1] + k[1]
        for i in range(5):
            for turn in _ROTATIONS[i % 2]:
                x = x + y
                y = (y << np.uint32(turn) | y >> np.uint32(32 - turn)) ^ x
            x, y = x + k[(i + 1) % 3], y + k[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


def _random_numpy(node: Node, key: Array, counter: Array, *_: Array) -> Array:
    shape = shape_of(node.arg, node.src)
    count = prod(shape)
    assert isinstance(count, int)
    with np.errstate(over="ignore"):
        blocks = counter[..., None] + np.arange((count + 1) // 2, dtype=np.uint64)
    low, high = (blocks & np.uint64(0xFFFFFFFF)).astype(np.uint32), (blocks >> np.uint64(32))
    words = threefry((key[..., :1], key[..., 1:]), (low, high.astype(np.uint32)))
    flat = np.stack(np.broadcast_arrays(*words), axis=-1)
    flat = flat.reshape(*flat.shape[:-2], 2 * flat.shape[-2])[..., :count]
    return flat.reshape(node.shape)


def bits_at(low: Array, high: Array, counter: Array, place: Array) -> Array:
    """The bits at positions, for a key and counter that may differ from place to place."""
    with np.errstate(over="ignore"):
        block = counter + (place >> 1).astype(np.uint64)
    halves = (block & np.uint64(0xFFFFFFFF)).astype(np.uint32), (block >> np.uint64(32))
    words = threefry((low, high), (halves[0], halves[1].astype(np.uint32)))
    return np.where(place & 1, words[1], words[0])


def _random_shape(node: Node) -> Shape:
    return (*node.src[1].shape, *shape_of(node.arg, node.src))


def _random_check(node: Node) -> str | None:
    key, counter = node.src[:2]
    if key.dtype is not uint32 or key.shape != (*counter.shape, 2):
        return f"a key is uint32 (..., 2), not {key.dtype} {key.shape}"
    return None if counter.dtype is uint64 else f"a counter is uint64, not {counter.dtype}"


RANDOM = Op(
    name="random", family="random", doc="uniform bits from a key and a counter", arity=2, kinds="u",
    dtype=lambda src, arg: uint32, numpy=_random_numpy, shape=_random_shape, check=_random_check,
    grad=lambda g, y, *src: tuple(None for _ in src), cost=40,
    batch=lambda y, src: random_bits(src[0], src[1], shape_of(y.arg, y.src)), sizes=slice(None),
)  # fmt: skip
