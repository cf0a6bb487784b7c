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

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import field
from itertools import chain, compress, count
from math import prod
from typing import Any

import numpy as np

from ...errors import ArgumentError, GradientError
from ..dtype import bool_, float32
from ..gradient import gradients, live_nodes
from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from ..node import Dims, Node, Shape, Size, constant_like, dims_of, make, shape_of, toposort
from ..op import Array, Op
from ..origin import places
from ..rewriting.substitute import substitute
from ..shape import same
from .body import Body, close, invariant, numbered
from .effect import HOSTS
from .elementwise import CAST, MUL, WHERE
from .leaf import SINK, param
from .movement import EXPAND, PERMUTE, RESHAPE, expand, permute, reshape
from .reduce import REDUCE
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

    @property
    def rows(self) -> range:
        """The numbers of the inputs of which each step gets one row."""
        return range(self.carries, self.carries + self.scanned)

    @property
    def invariants(self) -> range:
        """The numbers of the inputs that are the same in every step."""
        return range(self.carries + self.scanned, len(self.inputs))

    @property
    def leaves(self) -> list[Node]:
        """The body's params, one for each input."""
        return [self.leaf(number) for number in range(len(self.inputs))]

    def root(self, item: int) -> Node:
        """What one step computes of an item."""
        return self.body.roots[item if item < len(self.body.roots) else self.trailed(item)]

    def item(self, number: int) -> Node:
        """One of the results: a last carry, what the steps gave, or a carry's trail."""
        return make(LOOP, self.root(number).dtype, self.src, (number, *self[:6]))

    def trailed(self, number: int) -> int:
        """The carry whose trail an item is."""
        return number - len(self.body.roots)

    def trail(self, carry: int) -> Node:
        """A carry as it was before every step, stacked."""
        return self.item(len(self.body.roots) + carry)

    def before(self, number: int) -> Node:
        """An input of the body as each step got it, stacked."""
        return self.trail(number) if number < self.carries else self.src[number]

    def leaf(self, number: int) -> Node:
        """The body's param of this number, whether the body reads it or not."""
        found = self.body.params.get(number)
        if found is not None:
            return found
        source = self.src[number]
        shape = source.shape[1:] if number in self.rows else source.shape
        return param(number, shape, source.dtype, None)

    def order(self, steps: int | None) -> Iterable[int]:
        """The row of each step, first to last."""
        if steps is None:
            return count()
        return range(steps)[::-1] if self.reverse else range(steps)


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


@dataclass
class _LoopBuilder:
    """A loop that is being put together: leaves of its body, each with what it stands for."""

    carried: list[tuple[Node, Node]] = field(default_factory=list)  # a leaf, and its first value
    scanned: list[tuple[Node, Node]] = field(default_factory=list)  # a leaf, and its rows
    fixed: list[tuple[Node, Node]] = field(default_factory=list)  # a leaf, and its value
    given: list[Node] = field(default_factory=list)  # what each step gives
    _after: list[Node] = field(default_factory=list)  # each carry after a step

    def carry(self, leaf: Node, first: Node, after: Node) -> None:
        """Carry a value from step to step."""
        self.carried.append((leaf, first))
        self._after.append(after)

    @property
    def roots(self) -> list[Node]:
        """What the body computes."""
        return [*self._after, *self.given]

    def close(
        self, steps: Size | None, reverse: bool, mode: str, captured: Callable[[Node], bool],
        outer: dict[Node, Node],
    ) -> Loop:  # fmt: skip
        """The loop; what `captured` says of the body comes from outside, where `outer` names it."""
        pairs = [*self.carried, *self.scanned, *self.fixed]
        body, taken = close(self.roots, [leaf for leaf, _ in pairs], captured)
        init, scanned, fixed = (
            [source for _, source in part] for part in (self.carried, self.scanned, self.fixed)
        )
        rest = [*fixed, *[substitute(node, outer, walk=True) for node in taken]]
        return loop(body, init, scanned, rest, steps, reverse, mode)


def _loop_shape(node: Node) -> Shape:
    found = Loop.of(node)
    last = found.root(node.arg[0]).shape
    if node.arg[0] < found.carries:
        return last
    assert found.steps is not None, "a loop without a bound stacks nothing"
    return (found.steps, *last)


def _loop_check(node: Node) -> str | None:
    found = Loop.of(node)
    problems = chain(_form_problems(node, found), _input_problems(found), _carry_problems(found))
    return next(problems, None)


