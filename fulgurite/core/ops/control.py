"""Ops whose argument is a graph: LOOP repeats it, COND chooses one of two.

The graph is a `Body`: a SINK over params numbered as the op's sources, compiled once however often
it runs. A node has one value, so each result of a loop is a node of its own: they differ in the
first part of the argument, their `item`, and whoever runs or differentiates them takes all that
are there together. The items of a loop are the last carries, then what each step gave (stacked),
then the trail: each carry as it was before every step, which is all that a gradient keeps.
A mode says which steps happen: "all"; "while" the first carry holds; "where" the first scanned
value holds (which the gradient of "while" needs). Rows of steps that did not happen are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import ArgumentError, GradientError
from ..dtype import bool_, float32
from ..gradient import gradients, live_nodes
from ..node import Dims, Node, Shape, Size, constant_like, dims_of, make, shape_of, toposort
from ..op import Array, Op
from ..origin import places
from ..shape import same
from ..substitute import substitute
from .body import Body, close, invariant, numbered
from .effect import HOSTS
from .elementwise import CAST, WHERE
from .leaf import SINK, param
from .movement import expand, permute, reshape
from .transform import EXAMPLE, batched, new_batch, spread

MODES = ("all", "while", "where")


def family_values(family: Sequence[Node], arrays: Sequence[Array]) -> list[Array]:
    """What several results of one computation mean."""
    items = [node.arg[0] for node in family]
    if family[0].op is LOOP:
        return _loop_values(Loop.of(family[0]), arrays, items)
    branch: Body = family[0].arg[1 if bool(arrays[0]) else 2]
    found = branch.values(arrays[1:])
    return [found[item] for item in items]


def _numpy(node: Node, *arrays: Array) -> Array:
    return family_values([node], arrays)[0]


def _siblings(node: Node) -> Any:
    return node.src, node.arg[1:]


# --- loops ---------------------------------------------------------------------------------------


class Loop(NamedTuple):
    """A loop, whichever of its items a node is."""

    body: Body
    carries: int  # the first sources: the carries to begin with
    scanned: int  # the next sources: one row for each step; then what stays the same
    dim: Any  # the most steps: a number, a source that is a size, or None: there is no bound
    reverse: bool  # from the last row to the first
    mode: str
    src: tuple[Node, ...]

    @staticmethod
    def of(node: Node) -> Loop:
        """The loop that a node is a result of."""
        _, body, carries, scanned, dim, reverse, mode = node.arg
        return Loop(body, carries, scanned, dim, reverse, mode, node.src)

    @property
    def steps(self) -> Size | None:
        """The most steps, if that is bounded."""
        return None if self.dim is None else shape_of((self.dim,), self.src)[0]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The sources that the body reads: all but the size."""
        return self.src if self.dim is None or isinstance(self.dim, int) else self.src[:-1]

    @property
    def given(self) -> int:
        """How many values each step gives besides the carries."""
        return len(self.body.roots) - self.carries

    def item(self, number: int) -> Node:
        """One of the results: a last carry, what the steps gave, or a carry's trail."""
        root = self.body.roots[number if number < len(self.body.roots) else self.trailed(number)]
        return make(LOOP, root.dtype, self.src, (number, *self[:6]))

    def trailed(self, number: int) -> int:
        """The carry whose trail an item is."""
        return number - len(self.body.roots)

    def trail(self, carry: int) -> Node:
        """A carry as it was before every step, stacked."""
        return self.item(len(self.body.roots) + carry)

    def leaf(self, number: int) -> Node:
        """The body's param of this number, whether the body reads it or not."""
        found = self.body.params.get(number)
        if found is not None:
            return found
        source = self.src[number]
        rows = self.carries <= number < self.carries + self.scanned
        return param(number, source.shape[1:] if rows else source.shape, source.dtype, None)


def loop(
    body: Body,
    init: Sequence[Node],
    scanned: Sequence[Node],
    rest: Sequence[Node],
    steps: Size | None,
    reverse: bool = False,
    mode: str = "all",
) -> Loop:
    """A loop over rows of `scanned`, from the carries `init`; `rest` is the same in every step."""
    inputs = (*init, *scanned, *rest)
    dims: Dims | tuple[None] = (None,)
    extra: tuple[Node, ...] = ()
    if steps is not None:
        dims, extra = dims_of((steps,), len(inputs))
    return Loop(body, len(init), len(scanned), dims[0], reverse, mode, (*inputs, *extra))


