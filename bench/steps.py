"""Training steps in bfloat16 on a GPU beside torch and JAX: `python -m bench.steps [names]`.

ResNet-50 (batch 64 of 224 x 224, SGD with momentum) and GPT-2 small (8 x 1024 tokens, AdamW), said
once to us, to torch and to JAX, from the same weights and batches: forward and loss under autocast,
backward, update. Each system is a process of its own, so that memory and cold starts are its own:
`ours`, `torch` (eager, channels last, fused optimiser), `compile` (torch.compile, with CUDA
graphs), `max` (max-autotune) and `jax` (jitted, state donated, channels last, cuDNN's attention).
Printed for each: seconds of the first call, milliseconds of a step (median of rounds of many steps
between two waits), peak memory, and losses, which are compared.
`--table joined_sums=True` chooses our kernels by other numbers than `GpuTable` has.
`--curve 200` prints losses of so many steps instead, of which the last ones' mean is compared, with
`--rate 3e-5 --warm-up 20` by a rate that rises linearly in the first steps;
`--tiny --device cpu` tries the script.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fulgurite as fg

ROOT = Path(__file__).parents[1]
Array = np.ndarray[Any, Any]
BATCHES = 4  # that take turns
RATES = {"resnet50": 0.02, "gpt2": 3e-4}
WARM_UP = [0]  # steps in which the rate rises to that, last


class Size(NamedTuple):
    """How large a model and its batch are."""

    batch: int
    length: int  # of a side of an image, or tokens
    width: int
    layers: int  # of GPT; blocks of each of ResNet's groups at most
    classes: int


SIZES = {
    "resnet50": Size(64, 224, 64, 6, 1000), "gpt2": Size(8, 1024, 768, 12, 50257),
}  # fmt: skip
TINY = {"resnet50": Size(2, 32, 8, 1, 10), "gpt2": Size(2, 16, 32, 2, 50)}


# --- our models ----------------------------------------------------------------------------------


class Bottleneck(fg.nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions, added to what comes in."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        self.conv1 = fg.nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = fg.nn.BatchNorm2d(width)
        self.conv2 = fg.nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = fg.nn.BatchNorm2d(width)
        self.conv3 = fg.nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = fg.nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inner != 4 * width:
            self.downsample = fg.nn.Sequential(
                fg.nn.Conv2d(inner, 4 * width, 1, stride=stride, bias=False),
                fg.nn.BatchNorm2d(4 * width),
            )

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """The features after the block."""
        same = x if self.downsample is None else self.downsample(x)
        h = fg.relu(self.bn1(self.conv1(x)))
        h = fg.relu(self.bn2(self.conv2(h)))
        return fg.relu(self.bn3(self.conv3(h)) + same)


class ResNet50(fg.nn.Module):
    """Bottlenecks in four groups; torchvision's names."""

    def __init__(self, size: Size) -> None:
        self.conv1 = fg.nn.Conv2d(3, size.width, 7, stride=2, padding=3, bias=False)
        self.bn1 = fg.nn.BatchNorm2d(size.width)
        self.maxpool = fg.nn.MaxPool2d(3, 2, 1)
        inner = size.width
        for number, count in enumerate((3, 4, 6, 3)):
            width, blocks = size.width << number, []
            for place in range(min(count, size.layers)):
                blocks.append(Bottleneck(inner, width, 2 if number and not place else 1))
                inner = 4 * width
            setattr(self, f"layer{number + 1}", fg.nn.Sequential(*blocks))
        self.fc = fg.nn.Linear(inner, size.classes)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """Logits of the classes."""
        h = self.maxpool(fg.relu(self.bn1(self.conv1(x))))
        for number in range(1, 5):
            h = getattr(self, f"layer{number}")(h)
        return self.fc(h.mean(axis=(2, 3)))


