"""The namespace of the array API standard: the package, and what it tells about itself.

In: a version of the standard, or what is asked. Out: the module, or names of devices and dtypes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..core.dtype import (
    DTYPES,
    DType,
    default_complex,
    default_float,
    default_int,
)
from ..errors import ArgumentError
from ..runtime.device import device_names
from ..tensor import Tensor
from .device_dlpack import SMALL

VERSION = "2025.12"


class Info:
    """What the standard asks about a namespace: devices, default and known dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """What may depend on data, and how many dimensions there are at most."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Where tensors live if nothing is said."""
        return Tensor(0).device

    def default_dtypes(self, *, device: object = None) -> dict[str, DType]:
        """The dtypes of Python numbers, and of indices."""
        return {
            "real floating": default_float, "complex floating": default_complex,
            "integral": default_int, "indexing": default_int,
        }  # fmt: skip

    def devices(self) -> tuple[str, ...]:
        """Where tensors may live."""
        return tuple(device_names())

    def dtypes(self, *, device: object = None, kind: object = None) -> dict[str, DType]:
        """The dtypes of the standard, of one or several kinds."""
        from ..functional.datatypes import isdtype

        return {
            d.name: d for d in DTYPES
            if d.bits in (1, 8, 16, 32, 64, 128) and d.name not in SMALL and d.name != "float16"
            and (kind is None or isdtype(d, kind))
        }  # fmt: skip


def namespace(version: str | None) -> ModuleType:
    """The module with the standard's functions."""
    import fulgurite

    known = ("2021.12", "2022.12", "2023.12", "2024.12", VERSION)
    if version is not None and version not in known:
        raise ArgumentError(f"array API version {version!r}", f"one of {', '.join(known)}")
    return fulgurite
