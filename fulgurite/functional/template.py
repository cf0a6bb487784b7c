"""Templates: memoised graph building, the nodes a function makes as a list that is made again.

In: a function of tensors and plain values whose nodes follow from dtypes, shapes and those values
alone. Out: the same function; when operands like these come for the second time, the nodes it makes
of stand-ins for them are kept in order (op, dtype, arg, shape, numbers of sources), and from then
on one call interns them over the operands: a layer norm is 16 nodes of Python arithmetic otherwise.
Stand-ins are parameters that nothing is known of: what a function sees in these very operands (one
is a view of another, or a running count) is no part of a template. Constants and sizes that vary
are left to the function, and so is all that it makes of anything but its operands.

Sizes that never come twice, as those of a cache that grows, have a template too: when operands
differ from earlier ones in sizes for the second time, the sizes of stand-ins are `Sym`s, as in
`fg.jit`, and every number in the nodes is an expression of them. What the function decided because
of a size is a guard, checked for each size once (decision 0195).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from .._lazy import FORK_LOCK
from ..config import current
from ..core.build import Step, is_plain, replay
from ..core.dtype import DType
from ..core.extension import compiled
from ..core.node import Node, Shape, toposort
from ..core.ops.host import HOST_FUNCTIONS, HostFunction
from ..core.ops.leaf import CONST, IOTA, param
from ..core.symbolic.sym import varies
from ..tensor import PLAIN, SCOPES, Tensor, operand, wrap

if TYPE_CHECKING:
    from .sized_template import SizedTemplate

F = TypeVar("F", bound=Callable[..., Tensor | None])
Key = tuple[Any, ...]
Steps = tuple[Step, ...]
Sizes = tuple[int, ...]
_MOST = 512  # keys of a function that are remembered
_SEEN = 2  # sizes of operands that come before those that have expressions
_MOST_SAMPLES = 8
_PATIENCE = 4  # templates of many sizes that are tried for operands which differ in sizes alone
_VALUES = {int, bool, str, type(None)}
_INTS = {int}


class Memo:
    """What is remembered of a function's calls."""

    def __init__(self, function: Callable[..., Tensor | None]) -> None:
        self.function = function  # that makes the nodes, if there is no template
        self.known: dict[Key, Steps] = {}  # (): it has none
        self.seen: set[Key] = set()
        self.of_sizes: dict[Key, OfSizes] = {}  # by keys without their sizes
        self.made = self.filled = 0  # calls of the function, templates for new sizes; for tests

    def missed(self, found: tuple[Key, list[Node]] | None, args: Any, keywords: Any) -> Any:
        """What the function makes of operands that have no template; the next ones may."""
        if found is None or found[0] in self.known:
            return self.function(*args, **keywords)
        call = _with_nodes([args, keywords])  # another thread may give its tensors others
        found = key_of(found[0][0], *call)
        if found is None:
            return self.function(*args, **keywords)
        key, nodes = found
        self._make_room()
        kind, sizes = _without_sizes(key)
        of_sizes = self.of_sizes.get(kind)
        steps = of_sizes.steps(sizes) if of_sizes is not None else None
        if steps is not None:
            self.filled += 1
            self.known[key] = steps
            return wrap(replay(steps, nodes))
        self.made += 1
        made = self.function(*args, **keywords)
        if made is None:
            self.known[key] = ()  # it is for others
            return None
        root = made.entry.node
        if key in self.seen:
            stand_ins = [stand_in(i, node) for i, node in enumerate(nodes)]
            self.known[key] = template(self.function, call, nodes, stand_ins)
        self.seen.add(key)
        if sizes and not _is_watched():
            if of_sizes is None:
                of_sizes = self.of_sizes[kind] = OfSizes()
            of_sizes.learn(sizes, self.function, call, nodes, root)
        return made

    def _make_room(self) -> None:
        """Forget all keys where they are many: sizes may never come again."""
        if len(self.seen) > _MOST or len(self.known) > _MOST:
            self.seen.clear()
            self.known.clear()
        if len(self.of_sizes) > _MOST:
            self.of_sizes.clear()


# what is known of each function; not in its closure, where jit would see it change
_MEMOS: dict[Callable[..., Any], Memo] = {}


def templated(function: F) -> F:
    """The function, with a template for operands like those that came before."""
    known = _MEMOS[function] = Memo(function)

    @wraps(function)
    def build(*args: Any, **keywords: Any) -> Tensor | None:
        memo = _MEMOS[function]
        made: Any = recall(memo.known, current().autocast, args, keywords)
        return made if type(made) is Tensor else memo.missed(made, args, keywords)

    _MEMOS[build] = known
    return build  # type: ignore[return-value]


def inside(function: F, change: Callable[[Any], Any]) -> F:
    """A function changed; where it has templates they stay outermost, and it changes below them."""
    memo = _MEMOS.get(function)
    if memo is None:
        return change(function)  # type: ignore[no-any-return]
    if memo.function is function.__wrapped__:  # type: ignore[attr-defined]
        memo.function = change(memo.function)
    return function


def memo_of(function: Callable[..., Any]) -> Memo:
    """What is remembered of a function that has templates."""
    return _MEMOS[function]


