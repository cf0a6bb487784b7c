"""Where plans for many sizes are kept on disk, and under which key.

In: a graph with its sizes blank, named or as expressions. Out: a `SizedStore`, which keeps rows of
JSON and gives them back; where the disk is of no use it keeps nothing. Rows are checked when they
are read, and what is wrong with them is a warning and a miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeVar
from weakref import finalize

from ...config import Options
from ...core.digest import digest_of
from ...core.dtype import DType
from ...core.node import Node, Shape
from ...core.op import Op
from ...core.origin import Origin
from ...core.symbolic.sym import sized
from ...graph.ir.cache_key import Normal
from ...graph.memory.in_place import Donated
from ..cache.plan_cache import kept_plans, stored_plans
from ..plan_key import has_patterns
from .sized_io import dump_sized, load_sized
from .specialize import SizedPlan

T = TypeVar("T")
_LATER: set[tuple[int, str]] = set()  # whose plans are still to be written


class Line(NamedTuple):
    """What is known of a node when the graph is gone: also the root of one."""

    origins: tuple[Origin, ...]
    op: Op
    shape: Shape = ()
    dtype: DType | None = None


class _Lines(Sequence[Line]):
    """The lines of nodes that are not held, each put together when somebody asks."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        one: dict[int, tuple[Origin, ...]] = {}  # a tuple for all nodes of a line
        self.origins = [
            one.setdefault(id(n.origins[0]), n.origins) if len(n.origins) == 1 else n.origins
            for n in nodes
        ]
        self.ops = [n.op for n in nodes]

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, place: Any) -> Any:
        return Line(self.origins[place], self.ops[place])


def without_nodes(normal: Normal) -> Normal:
    """A graph's key, its buffers and its lines: `restore` makes the nodes, which nobody holds."""
    lines: Any = _Lines(normal.nodes)
    return normal._replace(nodes=lines, assigned=(), extremes=())


def written_out(normal: Normal) -> Normal:
    """A graph whose sizes that vary are expressions as data, which a digest can be made of."""
    known: dict[Any, Any] = {"node": lambda node: node}
    parts = normal.structure, normal.constants
    structure, constants = sized(parts, lambda size: ("size", size.key), known)  # type: ignore[arg-type, return-value]
    return normal._replace(structure=structure, constants=constants)


class SizedStore:
    """The plans of one graph of many sizes on disk."""

    def __init__(
        self, normal: Normal, options: Options, device: str, donated: Donated = (),
        lifted: dict[int, DType] | None = None,
    ) -> None:  # fmt: skip
        # of the graph, none of whose nodes is held
        lines: Any = _Lines(normal.nodes)
        self.lines = Normal((), (), (), {}, lines)
        self.device = device
        self.kept = None if has_patterns(options) else kept_plans(device, options, normal)
        self.key: str | None = None
        if self.kept is not None:
            key = self.kept.key(normal, lifted or {}, device, options, donated)
            self.key = None if key is None else digest_of(f"sizes {key}")

    @classmethod
    def known(cls, key: str | None, lines: Normal, options: Options, device: str) -> SizedStore:
        """That of a graph whose key is known, and of the graph nothing but its lines."""
        found = cls.__new__(cls)
        found.lines, found.device, found.key = lines, device, key
        found.kept = None if has_patterns(options) else stored_plans(device, options)
        return found

    def part(self, about: str) -> SizedStore:
        """Where those plans are kept that this is true of."""
        found = copy(self)
        found.key = None if self.key is None else digest_of(f"{about} {self.key}")
        return found

    def keep(self, rows: Sequence[dict[str, Any] | None]) -> None:
        """Write what there is for the next process."""
        found = [row for row in rows if row is not None]
        if self.kept is not None and self.key is not None and found:
            self.kept.keep_sized(self.key, found)

    def load(self, load: Callable[[Any], T | None]) -> list[T]:
        """What another process wrote, made by a function of a row."""
        if self.kept is None or self.key is None:
            return []
        return [found for found in self.kept.sized(self.key, load) if found is not None]

    def keep_plans(self, plans: Sequence[SizedPlan]) -> None:
        """Write plans for the next process."""
        if self.key is not None:
            self.keep([dump_sized(plan, self.lines) for plan in plans])

    def keep_later(self, plans: Sequence[SizedPlan], owner: object) -> None:
        """Write plans that grew when who owns them goes, or the process: they may grow again."""
        if self.key is not None and (id(owner), self.key) not in _LATER:
            finalize(owner, self._keep_now, plans, (id(owner), self.key))
            _LATER.add((id(owner), self.key))

    def _keep_now(self, plans: Sequence[SizedPlan], asked: tuple[int, str]) -> None:
        _LATER.discard(asked)
        self.keep_plans(plans)

    def load_plans(self) -> list[SizedPlan]:
        """The plans that another process wrote."""
        return self.load(lambda row: load_sized(row, self.lines, self.device))
