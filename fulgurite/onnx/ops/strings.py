"""Strings: joined, split, matched, counted.

In: a `Call`. Out: host arrays of strings, or tensors of numbers about them. This is Python's work;
counting n-grams of numbers is native code. A pattern with a repetition inside a repetition is
refused: matching it could take for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from re import _constants as pieces  # type: ignore[attr-defined]
from re import _parser as patterns  # type: ignore[attr-defined]
from typing import Any

import numpy as np

import fulgurite as fg

from ...core.op import Array
from ...tensor import Tensor
from ..errors import ModelError
from ..table import Call, operator
from ..types import STRING
from ..values import Value


def texts(array: Array) -> Value:
    """An array of strings as a value."""
    return Value(None, STRING, array.astype(object))


@operator("StringConcat", since=20, host=True)
def string_concat(op: Call) -> Value:
    """Strings one after the other, broadcast."""
    a, b = np.broadcast_arrays(op.host(0), op.host(1))
    found = np.empty(a.shape, object)
    flat = found.reshape(-1)
    for i, (left, right) in enumerate(zip(a.reshape(-1), b.reshape(-1), strict=True)):
        flat[i] = str(left) + str(right)
    return texts(found)


@operator("StringSplit", since=20, host=True)
def string_split(op: Call) -> tuple[Value, Array]:
    """Parts of strings, padded to the same number."""
    x = op.host(0)
    most = op.int("maxsplit", -1)
    separator = op.text("delimiter") or None
    parts = [str(s).split(separator, most) for s in x.reshape(-1)]
    counts = np.array([len(p) for p in parts], np.int64).reshape(x.shape)
    width = int(counts.max()) if counts.size else 0
    found = np.full((len(parts), width), "", object)
    for row, part in zip(found, parts, strict=True):
        row[: len(part)] = part
    return texts(found.reshape(*x.shape, width)), counts


@operator("StringNormalizer", since=10, host=True)
def string_normalizer(op: Call) -> Value:
    """Another case, and without stop words."""
    x = op.host(0)
    action = op.text("case_change_action", "NONE")
    exact = bool(op.int("is_case_sensitive"))
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(action, str)
    stops = op.texts_of("stopwords", [])
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ModelError(f"strings of shape {x.shape}", "give one row")
    unwanted = set(stops) if exact else {s.lower() for s in stops}
    kept = [
        change(str(s))
        for s in x.reshape(-1)
        if (str(s) if exact else str(s).lower()) not in unwanted
    ]
    found = np.array(kept or [""], object)
    return texts(found.reshape(1, -1) if x.ndim == 2 else found)


@operator("RegexFullMatch", since=20, host=True)
def regex_full_match(op: Call) -> Array:
    """Does a pattern match the whole string?"""
    pattern = op.text("pattern")
    try:
        compiled = re.compile(pattern)
        if _nests(patterns.parse(pattern), False):
            raise op.unsupported("a repetition inside a repetition")
    except (re.error, RecursionError, OverflowError) as problem:
        raise ModelError(f"{pattern[:80]!r} is no pattern: {problem}", "invalid model") from None
    x = op.host(0)
    found = [compiled.fullmatch(str(s)) is not None for s in x.reshape(-1)]
    return np.array(found, bool).reshape(x.shape)


def _nests(part: Any, inside: bool) -> bool:
    """Is there a repetition without bound within another?"""
    for code, argument in part:
        repeats = code in (pieces.MAX_REPEAT, pieces.MIN_REPEAT) and argument[1] > 8
        if repeats and inside:
            return True
        if code in (pieces.MAX_REPEAT, pieces.MIN_REPEAT):
            inner = [argument[2]]
        elif code is pieces.SUBPATTERN:
            inner = [argument[3]]
        elif code is pieces.BRANCH:
            inner = argument[1]
        elif code in (pieces.GROUPREF, pieces.ASSERT, pieces.ASSERT_NOT):
            return True
        else:
            inner = []
        if any(_nests(each, inside or repeats) for each in inner):
            return True
    return False


@operator("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(op: Call) -> Tensor:
    """How often each n-gram of a pool occurs, also with gaps, perhaps weighted."""
    x, pool = _words(op)
    rows = x if x.ndim == 2 else fg.reshape(x, (1, x.size))
    places = op.ints_of("ngram_indexes", [])
    weights = op.floats_of("weights") or [1.0] * len(places)
    mode, width = op.text("mode", "TF"), max(places) + 1
    columns: list[Any] = [fg.zeros((rows.shape[0],))] * width
    grams = list(_grams(op, pool))
    targets = iter(zip(places, weights, strict=True))
    if sum(map(len, grams)) > len(places):
        raise ModelError("its tables have different lengths", "the model is not valid ONNX")
    for size, here in enumerate(grams, start=1):
        mine = list(islice(targets, len(here)))
        if not here or not op.int("min_gram_length", 1) <= size <= op.int("max_gram_length", 1):
            continue
        skips = op.int("max_skip_count", 0) if size > 1 else 0
        counts = _occurrences(rows, np.array(here, np.int64), skips)
        counts = fg.minimum(counts, 1.0) if mode == "IDF" else counts
        for i, (place, weight) in enumerate(mine):
            count = counts[:, i]
            columns[place] = columns[place] + (count if mode == "TF" else count * weight)
    y = fg.stack(columns, axis=1)
    return y if x.ndim == 2 else fg.reshape(y, (width,))


def _words(op: Call) -> tuple[Tensor, list[int]]:
    """The words and the pool of n-grams as numbers; a word of no n-gram is -1."""
    if not op.given("pool_strings"):
        return op[0].astype(fg.int64), op.ints_of("pool_int64s", [])
    texts = op.texts_of("pool_strings")
    names = {s: i for i, s in enumerate(dict.fromkeys(texts))}
    op.build.hosts.add("strings")
    words = op.host(0)
    numbers = np.array([names.get(str(s), -1) for s in words.reshape(-1)], np.int64)
    return fg.Tensor(numbers.reshape(words.shape)), [names[s] for s in texts]


def _grams(op: Call, pool: list[int]) -> Iterator[list[list[int]]]:
    """The n-grams of each size, from 1 on."""
    starts = op.ints_of("ngram_counts", [])
    for size, (start, end) in enumerate(pairwise([*starts, len(pool)]), start=1):
        yield [pool[i : i + size] for i in range(start, end, size)]


def _occurrences(rows: Tensor, grams: Array, skips: int) -> Tensor:
    """(rows, grams): how often each gram occurs with equal gaps up to a number."""
    length, size = rows.shape[1], grams.shape[1]
    total: Any = fg.zeros((rows.shape[0], len(grams)))
    wanted = fg.Tensor(grams)
    for gap in range(1, skips + 2):
        places = length - (size - 1) * gap
        if places < 1:
            break
        same: Any = None
        for k in range(size):
            part = rows[:, k * gap : k * gap + places]
            here = part[:, :, None] == wanted[None, None, :, k]
            same = here if same is None else same & here
        total = total + fg.sum(same.astype(fg.float32), axis=1)
    made: Tensor = total
    return made
