"""cuBLASLt on a GPU: `python tests/runtime/cuda/cublas_on_gpu.py [hopper|classes|auto]`.

Products of random shapes, dtypes and layouts are compared with float64 and with our own kernels;
plans are replayed with inputs that moved, and with a library that fails on the way. Then the
products of bench/hopper.py are timed: ours, the library in our plans, and torch, each
as one CUDA graph of the same product over many operands, which together are larger than the L2
cache, one after the other. A line a check; the exit code says whether all were ok. The times are of
whole graphs, divided, the least of rounds in turns. With `auto` the library is what the default
option makes of it. A second argument is the limit in seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("FULGURITE_CACHE_DIR", tempfile.mkdtemp())

import torch  # noqa: E402 (the path comes first)

import fulgurite as fg  # noqa: E402
from bench import hopper  # noqa: E402
from fulgurite.runtime.cuda import driver as cuda  # noqa: E402
from fulgurite.runtime.cuda import executor  # noqa: E402
from fulgurite.runtime.device import get_device  # noqa: E402

REAL = torch.cuda.is_available()  # else the script itself is tried, over a fake GPU
WHERE = "cuda" if REAL else "cpu"
L2_BYTES = 120e6  # twice what it has, and more
MOST_SETS, LEAST_SETS = 48, 4
DEEP = 768 if REAL else 64
ROUNDS, TIMED_MS = 5, 4.0
BEGUN = time.monotonic()
failed = 0


def tell(name: str, check: Callable[[], str]) -> None:
    """Run a check and say how it went."""
    global failed
    try:
        print(f"ok: {name}: {check()}", flush=True)
    except Exception:
        failed += 1
        print(f"FAILED: {name}\n{traceback.format_exc(limit=6)}", flush=True)


def shared(tensor: Any) -> Any:
    """A tensor of torch as one of ours."""
    if REAL:
        return fg.from_dlpack(tensor)
    wide = fg.tensor(tensor.double().numpy(), device="cuda")
    return wide.astype(str(tensor.dtype).removeprefix("torch.")).realize()


def torchs(tensor: Any) -> Any:
    """The other way round."""
    if REAL:
        return torch.from_dlpack(tensor)
    return torch.from_numpy(tensor.astype("float64").numpy())


def made(rng: torch.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Random numbers on the GPU."""
    wide = torch.randn(shape, generator=rng, device=WHERE)
    return wide.to(getattr(torch, dtype))


def error(found: Any, want: Any) -> float:
    """How far a result is from float64's, by norms."""
    got = torchs(found).double()
    assert bool(torch.isfinite(got).all()), "not finite"
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


TOLERANCE = {"bfloat16": 4e-3, "float16": 6e-4, "float32": 3e-6, "float64": 1e-14}


def is_library(function: Callable[..., Any], *given: Any) -> bool:
    """True if a plan has a product of the library's."""
    return "run by cuBLASLt" in str(fg.explain(function(*given)))


def random_products(count: int, seconds: float) -> str:
    """Products of random shapes, dtypes and layouts, beside float64."""
    rng = torch.Generator(device=WHERE).manual_seed(7)
    dice = torch.Generator().manual_seed(11)

    def roll(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=dice))

    begun, worst, used, done = time.monotonic(), 0.0, 0, 0
    for number in range(count):
        if time.monotonic() - begun > seconds:
            break
        dtype = ("bfloat16", "float16", "float32", "float64")[number % 4]
        m, n, k = [roll(1, most if REAL else 40) for most in (300, 300, 400)]
        if number % 3 == 0 and REAL:
            m, n, k = 8 * m, 8 * n, 8 * k
        lead = (roll(2, 4),) if number % 5 == 0 else ()
        trans_a, trans_b = bool(roll(0, 1)), bool(roll(0, 1))
        epilogue = roll(0, 2)
        a = made(rng, (*lead, k, m) if trans_a else (*lead, m, k), dtype)
        b = made(rng, (*lead, n, k) if trans_b else (*lead, k, n), dtype)
        c = made(rng, (n,), dtype)

        def product(a: Any, b: Any, c: Any, of: Any = fg, turns: Any = (trans_a, trans_b),
                    epilogue: int = epilogue) -> Any:  # fmt: skip
            a = of.swapaxes(a, -1, -2) if turns[0] else a
            b = of.swapaxes(b, -1, -2) if turns[1] else b
            y = a @ b
            y = y + c if epilogue else y
            return of.maximum(y, y * 0.25) if epilogue == 2 else y

        given = [shared(t) for t in (a, b, c)]
        used += is_library(product, *given)
        found = product(*given).realize()
        want = product(a.double(), b.double(), c.double(), torch)
        distance = error(found, want) / TOLERANCE[dtype]
        what = f"{dtype} {m}x{n}x{k} batch {lead} transposed {trans_a, trans_b} {epilogue}"
        assert distance < 1, f"{what}: {distance * TOLERANCE[dtype]:.2e}"
        worst, done = max(worst, distance), done + 1
    return f"{done} of {count} ran, {used} by the library, worst {worst:.2f} of its tolerance"


