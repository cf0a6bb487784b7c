"""Training steps of whole networks beside the peers: the GPT of `bench/models.py`, and ResNet-18.

In: the name of a work and of a system. Out: a call that does one step (forward, backward, update)
and gives its number and its loss. GPT learns by AdamW, ResNet-18 (32 x 32 images, batch norms of
the batch) by SGD with momentum; each system uses its own optimiser and its own best functions. The
first loss is compared with NumPy's forward pass in float64; later ones must be finite and below it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.harness import Work
from bench.models import GPT, Array, Params
from bench.systems import numpy_ops, our_ops, tinygrad_ops

Call = Callable[[], tuple[int, Any]]
WIDTHS, SIDE, BATCH, CLASSES = (64, 64, 128, 256, 512), 32, 8, 10
TITLES = {
    "gpt step": "GPT 4x256, 4 heads, length 128, batch 4: AdamW step",
    "resnet step": f"ResNet-18, {SIDE} x {SIDE}, batch {BATCH}: SGD step",
}


def resnet_params() -> dict[str, Array]:
    """ResNet-18's parameters, drawn from a seed."""
    random = np.random.default_rng(0)
    found: dict[str, Array] = {}

    def conv(name: str, inner: int, outer: int, size: int) -> None:
        scale = np.float32((2 / (inner * size * size)) ** 0.5)
        found[name] = random.standard_normal((outer, inner, size, size), np.float32) * scale
        found[f"{name}.gain"] = np.ones(outer, np.float32)
        found[f"{name}.bias"] = np.zeros(outer, np.float32)

    conv("first", 3, WIDTHS[0], 3)
    for layer in range(1, 5):
        inner, outer = WIDTHS[layer - 1], WIDTHS[layer]
        for block in range(2):
            conv(f"{layer}.{block}.1", inner if block == 0 else outer, outer, 3)
            conv(f"{layer}.{block}.2", outer, outer, 3)
        if inner != outer:
            conv(f"{layer}.down", inner, outer, 1)
    found["fc"] = random.standard_normal((WIDTHS[-1], CLASSES), np.float32) * np.float32(0.05)
    found["fc_bias"] = np.zeros(CLASSES, np.float32)
    return found


def resnet_loss(o: SimpleNamespace, p: Params, x: Any, y: Any) -> Any:
    """The mean surprise of ResNet-18 at the labels."""

    def part(h: Any, name: str, stride: int) -> Any:
        return o.norm(o.strided(h, p[name], stride), p[f"{name}.gain"], p[f"{name}.bias"])

    h = o.relu(part(x, "first", 1))
    for layer in range(1, 5):
        for block in range(2):
            stride = 2 if block == 0 and layer > 1 else 1
            same = part(h, f"{layer}.down", 2) if stride == 2 else h
            inner = o.relu(part(h, f"{layer}.{block}.1", stride))
            h = o.relu(part(inner, f"{layer}.{block}.2", 1) + same)
    return o.cross_entropy(o.pooled(h) @ p["fc"] + p["fc_bias"], y)


def inputs(work: str) -> tuple[dict[str, Array], Array, Array]:
    """Parameters, a batch and its labels."""
    if work == "gpt step":
        return GPT().initial(), *GPT().tokens()
    random = np.random.default_rng(1)
    images = random.standard_normal((BATCH, 3, SIDE, SIDE), np.float32)
    return resnet_params(), images, random.integers(0, CLASSES, BATCH).astype(np.int32)


def loss_of(work: str) -> Callable[..., Any]:
    """The loss of a work, as a function of (functions, parameters, batch, labels)."""
    return GPT().loss if work == "gpt step" else resnet_loss


def written_norm(x: Any, gain: Any, bias: Any) -> Any:
    """Batch norm over the batch itself, written out."""
    mean = x.mean((0, 2, 3)).reshape(1, -1, 1, 1)
    spread = ((x - mean) * (x - mean)).mean((0, 2, 3)).reshape(1, -1, 1, 1)
    return (x - mean) / (spread + 1e-5) ** 0.5 * gain.reshape(1, -1, 1, 1) + bias.reshape(
        1, -1, 1, 1
    )


def first_loss(work: str) -> float:
    """The loss before any step, by NumPy in float64."""
    ops = numpy_ops()

    def strided(x: Array, kernel: Array, stride: int) -> Any:
        size = kernel.shape[-1]
        edge = size // 2
        padded = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))
        windows = windows[:, :, ::stride, ::stride]
        return np.tensordot(windows, kernel, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)

    def cross_entropy(logits: Array, y: Array) -> Any:
        shifted = logits - logits.max(-1, keepdims=True)
        chances = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return -chances[np.arange(len(y)), y].mean()

    ops.strided, ops.cross_entropy, ops.norm = strided, cross_entropy, written_norm
    ops.pooled = lambda h: h.mean((2, 3))
    p, x, y = inputs(work)
    wide = {name: array.astype(np.float64) for name, array in p.items()}
    return float(loss_of(work)(ops, wide, x.astype(np.float64) if x.dtype.kind == "f" else x, y))


