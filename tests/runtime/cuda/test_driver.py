"""Tests of fulgurite/runtime/cuda/driver.py, against a libcuda without a GPU."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fulgurite.codegen.cuda.source import Argument, TensorMap, lock_word, number, tensor_map
from fulgurite.runtime.cuda import driver as cuda

COMPILER = shutil.which("cc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if COMPILER is None:
        pytest.skip("there is no C compiler to make a libcuda with")
    path = tmp_path_factory.mktemp("fake") / "libcuda.so.1"
    source = Path(__file__).with_name("fakecuda.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-pthread", "-o", path, source], check=True)
    return str(path)


@pytest.fixture
def fake(library: str) -> Iterator[Any]:
    made = ctypes.CDLL(library)
    made.fake_fail(b"", 0, 0)
    made.fake_version(13000)
    yield made
    made.fake_fail(b"", 0, 0)


def test_a_missing_driver_is_said_clearly() -> None:
    with pytest.raises(cuda.NoCudaError, match=r"(?s)no NVIDIA driver.*install it") as e:
        cuda.Driver("/nowhere/libcuda.so.1")
    assert isinstance(e.value, RuntimeError)


def test_an_old_driver_is_said_clearly(library: str, fake: Any) -> None:
    fake.fake_version(11080)
    with pytest.raises(cuda.NoCudaError, match=r"of CUDA 11\.8"):
        cuda.Driver(library)


def test_structures_are_as_long_as_the_driver_has_them() -> None:
    assert ctypes.sizeof(cuda.KernelNode) == 72
    assert ctypes.sizeof(cuda._PoolProperties) == 88


def test_errors_have_the_drivers_name_and_kind(library: str, fake: Any) -> None:
    made = cuda.Driver(library)
    context = cuda.Context(made)
    stream, pool = cuda.Stream(made), cuda.Pool(context)
    fake.fake_fail(b"cuMemAllocFromPoolAsync", 1, 2)
    address = pool.allocate(100, stream)
    with pytest.raises(cuda.CudaMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        pool.allocate(100, stream)
    fake.fake_fail(b"cuStreamSynchronize", 0, 700)
    with pytest.raises(cuda.DeviceLostError, match="start the process again") as lost:
        stream.synchronize()
    assert lost.value.code == 700
    fake.fake_fail(b"cuStreamQuery", 0, 600)
    assert not stream.is_idle()
    fake.fake_fail(b"", 0, 0)
    assert stream.is_idle()
    pool.free(address, stream)
    for one in (pool, stream, context):
        one.close()


def test_a_number_beyond_the_gpus_is_refused(library: str, fake: Any) -> None:
    with pytest.raises(cuda.NoCudaError, match="no GPU number 2"):
        cuda.Context(cuda.Driver(library), 2)


def test_what_is_written_comes_back_and_no_handle_is_left(library: str, fake: Any) -> None:
    before = fake.fake_count(b"handles")
    made = cuda.Driver(library)
    context = cuda.Context(made)
    assert context.properties().capability == 90
    stream, pool = cuda.Stream(made), cuda.Pool(context)
    sent, back = (
        ctypes.create_string_buffer(b"0123456789abcdef", 16),
        ctypes.create_string_buffer(16),
    )
    first, second = pool.allocate(16, stream), pool.allocate(16, stream)
    cuda.copy_in(made, first, ctypes.addressof(sent), 16, stream)
    cuda.copy(made, second, first, 16, stream)
    cuda.copy_out(made, ctypes.addressof(back), second, 16, stream)
    cuda.fill(made, first, 7, 16, stream)
    stream.synchronize()
    assert back.raw == b"0123456789abcdef"
    module = cuda.Module(made, b"image")
    function = module.function("kernel", 128, 65536)
    arguments = cuda.Arguments([("ptr", first), ("i32", -1), ("i64", -1)])
    assert list(arguments.cells) == [first, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF]
    cuda.launch(made, function, 3, arguments, stream)
    graph = cuda.Graph(made)
    node = graph.add(function, 3, arguments)
    graph.add(function, 1, arguments, [node])
    graph.instantiate()
    graph.update(node, function, 4, arguments)
    graph.launch(stream)
    start, end = cuda.Event(made, timing=True), cuda.Event(made)
    start.record(stream)
    end.record(stream)
    stream.wait(end)
    end.synchronize()
    assert end.is_done() and end.since(start) == 1.0
    pinned = cuda.Pinned(made, 64)
    pool.free(first, stream)
    pool.free(second, stream)
    assert pool.used() == (7, 5)
    for one in (pinned, start, end, graph, module, pool, stream, context):
        one.close()
        one.close()  # a second time does nothing
    assert fake.fake_count(b"handles") == before
    assert fake.fake_count(b"launches") == 1 and fake.fake_count(b"graphs") == 1


def test_a_tensor_map_is_encoded_for_the_address_of_its_tensor(library: str, fake: Any) -> None:
    driver = cuda.Driver(library)
    spec = TensorMap(0, 32, "bfloat16", (3, 100, 72), (8000, 80, 1), (1, 128, 64))
    arguments = cuda.Arguments([("i64", 5), *cuda.tensor_cells(spec), ("ptr", 0)])
    assert len(arguments.cells) == 1 + 1 + 3 + 3 + 1
    arguments.set(driver, 1, 4096)
    where = ctypes.c_uint64.from_address(ctypes.addressof(arguments.table) + 8).value
    assert where % 64 == 0
    found = (ctypes.c_uint64 * 5).from_address(where)
    assert list(found) == [4096 + 32, 72, 160, 64, 9]  # address, size, stride in bytes, box, type
    with pytest.raises(cuda.CudaError, match="cuTensorMapEncodeTiled"):
        arguments.set(driver, 1, 4097)


def test_arguments_with_tensor_maps_go_through_json() -> None:
    spec = TensorMap(1, 0, "float16", (100, 72), (80, 1), (128, 64))
    for one in (tensor_map("d0", spec), number("n0", 5), lock_word()):
        assert Argument.restored(json.loads(json.dumps(one))) == one
