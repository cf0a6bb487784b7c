"""NVIDIA GPUs: nothing of the driver is touched until a GPU is asked for."""

from ...config import current
from ..cache import has_nothing
from ..device import Device, register_device


def _start(name: str) -> Device:
    from . import driver

    driver.start_ahead()  # it and the compiler take longer to start than the next import
    if has_nothing(current()):
        from ...codegen.cuda import ahead

        ahead.start()
    from .device import CudaDevice

    return CudaDevice(name)


def _count() -> int:
    from .device import count

    return count()


register_device("cuda", _start, _count)