def tf32_and_fp8() -> str:
    """Products with fewer bits, where they are asked for."""
    rng = torch.Generator(device=WHERE).manual_seed(5)
    a, b = made(rng, (512, 1024), "float32"), made(rng, (1024, 256), "float32")
    with fg.config(matmul_precision="tf32"):
        narrow = error((shared(a) @ shared(b)).realize(), a.double() @ b.double())
    exact = error((shared(a) @ shared(b)).realize(), a.double() @ b.double())
    assert not REAL or (1e-5 < narrow < 2e-3 and exact < 3e-6), (narrow, exact)
    x, w = made(rng, (256, 512), "float32") * 0.5, made(rng, (384, 512), "float32") * 0.5

    def product(x: Any, w: Any) -> Any:
        x, w = [t.astype("float8_e4m3fn").realize().astype("bfloat16") for t in (x, w)]
        return x @ fg.swapaxes(w, 0, 1)

    used = is_library(product, shared(x), shared(w))
    want = x.to(torch.float8_e4m3fn).double() @ w.to(torch.float8_e4m3fn).double().T
    far = error(product(shared(x), shared(w)).realize(), want)
    assert far < 6e-3, far
    return f"tf32 {narrow:.1e}, float32 {exact:.1e}, fp8 {far:.1e} (by the library: {used})"


def replays() -> str:
    """A plan of several kernels, with inputs that move."""
    rng = torch.Generator(device=WHERE).manual_seed(3)
    weights = [made(rng, (DEEP, DEEP), "bfloat16") for _ in range(3)]

    @fg.jit
    def net(x: Any, *w: Any) -> Any:
        for one in w:
            x = fg.relu(x @ one * 0.05)
        return x

    held = [shared(w) for w in weights]
    worst = 0.0
    for _ in range(12):
        x = made(rng, (320, DEEP), "bfloat16")
        want = x.double()
        for w in weights:
            want = (want @ w.double() * 0.05).relu()
        worst = max(worst, error(net(shared(x), *held), want))
    fixed = made(rng, (320, DEEP), "bfloat16")
    ours = shared(fixed)
    bits = [torchs(net(ours, *held)).clone() for _ in range(8)]
    assert worst < 2e-2 and all(bool((b == bits[0]).all()) for b in bits), worst
    return f"12 moved inputs within {worst:.1e}, 8 replays with the same bits"


def failures() -> str:
    """A library that refuses in the middle of things."""
    device: Any = get_device("cuda")
    rng = torch.Generator(device=WHERE).manual_seed(4)
    a, b = made(rng, (384, DEEP), "bfloat16"), made(rng, (DEEP, 640), "bfloat16")

    @fg.jit
    def chain(a: Any, b: Any) -> Any:
        y = a @ b
        return fg.sin(y).sum(axis=0), (y @ fg.swapaxes(b, 0, 1)).sum(axis=1), y

    want = a.double() @ b.double()
    real = device.blas.library.functions["cublasLtMatmul"]
    try:
        far = [error(chain(shared(a), shared(b))[2], want) for _ in range(3)]
        device.blas.library.functions["cublasLtMatmul"] = lambda *_: 15
        far += [error(chain(shared(a.clone()), shared(b))[2], want) for _ in range(4)]
    finally:
        device.blas.library.functions["cublasLtMatmul"] = real
    assert max(far) < 4e-3, far
    return f"kernels of our own took over, within {max(far):.1e}"


