"""`fulgurite finetune`: teach a language model a text.

In: a model, a text and where to write. Out: weights, a checkpoint, and the held-out loss before and
after.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..errors import ArgumentError
from .chat import guarded


def add_command(commands: Any) -> None:
    """Add `finetune` to the command line."""
    parser = commands.add_parser(
        "finetune",
        help="teach a language model a text, by LoRA or in full",
        description="Train a language model on a text (.txt, or .jsonl with a 'text' or "
        "'messages' on each line). A tenth of it is held out to see whether it helps.",
        epilog="Ctrl-C ends with a checkpoint; --resume goes on from it, to the same bits. "
        "`fulgurite chat PATH --adapter FOLDER` uses the result.",
    )
    parser.add_argument("path", help=".gguf file, or folder with config.json")
    parser.add_argument("data", help=".txt or .jsonl file")
    parser.add_argument("--save", default="runs/finetune", metavar="FOLDER",
                        help="where checkpoint and weights go (runs/finetune)")  # fmt: skip
    parser.add_argument("--full", action="store_true", help="train all weights, not a LoRA")
    parser.add_argument("--resume", action="store_true", help="go on from the folder's checkpoint")
    parser.add_argument("--overwrite", action="store_true",
                        help="begin anew in a folder that has a checkpoint")  # fmt: skip
    for name, kind, default, text in (
        ("steps", int, 200, "steps to train"),
        ("batch", int, 4, "windows in a step"),
        ("length", int, 128, "tokens in a window"),
        ("rate", float, 1e-3, "learning rate"),
        ("rank", int, 8, "rank of the LoRA"),
        ("alpha", float, 16.0, "scale of the LoRA, times its rank"),
        ("seed", int, 0, "of weights and of the data's order"),
        ("save-every", int, 50, "steps between checkpoints"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=None, help=f"{text} ({default})")
    parser.set_defaults(run=guarded(_finetune))


def _finetune(arguments: argparse.Namespace) -> int:
    from ..models import load
    from ..models.finetune import CHECKPOINT, Settings, finetune

    path = os.path.join(arguments.save, CHECKPOINT)
    if not (arguments.resume or arguments.overwrite) and os.path.exists(path):
        raise ArgumentError(
            f"{arguments.save!r} has a run of before, which would be lost",
            "go on with --resume, give another folder with --save, or say --overwrite",
        )
    names = ("steps", "batch", "length", "rate", "rank", "alpha", "seed", "save_every")
    given = {n: getattr(arguments, n) for n in names if getattr(arguments, n) is not None}
    if arguments.full:
        given["rank"] = 0
    model = load(arguments.path)
    is_set = "length" in given or (arguments.resume and not given)
    if not is_set and Settings.length > model.config.context:
        given["length"] = model.config.context
        print(f"[windows of {given['length']} tokens: the model's context]", file=sys.stderr)
    settings = Settings(**given) if given or not arguments.resume else None

    def tell(step: int, loss: float) -> None:
        print(f"step {step}: loss {loss:.4f}", file=sys.stderr, flush=True)

    report = finetune(model, arguments.data, arguments.save, settings, arguments.resume, tell)
    if report.is_stopped:
        print(f"stopped after step {len(report.losses)}; go on with --resume")
        return 130
    print(f"held-out loss {report.before:.4f} before, {report.after:.4f} after; {report.weights}")
    return 0
