"""Every system that runs the workloads: how it fills the namespace, compiles, waits and answers.

In: a name of `SYSTEMS`. Out: a `System`, once its library is imported. Each uses its own best
function where it has one (torch its fused attention, say); what it lacks is written out in its own
arithmetic. `hold` gives a call that does the whole work once and waits: for a compiler, its first
call compiles. The peers' float32 settings are their defaults.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.models import Array, Compute, Params

_GELU = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class System:
    """A library as the benchmarks see it."""

    ops: SimpleNamespace
    tensor: Callable[[Array], Any]
    hold: Callable[[Compute, Params], Callable[[], Any]]
    to_numpy: Callable[[Any], Array]

    def prepared(self, compute: Compute, arrays: dict[str, Array]) -> Callable[[], Any]:
        """A call that computes from these arrays."""
        return self.hold(compute, {name: self.tensor(array) for name, array in arrays.items()})


def plan_of(held: Any) -> tuple[Any, list[Any]]:
    """The plan of a schedule on one device, compiled, and the memory that it is run with."""
    from fulgurite.runtime.realize import inputs_of

    plan, (part,) = held.compile(), held._parts
    return plan, inputs_of(part.normal, part.compiled)


def numpy_ops() -> SimpleNamespace:
    """NumPy, in the dtype of what it is given."""

    def softmax(x: Array) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def layer_norm(x: Array, gain: Array, bias: Array) -> Any:
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * gain + bias

    def attention(query: Array, key: Array, value: Array) -> Any:
        length = query.shape[-2]
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        return (
            softmax(np.where(np.tri(length, dtype=bool), scores, scores.dtype.type(-1e9))) @ value
        )

    def conv(x: Array, kernel: Array) -> Array:
        """One matrix product: windows by channels of the kernel."""
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        return np.tensordot(windows, kernel, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)

    return SimpleNamespace(
        softmax=softmax, layer_norm=layer_norm, attention=attention, conv=conv,
        gelu=lambda x: 0.5 * x * (1 + np.tanh(_GELU * (x + 0.044715 * x * x * x))),
        relu=lambda x: np.maximum(x, 0),
        batch_norm=_batch_norm(lambda x: 1 / np.sqrt(x)),
        embedding=lambda table, ids: table[ids],
        permute=lambda x, order: x.transpose(order),
    )  # fmt: skip


def _batch_norm(rsqrt: Callable[[Any], Any]) -> Callable[..., Any]:
    """Batch norm written out, for systems that have none in inference form."""

    def apply(x: Any, mean: Any, var: Any, gain: Any, bias: Any) -> Any:
        mean, var, gain, bias = (v.reshape(1, -1, 1, 1) for v in (mean, var, gain, bias))
        return (x - mean) * (rsqrt(var + 1e-5) * gain) + bias

    return apply


def _plainly(ops: SimpleNamespace) -> Callable[[Any, Any, Any], Any]:
    """Causal attention as everyone writes it first."""

    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = query @ ops.permute(key, (0, 1, 3, 2)) * query.shape[-1] ** -0.5
        return ops.softmax(ops.where(ops.causal(query.shape[-2]), scores, -1e9)) @ value

    return attention


def numpy_system() -> System:
    """NumPy."""
    return System(numpy_ops(), lambda a: a, lambda f, p: lambda: f(numpy_ops(), p), np.asarray)


def our_ops() -> SimpleNamespace:
    """Fulgurite's functions."""
    import fulgurite as fg

    def causal(length: int) -> fg.Tensor:
        places = fg.arange(length)
        return places.reshape(length, 1) >= places.reshape(1, length)

    ops = SimpleNamespace(
        embedding=lambda table, ids: fg.take(table, ids, axis=0),
        layer_norm=lambda x, gain, bias: fg.layer_norm(x, (x.shape[-1],), gain, bias),
        softmax=lambda x: fg.softmax(x, axis=-1),
        gelu=lambda x: fg.gelu(x, approximate="tanh"),
        relu=fg.relu, batch_norm=lambda x, *rest: fg.batch_norm(x, *rest)[0],
        where=fg.where, causal=causal,
        conv=lambda x, kernel: fg.conv2d(x, kernel, padding=1),
        permute=lambda x, order: x.permute(*order),
        cross_entropy=fg.cross_entropy,
    )  # fmt: skip
    ops.attention = _plainly(ops)
    return ops


def _ours(hold: Callable[[Compute, Params], Callable[[], Any]]) -> System:
    os.environ["FULGURITE_DEVICE"] = "cpu"
    import fulgurite as fg

    return System(our_ops(), fg.Tensor, hold, lambda tensor: np.asarray(tensor.numpy()))


