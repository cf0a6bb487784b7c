"""What `fulgurite doctor` says of NVIDIA GPUs: driver, memory, measured bandwidth, what is missing.

In: nothing. Out: a line for each GPU, or one that says why there is none. The bandwidth is that of
a copy within the GPU's memory, timed by events: the limit of kernels that only move values. Of
cuBLASLt it says which version would be asked for products, or why none.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from . import driver as cuda
from .cublaslt import CublasError, CublasLt

COPIED_BYTES = 1 << 28
COPIES = 8


def summary() -> list[str]:
    """What can be said of each GPU."""
    try:
        driver = cuda.the_driver()
        count = driver.devices()
    except cuda.CudaError as problem:
        return [f"not here: {problem.what}"]
    if not count:
        return ["not here: the driver knows no GPU"]
    return [_describe(driver, ordinal) for ordinal in range(count)]


def library_line() -> str:
    """Whether cuBLASLt is found, and which version."""
    try:
        found = CublasLt()
    except CublasError as problem:
        return f"without cuBLASLt: {problem.what}"
    return f"cuBLASLt {found.text}"


def _describe(driver: cuda.Driver, ordinal: int) -> str:
    """One GPU."""
    try:
        triton = f"triton {version('triton')}"
    except PackageNotFoundError:
        triton = "triton is missing: pip install triton"
    context = cuda.Context(driver, ordinal)
    about = context.properties()
    free, total = context.memory()
    rate = _bandwidth(driver, context, free)
    return (
        f"ready ({about.name}, sm_{about.capability}, {about.processors} processors, "
        f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB free, {rate}, "
        f"driver of CUDA {driver.version // 1000}.{driver.version % 1000 // 10}, {triton}, "
        f"{library_line()})"
    )


def _bandwidth(driver: cuda.Driver, context: cuda.Context, free: int) -> str:
    """Bytes a second that a copy reads and writes, in words."""
    if free < 4 * COPIED_BYTES:
        return "too little memory to measure its bandwidth"
    stream, pool = cuda.Stream(driver), cuda.Pool(context, keep=0)
    first, last = cuda.Event(driver, timing=True), cuda.Event(driver, timing=True)
    memory = [pool.allocate(COPIED_BYTES, stream) for _ in range(2)]
    try:
        for number in range(COPIES + 1):
            if number == 1:  # the first one warms up
                first.record(stream)
            cuda.copy(driver, memory[0], memory[1], COPIED_BYTES, stream)
        last.record(stream)
        last.synchronize()
        return f"{2 * COPIES * COPIED_BYTES / last.since(first) / 1e6:.0f} GB/s measured"
    finally:
        for address in memory:
            pool.free(address, stream)
        for owned in (first, last, pool, stream):
            owned.close()
