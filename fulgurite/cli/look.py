"""The commands that look inside: `fulgurite trace`, `fulgurite why` and `fulgurite viz`.

In: a script and its arguments. Out: a table or answers in the terminal, a trace or a page in a
file; the exit code is 1 if the script failed. The script runs as `python SCRIPT` would run it.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..look.profiler import Profile

TRACE_EPILOG = """Open the trace at https://ui.perfetto.dev or chrome://tracing. Words after the
script are its own, but for -o FILE right behind it, unless one stood before it. Example:
fulgurite trace train.py -o trace.json --steps 20"""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `trace`, `why` and `viz` to the parser of `fulgurite`."""
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
    _add_why(commands)
    _add_viz(commands)


def _add_why(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "why",
        help="run a script and say why it was compiled again, why these kernels, why so slow",
        description="Run a script and answer questions about it, each with what to do.",
        epilog="docs/why.md has ten questions. Example: fulgurite why --about plans attention.py",
    )
    parser.add_argument(
        "--about", action="append", choices=TOPICS, default=[], metavar="TOPIC",
        help=f"{', '.join(TOPICS)} (default: time, limits, compiled, captured)",
    )  # fmt: skip
    _add_script(parser)
    parser.set_defaults(run=_why)


def _add_viz(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "viz",
        help="run a script or an ONNX model and write a page that shows its compilation",
        description="Write one HTML file that shows a compilation: graph, passes, fusion, memory, "
        "kernels down to assembly, time. It opens without a server or network.",
        epilog="Words after SCRIPT are its own, but for -o FILE right behind it; after an .onnx "
        "file they are those of 'fulgurite run'. Example: fulgurite viz train.py -o page.html",
    )
    parser.add_argument(
        "-o", "--output", default="", metavar="FILE.html", help="where it goes (page.html)"
    )
    parser.add_argument(
        "--graph", type=int, default=1, metavar="N", help="1: the graph of most kernels; 2: next"
    )
    parser.add_argument(
        "--no-assembly", action="store_true", help="leave machine code out: quicker"
    )
    _add_script(parser)
    parser.set_defaults(run=_viz)


TOPICS = ("time", "limits", "compiled", "captured", "kernels", "plans", "memory")


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
    except (Exception, KeyboardInterrupt):  # what ran until then is shown all the same
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = before, path
    return 0


def _profiled(command: str, arguments: argparse.Namespace) -> tuple[int, Profile | None]:
    """The exit code of a script, and what ran; None: there is no script."""
    from .. import profile
    from ..config import current
    from ..runtime.device import get_device

    if not os.path.isfile(arguments.script):
        print(f"fulgurite {command}: there is no file {arguments.script}", file=sys.stderr)
        return 1, None
    match arguments.arguments:
        case ["-o" | "--output", file, *rest] if getattr(arguments, "output", None) == "":
            arguments.output, arguments.arguments = file, rest
    for name in ("output", "folded"):  # before the script runs, which may go to another folder
        file = getattr(arguments, name, "")
        problem = _unwritable(file) if file else ""
        if problem:
            print(f"fulgurite {command}: {problem}", file=sys.stderr)
            return 1, None
        if file:
            setattr(arguments, name, os.path.abspath(file))
    if hasattr(arguments, "graph"):
        arguments.output = arguments.output or os.path.abspath("page.html")
    get_device(current().device)  # started before the clock is
    with profile() as found:
        if arguments.script.endswith(".onnx"):
            from . import main

            code = main(["run", arguments.script, *arguments.arguments])
        else:
            code = run_script(arguments.script, arguments.arguments)
    return code, found


def _unwritable(file: str) -> str:
    """Why a file cannot be written; nothing if it can be."""
    folder = os.path.dirname(os.path.abspath(file))
    if os.path.isdir(file):
        return f"{file} is a folder: give the name of a file"
    if not os.path.isdir(folder):
        return f"there is no folder {folder} for {os.path.basename(file)}"
    return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written to"


def _why(arguments: argparse.Namespace) -> int:
    from ..look.answers import about_script

    code, found = _profiled("why", arguments)
    if found is not None:
        answers = about_script(found)
        for topic in arguments.about or TOPICS[:4]:
            for answer in answers.about(topic):
                print(answer)
    return code


def _viz(arguments: argparse.Namespace) -> int:
    from ..look.dump import viz_data
    from ..look.pages import Page

    code, found = _profiled("viz", arguments)
    if found is None:
        return code
    graphs = [event for event in found.events if event.kind == "graph"]
    graphs.sort(key=lambda event: -event.about["kernels"])
    if not 1 <= arguments.graph <= len(graphs):
        print(f"fulgurite viz: {len(graphs)} graphs were compiled", file=sys.stderr)
        return 1
    chosen, title = graphs[arguments.graph - 1], os.path.basename(arguments.script)
    data = viz_data(chosen, profile=found, assembly=not arguments.no_assembly)
    path = Page(data, title).save(arguments.output)
    print(f"wrote {path}: {len(data['kernels'])} kernels of {len(data['graph']['nodes'])} ops")
    return code


def _trace(arguments: argparse.Namespace) -> int:
    code, found = _profiled("trace", arguments)
    if found is None:
        return code
    print(found.table(arguments.by, arguments.top))
    if arguments.output:
        found.save(arguments.output)
        print(f"wrote {arguments.output}: open it at https://ui.perfetto.dev")
    if arguments.folded:
        with open(arguments.folded, "w", encoding="utf-8") as file:
            file.write(found.folded() + "\n")
        print(f"wrote {arguments.folded}")
    return code
