"""Trees of values: lists, tuples, dicts and dataclasses, nested, as one flat list and back.

In: any nesting of list, tuple (named ones too), dict, dataclass and registered types around
leaves. Out: the leaves in a fixed order (dicts by insertion, dataclasses by field) and a `Form`
that puts others in their place. A form is a value: equal forms are equal trees without their
leaves, so it can be compared and be a key. Everything that is not one of these containers is a
leaf, None too. Dataclasses are put together without their `__init__`, which may check values.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from ._hints import surface
from .core.dtype import DType
from .core.lazy_named_tuple import NamedTuple
from .errors import ArgumentError


class Kind(NamedTuple):
    """How one type of container is taken apart and put together."""

    apart: Callable[[Any], tuple[Sequence[Any], Hashable]]  # children, and what else it is
    together: Callable[[Any, list[Any]], Any]  # the same from (what else it is, children)
    names: Callable[[Any], Iterable[Any]]  # of the children, from what else it is


class Form:
    """A tree without its leaves."""

    __slots__ = ("children", "count", "extra", "hashed", "type")

    def __init__(self, type_: type | None, extra: Hashable, children: tuple[Form, ...]) -> None:
        self.type, self.extra, self.children = type_, extra, children  # type None: a leaf
        self.count: int = 1 if type_ is None else sum([child.count for child in children])
        self.hashed: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Form):
            return NotImplemented
        return self is other or (
            self.type is other.type
            and self.count == other.count
            and self.extra == other.extra
            and self.children == other.children
        )

    def __hash__(self) -> int:
        if self.hashed is None:
            self.hashed = hash((self.type, self.extra, self.children))
        return self.hashed

    def __repr__(self) -> str:
        if self.type is None:
            return "*"
        return repr(_KINDS[self.type].together(self.extra, list(self.children)))


class _Epoch:
    count = 0  # how often an attribute of some module was bound anew


def rebound() -> None:
    """Note that an attribute of a module (a tensor, a part, a setting) was bound to something else.

    Whoever keeps what a tree of modules looked like (names, leaves, a captured plan) compares
    `epoch()` with the one it saw: while that is the same, no module has changed its attributes.
    """
    _Epoch.count += 1


def epoch() -> int:
    """A number that grows whenever some module's attribute is bound anew."""
    return _Epoch.count


LEAF = Form(None, None, ())
_KINDS: dict[type, Kind] = {}
# types that were looked at and are no containers; a dtype is one object, which `is` compares
_LEAVES: set[type] = {DType}


def register(
    type_: type,
    apart: Callable[[Any], tuple[Sequence[Any], Hashable]],
    together: Callable[[Any, list[Any]], Any],
    names: Callable[[Any], Iterable[Any]] | None = None,
) -> None:
    """Make a type of your own a container: how to take it apart, and how to put it together.

    `apart` gives the children and whatever else it takes to make one (hashable); `together` makes
    one of these two; `names` says from the latter what the children are called in `paths`.

    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> fg.tree.register(Pair, lambda p: ([p.a, p.b], None), lambda _, children: Pair(*children))
    >>> fg.tree.leaves({"p": Pair(1, [2, 3])})
    [1, 2, 3]
    """
    if not isinstance(type_, type):
        raise ArgumentError(f"{type_!r} is not a type", "register a class")
    if type_ in _KINDS:
        raise ArgumentError(f"{type_.__name__} is a container already", "register it once")
    _KINDS[type_] = Kind(apart, together, names or _places)
    _LEAVES.discard(type_)


def _kind(type_: type) -> Kind | None:
    """How a type is taken apart; None for a leaf. Looked up once for every type."""
    found = _KINDS.get(type_)
    if found is not None or type_ in _LEAVES:
        return found
    found = _derived(type_)
    if found is None:
        _LEAVES.add(type_)
    else:
        _KINDS[type_] = found
    return found


def _derived(type_: type) -> Kind | None:
    if issubclass(type_, tuple) and hasattr(type_, "_fields"):
        names = type_._fields
        return Kind(lambda x: (x, None), lambda _, c: type_(*c), lambda _: names)
    if issubclass(type_, list | tuple):
        return Kind(lambda x: (x, None), lambda _, c: type_(c), _places)
    if issubclass(type_, defaultdict):
        return Kind(
            lambda x: (list(x.values()), (x.default_factory, *x)),
            lambda extra, c: type_(extra[0], zip(extra[1:], c, strict=True)),
            lambda extra: extra[1:],
        )
    if issubclass(type_, dict):
        return Kind(
            lambda x: (list(x.values()), tuple(x)),
            lambda keys, c: type_(dict(zip(keys, c, strict=True))),  # not pairs: a Counter
            # would count them
            lambda keys: keys,
        )
    return _of_fields(type_) if dataclasses.is_dataclass(type_) else None


def _places(extra: Any) -> Iterable[Any]:
    place = 0
    while True:
        yield place
        place += 1


def _of_fields(type_: type) -> Kind:
    names = tuple(field.name for field in dataclasses.fields(type_))

    def together(_: Any, children: list[Any]) -> Any:
        made: Any = object.__new__(type_)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(made, name, child)
        return made

    return Kind(lambda x: ([getattr(x, name) for name in names], None), together, lambda _: names)


# --- flat and back -------------------------------------------------------------------------------


