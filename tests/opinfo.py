"""torch's own samples of its functions, on ours: `python -m tests.opinfo` (needs `peers`).

In: `op_db`, torch's table of functions with sample arguments. Out: how many samples give what torch
gives, for every function that we have under torch's name. Where torch and we say the same thing
with other words (argument order, a pair of results), `SAID` translates; what is no function of its
arguments, or means something else here, is in `APART` with the reason, and is not counted.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fulgurite as fg

MOST = 40  # samples of a function
APART = {
    "empty": "values are nobody's word", "empty_like": "values are nobody's word",
    "rand": "random", "randn": "random", "randint": "random", "dropout": "random",
    "alpha_dropout": "random", "dropout2d": "random", "dropout3d": "random", "randn_like": "random",
    "feature_alpha_dropout_with_train": "random", "multinomial": "random", "rand_like": "random",
    "rrelu": "random", "dropout1d": "random", "randint_like": "random", "normal": "random",
    "bernoulli": "random",
    "median": "NumPy's here: the mean of the middle two", "unfold": "torch.Tensor.unfold here",
    "linalg.eig": "vectors are not unique", "linalg.eigh": "vectors are not unique",
    "linalg.qr": "columns are not unique", "linalg.svd": "vectors are not unique",
    "svd": "vectors are not unique", "qr": "columns are not unique",
    "linalg.eigvals": "order is not said", "scan": "another meaning here",
    "cond": "another meaning here", "while_loop": "another meaning here",
    "instance_norm": "has no running statistics here",
    "batch_norm": "gives the statistics too here",
}  # fmt: skip
DROPPED = {  # keywords that say what is the case anyway
    "requires_grad", "device", "layout", "memory_format", "pin_memory", "out_int32", "stable",
    "return_indices", "inplace", "driver", "non_blocking", "output_size",
}  # fmt: skip
Said = Callable[..., Any]


# --- other words ---------------------------------------------------------------------------------


def _pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    names = {"replicate": "edge", "circular": "wrap"}
    widths = [(0, 0)] * (x.ndim - len(pad) // 2)
    widths += [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    if any(w < 0 for pair in widths for w in pair):
        cuts = tuple(
            slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, x.shape, strict=True)
        )
        x, widths = x[cuts], [(max(a, 0), max(b, 0)) for a, b in widths]
    more = {} if mode != "constant" else {"constant_values": 0.0 if value is None else value}
    return fg.pad(x, widths, names.get(mode, mode), **more)


def _pool(name: str) -> Said:
    return lambda x, size, return_indices=False: getattr(fg, name)(x, size)


def _symmetric(name: str) -> Said:
    def function(x: Any, *more: Any, hermitian: bool = False, **keywords: Any) -> Any:
        x = fg.tril(x) + fg.tril(x, -1).mT if hermitian else x  # torch reads one half
        return getattr(fg.linalg, name)(x, *more, **keywords)

    return function


def _solved(a: Any, b: Any, left: bool = True) -> Any:
    if b.ndim == a.ndim - 1 and b.shape == a.shape[:-1]:
        return fg.linalg.solve(a, b[..., None])[..., 0]
    return fg.linalg.solve(a, b) if left else fg.linalg.solve(a.mT, b.mT).mT


def _sorted(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return fg.sort(x, dim, descending), fg.argsort(x, dim, descending)


def _folded(name: str) -> Said:
    def fold(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, fg.Tensor):
            return getattr(fg, f"{name}imum")(x, dim)
        if dim is None:
            return getattr(fg, name)(x)
        return getattr(fg, name)(x, dim, keepdim), getattr(fg, f"arg{name}")(x, dim, keepdim)

    return fold


def _spread(name: str) -> Said:
    def spread(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False,
               correction: Any = None) -> Any:  # fmt: skip
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None else int(unbiased)
        axis = None if dim == () else dim
        return getattr(fg, name)(x, axis=axis, correction=correction, keepdims=keepdim)

    return spread


def _in_dtype(name: str) -> Said:
    def function(x: Any, dim: Any, dtype: Any = None) -> Any:
        return getattr(fg, name)(x if dtype is None else x.astype(dtype), dim)

    return function


def _divide(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    found = fg.divide(x, y)
    return found if rounding_mode is None else getattr(fg, rounding_mode)(found)


def _quantile(x: Any, q: Any, dim: Any = None, keepdim: bool = False,
              interpolation: str = "linear") -> Any:  # fmt: skip
    return fg.quantile(x, q, dim, keepdim, method=interpolation)


def _searched(rising: Any, wanted: Any, right: bool = False, side: Any = None,
              sorter: Any = None) -> Any:  # fmt: skip
    return fg.searchsorted(rising, wanted, side or ("right" if right else "left"), sorter)


def _several(name: str) -> Said:
    def transform(x: Any, s: Any = None, dim: Any = None, norm: Any = None) -> Any:
        s, dim = ((v,) if isinstance(v, int) else v for v in (s, dim))
        return getattr(fg.fft, name)(x, s, dim, norm or "backward")

    return transform


def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return fg.diagonal(x, offset, dim1, dim2)


SAID: dict[str, Said] = {
    "where": lambda x, condition, other: fg.where(condition, x, other),
    "nn.functional.pad": _pad, "sort": _sorted, "max": _folded("max"), "min": _folded("min"),
    "std": _spread("std"), "var": _spread("var"), "softmax": _in_dtype("softmax"),
    "log_softmax": _in_dtype("log_softmax"), "nn.functional.softmin": _in_dtype("softmin"),
    "div": _divide, "quantile": _quantile, "searchsorted": _searched,
    "repeat": lambda x, *n: fg.tile(x, n[0] if isinstance(n[0], tuple) else n),
    "einsum": lambda arrays, equation: fg.einsum(equation, *arrays),
    "meshgrid": lambda first, *more, indexing="ij": fg.meshgrid(
        *(first if isinstance(first, list | tuple) else (first, *more)), indexing=indexing),
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: fg.diff(
        x, axis=dim, n=n, prepend=prepend, append=append),
    "nonzero": lambda x, as_tuple=False: fg.nonzero(x) if as_tuple else fg.argwhere(x),
    "unique": lambda x, return_inverse=False, return_counts=False, sorted=True: fg.unique(
        x, return_inverse=return_inverse, return_counts=return_counts),
    "add": lambda x, y, alpha=1: x + y * alpha, "sub": lambda x, y, alpha=1: x - y * alpha,
    "rsub": lambda x, y, alpha=1: y - x * alpha,
    "linalg.matrix_norm": lambda x, ord="fro", dim=(-2, -1), keepdim=False, dtype=None:
        fg.linalg.norm(x if dtype is None else x.astype(dtype), ord, tuple(dim), keepdim),
    "linalg.vector_norm": lambda x, ord=2, dim=None, keepdim=False, dtype=None:
        fg.linalg.vector_norm(x if dtype is None else x.astype(dtype), ord, dim, keepdim),
    "linalg.norm": lambda x, ord=None, dim=None, keepdim=False, dtype=None: fg.linalg.norm(
        x if dtype is None else x.astype(dtype), ord, tuple(dim) if isinstance(dim, list) else dim,
        keepdim),
    "linalg.eigvalsh": lambda x, UPLO="L": fg.linalg.eigvalsh(
        fg.tril(x) + fg.tril(x, -1).mT if UPLO == "L" else fg.triu(x) + fg.triu(x, 1).mT),
    "squeeze": lambda x, dim=None: fg.squeeze(x, tuple(
        d for d in (range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim)
        if x.shape[d] == 1)),
    "arange": lambda start, end=None, step=1, dtype=None: fg.arange(start, end, step, dtype),
    **{f"fft.{n}": _several(n) for n in ("fftn", "ifftn", "rfftn", "irfftn")},
    **{f"nn.functional.adaptive_max_pool{n}d": _pool(f"adaptive_max_pool{n}d") for n in (1, 2, 3)},
    "linalg.pinv": _symmetric("pinv"), "linalg.matrix_rank": _symmetric("matrix_rank"),
    "linalg.solve": _solved, "diagonal": _diagonal, "linalg.diagonal": _diagonal,
}  # fmt: skip


# --- running them --------------------------------------------------------------------------------


@dataclass
class Found:
    """What became of the samples."""

    functions: int = 0
    samples: int = 0
    passed: int = 0
    problems: dict[str, Counter[str]] = field(default_factory=dict)

    def report(self) -> str:
        """A line with the counts, then one for each function that has problems."""
        share = self.passed / max(self.samples, 1)
        lines = [f"{self.passed} of {self.samples} samples of {self.functions} functions agree "
                 f"({share:.1%}); {len(APART)} functions are left apart"]  # fmt: skip
        order = sorted(self.problems.items(), key=lambda item: -item[1].total())
        lines += [f"{n}: {c.total()}, as {c.most_common(1)[0][0]}" for n, c in order]
        return "\n".join(lines)


def ours(name: str) -> Said | None:
    """Our function of torch's name."""
    short = name.removeprefix("nn.functional.")
    if short in APART or name in APART:
        return None
    if name in SAID:
        return SAID[name]
    found: Any = fg
    for part in short.split("."):
        found = getattr(found, part, None)
    return found if callable(found) and not inspect.isclass(found) else None


