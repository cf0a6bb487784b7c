"""Tests of fulgurite/runtime/cuda/start.py: what waits for a GPU's start, over a fake libcuda."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.graph.fusion.build_schedule import build_schedule
from fulgurite.runtime import pipeline
from fulgurite.runtime.cuda import device as cuda_device
from fulgurite.runtime.cuda import driver as cuda
from fulgurite.runtime.cuda import staging, start
from fulgurite.runtime.cuda.memory import CudaBuffer
from fulgurite.runtime.device import MemoryLimitError, get_device
from fulgurite.runtime.realize import memory_node
from tests.codegen.cuda.subprocesses import needs_triton

ROOT = Path(__file__).parents[3]


@pytest.fixture
def begun() -> threading.Event:
    """Set when kernels were sent to be compiled before anybody asked for their code."""
    return threading.Event()


@pytest.fixture(autouse=True)
def cold(
    library: ctypes.CDLL, begun: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A process that has not used its GPU yet."""
    from tests.runtime.cuda import fake

    def note(kernels: Sequence[Any]) -> None:
        begun.set()

    monkeypatch.setattr(fake.FakeCudaDevice, "begun", note)
    monkeypatch.setattr(cuda, "_driver", None)
    library.fake_fail(b"", 0, 0)
    order(library)
    fg.clear_caches()  # plans of the device that was
    fake.install()
    rescue = threading.Timer(30, library.fake_hold, [b""])  # of who waits for what is held
    rescue.start()
    with fg.config(device="cuda", disk_cache=False, tier="native"):
        yield
    rescue.cancel()
    library.fake_hold(b"")
    library.fake_fail(b"", 0, 0)
    fg.clear_caches()
    fake.install()


def order(library: ctypes.CDLL) -> list[str]:
    """The calls of the driver since this was asked, in order."""
    text = ctypes.create_string_buffer(8192)
    library.fake_order(text, 8192)
    return text.value.decode().split()


def memory_of(x: fg.Tensor) -> Any:
    return memory_node(x.entry.node).memory


def test_texts_are_compiled_while_the_driver_starts_and_values_are_those_of_the_call(
    library: ctypes.CDLL, begun: threading.Event
) -> None:
    library.fake_hold(b"cuInit")
    array = np.arange(6, dtype=np.float32)
    x = fg.Tensor(array)
    array[:] = -1.0

    def asked() -> Any:
        with fg.config(device="cuda", disk_cache=False, tier="native"):
            return (x * 2.0).numpy()

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(asked)
        is_begun, calls = begun.wait(20), order(library)
        library.fake_hold(b"")
        np.testing.assert_array_equal(answer.result(60), np.arange(6) * 2.0)
    assert is_begun and calls == ["cuInit"], "texts wait for the driver"
    calls = order(library)
    assert calls.count("cuDevicePrimaryCtxRetain") == 1
    places = [calls.index(name) for name in ("cuMemcpyHtoDAsync_v2", "cuLaunchKernel")]
    assert places == sorted(places) and calls[0] == "cuDevicePrimaryCtxRetain"