def _form_problems(node: Node, found: Loop) -> Iterator[str]:
    """How the argument does not describe a loop over these sources."""
    body, mode = found.body, found.mode
    items = len(body.roots) + found.carries if found.dim is not None else found.carries
    if not isinstance(body, Body) or mode not in MODES or not 0 <= node.arg[0] < items:
        yield f"there is no item {node.arg[0]} in a loop {mode!r} of {items}"
    if found.rows.stop > len(found.inputs) or found.given < 0:
        yield f"{len(found.src)} sources are too few for {found.carries} carries and their rows"
    deciding = {"all": None, "while": range(found.carries), "where": found.rows}[mode]
    if deciding is not None and (not deciding or found.leaf(deciding[0]).dtype is not bool_):
        yield f"a loop {mode!r} needs a bool that decides"


def _input_problems(found: Loop) -> Iterator[str]:
    """How the sources differ from what the body reads."""
    steps = 0 if found.steps is None else found.steps
    for number, known in found.body.params.items():
        if number >= len(found.inputs):
            yield f"the body reads input {number} of {len(found.inputs)}"
        source = found.src[number]
        shape = source.shape
        if number in found.rows:
            if not shape or found.dim is None or not same(shape[0], steps):
                yield f"{shape} has not one row for each of {found.steps} steps"
            shape = shape[1:]
        if shape != known.shape or source.dtype is not known.dtype:
            yield f"input {number} is {shape} {source.dtype}, not {known.shape} {known.dtype}"


def _carry_problems(found: Loop) -> Iterator[str]:
    """How a carry after a step differs from what it was before."""
    for number, root in enumerate(found.body.roots[: found.carries]):
        source = found.src[number]
        if root.shape != source.shape or root.dtype is not source.dtype:
            yield f"carry {number} becomes {root.shape} {root.dtype}"


def _loop_values(found: Loop, arrays: Sequence[Array], items: Sequence[int]) -> list[Array]:
    """A plain loop over the body's meaning; only the items requested are kept."""
    carries, roots = found.carries, found.body.roots
    steps = found.dim if isinstance(found.dim, int | None) else int(arrays[-1])
    now, rest = list(arrays[:carries]), arrays[found.rows.stop :]
    rows = arrays[carries : found.rows.stop]
    kept: dict[int, Array] = {}
    for item in items:
        if item >= carries:
            shape: Any = (steps, *found.root(item).shape)
            kept[item] = np.zeros(shape, found.root(item).dtype.numpy)
    for row in found.order(steps):
        if found.mode == "while" and not now[0]:
            break
        if found.mode == "where" and not rows[0][row]:
            continue
        given = found.body.values([*now, *[array[row] for array in rows], *rest])
        for item, stack in kept.items():
            stack[row] = given[item] if item < len(roots) else now[found.trailed(item)]
        now = given[:carries]
    return [now[item] if item < carries else kept[item] for item in items]


