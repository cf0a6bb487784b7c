"""Pytest plugin: what the reference device interprets is also computed by generated kernels.

`pytest -p tests.codegen.cuda.shadow` with `FULGURITE_DEVICE=reference`. Every kernel in index
notation is rendered and run, in Triton's interpreter (`FULGURITE_SHADOW=interpret`) or on the GPU
(`gpu`), on the same inputs and poisoned outputs, and compared; or only read by Triton (`read`).
Tests do not fail by it: what ran, was wrong, failed or cannot be rendered is counted in
`$FULGURITE_SHADOW_OUT/<process>.json`.
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

from fulgurite.codegen.cuda.compilation.compiler import check_launch
from fulgurite.codegen.cuda.render import render, render_fold
from fulgurite.codegen.cuda.source import KernelSource
from fulgurite.codegen.cuda.tiling import HOPPER
from fulgurite.core.node import Node, toposort
from fulgurite.core.ops.leaf import PARAM
from fulgurite.core.ops.movement import PAD
from fulgurite.core.shape import upper
from fulgurite.graph.ir.kernel import Kernel, params_of
from fulgurite.graph.ir.kernel_kind import KernelKind
from fulgurite.graph.ir.lower import layout_of, lower
from fulgurite.graph.ir.reshape_groups import CannotLower
from fulgurite.runtime.cuda.driver import DeviceLostError
from fulgurite.runtime.host import device as host
from fulgurite.runtime.host.evaluate import size_value
from tests.codegen.cuda.comparing import same_value

Array = np.ndarray[Any, Any]
HOW = os.environ.get("FULGURITE_SHADOW", "interpret")
OUT = Path(os.environ.get("FULGURITE_SHADOW_OUT", "/tmp/shadow"))
LARGEST = int(os.environ.get("FULGURITE_SHADOW_LARGEST", "20000" if HOW == "interpret" else "0"))
MOST_BAD = 40
DUMPED = 100  # kernels after which what was counted is written
MOST_RUNS = 3  # of one kernel

TABLE = HOPPER  # of tile sizes; others are tried by those who set it
counts: Counter[str] = Counter()
reasons: Counter[str] = Counter()
bad: list[dict[str, Any]] = []
seen: Counter[object] = Counter()
known: set[object] = set()


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
    if HOW == "read":
        return _read
    from tests.codegen.cuda.launching import Gpu

    return Gpu().run


def _read(made: KernelSource, arrays: Sequence[Array], values: dict[str, int]) -> Any:
    """Let Triton read all launches, each text once."""
    for launch in made.launches:
        if launch.key not in known:
            known.add(launch.key)
            check_launch(launch)
            counts["texts"] += 1
    return None, (0, 0)


def rendered(kernel: Kernel) -> KernelSource:
    """A kernel as launches, by the table of the run."""
    if kernel.kind is KernelKind.FOLD:
        return render_fold(kernel.plan, TABLE)
    return render(lower(kernel.body, kernel.inputs), [p.dtype for p in params_of(kernel)], TABLE)


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
    texts = [n.text for n in made.launches]
    counts["products"] += sum(["tl.dot(" in text for text in texts])
    if HOW == "interpret":  # a wild access ends the process: this is what it was at
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{os.getpid()}.last").write_text("\n".join(texts), encoding="utf-8")
    arrays, parts = laid_out(kernel, [*before, *[np.full_like(w, 0) for w in want]], values)
    for array in arrays[len(before) :]:
        array.reshape(-1).view(np.uint8)[:] = 0xA5
    if counts["lost"]:  # an illegal access took the context with it: nothing runs any more
        counts["after it was lost"] += 1
        return
    try:
        got, _ = runner()(made, arrays, values)
    except DeviceLostError:
        note("lost", traceback.format_exc(), of=kernel.name, texts=texts)
        return
    except Exception:
        note("failed", traceback.format_exc(), of=kernel.name, texts=texts)
        return
    counts["ran"] += 1
    if counts["ran"] % DUMPED == 0:  # a run that is cut short has counted too
        dump()
    if got is None:
        return
    for place, w in enumerate(want):
        g = got[len(before) + place][parts[len(before) + place]].reshape(w.shape)
        there = stored(kernel.body.src[place])
        if there is not None:  # what is beside belongs to others
            there = there.reshape(w.shape)
            if (g[~there].reshape(-1).view(np.uint8) != 0xA5).any():
                note("wrong", f"{kernel.name} stores beside its part", texts=texts)
                return
            g, w = g[there], w[there]
        if not same_value(g, w, before):
            note(
                "wrong", kernel.name, texts=texts, got=str(g)[:500], want=str(w)[:500],
                given=[f"{b.dtype}{b.shape} {str(b)[:150]}" for b in before],
            )  # fmt: skip
            return
        if g.tobytes() != w.tobytes():
            counts["other last bits"] += 1


def stored(root: Node) -> Array | None:
    """Where an output with room beside it has elements; None of others."""
    moves = layout_of(root)
    if not any([move.op is PAD for move in moves]):
        return None
    there: Array = np.ones([n for n in moves[-1].src[0].shape if isinstance(n, int)], np.uint8)
    for move in reversed(moves):
        assert move.op.numpy is not None
        there = move.op.numpy(move, there)
    return np.asarray(there, bool)


def laid_out(
    kernel: Kernel, arrays: Sequence[Array], values: dict[str, int]
) -> tuple[list[Array], list[tuple[slice, ...]]]:
    """Memory at the upper bound of sizes that vary, as kernels see it, and the parts in use."""
    shapes: dict[int, Any] = {n.arg[0]: n.shape for n in toposort([kernel.body]) if n.op is PARAM}
    shapes |= {kernel.inputs + i: root.shape for i, root in enumerate(kernel.body.src)}
    found: list[Array] = []
    parts: list[tuple[slice, ...]] = []
    for place, array in enumerate(arrays):
        shape: Any = shapes.get(place, array.shape)
        if all(isinstance(n, int) for n in shape):
            found.append(np.array(array))
            parts.append(())
            continue
        sizes = [n if isinstance(n, int) else size_value(n, values) for n in shape]
        whole = np.zeros([upper(n) for n in shape], array.dtype)
        part = tuple([slice(n) for n in sizes])
        whole[part] = array.reshape(sizes)
        found.append(whole)
        parts.append(part)
    return found, parts


def pytest_configure(config: Any) -> None:
    """Stand between the reference device and its kernels."""
    original = host._indexed

    def indexed(kernel: Kernel) -> Any:
        run = original(kernel)
        if run is None:
            counts["not in index notation"] += 1
            return None
        made: dict[str, KernelSource | None] = {}

        def both(inputs: Sequence[Any], outputs: Sequence[Any], values: dict[str, int]) -> None:
            before = [np.array(b.array) for b in inputs]
            run(inputs, outputs, values)
            want = [np.array(b.array) for b in outputs]
            seen[kernel.body] += 1
            large = LARGEST and max([a.size for a in (*before, *want)], default=0) > LARGEST
            if large or seen[kernel.body] > MOST_RUNS:
                counts["passed over"] += 1
                return
            if not made:
                made["source"] = attempted(kernel)
            if made["source"] is not None:
                compare(kernel, made["source"], before, want, values)

        return both

    host._indexed = indexed


def attempted(kernel: Kernel) -> KernelSource | None:
    """A kernel as launches; what has none is counted."""
    try:
        return rendered(kernel)
    except CannotLower as reason:
        note("cannot", f"{kernel.kind}: {reason}")
    except Exception:
        note("failed", traceback.format_exc(), of=kernel.name)
    return None
