"""Agreement of two sets of tensors: within a tolerance, or as close to float64 as torch is.

In: what eager torch gave in float32, what we gave, and how to get the same in float64. Out: the
worst difference and whether it is agreed. A difference is taken relative to the largest element of
its tensor; where it is too large, both are compared with float64, and ours may be off by a few
times what torch's own float32 is off, in the largest element or in the root mean square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

TOLERANCE = 1e-4  # of the largest element, in float32
AS_CLOSE = 4.0  # times torch's own distance from float64 that ours may be, in one element
AS_CLOSE_ON_AVERAGE = 2.0  # and in the root mean square


@dataclass
class Verdict:
    """How two sets of tensors compare."""

    agrees: bool
    error: float  # the worst relative difference
    why: str = ""
    judged: bool = False  # did float64 decide?


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
    truth = list(exact())
    scale = max([float(t.detach().abs().max()) for t in truth if t.numel()], default=0.0)
    for i in far:
        mine, torchs = [_apart(x, truth[i]) for x in (ours[i], theirs[i])]
        if not mine <= AS_CLOSE * torchs + 1e-7 * scale and not _near(ours[i], theirs[i], truth[i]):
            return Verdict(
                False, worst, f"result {i} is {mine:.1e} off float64, torch {torchs:.1e}", True
            )
    return Verdict(True, worst, "float64 shows both equally close", True)


def _near(ours: Any, theirs: Any, truth: Any) -> bool:
    """True if the mean square of our distance from the truth is about that of torch's."""
    mine, torchs = [float((x.detach().to(truth.dtype) - truth.detach()).norm())
                    for x in (ours, theirs)]  # fmt: skip
    return mine <= AS_CLOSE_ON_AVERAGE * torchs


def _apart(x: Any, truth: Any) -> float:
    if x.shape != truth.shape:
        return math.inf
    found = float((x.detach().to(truth.dtype) - truth.detach()).abs().max())
    return found if not math.isnan(found) else math.inf
