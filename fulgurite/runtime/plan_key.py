"""The key of a plan: what it depends on besides the graph.

In: the options and the device. Out: what stands beside the structure of a graph in every cache of
plans. It is apart from `pipeline.py`, so that a process which finds its plans loads no pass.
"""

from __future__ import annotations

from collections.abc import Hashable

from .._lazy import FORK_LOCK
from ..config import Options
from ..graph.fusion.user_patterns import PATTERNS, version
from ..graph.memory.in_place import Append, Donated
from .device import get_device


def cache_key(device: str, options: Options, donated: Donated = ()) -> tuple[Hashable, ...]:
    """What a plan depends on besides the graph; most devices have one tier only."""
    tier = options.tier if get_device(device).has_tiny_tier else ""
    if not options.search:
        return device, options.key, tier, donated
    return device, options.key, tier, donated, tuned(options), version()


def tuned(options: Options) -> str:
    """Which table of rates plans are chosen by."""
    if options.tune == "off" or not options.search:
        return ""
    with FORK_LOCK:
        from . import tuning
    return tuning.table_for(options).digest


def is_searched(options: Options) -> bool:
    """True if kernels are searched for; folds reassociate, which `exact` forbids."""
    return options.search and options.fuse and not options.exact


def may_be_tiny(options: Options, device: str) -> bool:
    """True if NumPy may run a whole graph in the place of the device."""
    return options.tier == "auto" and get_device(device).has_tiny_tier


def may_run_as_built(options: Options, device: str, donated: Donated) -> bool:
    """True if NumPy may run a graph that no pass has looked at."""
    appends = any([isinstance(pair, Append) for pair in donated])
    return may_be_tiny(options, device) and not appends and not has_patterns(options)


def has_patterns(options: Options) -> bool:
    """True if kernels of the user may replace expressions."""
    return is_searched(options) and bool(PATTERNS)
