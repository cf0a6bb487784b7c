"""A GPU beside torch and JAX, in one run: `python -m bench.cuda [--short] [--compile] [names]`.

Every workload is checked against float64 on fresh random inputs, then timed: ours, torch eager,
torch.compile (`--compile`: it takes long) and JAX take turns, on three sets of inputs that together
are larger than the L2 cache. Times of ours and torch are between two events on a busy stream with
many launches in between, JAX's from launch to `block_until_ready`; medians of several rounds. The
table is printed and, with `--write`, kept in bench/results/h200.md. `--device cpu --tiny` tries the
script itself where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

import fulgurite as fg
from fulgurite.core.dtype import dtype_of
from fulgurite.runtime.device import get_device

Array = np.ndarray[Any, Any]
RESULTS = Path(__file__).parent / "results" / "h200.md"
SETS = 3  # of inputs that take turns
DIFFERENT = 1 << 20  # random numbers of an input; further ones repeat them
AHEAD = 3  # launches before those that are timed
CHECKED_ROWS = 64  # of a result that are compared with float64
COPY_RATE = 4.27e9  # bytes a millisecond that a copy moves on the H200


@dataclass(frozen=True)
class Work:
    """One function, said to each system, its inputs and the limit of the machine."""

    name: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    ours: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any] | None
    exact: Callable[..., Array]  # of inputs in float64, of which the first rows are kept
    nbytes: int = 0
    flops: float = 0.0
    tolerance: float = 1e-2
    whole: bool = False  # the result has no rows


def _softmax64(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    found: Array = e / e.sum(-1, keepdims=True)
    return found


def _layernorm64(x: Array, g: Array, b: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    found: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b
    return found


def _rms64(x: Array, r: Array, g: Array) -> Array:
    h = x + r
    found: Array = h / np.sqrt((h * h).mean(-1, keepdims=True) + 1e-6) * g
    return found


def _gelu64(x: Array) -> Array:
    found: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return found


def _attention64(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    """The first head of the first sequence."""
    q, k, v = (a.reshape(-1, *a.shape[-2:])[0] for a in (q, k, v))
    scores = q[:CHECKED_ROWS] @ k.T / np.sqrt(q.shape[-1])
    if causal:
        rows = np.arange(len(scores))[:, None]
        scores = np.where(np.arange(len(k)) <= rows, scores, -np.inf)
    found: Array = _softmax64(scores) @ v
    return found


def _ours_rms(x: Any, r: Any, g: Any) -> Any:
    h = (x + r).astype("float32")
    scale = fg.rsqrt((h * h).mean(axis=-1, keepdims=True) + 1e-6)
    return (h * scale).astype("bfloat16") * g


def _ours_attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    scores = (q @ fg.swapaxes(k, -1, -2)) * (1 / q.shape[-1] ** 0.5)
    if causal:
        n = q.shape[-2]
        scores = fg.where(fg.arange(n)[:, None] >= fg.arange(n), scores, -float("inf"))
    return fg.softmax(scores, axis=-1) @ v


def _torch_rms(x: Any, r: Any, g: Any) -> Any:
    h = (x + r).float()
    return (h * (h * h).mean(-1, keepdim=True).add(1e-6).rsqrt()).to(x.dtype) * g


def _torch_attention(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ k.transpose(-1, -2)) * (1 / q.shape[-1] ** 0.5)
    return scores.softmax(-1) @ v


def _torch_sdpa(q: Any, k: Any, v: Any) -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _torch_gelu(x: Any, b: Any, r: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(x + b, approximate="tanh") + r


def _torch_layernorm(x: Any, g: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x, (x.shape[-1],), g, b)


def _jax_layernorm(x: Any, g: Any, b: Any) -> Any:
    import jax.numpy as jnp

    h = x.astype(jnp.float32)
    centred = h - h.mean(-1, keepdims=True)
    scale = 1 / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (centred * scale * g + b).astype(x.dtype)


def _jax_rms(x: Any, r: Any, g: Any) -> Any:
    import jax.numpy as jnp

    h = (x + r).astype(jnp.float32)
    scale = 1 / jnp.sqrt((h * h).mean(-1, keepdims=True) + 1e-6)
    return (h * scale).astype(x.dtype) * g


def _jax(name: str) -> Any:
    import jax

    return getattr(jax.nn, name)


def works(tiny: bool) -> list[Work]:
    """All workloads, or small ones to try the script."""
    rows, columns = (256, 512) if tiny else (16384, 4096)
    long = 1 << (16 if tiny else 28)
    side = 256 if tiny else 4096
    heads = (1, 2, 64, 16) if tiny else (1, 16, 2048, 64)
    many = (1, 2, 128, 16) if tiny else (4, 32, 4096, 128)
    matrix, vector = ((rows, columns), "bfloat16"), ((columns,), "bfloat16")
    cells = rows * columns
    square = ((side, side), "bfloat16")
    line = ((side,), "bfloat16")

    def attended(shape: tuple[int, ...], share: float) -> float:
        return 4 * float(np.prod(shape)) * shape[-2] * share

    return [
        Work("softmax", (matrix,), lambda x: fg.softmax(x, axis=-1), lambda x: x.softmax(-1),
             lambda x: _jax("softmax")(x, axis=-1), _softmax64, 4 * cells),
        Work("layernorm", (matrix, vector, vector),
             lambda x, g, b: fg.layer_norm(x, (columns,), g, b), _torch_layernorm, _jax_layernorm,
             _layernorm64, 4 * cells),
        Work("rmsnorm", (matrix, matrix, vector), _ours_rms, _torch_rms, _jax_rms, _rms64,
             6 * cells),
        Work("gelu", (matrix, vector, matrix),
             lambda x, b, r: fg.gelu(x + b, approximate="tanh") + r, _torch_gelu,
             lambda x, b, r: _jax("gelu")(x + b, approximate=True) + r,
             lambda x, b, r: _gelu64(x + b) + r, 6 * cells),
        Work("sum", (((long,), "float32"),), lambda x: x.sum(), lambda x: x.sum(),
             lambda x: x.sum(), lambda x: np.asarray(x.sum()), 4 * long, tolerance=1e-4,
             whole=True),
        Work("matmul", (square, square), lambda a, b: a @ b, lambda a, b: a @ b,
             lambda a, b: a @ b, lambda a, b: a[:CHECKED_ROWS] @ b, flops=2.0 * side**3),
        Work("matmul+gelu", (square, square, line),
             lambda a, b, c: fg.gelu(a @ b + c, approximate="tanh"),
             lambda a, b, c: _torch_gelu(a @ b, c, 0), lambda a, b, c: _jax("gelu")(a @ b + c),
             lambda a, b, c: _gelu64(a[:CHECKED_ROWS] @ b + c), flops=2.0 * side**3),
        Work("attention", ((heads, "bfloat16"),) * 3, _ours_attention, _torch_attention, None,
             _attention64, flops=attended(heads, 1.0), tolerance=2e-2),
        Work("causal", ((many, "bfloat16"),) * 3,
             lambda q, k, v: _ours_attention(q, k, v, True), _torch_sdpa, None,
             lambda q, k, v: _attention64(q, k, v, True), flops=attended(many, 0.5),
             tolerance=2e-2),
    ]  # fmt: skip


# --- systems -------------------------------------------------------------------------------------


def random_inputs(work: Work, seed: int) -> list[Array]:
    """Normal numbers in the dtypes of a workload."""
    rng = np.random.default_rng(seed)
    found = []
    for shape, dtype in work.inputs:
        count = int(np.prod(shape))
        some = rng.standard_normal(min(count, DIFFERENT), dtype=np.float32)
        found.append(np.resize(some.astype(dtype_of(dtype).numpy), count).reshape(shape))
    return found


Runner = tuple[Callable[[int], Any], Callable[[int, int], float], Callable[[Any], Array]]
"""Run on a set; milliseconds of a launch, for so many of them; a result as an array."""


def stream_time(backend: Any, run: Callable[[int], Any], launches: int, start: int = 0) -> float:
    """Milliseconds of a launch of ours, by events on its stream, which is busy before the first."""
    from fulgurite.runtime.cuda import driver as cuda

    first, last = (cuda.Event(backend.driver, timing=True) for _ in range(2))
    for i in range(AHEAD):
        run(i % SETS)
    first.record(backend.stream)
    for i in range(launches):
        run((start + i) % SETS)
    last.record(backend.stream)
    last.synchronize()
    taken = last.since(first) / launches
    first.close()
    last.close()
    return taken


def ours(work: Work, sets: Sequence[Sequence[Array]], device: str) -> Runner:
    """Jitted, timed by events of its stream where it has one."""
    backend: Any = get_device(device)
    given = [[fg.Tensor(a, device=device).realize() for a in arrays] for arrays in sets]
    function = fg.jit(work.ours)

    def run(number: int) -> Any:
        return function(*given[number])

    def timed(launches: int, start: int) -> float:
        if not hasattr(backend, "stream"):
            return _wall(run, launches, start, lambda: None)
        return stream_time(backend, run, launches, start)

    return run, timed, lambda result: np.asarray(result.numpy())


def torch_system(
    work: Work, sets: Sequence[Sequence[Array]], device: str, compiled: bool
) -> Runner:
    """Eager or compiled."""
    import torch

    def put(array: Array) -> Any:
        if array.dtype.itemsize == 2:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(array).to(device)

    given = [[put(a) for a in arrays] for arrays in sets]
    function = torch.compile(work.torch) if compiled else work.torch

    def run(number: int) -> Any:
        with torch.no_grad():
            return function(*given[number])

    def timed(launches: int, start: int) -> float:
        if device == "cpu":
            return _wall(run, launches, start, lambda: None)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for i in range(AHEAD):
            run(i % SETS)
        first.record()
        for i in range(launches):
            run((start + i) % SETS)
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / launches

    return run, timed, lambda result: np.asarray(result.float().cpu().numpy())


def jax_system(work: Work, sets: Sequence[Sequence[Array]]) -> Runner | None:
    """Jitted."""
    if work.jax is None:
        return None
    import jax

    given = [[jax.device_put(a) for a in arrays] for arrays in sets]
    function = jax.jit(work.jax)

    def run(number: int) -> Any:
        return function(*given[number])

    def timed(launches: int, start: int) -> float:
        return _wall(run, launches, start, lambda: jax.block_until_ready(run(0)))

    return run, timed, lambda result: np.asarray(result)


def _wall(run: Callable[[int], Any], launches: int, start: int, wait: Callable[[], Any]) -> float:
    wait()
    begun = time.perf_counter()
    found: Any = None
    for i in range(launches):
        found = run((start + i) % SETS)
    if hasattr(found, "block_until_ready"):
        found.block_until_ready()
    return (time.perf_counter() - begun) * 1e3 / launches


# --- one workload --------------------------------------------------------------------------------


def error_of(work: Work, arrays: Sequence[Array], got: Array) -> float:
    """How far a result is from float64's, by norms, over the rows that are compared."""
    exact = [a.astype(np.float64) for a in arrays] if work.whole else _first_rows(work, arrays)
    want = work.exact(*exact)
    if not work.whole:
        got = got.reshape(-1, got.shape[-1])[: len(want.reshape(-1, want.shape[-1]))]
    difference = float(np.linalg.norm(got.astype(np.float64).reshape(want.shape) - want))
    return difference / max(float(np.linalg.norm(want)), 1e-300)


