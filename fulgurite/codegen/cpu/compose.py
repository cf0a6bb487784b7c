"""Kernel composition: several kernels as one, with values between them in the workspace.

In: parts, each a `KernelText` with the place of each of its params (a param of the whole, or room
in the shared workspace). Out: one `KernelText`. A part's functions stay as they are; around each
stands a function that hands it a table of its own params and values. An error word that a part sets
is passed on. So parts can be made by any template, which need not know that it makes a part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.lazy_dataclass import dataclass
from ..common.api import BROKEN, ERROR, FIRST, KernelText, Launch
from ..common.sizes import bind_sizes

ARGUMENTS = "ptr noalias %params, ptr noalias %values, i64 %first, i64 %last"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part's param is: so many bytes into a param of the whole, or into the workspace."""

    param: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel of several, and where its params are."""

    rendered: KernelText
    places: tuple[Place, ...]


class Room:
    """The workspace while it is being divided up."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, count: int) -> Place:
        """Room for so many bytes, aligned as the workspace is."""
        start = self.size
        self.size += -(-count // 64) * 64
        return Place(None, start)


def compose(parts: Sequence[Part], count: int, room: Room) -> KernelText:
    """One kernel that runs the parts in order; `count` is how many params it has."""
    definitions: list[str] = []
    declarations: dict[str, None] = {}
    launches: list[Launch] = []
    library: dict[str, None] = {}
    variables: list[str] = []
    numbers: list[int] = []
    parts = [Part(bind_sizes(part.rendered), part.places) for part in parts]
    for part in parts:
        variables.extend(v for v in part.rendered.variables if v not in variables)
    for position, part in enumerate(parts):
        inner = part.rendered
        library.update(dict.fromkeys(inner.library))
        text = re.sub(r"@kernel(\w*)", rf"@kernel_part{position}\1", inner.text)
        own: list[str] = []
        for line in text.splitlines():
            if line.startswith(("declare", "@", "attributes", "!")):
                declarations[line] = None
            else:
                own.append(line)
        definitions.append("\n".join(own))
        table = [FIRST + variables.index(v) for v in inner.variables]
        first = FIRST + len(variables) + len(numbers)
        table.extend(range(first, first + len(inner.numbers)))
        numbers.extend(inner.numbers)
        places = part.places
        if inner.workspace:
            places = (*places, room.take(inner.workspace))
        for symbol in dict.fromkeys(launch.symbol for launch in inner.launches):
            suffix = symbol.removeprefix("kernel")
            step, called = f"kernel_step{position}{suffix}", f"kernel_part{position}{suffix}"
            if symbol == suffix:  # a function of the library
                called = symbol
                declarations[f"declare void @{symbol}(ptr, ptr, i64, i64)"] = None
            definitions.append(_around(step, called, places, count, table))
        for launch in inner.launches:
            suffix = launch.symbol.removeprefix("kernel")
            launches.append(Launch(f"kernel_step{position}{suffix}", launch.units, launch.work))
    text = "\n".join([*definitions, *declarations]) + "\n"
    return KernelText(
        text, tuple(launches), tuple(variables), tuple(numbers), room.size, tuple(library)
    )


def _around(
    symbol: str, called: str, places: Sequence[Place], count: int, table: Sequence[int]
) -> str:
    """A function that calls another with its own table of params and of values."""
    lines = [f"  %table = alloca [{max(1, len(places))} x ptr], align 8"]
    for i, place in enumerate(places):
        number = count if place.param is None else place.param
        lines += [
            f"  %from{i} = getelementptr ptr, ptr %params, i64 {number}",
            f"  %base{i} = load ptr, ptr %from{i}",
            f"  %address{i} = getelementptr i8, ptr %base{i}, i64 {place.offset}",
            f"  %to{i} = getelementptr ptr, ptr %table, i64 {i}",
            f"  store ptr %address{i}, ptr %to{i}",
        ]
    values = "%values"
    if list(table) != list(range(FIRST, FIRST + len(table))):
        values = "%own"
        lines.append(f"  %own = alloca [{FIRST + len(table)} x i64], align 8")
        lines.append(f"  %error_own = getelementptr i64, ptr %own, i64 {ERROR}")
        lines.append("  store i64 0, ptr %error_own")
        for i, number in enumerate(table):
            lines += [
                f"  %seen{i} = getelementptr i64, ptr %values, i64 {number}",
                f"  %value{i} = load i64, ptr %seen{i}",
                f"  %kept{i} = getelementptr i64, ptr %own, i64 {FIRST + i}",
                f"  store i64 %value{i}, ptr %kept{i}",
            ]
    lines.append(f"  call void @{called}(ptr %table, ptr {values}, i64 %first, i64 %last)")
    if values == "%own":
        lines += [
            "  %error = load i64, ptr %error_own",
            "  %bad = icmp ne i64 %error, 0",
            "  br i1 %bad, label %report, label %done",
            "report:",
            f"  %error_out = getelementptr i64, ptr %values, i64 {ERROR}",
            "  store i64 %error, ptr %error_out",
            f"  %broken_own = getelementptr i64, ptr %own, i64 {BROKEN}",
            "  %broken = load i64, ptr %broken_own",
            f"  %broken_out = getelementptr i64, ptr %values, i64 {BROKEN}",
            "  store i64 %broken, ptr %broken_out",
            "  br label %done",
            "done:",
        ]
    lines.append("  ret void")
    body = "\n".join(lines)
    return f"define void @{symbol}({ARGUMENTS}) {{\nentry:\n{body}\n}}"
