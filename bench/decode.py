"""GPT-2 small decoding on a GPU beside torch: `python -m bench.decode [--batches 1,32]`.

Greedy decoding in bfloat16 over a KV cache of fixed size, said once to us and once to torch, from
the same weights and first tokens. A token is one call whose results are the next call's inputs: a
CUDA graph for us (`fg.jit`) and for torch (captured; eager is shown too). Printed for each batch:
microseconds of a call (the least of rounds of many calls between two waits), tokens per second,
the time over its limit (weights, and the cache up to the place, each read once at the rate of a
copy), and how many tokens agree with torch's. `--list` prints our launches of a token and needs no
GPU; `--tiny --device cpu` tries the script.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import fulgurite as fg
from bench.steps import SIZES, TINY, Array, Size, our_model, use_table, weights

RATE = 4.27e12  # bytes a second of a copy on an H200
START = 512  # tokens that the cache has at first, of which nobody asks what they are


class Loop(NamedTuple):
    """A decoder: begin anew, one token further, wait, and the tokens so far."""

    begin: Callable[[], None]
    advance: Callable[[], Any]
    wait: Callable[[], None]
    tokens: Callable[[], Array]


def given(size: Size, batch: int) -> tuple[Array, list[Array]]:
    """The first token of each row, and what caches have."""
    rng = np.random.default_rng(2)
    shape = 2, batch, max(1, size.width // 64), size.length, min(64, size.width)
    caches = [rng.standard_normal(shape, dtype=np.float32) for _ in range(size.layers)]
    return rng.integers(0, size.classes, batch), caches


def ours(size: Size, batch: int, device: str, start: int) -> Loop:
    """Plain array code under `fg.jit`."""
    first, caches = given(size, batch)
    with fg.config(device=device):
        p = {k: fg.Tensor(v).astype("bfloat16").realize() for k, v in weights("gpt2", size).items()}
        kept = [fg.Tensor(c).astype("bfloat16").realize() for c in caches]
    step = fg.jit(our_step(size, p, kept))
    at = fg.Var("at", 0, size.length - 1)
    state: list[Any] = []
    seen: list[Any] = []

    def begin() -> None:
        with fg.config(device=device):
            state[:] = [fg.Tensor(first).realize(), start]
        seen.clear()

    def advance() -> Any:
        with fg.config(device=device):
            token = step(state[0], at.bind(state[1]))
        state[:] = [token, state[1] + 1]
        seen.append(token)

    return Loop(begin, advance, fg.synchronize, lambda: np.stack([t.numpy() for t in seen]))


def our_step(size: Size, p: dict[str, Any], caches: list[Any]) -> Callable[..., Any]:
    """One token: the next ones after tokens at a place; caches are written in place."""
    heads = max(1, size.width // 64)

    def norm(x: Any, name: str) -> Any:
        return fg.layer_norm(x, (size.width,), p[f"{name}.weight"], p[f"{name}.bias"])

    def linear(x: Any, name: str) -> Any:
        return x.astype("bfloat16") @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def step(token: Any, place: Any) -> Any:
        batch = token.shape[0]
        x = (p["wte.weight"][token] + p["wpe.weight"][place]).astype("float32").contiguous()
        mask = fg.arange(size.length) <= place
        for number, cache in enumerate(caches):
            name = f"blocks.{number}"
            parts = linear(norm(x, f"{name}.ln_1"), f"{name}.attn").reshape(batch, 3, heads, -1)
            q, k, v = (parts[:, i] for i in range(3))
            cache[0, :, :, place], cache[1, :, :, place] = k, v
            found = fg.scaled_dot_product_attention(
                q[:, :, None], cache[0], cache[1], attn_mask=mask
            )
            x = x + linear(found.reshape(batch, size.width), f"{name}.proj")
            h = fg.gelu(linear(norm(x, f"{name}.ln_2"), f"{name}.fc"), approximate="tanh")
            x = x + linear(h, f"{name}.out")
        logits = norm(x, "ln_f").astype("bfloat16") @ p["wte.weight"].T
        return fg.argmax(logits, axis=-1)

    return step


def torch_loop(
    size: Size, batch: int, device: str, start: int, graphed: bool, compiled: bool = False
) -> Loop:
    """The same in torch, eager or as a captured graph, of compiled kernels where asked for."""
    import torch
    from torch.nn import functional

    first, values = given(size, batch)
    p = {k: torch.from_numpy(v).to(device, torch.bfloat16)
         for k, v in weights("gpt2", size).items()}  # fmt: skip
    caches = [torch.from_numpy(c).to(device, torch.bfloat16) for c in values]
    heads = max(1, size.width // 64)
    token = torch.from_numpy(first).to(device)
    place = torch.full((1,), start, device=device)
    places = torch.arange(size.length, device=device)

    def norm(x: Any, name: str) -> Any:
        scale, shift = p[f"{name}.weight"].float(), p[f"{name}.bias"].float()
        return functional.layer_norm(x, (size.width,), scale, shift).to(torch.bfloat16)

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def step() -> None:
        x = (p["wte.weight"][token] + p["wpe.weight"][place]).float()
        mask = (places <= place)[None, None, None]
        for number, cache in enumerate(caches):
            name = f"blocks.{number}"
            parts = linear(norm(x, f"{name}.ln_1"), f"{name}.attn").reshape(batch, 3, heads, -1)
            cache.index_copy_(3, place, parts[:, 1:].transpose(0, 1)[:, :, :, None])
            found = functional.scaled_dot_product_attention(
                parts[:, 0, :, None], cache[0], cache[1], attn_mask=mask
            )
            x = x + linear(found.reshape(batch, size.width), f"{name}.proj")
            h = functional.gelu(linear(norm(x, f"{name}.ln_2"), f"{name}.fc"), approximate="tanh")
            x = x + linear(h, f"{name}.out")
        token.copy_((norm(x, "ln_f") @ p["wte.weight"].T).argmax(-1))
        place.add_(1)

    seen: list[Any] = []

    def begin() -> None:
        token.copy_(torch.from_numpy(first))
        place.fill_(start)
        seen.clear()

    run = torch.compile(step) if compiled else step
    if graphed:
        side, plain = torch.cuda.Stream(), run
        with torch.no_grad(), torch.cuda.stream(side):
            plain()
            plain()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            plain()
        run = graph.replay

    def advance() -> None:
        with torch.no_grad():
            run()
            seen.append(token.clone())

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    return Loop(begin, advance, wait, lambda: np.stack([t.cpu().numpy() for t in seen]))


def measured(loop: Loop, tokens: int, rounds: int) -> tuple[float, Array]:
    """Microseconds of a token, and the first round's tokens."""
    best, kept = float("inf"), np.zeros((0, 0))
    for number in range(rounds + 1):
        loop.begin()
        loop.wait()
        begun = time.perf_counter()
        for _ in range(tokens):
            loop.advance()
        loop.wait()
        if number:  # the first one compiles
            best = min(best, (time.perf_counter() - begun) * 1e6 / tokens)
        else:
            kept = loop.tokens()
    return best, kept


