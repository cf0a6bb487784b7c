"""Models that an earlier process built: what is kept of them, and when that is not believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.config import current
from fulgurite.errors import BoundsError
from fulgurite.onnx import load, recall
from fulgurite.onnx.recall import Recalled
from fulgurite.runtime.cache.disk import store_for
from tests.onnx.models import (
    external,
    graph,
    model,
    node,
    perceptron,
    port,
    transformer,
)

pytestmark = pytest.mark.device("cpu")
ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(5)
HOSTILE = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3e38], np.float32)


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store of its own for each test, which a second load finds as another process would."""
    monkeypatch.setattr(recall, "SETTLED_NS", 0)
    with fg.config(cache_dir=str(tmp_path / "cache"), disk_cache=True):
        yield


def convolutions() -> bytes:
    """A convolution, one by channel, a pool and a product: arrays that follow from weights."""
    nodes = [
        node("Conv", "x w b", "a", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", "a", "c"),
        node("Conv", "c d", "e", kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=8),
        node("GlobalAveragePool", "e", "g"),
        node("Flatten", "g", "h"),
        node("Gemm", "h m", "y"),
    ]
    weights = {"w": f(8, 3, 3, 3), "b": f(8), "d": f(8, 1, 3, 3), "m": f(8, 5)}
    return model(graph(nodes, [port("x", "float32", [1, 3, 9, 7])], [port("y")],
                       weights))  # fmt: skip


def recurrent() -> bytes:
    """A GRU over five steps: a loop whose body is a plan."""
    nodes = [node("GRU", "x w r", "y h", hidden_size=8)]
    weights = {"w": f(1, 24, 4), "r": f(1, 24, 8)}
    return model(graph(nodes, [port("x", "float32", [5, 2, 4])], [port("y"), port("h")],
                       weights))  # fmt: skip


def gather() -> bytes:
    """Rows of a table by an index, and one plain product with a weight that stays in the file."""
    nodes = [node("Gather", "t i", "a", axis=0), node("MatMul", "a w", "y")]
    weights = {"t": f(30, 16), "w": f(16, 12)}
    return model(graph(nodes, [port("i", "int64", ["n"])], [port("y")],
                       weights))  # fmt: skip


def rows() -> bytes:
    """A product and a norm of rows; batch and length vary from the first call on."""
    nodes = [node("MatMul", "x w", "a"), node("Softmax", "a", "y", axis=-1)]
    return model(graph(nodes, [port("x", "float32", ["b", "n", 8])], [port("y")],
                       {"w": f(8, 20)}))  # fmt: skip


MODELS: dict[str, tuple[Any, Any]] = {
    "convolutions": (convolutions, lambda: {"x": f(1, 3, 9, 7)}),
    "recurrent": (recurrent, lambda: {"x": f(5, 2, 4)}),
    "gather": (gather, lambda: {"i": RNG.integers(0, 30, 7)}),
    "rows": (rows, lambda: {"x": f(3, 5, 8)}),
}


def values(found: Any) -> list[Any]:
    return [value.numpy() for value in found.values()]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_was_built_before_is_recalled_and_gives_the_same_bits(name: str) -> None:
    make, inputs = MODELS[name]
    text, given = make(), inputs()
    built = load(text)
    wanted = values(built(given))
    again = load(text)
    assert again._program is None  # its file is not parsed
    for a, b in zip(values(again(given)), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.builds == 0 and isinstance(again.last, Recalled) and again._program is None
    assert str(again) == str(built) and again.opset == built.opset
    for _ in range(6):  # plans hold what stays after some runs
        other = inputs()
        if name == "convolutions":
            other["x"].reshape(-1)[:8] = RNG.permutation(HOSTILE)
        for a, b in zip(values(again(other)), values(built(other)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_other_sizes_of_a_recalled_model_have_the_plan_that_was_kept() -> None:
    text = rows()
    built = load(text)
    wanted = {n: values(built({"x": np.full((2, n, 8), 0.5, np.float32)}))[0] for n in (5, 6, 70)}
    assert built.builds == 1
    del built
    fg.clear_caches()
    again = load(text)
    for n in (5, 6, 70):
        found = values(again({"x": np.full((2, n, 8), 0.5, np.float32)}))[0]
        np.testing.assert_array_equal(found, wanted[n])
        assert again.builds == (n != 5) and isinstance(again.last, Recalled) == (n == 5)


def test_kernels_of_a_recalled_model_name_their_nodes() -> None:
    text, given = convolutions(), {"x": f(1, 3, 9, 7)}
    lines = []
    for _ in range(2):
        made = load(text)
        made(given)
        assert made.last is not None and made.last.schedule is not None
        lines.append([item.lines for item in made.last.schedule.items])
    assert lines[0] == lines[1] and any("Conv" in line for item in lines[0] for line in item)


def test_an_index_outside_names_the_node_of_a_recalled_model() -> None:
    text = gather()
    load(text)({"i": np.arange(7)})
    made = load(text)
    made({"i": np.arange(7)})
    assert made.builds == 0
    with pytest.raises(BoundsError, match="Gather"):
        made({"i": np.array([0, 1, 2, 3, 4, 5, 30])})


def test_other_shapes_options_and_weights_are_not_recalled() -> None:
    text, seven = gather(), {"i": np.arange(7)}
    load(text)(seven)
    assert load(text)(seven) and load(gather())._program is not None  # other weights
    eight = load(text)
    eight({"i": np.arange(8)})
    assert eight.builds == 1
    for options in ({"exact": True}, {"autocast": "bfloat16"}, {"vectors": "avx2"}):
        with fg.config(**options):
            made = load(text)
            made(seven)
            assert made.builds == 1, options
    with fg.config(verify=True):
        made = load(text)
        made(seven)
        assert made.builds == 1
    with fg.config(disk_cache=False):
        made = load(text)
        made(seven)
        assert made.builds == 1


def test_a_file_is_known_by_its_status_and_a_changed_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, given = tmp_path / "model.onnx", {"x": f(1, 3, 9, 7)}
    text = convolutions()
    path.write_bytes(text)
    first = values(load(path)(given))
    made = load(path)
    assert made._program is None
    np.testing.assert_array_equal(values(made(given))[0], first[0])
    other = convolutions()
    assert len(other) == len(text) and other != text
    path.write_bytes(other)  # the same size, and soon after
    changed = load(path)
    assert changed._program is not None
    assert np.abs(values(changed(given))[0] - first[0]).max() > 1e-3
    monkeypatch.setattr(recall, "SETTLED_NS", 10**12)
    path.write_bytes(text)
    load(path)(given)
    assert load(path)._program is not None  # its times may be those of two writes


def test_what_is_kept_is_not_believed_if_it_was_changed_or_its_code_is_gone() -> None:
    text, given = convolutions(), {"x": f(1, 3, 9, 7)}
    wanted = values(load(text)(given))
    store = store_for(current())
    assert store is not None
    entries = [key for kind, key in store.entries() if kind == "model"]
    assert len(entries) == 2  # what it takes and gives, and one plan
    kept = {key: store.get("model", key) for key in entries}
    (key,) = [key for key, data in kept.items() if data is not None and data[:1] != b"["]
    whole = kept[key]
    assert whole is not None
    length = int.from_bytes(whole[:8], "little")
    about = json.loads(whole[8 : 8 + length])
    for damage in ("nothing", "buffers", "code"):
        data = b"" if damage == "nothing" else whole
        if damage == "buffers":
            head = json.dumps({**about, "buffers": about["buffers"][:-1]}).encode()
            data = len(head).to_bytes(8, "little") + head
        if damage == "code":
            plan = {**about["plan"]}
            plan["kernels"] = [[*k[:4], ["0" * 32, *k[4][1:]] if k[4] else None]
                               for k in plan["kernels"]]  # fmt: skip
            head = json.dumps({**about, "plan": plan}).encode()
            data = len(head).to_bytes(8, "little") + head
        store.put("model", key, data)
        with pytest.warns(RuntimeWarning, match="a stored model is not used"):
            made = load(text)
            found = values(made(given))
        assert made.builds == 1
        np.testing.assert_array_equal(found[0], wanted[0])
    made = load(text)  # it was kept again
    made(given)
    assert made.builds == 0


def test_what_depends_on_numbers_files_or_results_is_not_kept(tmp_path: Path) -> None:
    ports = [port("x", "float32", [4, 6]), port("s", "int64", [2])]
    reshape = model(graph([node("Reshape", "x s", "y")], ports, [port("y")]))
    results = model(graph([node("NonZero", "x", "n"), node("Cast", "n", "y", to=1)],
                          [port("x", "float32", [4, 6])], [port("y")]))  # fmt: skip
    for text, given in (
        (reshape, {"x": f(4, 6), "s": np.array([6, 4])}),
        (results, {"x": f(4, 6)}),
    ):
        load(text)(given)
        made = load(text)
        made(given)
        assert made.builds == 1
    np.asarray(f(16, 12)).tofile(tmp_path / "w.bin")
    weight = external("w", [16, 12], {"location": "w.bin"})
    text = model(graph([node("MatMul", "x w", "y")], [port("x", "float32", [40, 16])],
                       [port("y")], stored=[weight]))  # fmt: skip
    (tmp_path / "model.onnx").write_bytes(text)
    for _ in range(2):
        made = load(tmp_path / "model.onnx")
        made({"x": f(40, 16)})
        assert made.builds == 1


def test_a_process_that_recalls_loads_no_operators_and_no_parser(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(convolutions())
    np.save(tmp_path / "x.npy", f(1, 3, 9, 7))
    work = (
        "import sys, numpy as np, fulgurite as fg\n"
        "from fulgurite.onnx import recall\n"
        "recall.SETTLED_NS = 0\n"
        f"model = fg.onnx.load({str(path)!r})\n"
        f"y = model(np.load({str(tmp_path / 'x.npy')!r}))['y'].numpy()\n"
        "late = ('onnx.graph', 'onnx.proto', 'onnx.plans', 'runtime.pipeline', 'graph.passes',\n"
        "        'codegen.cpu.tiling')\n"
        "late = [m for m in late if f'fulgurite.{m}' in sys.modules]\n"
        "print(model.builds, late, y.tobytes().hex())"
    )
    settings = {**os.environ, "FULGURITE_CACHE_DIR": str(tmp_path / "cache"),
                "PYTHONPATH": str(ROOT), "FULGURITE_DISK_CACHE": "1"}  # fmt: skip
    found = [
        subprocess.run([sys.executable, "-c", work], env=settings, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert not any(done.returncode for done in found), [done.stderr for done in found]
    first, second = [done.stdout.split("] ") for done in found]
    assert first[0].startswith("1") and second[0] == "0 [", second
    assert first[1] == second[1]


def test_weights_that_may_be_given_and_outputs_that_are_weights_are_as_before() -> None:
    given = {"x": f(3, 4)}
    for text in (perceptron(), transformer()):
        ports = load(text).inputs
        assert [str(p) for p in load(text).inputs] == [str(p) for p in ports]
    nodes = [node("MatMul", "x w", "y"), node("Identity", "w", "z")]
    text = model(graph(nodes, [port("x", "float32", [3, 4])], [port("y"), port("z")],
                       {"w": f(4, 5)}))  # fmt: skip
    wanted = values(load(text)(given))
    for a, b in zip(values(load(text)(given)), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
