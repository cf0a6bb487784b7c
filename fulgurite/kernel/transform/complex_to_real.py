"""Complex numbers as pairs of reals.

In: an `IndexKernel` and the dtypes of its params. Out: the same kernel over real params, each twice
as long, with real and imaginary parts beside each other in memory as NumPy has them. Arithmetic,
comparison, choice, conversion, sums, gathers and scatter-adds become real ops on the parts. What
is no combination of few real ops (transcendental functions with all their branch cuts and special
cases, products over an axis) raises `CannotLower`: NumPy does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dtype import DType, bool_, complex64, encode, float32, float64, void
from ...core.node import Node, make, toposort
from ...core.op import Op
from ...core.ops.complexes import IMAG, PAIR, REAL
from ...core.ops.elementwise import ABS, ADD, AND, CAST, DIV, EQ, LE, MUL, NE, NEG, OR, SUB, WHERE
from ...core.ops.index import FOLD, LOAD, RUN, STORE
from ...core.ops.leaf import CONST, SINK
from ...graph.ir.affine import Affine
from ...graph.ir.lower import IndexKernel
from ...graph.ir.reshape_groups import CannotLower

Pair = tuple[Node, Node]


def complex_to_real(
    kernel: IndexKernel, dtypes: Sequence[DType]
) -> tuple[IndexKernel, tuple[DType, ...]]:
    """The kernel without complex numbers."""
    order = toposort([kernel.body])
    stored = [n.arg[0] for n in order if n.op is STORE]
    if not any([n.dtype.kind == "c" for n in order] + [dtypes[p].kind == "c" for p in stored]):
        return kernel, tuple(dtypes)
    work = _Pairs(dtypes)
    for node in order:
        if node.op is SINK:
            roots = [r for s in node.src for r in work.roots(s)]
            body = SINK(*roots)
        else:
            work.add(node)
    real = tuple([part(d) if d.kind == "c" else d for d in dtypes])
    return IndexKernel(kernel.axes, body, kernel.divisions), real


def part(dtype: DType) -> DType:
    """The dtype of the parts of a complex number."""
    return float32 if dtype is complex64 else float64


def _twice(index: Affine, plus: int) -> Affine:
    return 2 * index[0] + plus, tuple([(atom, 2 * c) for atom, c in index[1]])


class _Pairs:
    def __init__(self, dtypes: Sequence[DType]) -> None:
        self.dtypes = dtypes
        self.real: dict[Node, Node] = {}  # of nodes that are no complex number
        self.pair: dict[Node, Pair] = {}
        self.stores: dict[Node, tuple[Node, ...]] = {}

    def roots(self, node: Node) -> tuple[Node, ...]:
        return self.stores.get(node) or (self.real[node],)

    def add(self, node: Node) -> None:
        """Compute a node whose sources are computed."""
        if node.op is STORE and node.src[0].dtype.kind == "c":
            self.stores[node] = self.store(node)
        elif node.dtype.kind == "c":
            self.pair[node] = self.complex(node)
        elif any(s.dtype.kind == "c" for s in node.src):
            self.real[node] = self.from_complex(node)
        else:
            src = tuple([self.real[s] for s in node.src])
            self.real[node] = make(node.op, node.dtype, src, node.arg)

    def store(self, node: Node) -> tuple[Node, ...]:
        number, index, mode, axes = node.arg
        if mode not in ("set", "add"):
            raise CannotLower(f"a scatter of {mode} of complex numbers")
        chosen = tuple([self.real[s] for s in node.src[1:]])
        return tuple([
            make(STORE, void, (value, *chosen), (number, _twice(index, i), mode, axes))
            for i, value in enumerate(self.pair[node.src[0]])
        ])  # fmt: skip

    def complex(self, node: Node) -> Pair:
        op, dtype = node.op, part(node.dtype)
        if op is LOAD:
            number, index, conditions = node.arg
            src = tuple([self.real[s] for s in node.src])
            re, im = (make(op, dtype, src, (number, _twice(index, i), conditions)) for i in (0, 1))
            return re, im
        if op is CONST:
            mask, bits = (1 << dtype.bits) - 1, node.arg[0]
            return _constant(bits & mask, dtype), _constant(bits >> dtype.bits & mask, dtype)
        if op is CAST:
            return self.to_complex(node.src[0], dtype)
        if op is WHERE:
            holds = self.real[node.src[0]]
            a, b = self.pair[node.src[1]], self.pair[node.src[2]]
            re, im = (make(WHERE, dtype, (holds, x, y)) for x, y in zip(a, b, strict=True))
            return re, im
        if op is PAIR:
            re, im = (_cast(self.real[s], dtype) for s in node.src)
            return re, im
        sources = [self.pair[s] for s in node.src]
        if op in (FOLD, RUN) and node.arg[0] == "add":
            re, im = (make(op, dtype, (x,), node.arg) for x in sources[0])
            return re, im
        if op in _ARITHMETIC:
            return _ARITHMETIC[op](*sources)
        raise CannotLower(f"{op} of complex numbers has no form in pairs")

    def to_complex(self, source: Node, dtype: DType) -> Pair:
        if source.dtype.kind == "c":
            re, im = (_cast(x, dtype) for x in self.pair[source])
            return re, im
        return _cast(self.real[source], dtype), _constant(encode(0, dtype), dtype)

    def from_complex(self, node: Node) -> Node:
        op = node.op
        a = self.pair[node.src[0]]
        if op is CAST and node.dtype is bool_:
            zero = _constant(encode(0, a[0].dtype), a[0].dtype)
            return OR(NE(a[0], zero), NE(a[1], zero))
        if op is CAST:
            return _cast(a[0], node.dtype)
        if op is REAL or op is IMAG:
            return a[op is IMAG]
        b = self.pair[node.src[1]] if len(node.src) > 1 else a
        if op is EQ:
            return AND(EQ(a[0], b[0]), EQ(a[1], b[1]))
        if op is NE:
            return OR(NE(a[0], b[0]), NE(a[1], b[1]))
        raise CannotLower(f"{op} of complex numbers has no form in pairs")


def _cast(value: Node, dtype: DType) -> Node:
    return value if value.dtype is dtype else make(CAST, dtype, (value,), dtype)


def _constant(bits: int, dtype: DType) -> Node:
    return make(CONST, dtype, (), (bits, ()))


def _product(a: Pair, b: Pair) -> Pair:
    return (
        SUB(MUL(a[0], b[0]), MUL(a[1], b[1])),
        ADD(MUL(a[0], b[1]), MUL(a[1], b[0])),
    )


def _quotient(a: Pair, b: Pair) -> Pair:
    """Divided through by the larger part of the divisor, so that nothing overflows on the way."""
    dtype = a[0].dtype
    zero, one = (_constant(encode(n, dtype), dtype) for n in (0.0, 1.0))

    def divided(large: Node, small: Node, re: Callable[[Node], Node],
                im: Callable[[Node], Node]) -> Pair:  # fmt: skip
        ratio = DIV(small, large)
        scale = DIV(one, ADD(large, MUL(small, ratio)))
        return MUL(re(ratio), scale), MUL(im(ratio), scale)

    first = divided(
        b[0], b[1], lambda r: ADD(a[0], MUL(a[1], r)), lambda r: SUB(a[1], MUL(a[0], r))
    )
    second = divided(
        b[1], b[0], lambda r: ADD(MUL(a[0], r), a[1]), lambda r: SUB(MUL(a[1], r), a[0])
    )
    sizes = ABS(b[0]), ABS(b[1])
    flat = LE(sizes[1], sizes[0])
    none = AND(EQ(b[0], zero), EQ(b[1], zero))
    re, im = (
        make(WHERE, dtype, (none, DIV(x, sizes[0]), make(WHERE, dtype, (flat, p, q))))
        for x, p, q in zip(a, first, second, strict=True)
    )
    return re, im


_ARITHMETIC: dict[Op, Callable[..., Pair]] = {
    ADD: lambda a, b: (ADD(a[0], b[0]), ADD(a[1], b[1])),
    SUB: lambda a, b: (SUB(a[0], b[0]), SUB(a[1], b[1])),
    NEG: lambda a: (NEG(a[0]), NEG(a[1])),
    MUL: _product,
    DIV: _quotient,
}