def limit_us(size: Size, batch: int, place: int) -> float:
    """Microseconds in which weights, and keys and values up to a place, are read."""
    rows = size.classes + 12 * size.width * size.layers
    cache = 2 * batch * size.layers * size.width * place
    return 2 * (rows * size.width + cache) / RATE * 1e6


def our_schedule(size: Size, batch: int) -> Any:
    """The kernels of a token, over memory that does not exist."""
    from fulgurite.core.dtype import dtype_of
    from fulgurite.core.ops.leaf import new_buffer
    from fulgurite.tensor import wrap
    from tests.codegen.cuda import time_plan

    def empty(shape: tuple[int, ...], dtype: str) -> Any:
        return wrap(new_buffer(shape, dtype_of(dtype)))

    shape = 2, batch, max(1, size.width // 64), size.length, 64
    with fg.config(device="reference"):
        model = our_model("gpt2", size).state_dict()
        p = {k: empty(tuple(v.shape), "bfloat16") for k, v in model.items()}
        caches = [empty(shape, "bfloat16") for _ in range(size.layers)]
        before = [cache.entry.node for cache in caches]
        place = fg.Var("at", 0, size.length - 1).bind(START)
        found = our_step(size, p, caches)(empty((batch,), "int64"), place)
        over = [(node, 1 + number) for number, node in enumerate(before)]
        return time_plan.scheduled([found, *caches], over)


def show_launches(size: Size, batch: int) -> None:
    """Print our launches of a token: kind, floor of its memory, its largest param, grids."""
    from tests.codegen.cuda import time_plan
    from tests.runtime.cuda import fake

    fake.install()
    time_plan.show_launches(our_schedule(size, batch))


def time_launches(size: Size, batch: int) -> None:
    """Print what each of our launches of a token takes, alone and all in order."""
    from tests.codegen.cuda import time_plan

    kinds = ["REDUCE", "MAP", "CONTRACT", "FOLD", "ASSIGN"]
    tables = {name: time_plan.TABLES[name] for name in ("default", "many")}
    time_plan.time_all(our_schedule(size, batch), tables, kinds, 60, {"at": START})


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.decode")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--list", action="store_true", help="our launches; needs no GPU")
    parser.add_argument("--times", action="store_true", help="what each of our launches takes")
    parser.add_argument("--compiled", action="store_true", help="torch.compile's kernels, too")
    parser.add_argument("--ours", action="store_true", help="without torch")
    parser.add_argument("--table", default="", help="fields of GpuTable, as a=1,b=True")
    asked = parser.parse_args()
    if asked.table:
        use_table(asked.table)
    size = (TINY if asked.tiny else SIZES)["gpt2"]
    start = min(START, size.length // 4)
    tokens = min(asked.tokens, size.length - start - 1)
    if not asked.list and not asked.times:
        print("| batch | system | us a token | tokens/s | over the limit | tokens as torch's |")
        print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for batch in map(int, asked.batches.split(",")):
        if asked.list:
            show_launches(size, batch)
            continue
        if asked.times:
            time_launches(size, batch)
            continue
        limit = limit_us(size, batch, start + tokens // 2)
        loops: dict[str, Callable[[], Loop]] = {}
        if importlib.util.find_spec("torch") is not None and not asked.ours:
            if asked.device != "cpu":
                loops["torch, graph"] = lambda b=batch: torch_loop(
                    size, b, asked.device, start, True
                )  # type: ignore[misc]
            if asked.compiled:
                loops["torch.compile, graph"] = lambda b=batch: torch_loop(
                    size, b, asked.device, start, True, True
                )  # type: ignore[misc]
            loops["torch"] = lambda b=batch: torch_loop(size, b, asked.device, start, False)  # type: ignore[misc]
        loops["ours"] = lambda b=batch: ours(size, b, asked.device, start)  # type: ignore[misc]
        reference: Array | None = None
        for name, make in loops.items():
            us, found = measured(make(), tokens, asked.rounds)
            reference = found if reference is None else reference
            same = float((found == reference).mean())
            print(f"| {batch} | {name} | {us:.1f} | {batch * 1e6 / us:.0f} | {us / limit:.2f} | "
                  f"{same:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
