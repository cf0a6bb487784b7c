"""The `fulgurite cache` command: look at the disk cache, empty it, carry it elsewhere.

In: the parser of `fulgurite` and, later, the words after `fulgurite cache`. Out: a few lines of
text and an exit code, 1 if something could not be done. Which folder and which limit is said by
the environment, exactly as for a program that uses the cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import Options
    from ..runtime.cache.disk import Store

DESCRIPTION = """Compiled code is kept on disk, so that the next process starts at once. It is
safe to remove at any time: what is missing is compiled again."""
EPILOG = """FULGURITE_CACHE_DIR chooses the folder, FULGURITE_CACHE_LIMIT the most bytes it may
hold, and FULGURITE_DISK_CACHE=0 switches the disk cache off."""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `cache` and its own commands to the parser of `fulgurite`."""
    parser = commands.add_parser(
        "cache",
        help="show, empty, export or import the compiled code kept on disk",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.set_defaults(run=lambda _: parser.print_help() or 0)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, run, text, more in (
        ("stats", stats, "show the folder and how much is in it", ""),
        ("clear", clear, "remove everything in it", " Programs that run now are not disturbed."),
        ("export", export, "write everything in it to one FILE", " FILE becomes a zip archive."),
        ("import", import_, "add what 'export' wrote to FILE", " FILE is checked, and refused as "
         "a whole if it is damaged. It holds machine code that later programs will run: import "
         "only what you trust. Code for other processors or versions stays unused."),
    ):  # fmt: skip
        action = actions.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.{more}", epilog=EPILOG
        )
        if name in ("export", "import"):
            action.add_argument("file", metavar="FILE", help="for example cache.zip")
        action.set_defaults(run=lambda arguments, run=run: _run(run, arguments))


def stats(store: Store, options: Options, arguments: argparse.Namespace) -> int:
    """Print where the cache is and what it holds."""
    found = store.stats()
    part = f"{found.size / found.limit:.0%} of {human(found.limit)}" if found.limit else "limit 0"
    state = "" if options.disk_cache else " (switched off by FULGURITE_DISK_CACHE)"
    print(f"folder   {found.folder}{state}")
    print(f"in use   {human(found.size)}, {part}")
    for kind, (count, size) in found.kinds.items():
        print(f"{kind + 's':<7}  {_entries(count)}, {human(size)}")
    return 0


def clear(store: Store, options: Options, arguments: argparse.Namespace) -> int:
    """Remove every entry and say how many there were."""
    removed = store.clear()
    print(f"removed {_entries(removed.entries)} ({human(removed.size)}) from {removed.folder}")
    left = store.stats().entries
    if left:
        print(f"{_entries(left)} could not be removed", file=sys.stderr)
    return 1 if left else 0


def export(store: Store, options: Options, arguments: argparse.Namespace) -> int:
    """Write the archive and say how large it is."""
    try:
        count = store.export(arguments.file)
    except OSError as error:
        raise _unusable(
            f"{arguments.file} cannot be written: {error.strerror or error}",
            "name a file in a folder that exists, that you may write to and that has room",
        ) from error
    size = human(os.path.getsize(arguments.file))
    print(f"exported {_entries(count)} to {arguments.file} ({size})")
    return 0


def import_(store: Store, options: Options, arguments: argparse.Namespace) -> int:
    """Read the archive and say how much the cache holds now."""
    try:
        count, expected = store.import_(arguments.file)
    except OSError as error:
        raise _unusable(
            f"{arguments.file} cannot be read: {error.strerror or error}",
            "name a file that 'fulgurite cache export' wrote and that you may read",
        ) from error
    found = store.stats()
    print(f"imported {_entries(count)} from {arguments.file}")
    print(f"the cache now holds {_entries(found.entries)} ({human(found.size)})")
    if count < expected:
        print(f"{_entries(expected - count)} could not be stored", file=sys.stderr)
    return 1 if count < expected else 0


def _unusable(what: str, hint: str) -> Exception:
    from ..errors import ArgumentError

    return ArgumentError(what, hint, where="")


def human(size: int) -> str:
    """A number of bytes for people: 12 bytes, 3.4 KiB, 1.0 GiB."""
    if size < 1024:
        return f"{size} byte{'' if size == 1 else 's'}"
    amount, units = size / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while amount >= 1023.95 and len(units) > 1:
        amount /= 1024
        del units[0]
    return f"{amount:.1f} {units[0]}"


def _run(command: Any, arguments: argparse.Namespace) -> int:
    """Run a command on the store of the environment; warnings and errors become lines."""
    from ..config import from_environment
    from ..errors import CacheWarning, FulguriteError
    from ..runtime.cache import cache_folder
    from ..runtime.cache.disk import Store

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CacheWarning)
        try:
            options = from_environment()
            store = Store(cache_folder(options.cache_dir), options.cache_limit)
            try:
                code: int = command(store, options, arguments)
            finally:
                store.close()
        except BrokenPipeError:  # of standard output, for `main`
            raise
        except (FulguriteError, OSError) as error:
            print(f"fulgurite cache: {error}", file=sys.stderr)
            code = 1
    for warning in caught:
        print(f"fulgurite cache: {warning.message}", file=sys.stderr)
    return max(code, 1 if caught else 0)


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"
