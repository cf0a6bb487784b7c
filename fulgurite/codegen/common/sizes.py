"""Sizes in a kernel's text become numbers of its launch.

In: a `KernelText` that may name registers of sizes that vary (`%sym.1.3`). Out: the same, where
each function reads them from its table of values first. So one text serves all sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ...core.symbolic.sym import from_token
from ...graph.ir.reshape_groups import CannotLower
from .api import FIRST, KernelText

_TOKEN = re.compile(r"%sym\.(\d+)\.(\d+)(?:\.i(\d+))?\b")
_ENTRY = re.compile(r"^(define [^\n]*%values[^\n]*\{\nentry:\n)", re.MULTILINE)


def bind_sizes(rendered: KernelText) -> KernelText:
    """The kernel with its sizes among the numbers that a launch is given."""
    if any("%sym." in part for part in rendered.library):
        raise CannotLower("a library function of a size that varies")
    if "%sym." not in rendered.text:
        return rendered
    tokens = dict.fromkeys([found[:2] for found in _TOKEN.findall(rendered.text)])
    first = FIRST + len(rendered.variables) + len(rendered.numbers)
    place = {token: first + i for i, token in enumerate(tokens)}
    numbers = [from_token(int(serial), int(number)) for serial, number in tokens]

    def named(match: re.Match[str]) -> str:
        serial, number, bits = match.groups()
        name = f"%size{place[serial, number]}"
        return f"{name}.i{bits}" if bits else name

    out: list[str] = []
    for piece in re.split(r"(?m)^(?=define )", rendered.text):
        used = dict.fromkeys(_TOKEN.findall(piece))
        head = _ENTRY.match(piece)
        if used and head is None:
            raise CannotLower("a function of a size that varies without a table of values")
        if head is not None:
            lines = _loads([(place[s, n], bits) for s, n, bits in used])
            piece = head[1] + lines + _TOKEN.sub(named, piece[head.end() :])
        out.append(piece)
    form = rendered.prepacked
    if form is not None:
        form = replace(form, numbers=(*form.numbers, *numbers))
    return replace(
        rendered, text="".join(out), numbers=(*rendered.numbers, *numbers), prepacked=form
    )


def _loads(used: Sequence[tuple[int, str]]) -> str:
    """Lines that read sizes from the table of values, some in fewer bits."""
    lines: dict[str, None] = {}
    for place, bits in used:
        name = f"%size{place}"
        lines[f"  {name}.at = getelementptr i64, ptr %values, i64 {place}\n"] = None
        lines[f"  {name} = load i64, ptr {name}.at\n"] = None
        if bits:
            lines[f"  {name}.i{bits} = trunc i64 {name} to i{bits}\n"] = None
    return "".join(lines)
