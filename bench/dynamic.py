"""Sizes that change: one plan for all lengths, beside plans for each and torch eager.

Run `python bench/dynamic.py [--peers PYTHON] [--quick]`. Three works: a jitted attention block over
200 random lengths from 2 to 4,000 (how often it compiles, its time at each length over that of a
plan for the length alone); a decoding loop whose cache grows by `concat`, plain and under `fg.jit`,
beside a jitted loop over a cache of fixed size; the same loop by torch eager. Times are CPU time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

LAYERS, WIDTH, HEADS, VOCABULARY = 8, 512, 8, 97
PROMPT, TOKENS = 32, 256
RNG = np.random.default_rng(0)


def _cpu(run: Callable[[], object], times: int) -> float:
    """The least CPU time of some runs, in ms."""
    found = []
    for _ in range(times):
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return min(found) * 1e3


def _weights(shape: tuple[int, ...]) -> Any:
    return RNG.standard_normal(shape, dtype=np.float32) * np.float32(0.04)


# --- attention -----------------------------------------------------------------------------------


def attention(lengths: int) -> None:
    """One jitted block over many lengths."""
    import fulgurite as fg

    heads, size = 4, 64
    weights = [fg.Tensor(_weights((heads * size, heads * size))) for _ in range(4)]

    def block(x: Any) -> Any:
        n = x.shape[0]
        q, k, v = [(x @ w).reshape(n, heads, size).permute(1, 0, 2) for w in weights[:3]]
        place = fg.arange(n)
        scores = q @ k.permute(0, 2, 1) * size**-0.5
        scores = fg.where(place[:, None] >= place[None, :], scores, -fg.inf)
        seen = fg.softmax(scores, axis=-1) @ v
        return seen.permute(1, 0, 2).reshape(n, heads * size) @ weights[3]

    f = fg.jit(block)
    given = [int(n) for n in np.random.default_rng(1).integers(2, 4001, lengths)] + [64, 4000]
    data = RNG.standard_normal((4001, heads * size), dtype=np.float32)
    before, begin, apart = fg.cache_stats()["schedule"]["misses"], time.process_time(), 0.0
    for n in given:
        f(fg.Tensor(data[:n])).numpy()
    seconds = time.process_time() - begin
    compiled = fg.cache_stats()["schedule"]["misses"] - before
    print(f"attention, {len(given)} lengths: {f.captured} captures, {compiled} compiles, "
          f"{seconds:.1f} s of CPU in all")  # fmt: skip
    ratios, at = [], {}
    for n in sorted({*given[:: max(1, lengths // 16)], 64, 4000}):
        x = fg.Tensor(data[:n]).realize()
        times = max(3, min(30, 40_000 // n))
        with fg.config(dynamic=False):
            fixed = fg.jit(block, dynamic=False)
            want = fixed(x).numpy()
            alone = _cpu(lambda g=fixed, y=x: g(y).numpy(), times)  # type: ignore[misc]
        apart = max(apart, float(np.abs(f(x).numpy() - want).max()))
        at[n] = _cpu(lambda y=x: f(y).numpy(), times)  # type: ignore[misc]
        ratios.append(at[n] / alone)
        print(f"  {n:5d}: {at[n]:8.3f} ms, {ratios[-1]:.2f} of a plan for it alone")
    mean = float(np.exp(np.mean(np.log(ratios))))
    print(f"  worst {max(ratios):.2f}, geometric mean {mean:.2f}, largest difference {apart:.1e}, "
          f"64 takes {at[64] / at[4000]:.4f} of 4,000")  # fmt: skip


# --- decoding ------------------------------------------------------------------------------------


def _parameters() -> tuple[list[dict[str, Any]], Any, Any, Any]:
    layers = [
        {
            "g1": np.ones(WIDTH, np.float32), "b1": _weights((WIDTH,)),
            "qkv": _weights((WIDTH, 3 * WIDTH)), "proj": _weights((WIDTH, WIDTH)),
            "g2": np.ones(WIDTH, np.float32), "b2": _weights((WIDTH,)),
            "up": _weights((WIDTH, 4 * WIDTH)), "down": _weights((4 * WIDTH, WIDTH)),
        }
        for _ in range(LAYERS)
    ]  # fmt: skip
    return (
        layers,
        _weights((VOCABULARY, WIDTH)),
        _weights((1024, WIDTH)),
        _weights((WIDTH, VOCABULARY)),
    )


def _growing(ops: Any, p: Any, token: Any, place: Any, caches: Any) -> Any:
    """Logits and longer caches, by functions that both libraries have."""
    layers, tokens, places, head = p
    z, longer = tokens[token] + places[place], []
    n = z.shape[0]
    for q, (keys, values) in zip(layers, caches, strict=True):
        h = (ops.norm(z, q["g1"], q["b1"]) @ q["qkv"]).reshape(n, 3, HEADS, WIDTH // HEADS)
        query, key, value = [h[:, i].permute(1, 0, 2) for i in range(3)]
        if keys is not None:
            key, value = ops.concat([keys, key]), ops.concat([values, value])
        longer.append((key, value))
        scores = query @ key.permute(0, 2, 1) * (WIDTH // HEADS) ** -0.5
        if n > 1:
            scores = ops.causal(scores, n)
        seen = ops.softmax(scores) @ value
        z = z + seen.permute(1, 0, 2).reshape(n, WIDTH) @ q["proj"]
        z = z + ops.gelu(ops.norm(z, q["g2"], q["b2"]) @ q["up"]) @ q["down"]
    return z[-1:] @ head, longer


class Ours:
    """The functions of the loop, by us."""

    def __init__(self) -> None:
        import fulgurite as fg

        self.fg = fg

    def norm(self, x: Any, gain: Any, bias: Any) -> Any:
        return self.fg.layer_norm(x, (WIDTH,), gain, bias)

    def concat(self, parts: Any) -> Any:
        return self.fg.concat(parts, axis=1)

    def causal(self, scores: Any, n: int) -> Any:
        place = self.fg.arange(n)
        return self.fg.where(place[:, None] >= place[None, :], scores, -self.fg.inf)

    def softmax(self, x: Any) -> Any:
        return self.fg.softmax(x, axis=-1)

    def gelu(self, x: Any) -> Any:
        return self.fg.gelu(x, approximate="tanh")


def _looped(step: Any, take: Any, tokens: int, compiled: Callable[[], int]) -> dict[str, Any]:
    """The loop: CPU time of a token, and the tokens after which nothing was compiled."""
    caches: Any = [(None, None)] * LAYERS
    logits, caches = step(np.arange(PROMPT) % VOCABULARY, np.arange(PROMPT), caches)
    token, times, last = int(take(logits, caches)), [], 0
    for i in range(tokens):
        before, begin = compiled(), time.process_time()
        logits, caches = step(np.array([token]), np.array([PROMPT + i]), caches)
        token = int(take(logits, caches))
        times.append(time.process_time() - begin)
        last = i + 1 if compiled() > before else last
    return {"ms": float(np.median(times[8:])) * 1e3, "mean": float(np.mean(times[8:])) * 1e3,
            "last": last, "token": token}  # fmt: skip


def decoding(tokens: int, peers: str) -> None:
    """Growing caches, plain and jitted, beside one of fixed size and torch eager."""
    import fulgurite as fg

    layers, *rest = _parameters()
    p = ([{k: fg.Tensor(v) for k, v in q.items()} for q in layers], *map(fg.Tensor, rest))
    ops = Ours()

    def plain(token: Any, place: Any, caches: Any) -> Any:
        return _growing(ops, p, token, place, caches)

    def step(function: Any) -> Any:
        def run(token: Any, place: Any, caches: Any) -> Any:
            where = [fg.Tensor(a.astype(np.int32)) for a in (token, place)]
            return function(*where, caches)

        return run

    def take(logits: Any, caches: Any) -> int:
        fg.realize(logits, *[x for pair in caches for x in pair])
        return int(np.argmax(logits.numpy()[0]))

    def compiled() -> int:
        return int(fg.cache_stats()["schedule"]["misses"])

    hand = _fixed_cache(fg, p, tokens)
    print(f"decoding, {LAYERS} layers of {WIDTH}, {tokens} tokens after {PROMPT}:")
    print(f"  fixed cache, jit by hand: {hand:.2f} ms a token")
    for name, function in (("growing cache, plain", plain), ("growing cache, jit", fg.jit(plain))):
        found = _looped(step(function), take, tokens, compiled)
        print(f"  {name}: {found['ms']:.2f} ms a token ({found['ms'] / hand:.2f}), compiles "
              f"within the first {found['last']} tokens")  # fmt: skip
    if peers:
        command = [peers, __file__, "--torch", str(tokens)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"  torch eager: failed\n{done.stderr[-500:]}")
        else:
            print(f"  torch eager: {json.loads(done.stdout.splitlines()[-1])['ms']:.2f} ms a token")


def _fixed_cache(fg: Any, p: Any, tokens: int) -> float:
    """The hand-written loop: rows of a cache of fixed size, at a place that is a variable."""
    layers, table, places, head = p
    length = PROMPT + tokens
    caches = [fg.Tensor(np.zeros((2, HEADS, length, WIDTH // HEADS), np.float32)) for _ in layers]
    at = fg.Var("at", 0, length - 1)

    def run(token: Any, place: Any) -> Any:
        z, mask = table[token] + places[place], fg.arange(length) <= place
        for q, cache in zip(layers, caches, strict=True):
            h = fg.layer_norm(z, (WIDTH,), q["g1"], q["b1"]) @ q["qkv"]
            query, key, value = fg.unstack(h.reshape(3, HEADS, -1))
            cache[0, :, place], cache[1, :, place] = key, value
            seen = fg.scaled_dot_product_attention(
                query[:, None], cache[0], cache[1], attn_mask=mask
            )
            z = z + seen.reshape(WIDTH) @ q["proj"]
            h = fg.layer_norm(z, (WIDTH,), q["g2"], q["b2"]) @ q["up"]
            z = z + fg.gelu(h, approximate="tanh") @ q["down"]
        return z @ head

    step, times = fg.jit(run), []
    for i in range(length):
        begin = time.process_time()
        step(fg.Tensor(np.array(3, np.int32)), at.bind(i)).numpy()
        times.append(time.process_time() - begin)
    return float(np.median(times[8:])) * 1e3


def by_torch(tokens: int) -> None:
    """The same loop by torch eager, as JSON."""
    import torch

    class Theirs:
        norm = staticmethod(lambda x, g, b: torch.nn.functional.layer_norm(x, (WIDTH,), g, b))
        concat = staticmethod(lambda parts: torch.cat(parts, dim=1))
        softmax = staticmethod(lambda x: torch.softmax(x, dim=-1))
        gelu = staticmethod(lambda x: torch.nn.functional.gelu(x, approximate="tanh"))

        @staticmethod
        def causal(scores: Any, n: int) -> Any:
            return scores.masked_fill(~torch.tril(torch.ones(n, n, dtype=torch.bool)), -torch.inf)

    layers, *rest = _parameters()
    p = ([{k: torch.from_numpy(v) for k, v in q.items()} for q in layers],
         *map(torch.from_numpy, rest))  # fmt: skip

    def step(token: Any, place: Any, caches: Any) -> Any:
        where = torch.from_numpy(token), torch.from_numpy(place)
        return _growing(Theirs, p, *where, caches)

    with torch.no_grad():
        found = _looped(step, lambda y, _: int(y[0].argmax()), tokens, lambda: 0)
    print(json.dumps(found))


def main() -> None:
    """Every work, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="", help="a Python that has torch")
    parser.add_argument("--quick", action="store_true", help="few lengths and tokens")
    parser.add_argument("--torch", type=int, default=0, help="only torch's loop, of so many tokens")
    options = parser.parse_args()
    if options.torch:
        by_torch(options.torch)
        return
    attention(20 if options.quick else 200)
    decoding(32 if options.quick else TOKENS, options.peers)


if __name__ == "__main__":
    main()
