"""Tests of fulgurite/torch/home.py: graphs of tensors on a GPU, over a fake libcuda.

The fake's memory is the host's, so that torch's tensors of the host stand for tensors of a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import fulgurite as fg
from fulgurite.runtime.cuda.device import CudaDevice
from fulgurite.runtime.cuda.executor import CudaProgram
from fulgurite.torch import graph, home, report
from fulgurite.torch.home import Home, home_of, place_of, stand_in
from fulgurite.torch.lower import Lowering
from fulgurite.torch.segment import Segment
from fulgurite.torch.table import Refused
from tests.runtime.cuda.conftest import library  # noqa: F401 (a fixture)


@pytest.fixture
def on_gpu(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # noqa: F811
    """torch's tensors of the host are taken for tensors of the fake GPU, in stream 0."""
    monkeypatch.setattr(graph, "home_of", lambda _: Home(torch.device("cpu"), "cuda"))
    monkeypatch.setattr(home, "current_stream", lambda _: 0)
    launch = CudaProgram.launch_into

    def waited(program: CudaProgram, addresses: Any, threads: int = 0) -> None:
        launch(program, addresses, threads)
        program.device.stream.synchronize()  # torch frees memory of the host at once

    monkeypatch.setattr(CudaProgram, "launch_into", waited)
    with fg.config(disk_cache=False):
        yield library


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="fulgurite")


def test_a_step_of_training_reads_and_writes_torchs_memory(on_gpu: ctypes.CDLL) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
    call, x = compiled(model), torch.randn(4, 5)
    before = on_gpu.fake_count(b"launches") + on_gpu.fake_count(b"graphs")
    for _ in range(4):
        model.zero_grad()
        F.cross_entropy(call(x), torch.tensor([0, 2, 1, 1])).backward()
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        F.cross_entropy(model(x), torch.tensor([0, 2, 1, 1])).backward()
        for ours, p in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(ours, p.grad, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad  # in place: the next call must see it
    assert on_gpu.fake_count(b"launches") + on_gpu.fake_count(b"graphs") > before
    assert report().operators > 0


def test_layouts_and_random_numbers_work_on_a_gpu(on_gpu: ctypes.CDLL) -> None:
    x = torch.randn(6, 4).t()
    call = compiled(lambda x: F.dropout(torch.softmax(x, 0), 0.5, training=True) * 2.0)
    call(x)
    torch.manual_seed(1)
    first = call(x)
    torch.manual_seed(1)
    assert torch.equal(call(x), first) and 0 < int((first == 0).sum()) < 24


def test_values_that_a_plan_only_hands_on_are_copied(on_gpu: ctypes.CDLL) -> None:
    one, two = compiled(lambda x: (torch.ones(3), x * 1.0))(torch.arange(3.0))
    assert one.tolist() == [1, 1, 1] and two.tolist() == [0, 1, 2]


@pytest.fixture
def order(on_gpu: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in its order: waits between the streams, and what torch does in its own."""
    found: list[str] = []

    def note(where: type, name: str) -> None:
        known = getattr(where, name)

        def noted(*given: Any, **named: Any) -> Any:
            found.append(name)
            return known(*given, **named)

        monkeypatch.setattr(where, name, noted)

    for name in ("follow", "lead"):
        note(CudaDevice, name)
    for name in ("random_", "copy_", "clone"):
        note(torch.Tensor, name)
    return found


def test_our_stream_follows_torchs_and_leads_it(on_gpu: ctypes.CDLL, order: list[str]) -> None:
    call, x = compiled(lambda x: x + 1), torch.zeros(3)
    call(x)
    for _ in range(2):
        order.clear()
        before = on_gpu.fake_count(b"launches")
        assert call(x).tolist() == [1, 1, 1] and on_gpu.fake_count(b"launches") == before + 1
        assert order == ["follow", "lead"]


def test_what_torch_does_for_a_call_is_not_between_the_waits(order: list[str]) -> None:
    call = compiled(lambda x: (F.dropout(x, 0.5, training=True), x * 2, (x * 2).clone()))
    call(torch.ones(4, 4))
    order.clear()
    call(torch.ones(4, 4))
    assert order == ["random_", "follow", "lead", "clone"]
    x = torch.ones(4, 5, requires_grad=True)
    call = compiled(lambda x: torch.tanh(x) * 2)
    call(x).backward(torch.ones(4, 5))
    y = call(x)
    order.clear()
    y.backward(torch.ones(5, 4).T)  # another layout than the graph's
    start = order.index("copy_")
    assert order[start : start + 3] == ["copy_", "follow", "lead"]


def test_a_graph_is_at_home_where_its_tensors_are(library: ctypes.CDLL) -> None:  # noqa: F811
    with FakeTensorMode():
        there, here = torch.empty(2, device="cuda"), torch.empty(2)
    assert home_of([here]) == Home(torch.device("cpu"), "cpu")
    found = home_of([here, there])
    assert (found.torch, found.ours) == (torch.device("cuda", 0), "cuda") and found.is_gpu
    assert place_of(stand_in([2], [1], torch.float32, there.device, 0)) == there.device
    with fg.config(device="cuda"):  # torch's tensors of the host are no GPU's
        assert home_of([here]) == Home(torch.device("cpu"), "cpu")


def test_a_number_of_the_host_is_brought_to_a_gpu_and_a_row_of_it_is_left_to_torch() -> None:
    where = Home(torch.device("cuda", 0), "cpu")
    number, row = fx.Graph().placeholder("number"), fx.Graph().placeholder("row")
    number.meta["val"], row.meta["val"] = torch.tensor(3.0), torch.ones(2)
    lowering = Lowering(where, lambda node: node.meta["val"], lambda x: x)
    assert lowering.outside(number).shape == ()
    with pytest.raises(Refused, match="it reads a tensor on cpu"):
        lowering.outside(row)


def test_a_segment_copies_numbers_of_the_host_before_it_runs() -> None:
    made = object.__new__(Segment)
    made.home = Home(torch.device("meta"), "cpu")
    call = made._bringing([1], lambda tensors: [t.device.type for t in tensors])
    assert call([torch.ones(2), torch.tensor(3.0)]) == ["cpu", "meta"]
