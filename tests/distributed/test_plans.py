"""Every plan on 2, 4 and 8 ranks: weights after twenty steps are those of one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.distributed import plans
from fulgurite.distributed.pipeline import order_1f1b
from fulgurite.errors import ArgumentError
from fulgurite.runtime.realize import value_node
from tests.distributed.launching import JOBS, launch, needs_mpi
from tests.ranks import on_ranks

pytestmark = pytest.mark.device("none")
WAYS = ("forward", "backward")
LINE = re.compile(r"^(gpt|res) (\S+) .*: (\S+) ([0-9a-f]{12}) ", re.M)


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "net", "names"),
    [
        (2, "gpt", "data zero1 zero2 zero3 tensor sequence"),
        (2, "res", "data zero1 zero3"),
        (3, "gpt", "data zero1"),  # which do not divide a batch of 8
        (4, "gpt", "zero3 sequence data+tensor tensor+zero3"),
        (4, "res", "data zero2"),
        (8, "gpt", "zero3 tensor data+tensor"),
        (8, "res", "data zero3"),
    ],
)
def test_a_plan_trains_as_one_process_does(ranks: int, net: str, names: str) -> None:
    ended = launch("plans.py", net, *names.split(), ranks=ranks, timeout=120, limit=400)
    found = LINE.findall(ended.text)
    assert ended.code == 0 and [name for _, name, _, _ in found] == names.split(), ended.text


@needs_mpi
@pytest.mark.slow
def test_two_launches_give_the_same_bits() -> None:
    texts = [launch("plans.py", "res", "data", ranks=2, timeout=60).text for _ in range(2)]
    digests = [LINE.findall(text)[0][3] for text in texts]
    assert digests[0] == digests[1]


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_pipeline_trains_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    path = str(tmp_path / "weights.npz")
    for count in (1, ranks):
        job = launch(JOBS / "pipeline.py", path, str(ranks), ranks=count, timeout=60, limit=200)
        assert job.code == 0, job.text
    assert f"pipeline of {ranks}" in job.text


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("micro", [1, 3, 8])
def test_one_forward_one_backward_in_turn(stages: int, micro: int) -> None:
    for stage in range(stages):
        order = order_1f1b(stages, micro, stage)
        assert sorted(order) == sorted(
            [(w, m) for w in ("forward", "backward") for m in range(micro)]
        )
        held = most = 0
        for what, number in order:
            held += 1 if what == "forward" else -1
            most = max(most, held)
            assert what == "forward" or ("forward", number) in order[: order.index((what, number))]
        assert most <= stages - stage  # of micro-batches whose backward pass is still to come


def test_plans_say_how_parameters_are_kept() -> None:
    mesh = fg.Mesh({"data": 2, "model": 4})
    both = plans.tensor_parallel(mesh) | plans.zero(mesh, stage=3)
    assert both.kept("blocks.0.fc.weight", (64, 16)).split == {"model": 0, "data": 1}
    assert both.kept("blocks.0.proj.weight", (16, 64)).split == {"model": 1, "data": 0}
    assert both.kept("norm.weight", (16,)) == plans.Kept({"data": 0}, weak=True, gradient=True)
    assert both.kept("odd", (3, 5)) == plans.Kept({})
    first = plans.zero(mesh, stage=1)
    assert first.kept("norm.weight", (16,)) == plans.Kept({}, state={"data": 0})


@pytest.mark.parametrize(("stage", "rows"), [(1, 4), (2, 2), (3, 2)])
def test_zero_keeps_gradients_whole_or_in_shards(stage: int, rows: int) -> None:
    """Of two batches: what a rank holds between them."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    batches = np.random.default_rng(0).standard_normal((2, 6, 3)).astype(np.float32)

    def held(rank: int) -> tuple[Any, Any]:
        mesh = fg.Mesh({"data": 2})
        layer = fg.nn.Linear(3, 4, bias=False)
        layer.weight = fg.nn.Parameter(weights)
        layer.shard(plans.zero(mesh, stage=stage))
        for batch in batches:
            (layer(fg.shard(batch, mesh, {"data": 0})) ** 2).sum().backward()
            grad: Any = layer.weight.grad
            node: Any = value_node(grad.realize().entry.node)
        memory = node.src[0] if node.src else node
        return memory.shape, grad.numpy()

    with fg.config(device="reference"):
        wanted = sum([2 * (batch @ weights.T).T @ batch for batch in batches])
        for shape, found in on_ranks(2, held):
            assert shape == (rows, 3)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_plans_that_make_no_sense_are_errors() -> None:
    mesh = fg.Mesh({"data": 2})
    with pytest.raises(ArgumentError, match="no stage 4"):
        plans.zero(mesh, stage=4)
    with pytest.raises(ArgumentError, match="use one mesh"):
        plans.zero(mesh) | plans.zero(fg.Mesh({"data": 4}))
    with pytest.raises(ArgumentError, match="no axis 'model'"):
        plans.tensor_parallel(mesh)


def test_in_one_process_a_plan_changes_nothing() -> None:
    layer = fg.nn.Linear(4, 4)
    before = layer.weight.numpy()
    layer.shard(plans.zero(fg.Mesh({"data": 2}), stage=3))
    assert (layer.weight.numpy() == before).all()


@needs_mpi
@pytest.mark.slow
def test_three_hundred_random_graphs_are_what_one_process_computes() -> None:
    ended = launch("fuzz.py", "0", "300", ranks=4, timeout=60, limit=300)
    assert ended.code == 0 and "300 graphs on 4 ranks, 0 wrong" in ended.text, ended.text
