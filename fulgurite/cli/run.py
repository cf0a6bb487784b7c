"""The words of `fulgurite run`; the work is in `onnx/run.py` and `torch/run.py`, loaded on demand.

In: the parser of `fulgurite`. Out: one more command. Nothing of ONNX or torch is loaded for others.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

EPILOG = """An input is name=FILE.png (a picture, scaled to 0..1 for float inputs and moved to the
model's layout), name=FILE.npy, name=rand:1x3x224x224, name=zeros:1x4, name=ones:2 or name=5 (a
number). With one input the name may be left out. Dimensions with a name are 1 unless --dim says
otherwise. Example: fulgurite run model.onnx --input x=cat.png --time 50 --check onnxruntime"""


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `run` to the parser of `fulgurite`."""
    parser = commands.add_parser(
        "run",
        help="run an ONNX model or a program of torch.export, time it, and check it",
        description="Run an ONNX model, or a .pt2 file of torch.export, on given or random inputs.",
        epilog=EPILOG,
    )
    parser.add_argument("model", help="the .onnx or .pt2 file")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=WHAT")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    parser.add_argument("--device", default=None, help="cpu or reference")
    parser.add_argument(
        "--time", type=int, default=0, metavar="N", help="run N times and say how long"
    )
    parser.add_argument(
        "--check", default="", choices=["", "onnxruntime", "torch"], help="compare outputs"
    )
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative, of --check (1e-4)")
    parser.add_argument("--threads", type=int, default=0, help="threads, here and in --check")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs")
    parser.add_argument("--output", default="", metavar="FILE.npz", help="write the outputs there")
    parser.add_argument("--json", action="store_true", help="print figures as JSON at the end")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.model.endswith(".pt2"):
        return _exported(arguments)
    from ..onnx.run import command

    return command(arguments)


def _exported(arguments: argparse.Namespace) -> int:
    """Run a program of torch's; errors become lines."""
    from ..errors import FulguriteError
    from ..torch_models import needing_torch

    try:
        with needing_torch():
            from ..torch.run import command
        return command(arguments)
    except FulguriteError as problem:
        print(f"fulgurite run: {problem.what}", file=sys.stderr)
        if problem.hint:
            print(f"  try: {problem.hint}", file=sys.stderr)
        return 1