class Block(fg.nn.Module):
    """Attention and a small network, each added to what comes in."""

    def __init__(self, width: int) -> None:
        self.heads = max(1, width // 64)
        self.ln_1 = fg.nn.LayerNorm(width)
        self.attn = fg.nn.Linear(width, 3 * width)
        self.proj = fg.nn.Linear(width, width)
        self.ln_2 = fg.nn.LayerNorm(width)
        self.fc = fg.nn.Linear(width, 4 * width)
        self.out = fg.nn.Linear(4 * width, width)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """The stream after the block."""
        batch, length, width = x.shape
        parts = self.attn(self.ln_1(x)).reshape(batch, length, 3, self.heads, -1)
        q, k, v = fg.unstack(parts.permute(2, 0, 3, 1, 4))
        seen = fg.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.permute(0, 2, 1, 3).reshape(batch, length, width))
        return x + self.out(fg.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(fg.nn.Module):
    """GPT-2 with its output matrix tied to the embedding."""

    def __init__(self, size: Size) -> None:
        self.wte = fg.nn.Embedding(size.classes, size.width)
        self.wpe = fg.nn.Embedding(size.length, size.width)
        self.blocks = fg.nn.ModuleList([Block(size.width) for _ in range(size.layers)])
        self.ln_f = fg.nn.LayerNorm(size.width)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        """Logits for every place."""
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.ln_f(h) @ self.wte.weight.T


def our_model(name: str, size: Size) -> fg.nn.Module:
    """A model by its name."""
    return ResNet50(size) if name == "resnet50" else GPT2(size)


def our_loss(name: str, model: fg.nn.Module, x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    """Its cross-entropy."""
    logits = model(x)
    return fg.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def our_optimizer(name: str, model: fg.nn.Module) -> Any:
    """SGD with momentum for images, AdamW for text."""
    if name == "resnet50":
        return fg.optim.SGD(
            model.parameters(), lr=RATES[name], momentum=0.9, weight_decay=1e-4
        )  # fmt: skip
    return fg.optim.AdamW(model.parameters(), lr=RATES[name], weight_decay=0.1)


# --- what both systems get -----------------------------------------------------------------------


def warm_up(name: str, optimizer: Any, number: int) -> None:
    """Set the rate of a step, which rises linearly, if it was asked for."""
    if number < WARM_UP[-1]:
        for group in optimizer.param_groups:
            group["lr"] = RATES[name] * (number + 1) / WARM_UP[-1]


def batches(name: str, size: Size) -> Iterator[tuple[Array, Array]]:
    """Batches from a seed."""
    rng = np.random.default_rng(0)
    for _ in range(BATCHES):
        if name == "resnet50":
            shape = size.batch, 3, size.length, size.length
            x: Array = rng.standard_normal(shape, dtype=np.float32)
            yield x, rng.integers(0, size.classes, size.batch)
        else:
            text = rng.integers(0, size.classes, (size.batch, size.length + 1))
            yield text[:, :-1], text[:, 1:]


def weights(name: str, size: Size) -> dict[str, Array]:
    """Weights by their names, as usual networks begin: from a seed."""
    rng = np.random.default_rng(1)
    found = {}
    for key, value in our_model(name, size).state_dict().items():
        shape = tuple(value.shape)
        if len(shape) < 2:
            ones = key.endswith(("weight", "running_var"))
            found[key] = np.full(shape, float(ones), np.float32)
        else:
            scale = 0.02 if name == "gpt2" else (2 / np.prod([shape[0], *shape[2:]])) ** 0.5
            found[key] = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        if "num_batches" in key:
            found[key] = np.zeros(shape, np.int64)
    return found


# --- systems -------------------------------------------------------------------------------------

Made = tuple[Callable[[int], Any], Callable[[], None], Callable[[], int]]
"""A step on one of the batches, which gives its loss; wait; the peak of memory in bytes."""


def ours(name: str, size: Size, device: str) -> Made:
    """Jitted, autocast inside."""
    with fg.config(device=device):
        model = our_model(name, size)
        model.load_state_dict({k: fg.Tensor(v) for k, v in weights(name, size).items()})
        optimizer = our_optimizer(name, model)
        given = [tuple([fg.Tensor(a).realize() for a in pair]) for pair in batches(name, size)]

    @fg.jit
    def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
        with fg.autocast("bfloat16"):
            loss = our_loss(name, model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def run(number: int) -> Any:
        with fg.config(device=device):
            warm_up(name, optimizer, number)
            return step(*given[number % BATCHES])

    return run, fg.synchronize, lambda: fg.memory_stats(device=device)["peak"]


def torch_step(name: str, size: Size, device: str, how: str) -> Made:
    """The same in torch."""
    import torch

    from bench.steps_torch import torch_model

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    model = torch_model(name, size)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights(name, size).items()})
    model = model.to(device)
    fused = {"fused": True} if device != "cpu" else {}
    optimizer: Any
    if name == "resnet50":
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=RATES[name], momentum=0.9, weight_decay=1e-4, **fused
        )
    else:
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=RATES[name], weight_decay=0.1, **fused
        )  # fmt: skip
    given = [[torch.from_numpy(a).to(device) for a in pair] for pair in batches(name, size)]
    if name == "resnet50":
        given = [[x.to(memory_format=torch.channels_last), y] for x, y in given]

    def loss_of(x: Any, y: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            logits = model(x)
            return torch.nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]), y.reshape(-1)
            )

    modes = {"compile": "reduce-overhead", "max": "max-autotune"}
    forward = torch.compile(loss_of, mode=modes[how]) if how in modes else loss_of

    def run(number: int) -> Any:
        warm_up(name, optimizer, number)
        loss = forward(*given[number % BATCHES])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach().clone()

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    return run, wait, lambda: torch.cuda.max_memory_allocated() if device != "cpu" else 0


