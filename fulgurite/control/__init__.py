"""Control flow as values: `scan`, `while_loop`, `fori_loop` and `cond`, lazy like all else.

In: Python functions of tensors (or trees of them). Out: tensors that are results of one LOOP or
COND node, whatever the number of steps: the function is called once, with stand-ins that have a
shape and a dtype but no value, and what it does becomes the body, a graph that is compiled once.
Tensors that it reads from around it become inputs by themselves; what a body computes from these
alone is computed once, before the loop. Everything that can be wrong with a body is an error here,
at the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, NoReturn

from .. import tree
from ..config import current
from ..core import build
from ..core import shape as sizes
from ..core.dtype import bool_, int32
from ..core.node import Node, Size, constant, toposort
from ..core.ops.body import Body, close, invariant
from ..core.ops.collective import EXCHANGES
from ..core.ops.control import choice, loop
from ..core.ops.effect import HOSTS, WATCH, watch
from ..core.ops.leaf import BUFFER, new_buffer
from ..distributed.mesh import inside
from ..errors import ArgumentError, DataError, DTypeError, ShapeError
from ..graph.ir.registry import REGISTRY, entries_at
from ..random.generator import sharing_draws
from ..tensor import SCOPES, Tensor, lift, node_of, wrap

INSIDE = -1  # the gradient scope of stand-ins: `no_grad` must hold inside a body too


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | Node | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Carry a value through rows: `carry, y = f(carry, x)` for each row; the last carry, all ys.

    The rows are those of the first dimension of every tensor in `xs`; without `xs` say a `length`.
    `reverse` begins with the last row. The body is compiled once, whatever the length, and the
    gradient keeps the carries only: the rest of a step is computed again.

    >>> total, sums = fg.scan(lambda s, x: (s + x, s + x), 0.0, fg.Tensor([1.0, 2.0, 3.0]))
    >>> total.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    >>> fg.scan(lambda s, _: (s * 2, None), fg.Tensor(1), length=10)[0].item()
    1024
    """
    rows = _Values(xs, "xs")
    start = _Values(init, "the carry", rows.device)
    steps = _steps(rows, length)
    trace = _Trace([*start.nodes, *rows.nodes])
    carry = start.filled([trace.stand_in(n, n.shape) for n in start.nodes])
    row = rows.filled([trace.stand_in(n, n.shape[1:]) for n in rows.nodes])
    with trace.building(draws=False):
        result = f(carry, row)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(
            f"the body of a scan returned {_kind(result)}, not a carry and a value",
            "return (carry, y); y may be None",
        )
    after, given = start.like(result[0], "the body"), _Values(result[1], "what the body gives")
    made = trace.closed([*after, *given.nodes])
    if isinstance(steps, int) and steps == 0:
        empty = [constant(0, n.dtype, (0, *n.shape)) for n in given.nodes]
        return start.wrapped(start.nodes), given.wrapped(empty)
    whole = loop(made, start.nodes, rows.nodes, trace.taken, steps, bool(reverse))
    items = [build.note(whole.item(i)) for i in range(len(made.roots))]
    return start.wrapped(items[: len(after)]), given.wrapped(items[len(after) :])


def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    max_steps: int | None = None,
) -> Any:
    """Repeat `carry = body(carry)` while `cond(carry)` holds; the last carry.

    With `max_steps` it ends after so many steps whatever `cond` says, and has a gradient.

    >>> fg.while_loop(lambda x: x < 100, lambda x: x * 3, fg.Tensor(2)).item()
    162
    >>> power = lambda x: fg.while_loop(lambda v: v < 9, lambda v: v * x, x, max_steps=5)
    >>> power(fg.Tensor(2.0)).item(), fg.grad(power)(fg.Tensor(2.0)).item()
    (16.0, 32.0)
    """
    start = _Values(init, "the carry")
    steps = None if max_steps is None else build.as_positive(max_steps, "max_steps")
    first = _decision(cond(start.wrapped(start.nodes)))
    trace = _Trace([first, *start.nodes])
    trace.stand_in(first, ())
    carry = start.filled([trace.stand_in(n, n.shape) for n in start.nodes])
    with trace.building(draws=False):
        carried = start.like(body(carry), "the body")
        decided = _decision(cond(start.wrapped(carried)))
    made = trace.closed([decided, *carried])
    whole = loop(made, [first, *start.nodes], (), trace.taken, steps, mode="while")
    items = [build.note(whole.item(i + 1)) for i in range(len(carried))]
    return start.wrapped(items)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any) -> Any:
    """Repeat `value = body_fun(i, value)` for i from `lower` to below `upper`; the last value.

    As in JAX, `for i in range(lower, upper)` in one kernel whose body is compiled once; i is an
    int32 tensor. With bounds that are numbers it has a gradient; with tensors it is a `while_loop`.

    >>> fg.fori_loop(0, 5, lambda i, total: total + i, fg.Tensor(0)).item()
    10
    >>> fg.grad(lambda x: fg.fori_loop(0, 3, lambda i, y: y * x, x))(fg.Tensor(2.0)).item()
    32.0
    """
    ends = [_bound(lower, "lower"), _bound(upper, "upper")]
    if any([isinstance(end, Tensor) for end in ends]):
        first, last = build.cast(node_of(ends[0]), int32), wrap(build.cast(node_of(ends[1]), int32))
        return while_loop(
            lambda pair: pair[0] < last,
            lambda pair: (pair[0] + 1, body_fun(*pair)),
            (wrap(first), init_val),
        )[1]
    start, stop = ends
    steps = max(stop - start, 0) if isinstance(start, int) and isinstance(stop, int) else None
    begin = start if isinstance(start, int) else wrap(build.cast(start, int32))
    carried, _ = scan(
        lambda pair, _: ((pair[0] + 1, body_fun(*pair)), None),
        (begin, init_val),
        length=sizes.sub(stop, start) if steps is None else steps,
    )
    return carried[1]


