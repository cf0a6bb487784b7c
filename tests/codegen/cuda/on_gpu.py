"""Everything that needs a GPU, in one run: `python tests/codegen/cuda/on_gpu.py [shadow] [bench]`.

From the repository's root, with torch (for peers' times only), Triton, pytest and xdist. `shadow`:
the device-parametrised suites on the reference device, while every kernel also runs on the GPU by
generated code and our own driver; what ran, was wrong, failed or cannot be rendered is counted, and
kept in `$OUT/bad.json`. `bench`: the memory-bound workloads against float64, then timed with many
launches between two events and inputs that take turns, with other tiles and beside torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("FULGURITE_DEVICE", "reference")
os.environ.setdefault("FULGURITE_DISK_CACHE", "0")

import numpy as np  # noqa: E402 (the path comes first: this is a script)

SUITES = (
    "tests/core/ops", "tests/functional", "tests/nn", "tests/optim", "tests/autodiff/test_grad.py",
    "tests/random/test_random.py", "tests/test_fft.py", "tests/test_linalg.py",
    "tests/autodiff/test_transforms.py",
    "tests/test_variables.py", "tests/test_state.py", "tests/control/test_control.py",
)  # fmt: skip
WORKERS = 16
RATE = 4.27e9  # bytes a millisecond that a copy moves on the H200
SETS = 3  # of inputs that take turns
LAUNCHES = 20  # between two events
FINITE = 1 << 22  # different elements of an input; further ones repeat them


# --- shadow --------------------------------------------------------------------------------------


def shadow(seconds: int) -> None:
    """The suites, with every kernel on the GPU too."""
    out = Path(tempfile.mkdtemp())
    environment = os.environ | {
        "FULGURITE_SHADOW": "gpu", "FULGURITE_SHADOW_OUT": str(out),
        "FULGURITE_SHADOW_LARGEST": "0", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    suites = [s for s in SUITES if (ROOT / s).exists()]
    command = [
        sys.executable, "-m", "pytest", "-p", "tests.codegen.cuda.shadow", "-q", "-n", str(WORKERS),
        "--no-header", "-W", "ignore", "-p", "no:cacheprovider",
        "--continue-on-collection-errors", *suites,
    ]  # fmt: skip
    start = time.monotonic()
    log = out / "log"
    with log.open("w") as output:
        made = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            made.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(made.pid, signal.SIGKILL)  # its workers too: they are a group of our own
            print(f"stopped after {seconds} s")
    print("\n".join(log.read_text().strip().splitlines()[-3:])[-600:])
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    bad: list[Any] = []
    for file in out.glob("*.json"):
        found = json.loads(file.read_text(encoding="utf-8"))
        counts.update(found["counts"])
        reasons.update(found["reasons"])
        bad += found["bad"]
    print(f"shadow, {time.monotonic() - start:.0f} s:", dict(counts))
    for reason, count in reasons.most_common(25):
        print(f"  {count:5d} {reason[:150]}")
    keep = os.environ.get("OUT")
    if keep:
        order = {"lost": 0, "wrong": 1, "failed": 2}
        bad.sort(key=lambda b: order.get(b["kind"], 3))
        (Path(keep) / "bad.json").write_text(json.dumps(bad[:200]), encoding="utf-8")


# --- bench ---------------------------------------------------------------------------------------


class Bench:
    """Workloads on one GPU."""

    def __init__(self) -> None:
        from tests.codegen.cuda.launching import Gpu

        self.gpu = Gpu()
        self.torch: Any = None
        try:
            import torch

            if torch.cuda.is_available():
                self.torch = torch
        except ImportError:
            pass

    def inputs(self, shapes: Sequence[tuple[tuple[int, ...], str]], seed: int) -> list[Any]:
        """Random arrays; memory that is too large to compare repeats a part of it."""
        from fulgurite.core.dtype import dtype_of

        rng = np.random.default_rng(seed)
        found = []
        for shape, name in shapes:
            count = int(np.prod(shape))
            some = min(count, FINITE)
            part: Any = rng.standard_normal(some, dtype=np.float32)
            if name.startswith("int"):
                part = rng.integers(0, 50000, some)
            whole = np.resize(part.astype(dtype_of(name).numpy), count)
            found.append(whole.reshape(shape))
        return found

    def prepared(self, work: Any, table: Any, sets: Sequence[Sequence[int]]) -> Any:
        """Closures that launch a workload on each set of inputs, and the result's place."""
        from fulgurite.codegen.cuda import source
        from fulgurite.core.dtype import array_of_bits
        from fulgurite.runtime.cuda import driver as cuda
        from tests.codegen.cuda.workloads import rendered, scheduled

        gpu = self.gpu
        schedule = scheduled(work.build, work.inputs)
        taken: list[int] = []
        closures: list[Callable[[], None]] = []
        results: list[int] = []
        error = gpu.put(np.zeros(2, np.int64))
        taken.append(error)
        for inputs in sets:
            slots = dict(enumerate(inputs))
            calls = []
            for item in schedule.items:
                made = rendered(item.kernel, table)
                room = gpu.pool.allocate(made.workspace + 256, gpu.stream)
                taken.append(room)
                for slot in (*item.reads, *item.writes):
                    if slot in slots:
                        continue
                    known: Any = schedule.slots[slot]
                    if known.bits is not None:
                        slots[slot] = gpu.put(np.array(array_of_bits(known.bits, known.dtype)))
                    else:
                        nbytes = int(np.prod(known.shape)) * known.dtype.itemsize
                        slots[slot] = gpu.pool.allocate(nbytes + 256, gpu.stream)
                    taken.append(slots[slot])
                params = [slots[s] for s in (*item.reads, *item.writes)]
                bases = {source.ROOM: room, source.ERROR: error, source.LOCK: error}
                for launch in made.launches:
                    packed = gpu.arguments(launch, params, bases, {})
                    calls.append((gpu.function(launch), launch.grid, packed))

            def go(calls: Any = calls) -> None:
                for function, grid, packed in calls:
                    cuda.launch(gpu.driver, function, grid, packed, gpu.stream)

            closures.append(go)
            results.append(slots[schedule.outputs[0]])
        return closures, results, taken, schedule

    def milliseconds(self, closures: Sequence[Callable[[], None]]) -> float:
        """The median time of a launch, of several runs of many."""
        from fulgurite.runtime.cuda import driver as cuda

        first, last = (cuda.Event(self.gpu.driver, timing=True) for _ in range(2))
        for go in closures:
            go()
        times = []
        for _ in range(5):
            first.record(self.gpu.stream)
            for i in range(LAUNCHES):
                closures[i % len(closures)]()
            last.record(self.gpu.stream)
            self.gpu.wait()
            times.append(last.since(first) / LAUNCHES)
        first.close()
        last.close()
        return sorted(times)[len(times) // 2]

    def peer(self, work: Any, arrays: Sequence[Any]) -> float | None:
        """Torch's time for the same, in eager mode."""
        torch = self.torch
        function = _PEERS.get(work.name)
        if torch is None or function is None:
            return None
        kinds = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int64": torch.int64}
        sets = [
            [
                torch.zeros(shape, device="cuda", dtype=kinds[name])
                if name == "int64"
                else torch.randn(shape, device="cuda", dtype=torch.float32).to(kinds[name])
                for shape, name in work.inputs
            ]
            for _ in range(SETS)
        ]
        for one in sets:
            function(torch, *one)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(5):
            first.record()
            for i in range(LAUNCHES):
                function(torch, *sets[i % SETS])
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last) / LAUNCHES)
        del sets
        torch.cuda.empty_cache()
        return float(sorted(times)[len(times) // 2])

    def difference(self, work: Any, arrays: Sequence[Any], result: int, schedule: Any) -> str:
        """How far the result is from float64's, relative to its size."""
        import fulgurite as fg

        if arrays[0].ndim > 2:
            return "-"  # bench/cuda.py looks at it
        got = self.gpu_read(result, schedule.slots[schedule.outputs[0]])
        if work.name.startswith("gemm"):  # 64 rows of a product say it as well
            got = got[:64]
            wide = [fg.Tensor(a.astype(np.float64)) for a in (arrays[0][:64], *arrays[1:])]
            want = work.build(*wide).numpy()
        elif work.name in _WHOLE:
            want = _WHOLE[work.name](*arrays)
        else:  # some rows say it already
            rows = max(1, FINITE // arrays[0].shape[1])
            got = got[:rows]
            parts = [a[:rows] if a.ndim == 2 else a for a in arrays]
            wide = [fg.Tensor(a.astype(np.float64)) for a in parts]
            want = (_rms64 if work.name == "rmsnorm" else work.build)(*wide).numpy()
        if want.dtype.kind in "iu":
            return "same" if (got == want).all() else "WRONG"
        size = max(float(np.linalg.norm(want)), 1e-300)
        return f"{float(np.linalg.norm(got.astype(np.float64) - want)) / size:.0e}"

    def gpu_read(self, address: int, slot: Any) -> Any:
        """A result from the GPU."""
        from fulgurite.runtime.cuda import driver as cuda

        array = np.empty(slot.shape, slot.dtype.numpy)
        cuda.copy_out(self.gpu.driver, array.ctypes.data, address, array.nbytes, self.gpu.stream)
        self.gpu.stream.synchronize()
        return array

    def some(self, address: int, slot: Any) -> Any:
        """The first elements of a result."""
        from fulgurite.runtime.cuda import driver as cuda

        array = np.empty(min(int(np.prod(slot.shape)), FINITE), slot.dtype.numpy)
        cuda.copy_out(self.gpu.driver, array.ctypes.data, address, array.nbytes, self.gpu.stream)
        self.gpu.stream.synchronize()
        return array.astype(np.float32)

    def compile(self, works: Sequence[Any], table: Any) -> None:
        """The machine code of all workloads and variants, made in parallel."""
        from fulgurite.codegen.cuda.compilation.compiler import compile_launch, load
        from tests.codegen.cuda.workloads import rendered, scheduled

        begun = time.monotonic()
        launches = {}
        for work in works:
            for item in scheduled(work.build, work.inputs).items:
                for changes in ({}, *[c for _, c in _VARIANTS.get(work.name, ())]):
                    for launch in rendered(item.kernel, replace(table, **changes)).launches:
                        launches[launch.key] = launch
        load()
        with ThreadPoolExecutor(WORKERS) as pool:
            made = [pool.submit(compile_launch, launch) for launch in launches.values()]
        for key, one in zip(launches, made, strict=True):
            if one.exception() is None:
                self.gpu.cubins[key] = one.result()
        print(f"{len(launches)} texts compiled in {time.monotonic() - begun:.1f} s")

    def run(self, names: Sequence[str]) -> None:
        """One line a workload."""
        from fulgurite.codegen.cuda.tiling import HOPPER
        from tests.codegen.cuda.workloads import WORKLOADS

        properties = self.gpu.properties
        print(f"{properties.name}, {properties.processors} processors")
        print("workload: limit ms | ours (× limit) error | torch | other tiles")
        chosen = [work for work in WORKLOADS if not names or work.name in names]
        self.compile(chosen, HOPPER)
        for work in chosen:
            try:
                self.one(work, HOPPER)
            except Exception:
                print(f"{work.name}: FAILED {traceback.format_exc()[-600:]}")

    def one(self, work: Any, table: Any) -> None:
        sets = [self.inputs(work.inputs, seed) for seed in range(SETS)]
        put = [[self.gpu.put(a) for a in arrays] for arrays in sets]
        limit = work.nbytes / RATE
        closures, results, taken, schedule = self.prepared(work, table, put)
        closures[0]()
        error = self.difference(work, sets[0], results[0], schedule)
        ours = self.milliseconds(closures)
        slot = schedule.slots[schedule.outputs[0]]
        plain = self.some(results[0], slot)
        self.free(taken)
        others = []
        for name, changes in _VARIANTS.get(work.name, ()):
            try:
                closures, results, taken, _ = self.prepared(work, replace(table, **changes), put)
                took = self.milliseconds(closures)
                found = self.some(results[0], slot)
            except Exception as problem:
                others.append(f"{name} FAILED {str(problem)[-80:]}")
                continue
            apart = float(np.linalg.norm(found - plain) / max(float(np.linalg.norm(plain)), 1e-30))
            said = "" if apart < 1e-2 else f" WRONG {apart:.0e}"
            others.append(f"{name} {took:.4f}{said}")
            self.free(taken)
        for addresses in put:
            self.free(addresses)
        self.gpu.pool.trim()
        peer = self.peer(work, sets[0])
        print(
            f"{work.name}: {limit:.4f} | {ours:.4f} ({ours / limit:.2f}) {error} | "
            f"{'-' if peer is None else f'{peer:.4f}'} | {', '.join(others)}",
            flush=True,
        )

    def free(self, addresses: Sequence[int]) -> None:
        for address in dict.fromkeys(addresses):
            self.gpu.pool.free(address, self.gpu.stream)
        self.gpu.stream.synchronize()


def _rms(torch: Any, x: Any, r: Any, g: Any) -> Any:
    h = (x + r).float()
    return (h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * g


_PEERS: dict[str, Callable[..., Any]] = {
    "softmax": lambda t, x: t.softmax(x, -1),
    "layernorm": lambda t, x, g, b: t.nn.functional.layer_norm(x, (x.shape[-1],), g, b),
    "rmsnorm": _rms,
    "gelu": lambda t, x, b, r: t.nn.functional.gelu(x + b, approximate="tanh") + r,
    "sum": lambda t, x: x.sum(), "column_sum": lambda t, x: x.sum(0),
    "row_max": lambda t, x: x.amax(1), "transpose": lambda t, x: (x.T + 1).contiguous(),
    "add": lambda t, x, y: x + y, "scan": lambda t, x: t.cumsum(x, 0),
    "sort": lambda t, x: t.argsort(x, stable=True),
    "embedding_grad": lambda t, x, i, g: x.scatter_add(0, i.expand(g.shape), g),
    "matmul_bf16": lambda t, a, b: a @ b, "matmul_f32": lambda t, a, b: t.relu(a @ b),
}  # fmt: skip


def _rms64(x: Any, r: Any, g: Any) -> Any:
    import fulgurite as fg

    h = x + r
    return h * fg.rsqrt((h * h).mean(axis=-1, keepdims=True) + 1e-6) * g


def _embedding(table: Any, index: Any, values: Any) -> Any:
    total = table.astype(np.float64)
    np.add.at(total, index[:, 0], values)
    return total


def _sdpa(torch: Any, q: Any, k: Any, v: Any, causal: bool = True) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


_PEERS |= {f"gemm_{n}": _PEERS["matmul_bf16"] for n in (2048, 4096, 8192)}
_PEERS |= {
    "gemm_nt": lambda t, a, b: a @ b.T,
    "gemm_gelu": lambda t, a, b, c: t.nn.functional.gelu(a @ b + c, approximate="tanh"),
    "causal_attention": _sdpa, "causal_long": _sdpa,
    "attention_long": lambda t, q, k, v: _sdpa(t, q, k, v, False),
    "attention_64": lambda t, q, k, v: _sdpa(t, q, k, v, False),
}  # fmt: skip


_WHOLE: dict[str, Callable[..., Any]] = {
    "sum": lambda x: x.sum(dtype=np.float64).reshape(()),
    "column_sum": lambda x: x.sum(0, dtype=np.float64),
    "scan": lambda x: np.cumsum(x, dtype=np.float64),
    "sort": lambda x: np.argsort(x, kind="stable"),
    "transpose": lambda x: x.T.astype(np.float32) + 1,
    "add": lambda x, y: x.astype(np.float64) + y,
    "embedding_grad": _embedding,
    "matmul_bf16": lambda a, b: a.astype(np.float64) @ b.astype(np.float64),
    "matmul_f32": lambda a, b: np.maximum(a.astype(np.float64) @ b, 0),
}
_ROW = (
    ("streaming", {"streaming": True}), ("4 warps", {"most_warps": 4}),
    ("8 a thread", {"row_bytes": 8}),
)  # fmt: skip
_SHORT = {"short_functions": True}
_SOFTMAX = (
    ("short", _SHORT), ("short 8 a thread", {**_SHORT, "row_bytes": 8}),
)  # fmt: skip
_MAP = (
    ("1 KB", {"map_bytes": 1024}), ("4 KB", {"map_bytes": 4096}),
    ("4 KB 8 warps", {"map_bytes": 4096, "map_warps": 8}), ("streaming", {"streaming": True}),
)  # fmt: skip
_GELU = (
    ("short", _SHORT), ("short 4 KB", {**_SHORT, "map_bytes": 4096}),
    ("short 4 KB 8 warps", {**_SHORT, "map_bytes": 4096, "map_warps": 8}),
    ("short 1 KB", {**_SHORT, "map_bytes": 1024}),
    ("short streaming", {**_SHORT, "streaming": True}),
)  # fmt: skip
_GLUON_TILES = tuple([
    (f"gluon {rows}x{columns}x{rest[1]}", {"gluon": True, "gluon_tiles": ((rows, columns, *rest),)})
    for rows, columns, *rest in (
        (128, 256, 64, 3, 1.0), (128, 256, 64, 4, 1.0), (256, 128, 64, 3, 1.0),
        (128, 128, 64, 5, 1.0), (64, 256, 64, 4, 1.0), (64, 128, 64, 6, 1.0),
    )
])  # fmt: skip
_GLUON = (("gluon", {"gluon": True}), *_GLUON_TILES)
_FAST = {"stream_fast_exp": True}
_FOLDS = (
    ("fast exp", _FAST), ("fast exp, block 128", {**_FAST, "stream_block": 128}),
    ("fast exp, 2 stages", {**_FAST, "stream_stages": 2}), ("gluon", {"gluon_stream": True}),
    ("gluon fast exp", {**_FAST, "gluon_stream": True}),
    ("gluon fast exp, edges", {**_FAST, "gluon_stream": True, "gluon_edges": True}),
    ("gluon fast exp, block 64", {**_FAST, "gluon_stream": True, "gluon_block": 64}),
    ("same, 3 buffers", {**_FAST, "gluon_stream": True, "gluon_block": 64, "gluon_buffers": 3}),
)  # fmt: skip
_VARIANTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "softmax": (*_ROW, *_SOFTMAX), "layernorm": _ROW, "rmsnorm": _ROW, "row_max": _ROW,
    "gelu": (*_MAP, *_GELU), "add": _MAP,
    "gemm_2048": _GLUON, "gemm_4096": _GLUON, "gemm_8192": _GLUON, "gemm_nt": _GLUON,
    "gemm_gelu": (*_GLUON, ("short", _SHORT)),
    "causal_long": _FOLDS, "attention_long": _FOLDS, "attention_64": _FOLDS,
    "sum": (
        ("8 K chunk", {"chunk_elements": 8192}), ("4 programs", {"programs": 4}),
        ("16 programs", {"programs": 16}),
    ),
    "column_sum": (
        ("512 B", {"column_bytes": 512}), ("128 B", {"column_bytes": 128}),
        ("8 K", {"column_elements": 8192}), ("16 programs", {"programs": 16}),
    ),
    "transpose": (("32", {"transpose_block": 32}), ("64", {"transpose_block": 64})),
    "scan": (("2 K block", {"scan_block": 2048}), ("16 K chunk", {"scan_chunk": 16384})),
    "sort": (("tile 64", {"sort_tile": 64}), ("run 512", {"sort_run": 512})),
    "embedding_grad": (("1 K", {"segment_block": 1024}), ("4 K", {"segment_block": 4096})),
    "matmul_bf16": (
        ("64", {"dot_rows": 64}), ("least 128", {"dot_side": 128}), ("gluon", {"gluon": True}),
    ),
    "attention": _FOLDS, "causal_attention": _FOLDS,
    "matmul_f32": (("256", {"dot_rows": 256}), ("64", {"dot_rows": 64})),
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """What was asked for, else all."""
    asked = [a for a in arguments if a in ("shadow", "bench")] or ["bench", "shadow"]
    seconds = next((int(a) for a in arguments if a.isdigit()), 360)
    names = [a for a in arguments if a not in ("shadow", "bench") and not a.isdigit()]
    if "bench" in asked:
        Bench().run(names)
    if "shadow" in asked:
        shadow(seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
