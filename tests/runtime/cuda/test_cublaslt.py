"""Products by a vendor's library: a fake one computes them from what it was told."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cuda.library import find_library
from fulgurite.config import from_environment
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.runtime.cuda import cublaslt, timing
from fulgurite.runtime.cuda.report import library_line

RNG = np.random.default_rng(0)
Case = Callable[..., Any]


@pytest.fixture
def blas(gpu: Any, library: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    """The fake library, of which nothing is known yet, used wherever it can be."""
    for name in ("version", "workspace"):
        getattr(library, f"cublas_fake_{name}").argtypes = (ctypes.c_size_t,)
    forget(gpu, library)
    with fg.config(cublas="on"):
        yield library
    forget(gpu, library)


def forget(gpu: Any, library: ctypes.CDLL) -> None:
    """Begin as a new process would."""
    library.fake_fail(b"", 0, 0)
    library.cublas_fake_version(130200)
    library.cublas_fake_workspace(0)
    vars(gpu).pop("blas", None)
    fg.clear_caches()


def calls(library: ctypes.CDLL, name: str = "cublasLtMatmul") -> int:
    """How often a function was called."""
    return int(library.cublas_fake_count(name.encode()))


def random(*shape: int, dtype: str = "float32") -> fg.Tensor:
    """Small whole numbers, whose sums of products are exact in every dtype's sum."""
    return fg.tensor(RNG.integers(-3, 4, shape).astype("float32")).astype(dtype).realize()


def check(library: ctypes.CDLL, function: Case, *given: Any, used: int = 1) -> None:
    """A function gives what the reference does, with so many products by the library."""
    before = calls(library)
    found = [np.asarray(x.realize().astype("float64").numpy()) for x in several(function(*given))]
    assert calls(library) - before == used
    compare(found, function, *given)


def compare(found: Any, function: Case, *given: Any) -> None:
    """What was found is what the reference device gives."""
    with fg.config(device="reference"):
        wanted = several(function(*[x.to("reference") for x in given]))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b.astype("float64").numpy())


def several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def values(found: Any) -> list[Any]:
    return [x.astype("float64").numpy() for x in several(found)]


def transposed(a: Any) -> Any:
    return fg.swapaxes(a, -1, -2)


def plain(a: Any, b: Any) -> Any:
    return a @ b


# --- what it is told -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_plain_products_of_every_dtype(blas: ctypes.CDLL, dtype: str) -> None:
    check(blas, plain, random(33, 17, dtype=dtype), random(17, 24, dtype=dtype))


