"""`fulgurite quantize`: a model with its matrices packed.

In: a Hugging Face folder or a GGUF file, a target and a type. Out: the packed model, and a line
that says what became of how many tensors.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

from .chat import guarded


def add_command(commands: Any) -> None:
    """Add `quantize` to the command line."""
    parser = commands.add_parser(
        "quantize",
        help="write a language model with its matrices packed to 4 to 8 bits",
        description="Write a model (a Hugging Face folder or a GGUF file) with its matrices as "
        "blocks of small numbers: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL, and in "
        "folders I8G64 and I4G64.",
    )
    parser.add_argument("source", help="folder or .gguf file")
    parser.add_argument("target", help="folder or .gguf file to write")
    parser.add_argument("--type", default="Q4_K", help="type of the packed matrices (Q4_K)")
    parser.set_defaults(run=guarded(_quantize))


def _quantize(arguments: argparse.Namespace) -> int:
    from ..models.quantize import quantize

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        counts = quantize(arguments.source, arguments.target, arguments.type)
    for one in told:
        print(f"fulgurite: {one.message}", file=sys.stderr)
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{arguments.target}: {text}")
    return 0
