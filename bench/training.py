"""Training steps beside the peers: the MLP of `bench/models.py` with cross-entropy and Adam.

In: a system's name. Out: a call that does one whole step (forward, backward, update) and gives its
number and its loss, and a check of that loss against NumPy in float64, which does the same steps
with the derivatives written out. Each system uses what it has: torch its fused Adam, JAX donated
buffers, ours `fg.jit` with assignments; all with the same constants and bias corrections.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.models import MLP_BATCH, MLP_SIZES, Array, Params, mlp, mlp_inputs

TITLE = "MLP 784-512-512-10, batch 128: Adam step"
BETA1, BETA2, RATE, SMALL = 0.9, 0.999, 1e-3, 1e-8
LAYERS = len(MLP_SIZES) - 1
Call = Callable[[], tuple[int, Any]]


def labels() -> Array:
    """The classes of the batch."""
    return np.random.default_rng(1).integers(0, MLP_SIZES[-1], MLP_BATCH).astype(np.int32)


def split(arrays: dict[str, Any]) -> tuple[Any, Params]:
    """The batch and the parameters."""
    return arrays["x"], {name: value for name, value in arrays.items() if name != "x"}


def reference(steps: int, dtype: type = np.float64) -> float:
    """The loss of a step, by NumPy."""
    x, p = split({name: array.astype(dtype) for name, array in mlp_inputs().items()})
    moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in p.items()}
    found = 0.0
    for step in range(1, steps + 1):
        found = numpy_step(x, p, moments, step)
    return found


def numpy_step(x: Array, p: Params, moments: Params, step: int) -> float:
    """One step in place; the loss before it."""
    hidden = [x]
    for i in range(LAYERS):
        h = hidden[-1] @ p[f"w{i}"] + p[f"b{i}"]
        hidden.append(np.maximum(h, 0) if i < LAYERS - 1 else h)
    rows = np.arange(len(x))
    shifted = hidden[-1] - hidden[-1].max(axis=1, keepdims=True)
    e = np.exp(shifted)
    chances = e / e.sum(axis=1, keepdims=True)
    loss = float(-np.log(chances[rows, labels()]).mean())
    flow = chances
    flow[rows, labels()] -= 1
    flow /= len(x)
    c1, c2 = 1 / (1 - BETA1**step), 1 / (1 - BETA2**step)
    for i in reversed(range(LAYERS)):
        grads = {f"w{i}": hidden[i].T @ flow, f"b{i}": flow.sum(axis=0)}
        if i:
            flow = (flow @ p[f"w{i}"].T) * (hidden[i] > 0)
        for name, g in grads.items():
            m, v = moments[name]
            m += (1 - BETA1) * (g - m)
            v += (1 - BETA2) * (g * g - v)
            p[name] -= RATE * (m * c1) / (np.sqrt(v * c2) + SMALL)
    return loss


def numpy_call() -> Call:
    """NumPy."""
    x, p = split(mlp_inputs())
    moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in p.items()}
    count = 0

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        return count, numpy_step(x, p, moments, count)

    return call


def our_call(jitted: bool = True) -> Call:
    """Ours: state is assigned, the step number is an argument."""
    os.environ["FULGURITE_DEVICE"] = "cpu"
    import fulgurite as fg

    ops = SimpleNamespace(relu=fg.relu)

    def loss(p: Params, x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        return fg.cross_entropy(mlp(ops, {**p, "x": x}), y)

    def update(p: Params, m: Params, v: Params, x: fg.Tensor, y: fg.Tensor, step: int) -> fg.Tensor:
        value, g = fg.value_and_grad(loss)(p, x, y)
        c1, c2 = 1 / (1 - BETA1**step), 1 / (1 - BETA2**step)
        for k in p:
            m[k].assign(m[k] * BETA1 + g[k] * (1 - BETA1))
            v[k].assign(v[k] * BETA2 + g[k] * g[k] * (1 - BETA2))
            p[k].assign(p[k] - RATE * (m[k] * c1) / (fg.sqrt(v[k] * c2) + SMALL))
        found: fg.Tensor = value
        return found

    x, p = split({name: fg.Tensor(array) for name, array in mlp_inputs().items()})
    m, v = ({k: fg.Tensor(np.zeros(w.shape, np.float32)) for k, w in p.items()} for _ in range(2))
    y, count = fg.Tensor(labels()), 0
    run = fg.jit(update) if jitted else update

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        found = run(p, m, v, x, y, count)
        return count, found if jitted else found.realize()

    return call


def torch_call(compiled: bool = False) -> Call:
    """torch with its fused Adam; compiled: the model and the update."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", torch.get_num_threads())))
    ops = SimpleNamespace(relu=F.relu)
    x, p = split({name: torch.from_numpy(array.copy()) for name, array in mlp_inputs().items()})
    for value in p.values():
        value.requires_grad_()
    y, count = torch.from_numpy(labels()).long(), 0
    rates = {"lr": RATE, "betas": (BETA1, BETA2), "eps": SMALL}
    adam = torch.optim.Adam(list(p.values()), **rates, fused=not compiled)

    def loss() -> Any:
        return F.cross_entropy(mlp(ops, {**p, "x": x}), y)

    forward = torch.compile(loss) if compiled else loss
    update = torch.compile(adam.step) if compiled else adam.step

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        value = forward()
        value.backward()
        update()
        adam.zero_grad(set_to_none=True)
        return count, value.detach()

    return call


