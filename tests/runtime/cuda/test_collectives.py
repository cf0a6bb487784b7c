"""Collectives on GPUs, over a fake NCCL: two ranks are threads, each with a GPU of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime.cuda import collectives, nccl
from fulgurite.runtime.cuda.nccl import Nccl, NcclError
from fulgurite.runtime.device import get_device
from tests.ranks import on_ranks
from tests.runtime.cuda import fake, nccl_on_gpu

X = np.arange(48, dtype=np.float32).reshape(4, 12) + 1


@pytest.fixture(autouse=True)
def quiet(library: ctypes.CDLL) -> Iterator[None]:
    library.fake_fail(b"", 0, 0)
    library.nccl_fake_async(0)
    with fg.config(disk_cache=False):
        yield
    library.fake_fail(b"", 0, 0)
    library.nccl_fake_async(0)


def on_gpus(function: Callable[[int], Any]) -> list[Any]:
    """What a function gives on two ranks, whose device is a GPU each."""

    def run(rank: int) -> Any:
        with fg.config(device=f"cuda:{rank}", disk_cache=False):
            return function(rank)

    return on_ranks(2, run)


CASES: list[tuple[str, Callable[[Any], Any], Any, Any, Any]] = [
    ("ncclAllReduce", lambda a: fg.all_reduce(a, "data"), {"data": 0}, None, X[:2] + X[2:]),
    ("ncclAllReduce", lambda a: fg.all_reduce(a, "data", "mul"), {"data": 0}, None, X[:2] * X[2:]),
    ("ncclAllReduce", lambda a: fg.all_reduce(a.astype("int32"), "data", "max"), {"data": 0}, None,
     X[2:]),
    ("", lambda a: fg.all_reduce(a, "data", "max"), {"data": 0}, None, X[2:]),
    ("ncclAllGather", lambda a: fg.all_gather(a, "data"), {"data": 0}, None, X),
    ("ncclAllGather", lambda a: fg.all_gather(a, "data", 1), {"data": 1}, None, X),
    ("ncclReduceScatter", lambda a: fg.reduce_scatter(a, "data"), None, {"data": 0}, 2 * X),
    ("ncclReduceScatter", lambda a: fg.reduce_scatter(a, "data", 1), None, {"data": 1}, 2 * X),
    ("ncclSend", lambda a: fg.all_to_all(a, "data", 1, 0), {"data": 0}, {"data": 1}, X),
    ("ncclSend", lambda a: fg.all_to_all(a, "data", 0, 1), {"data": 1}, {"data": 0}, X),
    ("ncclSend", lambda a: fg.send_recv(a, "data", [(0, 1)]), {"data": 0}, {"data": 0},
     np.concatenate([0 * X[:2], X[:2]])),
    ("ncclSend", lambda a: fg.send_recv(a, "data", [(0, 1), (1, 0)]), {"data": 0}, {"data": 0},
     np.concatenate([X[2:], X[:2]])),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "split", "out", "wanted"), CASES)
def test_a_collective_is_what_numpy_says(
    library: ctypes.CDLL, name: str, function: Any, split: Any, out: Any, wanted: Any
) -> None:
    before = library.nccl_fake_count(name.encode())

    def run(rank: int) -> Any:
        mesh = fg.Mesh({"data": 2})
        twice = fg.shard_map(lambda a: function(a * 2), mesh, [split], out)
        return twice(fg.Tensor(X / 2)).numpy()

    for found in on_gpus(run):
        np.testing.assert_array_equal(found, wanted)
    assert not name or library.nccl_fake_count(name.encode()) > before


def trained(mesh: Any, split: Any, steps: int) -> list[Any]:
    """Weights after some steps; each makes new ones, as threads cannot both write over tensors."""
    rng = np.random.default_rng(0)
    shapes = [(12, 8), (8, 4)]
    weights = [fg.Tensor(rng.standard_normal(s).astype(np.float32) / 3) for s in shapes]

    def loss(weights: Any, x: Any) -> Any:
        return ((fg.tanh(x @ weights[0]) @ weights[1]) ** 2).mean()

    for step in range(steps):
        x = fg.Tensor(np.random.default_rng(step).standard_normal((4, 12)).astype(np.float32))
        if mesh is not None:
            x = fg.shard(x, mesh, {"data": 0})
            weights = [fg.shard(weight, mesh, split) for weight in weights]
        grads = fg.grad(loss)(weights, x)
        weights = [w - 0.05 * g for w, g in zip(weights, grads, strict=True)]
        fg.realize(*weights)
    return [weight.numpy() for weight in weights]


@pytest.mark.parametrize(
    ("split", "calls"),
    [(None, {"ncclAllReduce": 2}), ({"data": 0}, {"ncclAllGather": 2, "ncclReduceScatter": 2})],
    ids=["whole weights", "weights in shards"],
)
def test_training_on_two_gpus_is_training_on_one(
    library: ctypes.CDLL, split: Any, calls: dict[str, int]
) -> None:
    """A plan calls NCCL when it runs first and when it is captured; then its graph does."""
    with fg.config(device="reference"):
        wanted = trained(None, None, 6)
    graphs = library.fake_count(b"graphs")
    before = {name: library.nccl_fake_count(name.encode()) for name in calls}
    for weights in on_gpus(lambda rank: trained(fg.Mesh({"data": 2}), split, 6)):
        for found, one in zip(weights, wanted, strict=True):
            np.testing.assert_allclose(found, one, rtol=2e-5, atol=1e-6)
    assert library.fake_count(b"graphs") - graphs >= 2 * 3
    for name, count in calls.items():
        made = library.nccl_fake_count(name.encode()) - before[name]
        assert 2 * count <= made < 2 * count * 6, name


def test_what_is_run_on_a_gpu_runs_here(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checks of `nccl_on_gpu.py` with one rank: each collective is a node of a graph."""
    monkeypatch.setenv("FULGURITE_NCCL", "1")
    with fg.config(device="cuda", disk_cache=False):
        failed = nccl_on_gpu.checked(1, (nccl_on_gpu.collectives, nccl_on_gpu.step))
    lines = capsys.readouterr().out.splitlines()
    assert not failed and len(lines) == 7, lines
    assert all([line.startswith("ok: ") for line in lines[1:]]), lines


