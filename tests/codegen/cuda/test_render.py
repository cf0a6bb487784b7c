"""Tests of fulgurite/codegen/cuda/render.py: kernels as launches, without Triton."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cuda import source
from fulgurite.codegen.cuda.render import render
from fulgurite.codegen.cuda.source import KernelSource
from fulgurite.codegen.cuda.tiling import HOPPER, TF32, GpuTable
from fulgurite.core.dtype import float32, int8, int32
from fulgurite.core.node import Node, toposort
from fulgurite.core.operators import OPS
from fulgurite.core.ops.elementwise import NEG
from fulgurite.core.ops.indexing import gather, sort_order
from fulgurite.core.ops.leaf import PARAM, SINK, param
from fulgurite.core.ops.movement import expand
from fulgurite.core.ops.reduce import reduce_node, scan_node
from fulgurite.graph.ir.kernel import params_of
from fulgurite.graph.ir.lower import lower
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.kernel.contract.channels_last import channels_last
from tests.codegen.cuda.workloads import WORKLOADS, rendered, scheduled, workload
from tests.conftest import Golden
from tests.graph.scheduling import schedule
from tests.samples import sample

FAMILIES = ("elementwise", "movement", "reduce", "indexing", "random")
KNOWN = (
    "complex numbers",  # functions with branch cuts, products over an axis: NumPy's
    "mixes variable sizes", "windows of variable size", "does not run in order",
)  # fmt: skip


def made(*roots: Node, inputs: int = 1, table: GpuTable = HOPPER) -> KernelSource:
    """A kernel of these roots over its params, which all have the first one's dtype."""
    nodes = {n.arg[0]: n for n in toposort(roots) if n.op is PARAM}
    dtypes = [nodes[i].dtype for i in range(inputs)] + [r.dtype for r in roots]
    return render(lower(SINK(*roots), inputs), dtypes, table)


@pytest.mark.parametrize("op", [o for o in OPS.values() if o.family in FAMILIES], ids=str)
def test_every_op_of_every_dtype_renders(op: Any) -> None:
    for node in sample(op):
        inputs = 1 + max([n.arg[0] for n in toposort([node]) if n.op is PARAM], default=-1)
        for item in schedule(SINK(node), inputs).items:
            kernel = item.kernel
            if kernel.kind == "host":
                continue
            try:
                render(lower(kernel.body, kernel.inputs), [p.dtype for p in params_of(kernel)])
            except CannotLower as reason:
                assert any(known in str(reason) for known in KNOWN), f"{node!r}: {reason}"


GOLDENS = (
    "softmax", "layernorm", "gelu", "sum", "column_sum", "transpose", "scan", "sort",
    "embedding_grad", "matmul_bf16", "causal_attention",
)  # fmt: skip


@pytest.mark.parametrize("name", GOLDENS)
def test_the_text_of_a_kernel_is_as_it_was(name: str, golden: Golden) -> None:
    chosen = workload(name)
    lines: list[str] = []
    for item in scheduled(chosen.build, chosen.inputs).items:
        made = rendered(item.kernel)
        lines.append(f"# {item.kernel.kind}, {made.workspace} bytes beside")
        texts: dict[object, None] = {}
        for launch in made.launches:
            given = ", ".join(
                f"{a.name}={a.source[0]}{a.value}" for a in launch.arguments if a.source != "error"
            )
            lines.append(f"# {launch.grid} programs of {launch.warps} warps: {given}")
            if launch.text not in texts:
                lines.append(launch.text)
            texts[launch.text] = None
    golden("\n".join(lines), f"cuda/{name}.txt")


def variant(name: str, **changes: Any) -> Any:
    """The only launch of a workload, by a table with changes."""
    chosen = workload(name)
    (item,) = scheduled(chosen.build, chosen.inputs).items
    (launch,) = rendered(item.kernel, replace(HOPPER, **changes)).launches
    return launch


def test_whole_blocks_of_a_map_along_uneven_rows_have_no_mask() -> None:
    def text(rows: int, columns: int) -> str:
        given = (((rows, columns + 15), "bfloat16"),)
        (item,) = scheduled(lambda x: x[:, :columns] + 1, given).items
        (launch,) = rendered(item.kernel).launches
        return str(launch.text)

    uneven = text(64, 50257)
    assert uneven.count("tl.store(") == 2 and uneven.count("    else:") == 1
    whole, _, end = uneven.partition("    else:\n")
    assert "<= n" in whole and "tl.int1)" in whole and "tl.int1)" not in end
    assert "else:" not in text(64, 50256)  # vectors of 16 elements
    assert "else:" not in text(64, 3001)  # a block and a half


