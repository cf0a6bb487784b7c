"""The processor as the search sees it: rates of a server of sixteen cores, to two digits.

Plans depend on them and not on the day, so they ship with the package; `fulgurite tune` measures
others. Devices that interpret kernels choose by the same ones: what the reference device shows is
what native code runs.
"""

from __future__ import annotations

from ...graph.fusion.machine import MachineModel

SHIPPED = MachineModel(
    launch_ns=250.0,
    cache_bw=70.0,
    dram_bw=18.0,
    cache_bytes=8e6,
    gemm_rate=230.0,
    stream_gemm_rate=220.0,
    narrow_gain=1.0,
    stream_loss=0.5,
    elementwise_rate=65.0,
    stream_rate=100.0,
    overlap=0.7,
    pack_rate=6.5,
    compile_ns=5_000.0,
    stream_compile_ns=10_000.0,
    part_ns=5_000.0,
    proposal_ns=2_000.0,
    body_runs=32.0,
    spill_ns_per_byte=0.15,
    strided_rate=1.2,
    blas_rate=240.0,
    large_bytes=16e6,
    scarce_ns_per_byte=1.5,
    avoidable_ns_per_byte=0.25,
    law_savings=0.25,
).quantised()
