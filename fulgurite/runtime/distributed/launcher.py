"""Is this process one of several that a launcher started? Answered from the environment alone.

In: what mpiexec (Hydra, PMIx, Open MPI) and Slurm set. Out: the number of processes. No MPI library
is loaded to know.
"""

from __future__ import annotations

import os

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
