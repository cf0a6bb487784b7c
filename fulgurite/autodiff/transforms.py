"""Transforms of functions: `vmap`, `jvp`, `jacobian`, `hessian`, `checkpoint`.

In: a function of tensors (trees of them too). Out: a function that computes something else of it:
all examples of a batch at once, how its result moves, all its derivatives, or the same with less
memory. Each calls the function once, on stand-ins for its arguments, and rewrites the graph that it
built; so they nest in any order, and cost what the graph costs. `grad`, `value_and_grad` and `vjp`
are in `grad.py`, `custom_vjp` in `customvjp.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..core import build
from ..core.dtype import float32
from ..core.gradient import gradients
from ..core.node import Node, Size, constant, constant_like
from ..core.ops.effect import REMAT, unwatch, watch
from ..core.ops.leaf import BUFFER, CONST, IOTA, SINK, VAR, param
from ..core.ops.movement import permute
from ..core.ops.transform import EXAMPLE, Rule, batched, new_batch, override, spread
from ..core.rewriting.substitute import substitute
from ..core.shape import same, show
from ..core.tangent import tangents as moved
from ..errors import ArgumentError, GradientError, ShapeError
from ..random.generator import sharing_draws
from ..tensor import Tensor, node_of, transforming, wrap
from ..tree import Form, flatten, leaves_like, unflatten
from ..tree import spread as spread_tree
from .grad import check_callable, closing, new_scope, places_of, value_and_grad, vjp, watched_leaf

if TYPE_CHECKING:
    from .._signatures import Function, P, T

# --- vmap ----------------------------------------------------------------------------------------


def vmap(
    function: Callable[P, T], in_axes: Any = 0, out_axes: Any = 0, randomness: str = "error"
) -> Function[P, T]:
    """The function for every example along an axis of its arguments, all at once.

    `in_axes` says which axis of each argument runs over examples: one number for all of them, or a
    tuple (of trees) with one for each; None is for what all examples share. Keyword arguments run
    along axis 0. `out_axes` says where that axis goes in each result. Random numbers drawn without
    a key would be the same for every example: that is an error unless `randomness="same"`.

    >>> x, w = fg.Tensor([[1.0, 2.0], [3.0, 4.0]]), fg.Tensor([10.0, 1.0])
    >>> fg.vmap(fg.dot, in_axes=(0, None))(x, w).tolist()
    [12.0, 34.0]
    >>> fg.vmap(fg.grad(lambda x: (x ** 3).sum()))(x).tolist()
    [[3.0, 12.0], [27.0, 48.0]]
    """
    check_callable(function)
    if randomness not in ("error", "same"):
        raise ArgumentError(f"randomness is {randomness!r}", 'use "error" or "same"')

    @wraps(function)
    def mapped(*args: Any, **keywords: Any) -> Any:
        leaves, form = flatten((args, keywords))
        axes = [*_axes(in_axes, args), *[0] * len(flatten(keywords)[0])]
        batch = new_batch()
        examples, size = _examples(leaves, axes, batch)
        inside, named = unflatten(form, examples)
        with sharing_draws(randomness == "same"), transforming():
            result = function(*inside, **named)
        outputs, out_form = flatten(result)
        nodes = batched([node_of(output) for output in outputs], batch)
        wanted = spread_tree(out_axes, result, "out_axes")
        pairs = zip(nodes, wanted, strict=True)
        return unflatten(out_form, [_placed(node, has, a, size) for (node, has), a in pairs])

    return cast("Function[P, T]", mapped)


def _axes(in_axes: Any, args: tuple[Any, ...]) -> list[Any]:
    """One axis, or None, for every leaf of the arguments."""
    given = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    if isinstance(given, tuple) and len(given) != len(args):
        raise ArgumentError(
            f"in_axes has {len(given)} entries for {len(args)} arguments", "give one for each"
        )
    return spread_tree(given, args, "in_axes")


def _examples(leaves: list[Any], axes: list[Any], batch: int) -> tuple[list[Any], Size]:
    """Every batched leaf as one example of it, and how many there are."""
    found: list[Any] = []
    size: Size | None = None
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is None or not isinstance(leaf, Tensor | np.ndarray):
            found.append(leaf)
            continue
        node = node_of(leaf)
        place = build.as_axis(axis, node.ndim)
        front = permute(node, (place, *[d for d in range(node.ndim) if d != place]))
        if size is not None and not same(size, front.shape[0]):
            raise ShapeError(
                f"one argument holds {show((size,))} examples and another {show(front.shape[:1])}",
                "all axes of in_axes must have one size; None is for what examples share",
            )
        size = front.shape[0]
        found.append(wrap(build.note(EXAMPLE(front, arg=batch))))
    if size is None:
        raise ArgumentError("no argument has an axis of examples", "give at least one a number")
    return found, size


def _placed(node: Node, has_axis: bool, axis: Any, size: Size) -> Tensor:
    """A result with its batch axis where it was asked for."""
    if axis is None:
        if has_axis:
            raise ArgumentError("a result differs by example", "give it a number in out_axes")
        return wrap(node)
    whole = node if has_axis else spread(node, size)
    place = build.as_axis(axis, whole.ndim)
    order = [d for d in range(1, whole.ndim)]
    return wrap(permute(whole, (*order[:place], 0, *order[place:])))


# --- forward mode --------------------------------------------------------------------------------


def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """The result, and how it moves when the arguments move by the tangents.

    >>> y, dy = fg.jvp(lambda x: x * x, (fg.Tensor([1.0, 2.0]),), (fg.Tensor([1.0, 10.0]),))
    >>> y.tolist(), dy.tolist()
    ([1.0, 4.0], [2.0, 40.0])
    """
    check_callable(function)
    scope = new_scope()
    leaves, form = flatten(tuple(primals))
    seeds = leaves_like(tuple(tangents), form)
    watches = [watched_leaf(leaf, scope) for leaf in leaves]
    inside = [leaf if w is None else wrap(w) for leaf, w in zip(leaves, watches, strict=True)]
    with transforming(), closing(scope):
        outputs, out_form = flatten(function(*unflatten(form, inside)))
        roots = [node_of(output) for output in outputs]
    pairs = [(w, _seed(s, w)) for w, s in zip(watches, seeds, strict=True) if w is not None]
    found = moved(roots, [w for w, _ in pairs], [s for _, s in pairs])
    still = [constant_like(0, r) if m is None else m for r, m in zip(roots, found, strict=True)]
    results = [
        unflatten(out_form, [wrap(unwatch(node, scope)) for node in nodes])
        for nodes in (roots, still)
    ]
    return results[0], results[1]


def _seed(tangent: Any, leaf: Node) -> Node:
    """A tangent in the dtype and shape of what it moves; None stands still."""
    if tangent is None:
        return constant_like(0, leaf)
    node = build.cast(node_of(tangent), leaf.dtype)
    if node.shape != leaf.shape:
        raise ShapeError(
            f"a tangent of shape {show(node.shape)} for a value of shape {show(leaf.shape)}",
            "they must be equal",
        )
    return node


# --- all derivatives -----------------------------------------------------------------------------


def jacobian(
    function: Callable[P, Any], argnums: int | Sequence[int] = 0, mode: str = "reverse"
) -> Function[P, Any]:
    """A function that returns the derivative of every result by every element of some arguments.

    The shape of a derivative is the result's, then the argument's. "reverse" runs once for each
    element of the results, "forward" once for each element of the arguments.

    >>> fg.jacobian(lambda x: fg.stack([x.sum(), x.prod()]))(fg.Tensor([2.0, 3.0])).tolist()
    [[1.0, 1.0], [3.0, 2.0]]
    """
    check_callable(function)
    if mode not in ("reverse", "forward"):
        raise ArgumentError(f"there is no mode {mode!r}", 'use "reverse" or "forward"')

    @wraps(function)
    def differentiated(*args: Any, **keywords: Any) -> Any:
        places, several = places_of(argnums, len(args))
        chosen = tuple([args[i] for i in places])

        def of_chosen(*some: Any) -> Any:
            full = list(args)
            for place, value in zip(places, some, strict=True):
                full[place] = value
            return function(*full, **keywords)

        table = _reverse if mode == "reverse" else _forward
        rows, form, out_form = table(of_chosen, chosen)
        by_result = [unflatten(form, row) for row in rows]
        return unflatten(out_form, by_result if several else [row[0] for row in by_result])

    return cast("Function[P, Any]", differentiated)


def _reverse(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[list[list[Any]], Form, Form]:
    """One pull of a unit gradient for each element of each result."""
    result, pull = vjp(function, *args)
    outputs, out_form = flatten(result)
    leaves, form = flatten(args)
    rows = []
    for number, output in enumerate(outputs):
        if not output.dtype.is_inexact:
            raise GradientError(f"a {output.dtype} result has no derivative", "cast it to a float")

        def back(unit: Tensor, number: int = number) -> list[Any]:
            zeros = [wrap(constant_like(0, o.node)) for o in outputs]
            zeros[number] = unit
            return [g for g in flatten(pull(unflatten(out_form, zeros)))[0] if g is not None]

        found = iter(vmap(back)(_units(output)) if any(map(_moves, leaves)) else [])
        row: list[Any] = []
        for leaf in leaves:
            whole = next(found) if _moves(leaf) else None
            row.append(whole if whole is None else whole.reshape((*output.shape, *leaf.shape)))
        rows.append(row)
    return rows, form, out_form


def _forward(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[list[list[Any]], Form, Form]:
    """One push of a unit tangent for each element of each argument."""
    leaves, form = flatten(args)
    columns: list[list[Any] | None] = []
    out_form: Form | None = None
    for number, leaf in enumerate(leaves):
        if not _moves(leaf):
            columns.append(None)
            continue
        forms: list[Form] = []

        def push(unit: Tensor, number: int = number, forms: list[Form] = forms) -> list[Any]:
            tangents = [unit if i == number else None for i in range(len(leaves))]
            _, moves = jvp(function, args, unflatten(form, tangents))
            outputs, found = flatten(moves)
            forms.append(found)
            return outputs

        whole = vmap(push, out_axes=-1)(_units(leaf))
        columns.append([w.reshape((*w.shape[:-1], *leaf.shape)) for w in whole])
        out_form = forms[0]
    if out_form is None:
        outputs, out_form = flatten(function(*args))
        return [[None] * len(leaves) for _ in outputs], form, out_form
    rows = [[None if c is None else c[i] for c in columns] for i in range(out_form.count)]
    return rows, form, out_form


def _moves(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_inexact


def _units(like: Tensor) -> Tensor:
    """Every unit vector in the shape of a tensor, along a leading axis."""
    count = like.size
    rows, columns = build.iota((count, count), 0), build.iota((count, count), 1)
    eye = build.cast(rows.eq(columns), like.dtype)
    return wrap(build.reshape(eye, (count, *like.shape)))


def hessian(function: Callable[P, Any], argnums: int | Sequence[int] = 0) -> Function[P, Any]:
    """A function that returns the second derivatives of a scalar result by some arguments.

    >>> fg.hessian(lambda x: x[0] ** 2 * x[1])(fg.Tensor([3.0, 5.0])).tolist()
    [[10.0, 6.0], [6.0, 0.0]]
    """
    both = value_and_grad(function, argnums)

    def slopes(*args: Any, **keywords: Any) -> Any:
        return both(*args, **keywords)[1]

    found = wraps(function)(jacobian(slopes, argnums, mode="forward"))
    return cast("Function[P, Any]", found)


# --- less memory: rematerialisation --------------------------------------------------------------


def checkpoint(function: Callable[P, T]) -> Function[P, T]:
    """The function, whose inner values are computed again when its gradient is taken, not kept.

    Values and gradients stay what they are, random numbers too: the function is called once, and
    its graph is what runs again. What it closes over has gradients like its arguments.

    >>> block = fg.checkpoint(lambda x, w: fg.tanh(x @ w) @ w)
    >>> x, w = fg.ones((4, 8)), fg.ones((8, 8))
    >>> fg.grad(lambda x: block(x, w).sum())(x).shape
    (4, 8)
    """
    check_callable(function)

    @wraps(function)
    def checkpointed(*args: Any, **keywords: Any) -> Any:
        scope = new_scope()
        leaves, form = flatten((args, keywords))
        start = watch(constant(0, float32), scope).id  # what is made from here on runs again
        watches = [watched_leaf(leaf, scope) for leaf in leaves]
        fresh = [leaf if w is None else wrap(w) for leaf, w in zip(leaves, watches, strict=True)]
        inside, named = unflatten(form, fresh)
        with transforming():
            outputs, out_form = flatten(function(*inside, **named))
        values = [node_of(output) for output in outputs]
        inputs = _inputs(values, start)
        if not any([node.watched for node in inputs]):
            return unflatten(out_form, [wrap(unwatch(value, scope)) for value in values])
        rule = _again(getattr(function, "__name__", "function"), values, inputs)
        results = [
            override(rule, i, unwatch(value, scope), inputs) if value.watched else value
            for i, value in enumerate(values)
        ]
        return unflatten(out_form, [wrap(result) for result in results])

    return cast("Function[P, T]", checkpointed)


def _inputs(values: Sequence[Node], start: int) -> list[Node]:
    """What values made since `start` are computed from: older nodes, and memory."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(values)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in (CONST, IOTA, VAR):
            continue
        if node.id < start or node.op is BUFFER:
            found[node] = None
        else:
            stack.extend(node.src)
    return list(found)


def _again(name: str, values: Sequence[Node], inputs: Sequence[Node]) -> Rule:
    """The gradient through a second computation, which waits for the gradient that asks for it."""
    places = [param(i, x.shape, x.dtype, x.device) for i, x in enumerate(inputs)]
    # on params of its own: a rule that held the graph would keep what it was computed from alive
    body = substitute(SINK(*values), dict(zip(inputs, places, strict=True)), walk=True)

    def backward(flows: Sequence[Node | None], *given: Node) -> list[Node | None]:
        again = list(given)
        for flow in flows:
            if flow is not None:
                again = [REMAT(x, flow) for x in again]
        roots = substitute(body, dict(zip(places, again, strict=True)), walk=True).src
        pairs = [(r, f) for r, f in zip(roots, flows, strict=True) if f is not None]
        wanted = [x for x in again if x.dtype.is_inexact]
        found = iter(gradients([r for r, _ in pairs], wanted, [f for _, f in pairs]))
        return [next(found) if x.dtype.is_inexact else None for x in again]

    return Rule(f"{name}.checkpoint", backward, len(values), plain=True)
