"""Analysis of a kernel's body: what tiles and programs are chosen by.

In: nodes of a body in index notation. Out: which axes run in parallel, which stores have elements,
which products the tensor cores take, how folds are nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.dtype import DType, float16, float32
from ...core.lazy_named_tuple import NamedTuple
from ...core.node import Node, readers_of, toposort
from ...core.ops.elementwise import CAST, DIV, EXP, MUL, NEG, SUB, WHERE
from ...core.ops.index import FOLD
from ...graph.ir.affine import Affine, axis
from ...graph.ir.lower import IndexKernel
from ...graph.ir.queries import products_in_sums
from ...graph.ir.reshape_groups import CannotLower


def fixed_axes(kernel: IndexKernel) -> list[int]:
    """The sizes of a kernel's axes."""
    sizes = [n for n in kernel.axes if isinstance(n, int)]
    if len(sizes) < len(kernel.axes):
        raise CannotLower("an axis of variable size")
    return sizes


def live_roots(kernel: IndexKernel, free: Mapping[Node, frozenset[int]]) -> list[Node]:
    """The stores and checks that have an element at all."""
    sizes = fixed_axes(kernel)
    return [r for r in kernel.body.src if all(sizes[a] for a in free[r])]


def stored_type(factor: Node) -> DType:
    """The dtype a factor can be given to a product in without loss: the one it was cast from."""
    if factor.op is CAST and factor.src[0].dtype.is_small_float and factor.dtype is float32:
        factor = factor.src[0]
    dtype = factor.dtype
    return float16 if dtype.is_small_float and dtype.bits == 8 else dtype


def is_dot_product(node: Node) -> bool:
    """True if a product is of a dtype that `tl.dot` adds up."""
    return node.op is MUL and node.dtype.kind == "f" and node.dtype.bits <= 32


def dot_factors(
    node: Node, free: Mapping[Node, frozenset[int]], dot: tuple[int, int, int]
) -> tuple[Node, Node] | None:
    """The factors of a sum over k that `tl.dot` takes: the first has m and not n, the second n."""
    m, n, k = dot
    if node.op is not FOLD or node.arg[0] != "add" or k not in node.arg[1]:
        return None
    product = node.src[0]
    if not is_dot_product(product):
        return None
    for a, b in (product.src, product.src[::-1]):
        if m in free[a] and n not in free[a] and n in free[b] and m not in free[b]:
            return (a, b) if k in free[a] and k in free[b] else None
    return None


def contractions(order: Sequence[Node], free: Mapping[Node, frozenset[int]]) -> frozenset[Node]:
    """Products of floats that only sums over axes of both factors read: they are not rounded."""
    return frozenset([n for n in products_in_sums(order, free) if n.dtype.is_small_float])


def narrow_values(order: Sequence[Node]) -> frozenset[Node]:
    """Float32 values that reach results only rounded to 16 bits, by ops that keep relative errors.

    A product, a quotient, a choice, a sum of exponentials: errors stay as small as they were, which
    a difference would not promise.
    """
    readers, found = readers_of(order), set[Node]()

    def keeps(node: Node, reader: Node) -> bool:
        if reader.op is CAST:
            return reader.dtype.is_small_float and reader.dtype.bits == 16
        if reader.op is FOLD:
            kept = reader.arg[0] == "max" or (reader.arg[0] == "add" and node.op is EXP)
        elif reader.op is WHERE:
            kept = node is not reader.src[0]
        else:
            kept = reader.op in (MUL, DIV, NEG)
        return kept and reader in found

    for node in reversed(order):
        reads = readers.get(node, ())
        if node.dtype is float32 and reads and all(keeps(node, reader) for reader in reads):
            found.add(node)
    return frozenset(found)


def rounded_values(order: Sequence[Node]) -> frozenset[Node]:
    """Float32 values that reach results only rounded to 16 bits, element by element."""
    readers, found = readers_of(order), set[Node]()
    for node in reversed(order):
        reads = readers.get(node, ())
        if node.dtype is float32 and reads and all(
            (r.op is CAST and r.dtype.is_small_float and r.dtype.bits == 16)
            or (r in found and r.op.family == "elementwise")
            for r in reads
        ):  # fmt: skip
            found.add(node)
    return frozenset(found)


