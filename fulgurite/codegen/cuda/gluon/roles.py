"""Roles of a streaming program in Gluon: the text that is the same for every body.

In: a `GluonStreamPlan`, and what a program computes for each block. Out: lines of the warp that
copies, of the warpgroups that multiply, and of the kernel that starts them. Rings of buffers are
guarded by two barriers each: a block is there, a block is free again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .program import WARPGROUPS

if TYPE_CHECKING:
    from .program import Streamed
    from .stream import GluonStreamPlan


def first_scores(plan: GluonStreamPlan) -> list[str]:
    """The scores of a tile's first block."""
    slot = f"it % {plan.buffers}"
    turn = "turn & 1" if plan.persistent else "0"
    return [
        f"    mbarrier.wait(queries_there.index(W), {turn})",
        *keys_there(plan, "it", 1),
        f"    sc = warpgroup_mma(q, {keys_of(plan, slot)}, zero, use_acc=False, is_async=True)",
        "    sc = warpgroup_mma_wait(num_outstanding=0, deps=(sc,))",
        f"    mbarrier.arrive(keys_free.index({slot}), count=1)",
    ]


def summed(plan: GluonStreamPlan) -> list[str]:
    """The sum of the block before is waited for behind the row states, which it runs beside.

    The branch in between is what keeps the assembler from waiting first.
    """
    return [
        f"        if r1 + {plan.block} < end:",
        *keys_there(plan, "it + 2", 3),
        "        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))",
        "        mbarrier.arrive(values_free.index(now), count=1)",
    ]


def keys_there(plan: GluonStreamPlan, block: str, indent: int) -> list[str]:
    """Wait for the keys of a block."""
    slot, phase = f"({block}) % {plan.buffers}", f"({block}) // {plan.buffers} & 1"
    return [f"{'    ' * indent}mbarrier.wait(keys_there.index({slot}), {phase})"]


def keys_of(plan: GluonStreamPlan, slot: str) -> str:
    """A block of keys, transposed: depth x block."""
    return f"ks.index({slot}).reshape([{plan.block}, {plan.depth}]).permute((1, 0))"


def values_of(plan: GluonStreamPlan, slot: str) -> str:
    """A block of values."""
    return f"vs.index({slot}).reshape([{plan.block}, {plan.width}])"


def scores(plan: GluonStreamPlan) -> list[str]:
    """The scores of the next block, and meanwhile the sum of the one before."""
    return [
        f"        next = (it + 1) % {plan.buffers}",
        f"        now = it % {plan.buffers}",
        f"        sc = warpgroup_mma(q, {keys_of(plan, 'next')}, zero, use_acc=False, "
        "is_async=True)",
        f"        mbarrier.wait(values_there.index(now), it // {plan.buffers} & 1)",
        f"        acc = warpgroup_mma(packed, {values_of(plan, 'now')}, acc, is_async=True)",
        "        sc = warpgroup_mma_wait(num_outstanding=1, deps=(sc,))",
        "        mbarrier.arrive(keys_free.index(next), count=1)",
    ]


def last_sum(plan: GluonStreamPlan) -> list[str]:
    """The sum of the last block."""
    free = ["    mbarrier.arrive(queries_free.index(W), count=1)"] if plan.persistent else []
    return [
        *free,
        f"    mbarrier.wait(values_there.index(it % {plan.buffers}), it // {plan.buffers} & 1)",
        f"    acc = warpgroup_mma(packed, {values_of(plan, f'it % {plan.buffers}')}, acc, "
        "is_async=True)",
        "    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))",
        f"    mbarrier.arrive(values_free.index(it % {plan.buffers}), count=1)",
        *(["    it += 1"] if plan.persistent else []),
    ]


RINGS = ("keys_there", "keys_free", "values_there", "values_free")


def _shared(plan: GluonStreamPlan) -> tuple[str, ...]:
    """What all roles are given: buffers and barriers."""
    more = ["queries_free"] if plan.persistent else []
    return ("qs", "ks", "vs", "queries_there", *RINGS, *more)


