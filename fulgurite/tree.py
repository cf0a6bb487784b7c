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
    return leaves, _taken(tree, leaves)


def _taken(part: Any, leaves: list[Any]) -> Any:
    inside = _children(part)
    if inside is None:
        leaves.append(part)
        return LEAF
    return _like(part, [_taken(child, leaves) for child in inside])


def unflatten(tree: Any, leaves: Iterable[Any]) -> Any:
    """A tree with its `LEAF`s replaced, in order."""
    return _given(tree, iter(leaves))


def _given(part: Any, leaves: Iterator[Any]) -> Any:
    if part is LEAF:
        return next(leaves)
    inside = _children(part)
    assert inside is not None, f"{part!r} is no tree"
    return _like(part, [_given(child, leaves) for child in inside])


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The function applied leaf by leaf to trees of the same form."""
    leaves, form = flatten(tree)
    rows = [flatten(other)[0] for other in others]
    return unflatten(form, [function(*row) for row in zip(leaves, *rows, strict=True)])


def _children(part: Any) -> list[Any] | None:
    """What a container holds, in order; None for a leaf."""
    if isinstance(part, dict):
        return list(part.values())
    return list(part) if isinstance(part, list | tuple) else None


def _like(part: Any, children: list[Any]) -> Any:
    """The same container around other children."""
    if isinstance(part, dict):
        return dict(zip(part, children, strict=True))
    if isinstance(part, list):
        return children
    return type(part)(*children) if hasattr(part, "_fields") else tuple(children)
