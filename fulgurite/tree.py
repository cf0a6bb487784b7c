"""Trees of values: lists, tuples and dicts, nested, as one flat list and back.

In: any nesting of list, tuple (named ones too) and dict around leaves. Out: the leaves in a fixed
order (dicts by insertion) and a description that puts others in their place. Everything that is
not one of these containers is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Leaf:
    """The place of one leaf in a tree."""

    def __repr__(self) -> str:
        return "*"


LEAF = Leaf()


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves in order, and the tree with `LEAF` in their places."""
    leaves: list[Any] = []

    def walk(part: Any) -> Any:
        rebuilt = _rebuild(part, walk)
        if rebuilt is None:
            leaves.append(part)
            return LEAF
        return rebuilt[0]

    return leaves, walk(tree)


def unflatten(tree: Any, leaves: Iterable[Any]) -> Any:
    """A tree with its `LEAF`s replaced, in order."""
    remaining: Iterator[Any] = iter(leaves)

    def walk(part: Any) -> Any:
        if part is LEAF:
            return next(remaining)
        rebuilt = _rebuild(part, walk)
        assert rebuilt is not None, f"{part!r} is no tree"
        return rebuilt[0]

    return walk(tree)


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The function applied leaf by leaf to trees of the same form."""
    leaves, form = flatten(tree)
    rows = [flatten(other)[0] for other in others]
    return unflatten(form, [function(*row) for row in zip(leaves, *rows, strict=True)])


def _rebuild(part: Any, walk: Callable[[Any], Any]) -> tuple[Any] | None:
    """The container with `walk` applied inside, in a 1-tuple; None for a leaf."""
    if isinstance(part, dict):
        return ({key: walk(value) for key, value in part.items()},)
    if isinstance(part, list):
        return ([walk(value) for value in part],)
    if isinstance(part, tuple):
        values = [walk(value) for value in part]
        return (type(part)(*values) if hasattr(part, "_fields") else tuple(values),)
    return None
