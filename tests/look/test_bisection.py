"""Tests of look/bisection.py: the op at which two devices part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.core.node import toposort
from fulgurite.errors import ArgumentError
from fulgurite.graph.ir.kernel import Kernel
from fulgurite.runtime import device as devices
from fulgurite.runtime.device import Buffer, Values, register_device
from fulgurite.runtime.host.device import ReferenceDevice
from fulgurite.runtime.step_executor import StepCode

DATA = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)


class SkewedDevice(ReferenceDevice):
    """A device with a fault: its tanh is a little too large."""

    name = "skewed"

    def kernel_code(self, kernel: Kernel) -> StepCode:
        run = super().kernel_code(kernel)

        def skewed(inputs: Sequence[Buffer], outputs: Sequence[Buffer], values: Values) -> None:
            run(inputs, outputs, values)
            if any(node.op.name == "tanh" for node in toposort([kernel.body])):
                for output in outputs:
                    output.array[...] *= 1.01  # type: ignore[attr-defined]

        return skewed


@pytest.fixture(autouse=True)
def _skewed() -> Iterator[None]:
    register_device("skewed", lambda name: SkewedDevice())
    yield
    devices._devices.pop("skewed", None)
    devices._factories.pop("skewed")


def network(x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
    a = x @ x
    b = fg.tanh(a * 0.25)
    c = fg.softmax(b + x)
    return c @ x, c.sum()


LINE = network.__code__.co_firstlineno + 2


def test_the_op_that_parts_is_found_with_its_line_and_values() -> None:
    found = fg.compare(network, "skewed", "reference", fg.Tensor(DATA))
    assert not found.equal and found.op == "tanh"
    assert found.line.endswith(f"test_bisection.py:{LINE}")
    assert found.values[0] == pytest.approx(found.values[1] * 1.01, rel=1e-4)
    assert found.probes < 10
    text = str(found)
    assert "skewed and reference part at tanh" in text and "all it reads agrees" in text


def test_devices_that_agree_are_said_to() -> None:
    found = fg.compare(network, "reference", "cpu", fg.Tensor(DATA))
    assert found.equal and found.error < 1e-5 and "agree" in str(found)


def test_what_is_known_already_is_an_input_of_both() -> None:
    x = fg.Tensor(DATA)
    a = fg.tanh(x).realize()
    assert fg.compare(lambda: a * 2.0, "skewed", "reference").equal
    assert not fg.compare(lambda: fg.tanh(x) * 2.0, "skewed", "reference").equal


def test_modules_that_live_on_another_device_can_be_compared() -> None:
    net = fg.nn.Linear(6, 6)
    found = fg.compare(lambda x: fg.tanh(net(x)), "reference", "skewed", fg.Tensor(DATA))
    assert found.op == "tanh" and found.devices == ("reference", "skewed")


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ArgumentError, match="int is not a function"):
        fg.compare(3, "cpu", "reference")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="rtol is -1"):
        fg.compare(fg.exp, "cpu", "reference", fg.ones(3), rtol=-1)
    with pytest.raises(ArgumentError, match="there is no device 'moon'"):
        fg.compare(network, "moon", "cpu", fg.Tensor(DATA))
    with pytest.raises(ArgumentError, match="returns no tensor"):
        fg.compare(lambda: 3, "cpu", "reference")


def test_what_the_call_computes_itself_is_said_not_to_be_compared() -> None:
    def read(x: fg.Tensor) -> fg.Tensor:
        y = fg.tanh(x).realize()  # an input from here on
        return y + 1

    x = fg.Tensor(DATA)
    found = fg.compare(read, "reference", "skewed", x)
    assert found.equal and "test_bisection.py" in found.inside[0]
    assert "not compared" in str(found)
    assert fg.compare(lambda x: x + 1, "reference", "skewed", x).inside == ()


def test_a_jitted_function_is_compared_by_its_graph() -> None:
    def squashed(x: fg.Tensor) -> fg.Tensor:
        return fg.tanh(x) + 1

    found = fg.compare(fg.jit(squashed), "reference", "skewed", fg.Tensor(DATA))
    assert not found.equal and found.op == "tanh" and found.inside == ()
