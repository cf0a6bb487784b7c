"""The `viz` pages of the gallery: `python docs/tools/gallery.py build/gallery`.

In: five examples, each with the words that make it small. Out: a page for each, by `fulgurite viz`
in a process of its own, and gallery.json: what it is called, how it was made and how large it is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MOST_BYTES = 10_000_000
MODEL = "model.onnx"


class Shown(NamedTuple):
    """An example, its heading, and the words of `fulgurite viz` that name what is run."""

    example: str
    title: str
    words: str
    before: str = ""  # words of the example itself, which makes the file that is shown


GALLERY = (
    Shown("mlp", "A training step of a perceptron", "examples/mlp.py --steps 5"),
    Shown("attention", "Attention from plain code", "examples/attention.py"),
    Shown(
        "resnet", "A training step of a residual network",
        "examples/resnet.py --steps 2 --width 8 --side 16 --batch 4",
    ),
    Shown(
        "gpt", "A training step of a GPT",
        "examples/gpt.py --steps 3 --size 64 --layers 4 --tokens 2",
    ),
    Shown("onnx_model", "A model in ONNX", "model.onnx --dim batch=4", "--output model.onnx"),
)  # fmt: skip


WROTE = re.compile(r"wrote .*: (\d+) kernels? of (\d+) ops?$", re.MULTILINE)


def made(one: Shown, folder: Path) -> dict[str, str | int]:
    """Write the page of an example; what the gallery says of it."""
    path = folder / f"{one.example}.html"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FULGURITE_DEVICE": "cpu", "CI": "1"}
    if one.before:
        script = [sys.executable, f"examples/{one.example}.py"]
        words = one.before.replace(MODEL, str(folder / MODEL)).split()
        subprocess.run(
            [*script, *words], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL
        )
    words = one.words.replace(MODEL, str(folder / MODEL)).split()
    command = [sys.executable, "-m", "fulgurite", "viz", "-o", str(path), *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, text=True, capture_output=True
    )
    found = WROTE.search(done.stdout)
    if done.returncode or found is None:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{path} has {size} bytes: more than the {MOST_BYTES} a page may have")
    return {
        "example": one.example, "title": one.title, "page": path.name, "bytes": size,
        "command": f"fulgurite viz {one.words}", "kernels": int(found[1]), "ops": int(found[2]),
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Write all pages into a folder."""
    folder = Path(arguments[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    found = [made(one, folder) for one in GALLERY]
    (folder / "gallery.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for one in found:
        print(
            f"  {one['page']}: {one['kernels']} kernels of {one['ops']} ops, {one['bytes']:,} bytes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
