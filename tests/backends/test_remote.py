"""What the remote device proves: no launch waits, errors name lines, replays are one message."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.runtime import device as devices
from fulgurite.runtime.device import MemoryLimitError, get_device
from fulgurite.runtime.realize import storage_of, value_node


@pytest.fixture(autouse=True)
def remote() -> Iterator[Any]:
    from tests.backends.remote import RemoteDevice

    known = "remote" in devices._factories
    if not known:
        devices.register_device("remote", RemoteDevice, members=lambda: 2)
    with fg.config(device="remote"):
        yield get_device("remote")
    if not known:
        del devices._factories["remote"]
        for name in [n for n in devices._devices if n.startswith("remote")]:
            devices._devices.pop(name).line.close()  # type: ignore[attr-defined]


def address(x: fg.Tensor) -> int:
    node = value_node(x.node)
    assert node is not None
    return storage_of(node).address


def stopped(device: Any, stop: bool) -> None:
    process = device.line.start()
    os.kill(process.pid, signal.SIGSTOP if stop else signal.SIGCONT)


def test_launches_return_before_they_have_run(remote: Any) -> None:
    x = fg.Tensor(np.arange(6, dtype=np.float32))
    step = fg.jit(lambda x, k: (x * k + 1, x.sum()))
    for _ in range(3):
        step(x, 1.5)
    stopped(remote, True)
    try:
        y = (x * 2 + 1).realize()  # a plan that is new
        z, total = step(y, 2.0)  # one that is replayed
        assert y.is_realized and z.is_realized
    finally:
        stopped(remote, False)
    assert z.tolist() == [(2 * i + 1) * 2 + 1 for i in range(6)] and total.item() == 36
    fg.synchronize()


def test_memory_is_no_array(remote: Any) -> None:
    x = fg.Tensor(np.ones(5, np.float32))
    node = value_node(x.node)
    assert node is not None
    memory = storage_of(node)
    assert not hasattr(memory, "array") and memory.exported is None and memory.nbytes == 20
    array = np.zeros(3, np.float32)
    shared = fg.from_numpy(array)
    array[:] = 5
    assert shared.tolist() == [0, 0, 0], "a copy: the host's memory is out of reach"


def test_a_replay_is_one_launch_and_what_it_writes_over_stays_where_it_is(remote: Any) -> None:
    w = fg.Tensor(np.ones(4, np.float32))

    @fg.jit
    def step(x: fg.Tensor, rate: float) -> None:
        w.assign(w - rate * x)

    x = fg.Tensor(np.ones(4, np.float32))
    for _ in range(4):
        step(x, 0.25)
    place, sent = address(w), remote.line.sent
    step(x, 0.5)
    assert remote.line.sent - sent == 2  # the numbers, and the launch
    assert address(w) == place
    assert w.tolist() == [-0.5] * 4


def test_a_loop_sends_addresses_only(remote: Any) -> None:
    x = fg.Tensor(np.arange(20, dtype=np.float32).reshape(10, 2))

    def run() -> list[float]:
        return fg.scan(lambda c, row: (c + row, c), fg.zeros(2), x)[0].tolist()  # type: ignore[no-any-return]

    assert run() == [90, 100]
    sent = remote.line.sent
    run()
    assert remote.line.sent - sent < 30  # ten launches, and a few to begin and to end


@pytest.mark.parametrize("jit", [False, True])
def test_an_index_outside_its_axis_is_told_at_the_users_line(jit: bool) -> None:
    x = fg.Tensor(np.arange(5, dtype=np.float32))
    pick: Any = fg.jit(lambda x, i: x[i] * 2) if jit else (lambda x, i: (x[i] * 2).realize())
    for _ in range(3):
        assert pick(x, fg.Tensor([4, 1])).tolist() == [8, 2]
    with pytest.raises(IndexError, match="index 7 is outside axis 0 of size 5") as caught:
        pick(x, fg.Tensor([1, 7]))
    assert "test_remote.py:" in str(caught.value)
    x[fg.Tensor([0])] = 3
    with pytest.raises(IndexError, match="index 9"):
        x[fg.Tensor([9])] = 3
        x.realize()


def test_a_host_function_that_raises_leaves_everything_as_it_was() -> None:
    def fail(a: Any) -> Any:
        raise RuntimeError("mine")

    x = fg.Tensor(np.ones(3, np.float32))
    y = fg.custom(fail, x * 2, shape=(3,)) + x
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"):
            y.realize()
    assert not y.is_realized and x.tolist() == [1, 1, 1]


def test_too_much_memory_is_a_clear_error() -> None:
    with pytest.raises(MemoryLimitError, match="no memory for float32"):
        fg.zeros((1 << 40,)).realize()


def test_a_device_has_members() -> None:
    x = fg.Tensor(np.arange(4, dtype=np.float32), device="remote:1")
    assert x.device == "remote:1" and x.to("remote:0").device == "remote"
    y = x.to("remote") * 2
    assert y.device == "remote" and y.to("cpu").tolist() == [0, 2, 4, 6]
    assert get_device("remote:0") is get_device("remote")
    with pytest.raises(devices.DeviceError, match="there is no device 'remote:2'"):
        get_device("remote:2")


def test_memory_that_nobody_holds_is_given_back(remote: Any) -> None:
    x = fg.Tensor(np.ones(100, np.float32))
    (x + 1).tolist()
    before = remote.line("sync")
    for _ in range(5):
        (x + 1).tolist()
    assert remote.line("sync") <= before + 1