def _first_rows(work: Work, arrays: Sequence[Array]) -> list[Array]:
    """What the first rows of a result need, in float64."""
    if work.flops:  # the oracle takes what it needs
        return [a.reshape(-1, *a.shape[-2:])[0].astype(np.float64) for a in arrays]
    return [(a[:CHECKED_ROWS] if a.ndim == 2 else a).astype(np.float64) for a in arrays]


def measure(
    work: Work, device: str, peers: Sequence[str], rounds: int, launches: int,
    milliseconds: float = 20.0,
) -> tuple[dict[str, float], dict[str, str]]:  # fmt: skip
    """Median milliseconds of each system, and what went wrong with some."""
    sets = [random_inputs(work, seed) for seed in range(SETS)]
    fresh = random_inputs(work, int(time.time()))
    makers: dict[str, Callable[[Sequence[Sequence[Array]]], Runner | None]] = {
        "ours": lambda s: ours(work, s, device),
        "torch": lambda s: torch_system(work, s, device, False),
        "compile": lambda s: torch_system(work, s, device, True),
        "jax": lambda s: jax_system(work, s),
    }
    times: dict[str, list[float]] = {}
    notes: dict[str, str] = {}
    systems: dict[str, Runner] = {}
    needed: dict[str, int] = {}
    for name in ("ours", *peers):
        try:
            made = makers[name]([*sets[:-1], fresh])
            if made is None:
                continue
            error = error_of(work, fresh, made[2](made[0](SETS - 1)))
            if not error < work.tolerance:
                notes[name] = f"WRONG: error {error:.1e}"
            elif name == "ours":
                notes["error"] = f"{error:.0e}"
            for number in range(SETS):
                made[0](number)
            needed[name] = launches
            if device != "cpu":  # as many as are long beside what the host does before the first
                needed[name] = min(1000, max(launches, int(milliseconds / made[1](launches, 0))))
            systems[name] = made
        except Exception as problem:
            notes[name] = f"FAILED: {type(problem).__name__} {str(problem)[-200:]}"
    for turn in range(rounds):
        for name, made in systems.items():
            times.setdefault(name, []).append(made[1](needed[name], turn))
    return {name: statistics.median(found) for name, found in times.items()}, notes


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.cuda")
    parser.add_argument("names", nargs="*", help="workloads (all)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--short", action="store_true", help="fewer rounds")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument("--write", nargs="?", const=str(RESULTS), help="keep the table")
    asked = parser.parse_args()
    peers = ["torch", *(["compile"] if asked.compile else []), *([] if asked.no_jax else ["jax"])]
    rounds, launches = (3, 10) if asked.short or asked.tiny else (7, 20)
    lines = [
        "| work | limit | ours | × limit | error | torch | compiled | JAX | ours / best peer |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    for work in works(asked.tiny):
        if asked.names and work.name not in asked.names:
            continue
        found, notes = measure(work, asked.device, peers, rounds, launches)
        limit = work.nbytes / COPY_RATE

        def cell(name: str, found: dict[str, float] = found, notes: dict[str, str] = notes) -> str:
            return f"{found[name]:.4f}" if name in found else notes.get(name, "-")

        mine = found.get("ours", float("nan"))
        best = min([t for name, t in found.items() if name != "ours"], default=float("nan"))
        rate = f"{work.flops / mine / 1e9:.0f} TFLOP/s" if work.flops else f"{limit:.4f}"
        over = f"{mine / limit:.2f}" if limit else "-"
        wrong = notes.get("ours") or notes.get("error", "-")
        lines.append(
            f"| {work.name} | {rate} | {cell('ours')} | {over} | {wrong} | {cell('torch')} | "
            f"{cell('compile')} | {cell('jax')} | {mine / best:.2f} |"
        )
        print(lines[-1], flush=True)
    if asked.write:
        Path(asked.write).parent.mkdir(exist_ok=True)
        head = "# NVIDIA H200, milliseconds (medians; `python -m bench.cuda --write`)\n\n"
        Path(asked.write).write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
