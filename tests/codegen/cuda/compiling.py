"""Ahead-of-time compiles of a sample for four GPUs: `python -m tests.codegen.cuda.compiling`.

Prints, as JSON, registers, stack and shared memory of every launch, for compute capabilities 8.0,
8.9, 9.0 and 10.0; only of some for others than 9.0, as they differ little from the one before, and
for 8.9, which has least shared memory, of what wants most.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

os.environ |= {"FULGURITE_DEVICE": "reference", "FULGURITE_DISK_CACHE": "0"}

import fulgurite as fg
from fulgurite.codegen.cuda.compilation.compiler import _Compilation, compile_launch
from fulgurite.codegen.cuda.source import Launch, TensorMap
from fulgurite.codegen.cuda.tiling import HOPPER, in_plain_triton
from fulgurite.runtime.cuda.driver import _SWIZZLES, tensor_cells
from tests.codegen.cuda.folds import GRADIENTS, fold
from tests.codegen.cuda.products import GLUON, product
from tests.codegen.cuda.workloads import rendered, scheduled, workload

WORKLOADS = ("softmax", "gelu", "sum", "scan", "embedding_grad", "matmul_bf16", "attention")
EVERYWHERE = ("softmax", "matmul_bf16")
DESK, LARGEST = 89, "gradients_of_256"  # a GPU with 99 KiB for a program, and what wants most
MORE: dict[str, Any] = {
    "float8": (lambda x: (x * 2).astype("float8_e4m3fn"), (((1000,), "float32"),)),
    "functions": (
        lambda x: fg.lgamma(fg.exp(x)) + fg.cbrt(fg.sin(x)) + x**1.5, (((1000,), "float32"),),
    ),
    "variable": (
        lambda x: fg.sum(x * fg.Var("at", 0, 9).bind(3), axis=1), (((100, 64), "float32"),),
    ),
    "gluon": (product("residual"), product("residual").inputs(4096, 4096, 4096)),
    "gluon_contracted": (product("gelu"), product("gelu").inputs(4096, 3072, 768)),
    "gluon_heads": (product("heads"), product("heads").inputs(2048, 2048, 64)),
    **{
        f"gluon_{name}": (one, one.inputs(4, 16, 1024, 1024, 64))
        for name, kind in (("gradient", "keys"), ("crossing", "all"))
        for one in GRADIENTS if one.name == f"{kind}_of_causal"
    },
    "gluon_causal": (fold("causal"), fold("causal").inputs(4, 16, 1024, 1024, 128)),
}  # fmt: skip
MORE[LARGEST] = next((one, one.inputs(4, 16, 1024, 1024, 256)) for one in GRADIENTS
                     if one.name == "all_of_causal")  # fmt: skip
MORE |= {f"{name}_persistent": MORE[name] for name in ("gluon_gradient", "gluon_causal")}


def params(launch: Launch) -> tuple[int, int]:
    """How many arguments a launch's machine code takes, and how many the runtime gives.

    What Triton thinks that a tensor map's boxes and swizzling are must be what the runtime encodes.
    """
    work = _Compilation(launch, 90)
    metadata: dict[str, Any] = {"target": work.target, **work.options.__dict__}
    text = str(work.lowered(metadata, "ptx")["ptx"])
    head = text.partition(".entry kernel(")[2].partition(")")[0]
    maps = [a.value for a in launch.arguments if isinstance(a.value, TensorMap)]
    for spec, thought in zip(maps, metadata["tensordesc_meta"], strict=True):
        assert list(spec.box) == list(thought["block_size"]), (spec, thought)
        assert _SWIZZLES[spec.swizzle] == thought["swizzle"] and thought["elem_size"] == 2
    given = [len(tensor_cells(a.value)) if isinstance(a.value, TensorMap) else 1
             for a in launch.arguments]  # fmt: skip
    return head.count(".param "), sum(given) + 2


def main() -> None:
    """Compile all of it."""
    found: list[dict[str, Any]] = []
    for capability in (80, DESK, 90, 100):
        for name in (*WORKLOADS, *MORE):
            if (capability == DESK) != (name == LARGEST):
                continue
            if capability in (80, 100) and name not in EVERYWHERE:
                continue
            if name in MORE:
                build, inputs = MORE[name]
            else:
                build, inputs = workload(name).build, workload(name).inputs
            known = set()
            table = HOPPER if capability == 90 else in_plain_triton(HOPPER)
            if capability == DESK:
                table = in_plain_triton(HOPPER, 101_376)
            if name.startswith("gluon"):
                table = replace(GLUON, gluon_persistent=name.endswith("persistent"))
            if name == "gluon_contracted":
                table = replace(GLUON, gluon_contracted=True, narrow_tanh=True)
            for item in scheduled(build, inputs).items:
                made_of = rendered(item.kernel, table)
                if name == "variable":  # its value is read before the branch
                    made_of = made_of.guarded()
                for launch in made_of.launches:
                    if name.startswith("gluon") and launch.language != "gluon":
                        continue  # what is before and behind a loop
                    if (launch.text, launch.warps) in known:
                        continue
                    known.add((launch.text, launch.warps))
                    made = compile_launch(launch, capability)
                    found.append({
                        "name": name, "capability": capability, "registers": made.registers,
                        "stack": made.stack, "shared": made.shared, "scratch": made.scratch,
                        "size": len(made.image), "threads": made.warps * 32,
                        "params": params(launch) if launch.language == "gluon" else (0, 0),
                    })  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
