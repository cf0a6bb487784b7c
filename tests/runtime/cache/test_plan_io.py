"""Tests of plans and code on disk: a second process is warm, and nothing bad is ever used."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.core.ops.effect import HostFunction, custom
from fulgurite.graph.ir.cache_key import Normal, normalize
from fulgurite.runtime.cache.disk import store_for
from fulgurite.runtime.cache.plan_cache import kept_plans
from fulgurite.runtime.realize import lookup
from fulgurite.tensor import wrap

pytest.importorskip("llvmlite")
from fulgurite.codegen.cpu.llvm import compiler
from fulgurite.runtime.cpu import toolchain

ROOT = Path(__file__).parents[3]
WORK = """
import sys, json, numpy as np, fulgurite as fg
x = fg.Tensor(np.arange(6 * 50, dtype=np.float32).reshape(6, 50) % 7)
w = fg.Tensor(np.arange(50 * 20, dtype=np.float32).reshape(50, 20) % 5)
y = fg.softmax(fg.relu(x @ w) * 0.01 + 1, axis=-1)
plan = fg.schedule(y)
found = plan.run()[0].numpy()
loaded = set(sys.modules)
print(json.dumps({
    "sum": float(found.sum()), "first": float(found[0, 0]), "bits": found.tobytes().hex()[:64],
    "llvmlite": "llvmlite" in sys.modules, "render": "fulgurite.codegen.cpu.render" in sys.modules,
    "library": sys.platform == "linux" and "llvmlite" in open("/proc/self/maps").read(),
    "text": "fulgurite.core.text" in loaded,
    "stages": sorted(plan._compiled.seconds),
    "kernels": [str(k.kernel.name) for k in plan.compile().kernels],
    "lines": [line for item in plan.items for line in item.lines],
}))
"""


def work(folder: Path, text: str = WORK, **environment: str) -> dict[str, object]:
    settings = os.environ | {
        "FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native", "FULGURITE_DISK_CACHE": "1",
        "FULGURITE_CACHE_DIR": str(folder),
    } | environment  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=settings, timeout=300,
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    found["warnings"] = done.stderr
    return found


Filled = tuple[dict[str, object], Path]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """What a first process says, and the folder it left its plan and code in: read only."""
    folder = tmp_path_factory.mktemp("filled")
    return work(folder), folder


def key_of(normal: Normal) -> str | None:
    """What the plan of a graph is kept under."""
    kept = kept_plans("cpu", current(), normal)
    assert kept is not None
    return kept.key(normal, {}, "cpu", current())


def test_a_second_process_runs_no_stage_loads_no_compiler_and_gets_the_same_bits(
    tmp_path: Path,
) -> None:
    cold, warm = work(tmp_path), work(tmp_path)
    assert cold["llvmlite"] and "schedule" in cold["stages"]  # type: ignore[operator]
    assert warm["stages"] == ["load"]
    assert not warm["llvmlite"] and not warm["render"] and not warm["text"]
    if sys.platform == "linux":
        assert cold["library"] and not warm["library"]
    assert warm["bits"] == cold["bits"] and warm["kernels"] == cold["kernels"]
    assert warm["lines"] == cold["lines"] and cold["lines"]
    assert not cold["warnings"] and not warm["warnings"]


UPDATE = """
import json, sys, numpy as np, fulgurite as fg
from fulgurite.runtime.realize import FAMILIES, storage_of, value_node
x = (fg.Tensor(np.arange(40_000, dtype=np.float32).reshape(400, 100)) * 2).realize()
y = (x * 1).realize()
def place(t):
    return storage_of(value_node(t.node)).address