@compiled
def recall(
    known: dict[Key, Steps], mode: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> Tensor | tuple[Key, list[Node]] | None:
    """What a template makes of operands; without one their key and nodes, if they may have one."""
    found = key_of(mode, args, keywords)
    steps = known.get(found[0]) if found else None
    return wrap(replay(steps, found[1])) if found and steps else found


def key_of(
    mode: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Key, list[Node]] | None:
    """The key of operands and their nodes, if they may have a template."""
    key: list[Any] = [mode, len(args)]
    nodes: list[Node] = []
    for x in args:
        if not _described(x, key, nodes):
            return None
    for name, x in keywords.items():
        key.append(name)
        if not _described(x, key, nodes):
            return None
    return tuple(key), nodes


def _described(x: Any, key: list[Any], nodes: list[Node]) -> bool:
    """Add what a function may know of an operand to its key; False if it may know more."""
    kind = type(x)
    if kind in PLAIN or kind is Node:
        return _add_operand(x if kind is Node else operand(x), key, nodes)
    key.append(kind)
    if kind in _VALUES:
        key.append(x)
        return True
    if kind is tuple or kind is list:
        if {*map(type, x)} == _INTS:  # axes, sizes and places, as most are
            key.append(tuple(x))
            return True
        key.append(len(x))
        return all([_described(part, key, nodes) for part in x])
    if kind is slice:
        return all([_described(part, key, nodes) for part in (x.start, x.stop, x.step)])
    if kind is float:
        key.append(x.hex())  # -0.0 equals 0.0
        return True
    return False


def _add_operand(node: Node, key: list[Any], nodes: list[Node]) -> bool:
    """Add a tensor's node; False if a function may look into it."""
    if node in nodes:
        key.append(nodes.index(node))
        return True
    shape = node.shape
    if node.op is CONST or not is_plain(shape):
        return False
    nodes.append(node)
    key += (node.dtype, shape, node.device)
    return True


def stand_in(number: int, node: Node, shape: Shape | None = None) -> Node:
    """A parameter in the place of an operand, with its dtype, shape and device."""
    return param(number, node.shape if shape is None else shape, node.dtype, node.device)


def template(
    function: Callable[..., Tensor | None], call: tuple[Any, Any], operands: Sequence[Node],
    stand_ins: Sequence[Node],
) -> Steps:  # fmt: skip
    """The steps from operands to what a function makes of them; none if there is no template."""
    standing = dict(zip(operands, map(wrap, stand_ins), strict=True))
    args, keywords = _changed(call, Node, standing.__getitem__)
    made = function(*args, **keywords)
    number = {node: i for i, node in enumerate(stand_ins)}
    if made is None or made.entry.node in number:
        return ()
    steps: list[Step] = []
    for node in toposort([made.entry.node]):
        if node in number:
            continue
        if not _is_step(node):
            return ()
        number[node] = len(number)
        places = [number[s] for s in node.src]
        steps.append((node.op, node.dtype, node.arg, node.shape, *places))
    return tuple(steps)


def _with_nodes(call: list[Any]) -> Any:
    """Arguments with the nodes of their tensors, each asked for once."""
    for kind in PLAIN:
        call = _changed(call, kind, operand)
    return call


def _changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Arguments, of which those of a type are changed."""
    of = type(value)
    if of is kind:
        return change(value)
    if of is dict:
        return {name: _changed(part, kind, change) for name, part in value.items()}
    if of is list or of is tuple:
        return of([_changed(part, kind, change) for part in value])
    if of is slice:
        return slice(*_changed([value.start, value.stop, value.step], kind, change))
    return value


def _is_step(node: Node) -> bool:
    """True if nothing but its sources distinguishes a node from one in another graph."""
    if not node.src and node.op is not CONST and node.op is not IOTA:
        return False
    return node.tag is None and _is_value(node.arg) and all(map(_is_value, node.shape))


def _is_value(arg: Any) -> bool:
    if type(arg) is tuple:
        return all(map(_is_value, arg))
    if type(arg) is HostFunction:  # by a name it is the same for ever
        return HOST_FUNCTIONS.get(arg.name) is arg
    return type(arg) in _VALUES or isinstance(arg, DType) or varies(arg)


# --- of many sizes -------------------------------------------------------------------------------


class OfSizes:
    """Operands that differ in sizes alone: those that came, and templates for more of them."""

    def __init__(self) -> None:
        self.samples: list[Sizes] = []
        self.templates: list[SizedTemplate] = []
        self.tried = 0

    def steps(self, sizes: Sizes) -> Steps | None:
        """The steps for sizes, if a template is for them."""
        for template in self.templates:
            steps = template.steps(sizes)
            if steps is not None:
                return steps
        return None

    def learn(
        self, sizes: Sizes, function: Callable[..., Tensor | None], call: tuple[Any, Any],
        nodes: list[Node], root: Node,
    ) -> None:  # fmt: skip
        """Note sizes that no template is for, and make one if they keep changing."""
        if self.tried >= _PATIENCE or sizes in self.samples:
            return
        self.samples = [*self.samples[1 - _MOST_SAMPLES :], sizes]
        if len(self.samples) <= _SEEN:
            return
        self.tried += 1
        with FORK_LOCK:
            from .sized_template import sized_template
        made = sized_template(self.samples, function, call, nodes)
        steps = made.steps(sizes) if made is not None else None
        if made is not None and steps and replay(steps, nodes) is root:
            self.templates.append(made)


def _without_sizes(key: Key) -> tuple[Key, Sizes]:
    """A key without the sizes of its tensors from 2 up, and these."""
    kind: list[Any] = []
    sizes: list[int] = []
    before: Any = None
    for part in key:
        if type(before) is DType:  # a shape
            sizes += [n for n in part if n > 1]
            part = tuple([n if n < 2 else None for n in part])
        kind.append(part)
        before = part
    return tuple(kind), tuple(sizes)


def _is_watched() -> bool:
    """True while somebody wants to know what this thread does with tensors."""
    now = SCOPES
    return bool(now.capturing or now.transforms or now.stack or now.bodies)
