"""Whether a graph's plan may come from the disk, and how it gets there.

In: a device, options, a normalised graph. Out: `Kept`, or None where the disk is of no use: it is
switched off, the device keeps nothing, or the graph is so small that looking costs more than
running. Of several processes that miss the same key one compiles and the others wait for it.
What is wrong with a kept plan is a warning and a miss.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..._lazy import FORK_LOCK
from ...config import Options
from ...core.digest import digest_of
from ...core.dtype import DType
from ...errors import FulguriteError
from ...graph.ir.cache_key import Normal
from ...graph.tiny import are_tiny
from ..device import get_device

if TYPE_CHECKING:
    from ..plan import Plan
    from .disk import Store


T = TypeVar("T")
LOADED = time.time_ns()  # sources that change later are not those that run


class PlanCache:
    """Plans of one store."""

    def __init__(self, store: Store, device: str) -> None:
        self.device = device
        with FORK_LOCK:
            from . import plan_io
        self.store, self.stored = store, plan_io

    def key(
        self, normal: Normal, lifted: dict[int, DType], device: str, options: Options,
        donated: tuple[tuple[int, ...], ...] = (), body: bool = False,
    ) -> str | None:  # fmt: skip
        """What the plan of a graph, or of the body of a loop, is kept under, if it can be."""
        build = build_of(self.store)
        if build is None:
            return None
        key: str | None = self.stored.plan_key(
            normal, lifted, device, options, build, donated, body
        )
        if key is not None and options.search and options.tune != "off":
            with FORK_LOCK:
                from .. import tuning
            table = tuning.table_for(options).digest
            key = digest_of(f"{key} {table}")
        return key

    @contextmanager
    def look(self, key: str, normal: Normal) -> Iterator[Plan | None]:
        """The plan, or None with the right to make it."""
        found = self._load(key, normal)
        if found is not None:
            yield found
            return
        with self.store.lease(key):
            yield self._load(key, normal)

    def _load(self, key: str, normal: Normal) -> Plan | None:
        data = self.store.get("plan", key)
        if data is None:
            return None
        try:
            return self.stored.load_plan(data, normal, self.device)
        except (FulguriteError, ValueError, KeyError, TypeError, IndexError) as problem:
            warnings.warn(f"a stored plan is not used: {problem}", RuntimeWarning, stacklevel=2)
            return None

    def keep(self, key: str, plan: Plan, normal: Normal) -> None:
        """Write a plan for the next process."""
        self.store.put("plan", key, self.stored.dump(plan, normal))

    def keep_sized(self, key: str, rows: list[dict[str, Any]]) -> None:
        """Write plans for many sizes for the next process."""
        self.store.put("sizes", key, json.dumps(rows, separators=(",", ":")).encode())

    @property
    def has_sized(self) -> bool:
        """True if there may be plans for many sizes: a key without sizes is worth its price."""
        return self.store.has("sizes")

    def sized(self, key: str, load: Callable[[Any], T]) -> list[T]:
        """The plans for many sizes of a key; what is wrong with them is a warning and a miss."""
        data = self.store.get("sizes", key)
        if data is None:
            return []
        try:
            return [load(row) for row in json.loads(data)]
        except (FulguriteError, ValueError, KeyError, TypeError, IndexError) as problem:
            warnings.warn(f"a stored plan is not used: {problem}", RuntimeWarning, stacklevel=2)
            return []


def build_of(store: Store, whole: bool = False) -> str | None:
    """Which sources this process runs; None: they were changed since, or cannot be read.

    Those that plans depend on, or the whole package.
    """
    with FORK_LOCK:
        from . import fingerprint
    return fingerprint.fingerprint(store, LOADED, whole)


def kept_plans(device: str, options: Options, normal: Normal) -> PlanCache | None:
    """Where plans like this one are kept, if anywhere."""
    backend = get_device(device)
    if backend.has_tiny_tier and options.tier == "auto" and are_tiny(normal.nodes):
        return None
    return stored_plans(device, options)


def stored_plans(device: str, options: Options) -> PlanCache | None:
    """Where plans of a device are kept, if anywhere."""
    if get_device(device).plan_key() is None:
        return None
    with FORK_LOCK:
        from . import disk
    store = disk.store_for(options)
    return PlanCache(store, device) if store is not None else None
