"""Build the C extension for the interpreter that runs this: `python fulgurite/core/_build.py`.

In: `_fast.c`, the interpreter's own compiler and headers. Out: the extension beside it, or the
reason why there is none; nothing of fulgurite is imported, as an installation runs this first.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path

SOURCE = Path(__file__).with_name("_fast.c")
_SECONDS = 300  # a compiler that takes longer does not answer


def target(folder: Path = SOURCE.parent) -> Path:
    """The file that this interpreter looks for."""
    return folder / f"_fast{sysconfig.get_config_var('EXT_SUFFIX')}"


def build(folder: Path = SOURCE.parent) -> str | None:
    """Compile the extension into a folder; None, or why that cannot be."""
    if os.environ.get("FULGURITE_EXTENSION", "").lower() in ("0", "off", "false"):
        return "FULGURITE_EXTENSION turns it off"
    if sys.implementation.name != "cpython" or os.name == "nt":
        return f"it is not built for {sys.implementation.name} on {sys.platform}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it relies on the interpreter's lock, which this one does without"
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        return f"there is no Python.h in {headers} (on Debian and Ubuntu: python3-dev)"
    made = target(folder)
    scratch = made.with_name(f"{made.name}.{os.getpid()}")
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    if compiler := os.environ.get("CC"):
        linker = [*shlex.split(compiler), *linker[1:]]
    flags = ["-O2", "-fPIC", f"-DSOURCE={zlib.crc32(SOURCE.read_bytes())}UL", f"-I{headers}"]
    command = [*linker, *flags, str(SOURCE), "-o", str(scratch)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
        os.replace(scratch, made)  # at once: another process may be importing it
    except FileNotFoundError:
        return f"there is no C compiler ({linker[0]})"
    except subprocess.CalledProcessError as problem:
        return f"{linker[0]} failed: {problem.stderr.strip()[-500:]}"
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    finally:
        scratch.unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    problem = build(*map(Path, sys.argv[1:2]))
    print(problem or f"built {target(*map(Path, sys.argv[1:2]))}")
    sys.exit(problem is not None)
