"""Is this process one of several that a launcher started? Answered from the environment alone.

In: what mpiexec (Hydra, PMIx, Open MPI) and Slurm set. Out: the number of processes. No MPI library
is loaded to know.
"""

from __future__ import annotations

import faulthandler
import os
import time
from contextlib import suppress

# what each launcher says: its own size first, Slurm's last (a job may run one process a step)
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")


def launched_size() -> int:
    """How many processes were launched together with this one."""
    for name in SIZES:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 1


def is_launched() -> bool:
    """True if there are others."""
    return launched_size() > 1


LAST_WORDS = "FULGURITE_LAST_WORDS"  # names a folder that `fulgurite launch` reads
_RUNNING = ".running"
_FORWARD_SECONDS = 0.5  # for mpiexec to pass on what a rank wrote


def write_last_words(text: str) -> None:
    """Say why this rank ends the job, just before it aborts.

    mpiexec drops what it has not passed on when a rank aborts, so the words go into a file that
    `fulgurite launch` prints; without its folder (other hosts, Slurm) they go to standard error,
    and the rank waits a moment.
    """
    folder = os.environ.get(LAST_WORDS, os.devnull)  # under which no file can be made
    try:
        with open(os.path.join(folder, f"{os.getpid()}.txt"), "w") as file:
            file.write(text)
    except OSError:
        os.write(2, text.encode())
        time.sleep(_FORWARD_SECONDS)


def _place(rank: int) -> str:
    """A file that is there while a rank runs its program, if there is a folder for it."""
    return os.path.join(os.environ.get(LAST_WORDS, os.devnull), f"{rank}{_RUNNING}")


def begin_program(rank: int) -> None:
    """Note that a rank runs; where it crashes, the lines that it was at go into the same file."""
    try:
        file = open(_place(rank), "w")  # noqa: SIM115  # as long as the process
    except OSError:
        faulthandler.enable()
    else:
        faulthandler.enable(file)


def end_program(rank: int) -> None:
    """Note that a rank's program has ended."""
    with suppress(OSError):
        os.unlink(_place(rank))


def has_ended(rank: int) -> bool:
    """True if the program of a rank is known to have ended."""
    place = _place(rank)
    return os.path.isdir(os.path.dirname(place)) and not os.path.exists(place)


def running_ranks(folder: str) -> list[int]:
    """The ranks of a job whose programs did not come to their end."""
    names = [name.removesuffix(_RUNNING) for name in os.listdir(folder) if _RUNNING in name]
    return sorted(map(int, names))


def read_last_words(folder: str) -> str:
    """What ranks wrote before they ended the job, the first first."""
    entries = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns)
    texts = []
    for entry in entries:
        with open(entry.path, errors="replace") as file:
            text = file.read()
        rank = entry.name.removesuffix(_RUNNING)
        crashed = text and rank != entry.name
        texts.append(f"fulgurite: rank {rank} crashed:\n{text}" if crashed else text)
    return "".join(texts)