def test_a_plan_is_made_once_before_its_key_and_kept_under_it(
    library: ctypes.CDLL, begun: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.runtime.cuda import fake

    made: list[str] = []

    def noted(*given: Any) -> Any:
        made.append("released" if begun.is_set() else "first")
        return build_schedule(*given)

    monkeypatch.setattr(pipeline, "build_schedule", noted)
    folder = str(tmp_path / "cache")

    def value() -> Any:
        with fg.config(device="cuda", disk_cache=True, cache_dir=folder, tier="native"):
            return fg.softmax(fg.Tensor(np.arange(6, dtype=np.float32)), axis=-1).numpy()

    library.fake_hold(b"cuInit")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(value)
        is_begun, calls = begun.wait(20), order(library)
        library.fake_hold(b"")
        first = answer.result(60)
    assert is_begun and calls == ["cuInit"] and made == ["first"]
    begun.clear()
    fg.clear_caches()  # as another process
    fake.install()
    np.testing.assert_array_equal(value(), first)
    assert made == ["first"] and not begun.is_set(), "it was not found on disk"


def test_what_needs_no_context_does_not_wait_for_it(library: ctypes.CDLL) -> None:
    library.fake_hold(b"cuDevicePrimaryCtxRetain")
    arrays = [np.full((n, 2), n, np.float32) for n in (3, 4)]
    tensors = [fg.Tensor(array) for array in arrays]
    device = get_device("cuda")
    assert device.properties.capability == 90 and device.dlpack == (2, 0)  # type: ignore[attr-defined]
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert memory_of(tensor).exclusive() and memory_of(tensor).nbytes == array.nbytes
    assert order(library) == ["cuInit", "cuDevicePrimaryCtxRetain"]
    library.fake_hold(b"")
    assert (tensors[0].sum() + tensors[1].sum()).item() == 3 * 6 + 4 * 8
    assert {type(memory_of(x)) for x in tensors} == {CudaBuffer}
    assert "Waiting" not in [kind.__name__ for kind in type(device).__mro__]


def test_values_that_nobody_holds_any_more_are_not_copied(library: ctypes.CDLL) -> None:
    library.fake_hold(b"cuDevicePrimaryCtxRetain")
    kept = fg.Tensor(np.ones(3, np.float32))
    fg.Tensor(np.ones(5, np.float32))
    library.fake_hold(b"")
    fg.synchronize()
    get_device("cuda").start.join()  # type: ignore[attr-defined]
    assert order(library).count("cuMemcpyHtoDAsync_v2") == 1
    assert kept.tolist() == [1.0] * 3


def test_more_than_is_kept_meanwhile_waits(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "ARRIVING_BYTES", 100)
    library.fake_hold(b"cuInit")
    small = fg.Tensor(np.ones(20, np.float32))
    timer = threading.Timer(0.05, library.fake_hold, [b""])
    timer.start()
    large = fg.Tensor(np.ones(21, np.float32))
    timer.join()
    assert type(memory_of(large)) is CudaBuffer
    assert (small.sum() + large.sum()).item() == 41


def test_threads_that_start_at_once_make_one_device(library: ctypes.CDLL) -> None:
    library.fake_hold(b"cuDevicePrimaryCtxRetain")
    together = threading.Barrier(4)

    def value(number: int) -> tuple[int, float]:
        together.wait(60)
        with fg.config(device="cuda", disk_cache=False, tier="native"):
            x = fg.Tensor(np.full(4, number, np.float32))
            library.fake_hold(b"")
            return id(get_device("cuda")), float((x + 1.0).sum())

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(value, range(4)))
    assert len({device for device, _ in found}) == 1
    assert [number for _, number in found] == [4.0 * (n + 1) for n in range(4)]
    assert order(library).count("cuDevicePrimaryCtxRetain") == 1


@pytest.mark.parametrize(
    ("name", "code", "kind"),
    [
        ("cuInit", 100, cuda.NoCudaError),
        ("cuDevicePrimaryCtxRetain", 2, cuda.CudaMemoryError),
        ("cuStreamCreate", 999, cuda.DeviceLostError),
        ("cuMemPoolCreate", 1, cuda.CudaError),
        ("cuMemAllocFromPoolAsync", 2, MemoryLimitError),
        ("cuMemsetD8Async", 1, cuda.CudaError),
        ("cuEventCreate", 1, cuda.CudaError),
    ],
)
def test_a_start_that_fails_is_told_where_it_is_waited_for_and_may_be_tried_again(
    library: ctypes.CDLL, name: str, code: int, kind: type
) -> None:
    handles = library.fake_count(b"handles")
    library.fake_fail(name.encode(), 0, code)
    library.fake_hold(name.encode())
    x = fg.Tensor(np.arange(3, dtype=np.float32))
    library.fake_hold(b"")
    for _ in range(2):
        with pytest.raises(kind) as told:
            (x + 1.0).numpy()
        assert __file__ in (told.value.where or "")  # type: ignore[attr-defined]
        assert library.fake_count(b"handles") == handles
    assert x.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(kind):
        fg.Tensor(np.ones(3))
    library.fake_fail(b"", 0, 0)
    assert (x + 1.0).tolist() == [1.0, 2.0, 3.0]
    assert "fulgurite-cuda" not in [thread.name for thread in threading.enumerate()]