def flatten(tree: Any) -> tuple[list[Any], Form]:
    """The leaves in order, and the form that they were taken from.

    >>> leaves, form = fg.tree.flatten({"w": [1, 2], "b": (3,)})
    >>> leaves, form
    ([1, 2, 3], {'w': [*, *], 'b': (*,)})
    """
    leaves: list[Any] = []
    return leaves, _taken(tree, leaves)


def _taken(part: Any, leaves: list[Any]) -> Form:
    kind = _kind(type(part))
    if kind is None:
        leaves.append(part)
        return LEAF
    children, extra = kind.apart(part)
    return Form(type(part), extra, tuple([_taken(child, leaves) for child in children]))


def unflatten(form: Form, leaves: Iterable[Any]) -> Any:
    """A tree of a form, with these leaves in order.

    >>> leaves, form = fg.tree.flatten({"w": [1, 2], "b": (3,)})
    >>> fg.tree.unflatten(form, [x * 10 for x in leaves])
    {'w': [10, 20], 'b': (30,)}
    """
    given = list(leaves)
    if len(given) != form.count:
        raise ArgumentError(
            f"{len(given)} leaves for a tree of {form.count}", "give one for each place"
        )
    return _given(form, iter(given))


def _given(form: Form, leaves: Iterator[Any]) -> Any:
    if form.type is None:
        return next(leaves)
    children = [_given(child, leaves) for child in form.children]
    return _KINDS[form.type].together(form.extra, children)


def leaves(tree: Any) -> list[Any]:
    """The leaves in order.

    >>> fg.tree.leaves([1, {"a": 2, "b": (3, None)}])
    [1, 2, 3, None]
    """
    return flatten(tree)[0]


def structure(tree: Any) -> Form:
    """The form: equal for trees that differ in their leaves only.

    >>> fg.tree.structure([1, (2, 3)]) == fg.tree.structure([4, (5, 6)])
    True
    """
    return flatten(tree)[1]


def paths(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Every leaf with the way to it: keys, places and field names.

    >>> fg.tree.paths({"w": [1, 2]})
    [(('w', 0), 1), (('w', 1), 2)]
    """
    found, form = flatten(tree)
    return list(zip(_ways(form, ()), found, strict=True))


def _ways(form: Form, way: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if form.type is None:
        yield way
        return
    names = _KINDS[form.type].names(form.extra)
    for child, name in zip(form.children, names, strict=False):
        yield from _ways(child, (*way, name))


# --- many leaves at once -------------------------------------------------------------------------


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The function applied leaf by leaf to trees of the same form; `fg.tree.map` for short.

    >>> fg.tree.map(lambda a, b: a + b, {"x": 1, "y": [2]}, {"x": 10, "y": [20]})
    {'x': 11, 'y': [22]}
    """
    first, form = flatten(tree)
    rows = [leaves_like(other, form) for other in others]
    return unflatten(form, [function(*row) for row in zip(first, *rows, strict=True)])


def leaves_like(tree: Any, form: Form) -> list[Any]:
    """The leaves of a tree that must have this form; the order of its dicts' keys is free."""
    found, mine = flatten(tree)
    if mine == form:
        return found
    ordered = _reordered(tree, form)
    if structure(ordered) != form:
        raise ArgumentError(f"a tree {mine!r} where {form!r} is asked", "give trees of one form")
    return leaves(ordered)


def _reordered(part: Any, form: Form) -> Any:
    """The same tree, its dicts in the order of a form's."""
    kind = _kind(type(part))
    if kind is None or form.type is not type(part):
        return part
    children, extra = kind.apart(part)
    if isinstance(part, dict) and set(part) == set(_KINDS[form.type].names(form.extra)):
        children, extra = [part[key] for key in kind.names(form.extra)], form.extra
    if len(children) != len(form.children):
        return part
    pairs = zip(children, form.children, strict=True)
    return kind.together(extra, [_reordered(child, inner) for child, inner in pairs])


def all_leaves(test: Callable[[Any], Any], tree: Any) -> bool:
    """Does the test hold for every leaf? `fg.tree.all` for short.

    >>> fg.tree.all(lambda x: x > 0, [1, {"a": 2}])
    True
    """
    return not [leaf for leaf in leaves(tree) if not test(leaf)]


def spread(prefix: Any, tree: Any, what: str) -> list[Any]:
    """One leaf of a prefix for every leaf of a tree: what stands above a subtree is for all of it.

    >>> fg.tree.spread((0, None), ([1, 2], {"a": 3}), "axes")
    [0, 0, None]
    """
    found: list[Any] = []
    _spread(prefix, structure(tree), found, what)
    return found


def _spread(prefix: Any, form: Form, found: list[Any], what: str) -> None:
    kind = _kind(type(prefix))
    if kind is None:
        found.extend([prefix] * form.count)
        return
    children, extra = kind.apart(prefix)
    alike = form.type is not None and len(children) == len(form.children)
    if alike and isinstance(prefix, dict):
        alike = extra == form.extra
    if not alike or form.type is None or issubclass(form.type, dict) != isinstance(prefix, dict):
        raise ArgumentError(
            f"{what} is {prefix!r} where the tree is {form!r}",
            "give one value for all of it, or a tree that begins like it",
        )
    for child, inner in zip(children, form.children, strict=True):
        _spread(child, inner, found, what)


map = map_tree
all = all_leaves

__getattr__, __dir__ = surface(__name__)