before = place(x), place(y)
x[7] = fg.Tensor(np.ones(100, np.float32)) * 3
held = y * 1
y += 1
x.realize(), y.realize()
families = [FAMILIES().peek(key) for key in FAMILIES().keys()]
stages = [sorted(m.seconds) for f in families for m in f.members]
print(json.dumps({
    "in place": place(x) == before[0], "copied": place(y) != before[1], "stages": stages,
    "x": float(x.sum().item()), "y": float(held.sum().item()),
    "llvmlite": "llvmlite" in sys.modules,
}))
"""


def test_a_plan_that_writes_in_place_is_kept_with_what_it_writes_over(tmp_path: Path) -> None:
    cold, warm = work(tmp_path, UPDATE), work(tmp_path, UPDATE)
    for found in (cold, warm):
        assert found["in place"] and found["copied"]
        assert (found["x"], found["y"]) == (cold["x"], cold["y"])
    assert "schedule" in cold["stages"][0] and not warm["llvmlite"]  # type: ignore[index]
    assert all(stages == ["load"] for stages in warm["stages"])  # type: ignore[attr-defined]


JITTED = """
import sys, json, numpy as np, fulgurite as fg
model = fg.nn.Linear(40, 30)
optimizer = fg.optim.Adam(model.parameters())
x = fg.Tensor(np.ones((16, 40), np.float32))
@fg.jit
def step(x):
    optimizer.zero_grad()
    loss = (model(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss
losses = [step(x).item() for _ in range(3)]
print(json.dumps({
    "falls": losses[2] < losses[0], "pipeline": "fulgurite.runtime.pipeline" in sys.modules,
    "llvmlite": "llvmlite" in sys.modules,
}))
"""


def test_a_jitted_step_whose_plans_are_on_disk_loads_no_pipeline(tmp_path: Path) -> None:
    cold, warm = work(tmp_path, JITTED), work(tmp_path, JITTED)
    assert cold["falls"] and cold["pipeline"]
    assert warm["falls"] and not warm["pipeline"] and not warm["llvmlite"]


VARYING = """
import sys, json, numpy as np, fulgurite as fg
w = fg.Tensor(np.ones((24, 30), np.float32))
step = fg.jit(lambda x: (x @ w).sum(axis=0), dynamic={"x": {0: True}})
found = [step(fg.Tensor(np.ones((n, 24), np.float32))).numpy()[0].item() for n in (5, 16, 37)]
print(json.dumps({
    "found": found, "pipeline": "fulgurite.runtime.pipeline" in sys.modules,
    "llvmlite": "llvmlite" in sys.modules,
}))
"""


def test_a_step_of_any_size_whose_plan_is_on_disk_loads_no_pipeline(tmp_path: Path) -> None:
    cold, warm = work(tmp_path, VARYING), work(tmp_path, VARYING)
    assert cold["found"] == warm["found"] == [24.0 * n for n in (5, 16, 37)]
    assert cold["pipeline"] and not warm["pipeline"] and not warm["llvmlite"]


LOOPING = """
import sys, json, numpy as np, fulgurite as fg
w = fg.Tensor(np.eye(24, dtype=np.float32) * 0.5)
rows = fg.Tensor(np.arange(7 * 24, dtype=np.float32).reshape(7, 24))
def step(h, row):
    h = fg.tanh(h @ w + row)
    return h, h * 2
last, every = fg.scan(step, fg.zeros(24), rows)
chosen = fg.cond(rows.sum() > 0, lambda x: x @ w, lambda x: x - 1, rows)
found = [t.numpy() for t in (last, every, chosen)]
print(json.dumps({
    "bits": [v.tobytes().hex() for v in found], "llvmlite": "llvmlite" in sys.modules,
    "pipeline": "fulgurite.runtime.pipeline" in sys.modules,
}))
"""


def test_bodies_of_loops_and_choices_are_on_disk_too_under_a_key_of_their_own(
    tmp_path: Path,
) -> None:
    cold, warm = work(tmp_path, LOOPING), work(tmp_path, LOOPING)
    assert cold["pipeline"] and not warm["pipeline"] and not warm["llvmlite"]
    assert cold["bits"] == warm["bits"] and not warm["warnings"]


def test_other_options_other_vectors_and_other_constants_are_other_plans(tmp_path: Path) -> None:
    first = work(tmp_path)
    for environment in ({"FULGURITE_FUSE": "0"}, {"FULGURITE_VECTORS": "sse2"}):
        other = work(tmp_path, **environment)
        assert "schedule" in other["stages"]  # type: ignore[operator]
    changed = work(tmp_path, WORK.replace("0.01", "0.02"))
    assert changed["bits"] != first["bits"]
    assert work(tmp_path)["stages"] == ["load"]


def test_a_switched_off_disk_cache_writes_nothing(tmp_path: Path) -> None:
    assert "schedule" in work(tmp_path, FULGURITE_DISK_CACHE="0")["stages"]  # type: ignore[operator]
    assert not list(tmp_path.iterdir())


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and "data" in p.parts)


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied", "removed"])
def test_damaged_entries_are_ignored_with_a_warning_and_made_again(
    tmp_path: Path, how: str, filled: Filled
) -> None:
    good, folder = filled
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for path in files(tmp_path):
        data = bytearray(path.read_bytes())
        if how == "flipped":
            data[len(data) // 2] ^= 0x40
        elif how == "truncated":
            data = data[: len(data) // 2]
        elif how == "emptied":
            data = bytearray()
        path.unlink() if how == "removed" else path.write_bytes(data)
    after = work(tmp_path)
    assert after["bits"] == good["bits"]
    assert bool(after["warnings"]) == (how != "removed")
    assert work(tmp_path)["stages"] == ["load"]


def test_a_stored_plan_that_makes_no_sense_is_a_warning_and_a_miss(tmp_path: Path) -> None:
    with fg.config(device="cpu", tier="native", disk_cache=True, cache_dir=str(tmp_path)):
        fg.clear_caches()
        y = fg.exp(fg.Tensor(np.ones(300, np.float32))) * 3 - 1
        normal = normalize([y.node])
        store, key = store_for(current()), key_of(normal)
        assert store is not None and key is not None
        for nonsense in (b"", b"[]", b"{}", b'{"kernels": 3}', b"\xff", b'{"kernels": [[1]]}'):
            fg.clear_caches()
            store.put("plan", key, nonsense)
            with pytest.warns(RuntimeWarning, match="not used"):
                compiled = lookup(normal, "cpu")
            assert "schedule" in compiled.seconds
        fg.clear_caches()
        assert list(lookup(normal, "cpu").seconds) == ["load"]


def test_four_processes_that_compile_the_same_graph_all_get_it_right(tmp_path: Path) -> None:
    settings = os.environ | {
        "FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native", "FULGURITE_DISK_CACHE": "1",
        "FULGURITE_CACHE_DIR": str(tmp_path),
    }  # fmt: skip
    started = [
        subprocess.Popen([sys.executable, "-c", WORK], env=settings, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(4)
    ]  # fmt: skip
    found = [process.communicate(timeout=300) for process in started]
    assert all(process.returncode == 0 for process in started), found
    answers = [json.loads(out) for out, _ in found]
    assert len({a["bits"] for a in answers}) == 1 and not any(err for _, err in found)
    assert sum("schedule" in a["stages"] for a in answers) == 1  # one compiled, the others waited


def test_kill_9_at_any_moment_leaves_nothing_that_is_half_there(
    tmp_path: Path, filled: Filled
) -> None:
    good, _ = filled
    settings = os.environ | {
        "FULGURITE_DEVICE": "cpu", "FULGURITE_TIER": "native", "FULGURITE_DISK_CACHE": "1",
        "FULGURITE_CACHE_DIR": str(tmp_path / "killed"),
    }  # fmt: skip
    luck = random.Random(7)
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WORK], env=settings, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd=ROOT,
        )  # fmt: skip
        time.sleep(luck.uniform(0.3, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    after = work(tmp_path / "killed")
    assert after["bits"] == good["bits"] and not after["warnings"]


def test_a_folder_that_cannot_be_used_costs_a_warning_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = work(tmp_path / "file")
    assert "schedule" in found["stages"] and found["warnings"]  # type: ignore[operator]


def test_host_functions_reach_the_disk_only_by_a_registered_name(tmp_path: Path) -> None:
    host = HostFunction("nameless", lambda a: a + a)
    with fg.config(device="cpu", tier="native", disk_cache=True, cache_dir=str(tmp_path)):
        x = fg.Tensor(np.ones(10, np.float32))
        y = wrap(custom(host, (x.node,), (10,), fg.float32)) * 3
        assert y.tolist() == [6.0] * 10
        assert key_of(normalize([y.node])) is not None
        z = wrap(custom(host, (x.node,), (10,), fg.float32)) * 4
        assert key_of(normalize([z.node])) is None
    index = next(tmp_path.rglob("index.sqlite"), None)
    if index is not None:
        with closing(sqlite3.connect(index)) as rows:
            kinds = [kind for (kind,) in rows.execute("select kind from entries")]
        assert "plan" not in kinds


def test_kernels_known_on_disk_are_not_compiled_for_a_new_graph(tmp_path: Path) -> None:
    with fg.config(device="cpu", tier="native", disk_cache=True, cache_dir=str(tmp_path)):
        fg.schedule(fg.ones((3,)) + 1).run()  # the driver is there
        code = toolchain.code_for("auto")
        kept = dict(code.functions), dict(code.objects)
        try:
            code.objects.clear()  # as a new process
            x = fg.Tensor(np.ones((30, 70), np.float32))
            fg.clear_caches()
            fg.softmax(x, axis=-1).realize()
            fg.clear_caches()
            code.objects.clear()  # as another one would find it
            before = compiler.calls
            first, second = fg.softmax(x * 1, axis=-1), fg.softmax(x, axis=-1).sum()
            first.realize()
            assert compiler.calls == before
            assert second.item() == pytest.approx(30, rel=1e-5)
        finally:
            code.functions.update(kept[0])
            code.objects.update(kept[1])


def test_a_lifted_constant_is_lifted_in_the_next_process_too(tmp_path: Path) -> None:
    text = """
import json, numpy as np, fulgurite as fg
x = fg.Tensor(np.ones(100_000, np.float32))
seen = []
for step in range(4):
    seen.append(float((x * (0.5 + step) + 1).sum().item()))
from fulgurite.runtime.realize import FAMILIES
stages = [sorted(m.seconds) for k in FAMILIES().keys() for m in FAMILIES().peek(k).members]
print(json.dumps({"seen": seen, "stages": stages}))
"""
    cold, warm = work(tmp_path, text), work(tmp_path, text)
    assert cold["seen"] == warm["seen"] == [100_000 * (1.5 + n) for n in range(4)]
    assert len(warm["stages"]) == len(cold["stages"]) == 2  # type: ignore[arg-type]
    assert warm["stages"] == [["load"], ["load"]]
