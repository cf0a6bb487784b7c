"""Pictures of the documents, drawn from the list of passes itself: `python bench/pictures.py`.

In: `PIPELINE`, and one expression that goes through it. Out: docs/pictures/pipeline.svg, every pass
in order with what it did to the expression, beside the expression's text after the passes that
changed it. tests/test_pictures.py fails when the picture is not what the passes do.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import fulgurite as fg
from fulgurite.core.passes import Pass, listed
from fulgurite.runtime.device import get_device
from fulgurite.runtime.pipeline import PIPELINE

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
LINE = 17  # pixels from line to line
LIST_WIDTH, WIDTH = 560, 1100
SHOWN = ("normalize", "simplify", "fuse", "schedule", "lower")
COLOURS = {"changed": "#1a7f37", "ran": "#57606a", "skipped": "#afb8c1"}
WORDS = {
    "changed": "changed the expression",
    "ran": "ran, found nothing to change",
    "skipped": "its condition did not hold",
}


@dataclass(frozen=True)
class Row:
    """A pass, how deep inside another it runs, and what it did to the expression."""

    depth: int
    one: Pass
    what: str


def expression() -> fg.Tensor:
    """The softmax that docs/how-it-works.md follows."""
    x = fg.Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    return fg.softmax(x * 1 + 0.5, axis=-1)


def followed() -> tuple[list[Row], dict[str, str]]:
    """What every pass did to the expression, and its text after those of `SHOWN`."""
    with fg.config(device="cpu", tier="native", vectors="avx2", tune="off"):
        tensor = expression()
        stages = fg.explain(tensor).stages
        did = _changes(stages)

        def see(one: Pass, before: Any, after: Any) -> None:
            same = one.level_in is one.level_out and before is after
            did[one.name] = "ran" if same else "changed"

        kernel = fg.schedule(tensor).items[0].kernel
        get_device("cpu").trace(kernel, see)
        did |= dict.fromkeys(("plan_memory", "compile", "link"), "changed")
        rows = [Row(d, one, did.get(one.name, "skipped")) for d, one in listed(PIPELINE)]
    return rows, {name: _plain(stages[name]) for name in SHOWN}


def _changes(stages: dict[str, str]) -> dict[str, str]:
    """Whether a pass over the graph changed its text."""
    texts = list(stages.items())
    return {
        name: "changed" if text != before else "ran"
        for (_, before), (name, text) in pairwise(texts)
    }


def _plain(text: str) -> str:
    """Text without the places in source files."""
    return "\n".join([line.partition("  # ")[0] for line in text.splitlines()])


def pipeline() -> str:
    """The picture of the whole pipeline."""
    rows, texts = followed()
    parts = [_text(20, 28, "PIPELINE, runtime/pipeline.py", "#1f2328", "bold")]
    y = 28 + LINE
    for what, word in WORDS.items():
        parts += [_dot(26, y, COLOURS[what]), _text(38, y, word, COLOURS[what])]
        y += LINE
    y += LINE // 2
    for row in rows:
        x = 26 + 22 * row.depth
        parts += [_dot(x, y, COLOURS[row.what]), _text(x + 12, y, row.one.name, COLOURS[row.what])]
        if row.one.level_in is not row.one.level_out:
            levels = f"{row.one.level_in} → {row.one.level_out}"
            parts.append(_text(252, y, levels, COLOURS[row.what]))
        y += LINE
    height, y = y, 28
    for name, text in texts.items():
        lines = text.splitlines()
        title = "what was written" if name == "normalize" else f"after {name}"
        parts.append(_text(LIST_WIDTH + 12, y, title, "#1f2328", "bold"))
        tall = LINE * len(lines) + 10
        box = f'x="{LIST_WIDTH}" y="{y + 7}" width="{WIDTH - LIST_WIDTH - 20}" height="{tall}"'
        parts.append(f'<rect {box} rx="4" fill="#f6f8fa" stroke="#d0d7de"/>')
        for line in lines:
            y += LINE
            parts.append(_text(LIST_WIDTH + 12, y + 7, line, "#1f2328"))
        y += 2 * LINE + 12
    return _svg(max(height, y), parts)


def _text(x: int, y: int, text: str, colour: str, weight: str = "normal") -> str:
    place = f'x="{x}" y="{y}" fill="{colour}" font-weight="{weight}"'
    return f'<text {place} xml:space="preserve">{escape(text)}</text>'


def _dot(x: int, y: int, colour: str) -> str:
    return f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/>'


def _svg(height: int, parts: list[str]) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    return "\n".join(
        [head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""]
    )


PICTURES = {"pipeline.svg": pipeline}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
        print(f"wrote {FOLDER / name}")
