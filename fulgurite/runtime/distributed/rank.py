"""What `fulgurite launch` runs on every rank: a script whose exception ends the whole job.

In: a script and its arguments, as `python` takes them. Out: the script's exit code. If it raises,
its traceback is printed under the number of the rank, and MPI ends all others: none waits for ever
for a rank that is gone. (`python -m mpi4py` does the same, without the number.)
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback

from .launcher import begin_program, end_program, is_launched, write_last_words


def main(arguments: list[str]) -> int:
    """Run a script as one rank of a job."""
    if is_launched():
        from .mpi import join

        world = join()
        begin_program(world.rank)
    else:
        world = None
    if world is not None and world.rank and os.environ.get("FULGURITE_QUIET_RANKS"):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    module = arguments[:1] == ["-m"]
    name = arguments[1 if module else 0]
    sys.argv = arguments[1:] if module else arguments
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(name))
            runpy.run_path(name, run_name="__main__")
    except SystemExit as ended:
        if world is None:
            raise
        if not ended.code:
            end_program(world.rank)
            raise
        return _failed(world, f"exit code {ended.code}")
    except BaseException:
        if world is None:
            raise
        return _failed(world, traceback.format_exc())
    if world is not None:
        end_program(world.rank)
    return 0


def _failed(world: object, text: str) -> int:
    from .mpi import MpiWorld

    assert isinstance(world, MpiWorld)
    sys.stdout.flush()
    write_last_words(f"fulgurite: rank {world.rank} of {world.size} failed:\n{text}\n")
    world.abort(1)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
