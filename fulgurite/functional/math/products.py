"""Products of tensors: matmul, einsum and their relatives, all of them one contraction.

In: two tensors with a label for each dimension, and the labels of the result. Out: the sum, over
the labels that are not in the result, of the product of expanded views; the compiler finds the
matrix product in it. Half floats are widened before they are multiplied and rounded once at the
end; whole numbers wrap around; of truths a sum is "or".
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from ...core import build
from ...core import shape as sizes
from ...core.build import note
from ...core.dtype import DType, bool_, default_int, float32, promote
from ...core.node import Node, Size
from ...core.op import derived
from ...core.ops.elementwise import MUL
from ...core.ops.leaf import CONST
from ...core.ops.movement import EXPAND, PERMUTE, RESHAPE
from ...core.origin import capture
from ...core.symbolic.sym import at_hints
from ...errors import ArgumentError, ShapeError
from ...tensor import Tensor, TensorLike, lifted, node_of, operand, wrap
from ..array.movement import moveaxis
from ..autocast import narrowed, product_dtype
from ..common import apply
from ..template import templated
from .complex_numbers import conj

Label: TypeAlias = Hashable
Labels: TypeAlias = Sequence[Label]
_TENSORS = {Tensor}


# --- the one contraction -------------------------------------------------------------------------


def operands(*arrays: TensorLike) -> tuple[list[Node], DType]:
    """Nodes in the dtype that products are computed in, and the dtype of the result."""
    if {*map(type, arrays)} == _TENSORS:
        same = [operand(x) for x in arrays]  # type: ignore[arg-type]
        dtype = same[0].dtype
        plain = dtype.is_float and not dtype.is_small_float and product_dtype(dtype) is dtype
        if plain and all([n.dtype is dtype and n.device == same[0].device for n in same]):
            return same, dtype
    nodes = [node_of(x) for x in lifted(*arrays)]
    dtype = product_dtype(promote(*[node.dtype for node in nodes]))
    inside = float32 if dtype.is_small_float else default_int if dtype is bool_ else dtype
    return [build.cast(narrowed(node, dtype), inside) for node in nodes], dtype


def contract(a: Node, la: Labels, b: Node, lb: Labels, out: Labels) -> Node:
    """Σ of a * b over the labels that are not in `out`, whose order the result has."""
    a, la = _sum_out(a, la, {*lb, *out})
    b, lb = _sum_out(b, lb, {*la, *out})
    order = [*out, *[label for label in la if label not in out]]
    product = build.apply(MUL, _align(a, la, order), _align(b, lb, order))
    axes = range(len(out), len(order))
    return build.fold("add", product, axes) if axes else product


def _sum_out(x: Node, labels: Labels, keep: set[Label]) -> tuple[Node, Labels]:
    """x summed over the labels that nobody else needs."""
    gone = [i for i, label in enumerate(labels) if label not in keep]
    if not gone:
        return x, labels
    return build.fold("add", x, gone), [label for label in labels if label in keep]


def _align(x: Node, labels: Labels, order: Labels) -> Node:
    """x with a dimension for each label of `order`, of size 1 where it has none."""
    here = [label for label in order if label in labels]
    moved = build.permute(x, [labels.index(label) for label in here])
    shape = iter(moved.shape)
    return build.reshape(moved, [next(shape) if label in labels else 1 for label in order])


# --- products ------------------------------------------------------------------------------------


@templated
def matmul(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The matrix product: `x1 @ x2`; stacks of matrices broadcast, a vector is a row or column.

    >>> fg.matmul(fg.Tensor([[1, 2], [3, 4]]), fg.Tensor([1, 10])).tolist()
    [21, 43]
    """
    (a, b), dtype = operands(x1, x2)
    if not a.ndim or not b.ndim:
        raise ShapeError("a 0-d tensor has no matrix product", "multiply with *")
    if a.ndim > 1 and b.ndim > 1 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]:
        return wrap(build.cast(_matrices(a, b), dtype))
    la = [*range(2 - a.ndim, 0), "m", "k"][-a.ndim :] if a.ndim > 1 else ["k"]
    lb = [*range(2 - b.ndim, 0), "k", "n"] if b.ndim > 1 else ["k"]
    _same_inside(a, la, b, lb)
    stacks = [*range(2 - max(a.ndim, b.ndim), 0)]
    out = [*stacks, *["m"] * (a.ndim > 1), *["n"] * (b.ndim > 1)]
    return wrap(build.cast(contract(a, la, b, lb, out), dtype))


