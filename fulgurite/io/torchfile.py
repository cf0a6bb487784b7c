"""torch's checkpoints (`.pt`, `.pth`, `.bin`, `.ckpt`), read without torch and without pickle.

In: a path. Out: what was saved: nests of dicts, lists, numbers, text and tensors, the tensors over
the file's memory-mapped bytes. Since torch 1.6 a checkpoint is a zip archive with a pickle and a
member for each storage; `torchlegacy` reads those before. Nothing in either is executed (see
`unpickle`). Whole modules and TorchScript programs are refused with what to do instead.
"""

from __future__ import annotations

from typing import Any

from ..core.op import Array
from .files import Path, Refusal, mapped, reading
from .torchlegacy import load_legacy
from .torchtensors import Rebuilder, Storage, claimed_storage, finished, item_size
from .unpickle import unpickle
from .zips import Archive

KIND = "a torch checkpoint"


def load_torch(path: Path, device: str | None = None) -> Any:
    """What `torch.save` put into a file, with tensors of ours; nothing in it is executed."""
    return reading(path, KIND, lambda name: _read(mapped(name), device))


def _read(raw: Array, device: str | None) -> Any:
    if raw[:2].tobytes() == b"PK":
        return _Reader(raw, device).read()
    if raw[:1].tobytes() == b"\x80":
        return load_legacy(raw, device)
    if raw[257:262].tobytes() == b"ustar":
        raise Refusal(
            "it is a tar archive, as the first torch wrote", "load it with torch and save it again"
        )
    raise Refusal("it is no zip archive and no pickle")


class _Reader(Rebuilder):
    """One zip archive."""

    def __init__(self, raw: Array, device: str | None) -> None:
        self.archive = Archive(raw)
        found = [name for name in self.archive if name.rpartition("/")[2] == "data.pkl"]
        if len(found) != 1 or found[0].count("/") > 1:
            raise Refusal("it has no data.pkl, which a checkpoint has")
        self.root = found[0].removesuffix("data.pkl")
        if f"{self.root}constants.pkl" in self.archive:
            raise Refusal("it is a TorchScript program", "save the state_dict() of the module")
        self.storages: dict[str, Array] = {}
        super().__init__(device, self._byte_order())

    def _byte_order(self) -> bool:
        name = f"{self.root}byteorder"
        order = self.archive.check(name).tobytes() if name in self.archive else b"little"
        if order not in (b"little", b"big"):
            raise Refusal("its byte order is neither little nor big")
        return order == b"big"

    def read(self) -> Any:
        """The value that the archive holds."""
        pickle = self.archive.check(f"{self.root}data.pkl").tobytes()
        return finished(unpickle(pickle, self.globals(), self.storage), 0)

    def storage(self, persistent: Any) -> Storage:
        """What a persistent id of the pickle stands for."""
        if not (isinstance(persistent, tuple) and len(persistent) == 5):
            raise Refusal("its pickle refers to something that is no storage")
        key, dtype, count = claimed_storage(persistent)
        if key not in self.storages:
            member = f"{self.root}data/{key}"
            if member not in self.archive:
                raise Refusal(f"its storage {key[:100]!r} is missing")
            raw = self.archive[member]
            if raw.size < count * item_size(dtype):
                raise Refusal(f"its storage {key[:100]!r} is shorter than it should be")
            self.storages[key] = raw
        return Storage(self.storages[key], dtype)
