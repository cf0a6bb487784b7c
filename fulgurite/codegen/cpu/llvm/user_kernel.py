"""Native kernels of the user: LLVM IR text, launched like any kernel of ours.

In: a kernel whose roots are results of one native call. Out: a `KernelText`: the user's text, with
all that it defines renamed, and a small function of ours that hands it the addresses in the order
in which the user declared them; a result that is not requested goes to the workspace. Sizes are in
the table of values, so one text serves every shape and is compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ....core.node import Node
from ....core.op import Array
from ....core.ops.host import Backward, HostFunction, results_of
from ....core.ops.leaf import PARAM
from ....core.origin import places
from ....errors import ArgumentError
from ....graph.ir.kernel import Kernel
from ...common.api import KernelText, Launch
from ..compose import Room

SIGNATURE = "void (ptr params, ptr values, i64 first, i64 last)"
_NAME = r'(?:[\w.$-]+|"[^"\n]+")'
_DEFINED = re.compile(rf"^[ \t]*(?:define\b[^@\n]*@({_NAME})\s*\(|@({_NAME})\s*=)", re.MULTILINE)


class NativeFunction(HostFunction):
    """A native kernel of the user, known by identity; NumPy may stand in where there is no code."""

    __slots__ = ("entry", "text", "units")
    kind = "user"

    def __init__(
        self, name: str, text: str, units: Callable[..., int],
        fallback: Callable[..., Any] | None, backward: Backward | None,
    ) -> None:  # fmt: skip
        super().__init__(name, fallback or self._nothing, backward)
        self.entry = check_signature(text, name)
        self.text, self.units = _renamed(text), units

    def _nothing(self, *arrays: Array) -> Any:
        raise ArgumentError(
            f"native kernel {self.name!r} runs on the cpu device only",
            "give it a NumPy function: fallback=lambda a: ...",
        )

    def batched(self, size: Any, results: Any) -> HostFunction:
        """Batches are the kernel's own business."""
        raise ArgumentError(
            f"native kernel {self.name!r} knows no batches",
            "write the batch as a dimension of its arguments, or use fg.kernel",
        )


def check_signature(text: str, name: str) -> str:
    """The function of this name, if the text defines it as kernels are called."""
    found = re.search(rf'^[ \t]*define\b([^@\n]*)@"?{re.escape(name)}"?\s*\(([^)]*)\)', text,
                      re.MULTILINE)  # fmt: skip
    if found is None:
        known = [a or b for a, b in _DEFINED.findall(text)]
        raise ArgumentError(
            f"the text defines no function {name!r}",
            f"it defines {', '.join(known)}" if known else "is it LLVM IR?",
        )
    types = [part.split()[0] for part in found[2].split(",") if part.split()]
    if found[1].split()[-1:] != ["void"] or types != ["ptr", "ptr", "i64", "i64"]:
        raise ArgumentError(
            f"{name!r} is {' '.join(found[1].split())} ({', '.join(types)})",
            f"a kernel is {SIGNATURE}",
        )
    for absent in re.findall(rf"^[ \t]*declare\b[^@\n]*@({_NAME})", text, re.MULTILINE):
        if not absent.strip('"').startswith("llvm."):
            raise ArgumentError(
                f"the text of {name!r} calls {absent}, which is not in it",
                "define it in the text: only LLVM's intrinsics may be declared",
            )
    if re.search(rf"^[ \t]*@{_NAME}\s*=[^\n]*\bglobal\b", text, re.MULTILINE):
        raise ArgumentError(
            f"the text of {name!r} has data that could be written", "use `constant`, not `global`"
        )
    return name


def _renamed(text: str) -> str:
    """The text with names that no other text has once the compiler has put in its digest."""
    names = {(a or b).strip('"') for a, b in _DEFINED.findall(text)}

    def rename(found: re.Match[str]) -> str:
        name = found[1].strip('"')
        return f'@"kernel_{name}"' if name in names else found[0]

    renamed = re.sub(rf"@({_NAME})", rename, text)
    return re.sub(r'@"(kernel_[\w.$-]+)"', r"@\1", renamed)


def render_user(kernel: Kernel) -> KernelText:
    """A kernel that calls the user's function."""
    roots = kernel.body.src
    _, host, count, _, _ = roots[0].arg
    assert isinstance(host, NativeFunction), f"{host!r} is no native kernel"
    sources, results = roots[0].src[:count], results_of(roots[0])
    assert all([s.op is PARAM for s in sources]), "native kernels read memory"
    asked = {root.arg[0]: kernel.inputs + place for place, root in enumerate(roots)}
    room = kernel.inputs + len(roots)
    lines, unasked = [], Room()
    slots: list[tuple[int, int]] = [(s.arg[0], 0) for s in sources]
    for item, (shape, dtype) in enumerate(results):
        if item in asked:
            slots.append((asked[item], 0))
        else:
            slots.append((room, unasked.take(dtype.itemsize * _count(shape)).offset))
    for place, (slot, offset) in enumerate(slots):
        lines += [
            f"  %from{place} = getelementptr ptr, ptr %params, i64 {slot}",
            f"  %base{place} = load ptr, ptr %from{place}, align 8",
            f"  %at{place} = getelementptr i8, ptr %base{place}, i64 {offset}",
            f"  %to{place} = getelementptr ptr, ptr %table, i64 {place}",
            f"  store ptr %at{place}, ptr %to{place}, align 8",
        ]
    text = "\n".join([
        host.text,
        "define void @kernel(ptr %params, ptr %values, i64 %first, i64 %last) {",
        "entry:", f"  %table = alloca [{max(1, len(slots))} x ptr], align 8", *lines,
        f"  call void @kernel_{host.entry}(ptr %table, ptr %values, i64 %first, i64 %last)",
        "  ret void", "}", "",
    ])  # fmt: skip
    shapes = [*[s.shape for s in sources], *[shape for shape, _ in results]]
    numbers = tuple([n for shape in shapes for n in shape])
    units = units_of(host, shapes, roots[0])
    work = 8 * sum([_count(shape) for shape in shapes])
    return KernelText(text, (Launch("kernel", units, work),), (), numbers, unasked.size)  # type: ignore[arg-type]


def _count(shape: Any) -> int:
    return prod(shape)


def units_of(host: NativeFunction, shapes: Sequence[Any], node: Node | None = None) -> int:
    """How many pieces of work there are for these shapes."""
    found = host.units(*shapes)
    if type(found) is not int or found < 0:
        where = places(node.origins) if node is not None else None
        raise ArgumentError(
            f"native kernel {host.name!r} has {found!r} units",
            "units is a whole number, or a function of all shapes that gives one",
            where,
        )
    return found
