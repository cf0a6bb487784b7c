"""`custom_vjp`: a function with a gradient of its own.

In: a function, and how its gradient is computed: `forward`, which says what must be kept, and
`backward`. Out: the function, whose results are OVERRIDE nodes that hold the rule. The rule holds
no tensor: what `backward` needs are further sources of the nodes, so that `vmap` batches them and
other gradients go through them. A call of the function inside of its own `forward` is computed
plainly and has the same rule, whose `forward` waits until that gradient is asked for: each order
of derivative asks once more, so it ends.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from ..core import build
from ..core.dtype import DType
from ..core.node import Node, Shape, constant
from ..core.ops.effect import WATCH, unwatch
from ..core.ops.transform import Rule, override
from ..core.shape import show
from ..errors import ArgumentError, GradientError, ShapeError
from ..tensor import Tensor, node_of, transforming, wrap
from ..tree import Form, flatten, leaves_like, unflatten
from .grad import check_callable, new_scope, places_of, watched_leaf


class Custom:
    """What functions with derivatives of their own share: name, signature, how one is called."""

    def __init__(
        self, function: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()
    ) -> None:
        check_callable(function)
        self.function = function
        self.signature = _signature(function)
        self.nondiff = sorted(_places(nondiff_argnums, self.signature))
        update_wrapper(self, function)

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self.function, "__name__", "the function")

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        """As a method: the owner is the first argument."""
        return self if owner is None else lambda *args, **named: self(owner, *args, **named)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        bound = self.signature.bind(*args, **keywords)
        bound.apply_defaults()
        if bound.kwargs:
            raise ArgumentError(
                f"{self.name} takes keywords that have no place", "make them positional"
            )
        return self.called(bound.args)

    def called(self, args: tuple[Any, ...]) -> Any:
        """The result for arguments by position, with those that were left out."""
        raise NotImplementedError


class custom_vjp(Custom):
    """A function with a gradient of its own.

    `defvjp(forward, backward)`: `forward` takes the arguments and returns the result and whatever
    `backward` needs; `backward` takes that and the gradient of the result, and returns one gradient
    for each argument (None where there is none). Or `defgrad(rule)`: the rule takes the gradient of
    the result, the result, and the arguments. What it closes over gets no gradient: using a tensor
    that needs one is an error. `forward` may call the function itself.

    `nondiff_argnums` numbers arguments that are no values to differentiate by, such as functions:
    `backward` takes them first, and returns no gradient for them.

    >>> @fg.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defgrad(lambda g, y, x: (fg.clip(g, -1.0, 1.0),))
    >>> fg.grad(lambda x: (clipped(x) * 5).sum())(fg.Tensor([1.0, 2.0])).tolist()
    [1.0, 1.0]
    """

    def __init__(
        self, function: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()
    ) -> None:
        super().__init__(function, nondiff_argnums)
        self.forward: Callable[..., tuple[Any, Any]] | None = None
        self.backward: Callable[..., Sequence[Any]] | None = None

    def defvjp(
        self,
        forward: Callable[..., tuple[Any, Any]],
        backward: Callable[..., Sequence[Any]],
    ) -> None:
        """Set how the result is computed and what is kept of it, and the gradients from that."""
        check_callable(forward)
        check_callable(backward)
        self.forward, self.backward = forward, backward

    def defgrad(self, rule: Callable[..., Sequence[Any]]) -> None:
        """Set the gradients of the arguments from that of the result, the result and them."""
        check_callable(rule)

        def forward(*args: Any) -> tuple[Any, Any]:
            result = self.function(*args)
            return result, (result, args)

        first = len(self.nondiff)
        self.defvjp(forward, lambda *given: rule(given[-1], given[first][0], *given[first][1]))

    def called(self, args: tuple[Any, ...]) -> Any:
        call = _Call(self, args)
        if not any([node.watched for node in call.inputs]):
            return self.function(*args)
        if self.forward is None:
            raise GradientError(
                f"{self.name} has no gradient yet", "set it with defvjp(forward, backward)"
            )
        return call.later() if self in _FORWARD.running else call.now()


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{function!r} does not say which arguments it takes", "wrap it: lambda x: f(x)"
        ) from None


def _places(argnums: int | Sequence[int], signature: inspect.Signature) -> list[int]:
    """The numbers of arguments; of `*args` there may be any number."""
    parameters = signature.parameters.values()
    several = any([p.kind is p.VAR_POSITIONAL for p in parameters])
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    most = max([n + 1 for n in numbers], default=0) if several else 0
    return places_of(numbers, max(most, len(parameters)))[0]


class _Forward(threading.local):
    """The functions whose `forward` runs in this thread: it may call the function itself."""

    def __init__(self) -> None:
        self.running: list[custom_vjp] = []


_FORWARD = _Forward()
Nondiff = dict[int, Any]
"""Arguments that are no values to differentiate by, by number."""


class _Ways:
    """How one call's `forward` and `backward` are called: all that its rule may hold."""

    def __init__(self, owner: custom_vjp, form: Form, moves: list[bool]) -> None:
        self.owner, self.form, self.moves = owner, form, moves

    def args(self, moving: Sequence[Any], nondiff: Nondiff) -> list[Any]:
        """The arguments in order."""
        rest = iter(moving)
        count = len(moving) + len(nondiff)
        return [nondiff[i] if i in nondiff else next(rest) for i in range(count)]

    def forward(self, moving: Sequence[Any], nondiff: Nondiff) -> tuple[Any, Any]:
        """What the user's `forward` gives, in which the function may be called."""
        assert self.owner.forward is not None
        _FORWARD.running.append(self.owner)
        try:
            with transforming():
                pair: Any = self.owner.forward(*self.args(moving, nondiff))
        finally:
            _FORWARD.running.pop()
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ArgumentError(
                f"the forward of {self.owner.name} returned {type(pair).__name__}",
                "return the result and what backward needs: (result, kept)",
            )
        return pair

    def backward(self, nondiff: Nondiff, kept: Any, flow: Any) -> list[Any]:
        """What the user's `backward` gives, one for each leaf of the arguments."""
        assert self.owner.backward is not None
        with transforming():
            shares = self.owner.backward(*[nondiff[i] for i in sorted(nondiff)], kept, flow)
        return _shares(shares, self.form, self.owner.name)


