"""`fulgurite plan`: what a training step would cost on so many ranks, without running it.

In: a network's name or sizes, a mesh, a plan, a machine. Out: a table. The work is in
`fulgurite/distributed/forecast.py`, loaded on demand.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from typing import Any

from .look import positive

EPILOG = """Example: fulgurite plan --ranks 1024 --net gpt-13b --model 8 --plan zero3. The graph of
the step is built and partitioned for the mesh; rates of the machine are assumptions, printed below
the table. Sizes of your own: --net blocks=4,width=256,heads=4,length=64,words=128; links and rates
of your own: --machine h100,outer_bandwidth=25e9,outer_latency=30e-6,ranks_a_node=4,overlap=0."""


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `plan` to the parser of `fulgurite`."""
    parser = commands.add_parser(
        "plan",
        help="price a training step on many ranks",
        description="Price a step of a language model on many ranks from its graph.",
        epilog=EPILOG,
    )
    parser.add_argument("--ranks", type=positive, default=8, help="of all axes together (8)")
    parser.add_argument("--net", default="gpt2", help="gpt-tiny, gpt2, gpt-1b, gpt-13b or sizes")
    parser.add_argument("--plan", default="data", help="data, zero1, zero2 or zero3")
    parser.add_argument("--model", type=positive, default=1, help="ranks of tensor parallel")
    parser.add_argument("--pipe", type=positive, default=1, help="stages of a pipeline")
    parser.add_argument("--micro", type=positive, default=8, help="micro-batches of a pipeline")
    parser.add_argument(
        "--batch", type=positive, default=8, help="sequences of each data-parallel rank"
    )
    parser.add_argument("--machine", default="h100", help="h100 or cpu, with changes as below")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..distributed import forecast
    from ..errors import ArgumentError

    try:
        print(_table(arguments, forecast))
    except ArgumentError as problem:
        print(f"fulgurite plan: {problem.what}\n  try: {problem.hint}", file=sys.stderr)
        return 1
    return 0


def _net(text: str, forecast: Any) -> Any:
    from ..errors import ArgumentError

    if text in forecast.NETS:
        return forecast.NETS[text]
    try:
        given = {name: int(n) for name, n in (part.split("=") for part in text.split(","))}
        net = forecast.Net(**given)
    except (ValueError, TypeError):
        known = ", ".join(forecast.NETS)
        hint = f"name one of {known}, or say {','.join([f'{f}=N' for f in forecast.Net._fields])}"
        raise ArgumentError(f"there is no network {text!r}", hint, "") from None
    if min(net) < 1 or net.width % net.heads:
        hint = "use sizes from 1 on; heads must divide the width"
        raise ArgumentError(f"no network has {text}", hint, "")
    return net


def _machine(text: str, forecast: Any) -> Any:
    """A machine by its name, with other rates if they are given."""
    from ..errors import ArgumentError

    name, *changes = text.split(",")
    try:
        found = forecast.MACHINES[name]
        given = {key: float(n) for key, n in (part.split("=") for part in changes)}
        kinds = {key: type(getattr(found, key)) for key in given}
        changed = replace(found, **{key: kinds[key](n) for key, n in given.items()})
    except (KeyError, ValueError, AttributeError, TypeError):
        rates = ", ".join([f.name for f in fields(forecast.Machine)][1:])
        hint = f"name one of {', '.join(forecast.MACHINES)}, then changes of {rates}"
        raise ArgumentError(f"there is no machine {text!r}", hint, "") from None
    links = changed.inner_bandwidth, changed.outer_bandwidth
    if min(changed.flops, changed.ranks_a_node, *links) <= 0:
        raise ArgumentError(f"no machine has {text}", "rates are over 0", "")
    return changed


def _table(arguments: argparse.Namespace, forecast: Any) -> str:
    from ..errors import ArgumentError

    net, machine = _net(arguments.net, forecast), _machine(arguments.machine, forecast)
    inner = arguments.model * arguments.pipe
    if arguments.ranks % inner:
        raise ArgumentError(f"{arguments.ranks} ranks are no multiple of {inner}", "change one", "")
    if arguments.pipe > net.blocks:
        hint = f"use at most {net.blocks} stages"
        raise ArgumentError(f"{net.blocks} blocks for {arguments.pipe} stages", hint, "")
    data = arguments.ranks // inner
    axes = {"data": data} | ({"model": arguments.model} if arguments.model > 1 else {})
    cost = forecast.cost_of(net, axes, arguments.plan, arguments.batch * data)
    mesh = tuple(axes.items())
    found = forecast.forecast(cost, machine, mesh, arguments.pipe, arguments.micro)
    tokens = arguments.batch * data * net.length
    products = forecast.stage_share(arguments.pipe) * cost.flops
    shown = ({"pipe": arguments.pipe} if arguments.pipe > 1 else {}) | axes
    lines = [
        f"{arguments.net}, plan {arguments.plan}, mesh {shown}, {tokens:,} tokens a step",
        f"  memory of a rank      {found.memory / 2**30:10.2f} GiB",
        f"  products of a rank    {products / 1e12:10.3f} TFLOP",
        f"  compute               {1e3 * found.compute:10.2f} ms",
    ]
    for axes_, elements in cost.sent.items():
        name = "+".join(axes_)
        sent = elements * machine.value_bytes / arguments.pipe / 2**20
        lines.append(f"  over {name:15}  {1e3 * found.communication[name]:10.2f} ms, "
                     f"{sent:,.1f} MiB of each rank in {cost.calls[axes_]} messages")  # fmt: skip
    if arguments.pipe > 1:
        sent = 2 * cost.boundary * machine.value_bytes / 2**20
        lines.append(f"  over {'pipe':15}  {1e3 * found.communication['pipe']:10.2f} ms, "
                     f"{sent:,.1f} MiB of each rank in {2 * arguments.micro} messages")  # fmt: skip
    lines += [
        f"  hidden behind compute {1e3 * found.hidden:10.2f} ms",
        f"  bubble                {1e3 * found.bubble:10.2f} ms",
        f"  step                  {1e3 * found.seconds:10.2f} ms, "
        f"{tokens / found.seconds:,.0f} tokens a second",
        f"assumed for {machine.name}: {machine.flops / 1e12:g} TFLOP/s a rank, "
        f"{machine.ranks_a_node if machine.ranks_a_node < 1 << 20 else 'all'} ranks a node,",
        f"  links of {machine.inner_bandwidth / 1e9:g} GB/s inside a node and "
        f"{machine.outer_bandwidth / 1e9:g} GB/s outside,",
        f"  {1e6 * machine.inner_latency:g} and {1e6 * machine.outer_latency:g} us a message, "
        f"{machine.value_bytes} bytes a value,",
        f"  {machine.overlap:.0%} of the backward pass hides sums; memory is weights, gradients, "
        "state and results of products",
    ]  # fmt: skip
    return "\n".join(lines)