def our_call(work: str, jitted: bool = True) -> Call:
    """Ours: `fg.optim`, captured by `fg.jit`."""
    os.environ["FULGURITE_DEVICE"] = "cpu"
    import fulgurite as fg

    ops = our_ops()
    ops.strided = lambda x, k, stride: fg.conv2d(x, k, stride=stride, padding=k.shape[-1] // 2)
    ops.pooled = lambda h: h.mean((2, 3))
    ops.norm = written_norm
    arrays, batch, labels = inputs(work)
    p = {name: fg.Tensor(array, requires_grad=True) for name, array in arrays.items()}
    x, y, loss, count = fg.Tensor(batch), fg.Tensor(labels), loss_of(work), 0
    optimizer: fg.optim.Optimizer = (
        fg.optim.AdamW(p.values(), lr=3e-4)
        if work == "gpt step"
        else fg.optim.SGD(p.values(), lr=0.01, momentum=0.9)
    )

    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        value: fg.Tensor = loss(ops, p, x, y)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    run = fg.jit(step) if jitted else step

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        return count, run(x, y)

    return call


def torch_call(work: str, compiled: bool = False) -> Call:
    """torch with its fused optimisers; compiled: the model's loss."""
    import torch
    import torch.nn.functional as F

    from bench.systems import torch_system

    ops = torch_system().ops
    ops.cross_entropy = lambda a, b: F.cross_entropy(a, b.long())
    ops.strided = lambda x, k, stride: F.conv2d(x, k, stride=stride, padding=k.shape[-1] // 2)
    ops.norm = lambda x, gain, bias: F.batch_norm(x, None, None, gain, bias, training=True)
    ops.pooled = lambda h: h.mean((2, 3))
    arrays, batch, labels = inputs(work)
    p = {n: torch.from_numpy(a.copy()).requires_grad_() for n, a in arrays.items()}
    x, y, loss, count = torch.from_numpy(batch), torch.from_numpy(labels), loss_of(work), 0
    optimizer = (
        torch.optim.AdamW(list(p.values()), lr=3e-4, fused=True)
        if work == "gpt step"
        else torch.optim.SGD(list(p.values()), lr=0.01, momentum=0.9, fused=True)
    )

    def forward(x: Any, y: Any) -> Any:
        return loss(ops, p, x, y)

    run = torch.compile(forward) if compiled else forward

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        value = run(x, y)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return count, value.detach()

    return call


def jax_call(work: str) -> Call:
    """JAX, jitted, with the state donated; the optimisers are written out."""
    import jax
    import jax.numpy as jnp

    from bench.systems import jax_system

    ops = jax_system().ops
    ops.cross_entropy = lambda a, b: -jax.nn.log_softmax(a)[jnp.arange(len(b)), b].mean()
    ops.strided = lambda x, k, stride: jax.lax.conv_general_dilated(
        x, k, (stride, stride), [(k.shape[-1] // 2,) * 2] * 2
    )
    ops.norm, ops.pooled = written_norm, lambda h: h.mean((2, 3))
    loss = loss_of(work)

    def adamw(p: Any, g: Any, m: Any, v: Any, step: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        way = m / (1 - 0.9**step) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)
        return p * (1 - 3e-4 * 0.01) - 3e-4 * way, m, v

    def update(p: Params, m: Params, v: Params, x: Any, y: Any, step: Any) -> Any:
        value, g = jax.value_and_grad(lambda p: loss(ops, p, x, y))(p)
        if work == "gpt step":
            found = {k: adamw(p[k], g[k], m[k], v[k], step) for k in p}
            new, m, v = ({k: parts[i] for k, parts in found.items()} for i in range(3))
        else:
            m = {k: 0.9 * m[k] + g[k] for k in p}
            new = {k: p[k] - 0.01 * m[k] for k in p}
        return new, m, v, value

    arrays, batch, labels = inputs(work)
    p = {name: jnp.array(array) for name, array in arrays.items()}
    state = [p, *({k: jnp.zeros_like(w) for k, w in p.items()} for _ in range(2))]
    x, y, count = jnp.array(batch), jnp.array(labels), 0
    run = jax.jit(update, donate_argnums=(0, 1, 2))

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        *state[:], value = run(*state, x, y, float(count))
        return count, jax.block_until_ready(value)

    return call


def tinygrad_call(work: str) -> Call:
    """tinygrad with its optimisers and its jit, which replays from the third call on."""
    from tinygrad import Context, Device, Tensor, TinyJit
    from tinygrad.nn.optim import SGD, AdamW

    ops = tinygrad_ops()
    ops.strided = lambda x, k, stride: x.conv2d(k, stride=stride, padding=k.shape[-1] // 2)
    ops.norm, ops.pooled = written_norm, lambda h: h.mean((2, 3))
    arrays, batch, labels = inputs(work)
    p = {name: Tensor(array).realize() for name, array in arrays.items()}
    x, y, loss, count = Tensor(batch).realize(), Tensor(labels).realize(), loss_of(work), 0
    values = list(p.values())
    optimizer = AdamW(values, 3e-4) if work == "gpt step" else SGD(values, 0.01, momentum=0.9)

    def step() -> Any:
        optimizer.zero_grad()
        value = loss(ops, p, x, y)
        value.backward()
        return value.realize(*optimizer.schedule_step())

    replayed = TinyJit(step)

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        with Context(TRAINING=1):
            value = replayed()
        Device["CPU"].synchronize()
        return count, value.item()

    return call


CALLS: dict[str, Callable[[str], Call]] = {
    "ours": our_call,
    "ours eager": lambda work: our_call(work, jitted=False),
    "torch": torch_call,
    "torch.compile": lambda work: torch_call(work, compiled=True),
    "jax": jax_call,
    "tinygrad": tinygrad_call,
}


def prepare(system: str, work: str) -> Work:
    """A step of a work by a system, and the check of its loss."""
    if system not in CALLS:
        raise NotImplementedError(f"{system} has no training step here")
    want = first_loss(work)

    def check(result: tuple[int, Any]) -> None:
        step, value = result
        got = float(value.numpy() if hasattr(value, "numpy") else value)
        wrong = abs(got - want) > 1e-3 * want if step == 1 else not 0 <= got < 1.01 * want
        if wrong:
            raise ValueError(f"the loss of step {step} is {got}; the first should be {want}")

    return Work(CALLS[system](work), check)
