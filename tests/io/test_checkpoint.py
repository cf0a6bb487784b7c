"""Checkpoints: what goes in comes out, the one before stays, and a damaged one is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError
from fulgurite.io.checkpoint import load_checkpoint, load_tree, save_checkpoint, save_tree
from fulgurite.io.files import FileError


class Counter:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {"count": fg.zeros(2), "at": 0}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_a_nest_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    nest = {
        "weights": {"w": fg.arange(6).reshape(2, 3), "half": fg.ones(2, "bfloat16")},
        "state": {0: {"step": 3}, 7: {"step": np.int64(4)}},
        "list": [1, 2.5, float("inf"), -0.0, None, True, "text é"],
        "pair": (fg.ones(()), ()),
    }
    save_tree(path, nest)
    found = load_tree(path)
    assert found["weights"]["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["weights"]["half"].dtype is fg.bfloat16
    assert found["state"] == {0: {"step": 3}, 7: {"step": 4}}
    assert found["list"] == nest["list"] and str(found["list"][3]) == "-0.0"
    assert found["pair"][0].item() == 1 and found["pair"][1] == ()


def test_training_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    model, loader = Counter(), Counter()
    model.state["count"] += 5
    fg.random.seed(3)
    save_checkpoint(path, model=model, loader=loader, step=17, losses=[1.0, 0.5])
    drawn = fg.rand(3).tolist()
    again = Counter()
    rest = load_checkpoint(path, model=again, loader=loader)
    assert rest == {"step": 17, "losses": [1.0, 0.5]}
    assert again.state["count"].tolist() == [5, 5] and fg.rand(3).tolist() == drawn
    with pytest.raises(FileError, match="has no optimizer"):
        load_checkpoint(path, optimizer=again)


def test_objects_by_names_of_their_own_are_saved_and_restored(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    ema, critic = Counter(), Counter()
    ema.state["at"], critic.state["at"] = 3, 4
    save_checkpoint(path, ema=ema, critic=critic, note="text")
    first, second = Counter(), Counter()
    assert load_checkpoint(path, ema=first, critic=second)["note"] == "text"
    assert (first.state["at"], second.state["at"]) == (3, 4)
    with pytest.raises(FileError, match="has no scaler"):
        load_checkpoint(path, scaler=Counter())
    with pytest.raises(ArgumentError, match="ema is dict, which has no state_dict"):
        load_checkpoint(path, ema={})


def test_the_one_before_is_kept_and_named_when_the_last_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    for step in (1, 2, 3):
        save_checkpoint(path, step=step, w=fg.full((8,), float(step)))
    assert load_checkpoint(path)["step"] == 3
    assert sorted(os.listdir(tmp_path)) == ["x.ckpt", "x.ckpt.previous"]
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(FileError, match="damaged") as caught:
        load_checkpoint(path)
    assert "x.ckpt.previous" in str(caught.value)
    assert load_checkpoint(f"{path}.previous")["step"] == 2


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    save_tree(path, {"w": fg.arange(3), "n": [1, 2]})
    data = path.read_bytes()
    refused = 0
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 0x11
        path.write_bytes(bytes(broken))
        with pytest.raises(FileError):
            load_tree(path)
        refused += 1
    assert refused == len(data)


def test_what_cannot_be_saved_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    itself: list[Any] = []
    itself.append(itself)
    for wrong in (object(), {(1, 2): 3}, itself, {"f": len}):
        with pytest.raises(ArgumentError):
            save_tree(path, wrong)
    with pytest.raises(ArgumentError, match="state_dict"):
        save_checkpoint(path, model=3)
    with pytest.raises(FileError, match="cannot be written"):
        save_tree(tmp_path / "absent" / "x", {})
    assert not list(tmp_path.iterdir())


SAVING = """
import fulgurite as fg, sys
for step in range(100_000):
    fg.io.save_checkpoint(sys.argv[1], step=step, w=fg.full((4096,), float(step)))
    if step == 2: print("ready", flush=True)
"""


def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    for delay in (0.0, 0.003, 0.007):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(path)], stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = load_checkpoint(path)
        assert found["w"].tolist() == [found["step"]] * 4096
        assert load_checkpoint(f"{path}.previous")["step"] <= found["step"]
