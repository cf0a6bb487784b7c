"""`fulgurite launch`: one script on many ranks, through `mpiexec`.

In: a number of ranks, hosts if there are several, a script and its arguments. Out: the job's exit
code. Every rank runs `runtime/distributed/rank.py`, which ends the job with the traceback of the
first rank that fails. Under Slurm or a plain `mpiexec` the same ranks come from
`srun python -m fulgurite.runtime.distributed.rank script.py`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runtime.distributed.launcher import LAST_WORDS, read_last_words, running_ranks
from .look import positive

EPILOG = """Cores are shared out: each rank gets threads for its share unless FULGURITE_THREADS is
set. A rank that waits longer than --timeout for one that is silent or stands still ends the job,
and says where every rank was; for one that works it waits 30 times as long. Example: fulgurite
launch -n 4 train.py --steps 100"""


# codes by which Hydra says that a signal ended a rank (ranks that fail end with 1 or 75)
SIGNALS = frozenset({
    signal.SIGILL, signal.SIGABRT, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM,
})  # fmt: skip


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `launch` to the parser of `fulgurite`."""
    parser = commands.add_parser(
        "launch",
        help="run a script on many processes, on one machine or several",
        description="Run a script on many ranks with mpiexec.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "-n", type=positive, default=0, metavar="N", help="ranks (one for each core)"
    )
    parser.add_argument(
        "--hosts", default="", metavar="A,B", help="machines, as mpiexec names them"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=0.0, metavar="S", help="seconds that a rank waits (10)"
    )
    parser.add_argument("--quiet-ranks", action="store_true", help="print what rank 0 prints only")
    parser.add_argument("-m", action="store_true", dest="module", help="the script is a module")
    parser.add_argument("script", help="a Python file, or with -m the name of a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets")
    parser.set_defaults(run=_run)


def seconds(text: str) -> float:
    """A time of more than nothing."""
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds over 0")
    return float(text)


def _run(arguments: argparse.Namespace) -> int:
    ranks = arguments.n or _cores()
    script, is_module = arguments.script, arguments.module or arguments.script == "-m"
    if not is_module and not arguments.hosts and not os.path.exists(script):
        return _refused(f"there is no script {script!r}")
    words = ["-m", script] if arguments.module else [script]
    command = launch_command(ranks, [*words, *arguments.arguments], arguments.hosts)
    if command is None:
        return _refused("there is no mpiexec: pip install 'fulgurite[distributed]'")
    environment = launch_environment(ranks, arguments.timeout, bool(arguments.hosts))
    if arguments.quiet_ranks:
        environment["FULGURITE_QUIET_RANKS"] = "1"
    with tempfile.TemporaryDirectory(prefix="fulgurite-launch-") as folder:
        job = subprocess.Popen(command, env=environment | {LAST_WORDS: folder})
        try:
            code = job.wait()
        except KeyboardInterrupt:
            job.send_signal(signal.SIGINT)
            code = job.wait()
        sys.stderr.write(read_last_words(folder))
        unfinished = running_ranks(folder)
    if not code and unfinished:
        told = ", ".join(map(str, unfinished))
        return _refused(f"the job ended, but not the program of ranks {told} (os._exit?)")
    if code:
        print(f"fulgurite launch: the job of {ranks} ranks ended: {_cause(code)}", file=sys.stderr)
    return 1 if code else 0


def _refused(text: str) -> int:
    print(f"fulgurite launch: {text}", file=sys.stderr)
    return 1


def _cause(code: int) -> str:
    """What an exit code of mpiexec says."""
    number = -code if code < 0 else code - 128 if 128 < code < 160 else code
    if code < 0 or 128 < code < 160 or code in SIGNALS:
        return f"a rank was ended by {signal.Signals(number).name}"
    return f"exit code {code}"


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def find_mpiexec() -> str | None:
    """The mpiexec beside this Python, which fits its mpi4py, or that of the system."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def launch_command(ranks: int, script: list[str], hosts: str = "") -> list[str] | None:
    """What starts a job; None if there is no mpiexec."""
    mpiexec = find_mpiexec()
    if mpiexec is None:
        return None
    where = ["-hosts", hosts] if hosts else []
    rank = [sys.executable, "-m", "fulgurite.runtime.distributed.rank"]
    return [mpiexec, "-n", str(ranks), *where, *rank, *script]


def launch_environment(
    ranks: int, timeout: float = 0.0, remote: bool = False,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:  # fmt: skip
    """What ranks find in their environment: a share of the cores, and where this package is."""
    found = dict(os.environ if environment is None else environment)
    if not remote:
        found.setdefault("FULGURITE_THREADS", str(max(1, _cores() // max(1, ranks))))
        found.setdefault("OPENBLAS_NUM_THREADS", "1")
    if timeout:
        found["FULGURITE_TIMEOUT"] = str(timeout)
    return found
