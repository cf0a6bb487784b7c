"""What a replay of `fg.jit` costs over its kernels: few tensors, and trees the size of a GPT's.

Run `python bench/jit.py [--peers PYTHON]`. Wall time, the quickest of many; the kernels' own time
is that of a native loop over the same launches (see bench/replay.py). Goals: 3 us, and 0.1 us for
every tensor that is guarded. JAX's jit and torch (eager) do the same beside us, where they can.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.harness import Measure, run_figures
from bench.replay import SIZE, chain, own_time, quickest

MANY = 150
GOALS: dict[str, float | None] = {
    "100 kernels, 2 tensors: over the kernels (us)": 3.2,
    "100 kernels: Python calls of a replay": None,
    f"{MANY} tensors in a dict: over the kernels (us)": 3 + 0.1 * MANY,
    f"{MANY} tensors in objects: over the kernels (us)": 3 + 0.1 * MANY,
    f"{MANY} tensors in a dict (us)": None,
    f"{MANY} tensors assigned in place (us)": None,
    f"{MANY} tensors in, {MANY} out, fed back (us)": None,
    "a number that changes (us)": None,
}


def added(tensors: Any) -> Any:
    """The sum of many small tensors: one kernel."""
    total = None
    for tensor in tensors:
        total = tensor if total is None else total + tensor
    return total


def program_of(jitted: Any) -> Any:
    """The native program of a function that was captured once."""
    (captured,) = jitted.captures
    return captured.replay.program(False)


def ours() -> dict[str, float]:
    """Our figures."""
    os.environ["FULGURITE_DEVICE"] = "cpu"
    import fulgurite as fg

    a, b = fg.ones(SIZE).realize(), fg.full((SIZE,), 0.5).realize()
    figures: dict[str, float] = {}
    with fg.config(fuse=False):
        run = fg.jit(lambda a, b: chain(a, b))
        kept: list[Any] = [run(a, b)]  # so that the memory of the last run stays ours
        figures["100 kernels, 2 tensors: over the kernels (us)"] = quickest(
            lambda: run(a, b)
        ) - own_time(program_of(run))
        figures["100 kernels: Python calls of a replay"] = calls(lambda: run(a, b))

    tensors = {f"w{i}": fg.full((SIZE,), float(i)).realize() for i in range(MANY)}
    total = fg.jit(lambda tree: added(tree.values()))
    kept.append(total(tensors))
    whole = quickest(lambda: total(tensors))
    own = own_time(program_of(total), 1)
    figures[f"{MANY} tensors in a dict (us)"] = whole
    figures[f"{MANY} tensors in a dict: over the kernels (us)"] = whole - own

    model = Model(list(tensors.values()))
    forward = fg.jit(Model.forward)
    kept.append(forward(model, a))
    figures[f"{MANY} tensors in objects: over the kernels (us)"] = quickest(
        lambda: forward(model, a)
    ) - own_time(program_of(forward), 1)

    @fg.jit
    def halve(tree: Any) -> None:
        for tensor in tree.values():
            tensor *= 0.5

    figures[f"{MANY} tensors assigned in place (us)"] = quickest(lambda: halve(tensors))
    halved = fg.jit(lambda tree: {name: tensor * 0.5 for name, tensor in tree.items()})
    state = [tensors]

    def feed() -> None:
        state[0] = halved(state[0])

    figures[f"{MANY} tensors in, {MANY} out, fed back (us)"] = quickest(feed)
    scaled, count = fg.jit(lambda x, n: x * n), [0.0]

    def count_up() -> None:
        count[0] += 1
        scaled(a, count[0])

    figures["a number that changes (us)"] = quickest(count_up)
    return figures


class Part:
    """A part of a model."""

    def __init__(self, tensor: Any) -> None:
        self.w, self.training = tensor, False


class Model:
    """Many tensors, three to a part, as in a model."""

    def __init__(self, tensors: list[Any]) -> None:
        self.parts = [Part(tensors[i : i + 3]) for i in range(0, len(tensors), 3)]

    def forward(self, x: Any) -> Any:
        """All of them added."""
        for part in self.parts:
            x = added([x, *part.w]) if not part.training else -x
        return x


def calls(work: Callable[[], Any]) -> float:
    """How many Python and C functions a call enters."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return float(count)


def jax() -> dict[str, float]:
    """JAX's jit."""
    import jax.numpy as jnp
    from jax import block_until_ready, jit

    a, b = jnp.ones(SIZE), jnp.full((SIZE,), 0.5)
    tensors = {f"w{i}": jnp.full((SIZE,), float(i)) for i in range(MANY)}
    total = jit(lambda tree: added(tree.values()))
    halved = jit(lambda tree: {name: tensor * 0.5 for name, tensor in tree.items()})
    scaled, count, state = jit(lambda x, n: x * n), [0.0], [tensors]
    run = jit(chain)

    def feed() -> None:
        state[0] = block_until_ready(halved(state[0]))

    def count_up() -> None:
        count[0] += 1
        block_until_ready(scaled(a, count[0]))

    return {
        "100 kernels, 2 tensors: over the kernels (us)": quickest(
            lambda: block_until_ready(run(a, b))
        ),
        f"{MANY} tensors in a dict (us)": quickest(lambda: block_until_ready(total(tensors))),
        f"{MANY} tensors in, {MANY} out, fed back (us)": quickest(feed),
        "a number that changes (us)": quickest(count_up),
    }


def torch() -> dict[str, float]:
    """torch, op by op."""
    import torch

    a = torch.ones(SIZE)
    tensors = {f"w{i}": torch.full((SIZE,), float(i)) for i in range(MANY)}

    def halve() -> None:
        torch._foreach_mul_(list(tensors.values()), 0.5)

    return {
        f"{MANY} tensors in a dict (us)": quickest(lambda: added(tensors.values())),
        f"{MANY} tensors assigned in place (us)": quickest(halve),
        "a number that changes (us)": quickest(lambda: a * 2.0),
    }


if __name__ == "__main__":
    systems: dict[str, list[Measure]] = {"ours": [ours], "torch": [torch], "jax": [jax]}
    run_figures(__doc__, __file__, systems, GOALS)
