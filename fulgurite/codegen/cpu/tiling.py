"""Tiling parameters of the CPU: every number that decides how templates cut their work.

One frozen dataclass for each template; a field's name carries its subject and unit, the comment its
reason. Sizes alone are compared with them, never the number of threads, so results do not depend
on the machine's load.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StreamTiling:
    """Tiles of the streaming (online reduction) template: M rows, N streamed, D columns."""

    tile_m: int = 144  # rows of a tile: whole register blocks both ways
    tile_m_packing: int = 384  # the same where every tile packs its keys anew
    min_tile_m: int = 64  # before N is split
    block_n: int = 128  # streamed elements of a block, lanes along M
    block_n_lanes: int = 384  # the same with lanes along N
    min_block_n: int = 32  # below it a tile does not fit
    stack_bytes: int = 640 << 10  # of one tile: half of the second cache
    sums_bytes: int = 96 << 10  # of a tile's weighted sums
    sums_bytes_wide: int = 256 << 10  # where tiles of D would compute products again
    near_keys_bytes: int = 512 << 10  # keys that many small tiles may read
    max_m_reads_keys: int = 64  # rows up to which keys along N are read where they lie
    max_m_dots: int = 16  # rows multiplied with keys that are contiguous along the depth
    busy_tiles: int = 8  # that keep threads busy
    min_split_n: int = 256  # elements of a split along keys (split-KV)

    strip_bytes: int = 32 << 20  # scores that a strip of the two-pass form holds
    strip_share: int = 5  # a strip is at most this part of all rows
    min_strips: int = 4  # where that part would have few rows
    max_strips: int = 1024  # each has launches of its own
    min_strip_m: int = 64  # with fewer rows all else is read again too often
    max_strip_m: int = 96  # more gain nothing
    strip_stack_bytes: int = 1200 << 10  # packed rows and a block's values, nearly all near
    strip_block_n: int = 128  # streamed elements of a block
    strip_splits: int = 16  # parts of N that keep threads busy
    min_strip_split_n: int = 512  # elements of such a part

    direct_row_bytes: int = 2048  # rows of values that are read where they lie
    shared_pack_bytes: int = 64 << 20  # of an operand that is packed once for all tiles
    merge_rows: int = 64  # of transposed sums that one unit adds up

    exact_products: int = 1_000_000  # multiplications of a score product that is summed in pieces
    exact_steps: int = 16  # of its depth that are summed before they are added
    exact_group: int = 64  # steps whose pieces are summed by themselves
    sum_steps: int = 32  # of N that are summed before they are added: more would lose digits
    sum_steps_compensated: int = 12  # the same of a compensated sum
    sum_group_compensated: int = 144  # steps between compensated additions
    max_n_in_steps: int = 2048  # from which so few at a time would be too many sums in a row
    light_step_cost: int = 24  # of a step that is over before its sum is ready
    light_step_sums: int = 4  # independent sums of such steps
    recompute_cost: int = 4  # of a score above which the next walk reads it back

    priced_height: int = 9  # register block that costs assume, so that plans are the same on all
    priced_panel_bytes: int = 192
    priced_lanes: int = 16
    wide_values: int = 512  # columns of values that count as packed
    block_overhead_ns: float = 40.0  # of entering a block


@dataclass(frozen=True, slots=True)
class CpuTable:
    """All tiling parameters of the CPU's templates."""

    stream: StreamTiling = field(default_factory=StreamTiling)


CPU = CpuTable()
