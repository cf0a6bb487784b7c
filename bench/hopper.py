"""Products and attention beside cuBLAS and cuDNN: `python -m bench.hopper [families]`.

Families: `products` (bfloat16 squares of 1024 to 8192 and 20 rectangles of known models), `decode`
(the same with 1 to 32 rows), `epilogues`, `attention` and `gradients` (heads of 64 and 128, lengths
of 1k to 16k, causal and not), `variants` (ALiBi, window, soft cap, sinks, differential; `--flex`
compiles torch's flex_attention beside them), `loss` (a linear layer into cross-entropy over 50,257
classes, with gradients). Inputs are made on the GPU and shared by DLPack, three sets in turn;
results are compared with float64 on parts of them; times are between events on a busy stream,
medians of rounds, systems in turns. torch is timed with each of its attention kernels, the best
counts. `--seconds` ends a run in time: what is left is counted. `--list` names the rows; `--device
cpu --divide 32` tries the script itself where there is no GPU.
"""

from __future__ import annotations

import argparse
import ast
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any

os.environ.setdefault("FULGURITE_DISK_CACHE", "0")  # cold times are those of an empty one

import fulgurite as fg
from bench.cuda import AHEAD, SETS, stream_time
from fulgurite.codegen.cuda import tiling

LOWEST = -float("inf")
Function = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """One function, said to each system."""

    family: str
    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Function
    peers: dict[str, Function]  # of torch
    exact: Function  # of inputs in float64, on the GPU: a part of the first result
    part: Function  # the same part of a result
    flops: float
    scale: float = 1.0  # of random numbers
    tolerance: float = 2e-2
    labels: int = 0  # classes of the last input, which is of whole numbers then
    notes: list[str] = field(default_factory=list)


# --- products ------------------------------------------------------------------------------------

SQUARES = [(n, n, n) for n in (1024, 2048, 4096, 8192)]
RECTANGLES = [  # rows, columns, depth
    (8192, 2304, 768), (8192, 768, 768), (8192, 3072, 768), (8192, 768, 3072), (8192, 50304, 768),
    (4096, 12288, 4096), (4096, 11008, 4096), (4096, 4096, 11008), (2048, 10240, 8192),
    (2048, 8192, 28672), (4096, 3072, 1024), (4096, 4096, 1024), (4096, 1024, 4096),
    (12608, 4096, 1024), (512, 4096, 4096), (256, 12288, 4096), (128, 4096, 4096),
    (64, 12288, 4096), (768, 3072, 8192), (4096, 4096, 2048),
]  # fmt: skip