def jax_step(name: str, size: Size, device: str) -> Made:
    """The same in JAX."""
    import jax

    from bench.steps_jax import begin, stepping

    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    step = stepping(name, size, RATES[name])
    state = begin(weights(name, size))
    given = [
        [jax.device_put(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x), jax.device_put(y)]
        for x, y in batches(name, size)
    ]

    def run(number: int) -> Any:
        nonlocal state
        state, loss = step(state, *given[number % BATCHES])
        return loss

    def peak() -> int:
        found: dict[str, int] | None = jax.local_devices()[0].memory_stats()
        return found["peak_bytes_in_use"] if found else 0

    return run, lambda: jax.block_until_ready(state), peak


def measured(made: Made, steps: int, rounds: int) -> dict[str, Any]:
    """First call, steady steps, peak memory, losses."""
    run, wait, peak = made
    begun = time.perf_counter()
    first = float(run(0))
    cold = time.perf_counter() - begun
    losses = [first, *[float(run(i)) for i in range(1, 8)]]
    wait()
    times = []
    for turn in range(rounds):
        begun = time.perf_counter()
        for i in range(steps):
            last = run(turn * steps + i)
        wait()
        times.append((time.perf_counter() - begun) * 1e3 / steps)
    return {"first": cold, "step": statistics.median(times), "peak": peak(),
            "losses": losses, "last": float(last)}  # fmt: skip


def curve(made: Made, steps: int) -> dict[str, Any]:
    """Losses of so many steps, one after the other."""
    run, _, _ = made
    return {"losses": [float(run(i)) for i in range(steps)]}


