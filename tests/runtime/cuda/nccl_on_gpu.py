"""NCCL on a GPU: `python tests/runtime/cuda/nccl_on_gpu.py`, from the repository's root.

Two ranks try to share the GPU first: NCCL allows it, or says why not. Then one rank runs every
collective, alone and as a node of a CUDA graph, and a training step of which they are a part, and
times them. Ranks are processes of their own. A line a check, "ok: ..." or "FAILED: ..."; the exit
code says whether all of one rank's were ok.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

import fulgurite as fg  # noqa: E402 (the path comes first)
from fulgurite.core import ranks  # noqa: E402
from fulgurite.core.ops import collective as ops  # noqa: E402
from fulgurite.runtime.cuda.collectives import Exchange  # noqa: E402
from fulgurite.runtime.cuda.nccl import NcclError  # noqa: E402
from fulgurite.runtime.device import get_device  # noqa: E402
from fulgurite.tensor import wrap  # noqa: E402

LIMIT_SECONDS = 60
TURNS = 4


class FileWorld:
    """Ranks that tell each other bytes through files of a folder."""

    def __init__(self, rank: int, size: int, folder: str) -> None:
        self.rank, self.size, self.folder = rank, size, Path(folder)
        self.number = 0

    def gather(self, group: Sequence[int], part: Any, label: str) -> list[Any]:
        self.number += 1
        mine = self.folder / f"{self.number}-{self.rank}"
        mine.with_suffix(".new").write_bytes(part.tobytes())
        mine.with_suffix(".new").rename(mine)
        found = []
        for rank in group:
            path = self.folder / f"{self.number}-{rank}"
            while not path.exists():
                time.sleep(0.01)
            found.append(np.frombuffer(path.read_bytes(), part.dtype).reshape(part.shape))
        return found

    def exchange(self, group: Sequence[int], parts: Sequence[Any], label: str) -> list[Any]:
        rows = self.gather(group, np.stack(parts), label)
        return [row[list(group).index(self.rank)] for row in rows]

    def route(self, to: Any, sources: Any, array: Any, label: str) -> list[Any]:
        raise NotImplementedError

    def agree(self, digest: str, where: str) -> None:
        pass


def values(mesh: Any, x: Any, known: Any = None) -> dict[str, tuple[Any, Any]]:
    """Every collective of a value: what it gives as a graph, and by NumPy on equal ranks."""
    n = ranks.mesh_size(mesh)
    node = x.entry.node
    axes = ("data",)
    array = x.numpy() if known is None else known
    ring = tuple((i, (i + 1) % n) for i in range(n))
    half = array.shape[0] // n
    mine = ranks.world().rank
    return {
        "all_reduce": (ops.ALL_REDUCE(node, arg=(mesh, axes, "add")), n * array),
        "all_gather": (ops.ALL_GATHER(node, arg=(mesh, axes, 1)), np.concatenate([array] * n, 1)),
        "reduce_scatter": (ops.REDUCE_SCATTER(node, arg=(mesh, axes, 0)),
                           n * array[mine * half : (mine + 1) * half]),
        "all_to_all": (ops.ALL_TO_ALL(node, arg=(mesh, axes, 0, 1)),
                       np.concatenate([array[mine * half : (mine + 1) * half]] * n, 1)),
        "send_recv": (ops.SEND_RECV(node, arg=(mesh, axes, ring)), array),
    }  # fmt: skip


def captured(device: Any) -> Counter[str]:
    """Collectives that are nodes of CUDA graphs by now, by name."""
    found: Counter[str] = Counter()
    for program in list(device.programs):
        for frame in program._idle:
            for one in [frame.main, *frame.repeated.values()]:
                parts = [part for part in one.parts if part is not None and part.graph is not None]
                launches = [launch for part in parts for launch in part.segment.launches]
                found.update([n.node.op.name for n in launches if isinstance(n, Exchange)])
    return found


def collectives(size: int) -> None:
    """All of them, in plans of four launches that run again: one by one first, then as a graph."""
    mesh = (("data", size),)
    device: Any = get_device("cuda")
    print("NCCL", device.links.nccl.text, "on", device.properties.name, flush=True)
    for name in values(mesh, fg.Tensor(np.zeros((4, 4), np.float32))):
        before = captured(device)[name]
        for turn in range(TURNS):
            array = np.random.default_rng(turn).standard_normal((8, 64)).astype(np.float32)
            first = (fg.Tensor(array / 4).realize() * 2).contiguous()
            second = (first + first).contiguous()
            made, wanted = values(mesh, second, array)[name]
            found = ((wrap(made) * 2).contiguous() + 1).numpy()
            np.testing.assert_allclose(found, 2 * wanted + 1, rtol=1e-6, err_msg=f"{name} {turn}")
        nodes = captured(device)[name] - before
        assert nodes > 0, f"{name} is a node of no CUDA graph"
        print(f"ok: {name} of {size} rank(s), {TURNS} runs right, {nodes} node(s) in CUDA graphs",
              flush=True)  # fmt: skip


def step(size: int) -> None:
    """Training of which sums are a part."""
    mesh = (("data", size),)
    rng = np.random.default_rng(0)
    first = rng.standard_normal((64, 32)).astype(np.float32) / 8
    x = rng.standard_normal((128, 64)).astype(np.float32)

    def trained(sums: bool) -> Any:
        w = fg.Tensor(first)
        for _ in range(6):
            grad = fg.grad(lambda w: (fg.tanh(fg.Tensor(x) @ w) ** 2).mean())(w)
            if sums:
                made = ops.ALL_REDUCE(grad.entry.node, arg=(mesh, ("data",), "add"))
                grad = wrap(made) / size
            w = (w - 0.1 * grad).realize()
        return w.numpy()

    np.testing.assert_allclose(trained(True), trained(False), rtol=1e-5, atol=1e-6)
    nodes = captured(get_device("cuda"))["all_reduce"]
    print(f"ok: six steps with sums on {size} rank(s) are six without, {nodes} sums in CUDA graphs",
          flush=True)  # fmt: skip


def times(size: int) -> None:
    """Milliseconds of a plan of four sums of 64 MiB, and of the same plan without them."""
    mesh = (("data", size),)
    device: Any = get_device("cuda")
    x = fg.Tensor(np.ones((4096, 4096), np.float32)).realize()
    for name in ("without", "with"):
        spent = []
        for _ in range(8):
            y = x
            for _ in range(4):
                y = y * 0.5
                if name == "with":
                    y = wrap(ops.ALL_REDUCE(y.entry.node, arg=(mesh, ("data",), "add")))
                y = y.contiguous()
            device.synchronize()
            start = time.perf_counter()
            y.realize()
            device.synchronize()
            spent.append(1e3 * (time.perf_counter() - start))
        print(f"ok: a plan {name} sums takes {min(spent):.2f} ms on {size} rank(s)", flush=True)


def checked(size: int, parts: Sequence[Callable[[int], None]] = ()) -> int:
    """Run checks; how many failed."""
    failed = 0
    for part in parts or (collectives, step, times):
        try:
            part(size)
        except NcclError as problem:
            said = str(problem).partition("\n")[0]
            print(f"FAILED: {part.__name__} on {size} rank(s): NCCL refuses: {said}", flush=True)
            return failed + 1  # the others would say the same
        except Exception:
            failed += 1
            print(f"FAILED: {part.__name__} on {size} rank(s):", flush=True)
            traceback.print_exc(limit=-2, file=sys.stdout)
    return failed


def start(size: int, folder: str) -> list[subprocess.Popen[str]]:
    """The processes of a job."""
    environment = os.environ | {
        "FULGURITE_DEVICE": "cuda", "FULGURITE_NCCL": "1", "PYTHONPATH": str(ROOT),
        "FULGURITE_CACHE_DIR": f"{folder}/cache",
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, __file__, "rank", str(rank), str(size), folder],
            cwd=ROOT,
            text=True,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(size)
    ]


def main() -> int:
    """A rank, or all parts."""
    if sys.argv[1:2] == ["rank"]:
        rank, size, folder = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
        if size > 1:
            ranks.enter_world(FileWorld(rank, size, folder))
        return min(1, checked(size))
    code = 1
    for size in (2, 1):  # what matters most is said last
        with tempfile.TemporaryDirectory() as folder:
            for rank, job in enumerate(start(size, folder)):
                try:
                    text, _ = job.communicate(timeout=LIMIT_SECONDS)
                except subprocess.TimeoutExpired:
                    job.kill()
                    text = f"{job.communicate()[0]}FAILED: no end within {LIMIT_SECONDS} s"
                code = int(job.returncode != 0)
                print(f"--- rank {rank} of {size}, exit code {job.returncode}:\n{text[-1500:]}")
    return code


if __name__ == "__main__":
    sys.exit(main())