# --- times ---------------------------------------------------------------------------------------


class Timed(NamedTuple):
    """A product to be timed, said to both."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    peer: Callable[..., Any]
    flops: float
    dtype: str = "bfloat16"
    tf32: bool = False


def both(left: bool, right: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A product of operands that are transposed or not, ours and torch's."""

    def product(a: Any, b: Any, of: Any) -> Any:
        if of is fg and a.dtype.itemsize == 1:
            a, b = a.astype("bfloat16"), b.astype("bfloat16")
        return (of.swapaxes(a, -1, -2) if left else a) @ (of.swapaxes(b, -1, -2) if right else b)

    return lambda a, b: product(a, b, fg), lambda a, b: product(a, b, torch)


def one(
    m: int, n: int, k: int, how: str = "nt", dtype: str = "bfloat16", batch: int = 0,
    tf32: bool = False,
) -> Timed:  # fmt: skip
    """A product by its sizes, and which operands are transposed."""
    left, right = how[0] == "t", how[1] == "t"
    shapes = (k, m) if left else (m, k), (n, k) if right else (k, n)
    lead = (batch,) if batch else ()
    name = f"{f'{batch} of ' if batch else ''}{m}x{n}x{k} {how} {'tf32' if tf32 else dtype}"
    work = 2.0 * max(1, batch) * m * n * k
    full = tuple([(*lead, *shape) for shape in shapes])
    return Timed(name, full, *both(left, right), work, dtype, tf32)


def classes() -> list[Timed]:
    """Other kinds of products than those of bench/hopper.py."""
    gradients = (768, 3072, 8192), (768, 768, 8192), (3072, 768, 8192), (768, 50304, 8192)
    found = [one(*sizes, "tn") for sizes in (*gradients, (4096, 4096, 2048))]
    for how in ("nt", "nn"):
        for m in (2, 4, 16, 64, 128, 256):
            found += [one(m, n, k, how) for n, k in ((3072, 768), (4096, 4096))]
    found += [one(8, 3072, 768, "nn"), one(32, 3072, 768, "nn"), one(8, 12288, 4096, "nn")]
    found += [one(8192, n, 768) for n in (8, 64, 128, 256)]
    some = (1024, 1024, 1024), (4096, 4096, 1024), (32, 3072, 768), (128, 4096, 4096)
    for dtype, tf32 in (("float32", False), ("float32", True), ("float16", False)):
        found += [one(*sizes, dtype=dtype, tf32=tf32) for sizes in some]
    found += [one(512, 512, 512, "nn", "float64")]
    batched = (96, (1024, 1024, 64)), (16, (512, 512, 512)), (12, (128, 128, 64))
    found += [one(*sizes, batch=batch) for batch, sizes in batched]
    found += [one(1024, 64, 1024, "nn", batch=96), one(*(4096,) * 3, "nn"), one(*(1536,) * 3, "nn")]
    return found


def every_class() -> list[Timed]:
    """All of them, and one row of a matrix by rows."""
    single = [one(1, n, k, "nn") for n, k in ((3072, 768), (768, 3072), (4096, 4096))]
    odd = [one(8192, 50257, 768, "nn"), one(8192, 50257, 768)]  # rows that begin anywhere
    return [*odd, *single, *of_hopper(), *classes()]


def of_hopper() -> list[Timed]:
    """The products of the benchmark."""
    rows = [*hopper.products(1), *hopper.decode(1)]
    made = []
    for row in rows:
        peer = both(False, row.name.endswith("nt"))[1]
        made.append(Timed(row.name, row.shapes, row.ours, peer, row.flops))
    return made