def _matrices(a: Node, b: Node) -> Node:
    """The contraction of equal stacks of matrices: what most products are, without labels."""
    if build.is_plain(a.shape + b.shape) and CONST not in (a.op, b.op):
        return _plain_matrices(a, b)
    *stacks, m, k = a.shape
    rank = len(stacks)
    b = build.permute(b, (*range(rank), rank + 1, rank))
    left, right = (
        build.reshape(a, (*stacks, m, 1, k)),
        build.reshape(b, (*stacks, 1, *b.shape[-2:])),
    )
    return build.fold("add", build.apply(MUL, left, right), rank + 2)


def _plain_matrices(a: Node, b: Node) -> Node:
    """`_matrices` of sizes that are numbers: node by node, as nothing is left to check."""
    (*stacks, m, k), n, here = a.shape, b.shape[-1], capture()
    rank, whole, turned = len(stacks), (*stacks, m, n, k), (*stacks, n, k)
    order = (*range(rank), rank + 1, rank)
    b = note(derived(PERMUTE(b, arg=order), turned), here)
    sides = []
    for x, shape in ((a, (*stacks, m, 1, k)), (b, (*stacks, 1, n, k))):
        x = note(derived(RESHAPE(x, arg=shape), shape), here)
        sides.append(x if shape == whole else note(derived(EXPAND(x, arg=whole), whole), here))
    product = note(derived(MUL(*sides), whole), here)
    return build.folded("add", product, (rank + 2,))


def _same_inside(a: Node, la: Labels, b: Node, lb: Labels) -> None:
    n, m = a.shape[la.index("k")], b.shape[lb.index("k")]
    if not sizes.same(n, m):
        raise ShapeError(
            f"{sizes.show(a.shape)} @ {sizes.show(b.shape)}: the inner sizes "
            f"{sizes.size_text(n)} and {sizes.size_text(m)} differ",
            "the last size of the first must be the last but one of the second",
        )
    before = [
        tuple([n for n, label in zip(x.shape, row, strict=True) if isinstance(label, int)])
        for x, row in ((a, la), (b, lb))
    ]
    try:
        sizes.broadcast(*before)
    except ShapeError:
        raise ShapeError(
            f"{sizes.show(a.shape)} @ {sizes.show(b.shape)}: the stacks "
            f"{sizes.show(before[0])} and {sizes.show(before[1])} do not broadcast",
            "their sizes must agree or be 1, counted from the right",
        ) from None


@templated
def vecdot(x1: TensorLike, x2: TensorLike, axis: int = -1) -> Tensor:
    """The scalar product of vectors along an axis; the other dimensions broadcast.

    Of complex vectors the first is conjugated.

    >>> fg.vecdot(fg.Tensor([[1, 2], [3, 4]]), fg.Tensor([1, 10])).tolist()
    [21, 43]
    """
    (a, b), dtype = operands(moveaxis(conj(x1), axis, -1), moveaxis(x2, axis, -1))
    la, lb = [*range(1 - a.ndim, 0), "k"], [*range(1 - b.ndim, 0), "k"]
    _same_inside(a, la, b, lb)
    out = [*range(1 - max(a.ndim, b.ndim), 0)]
    return wrap(build.cast(contract(a, la, b, lb, out), dtype))


