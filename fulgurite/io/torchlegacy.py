"""torch's checkpoints before 1.6, and those saved without a zip archive since.

In: the bytes of a file that begins with a pickle. Out: what was saved, as from a zip archive. It
is four pickles (a magic number, the version of the protocol, facts about the machine, the value),
a fifth that lists the storages in the order of their bytes, and for each of them its count of
elements and its bytes, which are little-endian whoever wrote them. The value comes before its
storages: it is read twice, first for what it claims of them, then over their bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from ..core.dtype import DType
from ..core.op import Array
from .files import Refusal
from .torchtensors import Rebuilder, Storage, claimed_storage, finished, item_size
from .unpickle import unpickle_part

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001


def load_legacy(raw: Array, device: str | None) -> Any:
    """What torch put into a file of pickles and storages; nothing in it is executed."""
    return _Reader(raw, device).read()


class _Reader(Rebuilder):
    """One file."""

    def __init__(self, raw: Array, device: str | None) -> None:
        super().__init__(device)
        self.raw, self.view, self.at = raw, memoryview(raw), 0  # type: ignore[arg-type]
        self.claims: dict[str, tuple[DType | None, int]] = {}
        self.storages: dict[str, Array] | None = None  # None: the claims are being collected

    def read(self) -> Any:
        """The value that the file holds."""
        if self._plain() != MAGIC:
            raise Refusal(
                "it is a pickle, but not one of torch.save", "save tensors, as .safetensors or .npz"
            )
        version = self._plain()
        if version != VERSION:
            raise Refusal(f"its protocol has the version {str(version)[:50]}, not {VERSION}")
        if not isinstance(self._plain(), dict):
            raise Refusal("it does not tell of the machine that wrote it")
        start = self.at
        self._value()
        self.storages = self._storages(self._plain())
        self.at = start
        return finished(self._value(), 0)

    def _plain(self) -> Any:
        """The next pickle, of numbers, text and containers alone."""
        found, self.at = unpickle_part(self.view, self.at, {}, _no_storage)
        return found

    def _value(self) -> Any:
        found, self.at = unpickle_part(self.view, self.at, self.globals(), self.storage)
        return found

    def _storages(self, keys: Any) -> dict[str, Array]:
        """The bytes of each storage, whose sizes must be those claimed."""
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise Refusal("it does not list its storages")
        found: dict[str, Array] = {}
        for key in keys:
            if key not in self.claims or key in found:
                raise Refusal(f"it lists a storage {key[:100]!r} that its pickle does not name")
            dtype, claimed = self.claims[key]
            head = self.raw[self.at : self.at + 8].tobytes()
            if len(head) < 8:
                raise Refusal(f"it ends before its storage {key[:100]!r}")
            (count,) = struct.unpack("<q", head)
            size = claimed * item_size(dtype)
            if count != claimed or self.raw.size - self.at - 8 < size:
                raise Refusal(f"its storage {key[:100]!r} is shorter than it should be")
            found[key] = self.raw[self.at + 8 : self.at + 8 + size]
            self.at += 8 + size
        missing = self.claims.keys() - found.keys()
        if missing:
            raise Refusal(f"its storage {min(missing)[:100]!r} is missing")
        return found

    def storage(self, persistent: Any) -> Storage:
        """What a persistent id stands for: a storage, or a part of one (torch before 0.4)."""
        if isinstance(persistent, tuple) and persistent[:1] == ("module",):
            raise Refusal("it holds a whole module", "save its state_dict()")
        if not (isinstance(persistent, tuple) and len(persistent) == 6):
            raise Refusal("its pickle refers to something that is no storage")
        key, dtype, count = claimed_storage(persistent)
        if self.claims.setdefault(key, (dtype, count)) != (dtype, count):
            raise Refusal(f"its storage {key[:100]!r} has two sizes or dtypes")
        part, step = persistent[5], item_size(dtype)
        raw = self.raw[:0] if self.storages is None else self.storages[key]
        if part is None:
            return Storage(raw, dtype)
        if not (isinstance(part, tuple) and len(part) == 3):
            raise Refusal("it has a part of a storage without its place")
        _, offset, size = part
        if not (type(offset) is type(size) is int and 0 <= offset <= offset + size <= count):
            raise Refusal(f"a part of its storage {key[:100]!r} goes beyond it")
        return Storage(raw[offset * step : (offset + size) * step], dtype)

    def _view(self, raw: Array, dtype: DType, offset: Any, size: Any, stride: Any) -> Any:
        if self.storages is None:  # nothing to look at yet, and nobody who would
            return None
        return super()._view(raw, dtype, offset, size, stride)


def _no_storage(persistent: Any) -> Any:
    raise Refusal("it refers to a storage where none can be")