LAYOUTS: dict[str, tuple[Case, tuple[tuple[int, ...], ...]]] = {
    "right transposed": (lambda a, b: a @ transposed(b), ((7, 12), (9, 12))),
    "left transposed": (lambda a, b: transposed(a) @ b, ((12, 7), (12, 9))),
    "both transposed": (lambda a, b: transposed(a) @ transposed(b), ((12, 7), (9, 12))),
    "result transposed": (lambda a, b: transposed(a @ b), ((7, 12), (12, 9))),
    "batch": (plain, ((4, 7, 12), (4, 12, 9))),
    "batch transposed": (lambda a, b: a @ transposed(b), ((4, 7, 12), (4, 9, 12))),
    "one right for a batch": (plain, ((4, 7, 12), (12, 9))),
    "columns of a matrix": (lambda a, b: a[:, 3:11] @ b[3:11], ((7, 12), (12, 9))),
    "some columns": (lambda a, b: a @ b[:, 2:7], ((7, 12), (12, 9))),
    "the same matrix twice": (lambda a, b: a @ transposed(a), ((7, 12), (1, 1))),
    "columns of one step": (plain, ((7, 1), (1, 9))),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_matrices_as_they_lie(blas: ctypes.CDLL, case: str) -> None:
    function, shapes = LAYOUTS[case]
    given = [random(*shape, dtype="bfloat16") for shape in shapes]
    before = calls(blas)
    found = values(function(*given).realize())
    assert calls(blas) - before == (case != "columns of one step")  # which is no sum
    compare(found, function, *given)


def test_what_has_no_such_strides_is_not_asked_for(blas: ctypes.CDLL) -> None:
    a, b = random(12, 24), random(12, 9)
    check(blas, lambda a, b: a[:, ::2] @ b, a, b, used=0)
    check(blas, plain, random(7, 12), random(4, 12, 9), used=0)  # columns along two axes
    check(blas, plain, random(6, 5).astype("int32").realize(),
          random(5, 4).astype("int32").realize(), used=0)  # fmt: skip
    c, d = random(2, 3, 4, 5), random(3, 2, 5, 6)
    check(blas, lambda c, d: fg.swapaxes(c, 0, 1) @ d, c, d, used=0)


EPILOGUES: dict[str, Case] = {
    "bias": lambda a, b, c, r: a @ b + c,
    "bias, relu": lambda a, b, c, r: fg.relu(a @ b + c),
    "residual": lambda a, b, c, r: r + a @ b,
    "wider": lambda a, b, c, r: (a @ b).astype("float32"),
    "two results": lambda a, b, c, r: ((a @ b) * 2, a @ b + r),
    "stored transposed": lambda a, b, c, r: transposed(a @ b) * 2,
}


@pytest.mark.parametrize("room", [0, 4096])
@pytest.mark.parametrize("case", EPILOGUES)
def test_an_epilogue_follows_the_product(blas: ctypes.CDLL, case: str, room: int) -> None:
    blas.cublas_fake_workspace(room)
    given = [random(*shape, dtype="bfloat16") for shape in ((16, 24), (24, 40), (40,), (16, 40))]
    with fg.config(poison=True):
        before = calls(blas)
        found = values(EPILOGUES[case](*given))
        assert calls(blas) > before
    compare(found, EPILOGUES[case], *given)


def test_partial_sums_are_neither_rounded_nor_in_an_order_of_their_own(blas: ctypes.CDLL) -> None:
    check(blas, plain, random(8, 16), random(16, 8))
    assert blas.cublas_fake_mask() == cublaslt.IN_COMPUTE_TYPE


def test_tf32_is_asked_for_by_the_option(gpu: Any) -> None:
    del gpu
    wide = captured_kernel(plain, random(8, 16), random(16, 8))
    for wish in ("float32", "tf32"):
        found = find_library(wide, wish)
        assert found is not None and found.gemm.precision == wish
    small = random(8, 16, dtype="bfloat16"), random(16, 8, dtype="bfloat16")
    found = find_library(captured_kernel(plain, *small), "tf32")
    assert found is not None and found.gemm.precision == "float32"


def test_bytes_are_multiplied_where_the_result_is_rounded(gpu: Any) -> None:
    del gpu
    given = random(16, 32, dtype="float8_e4m3fn"), random(48, 32, dtype="float8_e4m3fn")

    def product(a: Any, b: Any, dtype: str) -> Any:
        return a.astype(dtype) @ transposed(b.astype(dtype))

    found = find_library(captured_kernel(lambda a, b: product(a, b, "bfloat16"), *given))
    assert found is not None and found.gemm.left.dtype == "float8_e4m3fn"
    kernel = captured_kernel(lambda a, b: product(a, b, "float32"), *given)
    assert find_library(kernel) is None, "its sums keep fewer bits"


def captured_kernel(function: Case, *given: Any) -> Any:
    """The one kernel that a function is scheduled as."""
    from fulgurite.runtime.device import get_device

    seen: list[Any] = []
    device: Any = get_device("cuda")
    compile_ = device.compile_guarded

    def noted(kernels: Any, over: Any) -> Any:
        seen.extend(kernels)
        return compile_(kernels, over)

    device.compile_guarded = noted
    try:
        fg.clear_caches()
        with fg.config(cublas="off"):
            function(*given).realize()
    finally:
        del device.compile_guarded
    (kernel,) = seen
    return kernel


def float8(*shape: int) -> fg.Tensor:
    return random(*shape, dtype="float8_e4m3fn")


def small_product(a: Any, b: Any) -> Any:
    return a.astype("bfloat16") @ transposed(b.astype("bfloat16"))


def test_float8_is_multiplied_as_it_is(blas: ctypes.CDLL) -> None:
    check(blas, small_product, float8(128, 96), float8(160, 96))
    check(blas, small_product, float8(128, 96), float8(160, 96))
    quantised = random(160, 96)

    def in_the_graph(a: Any, b: Any) -> Any:
        return small_product(a, (b * 2).astype("float8_e4m3fn"))

    check(blas, in_the_graph, float8(128, 96), quantised)


def test_large_products_of_float8_are_the_librarys_and_no_others_if_nobody_asks(
    blas: ctypes.CDLL,
) -> None:
    with fg.config(cublas=from_environment({}).cublas):
        check(blas, small_product, float8(512, 512), float8(512, 512))
        check(blas, small_product, float8(128, 96), float8(160, 96), used=0)  # too little to do
        whole = random(512, 512, dtype="bfloat16")
        check(blas, lambda a: a @ transposed(a), whole, used=0)
        check(blas, lambda a: a @ transposed(a), random(512, 512), used=0)


def test_float8_that_the_library_does_not_take_is_ours(blas: ctypes.CDLL) -> None:
    check(blas, small_product, float8(128, 90), float8(160, 90), used=0)
    across = float8(96, 96), float8(96, 96)  # one of them is not along K
    check(blas, lambda a, b: small_product(a, transposed(b)), *across, used=0)
    with fg.config(cublas="off"):
        check(blas, small_product, float8(128, 96), float8(160, 96), used=0)


# --- in plans ------------------------------------------------------------------------------------


def chain(a: Any, b: Any) -> Any:
    """Several products, with kernels between."""
    y = a @ b
    return fg.relu(y) @ transposed(b), y.sum(axis=0)


@pytest.mark.parametrize("room", [0, 512])
def test_graphs_are_told_other_addresses(blas: ctypes.CDLL, room: int) -> None:
    blas.cublas_fake_workspace(room)
    jitted, b = fg.jit(chain), random(24, 40)
    graphs = blas.fake_count(b"graphs")
    nodes = []
    for _ in range(7):
        a = random(16, 24)
        compare(values(jitted(a, b)), chain, a, b)
        nodes.append(blas.fake_count(b"nodes"))
    assert blas.fake_count(b"graphs") > graphs and nodes[-1] == nodes[-3], "no graph is built anew"


def test_a_steady_step_calls_the_library_no_more(blas: ctypes.CDLL) -> None:
    jitted, a, b = fg.jit(chain), random(16, 24), random(24, 40)
    for _ in range(8):
        found = values(jitted(a, b))
    before = calls(blas)
    found = values(jitted(a, b))
    assert calls(blas) == before
    compare(found, chain, a, b)


def test_what_writes_over_an_input_looks_at_the_lock_and_is_ours(
    blas: ctypes.CDLL, gpu: Any
) -> None:
    kernel = replace(captured_kernel(plain, random(8, 8), random(8, 8)), kind=KernelKind.LIBRARY)
    (ours,) = gpu.compile_guarded([kernel], {kernel})
    (theirs,) = gpu.compile_guarded([kernel], set())
    assert ours.is_guarded and not ours.is_library
    assert theirs.is_library and not theirs.is_guarded

    @fg.jit(donate=[0])
    def step(w: Any, x: Any, at: Any) -> Any:
        return w + x @ x, x[at]

    w, x, at = random(8, 8), random(8, 8), fg.tensor(np.array([1, 2]))
    want = w.numpy()
    for _ in range(5):
        w, _ = step(w, x, at)
        want = want + x.numpy() @ x.numpy()
        np.testing.assert_array_equal(w.numpy(), want)


# --- what fails ----------------------------------------------------------------------------------

BEFORE = [name for name in cublaslt._FUNCTIONS if name != "cublasLtMatmul" and "Check" not in name]


@pytest.mark.parametrize("name", [n for n in BEFORE if "Destroy" not in n])
def test_a_call_that_fails_leaves_the_product_to_us(blas: ctypes.CDLL, name: str) -> None:
    blas.fake_fail(name.encode(), 0, 15)
    given = random(4, 8, 16, dtype="bfloat16"), random(4, 16, 24, dtype="bfloat16")
    before = calls(blas)
    found = values(plain(*given))
    assert calls(blas) == before
    blas.fake_fail(b"", 0, 0)
    compare(found, plain, *given)


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("room", [0, 512])
def test_a_product_that_fails_is_computed_by_us(blas: ctypes.CDLL, after: int, room: int) -> None:
    blas.cublas_fake_workspace(room)
    rows = 16 + after + room // 10  # what failed stays so: each has kernels of its own
    jitted, b = fg.jit(chain), random(24, 40)
    blas.fake_fail(b"cublasLtMatmul", after, 15)
    with pytest.warns(RuntimeWarning, match="a kernel of our own is used"):
        for _ in range(7):
            a = random(rows, 24)
            compare(values(jitted(a, b)), chain, a, b)


def test_a_graph_that_cannot_be_updated_is_built_anew(blas: ctypes.CDLL) -> None:
    jitted, b = fg.jit(chain), random(24, 40)
    blas.fake_fail(b"cuGraphExecChildGraphNodeSetParams", 0, 1)
    for _ in range(7):
        a = random(16, 24)
        compare(values(jitted(a, b)), chain, a, b)


def test_without_the_library_nothing_is_missing(
    blas: ctypes.CDLL, gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FULGURITE_LIBCUBLASLT", str(tmp_path / "nowhere.so"))
    check(blas, plain, random(8, 16), random(16, 24), used=0)
    assert gpu.blas is None and "without cuBLASLt" in library_line()


@pytest.mark.parametrize("number", [11_0300, 14_0000])
def test_an_unknown_version_is_not_used(blas: ctypes.CDLL, gpu: Any, number: int) -> None:
    blas.cublas_fake_version(number)
    check(blas, plain, random(8, 16), random(16, 24), used=0)
    assert gpu.blas is None and "version" in library_line()


def test_it_is_found_inside_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FULGURITE_LIBCUBLASLT", raising=False)
    names = {"cu13": "libcublasLt.so.13", "cublas": "libcublasLt.so.12"}
    files = [tmp_path / "nvidia" / part / "lib" / name for part, name in names.items()]
    for path in files:
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    found = cublaslt.candidates()
    assert found[:2] == [str(path) for path in files] and found[-1] == "libcublasLt.so.12"
    assert str(files[0]) in cublaslt.identity()


# --- options and reports -------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"cublas": "off"}, {"cublas": "auto"}, {"exact": True}])
def test_options_do_without(blas: ctypes.CDLL, options: dict[str, Any]) -> None:
    with fg.config(**options):
        check(blas, plain, random(8, 16), random(16, 24), used=0)


def test_explain_and_doctor_name_it(blas: ctypes.CDLL) -> None:
    a, b = random(8, 16), random(16, 24)
    assert "run by cuBLASLt 13.2.0" in str(fg.explain(a @ b))
    assert "run by cuBLASLt 13.2.0, then its epilogue" in str(fg.explain(fg.sin(a @ b)))
    assert "cuBLASLt 13.2.0" in library_line()


# --- on disk -------------------------------------------------------------------------------------


def test_the_algorithm_is_asked_for_once_and_kept(
    blas: ctypes.CDLL, gpu: Any, tmp_path: Path
) -> None:
    given, name = (random(8, 16), random(16, 24)), "cublasLtMatmulAlgoGetHeuristic"
    with fg.config(disk_cache=True, cache_dir=str(tmp_path)):
        before = calls(blas, name)
        check(blas, plain, *given)
        assert calls(blas, name) == before + 1
        forget(gpu, blas)
        check(blas, lambda a, b: fg.sin(a @ b).sum() * 0 + (a @ b), *given)  # another plan
        assert calls(blas, name) == before + 1
        forget(gpu, blas)
        blas.cublas_fake_version(130300)
        check(blas, plain, *given)
        assert calls(blas, name) == before + 2


def test_a_plan_of_the_disk_calls_the_library(blas: ctypes.CDLL, gpu: Any, tmp_path: Path) -> None:
    given = random(16, 24), random(24, 40)
    blas.cublas_fake_workspace(512)
    with fg.config(disk_cache=True, cache_dir=str(tmp_path)):
        compare(values(chain(*given)), chain, *given)
        forget(gpu, blas)
        blas.cublas_fake_workspace(512)
        asked = calls(blas, "cublasLtMatmulAlgoGetHeuristic")
        before = calls(blas)
        compare(values(chain(*given)), chain, *given)
        assert calls(blas) > before and calls(blas, "cublasLtMatmulAlgoGetHeuristic") == asked


def test_a_plan_of_another_version_asks_again_or_does_without(
    blas: ctypes.CDLL, gpu: Any, tmp_path: Path
) -> None:
    given = random(16, 24), random(24, 40)
    with fg.config(disk_cache=True, cache_dir=str(tmp_path)):
        compare(values(chain(*given)), chain, *given)
        forget(gpu, blas)
        blas.cublas_fake_version(130300)  # the file is the same: the plan is found
        compare(values(chain(*given)), chain, *given)
        forget(gpu, blas)
        blas.cublas_fake_version(130400)
        blas.cublas_fake_workspace(4096)  # more than the plan has
        with pytest.warns(RuntimeWarning, match="has no algorithm"):
            compare(values(chain(*given)), chain, *given)


def test_an_exported_plan_has_our_own_kernel_for_who_lacks_the_library(
    blas: ctypes.CDLL, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = random(16, 24), random(24, 48)
    fg.schedule(plain(a, b)).save(tmp_path / "plan", names={"a": a, "b": b})
    forget(gpu, blas)
    before = calls(blas)
    found = tuple(fg.load_schedule(tmp_path / "plan").run(a=a, b=b))
    assert calls(blas) == before + 1
    compare(values(found), plain, a, b)
    monkeypatch.setenv("FULGURITE_LIBCUBLASLT", str(tmp_path / "nowhere.so"))
    forget(gpu, blas)
    compiled = gpu.table.compiled
    with pytest.warns(RuntimeWarning, match="is not there"):
        found = tuple(fg.load_schedule(tmp_path / "plan").run(a=a, b=b))
    assert calls(blas) == before + 1 and gpu.table.compiled == compiled
    compare(values(found), plain, a, b)


def test_damaged_algorithms_are_asked_for_again(
    blas: ctypes.CDLL, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = random(8, 16), random(16, 24)
    for text in (b"", b"{", b'{"algorithm": "zz", "bytes": 0}', b'{"algorithm": "00", "bytes": 1}',
                 b"[]"):  # fmt: skip
        monkeypatch.setattr(cublaslt, "store_for", lambda _, text=text: Kept(text))
        forget(gpu, blas)
        check(blas, plain, *given)


class Kept:
    """A store in which somebody wrote something else."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    def get(self, kind: str, key: str) -> bytes:
        return self.text

    def put(self, kind: str, key: str, data: bytes) -> None:
        pass


# --- tuning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ties", "full"])
@pytest.mark.parametrize("quicker", [0, 1])
def test_tuning_times_both_on_the_device_and_keeps_the_winner(
    blas: ctypes.CDLL, gpu: Any, tmp_path: Path, mode: str, quicker: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(timing, "FILLED_BYTES", 1 << 10)
    given = random(24, 16 + quicker), random(16 + quicker, 8)
    cost = (3.0, 1.0) if quicker else (1.0, 3.0)
    blas.fake_cost.argtypes = (ctypes.c_double,) * 2
    with fg.config(cublas="auto", tune=mode, disk_cache=True, cache_dir=str(tmp_path)):
        try:
            blas.fake_cost(*cost)
            assert ("run by cuBLASLt" in str(fg.explain(plain(*given)))) == bool(quicker)
            compare(values(plain(*given)), plain, *given)
            forget(gpu, blas)
            blas.fake_cost(*cost[::-1])  # what was measured is not measured again
            assert ("run by cuBLASLt" in str(fg.explain(plain(*given)))) == bool(quicker)
        finally:
            blas.fake_cost(0.0, 0.0)
