"""Exported machine code: the objects of a plan, and of the driver that launches them.

In: the code of a plan's kernels. Out: members of a file, and what they are for: the target, and a
digest of how kernels are launched, in which code and driver must agree. Code for another machine
is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...codegen.cpu.driver import driver_text
from ...codegen.cpu.driver_loops import loop_text
from ...codegen.cpu.driver_pool import pool_text
from ...core.digest import blake2b
from ..device import DeviceError, Executable
from .objects import Native, Object
from .toolchain import code, code_for

if TYPE_CHECKING:
    from ...codegen.cpu.target import Target


def export_code(made: Sequence[Executable], members: dict[str, bytes]) -> dict[str, Any]:
    """The machine code of a plan and of the driver, as members, and what it is for."""
    target, auto = code().target, code_for("auto")
    parts = _driver(target.arch)
    auto.have([(auto.digest(text), text, ()) for text in parts])
    known = {**auto.objects, **code().objects}
    objects: dict[str, Any] = {}
    stack = [*map(auto.digest, parts), *_digests(made)]
    while stack:
        found = known[stack.pop()]
        name = f"objects/{_digest(found.data)}"
        if name not in objects:
            objects[name] = {"texts": found.texts, "needs": found.needs}
            members[name] = found.data
            stack.extend(found.needs)
    return {
        "objects": objects, "launch": _launch(target.arch),
        "target": [target.arch, target.vectors, sorted(target.features)],
    }  # fmt: skip


def _digests(made: Sequence[Executable]) -> Iterator[str]:
    """The texts of all native kernels, those inside loops and choices too."""
    for one in made:
        if isinstance(one, Native):
            yield one.digest
        for plan in getattr(one, "plans", ()):
            yield from _digests([kernel.code for kernel in plan.kernels])


def _launch(arch: str) -> str:
    """How kernels are launched: code and driver must agree in it."""
    return _digest("".join(_driver(arch)).encode())


def _driver(arch: str) -> list[str]:
    """The texts of the driver: here or where the code goes there may be more threads."""
    return [driver_text(), pool_text(arch), loop_text()]


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def import_code(about: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
    """Make the machine code known here, if it is for this machine."""
    made = code()
    _check_target(about, made.target)
    objects = [
        Object(members[name], tuple(o["texts"]), tuple(o["needs"]))
        for name, o in about["objects"].items()
    ]
    ordered = _callees_first(objects, set(made.objects))
    for table in {id(c): c for c in (made, code_for("auto"))}.values():
        table.install(ordered)


def _check_target(about: Mapping[str, Any], mine: Target) -> None:
    """Raise a DeviceError if code is for another machine, or another driver."""
    arch, vectors, features = about["target"]
    if arch != mine.arch or vectors != mine.vectors:
        raise DeviceError(
            f"it is for {arch} with {vectors}, and this is {mine.arch} with {mine.vectors}"
        )
    if missing := sorted(set(features) - mine.features):
        raise DeviceError(f"this machine lacks {', '.join(missing)}")
    if about["launch"] != _launch(mine.arch):
        raise DeviceError("another version of this package made it")


def _callees_first(waiting: list[Object], known: set[str]) -> list[Object]:
    """Objects in an order in which each needs only those before it, and texts that are known."""
    ordered: list[Object] = []
    while waiting:
        ready = [o for o in waiting if set(o.needs) <= known]
        if not ready:
            raise DeviceError("some of its code is missing")
        ordered += ready
        known.update(text for o in ready for text in o.texts)
        waiting = [o for o in waiting if o not in ready]
    return ordered
