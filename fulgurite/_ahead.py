"""Started ahead: what a target needs before all else, while this package is imported.

In: `FULGURITE_DEVICE`. Out: where code will have to be compiled, nothing being on disk, the
compiler of that device's target gets ready (`codegen/<target>/ahead.py`, of targets that have
one). Without the variable nothing is loaded. Nothing of a device is touched: a fork stays legal.
Children of `multiprocessing` wait until they use a device: most of them load data.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

_TARGETS = os.path.join(os.path.dirname(__file__), "codegen")
_OFF = ("0", "false", "off")


def start(environment: dict[str, str] | os._Environ[str]) -> None:
    """Have a compiler get ready, if the environment says which and nothing is on disk."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.current_process().name != "MainProcess":
        return
    target = environment.get("FULGURITE_DEVICE", "").partition(":")[0]
    if not target.isidentifier() or not os.path.exists(os.path.join(_TARGETS, target, "ahead.py")):
        return
    from .runtime import cache

    kept = environment.get("FULGURITE_DISK_CACHE", "1").lower() not in _OFF
    if kept and not cache.is_empty(cache.cache_folder(environment.get("FULGURITE_CACHE_DIR", ""))):
        return
    import_module(f"{__package__}.codegen.{target}.ahead").start()


start(os.environ)
