"""Gradients: `grad`, `value_and_grad` and `vjp` of functions, and `backward()` as a thin shell.

In: a function of tensors (lists, tuples and dicts of them too). Out: the gradient expressions,
lazy like everything else. Each argument is replaced by a leaf of its own first, so two arguments
that are the same tensor, or equal constants, are told apart. When the gradients are taken the
scope ends: results are ordinary tensors again, except to a gradient further out.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, Any, Concatenate, Literal, overload

from ..core import build
from ..core.gradient import gradients, live_nodes
from ..core.node import Node, constant_like, toposort
from ..core.ops.effect import TAPE, WATCH, unwatch, watch
from ..errors import ArgumentError, GradientError, ShapeError
from ..graph.ir.registry import REGISTRY, Entry
from ..tensor import SCOPES, Tensor, TensorLike, node_of, wrap
from ..tree import flatten, unflatten

if TYPE_CHECKING:
    from .._signatures import A, Gradient, P, T, ValueAndGradient

_scopes = itertools.count(TAPE + 1)
_leaves: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()  # by name
# how the gradients of some leaves are kept: in shards, say
KEPT: weakref.WeakKeyDictionary[Entry, Callable[[Node], Node]] = weakref.WeakKeyDictionary()


def vjp(function: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The result, and a function from the result's gradient to the arguments' gradients.

    >>> import fulgurite as fg
    >>> y, pull = fg.vjp(lambda x: x * x, fg.Tensor([1.0, 2.0]))
    >>> pull(fg.Tensor([1.0, 10.0]))[0].tolist()
    [2.0, 40.0]
    """
    check_callable(function)
    scope = new_scope()
    leaves, tree = flatten(args)
    watched = [watched_leaf(leaf, scope) for leaf in leaves]
    inside = [leaf if w is None else wrap(w) for leaf, w in zip(leaves, watched, strict=True)]
    with closing(scope):
        result = function(*unflatten(tree, inside))
        _carry_back(leaves, inside, watched)
        outputs, out_tree = flatten(result)
        for output in outputs:
            if not isinstance(output, Tensor):
                kind = type(output).__name__
                raise GradientError(f"the function returned {kind}, not a tensor", "return tensors")
        roots = [node_of(output) for output in outputs]

    def pull(cotangents: Any) -> tuple[Any, ...]:
        seeds, _ = flatten(cotangents)
        if len(seeds) != len(roots):
            raise ArgumentError(
                f"{len(seeds)} gradients for {len(roots)} results", "give one for each result"
            )
        totals = _pull(roots, [node_of(s) for s in seeds], [w for w in watched if w is not None])
        found = iter(totals)
        grads = [
            None if w is None else wrap(unwatch(_or_zero(next(found), w), scope)) for w in watched
        ]
        return tuple(unflatten(tree, grads))

    closed = [wrap(unwatch(root, scope)) for root in roots]
    return unflatten(out_tree, closed), pull


def _carry_back(given: Sequence[Any], inside: Sequence[Any], watched: Sequence[Any]) -> None:
    """What the function has assigned to its arguments is assigned to those of the caller too."""
    for leaf, tensor, before in zip(given, inside, watched, strict=True):
        if before is not None and tensor.entry.node is not before:
            leaf.assign(tensor)


@contextmanager
def closing(scope: int) -> Iterator[None]:
    """Tensors that are assigned inside are ordinary ones when the scope ends."""
    touched: list[weakref.ref[Entry]] = []
    SCOPES.stack.append(touched)
    SCOPES.open.append(scope)
    try:
        yield
    finally:
        SCOPES.stack.pop()
        SCOPES.open.pop()
        for reference in touched:
            entry = reference()
            while entry is not None and scope in (node := entry.node).watched:
                REGISTRY.rebind(entry, node, unwatch(node, scope))


def new_scope() -> int:
    """A number that tells the leaves of one transform from those of another."""
    return next(_scopes)


def watched_leaf(leaf: object, scope: int) -> Node | None:
    """A differentiable argument as a leaf of its own.

    A parameter that is an argument leaves the tape: who differentiates by it explicitly has no use
    for `backward()` through the result.
    """
    if not isinstance(leaf, Tensor) or not leaf.dtype.is_inexact:
        return None
    node = node_of(leaf)
    if hasattr(type(leaf), "__off_tape__") and node.op is WATCH and node.arg[0] == TAPE:
        node = node.src[0]
    return watch(node, scope)


def _or_zero(found: Node | None, leaf: Node) -> Node:
    return constant_like(0, leaf) if found is None else found


def _pull(
    roots: Sequence[Node], seeds: Sequence[Node], leaves: Sequence[Node]
) -> list[Node | None]:
    """The gradients of several results together, added up."""
    for root, seed in zip(roots, seeds, strict=True):
        if root.shape != seed.shape:
            raise ShapeError(
                f"a gradient of shape {seed.shape} for a result of shape {root.shape}",
                "they must be equal",
            )
    pairs = [(r, s) for r, s in zip(roots, seeds, strict=True) if r.dtype.is_inexact]
    casts = [build.cast(seed, root.dtype) for root, seed in pairs]
    return gradients([root for root, _ in pairs], leaves, casts)