def test_sums_that_are_stored_far_apart_have_an_epilogue_of_their_own() -> None:
    def launches(channels: int) -> Any:
        def images(x: Any, g: Any, w: Any) -> Any:
            x, g = (fg.relu(t).contiguous() for t in (x, g))
            _, pull = fg.vjp(lambda w: fg.conv2d(x, w, padding=1), fg.relu(w).contiguous())
            return w - pull(g)[0].astype("float32") * 0.1

        image = ((64, channels, 7, 7), "bfloat16")
        given = (image, image, ((channels, channels, 3, 3), "bfloat16"))
        items = channels_last(scheduled(images, given)).items
        (kernel,) = [i.kernel for i in items if i.kernel.kind == "contract"]
        return rendered(kernel).launches

    first, second = launches(512)
    assert "tl.dot(" in first.text and "tl.dot(" not in second.text
    assert first.grid == 3 * 144  # tiles of 128 x 128, for each place in the window
    (store,) = [line for line in first.text.splitlines() if "tl.store(" in line]
    assert " + a1 + " in store  # along the columns of the tile


def test_short_forms_and_hints_for_the_cache_are_asked_for() -> None:
    short = variant("softmax", short_functions=True).text
    assert short.count("fg_reciprocal(") == 1 and "fg_div(" not in short
    assert "fg_narrow_exp(" in short and "libdevice" not in short
    assert "fg_tanh(" in variant("gelu", short_functions=True).text
    text = variant("layernorm", streaming=True).text
    assert text.count("evict_first") == 1 and text.count('cache_modifier=".cs"') == 1


def test_a_tanh_of_few_instructions_is_for_what_is_rounded_to_16_bits_in_the_end() -> None:
    def text(build: Any) -> str:
        (item,) = scheduled(build, (((64, 512), "float32"),)).items
        table = replace(HOPPER, narrow_tanh=True)
        return "".join(launch.text for launch in rendered(item.kernel, table).launches)

    def gelu(x: Any) -> Any:
        return fg.gelu(x, approximate="tanh")

    assert "fg_narrow_tanh(" in text(lambda x: gelu(x).astype("bfloat16"))
    assert "fg_narrow_tanh(" not in text(gelu)
    assert "fg_narrow_tanh(" not in text(lambda x: (gelu(x).astype("bfloat16"), gelu(x)))
    assert "fg_narrow_tanh(" not in text(lambda x: gelu(x).sum(axis=1).astype("bfloat16"))
    assert "fg_narrow_tanh(" not in text(lambda x: (fg.tanh(x) > 0.5).astype("bfloat16"))
    assert not HOPPER.narrow_tanh, "not timed yet"


def test_short_forms_are_for_relative_errors_that_16_bits_hide() -> None:
    def text(build: Any, dtype: str) -> str:
        (item,) = scheduled(build, (((64, 512), dtype),)).items
        return "".join(launch.text for launch in rendered(item.kernel).launches)

    def halves(x: Any) -> Any:
        return fg.exp(x.astype("float32")) * 0.5

    assert "fg_narrow_exp(" in text(lambda x: halves(x).astype("float16"), "bfloat16")
    assert "fg_narrow_exp(" not in text(lambda x: (halves(x) - 0.5).astype("float16"), "bfloat16")
    assert "fg_narrow_exp(" not in text(halves, "bfloat16")
    assert "fg_narrow_exp(" not in text(lambda x: fg.softmax(x, axis=1), "float32")


def test_numbers_are_no_part_of_the_text() -> None:
    def text(rows: int) -> str:
        shape = ((rows, 1000), "float32")
        (item,) = scheduled(lambda x: fg.softmax(x, axis=1), (shape,)).items
        return "".join(launch.text for launch in rendered(item.kernel).launches)

    assert text(4096) == text(8000)


def test_few_results_of_many_elements_are_two_launches() -> None:
    x = param(0, (1 << 24,), float32)
    long = made(reduce_node("add", x, (0,)))
    assert len(long.launches) == 2 and long.workspace
    assert long.launches[0].grid >= HOPPER.processors
    rows = param(0, (1 << 14, 1 << 10), float32)
    assert len(made(reduce_node("add", rows, (1,))).launches) == 1
    assert len(made(reduce_node("add", rows, (0,))).launches) == 2


def test_statistics_of_long_columns_are_one_pass_and_their_fold() -> None:
    def build(x: Any) -> Any:
        mean = x.mean(axis=0)
        return (x - mean) * fg.rsqrt(((x - mean) ** 2).mean(axis=0) + 1e-5)

    (item,) = scheduled(build, (((1 << 15, 64), "float32"),)).items
    blocks, columns, every = rendered(item.kernel).launches
    assert blocks.grid > HOPPER.processors > columns.grid
    params = [[a.value for a in n.arguments if a.source == source.PARAM] for n in (blocks, every)]
    assert 0 in params[0] and 0 in params[1]
    assert not any(a.value == 0 for a in columns.arguments if a.source == source.PARAM)


