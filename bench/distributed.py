"""Data-parallel training on 1 and 2 ranks, one core each, beside torch's DDP over gloo.

    python bench/distributed.py            figures as a table
    python bench/distributed.py --save     and into bench/results/distributed.json

Every rank has the same batch size, so with free communication the time of a step stays what it is
with one rank. Jobs of both libraries run in turn, rounds of them; the table has medians. Peers are
found as the other benchmarks find them: `PEERS_PYTHON` names an interpreter that has torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
WIDTH, HEADS, BLOCKS, LENGTH, WORDS, BATCH = 256, 4, 4, 64, 128, 8
Sizes = tuple[int, int, int, int, int]  # blocks, width, heads, length, words


def data_parallel_steps(sizes: Sizes, batch: int, steps: int) -> dict[str, list[float]]:
    """One rank of a job that trains a GPT: seconds of each step, and of the processor."""
    import numpy as np

    import fulgurite as fg
    from fulgurite import nn, optim
    from fulgurite.distributed import plans
    from fulgurite.distributed.mesh import job
    from fulgurite.distributed.models import GPT

    blocks, width, heads, length, words = sizes
    mesh = fg.Mesh({"data": job()[1]})
    fg.random.seed(0)
    model: nn.Module = GPT(words, width, heads, blocks, length)
    model.shard(plans.data_parallel(mesh))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    seconds, busy = [], []
    for _ in range(steps):
        rows = rng.integers(0, words, (batch * mesh.size, length + 1))
        start, worked = time.perf_counter(), time.process_time()
        x, y = (fg.shard(part, mesh, {"data": 0}) for part in (rows[:, :-1], rows[:, 1:]))
        loss = fg.cross_entropy(model(x).transpose(1, 2), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - worked)
    return {"seconds": seconds, "busy": busy}


def launch(ranks: int, script: list[str]) -> None:
    """Run a script on ranks of one thread each."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FULGURITE_THREADS": "1",
                   "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, "-m", "fulgurite", "launch", "-n", str(ranks), *script]
    subprocess.run(command, env=environment, check=True)


def ours(steps: int, out: str) -> None:
    """One rank of our job."""
    from fulgurite.core import ranks
    from fulgurite.distributed.mesh import job

    rank, _ = job()
    os.sched_setaffinity(0, {rank % os.cpu_count()})  # type: ignore[operator]
    about: dict[str, Any] = data_parallel_steps((BLOCKS, WIDTH, HEADS, LENGTH, WORDS), BATCH, steps)
    world: Any = ranks.world()
    trace = [
        {"begun": b.begun, "done": b.done, "waited": b.waited, "bytes": b.nbytes}
        for b in getattr(world, "trace", [])
    ]
    about |= {"trace": trace[-32:], "bytes": getattr(world, "bytes_sent", 0)}
    if rank == 0:
        Path(out).write_text(json.dumps(about))


def torchs(steps: int, out: str) -> None:
    """One rank of torch's job."""
    import torch
    import torch.distributed as dist
    from torch import nn

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, {rank % os.cpu_count()})  # type: ignore[operator]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if size > 1:
        dist.init_process_group("gloo", rank=rank, world_size=size)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.out = nn.Linear(WIDTH, WIDTH)
            self.fc, self.proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            b, t, d = x.shape
            y = self.norm1(x)
            q, k, v = [f(y).reshape(b, t, HEADS, d // HEADS).transpose(1, 2)
                       for f in (self.q, self.k, self.v)]  # fmt: skip
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(b, t, d))
            return x + self.proj(nn.functional.gelu(self.fc(self.norm2(x))))

    class GPT(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.drop = nn.Dropout(0.1)
            self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, x: Any) -> Any:
            h = self.drop(self.words(x) + self.places(torch.arange(x.shape[1])))
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h))

    model: Any = GPT()
    if size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds, busy = [], []
    for _ in range(steps):
        rows = torch.randint(0, WORDS, (BATCH, LENGTH + 1))
        start, worked = time.perf_counter(), time.process_time()
        found = model(rows[:, :-1]).transpose(1, 2)
        loss = nn.functional.cross_entropy(found, rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - worked)
    if rank == 0:
        Path(out).write_text(json.dumps({"seconds": seconds, "busy": busy}))
    if size > 1:
        dist.destroy_process_group()


def measure(library: str, ranks: int, steps: int, python: str) -> dict[str, Any]:
    """One job; the figures of its first rank."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        script = [str(HERE), "--rank", library, "--steps", str(steps), "--out", out]
        if library == "ours":
            launch(ranks, script)
        else:
            where = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
                     "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo",
                     "OMP_NUM_THREADS": "1"}  # fmt: skip
            jobs = [
                subprocess.Popen([python, *script], env=where | {"RANK": str(r)})
                for r in range(ranks)
            ]
            if any([process.wait() for process in jobs]):
                raise SystemExit("torch's job failed")
        found: dict[str, Any] = json.loads(Path(out).read_text())
        return found


def overlapped(about: dict[str, Any]) -> float:
    """The share of the time that buckets travelled in which nobody waited for them."""
    under_way = sum([b["done"] - b["begun"] for b in about.get("trace", [])])
    waited = sum([b["waited"] for b in about.get("trace", [])])
    return 1 - waited / under_way if under_way else 0.0


def main() -> None:
    """Measure in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.rank:
        (ours if options.rank == "ours" else torchs)(options.steps, options.out)
        return
    python = os.environ.get("PEERS_PYTHON", "")
    libraries = ["ours", *(["torch"] if python else [])]
    found: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}  # processor time: what a busy machine does not change
    share = 0.0
    for _ in range(options.rounds):
        for library in libraries:
            for ranks in (1, 2):
                about = measure(library, ranks, options.steps, python)
                steady = about["seconds"][options.steps // 2 :]
                found.setdefault(f"{library} {ranks}", []).append(statistics.median(steady))
                worked = about["busy"][options.steps // 2 :]
                busy.setdefault(f"{library} {ranks}", []).append(statistics.median(worked))
                if library == "ours" and ranks == 2:
                    share = overlapped(about)
    for library in libraries:
        for what, times in (("time", found), ("processor time", busy)):
            one, two = min(times[f"{library} 1"]), min(times[f"{library} 2"])
            text = f"1 rank {1e3 * one:7.1f} ms, 2 ranks {1e3 * two:7.1f} ms: {two / one:.2f}"
            print(f"{library:6} {what:15} {text}")
    print(f"share of communication that overlapped with compute: {share:.0%}")
    if options.save:
        path = HERE.parent / "results" / "distributed.json"
        path.write_text(
            json.dumps({"seconds": found, "busy": busy, "overlapped": share}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
