"""NVIDIA GPUs: nothing of the driver is touched until a GPU is asked for."""

from ..device import Device, register_device


def _start(name: str) -> Device:
    from . import driver

    driver.start_ahead()
    from .device import CudaDevice

    return CudaDevice(name)


def _count() -> int:
    from .device import count

    return count()


register_device("cuda", _start, _count)