def show_curves(names: Sequence[str], asked: argparse.Namespace) -> None:
    """Losses of each system at some steps, and how far the mean of the last tenth is apart."""
    for name in names:
        curves = {system: _made(name, system, asked)[0] for system in asked.systems.split(",")}
        for system, found in curves.items():
            losses = found.get("losses", []) if found else []
            if not losses:
                print(f"| {name} | {system} | FAILED |", flush=True)
                continue
            shown = losses[:: max(1, len(losses) // 8)]
            last = statistics.mean(losses[-max(1, len(losses) // 10) :])
            cells = " ".join([f"{loss:.3f}" for loss in shown])
            print(f"| {name} | {system} | {cells} | last tenth {last:.4f} |", flush=True)


def by_branches(made: Made, branches: str, steps: int, device: str) -> str:
    """Milliseconds of a step whose CUDA graphs have so many branches; two rounds, taking turns."""
    from fulgurite.runtime.cuda import executor
    from fulgurite.runtime.device import get_device

    run, wait, _ = made
    found: dict[str, list[float]] = {}
    for each in branches.split(",") * 2:
        executor.BRANCHES = int(each)
        for program in list(get_device(device).programs):  # type: ignore[attr-defined]
            program.branch_anew()
        for i in range(2 * BATCHES):
            run(i)
        wait()
        begun = time.perf_counter()
        for i in range(steps):
            run(i)
        wait()
        found.setdefault(each, []).append((time.perf_counter() - begun) * 1e3 / steps)
    return ", ".join([f"{each}: {min(ms):.2f}" for each, ms in found.items()])


def use_table(fields: str) -> None:
    """Choose kernels for GPUs by other numbers from now on; nothing is kept on disk."""
    from fulgurite.codegen.cuda import tiling

    pairs = [field.split("=") for field in fields.split(",")]
    given = {key: ast.literal_eval(value) for key, value in pairs}
    tiling.HOPPER = replace(tiling.HOPPER, **given)
    os.environ["FULGURITE_DISK_CACHE"] = "0"
    fg.config(disk_cache=False).__enter__()


def one(asked: argparse.Namespace) -> None:
    """One system, in this process."""
    sizes = TINY if asked.tiny else SIZES
    name, system = asked.one.split(":")
    if asked.table:
        use_table(asked.table)
    if asked.rate:
        RATES[name] = asked.rate
    WARM_UP.append(asked.warm_up)
    if asked.warm_up and system == "jax":
        raise SystemExit("its rate is compiled into the step: no warm-up")
    size, device = sizes[name], asked.device
    others = {"ours": ours, "jax": jax_step}
    if system in others:
        made = others[system](name, size, device)
    else:
        made = torch_step(name, size, device, system)
    if asked.curve:
        print(json.dumps(curve(made, asked.curve)))
        return
    found = measured(made, asked.steps, asked.rounds)
    if asked.profile and system == "ours":
        with fg.profile() as profile:
            made[0](0)
            made[1]()
        found["profile"] = f"{profile.table('kernel', 12)}\n{profile.table('line', 24)}"
    if asked.branches and system == "ours":
        found["branches"] = by_branches(made, asked.branches, asked.steps, device)
    print(json.dumps(found))


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.steps")
    parser.add_argument("names", nargs="*", help="resnet50, gpt2 (both)")
    parser.add_argument("--systems", default="ours,torch,compile,jax")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of one system")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--profile", action="store_true", help="our slowest kernels and lines")
    parser.add_argument("--branches", default="", help="branches of our graphs to try, as 1,4,8")
    parser.add_argument("--curve", type=int, default=0, help="losses of so many steps")
    parser.add_argument("--rate", type=float, default=0, help="learning rate of all (the model's)")
    parser.add_argument("--warm-up", type=int, default=0, help="steps in which the rate rises")
    parser.add_argument("--table", default="", help="fields of GpuTable for ours, as a=1,b=True")
    parser.add_argument("--one", default="", help="model:system, in this process")
    asked = parser.parse_args()
    if asked.one:
        one(asked)
        return
    if asked.curve:
        show_curves(asked.names or list(SIZES), asked)
        return
    print("| model | system | first call s | step ms | peak GiB | losses of 8 steps |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in asked.names or list(SIZES):
        for system in asked.systems.split(","):
            shown, profile = row(name, system, asked)
            print(f"| {name} | {system} | {shown} |{profile}", flush=True)


def row(name: str, system: str, asked: argparse.Namespace) -> tuple[str, str]:
    """What one system did, or how it failed, and where its time went."""
    made, problem = _made(name, system, asked)
    if made is None:
        return problem, ""
    losses = " ".join([f"{loss:.3f}" for loss in made["losses"]])
    shown = f"{made['first']:.1f} | {made['step']:.2f} | {made['peak'] / 2**30:.2f} | {losses}"
    more = f"\n{made['profile']}" if "profile" in made else ""
    return shown, f"{more}\nstep ms by branches: {made['branches']}" if "branches" in made else more


def _made(
    name: str, system: str, asked: argparse.Namespace
) -> tuple[dict[str, Any] | None, str]:  # fmt: skip
    """What a process of its own found, or how it failed."""
    command = [sys.executable, "-m", "bench.steps", "--one", f"{name}:{system}"]
    command += ["--device", asked.device, "--steps", str(asked.steps)]
    command += ["--rounds", str(asked.rounds), *(["--tiny"] if asked.tiny else [])]
    command += ["--profile"] if asked.profile else []
    command += ["--branches", asked.branches] if asked.branches else []
    command += ["--curve", str(asked.curve)] if asked.curve else []
    command += ["--rate", str(asked.rate)] if asked.rate else []
    command += ["--warm-up", str(asked.warm_up)] if asked.warm_up else []
    command += ["--table", asked.table] if asked.table else []
    place = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=asked.limit, cwd=ROOT,
            env=os.environ | place,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"more than {asked.limit:.0f} s | - | - | -"
    if found.returncode:
        return None, f"FAILED: {found.stderr.strip()[-900:]!r} | - | - | -"
    return json.loads(found.stdout.strip().splitlines()[-1]), ""


if __name__ == "__main__":
    main()
