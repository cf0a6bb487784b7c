"""Tests of fulgurite/runtime/cpu/toolchain.py: one table of native code for all threads."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.codegen.cpu.target import Target, target
from fulgurite.core.cache import Cache
from fulgurite.runtime.cpu.objects import Code
from tests.threads import together

pytest.importorskip("llvmlite")
from fulgurite.runtime.cpu import toolchain


def test_threads_that_ask_first_at_once_get_one_table_and_one_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = target

    def slow(wish: str) -> Target:
        time.sleep(0.05)  # as reading what the processor can do may be
        return real(wish)

    monkeypatch.setattr(toolchain, "target", slow)
    monkeypatch.setattr(toolchain, "_CODES", Cache("code", lambda: 5))
    found = together(4, lambda _: toolchain.code())
    assert len({id(code) for code in found}) == 1
    assert len({id(pool) for pool in together(4, lambda _: toolchain.workers())}) == 1


def test_threads_that_fetch_the_same_code_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Code(target("auto"))
    asked: list[str] = []

    def fetch(digest: str) -> bool:
        asked.append(digest)
        time.sleep(0.02)
        made.objects[digest] = None  # type: ignore[assignment]
        return True

    monkeypatch.setattr(made, "_fetch", fetch)
    assert together(4, lambda _: made.fetch("abc")) == [True] * 4 and asked == ["abc"]


def test_threads_that_compile_and_run_at_once_get_right_answers() -> None:
    """Loops, searches, kernels and products that nobody compiled before, all at the same time."""
    x = np.random.default_rng(0).normal(size=(24, 24)).astype(np.float32)

    def work(number: int) -> bool:
        with fg.config(device="cpu", tier="native"):
            t = fg.Tensor(x)
            scanned = fg.scan(lambda c, r: (c + r * number, c.max()), fg.zeros((24,)), t)[0]
            chosen = fg.cond(scanned.sum() > number, lambda a: a * 2, lambda a: a + number, t)
            weights = fg.softmax(t @ t.mT / (number + 2), axis=-1) @ t
            found = [scanned.numpy(), chosen.numpy(), weights.numpy()]
        total = (x * number).sum(axis=0)
        scores = x @ x.T / (number + 2)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        wanted = [
            total, x * 2 if total.sum() > number else x + number,
            e / e.sum(axis=1, keepdims=True) @ x,
        ]  # fmt: skip
        pairs = zip(found, wanted, strict=True)
        return all(np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)

    fg.clear_caches()
    assert all(together(6, work))


PARTS = """
import numpy, fulgurite as fg
from fulgurite.runtime.cpu import toolchain

def parts():
    known = toolchain.code_for("auto").functions
    return [n for n in ("call", "start", "loop") if f"fulgurite_{n}" in known]

def scanned(c, x):
    return c * x + x, c

x = fg.Tensor(numpy.ones((64, 64), "float32"))
assert (x * 3 + 2).sum().item() == 5 * 64 * 64
print(*parts(), end=";")
assert fg.scan(scanned, x[0], x)[0].sum().item() == 65 * 64
print(*parts(), end=";")
with fg.config(threads=2):
    y = fg.Tensor(numpy.ones((1024, 512), "float32"))
    assert (y * 3 + 2).sum().item() == 5 * 1024 * 512
print(*parts())
"""


@pytest.mark.device("none")
def test_threads_and_loops_of_the_driver_are_compiled_when_first_needed(tmp_path: Path) -> None:
    """Together they are three quarters of its text, and most first kernels need neither."""
    environment = {
        **os.environ, "FULGURITE_CACHE_DIR": str(tmp_path), "FULGURITE_DEVICE": "cpu",
        "FULGURITE_TIER": "native", "FULGURITE_THREADS": "1",
    }  # fmt: skip
    for _ in range(2):  # the second process finds each part on disk
        found = subprocess.run(
            [sys.executable, "-c", PARTS], env=environment, text=True, capture_output=True,
            check=True,
        )  # fmt: skip
        assert found.stdout.strip() == "call;call loop;call start loop"
