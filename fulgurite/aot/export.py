"""Schedules in a file: a plan that one process compiled runs in another, which compiles nothing.

In: a compiled graph, or a path. Out: a file (a zip: a manifest and the plan as JSON, machine code
as objects; no pickle), or a `LoadedSchedule` that is run with arrays. The file ends with the digest
of all its other bytes; the target and the way that kernels are launched must be those of this
machine and this version. A file of which any bit was changed, or that is for another machine, is
refused. It holds machine code: load only what you trust, as with any program.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._lazy import FORK_LOCK
from ..config import current
from ..core.digest import blake2b
from ..core.dtype import DType, array_of_bits, dtype_of
from ..core.node import Node
from ..core.op import Array
from ..core.ops.effect import HOST_FUNCTIONS
from ..core.ops.leaf import new_buffer
from ..errors import ArgumentError, DTypeError, FulguriteError, ShapeError
from ..graph.ir.cache_key import Normal, hosts_in
from ..graph.ir.kernel import Item
from ..graph.ir.kernel_kind import KernelKind
from ..graph.ir.registry import REGISTRY
from ..runtime.cache.archive import DAMAGES
from ..runtime.device import Buffer, DeviceError, get_device
from ..runtime.plan import Plan
from ..runtime.realize import Compiled, storage_of, value_node
from ..runtime.step_executor import concrete
from ..tensor import Tensor, realize_among, wrap

FORMAT = 1
_COMMENT = f"fulgurite schedule {FORMAT} ".encode()
_SIGNED = 32  # characters of the digest at the end
_TAIL = len(_COMMENT) + _SIGNED
_MAX_MEMBER_BYTES = 1 << 32  # bytes of one member


class ScheduleFileError(FulguriteError, ValueError):
    """A file that holds no schedule for this machine."""


@dataclass(frozen=True)
class Input:
    """What a schedule is run with."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} {self.shape}"


# --- writing -------------------------------------------------------------------------------------


def save(
    path: str | os.PathLike[str], normal: Normal, compiled: Compiled, roots: Sequence[Node],
    names: Mapping[str, int],
) -> None:  # fmt: skip
    """Write a compiled graph, with all the code that it needs."""
    for host in hosts_in(normal.structure):
        if host.kind == KernelKind.HOST and HOST_FUNCTIONS.get(host.name) is not host:
            raise ArgumentError(
                f"host function {host.name!r} has no name that another process could know",
                "register it in both: fg.register_host(name, function)",
            )
    plan = compiled.plan
    with FORK_LOCK:
        from ..runtime.cache import plan_io as stored
    order, listed = _inputs(normal, names)
    members: dict[str, bytes] = {"plan.json": b""}
    manifest: dict[str, Any] = {
        "format": FORMAT, "device": plan.device, "inputs": listed, "order": order,
        "outputs": [[root.dtype.name, list(concrete(root.shape, normal.values))] for root in roots],
        "values": normal.values,
        "lifted": [[normal.constants[i], dtype.name] for i, dtype in compiled.lifted.items()],
        "lines": [list(item.lines) for item in plan.schedule.items],
    }  # fmt: skip
    code = [kernel.code for kernel in plan.kernels]
    manifest |= get_device(plan.device).export_code(code, members)
    members["plan.json"] = stored.dump(plan, normal)  # names what a library may not be there for
    manifest["members"] = list(members)
    _write(path, json.dumps(manifest).encode(), members)


def _inputs(
    normal: Normal, names: Mapping[str, int]
) -> tuple[list[int], list[tuple[str, str, list[int]]]]:
    """In which order inputs are given, and what each is: those with a name first."""
    order = {number: name for name, number in names.items()}
    rest = [i for i in range(len(normal.buffers)) if i not in order]
    order.update({i: f"input{number}" for number, i in enumerate(rest)})
    if len(set(order.values())) != len(order):
        raise ArgumentError("two inputs have one name", "input0, input1, ... are taken")
    buffers = [normal.buffers[i] for i in order]
    kinds = [(b.dtype.name, list(b.shape)) for b in buffers]
    return list(order), [(n, d, s) for n, (d, s) in zip(order.values(), kinds, strict=True)]  # type: ignore[misc]


