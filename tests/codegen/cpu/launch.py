"""Running a rendered kernel by hand: any split of its units, memory anywhere, no driver.

In: tensors to compute. Out: arrays, from functions that are compiled once for each text. Buffers
begin at an odd address, outputs and workspace are poisoned, as is what lies around them, which must
stay as it is, and units run in any order and in ranges of any length, as threads would run them.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fulgurite.aot.schedule import schedule
from fulgurite.codegen.common.api import FIRST, KernelText
from fulgurite.codegen.cpu.llvm.compiler import compile_object
from fulgurite.codegen.cpu.llvm.loader import load
from fulgurite.codegen.cpu.render import PLAIN, Rendering, render
from fulgurite.codegen.cpu.target import Target, target
from fulgurite.core.dtype import DType, array_of_bits
from fulgurite.core.passes import UNWATCHED, passes_up_to, run_passes
from fulgurite.graph.ir.kernel import Kernel, param_dtypes
from fulgurite.graph.ir.lower import IndexKernel, lower
from fulgurite.kernel.transform.merge_axes import merge_axes
from fulgurite.kernel.transform.passes import TypedKernel
from fulgurite.tensor import Tensor

Array = np.ndarray[Any, Any]
_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_loaded: dict[tuple[str, Target], dict[str, int]] = {}
POISON = 0xA5
AROUND = 4096  # poisoned bytes on both sides of what kernels write


def functions(rendered: KernelText, machine: Target) -> dict[str, int]:
    """The addresses of a kernel's functions; each text is compiled once."""
    known: dict[str, int] = {}
    for text in rendered.library:
        if (text, machine) not in _loaded:
            _loaded[text, machine] = load(compile_object([text], machine), known)
        known |= _loaded[text, machine]
    if (rendered.text, machine) not in _loaded:
        _loaded[rendered.text, machine] = load(compile_object([rendered.text], machine), known)
    return known | _loaded[rendered.text, machine]


def rendered_kernels(*tensors: Tensor, machine: Target | None = None) -> list[KernelText]:
    """The kernels of a schedule as text."""
    return [_rendered(item.kernel, machine or target()) for item in schedule(*tensors).items]


def lowered(tensor: Tensor) -> tuple[IndexKernel, list[DType]]:
    """The last kernel of a schedule, its axes merged, and the dtypes of its params."""
    kernel = schedule(tensor).items[-1].kernel
    return merge_axes(lower(kernel.body, kernel.inputs)), list(param_dtypes(kernel))


def _rendered(kernel: Kernel, machine: Target) -> KernelText:
    return rendered(lower(kernel.body, kernel.inputs), param_dtypes(kernel), machine)


def rendered(kernel: IndexKernel, dtypes: Sequence[DType], machine: Target) -> KernelText:
    """A kernel as text, by the first template that takes it."""
    return render(TypedKernel(kernel, tuple(dtypes)), machine)


def looped(kernel: IndexKernel, dtypes: Sequence[DType], machine: Target) -> KernelText:
    """A kernel as text, by plain loops."""
    templates = passes_up_to(PLAIN, "unroll_short_axes")
    value = TypedKernel(merge_axes(kernel), tuple(dtypes))
    made = run_passes(value, Rendering(machine, UNWATCHED), PLAIN[len(templates) :])
    assert isinstance(made, KernelText)
    return made


def odd(array: Array, poison: bool = False) -> Array:
    """The same values (or garbage) at an odd address."""
    around = AROUND if poison else 0
    raw = np.empty(2 * around + array.nbytes + 65, np.uint8)
    start = 1 + around + (-raw.ctypes.data) % 64
    place = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    if poison:
        raw[:] = POISON
    else:
        place[...] = array
    return place


def check_around(what: str, begin: int, length: int) -> None:
    """Is the poison around some memory still there?"""
    for side, place in (("before", begin - AROUND), ("after", begin + length)):
        found = ctypes.string_at(place, AROUND)
        assert found == bytes([POISON]) * AROUND, f"a kernel wrote {side} {what}"


def run(
    *tensors: Tensor, seed: int | None = None, machine: Target | None = None
) -> tuple[list[Array], list[KernelText]]:
    """The values of tensors, kernel by kernel; with a seed, units run in a shuffled order."""
    found = schedule(*tensors)
    plan = found.compile().schedule
    wanted = machine or target()
    given = iter(_inputs(*tensors))
    slots: dict[int, Array] = {}
    for number, slot in enumerate(plan.slots):
        if number < plan.inputs:
            slots[number] = odd(next(given))
        elif slot is not None and slot.bits is not None:
            slots[number] = odd(np.asarray(array_of_bits(slot.bits, slot.dtype)))
    texts = []
    for item in plan.items:
        rendered = _rendered(item.kernel, wanted)
        texts.append(rendered)
        for number in item.writes:
            slot = plan.slots[number]
            assert slot is not None
            slots[number] = odd(np.empty(slot.shape, slot.dtype.numpy), poison=True)
        buffers = [slots[n] for n in (*item.reads, *item.writes)]
        _launch(rendered, buffers, functions(rendered, wanted), seed)
        for place in [slots[number] for number in item.writes if slots[number].size]:
            check_around("its output", place.ctypes.data, place.nbytes)
    found_ = [slots[n].reshape(t.shape) for n, t in zip(plan.outputs, tensors, strict=True)]
    return found_, texts


def _inputs(*tensors: Tensor) -> list[Array]:
    from fulgurite.graph.ir.cache_key import normalize
    from fulgurite.runtime.realize import inputs_of, lookup

    normal = normalize([t.node for t in tensors])
    compiled = lookup(normal, tensors[0].device)
    return [np.asarray(b.array) for b in inputs_of(normal, compiled)]  # type: ignore[attr-defined]


def _launch(
    rendered: KernelText, buffers: list[Array], code: dict[str, int], seed: int | None
) -> None:
    room = np.full(rendered.workspace + 64 + 2 * AROUND, POISON, np.uint8)
    workspace = room.ctypes.data + AROUND + (-room.ctypes.data) % 64
    addresses = [*[b.ctypes.data for b in buffers], workspace]
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    values = (ctypes.c_int64 * (FIRST + len(rendered.numbers)))(0, 0, *rendered.numbers)
    for launch in rendered.launches:
        call = _Function(code[launch.symbol])
        ranges = [(0, launch.units)]
        if seed is not None:
            chosen = random.Random(seed)
            cuts = sorted(chosen.sample(range(launch.units + 1), min(launch.units, 5)))
            ends = sorted({0, *cuts, launch.units})
            ranges = list(pairwise(ends))
            chosen.shuffle(ranges)
        for first, last in ranges:
            call(ctypes.addressof(pointers), ctypes.addressof(values), first, last)
    check_around("its workspace", workspace, rendered.workspace)
    assert values[0] == 0, "an index was outside its axis"
