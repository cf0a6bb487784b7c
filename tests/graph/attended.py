"""Weights of rows times values, written in the ways people write them, to be asked for gradients.

In: how numbers become tensors (`Given`), and the sizes. Out: a result; every tensor that was made
by name wants a gradient. None of these programs is known to any rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import e, inf, log, log2

import numpy as np

import fulgurite as fg
from fulgurite.core.op import Array


@dataclass
class Given:
    """Tensors of random numbers: those with a name want a gradient."""

    heads: tuple[int, ...]
    rows: int
    keys: int
    size: int
    dtype: str = "float32"
    wanted: dict[str, fg.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def tensor(self, numbers: Array) -> fg.Tensor:
        if self.dtype == "bfloat16":
            return fg.Tensor(numbers.astype(np.float32)).cast(fg.bfloat16)
        return fg.Tensor(numbers.astype(self.dtype))

    def __call__(self, name: str, *shape: int) -> fg.Tensor:
        numbers = self.rng.standard_normal(shape)
        if name not in self.wanted:
            self.wanted[name] = self.tensor(numbers)
        return self.wanted[name]

    def other(self, *shape: int) -> fg.Tensor:
        """One that wants none."""
        return self.tensor(self.rng.standard_normal(shape))

    def kept(self, *shape: int) -> fg.Tensor:
        """Conditions, of which every row has one that holds."""
        found = self.rng.random(shape) < 0.8
        found[..., 0] = True
        return fg.Tensor(found)

    def qkv(self) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:
        shapes = (("q", self.rows), ("k", self.keys), ("v", self.keys))
        q, k, v = (self(name, *self.heads, n, self.size) for name, n in shapes)
        return q, k, v

    def each_head(self, name: str) -> fg.Tensor:
        return self(name, *self.heads[-1:], 1, 1)

    @property
    def places(self) -> tuple[fg.Tensor, fg.Tensor]:
        return fg.arange(self.rows)[:, None] + (self.keys - self.rows), fg.arange(self.keys)[None]


Program = Callable[[Given], fg.Tensor]
Weights = Callable[[fg.Tensor, Given], fg.Tensor]


def _attention(weigh: Weights) -> Program:
    def program(given: Given) -> fg.Tensor:
        q, k, v = given.qkv()
        return weigh(q @ k.mT * given.size**-0.5, given) @ v

    return program


def _softmax(s: fg.Tensor) -> fg.Tensor:
    return fg.softmax(s, axis=-1)


def _most(s: fg.Tensor) -> fg.Tensor:
    return s.max(axis=-1, keepdims=True)


def _divided(powers: fg.Tensor, more: float = 0.0) -> fg.Tensor:
    return powers / (powers.sum(axis=-1, keepdims=True) + more)


def _causal(given: Given) -> fg.Tensor:
    rows, keys = given.places
    return keys <= rows


def _window(given: Given) -> fg.Tensor:
    rows, keys = given.places
    return (keys <= rows) & (rows - keys < 20)


def _apart(given: Given) -> fg.Tensor:
    rows, keys = given.places
    return fg.abs(rows - keys).cast(given.dtype)


def _by_logarithm(s: fg.Tensor) -> fg.Tensor:
    most = _most(s)
    return fg.exp(s - (most + fg.log(fg.exp(s - most).sum(axis=-1, keepdims=True))))


def _renormalised(s: fg.Tensor, given: Given) -> fg.Tensor:
    return _divided(_softmax(s) * given.kept(given.rows, given.keys).cast(given.dtype))


def _padding(given: Given) -> fg.Tensor:
    ones = [1] * len(given.heads)
    return given.kept(*given.heads[:1], *ones[1:], 1, given.keys)


ONE_WALK: dict[str, Program] = {  # at most three kernels beside the first
    "plain": _attention(lambda s, given: _softmax(s)),
    "less the largest": _attention(lambda s, given: _divided(fg.exp(s - _most(s)))),
    "less the largest, no gradient": _attention(
        lambda s, given: _divided(fg.exp(s - _most(s).detach()))
    ),
    "powers as they are": _attention(lambda s, given: _divided(fg.exp(s))),
    "powers of two": _attention(lambda s, given: _divided(fg.exp2((s - _most(s)) * log2(e)))),
    "less a logarithm": _attention(
        lambda s, given: fg.exp(s - fg.logsumexp(s, axis=-1, keepdims=True))
    ),
    "less a logarithm by hand": _attention(lambda s, given: _by_logarithm(s)),
    "a power of logarithms": _attention(lambda s, given: fg.exp(fg.log_softmax(s, axis=-1))),
    "causal": _attention(lambda s, given: _softmax(fg.where(_causal(given), s, -inf))),
    "causal by addition": _attention(
        lambda s, given: _softmax(s + fg.where(_causal(given), 0.0, -1e9))
    ),
    "sliding window": _attention(lambda s, given: _softmax(fg.where(_window(given), s, -inf))),
    "mask": _attention(
        lambda s, given: _softmax(fg.where(given.kept(given.rows, given.keys), s, -1e9))
    ),
    "padded keys": _attention(lambda s, given: _softmax(fg.where(_padding(given), s, -inf))),
    "padded keys by addition": _attention(
        lambda s, given: _softmax(s + (1 - _padding(given).cast(given.dtype)) * -1e4)
    ),
    "mask after": _attention(
        lambda s, given: _softmax(s) * given.kept(given.rows, given.keys).cast(given.dtype)
    ),
    "mask after, divided again": _attention(_renormalised),
    "mask of powers": _attention(
        lambda s, given: _divided(
            fg.exp(s - _most(s)) * given.kept(given.rows, given.keys).cast(given.dtype)
        )
    ),
    "dropped": _attention(
        lambda s, given: fg.where(
            given.kept(*given.heads, given.rows, given.keys), _softmax(s) / 0.9, 0.0
        )
    ),
    "bias": _attention(lambda s, given: _softmax(s + given.other(given.rows, given.keys))),
    "learned bias of keys": _attention(lambda s, given: _softmax(s + given("b", given.keys))),
    "learned bias of heads and keys": _attention(
        lambda s, given: _softmax(s + given("b", *given.heads, 1, given.keys))
    ),
    "learned bias of all": _attention(
        lambda s, given: _softmax(s + given("b", *given.heads, given.rows, given.keys))
    ),
    "learned scale": _attention(lambda s, given: _softmax(s * given.each_head("t"))),
    "learned temperature": _attention(lambda s, given: _softmax(s / fg.exp(given("t", 1)))),
    "distances": _attention(lambda s, given: _softmax(s - 0.1 * _apart(given))),
    "soft cap": _attention(lambda s, given: _softmax(fg.tanh(s / 5) * 5)),
    "clipped": _attention(lambda s, given: _softmax(fg.minimum(fg.maximum(s, -2), 2))),
    "sigmoids": _attention(lambda s, given: fg.sigmoid(s - log(given.keys))),
    "squares": _attention(lambda s, given: fg.relu(s) ** 2 / given.keys),
    "causal weights": _attention(lambda s, given: fg.where(_causal(given), fg.silu(s), 0.0)),
    "a term beside the sum": _attention(
        lambda s, given: _divided(fg.exp(s - _most(s).detach()), 1.0)
    ),
    "an end beside the scores": _attention(lambda s, given: _with_an_end(s, given, last=True)),
    "a start beside causal scores": _attention(
        lambda s, given: _with_an_end(fg.where(_causal(given), s, -inf), given, last=False)
    ),
    "an end by hand": _attention(lambda s, given: _with_an_end_by_hand(s, given)),
    "one more in the sum": _attention(
        lambda s, given: (e := fg.exp(s - _most(s))) / (_total(e) + fg.exp(-_most(s)))
    ),
    "learned slopes": _attention(
        lambda s, given: _softmax(s - given.each_head("m") * _apart(given))
    ),
    "difference of two": lambda given: _difference(given),
    "two values": lambda given: _two_values(given),
    "three products": lambda given: _three_products(given),
    "gate": lambda given: (
        _attention(lambda s, given: _softmax(s))(given)
        * fg.sigmoid(given("g", *given.heads, given.rows, given.size))
    ),
    "powers divided last": lambda given: _divided_last(given, False),
    "less the largest, divided last": lambda given: _divided_last(given, True),
    "transposed": lambda given: _turned(given),
    "with a penalty of entropy": lambda given: _penalised(given),
    "library": lambda given: fg.scaled_dot_product_attention(*given.qkv(), is_causal=True),
}


def _total(s: fg.Tensor) -> fg.Tensor:
    return s.sum(axis=-1, keepdims=True)


def _end(s: fg.Tensor, given: Given) -> fg.Tensor:
    return given.each_head("end").expand((*s.shape[:-1], 1))


def _with_an_end(s: fg.Tensor, given: Given, last: bool) -> fg.Tensor:
    end = _end(s, given)
    found = _softmax(fg.concatenate([s, end] if last else [end, s], axis=-1))
    return found[..., :-1] if last else found[..., 1:]


def _with_an_end_by_hand(s: fg.Tensor, given: Given) -> fg.Tensor:
    end = _end(s, given)
    most = fg.maximum(_most(s), end)
    powers = fg.exp(s - most)
    return powers / (_total(powers) + fg.exp(end - most))


def _difference(given: Given) -> fg.Tensor:
    q, k, v = given.qkv()
    others = given("q2", *q.shape), given("k2", *k.shape)
    first, second = (_softmax(a @ b.mT * given.size**-0.5) for a, b in ((q, k), others))
    return (first - given("part", 1) * second) @ v


def _two_values(given: Given) -> fg.Tensor:
    q, k, v = given.qkv()
    p = _softmax(q @ k.mT * given.size**-0.5)
    return p @ v * fg.sigmoid(p @ given("v2", *v.shape))


def _three_products(given: Given) -> fg.Tensor:
    q, k, v = given.qkv()
    others = given("k2", *k.shape), given("q2", *q.shape)
    return _softmax((q @ k.mT + q @ others[0].mT + others[1] @ k.mT) * 0.1) @ v


def _divided_last(given: Given, less: bool) -> fg.Tensor:
    q, k, v = given.qkv()
    s = q @ k.mT * given.size**-0.5
    powers = fg.exp(s - _most(s) if less else s)
    return (powers @ v) / powers.sum(axis=-1, keepdims=True)


def _turned(given: Given) -> fg.Tensor:
    shapes = (("q", given.rows), ("k", given.keys), ("v", given.keys))
    q, k, v = (given(name, *given.heads, given.size, n) for name, n in shapes)
    return v @ fg.softmax(k.mT @ q * given.size**-0.5, axis=-2)


def _penalised(given: Given) -> fg.Tensor:
    q, k, v = given.qkv()
    s = q @ k.mT * given.size**-0.5
    more = (_softmax(s) * fg.log_softmax(s, axis=-1)).sum(axis=-1, keepdims=True)
    return _softmax(s) @ v + more


def _normalised(norm: Callable[[fg.Tensor], fg.Tensor], scale: float) -> Program:
    def program(given: Given) -> fg.Tensor:
        q, k, v = given.qkv()
        return _softmax(norm(q) @ norm(k).mT * scale) @ v

    return program


def _root(x: fg.Tensor) -> fg.Tensor:
    return x * fg.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)


def _unit(x: fg.Tensor) -> fg.Tensor:
    return x / fg.sqrt((x * x).sum(axis=-1, keepdims=True))


def _halves(given: Given, x: fg.Tensor) -> fg.Tensor:
    half, steps = given.size // 2, x.shape[-2]
    angle = given.tensor(np.outer(np.arange(steps), 0.1 ** (np.arange(half) / half)))
    a, b = x[..., :half], x[..., half:]
    parts: list[fg.Tensor] = [
        a * fg.cos(angle) - b * fg.sin(angle),
        b * fg.cos(angle) + a * fg.sin(angle),
    ]
    found: fg.Tensor = fg.concatenate(parts, axis=-1)
    return found


def _turning(given: Given) -> fg.Tensor:
    q, k, v = given.qkv()
    return _softmax(_halves(given, q) @ _halves(given, k).mT * given.size**-0.5) @ v


MORE_KERNELS: dict[str, Program] = {  # no matrix, but what comes before and after is its own
    "roots of squares": _normalised(_root, 0.2),
    "unit vectors": _normalised(_unit, 10.0),
    "layer norm": _normalised(lambda x: fg.layer_norm(x, (x.shape[-1],)), 0.2),
    "turned by places": _turning,
}


def _of_table(given: Given) -> fg.Tensor:
    rows, keys = fg.arange(given.rows)[:, None], fg.arange(given.keys)[None]
    found: fg.Tensor = given("t", *given.heads[-1:], given.rows + given.keys)[
        ..., rows - keys + given.keys
    ]
    return found


ONE_MATRIX: dict[str, Program] = {  # the adjoint of scores, which something else reads whole
    "bias that heads share": _attention(
        lambda s, given: _softmax(s + given("b", given.rows, given.keys))
    ),
    "table of relative places": _attention(lambda s, given: _softmax(s + _of_table(given))),
}


def _heads_apart(given: Given) -> fg.Tensor:
    (b, h), d = given.heads, given.size
    lengths = (("q", given.rows), ("k", given.keys), ("v", given.keys))
    q, k, v = (
        given(name, b, n, h * d).reshape((b, n, h, d)).permute((0, 2, 1, 3)) for name, n in lengths
    )
    found = _softmax(fg.where(_causal(given), q @ k.mT * d**-0.5, -inf)) @ v
    return found.permute((0, 2, 1, 3)).reshape((b, given.rows, h * d))


def _einsum(given: Given) -> fg.Tensor:
    (b, h), d = given.heads, given.size
    lengths = (("q", given.rows), ("k", given.keys), ("v", given.keys))
    q, k, v = (given(name, b, n, h, d) for name, n in lengths)
    p = _softmax(fg.einsum("bqhd,bkhd->bhqk", q, k) * d**-0.5)
    return fg.einsum("bhqk,bkhd->bqhd", p, v)


def _packed(given: Given) -> fg.Tensor:
    (b, h), d, n = given.heads, given.size, given.keys
    x = given("x", b, n, 3, h, d)
    q, k, v = (x[:, :, i].permute((0, 2, 1, 3)) for i in range(3))
    return _softmax(q @ k.mT * d**-0.5) @ v


OF_HEADS: dict[str, Program] = {  # these have two axes of heads
    "heads taken apart": _heads_apart,
    "einsum": _einsum,
    "packed": _packed,
}


def asked(program: Program, given: Given, forward: bool) -> list[fg.Tensor]:
    """The gradients of a program, with its result if that is wanted too."""
    program(given)  # names what wants a gradient
    names, leaves = list(given.wanted), list(given.wanted.values())

    def loss(*leaves: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
        other = Given(given.heads, given.rows, given.keys, given.size, given.dtype)
        other.wanted = dict(zip(names, leaves, strict=True))
        found = program(other)
        weight = other.tensor(np.random.default_rng(5).standard_normal(found.shape))
        return (found * weight).sum(), found

    places = tuple(range(len(leaves)))
    (_, found), slopes = fg.value_and_grad(loss, argnums=places, has_aux=True)(*leaves)
    return [found, *slopes] if forward else list(slopes)