class _Call:
    """One call, whose arguments are leaves of a scope of its own."""

    def __init__(self, owner: custom_vjp, args: tuple[Any, ...]) -> None:
        self.nondiff = {i: args[i] for i in owner.nondiff if i < len(args)}
        self.leaves, form = flatten(
            tuple([arg for i, arg in enumerate(args) if i not in self.nondiff])
        )
        self.scope = new_scope()
        self.watches = [watched_leaf(leaf, self.scope) for leaf in self.leaves]
        self.inputs = [w.src[0] for w in self.watches if w is not None]
        self.ways = _Ways(owner, form, [w is not None for w in self.watches])

    def now(self) -> Any:
        """The result as `forward` computes it, which says now what `backward` will need."""
        ways, first = self.ways, len(self.inputs)
        result, kept = ways.forward(self._inside(), self.nondiff)
        saved, rest, form = _apart((self.nondiff, kept))
        saved = [unwatch(node, self.scope) for node in saved]

        def pull(given: Sequence[Node], flow: Any) -> list[Any]:
            nondiff, kept = unflatten(form, _filled(rest, given[first:]))
            return ways.backward(nondiff, kept, flow)

        return self._overridden(result, saved, pull)

    def later(self) -> Any:
        """The result as the function computes it; `forward` runs if its gradient is asked for."""
        ways, first = self.ways, len(self.inputs)
        with transforming():
            result = ways.owner.function(*ways.args(self._inside(), self.nondiff))
        still = [_MOVING if moves else leaf
                 for leaf, moves in zip(self.leaves, ways.moves, strict=True)]  # fmt: skip
        saved, rest, form = _apart((self.nondiff, still))

        def pull(given: Sequence[Node], flow: Any) -> list[Any]:
            nondiff, leaves = unflatten(form, _filled(rest, given[first:]))
            moved = iter(given[:first])
            inside = [wrap(next(moved)) if leaf is _MOVING else leaf for leaf in leaves]
            _, kept = ways.forward(unflatten(ways.form, inside), nondiff)
            return ways.backward(nondiff, kept, flow)

        return self._overridden(result, saved, pull)

    def _inside(self) -> Any:
        """The arguments as leaves of this call's scope."""
        pairs = zip(self.leaves, self.watches, strict=True)
        return unflatten(self.ways.form, [leaf if w is None else wrap(w) for leaf, w in pairs])

    def _overridden(
        self, result: Any, saved: Sequence[Node], pull: Callable[[Sequence[Node], Any], list[Any]]
    ) -> Any:
        """A result whose gradient is what `pull` gives of the inputs, what is saved, and a flow."""
        outputs, form = flatten(result)
        values = [node_of(output) for output in outputs]
        name, moves = self.ways.owner.name, self.ways.moves
        check_closed_over(values, self.scope, name)
        kinds = [(value.shape, value.dtype) for value in values]
        input_kinds = [(node.shape, node.dtype) for node in self.inputs]

        def backward(flows: Sequence[Node | None], *given: Node) -> list[Node | None]:
            flow = [_flow(f, *kind) for f, kind in zip(flows, kinds, strict=True)]
            found = pull(given, unflatten(form, flow))
            own = [g for g, moving in zip(found, moves, strict=True) if moving]
            what = f"the backward of {name} returned a gradient"
            pairs = zip(own, input_kinds, strict=True)
            shares = [checked(g, *kind, what, "an argument") for g, kind in pairs]
            return [*shares, *[None for _ in given[len(shares) :]]]

        rule = Rule(name, backward, len(values))
        inputs = [*self.inputs, *saved]
        results = [
            override(rule, i, unwatch(value, self.scope), inputs) for i, value in enumerate(values)
        ]
        return unflatten(form, [wrap(result) for result in results])


