"""Kernels of networks, as the GPU's own passes make them: `-m tests.codegen.cuda.networks NAME`.

The fake GPU runs a small network and the gradients of its weights; every kernel of these plans is
also rendered, run in Triton's interpreter on the same memory, and compared. The corpus has kernels
of the reference device's plans: no channels last, no joined kernels, no sums split for a GPU.
Prints what was counted, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ |= {"FULGURITE_DEVICE": "cuda", "FULGURITE_DISK_CACHE": "0"}
os.environ["FULGURITE_SHADOW"] = "interpret"

import numpy as np

import fulgurite as fg
from fulgurite import nn
from fulgurite.codegen.cuda import tiling
from fulgurite.codegen.cuda.tiling import HOPPER, in_plain_triton
from tests.codegen.cuda import shadow
from tests.runtime.cuda import fake

LIMITS = {"float32": 1e-4, "bfloat16": 3e-2}  # of the largest number: a wrong address is far off
RUNS = ["float32"]  # the dtype of products in the run at hand, last
Network = tuple[list[nn.Module], Callable[[fg.Tensor], fg.Tensor], tuple[int, ...]]


def residual() -> Network:
    """Two blocks of a ResNet: K of 576 in shares, a strided shortcut, batch norm, pools."""
    stem, norm = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
    first, second = (nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
    down, across = nn.Conv2d(64, 32, 3, stride=2, padding=1), nn.Conv2d(64, 32, 1, stride=2)
    head, norms = nn.Linear(32, 5), [nn.BatchNorm2d(64), nn.BatchNorm2d(64)]

    def forward(x: fg.Tensor) -> fg.Tensor:
        x = fg.max_pool2d(fg.relu(norm(stem(x))), 3, 2, 1)
        x = fg.relu(norms[1](second(fg.relu(norms[0](first(x))))) + x)
        x = fg.relu(down(x) + across(x))
        return head(x.mean(axis=(2, 3)))

    return [stem, norm, first, second, down, across, head, *norms], forward, (2, 3, 32, 32)


def inverted() -> Network:
    """A block of a MobileNet: pointwise, depthwise and strided, squeezed and excited."""
    wide, deep = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 24, 5, stride=2, padding=2, groups=24)
    less, more, out = nn.Conv2d(24, 4, 1), nn.Conv2d(4, 24, 1), nn.Conv2d(24, 8, 1)
    norm = nn.BatchNorm2d(24)

    def forward(x: fg.Tensor) -> fg.Tensor:
        x = norm(deep(fg.hardswish(wide(x))))
        weights = fg.hardsigmoid(more(fg.relu(less(x.mean(axis=(2, 3), keepdims=True)))))
        return out(x * weights).mean(axis=(2, 3))

    return [wide, deep, less, more, out, norm], forward, (2, 8, 7, 6)


def pyramid() -> Network:
    """A step down and up of a U-Net: a transposed convolution, a concatenation, group norm."""
    down, inner = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    up, last = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(19, 4, 3, padding=1)
    norm = nn.GroupNorm(4, 32)

    def forward(x: fg.Tensor) -> fg.Tensor:
        h = fg.silu(norm(inner(fg.gelu(down(x)))))
        return last(fg.concat([x, up(h)], axis=1)).mean(axis=(2, 3))

    return [down, inner, up, last, norm], forward, (2, 3, 12, 10)


def encoder() -> Network:
    """A block of a transformer: heads of 16, layer norm, GELU."""
    first, second = nn.LayerNorm(32), nn.LayerNorm(32)
    qkv, out, wide, narrow = (nn.Linear(*n) for n in ((32, 96), (32, 32), (32, 64), (64, 32)))

    def forward(x: fg.Tensor) -> fg.Tensor:
        parts = fg.moveaxis(qkv(first(x)).reshape(3, 21, 3, 2, 16), 2, 0)
        q, k, v = (fg.swapaxes(part, 1, 2) for part in (parts[0], parts[1], parts[2]))
        n = fg.arange(21)
        scores = fg.where(n[:, None] >= n, q @ k.mT / 4, -float("inf"))
        y = fg.swapaxes(fg.softmax(scores, axis=-1) @ v, 1, 2).reshape(3, 21, 32)
        x = x + out(y)
        return (x + narrow(fg.gelu(wide(second(x)), approximate="tanh"))).mean(axis=1)

    return [first, second, qkv, out, wide, narrow], forward, (3, 21, 32)


def decoder() -> Network:
    """Heads of 16 behind one projection, whose gradient is joined; long rows of a loss."""
    qkv, out, head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 1031)

    def forward(x: fg.Tensor) -> fg.Tensor:
        parts = qkv(x).reshape(2, 71, 3, 2, 16)
        q, k, v = fg.unstack(parts.permute(2, 0, 3, 1, 4))
        seen = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
        logits = head(out(seen.permute(0, 2, 1, 3).reshape(2, 71, 32)))
        places = fg.arange(142) * 7 % 1031
        return fg.cross_entropy(logits.reshape(142, 1031), places, reduction="none")

    return [qkv, out, head], forward, (2, 71, 32)


def token() -> Network:
    """One row through a decoder's layer: statistics beside products of one row."""
    first, last = nn.LayerNorm(40), nn.RMSNorm(40)
    wide, narrow, head = nn.Linear(40, 160), nn.Linear(160, 40), nn.Linear(40, 203)

    def forward(x: fg.Tensor) -> fg.Tensor:
        x = x + narrow(fg.gelu(wide(first(x)), approximate="tanh"))
        return head(last(x))

    return [first, last, wide, narrow, head], forward, (1, 40)


