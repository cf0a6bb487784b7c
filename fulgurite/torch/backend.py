"""`torch.compile(model, backend="fulgurite")`: graphs of dynamo, through AOTAutograd, to our plans.

In: an FX graph with the user's torch functions. AOTAutograd makes it functional, differentiates it
and decomposes it to core ATen; what the table of operators has is not decomposed. Out: callables
that AOTAutograd wraps: forward and backward are one native call each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..config import Options
from ..errors import ArgumentError
from ..runtime.gc_pause import held_back, made_to_stay
from .attention_calls import unify_attention
from .cached import Kept, is_kept, keeping
from .corrected import CORRECTED, corrected
from .foreach import one_by_one
from .graph import Graph
from .partition import partition
from .table import TABLE, name_of

OURS = ("device", "tier")  # where tensors are, and that a graph is worth a native plan
ALLOWED = (*[name for name in Options.__dataclass_fields__ if name not in OURS], "eager_random")


def fulgurite(
    module: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None,
    mode: str | None = None, **_: Any,
) -> Any:  # fmt: skip
    """The backend: what dynamo calls with every graph that it captured.

    `options` are those of `fg.config` (`deterministic`, `exact`, `search`, ...), and
    `eager_random`, which leaves random operators to torch.
    """
    from torch._dynamo.utils import flatten_graph_inputs
    from torch._functorch.aot_autograd import aot_module_simplified

    chosen = checked(options or {})
    if any([isinstance(x, list | tuple | dict) for x in inputs]):  # as compiled autograd has them
        again = functools.partial(fulgurite, options=chosen)
        return flatten_graph_inputs(module, list(inputs), again)
    if any([isinstance(x, torch.Tensor) and x.is_cuda for x in inputs]):
        unify_attention(getattr(module, "gm", module))
    compiler = functools.partial(compiled, options=chosen)
    backward = torch._dynamo.disable(
        lambda m, i: torch._dynamo.disable(compiler(m, i), reason="it is compiled"),
        reason="it compiles",
    )
    with held_back(), corrected(), keeping(module, chosen) as kept:
        made = aot_module_simplified(
            module,
            list(inputs),
            fw_compiler=kept(compiler),
            bw_compiler=kept(backward),
            inference_compiler=kept(compiler),
            decompositions=Decompositions(),
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )
        made_to_stay()
    return torch._dynamo.disable(made, reason="it is compiled")


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a compilation, or an error that names the wrong one."""
    for name in options:
        if name not in ALLOWED:
            raise ArgumentError(f"there is no option {name!r}", f"one of {', '.join(ALLOWED)}")
    return dict(options)


class Decompositions(Mapping[Any, Any]):
    """The table of decompositions, made when it is first asked for: a graph that torch's cache has
    needs none, and to load them takes longer than such a graph."""

    def __getitem__(self, operator: Any) -> Any:
        return decompositions()[operator]

    def __iter__(self) -> Iterator[Any]:
        return iter(decompositions())

    def __len__(self) -> int:
        return len(decompositions())


@functools.cache
def decompositions(before_autograd: bool = False) -> dict[Any, Any]:
    """torch's core ATen decompositions, but for the operators that are lowered as they are.

    Composite operators, which autograd decomposes, only for graphs `before_autograd` (those of
    `torch.export`): to list all that are loaded takes a tenth of a second.
    """
    from torch import _decomp

    table = _decomp.core_aten_decompositions
    if not before_autograd:
        table = getattr(_decomp, "_core_aten_decompositions_post_autograd", table)
    found = {
        operator: function
        for operator, function in table().items()
        if not isinstance(operator, torch._ops.OpOverload) or name_of(operator) not in TABLE
    }
    return {op: _tried(f) for op, f in (found | one_by_one() | CORRECTED).items()}


def _tried(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that leaves to its operator what it takes no arguments of: torch's own are
    stricter than its kernels (`addcmul` of whole numbers with `value=0.5`)."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except (TypeError, ValueError):
            return NotImplemented

    return call


def compiled(module: fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """A graph of ATen operators as a callable."""
    _donate_nothing()
    _note_seen(module.graph)
    call = Graph(module.graph, options).callable()
    return Kept(module.graph, "", call, options, is_kept(options) or "")


def _metadata() -> Any:
    """What AOTAutograd knows of the graph that it is compiling; None where it does not say."""
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)


def _note_seen(graph: fx.Graph) -> None:
    """Note at a graph's end which of its results the user sees: others are saved for a backward,
    or are what inputs become."""
    known = _metadata()
    if known is not None:
        (last,) = graph.find_nodes(op="output")
        last.meta["seen"] = (known.num_mutated_inp_runtime_indices, known.num_forward_returns)


def _donate_nothing() -> None:
    """Tell AOTAutograd that no kernel writes into what was saved for a backward: else it refuses to
    call one twice (`retain_graph=True`). Its lists of indices are one list."""
    donated = getattr(_metadata(), "bw_donated_idxs", None)
    if donated:
        donated.clear()
