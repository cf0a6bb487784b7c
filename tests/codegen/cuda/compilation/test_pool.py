"""Compiling in processes of their own: the same machine code, and errors as without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.codegen.cuda.subprocesses import ROOT, last_word, needs_triton

SCRIPT = """
import os, signal, sys, warnings
warnings.simplefilter("error")
from concurrent.futures import ThreadPoolExecutor
from fulgurite.codegen.cuda.compilation import pool as compile_pool
from fulgurite.codegen.cuda.compilation.server import FIRST
from fulgurite.codegen.cuda.source import PARAM, Argument, Launch, number
compile_pool.width = lambda: 3  # the last of which loads Gluon when nothing comes
pointers = [Argument(name, "*fp32", True, PARAM) for name in "xy"]
def launch(text):
    return Launch(text, "kernel", 1, 1, 1, (*pointers, number("n", 256)))
pool = compile_pool.start()
assert pool is compile_pool.start() and pool.count == 3
texts = [FIRST, FIRST.replace("256", "512"), FIRST.replace("tl.exp", "tl.exp2")]
with ThreadPoolExecutor(4) as threads:
    made = list(threads.map(lambda text: compile_pool.compile_launch(launch(text), 90), texts))
assert "triton" not in sys.modules, "workers have it"
assert len({one.image for one in made}) == 3 and {one.symbol for one in made} == {"kernel"}
compile_pool.begin([launch(texts[1])], 90)
if not os.fork():  # a child has workers of its own, and does not disturb those of its parent
    found = compile_pool.compile_launch(launch(texts[1]), 90)
    own = compile_pool.start()
    lost = pool.compile(launch(FIRST), 90) is None
    fine = lost and own is not pool and found == made[1] and "triton" not in sys.modules
    own.close()
    os._exit(0 if fine else 1)
assert os.wait()[1] == 0
asked, pool.compile = [], lambda *given: asked.append(given) or type(pool).compile(pool, *given)
compile_pool.begin([launch(texts[2]), launch(texts[2])], 90)
assert compile_pool.compile_launch(launch(texts[2]), 80) != made[2], "another GPU's text"
assert compile_pool.compile_launch(launch(texts[2]), 90) == made[2]
assert [capability for _, capability in asked] == [90, 80], "what was begun is what is asked for"
del pool.compile
assert pool.compile(launch(FIRST), 90) == made[0]
assert pool.compile(launch(FIRST.replace("tl.load", "tl.lode")), 90) is None
assert pool.compile(launch(FIRST), 90) == made[0], "the worker goes on"
workers = open(f"/proc/{pool.process.pid}/task/{pool.process.pid}/children").read().split()
assert len(workers) == 3
for worker in workers:
    os.kill(int(worker), signal.SIGKILL)
assert compile_pool.compile_launch(launch(FIRST), 90) == made[0], "here, as on workers"
assert "triton" in sys.modules
try:
    compile_pool.compile_launch(launch(FIRST.replace("tl.load", "tl.lode")), 90)
except Exception as problem:
    assert "lode" in str(problem), problem
else:
    raise AssertionError("nothing was raised")
print("fine")
"""


@needs_triton
def test_workers_make_the_machine_code_that_is_made_here_and_may_be_lost() -> None:
    assert last_word(SCRIPT) == "fine"


@needs_triton
def test_workers_end_with_the_process_that_started_them() -> None:
    script = (
        "import os, sys; from fulgurite.codegen.cuda.compilation import pool as compile_pool\n"
        "compile_pool.width = lambda: 2\n"
        "print(compile_pool.start().process.pid, flush=True); sys.stdin.read()"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert started.stdin is not None and started.stdout is not None
    with started:
        server = int(started.stdout.readline())
        assert Path(f"/proc/{server}").exists()
        started.stdin.close()
        started.wait(60)
    assert not Path(f"/proc/{server}").exists()