class _StepGradient:
    """The gradient of one step of a loop, as nodes over the body's leaves and seeds."""

    def __init__(self, found: Loop, flow: dict[int, Node], wanted: Sequence[bool]) -> None:
        self.found, self.flow = found, flow
        leaves, roots = self.leaves, self.roots = found.leaves, found.body.roots
        number = self.number = iter(range(len(leaves), 1 << 30))  # of leaves that are free
        self.active, asked = _active(found, leaves, wanted)
        gave = [i for i in range(found.carries, len(roots)) if i in flow]
        # by root the leaf that is its gradient, and by carry the one that is its trail's
        self.seeds = {i: numbered(next(number), roots[i]) for i in (*self.active, *gave)}
        self.trails = {i: numbered(next(number), roots[i]) for i in self.active
                       if len(roots) + i in flow}  # fmt: skip
        of = [roots[i] for i in self.seeds]
        parts = gradients(of, [leaves[i] for i in asked], list(self.seeds.values()))
        self.share = {i: part for i, part in zip(asked, parts, strict=True) if part is not None}
        self.add_up()

    def add_up(self) -> None:
        """Settle what each step gives, and where the shares of invariants are added up."""
        found, share = self.found, self.share
        self.rows = [i for i in found.rows if i in share]
        self.given = [share[i] for i in self.rows]
        fixed = [i for i in found.invariants if i in share]
        products = {i: self.outer_product(share[i]) for i in fixed}
        self.later = {i: fold for i, fold in products.items() if fold is not None}  # after the loop
        self.totals = {i: _wide(share[i]) for i in fixed if i not in self.later}  # in each step

    def outer_product(self, part: Node) -> Node | None:
        """The contraction that a share is, if its factors are kept for all steps anyway and reading
        them moves less than adding it up."""
        found, fold = self.found, _moved(part)
        is_sum = fold.op is REDUCE and fold.arg[0] == "add" and fold.src[0].op is MUL
        if found.mode != "all" or not isinstance(found.steps, int) or not is_sum:
            return None
        factors = [_moved(factor) for factor in fold.src[0].src]
        kept = {*self.leaves[: found.rows.stop], *self.given}
        sizes = [[n for n in x.shape if isinstance(n, int)] for x in (*factors, part)]
        *few, many = map(prod, sizes)
        return fold if kept.issuperset(factors) and sum(few) <= many else None

    def joined(self, i: int, made: Loop) -> Node:
        """The gradient of an invariant by one contraction, of rows of all steps."""
        found, fold, batch = self.found, self.later[i], new_batch()
        examples = {}
        for factor in map(_moved, fold.src[0].src):
            if factor in self.given:
                rows = made.item(made.carries + self.given.index(factor))
            else:
                rows = found.before(self.leaves.index(factor))
            examples[factor] = EXAMPLE(rows, arg=batch)
        pair = substitute(SINK(*fold.src[0].src), examples, walk=True).src
        product = MUL(*[node for node, _ in batched(pair, batch)])
        name, axes = fold.arg
        whole = REDUCE(product, arg=(name, (0, *[axis + 1 for axis in axes])))
        return substitute(self.share[i], {fold: reshape(whole, fold.shape)}, walk=True)

    def carry(self, back: _LoopBuilder) -> None:
        """What goes from step to step: gradients of carries, and sums of those of invariants."""
        for i in self.active:
            after = _sum(self.share.get(i), self.trails.get(i), self.leaves[i])
            back.carry(self.seeds[i], self.flow.get(i, constant_like(0, self.roots[i])), after)
        for part in self.totals.values():
            leaf = numbered(next(self.number), part)
            back.carry(leaf, constant_like(0, leaf), leaf + part)
        back.given = self.given

    def scan(self, back: _LoopBuilder, read: Set[Node]) -> None:
        """What each step gets: whether it happened, its inputs, and what flows into its results."""
        found = self.found
        if found.mode != "all":
            mask = found.trail(0) if found.mode == "while" else found.src[found.carries]
            back.scanned.append((param(next(self.number), (), bool_, None), mask))
        for i, leaf in enumerate(self.leaves[: found.rows.stop]):
            if leaf in read:
                back.scanned.append((leaf, found.before(i)))
        back.scanned += [(s, self.flow[i]) for i, s in self.seeds.items() if i >= found.carries]
        back.scanned += [(s, self.flow[len(self.roots) + i]) for i, s in self.trails.items()]


def _loop_grad(
    flows: Sequence[Node | None], nodes: Sequence[Node], wanted: Sequence[bool]
) -> tuple[Node | None, ...]:
    """A loop over the same rows in the other direction, which computes each step again.

    It carries the gradients of the carries, and adds up those of what stays the same; if those
    are products of a few rows, they are one product of the rows of all steps after the loop.
    """
    found = Loop.of(nodes[0])
    if found.steps is None:
        raise GradientError(
            "a loop without a bound has no gradient",
            "say the most steps that it may take: fg.while_loop(..., max_steps=100)",
            places(nodes[0].origins),
        )
    step, back = _StepGradient(found, _by_item(flows, nodes), wanted), _LoopBuilder()
    step.carry(back)
    order = toposort(back.roots)
    step.scan(back, set(order))
    outer = {step.leaves[i]: found.src[i] for i in found.invariants}
    hoisted = invariant(order, {n for n in order if n.op in HOSTS})
    mode = "all" if found.mode == "all" else "where"
    made = back.close(
        found.steps, not found.reverse, mode, lambda n: n in outer or hoisted(n), outer
    )
    items = (*step.active, *step.totals, *step.rows)
    results = {i: made.item(place) for place, i in enumerate(items)}
    for i, total in step.totals.items():
        if total is not step.share[i]:
            results[i] = CAST(results[i], arg=step.leaves[i].dtype)
    results |= {i: step.joined(i, made) for i in step.later}
    return tuple([results.get(i) for i in range(len(found.src))])


def _by_item(flows: Sequence[Node | None], nodes: Sequence[Node]) -> dict[int, Node]:
    """What flows into each result of a computation, by its item."""
    return {n.arg[0]: f for n, f in zip(nodes, flows, strict=True) if f is not None}


