"""Products for Hopper's own form of a GEMM: layouts, batches, dtypes and epilogues, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import fulgurite as fg
from fulgurite.codegen.cuda.tiling import HOPPER, GpuTable

GLUON = replace(HOPPER, gluon=True)


class Product(NamedTuple):
    """A function of two matrices (m, k) and (k, n), or of how they lie in memory, and of more."""

    name: str
    build: Callable[..., Any]
    transposed: tuple[bool, bool] = (False, False)
    batch: tuple[int, ...] = ()
    dtype: str = "bfloat16"
    more: tuple[str, ...] = ()  # shapes of further inputs: "n", "mn"
    heads: bool = False  # is the batch inside of the rows in memory?

    def inputs(self, m: int, n: int, k: int) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shapes and dtypes of the inputs, as they are in memory."""
        sides = [(m, k), (k, n)]
        pairs = [
            side[::-1] if transposed else side
            for side, transposed in zip(sides, self.transposed, strict=True)
        ]
        shapes: list[tuple[int, ...]] = [(*self.batch, *pair) for pair in pairs]
        if self.heads:
            shapes = [(b, r, h, c) for b, h, r, c in [tuple(s) for s in shapes]]
        shapes += [(n,) if one == "n" else (*self.batch, m, n) for one in self.more]
        return tuple([(shape, self.dtype) for shape in shapes])

    def __call__(self, a: Any, b: Any, *more: Any) -> Any:
        if self.heads:
            a, b = (fg.swapaxes(x, 1, 2) for x in (a, b))
        a, b = (
            fg.swapaxes(x, -1, -2) if transposed else x
            for x, transposed in zip((a, b), self.transposed, strict=True)
        )
        return self.build(a, b, *more)


def _gelu(a: Any, b: Any, c: Any) -> Any:
    return fg.gelu(a @ b + c, approximate="tanh")


PRODUCTS = (
    Product("nn", lambda a, b: a @ b),
    Product("nt", lambda a, b: a @ b, (False, True)),
    Product("tn", lambda a, b: a @ b, (True, False)),
    Product("tt", lambda a, b: a @ b, (True, True)),
    Product("half", lambda a, b: fg.relu(a @ b), (False, True), dtype="float16"),
    Product("gelu", _gelu, more=("n",)),
    Product("residual", lambda a, b, c, r: a @ b + c + r, (False, True), more=("n", "mn")),
    Product("wide", lambda a, b: a.astype("float32") @ b.astype("float32"), (True, False)),
    Product("two", lambda a, b, r: (a @ b) * r, more=("mn",), batch=(3,)),
    Product("heads", lambda a, b: (a @ b) * 0.125, (False, True), (2, 3), heads=True),
)  # fmt: skip


def product(name: str) -> Product:
    """One of them by name."""
    return next(p for p in PRODUCTS if p.name == name)


def only(tile: tuple[float, ...]) -> GpuTable:
    """A table with one tile, for products of any size."""
    return replace(GLUON, gluon_tiles=(tile,), gluon_least=0, processors=1)
