"""Summation order of a GEMM over k: blocks, and chunks of them (split-K).

In: sizes. Out: how many steps of k are summed in one chain, and how many chunks are summed apart
and joined in order. It decides bits, so neither the machine nor the number of threads has a say.
"""

from __future__ import annotations

from math import cbrt, sqrt

from ...core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SummationOrder:
    """Lengths of chains of additions."""

    block_steps: int = 256  # of k in one chain
    small_block_steps: int = 64  # the same for a small product
    small_products: int = 1 << 20  # multiply-adds of a small one
    tiny_results: int = 1280  # so few that libraries sum them along lanes of k
    tiny_least_steps: int = 32  # of k from which they do
    split_results: int = 5 << 13  # few enough for several sums each
    split_chunks: int = 16  # sums of one result at most
    split_blocks: int = 4  # blocks of k that are worth a sum of their own
    split_depth_ratio: int = 8  # k over the longest other side from which it is split
    gemv_chunk_products: int = 1 << 16  # of a GEMV's chunk, at least
    gemv_whole_products: int = 1 << 18  # up to which threads share columns alone
    gemv_whole_columns: int = 512  # if there are so many
    varied_margin: int = 4  # how far sizes may be from those that a plan was chosen at


ORDER = SummationOrder()


def k_block(rows: int, columns: int, depth: int, split: bool = True) -> int:
    """Steps of k that are summed in one chain; `split`: are a tiny product's sums in chunks?

    Libraries sum small products along lanes of k, which is more exact than one long chain. About
    as many blocks as the third root of the depth are as exact, whether sums grow or not; in one
    chunk half the square root of them are nearly so.
    """
    if is_tiny(rows, columns, depth):
        return -(-depth // round(cbrt(1.7 * depth) if split else max(2.0, sqrt(depth) / 2)))
    small = rows * columns * depth <= ORDER.small_products and depth > ORDER.block_steps
    return ORDER.small_block_steps if small else ORDER.block_steps


def is_tiny(rows: int, columns: int, depth: int) -> bool:
    """True if it is a product that libraries sum along lanes of k."""
    results = rows * columns
    small = results * depth <= ORDER.small_products
    return small and results <= ORDER.tiny_results and depth >= ORDER.tiny_least_steps


def k_block_nearby(rows: int, columns: int, depth: int, steps: int) -> int:
    """Steps of a chain for all sizes near some, where those would have `steps`: some are tiny."""
    margin = ORDER.varied_margin
    near = rows * columns <= margin * ORDER.tiny_results and depth >= ORDER.tiny_least_steps
    plain = steps in (ORDER.small_block_steps, ORDER.block_steps)
    if not near or not plain or rows * columns * depth > margin * ORDER.small_products:
        return steps
    return min(steps, k_block(1, 1, depth, False))


def k_chunks(batch: int, rows: int, columns: int, depth: int, steps: int) -> int:
    """Split-K: how many chunks of k are summed apart, several where results are few and k is long.

    Threads then share k, and no operand is read again for each of many small tiles.
    """
    blocks, longest = -(-depth // steps), max(rows, columns, steps)
    if rows == 1:  # a GEMV reads whole rows of memory
        few = columns * depth <= ORDER.gemv_whole_products and columns >= ORDER.gemv_whole_columns
        wanted = 1 if few else min(blocks, columns * depth // ORDER.gemv_chunk_products)
    elif rows * columns > ORDER.split_results or depth < ORDER.split_depth_ratio * longest:
        return 1
    else:
        wanted = blocks // ORDER.split_blocks
    return in_chunks(blocks, -(-blocks // max(1, min(ORDER.split_chunks // batch, wanted))))


def in_chunks(blocks: int, each: int) -> int:
    """How many chunks of so many blocks there are, none of them empty."""
    chunks = -(-blocks // each)
    return -(-blocks // -(-blocks // chunks))