def parallel_axes(roots: Sequence[Node], free: Mapping[Node, frozenset[int]]) -> frozenset[int]:
    """Axes that every root has and nothing folds: each step of them can be its own program."""
    if not roots:
        return frozenset()
    shared = frozenset.intersection(*[free[r] for r in roots])
    folded = {a for n in toposort(roots) if n.op is FOLD for a in n.arg[1]}
    return shared - folded


def online_sums(folds: Sequence[Node]) -> dict[Node, Node]:
    """Sums of exponentials about the largest value of a row, of float32: of that, the sum.

    None where others share a loop with one of them.
    """
    found: dict[Node, Node] = {}
    for fold in folds:
        if fold.arg[0] != "add" or fold.src[0].op is not EXP or fold.dtype is not float32:
            continue
        distance = fold.src[0].src[0]
        if distance.op is SUB:
            value, largest = distance.src
            if largest.op is FOLD and largest.arg == ("max", fold.arg[1]):
                found |= {largest: fold} if largest.src[0] is value else {}
    levels = fold_levels(toposort(folds))
    alone = len({levels[n] for n in folds}) == len(folds)
    return found if alone else {}


class Moments(NamedTuple):
    """A sum of values, and sums of their distances from a number that follows from it."""

    center: Node
    first: tuple[Node, ...]  # sums of distances, one or none
    second: tuple[Node, ...]  # and of their squares


def moments_of(order: Sequence[Node]) -> dict[Node, Moments]:
    """Sums of float32 about whose mean moments of the same values are summed, and these."""
    found: dict[Node, Moments] = {}
    for fold in order:
        about = _about(fold)
        for total in [n for n in order if n.arg == fold.arg] if about is not None else ():
            assert about is not None
            value, center, squared = about
            if total.src[0] is value and total in toposort([center]):
                known = found.get(total, Moments(center, (), ()))
                if known.center is center and squared:
                    found[total] = known._replace(second=(*known.second, fold))
                elif known.center is center:
                    found[total] = known._replace(first=(*known.first, fold))
    return {n: m for n, m in found.items() if len(m.first) <= 1 == len(m.second)}


def _about(fold: Node) -> tuple[Node, Node, bool] | None:
    """What a sum of distances, or of squares of them, is of: values, a number, and if squared."""
    distance = fold.src[0]
    squared = distance.op is MUL and distance.src[0] is distance.src[1]
    distance = distance.src[0] if squared else distance
    if fold.arg[0] != "add" or fold.dtype is not float32 or distance.op is not SUB:
        return None
    value, center = distance.src
    return value, center, squared


def fold_levels(order: Sequence[Node]) -> dict[Node, int]:
    """How many folds, one inside the other, are under each fold."""
    level: dict[Node, int] = {}
    found: dict[Node, int] = {}
    for node in order:
        below = max([level[s] for s in node.src], default=0)
        if node.op is FOLD:
            below += 1
            found[node] = below
        level[node] = below
    return found


def lone_axis(index: Affine) -> int:
    """The axis that an index is; -1 if it is something else."""
    atom = index[1][0][0] if index[0] == 0 and len(index[1]) == 1 else -1
    return atom if isinstance(atom, int) and index == axis(atom) else -1


def divided(index: Affine) -> list[Affine]:
    """An index and those that are divided in it."""
    atoms = [atom for atom, _ in index[1] if isinstance(atom, tuple)]
    return [index, *[inner for atom in atoms for inner in divided(atom[1])]]


def has_low_digit(index: Affine, name: int) -> bool:
    """True if an index steps along an axis, or along the lowest digit of it."""
    return any(
        atom == name or (isinstance(atom, tuple) and atom[0] == "%" and lone_axis(atom[1]) == name)
        for atom, _ in index[1]
    )


def runs_along(index: Affine, name: int) -> bool:
    """True if it does so in steps of one."""
    return any(step == 1 and has_low_digit((0, ((atom, step),)), name) for atom, step in index[1])
