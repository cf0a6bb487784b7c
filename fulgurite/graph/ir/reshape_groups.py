"""Reshapes with sizes that vary: which dimensions of two shapes belong together.

In: two shapes of equally many elements. Out: runs of dimensions with equal products, if every
size that varies stands alone or leads its run; strides then need fixed sizes only. What mixes
sizes that vary otherwise has no affine form.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.node import Node, Shape, Size
from ...core.shape import upper, value_at
from .affine import regroup


class CannotLower(Exception):
    """A graph that has no affine form; the scheduler runs it another way."""


def groups(new: Shape, old: Shape) -> Sequence[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Runs of dimensions with equal products; variable sizes must stand alone or lead."""
    if _is_fixed((*new, *old)):
        try:
            return regroup(new, old)
        except IndexError:  # products that are equal, and do not look it
            raise CannotLower("a reshape that mixes sizes that vary") from None
    stand_in: dict[Node, int] = {}

    def as_ints(shape: Shape, kept: Sequence[int]) -> tuple[int, ...]:
        # a large prime in the place of each variable: products agree only if they match
        sizes = [shape[d] for d in kept]
        return tuple([n if isinstance(n, int) else value_at(n, stand_in, _PRIMES) for n in sizes])

    news_kept, olds_kept = _wide_axes(new), _wide_axes(old)
    try:
        runs = regroup(as_ints(new, news_kept), as_ints(old, olds_kept))
    except (IndexError, ValueError):
        raise CannotLower("a reshape that mixes variable sizes") from None
    found = []
    for run in runs:
        news, olds = tuple([news_kept[d] for d in run[0]]), tuple([olds_kept[d] for d in run[1]])
        inner = [*[new[d] for d in news[1:]], *[old[d] for d in olds[1:]]]
        if (len(news), len(olds)) != (1, 1) and not _is_fixed(inner):
            raise CannotLower("a reshape that mixes variable sizes")
        found.append((news, olds))
    return found


def _is_fixed(sizes: Sequence[Size]) -> bool:
    """True if no size varies."""
    return all(isinstance(n, int) for n in sizes)


def _wide_axes(shape: Shape) -> list[int]:
    """The axes of more than one element."""
    return [d for d, n in enumerate(shape) if n != 1]


_PRIMES = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117)


def inner_sizes(shape: Shape) -> tuple[int, ...]:
    """Sizes for strides: the leading one does not matter and may be variable."""
    for n in shape:
        if not isinstance(n, int):
            return tuple([upper(n) for n in shape])
    return shape  # type: ignore[return-value]
