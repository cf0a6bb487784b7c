"""One table of layers and losses, for torch and for us: the same words make a layer in either.

In: `Case`, whose `make` is called with `fg.nn` or `torch.nn`, and arrays to call the layer with.
Out: `ours(case)` and `theirs(case)`: names and shapes of the state, the outputs, and the gradients
of a weighted sum of them by every float input and every parameter. Weights are the same on both
sides: drawn here from the case's name and loaded by `load_state_dict`.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.nn.module.state_dict import saved_tensors

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A layer, what it is called with, and whether it trains."""

    name: str
    make: Callable[[Any], Any]
    inputs: Sequence[Any]  # shapes of float inputs, or arrays
    keywords: dict[str, Any] = field(default_factory=dict)
    train: bool = True
    positive: bool = False  # probabilities
    tolerance: float = 2e-5
    without_gradient: tuple[int, ...] = ()  # inputs that are targets


@dataclass
class Result:
    """What one side found, by name."""

    arrays: dict[str, Array]


def generator(case: Case) -> np.random.Generator:
    """Numbers that depend on the case alone."""
    return np.random.default_rng(zlib.crc32(case.name.encode()))


def arrays_of(case: Case) -> list[Any]:
    """What the layer is called with."""
    random = generator(case)
    found: list[Any] = []
    for given in case.inputs:
        if isinstance(given, tuple):
            drawn = random.normal(size=given).astype(np.float32)
            found.append(1 / (1 + np.exp(-drawn)) if case.positive else drawn)
        else:
            found.append(given)
    return found


def state_of(case: Case, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Weights of a layer: small numbers; variances are positive, counters are whole."""
    random = np.random.default_rng(zlib.crc32(case.name.encode()) + 1)
    state: dict[str, Array] = {}
    for name, shape in shapes.items():
        drawn = random.normal(size=shape).astype(np.float32) * 0.5
        if name.endswith("running_var"):
            drawn = np.abs(drawn) + 0.5
        elif name.endswith("num_batches_tracked"):
            drawn = np.array(3, np.int64)
        state[name] = np.asarray(drawn)
    return state


def flat(value: Any) -> list[Any]:
    """The tensors of an output, in order."""
    if isinstance(value, tuple | list):
        return [part for item in value for part in flat(item)]
    return [] if value is None else [value]


def ours(case: Case) -> Result:
    """What fulgurite finds, all of it in one plan."""
    layer = case.make(fg.nn)
    shapes = {name: tensor.shape for name, tensor in saved_tensors(layer).items()}
    layer.load_state_dict(state_of(case, shapes))  # before anything is drawn
    layer.train(case.train)
    given = [fg.Tensor(a) if isinstance(a, np.ndarray) else a for a in arrays_of(case)]
    keywords = {k: fg.Tensor(v) if isinstance(v, np.ndarray) else v for k, v in _words(case)}
    leaves = {
        f"input{i}": tensor.requires_grad_()
        for i, tensor in enumerate(given)
        if _learns(tensor, i, case)
    }
    leaves |= dict(layer.named_parameters())
    outputs = flat(layer(*given, **keywords))
    total = sum(
        [(out * fg.Tensor(w)).sum() for out, w in zip(outputs, _weights(outputs), strict=True)]
    )
    total.backward()
    tensors = {f"output{i}": out for i, out in enumerate(outputs)}
    tensors |= {f"grad {n}": leaf.grad for n, leaf in leaves.items() if leaf.grad is not None}
    tensors |= {f"buffer {name}": buffer for name, buffer in layer.named_buffers()}
    fg.realize(*tensors.values())
    return Result({name: tensor.numpy() for name, tensor in tensors.items()})


def theirs(case: Case) -> Result:
    """What torch finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says of its own kernels is no fault of ours
        return _theirs(case)


def _theirs(case: Case) -> Result:
    import torch

    layer = case.make(torch.nn)
    shapes = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
    state = state_of(case, shapes)
    layer.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    layer.train(case.train)
    given = [torch.tensor(_wide(a)) if isinstance(a, np.ndarray) else a for a in arrays_of(case)]
    keywords = {
        k: torch.tensor(_wide(v)) if isinstance(v, np.ndarray) else v for k, v in _words(case)
    }
    leaves = {
        f"input{i}": tensor.requires_grad_()
        for i, tensor in enumerate(given)
        if _learns(tensor, i, case)
    }
    leaves |= dict(layer.named_parameters())
    outputs = flat(layer(*given, **keywords))
    total = sum(
        [(o * torch.tensor(w)).sum() for o, w in zip(outputs, _weights(outputs), strict=True)]
    )
    total.backward()
    tensors = {f"output{i}": out for i, out in enumerate(outputs)}
    tensors |= {f"grad {n}": leaf.grad for n, leaf in leaves.items() if leaf.grad is not None}
    tensors |= {f"buffer {name}": buffer for name, buffer in layer.named_buffers()}
    return Result({name: tensor.detach().numpy() for name, tensor in tensors.items()})


def _words(case: Case) -> list[tuple[str, Any]]:
    return list(case.keywords.items())


def _wide(array: Array) -> Array:
    return array.astype(np.int64) if array.dtype == np.int32 else array


def _learns(value: Any, place: int, case: Case) -> bool:
    known = hasattr(value, "requires_grad") and "float" in str(value.dtype)
    return known and place not in case.without_gradient


def _weights(outputs: Sequence[Any]) -> list[Array]:
    """A weight for every element of every output, so that no error cancels out."""
    random = np.random.default_rng(7)
    return [random.normal(size=tuple(out.shape)).astype(np.float32) for out in outputs]


def projections(result: Result) -> dict[str, list[float]]:
    """Three weighted sums of each array and its length: what a file of known values holds."""
    found = {}
    for name, array in sorted(result.arrays.items()):
        random = np.random.default_rng(zlib.crc32(name.encode()))
        values = array.astype(np.float64).reshape(-1)
        found[name] = [
            *[float(f"{(values * random.normal(size=values.size)).sum():.7g}") for _ in range(3)],
            float(f"{np.sqrt((values * values).sum()):.7g}"),
        ]
    return found


def whole(*values: Any) -> Array:
    """Whole numbers, as classes and indices are given."""
    return np.array(values[0] if len(values) == 1 else values, np.int32)