def our_graph(row: Timed, sets: Any, option: str) -> Callable[[int], float]:
    """Milliseconds of a product in a graph of ours of all sets, launched without Python between."""
    device: Any = get_device("cuda")
    launch, seen = device.launch_graph, dict[int, None]()

    @fg.jit
    def every(*flat: Any) -> Any:
        return tuple([row.ours(*flat[i : i + 2]) for i in range(0, len(flat), 2)])

    def noted(graph: int, stream: int) -> Any:
        seen[graph] = None
        return launch(graph, stream)

    flat = [t if isinstance(t, fg.Tensor) else shared(t) for one in sets for t in one]
    kept: Any = None
    device.launch_graph = noted
    try:
        with fg.config(cublas=option, matmul_precision="tf32" if row.tf32 else "float32"):
            for _ in range(12):  # until addresses of results came again
                kept = every(*flat)
                if seen:
                    break
    finally:
        device.launch_graph = launch
    (graph,) = seen

    def timed(count: int) -> float:
        first, last = (cuda.Event(device.driver, timing=True) for _ in range(2))
        assert kept is not None
        launch(graph, device.stream.handle)
        first.record(device.stream)
        for _ in range(count):
            launch(graph, device.stream.handle)
        last.record(device.stream)
        last.synchronize()
        return last.since(first) / count / len(sets)

    return timed


def float8s(seconds: float) -> str:
    """Products of float8 by the library beside ours, and bfloat16's."""
    found = []
    rng = torch.Generator(device="cuda").manual_seed(2)
    executor.BRANCHES = 1
    for m, n, k in ((1024,) * 3, (4096,) * 3, (8192,) * 3, (128, 4096, 4096), (32, 3072, 768)):
        if time.monotonic() - BEGUN > seconds:
            break
        row = one(m, n, k)
        shapes = [(m, k), (n, k)]
        wide = [[made(rng, shape, "bfloat16") for shape in shapes] for _ in range(4)]
        graphs = [our_graph(row, wide, "on")]
        sets = [[shared(t).astype("float8_e4m3fn").realize() for t in pair] for pair in wide]
        graphs += [our_graph(row, sets, option) for option in ("off", "on")]
        times = [min([graph(4) for _ in range(ROUNDS)]) * 1e3 for graph in graphs]
        got = fg.jit(row.ours)(*sets[0])
        left, right = [torchs(t.astype("float32").realize()).double() for t in sets[0]]
        far = error(got, left @ right.T)
        assert far < 6e-3, far
        found.append(f"{m}x{n}x{k}: bfloat16 {times[0]:.1f}, float8 ours {times[1]:.1f}, "
                     f"library {times[2]:.1f} us ({far:.1e})")  # fmt: skip
    return "; ".join(found)


def timings(rows: Sequence[Timed], seconds: float, option: str) -> None:
    """The table: ours, the library in our plans, torch."""
    print(f"{'product, us':34} {'ours':>9} {'library':>9} {'torch':>9}  ours/lib  lib/torch  sets")
    left = 0
    executor.BRANCHES = 1  # one product after the other
    for row in rows:
        if time.monotonic() - BEGUN > seconds:
            left += 1
            continue
        try:
            print(timed_row(row, option), flush=True)
        except Exception:
            print(f"FAILED: {row.name}\n{traceback.format_exc(limit=4)}", flush=True)
    print(f"left out: {left}; {time.monotonic() - BEGUN:.0f} s in all")


def timed_row(row: Timed, option: str) -> str:
    """A product's times, as a line."""
    rng = torch.Generator(device="cuda").manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = row.tf32
    width = torch.finfo(getattr(torch, row.dtype)).bits // 8
    nbytes = width * sum([prod(shape) for shape in row.shapes])
    count = min(MOST_SETS, max(LEAST_SETS, ceil(L2_BYTES / nbytes)))
    sets = [[made(rng, shape, row.dtype) for shape in row.shapes] for _ in range(count)]
    systems = {
        "ours": our_graph(row, sets, "off"), "library": our_graph(row, sets, option),
        "torch": torch_graphed(row.peer, sets),
    }  # fmt: skip
    least = dict.fromkeys(systems, float("inf"))
    runs = max(1, ceil(TIMED_MS / (count * max(row.flops / 6e11, nbytes / 4e9, 0.002))))
    for _ in range(ROUNDS):
        for name, timed in systems.items():
            least[name] = min(least[name], timed(runs))
    ours, library, other = least["ours"], least["library"], least["torch"]
    return (
        f"{row.name:34} {ours * 1e3:9.2f} {library * 1e3:9.2f} {other * 1e3:9.2f} "
        f"{ours / library:9.3f} {library / other:10.3f} {count:5}"
    )


