"""Ahead-of-time compiles of a sample for three GPUs: `python -m tests.codegen.cuda.compiling`.

Prints, as JSON, registers, stack and shared memory of every launch, for compute capabilities 8.0,
9.0 and 10.0; for the last two only of some, as they differ little from the one before.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ |= {"FULGURITE_DEVICE": "reference", "FULGURITE_DISK_CACHE": "0"}

import fulgurite as fg
from fulgurite.codegen.cuda.compiler import compile_launch
from tests.codegen.cuda.workloads import rendered, scheduled, workload

WORKLOADS = ("softmax", "gelu", "sum", "scan", "embedding_grad", "matmul_bf16", "attention")
EVERYWHERE = ("softmax", "matmul_bf16")
MORE: dict[str, Any] = {
    "float8": (lambda x: (x * 2).astype("float8_e4m3fn"), (((1000,), "float32"),)),
    "functions": (
        lambda x: fg.lgamma(fg.exp(x)) + fg.cbrt(fg.sin(x)) + x**1.5, (((1000,), "float32"),),
    ),
}  # fmt: skip


def main() -> None:
    """Compile all of it."""
    found: list[dict[str, Any]] = []
    for capability in (80, 90, 100):
        for name in (*WORKLOADS, *MORE):
            if capability != 90 and name not in EVERYWHERE:
                continue
            if name in MORE:
                build, inputs = MORE[name]
            else:
                build, inputs = workload(name).build, workload(name).inputs
            known = set()
            for item in scheduled(build, inputs).items:
                for launch in rendered(item.kernel).launches:
                    if (launch.text, launch.warps) in known:
                        continue
                    known.add((launch.text, launch.warps))
                    made = compile_launch(launch, capability)
                    found.append({
                        "name": name, "capability": capability, "registers": made.registers,
                        "stack": made.stack, "shared": made.shared, "scratch": made.scratch,
                        "size": len(made.image), "threads": made.warps * 32,
                    })  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
