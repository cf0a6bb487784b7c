"""Where compiled code is kept on disk, and whether anything is there; loaded before all else."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...config import Options


def cache_folder(chosen: str = "") -> str:
    """Where compiled code is kept: the chosen folder, or the platform's cache folder."""
    if chosen:
        return os.path.abspath(os.path.expanduser(chosen))
    if sys.platform != "linux":  # where the import costs 10 ms and gives the answer below
        with suppress(ImportError):
            import platformdirs

            return str(platformdirs.user_cache_dir("fulgurite", appauthor=False))
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache")
    return os.path.join(base, "fulgurite")


def is_empty(folder: str) -> bool:
    """True if nothing is in a folder, or it is not there."""
    try:
        with os.scandir(folder) as found:
            return next(found, None) is None
    except OSError:
        return True


def has_nothing(options: Options) -> bool:
    """True if no code can be found on disk."""
    return not options.disk_cache or is_empty(cache_folder(options.cache_dir))