def _bound(bound: Any, name: str) -> Any:
    """A whole number: an int, a variable, or a tensor of one."""
    if isinstance(bound, Node):
        return bound
    if not isinstance(bound, Tensor):
        try:
            return index(bound)
        except TypeError:
            raise ArgumentError(f"{name} is {bound!r}", "give a whole number") from None
    if not bound.dtype.is_integer or bound.shape != ():
        raise ArgumentError(
            f"{name} is {bound.dtype} of shape {bound.shape}", "give one whole number"
        )
    return bound


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any
) -> Any:
    """What `true_fn(*operands)` gives if `pred` holds, else what `false_fn(*operands)` does.

    Only the chosen one is computed, when the result is; both must give the same kind of result.

    >>> x = fg.Tensor([1.0, 4.0])
    >>> fg.cond(x.sum() > 3, fg.sqrt, lambda v: v * 0, x).tolist()
    [1.0, 2.0]
    """
    if isinstance(pred, bool):
        return true_fn(*operands) if pred else false_fn(*operands)
    given = _Values(operands, "the operands")
    decided = _decision(pred, given.device)
    trace = _Trace([decided, *given.nodes])
    inside = [trace.stand_in(n, n.shape) for n in given.nodes]
    with trace.building():
        then = _Values(true_fn(*given.filled(inside)), "what true_fn gives")
    with trace.building():
        other = then.like(false_fn(*given.filled(inside)), "false_fn")
    branches = trace.both(then.nodes, other)
    found = choice(decided, *branches, [*given.nodes, *trace.taken])
    return then.wrapped([build.note(node) for node in found])


# --- trees of tensors ----------------------------------------------------------------------------


class _Values:
    """A tree whose leaves are tensors, as nodes; None is no leaf. Arrays go where tensors are."""

    def __init__(self, values: Any, what: str, device: str | None = None) -> None:
        self.what = what
        leaves, self.form = tree.flatten(values)
        self.names = [_name(way) for way, _ in tree.paths(values)]
        self.places = [i for i, leaf in enumerate(leaves) if leaf is not None]
        known = [leaf.node for leaf in leaves if isinstance(leaf, Tensor)]
        self.device = build.same_device(known) or device
        self.nodes = [self._node(leaves[i], i) for i in self.places]

    def _node(self, leaf: object, place: int) -> Node:
        try:
            return node_of(lift(leaf, self.device))
        except DataError:
            raise DataError(
                f"{self.what}{self.names[place]} is {_kind(leaf)}, not a tensor",
                "give tensors, numbers, arrays, or trees of them",
            ) from None

    def filled(self, tensors: Sequence[Any]) -> Any:
        """The tree with other leaves."""
        leaves: list[Any] = [None] * len(self.names)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tree.unflatten(self.form, leaves)

    def wrapped(self, nodes: Sequence[Node]) -> Any:
        """The tree with these values."""
        return self.filled([wrap(node) for node in nodes])

    def like(self, values: Any, who: str) -> list[Node]:
        """The nodes of another tree, which must have this form and these shapes and dtypes."""
        try:
            leaves = tree.leaves_like(values, self.form)
        except ArgumentError:
            _differ(self.what, repr(self.form), who, repr(tree.structure(values)), ArgumentError)
        for place, leaf in enumerate(leaves):
            if (leaf is None) == (place in self.places):
                known = "None" if leaf is not None else "a tensor"
                _differ(self.what + self.names[place], known, who, _kind(leaf), ArgumentError)
        found = [self._node(leaves[place], place) for place in self.places]
        for place, old, new in zip(self.places, self.nodes, found, strict=True):
            name = self.what + self.names[place]
            if old.shape != new.shape:
                shapes = sizes.show(old.shape), sizes.show(new.shape)
                _differ(name, f"of shape {shapes[0]}", who, f"of shape {shapes[1]}", ShapeError)
            if old.dtype is not new.dtype:
                _differ(name, str(old.dtype), who, str(new.dtype), DTypeError)
        return found


