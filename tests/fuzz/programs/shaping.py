"""What joins layers: reshapes, slices, pads, concatenations, reductions, masks and arithmetic."""

from __future__ import annotations

import math

from .layers import listed
from .table import ANY, step
from .writer import Unfit, Writer


def an_axis(w: Writer, x: str, least: int = 1) -> int:
    """An axis of at least some size, the later ones more often."""
    shape = w.shape(x)
    fitting = [a for a, n in enumerate(shape) if n >= least]
    if not fitting:
        raise Unfit
    return int(w.one(*fitting, *fitting[-2:]))


def factors(w: Writer, size: int) -> tuple[int, int]:
    """A size as a product of two, neither of them 1."""
    pairs = [(a, size // a) for a in range(2, size) if size % a == 0]
    if not pairs:
        raise Unfit
    found: tuple[int, int] = w.one(*pairs)
    return found


# --- reshapes ------------------------------------------------------------------------------------


@step(16, ANY)
def split_axis(w: Writer, x: str) -> str:
    """An axis as two: heads, blocks, a picture from a line."""
    shape = list(w.shape(x))
    axis = an_axis(w, x, 4)
    shape[axis : axis + 1] = factors(w, shape[axis])
    if w.often(0.25):
        shape[w.random.randrange(len(shape))] = -1
    return w.say(f"{x}.reshape({tuple(shape)})")


@step(14, range(2, 7))
def merged_axes(w: Writer, x: str) -> str:
    shape = list(w.shape(x))
    axis = w.random.randrange(len(shape) - 1)
    if w.often(0.3):
        return w.say(f"{x}.flatten({w.one(0, 1, axis)})")
    shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    return w.say(f"{x}.reshape({tuple(shape)})")


@step(6, range(2, 7))
def regrouped(w: Writer, x: str) -> str:
    """Space split and merged otherwise: no axis stays."""
    shape = w.shape(x)
    keep = w.random.randrange(len(shape) - 1)
    a, b = factors(w, math.prod(shape[keep:]))
    return w.say(f"{x}.reshape({(*shape[:keep], a, b)})")


@step(6, range(2, 7))
def permuted(w: Writer, x: str) -> str:
    count = len(w.shape(x))
    if w.often(0.5):
        a, b = w.random.sample(range(count), 2)
        return w.say(f"{x}.swapaxes({a}, {b})")
    return w.say(f"{x}.permute({tuple(w.random.sample(range(count), count))})")


@step(3, ANY)
def unsqueezed(w: Writer, x: str) -> str:
    shape = w.shape(x)
    if 1 in shape and len(shape) > 1:
        return w.say(f"{x}.squeeze({shape.index(1)})")
    return w.say(f"{x}.unsqueeze({w.random.randrange(len(shape) + 1)})")


@step(8, (4,))
def shuffled_pixels(w: Writer, x: str) -> str:
    _, channels, height, width = w.shape(x)
    if height % 2 == 0 and width % 2 == 0 and w.often(0.5):
        return w.function("pixel_unshuffle", x, "2")
    if channels % 4:
        raise Unfit
    return w.function("pixel_shuffle", x, "2")


@step(2, (4,))
def shuffled_channels(w: Writer, x: str) -> str:
    n, channels, height, width = w.shape(x)
    a, b = factors(w, channels)
    y = w.say(f"{x}.reshape({(n, a, b, height, width)}).swapaxes(1, 2)")
    return w.say(f"{y}.reshape({(n, channels, height, width)})")


@step(2, (4,))
def patches(w: Writer, x: str) -> str:
    """A picture as a row of patches."""
    n, channels, height, width = w.shape(x)
    if height % 2 or width % 2:
        raise Unfit
    rows, columns = height // 2, width // 2
    y = w.say(f"{x}.reshape({(n, channels, rows, 2, columns, 2)}).permute((0, 2, 4, 1, 3, 5))")
    return w.say(f"{y}.reshape({(n, rows * columns, channels * 4)})")


# --- parts ---------------------------------------------------------------------------------------


@step(7, ANY)
def sliced(w: Writer, x: str) -> str:
    parts = []
    for size in w.shape(x):
        first, last = w.one("", "", "1"), w.one("", "", "-1")
        if size < 3 or w.often(0.4):
            parts.append(":")
        elif w.often(0.25):
            parts.append(f"{first}::2")
        else:
            parts.append(f"{first}:{last}")
    if w.often(0.15):
        place = w.random.randrange(len(parts))
        parts[place] = str(w.random.randrange(w.shape(x)[place]))
    return w.say(f"{x}[{', '.join(parts)}]")


@step(5, ANY)
def halves(w: Writer, x: str) -> str:
    """Split, each half treated on its own, and joined."""
    axis = an_axis(w, x, 2)
    size = w.shape(x)[axis]
    if size % 2 == 0 and w.often(0.6):
        w.say(f"{x}.chunk(2, {axis})", results=2)
        a, b = w.last(2)
        joined = w.one("{a} * fg.sigmoid({b})", "{a} + {b}", "fg.maximum({a}, {b})", "{a} * {b}")
        return w.say(joined.format(a=a, b=b))
    first = w.random.randrange(1, size)
    w.say(f"{x}.split(({first}, {size - first}), {axis})", results=2)
    a, b = w.last(2)
    if w.often(0.3):
        return str(w.one(a, b))
    a = w.function(w.one("relu", "tanh", "silu"), a)
    return w.say(f"fg.concat([{b}, {a}], {axis})", f"torch.cat([{b}, {a}], {axis})")


@step(4, ANY)
def taken(w: Writer, x: str) -> str:
    """Slices at places that are data."""
    axis, count = an_axis(w, x), w.one(2, 3, 4)
    size = w.shape(x)[axis]
    if w.often(0.6):
        index = w.input((count,), f"rng.integers(0, {size}, {{shape}})", "i")
        commas = ":, " * axis
        return w.say(f"{x}[{commas}{index}]")
    shape = list(w.shape(x))
    shape[axis] = count
    index = w.input(tuple(shape), f"rng.integers(0, {size}, {{shape}})", "i")
    return w.say(f"{x}.gather({axis}, {index})")


@step(1.5, ANY)
def scattered(w: Writer, x: str) -> str:
    axis, count = an_axis(w, x), w.one(2, 3)
    shape = list(w.shape(x))
    size, shape[axis] = shape[axis], count
    index = w.input((count,), f"rng.integers(0, {size}, {{shape}})", "i")
    return w.say(f"{x}.index_add({axis}, {index}, {w.weight(*shape)})")


@step(3, ANY)
def flipped(w: Writer, x: str) -> str:
    axis = an_axis(w, x)
    if w.often(0.5):
        return w.say(f"{x}.flip({axis})", f"{x}.flip(({axis},))")
    return w.say(f"{x}.roll({w.one(1, 2, -1)}, {axis})")


@step(2, ANY)
def windows(w: Writer, x: str) -> str:
    axis = an_axis(w, x, 3)
    return w.say(f"{x}.unfold({axis}, {w.one(2, 3)}, {w.one(1, 2)})")


# --- more elements -------------------------------------------------------------------------------


@step(7, ANY)
def padded(w: Writer, x: str) -> str:
    shape = w.shape(x)
    mode = w.one("constant", "constant", "constant", "reflect", "edge", "wrap")
    width = [(0, 0)] * len(shape)
    if mode != "constant":
        if len(shape) not in (3, 4):
            raise Unfit
        for axis in range(2, len(shape)):
            width[axis] = (w.one(0, 1, 2), w.one(0, 1, 2))
            if max(width[axis]) >= shape[axis]:
                raise Unfit
    else:
        for axis in range(len(shape)):
            if (axis >= len(shape) - 2 and w.often(0.8)) or w.often(0.1):
                width[axis] = (w.one(0, 1, 1, 2), w.one(0, 1, 1, 2))
    flat = [n for pair in reversed(width) for n in pair]
    if not any(flat):
        raise Unfit
    if mode == "constant":
        value = w.one(None, None, None, 0.5, -1.0)
        more = "" if value is None else f"constant_values={value}"
        torch = "" if value is None else f"value={value}"
        return w.say(
            f"fg.pad({listed(x, str(tuple(width)), more)})",
            f"F.pad({listed(x, str(tuple(flat)), torch)})",
        )
    spelled = {"edge": "replicate", "wrap": "circular", "reflect": "reflect"}[mode]
    inner = tuple(flat[: 2 * (len(shape) - 2)])
    return w.say(
        f"fg.pad({x}, {tuple(width)}, mode='{mode}')", f"F.pad({x}, {inner}, mode='{spelled}')"
    )


@step(6, ANY)
def joined(w: Writer, x: str) -> str:
    """Concatenated or stacked with an earlier value, itself or weights."""
    shape, axis = w.shape(x), an_axis(w, x)
    alike = [p for p in w.past if w.shape(p) == shape]
    fitting = [
        p for p in w.past
        if len(w.shape(p)) == len(shape)
        and all(a == axis or m == n for a, (m, n) in enumerate(zip(w.shape(p), shape, strict=True)))
    ]  # fmt: skip
    if fitting and w.often(0.7):
        other = w.one(*fitting)
    else:
        other = w.function("tanh", x) if w.often(0.5) else w.weight(*shape)
        alike.append(other)
    pair = f"[{x}, {other}]" if w.often(0.5) else f"[{other}, {x}]"
    if other in alike and w.often(0.3):
        return w.say(f"fg.stack({pair}, {axis})")
    return w.say(f"fg.concat({pair}, {axis})", f"torch.cat({pair}, {axis})")


@step(3, ANY)
def repeated(w: Writer, x: str) -> str:
    shape, axis, times = w.shape(x), an_axis(w, x), w.one(2, 3)
    way = w.random.random()
    if way < 0.4:
        return w.say(f"{x}.repeat_interleave({times}, {axis})")
    if way < 0.7:
        counts = [1] * len(shape)
        counts[axis] = times
        return w.say(f"{x}.tile({tuple(counts)})")
    wide = (*shape[:axis], times, *shape[axis:])
    return w.say(f"{x}.unsqueeze({axis}).expand({wide})")


# --- reductions ----------------------------------------------------------------------------------

FOLDS = ("sum", "mean", "mean", "max", "max", "min", "var", "std", "logsumexp", "norm")


@step(16, range(2, 7))
def reduced(w: Writer, x: str) -> str:
    """A reduction of one axis or two, now and then joined with its source again."""
    shape, name = w.shape(x), w.one(*FOLDS)
    axes = [an_axis(w, x, 2)]
    if len(shape) > 2 and w.often(0.3):
        axes = sorted({axes[0], an_axis(w, x, 2)})
    axis = str(axes[0] if len(axes) == 1 else tuple(axes))
    keep = w.often(0.3)
    y = w.say(*reduction(name, x, axis, keep))
    if keep and w.often(0.6):
        return w.say(w.one(f"{x} - {y}", f"{x} * {y}", f"{x} + {y}", f"{x} / (1 + {y} ** 2)"))
    return y


def reduction(name: str, x: str, axis: str, keep: bool) -> tuple[str, str]:
    """A reduction in both spellings."""
    ours = listed(axis, "keepdims=True" if keep else "")
    theirs = listed(axis, "keepdim=True" if keep else "")
    if name in ("max", "min"):
        return f"{x}.{name}({ours})", f"{x}.a{name}({theirs})"
    if name in ("var", "std"):
        return f"{x}.{name}({ours})", f"{x}.{name}({listed(theirs, 'correction=0')})"
    if name == "norm":
        return f"fg.linalg.vector_norm({x}, axis={ours})", (
            f"torch.linalg.vector_norm({x}, dim={theirs})"
        )
    return f"{x}.{name}({ours})", f"{x}.{name}({theirs})"


@step(3, ANY)
def ordered(w: Writer, x: str) -> str:
    axis = an_axis(w, x, 2)
    size = w.shape(x)[axis]
    way = w.random.randrange(5)
    if way == 0:
        down = w.one(True, False)
        return w.say(
            f"{x}.sort({axis}, descending={down})", f"{x}.sort({axis}, descending={down})[0]"
        )
    if way == 1:
        return w.say(f"{x}.topk({w.random.randrange(1, size)}, {axis})[0]")
    if way == 2 and len(w.shape(x)) > 1:
        return w.say(f"{x}.median({axis})", f"{x}.quantile(0.5, {axis})")
    if way == 3 and len(w.shape(x)) > 1:
        return w.say(f"{x}.kthvalue({w.random.randrange(1, size + 1)}, {axis})[0]")
    if len(w.shape(x)) > 1:
        q = w.one(0.25, 0.4, 0.9)
        return w.say(f"{x}.quantile({q}, {axis})")
    raise Unfit


@step(4, ANY)
def running(w: Writer, x: str) -> str:
    axis = an_axis(w, x, 2)
    way = w.one("cumsum", "cumsum", "cumsum", "cumprod", "cummax", "logcumsumexp", "diff")
    if way == "cummax":
        return w.say(f"{x}.cummax({axis})[0]")
    if way == "diff":
        return w.say(f"{x}.diff(axis={axis})", f"{x}.diff(dim={axis})")
    return w.say(f"{x}.{way}({axis})")


# --- masks and arithmetic ------------------------------------------------------------------------


@step(4, ANY)
def masked(w: Writer, x: str) -> str:
    shape = w.shape(x)
    way = w.random.randrange(5)
    if way == 0 and len(shape) > 1:
        return w.say(f"fg.{w.one('tril', 'triu')}({x})")
    small = tuple([n if w.often(0.7) else 1 for n in shape])
    mask = w.input(small, "rng.random({shape}) < 0.7", "m")
    if way == 1:
        return w.say(f"{x}.masked_fill({mask}, {w.one(0.0, -2.0)})")
    if way == 2:
        return w.say(f"{x} * {mask}")
    if way == 3:
        other = w.weight(*shape)
        return w.say(f"fg.where({mask}, {x}, {other})")
    return w.say(f"fg.where({x} > 0, {x}, {x} * 0.1)")


@step(5, ANY)
def residual(w: Writer, x: str) -> str:
    """An earlier value of the same shape comes in again."""
    alike = [p for p in w.past if w.shape(p) == w.shape(x) and p != x]
    if not alike:
        raise Unfit
    y = w.one(*alike)
    ways = ("{x} + {y}", "{x} + {y}", "{x} * {y}", "fg.maximum({x}, {y})", "fg.minimum({x}, {y})")
    return w.say(w.one(*ways).format(x=x, y=y))


@step(6, ANY)
def arithmetic(w: Writer, x: str) -> str:
    ways = (
        "{x} * 0.5", "{x} + 1", "{x} ** 2", "{x}.abs()", "-{x}", "{x}.sin()", "{x}.cos()",
        "({x}.abs() + 0.5).log()", "({x} ** 2 + 0.1).sqrt()", "(-{x} ** 2).exp()",
        "{x} / (1 + {x}.abs())", "fg.clip({x}, -1.0, 1.5)", "1 / (1 + {x} ** 2)", "{x} * {x}",
        "({x} * 0.3).exp()",
    )  # fmt: skip
    return w.say(w.one(*ways).format(x=x))


@step(3, ANY)
def scaled(w: Writer, x: str) -> str:
    """Broadcast weights: a scale or a bias along some axes."""
    shape = w.shape(x)
    small = [n if w.often(0.5) else 1 for n in shape]
    while len(small) > 1 and small[0] == 1 and w.often(0.5):
        small = small[1:]
    y = w.weight(*small)
    return w.say(w.one(f"{x} * {y}", f"{x} + {y}", f"{x} - {y}", f"fg.maximum({x}, {y})"))
