"""The processor as the search sees it: rates of a server of sixteen cores, to two digits.

Plans depend on them and not on the day, so they ship with the package; `fulgurite tune` measures
others. Devices that interpret kernels choose by the same ones: what the reference device shows is
what native code runs.
"""

from __future__ import annotations

from ...graph.fusion.machine import MachineModel

SHIPPED = MachineModel(
    launch=1500.0, near=70.0, far=18.0, cache=8e6, products=230.0, folded=220.0, simple=65.0,
    walked=100.0, hidden=0.7, packed=6.5, made=5_000.0, asked=2_000.0, kept=0.15, strided=1.2,
    library=240.0, large=16e6, scarce=1.5, spared=0.25, saved=0.25,
).quantised()  # fmt: skip