def jax_call() -> Call:
    """JAX, jitted, with the state donated."""
    import jax
    import jax.numpy as jnp

    ops = SimpleNamespace(relu=jax.nn.relu)
    rows = jnp.arange(MLP_BATCH)

    def loss(p: Params, x: Any, y: Any) -> Any:
        return -jax.nn.log_softmax(mlp(ops, {**p, "x": x}))[rows, y].mean()

    def update(p: Params, m: Params, v: Params, x: Any, y: Any, step: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, x, y)
        c1, c2 = 1 / (1 - BETA1**step), 1 / (1 - BETA2**step)
        m = {k: m[k] * BETA1 + g[k] * (1 - BETA1) for k in p}
        v = {k: v[k] * BETA2 + g[k] * g[k] * (1 - BETA2) for k in p}
        new = {k: p[k] - RATE * (m[k] * c1) / (jnp.sqrt(v[k] * c2) + SMALL) for k in p}
        return new, m, v, value

    x, p = split({name: jnp.array(array) for name, array in mlp_inputs().items()})
    state = [p, *({k: jnp.zeros_like(w) for k, w in p.items()} for _ in range(2))]
    y, count = jnp.array(labels()), 0
    run = jax.jit(update, donate_argnums=(0, 1, 2))

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        *state[:], value = run(*state, x, y, float(count))
        return count, jax.block_until_ready(value)

    return call


def tinygrad_call() -> Call:
    """tinygrad with its Adam and its jit, which replays from the third call on."""
    from tinygrad import Context, Device, Tensor, TinyJit
    from tinygrad.nn.optim import Adam

    ops = SimpleNamespace(relu=lambda x: x.relu())
    x, p = split({name: Tensor(array).realize() for name, array in mlp_inputs().items()})
    y, count = Tensor(labels()).realize(), 0
    adam = Adam(list(p.values()), RATE, BETA1, BETA2, SMALL)

    @TinyJit
    def step() -> Any:
        adam.zero_grad()
        value = mlp(ops, {**p, "x": x}).cross_entropy(y)
        value.backward()
        return value.realize(*adam.schedule_step())

    def call() -> tuple[int, Any]:
        nonlocal count
        count += 1
        with Context(TRAINING=1):
            value = step()
        Device["CPU"].synchronize()
        return count, value.item()

    return call


CALLS: dict[str, Callable[[], Call]] = {
    "ours": our_call,
    "ours eager": lambda: our_call(jitted=False),
    "numpy": numpy_call,
    "torch": torch_call,
    "torch.compile": lambda: torch_call(compiled=True),
    "jax": jax_call,
    "tinygrad": tinygrad_call,
}


def check(result: tuple[int, Any]) -> None:
    """Raise unless the loss of a step is near NumPy's."""
    step, value = result
    got = float(value.numpy() if hasattr(value, "numpy") else value)
    want = reference(step)
    if not abs(got - want) < 1e-3 * want:
        raise ValueError(f"the loss of step {step} is {got}, not {want}")
