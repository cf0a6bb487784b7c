"""Tests of kernel/contract/summation.py: blocks and chunks of k, which decide bits."""

from hypothesis import given
from hypothesis import strategies as st

from fulgurite.kernel.contract.summation import ORDER, in_chunks, is_tiny, k_block, k_chunks


def test_small_products_sum_shorter_blocks_of_k() -> None:
    assert k_block(5, 7, 3000) < 3000 // 16 and k_block(33, 35, 100) < 100 // 4
    assert k_block(40, 40, 500) == ORDER.small_block_steps
    assert k_block(300, 300, 3000) == k_block(100, 100, 100) == ORDER.block_steps
    assert k_block(5, 7, 31) == ORDER.block_steps and not is_tiny(5, 7, 31)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_no_chunk_is_empty(blocks: int, each: int) -> None:
    chunks = in_chunks(blocks, each)
    share = -(-blocks // chunks)
    assert (chunks - 1) * share < blocks <= chunks * share


def test_k_is_split_where_results_are_few_and_it_is_long() -> None:
    assert k_chunks(1, 64, 64, 16384, 256) == ORDER.split_chunks
    assert k_chunks(1, 1024, 1024, 16384, 256) == k_chunks(1, 64, 64, 400, 256) == 1