def _loop_shape(node: Node) -> Shape:
    found = Loop.of(node)
    number = node.arg[0]
    if number < found.carries:
        last: Shape = found.body.roots[number].shape
        return last
    steps = found.steps
    assert steps is not None, "a loop without a bound stacks nothing"
    root = number if number < len(found.body.roots) else found.trailed(number)
    return (steps, *found.body.roots[root].shape)


def _loop_check(node: Node) -> str | None:
    found = Loop.of(node)
    body, mode = found.body, found.mode
    items = len(body.roots) + found.carries if found.dim is not None else found.carries
    if not isinstance(body, Body) or mode not in MODES or not 0 <= node.arg[0] < items:
        return f"there is no item {node.arg[0]} in a loop {mode!r} of {items}"
    if found.carries + found.scanned > len(found.inputs) or found.given < 0:
        return f"{len(found.src)} sources are too few for {found.carries} carries and their rows"
    deciding = {"all": None, "while": (0, found.carries), "where": (found.carries, found.scanned)}
    place = deciding[mode]
    if place is not None and (place[1] < 1 or found.leaf(place[0]).dtype is not bool_):
        return f"a loop {mode!r} needs a bool that decides"
    for number, known in body.params.items():
        if number >= len(found.inputs):
            return f"the body reads input {number} of {len(found.inputs)}"
        source = found.src[number]
        shape = source.shape
        if found.carries <= number < found.carries + found.scanned:
            steps = 0 if found.steps is None else found.steps
            if not shape or found.dim is None or not same(shape[0], steps):
                return f"{shape} has not one row for each of {found.steps} steps"
            shape = shape[1:]
        if shape != known.shape or source.dtype is not known.dtype:
            return f"input {number} is {shape} {source.dtype}, not {known.shape} {known.dtype}"
    for number, root in enumerate(body.roots[: found.carries]):
        source = found.src[number]
        if root.shape != source.shape or root.dtype is not source.dtype:
            return f"carry {number} becomes {root.shape} {root.dtype}"
    return None


def _loop_values(found: Loop, arrays: Sequence[Array], items: Sequence[int]) -> list[Array]:
    """A plain loop over the body's meaning; only the items asked for are kept."""
    carries, roots = found.carries, found.body.roots
    steps = found.dim if isinstance(found.dim, int | None) else int(arrays[-1])
    now, rest = list(arrays[:carries]), arrays[carries + found.scanned :]
    rows = arrays[carries : carries + found.scanned]
    kept: dict[int, Array] = {}
    for item in items:
        if item >= carries:
            root = roots[item if item < len(roots) else found.trailed(item)]
            shape: Any = (steps, *root.shape)
            kept[item] = np.zeros(shape, root.dtype.numpy)
    done = 0
    while (steps is None or done < steps) and (found.mode != "while" or bool(now[0])):
        row = done if not found.reverse or steps is None else steps - 1 - done
        done += 1
        if found.mode == "where" and not rows[0][row]:
            continue
        given = found.body.values([*now, *[array[row] for array in rows], *rest])
        for item, stack in kept.items():
            stack[row] = given[item] if item < len(roots) else now[found.trailed(item)]
        now = given[:carries]
    return [now[item] if item < carries else kept[item] for item in items]


