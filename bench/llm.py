"""Decoding and prefill of a Llama of 1.1 billion parameters, random weights of several types.

Run `python bench/llm.py [--layers N] [--types Q4_K,Q8_0,BF16] [--tokens N]`. Files are made in the
folder of temporary files. Printed are tokens a second, beside what the memory would allow: bytes of
weights that a token reads over the bandwidth that a product of one row with a large float32 matrix
reaches here, measured in the same run. `--peers SITE-PACKAGES` has llama.cpp (`llama_cpp`) and, if
it is there, torch eager (the same layers in bfloat16) beside ours in one process, taking turns, in
processor time and wall time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import ml_dtypes
import numpy as np

WIDTH, HIDDEN, HEADS, KV_HEADS, VOCABULARY = 2048, 5632, 32, 4, 32000
SIZE = WIDTH // HEADS


def weights(shape: tuple[int, ...], kind: str, random: np.random.Generator) -> Any:
    """Random weights of a type: numbers of the format that are as large as trained ones."""
    from fulgurite.io.quants import QUANTS
    from fulgurite.models.quantize import NUMBERS, packed

    if kind == "BF16":
        some = random.standard_normal(1 << 20).astype(np.float32) / WIDTH**0.5
        count = int(np.prod(shape))
        return 30, shape, np.resize(some.astype(ml_dtypes.bfloat16), count).reshape(shape)
    quant = QUANTS[NUMBERS[kind]]
    some = random.standard_normal((256, shape[-1])).astype(np.float32) / WIDTH**0.5
    rows = np.resize(packed(some, kind), (shape[0], shape[-1] // quant.count, quant.bytes))
    return NUMBERS[kind], shape, rows


def made(kind: str, layers: int) -> Path:
    """A GGUF file of the shape."""
    from fulgurite.models.gguf import save_gguf

    path = Path(tempfile.gettempdir()) / f"fulgurite-bench-{kind}-{layers}.gguf"
    if path.exists():
        return path
    random, norm = np.random.default_rng(0), np.ones(WIDTH, np.float32)
    shared = KV_HEADS * SIZE
    tensors: dict[str, Any] = {"token_embd.weight": weights((VOCABULARY, WIDTH), kind, random)}
    for n in range(layers):
        for name, shape in {
            "attn_q": (WIDTH, WIDTH), "attn_k": (shared, WIDTH), "attn_v": (shared, WIDTH),
            "attn_output": (WIDTH, WIDTH), "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }.items():  # fmt: skip
            tensors[f"blk.{n}.{name}.weight"] = weights(shape, kind, random)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{n}.{name}.weight"] = (0, norm.shape, norm)
    tensors["output_norm.weight"] = (0, norm.shape, norm)
    tensors["output.weight"] = weights((VOCABULARY, WIDTH), kind, random)
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{n:02X}>" for n in range(256)]]
    tokens += [f"▁w{n}" for n in range(VOCABULARY - len(tokens))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)]
    metadata = {
        "general.architecture": "llama", "llama.block_count": layers,
        "llama.context_length": 4096, "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS, "llama.rope.dimension_count": SIZE,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": VOCABULARY, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(n) for n in range(VOCABULARY)],
        "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    save_gguf(path, metadata, tensors)
    return path


def best(run: Callable[[], object], times: int) -> float:
    """The least time of some runs."""
    found = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        found = min(found, time.perf_counter() - start)
    return found


def bandwidth() -> float:
    """Bytes a second that a product of one row with a matrix of half a gigabyte reads."""
    import fulgurite as fg

    w, x = fg.Tensor(np.ones((1 << 16, 2048), np.float32)), fg.ones((1, 2048))
    run = fg.jit(lambda x, w: x @ w.T)
    run(x, w).numpy()
    return (1 << 29) / best(lambda: run(x, w).numpy(), 5)


def resident() -> int:
    """Bytes of this process that are in memory, files included."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ours(path: Path, tokens: int, prompt: int) -> None:
    """Time our own."""
    from fulgurite.models import Batch, load

    start = time.perf_counter()
    model = load(path)
    batch = Batch(model)
    batch.prefill(0, [1, 5, 7])
    first = time.perf_counter() - start
    batch.step({0: 9})
    step = best(lambda: batch.step({0: 9}), tokens)
    batch.release(0)
    ids = [3 + n % 1000 for n in range(prompt)]
    batch.prefill(0, ids)
    batch.release(0)
    read = best(lambda: (batch.prefill(0, ids), batch.release(0)), 2) if prompt else 1
    read_bytes = [m for w in model.decoder.layers for m in w.values() if hasattr(m, "quant")]
    total = sum(
        m.data.size * m.data.dtype.itemsize for m in (*read_bytes, model.decoder.top["head"])
    )
    held = resident()  # before the large matrix
    limit = bandwidth() / total
    print(f"{path.stem:34} first token {first:6.2f} s   decode {1 / step:7.2f}/s, memory allows "
          f"{limit:7.2f}/s ({limit * step:4.2f} of it)   prefill {prompt / read:7.1f}/s   "
          f"resident {held / 2**20:.0f} MiB, file {path.stat().st_size / 2**20:.0f} MiB",
          flush=True)  # fmt: skip


def least(runs: list[Callable[[], object]], times: int) -> list[tuple[float, float]]:
    """The least processor time and the least time of some runs, which take turns."""
    found = [(float("inf"), float("inf"))] * len(runs)
    for _ in range(times):
        for place, run in enumerate(runs):
            cpu, start = time.process_time(), time.perf_counter()
            run()
            wall = time.perf_counter() - start
            found[place] = (
                min(found[place][0], time.process_time() - cpu),
                min(found[place][1], wall),
            )
    return found