def test_no_library_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_installed", list)
    with pytest.raises(NcclError, match=r"(?s)no NCCL.*nothing.*-cu12.*FULGURITE_NCCL=0"):
        Nccl("/nothing.so")


def test_an_old_library_is_refused(library: ctypes.CDLL) -> None:
    library.nccl_fake_version(21003)
    try:
        with pytest.raises(NcclError, match=r"(?s)version 2\.10\.3.*2\.19 or newer"):
            Nccl(fake.library())
    finally:
        library.nccl_fake_version(22803)


def test_two_ranks_on_one_gpu_are_refused_in_the_librarys_words(library: ctypes.CDLL) -> None:
    def run(rank: int) -> Any:
        mesh = fg.Mesh({"data": 2})
        with fg.config(device="cuda:0", disk_cache=False), pytest.raises(NcclError) as problem:
            fg.shard_map(lambda a: fg.all_reduce(a + 7, "data"), mesh, [{"data": 0}], None)(
                fg.Tensor(X)
            ).numpy()
        return str(problem.value)

    device: Any = get_device("cuda:0")
    device.__dict__.pop("links", None)
    for text in on_ranks(2, run):
        assert "invalid usage" in text and "Duplicate GPU detected" in text
    device.__dict__.pop("links", None)


def test_a_failure_of_another_rank_is_raised_by_who_waits(library: ctypes.CDLL) -> None:
    with fg.config(device="cuda:0"):
        device: Any = get_device("cuda:0")
        links = collectives.Links(device)
        device.enter()
        comm = links.of([0])
        assert comm.place == 0
        library.nccl_fake_async(6)
        with pytest.raises(NcclError, match=r"group of ranks \[0\].*remote process exited"):
            comm.check()
        device.stream.wait_for_others = None
    assert library.nccl_fake_count(b"ncclCommAbort") > 0


def test_a_broadcast_gives_all_ranks_the_bytes_of_one() -> None:
    def run(rank: int) -> Any:
        device: Any = get_device(f"cuda:{rank}")
        device.enter()
        comm = collectives.Links(device).of([0, 1])
        given, made = device.from_host(X + rank), device.from_host(np.zeros_like(X))
        comm.broadcast(given.address, made.address, X.nbytes, 1, device.stream)
        found = device.to_host(made, X.shape, fg.float32)
        device.stream.wait_for_others = None
        return found

    for found in on_gpus(run):
        np.testing.assert_array_equal(found, X + 1)


def test_without_nccl_values_go_through_the_host(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FULGURITE_NCCL", "0")
    calls = library.nccl_fake_count(b"ncclAllReduce")

    def run(rank: int) -> Any:
        mesh = fg.Mesh({"data": 2})
        total = fg.shard_map(lambda a: fg.all_reduce(a * 3, "data"), mesh, [{"data": 0}], None)
        return total(fg.Tensor(X)).numpy()

    for found in on_gpus(run):
        np.testing.assert_array_equal(found, 3 * (X[:2] + X[2:]))
    assert library.nccl_fake_count(b"ncclAllReduce") == calls