def test_pointers_are_numbered_as_they_come() -> None:
    """So launches of kernels with other params have equal texts."""
    x, y = param(0, (1 << 20,), float32), param(1, (1 << 20,), float32)
    (one,), (other,) = made(x - y, inputs=2).launches, made(y - x, inputs=2).launches
    assert one.key == other.key
    assert [a.value for a in one.arguments] == [0, 1, 2]
    assert [a.value for a in other.arguments] == [1, 0, 2]


def test_an_output_may_be_an_inputs_memory_where_stores_have_the_same_axes() -> None:
    """One launch writes all of them: none of it reads what another has written over."""
    x, y = param(0, (8, 64), float32), param(1, (8, 64), float32)
    top = reduce_node("max", x, (1,))
    both = made(NEG(y), expand(top, (8, 64)) - y, inputs=2)
    assert len(both.launches) == 1


def test_what_is_scanned_is_not_written_while_it_is_still_read() -> None:
    x = param(0, (4, 100), float32)
    alone = made(scan_node("add", x, 1))
    assert [a.source for a in alone.launches[-1].arguments[:2]] == [source.PARAM, source.PARAM]
    beside = made(scan_node("add", x, 1), NEG(x))
    writes = [n for n in beside.launches if any(a.value == 1 and a.source == source.PARAM
                                               for a in n.arguments)]  # fmt: skip
    assert writes == [beside.launches[-1]]


def test_nothing_is_launched_for_no_elements() -> None:
    assert made(NEG(param(0, (0, 3), float32))).launches == ()
    assert made(scan_node("add", param(0, (0, 3), float32), 1)).launches == ()
    (sums,) = made(reduce_node("add", param(0, (0, 3), float32), (0,))).launches
    assert "tl.load" not in sums.text


def test_only_kernels_that_check_indices_report_them() -> None:
    x, chosen = param(0, (8,), float32), param(1, (3,), int32)
    assert made(gather(x, chosen, 0), inputs=2).reports_bounds
    assert not made(NEG(x)).reports_bounds


def test_memory_beyond_32_bits_is_counted_in_64() -> None:
    long = made(NEG(param(0, ((1 << 31) + 5,), float32))).launches[0]
    assert "tl.int64" in long.text
    assert "tl.int64" not in made(NEG(param(0, (1 << 20,), float32))).launches[0].text


def test_ends_of_blocks_and_of_shares_fit_in_what_counts_places() -> None:
    for root in (NEG, lambda x: reduce_node("max", x, (0,))):
        for size, name in ((1 << 31, "tl.int64"), ((1 << 31) - 5, "tl.int64")):
            assert name in made(root(param(0, (size,), int8))).launches[0].text
        assert "tl.int64" not in made(root(param(0, (1 << 30,), int8))).launches[0].text


def test_scans_and_sorts_count_places_of_large_memory_in_64_bits() -> None:
    for shape, axis in (((60000, 60000), 0), ((3 * 10**9,), 0), ((2, (1 << 30) + 9), 1)):
        last = made(scan_node("add", param(0, shape, float32), axis)).launches[-1]
        numbers = [n for n in last.text.splitlines() if " place = " in n or " chunk = " in n]
        assert numbers and all(".to(tl.int64)" in n for n in numbers)
    merged = made(sort_order(param(0, ((1 << 30) + 9,), float32), 0)).launches[-1]
    assert ".to(tl.int64)" in next(n for n in merged.text.splitlines() if " i = " in n)


def test_every_workload_is_rendered() -> None:
    for one in WORKLOADS:
        for item in scheduled(one.build, one.inputs).items:
            assert rendered(item.kernel).launches, one.name


def test_small_floats_of_eight_bits_are_bytes() -> None:
    with fg.config(device="reference"):
        x = fg.Tensor(np.zeros(8, np.float32)).astype("float8_e4m3fn")
        (kernel,) = [i.kernel for i in fg.schedule(x).items]
    (launch,) = rendered(kernel).launches
    assert [a.type for a in launch.arguments[:2]] == ["*fp32", "*u8"]


def test_products_of_float32_are_exact_unless_an_option_says_otherwise() -> None:
    product = workload("matmul_f32")
    (item,) = scheduled(product.build, product.inputs).items
    exact, fast = (rendered(item.kernel, table).launches[0].text for table in (HOPPER, TF32))
    assert 'input_precision="ieee"' in exact and 'input_precision="tf32"' in fast
    with fg.config(matmul_precision="tf32") as chosen:
        assert "tf32" in chosen.key


def test_the_number_of_a_block_of_a_split_sum_is_no_column() -> None:
    def total(x: Any, y: Any) -> Any:  # places that no axis steps along
        n = x.shape[0]
        return (fg.broadcast_to(x[:, None], (n, 3)).reshape(-1) * fg.tile(y, n)).sum()

    (item,) = scheduled(total, (((350_000,), "float32"), ((3,), "float32"))).items
    first, second = rendered(item.kernel).launches
    assert first.grid > 200 and second.grid == 1
    assert first.text.index("a1 = left") < first.text.index("a1 * n1")
