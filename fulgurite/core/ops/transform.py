"""Ops of transforms: one example of a batch, and a value with a gradient rule of its own.

EXAMPLE is what a function under `vmap` is given: one element along the leading axis of its source.
It has no value; `batched` rewrites what was built from it into the computation for all examples at
once, by the batch rule of every op. What does not depend on an example is left as it is.
OVERRIDE passes its first source through; its gradient is that of a `Rule`, which is given the
gradients of all results of one call together and gives those of the further sources, its inputs.
Both are gone before a graph is compiled: the key looks through OVERRIDE.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError
from ..node import Node, Shape, Size, constant_bits, remember, toposort
from ..op import NOBODY, Array, Op
from ..origin import places
from .effect import HostFunction
from .leaf import CONST
from .movement import EXPAND, expand, reshape

_scopes = itertools.count(1)


def new_batch() -> int:
    """A number that tells the examples of one `vmap` from those of another."""
    return next(_scopes)


# --- one example ---------------------------------------------------------------------------------


def _no_value(node: Node, a: Array) -> Array:
    raise ArgumentError(
        "inside vmap or shard_map the value of one example or rank is not known",
        "leave item(), numpy(), realize() and `if` on values until after it",
        places(node.origins) or None,
    )


EXAMPLE = Op(
    name="example", family="transform", doc="one element along the leading axis, in a vmap",
    arity=1, numpy=_no_value, shape=lambda node: node.src[0].shape[1:],
    interval=lambda node, bounds: bounds[0], cost=0,
    check=lambda node: None if node.src[0].ndim else "a number holds no examples",
)  # fmt: skip


def batched(roots: Sequence[Node], batch: int) -> list[tuple[Node, bool]]:
    """Each root for all examples at once, and whether it has the batch axis (in front) at all."""
    done: dict[Node, Node] = {}
    for node in toposort(roots):
        if node.op is EXAMPLE and node.arg == batch:
            done[node] = node.src[0]
        elif any([s in done for s in node.src]):
            done[node] = remember(_batched(node, done), node.origins)
    return [(done.get(root, root), root in done) for root in roots]


def _batched(node: Node, done: dict[Node, Node]) -> Node:
    op = node.op
    if op.batch is None:
        raise ArgumentError(f"{op} has no batch rule", "move it out of vmap", places(node.origins))
    size = next(done[s] for s in node.src if s in done).shape[0]
    data = node.src if op.arity is None else node.src[: op.arity]
    made = op.batch(node, tuple([done[s] if s in done else spread(s, size) for s in data]))
    problem = made.op.check(made) if op.family == "effect" else None
    if problem is not None:
        raise ArgumentError(
            f"{op} of examples: {problem}",
            "memory outside vmap is not assigned by one example: return the value",
            places(node.origins),
        )
    return made


def spread(x: Node, size: Size) -> Node:
    """The same value for every example; what is expanded stays an expansion of the little it is."""
    shape: Shape = (size, *x.shape)
    if x.op is CONST:
        return constant_bits(x.arg[0], x.dtype, shape)
    inner = x.src[0] if x.op is EXPAND else x
    return expand(reshape(inner, (1, *inner.shape)), shape)


# --- a gradient rule -----------------------------------------------------------------------------

Pull = Callable[..., Sequence[Node | None]]


class Rule(HostFunction):
    """The gradient of one call: known by identity, and by name in text.

    `backward(gradients, *inputs)` takes one gradient for each of `results` (None where there is
    none) and gives one for each input; `forward(tangents, *inputs)`, where there is one, takes a
    tangent for each input and gives one for each result. A `plain` rule says what the graph would
    say, at another cost: derivatives that do not use it may look through.
    """

    __slots__ = ("each", "forward", "plain", "results")

    def __init__(
        self,
        name: str,
        backward: Pull,
        results: int = 1,
        plain: bool = False,
        forward: Pull | None = None,
    ) -> None:
        super().__init__(name, _not_called, backward)
        self.results, self.plain, self.forward = results, plain, forward
        self.each: weakref.ref[Rule] | None = None  # which holds this one: no cycle

    def batched_rule(self) -> Rule:
        """The rule for a batch of calls; the same while it lives, so that results stay one call."""
        found = None if self.each is None else self.each()
        if found is None:
            forward = None if self.forward is None else self._forward_each
            found = Rule(
                f"{self.name}.each", self._backward_each, self.results, self.plain, forward
            )
            self.each = weakref.ref(found)
        return found

    def _backward_each(self, gradients: Sequence[Node | None], *inputs: Node) -> list[Node | None]:
        assert self.backward is not None
        return self._each(self.backward, gradients, inputs)

    def _forward_each(self, tangents: Sequence[Node | None], *inputs: Node) -> list[Node | None]:
        assert self.forward is not None
        return self._each(self.forward, tangents, inputs)

    def _each(
        self, rule: Pull, flows: Sequence[Node | None], inputs: Sequence[Node]
    ) -> list[Node | None]:
        """One example's rule for all of them."""
        size = inputs[0].shape[0]
        return each_example(lambda one: rule(one(flows), *one(inputs)), size)


