"""Functions with a forward derivative of their own: `custom_jvp`.

In: a function, and a rule that says how its result moves when its arguments move. Out: the same
function, whose derivatives in both modes come from the rule. Forward mode calls the rule; reverse
mode transposes it: the rule is linear in the tangents, so its gradient by them is the gradient of
the function. Each call becomes an OVERRIDE of its results, as with `custom_vjp`, and the rule is
called only when a derivative is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.gradient import gradients
from ..core.node import Node, constant_like
from ..core.ops.effect import unwatch, watch
from ..core.ops.transform import Rule, override
from ..errors import ArgumentError, GradientError
from ..tensor import Tensor, node_of, transforming, wrap
from ..tree import Form, flatten, leaves_like, unflatten
from .custom_vjp import Custom, check_closed_over, checked
from .grad import check_callable, new_scope, watched_leaf

Jvp = Callable[..., tuple[Any, Any]]


class custom_jvp(Custom):
    """A function with a forward derivative of its own, from which its gradient comes too.

    `defjvp(rule)`: the rule takes two tuples, the arguments and how each of them moves, and returns
    the result and how that moves; it must be linear in the tangents. Or `defjvps(...)`: one rule
    for each argument, `(tangent, result, *arguments)`, or None. Arguments named in
    `nondiff_argnums` (functions, options) come first, before the two tuples. The tangent of what
    has no derivative (whole numbers, None) is None. What it closes over gets no gradient.

    >>> @fg.custom_jvp
    ... def log1pexp(x):
    ...     return fg.log(1 + fg.exp(x))
    >>> @log1pexp.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (dx,) = primals, tangents
    ...     return log1pexp(x), fg.sigmoid(x) * dx
    >>> fg.grad(log1pexp)(fg.Tensor(100.0)).item()
    1.0
    """

    def __init__(
        self, function: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()
    ) -> None:
        super().__init__(function, nondiff_argnums)
        self.rule: Jvp | None = None

    def defjvp(self, rule: Jvp) -> Jvp:
        """Set how the result moves: `rule(primals, tangents)` gives it and its tangent."""
        check_callable(rule)
        self.rule = rule
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Set how the result moves by each argument: `rule(tangent, result, *arguments)`."""
        if self.nondiff:
            raise ArgumentError("defjvps with nondiff_argnums", "use defjvp")

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
            result = self(*primals)
            if len(rules) != len(primals):
                raise GradientError(
                    f"{self.name} has {len(rules)} rules for {len(primals)} arguments",
                    "give defjvps one for each, None for none",
                )
            parts = [
                part(tangent, result, *primals)
                for part, tangent in zip(rules, tangents, strict=True)
                if part is not None and tangent is not None
            ]
            if not parts:
                return result, None
            leaves, form = flatten(parts[0])
            for other in parts[1:]:
                both = zip(leaves, leaves_like(other, form), strict=True)
                leaves = [a + b for a, b in both]
            return result, unflatten(form, leaves)

        self.rule = rule

    def called(self, args: tuple[Any, ...]) -> Any:
        fixed = tuple([args[i] for i in self.nondiff])
        leaves, form = flatten(tuple([a for i, a in enumerate(args) if i not in self.nondiff]))
        scope = new_scope()
        inputs, inside = _watched(leaves, scope)
        if not any([node.watched for node in inputs]):
            return self.function(*args)
        if self.rule is None:
            raise GradientError(f"{self.name} has no derivative yet", "set it with defjvp(rule)")
        mixed = list(unflatten(form, inside))
        for i in self.nondiff:
            mixed.insert(i, args[i])
        with transforming():
            outputs, out_form = flatten(self.function(*mixed))
        values = [node_of(output) for output in outputs]
        check_closed_over(values, scope, self.name)
        call = _Call(self, fixed, form, leaves, out_form, values)
        rule = Rule(self.name, call.backward, len(values), forward=call.forward)
        results = [
            override(rule, i, unwatch(value, scope), inputs) for i, value in enumerate(values)
        ]
        return unflatten(out_form, [wrap(result) for result in results])


