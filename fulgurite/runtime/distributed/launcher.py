"""Is this process one of several that a launcher started? Answered from the environment alone.

In: what mpiexec (Hydra, PMIx, Open MPI) and Slurm set. Out: the number of processes. No MPI library
is loaded to know.
"""

from __future__ import annotations

import os
import time

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


def read_last_words(folder: str) -> str:
    """What ranks wrote before they ended the job, the first first."""
    entries = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns)
    texts = []
    for entry in entries:
        with open(entry.path, errors="replace") as file:
            texts.append(file.read())
    return "".join(texts)
