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
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import FulguriteError, is_ours

if TYPE_CHECKING:
    from pathlib import Path

    from ..look.profiler import Profile

WORDS = """Options may also stand right behind SCRIPT; from the first other word on, from -- or from
an option that was given before, all words are the script's own."""
TRACE_EPILOG = f"""Open the trace at https://ui.perfetto.dev or chrome://tracing. {WORDS} Example:
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
    parser.add_argument("--top", type=positive, default=20, metavar="N", help="rows shown (20)")
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
        epilog=f"docs/why.md has ten questions. {WORDS} "
        "Example: fulgurite why attention.py --about plans",
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
        epilog=f"{WORDS} After an .onnx file they are those of 'fulgurite run'. "
        "Example: fulgurite viz train.py -o page.html",
    )
    parser.add_argument(
        "-o", "--output", default="", metavar="FILE.html", help="where it goes (page.html)"
    )
    parser.add_argument(
        "--graph",
        type=positive,
        default=1,
        metavar="N",
        help="1: the graph of most kernels; 2: the next one",
    )
    parser.add_argument(
        "--no-assembly", action="store_true", help="leave machine code out: quicker"
    )
    _add_script(parser)
    parser.set_defaults(run=_viz)


TOPICS = ("time", "limits", "compiled", "captured", "kernels", "plans", "memory")


def positive(text: str) -> int:
    """A number from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return number


def _add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", metavar="SCRIPT", help="the Python file to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    parser.set_defaults(parser=parser)


def _take_options(arguments: argparse.Namespace) -> None:
    """Take our own options that stand right behind the script, unless they stood before it."""
    parser: argparse.ArgumentParser = arguments.parser
    free = [a for a in parser._actions if getattr(arguments, a.dest, None) == a.default]
    ours = [action for action in free if action.dest != "help"]
    takes = {name: action.nargs != 0 for action in ours for name in action.option_strings}
    words, own = list(arguments.arguments), 0
    if arguments.words[: -len(words) or None][-1:] == ["--"]:  # some versions of argparse drop it
        return
    while own < len(words) and (name := words[own].partition("=")[0]) in takes:
        own += 2 if takes[name] and "=" not in words[own] else 1
    if own:
        parser.parse_args([*words[:own], arguments.script], arguments)
    arguments.arguments = words[own + (words[own : own + 1] == ["--"]) :]


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
    except (Exception, KeyboardInterrupt) as problem:  # what ran until then is shown all the same
        _print_error(problem)
        return 1
    finally:
        sys.argv, sys.path[:] = before, path
    return 0


def _print_error(problem: BaseException) -> None:
    """The traceback as `python SCRIPT` prints it; of an error for users without our own frames."""
    seen: set[int] = set()
    one: BaseException | None = problem
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        frames = [frame for frame, _ in traceback.walk_tb(one.__traceback__)]
        first = next((i for i, f in enumerate(frames) if not _runs_scripts(f)), len(frames))
        last = len(frames)
        while isinstance(one, FulguriteError) and last > first and _is_ours(frames[last - 1]):
            last -= 1
        one.__traceback__ = _cut(one.__traceback__, first, last)
        if isinstance(one, FulguriteError):
            one.__cause__, one.__suppress_context__ = None, True  # of how it was found out
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    traceback.print_exception(problem)


def _is_ours(frame: FrameType) -> bool:
    return is_ours(frame.f_code.co_filename)


def _runs_scripts(frame: FrameType) -> bool:
    """True if a frame is one of those that run a script."""
    return _is_ours(frame) or frame.f_code.co_filename in (runpy.__file__, "<frozen runpy>")


def _cut(trace: TracebackType | None, first: int, last: int) -> TracebackType | None:
    """Some frames of a traceback."""
    kept = []
    while trace is not None:
        kept.append(trace)
        trace = trace.tb_next
    found: TracebackType | None = None
    for one in reversed(kept[first:last]):
        found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


def _profiled(command: str, arguments: argparse.Namespace) -> tuple[int, Profile | None]:
    """The exit code of a script, and what ran; None: there is no script."""
    from .. import profile
    from ..config import current
    from ..runtime.device import get_device

    if not os.path.isfile(arguments.script):
        print(f"fulgurite {command}: there is no file {arguments.script}", file=sys.stderr)
        return 1, None
    _take_options(arguments)
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
    if code and not found.runs and not found.events:
        print(f"fulgurite {command}: it failed before anything ran", file=sys.stderr)
        return code, None
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
        answers, topics = about_script(found), arguments.about or TOPICS[:4]
        for topic in topics:
            for answer in answers.about(topic):
                print(answer)
        if not any([answers.about(topic) for topic in topics]):
            rest = [topic for topic in TOPICS if topic not in topics and answers.about(topic)]
            more = f"; there are answers about {', '.join(rest)}" if rest else ""
            print(f"nothing to say about {', '.join(topics)}{more}")
    return code


def _viz(arguments: argparse.Namespace) -> int:
    from ..look.dump import viz_data
    from ..look.pages import Page

    code, found = _profiled("viz", arguments)
    if found is None:
        return code
    graphs = [event for event in found.events if event.kind == "graph"]
    graphs.sort(key=lambda event: (-event.about["kernels"], -len(event.about["structure"])))
    if arguments.graph > len(graphs):
        said = "nothing was computed" if not found.runs else "every graph was compiled before"
        said += ": there is no graph to show"
        if graphs:
            several = f" to {len(graphs)}" if len(graphs) > 1 else ""
            said = f"there is no graph {arguments.graph}: give --graph 1{several}"
        print(f"fulgurite viz: {said}", file=sys.stderr)
        return 1
    chosen, title = graphs[arguments.graph - 1], os.path.basename(arguments.script)
    data = viz_data(chosen, profile=found, assembly=not arguments.no_assembly)
    path = Page(data, title).save(arguments.output)
    print(written(path, len(data["kernels"]), len(data["graph"]["nodes"])))
    return code


def written(path: Path, kernels: int, ops: int) -> str:
    """What is said of a page that was written."""
    from ..runtime.holders import number_of

    return f"wrote {path}: {number_of(kernels, 'kernel')} of {number_of(ops, 'op')}"


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
