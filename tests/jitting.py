"""What tests of `fg.jit` share: small tensors, and a comparison with the plain function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.graph.ir.registry import REGISTRY


def t(*numbers: float) -> fg.Tensor:
    return fg.Tensor(np.array(numbers, np.float32))


def plainly(value: Any) -> Any:
    return fg.tree.map(lambda x: x.tolist() if isinstance(x, fg.Tensor) else x, value)


def address(tensor: fg.Tensor) -> int:
    found: Any = REGISTRY.memory(tensor.entry.node)
    return int(found.address)


def same(function: Callable[..., Any], *calls: tuple[Any, ...], captures: int | None = None) -> Any:
    """Each call, jitted and twice, gives what the plain function gives; the jitted function."""
    jitted = fg.jit(function)
    for args in calls:
        want = plainly(function(*args))
        for _ in range(2):
            assert plainly(jitted(*args)) == want
    if captures is not None:
        assert jitted.captured == captures
    return jitted


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def alike(scenario: Callable[[Wrap], list[Any]]) -> None:
    """What a scenario sees is the same with functions that are jitted and with plain ones."""
    fg.random.seed(7)
    want = plainly(scenario(lambda function: function))
    fg.random.seed(7)
    assert plainly(scenario(fg.jit)) == want