class Eager:
    """The same layers by torch eager, in bfloat16, with a cache that grows."""

    def __init__(self, layers: int, threads: int) -> None:
        import torch

        self.torch, self.layers = torch, layers
        torch.set_num_threads(threads)
        sides = {"q": (WIDTH, WIDTH), "k": (KV_HEADS * SIZE, WIDTH), "v": (KV_HEADS * SIZE, WIDTH),
                 "o": (WIDTH, WIDTH), "gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH),
                 "down": (WIDTH, HIDDEN)}  # fmt: skip
        self.w = [{k: self.matrix(*side) for k, side in sides.items()} for _ in range(layers)]
        self.table, self.head = self.matrix(VOCABULARY, WIDTH), self.matrix(VOCABULARY, WIDTH)
        self.norm = torch.ones(WIDTH, dtype=torch.bfloat16)
        turns = 10000.0 ** (-torch.arange(0, SIZE, 2) / SIZE)
        self.angles = torch.arange(2048)[:, None] * turns.repeat(2)
        self.reset()

    def matrix(self, rows: int, columns: int) -> Any:
        return self.torch.randn(rows, columns, dtype=self.torch.bfloat16) / columns**0.5

    def reset(self) -> None:
        """An empty cache."""
        self.cache: list[Any] = [None] * self.layers

    def turned(self, x: Any, start: int) -> Any:
        """Rotary positions."""
        angles = self.angles[start : start + x.shape[1]]
        left, right = x.chunk(2, -1)
        turned = x * angles.cos() + self.torch.cat((-right, left), -1) * angles.sin()
        return turned.to(self.torch.bfloat16)

    def eval(self, ids: list[int]) -> Any:
        """Logits of the last token."""
        torch, f = self.torch, self.torch.nn.functional
        with torch.no_grad():
            x = self.table[torch.tensor(ids)]
            for n, w in enumerate(self.w):
                h = f.rms_norm(x, (WIDTH,), self.norm)
                q, k, v = [f.linear(h, w[c]).unflatten(-1, (-1, SIZE)).transpose(0, 1)
                           for c in "qkv"]  # fmt: skip
                start = 0 if self.cache[n] is None else self.cache[n][0].shape[1]
                q, k = self.turned(q, start), self.turned(k, start)
                if start:
                    k, v = [torch.cat(both, 1) for both in zip(self.cache[n], (k, v), strict=True)]
                self.cache[n] = k, v
                seen = f.scaled_dot_product_attention(
                    q[None], k[None], v[None], is_causal=len(ids) > 1, enable_gqa=True
                )
                x = x + f.linear(seen[0].transpose(0, 1).flatten(1), w["o"])
                h = f.rms_norm(x, (WIDTH,), self.norm)
                h = f.silu(f.linear(h, w["gate"])) * f.linear(h, w["up"])
                x = x + f.linear(h, w["down"])
            return f.linear(f.rms_norm(x[-1:], (WIDTH,), self.norm), self.head).float()


def beside(path: Path, layers: int, tokens: int, prompt: int, peers: str) -> None:
    """Ours and others in one process, taking turns; `peers` is the folder of their packages."""
    sys.path.append(peers)
    import llama_cpp

    from fulgurite.models import Batch, load

    threads = int(os.environ.get("FULGURITE_THREADS", "0")) or len(os.sched_getaffinity(0))
    model = llama_cpp.Llama(
        str(path), n_ctx=1024, n_batch=512, n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip
    batches = [Batch(load(path, activation_bytes=count)) for count in (3, 1)]
    ids = [3 + n % 1000 for n in range(prompt)]
    for batch in batches:
        batch.prefill(0, [1, 5, 7])
        batch.step({0: 9})
        batch.step({0: 9})
    model.eval([1, 5, 7])
    names = ["3 bytes", "1 byte", "llama.cpp"]
    steps: list[Callable[[], object]] = [
        *[lambda b=b: b.step({0: 9}) for b in batches],
        lambda: model.eval([9]),
    ]

    def read(batch: Any) -> None:
        batch.release(0)
        batch.prefill(0, ids)

    reads: list[Callable[[], object]] = [
        *[lambda b=b: read(b) for b in batches],
        lambda: (model.reset(), model.eval(ids)),
    ]
    if importlib.util.find_spec("torch") is not None:
        eager = Eager(layers, threads)
        eager.eval([1, 5, 7])
        names.append("torch bf16")
        steps.append(lambda: eager.eval([9]))
        reads.append(lambda: (eager.reset(), eager.eval(ids)))
    for what, runs, times in (("decode", steps, tokens), (f"prefill {prompt}", reads, 2)):
        if what == "decode" or prompt:
            least(runs, 1)
            found = least(runs, times)
            for name, (cpu, wall) in zip(names, found, strict=True):
                print(f"{path.stem:30} {threads} threads {what:12} {name:10} processor "
                      f"{cpu * 1e3:8.1f} ms, wall {wall * 1e3:8.1f} ms; llama.cpp's is "
                      f"{found[2][0] / cpu:4.2f} and {found[2][1] / wall:4.2f} of it",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--types", default="Q4_K,Q8_0,BF16")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--peers", help="site-packages with llama_cpp: both, taking turns")
    options = parser.parse_args()
    for kind in options.types.split(","):
        path = made(kind, options.layers)
        if options.peers:
            beside(path, options.layers, options.tokens, options.prompt, options.peers)
        else:
            ours(path, options.tokens, options.prompt)