def products(by: int) -> Iterator[Row]:
    """Squares and rectangles; the second factor is turned in every other one, as layers have it."""
    for number, sizes in enumerate([*SQUARES, *RECTANGLES]):
        m, n, k = (max(8, size // by) for size in sizes)
        turned = number % 2 == 1
        right = (n, k) if turned else (k, n)
        yield Row(
            "products", f"{m}x{n}x{k}{' nt' if turned else ''}", ((m, k), right),
            (lambda a, b: a @ fg.swapaxes(b, 0, 1)) if turned else (lambda a, b: a @ b),
            {"cuBLAS": (lambda a, b: a @ b.T) if turned else (lambda a, b: a @ b)},
            (lambda a, b: a[:64] @ b.T) if turned else (lambda a, b: a[:64] @ b),
            lambda r: r[:64], 2.0 * m * n * k,
        )  # fmt: skip


def decode(by: int) -> Iterator[Row]:
    """Few rows, as when tokens are made one by one: GPT-2 small and a model of 7 billion."""
    layers = ((2304, 768), (3072, 768), (768, 3072), (50304, 768), (12288, 4096), (4096, 11008))
    for m in (1, 8, 32):
        for size, deep in layers:
            n, k = max(8, size // by), max(8, deep // by)
            yield Row(
                "decode", f"{m}x{n}x{k} nt", ((m, k), (n, k)),
                lambda a, b: a @ fg.swapaxes(b, 0, 1), {"cuBLAS": lambda a, b: a @ b.T},
                lambda a, b: a @ b.T, lambda r: r, 2.0 * m * n * k,
            )  # fmt: skip


def _gelu(x: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(x, approximate="tanh")


def epilogues(by: int) -> Iterator[Row]:
    """What follows a product in the same kernel."""
    m = n = k = 4096 // by
    yield Row(
        "epilogues", "bias, gelu", ((m, k), (k, n), (n,)),
        lambda a, b, c: fg.gelu(a @ b + c, approximate="tanh"),
        {"torch": lambda a, b, c: _gelu(a @ b + c)},
        lambda a, b, c: _gelu(a[:64] @ b + c), lambda r: r[:64], 2.0 * m * n * k,
    )  # fmt: skip

    def ours(a: Any, b: Any, r: Any) -> Any:
        h = a @ b + r
        wide = h.astype("float32")
        return h, (wide * wide).mean(axis=-1)

    def peer(a: Any, b: Any, r: Any) -> Any:
        h = a @ b + r
        return h, h.float().square().mean(-1)

    yield Row(
        "epilogues", "residual, RMS statistics", ((m, k), (k, n), (m, n)), ours, {"torch": peer},
        lambda a, b, r: a[:64] @ b + r[:64], lambda r: r[0][:64], 2.0 * m * n * k,
    )  # fmt: skip


# --- attention -----------------------------------------------------------------------------------

SHAPES = [(16384 // n, 16, n, d) for d in (64, 128) for n in (1024, 2048, 4096, 8192, 16384)]


def attention(q: Any, k: Any, v: Any, change: Function) -> Any:
    """Plain code; `change` does what it likes with scores."""
    scores = (q @ fg.swapaxes(k, -1, -2)).astype("float32") * q.shape[-1] ** -0.5
    rows, columns = fg.arange(q.shape[-2])[:, None], fg.arange(k.shape[-2])
    return fg.softmax(change(scores, rows, columns, fg), axis=-1).astype(q.dtype) @ v


def exact_attention(q: Any, k: Any, v: Any, change: Function) -> Any:
    """The first head in float64, written out."""
    import torch

    q, k, v = q[0, 0], k[0, 0], v[0, 0]
    scores = q @ k.T * q.shape[-1] ** -0.5
    rows = torch.arange(len(q), device=q.device)[:, None]
    scores = change(scores, rows, torch.arange(len(k), device=q.device), torch)
    return scores.softmax(-1) @ v


def plain(scores: Any, rows: Any, columns: Any, of: Any) -> Any:
    """Scores as they are."""
    return scores


def causal(scores: Any, rows: Any, columns: Any, of: Any) -> Any:
    """Each query sees the keys up to its own."""
    return of.where(columns <= rows, scores, LOWEST)


def _sdpa(kind: str, is_causal: bool) -> Function:
    def call(q: Any, k: Any, v: Any) -> Any:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, kind)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return call


def _with_gradients(call: Function) -> Function:
    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        import torch

        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            y = call(*leaves)
            return (y.detach(), *torch.autograd.grad(y, leaves, g))

    return both


def _peers(is_causal: bool) -> dict[str, Function]:
    kinds = {"cuDNN": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}
    return {name: _sdpa(kind, is_causal) for name, kind in kinds.items()}


def forward(gradients: bool, by: int) -> Iterator[Row]:
    """Attention alone, or with its three gradients."""
    for b, h, long, d in SHAPES:
        n = long // by
        shape = b, h, n, d
        for change in (plain, causal):

            def ours(q: Any, k: Any, v: Any, change: Function = change) -> Any:
                return attention(q, k, v, change)

            def both(q: Any, k: Any, v: Any, g: Any, one: Function = ours) -> Any:
                y, pull = fg.vjp(one, q, k, v)
                return (y, *pull(g))

            def exact(*given: Any, change: Function = change) -> Any:
                return exact_attention(given[0], given[1], given[2], change)

            def exact_values(q: Any, k: Any, v: Any, g: Any, change: Function = change) -> Any:
                import torch

                with torch.enable_grad():
                    leaf = v[:1, :1].detach().requires_grad_()
                    y = exact_attention(q, k, leaf, change)
                    return torch.autograd.grad(y, leaf, g[0, 0])[0][0, 0]

            work = 4.0 * b * h * n * n * d * (0.5 if change is causal else 1)
            name = f"{b}x{h}x{n}x{d} {change.__name__}"
            peers = _peers(change is causal)
            if gradients:
                yield Row(
                    "gradients", name, (shape,) * 4, both,
                    {n: _with_gradients(p) for n, p in peers.items()}, exact_values,
                    lambda r: r[3][0, 0], 3.5 * work,
                )  # fmt: skip
            else:
                yield Row("attention", name, (shape,) * 3, ours, peers, exact,
                          lambda r: r[0, 0], work)  # fmt: skip


VARIANTS: dict[str, Function] = {
    "causal": causal,
    "ALiBi": lambda s, r, c, x: x.where(c <= r, s + (c - r) * 0.0625, LOWEST),
    "window": lambda s, r, c, x: x.where((c <= r) & (r < c + 1024), s, LOWEST),
    "soft cap": lambda s, r, c, x: x.where(c <= r, x.tanh(s / 30.0) * 30.0, LOWEST),
}


def _flex(name: str, n: int) -> Function:
    """torch's flex_attention, compiled, with the same scores."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def mask(b: Any, h: Any, r: Any, c: Any) -> Any:
        seen = c <= r
        return seen & (r < c + 1024) if name == "window" else seen

    def change(score: Any, b: Any, h: Any, r: Any, c: Any) -> Any:
        if name == "ALiBi":
            return score + (c - r) * 0.0625
        return torch.tanh(score / 30.0) * 30.0 if name == "soft cap" else score

    blocks = create_block_mask(mask, None, None, n, n, device="cuda")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, score_mod=change, block_mask=blocks)


def variants(flex: bool, by: int) -> Iterator[Row]:
    """Attention that no library has, beside the plain causal one."""
    shape = b, h, n, d = 4, 16, 4096 // by, 128
    work = 2.0 * b * h * n * n * d
    for name, change in VARIANTS.items():

        def ours(q: Any, k: Any, v: Any, change: Function = change) -> Any:
            return attention(q, k, v, change)

        def exact(q: Any, k: Any, v: Any, change: Function = change) -> Any:
            return exact_attention(q, k, v, change)

        peers = _peers(True) if name == "causal" else {}
        if flex:
            peers = {**peers, "flex": _flex(name, n)}
        yield Row("variants", name, (shape,) * 3, ours, peers, exact, lambda r: r[0, 0], work)

    def sinks(q: Any, k: Any, v: Any) -> Any:
        scores = causal((q @ fg.swapaxes(k, -1, -2)).astype("float32") * d**-0.5,
                        fg.arange(n)[:, None], fg.arange(n), fg)  # fmt: skip
        top = fg.maximum(scores.max(axis=-1, keepdims=True), 0.0)
        weights = fg.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True) + fg.exp(-top)
        return (weights / total).astype(q.dtype) @ v

    def exact_sinks(q: Any, k: Any, v: Any) -> Any:
        import torch

        q, k, v = q[0, 0], k[0, 0], v[0, 0]
        rows = torch.arange(n, device=q.device)[:, None]
        weights = causal(q @ k.T * d**-0.5, rows, rows[:, 0], torch).exp()
        return weights / (weights.sum(-1, keepdim=True) + 1) @ v

    yield Row("variants", "sink", (shape,) * 3, sinks, {}, exact_sinks, lambda r: r[0, 0], work)

    def differential(q: Any, k: Any, v: Any, p: Any, r: Any) -> Any:
        return attention(q, k, v, causal) - attention(p, r, v, causal) * 0.5

    def exact_differential(q: Any, k: Any, v: Any, p: Any, r: Any) -> Any:
        return exact_attention(q, k, v, causal) - exact_attention(p, r, v, causal) * 0.5

    yield Row("variants", "differential", (shape,) * 5, differential, {}, exact_differential,
              lambda r: r[0, 0], 2 * work)  # fmt: skip


# --- a linear layer into its loss ----------------------------------------------------------------


def loss(by: int) -> Iterator[Row]:
    """Cross-entropy of 8,192 tokens over GPT-2's vocabulary, with both gradients."""
    m, k, classes = 8192 // by, 768 // by, 50257 // by

    def one(x: Any, w: Any, labels: Any) -> Any:
        return fg.cross_entropy((x @ fg.swapaxes(w, 0, 1)).astype("float32"), labels)

    def ours(x: Any, w: Any, labels: Any) -> Any:
        value, (dx, dw) = fg.value_and_grad(one, (0, 1))(x, w, labels)
        return dx, dw, value

    def peer(x: Any, w: Any, labels: Any) -> Any:
        import torch

        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (x, w)]
            value = torch.nn.functional.cross_entropy((leaves[0] @ leaves[1].T).float(), labels)
            return (*torch.autograd.grad(value, leaves), value)

    def exact(x: Any, w: Any, labels: Any) -> Any:
        import torch

        weights = (x[:64] @ w.T).softmax(-1)
        weights[torch.arange(64, device=x.device), labels[:64]] -= 1
        return weights @ w / m

    yield Row("loss", f"{m}x{k} into {classes}", ((m, k), (classes, k), (m,)), ours,
              {"torch": peer}, exact, lambda r: r[0][:64], 6.0 * m * k * classes, 0.05,
              labels=classes)  # fmt: skip


# --- running -------------------------------------------------------------------------------------


def rows(flex: bool, by: int) -> list[Row]:
    """All of them, with sizes divided by a number."""
    both = [*forward(False, by), *forward(True, by)]
    return [*products(by), *decode(by), *epilogues(by), *both, *variants(flex, by), *loss(by)]


def inputs(row: Row, seed: int, device: str) -> list[Any]:
    """Random tensors of torch's."""
    import torch

    made = torch.Generator(device=device).manual_seed(seed)
    found = [torch.randn(shape, generator=made, device=device, dtype=torch.float32)
             .mul_(row.scale).to(torch.bfloat16) for shape in row.shapes]  # fmt: skip
    if row.labels:
        found[-1] = torch.randint(0, row.labels, row.shapes[-1], generator=made, device=device)
    return found


def timer(run: Callable[[int], Any]) -> Callable[[int], float]:
    """Milliseconds of a call, among so many on a busy stream."""
    import torch

    def timed(count: int) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for i in range(AHEAD):
            run(i % SETS)
        first.record()
        for i in range(count):
            run(i % SETS)
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / count

    return timed


def wall_timer(run: Callable[[int], Any]) -> Callable[[int], float]:
    """Milliseconds of a call where there are no events."""

    def timed(count: int) -> float:
        begun = time.perf_counter()
        for i in range(count):
            run(i % SETS)
        return (time.perf_counter() - begun) * 1e3 / count

    return timed


def our_timer(run: Callable[[int], Any]) -> Callable[[int], float]:
    """The same on our own stream."""
    from fulgurite.runtime.device import get_device

    return lambda count: stream_time(get_device("cuda"), run, count)


def error_of(row: Row, found: Any, given: Sequence[Any]) -> float:
    """How far a part of a result is from float64's, by norms."""
    import torch

    wide = [t.double() if t.is_floating_point() else t for t in given]
    want, got = row.exact(*wide), row.part(found).double()
    if not bool(torch.isfinite(got).all()):
        return float("nan")
    return float((got - want).norm() / want.norm())


def systems(
    row: Row, device: str
) -> dict[str, tuple[Callable[[int], Any], Callable[[int], float]]]:
    """Every system's way to run a set, and to time it; with errors in the row's notes."""
    import torch

    sets = [inputs(row, seed, device) for seed in (1, 2, int(time.time()))]
    made: dict[str, tuple[Callable[[int], Any], Callable[[int], float]]] = {}
    function = fg.jit(row.ours)
    shared = [[fg.from_dlpack(t) for t in one] for one in sets]

    def ours(number: int) -> Any:
        return function(*shared[number])

    def as_torch(found: Any) -> Any:
        if isinstance(found, tuple):
            return tuple([torch.from_dlpack(t) for t in found])
        return torch.from_dlpack(found)

    for name, call in {"ours": None, **row.peers}.items():
        try:
            run = ours if call is None else (lambda i, call=call: call(*sets[i]))
            begun = time.perf_counter()
            found = run(SETS - 1)
            error = error_of(row, as_torch(found) if call is None else found, sets[-1])
            if name == "ours":
                row.notes.append(f"cold {time.perf_counter() - begun:.1f} s, error {error:.0e}")
            if not error < row.tolerance:
                row.notes.append(f"{name} WRONG {error:.1e}")
            watch = our_timer if call is None else timer
            made[name] = run, (wall_timer if device == "cpu" else watch)(run)
        except Exception as problem:
            row.notes.append(f"{name} FAILED {type(problem).__name__} {str(problem)[-70:]}")
    return made


def measure(row: Row, device: str, rounds: int, milliseconds: float) -> dict[str, float]:
    """Median milliseconds of each system, in turns."""
    import torch

    with torch.no_grad():
        made = systems(row, device)
        counts = {
            name: max(5, min(300, int(milliseconds / timed(3))))
            for name, (_, timed) in made.items()
        }
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds):
            for name, (_, timed) in made.items():
                times[name].append(timed(counts[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """The table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.hopper")
    parser.add_argument("families", nargs="*", help="all")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no row after that")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=float, default=15.0, help="of a round of a system")
    parser.add_argument("--unordered", action="store_true", help="deterministic=False, as torch")
    parser.add_argument("--flex", action="store_true", help="torch's flex_attention, compiled")
    parser.add_argument("--table", nargs="*", default=[], metavar="FIELD=VALUE",
                        help="fields of codegen/cuda/tiling.py's table, to be tried")  # fmt: skip
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--divide", type=int, default=1, help="sizes by this")
    parser.add_argument("--only", nargs="*", default=[""], help="rows named so, in part")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    asked = parser.parse_args()
    wanted = [r for r in rows(asked.flex and not asked.list, asked.divide)
              if (not asked.families or r.family in asked.families)
              and any(text in r.name for text in asked.only)]  # fmt: skip
    if asked.list:
        print("\n".join([f"{row.family}: {row.name}" for row in wanted]))
        return
    if asked.table:
        given = dict([one.split("=", 1) for one in asked.table])
        changed = {name: ast.literal_eval(value) for name, value in given.items()}
        tiling.HOPPER = replace(tiling.HOPPER, **changed)
    print("| family | work | ours ms | TFLOP/s | best peer ms | speed over it | notes |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    ratios: dict[str, list[float]] = {}
    begun, left = time.monotonic(), 0
    with fg.config(device=asked.device, deterministic=not asked.unordered):
        for row in wanted:
            if time.monotonic() - begun > asked.seconds:
                left += 1
                continue
            found = measure(row, asked.device, asked.rounds, asked.milliseconds)
            mine = found.get("ours", float("nan"))
            others = {name: t for name, t in found.items() if name != "ours"}
            best = min(others, key=lambda name: others[name], default="")
            peer = others.get(best, float("nan"))
            if peer == peer and mine == mine:
                ratios.setdefault(row.family, []).append(peer / mine)
            cells = [row.family, row.name, f"{mine:.4f}", f"{row.flops / mine / 1e9:.0f}",
                     f"{peer:.4f} {best}", f"{peer / mine:.2f}", "; ".join(row.notes)]  # fmt: skip
            print(f"| {' | '.join(cells)} |", flush=True)
    for family, every in ratios.items():
        mean = exp(sum([log(r) for r in every]) / len(every))
        print(f"{family}: geometric mean {mean:.3f}, least {min(every):.2f}, of {len(every)}")
    if left:
        print(f"{left} rows were not begun")


if __name__ == "__main__":
    main()
