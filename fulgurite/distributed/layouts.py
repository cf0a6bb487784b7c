"""How tensors are kept over a mesh once they have a value, and what is kept like them.

In: a tensor, a mesh and a split. Out: the same tensor in shards, for all who hold it. What an
optimizer keeps for a parameter follows the parameter, or a layout of its own (ZeRO 1 and 2: the
weight is whole on every rank, its state is not); the new weight is then gathered. Gradients that
`backward` adds up are whole, or in shards too (ZeRO 2 and 3).
"""

from __future__ import annotations

import weakref

from ..autodiff.grad import KEPT
from ..core.ops.collective import SHARD
from ..core.ranks import Layout, MeshAxes
from ..functional.array.assignment import _change
from ..graph.ir.registry import Entry
from ..runtime.distributed.sharding import sharding_of
from ..tensor import Tensor, no_grad, wrap

Sharding = tuple[MeshAxes, Layout, bool]
_states: weakref.WeakKeyDictionary[Entry, Sharding] = weakref.WeakKeyDictionary()


def keep_in_shards(x: Tensor, sharding: Sharding) -> None:
    """Let a tensor be kept in shards from now on."""
    with no_grad():
        _change(x, lambda old: SHARD(old, arg=sharding))


def keep_state_in_shards(param: Tensor, sharding: Sharding) -> None:
    """Let what an optimizer keeps for a parameter be in shards."""
    _states[param.entry] = sharding


def keep_gradient_in_shards(param: Tensor, sharding: Sharding) -> None:
    """Let what `backward` adds up for a parameter be in shards."""
    KEPT[param.entry] = lambda total: SHARD(total, arg=sharding)


def state_like(param: Tensor, value: Tensor) -> Tensor:
    """What is kept for a parameter, split as that says."""
    sharding = _states.get(param.entry) or sharding_of(param.entry.node)
    if sharding is None or value.shape != param.shape:
        return value
    return wrap(SHARD(value.entry.node, arg=sharding))


def value_like(param: Tensor, value: Tensor) -> Tensor:
    """The new value of a parameter, gathered if only its state is in shards."""
    sharding = _states.get(param.entry)
    if sharding is None or sharding_of(param.entry.node) is not None:
        return value
    mesh, layout, _ = sharding
    return wrap(SHARD(value.entry.node, arg=(mesh, ((),) * len(layout), False)))