def _loop_grad(
    flows: Sequence[Node | None], nodes: Sequence[Node], wanted: Sequence[bool]
) -> tuple[Node | None, ...]:
    """A loop over the same rows in the other direction, which computes each step again.

    It carries the gradients of the carries, and adds up those of what stays the same.
    """
    found = Loop.of(nodes[0])
    if found.steps is None:
        raise GradientError(
            "a loop without a bound has no gradient",
            "say the most steps that it may take: fg.while_loop(..., max_steps=100)",
            places(nodes[0].origins),
        )
    carries, roots = found.carries, found.body.roots
    flow = {n.arg[0]: f for n, f in zip(nodes, flows, strict=True) if f is not None}
    leaves = [found.leaf(i) for i in range(len(found.inputs))]
    active = _active(found, leaves, wanted)
    asked = [i for i in range(len(leaves)) if i in active or (i >= carries and wanted[i])]
    number = iter(range(len(leaves), 1 << 30))
    gave = [i for i in range(carries, len(roots)) if i in flow]
    trails = [i for i in active if len(roots) + i in flow]
    seeds = {i: numbered(next(number), roots[i]) for i in (*active, *gave)}
    late = {i: numbered(next(number), roots[i]) for i in trails}
    parts = gradients([roots[i] for i in seeds], [leaves[i] for i in asked], list(seeds.values()))
    share = {i: part for i, part in zip(asked, parts, strict=True) if part is not None}
    wide = {i: _wide(part) for i, part in share.items() if i >= carries + found.scanned}
    sums = {i: numbered(next(number), part) for i, part in wide.items()}
    rows = [i for i in share if carries <= i < carries + found.scanned]
    out = [
        *[_sum(share.get(i), late.get(i), leaves[i]) for i in active],
        *[leaf + wide[i] for i, leaf in sums.items()], *[share[i] for i in rows],
    ]  # fmt: skip

    order = toposort(out)
    read = [i for i, leaf in enumerate(leaves) if leaf in set(order)]
    scanned: list[tuple[Node, Node]] = []  # a leaf of the new body, and its rows
    if found.mode != "all":
        mask = found.trail(0) if found.mode == "while" else found.src[carries]
        scanned.append((param(next(number), (), bool_, None), mask))
    scanned += [(leaves[i], found.trail(i)) for i in read if i < carries]
    scanned += [(leaves[i], found.src[i]) for i in read if carries <= i < carries + found.scanned]
    scanned += [(seeds[i], flow[i]) for i in gave]
    scanned += [(leaf, flow[len(roots) + i]) for i, leaf in late.items()]
    rest = [i for i in read if i >= carries + found.scanned]
    init = [flow.get(i, constant_like(0, roots[i])) for i in active]
    init += [constant_like(0, leaf) for leaf in sums.values()]
    inputs = [*[seeds[i] for i in active], *sums.values(), *[leaf for leaf, _ in scanned]]
    outer = {leaves[i]: found.src[i] for i in rest}
    hoisted = invariant(order, {n for n in order if n.op in HOSTS})
    body, taken = close(out, inputs, lambda n: n in outer or hoisted(n))
    back = loop(
        body, init, [source for _, source in scanned],
        [substitute(n, outer, walk=True) for n in taken], found.steps, not found.reverse,
        "all" if found.mode == "all" else "where",
    )  # fmt: skip
    results = {i: back.item(place) for place, i in enumerate((*active, *sums, *rows))}
    narrow = {i: CAST(results[i], arg=leaves[i].dtype) for i in sums if wide[i] is not share[i]}
    return tuple([narrow.get(i, results.get(i)) for i in range(len(found.src))])


def _wide(part: Node) -> Node:
    """What is added up over many steps, in a dtype that can hold the sum."""
    return CAST(part, arg=float32) if part.dtype.is_small_float else part


def _active(found: Loop, leaves: Sequence[Node], wanted: Sequence[bool]) -> list[int]:
    """The carries that depend on what gradients are wanted by, in this step or an earlier one."""
    active = {i for i in range(found.carries) if wanted[i]}
    while True:
        known = [leaf for i, leaf in enumerate(leaves) if wanted[i] or i in active]
        live = live_nodes(found.body.order, known)
        more = {i for i, r in enumerate(found.body.roots[: found.carries])
                if r in live and r.dtype.is_inexact}  # fmt: skip
        if more <= active:
            return sorted(active)
        active |= more


