"""Sizes and shapes: ints, or whole-number expressions of bounded variables.

In: sizes. Out: sizes in one normal form, a sum of products of atoms ordered by their text, so
that equal sizes are the same int or the same node (`n*2 + n` is `n*3`). Anything but `+ - *` and
exact division is an atom. Ints, which are nearly all sizes, take the first line of each function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from ..errors import ShapeError
from .dtype import int64
from .node import Node, Shape, Size, constant, toposort
from .operators import OPS

Monomial: TypeAlias = tuple[Node, ...]
Polynomial: TypeAlias = dict[Monomial, int]


def add(a: Size, b: Size) -> Size:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _size(_sum(_polynomial(a), _polynomial(b), 1))


def sub(a: Size, b: Size) -> Size:
    """a - b."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return _size(_sum(_polynomial(a), _polynomial(b), -1))


def mul(a: Size, b: Size) -> Size:
    """a * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return _size(_product(_polynomial(a), _polynomial(b)))


def floordiv(a: Size, b: Size) -> Size:
    """a // b for b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    exact = _exact_quotient(_polynomial(a), _polynomial(b))
    return _size(exact) if exact is not None else _opaque("floordiv", a, b)


def mod(a: Size, b: Size) -> Size:
    """a % b for b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if _exact_quotient(_polynomial(a), _polynomial(b)) is not None:
        return 0
    return _opaque("mod", a, b)


def prod(shape: Iterable[Size]) -> Size:
    """The number of elements."""
    total: Size = 1
    for size in shape:
        total = (
            total * size if isinstance(total, int) and isinstance(size, int) else mul(total, size)
        )
    return total


def same(a: Size, b: Size) -> bool:
    """True if two sizes are always equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a is b or sub(a, b) == 0


def lower(size: Size) -> int:
    """The least value a size can have."""
    return size if isinstance(size, int) else _limits(size)[0]


def upper(size: Size) -> int:
    """The largest value a size can have: what is allocated."""
    return size if isinstance(size, int) else _limits(size)[1]


def value_at(size: Size, known: dict[Node, int], more: Sequence[int]) -> int:
    """A size with numbers in the place of its variables; new ones get the next of `more`."""
    total = 0
    for monomial, factor in _polynomial(size).items():
        for atom in monomial:
            if atom not in known:
                known[atom] = more[len(known)]
            factor *= known[atom]
        total += factor
    return total


def as_node(size: Size) -> Node:
    """A size as a whole-number node of no dimensions."""
    return constant(size, int64) if isinstance(size, int) else size


