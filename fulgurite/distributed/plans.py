"""Ready plans for modules: data parallel, ZeRO, tensor parallel for transformer blocks.

In: a mesh, and for some plans the names of layers. Out: a `Plan`, which `nn.Module.shard` applies:
for every parameter, which dimension each mesh axis splits, whether that is weak (gathered where it
is used), and how what the optimizer keeps for it is split. Plans add up: `tensor_parallel(mesh) |
zero(mesh, stage=3)`. Inputs are split by `fg.shard(batch, mesh, {"data": 0})`. The rest follows
from the partition of the graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ArgumentError
from ..tensor import Tensor, realize_among
from .layouts import keep_gradient_in_shards, keep_in_shards, keep_state_in_shards
from .mesh import Mesh, shard

if TYPE_CHECKING:
    from ..nn import Module


class Kept(NamedTuple):
    """How a parameter and its optimizer state are kept."""

    split: dict[str, int]  # of the parameter: mesh axis -> dimension
    weak: bool = False
    state: dict[str, int] | None = None  # of the state, if other than the parameter's
    gradient: bool = False  # is it kept as the state is? else it is whole


Decide = Callable[[str, tuple[int, ...], Kept], Kept]  # name, shape, what was decided before


class Plan:
    """Decisions about parameters, in order; `a | b` is a, then b."""

    def __init__(
        self,
        mesh: Mesh,
        decisions: Sequence[Decide] = (),
        results: Sequence[Mapping[str, int]] = (),
    ) -> None:
        self.mesh, self.decisions = mesh, tuple(decisions)
        self.results = tuple(results)  # splits of what the parts of a module return

    def __or__(self, other: Plan) -> Plan:
        if other.mesh != self.mesh:
            raise ArgumentError(f"plans for {self.mesh} and {other.mesh}", "use one mesh for both")
        decisions = (*self.decisions, *other.decisions)
        return Plan(self.mesh, decisions, (*self.results, *other.results))

    def kept(self, name: str, shape: tuple[int, ...]) -> Kept:
        """What the plan says of one parameter."""
        found = Kept({})
        for decide in self.decisions:
            found = decide(name, shape, found)
        return found

    def apply(self, module: Module) -> None:
        """Let the parameters of a module be kept as the plan says."""
        module.settle()
        if not self.mesh.is_spread:
            return
        changed = []
        for name, param in module.named_parameters():
            kept = self.kept(name, param.shape)
            layout = self.mesh.layout(kept.split or kept.state, param.ndim)
            if not any(layout):
                continue
            sharding = self.mesh.shape, layout, kept.weak or not kept.split
            if kept.split:
                keep_in_shards(param, sharding)
                changed.append(param)
            else:
                keep_state_in_shards(param, sharding)
            if kept.gradient:
                keep_gradient_in_shards(param, sharding)
        realize_among(changed)
        for split in self.results:
            for part in module.modules():
                if part is not module:
                    part.register_forward_hook(partial(_split_result, self.mesh, split))


def _split_result(mesh: Mesh, split: Mapping[str, int], part: Any, args: Any, result: Any) -> Any:
    """What a part of a module returns, in shards if it has the dimensions and they divide."""
    fits = isinstance(result, Tensor) and all(
        [d < result.ndim - 1 and result.shape[d] % mesh[axis] == 0 for axis, d in split.items()]
    )
    return shard(result, mesh, split) if fits else None


def data_parallel(mesh: Mesh) -> Plan:
    """Every rank has all weights, and a part of each batch."""
    return Plan(mesh)


def zero(mesh: Mesh, axis: str = "data", stage: int = 3) -> Plan:
    """ZeRO (Rajbhandari et al. 2020): what every data-parallel rank would keep is split over them.

    Stage 1 splits what the optimizer keeps, stage 2 the gradients that `backward` adds up too,
    stage 3 the weights as well, which are gathered where they are used. (A gradient that nobody
    asks for before the step is never whole on a rank, in stage 1 either: each gets its part of the
    sum.) A parameter whose sizes the axis does not divide stays whole.
    """
    if stage not in (1, 2, 3):
        raise ArgumentError(f"there is no stage {stage} of ZeRO", "use 1, 2 or 3")
    count = mesh[axis]

    def decide(name: str, shape: tuple[int, ...], before: Kept) -> Kept:
        free = [d for d in range(len(shape)) if d not in before.split.values()]
        fitting = [d for d in free if shape[d] % count == 0]
        if not fitting or axis in before.split:
            return before
        dim = max(fitting, key=lambda d: (shape[d], -d))
        split = {**before.split, axis: dim}
        if stage == 3:
            # weak as a whole: what another plan split must stay where it is
            return Kept(split, weak=not before.split, gradient=True)
        if before.split:
            return before
        return before._replace(state=split, gradient=stage == 2)

    return Plan(mesh, [decide])


def sequence_parallel(mesh: Mesh, axis: str = "seq", dim: int = 1) -> Plan:
    """Every rank has all weights, and a part of each sequence (dimension 1 of activations).

    What is done row by row stays on its rank; attention gathers keys and values (context parallel).
    Split the tokens alike, and do not merge batch and sequence before the loss.
    """
    mesh[axis]
    return Plan(mesh, results=[{axis: dim}])


# the layers of transformer blocks by their names here and in torch: columns first, then rows
COLUMNS = r"(^|\.)(linear1|fc|fc1|up|gate|c_fc|q|k|v|q_proj|k_proj|v_proj|query|key|value|in_proj)$"
ROWS = r"(^|\.)(linear2|proj|fc2|down|c_proj|out_proj|o_proj|out)$"


def tensor_parallel(
    mesh: Mesh, axis: str = "model", columns: str = COLUMNS, rows: str = ROWS
) -> Plan:
    """Megatron's split of transformer blocks (Shoeybi et al. 2019).

    Layers whose name matches `columns` are split by outputs (their bias too), those that match
    `rows` by inputs: one sum over ranks after each pair. Weights are (outputs, inputs).
    """
    count = mesh[axis]

    def decide(name: str, shape: tuple[int, ...], before: Kept) -> Kept:
        layer, _, what = name.rpartition(".")
        if "in_proj_" in what:  # the three projections of nn.MultiheadAttention in one
            layer, what = f"{layer}.in_proj", what.removeprefix("in_proj_")
        dim = None
        if re.search(columns, layer):
            dim = 0
        elif re.search(rows, layer) and what == "weight":
            dim = 1
        if dim is None or dim >= len(shape) or shape[dim] % count or axis in before.split:
            return before
        return before._replace(split={**before.split, axis: dim}, weak=False)

    return Plan(mesh, [decide])