def epilogues() -> str:
    """A fused epilogue beside the library's product and a kernel of its own."""
    found = []
    rng = torch.Generator(device="cuda").manual_seed(2)
    for m, n, k in ((128, 4096, 4096), (768, 3072, 8192), (8192, 3072, 768), (32, 3072, 768)):
        sets = [[made(rng, shape, "bfloat16") for shape in ((m, k), (k, n))] for _ in range(8)]
        bias = shared(made(rng, (n,), "bfloat16"))

        def ours(a: Any, b: Any, bias: Any = bias) -> Any:
            return fg.gelu(a @ b + bias, approximate="tanh")

        row = Timed("", (), ours, ours, 0.0)
        graphs = [our_graph(row, sets, option) for option in ("off", "on", "auto")]
        times = [min([graph(4) for _ in range(ROUNDS)]) * 1e3 for graph in graphs]
        found.append(f"{m}x{n}x{k} fused {times[0]:.1f}, library {times[1]:.1f}, "
                     f"auto {times[2]:.1f} us")  # fmt: skip
    return "; ".join(found)


def tuning() -> str:
    """Both are timed on the device, and the quicker one is kept."""
    rng = torch.Generator(device="cuda").manual_seed(6)
    found = []
    for m, n, k in ((128, 4096, 4096), (32, 3072, 768), (1, 3072, 768)):
        a, b = shared(made(rng, (m, k), "bfloat16")), shared(made(rng, (k, n), "bfloat16"))
        with fg.config(cublas="auto", tune="full"):
            text = str(fg.explain(a @ b))
            said = [line.strip() for line in text.splitlines() if "(measured)" in line]
            found.append(f"{m}x{n}x{k}: {' / '.join(said)}")
            (a @ b).realize()
    return "; ".join(found)


def torch_graphed(function: Callable[..., Any], sets: Any) -> Callable[[int], float]:
    """Milliseconds of a product in a graph of torch's of all sets."""
    for one in sets[:2]:
        function(*one)
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for one in sets:
            kept.append(function(*one))

    def timed(count: int) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        first.record()
        for _ in range(count):
            graph.replay()
        last.record()
        torch.cuda.synchronize()
        assert kept
        return float(first.elapsed_time(last)) / count / len(sets)

    return timed


def main() -> None:
    """All checks, then times until the seconds are over."""
    what = sys.argv[1] if len(sys.argv) > 1 else "hopper"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 110.0
    if not REAL:
        from tests.runtime.cuda import fake

        fake.install()
    begun = time.perf_counter()
    device: Any = get_device("cuda")
    started = time.perf_counter()
    blas = device.blas
    opened = time.perf_counter()
    print(f"{device.codegen.hardware}: {blas.name if blas is not None else 'no cuBLASLt'}, "
          f"torch {torch.__version__}, CUDA {torch.version.cuda}; the device {started - begun:.3f} "
          f"s, the library {opened - started:.3f} s", flush=True)  # fmt: skip
    with fg.config(device="cuda", cublas="on"), torch.no_grad():
        tell("random products", lambda: random_products(50, seconds * 0.25))
        tell("tf32 and fp8", tf32_and_fp8)
        tell("replays", replays)
        tell("failures", failures)
        if REAL:
            tell("epilogues", epilogues)
            tell("tuning", tuning)
            tell("float8", lambda: float8s(seconds))
            rows = {"hopper": of_hopper, "classes": classes, "auto": every_class}[what]()
            timings(rows, seconds, "auto" if what == "auto" else "on")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