NETWORKS = {f.__name__: f for f in (residual, inverted, pyramid, encoder, decoder, token)}


def alike(got: Any, want: Any, before: Any) -> bool:
    """True if results differ by rounding alone: sums about a mean cancel, and rounded ones differ
    by a unit of 16 bits."""
    a, b = (np.asarray(x).astype(np.float64) for x in (got, want))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
    within = 0.0 if want.dtype.kind in "biu" else LIMITS[RUNS[-1]] * largest
    return bool(np.all((a == b) | (np.abs(a - b) <= within) | np.isnan(b)))


def run(name: str, dtype: str) -> None:
    """The results in evaluation, then the gradients of all weights in training."""
    RUNS.append(dtype)
    fg.random.seed(0)
    parts, forward, shape = NETWORKS[name]()
    rng = np.random.default_rng(0)
    x = fg.Tensor(rng.standard_normal(shape).astype(np.float32))
    for part in parts:
        part.eval()
    with fg.autocast("bfloat16", enabled=dtype == "bfloat16"):
        forward(x).realize()
        for part in parts:
            part.train()
        loss = (forward(x).astype("float32") ** 2).sum()
    loss.backward()
    weights = [w for part in parts for w in part.parameters()]
    grads: list[Any] = [w.grad for w in weights if w.grad is not None]
    fg.realize(loss, *grads)
    assert all(np.isfinite(g.numpy()).all() for g in grads)


def main() -> None:
    """One network with float32 (or bfloat16: its name ends so), or all of them with both."""
    warnings.simplefilter("ignore")
    tiling.HOPPER = replace(HOPPER, joined_row_products=True, narrow_tanh=True)
    shadow.LARGEST, shadow.TABLE = 1 << 17, in_plain_triton(tiling.HOPPER)
    plugin: Any = shadow
    plugin.same_value = alike
    shadow.pytest_configure(None)
    fake.install()
    if sys.argv[1] == "all":
        for name in NETWORKS:
            run(name, "float32")
            run(name, "bfloat16")
    else:
        name, _, dtype = sys.argv[1].partition(":")
        run(name, dtype or "float32")
    print(json.dumps({"counts": shadow.counts, "bad": shadow.bad}))


if __name__ == "__main__":
    main()