def test_a_value_for_which_there_was_no_memory_is_copied_when_there_is(
    library: ctypes.CDLL,
) -> None:
    library.fake_hold(b"cuDevicePrimaryCtxRetain")
    x = fg.Tensor(np.arange(3, dtype=np.float32))
    library.fake_fail(b"cuMemAllocFromPoolAsync", 2, 2)  # behind what the device itself has
    library.fake_hold(b"")
    for _ in range(2):
        with pytest.raises(MemoryLimitError, match="no memory for"):
            (x + 1.0).numpy()
    library.fake_fail(b"", 0, 0)
    assert (x + 1.0).tolist() == [1.0, 2.0, 3.0]
    assert type(memory_of(x)) is CudaBuffer


def test_threads_that_copy_at_once_share_one_stream_of_copies(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = get_device("cuda")
    made, both = [], threading.Barrier(2)

    def slowly(owner: Any) -> staging.Staging:
        made.append(staging.Staging(owner))
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # for another thread that makes one
        return made[-1]

    def copies(_: int) -> staging.Staging:
        device.enter()
        found: staging.Staging = device.copies
        return found

    monkeypatch.setattr(cuda_device, "Staging", slowly)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(copies, range(2))
    assert first is second and len(made) == 1


def test_a_gpu_that_is_not_there_is_an_error_at_once(library: ctypes.CDLL) -> None:
    with pytest.raises(fg.errors.FulguriteError, match="there is no device 'cuda:2'"):
        fg.Tensor([1.0], device="cuda:2")


def test_no_driver_and_an_old_one_are_errors_where_the_first_tensor_is_made(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.fake_version(11080)
    try:
        with pytest.raises(cuda.NoCudaError, match=r"of CUDA 11\.8"):
            fg.Tensor([1.0])
    finally:
        library.fake_version(13000)
    known = os.environ["FULGURITE_LIBCUDA"]
    monkeypatch.setenv("FULGURITE_LIBCUDA", "/nowhere/libcuda.so.1")
    with pytest.raises(cuda.NoCudaError, match="no NVIDIA driver"):
        fg.Tensor([1.0])
    monkeypatch.setenv("FULGURITE_LIBCUDA", known)
    assert fg.Tensor([1.0]).tolist() == [1.0]


PROCESS = """
import ctypes, os, sys, threading
import numpy as np
from tests.runtime.cuda import fake
import fulgurite as fg
from fulgurite.runtime.device import DeviceError, get_device
driver = ctypes.CDLL(fake.library())
driver.fake_hold(os.environ.get("HELD", "").encode())
x = fg.Tensor(np.arange(3, dtype=np.float32))
assert "cuDevicePrimaryCtxRetain" in os.environ["FAKE_CUDA_SLEEPS"]
"""
FORKED = """
assert any(t.name == "fulgurite-cuda" for t in threading.enumerate()), "it has started by now"
threading.Timer(0.2, driver.fake_hold, [b""]).start()
child = os.fork()
if not child:
    try:
        (x + 1).numpy()
    except DeviceError as problem:
        os._exit(0 if "fork of one that used the GPU" in str(problem) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (x + 1).tolist() == [1, 2, 3]
if not os.fork():
    os._exit(0)
os.wait()
print("fine")
"""


def said(script: str, **environment: str) -> str:
    """What a process says that has a GPU whose start takes its time."""
    sleeps = "cuInit=100000 cuDevicePrimaryCtxRetain=100000"
    own = {"PYTHONPATH": str(ROOT), "FULGURITE_DEVICE": "cuda", "FAKE_CUDA_SLEEPS": sleeps}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | own | environment, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_fork_waits_for_the_start_and_its_child_has_no_gpu() -> None:
    assert said(PROCESS + FORKED, HELD="cuStreamCreate") == "fine\n"


def test_a_process_that_ends_while_its_gpu_starts_ends_well() -> None:
    assert said(PROCESS + "print('end', flush=True)") == "end\n"
    assert said(PROCESS + "print('end', flush=True); y = x + 1; del x, y; sys.exit()") == "end\n"


WHOLE = """
import ctypes, os, threading
import numpy as np
import fulgurite as fg
library = ctypes.CDLL(os.environ["FULGURITE_LIBCUDA"])
library.fake_hold(b"cuInit")
x = fg.Tensor(np.ones(3, np.float32))
assert any(t.name == "fulgurite-driver" for t in threading.enumerate())
library.fake_hold(b"")
assert x.tolist() == [1, 1, 1]
child = os.fork()
if not child:
    try:
        fg.synchronize()
    except fg.errors.FulguriteError as problem:
        os._exit(0 if "fork of one that used the GPU" in str(problem) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
fg.synchronize()
text = ctypes.create_string_buffer(8192)
library.fake_order(text, 8192)
calls = text.value.decode().split()
print(calls.count("cuInit"), calls.count("cuDevicePrimaryCtxRetain"), calls[:2])
"""


def test_the_driver_starts_once_and_before_what_uses_it_is_imported(tmp_path: Path) -> None:
    from tests.runtime.cuda import fake

    (tmp_path / "v1").mkdir()  # something is on disk: no compiler gets ready
    kept = {"FULGURITE_CACHE_DIR": str(tmp_path), "FULGURITE_DISK_CACHE": "1"}
    found = said(WHOLE, FULGURITE_LIBCUDA=fake.library(), **kept)
    assert found == "1 1 ['cuInit', 'cuDevicePrimaryCtxRetain']\n"


AHEAD = """
import sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("subprocess", "numpy", "fulgurite._ahead"):
            print(name, end=" ")
sys.meta_path.insert(0, Watch())
import fulgurite
pool = sys.modules.get("fulgurite.codegen.cuda.compilation.pool")
print(pool is not None and pool._pool.cache_info().currsize, "ctypes" in sys.modules and
      "fulgurite.runtime.cuda.driver" in sys.modules, "triton" in sys.modules)
"""
SPAWNS = """
import multiprocessing, sys
import fulgurite

def report():
    print("fulgurite.codegen.cuda.compilation.pool" in sys.modules, flush=True)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=report)
    child.start()
    child.join()
    report()
"""


@needs_triton
def test_the_compiler_gets_ready_before_all_else_is_imported_where_it_will_be_needed(
    tmp_path: Path,
) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    full.mkdir()
    (full / "v1").mkdir()
    clean = {"FULGURITE_CACHE_DIR": str(empty), "FULGURITE_DISK_CACHE": "1"}
    words = said(AHEAD, **clean).split()
    assert words[0] == "fulgurite._ahead" and words[-3:] == ["1", "False", "False"]
    assert words.index("subprocess") < words.index("numpy")
    kept = clean | {"FULGURITE_CACHE_DIR": str(full)}
    assert said(AHEAD, **kept).split()[-3:] == ["False", "False", "False"]
    for device in ("cpu", "toy", "not/a-name"):
        assert said(AHEAD, **clean, FULGURITE_DEVICE=device).split()[-3] == "False"
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    run = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert said(run, **clean).split() == ["False", "True"]
    assert "fulgurite._ahead" not in said(AHEAD, **clean, FULGURITE_DEVICE="cpu")