def _loop_tangent(y: Node, moving: Sequence[Node | None]) -> Node | None:
    """A loop that carries how the carries move beside them."""
    from ..tangent import tangents  # which knows these ops

    found = Loop.of(y)
    leaves = [found.leaf(i) for i in range(len(found.inputs))]
    active = _active(found, leaves, [m is not None for m in moving])
    asked = [i for i in range(len(leaves)) if i in active or moving[i] is not None]
    seeds = {i: numbered(len(leaves) + i, leaves[i]) for i in asked}
    moves = tangents(found.body.roots, [leaves[i] for i in asked], list(seeds.values()))
    first, rows = found.carries, found.carries + found.scanned
    given = [i for i in range(first, len(moves)) if moves[i] is not None]
    parts = [range(first), range(first, rows), range(rows, len(leaves))]
    inputs = [leaf for part in parts for leaf in (
        *[leaves[i] for i in part], *[seeds[i] for i in part if i in seeds])]  # fmt: skip
    roots = found.body.roots
    out = [*roots[:first], *[_sum(moves[i], None, leaves[i]) for i in active], *roots[first:],
           *[move for i in given if (move := moves[i]) is not None]]  # fmt: skip
    init, scanned, rest = (
        [*[found.src[i] for i in part],
         *[_sum(moving[i], None, found.src[i]) for i in part if i in seeds]]
        for part in parts
    )  # fmt: skip
    body, _ = close(out, inputs, lambda n: False)
    both = loop(body, init, scanned, rest, found.steps, found.reverse, found.mode)
    places = {carry: first + at for at, carry in enumerate(active)}
    places |= {len(roots) + carry: len(out) + at for carry, at in places.items()}
    places |= {item: len(active) + len(roots) + at for at, item in enumerate(given)}
    return both.item(places[y.arg[0]]) if y.arg[0] in places else None


def _loop_batch(y: Node, src: tuple[Node, ...]) -> Node:
    """A loop over batches: what is the same for all examples stays one."""
    found = Loop.of(y)
    if found.mode != "all":
        raise ArgumentError(
            "examples cannot leave a while_loop one by one",
            "loop over whole batches: vmap the body, and go on while fg.any needs it",
            places(y.origins),
        )
    rows = range(found.carries, found.carries + found.scanned)
    size = _whole(src[0].shape[0], y)
    one = [i >= found.carries and s is spread(y.src[i], size) for i, s in enumerate(src)]
    leaves = [found.leaf(i) for i in range(len(found.inputs))]
    out, inputs = _batched_roots(found.body, leaves, one, size)
    sources = [
        y.src[i] if one[i] else permute(src[i], _swapped(src[i])) if i in rows else src[i]
        for i in range(len(leaves))
    ]
    many = loop(
        close(out, inputs, lambda n: False)[0], sources[: found.carries],
        sources[found.carries : rows.stop], sources[rows.stop :], found.steps, found.reverse,
    ).item(y.arg[0])  # fmt: skip
    return many if y.arg[0] < found.carries else permute(many, _swapped(many))


def _whole(size: Size, y: Node) -> int:
    if isinstance(size, int):
        return size
    hint = "inside a body sizes are fixed: vmap over a fixed number of examples"
    raise ArgumentError(f"a {y.op} over a variable number of examples", hint, places(y.origins))


def _swapped(x: Node) -> tuple[int, ...]:
    return (1, 0, *range(2, x.ndim))


def _batched_roots(
    body: Body, leaves: Sequence[Node], one: Sequence[bool], size: int
) -> tuple[list[Node], list[Node]]:
    """What a body computes for all examples, and its inputs; those in `one` have no batch axis."""
    batch = new_batch()
    inputs = [leaf if one[i] else param(i, (size, *leaf.shape), leaf.dtype, None)
              for i, leaf in enumerate(leaves)]  # fmt: skip
    examples = {leaf: EXAMPLE(many, arg=batch)
                for leaf, many in zip(leaves, inputs, strict=True) if leaf is not many}  # fmt: skip
    roots = substitute(SINK(*body.roots), examples, walk=True).src
    found = batched(roots, batch)
    return [node if has else spread(node, size) for node, has in found], inputs


def _sum(a: Node | None, b: Node | None, like: Node) -> Node:
    if a is None:
        return constant_like(0, like) if b is None else b
    return a if b is None else a + b


LOOP = Op(
    name="loop", family="control", doc="a result of a body that is run step by step", arity=None,
    dtype=None, numpy=_numpy, shape=_loop_shape, grad=_loop_grad, batch=_loop_batch,
    tangent=_loop_tangent, check=_loop_check, siblings=_siblings, cost=1000,
)  # fmt: skip


# --- choice --------------------------------------------------------------------------------------