def _watched(leaves: Sequence[Any], scope: int) -> tuple[list[Node], list[Any]]:
    """The tensors among some leaves as inputs; the leaves with their watches in place."""
    watches = [watched_leaf(leaf, scope) for leaf in leaves]
    pairs = list(zip(leaves, watches, strict=True))
    inputs = [node_of(leaf) if w is None else w.src[0] for leaf, w in pairs
              if isinstance(leaf, Tensor)]  # fmt: skip
    return inputs, [leaf if w is None else wrap(w) for leaf, w in pairs]


class _Call:
    """One call: what its rule needs, but for the arguments that move, which are inputs."""

    def __init__(
        self, owner: custom_jvp, fixed: tuple[Any, ...], form: Form, leaves: Sequence[Any],
        out_form: Form, values: Sequence[Node],
    ) -> None:  # fmt: skip
        assert owner.rule is not None
        self.rule, self.name, self.fixed, self.form = owner.rule, owner.name, fixed, form
        self.rest = [_INPUT if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.out_form, self.kinds = out_form, [(v.shape, v.dtype) for v in values]

    def forward(self, moves: Sequence[Node | None], *inputs: Node) -> list[Node | None]:
        """How each result moves when each input does."""
        given = zip(inputs, moves, strict=True)
        primals: list[Any] = []
        tangents: list[Any] = []
        for leaf in self.rest:
            if leaf is not _INPUT:
                primals.append(leaf)
                tangents.append(_still(leaf))
                continue
            node, move = next(given)
            primals.append(wrap(node))
            still = constant_like(0, node) if move is None else move
            tangents.append(wrap(still) if node.dtype.is_inexact else None)
        places = unflatten(self.form, primals), unflatten(self.form, tangents)
        with transforming():
            pair = self.rule(*self.fixed, *places)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise GradientError(
                f"the rule of {self.name} returned {type(pair).__name__}",
                "return the result and how it moves: (result, tangent)",
            )
        if pair[1] is None:
            return [None] * len(self.kinds)
        found = leaves_like(pair[1], self.out_form)
        return [self._checked(t, i) for i, t in enumerate(found)]

    def _checked(self, tangent: Any, place: int) -> Node | None:
        shape, dtype = self.kinds[place]
        if tangent is None or not dtype.is_inexact:
            return None
        what = f"the rule of {self.name} returned a tangent"
        return checked(tangent, shape, dtype, what, "a result")

    def backward(self, flows: Sequence[Node | None], *inputs: Node) -> list[Node | None]:
        """The gradients of the inputs: the rule's by the tangents, which it is linear in."""
        scope = new_scope()
        seeds = [
            watch(constant_like(0, node), scope) if node.dtype.is_inexact else None
            for node in inputs
        ]
        moved = zip(self.forward(seeds, *inputs), flows, strict=True)
        pairs = [(m, flow) for m, flow in moved if m is not None and flow is not None]
        wanted = [seed for seed in seeds if seed is not None]
        found = gradients([m for m, _ in pairs], wanted, [flow for _, flow in pairs])
        if any([share is not None and scope in share.watched for share in found]):
            raise GradientError(
                f"the rule of {self.name} is not linear in its tangents",
                "a tangent may only be multiplied by what does not move, and added up",
            )
        shares = iter(found)
        return [None if seed is None else next(shares) for seed in seeds]


_INPUT = object()  # stands where a tensor was among the arguments


def _still(leaf: object) -> Any:
    """The tangent of what does not move: 0 for a number that could, else None."""
    if isinstance(leaf, float | complex):
        return wrap(node_of(leaf * 0))
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "fc":
        return wrap(constant_like(0, node_of(leaf)))  # type: ignore[arg-type]
    return None