def normal(size: Size) -> Size:
    """The normal form of a size given as any whole-number expression."""
    return size if isinstance(size, int) else _size(_polynomial(size))


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all of them stretch to: sizes agree or are 1, aligned on the right."""
    first = shapes[0]
    if len(shapes) == 2:  # most often they are one, or one is the end of the other
        short, long = shapes if len(first) < len(shapes[1]) else shapes[::-1]
        if not short or long[-len(short) :] == short:
            return long
        if len(short) == len(long) and (found := _stretched(short, long)) is not None:
            return found
    elif all([s == first for s in shapes]):
        return first
    ndim = max(map(len, shapes))
    return tuple([_stretched_at(shapes, place) for place in range(ndim, 0, -1)])


def _stretched_at(shapes: Sequence[Shape], place: int) -> Size:
    """The size that all shapes stretch to in a dimension, counted from the right."""
    size: Size = 1
    for shape in shapes:
        if place > len(shape) or (other := shape[-place]) == 1 or same(size, other):
            continue
        if size != 1:
            texts = " and ".join(show(s) for s in dict.fromkeys(shapes))
            raise ShapeError(
                f"shapes {texts} do not broadcast: {size_text(size)} against "
                f"{size_text(other)} in dimension -{place}",
                "sizes must agree or be 1, counted from the right",
            )
        size = other
    return size


def _stretched(first: Shape, second: Shape) -> Shape | None:
    """The shape that two of as many plain sizes stretch to; None where that takes a closer look."""
    found = [
        a if b == 1 else b if a == 1 or a == b else None
        for a, b in zip(first, second, strict=True)
        if type(a) is type(b) is int
    ]
    return None if None in found or len(found) < len(first) else tuple(found)  # type: ignore[arg-type]


def size_text(size: Size) -> str:
    """A size as a reader writes it."""
    return str(size) if isinstance(size, int) else _text(size)


def show(shape: Shape) -> str:
    """A shape as a reader writes it: `(2, n*3)`."""
    inside = ", ".join(size_text(s) for s in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


# --- polynomials ---------------------------------------------------------------------------------


def _polynomial(size: Size) -> Polynomial:
    """The normal form; each shared part is computed once, whatever the depth."""
    if isinstance(size, int):
        return _number(size)
    if size.op.name in _ATOMS:
        return _one_step(size, {})
    known: dict[Node, Polynomial] = {}
    for part in toposort([size]):
        known[part] = _one_step(part, known)
    return known[size]


_ATOMS = ("var", "bind", "const")


def _one_step(size: Node, known: dict[Node, Polynomial]) -> Polynomial:
    name = size.op.name
    if name == "const":
        value = size.value
        assert isinstance(value, int)
        return _number(value)
    if name in _RINGS:
        return _RINGS[name](*[known[s] for s in size.src])
    if name in ("floordiv", "mod"):  # 2 * n // 2, which somebody wrote
        exact = _exact_quotient(*[known[s] for s in size.src])
        if exact is not None:
            return exact if name == "floordiv" else {}
    if size.src and name != "bind":  # 7 // 2, once n is known to be 7
        low, high = _limits(size)
        if low == high:
            return _number(low)
    return {(size,): 1}


def _number(value: int) -> Polynomial:
    return {(): value} if value else {}


def _sum(a: Polynomial, b: Polynomial, sign: int = 1) -> Polynomial:
    out = dict(a)
    for monomial, factor in b.items():
        out[monomial] = out.get(monomial, 0) + sign * factor
    return {m: c for m, c in out.items() if c}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    out: Polynomial = {}
    for m, c in a.items():
        for n, d in b.items():
            key = tuple(sorted((*m, *n), key=_order))
            out[key] = out.get(key, 0) + c * d
    return {m: c for m, c in out.items() if c}


_RINGS: dict[str, Callable[..., Polynomial]] = {
    "add": _sum,
    "sub": lambda a, b: _sum(a, b, -1),
    "mul": _product,
    "neg": lambda a: _sum({}, a, -1),
}


def _exact_quotient(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """a / b when b is one monomial that divides every term of a."""
    if len(b) != 1:
        return {(): 1} if a == b and a else None
    ((divisor, factor),) = b.items()
    out: Polynomial = {}
    for monomial, c in a.items():
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % factor:
            return None
        out[tuple(rest)] = c // factor
    return out


def _size(polynomial: Polynomial) -> Size:
    if not polynomial:
        return 0
    if len(polynomial) == 1 and () in polynomial:
        return polynomial[()]
    total: Node | None = None
    for monomial in sorted(polynomial, key=lambda m: (len(m), [*map(_order, m)])):
        factor = polynomial[monomial]
        term: Node | None = None
        for atom in monomial:
            term = atom if term is None else OPS["mul"](term, atom)
        if term is None:
            term = constant(factor, int64)
        elif factor != 1:
            term = OPS["mul"](term, constant(factor, int64))
        total = term if total is None else OPS["add"](total, term)
    assert total is not None
    return total


def _opaque(name: str, a: Size, b: Size) -> Node:
    return OPS[name](as_node(normal(a)), as_node(normal(b)))


def _limits(size: Node) -> tuple[int, int]:
    bounds = size.likely_bounds
    assert bounds is not None, f"{size!r} is not a whole number"
    return bounds


def _order(atom: Node) -> tuple[str, int]:
    """By text; a variable and its BIND read the same, and ids keep them apart."""
    return _text(atom), atom.id


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


def _text(node: Node) -> str:
    name = node.op.name
    if name == "var":
        return str(node.arg[0])
    if name == "bind":
        return _text(node.src[0])
    if name == "const":
        return str(node.value)
    inside = [_text(s) for s in node.src]
    return f"({_SIGNS[name].join(inside)})" if name in _SIGNS else f"{name}({', '.join(inside)})"
