"""Forecasts: counts that can be worked out by hand, and seconds that follow from the machine."""

from __future__ import annotations

from math import prod

import pytest

from fulgurite.cli import main
from fulgurite.distributed.forecast import MACHINES, Net, cost_of, forecast
from fulgurite.distributed.models import GPT
from tests.distributed.refusals import refused

pytestmark = pytest.mark.device("none")
NET = Net(blocks=3, width=16, heads=4, length=8, words=32)
MODEL = GPT(NET.words, NET.width, NET.heads, NET.blocks, NET.length)
VALUES = sum([prod(p.shape) for p in MODEL.parameters()])


def test_data_parallel_sends_every_gradient_once() -> None:
    cost = cost_of(NET, {"data": 4}, "data", 8)
    assert cost.values == VALUES and cost.states == 2 * VALUES
    assert cost.gradients / 1.5 == pytest.approx(VALUES, rel=0.01)  # 2 * (n - 1) / n of each


def test_zero_splits_what_is_kept() -> None:
    one, three = (cost_of(NET, {"data": 4}, f"zero{stage}", 8) for stage in (1, 3))
    assert one.values == VALUES and one.states == pytest.approx(2 * VALUES / 4, rel=0.05)
    assert three.values == pytest.approx(VALUES / 4, rel=0.05)
    assert three.sent[("data",)] == pytest.approx(1.5 * VALUES, rel=0.25)


def test_tensor_parallel_shares_the_products() -> None:
    alone = cost_of(NET, {"data": 1}, "data", 8)
    shared = cost_of(NET, {"data": 1, "model": 4}, "data", 8)
    assert 2.0 < alone.flops / shared.flops < 4.0  # embeddings and the head are not split
    assert shared.sent[("model",)] > 0


def test_blocks_add_up() -> None:
    costs = [cost_of(NET._replace(blocks=n), {"data": 2}, "data", 4) for n in (2, 3, 4)]
    assert costs[2].flops - costs[1].flops == pytest.approx(costs[1].flops - costs[0].flops)


def test_a_pipeline_has_a_bubble() -> None:
    cost = cost_of(NET, {"data": 2}, "data", 4)
    found = [forecast(cost, MACHINES["h100"], (("data", 2),), pipe, micro=8) for pipe in (1, 4)]
    assert found[0].bubble == 0 < found[1].bubble and found[1].memory < found[0].memory
    assert found[1].compute == pytest.approx(found[0].compute / 3)  # a quarter, forward twice
    sent = 2 * (2 * NET.length * NET.width) * 2  # rows of a rank there and back, two bytes each
    link = MACHINES["h100"].inner_bandwidth, MACHINES["h100"].inner_latency
    assert found[1].communication["pipe"] == pytest.approx(sent / link[0] + 2 * 8 * link[1])


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    net = "blocks=2,width=16,heads=4,length=8,words=32"
    assert main(["plan", "--ranks", "16", "--model", "2", "--plan", "zero3", "--net", net]) == 0
    text = capsys.readouterr().out
    assert "mesh {'data': 8, 'model': 2}" in text and "tokens a second" in text
    fewer = ["--pipe", "2", "--machine", "h100,outer_bandwidth=25e9,overlap=0"]
    assert main(["plan", "--ranks", "64", "--net", net, *fewer]) == 0
    text = capsys.readouterr().out
    assert "over pipe" in text and "25 GB/s outside" in text and "0% of the backward" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--net", "resnet"], "there is no network 'resnet'"),
        (["--net", "blocks=2,width=16,heads=3,length=8,words=32"], "heads must divide the width"),
        (["--net", "blocks=0,width=16,heads=4,length=8,words=32"], "sizes from 1 on"),
        (["--machine", "tpu"], "there is no machine 'tpu'"),
        (["--machine", "h100,colour=3"], "changes of flops"),
        (["--machine", "h100,flops=0"], "rates are over 0"),
        (["--plan", "zero4"], "no stage 4"),
        (["--ranks", "7", "--model", "2"], "7 ranks are no multiple of 2"),
        (["--ranks", "64", "--pipe", "64"], "12 blocks for 64 stages"),
        (["--pipe", "0"], "0 is no number from 1 on"),
        (["--micro", "x"], "x is no number from 1 on"),
    ],
)
def test_what_cannot_be_priced_is_said_in_a_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused(["plan", *words], capsys)
    assert message in text and "Traceback" not in text
