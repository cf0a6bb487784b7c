"""The reference device: NumPy memory, and kernels run by interpretation."""

from __future__ import annotations

from ..device import Device, register_device


def _device(name: str) -> Device:
    from .device import ReferenceDevice

    return ReferenceDevice()


register_device("reference", _device)
