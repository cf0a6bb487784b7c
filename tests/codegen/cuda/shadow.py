"""Pytest plugin: what the reference device interprets is also computed by generated kernels.

`pytest -p tests.codegen.cuda.shadow` with `FULGURITE_DEVICE=reference`. Every kernel in index
notation is rendered and run, in Triton's interpreter (`FULGURITE_SHADOW=interpret`) or on the GPU
(`gpu`), on the same inputs and poisoned outputs, and compared. Tests do not fail by it: what ran,
was wrong, failed or cannot be rendered is counted in `$FULGURITE_SHADOW_OUT/<process>.json`.
"""

from __future__ import annotations

import atexit
import json
import os
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fulgurite.codegen.cuda.render import render
from fulgurite.codegen.cuda.source import KernelSource
from fulgurite.graph.kernel import Kernel
from fulgurite.graph.lower import lower
from fulgurite.graph.regroup import CannotLower
from fulgurite.runtime.backend import params_of
from fulgurite.runtime.interpreter import ReferenceDevice

Array = np.ndarray[Any, Any]
HOW = os.environ.get("FULGURITE_SHADOW", "interpret")
OUT = Path(os.environ.get("FULGURITE_SHADOW_OUT", "/tmp/shadow"))
LARGEST = int(os.environ.get("FULGURITE_SHADOW_LARGEST", "20000" if HOW == "interpret" else "0"))
MOST_BAD = 40

counts: Counter[str] = Counter()
reasons: Counter[str] = Counter()
bad: list[dict[str, Any]] = []
seen: Counter[object] = Counter()


@atexit.register
def dump() -> None:
    """Write what was counted."""
    OUT.mkdir(parents=True, exist_ok=True)
    found = {"counts": dict(counts), "reasons": dict(reasons), "bad": bad}
    (OUT / f"{os.getpid()}.json").write_text(json.dumps(found), encoding="utf-8")


def pytest_sessionfinish(session: Any) -> None:
    """Workers of xdist end without calling what is registered at exit."""
    dump()


@lru_cache(maxsize=1)
def runner() -> Callable[..., tuple[list[Array], tuple[int, int]]]:
    """What runs kernels."""
    if HOW == "interpret":
        from tests.codegen.cuda import interpret

        return interpret.run
    from tests.codegen.cuda.launching import Gpu

    return Gpu().run


def rendered(kernel: Kernel) -> KernelSource:
    """A kernel as launches."""
    return render(lower(kernel.body, kernel.inputs), [p.dtype for p in params_of(kernel)])


def note(kind: str, why: str, **more: Any) -> None:
    """Keep some of what went wrong."""
    counts[kind] += 1
    reasons[f"{kind}: {why.strip().splitlines()[-1][:160] if why else ''}"] += 1
    if len(bad) < MOST_BAD:
        bad.append({"kind": kind, "why": why[-1500:], **more})


def compare(
    kernel: Kernel, made: KernelSource, before: Sequence[Array], want: Sequence[Array],
    values: dict[str, int],
) -> None:  # fmt: skip
    """Run launches on inputs and poisoned outputs, and compare the outputs."""
    from tests.codegen.cuda.comparing import same_value

    poison = [np.frombuffer(b"\xa5" * w.nbytes, w.dtype).reshape(w.shape) for w in want]
    texts = [n.text for n in made.launches]
    try:
        got, _ = runner()(made, [*before, *poison], values)
    except Exception:
        note("failed", traceback.format_exc(), of=kernel.name, texts=texts)
        return
    counts["ran"] += 1
    for place, w in enumerate(want):
        g = got[len(before) + place]
        if not same_value(g, w):
            note(
                "wrong", kernel.name, texts=texts, got=str(g)[:500], want=str(w)[:500],
                given=[f"{b.dtype}{b.shape} {str(b)[:150]}" for b in before],
            )  # fmt: skip
            return
        if g.tobytes() != w.tobytes():
            counts["other last bits"] += 1


def pytest_configure(config: Any) -> None:
    """Stand between the reference device and its kernels."""
    original = ReferenceDevice._indexed

    def indexed(self: ReferenceDevice, kernel: Kernel) -> Any:
        run = original(self, kernel)
        if run is None:
            counts["not in index notation"] += 1
            return None
        made: KernelSource | None = None
        try:
            made = rendered(kernel)
        except CannotLower as reason:
            note("cannot", f"{kernel.kind}: {reason}")
        except Exception:
            note("failed", traceback.format_exc(), of=kernel.name)

        def both(inputs: Sequence[Any], outputs: Sequence[Any], values: dict[str, int]) -> None:
            before = [np.array(b.array) for b in inputs]
            run(inputs, outputs, values)
            want = [np.array(b.array) for b in outputs]
            seen[kernel.body] += 1
            large = LARGEST and max(a.size for a in (*before, *want)) > LARGEST
            if made is None or large or seen[kernel.body] > 3:
                counts["passed over"] += made is not None
                return
            if any(b.array.base is not None and np.may_share_memory(a.array, b.array)
                   for a in inputs for b in outputs):  # fmt: skip
                counts["in place"] += 1
            compare(kernel, made, before, want, values)

        return both

    ReferenceDevice._indexed = indexed  # type: ignore[method-assign]