@templated
def dot(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The sum over the last dimension of x1 and the last but one of x2, as in NumPy.

    >>> fg.dot(fg.Tensor([1, 2]), fg.Tensor([3, 4])).item()
    11
    """
    a, b = (node_of(x) for x in lifted(x1, x2))
    if not a.ndim or not b.ndim:
        return apply(MUL, x1, x2)
    return tensordot(x1, x2, ((-1,), (-1 if b.ndim == 1 else -2,)))


@templated
def tensordot(
    x1: TensorLike, x2: TensorLike, axes: int | Sequence[int | Sequence[int]] = 2
) -> Tensor:
    """The sum over some dimensions of both: the last of x1 with the first of x2, or as listed.

    >>> fg.tensordot(fg.ones((2, 3, 4)), fg.ones((3, 4, 5)), axes=2).shape
    (2, 5)
    """
    (a, b), dtype = operands(x1, x2)
    ours, theirs = _pairs(axes, a, b)
    la: list[Label] = [("a", d) for d in range(a.ndim)]
    lb: list[Label] = [("b", d) for d in range(b.ndim)]
    for d, e in zip(ours, theirs, strict=True):
        if not sizes.same(a.shape[d], b.shape[e]):
            raise ShapeError(
                f"dimension {d} of {sizes.show(a.shape)} and {e} of {sizes.show(b.shape)} differ",
                "sizes that are summed over must agree",
            )
        lb[e] = la[d]
    out = [label for label in la if label not in lb] + [label for label in lb if label not in la]
    return wrap(build.cast(contract(a, la, b, lb, out), dtype))


def _pairs(axes: Any, a: Node, b: Node) -> tuple[list[int], list[int]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ArgumentError(f"there are no {axes} dimensions to sum over", "use fewer axes")
        return list(range(a.ndim - axes, a.ndim)), list(range(axes))
    first, second = ([x] if isinstance(x, int) else list(x) for x in axes)
    if len(first) != len(second):
        raise ArgumentError(f"{len(first)} axes against {len(second)}", "give as many of both")
    build.as_axes(first, a.ndim), build.as_axes(second, b.ndim)
    return [build.as_axis(d, a.ndim) for d in first], [build.as_axis(d, b.ndim) for d in second]


@templated
def outer(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Every element of x1 times every element of x2, both flattened.

    >>> fg.outer(fg.Tensor([1, 2]), fg.Tensor([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    a, b = (node_of(x) for x in lifted(x1, x2))
    column = build.reshape(a, (sizes.prod(a.shape), 1))
    return wrap(build.apply(MUL, column, build.reshape(b, (1, sizes.prod(b.shape)))))


# --- einsum --------------------------------------------------------------------------------------


@templated
def einsum(*arguments: Any) -> Tensor:
    """Sums of products by labelled dimensions: `einsum("ij,jk->ik", a, b)`.

    >>> a = fg.Tensor([[1, 2], [3, 4]])
    >>> fg.einsum("ij,jk->ik", a, a).tolist(), fg.einsum("ii", a).item()
    ([[7, 10], [15, 22]], 5)
    """
    texts, output, arrays = _parse(arguments)
    nodes, dtype = operands(*arrays)
    labels = [_expand_dots(text, node) for text, node in zip(texts, nodes, strict=True)]
    out = _output(texts, labels, output)
    _check_sizes(labels, nodes, out)
    terms: list[tuple[Node, Labels]] = [
        _diagonals(node, list(row)) for node, row in zip(nodes, labels, strict=True)
    ]
    for chosen in _path(terms, out):
        picked = [terms.pop(i) for i in sorted(chosen, reverse=True)][::-1]
        keep = {*out}.union(*[row for _, row in terms])
        terms.append(_merge(picked, keep))
    node, row = _sum_out(*terms[0], {*out})
    result = build.permute(node, [row.index(label) for label in out])
    return wrap(build.cast(result, dtype))


def _merge(terms: Sequence[tuple[Node, Labels]], keep: set[Label]) -> tuple[Node, Labels]:
    """Several terms as one, with the labels that others still need."""
    node, row = terms[0]
    for i, (other, labels) in enumerate(terms[1:], start=2):
        later = keep.union(*[more for _, more in terms[i:]])
        both = [*row, *[label for label in labels if label not in row]]
        out = [label for label in both if label in later]
        node, row = contract(node, row, other, labels, out), out
    return node, row


def _parse(arguments: Sequence[Any]) -> tuple[list[list[Label]], list[Label] | None, list[Any]]:
    """The labels of each operand, those of the result if given, and the operands."""
    if not arguments:
        raise ArgumentError("einsum of nothing", 'write einsum("ij,jk->ik", a, b)')
    if not isinstance(arguments[0], str):
        output = list(arguments[-1]) if len(arguments) % 2 else None
        count = len(arguments) // 2 * 2
        return [list(row) for row in arguments[1:count:2]], output, list(arguments[:count:2])
    text = arguments[0].replace(" ", "")
    left, arrow, right = text.partition("->")
    rows, arrays = [_tokens(part) for part in left.split(",")], list(arguments[1:])
    if len(rows) != len(arrays):
        raise ArgumentError(
            f"{text!r} describes {len(rows)} operands and there are {len(arrays)}",
            "separate the operands' labels by commas",
        )
    return rows, _tokens(right) if arrow else None, arrays


def _tokens(text: str) -> list[Label]:
    """Letters, and Ellipsis for `...`."""
    plain = text.replace("...", "\0")
    if text.count("...") > 1 or not all(c.isalpha() or c == "\0" for c in plain):
        raise ArgumentError(f"{text!r} is not a row of labels", "use letters and one ...")
    return [Ellipsis if c == "\0" else c for c in plain]


def _expand_dots(row: Sequence[Label], node: Node) -> list[Label]:
    """A label for each dimension; those under `...` are numbered from the right."""
    hidden = node.ndim - sum(label is not Ellipsis for label in row)
    if hidden < 0 or (hidden > 0 and Ellipsis not in row):
        raise ShapeError(
            f"{len(row)} labels do not describe {sizes.show(node.shape)}",
            "give a label for each dimension, or ...",
        )
    dots = [("...", -i) for i in range(hidden, 0, -1)]
    out: list[Label] = []
    for label in row:
        out.extend(dots if label is Ellipsis else [label])
    return out


def _output(
    texts: Sequence[Labels], labels: Sequence[Labels], output: Labels | None
) -> list[Label]:
    """The labels of the result; unless given those that occur once, in order, after the dots."""
    known = [label for row in labels for label in row]
    dots = sorted({label for label in known if isinstance(label, tuple)})
    if output is None:
        once = [label for label in known if known.count(label) == 1 and label not in dots]
        return [*dots, *sorted(once)]  # type: ignore[type-var]
    out: list[Label] = []
    for label in output:
        out.extend(dots if label is Ellipsis else [label])
    for label in out:
        if label not in known or out.count(label) > 1:
            raise ArgumentError(
                f"the result's label {label!r} is not in any operand, or is there twice",
                "name each label of the result once",
            )
    return out


def _check_sizes(labels: Sequence[Labels], nodes: Sequence[Node], out: Labels) -> None:
    found: dict[Label, Size] = {}
    for row, node in zip(labels, nodes, strict=True):
        for label, n in zip(row, node.shape, strict=True):
            before = found.get(label, 1)
            if n != 1 and before != 1 and not sizes.same(n, before):
                name = f"'...' at {label[1]}" if isinstance(label, tuple) else repr(label)
                raise ShapeError(
                    f"label {name} has sizes {sizes.size_text(before)} and {sizes.size_text(n)}",
                    "a label stands for one size",
                )
            found[label] = before if n == 1 else n


def _diagonals(node: Node, row: list[Label]) -> tuple[Node, Labels]:
    """x with each label once: of a repeated one the diagonal."""
    for label in dict.fromkeys(row):
        while row.count(label) > 1:
            first = row.index(label)
            second = row.index(label, first + 1)
            node = diagonal_of(node, first, second)
            row = [*[x for i, x in enumerate(row) if i not in (first, second)], label]
    return node, row


def diagonal_of(x: Node, first: int, second: int) -> Node:
    """The diagonal of two dimensions, last: every (n + 1)th element of the n * n."""
    n, m = x.shape[first], x.shape[second]
    if not isinstance(n, int) or n != m:
        raise ShapeError(
            f"a diagonal of sizes {sizes.size_text(n)} and {sizes.size_text(m)}", "make them equal"
        )
    rest = [d for d in range(x.ndim) if d not in (first, second)]
    moved = build.permute(x, [*rest, first, second])
    flat = build.reshape(moved, (*moved.shape[:-2], n * n))
    return build.drop(build.window(flat, -1, 1, n + 1), (flat.ndim,)) if n else flat


def _path(terms: Sequence[tuple[Node, Labels]], out: Labels) -> list[tuple[int, ...]]:
    """Which terms to merge at each step: opt_einsum's order, else from left to right."""
    count = len(terms)
    simple: list[tuple[int, ...]] = [(0, 1), *[(0, n) for n in range(count - 2, 0, -1)]]
    found: dict[Label, Size] = {}
    agree = all(
        isinstance(n, int) and found.setdefault(label, n) == n
        for node, row in terms
        for label, n in zip(row, node.shape, strict=True)
    )
    if count <= 2 or not agree:
        return simple[: count - 1]
    try:
        import opt_einsum
    except ImportError:
        return simple[: count - 1]
    names = {label: opt_einsum.get_symbol(i) for i, label in enumerate(found)}
    rows = ",".join("".join(names[label] for label in row) for _, row in terms)
    text = f"{rows}->{''.join(names[label] for label in out)}"
    shapes = [tuple(map(at_hints, node.shape)) for node, _ in terms]  # any order is right
    path: list[tuple[int, ...]] = opt_einsum.contract_path(text, *shapes, shapes=True)[0]
    return path