def _moved(node: Node) -> Node:
    """What is moved or repeated to be a node."""
    while node.op in (EXPAND, PERMUTE, RESHAPE):
        node = node.src[0]
    return node


def _wide(part: Node) -> Node:
    """What is added up over many steps, in a dtype that can hold the sum."""
    return CAST(part, arg=float32) if part.dtype.is_small_float else part


def _active(
    found: Loop, leaves: Sequence[Node], wanted: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """The carries that depend on what gradients are wanted by, in this step or an earlier one.

    And all inputs that a step is differentiated by: those carries and what is wanted.
    """
    active = {i for i in range(found.carries) if wanted[i]}
    while True:
        asked = [i for i in range(len(leaves)) if wanted[i] or i in active]
        live = live_nodes(found.body.order, [leaves[i] for i in asked])
        more = {i for i, r in enumerate(found.body.roots[: found.carries])
                if r in live and r.dtype.is_inexact}  # fmt: skip
        if more <= active:
            return sorted(active), asked
        active |= more


def _loop_tangent(y: Node, moving: Sequence[Node | None]) -> Node | None:
    """A loop that carries how the carries move beside them."""
    from ..tangent import tangents  # which knows these ops

    found = Loop.of(y)
    leaves, roots, first = found.leaves, found.body.roots, found.carries
    active, asked = _active(found, leaves, [m is not None for m in moving])
    seeds = {i: numbered(len(leaves) + i, leaves[i]) for i in asked}
    moves = tangents(roots, [leaves[i] for i in asked], list(seeds.values()))
    both = _LoopBuilder()
    for i in range(first):
        both.carry(leaves[i], found.src[i], roots[i])
    for i in active:
        at_first, after = _sum(moving[i], None, found.src[i]), _sum(moves[i], None, leaves[i])
        both.carry(seeds[i], at_first, after)
    for part, pairs in ((found.rows, both.scanned), (found.invariants, both.fixed)):
        pairs += [(leaves[i], found.src[i]) for i in part]
        pairs += [(seeds[i], move) for i in part if (move := moving[i]) is not None]
    given = {i: m for i, m in enumerate(moves[first:], first) if m is not None}
    both.given = [*roots[first:], *given.values()]
    made = both.close(found.steps, found.reverse, found.mode, lambda n: False, {})
    # the result of which each item is the move: of carries, of what is given, and of trails
    moved = [*[None] * first, *active, *[None] * found.given, *given, *[None] * first,
             *[len(roots) + i for i in active]]  # fmt: skip
    return made.item(moved.index(y.arg[0])) if y.arg[0] in moved else None


def _loop_batch(y: Node, src: tuple[Node, ...]) -> Node:
    """A loop over batches: what is the same for all examples stays one."""
    found = Loop.of(y)
    if found.mode != "all":
        raise ArgumentError(
            "examples cannot leave a while_loop one by one",
            "loop over whole batches: vmap the body, and go on while fg.any needs it",
            places(y.origins),
        )
    rows = found.rows
    size = _whole(src[0].shape[0], y)
    one = [i >= found.carries and s is spread(y.src[i], size) for i, s in enumerate(src)]
    leaves = found.leaves
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
    tangent=_loop_tangent, check=_loop_check, siblings=_siblings, cost=1000, sizes=slice(4, 5),
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
    chosen, *sources = nodes[0].src
    bodies: tuple[Body, ...] = nodes[0].arg[1:]
    flow = _by_item(flows, nodes)
    leaves = [numbered(i, n) for i, n in enumerate(sources)]
    seeds = {i: numbered(len(leaves) + place, f) for place, (i, f) in enumerate(flow.items())}
    asked = list(compress(leaves, wanted[1:]))
    shares = [gradients([body.roots[i] for i in seeds], asked, list(seeds.values()))
              for body in bodies]  # fmt: skip
    reached = {leaf: (a, b) for leaf, a, b in zip(asked, *shares, strict=True)
               if a is not None or b is not None}  # fmt: skip
    outs = [[_sum(parts[body], None, leaf) for leaf, parts in reached.items()] for body in (0, 1)]
    read = set(toposort([*outs[0], *outs[1]]))
    inputs = {leaf: n for leaf, n in zip(leaves, sources, strict=True) if leaf in read}
    inputs |= zip(seeds.values(), flow.values(), strict=True)
    then, other = (close(out, list(inputs), lambda n: False)[0] for out in outs)
    results = choice(chosen, then, other, list(inputs.values()))
    found = dict(zip(reached, results, strict=True))
    return (None, *[found.get(leaf) for leaf in leaves])


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
