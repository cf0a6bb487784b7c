"""How programs end: a loss, or a value made one number in one of the usual ways."""

from __future__ import annotations

from .layers import listed
from .shaping import reduction
from .writer import Unfit, Writer

PLAIN = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def finish(w: Writer) -> str:
    """The name of the number that is differentiated."""
    x = w.now
    if w.often(0.3):
        before = len(w.inputs), len(w.lines)
        try:
            return loss(w, x)
        except (Unfit, IndexError):
            del w.inputs[before[0] :], w.lines[before[1] :]
    way = w.random.random()
    if not w.shape(x):
        return x
    if way < 0.3:
        return w.say(f"{x}.sum()")
    if way < 0.5:
        return w.say(f"{x}.mean()")
    if way < 0.75:
        return w.say(f"({x} * {w.weight(*w.shape(x))}).sum()")
    if way < 0.85:
        return w.say(f"({x} ** 2).sum()")
    return w.say(*reduction(w.one("max", "min", "norm", "logsumexp"), x, axis_of_all(w, x), False))


def axis_of_all(w: Writer, x: str) -> str:
    """Every axis."""
    return str(tuple(range(len(w.shape(x)))))


def kind_of(w: Writer) -> str:
    """What becomes of the losses of all elements."""
    return str(w.one("", "", "reduction='sum'"))


def loss(w: Writer, x: str) -> str:
    """One of the losses that fits the shape."""
    shape = w.shape(x)
    if not shape:
        raise Unfit
    way = w.random.randrange(14)
    signs = "rng.choice([-1.0, 1.0], {shape})"
    if way < 4 and len(shape) >= 2:
        return classes(w, x)
    if way < 7:
        return w.function(w.one(*PLAIN), listed(x, w.weight(*shape), kind_of(w)))
    if way == 7:
        target = w.input(shape, "rng.random({shape})", "t")
        if w.often(0.5):
            x = w.function("sigmoid", x)
            x = w.say(f"{x} * 0.98 + 0.01", f"{x} * 0.98 + 0.01")  # 1 - x must have some bits
            return w.function("binary_cross_entropy", listed(x, target, kind_of(w)))
        return w.function("binary_cross_entropy_with_logits", listed(x, target, kind_of(w)))
    if way == 8:
        target = w.input(shape, "rng.integers(0, 4, {shape}).astype(float)", "t")
        return w.function("poisson_nll_loss", listed(w.function("tanh", x), target, kind_of(w)))
    if way == 9:
        var = w.input(shape, "rng.random({shape}) + 0.5", "t")
        return w.function("gaussian_nll_loss", listed(x, w.weight(*shape), var, kind_of(w)))
    if way == 10:
        target = w.input(shape, signs, "t")
        name = w.one("hinge_embedding_loss", "soft_margin_loss")
        return w.function(name, listed(x, target, kind_of(w)))
    if way == 11:
        target = w.input(shape, signs, "t")
        return w.function("margin_ranking_loss", listed(x, w.weight(*shape), target, "margin=0.3"))
    if len(shape) != 2 or shape[1] < 2:
        raise Unfit
    if way == 12:
        others = w.weight(*shape), w.weight(*shape)
        return w.function("triplet_margin_loss", listed(x, *others, w.one("", "swap=True")))
    target = w.input(shape[:1], signs, "t")
    return w.function("cosine_embedding_loss", listed(x, w.weight(*shape), target, "margin=0.1"))


def classes(w: Writer, x: str) -> str:
    """A loss of class numbers, or of probabilities."""
    shape = w.shape(x)
    count, others = shape[1], (shape[0], *shape[2:])
    way = w.random.randrange(5)
    if count < 2:
        raise Unfit
    target = w.input(others, f"rng.integers(0, {count}, {{shape}})", "t")
    if way < 2:
        more = w.one("", "", "label_smoothing=0.1", "ignore_index=1")
        if more == "ignore_index=1" and others[0] < 3:
            more = ""
        return w.function("cross_entropy", listed(x, target, more, kind_of(w)))
    if way == 2:
        return w.function("nll_loss", listed(w.function("log_softmax", x, "1"), target, kind_of(w)))
    if way == 3 and len(shape) == 2:
        return w.function("multi_margin_loss", listed(x, target, kind_of(w)))
    y = w.function("log_softmax", x, "1")
    share = w.input(shape, "rng.dirichlet(np.ones({shape}[-1]), {shape}[:-1])", "t")
    return w.function("kl_div", y, share, w.one("reduction='sum'", "reduction='batchmean'"))