def ours() -> System:
    """A plan that is held: the first call builds, schedules and compiles, all others replay."""

    def hold(compute: Compute, inputs: Params) -> Callable[[], Any]:
        import fulgurite as fg

        ops, plan = our_ops(), None

        def call() -> Any:
            nonlocal plan
            if plan is None:
                plan = fg.schedule(compute(ops, inputs))
            return plan.run()[0]

        return call

    return _ours(hold)


def ours_eager() -> System:
    """The graph is built and realized in every call."""

    def hold(compute: Compute, inputs: Params) -> Callable[[], Any]:
        ops = our_ops()
        return lambda: compute(ops, inputs).realize()

    return _ours(hold)


def torch_system(compiled: bool = False) -> System:
    """torch, eager or compiled."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", torch.get_num_threads())))
    ops = SimpleNamespace(
        softmax=lambda x: F.softmax(x, -1),
        layer_norm=lambda x, gain, bias: F.layer_norm(x, (x.shape[-1],), gain, bias),
        attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        gelu=lambda x: F.gelu(x, approximate="tanh"),
        relu=F.relu, batch_norm=F.batch_norm,
        conv=lambda x, kernel: F.conv2d(x, kernel, padding=1),
        embedding=lambda table, ids: table[ids],
        permute=lambda x, order: x.permute(order),
    )  # fmt: skip

    def hold(compute: Compute, inputs: Params) -> Callable[[], Any]:
        def work(inputs: Params) -> Any:
            return compute(ops, inputs)

        run = torch.no_grad()(torch.compile(work) if compiled else work)
        return lambda: run(inputs)

    return System(ops, lambda a: torch.from_numpy(a.copy()), hold, lambda t: t.numpy())


def jax_system() -> System:
    """JAX, jitted."""
    import jax
    import jax.numpy as jnp

    def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * gain + bias

    ops = SimpleNamespace(
        softmax=lambda x: jax.nn.softmax(x, -1), layer_norm=layer_norm,
        gelu=lambda x: jax.nn.gelu(x, approximate=True), relu=jax.nn.relu, where=jnp.where,
        causal=lambda length: jnp.tri(length, dtype=bool),
        batch_norm=_batch_norm(jax.lax.rsqrt),
        conv=lambda x, kernel: jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME"),
        embedding=lambda table, ids: table[ids],
        permute=lambda x, order: x.transpose(order),
    )  # fmt: skip
    ops.attention = _plainly(ops)

    def hold(compute: Compute, inputs: Params) -> Callable[[], Any]:
        run = jax.jit(lambda inputs: compute(ops, inputs))
        return lambda: jax.block_until_ready(run(inputs))

    return System(ops, jnp.array, hold, np.asarray)


def tinygrad_ops() -> SimpleNamespace:
    """tinygrad's functions."""
    from tinygrad import Tensor

    def causal(length: int) -> Tensor:
        places = Tensor.arange(length)
        return places.reshape(length, 1) >= places.reshape(1, length)

    ops = SimpleNamespace(
        embedding=lambda table, ids: table[ids],
        layer_norm=lambda x, gain, bias: x.layernorm() * gain + bias,
        softmax=lambda x: x.softmax(-1), gelu=lambda x: x.gelu(), relu=lambda x: x.relu(),
        where=lambda c, a, b: c.where(a, b), causal=causal,
        batch_norm=_batch_norm(lambda x: x.rsqrt()),
        conv=lambda x, kernel: x.conv2d(kernel, padding=1),
        permute=lambda x, order: x.permute(order),
        cross_entropy=lambda a, b: a.cross_entropy(b),
    )  # fmt: skip
    ops.attention = _plainly(ops)
    return ops


def tinygrad_system() -> System:
    """tinygrad with its jit, which replays from the third call on."""
    from tinygrad import Device, Tensor, TinyJit

    ops = tinygrad_ops()

    def hold(compute: Compute, inputs: Params) -> Callable[[], Any]:
        run = TinyJit(lambda: compute(ops, inputs).realize())

        def call() -> Any:
            result = run()
            Device["CPU"].synchronize()
            return result

        return call

    return System(ops, lambda a: Tensor(a).realize(), hold, lambda t: t.numpy())


SYSTEMS: dict[str, Callable[[], System]] = {
    "ours": ours,
    "ours eager": ours_eager,
    "numpy": numpy_system,
    "torch": torch_system,
    "torch.compile": lambda: torch_system(compiled=True),
    "jax": jax_system,
    "tinygrad": tinygrad_system,
}
