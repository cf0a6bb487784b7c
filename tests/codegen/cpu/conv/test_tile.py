"""Tests of kernel/contract/im2col.py and of codegen/cpu/conv: convolutions as contractions.

Convolutions of every kind have one text for each epilogue and pair of dtypes, so a new shape
compiles nothing; and what the library packs or sweeps over for them is right for any size, window,
stride, dilation, padding, number of groups and of dimensions. The reference device in float64 says
what is right.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulgurite as fg
from fulgurite.codegen.cpu.conv.direct import direct
from fulgurite.codegen.cpu.conv.tile import im2col
from fulgurite.codegen.cpu.conv.view_args import PACK_KINDS
from fulgurite.codegen.cpu.gemm.geometry import Geometry
from fulgurite.codegen.cpu.gemm.microkernel import Registers
from fulgurite.codegen.cpu.gemm.plan import GemmKind
from fulgurite.codegen.cpu.gemm.strategies import choose, cpu_problem
from fulgurite.codegen.cpu.llvm import compiler
from fulgurite.codegen.cpu.target import target

pytest.importorskip("llvmlite")

from tests.codegen.cpu.launch import Array, lowered, rendered_kernels, run
from tests.properties import kernel, kernels

VECTORS = ("auto", "avx2", "sse2")


@dataclass(frozen=True)
class Case:
    """A convolution: sizes of the image, then of the window, in as many dimensions."""

    batch: int
    channels: int
    image: tuple[int, ...]
    out: int
    window: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the image and of the weights."""
        ends = (
            (self.channels, self.out // self.groups)
            if self.transposed
            else (self.out, self.channels // self.groups)
        )
        return (self.batch, self.channels, *self.image), (*ends, *self.window)

    def apply(self, x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
        """The convolution itself."""
        name = f"conv{'_transpose' if self.transposed else ''}{len(self.image)}d"
        made: fg.Tensor = getattr(fg, name)(
            x, w, stride=self.stride, padding=self.padding, dilation=self.dilation,
            groups=self.groups,
        )  # fmt: skip
        return made


FLOAT32 = (np.float32, np.float32)
BF16, HALF = (ml_dtypes.bfloat16, ml_dtypes.bfloat16), (np.float16, np.float16)
BYTES, SIGNED = (np.uint8, np.int8), (np.int8, np.int8)
NARROW = (BF16, SIGNED, HALF, BYTES, (np.float32, ml_dtypes.bfloat16), (np.int16, np.uint8))


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Numbers of a dtype: any whole ones, floats around 0."""
    if np.dtype(dtype).kind in "iu" and dtype is not np.int32:
        limits = np.iinfo(dtype)
        found: Array = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        return found
    return (rng.standard_normal(shape) * (100 if dtype is np.int32 else 1)).astype(dtype)


def arrays(
    case: Case, seed: int, image: Any = np.float32, weights: Any = None
) -> tuple[Array, Array, Array]:
    """An image, weights (of the same dtype) and a number for each channel of results."""
    rng = np.random.default_rng(seed)
    last = np.int32 if np.dtype(image).kind in "iu" else image
    shapes = (*case.shapes, (case.out, *[1] * len(case.image)))
    kinds = zip(shapes, (image, weights or image, last), strict=True)
    a, b, c = [random(rng, shape, dtype) for shape, dtype in kinds]
    return a, b, c


def tensors(*found: Array) -> list[fg.Tensor]:
    """The same; whole numbers are multiplied as int32."""
    made = [fg.Tensor(a) for a in found]
    return [
        t.astype(fg.int32) if a.dtype.kind in "iu" else t for t, a in zip(made, found, strict=True)
    ]


def agree(found: Array, wanted: Array, *dtypes: Any) -> None:
    """Whole numbers are exact, floats right to their last digits."""
    if np.dtype(dtypes[0]).kind in "iu":
        assert np.array_equal(found, wanted)
        return
    small = {np.float16: 2.0**-10, ml_dtypes.bfloat16: 2.0**-7}.get(found.dtype.type)
    limit = 3 * small if small else 1e-4  # what is rounded after the sum, and the sums
    most = max(1.0, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(found.astype(np.float64), wanted, limit, limit * most)


def exact(case: Case, *found: Array, scale: float) -> Array:
    """The convolution, the bias, and no number below 0, in float64."""
    with fg.config(device="reference"):
        x, w, b = [fg.Tensor(a.astype(np.float64)) for a in found]
        return (fg.relu(case.apply(x, w) + b) * scale).numpy()


def check(case: Case, seed: int = 0, scale: float = 1, dtypes: tuple[Any, Any] = FLOAT32) -> None:
    """Run a convolution with its epilogue as a user would, and look at the result."""
    given = arrays(case, seed, *dtypes)
    with fg.config(device="cpu", tier="native"):
        x, w, b = tensors(*given)
        found = fg.schedule(fg.relu(case.apply(x, w) + b) * scale).run()[0].numpy()
    agree(found, exact(case, *given, scale=scale), *dtypes)


KNOWN = Case(8, 16, (20, 20), 24, (3, 3), padding=1)
WAYS = (  # texts of an epilogue: one packs windows, one sweeps over them
    Case(8, 64, (7, 7), 64, (3, 3), padding=1), Case(2, 3, (9, 9), 3, (3, 3), groups=3)
)  # fmt: skip
DIFFERENT = [
    # batches, images and channels of other sizes, tiny and large
    Case(1, 16, (20, 20), 24, (3, 3), padding=1), Case(3, 48, (33, 35), 20, (3, 3), padding=1),
    Case(8, 64, (7, 7), 64, (3, 3), padding=1), Case(2, 3, (64, 64), 16, (3, 3), padding=1),
    Case(1, 3, (112, 112), 8, (3, 3), padding=1), Case(1, 1, (5, 4), 3, (3, 3), padding=1),
    Case(16, 1, (28, 28), 8, (3, 3)), Case(1, 300, (9, 9), 40, (3, 3), padding=2),
    # other windows, strides, dilations, paddings
    Case(2, 8, (30, 30), 12, (5, 5), padding=2), Case(2, 3, (50, 50), 16, (7, 7), 2, 3),
    Case(4, 16, (28, 28), 32, (3, 3), 2, 1), Case(4, 16, (28, 28), 32, (1, 1), 2),
    Case(4, 16, (28, 28), 32, (1, 1)), Case(2, 8, (30, 30), 12, (3, 3), 1, 2, 2),
    Case(2, 8, (30, 31), 12, (3, 1), 3, 1), Case(2, 8, (31, 30), 12, (1, 3), 1, 1, 3),
    # groups: some, as many as channels, with two results each
    Case(4, 16, (28, 28), 32, (3, 3), padding=1, groups=4),
    Case(1, 12, (9, 9), 6, (3, 3), groups=3),
    Case(8, 16, (28, 28), 16, (3, 3), padding=1, groups=16),
    Case(1, 7, (56, 57), 7, (5, 5), padding=2, groups=7),
    Case(3, 8, (29, 30), 8, (3, 3), 2, 1, groups=8), Case(8, 5, (7, 7), 5, (3, 3), 3, 2, groups=5),
    Case(4, 6, (20, 20), 12, (3, 3), padding=1, groups=6),
    # one and three dimensions, and windows turned round
    Case(8, 16, (100,), 32, (3,), padding=1), Case(1, 4, (1000,), 4, (31,), padding=15, groups=4),
    Case(2, 8, (10, 11, 12), 16, (3, 3, 3), padding=1),
    Case(1, 3, (6, 7, 8), 3, (2, 2, 2), groups=3),
    Case(4, 16, (14, 14), 24, (3, 3), padding=1, transposed=True),
    Case(1, 5, (14,), 7, (4,), padding=1, transposed=True),
    # a result of many products in each group
    Case(2, 6, (30, 30), 2, (11, 11), groups=2), Case(2, 128, (12, 11), 2, (3, 3), 2, 1, groups=2),
]  # fmt: skip
ALONE = [  # one result, whose bias is one number: blocks of k, some of one channel
    Case(3, 64, (20, 21), 1, (3, 3), padding=1), Case(1, 67, (20, 21), 1, (3, 3), 2, 1),
    Case(2, 40, (6, 7, 8), 1, (3, 3, 3), padding=1), Case(2, 300, (30,), 1, (5,), padding=2),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def nothing_from_the_disk() -> Iterator[None]:
    with fg.config(disk_cache=False, dynamic=False):  # sizes that vary have texts of their own
        yield


def test_any_convolution_with_a_known_epilogue_compiles_nothing() -> None:
    some = (BF16, SIGNED, HALF)
    for dtypes in (FLOAT32, *some):
        for case in (KNOWN, *WAYS):
            check(case, dtypes=dtypes)
    before = compiler.calls
    for seed, case in enumerate(DIFFERENT):
        check(case, seed)
        if seed % 2:  # each kind of case in some dtype
            check(case, seed, dtypes=some[seed // 2 % 3])
        assert compiler.calls == before, case
    for count, dtypes in enumerate((FLOAT32, *some)):
        check(KNOWN, scale=3, dtypes=dtypes)
        assert compiler.calls == before + count + 1  # a new epilogue: the count does count


@pytest.mark.parametrize("case", [KNOWN, *DIFFERENT[8:14:2]])
def test_a_variable_number_of_images_runs_in_the_same_functions(case: Case) -> None:
    x, w, b = arrays(case, 0)
    images = fg.Var("images", 1, case.batch)

    def made(count: int) -> fg.Tensor:
        part = fg.Tensor(x)[: images.bind(count)]
        return fg.relu(case.apply(part, fg.Tensor(w)) + fg.Tensor(b))

    with fg.config(device="cpu", tier="native"):
        known = rendered_kernels(fg.relu(case.apply(fg.Tensor(x), fg.Tensor(w)) + fg.Tensor(b)))
        for count in (1, case.batch):
            found = made(count)
            assert [r.library for r in rendered_kernels(found)][-1:] == [known[-1].library]
            agree(found.numpy(), exact(case, x[:count], w, b, scale=1), np.float32)


def test_one_result_of_any_number_of_products_has_a_text_for_all_shapes() -> None:
    check(ALONE[0])
    before = compiler.calls
    for seed, case in enumerate(ALONE):
        check(case, seed)
        assert compiler.calls == before, case


@pytest.mark.parametrize(("first", "dtypes"), [(0, FLOAT32), (12, BF16), (18, SIGNED), (23, BYTES)])
def test_whichever_convolution_comes_first_the_others_compile_nothing(
    first: int, dtypes: tuple[Any, Any]
) -> None:
    scale = 5 + first  # an epilogue of its own
    for case in (DIFFERENT[first], *WAYS):
        check(case, scale=scale, dtypes=dtypes)
    before = compiler.calls
    for case in (KNOWN, *DIFFERENT[:4], *DIFFERENT[16:19], *DIFFERENT[23:26]):
        check(case, scale=scale, dtypes=dtypes)
        # both of `WAYS` sweep over signed bytes: texts that pack them come later
        assert compiler.calls <= before + (2 if dtypes is SIGNED else 0), case


def cases(most: int = 12) -> st.SearchStrategy[Case]:
    """Convolutions of every kind that fit their image, small ones."""

    @st.composite
    def made(draw: st.DrawFn) -> Case:
        dimensions = draw(st.integers(1, 3))
        groups = draw(st.sampled_from((1, 1, 2, 3, 8)))
        each, more = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        if draw(st.booleans()):
            each = 1  # as many groups as channels
        window = tuple(draw(st.lists(st.integers(1, 4), min_size=dimensions, max_size=dimensions)))
        dilation, padding = draw(st.integers(1, 2)), draw(st.integers(0, 2))
        least = [max(2, dilation * (n - 1) + 1 - 2 * padding) for n in window]
        image = tuple(n + draw(st.integers(0, most)) for n in least)
        return Case(
            draw(st.sampled_from((1, 2, 5))), groups * each, image, groups * more + groups, window,
            draw(st.integers(1, 3)), padding, dilation, groups,
        )  # fmt: skip

    return made()


@kernel
@given(
    vectors=st.sampled_from(VECTORS),
    case=cases(),
    seed=st.integers(0, 99),
    dtypes=st.sampled_from((FLOAT32, (np.float64, np.float64), *NARROW)),
)
def test_a_convolution_of_any_shape_is_right(
    vectors: str, case: Case, seed: int, dtypes: tuple[Any, Any]
) -> None:
    given = arrays(case, seed, *dtypes)
    with fg.config(device="cpu"):
        x, w, b = tensors(*given)
        lazy = fg.relu(case.apply(x, w)) + b
    wanted = exact(case, *given[:2], np.zeros_like(given[2]), scale=1.0) + given[2]
    (found,), _ = run(lazy, seed=seed, machine=target(vectors))
    agree(found, wanted.astype(np.float64), *dtypes)


@pytest.mark.parametrize("vectors", VECTORS)
@kernels
@given(case=cases(), which=st.integers(0, 1), seed=st.integers(0, 99))
def test_gradients_of_any_shape_are_right(vectors: str, case: Case, which: int, seed: int) -> None:
    lazy = gradient(case, which, seed, device="cpu", dtype=np.float32)
    right = gradient(case, which, seed, device="reference", dtype=np.float64)
    with fg.config(device="reference"):
        wanted = right.numpy()
    (found,), _ = run(lazy, seed=seed, machine=target(vectors))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [KNOWN, DIFFERENT[4], DIFFERENT[18], DIFFERENT[20]])
def test_memory_that_conditions_leave_out_is_never_counted(case: Case) -> None:
    """Numbers beside the image in memory are no part of it: it is a piece of a larger one."""
    x, w, b = arrays(case, 3)
    around = np.full((x.shape[0] + 2, *x.shape[1:]), np.nan, np.float32)
    around[1:-1] = x
    with fg.config(device="cpu", tier="native"):
        image = fg.Tensor(around).realize()[1:-1]
        found = fg.relu(case.apply(image, fg.Tensor(w)) + fg.Tensor(b)).numpy()
    wanted = exact(case, x, w, b, scale=1.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 8, (30, 30), 8, (11, 11), groups=8),
        Case(4, 32, (200,), 1, (9,)),
        Case(8, 8, (131,), 1, (3,)),
    ],
)
def test_errors_of_sums_that_sweep_over_windows_stay_near_numpys(case: Case) -> None:
    """NumPy multiplies windows, as rows of a matrix, with the weights of one result channel."""
    ours = theirs = 0.0
    spaces = tuple(range(2, 2 + len(case.image)))
    for seed in range(5):
        x, w, _ = [np.abs(a) for a in arrays(case, seed)]
        with fg.config(device="cpu", tier="native"):
            found = case.apply(fg.Tensor(x), fg.Tensor(w)).numpy()
        seen = np.lib.stride_tricks.sliding_window_view(x, case.window, spaces)
        grouped = seen.reshape(case.batch, case.groups, -1, *seen.shape[2:])
        order = (0, 1, *[a + 1 for a in spaces], 2, *range(-len(case.image), 0))
        rows = grouped.transpose(order).reshape(*found.shape, -1)
        columns = w.reshape(case.out, *[1] * (len(case.image) - 1), -1, 1)
        exact = (rows.astype(np.float64) @ columns.astype(np.float64))[..., 0]
        ours += float(((found - exact) ** 2).sum())
        theirs += float((((rows @ columns)[..., 0] - exact) ** 2).sum())
    assert ours <= 1.5**2 * theirs, f"{(ours / theirs) ** 0.5:.2f} times"


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    for case in (KNOWN, DIFFERENT[4], DIFFERENT[18], GRADIENTS[5]):
        found = []
        for threads in (1, 2, 3):
            with fg.config(device="cpu", tier="native", threads=threads):
                x, w, _ = [fg.Tensor(a) for a in arrays(case, 1)]
                made = fg.grad(lambda a, b, case=case: case.apply(a, b).square().sum(), (0, 1))(
                    x, w
                )
                found.append([case.apply(x, w).numpy(), *[t.numpy() for t in made]])
        for other in found[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


GRADIENTS = [
    Case(4, 16, (20, 20), 24, (3, 3), padding=1), Case(1, 3, (9, 14), 5, (5, 5), padding=2),
    Case(8, 8, (7, 7), 64, (3, 3), padding=1), Case(2, 4, (40, 40), 4, (3, 3), 1, 2, 2),
    Case(2, 12, (14, 14), 24, (3, 3), padding=1, groups=4),
    Case(4, 8, (28, 28), 8, (3, 3), padding=1, groups=8), Case(1, 5, (30, 9), 5, (3, 3), groups=5),
    Case(2, 6, (12, 12), 12, (3, 3), padding=1, groups=6),
    Case(3, 8, (50,), 4, (5,), padding=2), Case(2, 8, (50,), 8, (3,), padding=1, groups=8),
    Case(2, 4, (6, 7, 8), 8, (3, 3, 3), padding=1),
    # one result of several channels; windows of one element with padding, which is cut off again
    Case(3, 64, (12, 13), 1, (3, 3), padding=1), Case(1, 32, (10, 10), 4, (3, 3), groups=4),
    Case(2, 8, (9, 10), 12, (1, 1), padding=1), Case(2, 6, (9, 10), 8, (1, 3), padding=2),
    Case(4, 16, (9, 9), 24, (3, 3), padding=1, transposed=True),
]  # fmt: skip
STRIDED = [
    Case(4, 16, (20, 20), 24, (3, 3), 2, 1), Case(1, 3, (21, 14), 5, (5, 5), 3, 2),
    Case(2, 8, (16, 28), 8, (3, 3), 2, 1, groups=8), Case(3, 8, (50,), 4, (5,), 2, 2),
    Case(2, 4, (6, 7, 8), 8, (3, 3, 3), 2, 1), Case(2, 6, (21, 21), 6, (4, 4), 4, 0, groups=6),
]  # fmt: skip


def gradient(case: Case, which: int, seed: int, *, device: str, dtype: Any) -> fg.Tensor:
    """The gradient to the image (0) or to the weights (1)."""
    x, w, _ = arrays(case, seed, dtype)
    rng = np.random.default_rng(seed + 1)
    with fg.config(device=device):
        shape = case.apply(fg.zeros(x.shape), fg.zeros(w.shape)).shape
        out = fg.Tensor(rng.standard_normal(shape).astype(np.float32).astype(dtype))
        arguments = fg.Tensor(x), fg.Tensor(w)
        found: fg.Tensor = fg.grad(lambda a, b: (case.apply(a, b) * out).sum(), which)(*arguments)
        return found


def check_gradient(case: Case, which: int, seed: int) -> None:
    wanted = gradient(case, which, seed, device="reference", dtype=np.float64)
    with fg.config(device="reference"):
        right = wanted.numpy()
    with fg.config(device="cpu", tier="native"):
        lazy = gradient(case, which, seed, device="cpu", dtype=np.float32)
        found = fg.schedule(lazy).run()[0].numpy()
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=2e-5 * np.abs(right).max())


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_of_new_shapes_compile_nothing(which: int) -> None:
    check_gradient(Case(3, 9, (11, 13), 10, (3, 3), padding=1), which, 5)
    before = compiler.calls
    for seed, case in enumerate(GRADIENTS + (STRIDED if which else [])):
        check_gradient(case, which, seed)
        assert compiler.calls == before, case


IN_PHASES = [  # each with the size, window, padding or channels of another
    (Case(4, 64, (20, 20), 40, (3, 3), 2, 1), Case(2, 48, (11, 29), 33, (3, 3), 2, 1)),
    (Case(4, 16, (20, 20), 24, (4, 4), 2, 1), Case(2, 5, (22, 11), 7, (4, 4), 2, 1)),
    (Case(1, 3, (21, 17), 5, (5, 5), 2, 2), Case(3, 6, (33, 13), 8, (3, 3), 2, 1)),
    (Case(2, 16, (20, 44), 24, (1, 1), 2), Case(3, 40, (14, 36), 8, (1, 1), 2)),
    (Case(2, 8, (17, 29), 8, (3, 3), 2, 1, groups=8),
     Case(1, 5, (31, 19), 5, (5, 5), 2, 2, groups=5)),
    (Case(3, 8, (51,), 4, (5,), 2, 2), Case(1, 3, (37,), 9, (3,), 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize("pair", IN_PHASES, ids=lambda pair: str(pair[0].shapes))
def test_phases_of_a_stride_are_put_together_by_a_text_for_all_shapes(
    pair: tuple[Case, Case],
) -> None:
    check_gradient(pair[0], 0, 1)
    before = compiler.calls
    check_gradient(pair[1], 0, 2)
    assert compiler.calls == before, pair[1]


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_that_are_packed_row_by_row_ask_for_their_own_pixels(stride: int) -> None:
    """Channels last: conditions change with each row that is packed; a block has some of them."""
    for seed, case in enumerate([
        Case(1, 3, (37, 61), 16, (3, 3), stride, 1), Case(2, 1, (50, 33), 7, (3, 3), stride, 2),
        Case(1, 8, (29, 64), 20, (4, 2), stride, 1, 2), Case(1, 3, (64, 64), 64, (7, 7), stride, 3),
    ]):  # fmt: skip
        x, w, b = arrays(case, seed, np.float32)
        with fg.config(device="cpu"):
            y = fg.relu(case.apply(fg.Tensor(x), fg.Tensor(w)) + fg.Tensor(b))
            lazy = fg.permute_dims(y, (0, 2, 3, 1)).contiguous()
        (found,), _ = run(lazy, seed=seed)
        wanted = np.moveaxis(exact(case, x, w, b, scale=1), 1, -1)
        assert np.allclose(found, wanted, rtol=1e-4, atol=1e-4), case


MANY_ROWS = [  # rows of every register block, runs that end inside a vector, tiles that are alike
    Case(1, 3, (96, 80), 16, (3, 3), 2, 1), Case(1, 5, (70, 90), 31, (3, 3), 1, 1),
    Case(2, 7, (33, 47), 27, (5, 3), 1, 2), Case(1, 40, (24, 32), 20, (3, 3), 1, 1),
    Case(1, 29, (40, 48), 9, (1, 5), 1, 2, 2), Case(1, 6, (64, 64), 46, (7, 7), 2, 3),
    Case(3, 8, (31, 45), 48, (3, 3), 2, 1, 2, 2), Case(1, 64, (400,), 36, (3,), 1, 4, 4),
    Case(1, 4, (9, 20, 33), 18, (3, 3, 3), 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_rows_sweep_over_windows_with_hostile_numbers(vectors: str, dtype: Any) -> None:
    for seed, case in enumerate(MANY_ROWS):
        x, w, b = arrays(case, seed, dtype)
        rng = np.random.default_rng(seed)
        for number in (np.inf, -np.inf, np.nan, -0.0, np.finfo(dtype).tiny / 4):
            x[rng.random(x.shape) < 0.001] = number
        with fg.config(device="cpu"):
            lazy = fg.relu(case.apply(fg.Tensor(x), fg.Tensor(w)) + fg.Tensor(b))
        with np.errstate(invalid="ignore"):
            wanted = exact(case, x, w, b, scale=1)
        (found,), _ = run(lazy, seed=seed, machine=target(vectors))
        finite = np.isfinite(wanted)
        for test in (np.isnan, np.isinf):
            assert np.array_equal(test(found), test(wanted)), case
        limit = 2e-5 if dtype is np.float32 else 1e-13
        np.testing.assert_allclose(found[finite], wanted[finite], limit, 10 * limit)


def test_many_rows_have_the_same_bits_on_any_number_of_threads() -> None:
    for seed, case in enumerate(MANY_ROWS):
        given = arrays(case, seed)
        bits = set()
        for threads in (1, 2, 3):
            with fg.config(device="cpu", tier="native", threads=threads):
                x, w, b = tensors(*given)
                bits.add(fg.schedule(fg.relu(case.apply(x, w) + b)).run()[0].numpy().tobytes())
        assert len(bits) == 1, case


def prefetches(text: str) -> dict[str, int]:
    """How often each function of a module asks for memory at a step."""
    parts = [part.split("(", 1) for part in text.split("\ndefine ")[1:]]
    call = "call void @llvm.prefetch"
    return {head.rpartition("_part")[2]: body.count(call) for head, body in parts}


@pytest.mark.parametrize("vectors", ["avx512", "avx2"])
def test_neighbours_that_many_rows_sweep_over_are_prefetched(vectors: str) -> None:
    registers = Registers(fg.float32, replace(target(), vectors=vectors))
    found = prefetches(direct(registers, (fg.float32, fg.float32)).text)
    for rows, pieces in registers.direct_blocks("near"):
        assert found[f"_near_{rows}"] == pieces
    others = [name for name in found if "near" not in name or name.endswith(("_1", "_2"))]
    assert not any(found[name] for name in others)


def test_channels_of_an_image_are_prefetched_before_they_are_packed() -> None:
    registers = Registers(fg.float32, replace(target(), vectors="avx512"))
    found = prefetches(im2col(registers, (fg.float32, fg.float32)).text)
    kinds = {kind: found[str(number)] for number, kind in enumerate(PACK_KINDS)}
    assert kinds["near"] == 1 and kinds["dense"] == kinds["transposed"] == 0
    for window, padding in ((1, 0), (3, 1)):  # the next step is a channel, not the next pixel
        shapes = (8, 256, 14, 14), (512, 256, window, window)
        with fg.config(device="cpu"):
            image, weights = [fg.Tensor(np.ones(shape, np.float32)) for shape in shapes]
            lazy = fg.conv2d(image, weights, padding=padding)
        problem = cpu_problem(*lowered(lazy))
        chosen = None if problem is None else choose(problem, registers.target)
        assert chosen is not None and chosen[1].kind is GemmKind.IMPLICIT
        gemm = chosen[0].as_kind(GemmKind.IMPLICIT)
        numbers = Geometry(gemm, chosen[1].tiles).side_numbers(gemm.right)
        assert numbers["next step", "right"] == 14 * 14


def test_the_text_of_sweeps_comes_with_convolutions_that_sweep_only() -> None:
    for case, swept in zip(WAYS, (False, True), strict=True):
        x, w, b = arrays(case, 0)
        with fg.config(device="cpu", tier="native"):
            made = rendered_kernels(fg.relu(case.apply(fg.Tensor(x), fg.Tensor(w)) + fg.Tensor(b)))
        library = "\n".join(made[-1].library)
        assert ("@fulgurite_direct_" in library) == swept
        assert ("@fulgurite_im2col_" in library) != swept


@pytest.mark.parametrize("image", [(9, 4), (5, 4), (9, 5)])
def test_sums_over_images_whose_places_go_on_from_one_to_the_next(image: tuple[int, int]) -> None:
    """The slope of depthwise weights: with channels last, a stride of 2 and rows of two windows,
    the step from the last place of an image to the next image is that between neighbours."""
    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((2, *image, 3)).astype(np.float32)
    weights = rng.standard_normal((3, 1, 2, 3)).astype(np.float32)

    def loss(w: fg.Tensor, x: fg.Tensor) -> fg.Tensor:
        y = fg.conv2d(fg.permute_dims(x, (0, 3, 1, 2)), w, stride=2, padding=1, groups=3)
        return (y * y.detach()).sum()

    slopes = []
    for options in ({"device": "reference", "fuse": False}, {"device": "cpu", "tier": "native"}):
        with fg.config(**options, search=False):
            slopes.append(fg.grad(loss)(fg.Tensor(weights), fg.Tensor(pictures)).numpy())
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-4, atol=1e-4)