def _differ(name: str, known: str, who: str, new: str, error: Any) -> NoReturn:
    hint = "shapes, dtypes and the form of the tree must stay: cast or reshape in the body"
    raise error(f"{name} is {known}, and {who} returned it {new}", hint)


def _name(way: tuple[Any, ...]) -> str:
    return "".join([f"[{part!r}]" for part in way])


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _decision(pred: Any, device: str | None = None) -> Node:
    """A bool of no dimensions; one of NumPy's is put on a device."""
    try:
        node = node_of(lift(pred, device))
    except DataError:
        raise DataError(f"a condition is {_kind(pred)}, not a tensor", "return x < y") from None
    if node.dtype is not bool_ or node.shape != ():
        raise ArgumentError(
            f"a condition is {node.dtype} of shape {sizes.show(node.shape)}",
            "it is one bool: compare, and reduce with fg.all or fg.any",
        )
    return node


def _steps(rows: _Values, length: Any) -> Size:
    """The number of rows, which all must agree on."""
    known: Size | None = None
    if length is not None:
        known = length if isinstance(length, Node) else _length(length)
        known = build.as_size(known)
    for node, place in zip(rows.nodes, rows.places, strict=True):
        if not node.shape:
            raise ShapeError(f"xs{rows.names[place]} has no rows", "scan tensors, not numbers")
        if known is None:
            known = node.shape[0]
        elif not sizes.same(known, node.shape[0]):
            raise ShapeError(
                f"xs{rows.names[place]} has {sizes.size_text(node.shape[0])} rows, "
                f"not {sizes.size_text(known)}",
                "all have one row for each step",
            )
    if known is None:
        raise ArgumentError("a scan of no rows needs a length", "give xs, or length=10")
    return known


def _length(length: object) -> int:
    try:
        found = index(length)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            f"length is {length!r}", "give a whole number, or a variable with a value: n.bind(5)"
        ) from None
    if found < 0:
        raise ArgumentError(f"length is {found}", "give 0 or more")
    return found


# --- bodies --------------------------------------------------------------------------------------


class _Trace:
    """A body while its function runs: the stand-ins, then what was taken from around it."""

    def __init__(self, outside: Sequence[Node]) -> None:
        self.device = build.same_device(outside) or current().device
        self.inputs: list[Node] = []
        self.taken: list[Node] = []
        self.begun = REGISTRY.enter(constant(0, bool_)).id  # tensors of the body are younger

    @contextmanager
    def building(self, draws: bool = True) -> Iterator[None]:
        """While a function of the body runs: tensors from outside keep their values.

        Without `draws` random numbers need a key: others would be the same in every step.
        """
        SCOPES.bodies.append(self.begun)
        try:
            with sharing_draws(draws):
                yield
        finally:
            SCOPES.bodies.pop()

    def stand_in(self, like: Node, shape: tuple[Size, ...]) -> Tensor:
        """A tensor that has no value yet."""
        if not all([isinstance(n, int) for n in shape]):
            raise ShapeError(
                f"a loop or choice over shape {sizes.show(shape)}",
                "inside a body sizes are fixed; only the number of rows may vary",
            )
        leaf = new_buffer(shape, like.dtype, self.device)  # type: ignore[arg-type]
        self.inputs.append(leaf)
        return wrap(watch(leaf, INSIDE) if leaf.dtype.is_inexact else leaf)

    def closed(self, roots: Sequence[Node]) -> Body:
        """The body of a loop: what stays the same in every step is taken from outside."""
        order = toposort(roots)
        own = {n for n in order if n.op in HOSTS and not self._is_outside(n)}
        body, self.taken = close(roots, self.inputs, invariant(order, own))
        return self._checked(body)

    def both(self, then: Sequence[Node], other: Sequence[Node]) -> tuple[Body, Body]:
        """The bodies of a choice: only tensors that were there before are taken from outside."""
        self.taken = close([*then, *other], self.inputs, self._is_outside)[1]
        inputs = [*self.inputs, *self.taken]
        bodies = [close(roots, inputs, lambda n: False)[0] for roots in (then, other)]
        return self._checked(bodies[0]), self._checked(bodies[1])

    def _is_outside(self, node: Node) -> bool:
        """True if it is memory, a known value, or what a tensor stood for before."""
        if node.op is BUFFER or (node.realized is not None and node.realized() is not None):
            return True
        return node.op is WATCH or any([e.id < self.begun for e in entries_at(node)])

    def _checked(self, body: Body) -> Body:
        for node in body.order:
            if not all([isinstance(n, int) for n in node.shape]):
                raise ShapeError(
                    f"a body with a value of shape {sizes.show(node.shape)}",
                    "inside a body sizes are fixed; only the number of rows may vary",
                    where=str(node.origins[0]) if node.origins else None,
                )
            if node.op in EXCHANGES and inside.mesh is not None:
                raise ArgumentError(
                    f"{node.op} in the body of a loop or choice, inside of fg.shard_map",
                    "ranks would not meet: let a Python loop repeat it",
                    str(node.origins[0]) if node.origins else None,
                )
        return body
