"""The whole suite on every device at once: `python -m tests.devices [pytest arguments]`.

In: arguments for pytest. Out: a run on the reference device and a run on native code (every graph
compiled, however small), each a process of its own so that two cores share the work; the exit code
is the worse of the two. Tests that compute nothing, or choose their device, are in one run only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import IO

RUNS = {
    "reference": {"FULGURITE_DEVICE": "reference"},
    "cpu": {"FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native"},
}


def main(arguments: list[str]) -> int:
    """Run all, the first one's output as it comes, the others' at the end."""
    started: dict[str, tuple[subprocess.Popen[bytes], IO[str] | None]] = {}
    for device, settings in RUNS.items():
        output: IO[str] | None = None if not started else tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            env=os.environ | settings | {"FULGURITE_SUITE": device},
            stdout=output, stderr=subprocess.STDOUT if output else None,
        )  # fmt: skip
        started[device] = (process, output)
    worst = 0
    for device, (process, output) in started.items():
        code = process.wait()
        if output is not None:
            output.seek(0)
            print(f"\n--- the same on {device} ---\n{output.read()}", end="")
        print(f"{device}: pytest ended with {code}")
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