def producer(
    plan: GluonStreamPlan, m: int, n: int, names: Sequence[str], place: Sequence[str],
    walk: Callable[[Sequence[str]], list[str]],
) -> list[str]:  # fmt: skip
    """The warp that copies: the rows of both warpgroups, then keys and values in turn."""
    free = ["    mbarrier.wait(queries_free.index({}), (turn & 1) ^ 1)"] if plan.persistent else []

    def at(one: Streamed, own: str) -> str:
        found = [own if a in (m, n) else f"a{a}" for a in one.axes[:-1]]
        return f"[{', '.join([*found, '0'])}]"

    rows = [
        line
        for w in WARPGROUPS
        for line in (
            *[line.format(w) for line in free],
            f"    mbarrier.expect(queries_there.index({w}), d0.block_type.nbytes)",
            f"    tma_load(d0, {at(plan.queries, f'first + {w * plan.rows}')}, "
            f"queries_there.index({w}), qs.index({w}))",
        )
    ]
    ring = [
        line
        for name, tensor, buffer, one in (
            ("keys", "d1", "ks", plan.keys), ("values", "d2", "vs", plan.values),
        )
        for line in (
            f"        mbarrier.wait({name}_free.index(slot), phase ^ 1)",
            f"        mbarrier.expect({name}_there.index(slot), {tensor}.block_type.nbytes)",
            f"        tma_load({tensor}, {at(one, 'r1')}, {name}_there.index(slot), "
            f"{buffer}.index(slot))",
        )
    ]  # fmt: skip
    given = ", ".join(["d0", "d1", "d2", *_shared(plan), *names])
    lines = [
        *place, *rows, f"    for r1 in range(start, end, {plan.block}):",
        f"        slot = it % {plan.buffers}", f"        phase = it // {plan.buffers} & 1",
        *ring, "        it += 1",
    ]  # fmt: skip
    return ["@gluon.jit", f"def produce({given}):", *walk(lines), "", ""]


def consumer(
    plan: GluonStreamPlan, names: Sequence[str], place: Sequence[str], lines: Sequence[str],
    walk: Callable[[Sequence[str]], list[str]],
) -> list[str]:  # fmt: skip
    """A warpgroup that multiplies, and what it does with each block."""

    def layout(columns: int) -> str:
        return ("gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], "
                f"instr_shape=[16, {columns}, 16])")  # fmt: skip

    given = ", ".join([*_shared(plan), *names, "W: gl.constexpr"])
    body = [
        *place, f"    om = first + W * {plan.rows}",
        f"    acc = gl.zeros([{plan.rows}, {plan.width}], gl.float32, LO)", *lines,
    ]  # fmt: skip
    return [
        "@gluon.jit", f"def consume({given}):",
        f"    LS: gl.constexpr = {layout(plan.block)}",
        f"    LO: gl.constexpr = {layout(plan.width)}",
        "    LP: gl.constexpr = gl.DotOperandLayout(0, LO, 2)",
        f"    q = qs.index(W).reshape([{plan.rows}, {plan.depth}])",
        f"    zero = gl.zeros([{plan.rows}, {plan.block}], gl.float32, LS)",
        *walk(body), "", "",
    ]  # fmt: skip


def whole(plan: GluonStreamPlan, names: Sequence[str]) -> list[str]:
    """The kernel: buffers, barriers, and who does what."""
    shared, more = ", ".join(_shared(plan)), "".join([f", {name}" for name in names])
    memory = [
        f"    {name} = gl.allocate_shared_memory(gl.{plan.keys.spec.dtype}, "
        f"[{count}, {', '.join(map(str, one.spec.block))}], {tensor}.layout)"
        for name, tensor, count, one in (
            ("qs", "d0", len(WARPGROUPS), plan.queries), ("ks", "d1", plan.buffers, plan.keys),
            ("vs", "d2", plan.buffers, plan.values),
        )
    ]  # fmt: skip
    rows = ["queries_there", *(["queries_free"] if plan.persistent else [])]
    barriers = [
        f"    {name} = gl.allocate_shared_memory(gl.int64, "
        f"[{len(WARPGROUPS) if name in rows else plan.buffers}, 1], "
        "mbarrier.MBarrierLayout())"
        for name in (*rows, *RINGS)
    ]
    arrivals = [(name, len(WARPGROUPS) if name.endswith("free") else 1) for name in RINGS]
    starts = [f"        mbarrier.init({name}.index(i), count={count})" for name, count in arrivals]
    consumers = ", ".join([f"(consume, ({shared}{more}, {w}))" for w in WARPGROUPS])
    given, copies = plan.registers
    return [
        "@gluon.jit", f"def kernel(d0, d1, d2{more}):", *memory, *barriers,
        f"    for i in gl.static_range({len(WARPGROUPS)}):",
        *[f"        mbarrier.init({name}.index(i), count=1)" for name in rows],
        f"    for i in gl.static_range({plan.buffers}):", *starts,
        f"    gl.warp_specialize([{consumers}, (produce, (d0, d1, d2, {shared}{more}))], [4, 1], "
        f"[{given}, {copies}])",
    ]  # fmt: skip