Taken = Callable[[Sequence[Any]], list[Any]]  # one example of every value that there is


def each_example(rule: Callable[[Taken], Sequence[Node | None]], size: Size) -> list[Node | None]:
    """What a rule gives for one example, for all of them: the rule is called once."""
    batch = new_batch()
    shares = rule(lambda values: [None if v is None else EXAMPLE(v, arg=batch) for v in values])
    found = iter(batched([share for share in shares if share is not None], batch))
    return [None if s is None else _all_of(*next(found), size) for s in shares]


def _not_called(*arrays: Array) -> Array:
    raise AssertionError("a rule is of gradients: it has no value")


def _all_of(node: Node, has_axis: bool, size: Size) -> Node:
    return node if has_axis else spread(node, size)


def override(rule: Rule, place: int, value: Node, inputs: Sequence[Node]) -> Node:
    """A value that is result number `place` of a call with these inputs."""
    return OVERRIDE(value, *inputs, arg=(rule, place))


def _override_grad(
    flows: Sequence[Node | None], nodes: Sequence[Node], wanted: Sequence[bool]
) -> tuple[Node | None, ...]:
    """The rule's gradients of the inputs, from those of all results of a call; none of a value."""
    rule: Rule = nodes[0].arg[0]
    gradients: list[Node | None] = [None] * rule.results
    for node, flow in zip(nodes, flows, strict=True):
        before = gradients[node.arg[1]]
        if flow is not None:
            gradients[node.arg[1]] = flow if before is None else before + flow
    assert rule.backward is not None
    return (None, *rule.backward(gradients, *nodes[0].src[1:]))


def _override_check(node: Node) -> str | None:
    rule, place = node.arg
    if not isinstance(rule, Rule) or not 0 <= place < rule.results:
        return f"{place} is no result of {rule!r}"
    return None if node.src else "a call has a value"


def _inputs_watched(node: Node) -> frozenset[int]:
    found: frozenset[int] = NOBODY
    if node.dtype.is_inexact:
        found = found.union(*[source.watched for source in node.src[1:]])
    return found


def override_tangent(node: Node, sources: Sequence[Node | None]) -> Node | None:
    """How a result of a call with a rule for it moves: the value's own tangent is not asked."""
    rule: Rule = node.arg[0]
    assert rule.forward is not None
    moved: Node | None = rule.forward(sources[1:], *node.src[1:])[node.arg[1]]
    return moved


def _first_bounds(node: Node, bounds: list[Any]) -> Any:
    return bounds[0]


OVERRIDE: Op = Op(
    name="override", family="transform", doc="the first source, with a gradient rule of its own",
    arity=None, numpy=lambda node, a, *_: a, grad=_override_grad,
    siblings=lambda node: (node.arg[0], node.src[1:]), interval=_first_bounds, cost=0,
    batch=lambda y, src: OVERRIDE(*src, arg=(y.arg[0].batched_rule(), y.arg[1])),
    watched=_inputs_watched, check=_override_check,
)  # fmt: skip
