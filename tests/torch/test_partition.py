"""Tests of torch/partition.py: what is one value in a joint graph, and what is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from fulgurite.torch.partition import share_equal_nodes

aten = torch.ops.aten


def graph_of(function: Callable[..., Any], *inputs: Any) -> fx.Graph:
    """What torch traces of a function, with equal nodes shared."""
    found: fx.Graph = make_fx(function)(*inputs).graph
    share_equal_nodes(found)
    found.lint()
    return found


def count(graph: fx.Graph, target: Any) -> int:
    return len(graph.find_nodes(op="call_function", target=target))


def test_equal_values_are_computed_once_and_those_of_other_numbers_are_not() -> None:
    def function(x: Any) -> Any:
        zeros = aten.mul.Tensor(x, 0.0) + aten.mul.Tensor(x, -0.0) + aten.mul.Tensor(x, 0)
        return (x.sin() + x.sin().cos() + x.sin()) * zeros

    graph = graph_of(function, torch.ones(3))
    assert count(graph, aten.sin.default) == 1
    assert len({str(n.args[1]) for n in graph.find_nodes(op="call_function", target=aten.mul.Tensor)
                if not isinstance(n.args[1], fx.Node)}) == 3  # fmt: skip


def test_two_results_are_two_tensors_also_of_one_value() -> None:
    graph = graph_of(lambda x: (x.sin(), x.sin(), x.sin() + 1), torch.ones(3))
    assert count(graph, aten.sin.default) == 3  # the third is no result, but like none before it


def test_what_is_read_before_a_write_is_not_what_is_read_behind() -> None:
    def function(x: Any) -> Any:
        before = x.sin() + 1
        aten.copy_.default(x, before)
        return before * x.sin()

    assert count(graph_of(function, torch.ones(3)), aten.sin.default) == 2


DRAWS: dict[str, Callable[[Any], Any]] = {
    "normal": torch.randn_like,
    "uniform": lambda x: torch.zeros(50).uniform_(),
    "whole": lambda x: torch.randint_like(x, 1000),
    "waits": lambda x: torch.zeros(50).exponential_(),
    "small": lambda x: torch.nn.functional.dropout(x.detach() * 0 + 1, 0.5),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_two_draws_in_training_are_two_and_their_gradients_are_of_the_same_numbers(
    draw: Callable[[Any], Any],
) -> None:
    x = torch.full((50,), 2.0, requires_grad=True)
    call = torch.compile(lambda x: (draw(x) * x, draw(x) * x), backend="fulgurite")
    first, second = call(x)
    assert not torch.equal(first, second)
    (first + 3 * second).sum().backward()
    torch.testing.assert_close(x.grad, (first + 3 * second).detach() / 2)


def test_a_step_of_training_loads_nothing_of_inductors_lowering() -> None:
    program = (
        "import sys, torch, fulgurite.torch\n"
        "x = torch.ones(4, requires_grad=True)\n"
        "torch.compile(lambda x: x.sin() * x, backend='fulgurite')(x).sum().backward()\n"
        "print([name for name in ('pattern_matcher', 'lowering', 'select_algorithm')\n"
        "       if f'torch._inductor.{name}' in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr[-2000:]