def choice(chosen: Node, then: Body, other: Body, inputs: Sequence[Node]) -> list[Node]:
    """Every result of one of two bodies, by a bool."""
    return [
        make(COND, root.dtype, (chosen, *inputs), (item, then, other))
        for item, root in enumerate(then.roots)
    ]


def _cond_check(node: Node) -> str | None:
    item, then, other = node.arg
    if not isinstance(then, Body) or not isinstance(other, Body):
        return "a choice is between two bodies"
    if not node.src or node.src[0].dtype is not bool_ or node.src[0].shape != ():
        return "a choice needs a bool that decides"
    for body in (then, other):
        for number, known in body.params.items():
            if number >= len(node.src) - 1:
                return f"a body reads input {number} of {len(node.src) - 1}"
            source = node.src[number + 1]
            if source.shape != known.shape or source.dtype is not known.dtype:
                return f"input {number} is {source.shape} {source.dtype}, not {known.shape}"
    types = [[(root.shape, root.dtype) for root in body.roots] for body in (then, other)]
    if types[0] != types[1] or not 0 <= item < len(then.roots):
        return f"there is no item {item} that both bodies give"
    return None


def _cond_grad(
    flows: Sequence[Node | None], nodes: Sequence[Node], wanted: Sequence[bool]
) -> tuple[Node | None, ...]:
    """A choice between the gradients of the two bodies, each of which computes its body again."""
    source = nodes[0].src
    bodies: tuple[Body, ...] = nodes[0].arg[1:]
    flow = {n.arg[0]: f for n, f in zip(nodes, flows, strict=True) if f is not None}
    leaves = [numbered(i, n) for i, n in enumerate(source[1:])]
    seeds = {i: numbered(len(leaves) + place, f) for place, (i, f) in enumerate(flow.items())}
    asked = [i for i in range(len(leaves)) if wanted[i + 1]]
    shares = [
        gradients([body.roots[i] for i in seeds], [leaves[i] for i in asked], list(seeds.values()))
        for body in bodies
    ]
    reached = [place for place in range(len(asked)) if any(s[place] is not None for s in shares)]
    outs = [[_sum(s[place], None, leaves[asked[place]]) for place in reached] for s in shares]
    nodes_read = {n for out in outs for n in toposort(out)}
    read = [i for i, leaf in enumerate(leaves) if leaf in nodes_read]
    inputs = [*[leaves[i] for i in read], *seeds.values()]
    then, other = (close(out, inputs, lambda n: False)[0] for out in outs)
    results = choice(source[0], then, other, [*[source[i + 1] for i in read], *flow.values()])
    found = {asked[place] + 1: r for place, r in zip(reached, results, strict=True)}
    return tuple([found.get(i) for i in range(len(source))])


def _cond_batch(y: Node, src: tuple[Node, ...]) -> Node:
    """A choice for all examples at once, or both bodies where each example chooses."""
    item: int = y.arg[0]
    bodies: tuple[Body, ...] = y.arg[1:]
    size = _whole(src[0].shape[0], y)
    leaves = [numbered(i, n) for i, n in enumerate(y.src[1:])]
    one = [s is spread(n, size) for s, n in zip(src[1:], y.src[1:], strict=True)]
    sources = [n if alone else s for alone, n, s in zip(one, y.src[1:], src[1:], strict=True)]
    made = [_batched_roots(body, leaves, one, size) for body in bodies]
    if src[0] is spread(y.src[0], size):
        then, other = (close(out, inputs, lambda n: False)[0] for out, inputs in made)
        return choice(y.src[0], then, other, sources)[item]
    given = dict(zip(made[0][1], sources, strict=True))
    a, b = (substitute(out[item], given, walk=True) for out, _ in made)
    return WHERE(expand(reshape(src[0], (size, *[1] * (a.ndim - 1))), a.shape), a, b)


COND = Op(
    name="cond", family="control", doc="a result of the first body if a bool holds, else of the "
    "second", arity=None, dtype=None, numpy=_numpy, grad=_cond_grad, batch=_cond_batch,
    shape=lambda node: node.arg[1].roots[node.arg[0]].shape, check=_cond_check,
    siblings=_siblings, cost=1000,
)  # fmt: skip
