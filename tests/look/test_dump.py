"""Tests of look/dump.py and look/inspection.py: a compilation as data, as its docstring says."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError
from fulgurite.graph.passes.laws import SIMPLIFY
from fulgurite.look import dump
from fulgurite.look.inspection import law_source

from ..onnx import models

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(4)


def random(*shape: int) -> fg.Tensor:
    return fg.Tensor(RNG.normal(size=shape).astype(np.float32)).realize()


class Block(fg.nn.Module):
    def __init__(self) -> None:
        self.qkv = fg.nn.Linear(16, 48)

    def forward(self, x: fg.Tensor) -> fg.Tensor:
        q, k, v = self.qkv(x).split(16, axis=-1)
        return fg.softmax(q @ k.mT * 0.25, axis=-1) @ v + x * 1


@cache
def step_data() -> dict[str, Any]:
    """The training step of a small network."""
    block, x = Block(), random(2, 64, 16)
    sgd = fg.optim.SGD(block.parameters(), 0.1)

    @fg.jit
    def step(x: fg.Tensor) -> fg.Tensor:
        loss = (block(x) ** 2).mean()
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        return loss

    step(x)
    with fg.profile() as p:
        step(x)
    return fg.viz_data(step, profile=p, assembly=False)


def test_json_holds_all_of_it_and_the_docstring_names_every_key() -> None:
    data = step_data()
    assert json.loads(json.dumps(data, allow_nan=False))["format"] == dump.FORMAT
    named = set(re.findall(r"^(\w+) {2,}", str(dump.__doc__), re.MULTILINE))
    assert named == set(data)
    for part in ("graph", "memory"):
        for key in data[part]:
            assert key in str(dump.__doc__)
    for part in ("kernels", "codes", "lines", "passes"):
        for key in data[part][0]:
            assert key in str(dump.__doc__)


def test_nodes_know_their_sources_lines_modules_and_kernels() -> None:
    data = step_data()
    nodes, lines = data["graph"]["nodes"], data["lines"]
    for node in nodes:
        assert all(source < node["id"] for source in node["src"])
    product = next(n for n in nodes if n["op"] == "reduce" and n["path"] == ["Block", "qkv"])
    (line,) = {lines[i]["code"] for i in product["lines"]}
    assert line == "q, k, v = self.qkv(x).split(16, axis=-1)"
    assert product["kernels"] and set(product["kernels"]) < set(range(len(data["kernels"])))
    assert data["graph"]["text"].count("\n") + 1 >= len(nodes)


def test_passes_have_texts_where_they_changed_something_and_laws_their_source() -> None:
    passes = step_data()["passes"]
    names = [step["name"] for step in passes]
    places = [names.index(n) for n in ("simplify", "fuse", "schedule", "lower", "plan_memory")]
    assert places == sorted(places)
    assert all((step["text"] is None) != step["changed"] for step in passes)
    laws = [law for step in passes for law in step["laws"]]
    assert "mul-one" in [law["law"] for law in laws]
    for law in laws:
        file, number = law["source"].split(":")
        assert (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]


def test_every_law_and_rule_is_found_where_it_is_written() -> None:
    for rule in SIMPLIFY.rules:
        file, number = law_source(rule).split(":")
        line = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        assert re.search(r"\.law\(|law\(|@rule|def ", line), (rule.name, line)


def test_refused_alternatives_have_costs_and_streams_their_e_graph() -> None:
    q, k, v = random(2, 128, 32), random(2, 128, 32), random(2, 128, 32)
    data = fg.viz_data(fg.softmax(q @ k.mT, axis=-1) @ v, assembly=False)
    (region,) = data["fusion"]["regions"]
    assert region["cost"] < region["greedy"] and region["segments"] == 3
    assert sorted(a["chosen"] for a in region["alternatives"]) == [False, True]
    (code,) = data["codes"]
    assert code["egraph"]["fired"] and any(len(t) > 1 for t in code["egraph"]["classes"].values())
    terms = [term for terms in code["egraph"]["classes"].values() for term in terms]
    assert "mul(load 0, load 1)" in terms and any(term.startswith("sum(") for term in terms)
    assert "saturate" in [step["name"] for step in code["passes"]]


def test_memory_has_lifetimes_that_do_not_overlap_in_the_arena() -> None:
    memory = step_data()["memory"]
    placed = [slot for slot in memory["slots"] if slot["kind"] == "arena"]
    assert placed and max(memory["alive"]) <= memory["peak"]
    assert all(slot["offset"] + slot["bytes"] <= memory["arena"] for slot in placed)
    for a in placed:
        for b in placed:
            apart = a["offset"] + a["bytes"] <= b["offset"] or a["offset"] == b["offset"]
            late = a["last"] < b["first"] or b["last"] < a["first"]
            assert a is b or apart or late or b["offset"] + b["bytes"] <= a["offset"]


def test_a_profile_brings_its_time_line() -> None:
    timeline = step_data()["timeline"]
    assert any(event.get("cat") == "kernel" for event in timeline["events"])
    assert timeline["flame"]["value"] > 0


@pytest.mark.device("cpu")
def test_machine_code_is_there_in_the_targets_language_and_assembly() -> None:
    pytest.importorskip("llvmlite")
    x = fg.Tensor(np.ones((8, 8), np.float32), device="cpu")
    (code,) = fg.viz_data(fg.exp(x) * 3.0)["codes"]
    assert code["language"] == "llvm" and "define void @kernel" in code["text"]
    assert "ret" in code["assembly"]["assembly"] and "kernel" in code["assembly"]["assembly"]


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(ArgumentError, match="nothing to show"):
        fg.viz_data(3)
    with pytest.raises(ArgumentError, match="has not been captured"):
        fg.viz_data(fg.jit(lambda x: x))


def test_an_op_names_the_kernels_that_make_it_not_those_that_read_it() -> None:
    x = random(16, 16)
    total = fg.exp(x).sum(axis=0)
    turned = fg.sort(total)
    data = fg.viz_data((turned * 2 + x) @ x, assembly=False)
    names = [kernel["name"] for kernel in data["kernels"]]
    made = {node["op"]: [names[k] for k in node["kernels"]] for node in data["graph"]["nodes"]}
    assert made["exp"] == ["reduce:reduce"] and made["add"] == ["map:add"]
    assert made["sort"] == made["gather"] == ["sort:gather"]  # places that nobody else reads
    assert [len(kernel["lines"]) for kernel in data["kernels"]] == [1, 1, 1, 1]


def test_nodes_of_an_onnx_model_stand_for_lines(tmp_path: Path) -> None:
    nodes = [models.node("MatMul", "x w", "h"), models.node("Tanh", "h", "y")]
    weights = {"w": np.ones((4, 4), np.float32)}
    ports = [models.port("x", "float32", (2, 4))], [models.port("y")]
    path = tmp_path / "net.onnx"
    path.write_bytes(models.model(models.graph(nodes, *ports, weights)))
    model = fg.onnx.load(path)
    with fg.config(tier="native"), fg.profile() as p:
        model(x=np.ones((2, 4), np.float32))
    rows = {row.name for row in p.lines}
    assert rows == {"net.onnx:1 (MatMul_h)", "net.onnx:2 (Tanh_y)"}
    assert {row.name for row in p.modules} == {"MatMul_h", "Tanh_y"}
    (event,) = [event for event in p.events if event.kind == "graph"]
    assert {line["node"] for line in fg.viz_data(event, assembly=False)["lines"]} == {
        "MatMul_h", "Tanh_y",
    }  # fmt: skip