_SAVED = object()  # stands where a tensor was among what a rule needs
_MOVING = object()  # and where an argument was that the gradient is by


def _apart(nest: Any) -> tuple[list[Node], list[Any], Form]:
    """The nodes of the tensors in a nest, its leaves without them, and its form."""
    leaves, form = flatten(nest)
    saved = [node_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
    return saved, [_SAVED if isinstance(leaf, Tensor) else leaf for leaf in leaves], form


def _filled(rest: Sequence[Any], nodes: Sequence[Node]) -> list[Any]:
    """Leaves with tensors of these nodes where tensors were."""
    given = iter(nodes)
    return [wrap(next(given)) if leaf is _SAVED else leaf for leaf in rest]


def _flow(flow: Node | None, shape: Shape, dtype: DType) -> Tensor:
    """The gradient of a result; zeros where nothing flows."""
    return wrap(constant(0, dtype, shape) if flow is None else flow)


def _shares(shares: Any, form: Form, name: str) -> list[Any]:
    """What a backward function returned, one for each leaf of the arguments."""
    given = (shares,) if isinstance(shares, Tensor) else shares
    if not isinstance(given, tuple | list) or len(given) != len(form.children):
        raise GradientError(
            f"the backward of {name} must return {len(form.children)} gradients",
            "a tuple with one for each argument, None where there is none",
        )
    found: list[Any] = []
    for share, child in zip(given, form.children, strict=True):
        found.extend([None] * child.count if share is None else leaves_like(share, child))
    return found


def checked(found: Any, shape: Shape, dtype: DType, what: str, of: str) -> Node | None:
    """A derivative that a rule returned; its shape is that of what it belongs to."""
    if found is None:
        return None
    node = build.cast(node_of(found), dtype)
    if node.shape != shape:
        raise ShapeError(
            f"{what} of shape {show(node.shape)} for {of} of shape {show(shape)}",
            "they must be equal",
        )
    return node


def check_closed_over(values: Sequence[Node], scope: int, name: str) -> None:
    """An error if values depend on a leaf of a gradient that is no argument.

    Scopes that are newer than the call's own were opened and closed inside of it.
    """
    seen: set[Node] = set()
    stack = [value for value in values if value.watched]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is WATCH and node.arg[0] == scope:
            continue
        if node.op is WATCH and node.arg[0] < scope:
            raise GradientError(
                f"{name} has a derivative of its own and uses a tensor that is not its argument",
                "make it an argument, or stop_gradient() it",
            )
        stack.extend([s for s in node.src if s.watched])
