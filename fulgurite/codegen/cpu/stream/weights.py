"""Tiles of weights (P of M x N), and of elements that are stored: which buffer each is in.

In: a problem. Out: a name for the weights of every weighted sum: where they are memory as it is
(no buffer), the tile of a score product or of a load that they are, the place of a product that
nothing needs any more, or a tile of their own. Stored elements follow by the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.node import Node, toposort
from ....kernel.contract.problem import Operand
from ....kernel.stream.roles import StreamProblem, WeightedSum
from ..gemm.pack import side
from .operands import Left, Operands
from .tile import Tile


class WeightTiles:
    """The buffers of weights: `names`, one for each weighted sum, then for each stored element."""

    def __init__(self, tile: Tile, operands: Operands, names: Sequence[str]) -> None:
        self.tile, self.operands, self.names = tile, operands, names
        self.direct = [side(w.contraction, "left") for w in tile.problem.weighted]

    def at(self, number: int) -> Left:
        """The weights of a block."""
        tile, name = self.tile, self.names[number]
        if name:
            return tile.f.read[name], *tile.weight_strides
        s = self.direct[number]
        self.operands.open_batch(s)
        return self.operands.plain_left(s, tile.top, tile.k)

    def written(self, level: int, stops: frozenset[Node]) -> list[tuple[str, Node, bool]]:
        """What the walk of a level writes: tile, node, and whether denormals are flushed to 0."""
        problem, found = self.tile.problem, dict[Node, tuple[str, Node, bool]]()
        for w, name in zip(problem.all_weighted, self.names, strict=False):
            if w.state.level == level and w.weights not in stops and name:
                exact = w.state.repair is None or w.weights in self.tile.bounded_exps
                found.setdefault(w.weights, (name, w.weights, not exact))
        elements = self.names[len(problem.all_weighted) :]
        for node, name in zip(problem.elements, elements, strict=True):
            if level == problem.levels - 1 and name.startswith("element"):
                found.setdefault(node, (name, node, False))
        return list(found.values())

    def reserve(self, count: int) -> None:
        """Tiles of their own."""
        for name in dict.fromkeys(self.names):
            if name.startswith(("weights", "element")):
                self.tile.reserve(name, count)


def weight_tiles(tile: Tile, operands: Operands, loads: Sequence[Node]) -> WeightTiles:
    """The buffers of one pass: as few tiles of their own as there can be."""
    problem = tile.problem
    found = WeightTiles(tile, operands, ())
    names = {p.node: f"tile{number}" for number, p in enumerate(problem.products)}
    weights = dict.fromkeys([w.weights for w in problem.all_weighted])
    free = [name for node, name in names.items() if node not in (*weights, *problem.elements)]
    names |= {load: f"load{number}" for number, load in enumerate(loads)}
    names |= dict.fromkeys(direct_weights(problem, operands, found.direct) - names.keys(), "")
    for number, w in enumerate(problem.all_weighted):
        if w.weights not in names:
            here = free and is_in_place(problem, w, len(weights))
            names[w.weights] = free.pop(0) if here else f"weights{number}"
    for number, node in enumerate(problem.elements):
        names[node] = names.get(node) or f"element{number}"
    nodes = [*[w.weights for w in problem.all_weighted], *problem.elements]
    found.names = [names[node] for node in nodes]
    return found


def direct_weights(
    problem: StreamProblem, operands: Operands, sides: Sequence[Operand]
) -> set[Node]:
    """Weights that are memory which microkernels read where it is."""
    plain = {w.weights for w, s in zip(problem.weighted, sides, strict=True)
             if s.own.axes and operands.is_plain(s)}  # fmt: skip
    return plain - {w.weights for w in problem.transposed}


def is_in_place(problem: StreamProblem, w: WeightedSum, count: int) -> bool:
    """True if weights may take the place of a product: nothing needs that any more."""
    if problem.levels == 1:
        return True  # the one walk reads all products of a place before it writes there
    if len(problem.products) != 1 or count != 1:
        return False
    later = [s.body for s in problem.row_states if s.level > w.state.level]
    return problem.products[0].node not in toposort(later)