@overload
def value_and_grad(
    function: Callable[Concatenate[A, P], T], argnums: Literal[0] = 0
) -> ValueAndGradient[A, P, T]: ...
@overload
def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]: ...


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the (scalar) result and its gradient by some arguments.

    >>> import fulgurite as fg
    >>> value, slope = fg.value_and_grad(lambda x: (x ** 2).sum())(fg.Tensor([1.0, 3.0]))
    >>> value.item(), slope.tolist()
    (10.0, [2.0, 6.0])
    """
    check_callable(function)
    wanted, several = _wanted(argnums)

    def differentiated(*args: Any, **keywords: Any) -> Any:
        places, _ = places_of(wanted, len(args))
        aux: list[Any] = []

        def chosen(*some: Any) -> Any:
            full = list(args)
            for place, value in zip(places, some, strict=True):
                full[place] = value
            scopes = _scopes_of(some) if has_aux else set()
            result = function(*full, **keywords)
            if has_aux:
                result, more = result
                aux.append(_without(more, scopes))
            return result

        value, pull = vjp(chosen, *[args[i] for i in places])
        _check_scalar(value)
        grads = pull(wrap(constant_like(1, value.node)))
        found = grads if several else grads[0]
        return ((value, aux[0]), found) if has_aux else (value, found)

    return differentiated


def _scopes_of(nest: Any) -> set[int]:
    """The scopes whose leaves are in a nest."""
    leaves = [leaf.entry.node for leaf in flatten(nest)[0] if isinstance(leaf, Tensor)]
    return {node.arg[0] for node in leaves if node.op is WATCH}


def _without(nest: Any, scopes: set[int]) -> Any:
    """A nest whose tensors are ordinary ones again when these scopes have ended."""
    leaves, tree = flatten(nest)
    for scope in scopes:
        leaves = [
            wrap(unwatch(node_of(leaf), scope)) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
    return unflatten(tree, leaves)


def check_callable(function: object) -> None:
    """An error unless it can be called."""
    if not callable(function):
        kind = type(function).__name__
        raise ArgumentError(f"{kind} is not a function", "give a function of tensors")


def places_of(argnums: int | Sequence[int], count: int) -> tuple[list[int], bool]:
    """The places of the arguments that are meant, of so many, and whether there may be several."""
    wanted, several = _wanted(argnums)
    return _each_once([_place(i, count) for i in wanted]), several


def _wanted(argnums: int | Sequence[int]) -> tuple[list[int], bool]:
    """The numbers of arguments, and whether there may be several."""
    several = isinstance(argnums, Iterable)
    try:
        found = [index(i) for i in (argnums if isinstance(argnums, Iterable) else [argnums])]
    except TypeError:
        raise ArgumentError(
            f"argnums is {argnums!r}", "give the number of an argument, or several: (0, 1)"
        ) from None
    return _each_once(found), several


def _each_once(places: list[int]) -> list[int]:
    if len(set(places)) != len(places):
        raise ArgumentError("argnums names an argument twice", "name each argument once")
    return places


def _place(number: int, count: int) -> int:
    if not -count <= number < count:
        raise ArgumentError(f"there is no argument {number} of {count}", "argnums names arguments")
    return number % count


def _check_scalar(value: object) -> None:
    if not isinstance(value, Tensor):
        raise GradientError(
            f"the function returned {type(value).__name__}, not a tensor", "return one tensor"
        )
    if value.shape != ():
        raise GradientError(
            f"the function returned shape {value.shape}, not a scalar",
            "reduce it: .sum() or .mean()",
        )
    if not value.dtype.is_inexact:
        raise GradientError(f"a {value.dtype} result has no gradient", "return a float tensor")


@overload
def grad(function: Callable[Concatenate[A, P], Any], argnums: Literal[0] = 0) -> Gradient[A, P]: ...
@overload
def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]: ...


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of a scalar result by some arguments.

    >>> import fulgurite as fg
    >>> fg.grad(lambda x: (x ** 3).sum())(fg.Tensor([1.0, 2.0])).tolist()
    [3.0, 12.0]
    """
    both = value_and_grad(function, argnums, has_aux)

    def differentiated(*args: Any, **keywords: Any) -> Any:
        value, found = both(*args, **keywords)
        return (found, value[1]) if has_aux else found

    return differentiated


# --- the shell: requires_grad and backward -------------------------------------------------------


def track(tensor: Tensor, on: bool) -> None:
    """Make a tensor a leaf of the tape, or take it off."""
    node = tensor.entry.node
    if not on:
        REGISTRY.rebind(tensor.entry, node, build.detach(node) if node.watched else node)
        return
    if not node.dtype.is_inexact:
        raise GradientError(f"a {node.dtype} tensor has no gradient", "use a float dtype")
    if TAPE in node.watched:
        return
    REGISTRY.rebind(tensor.entry, node, tape_leaf(node, tensor))


def tape_leaf(node: Node, tensor: Tensor) -> Node:
    """A value as the leaf of the tape that belongs to a tensor."""
    leaf = watch(node, TAPE)
    _leaves[leaf.arg[1]] = tensor
    return leaf


def backward(tensor: Tensor, seed: TensorLike | None) -> None:
    """Add the gradient of a result to the `grad` of every live leaf under it."""
    SCOPES.backward += 1
    node = tensor.entry.node
    if TAPE not in node.watched:
        raise GradientError(
            "no leaf of this result requires a gradient", "make one with requires_grad=True"
        )
    if seed is None:
        _check_scalar(tensor)
    start = constant_like(1, node) if seed is None else node_of(seed)
    order = toposort([node])
    leaves = [n for n in order if n.op is WATCH and n.arg[1] in _leaves]
    for leaf, found in zip(leaves, _pull([node], [start], leaves), strict=True):
        owner = _leaves.get(leaf.arg[1])
        if owner is None or (found is None and node not in live_nodes(order, [leaf])):
            continue  # the result does not depend on it, or as a constant does
        total = build.detach(_or_zero(found, leaf))  # 0 through steps: floor, sign
        keep = KEPT.get(owner.entry)
        share = wrap(total if keep is None else keep(total))
        owner.grad = share if owner.grad is None else owner.grad + share