def converted(x: Any, torch: Any) -> Any:
    """torch's arguments as ours."""
    if isinstance(x, torch.Tensor):
        return fg.Tensor(x.detach().resolve_conj().resolve_neg().numpy())
    if isinstance(x, torch.dtype):
        return str(x).removeprefix("torch.")
    if isinstance(x, list | tuple):
        made = [converted(item, torch) for item in x]
        return made if type(x) is list else tuple(made)
    if isinstance(x, dict):
        return {k: converted(v, torch) for k, v in x.items() if k not in DROPPED}
    return x


def flat(x: Any) -> list[Any]:
    """Results as a list."""
    return [y for item in x for y in flat(item)] if isinstance(x, list | tuple) else [x]


def samples(op: Any, torch: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Sample arguments and torch's results, of those that torch itself can compute."""
    known = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in known else torch.int64
    if dtype not in known:
        return
    for number, sample in enumerate(op.sample_inputs("cpu", dtype)):
        if number == MOST:
            return
        first = sample.input
        if sample.kwargs.get("return_indices") or (
            sample.kwargs.get("dim") is not None and op.name == "unique"
        ):
            continue  # functions of their own, which we do not have
        if sample.kwargs.get("dropout_p"):
            continue  # random
        if op.variant_test_name == "singular" or (op.name.startswith("nn.functional.adaptive_max")
                                                  and sample.args[-1] is True):  # fmt: skip
            continue
        try:
            yield sample, flat(op(first, *sample.args, **sample.kwargs))
        except Exception:
            continue


def differ(got: list[Any], want: list[Any], torch: Any) -> str | None:
    """What is wrong with our results."""
    if len(got) != len(want):
        return f"{len(got)} results instead of {len(want)}"
    for mine, other in zip(got, want, strict=True):
        if not isinstance(other, torch.Tensor):
            continue
        expected = other.detach().resolve_conj().resolve_neg().numpy()
        found = np.asarray(mine.numpy())
        if found.shape != expected.shape:
            return f"shape {found.shape} instead of {expected.shape}"
        if not np.allclose(found.astype(expected.dtype), expected, 1e-3, 1e-4, equal_nan=True):
            return "other values"
    return None


def run() -> Found:
    """Every sample of every function that we have."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    found = Found()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            function = ours(op.name)
            if function is None:
                continue
            found.functions += 1
            problems: Counter[str] = Counter()
            for sample, want in samples(op, torch):
                found.samples += 1
                try:
                    first = converted(sample.input, torch)
                    more = converted(sample.args, torch)
                    got = flat(function(first, *more, **converted(sample.kwargs, torch)))
                    problem = differ(got, want, torch)
                except Exception as error:
                    problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
                found.passed += problem is None
                if problem is not None:
                    problems[problem] += 1
            if problems:
                found.problems[f"{op.name}.{op.variant_test_name}".rstrip(".")] = problems
    return found


if __name__ == "__main__":
    print(run().report())
    sys.exit(0)