def _digest(data: bytes | memoryview) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _write(path: str | os.PathLike[str], manifest: bytes, members: Mapping[str, bytes]) -> None:
    """All of the file, or none of it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("manifest.json", manifest)
        for name, data in members.items():
            archive.writestr(name, data)
        archive.comment = _COMMENT + b"0" * _SIGNED
    signed = packed.getbuffer()[:-_SIGNED]
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(prefix=".schedule-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(signed)
            file.write(_digest(signed).encode())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


# --- reading -------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> LoadedSchedule:
    """Read a file that `save` wrote."""
    try:
        with open(path, "rb") as file:
            data = memoryview(file.read())
        if not bytes(data[-_TAIL:]).startswith(_COMMENT):
            raise _refused(path, "it holds no schedule of this version")
        if bytes(data[-_SIGNED:]) != _digest(data[:-_SIGNED]).encode():
            raise _refused(path, "it was changed")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            about = json.loads(_member(archive, "manifest.json"))
            members = {name: _member(archive, name) for name in about["members"]}
        return _loaded(path, about, members)
    except (FileNotFoundError, FulguriteError):
        raise
    except (*DAMAGES, ValueError, TypeError, AttributeError) as problem:
        raise _refused(path, f"it is damaged ({problem})") from problem


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > _MAX_MEMBER_BYTES:
        raise zipfile.BadZipFile(f"{name} is packed in another way")
    return archive.read(name)


def _refused(path: Any, why: str) -> ScheduleFileError:
    return ScheduleFileError(f"{os.fspath(path)} is refused: {why}", "save the schedule again here")


def _loaded(path: Any, about: Mapping[str, Any], members: Mapping[str, bytes]) -> LoadedSchedule:
    if about["format"] != FORMAT:
        raise _refused(path, f"its format is {about['format']}, not {FORMAT}")
    device: str = about["device"]
    if get_device(device).name != device:
        raise _refused(path, f"it is for the {device} device, which is not here")
    try:
        get_device(device).import_code(about, members)
    except DeviceError as problem:
        raise _refused(path, problem.what) from None
    nothing = Normal((), (), (), {}, ())
    with FORK_LOCK:
        from ..runtime.cache import plan_io
    plan = plan_io.load_plan(members["plan.json"], nothing, device)
    if plan is None:
        raise _refused(path, "some of its code is missing")
    return LoadedSchedule(plan, about)


class LoadedSchedule:
    """A schedule from a file: it is run with arrays, by position or by name."""

    def __init__(self, plan: Plan, about: Mapping[str, Any]) -> None:
        self.plan = plan
        self.inputs = tuple([Input(n, dtype_of(d), tuple(s)) for n, d, s in about["inputs"]])
        self._order: list[int] = about["order"]
        self._values: dict[str, int] = about["values"]
        self._outputs = [(dtype_of(d), tuple(s)) for d, s in about["outputs"]]
        device = get_device(plan.device)
        self._constants: list[Buffer] = [
            device.from_host(array_of_bits(bits, dtype_of(name))) for bits, name in about["lifted"]
        ]
        self.lines = tuple([tuple(lines) for lines in about["lines"]])
        counted = len(self._order) + len(self._constants)
        if sorted(self._order) != list(range(len(self.inputs))) or counted != plan.schedule.inputs:
            raise KeyError("inputs")

    @property
    def items(self) -> tuple[Item, ...]:
        """The kernels in the order they run; `lines` has the lines that each computes."""
        return self.plan.schedule.items

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        given = ", ".join(map(str, self.inputs))
        return f"given {given or 'nothing'}\n{self.plan.schedule}"

    def run(self, *arrays: Any, **named: Any) -> tuple[Tensor, ...]:
        """The results for these inputs, as fresh tensors."""
        given = self._given(arrays, named)
        device = get_device(self.plan.device)
        inputs: list[Any] = [None] * len(self.inputs)
        realize_among(given.values())
        for place, wanted in zip(self._order, self.inputs, strict=True):
            inputs[place] = self._buffer(given[wanted.name], wanted)
        outputs = self.plan.run([*inputs, *self._constants], self._values, current().poison)
        found = []
        for output, (dtype, shape) in zip(outputs, self._outputs, strict=True):
            node = new_buffer(shape, dtype, device.name)
            REGISTRY.attach(node, output)
            found.append(wrap(node))
        return tuple(found)

    def _given(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        names = [wanted.name for wanted in self.inputs]
        listed = ", ".join(map(str, self.inputs)) or "none"
        if len(arrays) > len(names):
            raise ArgumentError(
                f"{len(arrays)} arrays for {len(names)} inputs", f"the inputs are {listed}"
            )
        given = dict(zip(names, arrays, strict=False))
        for name, array in named.items():
            if name in given or name not in names:
                what = "is given twice" if name in given else "is no input"
                raise ArgumentError(f"{name!r} {what}", f"the inputs are {listed}")
            given[name] = array
        missing = [name for name in names if name not in given]
        if missing:
            raise ArgumentError(f"{', '.join(missing)} is not given", f"the inputs are {listed}")
        return given

    def _buffer(self, array: Any, wanted: Input) -> Buffer:
        device = get_device(self.plan.device)
        if isinstance(array, Tensor):
            node = value_node(array.realize().node)
            assert node is not None
            _check(wanted, node.dtype, tuple(node.shape))
            memory = storage_of(node)
            if node.device == self.plan.device:
                return memory
            there = get_device(node.device or "")
            return device.copy_from(there, memory, wanted.shape, wanted.dtype)
        found: Array = np.asarray(array)
        _check(wanted, dtype_of(found.dtype), found.shape)
        return device.from_host(found.reshape(wanted.shape))


def _check(wanted: Input, dtype: DType, shape: tuple[Any, ...]) -> None:
    if dtype is not wanted.dtype:
        raise DTypeError(f"input {wanted.name} is {dtype}, not {wanted.dtype}", "cast it first")
    if shape != wanted.shape:
        raise ShapeError(
            f"input {wanted.name} has shape {shape}, not {wanted.shape}", "give it that shape"
        )
