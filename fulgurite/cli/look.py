"""The commands that look inside: `fulgurite trace` and `fulgurite why`.

In: a script and its arguments. Out: a table or answers in the terminal, a trace in a file; the exit
code is 1 if the script failed. The script runs as `python SCRIPT` would run it.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from typing import Any

TRACE_EPILOG = """Open the trace at https://ui.perfetto.dev or chrome://tracing. Words after the
script are its own. Example: fulgurite trace -o trace.json train.py --steps 20"""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `trace` to the parser of `fulgurite`."""
    parser = commands.add_parser(
        "trace",
        help="run a script and show where its time goes, by kernel, line and module",
        description="Run a script, print where its time went, and write a trace for Perfetto.",
        epilog=TRACE_EPILOG,
    )
    parser.add_argument("-o", "--output", default="", metavar="FILE.json", help="write the trace")
    parser.add_argument(
        "--by", default="kernel", choices=["kernel", "line", "module"], help="rows of the table"
    )
    parser.add_argument("--top", type=int, default=20, metavar="N", help="rows shown (20)")
    parser.add_argument(
        "--folded", default="", metavar="FILE", help="write stacks for a flame graph"
    )
    _add_script(parser)
    parser.set_defaults(run=_trace)


def _add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="the Python file to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a file as the main program; its exit code."""
    before, path = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = before, path
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from .. import profile

    if not os.path.isfile(arguments.script):
        print(f"fulgurite trace: there is no file {arguments.script}", file=sys.stderr)
        return 1
    from ..config import current
    from ..runtime.device import get_device

    get_device(current().device)  # started before the clock is
    with profile() as found:
        code = run_script(arguments.script, arguments.arguments)
    print(found.table(arguments.by, arguments.top))
    if arguments.output:
        found.save(arguments.output)
        print(f"wrote {arguments.output}: open it at https://ui.perfetto.dev")
    if arguments.folded:
        with open(arguments.folded, "w", encoding="utf-8") as file:
            file.write(found.folded() + "\n")
        print(f"wrote {arguments.folded}")
    return code
