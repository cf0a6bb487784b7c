"""Sizes that change: one plan for all lengths, beside plans for each and torch eager.

Run `python bench/dynamic.py [--quick] [--only attention|decoding]`. Two works: a jitted attention
block over 200 random lengths from 2 to 4,000 (how often it compiles, its time at each length over
that of a plan for the length alone); a decoding loop whose cache grows by `concat`, plain and under
`fg.jit`, beside a jitted loop over a cache of fixed size and, with a Python that has it, the same
by torch eager. All loops of the second take turns, token by token. Times are CPU time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench.harness import best

LAYERS, WIDTH, HEADS, VOCABULARY = 8, 512, 8, 97
PROMPT, TOKENS = 32, 256
RNG = np.random.default_rng(0)


def _cpu(run: Callable[[], object], times: int) -> float:
    """The least CPU time of some runs, in ms."""
    return best(run, rounds=times) / 1e3


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


class Loop:
    """A decoding loop, token by token: CPU times, and when it last compiled."""

    def __init__(self, step: Callable[[int, int], int], compiled: Callable[[], int]) -> None:
        self.step, self.compiled = step, compiled
        self.token, self.last, self.times = 3, 0, list[float]()

    def advance(self, number: int) -> None:
        """One token more."""
        before, begin = self.compiled(), time.process_time()
        self.token = self.step(self.token, PROMPT + number)
        self.times.append(time.process_time() - begin)
        if self.compiled() > before:
            self.last = number + 1

    @property
    def ms(self) -> float:
        """CPU time of a token, when all is compiled; half of them took less."""
        return float(np.median(self.times[8:])) * 1e3

    @property
    def mean(self) -> float:
        """The same with whatever happens now and then, as the collection of garbage."""
        return float(np.mean(self.times[8:])) * 1e3


def _our_loop(p: Any, ops: Any, is_jitted: bool) -> Loop:
    """A cache that grows by `concat`, after its prompt."""
    import fulgurite as fg

    def plain(token: Any, place: Any, caches: Any) -> Any:
        return _growing(ops, p, token, place, caches)

    run: Any = fg.jit(plain) if is_jitted else plain
    caches: Any = [(None, None)] * LAYERS

    def given(numbers: Any, places: Any) -> int:
        nonlocal caches
        where = [fg.Tensor(np.array(a, np.int32)) for a in (numbers, places)]
        logits, caches = run(*where, caches)
        fg.realize(logits, *[x for pair in caches for x in pair])
        return int(np.argmax(logits.numpy()[0]))

    given(np.arange(PROMPT) % VOCABULARY, np.arange(PROMPT))
    return Loop(
        lambda token, place: given([token], [place]),
        lambda: int(fg.cache_stats()["schedule"]["misses"]),
    )


def _fixed_cache(p: Any, tokens: int) -> Loop:
    """The hand-written loop: rows of a cache of fixed size, at a place that is a variable."""
    import fulgurite as fg

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

    step = fg.jit(run)

    def advance(token: int, place: int) -> int:
        logits = step(fg.Tensor(np.array(token, np.int32)), at.bind(place)).numpy()
        return int(np.argmax(logits))

    return Loop(advance, lambda: int(fg.cache_stats()["schedule"]["misses"]))


def _torch_loop(layers: Any, rest: Any) -> Loop:
    """The growing cache by torch eager."""
    import torch

    torch.set_num_threads(int(os.environ.get("FULGURITE_THREADS", "1")))

    class Theirs:
        norm = staticmethod(lambda x, g, b: torch.nn.functional.layer_norm(x, (WIDTH,), g, b))
        concat = staticmethod(lambda parts: torch.cat(parts, dim=1))
        softmax = staticmethod(lambda x: torch.softmax(x, dim=-1))
        gelu = staticmethod(lambda x: torch.nn.functional.gelu(x, approximate="tanh"))

        @staticmethod
        def causal(scores: Any, n: int) -> Any:
            return scores.masked_fill(~torch.tril(torch.ones(n, n, dtype=torch.bool)), -torch.inf)

    p = ([{k: torch.from_numpy(v) for k, v in q.items()} for q in layers],
         *map(torch.from_numpy, rest))  # fmt: skip
    caches: Any = [(None, None)] * LAYERS

    def given(numbers: Any, places: Any) -> int:
        nonlocal caches
        where = torch.from_numpy(np.array(numbers)), torch.from_numpy(np.array(places))
        with torch.no_grad():
            logits, caches = _growing(Theirs, p, *where, caches)
        return int(logits[0].argmax())

    given(np.arange(PROMPT) % VOCABULARY, np.arange(PROMPT))
    return Loop(lambda token, place: given([token], [place]), lambda: 0)


def decoding(tokens: int) -> None:
    """Growing caches, plain and jitted, beside one of fixed size and torch eager: in turn."""
    import fulgurite as fg

    layers, *rest = _parameters()
    p = ([{k: fg.Tensor(v) for k, v in q.items()} for q in layers], *map(fg.Tensor, rest))
    ops = Ours()
    loops = {
        "fixed cache, jit by hand": _fixed_cache(p, tokens),
        "growing cache, plain": _our_loop(p, ops, False),
        "growing cache, jit": _our_loop(p, ops, True),
    }
    if importlib.util.find_spec("torch") is not None:
        loops["growing cache, torch eager"] = _torch_loop(layers, rest)
    for number in range(tokens):
        for loop in loops.values():
            loop.advance(number)
    print(f"decoding, {LAYERS} layers of {WIDTH}, {tokens} tokens after {PROMPT}, in turn:")
    hand = loops["fixed cache, jit by hand"]
    for name, loop in loops.items():
        print(f"  {name}: {loop.ms:.2f} ms a token ({loop.ms / hand.ms:.2f}), with all pauses "
              f"{loop.mean:.2f} ({loop.mean / hand.mean:.2f}); compiles within the first "
              f"{loop.last} tokens")  # fmt: skip


def main() -> None:
    """Every work, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few lengths and tokens")
    parser.add_argument("--only", choices=["attention", "decoding"])
    options = parser.parse_args()
    if options.only != "decoding":
        attention(20 if options.quick else 200)
    if options.only != "attention":
        decoding(32 if options.quick else TOKENS)


if __name__ == "__main__":
    main()
