"""The process that compiles for others: it loads Triton once, and forks a worker for each core.

In: on each of its sockets, launches with a compute capability, pickled. Out: for each a `Cubin`,
or None where compiling failed; whoever asked finds out why. It is run as a file, without the
package around it: of that it needs a few modules, and importing all would take longer than Triton.
The first few workers are forked as soon as Triton is there: the first text of a program does not
wait for more. What the first compile of a process finds out (tables of LLVM, functions of Triton's
library) is known before the others are forked; while it has no threads, which a fork would lose.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import select
import signal
import socket
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

FIRST = """
@triton.jit
def kernel(x, y, n):
    at = tl.arange(0, 256)
    v = tl.load(x + at, mask=at < n, other=0.0)
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, v / tl.sum(v, 0), mask=at < n)
"""


def main() -> None:
    """Get ready, fork, and wait until nobody asks any more."""
    package, paths, numbers = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks is interrupted, and hangs up
    sys.path[:] = paths
    os.environ.setdefault("TRITON_BACKENDS_IN_TREE", "1")  # nobody else's metadata is read
    sys.setdlopenflags(os.RTLD_LAZY)  # few of the functions of Triton's library are called
    gc.disable()
    around = ModuleType("fulgurite")
    around.__path__ = [package]
    sys.modules["fulgurite"] = around
    from fulgurite.codegen.cuda import source
    from fulgurite.codegen.cuda.compilation import compiler, tables

    compiler.load()
    gc.set_threshold(tables.YOUNG)  # what a text is parsed into mostly stays until it is compiled
    lines = [socket.socket(fileno=number) for number in numbers]
    for place, mine in enumerate(lines):
        if place == tables.PLAIN:
            pointers = [source.Argument(name, "*fp32", True, source.PARAM) for name in "xy"]
            first = source.Launch(FIRST, "kernel", 1, 1, 1, (*pointers, source.number("n", 256)))
            compiler.compile_launch(first)
            gc.collect()
        gc.freeze()
        if not os.fork():
            gc.enable()
            for other in lines:
                if other is not mine:
                    other.close()
            with suppress(OSError, EOFError):
                is_plain = place < tables.PLAIN
                if not select.select([mine], [], [], 0.0 if is_plain else tables.IDLE)[0]:
                    compiler.find_assembler() if is_plain else compiler.load_gluon()
                serve(mine, compiler.compile_launch)
            os._exit(0)
    for line in lines:
        line.close()
    with suppress(ChildProcessError):
        while True:
            os.wait()


def serve(line: socket.socket, compile_launch: Any) -> None:
    """Answer until the other end hangs up."""
    while True:
        launch, capability = receive(line)
        try:
            found = compile_launch(launch, capability)
        except Exception:
            found = None
        send(line, found)


def send(line: socket.socket, thing: Any) -> None:
    """Something pickled, behind how many bytes that is."""
    data = pickle.dumps(thing)
    line.sendall(len(data).to_bytes(8, "little") + data)


def receive(line: socket.socket) -> Any:
    """What the other end sent, which is a process that this one started or was started by."""
    return pickle.loads(_bytes(line, int.from_bytes(_bytes(line, 8), "little")))


def _bytes(line: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = line.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


if __name__ == "__main__":
    main()
