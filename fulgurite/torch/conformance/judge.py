"""Agreement of two sets of tensors: within a tolerance, or as close to float64 as torch is.

In: what eager torch gave in float32, what we gave, and the same in float64. Out: the worst
difference and whether it is agreed. A difference is taken relative to the largest element of its
tensor; where it is too large, both are compared with float64, and ours may be off by a few times
what torch's own float32 is off, in the largest element or in the root mean square.

A value next to 0 falls on either side of a relu by chance, for torch as for us, and gradients below
it are far off: one run tells nothing about rounding there. So a result that is further off than
torch's is tried again with every number of model and input moved by a unit in the last place, and
the least of our distances is held against the largest of torch's. Where rounding decides nothing
the two of torch's are the same, and what is inexact is found as with one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

TOLERANCE = 1e-4  # of the largest element, in float32
AS_CLOSE = 4.0  # times torch's own distance from float64 that ours may be, in one element
AS_CLOSE_ON_AVERAGE = 2.0  # and in the root mean square
WEAK = 1e-3  # of a result's size, and of this part of the largest: torch so far off says little


@dataclass
class Verdict:
    """How two sets of tensors compare."""

    agrees: bool
    error: float  # the worst relative difference
    why: str = ""
    judged: bool = False  # did float64 decide?
    weak: bool = False  # and is torch so far off float64 itself that it tells little?


def tensors_in(value: Any) -> list[Any]:
    """The tensors in a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors_in(v)]
    return []


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest finite element of the second."""
    a, b = ours.detach(), theirs.detach()
    if a.shape != b.shape:
        return math.inf
    if b.numel() == 0:
        return 0.0
    wide = torch.complex128 if b.is_complex() or a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    same = (a == b) | (torch.isnan(a.abs()) & torch.isnan(b.abs()))
    apart = torch.where(same, 0.0, (a - b).abs())
    if not bool(torch.isfinite(apart).all()):
        return math.inf
    finite = b.abs()[torch.isfinite(b.abs())]
    size = float(finite.max()) if finite.numel() else 0.0
    worst = float(apart.max())
    return worst / max(size, 1e-30) if worst else 0.0


def compare(
    ours: Sequence[Any], theirs: Sequence[Any], exact: Callable[[], Sequence[Any]] | None,
    tolerance: float = TOLERANCE,
) -> Verdict:  # fmt: skip
    """Do results agree?"""
    if len(ours) != len(theirs):
        return Verdict(False, math.inf, f"{len(ours)} results, not {len(theirs)}")
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return Verdict(
                False, math.inf,
                f"result {i} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}",
            )  # fmt: skip
    errors = [distance(a, b) for a, b in zip(ours, theirs, strict=True)]
    worst = max(errors, default=0.0)
    far = [i for i, e in enumerate(errors) if e > tolerance]
    if not far:
        return Verdict(True, worst)
    if exact is None:
        return Verdict(False, worst, f"result {far[0]} differs by {errors[far[0]]:.1e}")
    return weigh([Trial(ours, theirs, exact())], tolerance)


class Trial(NamedTuple):
    """Results of one run: ours, torch's, and those in float64."""

    ours: Sequence[Any]
    theirs: Sequence[Any]
    truth: Sequence[Any]


def weigh(trials: Sequence[Trial], tolerance: float = TOLERANCE) -> Verdict:
    """Are ours of the first trial as close to float64 as torch's, but for what rounding decides?"""
    ours, theirs, _ = trials[0]
    errors = [distance(a, b) for a, b in zip(ours, theirs, strict=True)]
    worst, weak = max(errors, default=0.0), False
    scales = [max(map(_size, trial.truth), default=0.0) or 1.0 for trial in trials]
    for i in [i for i, error in enumerate(errors) if error > tolerance]:
        spreads = [_spread(t, i, scale) for t, scale in zip(trials, scales, strict=True)]
        own, mine, torchs, my_mean, torchs_mean = [
            choose(some)
            for choose, some in zip(_OVER_TRIALS, zip(*spreads, strict=True), strict=True)
        ]
        if not (mine <= AS_CLOSE * torchs + 1e-7 or my_mean <= AS_CLOSE_ON_AVERAGE * torchs_mean):
            why = f"result {i} is {mine:.1e} off float64, torch {torchs:.1e}"
            return Verdict(False, worst, why + _of(trials), True)
        weak = weak or torchs > WEAK * max(own, WEAK)
    why = f"float64 shows both equally close{_of(trials)}"
    return Verdict(True, worst, why, True, weak)


_OVER_TRIALS: tuple[Callable[[Any], float], ...] = (min, min, max, min, max)  # size, ours, torch's


def together(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest difference, relative to its result's size and a hundredth of the largest."""
    scale = max([_size(t) for t in theirs], default=0.0)
    apart = [_size(a.detach() - b.detach()) / (_size(b) + scale / 100 or 1.0)
             for a, b in zip(ours, theirs, strict=True)]  # fmt: skip
    return max([math.inf if math.isnan(x) else x for x in apart], default=0.0)


def _of(trials: Sequence[Trial]) -> str:
    return f" (of {len(trials)} roundings)" if len(trials) > 1 else ""


def _spread(trial: Trial, i: int, scale: float) -> tuple[float, ...]:
    """A result's size, then how far ours and torch's are off float64, each at most and on average,
    all relative to the largest result."""
    truth = trial.truth[i].detach()
    apart = [x[i].detach().to(truth.dtype) - truth for x in (trial.ours, trial.theirs)]
    sizes = [_size(truth), *map(_size, apart), *[float(x.norm()) for x in apart]]
    return tuple([math.inf if math.isnan(x) else x / scale for x in sizes])


def _size(x: Any) -> float:
    """The largest element."""
    return float(x.detach().abs().max()) if x.numel() else 0.0
