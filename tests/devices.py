"""The whole suite on every device: `python -m tests.devices [pytest arguments]`.

In: arguments for pytest. Out: a run on the reference device, a run on native code (every graph
compiled, however small), one of `PARTS` on the remote device (tests/backends/remote.py), and a run
for each group of tests that choose their device themselves (`GROUPS` in conftest.py). Each is a
process of its own, two at a time, the longest first; the exit code is the worst of them. What a run
prints is shown whole when it has ended. NumPy's products have one thread each: two runs' second
threads would wait for a core, and busily.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

PARTS = ["tests/core", "tests/graph", "tests/runtime"]  # that run on the remote device
RUNS = {
    "code": {"FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native"},
    "cpu": {"FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native"},
    "meaning": {"FULGURITE_DEVICE": "reference"},
    "reference": {"FULGURITE_DEVICE": "reference"},
    "remote": {"FULGURITE_DEVICE": "remote"},
}
AT_ONCE = 2
NOTHING_COLLECTED = 5


def run(name: str, arguments: list[str]) -> tuple[int, str]:
    """Run one part of the suite: the exit code, and all it printed."""
    with tempfile.TemporaryFile("w+") as output:
        started = time.monotonic()
        print(f"{name}: started", flush=True)
        code = subprocess.call(
            [sys.executable, "-m", "pytest", *(PARTS if name == "remote" else []), *arguments],
            env=os.environ | RUNS[name] | {"FULGURITE_SUITE": name, "OPENBLAS_NUM_THREADS": "1"},
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        output.seek(0)
        took = time.monotonic() - started
        return code, f"\n--- {name} ({took:.0f} s) ---\n{output.read()}pytest ended with {code}"


def main(arguments: list[str]) -> int:
    """Run every part; the worst exit code, where a part without tests is no fault."""
    codes = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        parts = [pool.submit(run, name, arguments) for name in RUNS]
        for part in as_completed(parts):
            code, text = part.result()
            print(text, flush=True)
            codes.append(code)
    failures = [code for code in codes if code not in (0, NOTHING_COLLECTED)]
    return max(failures, default=NOTHING_COLLECTED if set(codes) == {NOTHING_COLLECTED} else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
