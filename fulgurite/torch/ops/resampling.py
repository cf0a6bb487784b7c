"""Interpolation to another size, sampling by a grid, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fulgurite as fg

from ...nn import functional as F
from ..table import Use, aten, cast

MODES = {
    "nearest": "nearest", "_nearest_exact": "nearest-exact", "linear": "linear",
    "bilinear": "bilinear", "bicubic": "bicubic", "trilinear": "trilinear",
}  # fmt: skip
NEAREST = [f"upsample_nearest{n}d" for n in (1, 2, 3)]
EXACT = [f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)]
LINEAR = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"]


def _mode(name: str) -> str:
    """The mode of interpolation that an operator's name says."""
    if "nearest_exact" in name:
        return "nearest-exact"
    return next(m for m in ("nearest", "bilinear", "trilinear", "bicubic", "linear") if m in name)


def _resized(x: Any, size: Sequence[int], factors: Any, mode: str, corners: bool | None) -> Any:
    given = None
    if factors is not None and all(f is not None for f in factors) and not corners:
        given = [float(f) for f in factors]
        exact = [int(n * f) for n, f in zip(x.shape[2:], given, strict=True)]
        given = given if exact == list(size) else None
    if given is not None:
        return fg.interpolate(x, scale_factor=given, mode=mode, align_corners=corners)
    return fg.interpolate(x, size=list(size), mode=mode, align_corners=corners)


def _settings(name: str, rest: Sequence[Any]) -> tuple[bool | None, Any]:
    """`align_corners` and factors of a use, behind its output size."""
    rest = list(rest)
    corners = None if "nearest" in name else bool(rest.pop(0))
    if name.endswith(".vec"):
        return corners, rest[0] if rest else None
    return corners, rest or None


@aten(*[f"{n}{k}" for n in (*NEAREST, *EXACT, *LINEAR) for k in ("", ".vec")])
def upsample(use: Use, x: Any, size: Any, *rest: Any) -> Any:
    """x in another size."""
    corners, factors = _settings(use.name, rest)
    return cast(_resized(x, use.shape[2:], factors, _mode(use.name), corners), use.dtype)


@aten(*[f"{n}_backward" for n in (*NEAREST, *EXACT, *LINEAR)])
def upsample_backward(use: Use, grad: Any, size: Any, input_size: Any, *rest: Any) -> Any:
    """The gradient of resizing."""
    corners, factors = _settings(use.name, rest)
    mode = _mode(use.name)
    like = fg.full(tuple(input_size), 0.0, dtype=grad.dtype)
    return fg.vjp(lambda x: _resized(x, list(size), factors, mode, corners), like)[1](grad)[0]


SAMPLING = {0: "bilinear", 1: "nearest", 2: "bicubic"}
BORDERS = {0: "zeros", 1: "border", 2: "reflection"}


@aten("grid_sampler_2d", "grid_sampler_3d")
def grid_sample(use: Use, x: Any, grid: Any, mode: int, border: int, corners: bool) -> Any:
    """x at the places of a grid."""
    return F.grid_sample(x, grid, SAMPLING[mode], BORDERS[border], corners)


@aten("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sample_backward(
    use: Use, grad: Any, x: Any, grid: Any, mode: int, border: int, corners: bool,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Gradients by the input and by the grid."""
    settings = SAMPLING[mode], BORDERS[border], corners
    by_x = by_grid = None
    if mask[0]:
        by_x = fg.vjp(lambda x: F.grid_sample(x, grid, *settings), x)[1](grad)[0]
    if mask[1]:
        by_grid = fg.vjp(lambda g: F.grid_sample(x, g, *settings), grid)[1](grad)[0]
    return by_x, by_grid
