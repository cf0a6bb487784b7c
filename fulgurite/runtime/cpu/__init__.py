"""The CPU: pooled host memory, and kernels in machine code."""

from __future__ import annotations

import warnings

from ..._lazy import FORK_LOCK
from ..device import Device, get_device, register_device


def _device(name: str) -> Device:
    """Native code if its compiler can be used, else the reference device and one warning."""
    with FORK_LOCK:
        from ...codegen.cpu.llvm import versions
    compiler = versions
    reason = compiler.unusable()
    if reason is not None:
        warnings.warn(
            f"{reason}: kernels run on the reference device, slowly. "
            f"Install it with: pip install {compiler.requirement()}",
            RuntimeWarning,
            stacklevel=2,
        )
        return get_device("reference")
    from .device import CpuDevice

    return CpuDevice()


register_device("cpu", _device)
